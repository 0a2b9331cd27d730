"""How is one topic read as a table? `Store.table("orders")` gives a TopicTable.

A scan is planned when it is called: its rows are fixed then. It reads them while the program takes them, a few files at
once, so a topic may be much larger than memory. A table of a snapshot reads the rows of the snapshot's cut.
"""

from __future__ import annotations

import datetime
import importlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from txlog.client.reading import (
    Condition,
    ReadTask,
    piece_rows,
    plan_reads,
    read_session,
    read_task,
    take_cut,
    tasks_for,
)
from txlog.client.rows import METADATA_FIELDS, joined
from txlog.client.session.arguments import checked_calls
from txlog.client.session.repr_html import repr_html
from txlog.client.session.runtime import Runtime
from txlog.client.session.session import Session
from txlog.client.tables.expression import Expression
from txlog.client.tables.latest import latest_tasks
from txlog.client.tables.packing import has_gaps, pack_tasks
from txlog.client.tables.positions import Position, offsets_of, past_cut
from txlog.client.tables.predicate import Predicate
from txlog.client.tables.read_ahead import THREADS, WholeRead, in_order, threads_for
from txlog.client.tables.where import bind
from txlog.client.topics.column_names import former_column
from txlog.config import IsolationLevel, parse_isolation
from txlog.core.fetch_plan import FilePiece, InlinePiece, Piece
from txlog.core.names import TopicPartition
from txlog.core.records import TopicMetadata
from txlog.core.schema import OFFSET_COLUMN, PARTITION_COLUMN, TIMESTAMP_COLUMN
from txlog.core.snapshots import SnapshotCut
from txlog.errors import InvalidRequestError, SchemaMismatchError
from txlog.protocol.context import PartitionView
from txlog.protocol.read import ReadPlan
from txlog.storage.arrow_schema import to_arrow
from txlog.storage.backends import backend_of
from txlog.text import any_text, nearest

ALL_COLUMNS = "*"
"""In `columns`: all of the topic's own columns."""
PLACE_COLUMNS = (PARTITION_COLUMN, OFFSET_COLUMN, TIMESTAMP_COLUMN)
"""The columns of txlog that follow the topic's columns if `columns` is not given."""
_SCAN_OPTIONS = ("start", "end", "isolation_level", "as_of")

