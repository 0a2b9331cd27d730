"""What every protocol call needs beside its arguments, and the views that it takes and returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from txlog.core.append_rules import RollPolicy
from txlog.core.effects import Program
from txlog.core.names import INTERNAL_TOPICS, SegmentName, TopicPartition
from txlog.core.records import StoreConstants
from txlog.core.state import PartitionState, StoredRecord, replay


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Constants of the store, and how patient to be."""

    constants: StoreConstants = field(default_factory=StoreConstants)
    roll: Mapping[str, RollPolicy] = field(default_factory=dict)
    """When segments of each user's topic are full, where it is known; a view of an older configuration is legal."""
    find_roll: Callable[[str], Program[RollPolicy]] | None = None
    """Looks up the policy of a topic that is not in `roll`. It raises no TxlogError: any policy is legal."""
    internal_roll: RollPolicy = field(default_factory=RollPolicy)
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1000
    max_races: int = 1000
    """Slots that one append may lose to others before it gives up with CoordinatorContentionError."""
    max_settles: int = 40
    """Tries to settle one write of unknown outcome before OutcomeUnknownError."""
    max_loads: int = 10
    """LISTs that opening a partition may take while objects vanish under it."""

    @property
    def max_view_age_ms(self) -> int:
        """A tenth of the grace: only a younger view may acknowledge, tail by name or seal without a LIST (DESIGN 2.4)."""
        return self.constants.delete_grace_ms // 10

    def roll_of(self, tp: TopicPartition) -> RollPolicy:
        """The roll policy for a marker or control record in `tp`."""
        return self.internal_roll if tp.topic in INTERNAL_TOPICS else self.roll.get(tp.topic, RollPolicy())

    def backoff_ms(self, attempt: int) -> int:
        """Exponential, from `retry.backoff.ms` to `retry.backoff.max.ms`; `attempt` counts from 0."""
        return int(min(self.retry_backoff_ms * 2 ** min(attempt, 16), self.retry_backoff_max_ms))


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionView:
    """What a process knows of a partition: where the sealed part lies, the tail's records, and their fold.

    A value: every call that learns more returns a new one.
    """

    topic_partition: TopicPartition
    listed_at_ms: int
    """Monotonic time at the start of the LIST that found the tail, or of one's own last acknowledged PUT."""
    boundary: int
    walk: tuple[SegmentName, ...]
    """Sealed segments and current cleaned runs, in order, from the one that holds the log start."""
    base: PartitionState
    """State at the sealed end."""
    tail: tuple[StoredRecord, ...] = ()
    """Commit records from the sealed end on."""
    state: PartitionState = field(repr=False)
    """State after the tail."""

    @property
    def sealed_end(self) -> int:
        return self.base.next_offset

    def extended(self, stored: StoredRecord) -> PartitionView:
        """This view with the next record of the chain."""
        return replace(self, tail=(*self.tail, stored), state=replay(self.state, (stored,)))


Views: TypeAlias = Mapping[TopicPartition, PartitionView]


def with_view(views: Views, view: PartitionView) -> Views:
    """`views` with `view` in place of an older one of its partition."""
    return {**views, view.topic_partition: view}
