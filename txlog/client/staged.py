"""How does a job publish files that it has written, all at once or not at all?

Data first, sequence later (PROTOCOL.md, "Staged"): the files belong to no log until the PREPARE_COMMIT that lists them; then every
partition gets one record that is both the rows and the COMMIT marker. No transaction is open while the job runs, so a
dead job holds nobody back. Spark's writes use this class; `Producer(staged=True)` goes the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Self

from txlog.client.coordinator import Coordinator, look_up, txn_version
from txlog.client.groups import GroupOffsets
from txlog.client.patience import Patience
from txlog.client.runtime import Runtime
from txlog.client.session import Session
from txlog.client.settings import call_layer
from txlog.client.turns import Turns, in_turn
from txlog.config import Layer, ProducerConfig
from txlog.core.records import StagedPart, TransactionMetadata
from txlog.core.transactions import TxnVersion
from txlog.errors import InvalidRequestError
from txlog.protocol.transactions import EndResult

MAX_INLINE_BYTES = 2 * 2**20
"""Inline rows of one transaction, over all partitions: whoever finishes it reads all of them."""
DRAWN_PREFIX = "__spark-"
"""Ids of jobs that named none; they are tombstoned after their commit."""


class StagedTransaction:
    """One instance of a transactional.id that commits staged parts.

    Files must be named by `producer_id` and `producer_epoch` (names.rows_file_path, names.staged_folder). After an end
    the same object stands for the id's next transaction, with the next epoch. `commit`, `abort` and `forget` are for one thread
    of one process at a time: a call beside another one raises IllegalStateError.
    """

    def __init__(self, coordinator: Coordinator, *, drawn: bool) -> None:
        self._coordinator = coordinator
        self.drawn = drawn
        """Whether the id was drawn for this job alone."""
        self._attempted = False
        self._turns = Turns(f"transactional.id {coordinator.transactional_id!r}", "transaction")

    @classmethod
    def begin(
        cls,
        runtime: Runtime,
        transactional_id: str | None = None,
        *,
        config: Layer | None = None,
        check: Callable[[TransactionMetadata | None], None] | None = None,
        session: Session | None = None,
        **settings: object,
    ) -> Self:
        """Inits the id, which fences older instances and finishes or aborts what they left; None draws one.

        `session` is one of `producer_session` for this id, with the views of an earlier transaction. `check` is shown the
        id's record before: what it raises leaves everything as it was, and fences nobody.

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
        if check is not None:
            check(look_up(session, name))
        coordinator = Coordinator.init(
            session,
            name,
            timeout_ms=parsed.transaction_timeout_ms,
            max_timeout_ms=parsed.transaction_max_timeout_ms,
        )
        return cls(coordinator, drawn=drawn)

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
        """The transaction that another process began; `txn` and `drawn` are that instance's, `session` as in `begin`.

        `attempted` says that the other process may have tried to commit: `abort` then asks what won.
        """
        parsed = runtime.settings.producer_config(call_layer(config, settings))
        session = session or producer_session(runtime, parsed, f"transactional.id {txn.transactional_id!r}")
        resumed = cls(Coordinator(session, txn, in_doubt=attempted), drawn=drawn)
        resumed._attempted = attempted
        return resumed

    @property
    def txn(self) -> TransactionMetadata:
        """The id's record as this instance knows it."""
        return self._coordinator.txn

    @property
    def session(self) -> Session:
        """For look-ups beside the transaction, on the same views."""
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
    def commit(
        self,
        parts: Sequence[StagedPart] = (),
        *,
        offsets: Sequence[GroupOffsets] = (),
        version: int | TxnVersion | None = None,
        compression: str | None = None,
    ) -> EndResult:
        """Publishes `parts` and `offsets` in one decision; returns when all of it is visible.

        Inline rows that are too many together, or have files beside them, are written to files first; `compression` is
        theirs, and the topic's unless it is given.

        `skipped` in the result says that `version` was not above the last committed one, and nothing was published.
        Without parts, offsets and version there is nothing to decide and nothing is written.

        Raises UnknownTopicOrPartitionError (a topic of `parts` was deleted since they were made: abort), CommitFailedError or
        ConcurrentTransactionsError (a condition: abort), ProducerFencedError,
        InvalidProducerEpochError (aborted by an operator: abort), TxnVersionScopeError; OutcomeUnknownError: only `commit` with the same arguments, or
        `abort`, which tells what won; delete nothing before.
        """
        wanted = txn_version(version)
        if wanted is not None and self.drawn:
            raise InvalidRequestError(
                f"txn.version {wanted.version} needs a transactional.id of your own: a drawn one ({self.transactional_id}) is forgotten after the commit"
            )
        given = [sent for sent in offsets if sent.offsets]
        # The oldest schema of each topic stands last.
        schemas = dict(sorted(((part.topic, part.schema_id) for part in parts if not part.entries), reverse=True))
        refusal = self._coordinator.find_deleted(schemas)
        staged = tuple(self._settled(parts, compression))
        if not staged and not given and wanted is None:
            return EndResult(txn=self.txn)
        self._attempted = True
        if not self._coordinator.send_offsets(given, wanted):
            staged = ()
        result = self._coordinator.end(True, staged, wanted, refusal=refusal)
        self._attempted = False
        return result

    @in_turn
    def abort(self) -> EndResult:
        """Gives the transaction up. `already_committed` in the result says that an earlier `commit` had won.

        Writes nothing unless a commit was attempted. Raises ProducerFencedError, OutcomeUnknownError.
        """
        if not self._attempted:
            return EndResult(txn=self.txn)
        result = self._coordinator.end(False)
        self._attempted = False
        return result

    def _settled(self, parts: Sequence[StagedPart], compression: str | None) -> Sequence[StagedPart]:
        inline = [part for part in parts if part.payload]
        alone = len({part.topic_partition for part in parts}) == len(parts)
        if not inline or (alone and sum(len(part.payload) for part in inline) <= MAX_INLINE_BYTES):
            return parts
        # Here and not at the top: a commit of files goes without pyarrow.
        from txlog.client.staged_inline import settle_inline

        runtime = self._coordinator.session.runtime
        return settle_inline(runtime, self.txn, parts, max_bytes=MAX_INLINE_BYTES, compression=compression)

    @in_turn
    def forget(self) -> bool:
        """Removes a drawn id, once its transaction has ended; whether it did. An id of the user's stays."""
        return self.drawn and self._coordinator.remove()


def producer_session(runtime: Runtime, config: ProducerConfig, who: str) -> Session:
    """A session with a producer's settings."""
    return Session(
        runtime,
        config,
        patience=Patience(who=who, timeout_ms=config.max_block_ms, setting="max.block.ms", retries=config.retries),
    )
