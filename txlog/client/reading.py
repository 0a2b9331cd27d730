"""Which pieces must a reader open, and how does it read them, here or in another process?

`plan` and `tasks` use only names and indexes and do not load pyarrow. A `ReadTask` is all that an executor needs. If
maintenance has deleted a file in the meantime, the partition is listed again and the read goes on from its offset
(PROTOCOL.md, R15).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from txlog import metrics
from txlog.client.session.runtime import Runtime, check_columns
from txlog.client.session.session import Session
from txlog.client.session.settings import call_layer
from txlog.config import DEFAULT_ISOLATION, IsolationLevel, Layer, parse_isolation
from txlog.core.effects import Gather, Program
from txlog.core.evolution import WrittenSchema
from txlog.core.fetch_plan import InlinePiece, Piece
from txlog.core.names import TopicPartition, topic_metadata_path
from txlog.core.records import SchemaField, TopicMetadata
from txlog.core.schema import OFFSET_COLUMN, OWN_COLUMNS, TIMESTAMP_COLUMN
from txlog.core.snapshots import SnapshotCut
from txlog.errors import InvalidConfigurationError, InvalidRequestError, MissingObjectError
from txlog.protocol.context import Context, PartitionView, Views
from txlog.protocol.load import get_view, load, refresh
from txlog.protocol.read import ReadIndexes, ReadPlan, plan_read
from txlog.protocol.snapshot import take_snapshot
from txlog.storage.backends import backend_of
from txlog.storage.metered import metered
from txlog.storage.object_store import ObjectStore

if TYPE_CHECKING:
    import pyarrow as pa

METADATA_COLUMNS = (OFFSET_COLUMN, TIMESTAMP_COLUMN)
"""The columns that a read adds to the topic's columns by default; `_topic` and `_partition` are added on request."""
MAX_RELISTS = 5
"""How often in a row a read may find an object deleted, without a row in between, before it raises an error."""


