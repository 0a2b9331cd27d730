"""How does an offline job run, one request after another? Calls that run the shipped maintenance programs.

Planning, publishing and every decision are `txlog.protocol`'s and `txlog.core`'s. Only the copy of the rows between a
plan and its publication is the kit's. Rows are words here, and one request writes a file, as in a seal.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from lab.compacting import KeyedRow, choose, reach
from lab.explore.client import Call, Client
from lab.explore.keeper_calls import rows_of_pieces
from lab.explore.keys import is_tombstone, key_of
from lab.explore.machine import WaitUntil
from lab.explore.publisher import retention_of
from lab.explore.world import START_MS
from lab.vacuuming import vacuum_topics
from txlog.core import envelope, names
from txlog.core.chain import parse_listing
from txlog.core.cleaning import Kept, MergePolicy
from txlog.core.compaction import CompactionPolicy
from txlog.core.effects import Delete, Get, InlineRows, List, Now, Program, PutIfAbsent, PutOutcome, WriteRows
from txlog.core.names import SegmentObject, TopicPartition
from txlog.core.records import Boundary, Clean, DataFile, IndexedFile
from txlog.core.segments import indexed_file
from txlog.errors import MissingObjectError, OutcomeUnknownError, RetriableError
from txlog.protocol.clean import Merge, plan_merges, publish
from txlog.protocol.compact import CompactionPlan, plan_compaction
from txlog.protocol.retention import RetentionPolicy, apply_plan, plan_retention

ALL = MergePolicy(target_bytes=2**30)
"""Merges everything that may be merged into one run."""


def merge(tp: TopicPartition, policy: MergePolicy = ALL) -> Call:
    """Run `txlog merge` of one partition: plan, copy, publish. It notes each run that took effect by its answer."""

    def call(client: Client) -> Program[Client]:
        took: list[str] = []
        try:
            views, merges = yield from plan_merges(client.ctx, client.views, tp, policy)
            for each in merges:
                file = yield from _copied(each)
                if (yield from publish(client.ctx, each, file)):
                    took.append(each.run.name.index)
        except (MissingObjectError, RetriableError, OutcomeUnknownError) as error:
            # Another maintenance job was faster, or the outcome is unknown: the next pass sees what is left to do.
            return client.noted("unknown", text=str(error))
        after = replace(client, views=views)
        for name in took:
            after = after.noted("merged", tp=tp, text=name)
        return after if took else after.noted("done")

    return call


def compact(tp: TopicPartition, policy: CompactionPolicy) -> Call:
    """Run one pass of `txlog compact` of one partition: plan, read the keys, copy the rows that stay, publish."""

    def call(client: Client) -> Program[Client]:
        took = ""
        try:
            views, plan = yield from plan_compaction(client.ctx, client.views, tp, policy)
            if plan is not None:
                made, file, kept = yield from _survivors(plan)
                if (yield from publish(client.ctx, made, file, kept)):
                    took = made.run.name.index
        except (MissingObjectError, RetriableError, OutcomeUnknownError) as error:
            # As for a merge: the next pass sees what is left to do.
            return client.noted("unknown", text=str(error))
        after = replace(client, views=views)
        return after.noted("compacted", tp=tp, text=took) if took else after.noted("done")

    return call


def bound(tp: TopicPartition, *, superseded: bool = False) -> Call:
    """Wait for the grace, create the boundary at the sealed end, and delete the slots below it.

    With `superseded`, also delete the indexes that the highest `.clean` lists as superseded.
    """

    def call(client: Client) -> Program[Client]:
        listed = parse_listing((yield List(tp.folder)), tp.folder)
        gone: tuple[str, ...] = ()
        if superseded and listed.clean is not None:
            path = tp.folder + names.clean_name(listed.clean)
            clean, _ = envelope.decode((yield Get(path)), Clean, path)
            gone = tuple(each.name for each in clean.superseded)
        # This time is read after the LIST, so each listed object was sealed or superseded at this time or earlier.
        began_ms = yield Now()
        end = max((segment.end_offset for segment in listed.segments), default=0)
        waited: Any = WaitUntil(began_ms - START_MS + client.ctx.constants.delete_grace_ms)
        yield waited
        if not end:
            return client.noted("done")
        if end > listed.boundary:
            yield from _create(tp.folder + names.boundary_name(end), Boundary(offset=end, created_at=began_ms))
            seen = parse_listing((yield List(tp.folder)), tp.folder)
            if seen.boundary < end:
                return client.noted("done")
        for base in listed.batches:
            if base < end:
                yield Delete(tp.folder + names.batch_name(base))
        for name in gone:
            yield Delete(tp.folder + name)
            match names.parse_partition_object(name):
                case SegmentObject(segment=segment, kind="index"):
                    yield Delete(tp.folder + segment.txnindex)
        return client.noted("done")

    return call


def forget_cleans(tp: TopicPartition) -> Call:
    """Delete each `.clean` that a LIST showed below the highest, at once, because no merger may rely on the grace."""

    def call(client: Client) -> Program[Client]:
        listed = yield List(tp.folder)
        numbers = [
            parsed.number
            for name in listed
            if isinstance(parsed := names.parse_partition_object(name), names.NumberedName) and parsed.kind == "clean"
        ]
        for number in sorted(numbers)[:-1]:
            yield Delete(tp.folder + names.clean_name(number))
        return client.noted("done")

    return call


def wait(ms: int) -> Call:
    """Wait until that long after the scenario began."""

    def call(client: Client) -> Program[Client]:
        waited: Any = WaitUntil(ms)
        yield waited
        return client

    return call


def vacuum(tp: TopicPartition) -> Call:
    """`txlog vacuum --execute` of a topic, one pass. It knows the settings of topics that the client has opened."""

    def call(client: Client) -> Program[Client]:
        try:
            published = {each.topic: retention_of(each) for each in client.topics}
            views, gone = yield from vacuum_topics(client.ctx, client.views, [tp.topic], published=published)
        except (MissingObjectError, RetriableError, OutcomeUnknownError) as error:
            return client.noted("unknown", text=str(error))
        return replace(client, views=views).noted("vacuumed", text=f"{len(gone)} objects")

    return call


def retain(tp: TopicPartition, retention_ms: int) -> Call:
    """Run `txlog retention` of one partition."""

    def call(client: Client) -> Program[Client]:
        try:
            policy = RetentionPolicy(retention_ms=retention_ms)
            views, plan = yield from plan_retention(client.ctx, client.views, tp, policy)
            if plan.moves:
                views, _ = yield from apply_plan(client.ctx, views, plan)
        except (MissingObjectError, RetriableError, OutcomeUnknownError) as error:
            return client.noted("unknown", text=str(error))
        return replace(client, views=views).noted("done")

    return call


def everything(*tps: TopicPartition) -> Any:
    """Return a test for the paths in those partitions that only a vacuum may delete."""
    folders = tuple(tp.folder for tp in tps)
    return lambda path: path.startswith(folders)


def deletes(*tps: TopicPartition, kinds: tuple[str, ...] = (".batch",)) -> Any:
    """Return a test for paths of the kinds that a scenario deletes."""
    folders = tuple(tp.folder for tp in tps)
    return lambda path: path.startswith(folders) and path.endswith(kinds)


INDEXES = (".batch", ".index", ".txnindex")


def _copied(merge: Merge) -> Program[IndexedFile | None]:
    """Copy the rows of a merge into one file under its name, with their offsets."""
    return (yield from written(merge, (yield from rows_of(merge))))


def _survivors(plan: CompactionPlan) -> Program[tuple[Merge, IndexedFile | None, Kept]]:
    """Return the run of a pass, the file of the rows that stay, and what its index contains about them."""
    dirty = yield from rows_of_pieces(plan.dirty_pieces, plan.cleanable.first_dirty_offset, plan.cleanable.end_offset)
    merge = plan.merge(reach(plan, _keyed(dirty)))
    rows = yield from rows_of(merge)
    stays, kept = choose(plan, _keyed(dirty), _keyed(rows))
    file = yield from written(merge, tuple(row for row, here in zip(rows, stays, strict=True) if here))
    return merge, file, kept


def rows_of(merge: Merge) -> Program[tuple[tuple[int, str], ...]]:
    return (yield from rows_of_pieces(merge.pieces, merge.run.base_offset, merge.run.end_offset))


def _keyed(rows: tuple[tuple[int, str], ...]) -> tuple[KeyedRow, ...]:
    return tuple(KeyedRow(offset, key_of(word), is_tombstone(word)) for offset, word in rows)


def written(merge: Merge, rows: tuple[tuple[int, str], ...]) -> Program[IndexedFile | None]:
    if not rows:
        return None
    tp = merge.topic_partition
    stored = tuple(
        InlineRows(payload=json.dumps([word]).encode(), base_offset=offset, timestamp=START_MS, schema_id=0)
        for offset, word in rows
    )
    file: DataFile = yield WriteRows(tp.topic, merge.path, stored)
    return indexed_file(file, 0, offset_column=True)


def _create(path: str, value: Boundary) -> Program[PutOutcome]:
    while True:
        outcome: PutOutcome = yield PutIfAbsent(path, envelope.encode(value))
        if outcome is not PutOutcome.UNKNOWN:
            return outcome
