"""Which changes of its partitions does a program hear of, and which has it not heard of yet?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from txlog.core.names import TopicPartition

Listener: TypeAlias = Callable[[tuple[TopicPartition, ...]], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class RebalanceListener:
    """What a program wants to know about its partitions.

    Each function is called with them, in a call of the consumer: `subscribe`, `poll`, `close` and so on. As long as
    `on_revoke` raises an error in `poll`, the rebalance waits for this member. After an interrupt in the middle of a
    rebalance, a function may be called again with the same partitions.
    """

    on_assign: Listener | None = None
    on_revoke: Listener | None = None
    on_lost: Listener | None = None


class News:
    """Partitions that the listener does not know yet. They stay until it was called, whatever interrupts the call.

    An error that the listener itself raises ends the news, because the listener was called.
    """

    def __init__(self) -> None:
        self.partitions: frozenset[TopicPartition] = frozenset()

    def tell(self, tell: Callable[[tuple[TopicPartition, ...]], None]) -> None:
        """Tell of the partitions, if there are any."""
        told = self.partitions
        try:
            # First, because the listener may make a call that would tell it again.
            self.partitions = frozenset()
            if told:
                tell(tuple(sorted(told)))
        except Exception:
            raise
        except BaseException:
            self.partitions |= told
            raise
