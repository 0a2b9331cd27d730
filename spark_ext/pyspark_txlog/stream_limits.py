"""How much does a micro-batch take, and when is it worth one? The rules of Spark's Kafka source, as values.

An offset counts whether a row is there or not: markers and aborted rows cost a place in a batch, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from txlog.core.names import TopicPartition

Offsets = Mapping[TopicPartition, int]


def available(starts: Offsets, ends: Offsets) -> int:
    """Offsets between `starts` and `ends`."""
    return sum(max(ends[tp] - starts[tp], 0) for tp in ends)


def at_most(starts: Offsets, ends: Offsets, limit: int) -> dict[TopicPartition, int]:
    """`ends`, nearer so that about `limit` offsets lie before them: each partition gives in proportion to what it has.

    As with Kafka none starves: a partition that has anything gives at least one offset, so that there may be more than
    `limit` by one for each partition.
    """
    total = available(starts, ends)
    if total <= limit:
        return dict(ends)
    return {
        tp: starts[tp] + min(max(limit * size // total, 1), size) if (size := end - starts[tp]) > 0 else end
        for tp, end in ends.items()
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerDelay:
    """`minOffsetsPerTrigger` and `maxTriggerDelay`, and when the last batch was begun (monotonic)."""

    min_offsets: int
    max_delay_ms: int
    last_batch_ms: int

    def is_due(self, offsets: int, now_ms: int) -> bool:
        """Whether `offsets` are worth a batch: enough of them, or any that have waited long enough."""
        return offsets >= self.min_offsets or (offsets > 0 and now_ms - self.last_batch_ms >= self.max_delay_ms)

    def after_batch(self, now_ms: int) -> TriggerDelay:
        """As it is once a batch has begun."""
        return replace(self, last_batch_ms=now_ms)
