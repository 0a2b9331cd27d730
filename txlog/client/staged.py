"""How does a job publish the files that it has written, all at once or not at all?

Data first, sequence later (PROTOCOL.md, "Staged"): the files belong to no log until the PREPARE_COMMIT that lists them.
After it, every partition gets one record that is both the rows and the COMMIT marker. No transaction is open while the
job runs, so a dead job holds no reader back. Spark's writes use this class, and `Producer(staged=True)` works in the
same way.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Self, TypeAlias

from txlog import metrics
from txlog.client.groups import GroupOffsets
from txlog.client.session.call_guard import CallGuard, InsideCallError, in_turn
from txlog.client.session.runtime import Runtime
from txlog.client.session.session import Session
from txlog.client.session.settings import call_layer
from txlog.client.transactions.coordinator import Coordinator, look_up, txn_version
from txlog.config import Layer, ProducerConfig
from txlog.core.owner_errors import check_owner, fenced_error
from txlog.core.records import StagedPart, TransactionMetadata
from txlog.core.transactions import TxnVersion
from txlog.errors import IllegalStateError, InvalidRequestError, TxlogError
from txlog.logs import log
from txlog.protocol.topics import schemas_of
from txlog.protocol.transactions import EndResult

_LOG = logging.getLogger(__name__)

MAX_INLINE_BYTES = 2 * 2**20
"""Size of the inline rows of one transaction over all partitions. Each process that finishes it reads all of them."""
DRAWN_PREFIX = "__spark-"
"""Beginning of ids of jobs without a given id. They get a tombstone after their commit."""

_Asked: TypeAlias = tuple[Sequence[StagedPart], Sequence[GroupOffsets], int | TxnVersion | None]


class StagedTransaction:
    """One instance of a transactional.id that commits staged parts.

    Names of files must contain `producer_id` and `producer_epoch` (names.rows_file_path, names.staged_folder). After an
    end, the same object is the id's next transaction, with the next epoch. Only one thread of one process may call
    `commit`, `abort` and `forget` at a time: a second call raises IllegalStateError.
    """

    def __init__(self, coordinator: Coordinator, *, drawn: bool, beside_members: bool = False) -> None:
        self._coordinator = coordinator
        self.drawn = drawn
        """Whether the id was drawn for this job alone."""
        self._beside_members = beside_members
        """Whether its groups may have members (W57)."""
        self._attempted = False
        self._asked: _Asked | None = None
        """The arguments of the last `commit` that was attempted."""
        self._counting_fenced = metrics.FencedOnce()
        self._guard = CallGuard(f"transactional.id {coordinator.transactional_id!r}", "transaction")

    @classmethod
    def begin(
        cls,
        runtime: Runtime,
        transactional_id: str | None = None,
        *,
        config: Layer | None = None,
        check: Callable[[TransactionMetadata | None], None] | None = None,
        session: Session | None = None,
        last: TransactionMetadata | None = None,
        **settings: object,
    ) -> Self:
        """Init the id: fence older instances, and finish or abort what they left. With None, draw an id.

        `session` is a session of `producer_session` for this id, with the views of an earlier transaction. `check` is
        called with the id's record first. If it raises, everything stays as it was and no instance is fenced.

        `last` is what the last `commit` of the id in this process returned. If no other process has changed the record
        since, there is nothing to finish and no instance to fence. Then that instance goes on, without an init. Give
        each `last` only once, so that an instance has only one transaction at a time.

        `config` and keywords are a producer's settings (`transaction_timeout_ms`, `max_block_ms`, ...). Raises
        InvalidTxnTimeoutError, InvalidConfigurationError, NotAStoreError, UnsupportedStoreError, ClockSkewError,
        TxlogTimeoutError.
        """
        parsed = runtime.settings.producer_config(call_layer(config, settings))
        drawn = transactional_id is None
        name = f"{DRAWN_PREFIX}{runtime.ids.new_id()}" if transactional_id is None else transactional_id
        runtime.require_store()
        runtime.ensure_writable()
        session = session or producer_session(runtime, parsed, f"transactional.id {name!r}")
        current = look_up(session, name) if check is not None or last is not None else None
        if check is not None:
            check(current)
        if current is not None and last is not None and _identity(current) == _identity(last):
            return cls(Coordinator(session, current), drawn=drawn, beside_members=parsed.allow_mixed_groups)
        coordinator = Coordinator.init(session, name, parsed)
        return cls(coordinator, drawn=drawn, beside_members=parsed.allow_mixed_groups)

    @classmethod
    def resume(
        cls,
        runtime: Runtime,
        txn: TransactionMetadata,
        *,
        drawn: bool,
        attempted: bool,
        config: Layer | None = None,
        session: Session | None = None,
        **settings: object,
    ) -> Self:
        """Return the transaction that another process began.

        `txn` and `drawn` come from that instance; `session` is as in `begin`. `attempted`: whether the other process
        may have tried to commit. Then `abort` finds out which of the two won.
        """
        parsed = runtime.settings.producer_config(call_layer(config, settings))
        session = session or producer_session(runtime, parsed, f"transactional.id {txn.transactional_id!r}")
        coordinator = Coordinator(session, txn, in_doubt=attempted)
        resumed = cls(coordinator, drawn=drawn, beside_members=parsed.allow_mixed_groups)
        resumed._attempted = attempted
        return resumed

    @property
    def txn(self) -> TransactionMetadata:
        """The id's record as this instance knows it."""
        return self._coordinator.txn

    @property
    def session(self) -> Session:
        """The session of this transaction, for look-ups on the same views."""
        return self._coordinator.session

    @property
    def transactional_id(self) -> str:
        return self.txn.transactional_id

    @property
    def producer_id(self) -> int:
        return self.txn.producer_id

    @property
    def producer_epoch(self) -> int:
        return self.txn.producer_epoch

    @in_turn
    def look_again(self) -> TxlogError | None:
        """Read the id's record again. Return why this instance may not go on, or None if it is still the newest one."""
        txn = self.txn
        current = look_up(self.session, txn.transactional_id)
        wrong = check_owner(current, txn)
        if wrong is None and current is not None and current.producer_epoch != txn.producer_epoch:
            wrong = fenced_error(current, txn, "its next transaction")
        return wrong

    def commit(
        self,
        parts: Sequence[StagedPart] = (),
        *,
        offsets: Sequence[GroupOffsets] = (),
        version: int | TxnVersion | None = None,
        compression: str | None = None,
    ) -> EndResult:
        """Publish `parts` and `offsets` in one decision. Return when all of it is visible.

        Inline rows are written to files first if they are too large together, or if their partition also has files.
        `compression` is for these files; the topic's setting is used if it is not given.

        If `version` is not above the last committed one, nothing is published and the result has `skipped`. Without
        parts, offsets and version nothing is decided or written.

        Raises:

        * UnknownTopicOrPartitionError: a topic of `parts` was deleted since they were made; abort.
        * CommitFailedError or ConcurrentTransactionsError: a condition does not hold, or a group has members; abort.
        * InvalidProducerEpochError: an operator aborted the transaction; abort.
        * ProducerFencedError, TxnVersionScopeError.
        * OutcomeUnknownError: delete nothing. Call `commit` with the same arguments, or `abort`, which shows which of
          the two won. The same holds after an interrupt.
        """
        with self._guard.take("commit"):
            result = self._commit((tuple(parts), tuple(offsets), version), compression)
        # One line: before it the call has not returned, and the next call returns this result. After it, this is the
        # next transaction.
        self._asked = self._coordinator.ended = None; return result  # fmt: skip # noqa: E702

    def _commit(self, asked: _Asked, compression: str | None) -> EndResult:
        ended = self._coordinator.ended
        is_lost = ended is not None and ended.txn.last_outcome != "commit" and not ended.skipped
        if is_lost or self._asked not in (None, asked):
            raise IllegalStateError(
                f"transactional.id {self.transactional_id!r}: an interrupt or an unknown outcome has ended an earlier "
                "call for this transaction, and this commit() is another one. "
                "hint: repeat that call, or call abort(), which tells whether the transaction is committed"
            )
        if ended is not None:  # a second decision would publish the same rows again
            self._attempted = False
            return ended
        try:
            return self._decide(asked, compression)
        except TxlogError as error:
            if not (self._coordinator.in_doubt or isinstance(error, InsideCallError)):
                self._asked = None  # it is certain that this call has decided nothing
            raise

    def _decide(self, asked: _Asked, compression: str | None) -> EndResult:
        parts, offsets, version = asked
        wanted = txn_version(version)
        if wanted is not None and self.drawn:
            raise InvalidRequestError(
                f"txn.version {wanted.version} needs a transactional.id of your own: a drawn one "
                f"({self.transactional_id}) is forgotten after the commit"
            )
        job = f"transactional.id {self.transactional_id!r}"
        given = [sent.of_job(job, beside_members=self._beside_members) for sent in offsets if sent.offsets]
        self._coordinator.look_at_topics(schemas_of(parts))
        staged = tuple(self._settled(parts, compression))
        if not staged and not given and wanted is None:
            return EndResult(txn=self.txn)
        self._attempted, self._asked = True, asked
        with self._counting_fenced:
            if not self._coordinator.send_offsets(given, wanted):
                staged = ()
        return self._end(True, staged, wanted)

    def abort(self) -> EndResult:
        """Abort the transaction. `already_committed` in the result means that an earlier `commit` had won.

        Writes nothing unless a commit was attempted. Raises ProducerFencedError, OutcomeUnknownError.
        """
        with self._guard.take("abort"):
            result = self._abort()
        self._asked = self._coordinator.ended = None; return result  # fmt: skip # noqa: E702

    def _abort(self) -> EndResult:
        if (ended := self._coordinator.ended) is not None:  # an interrupt has ended the call that ended the transaction
            self._attempted = False
            return replace(ended, already_committed=ended.txn.last_outcome == "commit" and not ended.skipped)
        if not self._attempted:
            metrics.count("txlog_transactions_total", 1, "aborted")
            return EndResult(txn=self.txn)
        return self._end(False)

    def _end(
        self,
        commit: bool,
        staged: Sequence[StagedPart] = (),
        version: TxnVersion | None = None,
    ) -> EndResult:
        with self._counting_fenced:
            result = self._coordinator.end(commit, staged, version)
        self._attempted = False
        if commit and not result.skipped:
            for part in (each for each in staged if not each.entries):
                size = len(part.payload) + sum(file.bytes for file in part.files)
                metrics.count_rows("produced", part.topic, part.rows, size)
        if not self.drawn:  # the tombstone of a drawn id does it (`forget`)
            self._coordinator.complete()
        return result

    def _settled(self, parts: Sequence[StagedPart], compression: str | None) -> Sequence[StagedPart]:
        inline = [part for part in parts if part.payload]
        alone = len({part.topic_partition for part in parts}) == len(parts)
        if not inline or (alone and sum(len(part.payload) for part in inline) <= MAX_INLINE_BYTES):
            return parts
        # A local import, because a commit of files does not need pyarrow.
        from txlog.client.transactions.staged_files import settle_inline

        runtime = self._coordinator.session.runtime
        return settle_inline(runtime, self.txn, parts, max_bytes=MAX_INLINE_BYTES, compression=compression)

    @in_turn
    def forget(self) -> bool:
        """Delete a drawn id after its transaction has ended, and return whether it was deleted. A user's id stays.

        Raises nothing: the transaction has its outcome, and an id that stays is removed when it expires.
        """
        try:
            return self.drawn and self._coordinator.remove()
        except TxlogError as error:
            text = "transactional.id %r was not removed, and expires later: %s"
            log(_LOG, logging.WARNING, "drawn_id_stays", text, self.transactional_id, error, txn=self.txn)
            return False


def _identity(txn: TransactionMetadata) -> tuple[int, int, str]:
    """Return what every init and every end of another process changes in an id's record."""
    return txn.producer_id, txn.producer_epoch, txn.state


def producer_session(runtime: Runtime, config: ProducerConfig, who: str) -> Session:
    """Return a session with a producer's settings."""
    return Session(runtime, config, who)
