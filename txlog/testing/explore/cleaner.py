"""A cleaner of the test kit: what merges, bounds and deletes, so that writers and readers can be explored against it.

txlog ships no cleaner yet. These programs follow DESIGN 2.2, 2.4 and 6 in the smallest way that keeps their rules: a run is
made of neighbouring sealed segments wholly below the LSO, published by the next `.clean`; a boundary is created at a sealed
end and seen to be there; and only `delete.grace.ms` after a LIST that showed what supersedes them are slots and superseded
indexes deleted.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from txlog.core import envelope, names
from txlog.core.chain import parse_listing
from txlog.core.effects import Delete, InlineRows, List, NewId, Now, Program, PutIfAbsent, PutOutcome, WriteRows
from txlog.core.names import SegmentName, TopicPartition
from txlog.core.records import (
    AbortedTxn,
    Boundary,
    Clean,
    CleanedRun,
    DataFile,
    IndexedFile,
    IndexEntry,
    SegmentIndex,
    TxnIndex,
)
from txlog.protocol.context import Context
from txlog.protocol.load import load
from txlog.protocol.read import ReadIndex, plan_read
from txlog.testing.explore.client import Call, Client, rows_of
from txlog.testing.explore.machine import WaitUntil
from txlog.testing.explore.world import START_MS


def clean(tp: TopicPartition, *, merges: bool = False) -> Call:
    """One clean-up of a partition, from the first look to the last deletion."""

    def call(client: Client) -> Program[Client]:
        gone = (yield from _merge(client.ctx, tp)) if merges else ()
        listed = parse_listing((yield List(tp.folder)), tp.folder)
        # Read after the LIST: what that showed was sealed, or superseded, no later than now.
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
        return client.noted("done")

    return call


def deletes(tp: TopicPartition, *, merges: bool = False) -> Any:
    """Whether a path is of a kind that `clean` deletes."""
    kinds = (".batch", ".index", ".txnindex") if merges else (".batch",)
    return lambda path: path.startswith(tp.folder) and path.endswith(kinds)


def _merge(ctx: Context, tp: TopicPartition) -> Program[tuple[str, ...]]:
    """Makes one run of all sealed segments that lie below the LSO and were never merged. -> the names it supersedes."""
    view = yield from load(ctx, tp)
    inputs = [name for name in view.walk if name.end_offset <= view.state.last_stable_offset and not name.generation]
    if not inputs or any(name.generation for name in view.walk):
        return ()
    base, end = inputs[0].base_offset, inputs[-1].end_offset
    _, plan = yield from plan_read(ctx, view, base, end, "read_committed")
    rows = yield from rows_of(plan)
    run = SegmentName(base, end, 1, (yield NewId()))
    read = [plan.indexes[name] for name in inputs]
    aborted = tuple(txn for each in read for txn in each.aborted)
    index, file_rows = _index(tp, run, read, aborted, dict(rows))
    path = names.segment_file_path(tp.partition, run)
    files: tuple[IndexedFile, ...] = ()
    if file_rows:
        file: DataFile = yield WriteRows(tp.topic, path, tuple(_inline(offset, word) for offset, word in file_rows))
        files = (
            IndexedFile(
                **{name: getattr(file, name) for name in file.__struct_fields__}, schema_id=0, offset_column=True
            ),
        )
    if aborted:
        yield from _create(tp.folder + run.txnindex, TxnIndex(partition=str(tp), aborted=aborted))
    yield from _create(tp.folder + run.index, msgspec.structs.replace(index, files=files))
    listing = parse_listing((yield List(tp.folder)), tp.folder)
    if listing.clean is not None:
        return ()
    made = Clean(
        number=0,
        runs=(CleanedRun(base_offset=base, end_offset=end, generation=1, unique=run.unique),),
        created_at=START_MS,
    )
    if (yield from _create(tp.folder + names.clean_name(0), made)) is not PutOutcome.WRITTEN:
        return ()
    return tuple(kind for name in inputs for kind in (name.index, name.txnindex))


def _index(
    tp: TopicPartition, run: SegmentName, read: list[ReadIndex], aborted: tuple[AbortedTxn, ...], rows: dict[int, str]
) -> tuple[SegmentIndex, list[tuple[int, str]]]:
    entries: list[IndexEntry] = []
    kept: list[tuple[int, str]] = []
    for entry in (entry for each in read for entry in each.index.entries):
        mine = [(offset, rows[offset]) for offset in range(entry.base_offset, entry.end_offset) if offset in rows]
        if entry.records and mine:
            entries.append(msgspec.structs.replace(entry, file=0, first_row=len(kept)))
            kept.extend(mine)
    index = SegmentIndex(
        partition=str(tp),
        base_offset=run.base_offset,
        end_offset=run.end_offset,
        generation=1,
        files=(),
        entries=tuple(entries),
        aborted_txns=len(aborted),
        last_digest="",
        last_stable_offset=read[-1].index.last_stable_offset,
    )
    return index, kept


def _inline(offset: int, word: str) -> InlineRows:
    return InlineRows(payload=json.dumps([word]).encode(), base_offset=offset, timestamp=START_MS, schema_id=0)


def _create(path: str, value: msgspec.Struct) -> Program[PutOutcome]:
    while True:
        outcome: PutOutcome = yield PutIfAbsent(path, envelope.encode(value))
        if outcome is not PutOutcome.UNKNOWN:
            return outcome
