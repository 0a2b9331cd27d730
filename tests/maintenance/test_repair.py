"""Repair recreates objects that are a pure function of the log, byte for byte, and changes nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest

from lab.testing.damage import overwrite
from tests.client.world import World
from tests.maintenance import damage as d
from txlog.client.reading import read_session
from txlog.core import names
from txlog.core.cleaning import MergePolicy
from txlog.core.names import NumberedName, SegmentObject, TopicPartition
from txlog.inspection.objects import dump_object
from txlog.maintenance.fsck import FsckReport, check_store
from txlog.maintenance.fsck.repair import RepairedObject, repair
from txlog.maintenance.history import read_history
from txlog.maintenance.merge import merge_partition
from txlog.storage.memory import MemoryObjectStore
from txlog.storage.object_store import ObjectStore
from txlog.testing.counting_store import CountingStore
from txlog.testing.failing_store import FailingStore, Fault, SimulatedCrash

TWINS = d.twins()
GOLDEN = d.golden()


def filled(world: World, objects: d.Objects) -> MemoryObjectStore:
    store = MemoryObjectStore("damaged", clock=world.clock)
    for path, data in objects.items():
        overwrite(store, path, data)
    return store


def mended(world: World, store: ObjectStore, *, dry_run: bool = False) -> tuple[tuple[RepairedObject, ...], FsckReport]:
    """Check, repair, and check again."""
    runtime = world.open(store).runtime
    return repair(runtime, check_store(store).findings, dry_run=dry_run), check_store(store)


def is_pure(path: str, boundary: int = 0) -> bool:
    """Return whether sealing makes this object and its records exist."""
    match names.parse_partition_object(path.rpartition("/")[2]):
        case NumberedName(kind="snapshot", number=number):
            return number >= boundary
        case SegmentObject(segment=segment, kind="index" | "txnindex"):
            return not segment.generation and segment.base_offset >= boundary
    return False


PURE = sorted(path for path in TWINS if is_pure(path) and path.startswith("east/0/"))
OTHERS = sorted(
    path
    for path in TWINS
    if not is_pure(path) and re.match(r"east/(topic|0)|__transaction_state/|__consumer_offsets/", path)
)[::9]
MERGED = "orders/0/"
"""The golden partition whose records are deleted, and whose segments a run has superseded."""


def test_there_is_one_of_each_kind() -> None:
    assert {path.rpartition(".")[2] for path in PURE} == {"snapshot", "index", "txnindex"}


@pytest.mark.parametrize(
    ("path", "damage"),
    [
        *((path, "bit") for path in PURE),
        *((path, "swapped") for path in PURE[1:2]),
        # Without its last index a log is not damaged; it only has a longer tail.
        *((path, "gone") for path in [PURE[0], PURE[1], PURE[-1]]),
    ],
)
def test_whatever_sealing_made_is_made_again(world: World, path: str, damage: str) -> None:
    """Repair creates again, to the byte, what follows from the records (C12)."""
    objects = dict(TWINS)
    data = objects.pop(path)
    ending = path.rpartition(".")[2]
    other = next((data for other, data in TWINS.items() if other != path and other.endswith(ending)), b"")
    if damage != "gone":
        flipped = bytes([*data[:50], data[50] ^ 1, *data[51:]])
        objects[path] = {"bit": flipped, "swapped": other}[damage]
    store = filled(world, objects)
    assert not check_store(store).is_clean
    done, after = mended(world, store)
    assert [(each.path, each.is_made) for each in done] == [(path, True)]
    assert after.is_clean, after.findings
    for name, before in TWINS.items():
        # An index may name another file with the same inline rows; everything else is the same to the byte.
        assert store.get(name) == before or (name == path and path.endswith(".index")), name
    runtime = world.processes[-1].runtime
    if path.endswith(".index"):
        assert rows_of(world, store) == rows_of(world, filled(world, TWINS))
    (row,) = read_history(runtime)
    assert (row.step.job, row.step.outcome) == ("repair", "published")
    assert dump_object(runtime, path).path == path


def rows_of(world: World, store: ObjectStore) -> dict[str, list[object]]:
    opened = world.open(store)
    found: dict[str, list[object]] = {}
    for topic in d.TWINS:
        with opened.consumer(topic, auto_offset_reset="earliest") as consumer:
            while (batch := consumer.poll(0)) is not None:
                found.setdefault(topic, []).extend(batch.to_pylist())
    for rows in found.values():
        rows.sort(key=lambda row: (row["_partition"], row["_offset"]))  # type: ignore[index]
    return found


def test_all_at_once(world: World) -> None:
    store = filled(world, {path: data for path, data in TWINS.items() if path not in PURE or path.endswith("4.index")})
    for path in PURE:
        if path.endswith("4.index"):
            overwrite(store, path, b"damaged\n")
    done, after = mended(world, store)
    assert all(each.is_made for each in done)
    assert after.is_clean, after.findings
    assert rows_of(world, store) == rows_of(world, filled(world, TWINS))


def test_a_dry_run_only_says_it(world: World) -> None:
    objects = {path: data for path, data in TWINS.items() if path != PURE[-1]}
    store = filled(world, objects)
    done, _ = mended(world, store, dry_run=True)
    assert [(each.path, each.is_made, each.why) for each in done] == [(PURE[-1], True, "it is not there")]
    assert d.objects_of(store) == objects


@pytest.mark.parametrize("path", OTHERS)
def test_nothing_else_is_touched(world: World, path: str) -> None:
    """A record, rows, a version and a descriptor cannot be computed. They stay damaged, and the report names them."""
    objects = {**TWINS, path: TWINS[path][:-9]}
    store = filled(world, objects)
    done, after = mended(world, store)
    assert not any(each.is_made for each in done)
    assert not after.is_clean
    assert d.objects_of(store) == {
        **objects,
        **{p: b for p, b in d.objects_of(store).items() if p.startswith("__probe/")},
    }


def test_what_lies_behind_a_lost_record_is_not_guessed(world: World) -> None:
    store = filled(world, TWINS)
    slots = sorted(path for path in TWINS if path.startswith("east/0/") and path.endswith(".batch"))
    snapshots = sorted(path for path in PURE if path.startswith("east/0/") and path.endswith(".snapshot"))
    store.delete(slots[1])
    store.delete(snapshots[-1])
    done, after = mended(world, store)
    (told,) = done
    assert (told.path, told.is_made) == ("east/0/", False)
    assert f"cannot be made again: {slots[1]} is not there" in told.why
    assert not after.is_clean


SUPERSEDED = sorted(
    path for path in GOLDEN if path.startswith(MERGED) and path.endswith((".index", ".txnindex", ".snapshot", ".clean"))
)


@pytest.mark.parametrize("path", SUPERSEDED[::2])
def test_superseded_objects_and_runs_are_not_made(world: World, path: str) -> None:
    """Vacuum may have deleted the files that such an index names (C12)."""
    objects = {**GOLDEN, path: b"damaged\n"}
    store = filled(world, objects)
    done, after = mended(world, store)
    assert not any(each.is_made for each in done)
    assert store.get(path) == b"damaged\n"
    assert not after.is_clean


def test_what_a_run_covers_is_not_made_while_its_records_are_there(world: World) -> None:
    """The records would give the index, and vacuum may delete its file at any moment (C12)."""
    store = filled(world, TWINS)
    runtime = world.open(store).runtime
    tp = TopicPartition("east", 0)
    assert merge_partition(runtime, read_session(runtime), tp, MergePolicy(target_bytes=2**30))
    (path, *_) = (path for path in PURE if path.endswith(".index"))
    overwrite(store, path, b"damaged\n")
    done, after = mended(world, store)
    assert not any(each.is_made for each in done)
    assert store.get(path) == b"damaged\n"
    assert not after.is_clean


def test_an_internal_topic_has_no_rows_and_is_made_again_too(world: World) -> None:
    store = world.open(**{"transaction.state.log.num.partitions": 1})
    store.create_topic("orders", d.ROWS)
    with store.producer("loader") as producer:
        for number in range(40):
            with producer.transaction():
                producer.send("orders", [{"id": number, "name": "n"}])
    objects = {path: data for path, data in d.objects_of(world.memory).items() if not path.startswith("__probe/")}
    folder = "__transaction_state/0/"
    index, snapshot = (
        next(path for path in sorted(objects) if path.startswith(folder) and path.endswith(suffix))
        for suffix in (".index", ".snapshot")
    )
    overwrite(world.memory, index, b"damaged\n")
    world.memory.delete(snapshot)
    done, after = mended(world, world.memory)
    assert {each.path for each in done if each.is_made} == {index, snapshot}
    assert after.is_clean, after.findings
    assert [world.memory.get(path) for path in (index, snapshot)] == [objects[index], objects[snapshot]]


def test_an_index_of_another_end_is_left_to_a_person(world: World) -> None:
    path = next(path for path in PURE if path.startswith("east/0/") and path.endswith(".index"))
    name = names.parse_partition_object(path.rpartition("/")[2])
    assert isinstance(name, SegmentObject)
    wrong = "east/0/" + names.SegmentName(name.segment.base_offset, name.segment.end_offset + 1, 0).index
    objects = {(wrong if each == path else each): data for each, data in TWINS.items()}
    done, _ = mended(world, filled(world, objects))
    assert [(each.path, each.is_made) for each in done] == [(wrong, False)]


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_repair_that_dies_anywhere_is_finished_by_the_next(world: World, moment: str) -> None:
    inline = next(path for path in PURE if path.startswith("east/0/") and path.endswith(".index"))
    operations = 0
    while True:
        operations += 1
        store = filled(world, {**TWINS, inline: b"damaged\n"})
        failing = FailingStore(
            store,
            Fault(action="crash", moment=moment, match=r"(put_if_absent|write_file|delete) east", number=operations),  # type: ignore[arg-type]
        )
        findings = check_store(store).findings
        runtime = world.open(failing).runtime
        try:
            repair(runtime, findings, dry_run=False)
        except SimulatedCrash:
            _, after = mended(world, store)
            assert after.is_clean, after.findings
        else:
            break
    assert operations == 4


def test_two_at_once_make_the_same(world: World) -> None:
    path = next(path for path in PURE if path.startswith("east/0/") and path.endswith(".index"))
    store = filled(world, {**TWINS, path: b"damaged\n"})
    findings = check_store(store).findings
    first, second = (world.open(store).runtime for _ in range(2))
    assert repair(first, findings, dry_run=False)
    assert repair(second, findings, dry_run=False) == ()
    assert check_store(store).is_clean
    assert TopicPartition("east", 0).folder == "east/0/"


def test_one_that_was_overtaken_deletes_nothing(world: World) -> None:
    """If it deleted what another repair has just created, and died then, it would leave a gap."""
    path = next(path for path in PURE if path.startswith("east/0/") and path.endswith(".index"))
    store = filled(world, {**TWINS, path: b"damaged\n"})
    findings = check_store(store).findings
    first = world.open(store).runtime
    deleted: list[str] = []

    class Slow(CountingStore):
        def write_file(self, name: str, chunks: Iterable[bytes]) -> int:
            assert repair(first, findings, dry_run=False)
            return super().write_file(name, chunks)

        def delete(self, name: str) -> None:
            deleted.append(name)
            super().delete(name)

    second = world.open(Slow(store)).runtime
    assert repair(second, findings, dry_run=False)
    assert path not in deleted
    assert check_store(store).is_clean
