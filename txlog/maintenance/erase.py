"""How do rows that match a condition leave a topic, while all others keep their offsets?

An erasure is recorded with the present ends of the partitions. Then it works like a merge: each group of sealed
segments that has such a row is copied without it, and the copy becomes the current run (PROTOCOL.md, C15). Readers need
no change. The same race decides between it and any other job (C4). It may be killed at any point: `maintain`, or the
next erasure of the topic, finishes it.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from txlog.client.reading import piece_rows, run_many, written_schemas
from txlog.client.session.runtime import Runtime
from txlog.client.session.session import Session
from txlog.client.tables.predicate import Predicate, without_tombstones
from txlog.client.tables.where import bind
from txlog.core.cleaning import Kept
from txlog.core.fetch_plan import Piece, plan_fetch
from txlog.core.names import SegmentName, TopicPartition
from txlog.core.records import Erasure, IndexedFile, SchemaField, SegmentIndex, TopicMetadata
from txlog.core.schema import OFFSET_COLUMN, OWN_COLUMNS, PARTITION_COLUMN, kafka_key
from txlog.errors import (
    CorruptLogError,
    InvalidRequestError,
    SchemaMismatchError,
    TxlogError,
    TxlogTimeoutError,
    UnknownTopicOrPartitionError,
)
from txlog.maintenance.merge import CountedRows, Merged, integers, topic_of_inputs, write_run
from txlog.maintenance.partition_loop import Outcome, over_partitions, refuse_own
from txlog.maintenance.workers import Progress, Task, Workers
from txlog.protocol import erase as protocol
from txlog.protocol.clean import Merge
from txlog.protocol.context import PartitionView, with_views
from txlog.protocol.read import ReadIndex
from txlog.text import time_text

if TYPE_CHECKING:
    import pyarrow as pa

_WAIT_MS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Erased(Merged):
    """One run that was made without the rows that match."""

    rows_erased: int


def erase(
    session: Session,
    topic: str,
    where: str,
    *,
    wait_ms: int,
    workers: Workers | None = None,
    progress: Progress | None = None,
) -> Iterator[Outcome[Erased | None]]:
    """Erase the rows of a topic for which `where` is true, and yield what was done in each partition, and errors.

    Then erasures of the topic are finished that a process has left unfinished, and their errors are yielded, too. See
    `begin_erasure`, which raises, and `finish_erasure`.
    """
    begun = begin_erasure(session, topic, where)
    clock = session.runtime.clock
    until_ms = clock.monotonic_ms() + wait_ms
    earlier = [each for each in list_erasures(session.runtime, []) if each.topic == topic]
    for each in (begun, *(each for each in earlier if each.erasure_id != begun.erasure_id)):
        left_ms = max(until_ms - clock.monotonic_ms(), 0)
        for tp, outcome in finish_erasure(session, each, wait_ms=left_ms, workers=workers, progress=progress):
            # What an earlier erasure did was not asked for here.
            if each is begun or isinstance(outcome, TxlogError):
                yield tp, outcome


def begin_erasure(session: Session, topic: str, where: str) -> Erasure:
    """Record that the rows of a topic for which `where` is true are to be erased. `finish_erasure` does it.

    They are the rows that are in the log now. Decided transactions are rolled forward first, and count. Rows that an
    open transaction has sent count if they are in the log already. Raises UnknownTopicOrPartitionError,
    InvalidRequestError for an internal topic or a wrong condition, SchemaMismatchError.
    """
    refuse_own(topic)
    runtime = session.runtime
    found = runtime.topic(topic, 0)
    bind(where, found.schema, topic)
    runtime.ensure_writable()
    erasure_id = runtime.ids.new_id()
    return session.call(
        f"beginning an erasure in topic {topic!r}",
        lambda ctx, views: protocol.begin(ctx, views, found, where, erasure_id),
    )


@dataclass(slots=True)
class Course:
    """What a process knows of an erasure from one call to the next, so that it does not look again."""

    done: set[TopicPartition] = field(default_factory=set)
    looked: dict[TopicPartition, int] = field(default_factory=dict)
    """The last stable offset at the last pass, of partitions that are not done."""
    searched: dict[TopicPartition, set[SegmentName]] = field(default_factory=dict)
    """Segments and runs without such rows."""


def finish_erasure(
    session: Session,
    erasure: Erasure,
    *,
    wait_ms: int,
    workers: Workers | None = None,
    progress: Progress | None = None,
    course: Course | None = None,
) -> Iterator[Outcome[Erased | None]]:
    """Erase what a recorded erasure names, and yield what was done in each partition, and errors.

    After the last item no read that begins returns such a row, unless an item is an error. After an error the record
    stays, and the next call goes on. TxlogTimeoutError: rows wait behind an open transaction for longer than `wait_ms`.
    SchemaMismatchError: a column of the condition was dropped since.
    """
    runtime = session.runtime
    course = Course() if course is None else course
    topic = _topic_of(runtime, erasure)
    if topic is None:
        session.call("ending an erasure", lambda ctx, views: with_views(views, protocol.cancel(erasure.erasure_id)))
        return
    try:
        condition = _condition_of(runtime, erasure, topic)
    except (InvalidRequestError, SchemaMismatchError) as error:
        # The condition may name a person, and the history keeps this message.
        where = f"where = {erasure.where!r}: "
        why = error.problem.removeprefix(where) if error.problem.startswith(where) else "its condition does not fit"
        yield (
            TopicPartition(erasure.topic, 0),
            SchemaMismatchError(
                f"an erasure that began {time_text(erasure.created_at)} cannot end: {why}. "
                f"hint: `txlog erasures cancel {erasure.erasure_id}` cancels it"
            ),
        )
        return
    runtime.ensure_writable()
    session.call("sealing", lambda ctx, views: protocol.seal_up_to(ctx, views, erasure))
    left = {tp: end for tp, end in protocol.ends_of(erasure).items() if tp not in course.done}
    until_ms = runtime.clock.monotonic_ms() + wait_ms
    while left:
        # Before the pass: what becomes stable during it is not erased by it.
        views = session.fresh_views(list(left), "looking at a topic")
        open_from = {tp: views[tp].state.last_stable_offset for tp in left}
        reach = {tp: protocol.reach_of(views[tp], end) for tp, end in left.items()}
        if open_from == course.looked:
            if runtime.clock.monotonic_ms() >= until_ms:
                for tp in left:
                    yield tp, _behind(erasure, views[tp], reach[tp])
                return
            runtime.clock.sleep_ms(_WAIT_MS)
            continue
        failed = False
        for tp, outcome in _pass(session, topic, condition, left, course.searched, workers, progress):
            failed = failed or isinstance(outcome, TxlogError)
            yield tp, outcome
        if failed:
            return
        course.done.update(tp for tp in left if open_from[tp] >= reach[tp])
        left = {tp: end for tp, end in left.items() if tp not in course.done}
        course.looked = {tp: open_from[tp] for tp in left}
    session.call("sealing", lambda ctx, views: protocol.seal_decisions(ctx, views, erasure))
    session.call("ending an erasure", lambda ctx, views: protocol.end(ctx, views, erasure))
    session.forget(list(protocol.ends_of(erasure)))


def count_matches(runtime: Runtime, topic: str, where: str) -> dict[TopicPartition, int]:
    """Return how many committed rows of each partition match now. Only the columns of the condition are read.

    Raises what `begin_erasure` raises.
    """
    # A local import, because it loads pyarrow.
    from txlog.client.tables.table import TopicTable

    refuse_own(topic)
    condition = condition_of(runtime, runtime.topic(topic, 0), where)
    found = TopicTable(runtime, topic).scan([PARTITION_COLUMN], condition)
    counts: Counter[Any] = Counter(number for batch in found for number in batch.column(0).to_pylist())
    return {TopicPartition(topic, number): counts[number] for number in sorted(counts)}


def condition_of(
    runtime: Runtime, topic: TopicMetadata, where: str, fields: Sequence[SchemaField] | None = None
) -> Predicate:
    """Return which rows of a topic an erasure takes. `fields` are its columns by the names of `where`, if others.

    A tombstone stays, unless the condition uses only columns of the key, which are the same in the rows that it
    deletes. Without its tombstone an older row would be the newest one of its key. Raises InvalidRequestError,
    SchemaMismatchError.
    """
    found = bind(where, topic.schema if fields is None else fields, topic.topic).of(topic.schema)
    return without_tombstones(found, topic.schema, _keys_of(runtime, topic))


def list_erasures(runtime: Runtime, damaged: list[CorruptLogError] | None = None) -> tuple[Erasure, ...]:
    """Return the erasures that have begun and not ended, oldest first.

    With a list `damaged`, the errors of damaged records are appended to it. Raises CorruptLogError otherwise.
    """
    return runtime.run(protocol.list_erasures(damaged))


def _behind(erasure: Erasure, view: PartitionView, end: int) -> TxlogTimeoutError:
    stable = view.state.last_stable_offset
    first = min((name.base_offset for name in view.walk if name.end_offset > stable), default=stable)
    return TxlogTimeoutError(
        f"{view.topic_partition}: the offsets from {first} to {end - 1} wait until the transaction at offset {stable} "
        "has ended, and rows to erase may be among them. hint: `txlog transactions list` shows it; `txlog maintain` "
        f"erases them after that, and `txlog erasures cancel {erasure.erasure_id}` leaves them"
    )


def _pass(
    session: Session,
    topic: TopicMetadata,
    condition: Predicate,
    ends: Mapping[TopicPartition, int],
    searched: dict[TopicPartition, set[SegmentName]],
    workers: Workers | None,
    progress: Progress | None,
) -> Iterator[Outcome[Erased | None]]:
    """Erase what lies in sealed segments below the LSO."""
    is_keyed = bool(_keys_of(session.runtime, topic))
    lost: set[TopicPartition] = set()

    def plan(tp: TopicPartition) -> list[Task[Sequence[Merge], _Copies]]:
        def may_match(index: SegmentIndex) -> bool:
            return any(map(condition.may_match, _all_rows(tp, index)))

        lost.discard(tp)
        known = searched.setdefault(tp, set())
        found = session.call(
            "planning an erasure",
            lambda ctx, views: protocol.plan_erasure(ctx, views, tp, ends[tp], may_match, known),
        )
        # If a tombstone went before the older rows of its key, these would be the newest ones meanwhile. So the runs of
        # a partition with keys are made one after the other.
        parts = [found] if is_keyed and found else [(merge,) for merge in found]
        return [
            Task(
                subject=part,
                title=f"txlog erase: {tp}, offsets {part[0].run.base_offset} to {part[-1].run.end_offset - 1}",
                work=partial(_copy_all, part, condition, ends[tp]),
                size=sum(merge.bytes_before for merge in part),
            )
            for part in parts
        ]

    def publish(part: Sequence[Merge], copies: _Copies) -> Erased | None:
        made: Erased | None = None
        for merge, copied in zip(part, copies, strict=True):
            tp = merge.topic_partition
            if copied is None:
                searched[tp].update(merge.inputs)
                continue
            run = merge.over(copied.inputs).written_as(copied.unique)
            one = Erased.publish_run(session, run, copied.file, copied.kept, rows_erased=copied.rows_erased)
            if not one.took_effect:
                lost.add(tp)
                return made or one
            made = one if made is None else _sum(made, one)
            searched[tp].update((*merge.inputs, run.run.name))
        return made

    def has_more(done: Erased | None) -> bool:
        return done is not None and done.topic_partition in lost

    return over_partitions(session, ends, plan, publish, workers, progress, has_more=has_more)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Copied:
    """The rows of one run, written but not yet published. Picklable."""

    unique: str
    inputs: tuple[SegmentName, ...]
    file: IndexedFile | None
    kept: Kept
    rows_erased: int


_Copies: TypeAlias = Sequence[_Copied | None]
"""For each group of segments what was copied; None if no row of it matches."""


def _copy_all(
    part: Sequence[Merge], condition: Predicate, end_offset: int, session: Session, progress: Progress | None
) -> _Copies:
    return [_copy(merge, condition, end_offset, session.runtime, progress) for merge in part]


def _copy(
    merge: Merge, condition: Predicate, end_offset: int, runtime: Runtime, progress: Progress | None
) -> _Copied | None:
    """Look for rows that match, also among aborted ones. If there are some, copy the other committed rows."""
    versions = [file.schema_id for read in merge.indexes for file in read.index.files]
    if not versions:
        return None  # only markers
    tp = merge.topic_partition
    topic = topic_of_inputs(runtime, tp, max(versions))
    rows = _Rows(runtime, topic, tp, condition.of(topic.schema), end_offset)
    found = [
        at for at, read in enumerate(merge.indexes) if any(rows.matches(each).true_count for each in rows.search(read))
    ]
    if not found:
        return None
    # If a task runs twice, each run of it must write under its own name (C1).
    inputs = merge.inputs[found[0] : found[-1] + 1]
    run = merge.over(inputs).written_as(runtime.ids.new_id())
    counted = CountedRows(run)
    expected, done, erased = piece_rows(run.pieces), 0, 0

    def others() -> Iterator[pa.RecordBatch]:
        nonlocal done, erased
        import pyarrow.compute as pc

        for batch in rows.all(run.pieces):
            stays = batch.filter(pc.invert(rows.matches(batch)))
            erased += batch.num_rows - stays.num_rows
            if stays.num_rows:
                counted.add(stays)
                yield stays
            done += batch.num_rows
            if progress is not None:
                progress(tp, done, expected)

    left = others()
    first = next(left, None)
    file = None if first is None else write_run(runtime, topic, run, itertools.chain([first], left))
    kept = Kept(rows=counted.rows, timestamps=counted.timestamps)
    return _Copied(unique=run.run.unique, inputs=inputs, file=file, kept=kept, rows_erased=erased)


class _Rows:
    """Read rows of a partition, and tell which of them match."""

    def __init__(
        self, runtime: Runtime, topic: TopicMetadata, tp: TopicPartition, condition: Predicate, end_offset: int
    ) -> None:
        # A local import, so that planning does not load pyarrow.
        from txlog.client import rows

        self._runtime = runtime
        self._topic = topic
        self._tp = tp
        self._condition = condition
        self._end_offset = end_offset
        self._own = [name for name in condition.columns if name not in OWN_COLUMNS]
        others = [name for name in condition.columns if name in OWN_COLUMNS]
        self._judged = rows.schema_of(topic.schema, self._own, others)

    def search(self, read: ReadIndex) -> Iterator[pa.RecordBatch]:
        """Yield the columns of the condition for all rows of a segment, also aborted ones."""
        return self._read(_all_rows(self._tp, read.index), self._own, search=True)

    def all(self, pieces: Sequence[Piece]) -> Iterator[pa.RecordBatch]:
        """Yield whole rows. The digests of the files are checked."""
        return self._read(pieces, None, search=False)

    def matches(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        """Return which rows are to be erased."""
        import pyarrow as pa
        import pyarrow.compute as pc

        from txlog.client import rows

        mask = self._condition.matches(rows.with_metadata(batch, self._tp, self._judged))
        found: pa.BooleanArray = pc.and_(mask, pa.array(integers(batch, OFFSET_COLUMN) < self._end_offset))
        return found

    def _read(
        self, pieces: Sequence[Piece], columns: Sequence[str] | None, *, search: bool
    ) -> Iterator[pa.RecordBatch]:
        from txlog.client import rows

        runtime = self._runtime
        read = rows.read_pieces(
            runtime.store,
            pieces,
            self._topic.schema,
            columns,
            digests=not search,
            run=run_many(runtime),
            keep=self._condition if search else None,
            written=written_schemas(runtime, self._topic, pieces),
        )
        return rows.joined(read)


def _all_rows(tp: TopicPartition, index: SegmentIndex) -> tuple[Piece, ...]:
    """Return all rows of a segment, also those of aborted transactions."""
    return plan_fetch(tp=tp, indexes=[index], tail=(), aborted=(), start=index.base_offset, end=index.end_offset)


def _topic_of(runtime: Runtime, erasure: Erasure) -> TopicMetadata | None:
    """Return the topic; None if it was deleted since, with all of its rows."""
    try:
        topic = runtime.topic(erasure.topic, 0)
    except UnknownTopicOrPartitionError:
        return None
    return topic if topic.topic_id == erasure.topic_id else None


def _condition_of(runtime: Runtime, erasure: Erasure, topic: TopicMetadata) -> Predicate:
    """Return the condition for the columns of now, found by the ids of those that it names.

    Raises SchemaMismatchError if one was dropped.
    """
    now = {each.id: each for each in topic.schema}
    then = _columns_of(runtime, topic, erasure.schema_id)
    # Literals take the types of now: a column may have become wider.
    fields = [msgspec.structs.replace(now[each.id], name=each.name) if each.id in now else each for each in then]
    return condition_of(runtime, topic, erasure.where, fields)


def _keys_of(runtime: Runtime, topic: TopicMetadata) -> tuple[str, ...]:
    """Return the key by which readers of the newest rows choose, also one of this process's own settings."""
    return runtime.settings.topic_config(topic).key_columns or kafka_key(topic.schema)


def _columns_of(runtime: Runtime, topic: TopicMetadata, schema_id: int) -> Sequence[SchemaField]:
    """Return the columns of that version of the topic."""
    if topic.last_field_id is msgspec.UNSET:
        return topic.schema  # columns were only added
    return runtime.written_schemas(topic, {schema_id})[schema_id].fields


def _sum(before: Erased, after: Erased) -> Erased:
    """Return what two runs of one partition did together."""
    added = ("segments_before", "files_before", "bytes_before", "rows", "files", "bytes", "rows_erased")
    totals = {name: getattr(before, name) + getattr(after, name) for name in added}
    return replace(after, base_offset=before.base_offset, **totals)
