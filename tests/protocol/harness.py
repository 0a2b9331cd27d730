"""A store with time, identity and faults that the test controls, and processes that run on it step by step.

A test can step, pause and kill these processes, and look at the store as a reader sees it.

Rows are words. The rows of a batch are inline as a JSON list of words, or in a file whose words `Cluster.rows` keeps.
So tests look at rows and offsets, not at Parquet.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, TypeVar

from lab.older_writers import staged_offsets
from lab.simulate.cluster import Bucket, DiedError, Fault
from tests.support import drive, list_names
from txlog.config import IsolationLevel
from txlog.core import envelope, names
from txlog.core.ages import MAX_CLOCK_ERROR_MS, ClockReading
from txlog.core.append_rules import BatchDraft, RollPolicy
from txlog.core.effects import (
    Delete,
    Effect,
    Gather,
    Get,
    List,
    Modified,
    NewId,
    NewProducerId,
    Now,
    Program,
    PutIfAbsent,
    ReadClocks,
    Size,
    Sleep,
    WriteRows,
)
from txlog.core.fetch_plan import InlinePiece, RowRange
from txlog.core.groups import OffsetsCondition, offsets_partition
from txlog.core.names import TopicPartition
from txlog.core.record_checks import StoredRecord, stored_records
from txlog.core.records import (
    Boundary,
    CommitRecord,
    DataFile,
    OffsetValue,
    StagedPart,
    StagedRows,
    StoreConstants,
    TransactionMetadata,
)
from txlog.core.snapshot_state import to_snapshot
from txlog.core.state import PartitionState, replay
from txlog.core.transactions import Skipped, TxnVersion
from txlog.errors import StorageError
from txlog.protocol import groups, transactions
from txlog.protocol.append import append_batch
from txlog.protocol.context import Context, PartitionView, Views
from txlog.protocol.load import load
from txlog.protocol.read import ReadPlan, plan_read
from txlog.protocol.seal import seal, seal_quietly
from txlog.protocol.slot_record import AppendResult
from txlog.protocol.table import state_partition

T = TypeVar("T")

A = TopicPartition("orders", 0)
B = TopicPartition("orders", 1)
C = TopicPartition("audit", 0)
USER = (A, B, C)
HOUR_MS = 3_600_000
GRACE_MS = 24 * HOUR_MS
CONSTANTS = StoreConstants(transaction_state_partitions=2, consumer_offsets_partitions=2)
PRODUCER_IDLE_MS = CONSTANTS.producer_id_expiration_ms + 2 * MAX_CLOCK_ERROR_MS
ID_IDLE_MS = CONSTANTS.transactional_id_expiration_ms + 2 * MAX_CLOCK_ERROR_MS
"""The idle time after which any two clocks allow forgetting."""
NEVER_ROLL = RollPolicy(batches=10**9)

REQUESTS = (Get, List, PutIfAbsent, Delete, Modified, Size, WriteRows)
"""Effects that ask the store."""
Faults: TypeAlias = Callable[[int, Effect], Fault | None]


def no_faults(number: int, effect: Effect) -> Fault | None:
    return None


def context(**changes: Any) -> Context:
    """Return a context with few internal partitions, whose segments do not roll."""
    defaults: dict[str, Any] = {
        "constants": CONSTANTS,
        "roll": {tp.topic: NEVER_ROLL for tp in USER},
        "internal_roll": NEVER_ROLL,
    }
    return Context(**{**defaults, **changes})


def rolling(batches: int) -> Context:
    """Return a context in which every segment rolls after that many batches."""
    policy = RollPolicy(batches=batches)
    return context(roll={tp.topic: policy for tp in USER}, internal_roll=policy)


class Cluster(Bucket):
    """The store, both clocks, and every request that a process made to the store."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[str, list[str]] = {}
        """Path of a file of rows from the root -> its words."""
        self.now_ms = 1_700_000_000_000
        self.monotonic_ms = 5_000
        self.requests: list[Effect] = []
        self._views: dict[TopicPartition, PartitionView] = {}
        self._viewed: object = None
        """The objects and the times that `_views` are of."""

    def copy(self) -> Cluster:
        """Return a copy that changes independently of this one."""
        other = Cluster()
        other.objects, other.rows = dict(self.objects), dict(self.rows)
        other.written_at_ms = dict(self.written_at_ms)
        other.now_ms, other.monotonic_ms = self.now_ms, self.monotonic_ms
        other.in_flight, other._ids = list(self.in_flight), self._ids
        return other

    def store_ms(self) -> int:
        return self.now_ms

    def pass_ms(self, ms: int) -> None:
        self.now_ms += ms
        self.monotonic_ms += ms

    def land(self) -> None:
        """Apply the requests that are in flight."""
        while self.in_flight:
            self._create(*self.in_flight.pop(0))

    def run(self, program: Program[T], faults: Faults = no_faults) -> T:
        task = Task(self, program, faults)
        task.run()
        return task.result  # type: ignore[no-any-return]

    def perform(self, effect: Effect, fault: Fault | None = None) -> Any:
        if isinstance(effect, REQUESTS):
            self.requests.append(effect)
            if fault == "crash" or (fault == "crash in flight" and not isinstance(effect, PutIfAbsent)):
                raise DiedError
            if fault == "error" or (
                fault is not None and not isinstance(effect, PutIfAbsent) and fault != "crash after"
            ):
                raise StorageError(f"planned failure of {effect}"[:200])
        match effect:
            case PutIfAbsent(path, data):
                return self._put(path, data, fault)
            case _:
                answer = self._answer(effect)
                if fault == "crash after":
                    raise DiedError
                return answer

    def _answer(self, effect: Effect) -> Any:
        match effect:
            case Now():
                return self.now_ms
            case ReadClocks():
                return ClockReading(self.now_ms, self.monotonic_ms)
            case Sleep(ms):
                self.pass_ms(ms)
            case NewId():
                return self.unique()
            case NewProducerId():
                return self.new_producer_id()
            case WriteRows(topic, file_path, rows):
                words = [word for inline in rows for word in json.loads(inline.payload)]
                return self.file(topic, file_path, words)
            case _:
                return super()._answer(effect)
        return None

    def file(self, topic: str, path: str, words: Sequence[str]) -> DataFile:
        """Create a data file: its words are kept here, and its object is a stand-in."""
        self._create(f"{topic}/{path}", b"parquet")
        self.rows[f"{topic}/{path}"] = list(words)
        return DataFile(
            path=path, rows=len(words), bytes=7, digest=None, footer_digest="f" * 64, row_groups=(len(words),)
        )

    # -- maintenance --------------------------------------------------------------------------------------------------

    def clean_tail(self, tp: TopicPartition, ctx: Context | None = None) -> int:
        """Append a boundary at the sealed end, and delete the slots below it. Return the boundary.

        Maintenance does this `delete.grace.ms` after sealing.
        """
        view = self.run(load(ctx or context(), tp))
        end = view.sealed_end
        boundary = envelope.encode(Boundary(offset=end, created_at=self.now_ms))
        self.objects.setdefault(tp.folder + names.boundary_name(end), boundary)
        for path in list(self.objects):
            if path.startswith(tp.folder) and path.endswith(".batch") and path < tp.folder + names.batch_name(end):
                del self.objects[path]
        return end

    # -- what the store contains --------------------------------------------------------------------------------------

    def batches(self, tp: TopicPartition) -> list[StoredRecord]:
        """Return the commit records in the store by offset, whether they count or not."""
        found: list[StoredRecord] = []
        for name in list_names(self.objects, tp.folder):
            parsed = names.parse_partition_object(name)
            if isinstance(parsed, names.NumberedName) and parsed.kind == "batch":
                found += stored_records(self.objects[tp.folder + name], tp, parsed.number)
        return found

    def records(self, tp: TopicPartition) -> list[CommitRecord]:
        return [stored.record for stored in self.batches(tp)]

    def kinds(self, tp: TopicPartition) -> str:
        """Return the chain in letters: d(ata), c(ommit), a(bort), l(og_start), e(xpire); C is a commit with rows."""
        return "".join(
            record.kind[0].upper() if record.kind == "commit" and record.records else record.kind[0]
            for record in self.records(tp)
        )

    def view(self, tp: TopicPartition) -> PartitionView:
        """What a reader that opens the partition now gets; asked again, the same view until an object or the time
        changes."""
        now = (self.objects, self.now_ms, self.monotonic_ms)
        if now != self._viewed:
            self._viewed, self._views = (dict(self.objects), self.now_ms, self.monotonic_ms), {}
        if tp not in self._views:
            self._views[tp] = self.run(load(context(), tp))
        return self._views[tp]

    def state(self, tp: TopicPartition) -> PartitionState:
        return self.view(tp).state

    def read(self, tp: TopicPartition, isolation: IsolationLevel = "read_committed") -> dict[int, str]:
        """Return offset -> word, as a reader sees the partition from the log start."""
        view = self.view(tp)
        _, plan = self.run(plan_read(context(), view, view.state.log_start_offset, None, isolation))
        return dict(self.words(plan))

    def words(self, plan: ReadPlan) -> Iterator[tuple[int, str]]:
        for piece in plan.pieces:
            ranges: tuple[RowRange, ...]
            if isinstance(piece, InlinePiece):
                words, ranges = json.loads(piece.payload), (piece.range,)
            else:
                words = self.rows[f"{piece.topic_partition.topic}/{piece.file.path}"]
                ranges = piece.ranges
            for row_range in ranges:
                for row in range(row_range.rows):
                    yield row_range.base_offset + row, words[row_range.first_row + row]

    def txn(self, transactional_id: str = "x") -> TransactionMetadata | None:
        tp = state_partition(context(), transactional_id)
        row = self.state(tp).transactions.get(transactional_id)
        return row.value if row is not None else None

    def committed(self, group: str = "g") -> dict[int, int]:
        """Return partition of `orders` -> committed offset."""
        tp = offsets_partition(group, CONSTANTS.consumer_offsets_partitions)
        return {
            key[2]: row.entry.value.offset
            for key, row in self.state(tp).committed.items()
            if key[0] == group and row.entry.value is not None
        }

    def partitions(self) -> list[TopicPartition]:
        found = set()
        for path in self.objects:
            parts = path.split("/")
            if len(parts) > 2 and parts[1].isdecimal():
                found.add(TopicPartition(parts[0], int(parts[1])))
        return sorted(found)

    def check(self, *, settled: bool = True) -> None:
        """Check invariants 1, 3, 7, 9 and 16 for everything in the store. `settled`: no transaction is open."""
        for tp in self.partitions():
            view = self.view(tp)
            state = view.state
            boundary = view.boundary
            stored = [each for each in self.batches(tp) if each.record.base_offset >= boundary]
            if not boundary:
                again = replay(PartitionState.empty(tp), stored)
                assert again.next_offset == state.next_offset
                assert to_snapshot(again) == to_snapshot(state), tp
            seen: set[tuple[int, int, int]] = set()
            for record in (each.record for each in stored):
                key = (record.producer_id, record.producer_epoch, record.base_sequence)
                if record.base_sequence >= 0:
                    assert key not in seen, f"{tp}: {key} twice"
                    seen.add(key)
                for file in record.files:
                    assert f"{tp.topic}/{file.path}" in self.objects, f"{tp}: {file.path} is gone"
                    parsed = names.parse_rows_path(file.path)
                    assert parsed is not None
                    epoch = record.producer_epoch - (record.kind == "commit")
                    assert (parsed.producer_id, parsed.producer_epoch) == (record.producer_id, epoch)
            opened = {pid: entry for pid, entry in state.producers.items() if entry.txn_first_offset >= 0}
            assert state.open_producers == opened, tp
            if settled:
                assert state.open_transactions == (), tp
                assert state.pending == {}, tp
                assert state.last_stable_offset == state.next_offset, tp


