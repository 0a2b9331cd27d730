"""How does a finished segment become Parquet with an index?

Any process that notices a finished segment may seal it. It writes the inline rows to one Parquet file with a unique
name. Then it creates `.txnindex` and `.snapshot`, which are pure functions of the chain. Last it creates the
generation-0 `.index` by put-if-absent, which alone declares the segment sealed (PROTOCOL.md, "Sealing", W37, W38). A
segment is sealed only after the one before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, groupby

import msgspec

from txlog.core import names, segments
from txlog.core.effects import Get, InlineRows, NewId, Program, ReadClocks, WriteRows, gathered
from txlog.core.names import SegmentName, TopicPartition
from txlog.core.record_checks import StoredRecord
from txlog.core.records import NO_PRODUCER_ID, DataFile
from txlog.core.snapshot_state import to_snapshot
from txlog.core.state import replay
from txlog.errors import TxlogError
from txlog.protocol.context import Context, PartitionView, Views, with_view
from txlog.protocol.load import reload, trim_to
from txlog.protocol.put import encode_readable, put_pure
from txlog.protocol.topics import written_schemas

MAX_FINISHED_SEGMENTS = 2
"""So many finished segments of a tail are sealed at once, whatever waits for it: their records are read one by one."""
LEFT_RECORDS = 50
"""A finished segment is left to the producer that began the next one, until the next one has this many records."""
LEFT_GROUP_RECORDS = 100
"""When a process looks at finished segments that others should have sealed, in a partition of groups: when this many
records follow the oldest one. Then it drops or seals all that LEFT_RECORDS records follow, as a rule after one GET."""
_UNSEALED = "the segment stays unsealed until the state of idle producers has ended"


def seal(ctx: Context, view: PartitionView, leave: int = 0) -> Program[PartitionView]:
    """Seal every finished segment of the tail but the last `leave`, oldest first. Return the view after it.

    Two processes may do this at once, and it may be repeated: vacuum deletes the loser's Parquet file. Raises
    RecordTooLargeError if the snapshot or index would be larger than readers accept. The segment is then not sealed,
    and nothing is lost.
    """
    if not finished_segments(view):
        return view
    if view.age_ms((yield ReadClocks())) >= ctx.max_view_age_ms:
        # Only a young view proves that these slots were not deleted and created again (W37).
        view = yield from reload(ctx, view)
    segments = finished_segments(view)
    due = segments[: len(segments) - leave]
    if len(due) > 1 and view.topic_partition.topic == names.CONSUMER_OFFSETS_TOPIC:
        sealed = yield from _drop_sealed(view, due)
        if sealed is not None:
            return ctx.learn(sealed)
    for records in due:
        # Learned at once: a call that is out of time here would seal the same segments again at each repetition.
        view = ctx.learn((yield from _seal_one(ctx, view, records)))
    return view


def seal_quietly(ctx: Context, view: PartitionView, leave: int = 0) -> Program[PartitionView]:
    """Seal after the process's own append, without errors.

    The append holds whatever happens to the sealing, which any process can do later. So no error of the sealing may
    become the answer to that append, not even a refusal by the store. A process that seals or checks the segment
    reports damage in it, not a writer whose own record is in. Otherwise damage would keep the other markers of a
    decided transaction from being written.
    """
    try:
        return (yield from seal(ctx, view, leave))
    except TxlogError:
        return view


def seal_in_turn(ctx: Context, view: PartitionView, write_id: str) -> Program[PartitionView]:
    """Seal, as `seal_quietly`, after the append of the record `write_id` to a partition of groups.

    All members of a group see each finished segment. One of them seals it: the one whose record began the next segment.
    If that one dies, others do it LEFT_GROUP_RECORDS records later.
    """
    finished, begun = finished_segments(view), view.state.segment_base
    if not finished:
        return view
    if any(each.record.base_offset == begun and each.record.write_id == write_id for each in view.tail):
        return (yield from seal_quietly(ctx, view))
    following = [len(view.tail) - ends for ends in accumulate(map(len, finished))]
    if following[0] < LEFT_GROUP_RECORDS:
        return view
    return (yield from seal_quietly(ctx, view, sum(records < LEFT_RECORDS for records in following)))


def seal_all(ctx: Context, views: Sequence[PartitionView]) -> Program[tuple[PartitionView, ...]]:
    """Seal several partitions beside each other, as `seal_quietly`."""
    return gathered(seal_quietly(ctx, view) for view in views)


def seal_if_long(ctx: Context, view: PartitionView) -> Program[PartitionView]:
    """Seal, as `seal_quietly`, only if MAX_FINISHED_SEGMENTS wait for it. Fewer of them wait for a better moment."""
    if len(finished_segments(view)) < MAX_FINISHED_SEGMENTS:
        return view
    return (yield from seal_quietly(ctx, view))


def seal_one(ctx: Context, views: Views, tps: Iterable[TopicPartition], producer_id: int) -> Program[Views]:
    """Seal, as `seal_quietly`, the longest finished tail of `tps`, and those that are too long.

    Partitions that are written together often finish their segments together. So a transaction seals one of them, and
    the next ones seal the others. A segment of rows that a record of another producer has just finished is left to that
    producer: otherwise all writers of a partition would encode the same rows.
    """
    finished = {tp: finished_segments(views[tp]) for tp in tps if tp in views}
    left = {tp: int(bool(segments) and _is_left(views[tp], producer_id)) for tp, segments in finished.items()}
    own = {tp: segments[: len(segments) - left[tp]] for tp, segments in finished.items() if len(segments) > left[tp]}
    longest = max(own, key=lambda tp: sum(len(records) for records in own[tp]), default=None)
    due = [tp for tp in own if tp == longest or len(finished[tp]) >= MAX_FINISHED_SEGMENTS]
    if due:
        views = with_view(views, *(yield from gathered(seal_quietly(ctx, views[tp], left[tp]) for tp in due)))
    return views


def write_inline(tp: TopicPartition, name: SegmentName, stored: Sequence[StoredRecord]) -> Program[DataFile | None]:
    """Write the inline rows of a segment to one Parquet file with a new name (W37). Return None if it has none."""
    inline = [each for each in stored if each.record.payload_bytes]
    if not inline:
        return None
    # A deletion begins a segment. Older programs appended it to the active one, so two topics may have rows here. The
    # deleted one's columns do not fit into the file, and no reader needs its rows, which lie below the log start.
    newest = max(each.record.schema_id for each in inline)
    deletions = (each.record.deleted_version for each in stored)
    deleted = max((version for version in deletions if version <= newest), default=0)
    rows = tuple(
        InlineRows(
            each.payload,
            each.record.base_offset,
            each.record.timestamp,
            each.record.schema_id,
            is_deleted=each.record.schema_id < deleted,
        )
        for each in inline
    )
    own = SegmentName(name.base_offset, name.end_offset, 0, (yield NewId()))
    written = yield from written_schemas(tp.topic, {each.schema_id for each in rows if not each.is_deleted})
    file: DataFile = yield WriteRows(tp.topic, names.segment_file_path(tp.partition, own), rows, written)
    return file


def _is_left(view: PartitionView, producer_id: int) -> bool:
    """Return whether the last finished segment is left to another process, whose record has just begun the active one.

    That process may have died, may seal another partition first, or may never write again. So it gets LEFT_RECORDS
    records, or one segment in a partition of groups. No producer seals for a record without a producer, such as that of
    a deletion.
    """
    begun, topic = view.state.segment_base, view.topic_partition.topic
    # Members write the records of groups without a producer, and seal for them.
    own = (producer_id,) if topic == names.CONSUMER_OFFSETS_TOPIC else (producer_id, NO_PRODUCER_ID)
    return (
        topic != names.TRANSACTION_STATE_TOPIC
        and view.state.segment_batches < LEFT_RECORDS
        and not any(each.record.base_offset == begun and each.record.producer_id in own for each in view.tail)
    )


def finished_segments(view: PartitionView) -> list[tuple[StoredRecord, ...]]:
    """Return the tail's records by segment, in order, without the active one (W37)."""
    if not view.tail or view.tail[0].record.segment_base == view.tail[-1].record.segment_base:
        return []  # as a rule, and the tail may be long
    groups = [tuple(group) for _, group in groupby(view.tail, key=lambda stored: stored.record.segment_base)]
    return groups[:-1]


