"""Which stores are damaged, in which ways, and what do readers and operators see of them?

`golden` has every kind of object of the format. In `twins` all partitions look alike: the same names and sizes, but
different rows. So a swapped object fits in its new place, unless its own fields show that it is wrong.
"""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

import txlog
from lab.testing.damage import overwrite
from tests.client.world import World
from tests.golden.test_golden import GOLDEN
from txlog.core.names import TopicPartition
from txlog.errors import CorruptLogError, NotAStoreError, TxlogError
from txlog.maintenance.fsck import FsckReport, check_store
from txlog.storage.memory import MemoryObjectStore
from txlog.testing.clock import ManualClock, SeededIds

Objects = Mapping[str, bytes]
ROWS = pa.schema((pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())))
TWINS = ("east", "west")
LEVELS = ("read_committed", "read_uncommitted")


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """One way to damage a store: paths with their new contents; None deletes the object."""

    name: str
    changes: Mapping[str, bytes | None]

    @property
    def path(self) -> str:
        """Return the object that is damaged."""
        return next(iter(self.changes))

    def applied_to(self, objects: Objects) -> dict[str, bytes]:
        found = dict(objects)
        for path, data in self.changes.items():
            if data is None:
                found.pop(path, None)
            else:
                found[path] = data
        return found

    def __str__(self) -> str:
        return f"{self.name} {self.path}"


def kind_of(path: str) -> str:
    """Return `batch`, `index`, …; files of rows by the form of their names."""
    if path == "txlog.json":
        return "txlog.json"
    if "/topic." in path:
        return "topic.json"
    if path.endswith(".parquet"):
        if "/rows/" in path:
            return "parquet of a producer"
        if "/staged/" in path:
            return "parquet of Spark's"
        return "parquet of a segment" if re.search(r"-0-[0-9a-f]+\.parquet$", path) else "parquet of a run"
    return path.rpartition(".")[2]


def memory_store(objects: Objects) -> MemoryObjectStore:
    store = MemoryObjectStore("damaged")
    for path, data in objects.items():
        overwrite(store, path, data)
    return store


def objects_of(store: MemoryObjectStore, folder: str = "") -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for name in store.list(folder):
        if name.endswith("/"):
            found |= objects_of(store, folder + name)
        else:
            data = store.get(folder + name)
            assert data is not None
            found[folder + name] = data
    return found


def golden() -> dict[str, bytes]:
    return dict(GOLDEN)


def twins() -> dict[str, bytes]:
    """Return two topics of two partitions, which look alike.

    Each partition has two sealed segments and a tail. Each segment has a committed and an aborted transaction, with
    rows inline and in files.
    """
    world = World()
    store = world.open(**{"transaction.state.log.num.partitions": 2, "offsets.topic.num.partitions": 2})
    for topic in TWINS:
        store.create_topic(topic, ROWS, partitions=2, config={"segment.batches": 4})
    with store.producer("loader") as inline, store.producer("files", inline_max_bytes=0) as files:
        number = 0
        for producer, commit in ((inline, True), (files, False), (files, True), (inline, False), (inline, True)):
            producer.begin_transaction()
            for at, (topic, partition) in enumerate((topic, p) for topic in TWINS for p in range(2)):
                rows = [{"id": 1000 * at + number + n, "name": f"{topic}-{partition}"} for n in range(2)]
                producer.send(topic, rows, partition=partition).result()
            producer.send_offsets_to_transaction({TopicPartition("east", 0): number + 1}, "group")
            number += 10
            if commit:
                producer.commit_transaction()
            else:
                producer.abort_transaction()
    world.close()
    # The probe's folder is not part of the log.
    return {path: data for path, data in objects_of(world.memory).items() if not path.startswith("__probe/")}


# -- damages ----------------------------------------------------------------------------------------------------------