MOST_LOCAL_EFFECTS = 100_000
"""No program of these tests draws so many ids and looks at the clock so often."""


@dataclass(eq=False)
class _Frame:
    program: Program[Any]
    children: list[Program[Any]] = field(default_factory=list)
    results: list[Any] = field(default_factory=list)
    errors: list[Exception] = field(default_factory=list)
    gathers: bool = False


class Task:
    """A program that stops before each request to the store. The programs of a Gather run one after another."""

    def __init__(self, cluster: Cluster, program: Program[Any], faults: Faults = no_faults) -> None:
        self.cluster = cluster
        self.faults = faults
        self.count = 0
        """The number of requests so far."""
        self.done = False
        self.pending: Effect | None = None
        """The request that the next step makes."""
        self._value: Any = None
        self._error: Exception | None = None
        self._local = 0
        self._frames = [_Frame(program)]
        self._resume(None, None)

    @property
    def result(self) -> Any:
        assert self.done
        if self._error is not None:
            raise self._error
        return self._value

    def step(self, fault: Fault | None = None) -> None:
        """Make the pending request, with `fault` or with the fault that the task's own plan names. Raises DiedError."""
        assert not self.done
        assert self.pending is not None
        self.count += 1
        effect, self.pending = self.pending, None
        try:
            answer = self.cluster.perform(effect, fault or self.faults(self.count, effect))
        except Exception as error:
            self._resume(None, error)
        else:
            self._resume(answer, None)

    def run(self, until: Callable[[Effect], bool] | None = None) -> Task:
        """Run to the end, or until `until` accepts the pending request."""
        while not self.done:
            assert self.pending is not None
            if until is not None and until(self.pending):
                return self
            self.step()
        return self

    def _resume(self, answer: Any, error: Exception | None) -> None:
        while True:
            frame = self._frames[-1]
            if frame.gathers:
                if frame.children:
                    self._frames.append(_Frame(frame.children.pop(0)))
                    answer, error = None, None
                    continue
                frame.gathers = False
                answer = tuple(frame.results)
                error = frame.errors[0] if frame.errors else None
            try:
                effect = frame.program.send(answer) if error is None else frame.program.throw(error)
            except StopIteration as stop:
                if self._leave(stop.value, None):
                    return
                continue
            except Exception as raised:
                if self._leave(None, raised):
                    return
                continue
            answer, error = None, None
            if isinstance(effect, Gather):
                frame.gathers, frame.children = True, list(effect.programs)
                frame.results, frame.errors = [], []
            elif isinstance(effect, REQUESTS):
                self.pending = effect
                return
            else:
                self._local += 1
                # A program that a mutant has broken may go on for ever.
                assert self._local < MOST_LOCAL_EFFECTS, "the program makes no request any more"
                answer = self.cluster.perform(effect)

    def _leave(self, value: Any, error: Exception | None) -> bool:
        self._frames.pop()
        if not self._frames:
            self.done, self._value, self._error = True, value, error
            return True
        parent = self._frames[-1]
        if error is not None:
            parent.errors.append(error)
        else:
            parent.results.append(value)
        return False


