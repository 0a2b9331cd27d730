"""Which row of each key is the newest? The table that a changelog describes, whether or not compaction ran.

The rule is the one of compaction, in `core/compaction.py`. It holds within a partition. Rows below the end of the last
compaction have different keys. So first the keys behind that end are read, and then the rows, once. If nothing was
compacted, each partition is read twice: first its keys, then its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from txlog.client.reading import MAX_RELISTS, Condition, ReadTask, plan_again, tasks_for
from txlog.client.session.runtime import Runtime
from txlog.client.tables.packing import offsets_of, without_statistics
from txlog.client.tables.predicate import bounds_in_piece
from txlog.client.topics.row_writer import keys_of_latest
from txlog.core.compaction import Newest, Rows, compacted_end, digest_keys, keep_compacted
from txlog.core.fetch_plan import Piece
from txlog.core.records import TopicMetadata
from txlog.core.schema import OFFSET_COLUMN, value_columns
from txlog.errors import MissingObjectError
from txlog.protocol.read import ReadPlan
from txlog.storage.keys import NewestOffsets, key_values, serialized_keys
from txlog.storage.object_store import ObjectStore

Read: TypeAlias = Callable[[ReadTask], Iterator[pa.RecordBatch]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LatestTask:
    """The newest rows of one partition, for any process that can open the store. Picklable."""

    keys: ReadTask
    """All rows that the result depends on, with the columns of the key and `_offset`."""
    rows: ReadTask
    """All rows that may be in the result, with its columns, and those that the choice depends on."""
    key_columns: tuple[str, ...]
    value_columns: tuple[str, ...]
    """All null in a tombstone. Empty if no row of the partition is one."""
    compacted_end: int
    """No two rows below this offset have the same key."""

    def read(self, read: Read, store: ObjectStore | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the newest rows, in the order of offsets. `read` is `read_task`, or reads several files at once.

        The result has the columns of `rows`. `store` is opened from the task if None. Raises what `read_task` raises.
        """
        seen, newest, end, wanted = self._look(read, store)
        for batch in read(wanted):
            offsets, tombstones = _offsets(batch), tombstones_of(batch, self.value_columns)
            stays = newest.keep(offsets, tombstones)
            below = offsets < end
            if below.any():
                keys = key_values(pa.Table.from_batches([batch.filter(pa.array(below))]), self.key_columns)
                keyed = keys.is_valid().to_numpy(zero_copy_only=False)
                newer = pc.is_in(keys, seen).to_numpy(zero_copy_only=False) if len(seen) else np.zeros_like(keyed)
                stays[below] = keep_compacted(keyed, newer, tombstones[below])
            yield batch if stays.all() else batch.filter(pa.array(stays))

    def _look(self, read: Read, store: ObjectStore | None) -> tuple[pa.Array[Any], Newest, int, ReadTask]:
        """Return the keys that were looked at, their newest rows, the offset below which no row was looked at, and
        where the rows are now."""
        keys, rows, end = self.keys, self.rows, self.compacted_end
        if end:
            keys = replace(keys, pieces=tuple(piece for piece in keys.pieces if offsets_of(piece)[1] > end))
        left = MAX_RELISTS
        while True:
            try:
                return *self._newest(read(replace(keys, relist=False)), end), end, rows
            except MissingObjectError:
                # Compactions have replaced the file, and vacuum deleted it. They may have removed a tombstone together
                # with the older row of its key. In the files of before that row would come back without its tombstone.
                if not left:
                    raise
            left -= 1
            keys, rows, end = plan_again(self.keys, store), plan_again(self.rows, store), 0

    def _newest(self, batches: Iterable[pa.RecordBatch], end: int) -> tuple[pa.Array[Any], Newest]:
        newest, keyless = NewestOffsets(), [np.zeros(0, dtype=np.int64)]
        for batch in batches:
            # A run may begin below the compaction's end.
            table = pa.Table.from_batches([batch]).filter(pa.array(_offsets(batch) >= end))
            keys, offsets = key_values(table, self.key_columns), _offsets(table)
            newest.add(keys, offsets)
            if keys.null_count:
                keyless.append(offsets[keys.is_null().to_numpy(zero_copy_only=False)])
        seen, keyed = newest.found()
        return seen, Newest(keyed, np.concatenate(keyless))


