"""What does a reader see in a store, and which differences may a command make?"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tests.golden.answers import groups, rows, transactions
from txlog.client.store import Store
from txlog.core.names import TopicPartition

Row: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """All that a reader sees."""

    topics: dict[str, tuple[str, int, dict[str, str], tuple[str, ...]]]
    """Topic id, partitions, settings and columns."""
    ends: dict[TopicPartition, tuple[int, int, int]]
    committed: dict[TopicPartition, dict[int, Row]]
    all: dict[TopicPartition, dict[int, Row]]
    """Rows of all transactions: of committed, aborted and open ones."""
    groups: dict[str, Any]
    transactions: dict[str, str]
    """The state of each transactional id."""
    overdue: dict[str, int]
    """When the open transactions of ids are past their time-out."""
    now_ms: int


def look(store: Store) -> State:
    """Return what a reader sees now."""
    topics = {
        each.name: (each.topic_id, each.partitions, dict(each.config), tuple(each.schema.names))
        for each in store.topics()
        # A deletion that an older program has begun may be finished by any command.
        if not store.runtime.topic(each.name, 0).deleting
    }
    ends: dict[TopicPartition, tuple[int, int, int]] = {}
    by_level: dict[str, dict[TopicPartition, Any]] = {"read_committed": {}, "read_uncommitted": {}}
    for name in topics:
        for tp, info in store.admin().list_offsets(name).items():
            ends[tp] = (info.log_start_offset, info.last_stable_offset, info.log_end_offset)
            for level, found in by_level.items():
                found[tp] = {row.pop("_offset"): row for row in rows(store, tp, level, info.log_start_offset)}
    ids = {each["transactional_id"]: each for each in transactions(store)}
    return State(
        topics=topics,
        ends=ends,
        committed=by_level["read_committed"],
        all=by_level["read_uncommitted"],
        groups=groups(store),
        transactions={name: each["state"] for name, each in ids.items()},
        overdue={
            name: each["started_at"] + each["timeout_ms"] for name, each in ids.items() if each["state"] == "ONGOING"
        },
        now_ms=store.runtime.clock.now_ms(),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What a command may change. Everything else stays."""

    added: Mapping[str, int] = field(default_factory=dict)
    """How many committed rows a topic has more, or at least as many if open transactions end, too."""
    topics: frozenset[str] = frozenset()
    """Topics that begin, end, or get other settings, columns or partitions."""
    columns: Mapping[str, Callable[[Row], Row]] = field(default_factory=dict)
    """How older rows look after the columns of a topic were changed."""
    starts: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Log starts that move, and where to."""
    retires: bool = False
    """Retention may move log starts of topics that have such a setting, and compaction may remove superseded rows."""
    erases: Callable[[TopicPartition, int, Row], bool] = lambda *_: False
    """Whether an erasure may have removed a row, by its partition, its offset and its values."""
    ends: frozenset[str] | None = frozenset()
    """Transactional ids that may change their state. None: all. Any program may complete what is decided or overdue."""
    groups: frozenset[str] | None = frozenset()
    """Groups that may change. None: all."""


def wrong(before: State, after: State, change: Change) -> list[str]:
    """Return what changed beyond `change`, a line for each."""
    found = [
        f"topic {name}: {before.topics.get(name)}, then {after.topics.get(name)}"
        for name in sorted(before.topics.keys() | after.topics.keys())
        if name not in change.topics and before.topics.get(name) != after.topics.get(name)
    ]
    if change.groups is not None:
        found += [
            f"group {name}: {before.groups.get(name)}, then {after.groups.get(name)}"
            for name in sorted(before.groups.keys() | after.groups.keys())
            if name not in change.groups and before.groups.get(name) != after.groups.get(name)
        ]
    if change.ends is not None:
        found += [
            f"transactional.id {name}: {before.transactions.get(name)}, then {after.transactions.get(name)}"
            for name in sorted(_ended(before, after) - change.ends)
            if after.transactions.get(name) not in _possible(name, before, after)
        ]
    for name, topic in after.topics.items():
        if name in before.topics and before.topics[name][0] == topic[0]:
            own = [tp for tp in after.ends if tp.topic == name]
            found += [line for tp in own for line in _wrong_rows(tp, before, after, change)]
            found += _wrong_count(name, before, after, change)
    return found


def _wrong_rows(tp: TopicPartition, before: State, after: State, change: Change) -> list[str]:
    start, lso, end = after.ends[tp]
    first, _, leo = before.ends.get(tp, (0, 0, 0))
    _, _, config, _ = after.topics[tp.topic]
    found = []
    wanted = change.starts.get(tp, first)
    trims = change.retires and ({"retention.ms", "retention.bytes"} & config.keys())
    if (start != wanted and not trims) or start < first or lso < start or end < max(leo, lso):
        found.append(f"{tp}: offsets {before.ends.get(tp)}, then {after.ends[tp]}; expected the start {wanted}")
    as_now = change.columns.get(tp.topic, lambda row: row)
    kept = {number: as_now(row) for number, row in before.committed.get(tp, {}).items() if number >= start}
    known = {number: as_now(row) for number, row in before.all.get(tp, {}).items() if number >= start}
    seen = after.committed[tp]
    gone = [number for number, row in kept.items() if number not in seen and not change.erases(tp, number, row)]
    if gone and not (change.retires and _are_superseded(gone, kept, seen, config)):
        found.append(f"{tp}: rows {gone[:5]} are missing")
    found += [
        f"{tp}: row {number} was {known.get(number)} and is {row}"
        for number, row in seen.items()
        if number < leo and known.get(number) != row
    ][:3]
    ended = _ended(before, after)
    found += [
        f"{tp}: row {number} was not committed" for number in seen if number < leo and number not in kept and not ended
    ][:3]
    return found


def _are_superseded(
    gone: list[int], kept: Mapping[int, Row], seen: Mapping[int, Row], config: Mapping[str, str]
) -> bool:
    """Return whether compaction may have removed these rows: a later row has their key, or they are tombstones."""
    keys = config.get("key.columns", "").split(",")
    if "compact" not in config.get("cleanup.policy", ""):
        return False

    def key(row: Row) -> str:
        return json.dumps([row[name] for name in keys])

    latest = {key(row): number for number, row in sorted({**kept, **seen}.items())}
    return all(
        latest[key(kept[number])] > number
        or all(value is None for name, value in kept[number].items() if name not in (*keys, "_timestamp"))
        for number in gone
    )


def _ended(before: State, after: State) -> set[str]:
    """Return the transactional ids whose state is another one."""
    names = before.transactions.keys() | after.transactions.keys()
    return {name for name in names if before.transactions.get(name) != after.transactions.get(name)}


def _possible(name: str, before: State, after: State) -> set[str]:
    """Return the states to which any program may bring an id: it is decided, or past its time-out."""
    if before.overdue.get(name, after.now_ms + 1) <= after.now_ms:
        return {"PREPARE_ABORT", "COMPLETE_ABORT"}
    return {before.transactions.get(name, "").replace("PREPARE", "COMPLETE")}


def _wrong_count(topic: str, before: State, after: State, change: Change) -> list[str]:
    new = 0
    for tp, found in after.all.items():
        _, _, leo = before.ends.get(tp, (0, 0, 0))
        new += sum(number >= leo for number in found) if tp.topic == topic else 0
    wanted = change.added.get(topic, 0)
    # A staged transaction that is completed has its rows above the old log end.
    if new < wanted or (new > wanted and not _ended(before, after)):
        return [f"topic {topic}: {new} rows are new, expected {wanted}"]
    return []