class Process:
    """One client with its own views and at most one transaction. Its methods are programs; `do` runs one."""

    def __init__(
        self, cluster: Cluster, transactional_id: str = "x", ctx: Context | None = None, faults: Faults = no_faults
    ) -> None:
        self.cluster = cluster
        self.transactional_id = transactional_id
        self.ctx = ctx or context()
        self.faults = faults
        self.views: Views = {}
        self.txn: TransactionMetadata | None = None
        self.sequences: dict[TopicPartition, int] = {}
        self.staged: list[StagedPart] = []
        self.pid = -1
        self.epoch = -1

    def do(self, program: Program[T]) -> T:
        return self.cluster.run(program, self.faults)

    def start(self, program: Program[Any]) -> Task:
        return Task(self.cluster, program, self.faults)

    @property
    def identity(self) -> TransactionMetadata:
        assert self.txn is not None
        return self.txn

    def _take(self, txn: TransactionMetadata) -> TransactionMetadata:
        if (txn.producer_id, txn.producer_epoch) != (self.pid, self.epoch):
            self.sequences, self.staged = {}, []
        self.txn, self.pid, self.epoch = txn, txn.producer_id, txn.producer_epoch
        return txn

    def init(self, timeout_ms: int = 60_000) -> Program[TransactionMetadata]:
        self.views, txn = yield from transactions.init_producer(self.ctx, self.views, self.transactional_id, timeout_ms)
        return self._take(txn)

    def idempotent(self) -> Program[int]:
        """Become a producer without a transactional.id: draw a producer id."""
        self.pid, self.epoch = (yield NewProducerId()), 0
        return self.pid

    def register(self, *tps: TopicPartition) -> Program[TransactionMetadata | Skipped]:
        self.views, txn = yield from transactions.add_partitions(self.ctx, self.views, self.identity, tps)
        assert isinstance(txn, TransactionMetadata)
        return self._take(txn)

    def draft(self, tp: TopicPartition, *words: str, in_file: bool = False, schema_id: int = 0) -> BatchDraft:
        files: tuple[DataFile, ...] = ()
        payload = b""
        if in_file:
            path = names.rows_file_path(tp.partition, self.pid, self.epoch, self.cluster.unique())
            files = (self.cluster.file(tp.topic, path, words),)
        else:
            payload = json.dumps(words).encode()
        return BatchDraft(
            records=len(words),
            producer_id=self.pid,
            producer_epoch=self.epoch,
            base_sequence=self.sequences.get(tp, 0),
            transactional=self.txn is not None,
            schema_id=schema_id,
            files=files,
            payload=payload,
            roll=self.ctx.roll_of(tp),
        )

    def append(self, tp: TopicPartition, draft: BatchDraft) -> Program[AppendResult]:
        self.views, result = yield from append_batch(self.ctx, self.views, tp, draft, self.txn)
        self.sequences[tp] = draft.base_sequence + draft.records
        view = yield from seal_quietly(self.ctx, self.views[tp])
        self.views = {**self.views, tp: view}
        return result

    def send(self, tp: TopicPartition, *words: str, **kwargs: Any) -> Program[AppendResult]:
        """Register the partition if necessary, and append."""
        if self.txn is not None and tp not in self.txn.partitions:
            yield from self.register(tp)
        return (yield from self.append(tp, self.draft(tp, *words, **kwargs)))

    def stage(self, tp: TopicPartition, *words: str, schema_id: int = 0) -> StagedPart:
        """Write a file that the commit will name."""
        path = names.rows_file_path(tp.partition, self.pid, self.epoch, self.cluster.unique())
        part = StagedPart(
            topic=tp.topic,
            partition=tp.partition,
            schema_id=schema_id,
            files=(self.cluster.file(tp.topic, path, words),),
        )
        self.staged.append(part)
        return part

    def stage_inline(self, tp: TopicPartition, *words: str) -> StagedPart:
        """Return rows that the commit record itself will hold."""
        payload = json.dumps(words).encode()
        part = StagedPart(topic=tp.topic, partition=tp.partition, inline=StagedRows(rows=len(words), payload=payload))
        self.staged.append(part)
        return part

    def stage_offsets(self, offsets: Mapping[int, int], group: str = "g") -> None:
        values = {TopicPartition("orders", p): OffsetValue(offset=offset) for p, offset in offsets.items()}
        self.staged.extend(staged_offsets(group, values, self.ctx.constants, self.cluster.now_ms))

    def send_offsets(
        self,
        offsets: Mapping[int, int],
        group: str = "g",
        condition: OffsetsCondition | None = None,
        version: TxnVersion | None = None,
    ) -> Program[TransactionMetadata | Skipped]:
        values = {TopicPartition("orders", p): OffsetValue(offset=offset) for p, offset in offsets.items()}
        self.views, txn = yield from groups.send_offsets(
            self.ctx, self.views, self.identity, group, values, condition, version
        )
        return txn if isinstance(txn, Skipped) else self._take(txn)

    def end(
        self, commit: bool, staged: Sequence[StagedPart] | None = None, version: TxnVersion | None = None
    ) -> Program[transactions.EndResult]:
        parts = tuple(self.staged if staged is None else staged)
        self.views, ended = yield from transactions.end_transaction(
            self.ctx, self.views, self.identity, commit, parts, version
        )
        self._take(ended.txn)
        self.staged = []
        return ended

    def commit(self, **kwargs: Any) -> Program[transactions.EndResult]:
        return self.end(True, **kwargs)

    def abort(self) -> Program[transactions.EndResult]:
        return self.end(False)

    def complete(self) -> Program[None]:
        self.views = yield from transactions.complete(self.ctx, self.views, self.identity)

    def commit_offsets(
        self, offsets: Mapping[int, int | None], group: str = "g", condition: OffsetsCondition | None = None
    ) -> Program[None]:
        values = {
            TopicPartition("orders", p): None if offset is None else OffsetValue(offset=offset)
            for p, offset in offsets.items()
        }
        self.views = yield from groups.commit_offsets(self.ctx, self.views, group, values, condition)

    def fetch_offsets(self, *partitions: int, group: str = "g") -> Program[dict[int, int | None]]:
        tps = [TopicPartition("orders", p) for p in partitions]
        self.views, found = yield from groups.fetch_offsets(self.ctx, self.views, group, tps)
        return {tp.partition: value.offset if value is not None else None for tp, value in found.items()}

    def seal(self, tp: TopicPartition) -> Program[PartitionView]:
        view = yield from seal(self.ctx, (yield from load(self.ctx, tp)))
        self.views = {**self.views, tp: view}
        return view


