"""How is a store stored after its columns changed? This script writes one with each change that is allowed.

    python -m tests.golden.make_evolved [FOLDER]        # default: tests/golden/v2, which must not exist

`tests/golden/v2` is never written again. An old program wrote it, and `test_evolved.py` reads it with the current code
on every road. It has the features of its time, and `v1` beside it has those of the first stores.

`orders` has rows of four versions of its columns: inline, in files, in sealed segments of two versions, in a merged
run, and in a staged transaction. `prices` is compacted between two changes, one of which renames its key.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

import txlog
from txlog.client import reading
from txlog.client.store import Store
from txlog.core.cleaning import MergePolicy
from txlog.core.names import TopicPartition
from txlog.maintenance.compact import compact_partition, compaction_policy
from txlog.maintenance.merge import merge_partition
from txlog.storage.memory import MemoryObjectStore
from txlog.storage.object_store import ObjectStore
from txlog.testing.clock import ManualClock, SeededIds

FORMAT_FOLDER = Path(__file__).parent / "v2"
START_MS = 1_764_000_000_000
FEATURES = (
    "group-members",
    "inline-zstd",
    "schema-evolution",
    "sorted-runs",
    "staged-commit",
    "staged-inline",
    "txn-v2",
)
"""The features that existed when `v2` was written."""

ORDERS = pa.schema(
    (
        pa.field("id", pa.int32(), nullable=False),
        pa.field("a", pa.string()),
        pa.field("b", pa.string()),
        pa.field("n", pa.int8()),
        pa.field("f", pa.float32()),
        pa.field("d", pa.decimal128(5, 2)),
        pa.field("s", pa.struct([pa.field("x", pa.int16()), pa.field("y", pa.string())])),
        pa.field("l", pa.list_(pa.struct([pa.field("x", pa.int8())]))),
        pa.field("m", pa.map_(pa.string(), pa.float32())),
    )
)
PRICES = pa.schema((pa.field("id", pa.int64()), pa.field("zone", pa.string()), pa.field("price", pa.float32())))


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FORMAT_FOLDER
    if folder.exists():
        sys.exit(f"{folder} exists; a golden store is never changed")
    make(folder)
    print(f"{folder}: {sum(path.is_file() for path in folder.rglob('*'))} objects, pyarrow {pa.__version__}")


def make(folder: Path) -> None:
    """Write the golden store into `folder`."""
    clock = ManualClock(START_MS)
    memory = MemoryObjectStore(clock=clock)
    with txlog.open("memory://", clock=clock, ids=SeededIds(1), object_store=memory) as store:
        store.create_topic("orders", ORDERS, config={"segment.batches": 2})
        story_of_orders(store, clock)
        config = {"segment.batches": 2, "key.columns": "id", "cleanup.policy": "compact", "min.compaction.lag.ms": 0}
        store.create_topic("prices", PRICES, config=config)
        story_of_prices(store, clock)
    for path in paths(memory):
        data = memory.get(path)
        assert data is not None
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)


def paths(store: ObjectStore, folder: str = "") -> Iterator[str]:
    """Return the paths of all objects."""
    for name in store.list(folder):
        if name.endswith("/"):
            yield from paths(store, folder + name)
        else:
            yield folder + name


def order(number: int, a: str | None, b: str | None, **more: Any) -> dict[str, Any]:
    """Return a row of the first version."""
    return {
        "id": number,
        "a": a,
        "b": b,
        "n": -number,
        "f": number / 2,
        "d": Decimal(number) / 4,
        "s": {"x": number, "y": f"y{number}"} if number % 2 else None,
        "l": [{"x": number}, None],
        "m": [("k", number / 4)],
        **more,
    }


def story_of_orders(store: Store, clock: ManualClock) -> None:
    send(store, clock, "orders", [order(1, "a1", "b1"), order(2, None, "b2")], in_file=True)
    send(store, clock, "orders", [order(3, "a3", None)])
    # Two batches are a segment, and the next one seals it: files with rows of both versions.
    send(store, clock, "orders", [order(4, "a4", "b4")])
    store.alter_topic(
        "orders",
        rename_columns={"a": "b", "b": "a"},
        set_types={"n": "int32", "f": "float64", "d": "decimal(20,2)"},
    )
    # A row of a producer that means the new columns: `a` is what was `b`.
    send(store, clock, "orders", [order(5, "b5", "a5", n=2**31 - 1, f=1e300, d=Decimal("1e15"))])
    send(store, clock, "orders", [order(6, "b6", "a6")], in_file=True)
    large = MergePolicy(target_bytes=2**30)
    merge_partition(store.runtime, reading.read_session(store.runtime), TopicPartition("orders", 0), large)
    store.alter_topic("orders", drop_columns=["a"])
    store.alter_topic(
        "orders",
        add_columns=pa.schema({"a": pa.int64()}),
        column_defaults={"a": 2**40, "s.y": True},
        nullable_columns=["id"],
        rename_columns={"s.x": "z", "s.y": "old y"},
        add_fields={"s": pa.schema({"y": pa.bool_()})},
        set_types={"l.element.x": "int64", "m.value": "float64"},
        column_order=["n", "s.y"],
    )
    new: dict[str, Any] = {"id": None, "a": 7, "b": "a7", "s": {"y": None, "z": 7, "old y": None}}
    send(store, clock, "orders", [{**new, "l": [{"x": 2**40}], "m": [("k", 1e300)]}])
    store.alter_topic("orders", drop_columns=["s.old y"])
    with store.producer("nightly", staged=True) as producer, producer.transaction(version=1):
        producer.send("orders", [{"id": 8, "b": "a8", "s": {"y": False, "z": 8}}])
        producer.send("orders", [{"id": 9}])
    clock.advance_ms(1000)
    store.alter_topic(
        "orders",
        rename_columns={"b": "title"},
        add_columns=pa.schema((("note", pa.string()), ("day", pa.date32()))),
        column_defaults={"note": "none", "day": -1},
    )
    send(store, clock, "orders", [{"id": 10, "title": "a10", "note": None, "day": None}])


def story_of_prices(store: Store, clock: ManualClock) -> None:
    for number in range(6):
        send(store, clock, "prices", [{"id": number % 3, "zone": f"z{number}", "price": float(number)}])
    compact(store)
    store.alter_topic("prices", rename_columns={"id": "zone", "zone": "id"}, set_types={"price": "float64"})
    for number in range(6, 9):
        send(store, clock, "prices", [{"zone": number % 2, "id": f"z{number}", "price": 1e300}])
    send(store, clock, "prices", [{"zone": 2, "id": None, "price": None}])
    compact(store)
    send(store, clock, "prices", [{"zone": 5, "id": "z9", "price": 0.5}])


def send(store: Store, clock: ManualClock, topic: str, rows: list[dict[str, Any]], *, in_file: bool = False) -> None:
    with store.producer(linger_ms=0, inline_max_bytes=1 if in_file else 10_000) as producer:
        producer.send(topic, rows).result()
    clock.advance_ms(1000)


def compact(store: Store) -> None:
    policy = compaction_policy(store.runtime, store.runtime.topic("prices", 0), min_cleanable_dirty_ratio=0)
    assert policy is not None
    compact_partition(store.runtime, reading.read_session(store.runtime), TopicPartition("prices", 0), policy)


if __name__ == "__main__":
    main()
