"""Which rows of a partition does its topic no longer keep, and how does the log start move past them?

One `log_start` record moves it, never back. From then on readers of lower offsets get OffsetOutOfRangeError, and a
grace later vacuum deletes the rows (PROTOCOL.md, "Clean-up", C7).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from txlog.core import retention
from txlog.core.effects import Now, Program
from txlog.core.groups import offsets_partition
from txlog.core.names import SegmentName, TopicPartition
from txlog.core.records import OffsetValue
from txlog.core.retention import Hold, SealedBytes
from txlog.protocol.append import append_log_start
from txlog.protocol.context import Context, PartitionView, Views, with_view
from txlog.protocol.load import gather_fresh_views, get_fresh_view, relisting
from txlog.protocol.read import read_indexes
from txlog.protocol.seal import seal_quietly

_AT_ONCE = 32
"""Indexes that are read in one round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPolicy:
    """What a topic keeps."""

    retention_ms: int = -1
    """Age (ms) up to which rows are kept. -1: any age."""
    retention_bytes: int = -1
    """Bytes that a partition keeps. -1: any number."""
    hold_groups: tuple[str, ...] = ()
    """Consumer groups whose unread rows are kept."""
    hold_max_ms: int = -1
    """How long (ms) rows are kept for a group that does not commit. -1: forever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPlan:
    """What retention would remove from one partition."""

    topic_partition: TopicPartition
    log_start_before: int
    log_start_after: int
    """Equal to the present log start if nothing is removed."""
    gone: tuple[SealedBytes, ...]
    """Segments, runs and batches that the new log start would remove."""
    by_time: bool
    """Whether `retention.ms` requires it, and not only `retention.bytes`."""
    hold: Hold | None
    """The group whose unread rows stay although retention would remove them."""
    active_rows: int
    """Rows beyond the limits that stay because they are in the active segment."""

    @property
    def moves(self) -> bool:
        """Whether anything is removed. If not, a group holds all of it, or it is in the active segment."""
        return self.log_start_after > self.log_start_before

    @property
    def segments(self) -> int:
        return len(self.gone)

    @property
    def rows(self) -> int:
        return sum(each.rows for each in self.gone)

    @property
    def bytes(self) -> int:
        """Size of their files."""
        return sum(each.bytes for each in self.gone)

    @property
    def setting(self) -> str:
        """`retention.ms` or `retention.bytes`, whichever requires the move. Empty if nothing is removed."""
        return "" if not self.moves else "retention.ms" if self.by_time else "retention.bytes"

    @property
    def held_by(self) -> str | None:
        """A consumer group that holds further rows back."""
        return None if self.hold is None else self.hold.group

    @property
    def held_until_ms(self) -> int | None:
        """When the hold ends, if the group commits nothing more."""
        return None if self.hold is None or self.hold.until_ms == 2**63 - 1 else self.hold.until_ms


def plan_retention(
    ctx: Context, views: Views, tp: TopicPartition, policy: RetentionPolicy
) -> Program[tuple[Views, RetentionPlan]]:
    """Return what `policy` would remove now. Nothing is written.

    Costs one GET of an index if nothing is old enough. With `retention.bytes` it also costs one GET for each of the
    newest segments that make up that size. With groups it costs one GET per partition of `__consumer_offsets` that
    holds one of them.
    """
    views, view = yield from get_fresh_view(ctx, views, tp)

    def find(found: PartitionView) -> Program[tuple[Views, RetentionPlan]]:
        return _plan(ctx, with_view(views, found), found, policy)

    _, planned = yield from relisting(ctx, view, find)
    return planned


def apply_plan(ctx: Context, views: Views, plan: RetentionPlan) -> Program[tuple[Views, int]]:
    """Move the log start as planned (C7), and seal segments that this finished.

    Return the log start after it: another job may have moved it further.
    """
    tp = plan.topic_partition
    views, log_start = yield from append_log_start(ctx, views, tp, plan.log_start_after)
    return with_view(views, (yield from seal_quietly(ctx, views[tp]))), log_start


def _plan(
    ctx: Context, views: Views, view: PartitionView, policy: RetentionPolicy
) -> Program[tuple[Views, RetentionPlan]]:
    now_ms = yield Now()
    tp, state = view.topic_partition, view.state
    oldest = yield from _oldest(view, now_ms, policy.retention_ms)
    newest = yield from _newest(view, policy.retention_bytes)
    by_time = retention.end_by_time(oldest, now_ms, policy.retention_ms)
    by_bytes = retention.end_by_bytes(newest, _tail_bytes(view), policy.retention_bytes)
    wanted = max(by_time, by_bytes)
    cut = yield from _cut(view, max(wanted, state.log_start_offset), newest, now_ms, policy)
    if cut is not None:
        wanted = cut.name.end_offset
        by_time = wanted if retention.is_expired(cut.newest_ms, now_ms, policy.retention_ms) else by_time
    hold = None
    if wanted > state.log_start_offset and policy.hold_groups:
        views, holds = yield from _holds(ctx, views, tp, policy, now_ms)
        hold = holds[0] if holds and holds[0].offset < wanted else None
    end = retention.bounded_end(view.walk, wanted, state.last_stable_offset, hold)
    if cut is not None and wanted <= min(state.last_stable_offset, wanted if hold is None else hold.offset):
        end = wanted
    after = max(end, state.log_start_offset)
    names = [name for name in view.walk if state.log_start_offset < name.end_offset <= after]
    gone = yield from _measured(view, names)
    if cut is not None and after == cut.name.end_offset:
        gone.append(cut)
    if not any(each.rows for each in gone):
        # Only markers and log_start records would be removed. A move would write one more such record, so none is made.
        after, gone = state.log_start_offset, []
    return views, RetentionPlan(
        topic_partition=tp,
        log_start_before=state.log_start_offset,
        log_start_after=after,
        gone=tuple(gone),
        by_time=by_time >= after,
        hold=hold,
        active_rows=retention.rows_beyond(
            (stored.record for stored in view.tail),
            log_start_offset=state.log_start_offset,
            now_ms=now_ms,
            retention_ms=policy.retention_ms,
            excess_bytes=_tail_bytes(view) - policy.retention_bytes if policy.retention_bytes >= 0 else -1,
        ),
    )


def _oldest(view: PartitionView, now_ms: int, retention_ms: int) -> Program[list[SealedBytes]]:
    """Return the leading segments, up to the first that is not expired."""
    found: list[SealedBytes] = []
    if retention_ms < 0:
        return found
    # Read one index first: in most partitions nothing is old enough.
    first, count = 0, 1
    while first < len(view.walk):
        found += yield from _measured(view, view.walk[first : first + count])
        if not retention.is_expired(found[-1].newest_ms, now_ms, retention_ms):
            break
        first, count = first + count, _AT_ONCE
    return found


def _newest(view: PartitionView, retention_bytes: int) -> Program[list[SealedBytes]]:
    """Return the last segments, newest first, down to the one after those that make up `retention_bytes`."""
    found: list[SealedBytes] = []
    if retention_bytes < 0:
        return found
    size = _tail_bytes(view)
    backwards = view.walk[::-1]
    for first in range(0, len(backwards), _AT_ONCE):
        part = yield from _measured(view, backwards[first : first + _AT_ONCE])
        found += part
        size += sum(each.bytes for each in part[:-1])
        if size >= retention_bytes:
            break
        size += part[-1].bytes
    return found


def _cut(
    view: PartitionView, start: int, newest: Sequence[SealedBytes], now_ms: int, policy: RetentionPolicy
) -> Program[SealedBytes | None]:
    """Return what may be removed from the first remaining run from `start` on, if a compaction made it."""
    left = [name for name in view.walk if name.end_offset > start]
    if not left or not left[0].generation:
        return None
    indexes = yield from read_indexes(view, left[:1], {})
    index = indexes[left[0]].index
    excess_bytes = -1
    if newest and newest[-1].name == left[0]:
        size, rows = newest[-1].bytes, max(newest[-1].rows, 1)
        later = _tail_bytes(view) + sum(each.bytes for each in newest[:-1])
        excess_bytes = later + size * retention.rows_from(index, start) // rows - policy.retention_bytes
    return retention.cut_of_run(
        index,
        log_start_offset=start,
        now_ms=now_ms,
        retention_ms=policy.retention_ms,
        excess_bytes=excess_bytes,
    )


def _measured(view: PartitionView, names: Sequence[SegmentName]) -> Program[list[SealedBytes]]:
    found: list[SealedBytes] = []
    for first in range(0, len(names), _AT_ONCE):
        part = list(names[first : first + _AT_ONCE])
        indexes = yield from read_indexes(view, part, {})
        found += [retention.measure(indexes[name].index, name) for name in part]
    return found


def _tail_bytes(view: PartitionView) -> int:
    """Return the bytes of rows in the tail.

    Markers and retention's own records do not count, so they cannot cause rows to be removed.
    """
    return sum(retention.bytes_of(stored.record) for stored in view.tail)


def _holds(
    ctx: Context, views: Views, tp: TopicPartition, policy: RetentionPolicy, now_ms: int
) -> Program[tuple[Views, tuple[Hold, ...]]]:
    count = ctx.constants.consumer_offsets_partitions
    homes = {group: offsets_partition(group, count) for group in policy.hold_groups}
    views = yield from gather_fresh_views(ctx, views, sorted(set(homes.values())))
    committed: dict[str, OffsetValue] = {}
    for group, home in homes.items():
        row = views[home].state.committed.get((group, tp.topic, tp.partition))
        if row is not None and row.entry.value is not None:
            committed[group] = row.entry.value
    return views, retention.holds_of(committed, now_ms, policy.hold_max_ms)
