"""Which erasures have begun, and how far does each go?

An erasure is recorded before it changes anything, so that any process can finish it (PROTOCOL.md, C15). The record
holds the condition, which may contain what is to be forgotten. So it is deleted at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from txlog.config import INT64_MAX
from txlog.core import cleaning, envelope, names
from txlog.core.effects import List, Now, Program, gathered
from txlog.core.names import ERASURES_FOLDER, SegmentName, TopicPartition
from txlog.core.records import CommitRecord, Erasure, SegmentIndex, TopicMetadata
from txlog.core.transactions import PREPARED
from txlog.errors import CorruptLogError, CorruptRecordError
from txlog.protocol.clean import Merge, plan_runs
from txlog.protocol.context import Context, PartitionView, Views, with_view
from txlog.protocol.expiry import append_nothing, end_tail, expire
from txlog.protocol.load import gather_fresh_views
from txlog.protocol.put import create_or_read
from txlog.protocol.requests import delete, get, many, partitions_in_use
from txlog.protocol.seal import seal
from txlog.protocol.staged_lists import read_parts
from txlog.protocol.table import rows_of
from txlog.protocol.transactions import roll_forward_current

MayMatch = Callable[[SegmentIndex], bool]
"""Whether a segment may hold rows to erase, by its index."""


def begin(
    ctx: Context, views: Views, topic: TopicMetadata, where: str, erasure_id: str
) -> Program[tuple[Views, Erasure]]:
    """Record an erasure of the rows that are in the topic now (C15).

    Transactions that are decided are rolled forward first, so that their rows are below the ends.
    """
    table = yield from partitions_in_use(names.TRANSACTION_STATE_TOPIC)
    views, _ = yield from expire(ctx, views, [tp.partition for tp in table])
    tps = partitions_of(topic)
    views = yield from gather_fresh_views(ctx, views, tps)
    erasure = Erasure(
        erasure_id=erasure_id,
        topic=topic.topic,
        topic_id=topic.topic_id,
        schema_id=topic.schema_id,
        where=where,
        ends=tuple(views[tp].state.next_offset for tp in tps),
        created_at=(yield Now()),
    )
    path, data = names.erasure_path(erasure_id), envelope.encode(erasure)
    # An earlier try of the same call may have created it, with other ends.
    return views, (
        yield from create_or_read(ctx, path, data, lambda stored: _decoded(path, stored), what="the erasure")
    )


def list_erasures(damaged: list[CorruptLogError] | None = None) -> Program[tuple[Erasure, ...]]:
    """Return the erasures that have begun and not ended, oldest first. Costs one LIST, and a GET for each.

    With a list `damaged`, the errors of damaged records are appended to it.
    """
    listed: Sequence[str] = yield List(ERASURES_FOLDER)
    paths = [ERASURES_FOLDER + name for name in listed if names.parse_erasure_name(name) is not None]
    found = yield from many([get(path) for path in paths])
    made = []
    for path, data in zip(paths, found, strict=True):
        try:
            made += [] if data is None else [_decoded(path, data)]
        except CorruptLogError as error:
            if damaged is None:
                raise
            damaged.append(error)
    return tuple(sorted(made, key=lambda each: (each.created_at, each.erasure_id)))


def end(ctx: Context, views: Views, erasure: Erasure) -> Program[tuple[Views, None]]:
    """End an erasure that is done: let readers that follow the tails list the runs (R23), then delete its record."""
    tps = [tp for tp, end_offset in ends_of(erasure).items() if end_offset]
    views = yield from gather_fresh_views(ctx, views, tps)
    appended = yield from gathered(append_nothing(ctx, {tp: views[tp]}, tp, ctx.roll_of(tp)) for tp in tps)
    yield from delete(names.erasure_path(erasure.erasure_id))
    return with_view(views, *(view for each in appended for view in each.values())), None


def cancel(erasure_id: str) -> Program[bool]:
    """Delete the record of an erasure, and return whether there was one."""
    path = names.erasure_path(erasure_id)
    if names.parse_erasure_name(path.removeprefix(ERASURES_FOLDER)) is None:
        return False
    found = yield from get(path)
    yield from delete(path)
    return found is not None


def seal_up_to(ctx: Context, views: Views, erasure: Erasure) -> Program[tuple[Views, None]]:
    """End and seal the tails of the topic that hold rows of the erasure."""
    ends = ends_of(erasure)
    views = yield from gather_fresh_views(ctx, views, list(ends))

    def one(tp: TopicPartition) -> Program[PartitionView]:
        view = yield from end_tail(ctx, views[tp], lambda record: _has_rows_below(record, ends[tp]))
        # It was sealed quietly. An error here says why the rows stay.
        return (yield from seal(ctx, view))

    return with_view(views, *(yield from gathered(one(tp) for tp in ends))), None


def seal_decisions(ctx: Context, views: Views, erasure: Erasure) -> Program[tuple[Views, None]]:
    """End and seal the tails of `__transaction_state`, when the log has none of the rows any more.

    Decisions may carry rows, or lowest and highest values of files. Those of the topic whose end is not recorded are
    rolled forward first: otherwise the new snapshots would have them.
    """
    table = yield from partitions_in_use(names.TRANSACTION_STATE_TOPIC)
    views = yield from gather_fresh_views(ctx, views, table)
    for row in rows_of([views[tp] for tp in table]):
        if row.value.state in PREPARED:
            parts = yield from read_parts(ctx, row.value)
            if any(part.topic == erasure.topic for part in parts):
                views = yield from roll_forward_current(ctx, views, row.value.transactional_id)

    def one(tp: TopicPartition) -> Program[PartitionView]:
        view = yield from end_tail(ctx, views[tp], lambda record: bool(record.entries))
        return (yield from seal(ctx, view))

    return with_view(views, *(yield from gathered(one(tp) for tp in table))), None


def plan_erasure(
    ctx: Context, views: Views, tp: TopicPartition, end_offset: int, may_match: MayMatch, searched: set[SegmentName]
) -> Program[tuple[Views, tuple[Merge, ...]]]:
    """Return groups of neighbouring segments that may hold rows to erase, without those that were `searched`.

    Costs `plan_runs`.
    """

    def choose(view: PartitionView, indexes: Mapping[SegmentName, SegmentIndex]) -> Sequence[tuple[SegmentName, ...]]:
        return cleaning.choose_erasures(
            view.walk,
            indexes,
            may_match=lambda name: name not in searched and may_match(indexes[name]),
            log_start_offset=view.state.log_start_offset,
            last_stable_offset=view.state.last_stable_offset,
            end_offset=end_offset,
            target_bytes=cleaning.DEFAULT_TARGET_BYTES,
        )

    return (yield from plan_runs(ctx, views, tp, choose))


def reach_of(view: PartitionView, end_offset: int) -> int:
    """Return the last stable offset from which on an erasure up to `end_offset` is not waited for any more.

    A segment that begins below the end may reach beyond it, and only whole segments below the LSO are rewritten (C15).
    """
    if any(_has_rows_below(stored.record, end_offset) for stored in view.tail):
        return INT64_MAX  # they are not sealed yet
    return max((name.end_offset for name in view.walk if name.base_offset < end_offset), default=0)


def ends_of(erasure: Erasure) -> dict[TopicPartition, int]:
    """Return where the erasure ends in each partition."""
    return {TopicPartition(erasure.topic, number): offset for number, offset in enumerate(erasure.ends)}


def partitions_of(topic: TopicMetadata) -> list[TopicPartition]:
    return [TopicPartition(topic.topic, number) for number in range(topic.partitions)]


def _has_rows_below(record: CommitRecord, end_offset: int) -> bool:
    """Return whether its segment must be sealed. One without rows is not full, so no record can end it."""
    return record.records > 0 and record.base_offset < end_offset


def _decoded(path: str, data: bytes) -> Erasure:
    found, _ = envelope.decode(data, Erasure, path)
    if path != names.erasure_path(found.erasure_id):
        raise CorruptRecordError(
            f"{path}: it says that it is erasure {found.erasure_id}; an object was swapped or copied"
        )
    return found