def truncations(path: str, data: bytes) -> Iterator[Damage]:
    """Cut the object at each class of lengths: empty, in the middle, around the borders of its parts, one byte
    short."""
    lengths = {0, 1, len(data) // 2, len(data) - 1}
    if path.endswith(".parquet"):
        footer = int.from_bytes(data[-8:-4], "little")
        lengths |= {4, len(data) - 8 - footer, len(data) - 8, len(data) - 4}
    else:
        line = data.index(b"\n")
        lengths |= {line - len(',"crc32c":"00000000"}'), line, line + 1}
    for length in sorted(lengths - {len(data)}):
        yield Damage(name=f"cut at {length} of {len(data)}", changes={path: data[:length]})


def flips(path: str, data: bytes, count: int, seed: int = 7) -> Iterator[Damage]:
    """Flip bits all over the object, the same ones in every run."""
    chosen = random.Random(f"{seed} {path}").sample(range(len(data) * 8), min(count, len(data) * 8))
    for bit in sorted(chosen):
        yield Damage(name=f"flipped bit {bit}", changes={path: flipped(data, bit)})


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def appended(path: str, data: bytes) -> Iterator[Damage]:
    yield Damage(name="a byte more", changes={path: data + b"\0"})


def deletion(path: str) -> Damage:
    return Damage(name="deleted", changes={path: None})


def swaps(path: str, objects: Objects, count: int) -> Iterator[Damage]:
    """Swap with others of its kind, beginning with those of the same name in another folder. Each pair comes once."""
    others = [each for each in sorted(objects) if each > path and kind_of(each) == kind_of(path)]
    others.sort(key=lambda each: (each.rpartition("/")[2] != path.rpartition("/")[2], each))
    for other in others[:count]:
        if objects[other] != objects[path]:
            yield Damage(name=f"swapped with {other}", changes={path: objects[other], other: objects[path]})


# -- what readers and operators see -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What consumers and an operator see."""

    topics: Mapping[str, Any]
    rows: Mapping[tuple[str, str, int], list[Any]]
    """By isolation level, topic and partition."""
    state: list[Any]

    def is_beginning_of(self, other: Seen, levels: Collection[str] = LEVELS) -> bool:
        """Return whether every partition's rows are the first rows that `other` has."""
        return all(
            found == other.rows.get(where, [])[: len(found)] for where, found in self.rows.items() if where[0] in levels
        )


def seen(objects: Objects) -> Seen | TxlogError:
    """Return all that consumers of both levels and an operator see of the store, or the error."""
    clock = ManualClock(1_764_000_000_000 + 26 * 3_600_000)
    try:
        store = txlog.open(
            "memory://", config={"linger.ms": 0}, clock=clock, ids=SeededIds(9), object_store=memory_store(objects)
        )
    except TxlogError as error:
        return error
    try:
        store.runtime.driver._threads = 0  # threads make a store in memory slower
        admin = store.admin()
        topics = {topic.name: topic for topic in store.topics()}
        rows: dict[tuple[str, str, int], list[Any]] = {}
        for level in LEVELS if topics else ():
            with store.consumer(*topics, isolation_level=level, auto_offset_reset="earliest") as consumer:
                for batch in consumer.iterate(0):
                    where = (level, batch.column("_topic")[0].as_py(), batch.column("_partition")[0].as_py())
                    rows.setdefault(where, []).extend(batch.to_pylist())
        ends = [admin.list_offsets(name) for name in topics]
        return Seen(topics=topics, rows=rows, state=[ends, admin.list_transactions(), admin.list_groups()])
    except TxlogError as error:
        return error
    finally:
        store.close()


def checked(objects: Objects) -> FsckReport:
    """Return the report of fsck on the store."""
    return check_store(memory_store(objects), threads=0, clock=ManualClock(1_764_000_000_000 + 26 * 3_600_000))


def names_it(error: TxlogError, damage: Damage) -> bool:
    """Return whether the error names a damaged object.

    A deleted or foreign object may only be noticed in its neighbours. Then the error names the folder.
    """
    text = str(error)
    if isinstance(error, NotAStoreError):
        return "txlog.json" in text and damage.path == "txlog.json"
    if not isinstance(error, CorruptLogError):
        return False
    by_folder = damage.name == "deleted" or len(damage.changes) > 1
    return any(path in text or (by_folder and path.rpartition("/")[0] + "/" in text) for path in damage.changes)
