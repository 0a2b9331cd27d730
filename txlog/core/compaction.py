"""Which rows of a keyed log does a compaction keep, when is it due, and how far does it go?

This is Kafka's log cleaner, with arrays. A map of bounded size takes the newest offset of each key in the part that was
not compacted yet. Then every row from the log start on is kept, unless the map has a newer row of its key (PROTOCOL.md,
C2). Pure functions: they take names, indexes, offsets and digests of keys, and return decisions.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from txlog.config import INT64_MAX
from txlog.core.cleaning import DEFAULT_MAX_KEYS
from txlog.core.names import SegmentName
from txlog.core.partitioning import Bytes, Offsets
from txlog.core.records import Compaction, SegmentIndex, Tombstones
from txlog.core.retention import rows_from
from txlog.core.snapshots import SnapshotCut

UNKNOWN = -1
"""The newest offset of a key that a map does not contain."""

Digests: TypeAlias = NDArray[np.bytes_]
"""Digests of keys, 16 bytes each."""
Flags: TypeAlias = NDArray[np.bool_]

_OPEN = "a transaction over the new rows has not ended yet"
_YOUNG = "the new rows are younger than min.compaction.lag.ms"
_ACTIVE = "all new rows are in the active segment, which ends by segment.batches, segment.bytes or segment.ms"
_NOTHING = "there are no new rows"
_DIGEST_BYTES = 16
_NO_OFFSETS: Offsets = np.zeros(0, dtype=np.int64)
_YOUNG_KEYS = 65_536
"""New keys are kept in a small table until it has this many, or an eighth of the large table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionPolicy:
    """How a topic is compacted: its settings, and how much memory a pass may use."""

    key_columns: tuple[str, ...]
    key: tuple[int, ...]
    """Ids of the key's columns."""
    delete_retention_ms: int
    min_compaction_lag_ms: int
    min_cleanable_dirty_ratio: float
    max_keys: int = DEFAULT_MAX_KEYS
    """Distinct keys that one pass can hold; a log with more takes several passes."""
    version: int = 0
    """Version of the topic that has these settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleanable:
    """The part of a log that may be compacted now, and what the indexes say about earlier compactions."""

    names: tuple[SegmentName, ...]
    """Sealed segments and current runs from the log start on, without gaps."""
    first_dirty_offset: int
    """Below this offset no two rows have the same key."""
    tombstones: tuple[Tombstones, ...]
    clean_bytes: int
    dirty_bytes: int
    due_bytes: int
    """Bytes of `due_tombstones`, and of rows below the log start. Some of them may be in `dirty_bytes`, too."""
    due_tombstones: int
    """Tombstones whose `delete_at` has passed."""
    is_due: bool
    """Whether enough can be compacted: `min.cleanable.dirty.ratio`."""
    waits_for: str
    """Why it is not due, as text; empty if it is due."""

    @property
    def end_offset(self) -> int:
        return self.names[-1].end_offset if self.names else 0

    @property
    def removable_bytes(self) -> int:
        """Return the bytes that `min.cleanable.dirty.ratio` counts: those not compacted yet, and those that are due."""
        return min(self.dirty_bytes + self.due_bytes, self.clean_bytes + self.dirty_bytes)

    @property
    def dirty_ratio(self) -> float:
        """Return the share of the removable bytes; 0 if there are no bytes."""
        total = self.clean_bytes + self.dirty_bytes
        return self.removable_bytes / total if total else 0.0


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
    """Return what of a partition may be compacted, and whether it is due.

    Only whole segments below the LSO may be compacted. The part ends before the first segment that was not compacted
    yet and that must wait. A segment must wait if it holds a batch younger than `min.compaction.lag.ms` (C2). It must
    also wait if it holds a batch of a transaction that is not `complete` (C2c). Without `complete` every transaction
    counts as complete.

    The walk does not contain the active segment. A tombstone past its `delete_at` counts as dirty, with the size of an
    average row of its run. Otherwise a log without new writes would keep all of its tombstones forever. Rows below the
    log start count as dirty, too.
    """
    earlier = _compactions(indexes.values(), policy.key)
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
            lag_ms = policy.min_compaction_lag_ms
            if lag_ms > 0 and index.entries and index.entries[-1].timestamp > now_ms - lag_ms:
                waits_for = _YOUNG
                break
            if complete is not None and any(map(complete.hides, index.entries)):
                waits_for = _OPEN
                break
        names.append(name)
        its_bytes = sum(file.bytes for file in index.files)
        its_rows = sum(entry.records for entry in index.entries)
        new = its_bytes * rows_from(index, first_dirty) // max(its_rows, 1)
        dirty, clean = dirty + new, clean + its_bytes - new
        # Rows of a run below the log start stay in its file until the next compaction rewrites it.
        due_bytes += its_bytes * (its_rows - rows_from(index, log_start_offset)) // max(its_rows, 1)
        if index.compacted is not msgspec.UNSET and index.compacted.key == policy.key:
            due = sum(item.rows for item in index.compacted.tombstones if item.delete_at <= now_ms)
            due_rows += due
            due_bytes += its_bytes * due // max(its_rows, 1)
    dirt = dirty + due_bytes
    is_due = dirt > 0 and dirt >= policy.min_cleanable_dirty_ratio * (clean + dirty)
    if is_due:
        waits_for = ""
    elif dirt:
        waits_for = f"less than min.cleanable.dirty.ratio={policy.min_cleanable_dirty_ratio:g} of the bytes is dirty"
    elif not waits_for:
        sealed_end = max(walk[-1].end_offset if walk else 0, log_start_offset)
        waits_for = _ACTIVE if next_offset > sealed_end else _NOTHING
    return Cleanable(
        names=tuple(names),
        first_dirty_offset=max(first_dirty, log_start_offset),
        tombstones=tuple(tombstones),
        clean_bytes=clean,
        dirty_bytes=dirty,
        due_bytes=due_bytes,
        due_tombstones=due_rows,
        is_due=is_due,
        waits_for=waits_for,
    )


def compacted_end(indexes: Iterable[SegmentIndex], key: Sequence[int]) -> int:
    """Return the offset below which no two rows have the same key (C2b). `key` has the ids of the key's columns."""
    return max((each.end_offset for each in _compactions(indexes, tuple(key))), default=0)


