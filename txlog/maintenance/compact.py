"""How does a keyed topic shrink to the latest row of each key?

In one process and bounded memory, pass after pass: the keys of what no compaction has seen yet go into a map of bounded
size; then all rows from the log start on are copied, batch by batch, without those that a newer row of their key supersedes
(PROTOCOL.md, C2; Kafka's log cleaner). A pass makes one run and publishes it as a merge does: several may compact at once,
and any may die anywhere; what did not take effect, no reader sees, and vacuum removes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from txlog.client.reading import MAX_RELISTS, piece_rows
from txlog.client.runtime import Runtime
from txlog.client.session import Session
from txlog.core.cleaning import Kept
from txlog.core.compaction import (
    Cleanable,
    CompactionPolicy,
    OffsetMap,
    Rows,
    Selection,
    choose_end,
    digest_keys,
    value_columns,
)
from txlog.core.effects import Program
from txlog.core.fetch_plan import Piece
from txlog.core.names import TopicPartition
from txlog.core.partitioning import Offsets
from txlog.core.records import IndexedFile, TopicMetadata
from txlog.core.segments import indexed_file
from txlog.errors import InvalidConfigurationError, MissingObjectError
from txlog.maintenance.merge import topic_of_inputs
from txlog.maintenance.users_topics import refuse_internal
from txlog.protocol.clean import Merge, publish
from txlog.protocol.compact import CompactionPlan, look_at_dirt, plan_compaction
from txlog.protocol.context import Context, Views

if TYPE_CHECKING:
    import pyarrow as pa

Progress: TypeAlias = Callable[[TopicPartition, int, int], None]
"""(partition, rows read so far, rows to be read in this pass)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """One pass of compaction of a partition, before and after."""

    topic_partition: TopicPartition
    base_offset: int
    end_offset: int
    generation: int
    took_effect: bool
    """If not, another clean-up of the same offsets was faster."""
    compacted_to: int
    """Below this offset no two rows have the same key now."""
    keys: int
    """Distinct ones among the rows that no compaction had seen."""
    segments_before: int
    files_before: int
    bytes_before: int
    rows_before: int
    """Committed ones, from the log start on."""
    superseded: int
    """Rows that went because a newer one has their key."""
    expired_tombstones: int
    tombstones: int
    """Those that are left, and wait for their time."""
    keyless: int
    """Rows without a key, which all stay."""
    rows: int
    files: int
    bytes: int


def compaction_policy(
    runtime: Runtime,
    topic: TopicMetadata,
    *,
    min_cleanable_dirty_ratio: float | None = None,
    max_keys: int | None = None,
) -> CompactionPolicy | None:
    """How a topic is compacted, by its settings or, where one is given, by the call; None if `cleanup.policy` does not say it.

    Raises InvalidRequestError for an internal topic, InvalidConfigurationError without key columns.
    """
    refuse_internal([topic.topic], "compacted")
    config = runtime.settings.topic_config(topic)
    if "compact" not in config.cleanup_policy:
        return None
    if not config.key_columns:
        raise InvalidConfigurationError(
            f"topic {topic.topic!r}: cleanup.policy=compact keeps the latest row of each key, so it needs key.columns"
        )
    ids = {field.name: field.id for field in topic.schema}
    ratio = config.min_cleanable_dirty_ratio if min_cleanable_dirty_ratio is None else min_cleanable_dirty_ratio
    policy = CompactionPolicy(
        key_columns=config.key_columns,
        key=tuple(ids[name] for name in config.key_columns),
        delete_retention_ms=config.delete_retention_ms,
        min_compaction_lag_ms=config.min_compaction_lag_ms,
        min_cleanable_dirty_ratio=ratio,
    )
    return policy if max_keys is None else replace(policy, max_keys=max_keys)


def cleanable_part(session: Session, tp: TopicPartition, policy: CompactionPolicy) -> Cleanable:
    """What of a partition may be compacted now, and whether that is due. Nothing is read but indexes."""

    def looked(ctx: Context, views: Views) -> Program[tuple[Views, Cleanable]]:
        return look_at_dirt(ctx, views, tp, policy)

    return session.call("looking for what to compact", looked)


