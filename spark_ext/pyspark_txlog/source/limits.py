"""How large is a micro-batch, and when is it worth starting one? The rules of Spark's Kafka source, as values.

Every offset counts, even without a row: markers and aborted rows use up the limit, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from txlog.engine import TopicPartition

Offsets = Mapping[TopicPartition, int]


def available(starts: Offsets, ends: Offsets) -> int:
    """Return the number of offsets between `starts` and `ends`."""
    return sum(max(ends[tp] - starts[tp], 0) for tp in ends)


def at_most(starts: Offsets, ends: Offsets, limit: int) -> dict[TopicPartition, int]:
    """Return `ends`, reduced so that about `limit` offsets lie before them, in proportion to what each partition has.

    As in Kafka, each partition with offsets gives at least one. So the total may exceed `limit` by one for each
    partition.
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
    """The state of `minOffsetsPerTrigger` and `maxTriggerDelay`, and when the last batch started (monotonic)."""

    min_offsets: int
    max_delay_ms: int
    last_batch_ms: int

    def is_due(self, offsets: int, now_ms: int) -> bool:
        """Whether `offsets` are worth a batch: there are enough of them, or they have waited long enough."""
        return offsets >= self.min_offsets or (offsets > 0 and now_ms - self.last_batch_ms >= self.max_delay_ms)

    def after_batch(self, now_ms: int) -> TriggerDelay:
        """Return the state after a batch has started."""
        return replace(self, last_batch_ms=now_ms)
