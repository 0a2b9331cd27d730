"""How does one process of a storm work until it is killed? It records its calls and their answers.

Each role uses the public client as a program would, and repeats a call whose outcome is unknown. After SIGTERM it
finishes its current work. A fenced process ends: that is why several instances of one id are started.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from multiprocessing import forkserver
from pathlib import Path
from typing import Any, TypeAlias
from unittest.mock import patch

import pyarrow as pa
import typer

import txlog
from lab.chaos import plan
from lab.chaos.plan import AUDIT, JOBS, MADE, ORDERS, PARTITIONS, Assignment, job_content
from lab.histories.events import (
    NO_OFFSET,
    Assign,
    Begin,
    CommitOffsets,
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
)
from lab.histories.offsets import made_from
from lab.histories.recorder import Recorder
from txlog.cli import program
from txlog.client.consumer import Consumer
from txlog.client.producer import Producer
from txlog.clock import SystemClock
from txlog.core.names import TopicPartition
from txlog.errors import (
    AbortableError,
    CommitFailedError,
    FencedError,
    OutcomeUnknownError,
    TxlogError,
    TxlogTimeoutError,
    UnstableOffsetCommitError,
)

MAX_REPEATS = 20
"""The maximum number of retries of a call of unknown outcome. Each call itself waits for max.block.ms."""
_PR_SET_PDEATHSIG = 1

Offsets: TypeAlias = dict[TopicPartition, int]


def run(assignment: Assignment) -> None:
    """Run one process from start to end; ends in SystemExit."""
    die_with_parent()
    worker = Worker(assignment)
    signal.signal(signal.SIGTERM, worker.finish)
    # Ctrl-C reaches the whole group. The parent decides about the end of this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise SystemExit(worker.work())


def die_with_parent() -> None:
    """On Linux: send SIGKILL to this process, even if it is stopped, when its parent has died for any reason."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # The fork server lives while a process holds this pipe, and each child inherits it, so only the supervisor may keep
    # it. (The name is private. Without this, a killed supervisor would leave its processes: tests/testing/test_chaos.py
    # checks it.)
    alive = getattr(getattr(forkserver, "_forkserver", None), "_forkserver_alive_fd", None)
    if alive is not None:
        os.close(alive)


