"""How does one simulated process use the log, and which events does it record?

Its methods are programs over the shipped protocol. Each call is recorded as the client of a real process would know it:
requested, and answered, refused, or without an answer.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

import msgspec

from lab.histories.events import (
    Assign,
    Begin,
    CommitOffsets,
    DeleteTopic,
    End,
    Ends,
    FetchOffsets,
    Init,
    Isolation,
    OffsetRange,
    Poll,
    Row,
    Send,
    SendOffsets,
    What,
)
from lab.histories.recorder import Recorder, leaves_open
from lab.older_writers import staged_offsets
from lab.simulate.cluster import Machine, WriteFile, data_file, decode_rows, encode_rows
from txlog.core import names
from txlog.core.ages import ClockReading
from txlog.core.append_rules import BatchDraft
from txlog.core.effects import Get, NewId, NewProducerId, Program, ReadClocks, Sleep
from txlog.core.evolution import AddColumn, Change, DropColumn, MoveColumn, RenameColumn, contradictions
from txlog.core.fetch_plan import InlinePiece, Piece, RowRange
from txlog.core.groups import OffsetsCondition
from txlog.core.names import MAX_OFFSET, TopicPartition
from txlog.core.records import (
    DataFile,
    GroupValue,
    OffsetValue,
    SchemaField,
    StagedPart,
    StagedRows,
    TopicMetadata,
    TransactionMetadata,
)
from txlog.core.transactions import Skipped
from txlog.errors import (
    MissingObjectError,
    OutcomeUnknownError,
    RetriableError,
    TxlogError,
    UnknownTopicOrPartitionError,
)
from txlog.protocol import column_changes, groups, topic_changes, transactions
from txlog.protocol import topics as topic_programs
from txlog.protocol.append import append_batch, append_log_start
from txlog.protocol.context import Context, PartitionView, Views, with_view
from txlog.protocol.load import load, refresh
from txlog.protocol.read import end_offset, plan_read
from txlog.protocol.seal import seal_quietly
from txlog.protocol.slot import AppendResult

T = TypeVar("T")
COLUMNS = tuple(SchemaField(id=1, name=name, type="string") for name in ("content", "note"))
"""Of a topic with metadata. Kafka's columns, which are the default, cannot be renamed."""
MAX_RELISTS = 5
TRIES = 8
"""The maximum number of tries of a retriable call."""


