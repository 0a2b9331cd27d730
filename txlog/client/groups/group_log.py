"""What does a consumer log about its group? Changes of its partitions, and what it could not do when it closed."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from txlog.core.names import TopicPartition
from txlog.logs import log
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
        log(
            _LOG,
            logging.INFO,
            "group_joined",
            "%s: joined as member %r in generation %d",
            self._who,
            member_id,
            generation,
            group_id=self._group,
            member_id=member_id,
            generation_id=generation,
        )

    def took_over(self, before: str, member_id: str, generation: int) -> None:
        """Log that another consumer was the only member before."""
        log(
            _LOG,
            logging.WARNING,
            "group_taken_over",
            "%s: took the group over from member %r. If that consumer still runs, its next commit fails, because "
            "a group has one member. "
            "hint: give each consumer a group.id of its own",
            self._who,
            before,
            group_id=self._group,
            member_id=member_id,
            generation_id=generation,
        )

    def rebalanced(self, what: str, partitions: Collection[TopicPartition], member_id: str, generation: int) -> None:
        """Log that partitions were `assigned` to the consumer, or `revoked`."""
        if not partitions:
            return
        log(
            _LOG,
            logging.INFO,
            f"partitions_{what}",
            "%s: generation %d %s %s",
            self._who,
            generation,
            what,
            _named(partitions),
            group_id=self._group,
            member_id=member_id,
            generation_id=generation,
            partitions=_texts(partitions),
        )

    def lost(self, partitions: Collection[TopicPartition], why: str, *, is_told: bool) -> None:
        """Log that another member may read the partitions now: a warning, unless the program's listener is told."""
        if not partitions:
            return
        log(
            _LOG,
            logging.INFO if is_told else logging.WARNING,
            "partitions_lost",
            "%s: lost %s, because %s. Rows since the last commit are read again",
            self._who,
            count_text(len(partitions), "partition"),
            why,
            group_id=self._group,
            partitions=_texts(partitions),
        )

    def left(self, member_id: str, why: str, level: int = logging.INFO) -> None:
        """Log that the consumer is no member any more."""
        log(
            _LOG,
            level,
            "group_left",
            "%s: left its group, because %s",
            self._who,
            why,
            group_id=self._group,
            member_id=member_id,
        )

    def failed(self, event: str, what: str, error: Exception) -> None:
        """Log what the consumer could not do when it closed or stopped."""
        log(
            _LOG,
            logging.WARNING,
            event,
            "%s: %s: %s",
            self._who,
            what,
            error,
            group_id=self._group,
            error=type(error).__name__,
        )

    def committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Log offsets that were committed outside of a transaction."""
        log(
            _LOG,
            logging.DEBUG,
            "offsets_committed",
            "%s: committed offsets of group %r: %s",
            self._who,
            self._group,
            offsets_text(offsets),
            group_id=self._group,
            offsets={str(tp): offset for tp, offset in offsets.items()},
        )


def offsets_text(offsets: Mapping[TopicPartition, int]) -> str:
    """Return offsets as a message shows them: `orders-0 at 12, orders-1 at 4`."""
    return _cut([f"{tp} at {offset}" for tp, offset in offsets.items()])


def _named(partitions: Collection[TopicPartition]) -> str:
    return _cut([str(tp) for tp in partitions])


def _cut(texts: list[str]) -> str:
    more = f" and {len(texts) - _MAX_NAMED} more" if len(texts) > _MAX_NAMED else ""
    return ", ".join(texts[:_MAX_NAMED]) + more


def _texts(partitions: Collection[TopicPartition]) -> tuple[str, ...]:
    return tuple(str(tp) for tp in partitions)