def choose_end(
    names: Sequence[SegmentName], *, first_dirty_offset: int, map_end: int
) -> tuple[tuple[SegmentName, ...], int]:
    """Return the inputs of a pass's run, and the offset below which the run is compacted.

    `map_end` is the offset below which the map contains all rows. The inputs are all segments that lie wholly below it.
    If that makes no progress, the segment in which the map became full is added.
    """
    whole = tuple(name for name in names if name.end_offset <= map_end)
    if whole and whole[-1].end_offset > first_dirty_offset:
        return whole, whole[-1].end_offset
    return tuple(names[: len(whole) + 1]), map_end


def digest_keys(data: Bytes, bounds: Offsets) -> Digests:
    """Return a digest of each `data[bounds[i]:bounds[i + 1]]`. Two keys with the same digest count as the same key."""
    whole = data.tobytes()
    found = [
        hashlib.blake2b(whole[first:last], digest_size=_DIGEST_BYTES).digest()
        for first, last in itertools.pairwise(bounds.tolist())
    ]
    return np.array(found, dtype=f"S{_DIGEST_BYTES}")


class OffsetMap:
    """The newest offset of each key, for at most `max_keys` keys (Kafka's OffsetMap)."""

    def __init__(self, max_keys: int) -> None:
        if max_keys < 1:
            raise ValueError(f"max_keys = {max_keys}: a map must hold a key at least")
        self._max_keys = max_keys
        # Each table is in the order of digests. No key is in both.
        self._tables = [_Table(), _Table()]

    def __len__(self) -> int:
        return sum(len(table.digests) for table in self._tables)

    def put(self, digests: Digests, offsets: Offsets) -> int:
        """Add rows in the order of offsets, all later than those in the map.

        Return how many were added before the map was full.
        """
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
            # If a key has several rows, the last one counts: numpy assigns in order.
            table.offsets[at] = newer
        if len(keys):
            backwards = rows[::-1]
            keys, last = np.unique(digests[backwards], return_index=True)
            self._add(_Table(keys, offsets[backwards[last]]))
        return len(digests)

    def latest(self, digests: Digests) -> Offsets:
        """Return the newest offset of each key, UNKNOWN for a key that is not in the map."""
        latest = np.full(len(digests), UNKNOWN, dtype=np.int64)
        for table in self._tables:
            at, found = table.find(digests)
            latest[found] = table.offsets[at[found]]
        return latest

    def _add(self, new: _Table) -> None:
        old, young = self._tables
        young = young.joined(new)
        if len(young.digests) > max(_YOUNG_KEYS, len(old.digests) // 8):
            old, young = old.joined(young), _Table()
        self._tables = [old, young]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Rows in the order of offsets, as a compaction sees them."""

    offsets: Offsets
    digests: Digests
    """Digests of their keys."""
    keyed: Flags
    """Which rows have a key."""
    tombstones: Flags
    """Which rows are tombstones."""


class Selection:
    """Choose the rows that a run keeps (C2). Afterwards it has the remaining tombstones and their `delete_at` (C2a)."""

    def __init__(
        self,
        latest: OffsetMap,
        *,
        end_offset: int,
        tombstones: Sequence[Tombstones],
        now_ms: int,
        policy: CompactionPolicy,
    ) -> None:
        """Take the map and the tombstones of earlier compactions.

        `latest` contains the rows below `end_offset` that were not compacted yet; rows from there on are all kept. The
        run must start at the log start, so that no older row of a key remains when its tombstone is removed.
        """
        self._latest = latest
        self._end_offset = end_offset
        self._policy = policy
        self._now_ms = now_ms
        self._ends = np.array([item.end_offset for item in tombstones], dtype=np.int64)
        self._delete_at = np.array([item.delete_at for item in tombstones], dtype=np.int64)
        # Rows after the last item have no `delete_at` yet: this pass sets it.
        self._is_due = np.append(self._delete_at <= now_ms, False)
        self._left = np.zeros(len(tombstones) + 1, dtype=np.int64)
        self.superseded = 0
        """Rows removed because their key has a newer row."""
        self.expired = 0
        """Tombstones removed."""
        self.keyless = 0
        """Rows without a key: they equal no other row, and stay."""

    def keep(self, rows: Rows) -> Flags:
        """Return which of these rows stay. Call it once for each row, in order."""
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
        """Return the `compacted` field of the run's index. Call it after all rows."""
        # delete.retention.ms may be the largest int64, which means forever.
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


class Newest:
    """Choose the rows of a table of newest rows, whether or not compaction ran (C2, C2a).

    The table has the newest row of each key unless it is a tombstone, and all rows without a key. `keyed` has the
    newest offset of each key among all rows from the compaction's end on, also of tombstones, and `keyless` has the
    offsets of those rows that have no key.
    """

    def __init__(self, keyed: Offsets, keyless: Offsets = _NO_OFFSETS) -> None:
        self._keyed = np.sort(keyed)
        self._keyless = np.sort(keyless)

    def keep(self, offsets: Offsets, tombstones: Flags) -> Flags:
        """Return which rows stay, of rows from the compaction's end on. One that is not in either list goes."""
        return _holds(self._keyed, offsets) & ~tombstones | _holds(self._keyless, offsets)


def keep_compacted(keyed: Flags, newer: Flags, tombstones: Flags) -> Flags:
    """Return which rows below the compaction's end are in a table of newest rows (C2b).

    No two of them have the same key. `newer` says of which a row from the end on has the key.
    """
    return ~(keyed & (newer | tombstones))


def _compactions(indexes: Iterable[SegmentIndex], key: tuple[int, ...]) -> list[Compaction]:
    """Return what indexes say about compactions by this key."""
    found = [index.compacted for index in indexes if index.compacted is not msgspec.UNSET]
    return [each for each in found if each.key == key]


def _holds(known: Offsets, offsets: Offsets) -> Flags:
    if not len(known):
        return np.zeros(len(offsets), dtype=np.bool_)
    at = np.minimum(np.searchsorted(known, offsets), len(known) - 1)
    found: Flags = known[at] == offsets
    return found


@dataclass(slots=True)
class _Table:
    digests: Digests = field(default_factory=lambda: np.zeros(0, dtype=f"S{_DIGEST_BYTES}"))
    offsets: Offsets = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def find(self, digests: Digests) -> tuple[NDArray[np.intp], Flags]:
        """Return the position of each digest if it is present, and whether it is present."""
        if not len(self.digests):
            return np.zeros(len(digests), dtype=np.intp), np.zeros(len(digests), dtype=np.bool_)
        at = np.minimum(np.searchsorted(self.digests, digests), len(self.digests) - 1)
        return at, self.digests[at] == digests

    def joined(self, other: _Table) -> _Table:
        """Return a table of both; they have no key in common."""
        digests = np.concatenate((self.digests, other.digests))
        order = np.argsort(digests, kind="stable")
        return _Table(digests[order], np.concatenate((self.offsets, other.offsets))[order])
