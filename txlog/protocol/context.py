"""Which constants and views does a protocol call take beside its arguments?"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, TypeAlias, TypeVar

from txlog.core.ages import ClockReading
from txlog.core.append_rules import RollPolicy
from txlog.core.effects import Program
from txlog.core.features import STORE_FEATURES
from txlog.core.names import INTERNAL_TOPICS, SegmentName, TopicPartition
from txlog.core.record_checks import StoredRecord
from txlog.core.records import StoreConstants, TransactionMetadata
from txlog.core.state import PartitionState, replay

T = TypeVar("T")

PROOF_AGE_MS = 1000
"""How long a look at a store proves that the store is still the same (W47). An operator should stop all writers before
restoring a store; this check finds the forgotten ones. A second is shorter than a restore takes, and long enough that a
busy writer needs one GET for many appends."""

LOOK_AGE_MS = PROOF_AGE_MS * 4 // 5
"""The age from which a look is made again before it is needed, in one round for all partitions. What is left of
PROOF_AGE_MS is enough for two rounds of requests."""

INTERNAL_ROLL = RollPolicy(batches=16)
"""When a segment of an internal topic is full. A process that opens such a partition reads the last snapshot and each
record after it, one GET a record. A segment costs two PUTs, and no file, because these records hold no rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownStore:
    """The store that a process has opened, and when the process last saw that it is still the same."""

    store_id: str
    where: str
    """The location, for messages."""
    checked_at: ClockReading | None = None
    """None: not known. The store is then checked whenever it matters."""
    note: Callable[[ClockReading], None] = lambda now: None
    """Called with the time when the store was seen to be the same."""


EndedByOther: TypeAlias = Literal["rolled forward", "timed out", "aborted by an operator", "aborted by an init"]
"""How a process ended a transaction that it did not begin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Constants of the store, and limits of waiting and retrying."""

    constants: StoreConstants = field(default_factory=StoreConstants)
    features: Collection[str] = STORE_FEATURES
    roll: Mapping[str, RollPolicy] = field(default_factory=dict)
    """The roll policy of each user's topic, where known. It may be of an older configuration."""
    store: KnownStore | None = None
    """None: which store it is does not matter, for example if it is opened for this call alone."""
    find_roll: Callable[[str], Program[RollPolicy]] | None = None
    """Reads the policy of a topic that is not in `roll`. It raises no TxlogError: any policy is valid."""
    report: Callable[[EndedByOther, TransactionMetadata], None] = lambda how, prepare: None
    """Called after this process has ended another one's transaction, with its PREPARE_*."""
    internal_roll: RollPolicy = INTERNAL_ROLL
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1000
    learned: dict[TopicPartition, PartitionView] | None = field(default=None, compare=False, repr=False)
    """Gets the newest view of each partition that a call has read. So a call that fails keeps what it has read, and
    its repetition goes on from there. None: the views that a call returns are enough."""
    leads: Callable[[PartitionView, int], None] = lambda view, pace_ms: None
    """Called when a process has led, with its view and how long the append took. It may go on to append what others
    let wait."""
    max_races: int = 1000
    """Slots that one append may lose to other writers before it gives up with CoordinatorContentionError."""
    max_settles: int = 40
    """Tries to settle one write of unknown outcome before OutcomeUnknownError."""
    max_loads: int = 10
    """LISTs that opening a partition may take while objects that they show are deleted."""

    without_grace: bool = False
    """Vacuum does not wait for the grace (`txlog vacuum --now`). Views may be as old as ever."""

    @property
    def vacuum_grace_ms(self) -> int:
        """Return how long vacuum leaves an object that nothing needs any more, by the store's clock."""
        # An object of this very millisecond may be younger than what the pass has listed.
        return 1 if self.without_grace else self.constants.delete_grace_ms

    @property
    def max_view_age_ms(self) -> int:
        """Return a tenth of the grace.

        Only a younger view may acknowledge, tail by name or seal without a LIST (W14, W37, R7).
        """
        return self.constants.delete_grace_ms // 10

    def learn(self, view: PartitionView) -> PartitionView:
        """Note a view in `learned`, and return it."""
        if self.learned is not None:
            held = self.learned.get(view.topic_partition)
            if held is None or held.state.next_offset <= view.state.next_offset:
                self.learned[view.topic_partition] = view
        return view

    def roll_of(self, tp: TopicPartition) -> RollPolicy:
        """Return the roll policy for a marker or control record in `tp`."""
        return self.internal_roll if tp.topic in INTERNAL_TOPICS else self.roll.get(tp.topic, RollPolicy())

    def backoff_ms(self, attempt: int) -> int:
        """Return the wait of a try, from `retry.backoff.ms` to `retry.backoff.max.ms`, growing exponentially.

        `attempt` counts from 0.
        """
        return int(min(self.retry_backoff_ms * 2 ** min(attempt, 16), self.retry_backoff_max_ms))


