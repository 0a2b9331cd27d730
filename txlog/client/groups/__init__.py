"""How do users name offsets and group memberships, and how does a consumer join and leave its group (W36)?

The names are Kafka's: OffsetAndMetadata, ConsumerGroupMetadata. Only a consumer also needs `members`, for a group that
shares partitions, and `rebalance`, `session_timeouts` and `group_log`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TypeAlias

import msgspec

from txlog.client.groups.group_log import GroupLog
from txlog.client.session.session import Session, only_views
from txlog.core.ages import ClockReading
from txlog.core.groups import JOB_MARK, OffsetsCondition
from txlog.core.names import MAX_OFFSET, TopicPartition, is_topic_name
from txlog.core.records import GroupValue, OffsetValue
from txlog.errors import IllegalStateError, InvalidRequestError, OffsetMetadataTooLargeError, StoreChangedError
from txlog.protocol import groups as group_protocol
from txlog.protocol.groups import MAX_METADATA_LENGTH
from txlog.text import any_text, is_unicode

MAX_NAME_LENGTH = 1000
MAX_PARTITIONS = 2**31


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetAndMetadata:
    """A committed offset: the next one to read, and the metadata that the program wrote with it."""

    offset: int
    metadata: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetAndTimestamp:
    """The answer to a look-up by time: the first offset at or after that time, and its append time (ms)."""

    offset: int
    timestamp: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupMetadata:
    """A consumer's membership, for `send_offsets_to_transaction`.

    It fences older instances of the consumer (KIP-447).
    """

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    auto_commit: bool = field(default=False, repr=False)
    """Whether that consumer commits automatically, which contradicts offsets in a transaction."""
    alive_at: ClockReading | None = field(default=None, repr=False, compare=False)
    """When the consumer showed last that it lives (W54)."""
    session_timeout_ms: int = field(default=0, repr=False, compare=False)

    def condition(self) -> OffsetsCondition | None:
        """Return the condition on the group when its offsets are written, or None for a plain group id."""
        if self.generation_id < 0:
            return None
        return OffsetsCondition(
            generation=self.generation_id,
            member_id=self.member_id,
            alive_at=self.alive_at,
            session_timeout_ms=self.session_timeout_ms,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOffsets:
    """Offsets that a transaction carries for one group. They are always sent eagerly (W34)."""

    group: str
    offsets: Mapping[TopicPartition, OffsetValue]
    condition: OffsetsCondition | None = None

    def of_job(self, job: str, *, beside_members: bool) -> GroupOffsets:
        """Return these offsets as those of a job that reads without membership, or unchanged if they are a member's.

        Unless the job may be `beside_members`, their commit is refused while the group has members (W57).
        """
        condition = self.condition or OffsetsCondition()
        if condition.generation is not None:
            return self
        named = replace(self, offsets=marked(self.offsets, job))
        return named if beside_members else replace(named, condition=replace(condition, job=job))


def marked(offsets: Mapping[TopicPartition, OffsetValue], job: str) -> dict[TopicPartition, OffsetValue]:
    """Return the offsets with the job's name as metadata, which keeps members out of the group. Other metadata stay."""
    mark = f"{JOB_MARK}{job}"[:MAX_METADATA_LENGTH]
    return {
        tp: value if value.metadata or not job else msgspec.structs.replace(value, metadata=mark)
        for tp, value in offsets.items()
    }


Offset: TypeAlias = int | OffsetAndMetadata | OffsetValue
Offsets: TypeAlias = Mapping[TopicPartition, Offset] | Mapping[tuple[str, int], Offset]
"""Offsets by partition. A pair of topic and number is accepted as a TopicPartition."""


def offset_values(offsets: Offsets) -> dict[TopicPartition, OffsetValue]:
    """Return `offsets` in the stored form. Raises InvalidRequestError for an invalid offset or partition."""
    values: dict[TopicPartition, OffsetValue] = {}
    for key, given in offsets.items():
        tp = topic_partition(key)
        metadata = given.metadata if isinstance(given, OffsetAndMetadata | OffsetValue) else ""
        check_metadata(tp, metadata)
        offset = given.offset if isinstance(given, OffsetAndMetadata | OffsetValue) else given
        values[tp] = OffsetValue(offset=check_offset(tp, offset), metadata=metadata)
    return values


