"""What is one process of a storm, and how does it record its calls and their answers?

Each role uses the public client as a program would, and repeats a call whose outcome is unknown. After SIGTERM it
finishes its current work. A fenced process ends: that is why several instances of one id are started.
"""

from __future__ import annotations

import ctypes
import os
import random
import signal
import sys
from collections.abc import Callable, Sequence
from multiprocessing import forkserver
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa

import txlog
from lab.chaos import plan
from lab.chaos.plan import Assignment
from lab.histories.events import NO_OFFSET, Begin, End, Init, Isolation, Poll, Row, Send
from lab.histories.recorder import Recorder
from txlog.client.consumer import Consumer
from txlog.client.producer import Producer
from txlog.clock import SystemClock
from txlog.core.names import TopicPartition
from txlog.errors import AbortableError, CommitFailedError, OutcomeUnknownError, TxlogError, TxlogTimeoutError

MAX_REPEATS = 20
"""The maximum number of retries of a call of unknown outcome. Each call itself waits for max.block.ms."""
_PR_SET_PDEATHSIG = 1

Offsets: TypeAlias = dict[TopicPartition, int]


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
        self.first_id = self._next_id = assignment.instance << plan.INSTANCE_BITS
        self._transactions = 0

    def finish(self, *_: object) -> None:
        """Let the role end after its current work."""
        self.stopping = True

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
            result = producer.commit_transaction(version=version)
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


def rows_of(batch: pa.RecordBatch) -> tuple[Row, ...]:
    """Return the rows of a polled batch in the form of a history."""
    found: list[dict[str, Any]] = batch.select(["_offset", "id", "content"]).to_pylist()
    return tuple(Row(offset=row["_offset"], value=row["id"], content=row["content"] or "") for row in found)
