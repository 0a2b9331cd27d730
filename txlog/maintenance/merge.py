"""How do many small files of a partition become a few large ones, while other processes write and read?

A merge plans, copies the committed rows with their offsets, with one row group in memory at a time, and publishes the
run. It leaves out markers and the rows of aborted transactions; the other rows keep their offsets and timestamps
(PROTOCOL.md, C1 to C5). Several processes may merge at once, and each can be killed at any point. No reader sees a
merge that did not take effect, and vacuum removes its files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from txlog.client.reading import piece_rows, run_many, topic_of_rows, written_schemas
from txlog.client.session.runtime import Runtime, check_columns
from txlog.client.session.session import Session
from txlog.core.cleaning import PLAIN, FileLayout, Kept, MergePolicy
from txlog.core.features import SORTED_RUNS
from txlog.core.names import TopicPartition
from txlog.core.partitioning import Offsets
from txlog.core.records import IndexedFile, TopicMetadata
from txlog.core.segments import indexed_file
from txlog.errors import InvalidRequestError, SchemaMismatchError, UnknownTopicOrPartitionError
from txlog.maintenance.partition_loop import Outcome, over_partitions, refuse_internal, results
from txlog.maintenance.workers import Progress, Task, Workers
from txlog.protocol.clean import Merge, plan_merges, publish
from txlog.protocol.context import with_views
from txlog.protocol.topics import refresh_topic_of_rows

if TYPE_CHECKING:
    import pyarrow as pa

NESTED = ("list", "map", "struct")


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """One run that was made, before and after."""

    topic_partition: TopicPartition
    base_offset: int
    end_offset: int
    generation: int
    took_effect: bool
    """False if another merge or compaction of the same offsets was published first."""
    segments_before: int
    files_before: int
    bytes_before: int
    rows: int
    files: int
    """1, or 0 if no committed row was left."""
    bytes: int

    @classmethod
    def publish_run(
        cls, session: Session, merge: Merge, file: IndexedFile | None, kept: Kept | None = None, **more: Any
    ) -> Self:
        """Publish a run whose rows were copied, unless another job published a run of the same offsets first.

        `more` are the fields of a subclass.
        """
        session.runtime.ensure_writable()
        took_effect = session.call(
            "publishing a cleaned run",
            lambda ctx, views: with_views(views, publish(ctx, merge, file, kept)),
        )
        return cls(
            topic_partition=merge.topic_partition,
            base_offset=merge.run.base_offset,
            end_offset=merge.run.end_offset,
            generation=merge.run.generation,
            took_effect=took_effect,
            segments_before=len(merge.inputs),
            files_before=merge.files_before,
            bytes_before=merge.bytes_before,
            rows=0 if file is None else file.rows,
            files=0 if file is None else 1,
            bytes=0 if file is None else file.bytes,
            **more,
        )


def merge_partitions(
    session: Session,
    partitions: Iterable[TopicPartition],
    policy: MergePolicy,
    layout: FileLayout = PLAIN,
    workers: Workers | None = None,
    progress: Progress | None = None,
) -> Iterator[Outcome[Merged | None]]:
    """Merge what is due in partitions of users' topics, one run for each task. `over_partitions` says what is yielded.

    An InvalidRequestError is about an internal topic (its snapshots are its compaction), a SchemaMismatchError about a
    column of `layout` that the topic does not have. A CorruptRecordError names a damaged input. Nothing of a run with a
    damaged input is published.
    """

    def plan(tp: TopicPartition) -> list[Task[Merge, _Copied]]:
        return [
            Task(
                subject=merge,
                title=f"txlog merge: {tp}, offsets {merge.run.base_offset} to {merge.run.end_offset - 1}",
                work=partial(_copy, merge.rows_only(), layout),
                size=merge.bytes_before,
            )
            for merge in plan_partition(session, tp, policy)
        ]

    def publish_copied(merge: Merge, copied: _Copied) -> Merged:
        unique, file = copied
        return publish_merge(session, merge.written_as(unique), file)

    return over_partitions(session, partitions, plan, publish_copied, workers, progress)


def merge_partition(
    runtime: Runtime,
    session: Session,
    tp: TopicPartition,
    policy: MergePolicy,
    on_progress: Progress | None = None,
    layout: FileLayout = PLAIN,
) -> tuple[Merged, ...]:
    """Merge what is due in one partition, in this process. `session` is one of `runtime`.

    Raises the first error that `merge_partitions` yields.
    """
    return results(merge_partitions(session, [tp], policy, layout, progress=on_progress))


_Copied: TypeAlias = tuple[str, IndexedFile | None]
"""The suffix of the name under which the rows of a run were copied, and their file."""


def _copy(merge: Merge, layout: FileLayout, session: Session, progress: Progress | None) -> _Copied:
    # If a task runs twice, each run of it must write under its own name (C1).
    unique = session.runtime.ids.new_id()
    return unique, copy_rows(session.runtime, merge.written_as(unique), progress, layout)


def plan_partition(session: Session, tp: TopicPartition, policy: MergePolicy) -> tuple[Merge, ...]:
    """Return the runs that are due in one partition of a user's topic, oldest first. Nothing is written.

    Raises InvalidRequestError for an internal topic.
    """
    refuse_internal([tp.topic], "merged")

    return session.call("planning a merge", lambda ctx, views: plan_merges(ctx, views, tp, policy))


def copy_rows(
    runtime: Runtime, merge: Merge, on_progress: Progress | None = None, layout: FileLayout = PLAIN
) -> IndexedFile | None:
    """Write the rows of a merge to its run's Parquet file, or return None if no row is left.

    The digests of everything that is read are checked. Memory holds one row group that is read and one that is written.
    In each error case there is no output file. Raises:

    * CorruptRecordError or MissingObjectError with the name of an input.
    * SchemaMismatchError for a column of `layout` that the topic does not have.
    * UnknownTopicOrPartitionError if the topic was deleted meanwhile.
    """
    # A local import, so that planning does not load pyarrow.
    from txlog.client import rows

    tp = merge.topic_partition
    if not merge.pieces:
        # The inputs hold only markers. A deleted topic has nothing else left, and no schema either.
        return None
    topic = topic_of_inputs(runtime, tp, max(piece.schema_id for piece in merge.pieces))
    check_layout(runtime, topic, layout)
    written = written_schemas(runtime, topic, merge.pieces)
    expected = piece_rows(merge.pieces)

    def batches() -> Iterator[pa.RecordBatch]:
        done = 0
        read = rows.read_pieces(
            runtime.store, merge.pieces, topic.schema, None, digests=True, run=run_many(runtime), written=written
        )
        for batch in rows.joined(read):
            yield batch
            done += batch.num_rows
            if on_progress is not None:
                on_progress(tp, done, expected)

    copied = rows.sorted_within(batches(), merge.entry_rows, layout.sort) if layout.sort else batches()
    return write_run(runtime, topic, merge, copied, layout)


def write_run(
    runtime: Runtime, topic: TopicMetadata, merge: Merge, batches: Iterable[pa.RecordBatch], layout: FileLayout = PLAIN
) -> IndexedFile:
    """Write the rows of a run to its Parquet file, with the columns of `topic`."""
    from txlog.storage.parquet_writer import write_rows_file

    file = write_rows_file(
        runtime.store,
        topic.topic,
        merge.path,
        batches,
        topic.schema,
        compression=runtime.settings.row_config({}, topic).compression_type,
        offset_column=True,
        bloom=layout.bloom,
        sorted_batches=bool(layout.sort),
    )
    by_name = {each.name: each.id for each in topic.schema}
    return indexed_file(file, topic.schema_id, offset_column=True, sorted_by=[by_name[name] for name in layout.sort])


class CountedRows:
    """Count how many rows of each input batch stay in a run, and keep the time of the last one."""

    def __init__(self, merge: Merge) -> None:
        import numpy as np

        entries = [entry for read in merge.indexes for entry in read.index.entries]
        self._bases = np.array([entry.base_offset for entry in entries], dtype=np.int64)
        self.rows = np.zeros(len(entries), dtype=np.int64)
        self.timestamps = np.zeros(len(entries), dtype=np.int64)

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows in the order of offsets.

        A row belongs to the last batch that begins at or before the row's offset.
        """
        import numpy as np

        at = np.searchsorted(self._bases, integers(batch, "_offset"), "right") - 1
        self.rows += np.bincount(at, minlength=len(self.rows))
        # If several rows belong to one batch, the last one counts: numpy assigns in order.
        self.timestamps[at] = integers(batch, "_timestamp") // 1000