def _drop_sealed(view: PartitionView, due: Sequence[tuple[StoredRecord, ...]]) -> Program[PartitionView | None]:
    """Return the view without these finished segments if another process has sealed them all, else None.

    Segments are sealed in order, so the index of the last one shows that.
    """
    found = [SegmentName(each[0].record.base_offset, each[-1].record.end_offset, 0) for each in due]
    if (yield Get(view.topic_partition.folder + found[-1].index)) is None:
        return None
    return trim_to(view, replay(view.base, [each for records in due for each in records]), *found)


def _seal_one(ctx: Context, view: PartitionView, stored: tuple[StoredRecord, ...]) -> Program[PartitionView]:
    tp = view.topic_partition
    records = [each.record for each in stored]
    name = SegmentName(records[0].base_offset, records[-1].end_offset, 0)
    after = replay(view.base, stored)
    snapshot_path = tp.folder + names.snapshot_name(name.end_offset)
    snapshot = encode_readable(snapshot_path, to_snapshot(after), instead=_UNSEALED)
    has_rows = any(record.payload_bytes for record in records)
    if (has_rows or tp.topic == names.CONSUMER_OFFSETS_TOPIC) and (yield Get(tp.folder + name.index)) is not None:
        # Another process was faster. Many writers may notice a finished segment, and only the first writes its rows.
        return trim_to(view, after, name)
    file = yield from write_inline(tp, name, stored)
    index, txn_index = segments.build_index(tp, records, stored[-1].digest, file)
    index = msgspec.structs.replace(index, last_stable_offset=after.last_stable_offset)
    index_data = encode_readable(tp.folder + name.index, index, instead=_UNSEALED)
    if txn_index is not None:
        yield from put_pure(
            ctx, tp.folder + name.txnindex, encode_readable(tp.folder + name.txnindex, txn_index, instead=_UNSEALED)
        )
    # The `.index` is created last: it declares that the other objects exist (W38).
    yield from put_pure(ctx, snapshot_path, snapshot)
    yield from put_pure(ctx, tp.folder + name.index, index_data)
    return trim_to(view, after, name)