class Worker:
    """One process: its store, its random numbers, its history."""

    def __init__(self, assignment: Assignment) -> None:
        self.place = assignment.place
        self.name = assignment.name
        self.role = assignment.role
        self.process = assignment.source
        self.random = random.Random(assignment.seed)
        self.clock = SystemClock()
        self.histories = Path(assignment.place.histories)
        self.recorder = Recorder(self.process, self.clock, self.histories / f"{self.process}.jsonl")
        self.store = txlog.open(
            assignment.place.url,
            storage_options=assignment.place.storage_options,
            config={"transaction.timeout.ms": plan.TRANSACTION_TIMEOUT_MS, "linger.ms": 0},
        )
        self.stopping = False
        self.deadline_ms: int | None = None
        """The end of the recovery. A storm has an end of its own."""
        self._next_id = assignment.instance << plan.INSTANCE_BITS
        self._transactions = 0

    def finish(self, *_: object) -> None:
        """Let the role end after its current work."""
        self.stopping = True

    def work(self) -> int:
        """Run the role, and return the exit status."""
        roles: dict[str, Callable[[Worker], None]] = {
            "eager": eager,
            "staged": staged,
            "deferred": deferred,
            "plain": plain,
            "job": job,
            "pipeline": pipeline,
            "member": member,
            "reader": reader,
            "peeker": peeker,
            "witness": witness,
            "maintain": maintain,
        }
        try:
            roles[self.role](self)
        except (FencedError, CommitFailedError):
            return plan.FENCED
        except TxlogError as error:
            print(f"{self.process}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            return plan.FAILED
        return 0

    def close(self) -> None:
        """Close what would otherwise end only with the process."""
        try:
            self.store.close()
        finally:
            self.recorder.close()

    def check_deadline(self, what: str) -> None:
        """Raise TxlogTimeoutError if the recovery takes too long. Otherwise it would hang, and say nothing."""
        if self.deadline_ms is not None and self.clock.monotonic_ms() > self.deadline_ms:
            raise TxlogTimeoutError(f"{self.process}: the recovery did not end within {plan.RECOVERY_MS} ms: {what}")

    def pause(self, most_ms: int) -> None:
        """Pause for a random time."""
        self.clock.sleep_ms(self.random.randrange(most_ms + 1))

    def rows(self, count: int, contents: Sequence[str] = ()) -> tuple[tuple[int, ...], pa.Table]:
        """Return new ids and rows with them; some rows are too large to be inline."""
        ids = tuple(range(self._next_id, self._next_id + count))
        self._next_id += count
        pad = "x" * plan.LARGE_PAD_BYTES if self.random.random() < 0.1 else None
        columns: dict[str, Any] = {"id": ids, "content": list(contents) or [None] * count, "pad": [pad] * count}
        return ids, pa.table(columns, schema=plan.SCHEMA)

    def label(self) -> str:
        """Return a name for the next transaction."""
        self._transactions += 1
        return f"{self.process}-{self._transactions}"

    @staticmethod
    def _id_of(producer: Producer) -> str:
        assert producer.transactional_id is not None
        return producer.transactional_id

    # -- recorded calls -----------------------------------------------------------------------------------------------

    def init(self, producer: Producer) -> None:
        def attempt() -> Init:
            producer.init_transactions()
            return Init(
                transactional_id=self._id_of(producer),
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
            )

        self.recorder.call(self.process, Init(transactional_id=self._id_of(producer)), attempt)

    def begin(self, producer: Producer, label: str) -> None:
        producer.begin_transaction()
        begun = Begin(
            txn=label,
            transactional_id=self._id_of(producer),
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
        )
        self.recorder.single(self.process, begun)

    def send(
        self,
        producer: Producer,
        topic: str,
        partition: int,
        count: int,
        label: str = "",
        contents: Sequence[str] = (),
        *,
        waits: bool = True,
    ) -> None:
        """Send rows for one partition. If it `waits`, return when they are in the log, or staged."""
        ids, table = self.rows(count, contents)
        sent = Send(topic=topic, partition=partition, values=ids, txn=label, contents=tuple(contents))

        def attempt() -> Send:
            future = producer.send(topic, table, partition=partition)
            return Send(
                topic=topic,
                partition=partition,
                values=ids,
                txn=label,
                contents=tuple(contents),
                base_offset=future.result().base_offset if waits else NO_OFFSET,
            )

        self.recorder.call(self.process, sent, attempt)

    def commit(self, producer: Producer, label: str, version: int | None = None) -> None:
        """Commit; repeat a call of unknown outcome until the outcome is known."""

        def attempt() -> End:
            result = producer.commit_transaction(version)
            return End(txn=label, commit=True, outcome="skipped" if result.skipped else "committed")

        for _ in range(MAX_REPEATS):
            try:
                self.recorder.call(self.process, End(txn=label, commit=True), attempt)
                return
            except (OutcomeUnknownError, TxlogTimeoutError):
                continue

    def abort(self, producer: Producer, label: str) -> None:
        def attempt() -> End:
            producer.abort_transaction()
            return End(txn=label, commit=False, outcome="aborted")

        self.recorder.call(self.process, End(txn=label, commit=False), attempt)

    def transaction(
        self,
        producer: Producer,
        label: str,
        body: Callable[[], None],
        version: int | None = None,
        abort: float = 0.1,
    ) -> bool:
        """Run one transaction around `body`; return whether it was committed. One that timed out is aborted."""
        self.begin(producer, label)
        try:
            body()
            if self.random.random() < abort:
                self.abort(producer, label)
                return False
            self.commit(producer, label, version)
        except CommitFailedError:
            # Another member has the group, so this one cannot continue.
            self.abort(producer, label)
            raise
        except AbortableError:
            self.abort(producer, label)
            return False
        return True

    def poll(
        self, consumer: Consumer, label: str = "", timeout_ms: int = 100
    ) -> tuple[TopicPartition, int, pa.RecordBatch] | None:
        """Return the next rows: (partition, position after them, rows)."""
        isolation: Isolation = "read_committed" if consumer.isolation_level == "read_committed" else "read_uncommitted"
        assigned = consumer.assignment()
        before = {tp: consumer.position(tp) for tp in assigned}
        some = assigned[0]
        asked = Poll(topic=some.topic, partition=some.partition, isolation=isolation, txn=label)
        operation = self.recorder.invoke(self.process, asked)
        try:
            batch = consumer.poll(timeout_ms)
        except TxlogError as error:
            self.recorder.failed(self.process, operation, asked, error)
            raise
        tp = some
        rows: tuple[Row, ...] = ()
        if batch is not None:
            tp = TopicPartition(batch["_topic"][0].as_py(), batch["_partition"][0].as_py())
            rows = rows_of(batch)
        after = consumer.position(tp)
        self.recorder.ok(
            self.process,
            operation,
            Poll(
                topic=tp.topic,
                partition=tp.partition,
                isolation=isolation,
                txn=label,
                start=before[tp],
                end=after,
                rows=rows,
            ),
        )
        return None if batch is None else (tp, after, batch)


# -- roles ------------------------------------------------------------------------------------------------------------


def eager(worker: Worker) -> None:
    """A producer of transactions over several partitions and topics, whose rows enter the log when they are sent."""
    _producer(worker, is_staged=False)


def deferred(worker: Worker) -> None:
    """A producer whose rows wait for the commit, unless a send of the transaction asks for its offset."""
    _producer(worker, is_staged=None)


def staged(worker: Worker) -> None:
    """... and a producer whose rows enter the log with the commit."""
    _producer(worker, is_staged=True)


def plain(worker: Worker) -> None:
    """An idempotent producer without transactions."""
    with closing(worker.store.producer()) as producer:
        while not worker.stopping:
            topic = worker.random.choice((ORDERS, AUDIT))
            try:
                worker.send(producer, topic, worker.random.randrange(PARTITIONS[topic]), worker.random.randrange(1, 15))
            except (OutcomeUnknownError, TxlogTimeoutError):
                continue
            worker.pause(60)


def job(worker: Worker) -> None:
    """A batch job that commits version after version, each once, however often it starts."""
    with closing(worker.store.producer(worker.name, staged=True)) as producer:
        worker.init(producer)
        # A job whose predecessor died without a message does this: it repeats the last version, which must be skipped.
        version = max(worker.store.admin().describe_transaction(worker.name).txn_version, 0)
        while not worker.stopping:
            label = worker.label()
            contents = [job_content(worker.name, version)] * (plan.JOB_ROWS // PARTITIONS[JOBS])

            def body(label: str = label, contents: Sequence[str] = contents) -> None:
                for partition in range(PARTITIONS[JOBS]):
                    worker.send(producer, JOBS, partition, len(contents), label, contents)
                    worker.pause(20)

            if worker.transaction(producer, label, body, version):
                version += 1
            worker.pause(100)


def pipeline(worker: Worker, *, until_idle: bool = False) -> None:
    """Consume, transform, produce: a row of `made` for each row of `orders`, with its offset in the same transaction."""
    with (
        closing(worker.store.producer(worker.name)) as producer,
        worker.store.consumer(
            group_id=plan.PIPELINE_GROUP,
            group_instance_id=worker.name,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            max_poll_records=500,
        ) as consumer,
    ):
        worker.init(producer)
        consumer.subscribe(ORDERS)
        done = _find_positions(worker, consumer)
        label = worker.label()
        while not worker.stopping:
            worker.check_deadline(f"group {plan.PIPELINE_GROUP!r} is at {done}")
            found = [worker.poll(consumer, label) for _ in range(worker.random.randrange(1, 4))]
            taken = [each for each in found if each is not None]
            if not taken:
                if until_idle:
                    return
                continue

            ends = {tp: end for tp, end, _ in taken}
            # A range begins at the end of the range before: markers and aborted rows in between also count as
            # processed.
            ranges = _ranges(ends, done)

            def body(taken: list[Any] = taken, label: str = label, ends: Offsets = ends, ranges: Any = ranges) -> None:
                for tp, _, batch in taken:
                    contents = [made_from(plan.PIPELINE_GROUP, tp, row.offset) for row in rows_of(batch)]
                    partition = worker.random.randrange(PARTITIONS[MADE])
                    waits = worker.random.random() < 0.5
                    worker.send(producer, MADE, partition, len(contents), label, contents, waits=waits)
                sent = SendOffsets(txn=label, group=plan.PIPELINE_GROUP, ranges=ranges)

                def attempt() -> SendOffsets:
                    producer.send_offsets_to_transaction(ends, consumer.group_metadata())
                    return sent

                worker.recorder.call(worker.process, sent, attempt)

            if worker.transaction(producer, label, body, abort=0 if until_idle else 0.1):
                done |= ends
            else:
                consumer.seek_to_committed()
                done = _find_positions(worker, consumer)
            label = worker.label()


def member(worker: Worker, *, until_idle: bool = False) -> None:
    """A pipeline whose group has several members. A member leaves after some transactions, and another one is started.

    Each process has another transactional.id. So no epoch fences a member that lost its partitions, except a static
    one: the group's generation does (KIP-447).
    """
    is_static = worker.name in plan.STATIC
    remaining = worker.random.randrange(5, 60)
    done: Offsets = {}
    ends: Offsets = {}
    taken: dict[TopicPartition, list[pa.RecordBatch]] = {}
    inputs = plan.INPUTS[plan.SHARED_GROUP]
    with (
        closing(worker.store.producer(worker.name if is_static else worker.process)) as producer,
        worker.store.consumer(
            group_id=plan.SHARED_GROUP,
            group_instance_id=worker.name if is_static else None,
            client_id=worker.process,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            max_poll_records=200,
            # The recovery has no time limit: on a busy machine, short sessions would end again and again.
            config=plan.SHARED_CONFIG if not until_idle else {},
        ) as consumer,
    ):

        def begin_at(tps: Sequence[TopicPartition]) -> None:
            # Of the other partitions, `done` has what this member has committed.
            done.update({**dict.fromkeys(tps, 0), **_find_positions(worker, consumer, tps)})

        def drop(tps: Sequence[TopicPartition]) -> None:
            for tp in tps:
                taken.pop(tp, None)
                ends.pop(tp, None)

        worker.init(producer)
        consumer.subscribe(inputs, on_assign=begin_at, on_revoke=drop, on_lost=drop)
        while not worker.stopping and (remaining or until_idle):
            worker.check_deadline(f"group {plan.SHARED_GROUP!r} is at {done}, and owns {consumer.assignment()}")
            label = worker.label()
            drop(tuple(taken))
            for _ in range(worker.random.randrange(1, 4)):
                polled = _poll_share(worker, consumer, label, done, ends)
                if polled is not None:
                    taken.setdefault(polled[0], []).append(polled[2])
                    ends[polled[0]] = polled[1]
            if not taken:
                if until_idle and len(consumer.assignment()) == sum(PARTITIONS[topic] for topic in inputs):
                    return
                continue
            if _process(worker, producer, consumer, label, taken, ends, done, may_abort=not until_idle):
                done |= ends
                remaining = max(remaining - 1, 0)
            else:
                consumer.seek_to_committed()
                begin_at(consumer.assignment())


def reader(worker: Worker) -> None:
    """A consumer with auto-commit."""
    with worker.store.consumer(
        group_id=worker.name, group_instance_id=worker.name, enable_auto_commit=False, auto_offset_reset="earliest"
    ) as consumer:
        consumer.subscribe((ORDERS, AUDIT, JOBS, MADE))
        done = _find_positions(worker, consumer)
        ends: Offsets = {}
        while not worker.stopping:
            polled = worker.poll(consumer)
            if polled is not None:
                ends[polled[0]] = polled[1]
            if ends and worker.random.random() < 0.2:
                committed = CommitOffsets(group=worker.name, ranges=_ranges(ends, done))

                def attempt(committed: CommitOffsets = committed, ends: Offsets = ends) -> CommitOffsets:
                    consumer.commit(ends)
                    return committed

                worker.recorder.call(worker.process, committed, attempt)
                done |= ends
                ends = {}


def peeker(worker: Worker) -> None:
    """A read_uncommitted reader, from the log's end on."""
    with worker.store.consumer(
        ORDERS, AUDIT, isolation_level="read_uncommitted", auto_offset_reset="latest"
    ) as consumer:
        worker.recorder.single(worker.process, Assign())
        while not worker.stopping:
            worker.poll(consumer)
            worker.pause(50)


def witness(worker: Worker) -> None:
    """A reader that no fault hits: how long did it wait for rows that were already in the log?

    Writes `witness.json`: the longest time in which a partition's read_committed position stood still below the log
    end. The time in which this process did not run does not count. The file also has the longest such pause.
    """
    said: dict[str, Any] = {"stall_ms": 0, "where": "", "pause_ms": 0, "now_ms": 0}
    since: dict[TopicPartition, tuple[int, int]] = {}
    admin = worker.store.admin()
    topics = (ORDERS, AUDIT, JOBS, MADE)
    looked_ms = worker.clock.monotonic_ms()
    with worker.store.consumer(*topics, auto_offset_reset="earliest") as consumer:
        worker.recorder.single(worker.process, Assign())
        while not worker.stopping:
            # If the writers are faster, this loop has no other end.
            while not worker.stopping and worker.poll(consumer, timeout_ms=0) is not None:
                pass
            asked = {tp: Ends(topic=tp.topic, partition=tp.partition) for tp in consumer.assignment()}
            operations = {tp: worker.recorder.invoke(worker.process, what) for tp, what in asked.items()}
            ends = admin.list_offsets(topics)
            now_ms = worker.clock.monotonic_ms()
            pause_ms, looked_ms = now_ms - looked_ms, now_ms
            standing = 0
            for tp, info in ends.items():
                worker.recorder.ok(
                    worker.process,
                    operations[tp],
                    Ends(
                        topic=tp.topic,
                        partition=tp.partition,
                        log_start=info.log_start_offset,
                        last_stable=info.last_stable_offset,
                        log_end=info.log_end_offset,
                    ),
                )
                position = consumer.position(tp)
                if position >= info.log_end_offset or since.get(tp, (-1, 0))[0] != position:
                    since[tp] = position, now_ms
                    continue
                stall_ms = now_ms - since[tp][1]
                standing = max(standing, stall_ms)
                if stall_ms > said["stall_ms"]:
                    said |= {"stall_ms": stall_ms, "where": str(tp)}
            said |= {"pause_ms": max(said["pause_ms"], pause_ms), "now_ms": standing}
            _replace(worker.histories / "witness.json", json.dumps(said))
            worker.clock.sleep_ms(100)


def maintain(worker: Worker) -> None:
    """Run `txlog maintain --daemon` as shipped. The actions of its rounds go to a file beside the histories, a JSON line each."""
    place = worker.place
    options = [f"--storage-option={name}={json.dumps(value)}" for name, value in place.storage_options.items()]
    with (worker.histories / f"{worker.process}{plan.MAINTAINED_SUFFIX}").open("ab") as file:
        os.dup2(file.fileno(), 1)
    arguments = ["maintain", *plan.MAINTAIN_OPTIONS, "--store", place.url, *options, "--output", "json"]
    skew_ms = place.clock_skew_ms if worker.name == plan.AHEAD else -place.clock_skew_ms
    try:
        with clocks_wrong_by(skew_ms):
            typer.main.get_command(program.app).main(arguments, prog_name="txlog")
    except SystemExit as ended:
        if ended.code:
            # The command must not end without a signal, even after an error.
            raise TxlogError(f"txlog {' '.join(arguments[:2])} ended with status {ended.code}") from None


@contextmanager
def clocks_wrong_by(ms: int) -> Iterator[None]:
    """Set every wall clock that this process makes ahead by that much (below 0: behind)."""
    right = SystemClock.now_ms
    with patch.object(SystemClock, "now_ms", lambda clock: right(clock) + ms):
        yield


def rows_of(batch: pa.RecordBatch) -> tuple[Row, ...]:
    """Return the rows of a polled batch in the form of a history."""
    found: list[dict[str, Any]] = batch.select(["_offset", "id", "content"]).to_pylist()
    return tuple(Row(offset=row["_offset"], value=row["id"], content=row["content"] or "") for row in found)


def _producer(worker: Worker, *, is_staged: bool | None) -> None:
    with closing(worker.store.producer(worker.name, staged=is_staged)) as producer:
        worker.init(producer)
        while not worker.stopping:
            label = worker.label()

            def body(label: str = label) -> None:
                for _ in range(worker.random.randrange(1, 4)):
                    topic = worker.random.choice((ORDERS, ORDERS, AUDIT))
                    partition = worker.random.randrange(PARTITIONS[topic])
                    waits = is_staged is not None or worker.random.random() < 0.2
                    worker.send(producer, topic, partition, worker.random.randrange(1, 15), label, waits=waits)
                    worker.pause(30)

            worker.transaction(producer, label, body)
            worker.pause(60)


def _poll_share(
    worker: Worker, consumer: Consumer, label: str, done: Offsets, ends: Offsets
) -> tuple[TopicPartition, int, pa.RecordBatch] | None:
    """Return the next rows of a member: (partition, position after them, rows).

    The poll may take and lose partitions, which changes `done` and `ends`. `on_assign` records what it takes. So the poll
    itself is recorded after it returned.
    """
    batch = consumer.poll(100)
    if batch is None:
        return None
    tp = TopicPartition(batch["_topic"][0].as_py(), batch["_partition"][0].as_py())
    rows, membership = rows_of(batch), consumer.group_metadata()
    polled = Poll(
        topic=tp.topic,
        partition=tp.partition,
        txn=label,
        start=ends.get(tp, done[tp]),
        end=rows[-1].offset + 1,
        rows=rows,
        group=membership.group_id,
        generation=membership.generation_id,
        member=worker.name if worker.name in plan.STATIC else membership.member_id,
    )
    worker.recorder.single(worker.process, polled)
    return tp, polled.end, batch


def _process(
    worker: Worker,
    producer: Producer,
    consumer: Consumer,
    label: str,
    taken: Mapping[TopicPartition, Sequence[pa.RecordBatch]],
    ends: Offsets,
    done: Offsets,
    *,
    may_abort: bool,
) -> bool:
    """Write a row for each row that a member has read, with the offsets; return whether that was committed."""

    def body() -> None:
        for tp, batches in taken.items():
            contents = [made_from(plan.SHARED_GROUP, tp, row.offset) for batch in batches for row in rows_of(batch)]
            worker.send(producer, MADE, worker.random.randrange(PARTITIONS[MADE]), len(contents), label, contents)
        worker.pause(50)
        sent = SendOffsets(txn=label, group=plan.SHARED_GROUP, ranges=_ranges(ends, done))

        def attempt() -> SendOffsets:
            producer.send_offsets_to_transaction(ends, consumer.group_metadata())
            return sent

        worker.recorder.call(worker.process, sent, attempt)

    try:
        return worker.transaction(producer, label, body, abort=0.1 if may_abort else 0)
    except CommitFailedError:
        # The transaction is aborted. A later poll finds out why, and joins the group again.
        return False


def _find_positions(worker: Worker, consumer: Consumer, tps: Sequence[TopicPartition] | None = None) -> Offsets:
    """Record where the group continues, in all partitions of the consumer or in `tps`.

    Wait for an undecided transaction that holds newer offsets.
    """
    group = consumer.group_id
    assert group is not None
    if tps is None:
        tps = consumer.assignment()
    if not tps:
        return {}
    asked = FetchOffsets(group=group, ranges=_ranges(dict.fromkeys(tps, -1), {}))
    found: Offsets = {}

    def attempt() -> FetchOffsets:
        found.update({tp: value.offset for tp, value in consumer.committed(*tps).items() if value is not None})
        return FetchOffsets(group=group, ranges=_ranges({tp: found.get(tp, -1) for tp in tps}, {}))

    while True:
        try:
            worker.recorder.call(worker.process, asked, attempt)
            break
        except UnstableOffsetCommitError as error:
            worker.check_deadline(str(error))
    for tp in tps:
        worker.recorder.single(worker.process, Assign(topic=tp.topic, partition=tp.partition))
    return found


def _ranges(ends: Offsets, done: Offsets) -> tuple[OffsetRange, ...]:
    return tuple(
        OffsetRange(topic=tp.topic, partition=tp.partition, start=done.get(tp, 0), end=end) for tp, end in ends.items()
    )


def _replace(path: Path, text: str) -> None:
    beside = path.with_suffix(".new")
    beside.write_text(text)
    os.replace(beside, path)