def is_put(path_part: str) -> Callable[[Effect], bool]:
    """Return a test for a conditional write whose path contains `path_part`."""
    return lambda effect: isinstance(effect, PutIfAbsent) and path_part in effect.path


def nth_put(number: int, fault: Fault, path_part: str = "", *, times: int = 1) -> Faults:
    """Return that fault at the n-th conditional write (from 1) whose path contains `path_part`, and at the next `times`
    - 1."""
    seen = 0

    def faults(_: int, effect: Effect) -> Fault | None:
        nonlocal seen
        if isinstance(effect, PutIfAbsent) and path_part in effect.path:
            seen += 1
            if number <= seen < number + times:
                return fault
        return None

    return faults


def at(number: int, fault: Fault) -> Faults:
    """Return that fault at the n-th request."""
    return lambda count, _: fault if count == number else None


@dataclass(frozen=True)
class Cost:
    """The requests that a program made to the store.

    `rounds` counts requests that wait for the answer to another request.
    """

    gets: int = 0
    lists: int = 0
    puts: int = 0
    others: int = 0
    rounds: int = 0
    put_rounds: int = 0

    def then(self, other: Cost) -> Cost:
        return self._sum(other, self.rounds + other.rounds, self.put_rounds + other.put_rounds)

    def beside(self, other: Cost) -> Cost:
        return self._sum(other, max(self.rounds, other.rounds), max(self.put_rounds, other.put_rounds))

    def _sum(self, other: Cost, rounds: int, put_rounds: int) -> Cost:
        return replace(
            self,
            gets=self.gets + other.gets,
            lists=self.lists + other.lists,
            puts=self.puts + other.puts,
            others=self.others + other.others,
            rounds=rounds,
            put_rounds=put_rounds,
        )


def measure(cluster: Cluster, program: Program[T]) -> tuple[T, Cost]:
    """Run a program and count its requests."""
    cost = Cost()

    def answer(effect: Effect) -> Any:
        nonlocal cost
        match effect:
            case Gather(programs):
                runs = [measure(cluster, child) for child in programs]
                together = Cost()
                for _, child_cost in runs:
                    together = together.beside(child_cost)
                cost = cost.then(together)
                return tuple(value for value, _ in runs)
            case Get():
                cost = cost.then(Cost(gets=1, rounds=1))
            case List():
                cost = cost.then(Cost(lists=1, rounds=1))
            case PutIfAbsent():
                cost = cost.then(Cost(puts=1, rounds=1, put_rounds=1))
            case Delete() | Modified() | Size() | WriteRows():
                cost = cost.then(Cost(others=1, rounds=1))
        return cluster.perform(effect)

    result = drive(program, answer)
    return result, cost
