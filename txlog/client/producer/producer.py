"""How does a program write? Kafka's producer, with Arrow tables as records.

Without a transactional.id every send is appended by itself, exactly once. With one, sends belong to the transaction
that `begin_transaction` opened. The rows of a small transaction wait for its commit (`deferred_rows`). A larger one is
eager and writes them to the log as they are sent. `staged=True` and `staged=False` choose one way for all. See
PROTOCOL.md, "Transactions", "Eager" and "Staged"; without transactions, "Idempotence".
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from types import FrameType
from typing import Never, NoReturn, Self

from txlog.client.groups import ConsumerGroupMetadata, Offsets
from txlog.client.producer import at_exit
from txlog.client.producer.batches import Batch, OnDelivery, RecordMetadata, Send, tell
from txlog.client.producer.delivery_errors import no_room_error
from txlog.client.producer.producer_state import Call, ProducerState, again
from txlog.client.producer.sender import MAX_BUFFER_BYTES, Sender
from txlog.client.producer.transaction_manager import TransactionManager
from txlog.client.producer.transaction_scope import TransactionCall, TransactionScope
from txlog.client.session.arguments import check, checked_calls, misfit
from txlog.client.session.call_guard import CallGuard, InsideCallError, call_below, close_after
from txlog.client.session.runtime import Runtime
from txlog.client.session.session import Session
from txlog.client.topics.column_names import ColumnNames
from txlog.client.topics.row_writer import Partitioner, RowWriter
from txlog.client.transactions.coordinator import check_transactional_id, txn_version
from txlog.config import Layer
from txlog.core.names import TopicPartition
from txlog.core.records import TopicMetadata
from txlog.core.transactions import TxnVersion
from txlog.errors import (
    IllegalStateError,
    InvalidConfigurationError,
    SchemaMismatchError,
    TxlogError,
    TxlogTimeoutError,
    UnknownTopicOrPartitionError,
)
from txlog.protocol.transactions import EndResult
from txlog.storage.one_row import Rows
from txlog.text import count_text

_SEND_BESIDE = ("send_offsets_to_transaction",)
_FLUSH_BESIDE = ("send_offsets_to_transaction", "commit_transaction")
"""Calls of another thread that rows and flushes may run beside."""


@checked_calls
class Producer:
    """Writes rows. Safe for several threads, as Kafka's producer is. Not usable in a forked child.

    `init_transactions`, `begin_transaction`, `send_offsets_to_transaction`, `commit_transaction` and
    `abort_transaction` exclude each other: while one runs, another thread's call raises IllegalStateError at once. A
    `send` also raises it while another thread initialises, begins, commits or aborts a transaction. `close` waits for
    such a call to end. In a future's callback only `send` and properties may be used. Calls that would wait for
    themselves raise IllegalStateError there, and in the handler of a signal that interrupted a call of this producer.

    Call `close`, or use the producer as a context manager: entering it initialises transactions, leaving it aborts an
    open one. If a program ends without `close`, rows outside of a transaction are still sent, for at most 5 seconds. An
    open transaction is left to time out. Rows that are lost, or that failed without notice, are logged as an error,
    with a ResourceWarning.
    """

    def __init__(self, runtime: Runtime, call: Layer) -> None:
        self._config = config = runtime.settings.producer_config(call)
        self._runtime = runtime
        self.transactional_id = config.transactional_id
        if config.staged and config.transactional_id is None:
            raise InvalidConfigurationError(
                "staged = true needs a transactional.id: only a transaction's rows can be staged"
            )
        if config.transactional_id is not None:
            check_transactional_id(config.transactional_id)
        who = f"producer {config.client_id!r}" if config.client_id else "producer"
        self._who = who if config.transactional_id is None else f"{who} (transactional.id {config.transactional_id!r})"
        self._session = Session(runtime, config, self._who)
        self._state = ProducerState(self._who)
        self._row_writer = row_writer = RowWriter(runtime, call, ColumnNames("this producer", "make a new producer"))
        self._sender = Sender(
            self._session, config, row_writer, on_error=self._failed, is_called=lambda: not self._guard.is_free()
        )
        self._transactions = TransactionManager(self._session, self._sender, self._state, config)
        self._lock = self._sender.lock
        self._guard = CallGuard(self._who, "producer", lock=self._lock)
        """Refuses a call while another one that excludes it runs."""
        self._partitioner = Partitioner(runtime, row_writer, config.batch_size)
        self._first_error: BaseException | None = None
        """Without transactions: the error of the first failed send since the last flush. The next flush raises it."""
        self._closed = False
        """Whether no more rows are taken."""
        self._all_closed = False
        """Whether `close` has been through everything. An interrupt may end it before."""
        at_exit.watch(self)

    def __repr__(self) -> str:
        return f"<{self._who} of {self._runtime.where}, {self._state.state}>"

    def __enter__(self) -> Self:
        self._guard.check()
        if self.transactional_id is not None and self._state.state == "UNINITIALIZED":
            self.init_transactions()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        close_after(error, self._who, self.close)

    # -- identity -----------------------------------------------------------------------------------------------------

    @property
    def producer_id(self) -> int:
        """The id that the coordinator gave; -1 before `init_transactions` and without a transactional.id."""
        return self._sender.coordinator.txn.producer_id if self._sender.coordinator is not None else -1

    @property
    def producer_epoch(self) -> int:
        """The epoch of the open or next transaction; -1 before `init_transactions`."""
        return self._sender.coordinator.txn.producer_epoch if self._sender.coordinator is not None else -1

    def partitions_for(self, topic: str) -> tuple[TopicPartition, ...]:
        """Return the topic's partitions. Raises UnknownTopicOrPartitionError."""
        self._guard.check()
        return self._runtime.partitions(topic, self._config.metadata_max_age_ms)

    # -- rows ---------------------------------------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        data: object = ...,
        key: str | Sequence[str] | None = None,
        partition: int | None = None,
        *others: Never,
        on_delivery: OnDelivery | None = None,
        **unknown: Never,
    ) -> Future[RecordMetadata]:
        """Send rows. The future's result is where they are, or its error is why they were not written.

        `data` is a pyarrow Table or RecordBatch, anything with `__arrow_c_stream__`, a dictionary (one row), or a list
        of dictionaries. A column of Kafka's headers may be a dictionary, or a list of pairs of key and value.
        `partition` is the number of a partition. Otherwise `key` (a column or a list of columns) or the topic's
        `key.columns` spread the rows by Kafka's hash; without a key all rows are sent to one partition. The rows of one
        send and partition are never split between batches.

        Rows wait for others (`linger.ms`), and in a transaction for the commit while they are at most 2 MiB. A thread
        that asks for their future or flushes sends them at once. If the transaction's version was committed before,
        rows are dropped, also those that do not fit the topic any more, and the future's result has no offset.

        `on_delivery(error, metadata)` is called once, as a callback of the future: one of the two is None.

        If this call raises, no row was sent. Raises:

        * SchemaMismatchError with the column, the expected and the found type; also if a name of the topic means
          another column now than when this producer first wrote to the topic.
        * UnknownTopicOrPartitionError.
        * IllegalStateError, also while another thread ends the transaction.
        * TxlogTimeoutError if too many rows wait already.
        * In a transaction that failed, the error of that failure again.

        As in Kafka's client, after an error of this call the transaction can only be aborted, because it would commit
        without these rows. Errors of the arguments are an exception: SchemaMismatchError, IllegalStateError and a plain
        InvalidRequestError. In a transaction, TransactionAbortableError replaces errors that may be retried elsewhere.
        """
        if others or unknown or data is ...:
            raise misfit(Producer.send, others, unknown, "data")
        if type(topic) is not str:
            check("send", "topic", topic, "str")
        if key is not None and type(key) is not str:
            check("send", "key", key, "str | Sequence[str] | None")
        if on_delivery is not None:
            check("send", "on_delivery", on_delivery, "OnDelivery | None")
        self._check_send()
        try:
            sent = self._send(topic, data, key, partition, sys._getframe())
        except TxlogError as error:
            if self.transactional_id is not None:
                self._transactions.fail_send(topic, error)
            raise
        if on_delivery is not None:
            tell(sent.future, on_delivery)
        sent.frame = None  # the last step: the rows may be sent from here on
        return sent.future

    def _send(
        self, topic: str, data: object, key: str | Sequence[str] | None, partition: int | None, frame: FrameType
    ) -> Send:
        refusal: SchemaMismatchError | None = None
        try:
            parts = self._split(topic, data, key, partition)
        except SchemaMismatchError as error:
            refusal, parts = error, []  # rows that were committed before need not fit the topic any more
        self._runtime.ensure_writable()
        with self._lock:
            waiting = self._sender.waiting
            if parts and waiting.memory >= MAX_BUFFER_BYTES:
                self._await_room(self._sender.deadline_ms())
            self._check_send()
            # Only here it is certain which transaction the rows belong to: another thread may have begun the next.
            if refusal is not None and not self._transactions.repeats:
                raise refusal
            self._transactions.add_topic(topic)
            if self._transactions.repeats:
                parts = []
            send = Send(topic, len(parts), self._send_now, self._asked, frame)
            if parts:
                self._sender.added(waiting.add_all(send, parts, self._runtime.clock.monotonic_ms()))
        if not parts:
            send.done()
        return send

    def flush(self) -> None:
        """Send what waits now. Return when all of it is in the log and full segments are sealed.

        It does not wait for rows that other threads send meanwhile. It raises the error of the rows that it waited for:
        an AbortableError (such as InvalidProducerEpochError, see `commit_transaction`), ProducerFencedError,
        UnknownTopicOrPartitionError (the topic was deleted), OutcomeUnknownError. Without transactions it also raises
        the first error since the last flush, once. Another flush does not send failed rows again. The future of each
        send has the result for its own rows.
        """
        self._guard.check()
        self._refuse_inside("flush")
        with self._lock:
            self._guard.check_free("flush", beside=_FLUSH_BESIDE)
            self._mend()
            if self.transactional_id is not None:
                self._state.check("flush")
            elif self._closed:
                self._refuse_closed("flush")
            self._sender.send_now()
            batches = self._sender.unfinished
            self._sender.wait(lambda: batches.isdisjoint(self._sender.unfinished) or self._is_in_doubt(), None)
            if self._is_in_doubt():
                raise self._transactions.doubt()
            self._raise_first_error("flush", batches)

    # -- transactions -------------------------------------------------------------------------------------------------

    def init_transactions(self) -> None:
        """Take over the transactional.id: fence older instances, and finish or abort what they left.

        Raises IllegalStateError (no transactional.id, or a second call), NotAStoreError (an empty location),
        UnsupportedStoreError and ClockSkewError from the probe, TxlogTimeoutError (call it again).
        """
        with self._turn("init_transactions"):
            self._runtime.require_store()
            self._runtime.ensure_writable()
            self._transactions.init()

    def begin_transaction(self, version: int | TxnVersion | None = None) -> None:
        """Open a transaction. Nothing is written before its first rows.

        `version` as in `commit_transaction`. If it is given here and was committed before, nothing of the transaction
        is written. Raises IllegalStateError, and after a fatal error that error again.
        """
        with self._turn("begin_transaction"):
            self._transactions.begin(txn_version(version))

    def send_offsets_to_transaction(
        self,
        offsets: Offsets,
        group: str | ConsumerGroupMetadata,
        expected: Mapping[TopicPartition, int | None] | None = None,
    ) -> None:
        """Commit a group's offsets (the next to read) with this transaction, and only with it.

        `offsets` is a dictionary from TopicPartition to an offset or OffsetAndMetadata; an empty one does nothing.
        `group` is the name of the group. A consumer's `group_metadata()` instead fences older instances of that
        consumer. `expected` are the committed offsets that the job started from (None: there was none). The offsets are
        written now, as pending. With `staged=True` the commit writes them as its first step (PROTOCOL.md, "Consumer
        offsets").

        Raises:

        * CommitFailedError: a condition does not hold; abort.
        * ConcurrentTransactionsError: another transaction's offsets stay undecided.
        * ProducerFencedError, OffsetMetadataTooLargeError.
        * InvalidProducerEpochError: the transaction was ended, as in `commit_transaction`.
        * IllegalStateError, also for a consumer that commits automatically.

        After a RetriableError or OutcomeUnknownError the offsets still have to be sent: by this call again, or by the
        commit, which does not succeed without them. After any other error you can only abort.
        """
        with self._turn("send_offsets_to_transaction"):
            self._transactions.send_offsets(offsets, group, expected)

    def commit_transaction(
        self, *others: Never, version: int | TxnVersion | None = None, **unknown: Never
    ) -> EndResult:
        """Commit. Return when every row and offset is visible to read_committed.

        `version` numbers the transaction. If it is not above the id's last committed version, the transaction is not
        committed and its rows never become visible. Then the result has `skipped`, and a message is logged: at
        INFO for the last version again, at WARNING for a lower one (PROTOCOL.md, "Transaction versions"). An empty
        transaction without a version writes nothing.

        Raises:

        * The error of a failed send, for example an AbortableError. Then only `abort_transaction` is possible.
        * ProducerFencedError, TxnVersionScopeError.
        * InvalidProducerEpochError: a time-out, an operator or a newer instance ended the transaction; abort.
        * UnknownTopicOrPartitionError: a topic of its rows was deleted; abort.
        * TxlogTimeoutError: rows still wait; call this again, or abort.
        * OutcomeUnknownError: the decision was attempted; call this or `abort_transaction`, which finds out what won.
        """
        if others or unknown:
            raise misfit(Producer.commit_transaction, others, unknown)
        with self._turn("commit_transaction"):
            return self._transactions.commit(version)

    def abort_transaction(self) -> None:
        """Abort the transaction. Rows that wait are not sent, and rows that were written never become visible.

        After a commit of unknown outcome it finds out whether that commit won. If so, IllegalStateError is raised and
        its message says that the transaction is committed. In both cases the producer is ready for the next
        transaction. Raises ProducerFencedError, IllegalStateError, TxlogTimeoutError and OutcomeUnknownError (call it
        again).
        """
        with self._turn("abort_transaction"):
            self._transactions.abort()

    def transaction(self, version: int | TxnVersion | None = None) -> TransactionScope:
        """Run a `with` block in a transaction: committed at its end, aborted if it raises. `scope.result` shows which.

        Raises what `commit_transaction` raises. If the commit ends in an OutcomeUnknownError, call
        `commit_transaction()` on this producer: it joins the commit made here.
        """
        return TransactionScope(self, self._state, version)

    # -- the end ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Send what waits, or abort the open transaction, and end the thread; idempotent.

        If the outcome of a commit is unknown, `close` tries for at most 5 seconds to end that transaction. A commit
        that won stands, and one that never reached the store is aborted. Otherwise it raises OutcomeUnknownError: the
        transaction is still open. Without transactions it raises what `flush` raises. In a forked child it does
        nothing.

        It waits for a transaction call or `close` of another thread, for at most max.block.ms. After that it raises
        TxlogTimeoutError, and the producer is still open.
        """
        if self._guard.is_elsewhere:
            return
        self._refuse_inside("close")
        with self._guard.take("close", wait=self._await_turn):
            if self._all_closed:
                return
            self._closed = True
            failure: Exception | None = None
            try:
                if self.transactional_id is None:
                    with self._lock:
                        self._sender.flush(None)
                else:
                    self._transactions.end_open()
            except InsideCallError:
                raise  # as an interrupt: the next call goes on, and no row is dropped
            except Exception as error:
                failure = error
            self._end(failure)

    def _end(self, failure: Exception | None) -> None:
        """End the thread, and what is left. An interrupt here or before leaves the rest to the next `close`."""
        with self._lock:
            error = self._state.error or IllegalStateError(f"{self._who} was closed before the rows were written")
            self._state.state = "CLOSED"
            self._sender.stop()
        self._sender.join()
        self._transactions.settle_rest(error)
        at_exit.unwatch(self)
        self._all_closed = True
        if failure is not None:
            raise failure
        with self._lock:
            self._raise_first_error("close")

    # -- the end of a program that does not close it (txlog.client.producer.at_exit) -----------------------------------

    def _send_at_exit(self) -> bool:
        if self._all_closed or self.transactional_id is not None or self._guard.is_elsewhere:
            return True
        with self._lock:
            self._sender.send_now()
            return not self._sender.waiting

    def _lost_at_exit(self) -> str | None:
        if self._all_closed or self._guard.is_elsewhere:
            return None
        with self._lock:
            error, rows = self._state.error or self._first_error, self._sender.waiting_rows
            if self.transactional_id is not None:
                lost = self._transactions.lost_at_exit()
            elif rows:
                lost = f", and {count_text(rows, 'row')} did not get in within {at_exit.FLUSH_MS} ms: they may be lost"
            else:
                lost = None if error is None else ""
        if lost is None:
            return None
        failed = f". It had failed: {error}" if error is not None else ""
        return f"{self._who} of {self._runtime.where}: the program ends without close(){lost}{failed}"

    # -- helpers ------------------------------------------------------------------------------------------------------

    def _split(
        self, topic: str, data: object, key: str | Sequence[str] | None, partition: int | None
    ) -> list[tuple[TopicPartition, TopicMetadata, Rows]]:
        metadata = self._runtime.topic(topic, self._config.metadata_max_age_ms)
        while True:
            try:
                rows = self._row_writer.rows(metadata, data)
                with self._lock:
                    parts = self._partitioner.split(rows, metadata, key, partition)
                return [(tp, metadata, part) for tp, part in parts if part.num_rows]
            except (SchemaMismatchError, UnknownTopicOrPartitionError):
                # The topic may have a new column or partition since it was looked up.
                newest = self._runtime.topic(topic, 0)
                if newest.number == metadata.number:
                    raise
                metadata = newest

    def _await_room(self, deadline_ms: int) -> None:
        """Wait until rows may be added. Raises TxlogTimeoutError. Requires the lock."""
        self._sender.send_now()
        waiting, block_ms = self._sender.waiting, self._config.max_block_ms
        # The thread that runs a callback makes the room itself, so it does not wait for it.
        if self._sender.runs_callbacks:
            raise no_room_error(self._who, waiting.memory, "in a callback")
        if not self._sender.wait(lambda: waiting.memory < MAX_BUFFER_BYTES, deadline_ms):
            raise no_room_error(self._who, waiting.memory, f"within max.block.ms = {block_ms}")

    def _turn(self, call: Call) -> AbstractContextManager[None]:
        """Run a transaction call in the block: no other one runs, and the state allows it."""
        self._guard.check()
        if self.transactional_id is None:
            raise IllegalStateError(
                f"{self._who}: {call}() needs a transactional.id. hint: name it in producer(transactional_id=...)"
            )
        self._refuse_inside(call)
        return TransactionCall(self._guard.take(call, frame=sys._getframe(1)), self._transactions, call)

    def _mend(self) -> None:
        """Mend what an interrupted call has left half done. Requires the lock."""
        if self._transactions.call is not None and self._guard.is_free():
            self._transactions.mend()

    def _await_turn(self) -> None:
        """Wait until no call of another thread has the turn, and mend an interrupted one. Requires the lock."""
        if not self._sender.wait(self._guard.is_free, self._sender.deadline_ms()):
            raise TxlogTimeoutError(
                f"{self._who}: a call of another thread still runs after max.block.ms = {self._config.max_block_ms}. "
                "hint: call close() again"
            )
        self._mend()  # here, because the turn of `close` itself is not free later

    def _refuse_inside(self, call: str) -> None:
        if self._sender.runs_callbacks:
            raise IllegalStateError(
                f"{self._who}: {call}() was called in the callback of a future: it would wait for the thread that "
                "runs the callback. hint: call it in another thread"
            )
        # Rows may be made while they are read: a send has added none before.
        methods, frame = (Producer.send, Producer.flush), sys._getframe(1).f_back
        self._guard.refuse_inside(call, call_below(frame, methods, self, but=Producer._split))

    def _send_now(self) -> None:
        """Send without linger. Called by the future of a send that a thread waits for."""
        self._guard.check()
        with self._lock:
            self._mend()
        self._refuse_inside("result")
        if self._is_in_doubt():
            raise self._transactions.doubt()
        self._sender.send_now()

    def _asked(self) -> None:
        """Take note that a thread asks whether rows are in the log. Called by the future of a send."""
        if not self._guard.is_elsewhere:
            self._sender.asked()

    def _is_in_doubt(self) -> bool:
        """Return whether rows belong to a commit of unknown outcome, and no call is finding it out."""
        return self._transactions.in_doubt and self._guard.is_free()

    def _check_send(self) -> None:
        self._guard.check()
        if self.transactional_id is not None:
            with self._lock:
                self._guard.check_free("send", beside=_SEND_BESIDE)
                self._mend()
                self._state.check("send")
                self._transactions.check_fatal()
            return
        if self._closed:
            self._refuse_closed("send")
        self._transactions.check_fatal()

    def _refuse_closed(self, call: str) -> NoReturn:
        raise IllegalStateError(f"{self._who}: {call}() on a closed producer; make a new one")

    def _failed(self, error: BaseException) -> None:
        """Record that a batch could not be written. Called by the sender, which holds the lock."""
        if self.transactional_id is not None:
            self._state.fail(error)
            return
        if not isinstance(error, Exception):
            self._state.fail_fatally(error)
        self._first_error = self._first_error or error

    def _raise_first_error(self, call: Call | str, batches: Iterable[Batch] = ()) -> None:
        if self.transactional_id is not None and call == "flush":
            self._state.check("flush")
        error, self._first_error = self._first_error, None
        # Another thread's flush may have raised the first error already.
        error = error or next((batch.error for batch in batches if batch.error is not None), None)
        if error is not None:
            raise again(error)