class Mark(NamedTuple):
    """The last record of an object that a process has seen in the chain."""

    slot: int
    """The offset that names the object."""
    digest: str

    @classmethod
    def of(cls, tail: Sequence[StoredRecord]) -> Mark | None:
        """Return the mark of a tail's end; None if the tail is empty."""
        return cls(tail[-1].slot, tail[-1].digest) if tail else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionView:
    """What a process holds of a partition: the names of the sealed part, the tail's records, and their fold.

    A view is a value: every call that reads more returns a new one.
    """

    topic_partition: TopicPartition
    listed_at: ClockReading
    """The start of the LIST that found the tail, or of the process's own last acknowledged PUT."""
    proven_at: ClockReading | None
    """A moment before the last request that showed `mark` in the chain and the end after it. None: look before it
    matters."""
    mark: Mark | None
    """The last record at that time; None: the chain had no record. Records that this process appended later do not
    prove the records before them."""
    boundary: int
    walk: tuple[SegmentName, ...]
    """Sealed segments and current cleaned runs, in order, from the one that contains the log start."""
    base: PartitionState
    """State at the sealed end."""
    tail: tuple[StoredRecord, ...] = ()
    """Commit records from the sealed end on."""
    state: PartitionState = field(repr=False)
    """State after the tail."""
    must_list: bool = False
    """Whether a record asks for a LIST before this view is read, or a sealed one that was not read may do so (R23)."""
    waited_at: ClockReading | None = field(default=None, compare=False)
    """When this process looked last whether others wait (W69); None: it has not appended twice."""
    others_wait: bool = field(default=False, compare=False)
    """Whether that look found any."""
    listing_ms: int = field(default=0, compare=False)
    """How long the last LIST of new names took, with its GETs."""

    @property
    def sealed_end(self) -> int:
        return self.base.next_offset

    def age_ms(self, now: ClockReading) -> int:
        """Return the age of this view: the greater of the two clocks' differences (W14)."""
        return now.ms_since(self.listed_at)

    def needs_proof(self, now: ClockReading, age_ms: int = PROOF_AGE_MS) -> bool:
        """Return whether the last look at the end of this view in the chain is too long ago (W47)."""
        return self.proven_at is None or now.ms_since(self.proven_at) >= age_ms

    @property
    def last(self) -> Mark | None:
        """Return the last record of the tail; None if the tail is empty."""
        return Mark.of(self.tail)

    def digest_at(self, end_offset: int) -> str | None:
        """Return the digest of the record that ends at `end_offset`.

        Returns None if the view does not show it, and empty text if no record ends there.
        """
        if end_offset in (self.state.next_offset, self.base.next_offset):
            return (self.state if end_offset == self.state.next_offset else self.base).last_digest
        if end_offset < self.base.next_offset:
            return None
        return next((each.digest for each in self.tail if each.record.end_offset == end_offset), "")

    def extended(self, stored: Sequence[StoredRecord], *, listed_at: ClockReading | None = None) -> PartitionView:
        """Return this view with the next slot of the chain, and with `listed_at` if this process has appended it."""
        return replace(
            self,
            tail=(*self.tail, *stored),
            state=replay(self.state, stored),
            listed_at=listed_at or self.listed_at,
            must_list=self.must_list or (listed_at is None and any(each.record.asks_for_a_list for each in stored)),
        )


Views: TypeAlias = Mapping[TopicPartition, PartitionView]


def with_view(views: Views, *newer: PartitionView) -> Views:
    """Return `views` with each of `newer` in place of an older view of its partition."""
    return {**views, **{view.topic_partition: view for view in newer}}


def with_views(views: Views, program: Program[T]) -> Program[tuple[Views, T]]:
    """Return `views`, and the result of a program that does not use them."""
    return views, (yield from program)