class Client:
    """One process: its views, its identity, at most one transaction."""

    def __init__(self, machine: Machine, ctx: Context, recorder: Recorder, numbers: Callable[[], int]) -> None:
        self.name = machine.name
        self.ctx = ctx
        self.views: Views = {}
        self.txn: TransactionMetadata | None = None
        self.pid = -1
        self.epoch = -1
        self.label = ""
        self.staged: list[StagedPart] = []
        self.topics: dict[str, TopicMetadata] = {}
        """Topics that it has looked up, at any time before."""
        self._in_doubt = False
        """Whether a commit of the open transaction may have been decided."""
        self._recorder = recorder
        self._numbers = numbers
        self._sequences: dict[TopicPartition, int] = {}

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

    # -- identity -----------------------------------------------------------------------------------------------------

    def init(self, transactional_id: str, timeout_ms: int) -> Program[TransactionMetadata]:
        def call() -> Program[TransactionMetadata]:
            self.views, txn = yield from transactions.init_producer(self.ctx, self.views, transactional_id, timeout_ms)
            return self._take(txn)

        def answer(txn: TransactionMetadata) -> What:
            return Init(
                transactional_id=transactional_id, producer_id=txn.producer_id, producer_epoch=txn.producer_epoch
            )

        return self.asks(Init(transactional_id=transactional_id), call, answer)

    def draw_identity(self) -> Program[None]:
        """Draw the identity of a producer without transactional.id."""
        self.pid, self.epoch, self._sequences = (yield NewProducerId()), 0, {}

    def begin(self) -> str:
        assert self.txn is not None
        self.label = f"{self.name}/{self._numbers()}"
        self.staged, self._in_doubt = [], False
        self.record(
            Begin(
                txn=self.label,
                transactional_id=self.txn.transactional_id,
                producer_id=self.pid,
                producer_epoch=self.epoch,
            )
        )
        return self.label

    # -- rows ---------------------------------------------------------------------------------------------------------

    def send(
        self,
        tp: TopicPartition,
        contents: Sequence[str],
        choose: random.Random,
        *,
        staged: bool = False,
        keys: Sequence[str] = (),
        deletes: bool = False,
    ) -> Program[None]:
        """Send rows with new values in one batch: inline, in a file, or staged for the commit."""
        rows = [Row(offset=-1, value=self._numbers(), content=content) for content in contents]
        what = Send(
            topic=tp.topic,
            partition=tp.partition,
            values=tuple(row.value for row in rows),
            contents=tuple(contents),
            keys=tuple(keys),
            deletes=deletes,
            txn=self.label if self.txn is not None else "",
            schema_id=self.topics[tp.topic].schema_id if tp.topic in self.topics else -1,
        )
        before = next((part for part in self.staged if part.topic_partition == tp), None)
        in_file = choose.random() < (0.5 if staged else 0.3)
        if staged and before is not None:
            # One batch has rows of one kind.
            in_file = not before.payload

        def stage() -> Program[int]:
            # A try whose reply was lost may have written its file. So each has its own file name, and only the last is
            # named.
            part = StagedPart(topic=tp.topic, partition=tp.partition, schema_id=max(what.schema_id, 0))
            if in_file:
                part = msgspec.structs.replace(part, files=((yield from self._write_file(tp, rows)),))
            else:
                held = [*decode_rows(before.payload), *rows] if before is not None else rows
                part = msgspec.structs.replace(part, inline=StagedRows(rows=len(held), payload=encode_rows(held)))
                self.staged = [each for each in self.staged if each is not before]
            self.staged.append(part)
            return -1

        drafts: list[BatchDraft] = []
        begun: list[ClockReading] = []

        def append() -> Program[int]:
            if self.txn is not None and tp not in self.txn.partitions:
                yield from self._register(tp)
            if not drafts:
                begun.append((yield ReadClocks()))
                files = ((yield from self._write_file(tp, rows)),) if in_file else ()
                drafts.append(self._draft(tp, len(rows), files, b"" if files else encode_rows(rows)))
            result = yield from self._append(tp, drafts[0], begun[0])
            return result.base_offset

        def answer(base_offset: int) -> What:
            return msgspec.structs.replace(what, base_offset=base_offset)

        # A partition may forget a drawn id. Its state then decides nothing, so an unknown outcome is not retried (W16).
        tries = 1 if self.txn is None else TRIES
        try:
            yield from self.asks(what, stage if staged else append, answer, tries=tries)
        except UnknownTopicOrPartitionError:
            self.topics.pop(tp.topic, None)
            raise

    # -- the end of a transaction -------------------------------------------------------------------------------------

    def end(self, commit: bool) -> Program[str]:
        """Call commit or abort once. Return how the transaction ended."""
        what = End(txn=self.label, commit=commit)

        def call() -> Program[str]:
            assert self.txn is not None
            parts = tuple(self.staged) if commit else ()
            refusal = None if self._in_doubt or not commit else (yield from self._find_deleted())
            in_doubt, self._in_doubt = self._in_doubt, self._in_doubt or commit
            try:
                self.views, result = yield from transactions.end_transaction(
                    self.ctx, self.views, self.txn, commit, parts, refusal=refusal
                )
            except OutcomeUnknownError:
                raise
            except TxlogError as error:
                self._in_doubt = in_doubt
                if error is refusal:
                    # Only now: a try that failed before a refusal is retried, and checks the parts again.
                    for part in parts:
                        self.topics.pop(part.topic, None)
                raise
            self._take(result.txn)
            return "committed" if commit or result.already_committed else "aborted"

        return self.asks(
            what,
            call,
            lambda outcome: End(
                txn=what.txn, commit=commit, outcome="committed" if outcome == "committed" else "aborted"
            ),
            tries=1,
        )

    def complete(self) -> Program[None]:
        """Write the COMPLETE_* of the transaction that has just ended, if that is possible now."""
        assert self.txn is not None
        with suppress(RetriableError, OutcomeUnknownError):
            self.views = yield from transactions.complete(self.ctx, self.views, self.txn)

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
                self.ctx, topic, fields=COLUMNS, append_log_start=self._append_log_start, topic_id=topic_id
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
                    self.ctx, topic, append_log_start=self._append_log_start, target=target, write_id=write_id
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
        """Return what contradicts itself in the versions of a topic's name. Each write makes one version, and no id comes back."""
        found = []
        newest = yield from topic_programs.find_topic(topic)
        before: TopicMetadata | None = None
        writers: set[str] = set()
        for number in range(newest.number + 1 if newest is not None else 0):
            version = yield from topic_programs.earlier_version(topic, number)
            if before is not None:
                found += [
                    f"version {number}: expected {one}, found {other}" for one, other in contradictions(before, version)
                ]
            if version.write_id in writers:
                found.append(f"version {number}: a second one of write_id {version.write_id}")
            writers.add(version.write_id)
            before = version
        return found

    def _append_log_start(self, tp: TopicPartition, version: int) -> Program[object]:
        return append_log_start(self.ctx, {}, tp, None, version)

    def _find_deleted(self) -> Program[TxlogError | None]:
        """Check for deleted topics before the decision, as `txlog.client.coordinator` does (W46)."""
        staged = {part.topic: part.schema_id for part in self.staged}
        for topic in sorted(set(staged) & set(self.topics)):
            newest = yield from topic_programs.refresh_topic_of_rows(topic, staged[topic], self.topics[topic])
            if isinstance(newest, TxlogError):
                return newest
        return None

    # -- groups -------------------------------------------------------------------------------------------------------

    def join(self, group: str, member_id: str) -> Program[GroupValue]:
        def call() -> Program[GroupValue]:
            self.views, value = yield from groups.join_group(self.ctx, self.views, group, member_id, "", ())
            return value

        return self.patiently(call)

    def fetch(
        self, group: str, tps: Sequence[TopicPartition], *, final: bool = False
    ) -> Program[dict[TopicPartition, int]]:
        """Fetch committed offsets; -1 for none."""

        def call() -> Program[dict[TopicPartition, int]]:
            self.views, found = yield from groups.fetch_offsets(self.ctx, self.views, group, tps)
            return {tp: value.offset if value is not None else -1 for tp, value in found.items()}

        def answer(found: dict[TopicPartition, int]) -> What:
            return FetchOffsets(group=group, ranges=_ranges({tp: (-1, end) for tp, end in found.items()}), final=final)

        return self.asks(
            FetchOffsets(group=group, ranges=_ranges(dict.fromkeys(tps, (-1, -1))), final=final), call, answer
        )

    def send_offsets(
        self,
        group: str,
        ranges: Mapping[TopicPartition, tuple[int, int]],
        *,
        condition: OffsetsCondition | None,
        staged: bool,
    ) -> Program[None]:
        """Send offsets within the transaction: eager, or staged if there is no condition."""
        what = SendOffsets(txn=self.label, group=group, ranges=_ranges(ranges))
        values = {tp: OffsetValue(offset=end) for tp, (_, end) in ranges.items()}

        def call() -> Program[None]:
            assert self.txn is not None
            if staged and condition is None:
                self.staged.extend(staged_offsets(group, values, self.ctx.constants, 0))
                return
            self.views, txn = yield from groups.send_offsets(self.ctx, self.views, self.txn, group, values, condition)
            assert not isinstance(txn, Skipped)
            self._take(txn)

        return self.asks(what, call, lambda _: what)

    def commit_offsets(
        self, group: str, ranges: Mapping[TopicPartition, tuple[int, int]], condition: OffsetsCondition | None
    ) -> Program[None]:
        what = CommitOffsets(group=group, ranges=_ranges(ranges))
        values = {tp: OffsetValue(offset=end) for tp, (_, end) in ranges.items()}

        def call() -> Program[None]:
            self.views = yield from groups.commit_offsets(self.ctx, self.views, group, values, condition)

        return self.asks(what, call, lambda _: what)

    # -- helpers ------------------------------------------------------------------------------------------------------

    def patiently(self, call: Callable[[], Program[T]]) -> Program[T]:
        """Make a call that no history records, and retry it while that is allowed."""
        for _ in range(TRIES - 1):
            try:
                return (yield from call())
            except (RetriableError, OutcomeUnknownError):
                continue
        return (yield from call())

    def _take(self, txn: TransactionMetadata) -> TransactionMetadata:
        if (txn.producer_id, txn.producer_epoch) != (self.pid, self.epoch):
            self._sequences, self.staged = {}, []
        self.txn, self.pid, self.epoch = txn, txn.producer_id, txn.producer_epoch
        return txn

    def _register(self, tp: TopicPartition) -> Program[None]:
        assert self.txn is not None
        self.views, txn = yield from transactions.add_partitions(self.ctx, self.views, self.txn, [tp])
        assert not isinstance(txn, Skipped)
        self._take(txn)

    def _write_file(self, tp: TopicPartition, rows: Sequence[Row]) -> Program[DataFile]:
        unique = yield NewId()
        path = names.rows_file_path(tp.partition, self.pid, self.epoch, unique)
        data = encode_rows(rows)
        yield WriteFile(f"{tp.topic}/{path}", data)  # type: ignore[misc]
        return data_file(path, data, len(rows))

    def _draft(self, tp: TopicPartition, records: int, files: tuple[DataFile, ...], payload: bytes) -> BatchDraft:
        return BatchDraft(
            records=records,
            producer_id=self.pid,
            producer_epoch=self.epoch,
            base_sequence=self._sequences.get(tp, 0),
            transactional=self.txn is not None,
            schema_id=self.topics[tp.topic].schema_id if tp.topic in self.topics else 0,
            files=files,
            payload=payload,
            roll=self.ctx.roll_of(tp),
        )

    def _append(self, tp: TopicPartition, draft: BatchDraft, begun: ClockReading) -> Program[AppendResult]:
        self.views, result = yield from append_batch(self.ctx, self.views, tp, draft, self.txn, files_begun=begun)
        self._sequences[tp] = draft.base_sequence + draft.records
        view = yield from seal_quietly(self.ctx, self.views[tp])
        self.views = with_view(self.views, view)
        return result

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


def _ranges(ranges: Mapping[TopicPartition, tuple[int, int]]) -> tuple[OffsetRange, ...]:
    return tuple(
        OffsetRange(topic=tp.topic, partition=tp.partition, start=start, end=end)
        for tp, (start, end) in sorted(ranges.items())
    )
