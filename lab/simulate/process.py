"""How does a simulated process make its calls, read the log, and change topics?

Its methods are programs over the shipped protocol. Each call is recorded as the client of a real process would know it:
requested, and answered, refused, or without an answer.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import TypeVar

import msgspec

from lab.histories.events import Assign, DeleteTopic, Ends, Isolation, Poll, Row, What
from lab.histories.recorder import Recorder, leaves_open
from lab.simulate.cluster import Machine, decode_rows
from txlog.core.effects import Get, NewId, Program, Sleep
from txlog.core.evolution import AddColumn, Change, DropColumn, MoveColumn, RenameColumn, contradictions
from txlog.core.fetch_plan import InlinePiece, Piece, RowRange
from txlog.core.names import MAX_OFFSET, TopicPartition
from txlog.core.records import SchemaField, TopicMetadata
from txlog.errors import (
    MissingObjectError,
    OutcomeUnknownError,
    RetriableError,
    TxlogError,
    UnknownTopicOrPartitionError,
)
from txlog.protocol import column_changes, topic_changes, topics as topic_programs
from txlog.protocol.context import Context, PartitionView, Views, with_view
from txlog.protocol.load import load, refresh
from txlog.protocol.read import end_offset, plan_read

T = TypeVar("T")
COLUMNS = tuple(SchemaField(id=1, name=name, type="string") for name in ("content", "note"))
"""Of a topic with metadata. Kafka's columns, which are the default, cannot be renamed."""
MAX_RELISTS = 5
TRIES = 8
"""The maximum number of tries of a retriable call."""


