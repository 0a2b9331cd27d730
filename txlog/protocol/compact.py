"""What of a partition is compacted now, and how is the run made?

A compaction is planned like a merge, on a fold of the table of transactions (PROTOCOL.md, C2, C2a, C3). But it makes
only one run, which starts at the log start. How far the run reaches is decided where the keys are read
(`CompactionPlan.merge`). `clean.publish` makes the run current.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from txlog.core import cleaning
from txlog.core.ages import ClockReading
from txlog.core.compaction import Cleanable, CompactionPolicy, find_cleanable
from txlog.core.effects import NewId, Now, Program, ReadClocks
from txlog.core.fetch_plan import Piece
from txlog.core.names import SegmentName, TopicPartition
from txlog.core.snapshots import SnapshotCut, complete_at
from txlog.protocol.clean import Merge, committed_rows
from txlog.protocol.context import Context, PartitionView, Views, with_view
from txlog.protocol.load import load
from txlog.protocol.read import ReadIndex, aborted_of_range, read_indexes
from txlog.protocol.requests import store_now
from txlog.protocol.snapshot import fold_table


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionPlan(Merge):
    """A pass of compaction before its keys were read: a run of all that it may reach, without pieces."""

    policy: CompactionPolicy
    cleanable: Cleanable
    """Its `names` are the inputs."""
    planned_at_ms: int
    """The time at which tombstones are due, and from which new ones get their `delete_at`."""

    @property
    def dirty_pieces(self) -> tuple[Piece, ...]:
        """Return the committed rows that no compaction has seen, in the order of offsets."""
        return committed_rows(self.topic_partition, self.indexes, self.aborted, self.cleanable.first_dirty_offset)

    def merge(self, names: Sequence[SegmentName]) -> Merge:
        """Return the run over `names`, the first ones of `cleanable`.

        It has all committed rows from the log start on.
        """
        indexes = self.indexes[: len(names)]
        start = max(names[0].base_offset, self.log_start_offset)
        return replace(
            self,
            run=cleaning.merged_run(names, self.run.unique),
            inputs=tuple(names),
            pieces=committed_rows(self.topic_partition, indexes, self.aborted, start),
            indexes=indexes,
        )


def look_at_dirt(
    ctx: Context, views: Views, tp: TopicPartition, policy: CompactionPolicy
) -> Program[tuple[Views, Cleanable]]:
    """Return what of a partition may be compacted now, if all its transactions are complete.

    A pass also reads the table of transactions, which may show that some are not. Costs a LIST, and one GET per sealed
    segment.
    """
    view, cleanable, _ = yield from _look(ctx, tp, policy, {}, None)
    return with_view(views, view), cleanable


def plan_compaction(
    ctx: Context, views: Views, tp: TopicPartition, policy: CompactionPolicy
) -> Program[tuple[Views, CompactionPlan | None]]:
    """Return the next pass of compaction of a partition; None if no pass is due.

    Costs `look_at_dirt`. If a pass is due, it also costs the GETs of the table and another LIST.
    """
    _, cleanable, indexes = yield from _look(ctx, tp, policy, {}, None)
    if not cleanable.is_due:
        return views, None
    began: ClockReading = yield ReadClocks()
    store_now_ms = yield from store_now()
    views, rows, table_ends = yield from fold_table(ctx, views)
    # The table is read before the partition (C2c), so a snapshot that begins later shows every row that supersedes
    # another one.
    complete = complete_at(rows, table_ends, began)
    view, cleanable, indexes = yield from _look(ctx, tp, policy, indexes, complete)
    views = with_view(views, view)
    if not cleanable.is_due:
        return views, None
    distinct_from_ms, removed_from_ms = cleaning.distinct_bounds(store_now_ms, ctx.constants.delete_grace_ms)
    settled = cleaning.settled_epochs(rows, (read.index for read in indexes.values()), distinct_from_ms)
    names = list(cleanable.names)
    indexes, aborted = yield from aborted_of_range(view, names, indexes, names[0].base_offset, cleanable.end_offset)
    return views, CompactionPlan(
        topic_partition=tp,
        policy=policy,
        cleanable=cleanable,
        run=cleaning.merged_run(names, (yield NewId())),
        inputs=cleanable.names,
        pieces=(),
        indexes=tuple(indexes[name] for name in names),
        aborted=aborted,
        log_start_offset=view.state.log_start_offset,
        settled=settled,
        distinct_from_ms=distinct_from_ms,
        removed_from_ms=removed_from_ms,
        planned_at_ms=began.wall_ms,
    )


def _look(
    ctx: Context,
    tp: TopicPartition,
    policy: CompactionPolicy,
    known: dict[SegmentName, ReadIndex],
    complete: SnapshotCut | None,
) -> Program[tuple[PartitionView, Cleanable, dict[SegmentName, ReadIndex]]]:
    now_ms = yield Now()
    # A view that followed the tail by name does not show which runs are current.
    view = yield from load(ctx, tp)
    known = yield from read_indexes(view, list(view.walk), known)
    cleanable = find_cleanable(
        view.walk,
        {name: known[name].index for name in view.walk},
        log_start_offset=view.state.log_start_offset,
        last_stable_offset=view.state.last_stable_offset,
        next_offset=view.state.next_offset,
        now_ms=now_ms,
        policy=policy,
        complete=complete,
    )
    return view, cleanable, known