def compact_partition(
    runtime: Runtime,
    session: Session,
    tp: TopicPartition,
    policy: CompactionPolicy,
    on_progress: Progress | None = None,
) -> tuple[Compacted, ...]:
    """Compacts one partition, in as many passes as are due; empty if none is.

    Raises InvalidRequestError for an internal topic, CorruptRecordError naming an input that is damaged: then nothing of
    that pass is published.
    """
    done: list[Compacted] = []
    relists = 0
    while True:
        try:
            plan = plan_partition(session, tp, policy)
            if plan is None:
                return tuple(done)
            done.append(publish_compaction(session, plan, copy_survivors(runtime, plan, on_progress)))
        except MissingObjectError:
            # Another clean-up was faster, and vacuum has been there: what is left to do, a new plan says.
            relists += 1
            if relists > MAX_RELISTS:
                raise
            continue
        if not done[-1].took_effect:
            return tuple(done)
        relists = 0


def plan_partition(session: Session, tp: TopicPartition, policy: CompactionPolicy) -> CompactionPlan | None:
    """The next pass over one partition; None if none is due. Nothing is written, and of rows nothing is read.

    Raises InvalidRequestError for an internal topic.
    """
    refuse_internal([tp.topic], "compacted")

    def planned(ctx: Context, views: Views) -> Program[tuple[Views, CompactionPlan | None]]:
        return plan_compaction(ctx, views, tp, policy)

    return session.call("planning a compaction", planned)


def copy_survivors(runtime: Runtime, plan: CompactionPlan, on_progress: Progress | None = None) -> Copied:
    """Reads the keys of a plan's dirty part, then copies the rows that stay. The digests of all that is read are checked.

    In memory are the map of keys, a row group of what is read and one of what is written. Raises CorruptRecordError or
    MissingObjectError naming an input; then there is no file.
    """
    return _Pass(runtime, plan, on_progress).copy()


