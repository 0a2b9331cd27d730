"""Row P15: requests on S3 after 105 commits, counted at the server: a commit by a new process, and a cold read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import txlog
from benchmarks import inputs, log
from benchmarks.harness import Contestant, Goal, NotAvailable, Place, Samples, Spec
from benchmarks.rivals import delta_rs
from tests.servers.fault_proxy import FaultProxy
from tests.servers.s3 import ACCESS_KEY, SECRET_KEY
from tests.servers.start import Server, start

ROWS, BEFORE = 100, 105


@contextmanager
def served() -> Iterator[tuple[Server, Callable[[], tuple[str, ...]]]]:
    """Yield a server of S3's requests on loopback, and the requests that it has had: `METHOD /path?query`."""
    try:
        import s3fs  # noqa: F401
    except ImportError as error:
        raise NotAvailable("needs the package s3fs") from error
    with start("s3") as behind, FaultProxy(behind.url) as proxy:
        yield behind.at(proxy.url), lambda: proxy.requests


def s3_options(server: Server) -> dict[str, str]:
    """Return delta-rs's storage options for that server."""
    return {
        "AWS_ENDPOINT_URL": server.url,
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_REGION": "us-east-1",
        "aws_conditional_put": "etag",
    }


def cost(lines: Callable[[], tuple[str, ...]], call: Callable[[], object]) -> Samples:
    """Return the requests of the call."""
    before = len(lines())
    call()
    return {"requests": [len(lines()) - before]}


@contextmanager
def txlog_side(place: Place, *, staged: bool | None, reading: bool) -> Iterator[Callable[[], Samples]]:
    """Yield a turn of txlog."""
    rows = inputs.records(ROWS, place.seed)
    with served() as (server, lines):
        url, options = server.store_url("bench"), server.storage_options

        def commit(times: int) -> None:
            with txlog.open(url, storage_options=options) as store, store.producer("bench", staged=staged) as producer:
                for _ in range(times):
                    log.transaction(producer, rows, range(1))()

        def read() -> None:
            with txlog.open(url, storage_options=options) as store:  # noqa: SIM117  three lines read better
                with store.consumer(log.TOPIC, auto_offset_reset="earliest") as consumer:
                    found = sum(batch.num_rows for batch in consumer.iterate())
            if found != ROWS * BEFORE:
                raise RuntimeError(f"{found} rows were read")

        with txlog.open(url, storage_options=options) as store:
            store.create_topic(log.TOPIC, inputs.RECORDS)
        commit(BEFORE)
        yield partial(cost, lines, read if reading else partial(commit, 1))


@contextmanager
def rival(place: Place, *, reading: bool) -> Iterator[Callable[[], Samples]]:
    """Yield a turn of delta-rs."""
    deltalake = delta_rs.package()
    rows = inputs.records(ROWS, place.seed)
    with served() as (server, lines):
        url, options = server.store_url("table"), s3_options(server)

        def commit() -> None:
            delta_rs.append(url, rows, options)

        def read() -> None:
            deltalake.DeltaTable(url, storage_options=options).to_pyarrow_table()

        for _ in range(BEFORE):
            commit()
        yield partial(cost, lines, read if reading else commit)


FLOOR = (
    "12 requests do not depend on the log. They are 1 for the store, 3 for the topic (W46 included), 4 that open the "
    "table and the partition, and 4 PUTs. Each record since the last snapshot is one GET more, all of them in one "
    "round. Tried: segments of 16 records for the table of transactions, where 105 commits left up to 100 records "
    "before. Tried: close() seals a tail of 8 records of the table (28 to 18 requests). With 12, 6 or 4 records, "
    "processes that commit once each cost more. The rest is the topic's own tail."
)


def _spec(title: str, most: int, *, reading: bool) -> Spec:
    # The goal of a read is that of a staged log.
    goal = Goal(of="txlog, staged" if reading else "txlog", figure="requests", at_most=most)
    return Spec(
        row="P15",
        title=title,
        once=True,
        contestants=(
            Contestant(name="txlog", start=partial(txlog_side, staged=None, reading=reading)),
            Contestant(name="txlog, staged", start=partial(txlog_side, staged=True, reading=reading)),
            Contestant(name="delta-rs", start=partial(rival, reading=reading)),
        ),
        goals=(goal, Goal(of=goal.of, figure="requests", versus="delta-rs", at_most=1.0)),
        floor="" if reading else FLOOR,
    )


SPECS = (
    _spec("S3 requests: a new process commits after 105 transactions", 12, reading=False),
    _spec("S3 requests: a new process reads 105 transactions", 25, reading=True),
)
