"""Which rows wait to be sent, and which of them are complete batches? Kafka's RecordAccumulator.

Sends to one partition are joined until a batch has `batch.size` bytes or has waited for `linger.ms`. Only one batch of
a partition is in flight at a time, so the rows of a partition are in the order of its sends. This module holds values
and bookkeeping only. `txlog.client.producer.sender` decides when to send.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from types import FrameType
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa

from txlog import metrics
from txlog.client.session.arguments import named_calls
from txlog.client.session.call_guard import has_ended
from txlog.client.session.retry import RetryLog
from txlog.core.ages import ClockReading
from txlog.core.append_rules import BatchDraft
from txlog.core.names import TopicPartition
from txlog.core.records import NO_TIMESTAMP, TopicMetadata
from txlog.storage.one_row import Rows, joined_table

NO_PARTITION = -1
NO_OFFSET = -1
SEND_BYTES = 2048
"""About the size of one send in memory without its rows: its future above all."""


@named_calls
@dataclass(frozen=True, slots=True, kw_only=True)
class RecordMetadata:
    """Partition and offset of the rows of one send.

    If its keys spread the rows over several partitions, `parts` has one of these for each partition, and `partition`
    and `base_offset` are -1. With `staged=True` rows have no offset before the commit, so `base_offset` is -1. Rows
    that waited for the commit have the offset that it gave them, or -1 if another process finished the commit.
    """

    topic: str
    partition: int
    base_offset: int
    """Offset of the first row. The other rows follow without a gap."""
    records: int
    timestamp: int
    """Append time in milliseconds; -1 where there is no offset."""
    parts: tuple[RecordMetadata, ...] = ()


OnDelivery: TypeAlias = Callable[[BaseException | None, RecordMetadata | None], object]
"""(error, result), of which one is None. Called in the thread of the producer, as callbacks of futures are."""


class _Waiters(list[Any]):
    """What `concurrent.futures.wait` and `as_completed` add to the futures that they wait for."""

    def __init__(self, asked: Callable[[], None]) -> None:
        super().__init__()
        self._asked = asked

    def append(self, waiter: Any) -> None:
        """Add a waiter, and send the rows that it waits for."""
        super().append(waiter)
        self._asked()


ASK_AGAIN_S = 1.0
"""How long a thread that waits for a future waits before it looks whether another one still takes care of the rows."""


@named_calls
class SendFuture(Future[RecordMetadata]):
    """The future of one send. Waiting for it sends its rows without further linger.

    A small transaction keeps its rows until the commit. `result`, `exception`, `done`, and waiting with
    `concurrent.futures`, send them at once. A callback and `asyncio.wrap_future` do not: they wait for the commit.

    It fails with a TxlogError whose class shows what to do next.

    * AbortableError or FencedError: the send was in a transaction.
    * RetriableError: nothing was written.
    * OutcomeUnknownError: the rows may be in the log.
    * InvalidRequestError: the rows cannot be in the log, because the topic was deleted.

    Waiting for it in the callback of another future, or in a forked child, raises IllegalStateError. Waiting for it
    while the outcome of its commit is unknown raises OutcomeUnknownError.
    """

    def __init__(self, send_now: Callable[[], None], asked: Callable[[], None]) -> None:
        super().__init__()
        self._send_now = send_now
        self._asked = asked
        self._waiters = _Waiters(asked)

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Return where the rows are, or raise why they are not in the log.

        Raises TimeoutError after `timeout` seconds.
        """
        self._await(timeout)
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return why the rows are not in the log, or None. Raises TimeoutError after `timeout` seconds."""
        self._await(timeout)
        return super().exception(0)

    def done(self) -> bool:
        """Return whether the rows are in the log, or failed."""
        if not super().done():
            self._asked()
        return super().done()

    def _await(self, timeout: float | None) -> None:
        """Wait, and ask again from time to time: an interrupt may end the call of another thread that takes the
        rows."""
        left = timeout
        while not super().done():
            self._send_now()
            step = ASK_AGAIN_S if left is None else min(ASK_AGAIN_S, left)
            try:
                super().exception(step)
            except TimeoutError:
                if left is not None and (left := left - step) <= 0:
                    raise


def tell(future: Future[RecordMetadata], on_delivery: OnDelivery) -> None:
    """Call `on_delivery` when the future is done."""

    def told(done: Future[RecordMetadata]) -> None:
        error = done.exception()
        on_delivery(error, None if error is not None else done.result())

    future.add_done_callback(told)


class Send:
    """One call of `send`. Its future waits for the rows in all partitions."""

    def __init__(
        self,
        topic: str,
        parts: int,
        send_now: Callable[[], None],
        asked: Callable[[], None],
        frame: FrameType | None = None,
    ) -> None:
        self.frame = frame
        """The call, until it returns: no row is sent before. If it has ended before that, none will be."""
        self.future = SendFuture(send_now, asked)
        # Rows that may be in the log cannot be cancelled.
        self.future.set_running_or_notify_cancel()
        self._topic = topic
        self._missing = parts
        self._parts: dict[int, RecordMetadata] = {}

    @property
    def is_interrupted(self) -> bool:
        """Whether an interrupt has ended the call before it could return."""
        frame = self.frame
        # Looked at again, because the call may have returned meanwhile.
        return frame is not None and has_ended(frame) and self.frame is not None

    def done(self, part: RecordMetadata | None = None) -> None:
        """Take note that the rows of one partition are in the log; None: there are no rows.

        A second call changes nothing.
        """
        if part is not None:
            self._parts[part.partition] = part
        if len(self._parts) == self._missing:
            with contextlib.suppress(InvalidStateError):  # it has its result
                self.future.set_result(self._joined())

    def failed(self, error: BaseException) -> None:
        """Take note that rows of one partition are not in the log, or that this is unknown.

        A second call changes nothing.
        """
        with contextlib.suppress(InvalidStateError):
            self.future.set_exception(error)

    def _joined(self) -> RecordMetadata:
        parts = tuple(sorted(self._parts.values(), key=lambda part: part.partition))
        if len(parts) == 1:
            return parts[0]
        return RecordMetadata(
            topic=self._topic,
            partition=NO_PARTITION,
            base_offset=NO_OFFSET,
            records=sum(part.records for part in parts),
            timestamp=max((part.timestamp for part in parts), default=NO_TIMESTAMP),
            parts=parts,
        )


class _Share(NamedTuple):
    send: Send
    rows: Rows
    bytes: int


class Batch:
    """Rows of one partition that are sent together. Once they are placed, a retry uses the identical draft (W16)."""

    def __init__(self, tp: TopicPartition, topic: TopicMetadata, *, created_ms: int, deadline_ms: int) -> None:
        self.tp = tp
        self.topic = topic
        self.created_ms = created_ms
        self.deadline_ms = deadline_ms
        self.rows = 0
        self.bytes = 0
        self.closed = False
        """Whether the batch takes no more rows."""
        self.attempts = 0
        self.doubtful = False
        """Whether an attempt may have written the batch."""
        self.created = False
        """Whether the current attempt has sent a record that the store did not refuse."""
        self.error: BaseException | None = None
        """Why the batch was given up, for flushes that wait for it."""
        self.retry_at_ms = 0
        self.retry_log: RetryLog | None = None
        self.draft: BatchDraft | None = None
        self.placed_at = ClockReading(0, 0)
        self._shares: list[_Share] = []
        """The sends that the batch has rows of."""

    @property
    def memory(self) -> int:
        """About how many bytes the batch takes in memory, its sends included."""
        return self.bytes + SEND_BYTES * len(self._shares)

    def was_created(self) -> None:
        """Take note that the current attempt has sent a record that the store did not refuse."""
        self.created = True

    def add(self, part: Rows, send: Send, size: int) -> None:
        """Add rows of one send, and their size in bytes."""
        self._shares.append(_Share(send, part, size))
        self.rows += part.num_rows
        self.bytes += size

    def drop(self, sends: Collection[Send]) -> bool:
        """Remove the rows of these sends. Return whether rows are left."""
        self._shares = [share for share in self._shares if share.send not in sends]
        self.rows = sum(share.rows.num_rows for share in self._shares)
        self.bytes = sum(share.bytes for share in self._shares)
        return bool(self._shares)

    def table(self) -> pa.Table:
        """Return all rows, in the order of the sends."""
        return joined_table([share.rows for share in self._shares])

    def done(self, base_offset: int, timestamp: int) -> None:
        """Take note that the batch is in the log, from `base_offset` on."""
        at = base_offset
        topic, partition = self.tp
        for send, part, _ in self._shares:
            rows = part.num_rows
            send.done(
                RecordMetadata(topic=topic, partition=partition, base_offset=at, records=rows, timestamp=timestamp)
            )
            at += rows if base_offset >= 0 else 0

    def count(self) -> None:
        """Count the rows as produced."""
        metrics.count_rows("produced", self.tp.topic, self.rows, self.bytes)

    def retry_at(self, monotonic_ms: int) -> None:
        """Take note that the batch is to be sent again, from this time on."""
        self.attempts += 1
        self.retry_at_ms = monotonic_ms
        metrics.count("txlog_retries_total", 1, "batch")

    def failed(self, error: BaseException) -> None:
        """Take note that the batch is not in the log, or that this is unknown."""
        for share in self._shares:
            share.send.failed(error)


class Accumulator:
    """The batches of all partitions, in order. Not thread-safe: the caller holds a lock."""

    def __init__(self, *, batch_bytes: int, linger_ms: int, delivery_timeout_ms: int) -> None:
        self._batch_bytes = batch_bytes
        self._linger_ms = linger_ms
        self._delivery_timeout_ms = delivery_timeout_ms
        self._queues: dict[TopicPartition, deque[Batch]] = {}
        self._beginning: list[Send] = []
        """Sends whose call had not returned when they were last looked at."""
        self.dropped: list[tuple[Batch, BaseException]] = []
        """Batches that are not sent, and whose futures have yet to fail."""
        self.bytes = 0
        self.memory = 0
        """About how many bytes the batches take in memory."""

    def __bool__(self) -> bool:
        return bool(self._queues)

    def add_all(self, send: Send, parts: Iterable[tuple[TopicPartition, TopicMetadata, Rows]], now_ms: int) -> bool:
        """Add the rows of one send. Return whether a batch began or is full, so that it is due at another time."""
        self.tidy()
        self._beginning = [*self._beginning, send]
        due = [self.add(tp, topic, rows, send, now_ms) for tp, topic, rows in parts]
        return any(due)

    def tidy(self) -> bool:
        """Forget the rows of sends that an interrupt has ended. Return whether all other sends have returned.

        An interrupted send, or an interrupted call of this method, may have left counts half done. They are made again.
        """
        if not self._beginning:
            return True
        interrupted = {send for send in self._beginning if send.is_interrupted}
        if interrupted:
            queues = {
                tp: deque(batch for batch in queue if batch.drop(interrupted)) for tp, queue in self._queues.items()
            }
            self._queues = {tp: queue for tp, queue in queues.items() if queue}
            self.bytes = sum(batch.bytes for batch in self)
            self.memory = sum(batch.memory for batch in self)
        self._beginning = [send for send in self._beginning if send.frame is not None and send not in interrupted]
        return not self._beginning

    def add(self, tp: TopicPartition, topic: TopicMetadata, part: Rows, send: Send, now_ms: int) -> bool:
        """Add rows for one partition. `add_all` makes sure that an interrupt leaves no rows of its send."""
        queue = self._queues.setdefault(tp, deque())
        last = queue[-1] if queue else None
        size = part.nbytes
        fits = (
            last is not None
            and not last.closed
            and last.topic.schema_id == topic.schema_id
            and last.bytes + size <= self._batch_bytes
        )
        if last is None or not fits:
            if last is not None:
                last.closed = True
            last = Batch(tp, topic, created_ms=now_ms, deadline_ms=now_ms + self._delivery_timeout_ms)
            queue.append(last)
        last.add(part, send, size)
        self.bytes += size
        self.memory += size + SEND_BYTES
        last.closed = last.bytes >= self._batch_bytes
        return last.closed or not fits

    def restart(self, now_ms: int) -> None:
        """Let linger.ms and delivery.timeout.ms of all batches begin now, because they were not to be sent before."""
        for batch in self:
            batch.created_ms, batch.deadline_ms = now_ms, now_ms + self._delivery_timeout_ms

    def flush(self) -> None:
        """Close all batches, so that none waits for more rows."""
        self.tidy()
        for queue in self._queues.values():
            queue[-1].closed = True

    def take_ready(self, now_ms: int) -> list[Batch]:
        """Close and return the first batch of each partition that may be sent now. They stay here until `remove`.

        While a send has not returned, no batch may be sent: see `tidy`.
        """
        ready: list[Batch] = []
        if not self.tidy():
            return ready
        for queue in self._queues.values():
            batch = queue[0]
            if batch.retry_at_ms <= now_ms and (batch.closed or now_ms - batch.created_ms >= self._linger_ms):
                batch.closed = True
                ready.append(batch)
        return ready

    def next_retry_ms(self) -> int | None:
        """Return when the next batch may be retried, or None."""
        times = [queue[0].retry_at_ms for queue in self._queues.values() if queue[0].attempts]
        return min(times, default=None)

    def next_linger_ms(self) -> int | None:
        """Return when the next batch has lingered long enough, or None."""
        times = [queue[0].created_ms for queue in self._queues.values() if not queue[0].closed]
        return min(times) + self._linger_ms if times else None

    def remove(self, batch: Batch) -> None:
        """Remove a batch that `take_ready` returned."""
        queue = self._queues.get(batch.tp)
        if queue is not None and queue[0] is batch:
            queue.popleft()
            self.bytes -= batch.bytes
            self.memory -= batch.memory
            if not queue:
                del self._queues[batch.tp]

    def remove_all(self, keep: Iterable[Batch] = ()) -> list[Batch]:
        """Remove and return every batch, except those in `keep` that are still here."""
        wanted = set(keep)
        kept = [batch for batch in self if batch in wanted]
        removed = [batch for batch in self if batch not in wanted]
        self._queues = {batch.tp: deque([batch]) for batch in kept}
        self.bytes = sum(batch.bytes for batch in kept)
        self.memory = sum(batch.memory for batch in kept)
        return removed

    def drop_all(self, error: BaseException, keep: Collection[Batch] = ()) -> None:
        """Remove every batch, except those in `keep`, and add them to `dropped`."""
        batches = [batch for batch in self if batch not in keep]
        for batch in batches:
            batch.error = error
        # An interrupt between these two steps leaves batches in both places: they are dropped again.
        self.dropped = [*self.dropped, *((batch, error) for batch in batches)]
        self.remove_all(keep)

    def __iter__(self) -> Iterator[Batch]:
        for queue in self._queues.values():
            yield from queue
