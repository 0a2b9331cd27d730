"""Which rows does a pass of compaction keep, if rows are not Arrow? The copy for the explorer and the random worlds.

Every decision is `txlog.core.compaction`'s, as in the shipped copy (`txlog.maintenance.compact`). Only reading and
writing of rows differ. Between two requests only the arrays for a publication are held.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from txlog.core.cleaning import Kept
from txlog.core.compaction import Digests, OffsetMap, Rows, Selection, choose_end, digest_keys
from txlog.core.names import SegmentName
from txlog.protocol.compact import CompactionPlan


@dataclass(frozen=True, slots=True)
class KeyedRow:
    """The properties of a row that a compaction needs."""

    offset: int
    key: str | None
    is_tombstone: bool


def reach(plan: CompactionPlan, dirty: Sequence[KeyedRow]) -> tuple[SegmentName, ...]:
    """Return the segments of a pass's run, after the rows of `plan.dirty_pieces` are known."""
    _, names, _ = _newest(plan, dirty)
    return names


def choose(plan: CompactionPlan, dirty: Sequence[KeyedRow], rows: Sequence[KeyedRow]) -> tuple[tuple[bool, ...], Kept]:
    """Return which of `rows` stay, and what the run's index contains about them.

    `rows` are those of the pieces of `plan.merge(reach(plan, dirty))`.
    """
    latest, names, clean_end = _newest(plan, dirty)
    merge = plan.merge(names)
    selection = Selection(
        latest,
        end_offset=clean_end,
        tombstones=plan.cleanable.tombstones,
        now_ms=plan.planned_at_ms,
        policy=plan.policy,
    )
    offsets = np.array([row.offset for row in rows], dtype=np.int64)
    stays = selection.keep(
        Rows(
            offsets=offsets,
            digests=_digests(rows),
            keyed=np.array([row.key is not None for row in rows], dtype=np.bool_),
            tombstones=np.array([row.is_tombstone for row in rows], dtype=np.bool_),
        )
    )
    entries = [entry for read in merge.indexes for entry in read.index.entries]
    bases = np.array([entry.base_offset for entry in entries], dtype=np.int64)
    counted = np.bincount(np.searchsorted(bases, offsets[stays], "right") - 1, minlength=len(entries))
    kept = Kept(
        rows=counted.astype(np.int64),
        # Rows have no time of their own here: the time of a batch is the time of all its rows.
        timestamps=np.array([entry.timestamp for entry in entries], dtype=np.int64),
        compaction=selection.compaction(),
    )
    return tuple(bool(each) for each in stays), kept


def _newest(plan: CompactionPlan, dirty: Sequence[KeyedRow]) -> tuple[OffsetMap, tuple[SegmentName, ...], int]:
    """Return the newest offset of each key, the segments whose keys it covers completely, and the end of the
    coverage."""
    latest = OffsetMap(plan.policy.max_keys)
    keyed = [row for row in dirty if row.key is not None]
    offsets = np.array([row.offset for row in keyed], dtype=np.int64)
    taken = latest.put(_digests(keyed), offsets)
    map_end = int(offsets[taken]) if taken < len(keyed) else plan.cleanable.end_offset
    names, clean_end = choose_end(
        plan.cleanable.names, first_dirty_offset=plan.cleanable.first_dirty_offset, map_end=map_end
    )
    return latest, names, clean_end


def _digests(rows: Sequence[KeyedRow]) -> Digests:
    keys = [(row.key or "").encode() for row in rows]
    bounds = np.cumsum([0, *map(len, keys)], dtype=np.int64)
    return digest_keys(np.frombuffer(b"".join(keys), dtype=np.uint8), bounds)
