"""How does a producer open, commit and abort its transactions? Kafka's TransactionManager.

It decides with the coordinator, after the sender has written the rows. `txlog.client.producer.producer_state` says
which call is allowed when.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import NoReturn

from txlog import metrics
from txlog.client.groups import ConsumerGroupMetadata, GroupOffsets, Offsets, group_offsets
from txlog.client.producer.deferred_rows import DeferredRows
from txlog.client.producer.producer_state import Call, ProducerState, after_close, again
from txlog.client.producer.sender import Sender
from txlog.client.session.call_guard import InsideCallError
from txlog.client.session.session import Session
from txlog.client.transactions.coordinator import Coordinator, txn_version
from txlog.config import ProducerConfig
from txlog.core.names import TopicPartition
from txlog.core.records import TransactionMetadata
from txlog.core.transactions import TxnVersion, check_version, is_repeated
from txlog.errors import (
    AbortableError,
    FencedError,
    IllegalStateError,
    InvalidRequestError,
    OffsetMetadataTooLargeError,
    OutcomeUnknownError,
    RetriableError,
    SchemaMismatchError,
    StoreChangedError,
    TransactionAbortableError,
    TransactionAbortedError,
    TxlogError,
    TxlogTimeoutError,
)
from txlog.logs import Fields, log
from txlog.protocol.transactions import EndResult
from txlog.text import count_text

_LOG = logging.getLogger(__name__)
SETTLE_MS = 5000
"""How long `close` tries to end a transaction whose commit has an unknown outcome."""
_COMMIT_AGAIN = (
    "The call to repeat is producer.commit_transaction(): also where `with producer.transaction()` made it, and "
    "before this producer is closed"
)


class TransactionManager:
    """The transactions of one producer. The producer lets one call run at a time; `fail` may be called at any time."""

    def __init__(self, session: Session, sender: Sender, state: ProducerState, config: ProducerConfig) -> None:
        self._who = session.who
        self._version: TxnVersion | None = None
        self._topics: set[str] = set()
        self.repeats = False
        """Whether the open transaction will certainly be skipped, so that none of its rows need to be written."""
        self._offsets: list[GroupOffsets] = []
        """Offsets that are not sent yet."""
        self._session = session
        self._sender = sender
        self._state = state
        self._config = config
        self._lock = sender.lock
        self._begun_as: TxnVersion | None = None
        self.call: Call | None = None
        """The call that runs, or that an interrupt has ended before it returned."""

    def begin_call(self, call: Call) -> None:
        """Raise the error of the state unless `call` is allowed now, and note it. The caller has the turn."""
        with self._lock:
            if self.call is not None:
                self.mend()
            self._state.check(call)
            self.call = call

    def mend(self) -> None:
        """Bring an interrupted call to a state from which the program can go on (docs/promise.md). Requires the lock.

        It may be interrupted itself: each step can be done again.
        """
        state = self._state
        if self.call == "init_transactions" and state.state == "READY":
            state.move("UNINITIALIZED")
        elif self.call == "begin_transaction" and state.state == "IN_TRANSACTION":
            state.move("READY")
        elif self.call == "send_offsets_to_transaction" and state.state == "IN_TRANSACTION":
            state.fail(
                TransactionAbortableError(
                    f"{self._who}: an interrupt ended send_offsets_to_transaction() before it had finished, so the "
                    "transaction may have these offsets or not. "
                    "hint: call abort_transaction(), and repeat the transaction"
                )
            )
        elif self.call == "abort_transaction" and state.state == "READY":
            state.state = "ABORTING"
        elif self.call == "commit_transaction":
            ended = self._coordinator.ended is not None
            if self._sender.mend() or ended:
                if state.state in ("READY", "IN_TRANSACTION"):
                    state.move("COMMITTING")
                self._sender.attempted = True
            elif state.state in ("READY", "IN_TRANSACTION"):
                self._version = self._begun_as
                state.move("IN_TRANSACTION")
        self.call = None

    def init(self) -> None:
        """Take over the transactional.id; see `Producer.init_transactions`."""
        assert self._config.transactional_id is not None
        coordinator = Coordinator.init(self._session, self._config.transactional_id, self._config)
        with self._lock:
            self._sender.coordinator = self._state.coordinator = coordinator
            self._state.move("READY")

    def begin(self, version: TxnVersion | None) -> None:
        """Open a transaction; see `Producer.begin_transaction`."""
        self._version = self._begun_as = version
        self._topics = set()
        coordinator = self._sender.coordinator
        self.repeats = version is not None and coordinator is not None and is_repeated(coordinator.txn, version)
        self._offsets = []
        if coordinator is not None:
            coordinator.ended = None
        with self._lock:
            self._sender.new_transaction()
            self._state.move("IN_TRANSACTION")

    def add_topic(self, topic: str) -> None:
        """Note that rows of the transaction are for `topic`.

        Raises InvalidRequestError if its version was committed for other topics, so that the rows would be lost (W31).
        """
        if self.repeats and self._version is not None:
            check_version(self._coordinator.txn, replace(self._version, topics=frozenset({topic})))
        self._topics.add(topic)

    def fail_send(self, topic: str, error: TxlogError) -> None:
        """Record that a send raised `error`, and raise what it raises in a transaction.

        Returns if the arguments were wrong: such a send does not harm the transaction.
        """
        wrong_call = isinstance(error, SchemaMismatchError | IllegalStateError) or type(error) is InvalidRequestError
        if wrong_call:
            return
        if not isinstance(error, RetriableError):
            self.fail(error)
        unsent = TransactionAbortableError(
            f"{self._who}: rows for {topic!r} were not sent: {error}; abort the transaction"
        )
        unsent.__cause__ = error
        self.fail(unsent)

    def send_offsets(
        self,
        offsets: Offsets,
        group: str | ConsumerGroupMetadata,
        expected: Mapping[TopicPartition, int | None] | None,
    ) -> None:
        """Add a group's offsets to the transaction; see `Producer.send_offsets_to_transaction`."""
        try:
            sent = group_offsets(offsets, group, expected, who=self._who)
        except OffsetMetadataTooLargeError as error:
            self.fail(error)
        if not sent.offsets or self.repeats:
            return
        # Offsets of a failed call come first: of two offsets for a partition the later call must win, also if an
        # earlier call had the same value. This call then repeats the earlier one.
        self._offsets = [*(waiting for waiting in self._offsets if waiting != sent), sent]
        if not self._config.staged:
            self._write_offsets(self._version)

    def commit(self, version: int | TxnVersion | None) -> EndResult:
        """Commit; see `Producer.commit_transaction`. Without `version` the one of `begin` counts."""
        if version is not None and self._state.state == "IN_TRANSACTION":
            self._set_version(txn_version(version))
        coordinator, wanted = self._coordinator, self._version
        if self._state.state == "COMMITTING" and coordinator.ended is not None:
            return self._committed(coordinator.ended, wanted)  # an interrupt has ended the first call
        if wanted is not None:
            with self._lock:
                # A transaction without rows may be for any topic.
                wanted = replace(wanted, topics=frozenset(self._topics) or None)
        try:
            deferred = self._sender.hold()
            self._prepare(deferred, wanted)
            with self._lock:
                # The thread may have met an error since this call began. Then rows are missing.
                self._state.check("commit_transaction")
                if not (deferred or self._sender.staged_parts or self._sender.attempted) and wanted is None:
                    self._state.move("READY")
                    return EndResult(txn=coordinator.txn)
                self._sender.decide(deferred)
                self._state.move("COMMITTING")
                self._sender.attempted = True
        finally:
            self._sender.release()
        try:
            result = coordinator.end(True, self._sender.parts, wanted)
        except OutcomeUnknownError as error:
            raise OutcomeUnknownError(f"{error}. {_COMMIT_AGAIN}") from error
        except InsideCallError:
            raise  # as an interrupt: the same call joins this one
        except TxlogError as error:
            with self._lock:
                self._state.fail(error)
            self._settle(error)
            raise
        return self._committed(result, wanted)

    def _committed(self, result: EndResult, wanted: TxnVersion | None) -> EndResult:
        """Return the result of a commit, and tell it to the futures."""
        if result.txn.last_outcome != "commit" and not result.skipped:
            self.fail(
                TransactionAbortedError(f"{self._who}: nothing was committed, because close() aborted the transaction")
            )
        self._end()
        if result.skipped and wanted is not None:
            self._tell_skipped(wanted, result.txn)
        return result

    def _tell_skipped(self, wanted: TxnVersion, txn: TransactionMetadata) -> None:
        """Log that a transaction was skipped: a repetition is usual, a lower version may be a lost job."""
        skipped = "this transaction was skipped, nothing of it is visible"
        if wanted.version < txn.txn_version:
            level = logging.WARNING
            text = (
                f"%s: version %d is below the last committed version %d: {skipped}. "
                "hint: the versions of an id must grow; give jobs that may run in any order one transactional.id each"
            )
        else:
            level, text = logging.INFO, f"%s: version %d was committed before (now %d): {skipped}"
        given, last = wanted.version, txn.txn_version
        versions: Fields = {"txn_version": given, "last_txn_version": last, "txn_scope": wanted.scope}
        log(_LOG, level, "transaction_skipped", text, self._who, given, last, txn=txn, **versions)

    def _prepare(self, deferred: DeferredRows, wanted: TxnVersion | None) -> None:
        """Do what comes before the decision."""
        coordinator = self._coordinator
        with self._lock:
            if not deferred:
                self._sender.send_now()
            schemas, written = self._sender.staged_schemas, self._sender.staged_partitions
        # While the sender writes the files, too.
        try:
            coordinator.look_at_topics(schemas, beside=lambda: [*deferred.programs(), *coordinator.looks(written)])
        except StoreChangedError as error:
            self.fail(error)
        if self._state.state == "IN_TRANSACTION":
            with self._lock:
                if not (deferred or self._sender.flush(self._sender.deadline_ms())):
                    met = self._sender.last_error
                    raise TxlogTimeoutError(
                        f"{self._who}: rows still wait to be written after max.block.ms = {self._config.max_block_ms}"
                        f"{f' ({met})' if met is not None else ''}. hint: call commit_transaction() again, or abort"
                    )
                self._state.check("commit_transaction")
            self._write_offsets(wanted)

    def abort(self) -> None:
        """Abort the transaction; see `Producer.abort_transaction`."""
        deadline_ms = self._sender.deadline_ms()
        with self._lock:
            # First, because a commit after an interrupt would lack the rows that are dropped here.
            self._state.state = "ABORTING"
            reason = self._state.error or TransactionAbortedError(
                f"{self._who}: the rows were not written, because their transaction was aborted first"
            )
            self._sender.drop_waiting(reason)
        self._sender.fail_dropped()
        with self._lock:
            self._sender.await_background()
            if not self._sender.wait(lambda: not self._sender.in_flight, deadline_ms):
                raise TxlogTimeoutError(
                    f"{self._who}: a batch is still in flight after max.block.ms = {self._config.max_block_ms}. "
                    "hint: call abort_transaction() again"
                )
            self.check_fatal()
            self._sender.drop_waiting(reason)  # a batch that waits for a retry
        self._sender.fail_dropped()
        with self._lock:
            attempted = self._sender.attempted or self._coordinator.ended is not None
            self._state.move("ABORTING")
        committed = False
        if not attempted:
            metrics.count("txlog_transactions_total", 1, "aborted")
        else:
            try:
                committed = self._is_committed_instead()
            except (FencedError, AbortableError) as error:
                # Otherwise an abort that is not possible would be requested for ever (KAFKA-19250).
                with self._lock:
                    self._state.fail_fatally(error)
                self._settle(error)
                raise
        self._offsets = []
        self._end(None if committed else reason)
        if committed:
            raise IllegalStateError(
                f"{self._who}: the transaction cannot be aborted: it is committed, and all of its "
                "rows and offsets are visible"
            )

    def end_open(self) -> None:
        """End the open transaction, and complete the last one, because the producer closes; see `Producer.close`."""
        try:
            self._end_open()
        except FencedError as error:
            raise after_close(error) from error

    def _end_open(self) -> None:
        state = self._state.state
        if state in ("IN_TRANSACTION", "ABORTABLE_ERROR", "ABORTING"):
            self.abort()
        elif state == "COMMITTING":
            try:
                self._end_undecided()
            except TxlogError as error:
                self._settle(error)
                raise
        if self._sender.coordinator is not None and self._state.state == "READY":
            with self._lock:
                self._sender.await_background()
            self._sender.coordinator.complete(last=True)

    def _end_undecided(self) -> None:
        """Settle a commit of unknown outcome: one that won stands, and one that never reached the store is aborted."""
        try:
            committed = self._is_committed_instead(limit_ms=SETTLE_MS)
        except FencedError:
            raise
        except TxlogError as error:
            raise OutcomeUnknownError(
                f"{self._who}: closed, and it is still unknown after {SETTLE_MS} ms whether its commit was decided "
                f"({error.problem}). If it was not, readers wait until it times out (transaction.timeout.ms = "
                f"{self._config.transaction_timeout_ms}). "
                f"hint: see `txlog transactions describe {self._config.transactional_id}`; the next "
                "init_transactions ends an undecided one"
            ) from error
        closed = f"{self._who}: the rows are not visible, because it was closed before their commit was decided"
        self._end(None if committed else TransactionAbortedError(closed))

    def _is_committed_instead(self, limit_ms: int | None = None) -> bool:
        """Abort at the coordinator, and return whether the transaction is committed all the same.

        A Ctrl-C may have reached an earlier call after its end had succeeded. The coordinator is then in the next
        epoch, and another end would be that of the next transaction.
        """
        ended = self._coordinator.ended
        if ended is None:
            return self._coordinator.end(False, limit_ms=limit_ms).already_committed
        return ended.txn.last_outcome == "commit" and not ended.skipped

    def lost_at_exit(self) -> str | None:
        """Return the part of a sentence that says what is lost if the program ends now. None if nothing was begun."""
        rows, attempted = self._sender.waiting_rows, self._sender.attempted
        if self._state.state == "COMMITTING":
            return ", and nobody knows whether its commit was decided: `txlog transactions describe` tells"
        if self._state.state == "FATAL_ERROR":
            return ""
        if not (attempted or rows or self._sender.staged_parts or self._offsets):
            return None
        unsent = f" ({count_text(rows, 'row')} of it had yet to be written)" if rows else ""
        left = (
            f". It is left to time out (transaction.timeout.ms = {self._config.transaction_timeout_ms}), and holds "
            "readers back until it is ended; close() would have aborted it at once"
        )
        return (
            f", and its transaction was not committed: nothing of it will be visible{unsent}{left if attempted else ''}"
        )

    def fail(self, error: TxlogError) -> NoReturn:
        """Record an error of a call of this thread, and raise it."""
        with self._lock:
            self._state.fail(error)
        raise error

    def check_fatal(self) -> None:
        """Raise the error that ended the producer, if any."""
        if self._sender.dead is not None:
            raise again(self._sender.dead)
        if self._state.state == "FATAL_ERROR" and self._state.error is not None:
            raise again(self._state.error)

    @property
    def in_doubt(self) -> bool:
        """Whether there are rows of which only another call for the transaction can tell whether they are in the log.

        After an interrupted abort nothing else writes them or fails their futures.
        """
        return self._sender.undecided is not None or self._state.state == "ABORTING"

    def doubt(self) -> TxlogError:
        """Return the error of a call that waits for such rows."""
        if self._sender.undecided is None:
            return TransactionAbortedError(
                f"{self._who}: the transaction is being aborted, so the rows will not be visible. "
                "hint: call abort_transaction() again"
            )
        return OutcomeUnknownError(
            f"{self._who}: the outcome of its commit is unknown, so it is not known whether the rows are in the log. "
            "hint: call commit_transaction() again, or abort_transaction(), which tells what won"
        )

    def _end(self, error: BaseException | None = None) -> None:
        """Complete or fail what the last commit had taken, then make the producer ready for the next transaction.

        A callback that ends the program, or a Ctrl-C, leaves the rest to the next call for this transaction.
        """
        parts = self._sender.parts
        self._settle(error)
        with self._lock:
            self._state.move("READY")
            if self._sender.attempted:
                self._sender.complete_later(parts)
            self._sender.new_transaction()

    def settle_rest(self, error: BaseException) -> None:
        """Fail the futures that an interrupted call has left, because the producer closes."""
        with self._lock:
            self._sender.drop_waiting(error)
        self._sender.fail_dropped()
        self._settle(error)

    def _settle(self, error: BaseException | None) -> None:
        undecided = self._sender.undecided
        if undecided is None:
            return
        ended = self._coordinator.ended
        if error is None and not (ended is not None and ended.skipped):
            for batch in undecided.batches:
                batch.count()
        with self._sender.callbacks():
            if error is None:
                undecided.committed(self._session.views, self._coordinator.appended)
            else:
                for batch in undecided.batches:
                    batch.failed(error)
        with self._lock:
            self._sender.undecided = None

    def _set_version(self, version: TxnVersion | None) -> None:
        if self.repeats and version != self._version:
            raise InvalidRequestError(
                f"{self._who}: the transaction was begun as {self._version}, which had been committed, so its rows "
                f"were dropped; it cannot be committed as {version}. "
                "hint: abort, begin one with that version, and send all rows again"
            )
        self._version = version

    def _write_offsets(self, version: TxnVersion | None) -> None:
        """Send the offsets that are not sent yet, in the order of the calls, before the decision (PROTOCOL.md, W34).

        Offsets of a failed call stay: Kafka's client sends them before EndTxn, too.
        """
        if not self._offsets:
            return
        with self._lock:
            self._sender.await_background()
            self._sender.attempted = True
        try:
            if not self._coordinator.send_offsets(self._offsets, version):
                # Skipped: this version was committed before. The commit finds that out, too, and returns it.
                self._sender.staged_parts = []
        except (RetriableError, OutcomeUnknownError):
            raise
        except TxlogError as error:
            self.fail(error)
        self._offsets = []

    @property
    def _coordinator(self) -> Coordinator:
        assert self._sender.coordinator is not None
        return self._sender.coordinator