Where: TypeAlias = "str | pc.Expression | Predicate"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A snapshot's cut with the session and the views that it was taken with."""

    session: Session
    cut: SnapshotCut
    views: Mapping[TopicPartition, PartitionView]
    """Compaction and retention keep what these views name during the grace period (PROTOCOL.md, C10)."""

    @classmethod
    def take(cls, session: Session, topics: Sequence[str], as_of: datetime.datetime | None) -> Cut:
        """Take a cut of `topics`, as they are now or as they were at a time."""
        cut = take_cut(session, topics) if as_of is None else past_cut(session, topics, as_of)
        return cls(session=session, cut=cut, views={tp: session.views[tp] for tp in cut.ends})

    def check_age(self) -> None:
        """Raise InvalidRequestError if the cut is older than `delete.grace.ms`."""
        runtime = self.session.runtime
        self.cut.check_age(runtime.read_clocks(), runtime.constants.delete_grace_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What one read of the topic has to look at."""

    topic: TopicMetadata
    schema: pa.Schema
    """The columns of the result."""
    condition: Condition | None
    plans: tuple[ReadPlan, ...]
    """One for each partition with rows in the range."""
    ends: Mapping[TopicPartition, int]
    """Where the read ends in each partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Rows from a point on, and where the next read goes on. Other Arrow libraries take it directly."""

    reader: pa.RecordBatchReader
    offsets: Mapping[int, int]
    """The offset of each partition after the last row: `since` of the next call. Keep it when the rows are used."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        reader: Any = self.reader
        return reader.__arrow_c_stream__(requested_schema)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return iter(self.reader)

    def read_all(self) -> pa.Table:
        """Return the rows as one table in memory."""
        return self.reader.read_all()


@checked_calls
class TopicTable:
    """One topic as a table.

    It holds no rows: each call reads the present rows, or those of its snapshot. Thread-safe.
    """

    def __init__(self, runtime: Runtime, name: str, cut: Cut | None = None) -> None:
        """Raises UnknownTopicOrPartitionError with the name of the most similar topic."""
        self.name = name
        self._runtime = runtime
        self._cut = cut
        # Its views make the next scan cheap.
        self._session = read_session(runtime) if cut is None else cut.session
        self.topic()

    def __repr__(self) -> str:
        return f"TopicTable({self.name!r}{'' if self._cut is None else ', of a snapshot'})"

    def _repr_html_(self) -> str:
        return repr_html(self, self._runtime if self._cut is None else None)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Give all rows to another Arrow library: Polars, DuckDB, pandas and DataFusion take the table itself."""
        reader: Any = self.scan()
        return reader.__arrow_c_stream__(requested_schema)

    def topic(self) -> TopicMetadata:
        """Return the topic's present metadata.

        Raises UnknownTopicOrPartitionError if a snapshot is of an earlier topic.
        """
        topic = self._runtime.topic(self.name, 0)
        if self._cut is not None:
            self._cut.cut.check_topic(topic)
        return topic

    @property
    def schema(self) -> pa.Schema:
        """The columns of a scan without `columns`."""
        return columns_of(self._runtime, self.topic(), None)

    def scan(
        self,
        columns: Sequence[str] | None = None,
        where: Where | None = None,
        *,
        start: Position = "earliest",
        end: Position = "latest",
        isolation_level: str | None = None,
        as_of: datetime.datetime | None = None,
    ) -> pa.RecordBatchReader:
        """Return a reader of the rows, in order of partition and offset. DuckDB, Polars and others take it directly.

        * `columns`: names of columns, in the order of the result. `"*"` means all columns of the topic, `_topic`,
          `_partition`, `_offset` and `_timestamp` are columns, too. None: `"*"` and the last three.
        * `where`: only the rows for which this condition is true: a text in Spark's SQL, such as
          `"amount > 5 AND country = 'FR'"`, or a pyarrow expression. Files and row groups that cannot contain such a
          row are not read.
        * `start`, `end`: `"earliest"`, `"latest"`, a datetime with a time zone (rows from it on, rows before it), or a
          mapping from partition to offset (-2 earliest, -1 latest). The row at `end` is not read.
        * `isolation_level`: `"read_committed"` or `"read_uncommitted"`. None: the setting of consumers.
        * `as_of`: a datetime with a time zone. The read returns what was appended up to then, without transactions of
          which a row is newer. `start` applies to it, `end` and `isolation_level` cannot be given.

        The rows are fixed by this call, and read while they are taken. Raises SchemaMismatchError, InvalidRequestError,
        InvalidConfigurationError, OffsetOutOfRangeError, UnknownTopicOrPartitionError. The reader raises
        CorruptRecordError or MissingObjectError with the name of the object.
        """
        plan = self._plan(columns, where, start, end, isolation_level, as_of)
        return self._reader(plan.schema, self._read(self._kept(plan)))

    def to_arrow(self, columns: Sequence[str] | None = None, where: Where | None = None, **options: Any) -> pa.Table:
        """Return the rows of `scan` as one table in memory."""
        return self.scan(columns, where, **options).read_all()

    def to_pandas(self, columns: Sequence[str] | None = None, where: Where | None = None, **options: Any) -> Any:
        """Return the rows of `scan` as a pandas DataFrame. Raises InvalidRequestError without pandas.

        `options` are those of `scan`, and those of `pyarrow.Table.to_pandas`, such as `types_mapper`.
        """
        _load("pandas", "to_pandas")
        of_scan = {name: options.pop(name) for name in _SCAN_OPTIONS if name in options}
        if options and (unknown := options.keys() - inspect.signature(pa.Table.to_pandas).parameters):
            raise InvalidRequestError(
                f"to_pandas(): {min(unknown)}= cannot be given; it takes columns, where, {', '.join(_SCAN_OPTIONS)} "
                "and those of pyarrow. hint: where='id > 3' chooses rows, and as_of=a datetime an older state"
            )
        return self.to_arrow(columns, where, **of_scan).to_pandas(**options)

    def to_polars(self, columns: Sequence[str] | None = None, where: Where | None = None, **options: Any) -> Any:
        """Return the rows of `scan` as a Polars DataFrame. Raises InvalidRequestError without Polars."""
        polars = _load("polars", "to_polars")
        return polars.from_arrow(self.to_arrow(columns, where, **options))

    def count(
        self,
        where: Where | None = None,
        *,
        start: Position = "earliest",
        end: Position = "latest",
        isolation_level: str | None = None,
        as_of: datetime.datetime | None = None,
    ) -> int:
        """Return the number of rows of `scan` with the same arguments.

        Without `where` the log's metadata have the number. Only the part of a merged file that begins or ends within
        the file is read, and of it only the offsets. With `where` only the columns of the condition are read.
        """
        plan = self._plan([OFFSET_COLUMN], where, start, end, isolation_level, as_of)
        if where is not None:
            return sum(batch.num_rows for batch in self._read(self._kept(plan)))
        whole = self._tasks(plan)
        counted = piece_rows([piece for task in whole for piece in task.pieces if not _is_cut(piece)])
        rest = [replace(task, pieces=tuple(filter(_is_cut, task.pieces))) for task in whole]
        return counted + sum(batch.num_rows for batch in self._read(rest))

    def latest(
        self,
        columns: Sequence[str] | None = None,
        where: Where | None = None,
        *,
        as_of: datetime.datetime | None = None,
    ) -> pa.RecordBatchReader:
        """Return a reader of the newest committed row of each key, without keys whose newest row is a tombstone.

        The key is `key.columns` of the topic, or `key` in a topic with Kafka's columns. Compaction has the same rule,
        so the result is the same before and after it. Rows without a key are all in the result. A key that has rows in
        several partitions has a row for each of them. The columns of now tell a tombstone, also among rows from before
        a column was dropped, or added with a default. `where` chooses among the newest rows. The other arguments are
        those of `scan`.

        A key that no compaction has seen takes 24 bytes in memory. Raises InvalidRequestError for a topic without a
        key, and what `scan` raises.
        """
        plan = self._plan(columns, where, "earliest", "latest", "read_committed", as_of)
        made = latest_tasks(self._runtime, plan.topic, plan.plans, plan.schema.names, plan.condition)
        store = self._runtime.store
        batches = (batch for task in made for batch in task.read(lambda one: self._read([one]), store))
        return self._reader(plan.schema, (batch for batch in batches if batch.num_rows))

    def changes(
        self,
        since: Position = "earliest",
        columns: Sequence[str] | None = None,
        where: Where | None = None,
        *,
        isolation_level: str | None = None,
    ) -> Changes:
        """Return the rows from `since` on, and the offsets from which the next call goes on.

            changes = table.changes(since=offsets)
            total += sum(changes.read_all()["amount"].to_pylist())
            offsets = changes.offsets

        `since` is what `start` of `scan` is; usually the `offsets` of the last call, also as JSON gives them back.
        A partition that was added since is read from its beginning. Raises OffsetOutOfRangeError if retention has
        removed rows since then, InvalidRequestError for a table of a snapshot, and what `scan` raises.
        """
        if self._cut is not None:
            raise InvalidRequestError(
                f"topic {self.name!r}: a snapshot hides rows below its end, which a later read from there would miss. "
                "hint: store.table(...).changes(...)"
            )
        plan = self._plan(columns, where, since, "latest", isolation_level, None)
        # The next call reads on at the ends, and finds the newer rows there.
        going_on = [replace(task, last_end=None) for task in self._kept(plan)]
        return Changes(
            reader=self._reader(plan.schema, self._read(going_on)),
            offsets={tp.partition: end for tp, end in plan.ends.items()},
        )

    def _plan(
        self,
        columns: Sequence[str] | None,
        where: Where | None,
        start: Position,
        end: Position,
        isolation_level: str | None,
        as_of: datetime.datetime | None,
    ) -> Plan:
        topic = self.topic()
        schema = columns_of(self._runtime, topic, columns)
        condition = _condition(topic, where)
        cut, isolation = self._level(isolation_level, as_of)
        if cut is not None:
            cut.cut.check_topic(topic)
        session = cut.session if cut is not None else self._session
        ranges = self._ranges(session, cut, start, end, isolation)
        plans = plan_reads(
            session,
            {tp: each for tp, each in ranges.items() if each[1] is None or each[0] < each[1]},
            isolation,
            cut=None if cut is None else cut.cut,
            views=None if cut is None else cut.views,
        )
        if cut is not None:
            # The process may have slept before the indexes were read.
            cut.check_age()
        ends = {tp: plans[tp].end if tp in plans else each[0] for tp, each in ranges.items()}
        return Plan(topic=topic, schema=schema, condition=condition, plans=tuple(plans.values()), ends=ends)

    def _tasks(self, plan: Plan) -> list[ReadTask]:
        """Return a task for each plan, with the columns of the result and those of the condition."""
        further = () if plan.condition is None else plan.condition.columns
        return tasks_for(self._runtime, plan.topic, plan.plans, dict.fromkeys([*plan.schema.names, *further]))

    def _kept(self, plan: Plan) -> list[ReadTask]:
        return [task.where(plan.condition) for task in self._tasks(plan)]

    def _level(self, isolation_level: str | None, as_of: datetime.datetime | None) -> tuple[Cut | None, IsolationLevel]:
        """Return the cut to read, if there is one, and the isolation level."""
        if self._cut is not None or as_of is not None:
            if self._cut is not None and as_of is not None:
                raise InvalidRequestError(
                    f"topic {self.name!r}: as_of belongs to the snapshot. hint: store.snapshot(..., as_of=...)"
                )
            if isolation_level not in (None, "read_committed"):
                raise InvalidRequestError(
                    f"topic {self.name!r}: isolation_level = {isolation_level!r} is not possible here: a snapshot, "
                    "and a read as of a time, show whole transactions. hint: leave it out"
                )
            cut = self._cut or Cut.take(read_session(self._runtime), [self.name], as_of)
            cut.check_age()
            return cut, "read_committed"
        if isolation_level is not None:
            return None, parse_isolation(isolation_level)
        return None, self._runtime.settings.consumer_config({}).isolation_level

    def _ranges(
        self, session: Session, cut: Cut | None, start: Position, end: Position, isolation: IsolationLevel
    ) -> dict[TopicPartition, tuple[int, int | None]]:
        """Return where to begin and to end in each partition. None: the end that the isolation level gives."""
        if cut is None:
            partitions = self._runtime.partitions(self.name)
            starts = offsets_of(session, partitions, start, "start", isolation)
            # No second look at the tails: the read ends at the end of the views that gave the start.
            ends = {} if _is(end, "latest") else offsets_of(session, partitions, end, "end", isolation)
            return {tp: (starts[tp], ends.get(tp)) for tp in partitions}
        partitions = tuple(tp for tp in cut.cut.ends if tp.topic == self.name)
        lows = {tp: cut.views[tp].state.log_start_offset for tp in partitions}
        tops = {tp: cut.cut.ends[tp] for tp in partitions}
        starts = lows if _is(start, "earliest") else offsets_of(session, partitions, start, "start", isolation)
        ends = tops if _is(end, "latest") else offsets_of(session, partitions, end, "end", isolation)
        return {tp: (max(starts[tp], lows[tp]), min(ends[tp], tops[tp])) for tp in partitions}

    def _reader(self, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> pa.RecordBatchReader:
        """Return the rows with the columns of `schema`, in its order. The batches may have further columns."""
        names = schema.names
        chosen = (
            pa.RecordBatch.from_arrays([batch.column(name) for name in names], schema=schema) for batch in batches
        )
        return pa.RecordBatchReader.from_batches(schema, WholeRead(self.name, chosen))

    def _read(self, chosen: Sequence[ReadTask]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of tasks, in order, with all columns of the tasks."""
        store = self._runtime.store

        def read(run: Sequence[ReadTask]) -> Iterator[pa.RecordBatch]:
            return joined(batch for task in run for batch in read_task(task, store))

        pieces = [piece for task in chosen for piece in task.pieces]
        # Each file of an object store costs a request or two, so even small ones are read at once.
        least = None if backend_of(self._runtime.url) is None else min(len(pieces), 4 * THREADS)
        runs = pack_tasks(chosen, least, light=False)
        return in_order([partial(read, run) for run in runs], threads_for(max(map(_group_bytes, pieces), default=0)))


def columns_of(runtime: Runtime, topic: TopicMetadata, columns: Sequence[str] | None) -> pa.Schema:
    """Return the columns of a result. Raises SchemaMismatchError for an unknown column and one that is named twice."""
    own = to_arrow(topic.schema)
    fields: list[pa.Field[Any]] = []
    for name in (ALL_COLUMNS, *PLACE_COLUMNS) if columns is None else columns:
        if name == ALL_COLUMNS:
            fields += own
        elif name in METADATA_FIELDS:
            fields.append(METADATA_FIELDS[name])
        elif name in own.names:
            fields.append(own.field(name))
        else:
            known = [*own.names, *METADATA_FIELDS]
            former = former_column(runtime, topic, name)
            why = f"{former}." if former else nearest(name, known)
            raise SchemaMismatchError(
                f"topic {topic.topic!r} has no column {name!r}.{why} The columns are {', '.join(known)}"
            )
    names = [field.name for field in fields]
    if not names:
        raise SchemaMismatchError("columns: a read needs at least one column. hint: use count() for the number of rows")
    if twice := [name for name in names if names.count(name) > 1]:
        raise SchemaMismatchError(f"columns: {twice[0]!r} is asked for twice")
    return pa.schema(fields)


def _condition(topic: TopicMetadata, where: Where | None) -> Condition | None:
    if where is None:
        return None
    if isinstance(where, str):
        return bind(where, topic.schema, topic.topic)
    if isinstance(where, Predicate):
        return where.of(topic.schema)
    if isinstance(where, pc.Expression):
        return Expression(where, topic.schema, topic.topic)
    raise InvalidRequestError(
        f'where = {any_text(where)}: expected a text such as "amount > 5", or a pyarrow expression such as '
        "pyarrow.compute.field('amount') > 5"
    )


def _is(position: Position, word: str) -> bool:
    return isinstance(position, str) and position == word


def _is_cut(piece: Piece) -> bool:
    """Return whether only the offsets in the file show how many rows the read returns: a part of a cleaned run."""
    return has_gaps(piece) and isinstance(piece, FilePiece) and not piece.covers_file


def _group_bytes(piece: Piece) -> int:
    """Return about how many bytes the largest row group of a file has, as stored."""
    if isinstance(piece, InlinePiece):
        return 0
    return piece.file.bytes * max(piece.file.row_groups, default=0) // max(piece.file.rows, 1)


def _load(module: str, call: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise InvalidRequestError(f"{call}() needs {module}. hint: pip install {module}") from None