class RowFilter(Protocol):
    """Choose rows by their values. Picklable if its task is sent to another process."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the choice depends on."""

    def keep(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the wanted rows of `batch`, with the same columns."""

    def may_match_rows(self, statistics: Mapping[str, Any], rows: int) -> bool:
        """Return whether `rows` rows with these statistics, by field id, may contain a wanted row."""


class Condition(RowFilter, Protocol):
    """A condition on the columns of one topic."""

    def may_match(self, piece: Piece) -> bool:
        """Return whether the piece may contain a row for which it is true."""

    def on(self, columns: Collection[str]) -> Condition | None:
        """Return what it demands of these columns alone; None if it demands nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTask:
    """Rows of `[start, end)` of one partition, for any process that can open the store. Picklable."""

    url: str = field(repr=False)
    storage_options: Mapping[str, object] = field(repr=False)
    topic_partition: TopicPartition
    start: int
    end: int
    isolation: IsolationLevel
    fields: tuple[SchemaField, ...] = field(repr=False)
    """The topic's schema at planning. Without `written` it is at least as new as that of every piece."""
    written: Mapping[int, WrittenSchema] = field(default_factory=dict, repr=False)
    """The columns of each `schema_id` of the pieces. Empty if the topic's columns were only added."""
    columns: tuple[str, ...] | None = None
    """The topic's columns to read, in this order. None: all of them."""
    metadata_columns: tuple[str, ...] = METADATA_COLUMNS
    """txlog's own columns that follow them, in this order."""
    pieces: tuple[Piece, ...] = field(repr=False)
    cut: SnapshotCut | None = field(default=None, repr=False)
    """The snapshot that the rows belong to. None: the rows of the isolation level."""
    keep: RowFilter | None = None
    """Which rows to return, from batches of the columns above. None: all rows."""
    relist: bool = True
    """Whether the read can be planned again from `start` and `end` when a file was deleted.

    This is not possible for a part of a cleaned run that was cut by rows.
    """
    last_end: int | None = None
    """Where the whole read of the partition ends, if the reader reads nothing behind it, as a table does. None: it goes
    on there, as a consumer does."""

    @property
    def rows(self) -> int:
        """An upper bound of the rows that the task returns. It is exact except for cleaned runs and `keep`."""
        return piece_rows(self.pieces)

    def where(self, condition: Condition | None) -> ReadTask:
        """Return the task with the condition, without the pieces that cannot contain a row for which it is true."""
        if condition is None:
            return self
        return replace(self, keep=condition, pieces=tuple(filter(condition.may_match, self.pieces)))


def read_session(runtime: Runtime, config: Layer | None = None, **settings: object) -> Session:
    """Return a session with a consumer's settings, for planning."""
    return Session(runtime, runtime.settings.consumer_config(call_layer(config, settings)), "read")


def plan(
    runtime: Runtime, topic: str, partition: int, start: int, end: int | None, isolation: str = DEFAULT_ISOLATION
) -> ReadPlan:
    """Plan one partition without earlier views; see `plan_reads`."""
    tp = runtime.partition(topic, partition)
    return plan_reads(read_session(runtime), {tp: (start, end)}, isolation)[tp]


def plan_reads(
    session: Session,
    ranges: Mapping[TopicPartition, tuple[int, int | None]],
    isolation: str = DEFAULT_ISOLATION,
    indexes: Mapping[TopicPartition, ReadIndexes] | None = None,
    cut: SnapshotCut | None = None,
    views: Views | None = None,
) -> dict[TopicPartition, ReadPlan]:
    """Plan `[start, end)` of each partition, in parallel.

    It uses `views`, or else the session's views, and loads the missing ones. An end of None, or one that is too high,
    becomes the end for the isolation level, or for the `cut`, a snapshot of all these partitions. `indexes` are those
    of earlier plans, which are not read again. Raises InvalidConfigurationError for an unknown `isolation`,
    OffsetOutOfRangeError with the valid range, InvalidRequestError for a cut that is too old to be planned on what is
    in the store now.
    """
    held = views or {}
    level = parse_isolation(isolation)
    if not ranges:
        return {}

    def program(ctx: Context, views: Views) -> Program[tuple[Views, list[ReadPlan]]]:
        def one(tp: TopicPartition) -> Program[tuple[PartitionView, ReadPlan]]:
            start, end = ranges[tp]
            _, view = yield from get_view(ctx, {**views, **held}, tp)
            if cut is not None and view.state.next_offset < cut.ends[tp]:
                view = yield from refresh(ctx, view)
            return (yield from plan_read(ctx, view, start, end, level, (indexes or {}).get(tp), cut))

        found = yield Gather(tuple(one(tp) for tp in ranges))
        return {**views, **{view.topic_partition: view for view, _ in found}}, [made for _, made in found]

    return dict(zip(ranges, session.call("planning a read", program), strict=True))


def tasks(
    runtime: Runtime,
    plans: Sequence[ReadPlan],
    *,
    columns: Sequence[str] | None = None,
    metadata_columns: Sequence[str] = METADATA_COLUMNS,
    cut: SnapshotCut | None = None,
    fields: Sequence[SchemaField] | None = None,
) -> tuple[ReadTask, ...]:
    """Return a task for each plan, with the topic's newest schema that the plans need.

    `fields` are the columns that the caller knows; None: the newest. Names in `columns` are theirs, also if they have
    other names since.

    Empty plans give tasks without pieces. With a `cut`, raises InvalidRequestError if a plan is not of this cut. Raises
    SchemaMismatchError for an unknown column.
    """
    if cut is not None and any(each.cut != cut for each in plans):
        raise InvalidRequestError("a plan is not of this cut. hint: give the cut to plan_reads")
    made = []
    for each in plans:
        topic = topic_for(runtime, each)
        written = written_schemas(runtime, topic, each.pieces)
        if fields is not None and topic.last_field_id is not msgspec.UNSET:
            topic = msgspec.structs.replace(topic, schema=tuple(fields))
        chosen = None if columns is None else check_columns(topic, tuple(columns))
        made.append(
            ReadTask(
                url=runtime.url,
                storage_options=runtime.storage_options,
                topic_partition=each.topic_partition,
                start=each.start,
                end=each.end,
                isolation=each.isolation,
                fields=topic.schema,
                columns=chosen,
                metadata_columns=_check_metadata_columns(metadata_columns),
                pieces=each.pieces,
                written=written,
                cut=each.cut,
            )
        )
    return tuple(made)


def tasks_for(
    runtime: Runtime, topic: TopicMetadata, plans: Sequence[ReadPlan], names: Iterable[str]
) -> list[ReadTask]:
    """Return a task for each plan that reads columns by their names in `topic`, txlog's own among them, and no more."""
    chosen = list(names)
    made = tasks(
        runtime,
        plans,
        columns=[name for name in chosen if name not in OWN_COLUMNS],
        metadata_columns=[name for name in chosen if name in OWN_COLUMNS],
        fields=topic.schema,
    )
    return [replace(task, last_end=task.end) for task in made]


def columns_as_known(topic: TopicMetadata, known: TopicMetadata | None) -> TopicMetadata:
    """Return `topic` with the columns of `known`, the version that a reader began with, if columns were changed by id.

    Settings name columns, so they are those of `known`, too.

    Otherwise return it unchanged: if columns were only added, the newest ones include the known ones. A topic that was
    created again under the name has only its own columns.
    """
    if known is None or known.topic_id != topic.topic_id or topic.last_field_id is msgspec.UNSET:
        return topic
    return msgspec.structs.replace(topic, schema=known.schema, config=known.config)


def take_cut(session: Session, topics: Sequence[str]) -> SnapshotCut:
    """Take one cut over all partitions of `topics`, in which every transaction is whole (PROTOCOL.md, "Reading").

    Every commit that returned before this call is in the cut. It is for `plan_reads` of this session or of another one.
    Raises UnknownTopicOrPartitionError.
    """
    runtime = session.runtime

    def look() -> dict[str, TopicMetadata]:
        return {topic: runtime.topic(topic, 0) for topic in topics}

    known = look()
    while True:
        partitions = [TopicPartition(name, number) for name in known for number in range(known[name].partitions)]
        cut = session.call("taking a snapshot", lambda ctx, views: take_snapshot(ctx, views, partitions))  # noqa: B023
        # A transaction in the cut may have written to a partition that was added after the look. A topic that was
        # created again after it has other columns.
        now = look()
        if all(
            (now[name].partitions, now[name].topic_id) == (known[name].partitions, known[name].topic_id) for name in now
        ):
            return replace(cut, topic_ids={name: topic.topic_id for name, topic in now.items()})
        known = now


def topic_for(runtime: Runtime, plan: ReadPlan) -> TopicMetadata:
    """Return the topic's metadata, at least as new as the schema of every piece.

    Raises as `topic_of_rows`, and UnknownTopicOrPartitionError if the plan is of a deleted topic of this name. The
    check costs one GET if the oldest rows have other columns than the topic has now, once in a process.
    """
    versions = [piece.schema_id for piece in plan.pieces]
    topic = topic_of_rows(runtime, plan.topic_partition, max(versions, default=0))
    if plan.cut is not None:
        plan.cut.check_topic(topic)
    runtime.written_schemas(topic, [min(versions)] if versions else ())
    return topic


def written_schemas(runtime: Runtime, topic: TopicMetadata, pieces: Iterable[Piece]) -> dict[int, WrittenSchema]:
    """Return the columns of each version that rows of `pieces` name; empty if the topic's columns were only added.

    Costs one GET for each version that this process has not read yet. Raises as `topic_of_rows` does.
    """
    if topic.last_field_id is msgspec.UNSET:
        return {}
    return runtime.written_schemas(topic, {piece.schema_id for piece in pieces})


def topic_of_rows(runtime: Runtime, tp: TopicPartition, newest: int) -> TopicMetadata:
    """Return the metadata of the partition's topic, at least as new as `newest`, the highest `schema_id` of the rows.

    Raises MissingObjectError if the version that introduced that schema does not exist any more: without it the read
    would leave out its columns without notice.
    """
    topic = runtime.topic(tp.topic)
    if newest > topic.schema_id:
        topic = runtime.topic(tp.topic, 0)
    if newest > topic.schema_id:
        raise MissingObjectError(
            f"{topic_metadata_path(topic.topic, newest)}: rows of {tp} have this version's schema, and it is not there "
            f"(the newest is {topic.number}); versions of topics are never removed, look at it with `txlog fsck`"
        )
    return topic


def read_task(
    task: ReadTask,
    store: ObjectStore | None = None,
    *,
    max_rows: int | None = None,
    on_lost: Callable[[TopicPartition, int, int], None] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the task's rows in order of offsets: its columns, then its metadata columns; at most `max_rows` in a batch.

    `store` is opened from the task if None. If retention has removed rows of the range, `on_lost` is called with their
    offsets `[start, end)` and the read goes on after them; without `on_lost`, OffsetOutOfRangeError is raised. Raises
    CorruptRecordError with the name of the object, MissingObjectError if an object stays missing.
    """
    # A local import: planning processes import this module and must not load pyarrow.
    from txlog.client import rows
    from txlog.storage.open import open_object_store

    at = metered(store if store is not None else open_object_store(task.url, task.storage_options))
    schema = rows.schema_of(task.fields, task.columns, task.metadata_columns)
    relists = 0
    while True:
        try:
            read = rows.read_pieces(at, task.pieces, task.fields, task.columns, keep=task.keep, written=task.written)
            for batch in rows.joined(read, max_rows or rows.JOINED_ROWS):
                task = replace(task, start=rows.last_offset(batch) + 1)
                relists = 0
                whole = rows.with_metadata(batch, task.topic_partition, schema)
                for cut in _cut(whole if task.keep is None else task.keep.keep(whole), max_rows):
                    metrics.count_rows("consumed", task.topic_partition.topic, cut.num_rows, cut)
                    yield cut
            return
        except MissingObjectError:
            relists += 1
            if relists > MAX_RELISTS or not task.relist:
                raise
        task = plan_again(task, at, on_lost)


def plan_again(
    task: ReadTask,
    store: ObjectStore | None = None,
    on_lost: Callable[[TopicPartition, int, int], None] | None = None,
) -> ReadTask:
    """Return the task with the files that have its rows now (R15). Raises and calls `on_lost` as `read_task` does."""
    # A local import, as above.
    from txlog.storage.open import open_object_store

    at = metered(store if store is not None else open_object_store(task.url, task.storage_options))
    runtime = Runtime(at, url=task.url, storage_options=task.storage_options)
    try:
        session = read_session(runtime)
        view = runtime.run(load(session.context(), task.topic_partition))
        session.keep_view(view)
        log_start = view.state.log_start_offset
        if on_lost is not None and task.start < log_start:
            on_lost(task.topic_partition, task.start, min(log_start, task.end))
            task = replace(task, start=min(log_start, task.end))
        wanted = {task.topic_partition: (task.start, task.end)}
        made = plan_reads(session, wanted, task.isolation, cut=task.cut)[task.topic_partition]
        _check_compacted(task, made)
        topic = topic_for(runtime, made)
        written = written_schemas(runtime, topic, made.pieces)
    finally:
        runtime.close()
    if written:
        # The columns stay those of the task, found by id: another column may have their names now.
        return replace(task, pieces=made.pieces, written=written)
    # The columns stay those of the task. Newer files may have columns that were added to the topic.
    columns = task.columns if task.columns is not None else tuple(each.name for each in task.fields)
    return replace(task, pieces=made.pieces, fields=topic.schema, columns=columns)


def run_many(runtime: Runtime) -> Callable[[Program[Any]], Any] | None:
    """Return how to read several small files at once; None if the store is a folder.

    Each request to an object store takes long. Files of a folder are read faster one after the other: threads of Python
    wait for each other.
    """
    return None if backend_of(runtime.url) is None else runtime.run


def piece_rows(pieces: Sequence[Piece]) -> int:
    """Return the number of rows that the pieces name."""
    return sum(
        piece.range.rows if isinstance(piece, InlinePiece) else sum(each.rows for each in piece.ranges)
        for piece in pieces
    )


def _check_compacted(task: ReadTask, plan: ReadPlan) -> None:
    """Raise InvalidRequestError if rows of the range were removed because of rows behind the end of the read (R15)."""
    if task.last_end is None:
        return
    for name, read in plan.indexes.items():
        compacted = read.index.compacted
        if name.base_offset < task.end and compacted is not msgspec.UNSET and compacted.end_offset > task.last_end:
            raise InvalidRequestError(
                f"{task.topic_partition}: while offsets below {task.last_end} were read, a compaction removed rows of "
                f"them that have newer rows below {compacted.end_offset}, and the files of before were deleted after "
                "delete.grace.ms. hint: read again from the beginning: all rows come again"
            )


def _cut(batch: pa.RecordBatch, max_rows: int | None) -> Iterator[pa.RecordBatch]:
    step = max_rows or batch.num_rows or 1
    for start in range(0, batch.num_rows, step):
        yield batch.slice(start, step)


def _check_metadata_columns(columns: Sequence[str]) -> tuple[str, ...]:
    for column in columns:
        if column not in OWN_COLUMNS:
            raise InvalidConfigurationError(
                f"{column!r} is not a column that txlog adds; expected one of {', '.join(OWN_COLUMNS)}"
            )
    return tuple(columns)