def topic_of_inputs(runtime: Runtime, tp: TopicPartition, newest: int) -> TopicMetadata:
    """Return the topic's metadata that the inputs of a run were written for; `newest` is their highest `schema_id`.

    Raises UnknownTopicOrPartitionError if the topic was deleted since. A topic of that name that was created again has
    other columns, and the rows of the deleted one need no merge.
    """
    topic = topic_of_rows(runtime, tp, newest)
    if newest < topic.schema_id:
        found = runtime.run(refresh_topic_of_rows(tp.topic, newest, topic))
        if isinstance(found, UnknownTopicOrPartitionError):
            raise found
    return topic


def check_layout(runtime: Runtime, topic: TopicMetadata, layout: FileLayout) -> None:
    """Check that the topic can be written in this layout.

    Raises SchemaMismatchError for a column that the topic does not have or that cannot be sorted or filtered by. Raises
    InvalidRequestError in a store whose programs need not understand sorted runs.
    """
    kinds = {each.name: each.type for each in topic.schema}
    for option, columns, refused in (("sort", layout.sort, NESTED), ("bloom", layout.bloom, (*NESTED, "bool"))):
        for name in check_columns(topic, columns):
            if kinds[name] in refused:
                raise SchemaMismatchError(
                    f"{option}: column {name!r} of topic {topic.topic!r} is of type {kinds[name]}"
                )
    if layout.sort and SORTED_RUNS not in runtime.require_store().features:
        raise InvalidRequestError(
            f"{runtime.where}: sort: the store was made without the feature {SORTED_RUNS!r}, and programs that do not "
            "know it would read sorted rows out of order; merge without sorting"
        )


def publish_merge(session: Session, merge: Merge, file: IndexedFile | None) -> Merged:
    """Publish a run whose rows were copied, unless another job published a run of the same offsets first."""
    return Merged.publish_run(session, merge, file)


def integers(batch: pa.RecordBatch, name: str) -> Offsets:
    """Return a column of txlog's own."""
    import pyarrow as pa

    numbers: Offsets = batch.column(name).cast(pa.int64()).to_numpy()
    return numbers