class Process:
    """One process: its views, and the topics that it knows."""

    def __init__(self, machine: Machine, ctx: Context, recorder: Recorder) -> None:
        self.name = machine.name
        self.ctx = ctx
        self.views: Views = {}
        self.topics: dict[str, TopicMetadata] = {}
        """Topics that it has looked up, at any time before."""
        self._recorder = recorder

    # -- recording ----------------------------------------------------------------------------------------------------

    def record(self, what: What) -> None:
        """Record a fact."""
        self._recorder.single(self.name, what)

    def asks(
        self, what: What, call: Callable[[], Program[T]], answer: Callable[[T], What], *, tries: int = TRIES
    ) -> Program[T]:
        """Make a call, retry it while that is allowed, and record the result.

        After a try of unknown outcome, a refusal describes only the retry.
        """
        operation = self._recorder.invoke(self.name, what)
        in_doubt = False
        for attempt in range(tries):
            try:
                result = yield from call()
            except TxlogError as error:
                in_doubt = in_doubt or leaves_open(error)
                again = isinstance(error, RetriableError | OutcomeUnknownError) and attempt < tries - 1
                if again:
                    yield Sleep(self.ctx.backoff_ms(attempt) // 4)
                    continue
                (self._recorder.info if in_doubt else self._recorder.fail)(self.name, operation, what, error)
                raise
            self._recorder.ok(self.name, operation, answer(result))
            return result
        raise AssertionError("a call has at least one try")

    def patiently(self, call: Callable[[], Program[T]]) -> Program[T]:
        """Make a call that no history records, and retry it while that is allowed."""
        for _ in range(TRIES - 1):
            try:
                return (yield from call())
            except (RetriableError, OutcomeUnknownError):
                continue
        return (yield from call())

    # -- reading ------------------------------------------------------------------------------------------------------

    def poll(
        self,
        tp: TopicPartition,
        start: int,
        *,
        isolation: Isolation = "read_committed",
        most: int | None = None,
        txn: str = "",
        audit: str = "",
        final: bool = False,
        again: bool = False,
        reader: tuple[str, int] | None = None,
        check: Callable[[], Program[object]] | None = None,
    ) -> Program[Poll]:
        """Return rows from `start` (-1: the log start) on, at most `most` offsets; `again` opens the partition again.

        `reader`: the group in which this process is a member, and its generation there. `check` runs last, before the
        rows are returned.
        """
        what = Poll(
            topic=tp.topic,
            partition=tp.partition,
            isolation=isolation,
            start=start,
            txn=txn,
            audit=audit,
            final=final,
        )
        if reader is not None:
            what = msgspec.structs.replace(what, group=reader[0], generation=reader[1], member=self.name)

        def call() -> Program[Poll]:
            view = yield from self._fresh(tp, again=again)
            begin = view.state.log_start_offset if start < 0 else start
            end = None if most is None else begin + most
            for attempt in range(MAX_RELISTS + 1):
                view, plan = yield from plan_read(self.ctx, view, begin, end, isolation)
                self.views = with_view(self.views, view)
                try:
                    rows = yield from rows_of(plan.pieces)
                    break
                except MissingObjectError:
                    # Like shipped readers: maintenance deleted a file, so list again and continue at the same offset.
                    if attempt == MAX_RELISTS:
                        raise
                    view = yield from load(self.ctx, tp)
            if check is not None:
                yield from check()
            return msgspec.structs.replace(
                what,
                start=begin,
                end=plan.end,
                rows=rows,
                log_start=view.state.log_start_offset,
                last_stable=view.state.last_stable_offset,
                log_end=view.state.next_offset,
                deleted_version=view.state.deleted_version,
                to_end=plan.end == end_offset(view, isolation),
            )

        return self.asks(what, call, lambda poll: poll)

    def look(self, tp: TopicPartition) -> Program[Ends]:
        """Return the ends of a partition."""

        def call() -> Program[Ends]:
            state = (yield from self._fresh(tp)).state
            return Ends(
                topic=tp.topic,
                partition=tp.partition,
                log_start=state.log_start_offset,
                last_stable=state.last_stable_offset,
                log_end=state.next_offset,
            )

        return self.asks(Ends(topic=tp.topic, partition=tp.partition), call, lambda ends: ends)

    def go_elsewhere(self, tp: TopicPartition) -> None:
        """Let the next poll of `tp` not continue at the end of the last one."""
        self.record(Assign(topic=tp.topic, partition=tp.partition))

    # -- topics -------------------------------------------------------------------------------------------------------

    def open_topic(self, topic: str) -> Program[bool]:
        """Return whether such a topic exists, as this process saw it first: it may have been deleted since then."""
        if topic not in self.topics:
            try:
                self.topics[topic] = yield from topic_programs.describe_topic(topic)
            except UnknownTopicOrPartitionError:
                return False
        return True

    def make_topic(self, topic: str) -> Program[None]:
        topic_id = yield NewId()
        yield from self.patiently(
            lambda: topic_changes.create_topic(
                self.ctx, topic, fields=COLUMNS, append_log_start=topic_changes.ending_logs(self.ctx), topic_id=topic_id
            )
        )

    def delete_topic(self, topic: str) -> Program[TopicMetadata]:
        """Delete the topic as `txlog.client.store` does: all tries are about one topic (W50)."""
        write_id = yield NewId()
        target: TopicMetadata | None = None

        def call() -> Program[TopicMetadata]:
            nonlocal target
            target = target or (yield from topic_changes.topic_to_delete(topic))
            return (
                yield from topic_changes.delete_topic(
                    self.ctx,
                    topic,
                    append_log_start=topic_changes.ending_logs(self.ctx),
                    target=target,
                    write_id=write_id,
                )
            )

        return (
            yield from self.asks(
                DeleteTopic(topic=topic), call, lambda gone: DeleteTopic(topic=topic, version=gone.number)
            )
        )

    def change_columns(self, topic: str, choose: random.Random) -> Program[TopicMetadata]:
        """Change columns of the topic as `txlog.client.store` does: all tries are about one version, and one change."""
        write_id = yield NewId()
        base = yield from self.patiently(lambda: topic_programs.describe_topic(topic))
        names = [field.name for field in base.schema]
        *_, last = names
        changes: list[Change] = [
            AddColumn(SchemaField(id=1, name=f"c{base.number}", type="int8", default=1)),
            RenameColumn((last,), f"r{base.number}"),
            MoveColumn((last,)),
            DropColumn((last,)),
        ]
        change = choose.choice(changes)
        return (
            yield from self.patiently(
                lambda: column_changes.change_columns(self.ctx, base, [change], write_id=write_id)
            )
        )

    def check_versions(self, topic: str) -> Program[list[str]]:
        """Return what contradicts itself in the versions of a topic's name.

        Each write makes one version, a deletion makes two, and no id comes back.
        """
        found = []
        newest = yield from topic_programs.find_topic(topic)
        before: TopicMetadata | None = None
        writers: set[tuple[str, bool]] = set()
        for number in range(newest.number + 1 if newest is not None else 0):
            version = yield from topic_programs.earlier_version(topic, number)
            if before is not None:
                found += [
                    f"version {number}: expected {one}, found {other}" for one, other in contradictions(before, version)
                ]
            if (version.write_id, version.deleted) in writers:
                found.append(f"version {number}: a second one of write_id {version.write_id}")
            writers.add((version.write_id, version.deleted))
            before = version
        return found

    def _fresh(self, tp: TopicPartition, *, again: bool = False) -> Program[PartitionView]:
        view = None if again else self.views.get(tp)
        view = (yield from load(self.ctx, tp)) if view is None else (yield from refresh(self.ctx, view))
        self.views = with_view(self.views, view)
        return view


def rows_of(pieces: Iterable[Piece]) -> Program[tuple[Row, ...]]:
    """Return the rows of a plan's pieces; raises MissingObjectError for a file that was deleted."""
    found: list[Row] = []
    for piece in pieces:
        ranges: tuple[RowRange, ...]
        if isinstance(piece, InlinePiece):
            rows, ranges, start, end = decode_rows(piece.payload), (piece.range,), 0, MAX_OFFSET
        else:
            path = f"{piece.topic_partition.topic}/{piece.file.path}"
            data = yield Get(path)
            if data is None:
                raise MissingObjectError(f"{path}: the log names it, and it is gone")
            rows, ranges, start, end = decode_rows(data), piece.ranges, piece.start, piece.end
        for each in ranges:
            for at in range(each.rows):
                row = rows[each.first_row + at]
                offset = row.offset if each.by_column else each.base_offset + at
                if start <= offset < end:
                    found.append(Row(offset=offset, value=row.value, content=row.content))
    return tuple(found)