def latest_tasks(
    runtime: Runtime,
    topic: TopicMetadata,
    plans: Iterable[ReadPlan],
    columns: Sequence[str],
    where: Condition | None = None,
) -> list[LatestTask]:
    """Return a task for each plan that reads the columns, and those of `where`, with the names of `topic`.

    The plans are read_committed, from the log start on. The condition chooses among the newest rows. A part of it that
    uses only columns of the key is true for all rows of a key or for none. So it can choose rows before that.

    Raises InvalidRequestError for a topic without a key, SchemaMismatchError.
    """
    keys = keys_of_latest(runtime.settings, topic)
    found = list(plans)
    ends = [compacted_end_of(topic, plan, keys) for plan in found]
    values = _values(topic, keys, [piece for plan in found for piece in plan.pieces])
    names = [*columns, *(() if where is None else where.columns), *(keys if any(ends) else ()), *values, OFFSET_COLUMN]
    of_keys = None if where is None else where.on(keys)
    return [
        LatestTask(
            keys=_light(replace(task, columns=keys, metadata_columns=(OFFSET_COLUMN,)).where(of_keys)),
            rows=_light(task.where(where)),
            key_columns=keys,
            value_columns=values,
            compacted_end=end,
        )
        for task, end in zip(tasks_for(runtime, topic, found, dict.fromkeys(names)), ends, strict=True)
    ]


def compacted_end_of(topic: TopicMetadata, plan: ReadPlan, keys: Sequence[str]) -> int:
    """Return the offset below which no two rows of a plan's partition have the same key (C2b)."""
    ids = {field.name: field.id for field in topic.schema}
    return compacted_end((read.index for read in plan.indexes.values()), [ids[name] for name in keys])


def keyed_rows(batch: pa.RecordBatch, key_columns: Sequence[str], values: Sequence[str]) -> Rows:
    """Return what decides which row of a key is the newest, and whether it is a tombstone (C2, C2a).

    `values` come from `value_columns`. Without all of them in the batch no row counts as a tombstone.
    """
    data, bounds, keyed = serialized_keys(pa.Table.from_batches([batch]), key_columns)
    digests, tombstones = digest_keys(data, bounds), tombstones_of(batch, values)
    return Rows(offsets=_offsets(batch), digests=digests, keyed=keyed, tombstones=tombstones)


def tombstones_of(batch: pa.RecordBatch | pa.Table, values: Sequence[str]) -> NDArray[np.bool_]:
    """Return which rows have no value: all of the columns `values` are null (C2a)."""
    if not values or not set(values) <= set(batch.schema.names):
        return np.zeros(batch.num_rows, dtype=np.bool_)
    nulls = [batch.column(name).is_null().to_numpy(zero_copy_only=False) for name in values]
    found: NDArray[np.bool_] = np.logical_and.reduce(nulls)
    return found


def _light(task: ReadTask) -> ReadTask:
    return replace(task, pieces=tuple(map(without_statistics, task.pieces)))


def _values(topic: TopicMetadata, keys: Sequence[str], pieces: Sequence[Piece]) -> tuple[str, ...]:
    """Return the columns that show which rows are tombstones; empty if one of them has no null in any piece."""
    values = value_columns(topic.schema, keys)
    for field in topic.schema:
        if field.name not in values:
            continue
        bounds = (bounds_in_piece(field, piece) for piece in pieces)
        if not field.nullable or all(each is not None and not each.nulls for each in bounds):
            return ()
    return values


def _offsets(batch: pa.RecordBatch | pa.Table) -> NDArray[np.int64]:
    found: NDArray[np.int64] = batch.column(OFFSET_COLUMN).cast(pa.int64()).to_numpy()
    return found
