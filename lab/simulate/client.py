"""How does one simulated process write: its identity, its transaction, the rows and the offsets that it sends?"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import msgspec

from lab.histories.events import (
    Begin,
    CommitOffsets,
    End,
    FetchOffsets,
    Init,
    OffsetRange,
    Row,
    Send,
    SendOffsets,
    What,
)
from lab.histories.recorder import Recorder
from lab.older_writers import staged_offsets
from lab.simulate.cluster import Machine, WriteFile, data_file, decode_rows, encode_rows
from lab.simulate.process import TRIES, Process
from lab.topic_looks import LooksAtKnown
from txlog.core import names
from txlog.core.ages import ClockReading
from txlog.core.append_rules import BatchDraft
from txlog.core.effects import NewId, NewProducerId, Program, ReadClocks
from txlog.core.groups import OffsetsCondition
from txlog.core.names import TopicPartition
from txlog.core.records import DataFile, GroupValue, OffsetValue, StagedPart, StagedRows, TransactionMetadata
from txlog.core.transactions import Skipped
from txlog.errors import OutcomeUnknownError, RetriableError, TxlogError, UnknownTopicOrPartitionError
from txlog.protocol import groups, transactions
from txlog.protocol.append import append_batch
from txlog.protocol.context import Context, with_view
from txlog.protocol.seal import seal_quietly
from txlog.protocol.slot_record import AppendResult
from txlog.protocol.topics import TopicLooks


class Client(Process):
    """One process: its views, its identity, at most one transaction."""

    def __init__(self, machine: Machine, ctx: Context, recorder: Recorder, numbers: Callable[[], int]) -> None:
        super().__init__(machine, ctx, recorder)
        self.txn: TransactionMetadata | None = None
        self.pid = -1
        self.epoch = -1
        self.label = ""
        self.staged: list[StagedPart] = []
        self._looks: TopicLooks = LooksAtKnown()
        self._in_doubt = False
        """Whether a commit of the open transaction may have been decided."""
        self._numbers = numbers
        self._sequences: dict[TopicPartition, int] = {}

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
            looks = None if self._in_doubt else replace(self._looks, known=dict(self.topics))
            in_doubt, self._in_doubt = self._in_doubt, self._in_doubt or commit
            try:
                self.views, result = yield from transactions.end_transaction(
                    self.ctx, self.views, self.txn, commit, parts, looks=looks, noted=self._note
                )
            except OutcomeUnknownError:
                raise
            except TxlogError as error:
                self._in_doubt = in_doubt
                if isinstance(error, UnknownTopicOrPartitionError):
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

    def _note(self, looks: TopicLooks) -> None:
        self._looks = looks

    # -- groups -------------------------------------------------------------------------------------------------------

    def join(self, group: str, member_id: str) -> Program[GroupValue]:
        def call() -> Program[GroupValue]:
            self.views, (value, _) = yield from groups.join_group(self.ctx, self.views, group, member_id, "", ())
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


def _ranges(ranges: Mapping[TopicPartition, tuple[int, int]]) -> tuple[OffsetRange, ...]:
    return tuple(
        OffsetRange(topic=tp.topic, partition=tp.partition, start=start, end=end)
        for tp, (start, end) in sorted(ranges.items())
    )