def group_offsets(
    offsets: Offsets,
    group: str | ConsumerGroupMetadata,
    expected: Mapping[TopicPartition, int | None] | None = None,
    *,
    who: str,
) -> GroupOffsets:
    """Return the arguments of `send_offsets_to_transaction` as a transaction carries them. Messages begin with `who`.

    Raises InvalidRequestError, OffsetMetadataTooLargeError, IllegalStateError for a consumer that commits
    automatically.
    """
    if hasattr(group, "group_metadata"):
        raise InvalidRequestError(f"{who}: {group!r} is no group.id. hint: give consumer.group_metadata()")
    metadata = group if isinstance(group, ConsumerGroupMetadata) else ConsumerGroupMetadata(group_id=group)
    check_group(metadata.group_id)
    if metadata.auto_commit:
        raise IllegalStateError(
            f"{who}: the consumer of group {metadata.group_id!r} commits its offsets by itself (enable.auto.commit), "
            "which would tear them from this transaction; open it with enable_auto_commit=False"
        )
    if metadata.generation_id > 0 and not metadata.member_id:
        raise InvalidRequestError(
            f"{who}: generation {metadata.generation_id} of group {metadata.group_id!r} needs its member id"
        )
    condition = metadata.condition()
    if expected is not None:
        started = {
            topic_partition(tp): None if offset is None else check_offset(topic_partition(tp), offset)
            for tp, offset in expected.items()
        }
        condition = replace(condition or OffsetsCondition(), expected=started)
    return GroupOffsets(group=metadata.group_id, offsets=offset_values(offsets), condition=condition)


def commit_offsets(
    session: Session,
    group: str,
    values: Mapping[TopicPartition, OffsetValue],
    condition: OffsetsCondition | None,
    *,
    wait: bool = True,
    settles: bool = True,
) -> None:
    """Commit offsets outside of a transaction. `wait` and `settles` as in `Session.call`."""
    session.call(
        f"committing offsets of group {group!r}",
        lambda ctx, views: only_views(group_protocol.commit_offsets(ctx, views, group, values, condition)),
        wait=wait,
        settles=settles,
    )
    GroupLog(session.who, group).committed({tp: value.offset for tp, value in values.items()})


