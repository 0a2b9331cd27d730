"""How do users name offsets and group memberships? Kafka's OffsetAndMetadata and ConsumerGroupMetadata."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from txlog.core.groups import OffsetsCondition
from txlog.core.names import TopicPartition
from txlog.core.records import OffsetValue
from txlog.errors import InvalidRequestError

MAX_OFFSET = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetAndMetadata:
    """A committed offset: the next one to read, and whatever its committer wrote beside it."""

    offset: int
    metadata: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetAndTimestamp:
    """The answer to a look-up by time: the first offset at or after it, and that offset's append time (ms)."""

    offset: int
    timestamp: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupMetadata:
    """A consumer's membership, for `send_offsets_to_transaction`: it fences the consumer's older instances (KIP-447)."""

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    auto_commit: bool = field(default=False, repr=False)
    """Whether that consumer commits by itself, which contradicts offsets in a transaction."""

    def condition(self) -> OffsetsCondition | None:
        """What must hold of the group when its offsets are written; None for a plain group id."""
        if self.generation_id < 0:
            return None
        return OffsetsCondition(generation=self.generation_id, member_id=self.member_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOffsets:
    """Offsets that a transaction carries for one group. With a condition they are always eager (DESIGN 4.5)."""

    group: str
    offsets: Mapping[TopicPartition, OffsetValue]
    condition: OffsetsCondition | None = None


Offset: TypeAlias = int | OffsetAndMetadata | OffsetValue
Offsets: TypeAlias = Mapping[TopicPartition, Offset] | Mapping[tuple[str, int], Offset]
"""Offsets by partition; a pair of topic and number will do for a TopicPartition."""


def offset_values(offsets: Offsets) -> dict[TopicPartition, OffsetValue]:
    """`offsets` as they are stored; raises InvalidRequestError for what cannot be an offset or a partition."""
    values: dict[TopicPartition, OffsetValue] = {}
    for key, given in offsets.items():
        tp = topic_partition(key)
        metadata = given.metadata if isinstance(given, OffsetAndMetadata | OffsetValue) else ""
        offset = given.offset if isinstance(given, OffsetAndMetadata | OffsetValue) else given
        values[tp] = OffsetValue(offset=check_offset(tp, offset), metadata=metadata)
    return values


def topic_partition(key: object) -> TopicPartition:
    """`key` as a TopicPartition; raises InvalidRequestError."""
    if isinstance(key, tuple) and len(key) == 2 and isinstance(key[0], str) and isinstance(key[1], int):
        return TopicPartition(key[0], key[1])
    raise InvalidRequestError(f"{key!r} is no partition; give TopicPartition(topic, number)")


def check_offset(tp: TopicPartition, offset: object) -> int:
    """`offset`, if it can be one; raises InvalidRequestError."""
    if isinstance(offset, bool) or not isinstance(offset, int) or not 0 <= offset <= MAX_OFFSET:
        raise InvalidRequestError(f"{tp}: {offset!r} is no offset: expected an integer from 0")
    return offset


def check_group(group: object) -> str:
    """`group`, if it can be a group.id; raises InvalidRequestError."""
    if not isinstance(group, str) or not group:
        raise InvalidRequestError(f"{group!r} is no group.id: expected text that is not empty")
    return group
