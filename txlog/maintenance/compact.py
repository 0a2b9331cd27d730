"""How does a keyed topic shrink to the latest row of each key?

A compaction of a partition runs in bounded memory, pass after pass. A pass first reads the keys of rows that no
compaction has seen yet into a map of bounded size. Then it copies all rows from the log start on, batch by batch. It
leaves out each row that a newer row of the same key supersedes (PROTOCOL.md, C2; Kafka's log cleaner). A pass makes one
run and publishes it as a merge does. Several processes may compact at once, and each can be killed at any point. No
reader sees a pass that did not take effect, and vacuum removes its files.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from txlog.client.reading import piece_rows, run_many, written_schemas
from txlog.client.session.runtime import Runtime
from txlog.client.session.session import Session
from txlog.core.cleaning import Kept
from txlog.core.compaction import (
    Cleanable,
    CompactionPolicy,
    OffsetMap,
    Selection,
    choose_end,
)
from txlog.core.fetch_plan import Piece
from txlog.core.names import TopicPartition
from txlog.core.records import IndexedFile, TopicMetadata
from txlog.core.schema import value_columns
from txlog.errors import InvalidConfigurationError
from txlog.maintenance.merge import CountedRows, Merged, topic_of_inputs, write_run
from txlog.maintenance.partition_loop import Outcome, over_partitions, refuse_internal, results
from txlog.maintenance.workers import Progress, Task, Workers
from txlog.protocol.clean import Merge
from txlog.protocol.compact import CompactionPlan, look_at_dirt, plan_compaction
from txlog.protocol.topic_changes import is_compacted

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted(Merged):
    """One pass of compaction over a partition, before and after."""

    compacted_to: int
    """Below this offset no two rows have the same key now."""
    keys: int
    """Distinct keys among the rows that no compaction had seen."""
    rows_before: int
    """Committed rows from the log start on."""
    superseded: int
    """Rows that the pass removed because a newer row has their key."""
    expired_tombstones: int
    tombstones: int
    """Tombstones that are left until their `delete.retention.ms` has passed."""
    keyless: int
    """Rows without a key; a compaction keeps all of them."""


def compaction_policy(
    runtime: Runtime,
    topic: TopicMetadata,
    *,
    min_cleanable_dirty_ratio: float | None = None,
    max_keys: int | None = None,
) -> CompactionPolicy | None:
    """Return how a topic is compacted: by its settings, or by the arguments that are given here.

    Returns None if the topic's `cleanup.policy` does not contain `compact`. Raises InvalidRequestError for an internal
    topic, InvalidConfigurationError for a topic without key columns.
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
        version=topic.number,
    )
    return policy if max_keys is None else replace(policy, max_keys=max_keys)


def cleanable_part(session: Session, tp: TopicPartition, policy: CompactionPolicy) -> Cleanable:
    """Return which part of a partition can be compacted now, and whether that is due. Only indexes are read."""
    return session.call("looking for what to compact", lambda ctx, views: look_at_dirt(ctx, views, tp, policy))


def compact_partitions(
    session: Session,
    policies: Mapping[TopicPartition, CompactionPolicy],
    partitions: Iterable[TopicPartition] | None = None,
    workers: Workers | None = None,
    progress: Progress | None = None,
) -> Iterator[Outcome[Compacted | None]]:
    """Compact `partitions` (None: all of `policies`) by their policies, in as many passes as are due.

    One pass is one task, because one process must hold all keys of a partition in memory. See `over_partitions` for
    the results. An InvalidRequestError is about an internal topic. A CorruptRecordError names a damaged input. A
    pass with a damaged input is not published.
    """
    wanted = policies if partitions is None else partitions

    def plan(tp: TopicPartition) -> list[Task[CompactionPlan, Copied]]:
        planned = plan_partition(session, tp, policies[tp])
        if planned is None:
            return []
        names = planned.cleanable.names
        return [
            Task(
                subject=planned,
                title=f"txlog compact: {tp}, offsets {names[0].base_offset} to {names[-1].end_offset - 1}",
                work=partial(_copy, planned),
                size=planned.cleanable.clean_bytes + planned.cleanable.dirty_bytes,
            )
        ]

    publish = partial(publish_compaction, session)
    return over_partitions(session, wanted, plan, publish, workers, progress, has_more=lambda done: done.took_effect)


def compact_partition(
    runtime: Runtime,
    session: Session,
    tp: TopicPartition,
    policy: CompactionPolicy,
    on_progress: Progress | None = None,
) -> tuple[Compacted, ...]:
    """Compact one partition, in this process. `session` is one of `runtime`.

    Raises the first error that `compact_partitions` yields.
    """
    return results(compact_partitions(session, {tp: policy}, progress=on_progress))


def _copy(plan: CompactionPlan, session: Session, progress: Progress | None) -> Copied:
    # If a task runs twice, each run of it must write under its own name (C1).
    runtime = session.runtime
    return copy_survivors(runtime, plan.written_as(runtime.ids.new_id()), progress)


def plan_partition(session: Session, tp: TopicPartition, policy: CompactionPolicy) -> CompactionPlan | None:
    """Return the next pass over one partition, or None if no pass is due. Reads no rows and writes nothing.

    Raises InvalidRequestError for an internal topic.
    """
    refuse_internal([tp.topic], "compacted")
    return session.call("planning a compaction", lambda ctx, views: plan_compaction(ctx, views, tp, policy))


