"""Row writers: 8 and 32 processes commit to one table at 60 ms a request, beside delta-rs and pyiceberg.

All of them talk to one server of S3's requests, which counts them. Delta and Iceberg on Spark are not here: so many
drivers need more memory than a machine of two cores has.
"""

from __future__ import annotations

import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pyarrow as pa

import txlog
from benchmarks import inputs, log
from benchmarks.harness import Contestant, Goal, NotAvailable, Place, Samples, Spec
from benchmarks.rivals import delta_rs, pyiceberg
from benchmarks.specs.p15_requests import s3_options
from benchmarks.timing import Call, Prepare, crew, no_requests
from tests.servers.s3 import COUNTER
from tests.servers.start import Server, start
from txlog.errors import TxlogError

ROWS, SECONDS, LATENCY_MS = 100, 20.0, 60
COUNTS = (8, 32)


@contextmanager
def served() -> Iterator[Server]:
    """Yield a server of S3's requests on which each of them takes LATENCY_MS."""
    try:
        import s3fs  # noqa: F401
    except ImportError as error:
        raise NotAvailable("needs the package s3fs") from error
    with start("s3", "--latency-ms", str(LATENCY_MS)) as server:
        yield server


@contextmanager
def counted(place: Place, server: Server, prepare: Prepare, processes: int) -> Iterator[Callable[[], Samples]]:
    """Yield a turn of several processes, with the requests of a commit as the server has counted them."""
    with crew(prepare, processes, max(SECONDS * place.scale, 0.5)) as turn:

        def measured() -> Samples:
            before = requests(server)
            samples = turn()
            made = requests(server) - before
            return {**samples, "requests": [made / max(len(samples["ms"]), 1)]}

        yield measured


def requests(server: Server) -> int:
    """Return how many requests the server has had."""
    with urllib.request.urlopen(f"{server.url}/{COUNTER}") as answer:
        return int(answer.read())


@contextmanager
def txlog_side(place: Place, *, processes: int, plain: bool) -> Iterator[Callable[[], Samples]]:
    """Yield a turn of txlog: transactions, each process with an id, or `plain` appends, all to one partition."""
    with served() as server:
        with txlog.open(server.store_url("bench"), storage_options=server.storage_options) as store:
            store.create_topic(log.TOPIC, inputs.RECORDS)
        member = partial(_txlog_member, server, place.seed, plain)
        with counted(place, server, member, processes) as turn:
            yield turn


@contextmanager
def _txlog_member(server: Server, seed: int, plain: bool, number: int) -> Iterator[tuple[Call, Callable[[], int]]]:
    rows = inputs.records(ROWS, seed + number)
    with txlog.open(server.store_url("bench"), storage_options=server.storage_options) as store:
        if plain:
            with store.producer(linger_ms=0) as producer:
                yield accepted(lambda: producer.send(log.TOPIC, rows, partition=0).result()), no_requests
        else:
            with store.producer(f"bench-{number}") as producer:
                yield accepted(log.transaction(producer, rows, range(1))), no_requests


def accepted(call: Call) -> Call:
    """Return the call, which returns False if txlog refuses it, as those of the rivals do."""

    def counted_call() -> bool:
        try:
            call()
        except TxlogError:
            return False
        return True

    return counted_call


@contextmanager
def delta_rs_side(place: Place, *, processes: int) -> Iterator[Callable[[], Samples]]:
    """Yield a turn of delta-rs, which opens the table by its URL for each append."""
    delta_rs.package()
    rows = inputs.records(ROWS, place.seed)
    with served() as server:
        delta_rs.append(server.store_url("table"), rows, s3_options(server))
        with counted(place, server, partial(_delta_rs_member, server, rows), processes) as turn:
            yield turn


@contextmanager
def _delta_rs_member(server: Server, rows: pa.Table, number: int) -> Iterator[tuple[Call, Callable[[], int]]]:
    yield partial(delta_rs.append, server.store_url("table"), rows, s3_options(server)), no_requests


@contextmanager
def pyiceberg_side(place: Place, *, processes: int) -> Iterator[Callable[[], Samples]]:
    """Yield a turn of pyiceberg. Its catalog is SQLite beside the processes, so its own requests take no time."""
    rows = inputs.records(ROWS, place.seed)
    with served() as server, pyiceberg.table(place.folder, server, rows.schema):
        member = partial(_pyiceberg_member, place.folder, server, rows)
        with counted(place, server, member, processes) as turn:
            yield turn


@contextmanager
def _pyiceberg_member(
    folder: Path, server: Server, rows: pa.Table, number: int
) -> Iterator[tuple[Call, Callable[[], int]]]:
    with pyiceberg.opened(folder, server) as table:
        yield partial(pyiceberg.append, table, rows), no_requests


SPECS = tuple(
    Spec(
        row="writers",
        title=f"{processes} writers of one table, {LATENCY_MS} ms a request",
        contestants=(
            Contestant(name="txlog", start=partial(txlog_side, processes=processes, plain=False)),
            Contestant(name="txlog, appends", start=partial(txlog_side, processes=processes, plain=True)),
            Contestant(name="delta-rs", start=partial(delta_rs_side, processes=processes)),
            Contestant(name="pyiceberg", start=partial(pyiceberg_side, processes=processes)),
        ),
        goals=(
            Goal(of="txlog", figure="per s", versus="delta-rs", at_least=2),
            Goal(of="txlog", figure="refused %", at_most=0),
            Goal(of="txlog, appends", figure="refused %", at_most=0),
        ),
        once=True,
    )
    for processes in COUNTS
)
