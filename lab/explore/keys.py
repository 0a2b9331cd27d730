"""Which rows may a compaction remove, and what do its runs claim? An oracle that shares no code with it.

In a scenario with keys a word names its key after an @ (`a@k`; without one it has no key). A hyphen before the word
marks a tombstone (`-@k`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from txlog.core.names import TopicPartition
from txlog.core.records import CommitRecord, SegmentIndex


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """The expectations of a scenario about its compacted partitions."""

    tombstones_stay: bool = True
    """Whether time is too short to remove a tombstone."""
    all_distinct: bool = True
    """Whether time is too short for a run to forget the producer of a transactional batch (C3)."""


def key_of(word: str) -> str | None:
    """Return the key of a row."""
    return word.rpartition("@")[2] if "@" in word else None


def is_tombstone(word: str) -> bool:
    """Return whether the row deletes its key."""
    return "-@" in word


def superseded(word: str, offset: int, committed: Mapping[int, str]) -> bool:
    """Return whether a later one of these rows has its key."""
    key = key_of(word)
    return key is not None and any(at > offset for at, other in committed.items() if key_of(other) == key)


def is_removable(
    tp: TopicPartition,
    word: str,
    shown: Iterable[tuple[TopicPartition, str]],
    committed: Mapping[int, str],
    policy: Compacted,
) -> bool:
    """Return whether compaction may have removed a committed row, because a later row of its key is shown."""
    there = {other for each, other in shown if each == tp}
    later = {at: other for at, other in committed.items() if other in there}
    # A removed tombstone was visible before, and no older row of its key is visible now.
    gone = {at: other for at, other in committed.items() if is_tombstone(other) and not policy.tombstones_stay}
    return any(
        superseded(word, at, {**later, **gone}) or at in gone for at, other in committed.items() if other == word
    )


def wrong_rows(
    rows: Mapping[int, str], expected: Mapping[int, str], committed: Mapping[int, str], policy: Compacted
) -> str | None:
    """Return the fault of `rows`, if `expected` would be shown without any removal; `committed` rows may supersede
    them."""
    for at, word in rows.items():
        if expected.get(at) != word:
            return f"{word!r} is shown at offset {at}, and {expected.get(at)!r} was committed there"
    for at, word in expected.items():
        if at in rows or superseded(word, at, committed):
            continue
        key = key_of(word)
        if key is None or not is_tombstone(word) or policy.tombstones_stay:
            return f"{word!r} at offset {at}, the newest of its key, is gone"
        older = [other for offset, other in rows.items() if offset < at and key_of(other) == key]
        if older:
            return f"{older} are back, for the tombstone at offset {at} is gone"
    return None


def wrong_runs(
    indexes: Sequence[SegmentIndex],
    rows: Mapping[int, str],
    committed: Iterable[CommitRecord],
    policy: Compacted,
) -> str | None:
    """Return the claims in the indexes of current runs that are false: C2b for rows, C3 for batches.

    `rows` are those that a reader sees; `committed` are the batches of committed transactions.
    """
    ends = [each.compacted.end_offset for each in indexes if each.compacted is not msgspec.UNSET]
    clean = [key for at, word in rows.items() if at < max(ends, default=0) and (key := key_of(word)) is not None]
    twice = sorted({key for key in clean if clean.count(key) > 1})
    if twice:
        return f"below {max(ends)}, which was compacted, there are several rows of {twice}"
    for batch in committed if policy.all_distinct else ():
        index = next((each for each in indexes if each.base_offset <= batch.base_offset < each.end_offset), None)
        if index is None:
            continue
        whose = (batch.base_offset, batch.kind, batch.producer_id, batch.producer_epoch)
        if whose not in [(e.base_offset, e.kind, e.producer_id, e.producer_epoch) for e in index.entries]:
            return (
                f"the run at {index.base_offset} does not tell whose the {batch.kind} at offset {batch.base_offset} is"
            )
    return None