def copy_survivors(runtime: Runtime, plan: CompactionPlan, on_progress: Progress | None = None) -> Copied:
    """Read the keys of a plan's dirty part, then copy the rows that stay. Check the digests of all files.

    Memory holds the map of keys, one row group that is read and one that is written. Raises CorruptRecordError or
    MissingObjectError with the name of an input; then there is no output file.
    """
    return _Pass(runtime, plan, on_progress).copy()


def publish_compaction(session: Session, plan: CompactionPlan, copied: Copied) -> Compacted:
    """Publish a pass whose rows were copied, unless another job published a run of the same offsets first."""
    compaction = copied.kept.compaction
    assert compaction is not None
    return Compacted.publish_run(
        session,
        copied.run_of(plan),
        copied.file,
        copied.kept,
        compacted_to=compaction.end_offset,
        keys=copied.keys,
        rows_before=copied.rows_before,
        superseded=copied.superseded,
        expired_tombstones=copied.expired_tombstones,
        tombstones=sum(item.rows for item in compaction.tombstones),
        keyless=copied.keyless,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """The rows of one pass, written but not yet published. Picklable."""

    unique: str
    """Suffix of the name of the file."""
    inputs: int
    """Number of the plan's segments that the run replaces."""
    file: IndexedFile | None
    """None if no row is left."""
    kept: Kept
    keys: int
    rows_before: int
    superseded: int
    expired_tombstones: int
    keyless: int

    def run_of(self, plan: CompactionPlan) -> Merge:
        """Return the run that consists of these rows."""
        return plan.written_as(self.unique).merge(plan.cleanable.names[: self.inputs])


class _Pass:
    """Read, decide and copy one pass."""

    def __init__(self, runtime: Runtime, plan: CompactionPlan, on_progress: Progress | None) -> None:
        self._runtime = runtime
        self._plan = plan
        self._on_progress = on_progress
        newest = max((file.schema_id for read in plan.indexes for file in read.index.files), default=None)
        tp = plan.topic_partition
        self._topic = runtime.topic(tp.topic) if newest is None else topic_of_inputs(runtime, tp, newest)
        by_id = {field.id: field.name for field in self._topic.schema}
        is_later = self._topic.number > plan.policy.version
        # Without compaction a value column may be dropped, and rows without other values are not tombstones (C2a).
        if not by_id.keys() >= set(plan.policy.key) or (is_later and not is_compacted(self._topic)):
            raise InvalidConfigurationError(
                f"{tp}: version {self._topic.number} of the topic ended the compaction by "
                f"{', '.join(plan.policy.key_columns)}, and this pass has the settings of "
                f"version {plan.policy.version}. "
                "hint: compact again, by the settings of now"
            )
        # A key column may have been renamed since the policy was made.
        self._keys = tuple(by_id[number] for number in plan.policy.key)
        self._values = value_columns(self._topic.schema, self._keys)
        self._read = 0
        self._to_read = 0

    def copy(self) -> Copied:
        """Write the Parquet file of the run."""
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
        counted = CountedRows(merge)
        keys_read = self._read
        self._to_read = keys_read + piece_rows(merge.pieces)
        survivors = self._survivors(merge, selection, counted)
        first = next(survivors, None)
        file = None
        if first is not None:
            file = write_run(self._runtime, self._topic, merge, itertools.chain([first], survivors))
        return Copied(
            unique=plan.run.unique,
            inputs=len(names),
            file=file,
            kept=Kept(rows=counted.rows, timestamps=counted.timestamps, compaction=selection.compaction()),
            keys=len(latest),
            rows_before=self._read - keys_read,
            superseded=selection.superseded,
            expired_tombstones=selection.expired,
            keyless=selection.keyless,
        )

    def _newest_of_keys(self, dirty: Sequence[Piece]) -> tuple[OffsetMap, int]:
        """Return the map of the dirty part's keys, and the offset below which the map is complete."""
        # A local import, as everywhere below, so that planning does not load pyarrow.
        from txlog.client.tables.latest import keyed_rows

        latest = OffsetMap(self._plan.policy.max_keys)
        for batch in self._batches(dirty, self._keys):
            rows = keyed_rows(batch, self._keys, ())
            offsets = rows.offsets[rows.keyed]
            taken = latest.put(rows.digests[rows.keyed], offsets)
            if taken < len(offsets):
                return latest, int(offsets[taken])
        return latest, self._plan.cleanable.end_offset

    def _survivors(self, merge: Merge, selection: Selection, counted: CountedRows) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        from txlog.client.tables.latest import keyed_rows

        for batch in self._batches(merge.pieces, None):
            stays = selection.keep(keyed_rows(batch, self._keys, self._values))
            kept = batch if stays.all() else batch.filter(pa.array(stays))
            if kept.num_rows:
                counted.add(kept)
                yield kept

    def _batches(self, pieces: Sequence[Piece], columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
        from txlog.client import rows

        # A copy fetches all columns, so the digest of the whole file is checked. Keys alone are checked page by page.
        whole = columns is None
        runtime, fields = self._runtime, self._topic.schema
        written = written_schemas(runtime, self._topic, pieces)
        read = rows.read_pieces(
            runtime.store, pieces, fields, columns, digests=whole, run=run_many(runtime), written=written
        )
        for batch in rows.joined(read):
            yield batch
            self._read += batch.num_rows
            if self._on_progress is not None:
                self._on_progress(self._plan.topic_partition, self._read, self._to_read)
