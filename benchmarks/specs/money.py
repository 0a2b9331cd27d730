"""Row money: what do the requests of a commit cost on S3?

The requests are counted at a server of S3's protocol, for handles that stay open. The prices are the list prices of S3
Standard in us-east-1: LIST costs as much as PUT, and DELETE is free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import txlog
from benchmarks import inputs, log
from benchmarks.harness import Contestant, Place, Samples, Spec
from benchmarks.rivals import delta_rs, pyiceberg
from benchmarks.specs.p15_requests import ROWS, s3_options, served

PUT_USD, GET_USD = 5.0, 0.4
"""A million requests: PUT, POST and LIST; GET and HEAD."""
MILLIONS_A_MONTH = 30 * 86_400 / 1e6
"""Of something that happens once a second."""
COMMITS = 100


def bill(lines: Callable[[], tuple[str, ...]], commit: Callable[[], object]) -> Samples:
    """Return requests and dollars of one commit, from the mean of many."""
    # The first commits open what later ones have open.
    for _ in range(5):
        commit()
    before = len(lines())
    for _ in range(COMMITS):
        commit()
    made = [line for line in lines()[before:] if not line.startswith("DELETE")]
    puts = sum(line.startswith(("PUT", "POST")) or "list-type" in line for line in made) / COMMITS
    gets = len(made) / COMMITS - puts
    usd = puts * PUT_USD + gets * GET_USD
    found = {"PUT and LIST": puts, "GET and HEAD": gets, "USD a million commits": usd, "USD a million rows": usd / ROWS}
    found |= {f"USD a month, {rate:,} commits per s": usd * MILLIONS_A_MONTH * rate for rate in (1, 100, 10_000)}
    return {name: [value] for name, value in found.items()}


@contextmanager
def txlog_side(place: Place, *, append: bool = False, staged: bool | None = None) -> Iterator[Callable[[], Samples]]:
    """Yield a turn of txlog: transactions, or appends without one."""
    rows = inputs.records(ROWS, place.seed)
    with served() as (server, lines):
        store = txlog.open(server.store_url("bench"), storage_options=server.storage_options)
        with store:
            store.create_topic(log.TOPIC, inputs.RECORDS)
            if append:
                with store.producer(linger_ms=0) as plain:
                    yield partial(bill, lines, lambda: plain.send(log.TOPIC, rows, partition=0).result())
            else:
                with store.producer("bench", staged=staged) as producer:
                    yield partial(bill, lines, log.transaction(producer, rows, range(1)))


@contextmanager
def rival(place: Place) -> Iterator[Callable[[], Samples]]:
    """Yield a turn of delta-rs, with an open handle."""
    deltalake = delta_rs.package()
    rows = inputs.records(ROWS, place.seed)
    with served() as (server, lines):
        url, options = server.store_url("table"), s3_options(server)
        delta_rs.append(url, rows, options)
        table = deltalake.DeltaTable(url, storage_options=options)
        yield partial(bill, lines, lambda: deltalake.write_deltalake(table, rows, mode="append"))


@contextmanager
def iceberg(place: Place) -> Iterator[Callable[[], Samples]]:
    """Yield a turn of pyiceberg, with an open table. Its catalog in SQLite has no price here."""
    rows = inputs.records(ROWS, place.seed)
    with served() as (server, lines), pyiceberg.table(place.folder, server, rows.schema) as table:
        yield partial(bill, lines, lambda: table.append(rows))


SPECS = (
    Spec(
        row="money",
        title="requests of a commit of 100 rows, and their price on S3",
        contestants=(
            Contestant(name="txlog, append", start=partial(txlog_side, append=True)),
            Contestant(name="txlog", start=txlog_side),
            Contestant(name="txlog, eager", start=partial(txlog_side, staged=False)),
            Contestant(name="delta-rs", start=rival),
            Contestant(name="pyiceberg", start=iceberg),
        ),
        once=True,
    ),
)
