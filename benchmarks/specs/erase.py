"""Row erase: one customer's rows leave a topic of 10 GB.

Two ways are measured, because an erasure could work in either. `Admin.erase` rewrites the files before it returns. Or
readers could apply the condition to what they read, until maintenance has rewritten the files. So reads with and
without such a condition are timed, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np
import pyarrow as pa

from benchmarks import log
from benchmarks.harness import Contestant, Place, Samples, Spec
from benchmarks.timing import seconds
from txlog.client.store import Store

COMMITS, ROWS, BODY_BYTES = 160, 65_536, 1_000
"""10.5 GB that no codec makes smaller."""
CUSTOMERS = 100_000
SPREAD, ONE = "customer = 17", "id = 1000"
"""Rows in each segment, and a row of one."""


@contextmanager
def erasures(place: Place) -> Iterator[Callable[[], Samples]]:
    """Yield a turn that reads the topic in each way, and erases from it."""
    dice = np.random.default_rng(place.seed)
    commits = place.sized(COMMITS, least=3)
    ends = pa.py_buffer((np.arange(ROWS + 1, dtype=np.int32) * BODY_BYTES).tobytes())
    schema = pa.schema([("id", pa.int64()), ("customer", pa.int64())]).append(pa.field("body", pa.binary()))
    with log.opened(place.folder / "store") as (store, _):
        store.create_topic(log.TOPIC, schema)
        with store.producer() as producer:
            for number in range(commits):
                columns = [
                    pa.array(np.arange(number * ROWS, (number + 1) * ROWS)),
                    pa.array(dice.integers(0, CUSTOMERS, ROWS)),
                    pa.Array.from_buffers(pa.binary(), ROWS, [None, ends, pa.py_buffer(dice.bytes(ROWS * BODY_BYTES))]),
                ]
                producer.send(log.TOPIC, pa.table(columns, schema=schema), partition=0).result()

        def turn() -> Samples:
            found: dict[str, Sequence[float]] = {}
            for name, columns in (("all columns", ["*"]), ("one column", ["id"])):
                for kind, where in (("read s", None), ("read s, condition", f"not ({SPREAD})")):
                    # The first read of the files fills the machine's cache.
                    _read(store, columns, where)
                    found[f"{kind}, {name}"] = seconds(partial(_read, store, columns, where))["s"]
            for name, where in (("one segment", ONE), ("each segment", SPREAD)):
                found[f"erase s, {name}"] = seconds(partial(_erase, store, where))["s"]
            return found

        yield turn


def _read(store: Store, columns: list[str], where: str | None) -> None:
    for batch in store.table(log.TOPIC).scan(columns, where):
        del batch


def _erase(store: Store, where: str) -> None:
    if not sum(store.admin().erase(log.TOPIC, where=where).values()):
        raise RuntimeError(f"nothing was erased where {where}")


SPECS = (
    Spec(
        row="erase",
        title="erase from a topic of 10 GB",
        contestants=(Contestant(name="txlog", start=erasures),),
        once=True,
        apart=True,
    ),
)
