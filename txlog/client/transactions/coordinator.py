"""The calls of one transactional.id, and the id's record as this instance knows it.

Every instance of an id is its own coordinator (PROTOCOL.md, "The coordinator"): these methods run the protocol in the
caller's thread. `txlog.client.producer.producer_state` decides which call is allowed in which state.
"""

from __future__ import annotations

import datetime
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import msgspec

from txlog import metrics
from txlog.client.groups import GroupOffsets, check_text
from txlog.client.session.call_guard import InsideCallError
from txlog.client.session.session import Call, Session, only_views
from txlog.config import ProducerConfig
from txlog.core.append_rules import RollPolicy
from txlog.core.effects import Gather, Program
from txlog.core.features import COMBINED_RECORDS, DELETION_RECORDS
from txlog.core.groups import offsets_partition
from txlog.core.names import TopicPartition
from txlog.core.one_phase import MAX_ATTACHED
from txlog.core.records import StagedPart, TransactionMetadata
from txlog.core.transactions import COMPLETE, Skipped, TxnVersion
from txlog.errors import (
    FencedError,
    InvalidProducerEpochError,
    InvalidRequestError,
    InvalidTxnStateError,
    OutcomeUnknownError,
    RecordTooLargeError,
    TxlogError,
    TxlogTimeoutError,
    TxnVersionScopeError,
    UnknownTopicOrPartitionError,
)
from txlog.logs import Fields, log
from txlog.protocol import expiry, table, transactions as protocol
from txlog.protocol.context import LOOK_AGE_MS, PROOF_AGE_MS, Context, Views
from txlog.protocol.groups import send_offsets
from txlog.protocol.load import look_again
from txlog.protocol.one_phase import OnePhase, abort_one_phase, attach, commit_in_one_phase, detach_own
from txlog.protocol.slot_record import AppendResult
from txlog.protocol.topics import TopicLooks, look_at_topics, schemas_of
from txlog.protocol.transactions import EndResult
from txlog.text import any_text

_LOG = logging.getLogger(__name__)
_COMPLETE_MS = 5000
"""How long a look, or the writing of a COMPLETE_*, may keep its caller from other work."""
LAST_TAIL_RECORDS = 8
"""Records of the table's active segment from which the last COMPLETE_* of an instance seals it: two PUTs that cost as
much as the GETs of these records by the next instances."""

SMALL_BEFORE_ATTACHED = 1
"""Small transactions after which an instance attaches itself to their partition. Attaching costs a record, and a fence
if the process dies, so a process with a single transaction pays for neither."""

_OF_EVERY_TRY = (
    InvalidProducerEpochError,
    InvalidTxnStateError,
    TxnVersionScopeError,
    InvalidRequestError,
    RecordTooLargeError,
    UnknownTopicOrPartitionError,
)
"""Refusals of an end that also hold for earlier tries of the same end.

Either the record shows that the epoch was aborted, or the same arguments were refused before. The values that they are
compared with do not change within an epoch. Or a topic was deleted, and its record took the slot of the earlier try.
"""


