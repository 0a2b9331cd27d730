"""How do batches get from a producer into the log? One background thread, one batch in flight per partition.

A round takes the first ready batch of every partition. It places the rows (inline or as a file), registers new
partitions of the transaction in one record, and appends all batches in parallel. No error is swallowed: every error
reaches the futures of the batch and the producer's state (`txlog.client.producer.producer_state`). The rows of a small
transaction are not sent: they wait for the commit (`txlog.client.producer.deferred_rows`).
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Literal, TypeAlias

from txlog.client.producer.background_tasks import BackgroundTasks
from txlog.client.producer.batch_builder import BatchBuilder
from txlog.client.producer.batches import NO_OFFSET, Accumulator, Batch
from txlog.client.producer.deferred_rows import MAX_DEFERRED_BYTES, DeferredRows, check_one_schema, have_one_schema
from txlog.client.producer.delivery_errors import final_error, late_error, may_be_written
from txlog.client.producer.one_thread import OneThread
from txlog.client.session.call_guard import has_ended
from txlog.client.session.retry import Limit, RetryLog, limited
from txlog.client.session.session import Session
from txlog.client.topics.row_writer import RowWriter
from txlog.client.transactions.coordinator import Coordinator
from txlog.config import ProducerConfig
from txlog.core.effects import Program, gathered
from txlog.core.features import STAGED_INLINE
from txlog.core.names import TopicPartition
from txlog.core.records import NO_TIMESTAMP, StagedPart
from txlog.errors import (
    OutcomeUnknownError,
    OutOfOrderSequenceError,
    RetriableError,
    TxlogTimeoutError,
    UnknownTopicOrPartitionError,
)
from txlog.protocol.append import append_batch
from txlog.protocol.context import Context, PartitionView, Views
from txlog.protocol.slot_record import AppendResult

MAX_BUFFER_BYTES = 256 * 2**20
"""Memory of the sends that may wait. A send above this limit waits."""
STAGED_LINGER_MS = 1000
"""Staged rows wait at least this long for others, because each batch becomes a file and is not urgent."""
_MAX_WAIT_MS = 60_000
MAX_BACKGROUND_MS = 200
"""How long a call waits for a task of the thread: a few requests to an object store."""
_POLL_MS = 50
"""The longest sleep of the thread before it looks for new work, while a batch waits for a retry."""

_Way: TypeAlias = Literal["eager", "staged", "deferred"]


@dataclass(frozen=True, slots=True)
class _Appended:
    result: AppendResult
    view: PartitionView


_Outcome: TypeAlias = _Appended | StagedPart | Exception
"""What became of a batch: it is in the log, or in a file that the commit publishes, or its try met an error."""


class Sender:
    """The thread and its work.

    `lock` guards everything here and the producer's state; `condition` uses the same lock.
    """

    def __init__(
        self,
        session: Session,
        config: ProducerConfig,
        row_writer: RowWriter,
        *,
        on_error: Callable[[BaseException], None],
        is_called: Callable[[], bool],
    ) -> None:
        # Use `with lock` (in C), never `with condition` (in Python): a Ctrl-C between the two steps of the latter would
        # leave the lock held for ever.
        self.lock = threading.RLock()
        self.condition = threading.Condition(self.lock)
        self.coordinator: Coordinator | None = None
        """Set by init. None for a producer without transactional.id."""
        self.attempted = False
        """Whether the open transaction was, or may have been, registered with the coordinator."""
        self.staged_parts: list[StagedPart] = []
        self.undecided: DeferredRows | None = None
        """The rows that the commit carries, from its decision until its outcome is known."""
        self.last_error: Exception | None = None
        """Why rows wait for a retry. None if there was no error lately."""
        self._session = session
        self._config = config
        self._row_writer = row_writer
        self._on_error = on_error
        self._is_called = is_called
        self.waiting = Accumulator(
            batch_bytes=config.batch_size,
            linger_ms=max(config.linger_ms, STAGED_LINGER_MS) if config.staged else config.linger_ms,
            delivery_timeout_ms=config.delivery_timeout_ms,
        )
        """The rows that are not in the log yet. Notify `condition` after a change."""
        self._in_flight: list[Batch] = []
        self._builder = BatchBuilder(session.runtime, row_writer)
        self._registered: set[TopicPartition] = set()
        self._thread = OneThread("txlog-producer", self.lock, self._run)
        self._closing = False
        self._background = BackgroundTasks(session)
        self.dead: BaseException | None = None
        """Why the thread has ended, if it has. Rows that are sent afterwards would never be written."""
        self._must_abort = False
        """Whether the open transaction can only be aborted."""
        self._way_of_many: _Way = "staged" if config.staged else "eager"
        """What becomes of rows that cannot wait for the commit."""
        self._way: _Way = "eager"
        """What becomes of the rows of the open transaction: they are appended, written to files, or wait for the
        commit."""
        self._settling: tuple[threading.Thread, FrameType] | None = None
        """The thread that completes futures, and its function. An interrupt may end that without a reset."""
        self._committing = False
        """Whether a commit is about to decide about the rows that wait for it."""
        self._was_asked = False

    # -- called by the producer, `lock` held --------------------------------------------------------------------------

    def added(self, due: bool) -> None:
        """Take note of new rows. They are sent when they are due, or wait for the commit while they are few.

        If no batch is `due` at another time than before, the thread sleeps on: to wake it costs more than a row.
        """
        if self._way != "deferred":
            if due:
                self._start()
        elif self.waiting.bytes > MAX_DEFERRED_BYTES:
            self._stop_deferring()

    def _stop_deferring(self) -> None:
        """Send the rows that wait for the commit, and those that follow, to the log or, with `staged`, to files."""
        self._way = self._way_of_many
        self.waiting.restart(self._session.clock.monotonic_ms())
        self._start()

    def _start(self) -> None:
        """Start the thread at the first rows, or wake it."""
        self.condition.notify_all()
        self._thread.start()

    def complete_later(self, parts: Sequence[StagedPart]) -> None:
        """Let the thread write the COMPLETE_* of the transaction that has just ended, unless another end comes soon."""
        assert self.coordinator is not None
        if self._background.complete_later(self.coordinator, sum(len(part.payload) for part in parts)):
            self._start()

    def await_background(self) -> None:
        """Wait a moment until the thread has no task for the coordinator in hand.

        An end beside such a task looks at the same records, and races for the same slot. That costs requests and no
        more, so a slow task holds no call up.
        """
        deadline_ms = self._session.clock.monotonic_ms() + MAX_BACKGROUND_MS
        self.wait(lambda: not self._background.running, deadline_ms)

    @property
    def waiting_rows(self) -> int:
        """The number of rows that are not in the log yet, as far as this producer knows."""
        return sum(batch.rows for batch in self.waiting)

    @property
    def runs_callbacks(self) -> bool:
        """Return whether the caller runs in a thread that completes futures, as their callbacks do."""
        me, settling = threading.current_thread(), self._settling
        return me is self._thread.thread or (settling is not None and settling[0] is me and not has_ended(settling[1]))

    @property
    def unfinished(self) -> set[Batch]:
        """Return the batches that wait, are in flight or are part of a commit that has no outcome yet."""
        undecided = self.undecided.batches if self.undecided is not None else ()
        return {*self.waiting, *self._in_flight, *undecided}

    @property
    def in_flight(self) -> bool:
        """Whether a round is in progress, the sealing after it included."""
        return bool(self._in_flight)

    @property
    def parts(self) -> tuple[StagedPart, ...]:
        """Return what the decision of the open transaction carries."""
        return *self.staged_parts, *(self.undecided.parts if self.undecided is not None else ())

    @property
    def staged_schemas(self) -> dict[str, int]:
        """Return topic -> oldest schema_id of the rows that the open transaction has staged, or will stage."""
        found = [(part.topic, part.schema_id) for part in self.staged_parts]
        if self._way != "eager":
            found += [(batch.tp.topic, batch.topic.schema_id) for batch in self.unfinished]
        return dict(sorted(found, reverse=True))

    @property
    def staged_partitions(self) -> set[TopicPartition]:
        """Return the partitions of the rows that the commit itself will publish."""
        found = {part.topic_partition for part in self.staged_parts}
        return found if self._way == "eager" else {*found, *(batch.tp for batch in self.unfinished)}

    def send_now(self) -> None:
        """Send rows without linger, because a thread waits for them. Also sends rows that wait for the commit."""
        with self.lock:
            self.asked()
            if not self._committing:
                self.waiting.flush()
                if self.waiting:
                    self._start()

    def asked(self) -> None:
        """Send rows that wait for the commit, because a thread asks what became of them.

        A commit that is about to publish them goes first.
        """
        with self.lock:
            self._was_asked |= self._committing
            if self._way == "deferred" and self.waiting and not self._committing:
                self._stop_deferring()

    def hold(self) -> DeferredRows:
        """Return the rows that the commit is to publish. Until `release` they are not sent."""
        with self.lock:
            self.wait(self.waiting.tidy, None)
            self.await_background()
            if self._way == "deferred" and not have_one_schema(self.waiting):
                self._stop_deferring()
            self._committing = self._way == "deferred" and bool(self.waiting)
            batches = list(self.waiting) if self._committing else []
        identity = self._builder.identity(self.coordinator)
        deferred = DeferredRows(batches, self._row_writer, *identity)
        if deferred.inline_bytes <= MAX_DEFERRED_BYTES:
            return deferred
        # Few rows can be large inline: each partition's rows carry their schema, and each column is padded.
        with self.lock:
            self._committing = False
            self._stop_deferring()
        return DeferredRows([], self._row_writer, *identity)

    def decide(self, deferred: DeferredRows) -> None:
        """Make `deferred` part of the decision, which is about to be written."""
        if deferred:
            self.undecided = deferred
            self.waiting.remove_all()

    def release(self) -> None:
        """Let rows be sent again that the commit has not taken, at once if a thread has asked for them meanwhile."""
        with self.lock:
            self._committing = False
            asked, self._was_asked = self._was_asked, False
            if asked:
                self.send_now()

    def mend(self) -> bool:
        """Finish what an interrupted commit has left half done. Return whether it was about to decide."""
        if self.undecided is not None:
            self.waiting.remove_all()
        self._settling = None
        self.release()
        return self.undecided is not None

    @contextmanager
    def callbacks(self) -> Iterator[None]:
        """Complete futures in the block, in which the calling thread runs their callbacks."""
        # Above this generator is contextlib, and above that the function with the `with` block.
        self._settling = threading.current_thread(), sys._getframe(2)
        try:
            yield
        finally:
            self._settling = None

    def flush(self, deadline_ms: int | None) -> bool:
        """Wait until all sent rows are in the log or failed. Requires that no `send` is possible."""
        self.send_now()
        return self.wait(lambda: not self.waiting and not self._in_flight, deadline_ms)

    def deadline_ms(self) -> int:
        """Return until when a call that begins now may wait (max.block.ms)."""
        return self._session.clock.monotonic_ms() + self._config.max_block_ms

    def drop_waiting(self, error: BaseException) -> None:
        """Remove the batches that are not in flight, because of `error`. `fail_dropped` fails their futures with it."""
        self.waiting.drop_all(error, keep=self._in_flight)

    def fail_dropped(self) -> None:
        """Fail the futures of dropped batches. Call it without the lock, because callbacks of futures run here."""
        dropped = self.waiting.dropped
        for batch, error in dropped:
            batch.failed(error)
        with self.lock:
            self.waiting.dropped = [each for each in self.waiting.dropped if each not in dropped]

    def new_transaction(self) -> None:
        """Clear what belonged to the transaction before. Its sequences ended with its epoch."""
        # A store without inline staged rows knows only files.
        defers = self._config.staged is not False and STAGED_INLINE in self._session.runtime.require_store().features
        self._way = "deferred" if defers else self._way_of_many
        self.attempted = False
        self._must_abort = False
        self.staged_parts = []
        self._registered = set()
        self._builder.new_epoch()

    def wait(self, done: Callable[[], bool], deadline_ms: int | None) -> bool:
        """Wait until `done()`; return False when the time is up. Returns at once if the thread has died."""
        clock = self._session.clock
        while not done():
            if self.dead is not None:
                return True
            if deadline_ms is not None and clock.monotonic_ms() >= deadline_ms:
                return False
            # Short waits, because the deadline may use another clock than the machine's.
            self.condition.wait(_POLL_MS / 1000)
        return True

    def stop(self) -> None:
        """Tell the thread to end. The caller joins it without the lock."""
        self._closing = True
        self.condition.notify_all()

    def join(self) -> None:
        """Wait for the thread. Call it without holding `lock`."""
        self._thread.join()

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while True:
                batches = self._next_round()
                if batches is None:
                    return
                if batches:
                    self._send(batches)
                elif self.coordinator is not None:
                    self._background.run(self.coordinator)
                with self.lock:
                    self._in_flight = []
                    self._background.running = False
                    self.condition.notify_all()
        except BaseException as error:
            self._end_with(error)

    def _next_round(self) -> list[Batch] | None:
        """Wait for batches that may be sent. Return None when the producer closes, no batches for a task."""
        clock = self._session.clock
        while True:
            with self.lock:
                if self._closing:
                    return None
                now_ms = clock.monotonic_ms()
                is_deferred = self._way == "deferred"
                self._in_flight = [] if is_deferred else self.waiting.take_ready(now_ms)
                is_called = self._is_called()
                if self._in_flight or (not is_called and self._background.take(now_ms)):
                    return list(self._in_flight)
                retry_ms = None if is_deferred else self.waiting.next_retry_ms()
                if retry_ms is None:
                    linger_ms = None if is_deferred else self.waiting.next_linger_ms()
                    task_ms = self._background.due_ms
                    if is_called and task_ms is not None:
                        task_ms = max(task_ms, now_ms + _POLL_MS)
                    due = [at_ms for at_ms in (linger_ms, task_ms) if at_ms is not None]
                    if not self.waiting.tidy():
                        due.append(now_ms)
                    self.condition.wait(min(max(min(due) - now_ms, 1), _MAX_WAIT_MS) / 1000 if due else None)
                    continue
            # The back-off uses the clock, and the lock is free meanwhile.
            clock.sleep_ms(min(max(retry_ms - now_ms, 1), _POLL_MS))

    def _send(self, batches: Sequence[Batch]) -> None:
        try:
            if self._way == "staged":
                # No other step reads the log before the commit. This check keeps files out of a wrong store.
                self._session.runtime.check_store()
            elif self.coordinator is not None:
                self._register([batch.tp for batch in batches])
        except Exception as error:
            for batch in batches:
                self._settle(batch, error)
            return
        views, ctx = self._session.views, self._session.context()
        append = self._stage_one if self._way == "staged" else self._append_one
        outcomes: tuple[_Outcome, ...] = self._session.runtime.run(
            gathered(append(ctx, views, batch) for batch in batches)
        )
        self._session.keep_learned(ctx)
        for batch, outcome in zip(batches, outcomes, strict=True):
            self._settle(batch, outcome)
        appended = [outcome.view for outcome in outcomes if isinstance(outcome, _Appended)]
        self._background.after_append(ctx, appended, self._builder.identity(self.coordinator)[0], self.coordinator)

    def _register(self, tps: Sequence[TopicPartition]) -> None:
        """Register all new partitions of a round in one record, before the first batch to them (W22, invariant 9)."""
        assert self.coordinator is not None
        new = [tp for tp in tps if tp not in self._registered]
        if new:
            self.attempted = True
            self.coordinator.register(new)
            self._registered.update(new)

    def _append_one(self, ctx: Context, views: Views, batch: Batch) -> Program[_Outcome]:
        coordinator = self.coordinator
        txn = coordinator.txn if coordinator is not None else None
        clock = self._session.clock
        late = partial(late_error, self._session.who, batch, self._config.delivery_timeout_ms)
        if not batch.attempts and clock.monotonic_ms() > batch.deadline_ms:
            return late(self.last_error)
        try:
            # This program's own thread writes the file, so that files of several partitions are written in parallel.
            draft = self._builder.place(ctx, batch, self.coordinator)
            batch.retry_log = batch.retry_log or RetryLog(self._session.who, f"appending to {batch.tp}", clock)
            limit = Limit(batch.deadline_ms, late, self._config.retries, ctx.backoff_ms, batch.retry_log.note)
            batch.created = False
            append = append_batch(ctx, views, batch.tp, draft, txn, files_begun=batch.placed_at)
            views, result = yield from limited(append, clock, limit, created=batch.was_created)
        except Exception as error:
            return error
        return _Appended(result, views[batch.tp])

    def _stage_one(self, ctx: Context, views: Views, batch: Batch) -> Program[_Outcome]:
        yield from ()
        try:
            pid, epoch = self._builder.identity(self.coordinator)
            tp, topic = batch.tp, batch.topic
            check_one_schema(self.staged_parts, batch)
            file = self._row_writer.file(batch.table(), topic, tp.partition, pid, epoch)
        except Exception as error:
            return error
        return StagedPart(topic=tp.topic, partition=tp.partition, schema_id=topic.schema_id, files=(file,))

    # -- outcomes -----------------------------------------------------------------------------------------------------

    def _settle(self, batch: Batch, outcome: _Outcome) -> None:
        if isinstance(outcome, Exception):
            self._settle_failed(batch, outcome)
            return
        # Complete the futures first: after a flush, all of them must be done.
        if isinstance(outcome, _Appended):
            batch.done(outcome.result.base_offset, outcome.result.timestamp)
        else:
            batch.done(NO_OFFSET, NO_TIMESTAMP)
        batch.count()
        with self.lock:
            self.last_error = None
            self.waiting.remove(batch)
            if isinstance(outcome, StagedPart):
                self.staged_parts.append(outcome)
            else:
                self._session.keep_view(outcome.view)
                self._builder.appended(batch, self.coordinator)

    def _settle_failed(self, batch: Batch, error: Exception) -> None:
        if self._try_again(batch, error):
            return
        final = final_error(self._session.who, batch, error, transactional=self.coordinator is not None)
        if isinstance(error, UnknownTopicOrPartitionError):
            self._session.runtime.forget_topic(batch.tp.topic)
        with self.lock:
            self.waiting.remove(batch)
            batch.error = final
            if self.coordinator is not None:
                # Its transaction cannot commit any more, so the waiting rows need not be sent (KIP-654).
                self.drop_waiting(final)
                self._must_abort = True
            elif batch.doubtful:
                self._builder.new_identity()
            self._on_error(final)
        batch.failed(final)
        self.fail_dropped()

    def _try_again(self, batch: Batch, error: Exception) -> bool:
        """Return whether the batch is to be sent once more, and schedule it."""
        clock, transactional = self._session.clock, self.coordinator is not None
        lost_sequence = isinstance(error, OutOfOrderSequenceError) and not transactional and not batch.doubtful
        batch.doubtful |= batch.draft is not None and may_be_written(batch, error)
        left_ms = batch.deadline_ms - clock.monotonic_ms()
        # A new producer id begins at sequence 0, so a batch loses its sequence only once. That does not count as a
        # retry.
        out_of_retries = batch.attempts >= self._config.retries and not lost_sequence
        if out_of_retries or left_ms <= 0 or self._must_abort:
            return False
        if lost_sequence:
            # The partition has forgotten this producer, and this batch was certainly not written. Draw a new id, as
            # Kafka does.
            self._builder.new_identity()
            batch.draft = None
        elif isinstance(error, OutcomeUnknownError):
            # A partition that has forgotten a drawn producer id cannot show whether the rows are in the log. Sending
            # them again could write them twice. So such a batch fails at once, sooner than W16 requires.
            if not transactional:
                return False
        elif not isinstance(error, RetriableError) or isinstance(error, TxlogTimeoutError):
            return False
        backoff_ms = self._session.context().backoff_ms(batch.attempts)
        wait_ms = 0 if lost_sequence else self._session.runtime.ids.jitter(backoff_ms)
        if batch.retry_log is not None:
            batch.retry_log.note(error)
        with self.lock:
            self.last_error = error
            batch.retry_at(clock.monotonic_ms() + min(wait_ms, left_ms))
        return True

    def _end_with(self, error: BaseException) -> None:
        """Handle the end of the thread: everything that waits gets the error."""
        with self.lock:
            self.dead = error
            self._in_flight = []
            self.drop_waiting(error)
            self._on_error(error)
            self.condition.notify_all()
        self.fail_dropped()