class GroupMembership:
    """Membership in at most one group at a time, in a store whose groups have one member.

    A consumer that only commits has none.
    """

    is_subscribed = False
    """Whether the members share partitions, so that this one may own none."""

    alive_at = None
    """A member without a session does not show that it lives."""

    awaited: Mapping[str, tuple[TopicPartition, ...]] = MappingProxyType({})
    """The members that this one waits for."""

    def __init__(self, session: Session, client_id: str) -> None:
        self._session = session
        self._client_id = client_id
        self._group = ""
        self._member: GroupValue | None = None

    @property
    def generation(self) -> int:
        """Generation of the membership; -1 without one."""
        return self._member.generation if self._member is not None else -1

    @property
    def member_id(self) -> str:
        """Id of the member; empty without a membership."""
        return self._member.member_id if self._member is not None else ""

    def join(self, group: str, topics: tuple[str, ...]) -> None:
        """Become the member of the group, which fences the member before. Log a warning if that is another consumer."""
        self._group, own_id, member_id = (
            group,
            self.member_id,
            f"{self._client_id or 'consumer'}-{self._session.runtime.ids.new_id()}",
        )
        self._member, before = self._session.call(
            f"joining group {group!r}",
            lambda ctx, views: group_protocol.join_group(ctx, views, group, member_id, self._client_id, topics),
        )
        journal = GroupLog(self._session.who, group)
        if before is not None and before.member_id not in ("", own_id):
            journal.took_over(before.member_id, self.member_id, self.generation)
        else:
            journal.joined(self.member_id, self.generation)

    def listen(self, topics: tuple[str, ...], listener: object) -> bool:
        """Return False: a member that subscribes again takes the group over."""
        return False

    def follow(self) -> None:
        """Do nothing: a commit shows whether this is still the member."""

    def mend(self) -> None:
        """Do nothing: the consumer decides what it reads."""

    def widen(self, topics: object) -> None:
        """Do nothing: this member reads all partitions of its topics."""

    def leave_out(self, topics: object) -> None:
        """Do nothing: partitions of deleted topics stay assigned."""

    def may_return(self) -> bool:
        """Return True: a commit shows whether this is still the member."""
        return True

    def leave(self) -> None:
        """Leave the group, if this is its member."""
        member, group = self._member, self._group
        if member is None:
            return
        own = (group, member.generation, member.member_id)
        # A store that was created again, or restored to an older state, does not know this member.
        with contextlib.suppress(StoreChangedError):
            self._session.call(
                f"leaving group {group!r}", lambda ctx, views: only_views(group_protocol.leave_group(ctx, views, *own))
            )
            GroupLog(self._session.who, group).left(member.member_id, "it was closed or unsubscribed")
        # After an error it stays the member, so that its commits are checked, and a second call leaves.
        self._member = None

    def commit(self, group: str, values: Mapping[TopicPartition, OffsetValue]) -> None:
        """Commit offsets, on the condition that this is still the member if it has joined. Raises CommitFailedError."""
        member = self._member
        condition = (
            OffsetsCondition(generation=member.generation, member_id=member.member_id) if member is not None else None
        )
        commit_offsets(self._session, group, values, condition)


def check_metadata(tp: TopicPartition, metadata: object) -> None:
    """Raise InvalidRequestError or OffsetMetadataTooLargeError if `metadata` cannot be stored with an offset."""
    if isinstance(metadata, str) and len(metadata) > MAX_METADATA_LENGTH:
        raise OffsetMetadataTooLargeError(
            f"{tp}: offset metadata of {len(metadata)} characters, at most {MAX_METADATA_LENGTH} are stored"
        )
    if not isinstance(metadata, str) or not is_unicode(metadata):
        raise InvalidRequestError(f"{tp}: {any_text(metadata)} cannot be the metadata of an offset: expected text")


def topic_partition(key: object) -> TopicPartition:
    """Return `key` as a TopicPartition, which need not exist. Raises InvalidRequestError."""
    if isinstance(key, tuple) and len(key) == 2 and isinstance(key[0], str) and is_topic_name(key[0]):
        number = key[1]
        if isinstance(number, int) and not isinstance(number, bool) and 0 <= number < MAX_PARTITIONS:
            return TopicPartition(key[0], number)
    hint = ". hint: give [tp], or {tp: row['_offset'] + 1} to commit, where tp = TopicPartition('orders', 0)"
    if not isinstance(key, str):
        are_many = isinstance(key, Collection) and all(isinstance(each, tuple) for each in key)
        hint = ". hint: give one TopicPartition, or several one by one and without a list" if are_many else ""
    raise InvalidRequestError(f"{any_text(key)} is not a partition: expected TopicPartition(topic, number){hint}")


def check_offset(tp: TopicPartition, offset: object) -> int:
    """Return `offset` if it is valid. Raises InvalidRequestError."""
    if isinstance(offset, bool) or not isinstance(offset, int) or not 0 <= offset <= MAX_OFFSET:
        raise InvalidRequestError(f"{tp}: {any_text(offset)} is not an offset: expected an integer from 0")
    return offset


def check_group(group: object) -> str:
    """Return `group` if it is a valid group.id. Raises InvalidRequestError."""
    return check_text(group, "group.id")


def check_text(text: object, what: str) -> str:
    """Return `text` if it is a valid name. Raises InvalidRequestError."""
    if isinstance(text, str) and 0 < len(text) <= MAX_NAME_LENGTH and is_unicode(text):
        return text
    raise InvalidRequestError(f"{any_text(text)} is not a {what}: expected text of 1 to {MAX_NAME_LENGTH} characters")