class Coordinator:
    """One instance of a transactional.id, from its init on."""

    def __init__(
        self, session: Session, txn: TransactionMetadata, *, in_doubt: bool = False, one_phase: bool = False
    ) -> None:
        """Set up an instance. `in_doubt`: whether another process may have decided a commit of this epoch.

        `one_phase`: whether few rows of one partition may be committed in one phase, where the store allows it.
        """
        self.session = session
        self.txn = txn
        """The id's record. This instance writes with its producer_epoch."""
        self.ended: EndResult | None = None
        """The result of the last `end`. It belongs to the epoch before that of `txn`."""
        self.appended: AppendResult | None = None
        """Where the last `end` put its rows, if it was a commit in one phase."""
        self._lock = threading.Lock()
        self.in_doubt = in_doubt
        """Whether a commit of this epoch may have been decided."""
        ctx = session.context()
        self._resumed_in_doubt = in_doubt
        self._topics = TopicLooks()
        self._is_told = DELETION_RECORDS in ctx.features
        """Whether the table's partition shows each deletion of a topic (W46)."""
        self._table = table.state_partition(ctx, txn.transactional_id)
        self._owned = frozenset({self._table})
        """The table's partition, and those with markers of the last end."""
        self._may_be_one = one_phase and COMBINED_RECORDS in ctx.features
        self._small: Counter[TopicPartition] = Counter()
        """How many transactions with a decision were small enough for one phase, by partition."""
        self._one: OnePhase | None = None
        """What is being committed in one phase, until its outcome is known."""
        self._sequences: tuple[int, dict[TopicPartition, int]] = (txn.producer_epoch, {})
        """An epoch, and the next sequence of each partition with commits of one phase in it."""
        self._lost_epoch = -1
        """The epoch of which the log says that another process ended it."""

    @classmethod
    def init(cls, session: Session, transactional_id: str, config: ProducerConfig) -> Coordinator:
        """InitProducerId: finish or abort what an older instance left, and fence that instance.

        Raises InvalidTxnTimeoutError before anything is written. After TxlogTimeoutError or RetriableError, call again.
        """
        check_transactional_id(transactional_id)
        timeout_ms, max_ms = config.transaction_timeout_ms, config.transaction_max_timeout_ms
        txn = session.call(
            "init_transactions",
            lambda ctx, views: protocol.init_producer(ctx, views, transactional_id, timeout_ms, max_timeout_ms=max_ms),
        )
        text = "%s: initialized as producer %d, epoch %d; earlier instances of the id are fenced"
        log(_LOG, logging.INFO, "producer_initialized", text, session.who, txn.producer_id, txn.producer_epoch, txn=txn)
        return cls(session, txn, one_phase=True)

    @property
    def transactional_id(self) -> str:
        return self.txn.transactional_id

    def register(self, partitions: Iterable[TopicPartition], version: TxnVersion | None = None) -> bool:
        """Register partitions with the open transaction in one record. Return False if `version` was committed before.

        Raises ProducerFencedError, InvalidProducerIdMappingError, InvalidProducerEpochError (timed out: abort),
        TxnVersionScopeError.
        """
        wanted = tuple(partitions)
        return self._take(
            f"registering {_listed(wanted)} with the transaction",
            lambda ctx, views: protocol.add_partitions(ctx, views, self.txn, wanted, version),
        )

    def send_offsets(self, offsets: Sequence[GroupOffsets], version: TxnVersion | None = None) -> bool:
        """TxnOffsetCommit: write offsets that are pending until the transaction ends.

        Returns False if `version` was committed before. It makes one registration for all groups, then one record for
        each. Sending the same offsets again changes nothing. Raises CommitFailedError (a condition does not hold),
        ConcurrentTransactionsError (another transaction's offsets are pending and stay so), and what `register` raises.
        """
        if self.in_doubt:
            return True  # the first try has sent them, and the end may be decided: no registration is possible any more
        constants = self.session.runtime.constants
        groups = {offsets_partition(sent.group, constants.consumer_offsets_partitions) for sent in offsets}
        if len(groups) > 1 and not self.register(sorted(groups), version):
            return False
        return all(self._send_group(sent, version) for sent in offsets)

    def _send_group(self, sent: GroupOffsets, version: TxnVersion | None) -> bool:
        judged = None if sent.condition is None else sent.condition.judged(self.session.runtime.read_clocks())
        return self._take(
            f"sending offsets of group {sent.group!r}",
            lambda ctx, views: send_offsets(ctx, views, self.txn, sent.group, sent.offsets, judged, version),
        )

    def look_at_topics(
        self, schema_ids: Mapping[str, int], *, beside: Callable[[], Sequence[Program[None]]] = tuple
    ) -> None:
        """Look whether topics with rows of these schemas still exist (W46), where that is not known yet.

        `end` does the same if it must. It is made here first, so that the programs which `beside` returns for each try
        run at the same time. Raises TxlogTimeoutError, StoreAccessError; then nothing is decided.
        """
        if self.in_doubt:
            return
        if not self._is_told:
            self._topics = TopicLooks()  # a topic may have been deleted since the last commit

        def program(_: Context, views: Views) -> Program[tuple[Views, TopicLooks]]:
            deletions = protocol.deletions_seen(views, self._table)
            look = look_at_topics(self._topic_looks(schema_ids), schema_ids, deletions)
            (looks, _), *_ = yield Gather((look, *beside()))
            return views, looks

        deletions = protocol.deletions_seen(self.session.views, self._table)
        if beside() or not self._topics.hold(schema_ids, deletions):
            self._note(self.session.call(f"looking up {', '.join(sorted(schema_ids))}", program))

    def _topic_looks(self, schema_ids: Iterable[str]) -> TopicLooks:
        known = {topic: self.session.runtime.known_topic(topic) for topic in schema_ids}
        return replace(self._topics, known={topic: found for topic, found in known.items() if found is not None})

    def _note(self, looks: TopicLooks) -> None:
        self._topics = looks
        for topic, newest in looks.known.items():
            known = self.session.runtime.known_topic(topic)
            if known is None or known.number < newest.number:  # another call may have read a newer one meanwhile
                self.session.runtime.remember_topic(newest)

    @property
    def looked_at_ms(self) -> int:
        """Return when the look was made that is the first to be too old for the next end (W25, W47)."""
        views = self.session.views
        looks = [view.proven_at for tp in self._owned if (view := views.get(tp)) is not None]
        return min((at.monotonic_ms or 0 if at is not None else 0 for at in looks), default=0)

    def look(self) -> None:
        """Look again at the chains that the next end needs. Raises nothing: the next end looks itself."""
        tps = self._chains()
        self._quietly("look_failed", "looking at the log", lambda ctx, views: only_views(look_again(ctx, views, tps)))

    def looks(self, written: Iterable[TopicPartition]) -> list[Program[None]]:
        """Return the program of that look before an end that writes to `written`; none if all looks are young."""
        views, now = self.session.views, self.session.runtime.read_clocks()
        tps = self._chains(written)
        if all(tp in views and not views[tp].needs_proof(now, LOOK_AGE_MS) for tp in tps):
            return []

        def program() -> Program[None]:
            self.session.keep(views, (yield from look_again(self.session.context(), views, tps)))

        return [program()]

    def _chains(self, written: Iterable[TopicPartition] = ()) -> frozenset[TopicPartition]:
        """Return the partitions that one look is about.

        A look at the table's partition counts only together with one at the partitions of the last markers (W25).
        """
        return self._owned.union(written) if self._owned <= self.session.views.keys() else frozenset(written)

    def next_sequence(self, tp: TopicPartition) -> int:
        """Return the first sequence of this epoch in a partition that no commit of one phase has taken."""
        epoch, taken = self._sequences
        return taken.get(tp, 0) if epoch == self.txn.producer_epoch else 0

    def _in_one_phase(
        self, parts: tuple[StagedPart, ...], version: TxnVersion | None, in_doubt: bool
    ) -> OnePhase | None:
        """Return what can be committed in one phase; None if a decision is needed, or may have been made."""
        txn = self.txn
        if not self._may_be_one or in_doubt or version is not None or len(parts) != 1 or not parts[0].payload:
            return None
        tp, attached = parts[0].topic_partition, txn.attached or ()
        is_full = tp not in attached and len(attached) >= MAX_ATTACHED
        if txn.state == "ONGOING" or txn.partitions or is_full:
            return None
        epoch, taken = self._sequences
        # Commits of one epoch are in one partition. Otherwise a snapshot could show the second without the first (W61).
        if epoch == txn.producer_epoch and taken and tp not in taken:
            return None
        if tp not in attached and self._small[tp] < SMALL_BEFORE_ATTACHED:
            return None
        view = self.session.views.get(tp)
        return OnePhase(
            part=parts[0],
            base_sequence=self.next_sequence(tp),
            begun=self.session.runtime.read_clocks(),
            since=0 if view is None else view.state.next_offset,
        )

    def _commit_one(self, ctx: Context, views: Views, one: OnePhase) -> Program[tuple[Views, AppendResult | None]]:
        """Commit in one phase. The result is None if that needs a decision after all."""
        tp = one.part.topic_partition
        schema_ids, deletions = schemas_of((one.part,)), protocol.deletions_seen(views, self._table)
        looks = self._topic_looks(schema_ids)
        if not one.in_doubt and not looks.hold(schema_ids, deletions):
            looks, found = yield from look_at_topics(looks, schema_ids, deletions)
            self._note(looks)
            if found is not None:
                raise protocol.deleted_under(self.txn, found)
        if tp not in (self.txn.attached or ()):
            views, self.txn = yield from attach(ctx, views, self.txn, tp)
            one = replace(one, in_doubt=False)  # no try was made without it
        views, appended = yield from commit_in_one_phase(ctx, views, self.txn, one)
        if appended is not None:
            epoch, taken = self._sequences
            taken = taken if epoch == self.txn.producer_epoch else {}
            self._sequences = (self.txn.producer_epoch, {**taken, tp: one.base_sequence + one.part.rows})
        return views, appended

    def end(
        self,
        commit: bool,
        staged: Sequence[StagedPart] = (),
        version: TxnVersion | None = None,
        *,
        limit_ms: int | None = None,
    ) -> EndResult:
        """EndTxn: a repeated call joins what the first one decided. This instance goes on with the next epoch.

        Raises UnknownTopicOrPartitionError if a topic of `staged` was deleted since its rows were made (W46), what
        `register` raises, and OutcomeUnknownError (from an abort also TxlogTimeoutError): repeat the very same call.

        Once a commit may have been decided, a refusal is raised only if the records show that the commit was not
        decided. Otherwise OutcomeUnknownError is raised (W44).
        """
        parts = tuple(staged)
        written = {*self.txn.partitions, *(part.topic_partition for part in parts)}
        in_doubt = self.in_doubt
        self.in_doubt = in_doubt or commit
        topics = schemas_of(parts)
        # A look must not contradict a commit that may have been decided. After a try of this instance one is made only
        # if a deletion has taken a slot since then. Then that try's own record, which waited for this slot or an
        # earlier one, is in the fold or will never be (W46).
        unsure = in_doubt and (self._resumed_in_doubt or not self._is_told)
        watch = metrics.TransactionEnd("commit" if commit else "abort")
        is_first = self._one is None
        is_repeated = not is_first
        if is_first and commit:
            self._one = self._in_one_phase(parts, version, in_doubt)
        was_one = self._one is not None
        appended: AppendResult | None = None

        def program(ctx: Context, views: Views) -> Program[tuple[Views, EndResult]]:
            nonlocal is_first, appended
            if self._one is not None:
                # Any earlier try may have landed, also one that an interrupt has ended.
                one, is_first = replace(self._one, in_doubt=not is_first), False
                if not commit:
                    return (yield from abort_one_phase(ctx, views, self.txn, one))
                views = yield from look_again(ctx, views, self._chains(written), PROOF_AGE_MS)
                views, appended = yield from self._commit_one(ctx, views, one)
                if appended is not None:
                    ended = msgspec.structs.replace(self.txn, state="COMPLETE_COMMIT", last_outcome="commit")
                    return views, EndResult(txn=ended)
                self._one = None
            views = yield from look_again(ctx, views, self._chains(written), PROOF_AGE_MS)
            looks = None if unsure else self._topic_looks(topics)
            return (
                yield from protocol.end_transaction(ctx, views, self.txn, commit, parts, version, looks, self._note)
            )

        try:
            # A refused abort has no rows that its caller could misjudge. A commit may have succeeded at its first try.
            result = self.session.call(
                "commit_transaction" if commit else "abort_transaction",
                program,
                settles=commit,
                limit_ms=limit_ms,
            )
        except TxlogTimeoutError as error:
            watch.done("unknown")
            if not commit:
                raise
            # Not "retry": a caller who believes that nothing was decided could delete its staged files.
            raise OutcomeUnknownError(str(error)) from error
        except (OutcomeUnknownError, InsideCallError):
            watch.done("unknown")
            raise
        except TxlogError as error:
            # Only these are about all tries of a commit in one phase (W64).
            is_final = isinstance(error, InvalidProducerEpochError | UnknownTopicOrPartitionError | FencedError)
            may_land = was_one and (is_repeated or not commit) and not is_final
            self.in_doubt = in_doubt and not was_one
            self._one = self._one if may_land else None
            self.note_lost(error)
            if isinstance(error, UnknownTopicOrPartitionError):
                for part in parts:
                    self.session.runtime.forget_topic(part.topic)
            watch.done("unknown" if may_land else "failed")
            if may_land and commit:
                raise OutcomeUnknownError(
                    f"{self.session.who}: an earlier try of its commit may have landed, and this one met "
                    f"{type(error).__name__}: {error.problem}. "
                    "hint: call commit_transaction() again, or abort_transaction(), which tells what won"
                ) from error
            if self.in_doubt and not isinstance(error, _OF_EVERY_TRY) and not self._is_lost():
                raise OutcomeUnknownError(
                    f"{self.session.who}: an earlier try of its commit may have taken effect, this one met "
                    f"{type(error).__name__}, and the records no longer show what became of the first. "
                    "hint: delete nothing; read its topics to see whether its rows are visible"
                ) from error
            raise
        # First: after an interrupt the next call must know on which markers it relies, and that this one has ended.
        is_one = appended is not None
        self._owned = frozenset({self._table, *written})
        self.appended = appended
        if commit and len(parts) == 1 and parts[0].payload:
            self._small[parts[0].topic_partition] += 1
        before, after = self.txn, self.txn if is_one else result.txn
        self.txn, self.in_doubt, self.ended, self._one = after, False, result, None
        self._resumed_in_doubt = False
        self._log_end(result, before, sorted(written), version)
        watch.done("skipped" if result.skipped else "committed" if commit or result.already_committed else "aborted")
        self.session.end_overdue(written, self.txn.producer_id)
        return result

    def complete(self, *, last: bool = False) -> None:
        """Write the COMPLETE_* of the last transaction if its end left that to later (W27).

        If it is the `last` record of this instance, it also says that the instance is attached to no partition any more
        (W62). It then begins a new segment and seals a long one before it. The next process that opens the table reads
        none of these records.

        Raises nothing, because the transaction has its outcome: if it fails, the next process writes it.
        """
        txn = self.txn

        detaches = last and bool(txn.attached) and self._one is None

        def program(ctx: Context, views: Views) -> Program[tuple[Views, None]]:
            ctx = replace(ctx, internal_roll=RollPolicy(batches=LAST_TAIL_RECORDS)) if last else ctx
            return only_views((detach_own if detaches else protocol.complete)(ctx, views, txn))

        if txn.state in COMPLETE or detaches:
            self._quietly("complete_failed", "completing the last transaction", program)

    def _quietly(self, event: str, what: str, program: Call[None]) -> None:
        try:
            self.session.call(what, program, limit_ms=_COMPLETE_MS)
        except Exception:
            text = "%s: %s failed; the next call, or the next process, does it"
            log(_LOG, logging.DEBUG, event, text, self.session.who, what, txn=self.txn, exc_info=True)

    def remove(self) -> bool:
        """Write a tombstone for the drawn id, which must have no open transaction."""
        return self.session.call(
            "forgetting the transactional.id", lambda ctx, views: expiry.remove_own(ctx, views, self.txn)
        )

    def note_lost(self, error: BaseException) -> None:
        """Log a warning, once for an epoch, if `error` says that another process fenced this instance or ended its
        transaction."""
        if isinstance(error, FencedError | InvalidProducerEpochError) and self._lost_epoch != self.txn.producer_epoch:
            self._lost_epoch = self.txn.producer_epoch
            event = "producer_fenced" if isinstance(error, FencedError) else "transaction_lost"
            log(_LOG, logging.WARNING, event, "%s", error, txn=self.txn, error=type(error).__name__)

    def _log_end(
        self, result: EndResult, txn: TransactionMetadata, written: Sequence[TopicPartition], version: TxnVersion | None
    ) -> None:
        who = self.session.who
        if result.skipped:
            return  # the caller logs that, because it knows what was not written
        if result.txn.last_outcome != "commit":
            log(_LOG, logging.INFO, "transaction_aborted", "%s: aborted, %s", who, _epoch_text(txn), txn=txn)
        elif _LOG.isEnabledFor(logging.DEBUG):
            held = self.session.views
            offsets = {str(tp): held[tp].state.next_offset for tp in written if tp in held}
            ends = ", ".join(f"{tp} up to {offset}" for tp, offset in offsets.items())
            fields: Fields = {"offsets": offsets}
            if version is not None:
                fields["txn_version"], fields["txn_scope"] = version.version, version.scope
            text = "%s: committed%s, %s: %s"
            shown = f" version {version.version}" if version is not None else ""
            args = (who, shown, _epoch_text(txn), ends or "no partition")
            log(_LOG, logging.DEBUG, "transaction_committed", text, *args, txn=txn, **fields)

    def _is_lost(self) -> bool:
        """Return whether it is certain that no try of the commit won."""
        try:
            return self.session.call(
                "looking for an earlier try of the commit",
                lambda ctx, views: protocol.shows_lost(ctx, views, self.txn),
            )
        except TxlogError:
            return False

    def _take(self, what: str, program: Call[TransactionMetadata | Skipped]) -> bool:
        try:
            answer = self.session.call(what, program)
        except TxlogError as error:
            self.note_lost(error)
            raise
        if isinstance(answer, Skipped):
            return False
        with self._lock:
            # Rows and offsets register from two threads. Each record holds everything that was registered before it, so
            # the record with more partitions is the newer one, whichever answer comes last.
            same = (answer.producer_id, answer.producer_epoch) == (self.txn.producer_id, self.txn.producer_epoch)
            if not (same and set(answer.partitions) < set(self.txn.partitions)):
                self.txn = answer
        return True


