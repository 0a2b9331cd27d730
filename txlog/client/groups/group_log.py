"""What does a consumer log about its group? Changes of its partitions, and what it could not do when it closed."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Unpack

from txlog.core.names import TopicPartition
from txlog.logs import Fields, log
from txlog.text import count_text

_LOG = logging.getLogger(__name__)
_MAX_NAMED = 8
"""The text names at most so many partitions; the fields have all of them."""


class GroupLog:
    """The log of one consumer in one group. `who` is the beginning of its messages."""

    def __init__(self, who: str, group: str) -> None:
        self._who = who
        self._group = group

    def joined(self, member_id: str, generation: int) -> None:
        """Log that the consumer is a member now."""
        text = "joined as member %r in generation %d"
        self._log(
            logging.INFO, "group_joined", text, member_id, generation, member_id=member_id, generation_id=generation
        )

    def took_over(self, before: str, member_id: str, generation: int) -> None:
        """Log that another consumer was the only member before."""
        text = (
            "took the group over from member %r. If that consumer still runs, its next commit fails, because "
            "a group has one member. "
            "hint: give each consumer a group.id of its own"
        )
        self._log(logging.WARNING, "group_taken_over", text, before, member_id=member_id, generation_id=generation)

    def rebalanced(self, what: str, partitions: Collection[TopicPartition], member_id: str, generation: int) -> None:
        """Log that partitions were `assigned` to the consumer, or `revoked`."""
        if not partitions:
            return
        names = [str(tp) for tp in partitions]
        of_member: Fields = {"member_id": member_id, "generation_id": generation, "partitions": tuple(names)}
        self._log(logging.INFO, f"partitions_{what}", "generation %d %s %s", generation, what, _cut(names), **of_member)

    def lost(self, partitions: Collection[TopicPartition], why: str, *, is_told: bool) -> None:
        """Log that another member may read the partitions now: a warning, unless the program's listener hears it."""
        if not partitions:
            return
        level = logging.INFO if is_told else logging.WARNING
        text = "lost %s, because %s. Rows since the last commit are read again"
        shown = count_text(len(partitions), "partition")
        self._log(level, "partitions_lost", text, shown, why, partitions=tuple(str(tp) for tp in partitions))

    def left(self, member_id: str, why: str, level: int = logging.INFO) -> None:
        """Log that the consumer is not a member any more."""
        self._log(level, "group_left", "left its group, because %s", why, member_id=member_id)

    def failed(self, event: str, what: str, error: Exception) -> None:
        """Log what the consumer could not do when it closed or stopped."""
        self._log(logging.WARNING, event, "%s: %s", what, error, error=type(error).__name__)

    def committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Log offsets that were committed outside of a transaction."""
        named = {str(tp): offset for tp, offset in offsets.items()}
        shown = _cut([f"{tp} at {offset}" for tp, offset in named.items()])
        text = "committed offsets of group %r: %s"
        self._log(logging.DEBUG, "offsets_committed", text, self._group, shown, offsets=named)

    def _log(self, level: int, event: str, text: str, *args: object, **fields: Unpack[Fields]) -> None:
        fields["group_id"] = self._group
        log(_LOG, level, event, f"%s: {text}", self._who, *args, **fields)


def _cut(texts: list[str]) -> str:
    more = f" and {len(texts) - _MAX_NAMED} more" if len(texts) > _MAX_NAMED else ""
    return ", ".join(texts[:_MAX_NAMED]) + more
