"""`txlog exporter`: serve the metrics of a whole store to Prometheus."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Annotated

from txlog.cli.interrupts import Interrupts
from txlog.cli.options import Session, option
from txlog.errors import NotAStoreError, RetriableError
from txlog.metrics import enabled
from txlog.text import time_text

if TYPE_CHECKING:
    from txlog.client.session.runtime import Runtime

_PORT = 9464
_HOST = "127.0.0.1"
_MIN_INTERVAL_MS = 15_000
_TIMEOUT_MS = 10_000
_MAX_READS = 500
_DAY_MS = 86_400_000


def exporter(
    session: Session,
    port: Annotated[
        int, option("--port PORT", "Serve Prometheus metrics there, at /metrics. 0: any free port.")
    ] = _PORT,
    host: Annotated[
        str, option("--host HOST", "The address to serve them at. 0.0.0.0: for other machines, too.")
    ] = _HOST,
    min_interval_ms: Annotated[
        int,
        option("--min-interval-ms MS", "Scrapes within this time after a look get the numbers of that look.", min=0),
    ] = _MIN_INTERVAL_MS,
    max_reads: Annotated[
        int, option("--max-reads N", "The most indexes of segments that one look reads, for files and bytes.", min=1)
    ] = _MAX_READS,
    timeout_ms: Annotated[
        int, option("--timeout-ms MS", "The longest time that one call of a look may take.", min=1)
    ] = _TIMEOUT_MS,
) -> None:
    """Serve the metrics of the whole store to Prometheus, until a signal ends the program. This command only reads.

    A look at a store with T topics, F of them published, and P partitions in which nothing happened takes T + P + F + 5
    requests. P includes the partitions of the tables of transactions and offsets that hold anything, at most 100 with
    the default settings. A changed partition takes one more request for each new record, and is listed again after 64.
    An index of a segment is read once. A partition and the publications of a topic are also listed when
    metadata.max.age.ms is over.

    If the store does not answer, txlog_up is 0 and the next look tries again. A damaged topic has txlog_topic_up 0. A
    look that takes longer than 8 seconds goes on, and its scrape gets the numbers of the look before.
    """
    # A local import, because it loads more than `--help` needs.
    from txlog.client.session.runtime import Runtime
    from txlog.exporter.exporter import Exporter
    from txlog.metrics.prometheus import Server

    def open_store() -> Runtime:
        settings = session.settings
        runtime = Runtime.open(
            session.url,
            storage_options=settings.storage_options,
            config={"default.api.timeout.ms": timeout_ms},
            config_file=settings.config,
        )
        if runtime.descriptor is None:
            runtime.close()
            raise NotAStoreError(
                f"{runtime.where} holds no txlog store: it is empty or missing. Check --store; "
                "`txlog topics create` makes one"
            )
        return runtime

    with contextlib.ExitStack() as stack:
        interrupts = stack.enter_context(Interrupts())
        # Before the store is opened: an open store counts nothing.
        registry = stack.enter_context(enabled())
        served = Exporter(open_store, registry, min_interval_ms=min_interval_ms, max_reads=max_reads)
        stack.callback(served.close)
        try:
            served.open()
        except RetriableError as error:
            session.out.note(f"{error.problem}; the first scrape tries again")
        server = stack.enter_context(Server(registry, port, host, served.refresh))
        session.out.note(f"Metrics at {server.url}")
        session.out.flush()
        while interrupts.received is None:
            interrupts.sleep(served.clock, _DAY_MS)
        session.out.note(f"{time_text(served.clock.now_ms())}  Ended by {interrupts.received.name}.")