def look_up(session: Session, transactional_id: str) -> TransactionMetadata | None:
    """Return the id's record, read again, or None. Finishes nothing and fences no producer."""
    check_transactional_id(transactional_id)
    return session.call(
        "looking up the transactional.id", lambda ctx, views: table.look_up(ctx, views, transactional_id)
    )


def check_transactional_id(transactional_id: object) -> str:
    """Return `transactional_id` if it is valid. Raises InvalidRequestError, as Kafka answers INVALID_REQUEST."""
    return check_text(transactional_id, "transactional.id")


def txn_version(version: int | TxnVersion | None) -> TxnVersion | None:
    """Return a `txn.version` as users give it. Raises InvalidRequestError if it is not valid.

    A valid version is an integer from 0 on, and its scope is text.
    """
    if version is None:
        return None
    if isinstance(version, TxnVersion):
        if version.scope:
            check_text(version.scope, "scope of a txn.version")
        return version
    if isinstance(version, bool) or not isinstance(version, int) or not 0 <= version < 2**63:
        digits = str(version).replace("-", "") if isinstance(version, str | datetime.date) else ""
        hint = f". hint: version={int(digits)}" if digits.isascii() and digits.isdigit() else ""
        if hint and digits != str(version):  # a date
            hint += "; if an older day may come later, use version=1 and a transactional.id for each day"
        raise InvalidRequestError(
            f"{any_text(version)} is not a txn.version: expected an integer from 0 that grows with every "
            f"transaction of the id{hint}"
        )
    return TxnVersion(version=version)


def _epoch_text(txn: TransactionMetadata) -> str:
    return f"producer {txn.producer_id}, epoch {txn.producer_epoch}"


def _listed(partitions: Sequence[TopicPartition]) -> str:
    shown = ", ".join(str(tp) for tp in partitions[:3])
    return shown if len(partitions) <= 3 else f"{shown} and {len(partitions) - 3} more"
