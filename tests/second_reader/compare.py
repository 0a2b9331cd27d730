"""Does the second reader see in a store what the client sees? It was written from PROTOCOL.md alone."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

import txlog
from tests.aborted import aborted_transactions
from tests.second_reader import reader
from tests.second_reader.worlds import make_store
from txlog.client import reading
from txlog.client.offsets import offsets_for_times
from txlog.client.store import Store
from txlog.core.names import TopicPartition
from txlog.protocol.groups import list_groups
from txlog.protocol.load import load

LEVELS = ("read_committed", "read_uncommitted")


def read_world(seed: int) -> list[str]:
    """Return what the readers see differently in the store of a random world."""
    with tempfile.TemporaryDirectory(prefix="txlog-second-") as folder:
        try:
            make_store(seed, Path(folder))
            return differences(folder, seed)
        except Exception as error:  # the reader itself failed, which is a difference too
            return [f"{type(error).__name__}: {error}"]


def differences(folder: Path | str, seed: int = 0) -> list[str]:
    """Return what the two readers see differently in the store in `folder`, one text for each difference."""
    dice = random.Random(seed)
    found: list[str] = []
    with txlog.open(str(folder)) as store:
        other = reader.Store(str(folder))
        for what, ours, theirs in _questions(store, other, dice):
            if ours != theirs:
                found.append(f"{what}: the client {_short(ours)}, the second reader {_short(theirs)}")
    return found


def _questions(store: Store, other: Any, dice: random.Random) -> Iterator[tuple[str, Any, Any]]:
    topics = {each.name: each.partitions for each in store.topics()}
    yield "topics", topics, other.topics()
    admin = store.admin()
    session = reading.read_session(store.runtime)
    for topic, partitions in topics.items():
        ends = admin.list_offsets(topic)
        for number in range(partitions):
            tp = TopicPartition(topic, number)
            info = ends[tp]
            start, stable, end = info.log_start_offset, info.last_stable_offset, info.log_end_offset
            yield f"{tp} log start, last stable offset, log end", (start, stable, end), other.ends(topic, number)
            view = store.runtime.run(load(session.context(), tp))
            _, aborted = store.runtime.run(aborted_transactions(session.context(), view, start, stable))
            ours = [(each.producer_id, each.first_offset, each.last_offset) for each in aborted]
            yield f"{tp} aborted", sorted(ours), sorted(other.aborted(topic, number))
            for level in LEVELS:
                yield f"{tp} {level}", *_rows(store, other, tp, level, start, None)
                for _ in range(3):
                    first = dice.randint(start, end)
                    last = dice.randint(first, end)
                    yield f"{tp} {level} {first} to {last}", *_rows(store, other, tp, level, first, last)
            times = _times(store, tp, start, dice)
            for time in times:
                hit = offsets_for_times(session, {tp: time}, "read_committed")[tp]
                yield f"{tp} at {time}", None if hit is None else hit.offset, other.offset_for_time(topic, number, time)
    yield (
        "transactions",
        _transactions(store),
        sorted(
            (
                each["transactional_id"],
                each["producer_id"],
                each["producer_epoch"],
                each["state"],
                sorted(map(tuple, each["partitions"])),
            )
            for each in other.transactions()
        ),
    )
    groups = store.runtime.run(_groups(session))
    yield "groups", sorted(each.group for each in groups), other.groups()
    for each in groups:
        committed = {
            (tp.topic, tp.partition): value.offset for tp, value in each.offsets.items() if tp not in each.pending
        }
        yield f"group {each.group}", (committed, bool(each.pending)), _group(other, each.group)
    names = list(topics)
    for _ in range(min(len(names), 3)):
        chosen = dice.sample(names, dice.randint(1, len(names)))
        cut_here = store.snapshot(*chosen)
        cut = other.snapshot(*chosen)
        theirs = {TopicPartition(topic, number): end for topic, by in cut.items() for number, end in by.items()}
        yield f"snapshot of {chosen}", dict(cut_here.ends), theirs


def _rows(
    store: Store, other: Any, tp: TopicPartition, level: str, start: int, end: int | None
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    plan = reading.plan(store.runtime, tp.topic, tp.partition, start, end, level)
    (task,) = reading.tasks(store.runtime, [plan])
    ours = [row for batch in reading.read_task(task, store.runtime.store) for row in batch.to_pylist()]
    theirs: pa.Table = other.read(tp.topic, tp.partition, level, start, end)
    return [_plain(row) for row in ours], [_plain(row) for row in theirs.to_pylist()]


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row whose NaN is equal to itself, with its columns in one order."""
    return {name: repr(row[name]) for name in sorted(row)}


def _times(store: Store, tp: TopicPartition, start: int, dice: random.Random) -> list[int]:
    plan = reading.plan(store.runtime, tp.topic, tp.partition, start, None, "read_uncommitted")
    (task,) = reading.tasks(store.runtime, [plan])
    found: list[Any] = [
        value
        for batch in reading.read_task(task, store.runtime.store)
        for value in batch.column("_timestamp").to_pylist()
    ]
    known = [int(value.timestamp() * 1000) for value in found]
    chosen = dice.sample(known, min(len(known), 4))
    return sorted({0, 2**41, *(time + extra for time in chosen for extra in (-1, 0, 1))})


def _transactions(store: Store) -> list[Any]:
    return sorted(
        (each.transactional_id, each.producer_id, each.producer_epoch, each.state, sorted(each.partitions))
        for each in store.admin().list_transactions()
    )


def _group(other: Any, group: str) -> tuple[dict[tuple[str, int], int], bool]:
    """Return the offsets of a group that are not pending, and whether there are others."""
    try:
        return other.group_offsets(group), False
    except reader.Unstable as error:
        return error.args[1], True


def _groups(session: Any) -> Any:
    _, found = yield from list_groups(session.context(), {})
    return found


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 400 else f"{text[:400]}…"
