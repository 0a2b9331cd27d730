"""Which rows of a keyed log does a compaction keep, when is one due, and how far does it come?

Kafka's log cleaner, in arrays: the newest offset of each key of the part that was not compacted yet goes into a map of
bounded size; then every row from the log start on is kept unless the map knows a newer one of its key (PROTOCOL.md,
C2). Pure: names, indexes, offsets and digests of keys go in, decisions come out.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from txlog.config import INT64_MAX
from txlog.core.cleaning import DEFAULT_MAX_KEYS
from txlog.core.names import SegmentName
from txlog.core.partitioning import Bytes, Offsets
from txlog.core.records import Compaction, SchemaField, SegmentIndex, Tombstones
from txlog.core.schema import KAFKA_FIELDS
from txlog.core.snapshots import SnapshotCut

UNKNOWN = -1
"""The newest offset of a key that a map does not know."""

Digests: TypeAlias = NDArray[np.bytes_]
"""16 bytes each."""
Flags: TypeAlias = NDArray[np.bool_]

_OPEN = "a transaction over the new rows has not ended yet"
_YOUNG = "the new rows are younger than min.compaction.lag.ms"
_ACTIVE = "all new rows are in the active segment, which ends by segment.batches, segment.bytes or segment.ms"
_NOTHING = "there are no new rows"
_DIGEST_BYTES = 16
_YOUNG_KEYS = 65_536
"""New keys wait in a small table until there are so many of them, or an eighth of the large one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionPolicy:
    """How a topic is compacted: its settings, and the memory that may be used."""

    key_columns: tuple[str, ...]
    key: tuple[int, ...]
    """Ids of the key's columns."""
    delete_retention_ms: int
    min_compaction_lag_ms: int
    min_cleanable_dirty_ratio: float
    max_keys: int = DEFAULT_MAX_KEYS
    """Distinct keys that one pass can hold; a log with more takes several passes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleanable:
    """The part of a log that may be compacted now, and what earlier compactions left written down about it."""

    names: tuple[SegmentName, ...]
    """Sealed segments and current runs from the log start on, without a gap."""
    first_dirty_offset: int
    """Below it no two rows have the same key."""
    tombstones: tuple[Tombstones, ...]
    clean_bytes: int
    dirty_bytes: int
    due_tombstones: int
    """Rows that may go now."""
    is_due: bool
    """Whether there is enough to do: `min.cleanable.dirty.ratio`."""
    waits_for: str
    """Why it is not due, in words; empty if it is."""

    @property
    def end_offset(self) -> int:
        return self.names[-1].end_offset if self.names else 0

    @property
    def dirty_ratio(self) -> float:
        """Which part of the bytes was not compacted yet; 0 of nothing."""
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0


def find_cleanable(
    walk: Sequence[SegmentName],
    indexes: Mapping[SegmentName, SegmentIndex],
    *,
    log_start_offset: int,
    last_stable_offset: int,
    next_offset: int,
    now_ms: int,
    policy: CompactionPolicy,
    complete: SnapshotCut | None = None,
) -> Cleanable:
    """What of a partition may be compacted, and whether it is worth it.

    Whole segments below the LSO, and below the first that has not been compacted and holds a batch younger than
    `min.compaction.lag.ms` (C2), or one of a transaction that is not `complete` (C2c; None: not known yet, all of them
    are taken for complete). The active segment is not in the walk. A tombstone whose time has come counts as
    dirt, an average row of its run: else a log that nobody writes to any more would keep it for ever. So does what the log start
    has cut off.
    """
    earlier = [index.compacted for index in indexes.values() if index.compacted is not msgspec.UNSET]
    earlier = [each for each in earlier if each.key == policy.key]
    first_dirty = max((each.end_offset for each in earlier), default=0)
    tombstones = sorted((item for each in earlier for item in each.tombstones), key=lambda item: item.end_offset)
    names: list[SegmentName] = []
    clean = dirty = due_bytes = due_rows = 0
    waits_for = ""
    for name in walk:
        if name.end_offset <= log_start_offset:
            continue
        index = indexes[name]
        if name.end_offset > last_stable_offset:
            waits_for = _OPEN
            break
        if name.end_offset > first_dirty:
            if _is_young(index, now_ms, policy.min_compaction_lag_ms):
                waits_for = _YOUNG
                break
            if complete is not None and any(map(complete.hides, index.entries)):
                waits_for = _OPEN
                break
        names.append(name)
        its_bytes = sum(file.bytes for file in index.files)
        its_rows = sum(entry.records for entry in index.entries)
        new = its_bytes * _rows_from(index, first_dirty) // max(its_rows, 1)
        dirty, clean = dirty + new, clean + its_bytes - new
        # What retention has cut off a run is still there, and goes when it is written anew.
        due_bytes += its_bytes * (its_rows - _rows_from(index, log_start_offset)) // max(its_rows, 1)
        if index.compacted is not msgspec.UNSET and index.compacted.key == policy.key:
            due = sum(item.rows for item in index.compacted.tombstones if item.delete_at <= now_ms)
            due_rows += due
            due_bytes += its_bytes * due // max(its_rows, 1)
    dirt = dirty + due_bytes
    is_due = dirt > 0 and dirt >= policy.min_cleanable_dirty_ratio * (clean + dirty)
    if is_due:
        waits_for = ""
    elif dirt:
        waits_for = f"less than min.cleanable.dirty.ratio={policy.min_cleanable_dirty_ratio:g} of the bytes is new"
    elif not waits_for:
        sealed_end = max(walk[-1].end_offset if walk else 0, log_start_offset)
        waits_for = _ACTIVE if next_offset > sealed_end else _NOTHING
    return Cleanable(
        names=tuple(names),
        first_dirty_offset=max(first_dirty, log_start_offset),
        tombstones=tuple(tombstones),
        clean_bytes=clean,
        dirty_bytes=dirty,
        due_tombstones=due_rows,
        is_due=is_due,
        waits_for=waits_for,
    )


def choose_end(
    names: Sequence[SegmentName], *, first_dirty_offset: int, map_end: int
) -> tuple[tuple[SegmentName, ...], int]:
    """What the run of a pass is made of, and below which offset it is compacted, if the map knows all rows below `map_end`.

    All segments that are wholly known; if that is no progress, the one in whose midst the map was full as well.
    """
    whole = tuple(name for name in names if name.end_offset <= map_end)
    if whole and whole[-1].end_offset > first_dirty_offset:
        return whole, whole[-1].end_offset
    return tuple(names[: len(whole) + 1]), map_end


def value_columns(fields: Sequence[SchemaField], key_columns: Sequence[str]) -> tuple[str, ...]:
    """The columns that are all null in a tombstone (C2a): `value` in a topic of Kafka's shape, else all that are not the key's.

    Empty if there is no such column; then there are no tombstones.
    """
    kafka = [(field.name, field.type) for field in KAFKA_FIELDS]
    if tuple(key_columns) == ("key",) and [(field.name, field.type) for field in fields[: len(kafka)]] == kafka:
        return ("value",)
    return tuple(field.name for field in fields if field.name not in key_columns)


def digest_keys(data: Bytes, bounds: Offsets) -> Digests:
    """A digest of each `data[bounds[i]:bounds[i + 1]]`; two keys that have the same one are taken for the same key."""
    whole = data.tobytes()
    found = [
        hashlib.blake2b(whole[first:last], digest_size=_DIGEST_BYTES).digest()
        for first, last in itertools.pairwise(bounds.tolist())
    ]
    return np.array(found, dtype=f"S{_DIGEST_BYTES}")


class OffsetMap:
    """The newest offset of each key, of at most `max_keys` keys (Kafka's OffsetMap)."""

    def __init__(self, max_keys: int) -> None:
        if max_keys < 1:
            raise ValueError(f"max_keys = {max_keys}: a map must hold a key at least")
        self._max_keys = max_keys
        # Each in the order of digests; no key is in both.
        self._tables = [_Table.empty(), _Table.empty()]

    def __len__(self) -> int:
        return sum(len(table.digests) for table in self._tables)

    def put(self, digests: Digests, offsets: Offsets) -> int:
        """Takes in rows in the order of offsets, all of them later than what it has. -> how many, before it was full."""
        is_new = np.ones(len(digests), dtype=np.bool_)
        hits = []
        for table in self._tables:
            at, found = table.find(digests)
            hits.append((table, at[found], offsets[found]))
            is_new &= ~found
        (rows,) = np.nonzero(is_new)
        keys, first = np.unique(digests[rows], return_index=True)
        room = self._max_keys - len(self)
        if len(keys) > room:
            taken = int(np.sort(rows[first])[room])
            return self.put(digests[:taken], offsets[:taken])
        for table, at, newer in hits:
            # Of several rows of one key the last counts: numpy assigns in order.
            table.offsets[at] = newer
        if len(keys):
            backwards = rows[::-1]
            keys, last = np.unique(digests[backwards], return_index=True)
            self._add(_Table(keys, offsets[backwards[last]]))
        return len(digests)

    def latest(self, digests: Digests) -> Offsets:
        """The newest offset of each key, UNKNOWN where there is none."""
        latest = np.full(len(digests), UNKNOWN, dtype=np.int64)
        for table in self._tables:
            at, found = table.find(digests)
            latest[found] = table.offsets[at[found]]
        return latest

    def _add(self, new: _Table) -> None:
        old, young = self._tables
        young = young.joined(new)
        if len(young.digests) > max(_YOUNG_KEYS, len(old.digests) // 8):
            old, young = old.joined(young), _Table.empty()
        self._tables = [old, young]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Some rows, in the order of offsets, as a compaction sees them."""

    offsets: Offsets
    digests: Digests
    """Of their keys."""
    keyed: Flags
    """Which have a key at all."""
    tombstones: Flags
    """Which say that their key is gone."""


class Selection:
    """Chooses the rows that a run keeps (C2); afterwards it knows which tombstones are left, and until when (C2a)."""

    def __init__(
        self,
        latest: OffsetMap,
        *,
        end_offset: int,
        tombstones: Sequence[Tombstones],
        now_ms: int,
        policy: CompactionPolicy,
    ) -> None:
        """`latest` knows the rows below `end_offset` that were not compacted yet; rows from there on stay as they are.

        `tombstones` are those of earlier compactions. The run must start at the log start: a tombstone that goes has no
        older row of its key anywhere.
        """
        self._latest = latest
        self._end_offset = end_offset
        self._policy = policy
        self._now_ms = now_ms
        self._ends = np.array([item.end_offset for item in tombstones], dtype=np.int64)
        self._delete_at = np.array([item.delete_at for item in tombstones], dtype=np.int64)
        # What lies behind the last item has no time yet: this pass gives it one.
        self._is_due = np.append(self._delete_at <= now_ms, False)
        self._left = np.zeros(len(tombstones) + 1, dtype=np.int64)
        self.superseded = 0
        """Rows that went because a newer one has their key."""
        self.expired = 0
        """Tombstones that went."""
        self.keyless = 0
        """Rows without a key: they are like no other, and stay."""

    def keep(self, rows: Rows) -> Flags:
        """Which of these rows stay. To be called once for each row, in order."""
        known = rows.keyed & (rows.offsets < self._end_offset)
        newer = known & (self._latest.latest(rows.digests) > rows.offsets)
        item = np.searchsorted(self._ends, rows.offsets, "right")
        tombstones = known & rows.tombstones & ~newer
        gone = tombstones & self._is_due[item]
        self._left += np.bincount(item[tombstones & ~gone], minlength=len(self._left))
        self.superseded += int(newer.sum())
        self.expired += int(gone.sum())
        self.keyless += len(rows.keyed) - int(rows.keyed.sum())
        stays: Flags = ~(newer | gone)
        return stays

    def compaction(self) -> Compaction:
        """What the run's index says, once all rows have been seen."""
        # delete.retention.ms may be as large as any int64, "for ever".
        horizon = min(self._now_ms + self._policy.delete_retention_ms, INT64_MAX)
        horizons = np.append(self._delete_at, np.int64(horizon))
        ends = np.append(self._ends, self._end_offset)
        return Compaction(
            key=self._policy.key,
            end_offset=self._end_offset,
            tombstones=tuple(
                Tombstones(end_offset=int(end), rows=int(rows), delete_at=int(delete_at))
                for end, rows, delete_at in zip(ends, self._left, horizons, strict=True)
                if rows
            ),
        )


@dataclass(slots=True)
class _Table:
    digests: Digests
    offsets: Offsets

    @staticmethod
    def empty() -> _Table:
        return _Table(np.zeros(0, dtype=f"S{_DIGEST_BYTES}"), np.zeros(0, dtype=np.int64))

    def find(self, digests: Digests) -> tuple[NDArray[np.intp], Flags]:
        """Where each stands if it is there, and whether it is."""
        if not len(self.digests):
            return np.zeros(len(digests), dtype=np.intp), np.zeros(len(digests), dtype=np.bool_)
        at = np.minimum(np.searchsorted(self.digests, digests), len(self.digests) - 1)
        return at, self.digests[at] == digests

    def joined(self, other: _Table) -> _Table:
        """Both; they have no key in common."""
        digests = np.concatenate((self.digests, other.digests))
        order = np.argsort(digests, kind="stable")
        return _Table(digests[order], np.concatenate((self.offsets, other.offsets))[order])


def _is_young(index: SegmentIndex, now_ms: int, lag_ms: int) -> bool:
    return lag_ms > 0 and bool(index.entries) and index.entries[-1].timestamp > now_ms - lag_ms


def _rows_from(index: SegmentIndex, offset: int) -> int:
    """Rows of the batches that reach `offset` or lie beyond; a batch of a run reaches up to the next one."""
    if index.end_offset <= offset:
        return 0
    ends = [entry.base_offset for entry in index.entries[1:]] + [index.end_offset]
    return sum(entry.records for entry, end in zip(index.entries, ends, strict=False) if end > offset)