def publish_compaction(session: Session, plan: CompactionPlan, copied: Copied) -> Compacted:
    """Makes a pass current whose rows were copied, unless another clean-up of the same offsets was faster."""
    session.runtime.ensure_writable()
    merge = copied.run_of(plan)

    def published(ctx: Context, views: Views) -> Program[tuple[Views, bool]]:
        return views, (yield from publish(ctx, merge, copied.file, copied.kept))

    took_effect = session.call("publishing a compaction", published)
    compaction = copied.kept.compaction
    file = copied.file
    return Compacted(
        topic_partition=merge.topic_partition,
        base_offset=merge.run.base_offset,
        end_offset=merge.run.end_offset,
        generation=merge.run.generation,
        took_effect=took_effect,
        compacted_to=compaction.end_offset,
        keys=copied.keys,
        segments_before=len(merge.inputs),
        files_before=merge.files_before,
        bytes_before=merge.bytes_before,
        rows_before=copied.rows_before,
        superseded=copied.superseded,
        expired_tombstones=copied.expired_tombstones,
        tombstones=sum(item.rows for item in compaction.tombstones),
        keyless=copied.keyless,
        rows=0 if file is None else file.rows,
        files=0 if file is None else 1,
        bytes=0 if file is None else file.bytes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """The rows of one pass, written and not yet published. Picklable."""

    unique: str
    """The suffix that the file was written under."""
    inputs: int
    """How many of the plan's segments the run is made of."""
    file: IndexedFile | None
    """None if no row is left."""
    kept: Kept
    keys: int
    rows_before: int
    superseded: int
    expired_tombstones: int
    keyless: int

    def run_of(self, plan: CompactionPlan) -> Merge:
        """The run that these rows are of."""
        return replace(plan, unique=self.unique).merge(plan.cleanable.names[: self.inputs])


class _Pass:
    """One pass: reads, decides and copies."""

    def __init__(self, runtime: Runtime, plan: CompactionPlan, on_progress: Progress | None) -> None:
        self._runtime = runtime
        self._plan = plan
        self._on_progress = on_progress
        newest = max((file.schema_id for read in plan.indexes for file in read.index.files), default=None)
        tp = plan.topic_partition
        self._topic = runtime.topic(tp.topic) if newest is None else topic_of_inputs(runtime, tp, newest)
        self._values = value_columns(self._topic.schema, plan.policy.key_columns)
        self._read = 0
        self._to_read = 0

    def copy(self) -> Copied:
        """Writes the run's Parquet."""
        plan, cleanable = self._plan, self._plan.cleanable
        dirty = plan.dirty_pieces
        self._to_read = piece_rows(dirty)
        latest, map_end = self._newest_of_keys(dirty)
        names, clean_end = choose_end(cleanable.names, first_dirty_offset=cleanable.first_dirty_offset, map_end=map_end)
        merge = plan.merge(names)
        selection = Selection(
            latest,
            end_offset=clean_end,
            tombstones=cleanable.tombstones,
            now_ms=plan.planned_at_ms,
            policy=plan.policy,
        )
        counted = _Counted(merge)
        keys_read = self._read
        self._to_read = keys_read + piece_rows(merge.pieces)
        file = self._write(merge, self._survivors(merge, selection, counted))
        return Copied(
            unique=plan.unique,
            inputs=len(names),
            file=file,
            kept=Kept(rows=counted.rows, timestamps=counted.timestamps, compaction=selection.compaction()),
            keys=len(latest),
            rows_before=self._read - keys_read,
            superseded=selection.superseded,
            expired_tombstones=selection.expired,
            keyless=selection.keyless,
        )

    def _write(self, merge: Merge, survivors: Iterator[pa.RecordBatch]) -> IndexedFile | None:
        # Here and not at the top, as everywhere below: planning goes without pyarrow.
        from txlog.storage.segment_file import write_rows_file

        first = next(survivors, None)
        if first is None:
            return None
        topic = self._topic
        file = write_rows_file(
            self._runtime.store,
            topic.topic,
            merge.path,
            itertools.chain([first], survivors),
            topic.schema,
            compression=self._runtime.settings.row_config({}, topic).compression_type,
            offset_column=True,
        )
        return indexed_file(file, topic.schema_id, offset_column=True)

    def _newest_of_keys(self, dirty: Sequence[Piece]) -> tuple[OffsetMap, int]:
        """The map of the dirty part, and below which offset it is whole."""
        latest = OffsetMap(self._plan.policy.max_keys)
        for batch in self._batches(dirty, self._plan.policy.key_columns):
            rows = self._rows(batch)
            offsets = rows.offsets[rows.keyed]
            taken = latest.put(rows.digests[rows.keyed], offsets)
            if taken < len(offsets):
                return latest, int(offsets[taken])
        return latest, self._plan.cleanable.end_offset

    def _survivors(self, merge: Merge, selection: Selection, counted: _Counted) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in self._batches(merge.pieces, None):
            stays = selection.keep(self._rows(batch))
            kept = batch if stays.all() else batch.filter(pa.array(stays))
            if kept.num_rows:
                counted.add(kept)
                yield kept

    def _batches(self, pieces: Sequence[Piece], columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
        from txlog.client import rows

        # All columns are fetched to be copied: then each byte is compared with its digest. Keys alone are checked by page.
        whole = columns is None
        read = rows.read_pieces(self._runtime.store, pieces, self._topic.schema, columns, digests=whole)
        for batch in rows.joined(read):
            yield batch
            self._read += batch.num_rows
            if self._on_progress is not None:
                self._on_progress(self._plan.topic_partition, self._read, self._to_read)

    def _rows(self, batch: pa.RecordBatch) -> Rows:
        """What decides about the rows of a batch; one of keys alone tells of no tombstones."""
        import numpy as np
        import pyarrow as pa

        from txlog.storage.keys import serialized_keys

        data, bounds, keyed = serialized_keys(pa.Table.from_batches([batch]), self._plan.policy.key_columns)
        tombstones = np.zeros(batch.num_rows, dtype=np.bool_)
        if self._values and all(name in batch.schema.names for name in self._values):
            nulls = [batch.column(name).is_null().to_numpy(zero_copy_only=False) for name in self._values]
            tombstones = np.logical_and.reduce(nulls)
        return Rows(
            offsets=_integers(batch, "_offset"), digests=digest_keys(data, bounds), keyed=keyed, tombstones=tombstones
        )


class _Counted:
    """How many rows of each batch of a run's inputs were written, and of what time is the last."""

    def __init__(self, merge: Merge) -> None:
        import numpy as np

        entries = [entry for read in merge.indexes for entry in read.index.entries]
        self._bases = np.array([entry.base_offset for entry in entries], dtype=np.int64)
        self.rows = np.zeros(len(entries), dtype=np.int64)
        self.timestamps = np.zeros(len(entries), dtype=np.int64)

    def add(self, batch: pa.RecordBatch) -> None:
        """Rows in the order of offsets; each belongs to the last batch that begins at or below it."""
        import numpy as np

        at = np.searchsorted(self._bases, _integers(batch, "_offset"), "right") - 1
        self.rows += np.bincount(at, minlength=len(self.rows))
        # Of several rows of one batch the last counts: numpy assigns in order.
        self.timestamps[at] = _integers(batch, "_timestamp") // 1000


def _integers(batch: pa.RecordBatch, name: str) -> Offsets:
    import pyarrow as pa

    numbers: Offsets = batch.column(name).cast(pa.int64()).to_numpy()
    return numbers
