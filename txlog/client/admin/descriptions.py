"""What do an operator's calls return? Transactions, groups and the parts of a partition, as plain values.

Times are milliseconds since 1970; -1 means that there is no value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Self, TypeVar

from txlog.client.session.repr_html import repr_html
from txlog.core.members import partitions_of
from txlog.core.names import TopicPartition
from txlog.core.records import AbortedTxn, GroupValue, ProducerStateEntry, TransactionMetadata, TransactionRow
from txlog.core.transactions import IDLE, PREPARED, is_timed_out
from txlog.protocol.context import PartitionView
from txlog.protocol.groups import GroupDescription
from txlog.protocol.read import ReadIndexes

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerDescription:
    """What a partition knows about a producer."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    last_timestamp: int
    coordinator_epoch: int
    txn_first_offset: int | None
    """First offset of its open transaction."""

    @classmethod
    def of(cls, view: PartitionView, producer_id: int) -> Self:
        """Return the description of a producer that the partition knows."""
        entry = view.state.producers[producer_id]
        first = entry.txn_first_offset if entry.txn_first_offset >= 0 else None
        return _made(cls, entry, last_timestamp=entry.timestamp, txn_first_offset=first)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentDescription:
    """A sealed segment or cleaned run."""

    name: str
    """Name of its `.index`."""
    base_offset: int
    end_offset: int
    generation: int
    batches: int
    records: int
    files: int
    bytes: int
    aborted_txns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionDescription:
    """A partition: its ends, segments, active tail, open and aborted transactions."""

    topic: str
    partition: int
    log_start_offset: int
    last_stable_offset: int
    log_end_offset: int
    sealed_end: int
    """Below this offset the log is in segments; from here on it is in `.batch` objects, the tail."""
    boundary: int
    segments: tuple[SegmentDescription, ...]
    tail_batches: int
    tail_records: int
    tail_bytes: int
    """Size of the tail's commit records and of the files that they name."""
    last_timestamp: int
    open_transactions: tuple[ProducerDescription, ...]
    """Transactions without a marker here. The first of them holds the last stable offset back."""
    aborted: tuple[AbortedTxn, ...]
    """Transactions that were aborted after they had written rows here."""

    _repr_html_ = repr_html

    @classmethod
    def of(cls, view: PartitionView, indexes: ReadIndexes, aborted: tuple[AbortedTxn, ...], **more: Any) -> Self:
        """Return what `view` and the indexes of its segments show. `more` are fields of a subclass."""
        state, tail = view.state, [stored.record for stored in view.tail]
        read = [(name, indexes[name].index) for name in view.walk if name in indexes]
        return cls(
            **_ends(view),
            sealed_end=view.sealed_end,
            boundary=view.boundary,
            segments=tuple(
                _made(
                    SegmentDescription,
                    index,
                    name=name.index,
                    batches=len(index.entries),
                    records=sum(entry.records for entry in index.entries),
                    files=len(index.files),
                    bytes=sum(file.bytes for file in index.files),
                )
                for name, index in read
            ),
            tail_batches=len(tail),
            tail_records=sum(record.records for record in tail),
            tail_bytes=sum(len(stored.data) for stored in view.tail)
            + sum(file.bytes for record in tail for file in record.files),
            last_timestamp=state.last_timestamp,
            open_transactions=tuple(
                ProducerDescription.of(view, entry.producer_id) for entry in state.open_transactions
            ),
            aborted=aborted,
            **more,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionDescription:
    """A transactional.id and its last transaction."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    last_epoch: int
    state: str
    last_outcome: str | None
    timeout_ms: int
    started_at: int
    """When the open or last transaction registered its first partition."""
    updated_at: int
    duration_ms: int
    """How long the transaction has been open, or -1 if no transaction is open."""
    partitions: tuple[tuple[str, int], ...]
    """Partitions that are registered with it, or that its staged rows belong to."""
    txn_scope: str
    txn_version: int
    coordinator: str
    """The partition of the transaction-state table that holds the id."""
    offset: int
    """Offset of the id's last record in that partition."""

    _repr_html_ = repr_html

    @classmethod
    def of(cls, row: TransactionRow, coordinator: TopicPartition, now_ms: int) -> Self:
        """Return the description of an id's last record."""
        txn = row.value
        tps = sorted({*txn.partitions, *(part.topic_partition for part in txn.staged)})
        return _made(
            cls,
            txn,
            duration_ms=-1 if txn.state in IDLE else max(now_ms - txn.started_at, 0),
            partitions=tuple((tp.topic, tp.partition) for tp in tps),
            coordinator=str(coordinator),
            offset=row.offset,
        )


class TransactionList(tuple[TransactionDescription, ...]):
    """Transactional ids. A notebook shows their last transactions over time."""

    __slots__ = ()
    _repr_html_ = repr_html


@dataclass(frozen=True, slots=True, kw_only=True)
class HangingTransaction:
    """An open transaction that has held back a partition's last stable offset for too long."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    first_offset: int
    last_timestamp: int
    open_ms: int
    """Time since its last row in this partition."""
    transactional_id: str | None
    state: str | None
    """The id's state. None if no id has this producer."""
    advice: str

    @classmethod
    def of(cls, tp: TopicPartition, entry: ProducerStateEntry, txn: TransactionMetadata | None, now_ms: int) -> Self:
        """Return the description of a producer's open transaction in `tp`; `txn` is the record of its id."""
        return cls(
            topic=tp.topic,
            partition=tp.partition,
            producer_id=entry.producer_id,
            producer_epoch=entry.producer_epoch,
            first_offset=entry.txn_first_offset,
            last_timestamp=entry.timestamp,
            open_ms=now_ms - entry.timestamp,
            transactional_id=txn.transactional_id if txn is not None else None,
            state=txn.state if txn is not None else None,
            advice=_advice(txn, tp, now_ms),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetInfo:
    """The ends of a partition, and the offset that was looked up."""

    topic: str
    partition: int
    log_start_offset: int
    last_stable_offset: int
    log_end_offset: int
    offset: int | None
    """The offset that was asked for. None if no row is as new as the time that was asked for."""
    timestamp: int | None
    """Append time of `offset`, if it was looked up by time."""

    @classmethod
    def of(cls, view: PartitionView, offset: int | None, timestamp: int | None = None) -> Self:
        """Return the ends of a partition with the offset that was looked up."""
        return cls(**_ends(view), offset=offset, timestamp=timestamp)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOffset:
    """A group's offset for one partition."""

    topic: str
    partition: int
    committed: int | None
    pending: int | None
    """Offset in a transaction that is not decided yet."""
    metadata: str
    committed_at: int
    log_start_offset: int | None
    last_stable_offset: int | None
    log_end_offset: int | None
    """None if the topic was deleted."""
    lag: int | None
    """Offsets up to the last stable one that the group has not consumed yet, markers and aborted rows included."""
    lag_ms: int | None = None
    """How long the oldest of them has waited. Only `describe_group` looks it up."""
    pending_removal: bool = False
    """Whether a transaction that is not decided yet removes the committed offset. `pending` is None then."""

    @classmethod
    def of(
        cls, group: GroupDescription, tp: TopicPartition, view: PartitionView | None, lag_ms: int | None = None
    ) -> Self:
        """Return a group's offset for `tp`; `view` is None if the topic was deleted or cannot be read."""
        value, pending = group.offsets.get(tp), group.pending.get(tp)
        lag = None
        if view is not None and value is not None:
            lag = max(view.state.last_stable_offset - max(value.offset, view.state.log_start_offset), 0)
        return cls(
            topic=tp.topic,
            partition=tp.partition,
            committed=value.offset if value is not None else None,
            pending=pending.offset if pending is not None else None,
            metadata=value.metadata if value is not None else "",
            committed_at=value.timestamp if value is not None else -1,
            log_start_offset=view.state.log_start_offset if view is not None else None,
            last_stable_offset=view.state.last_stable_offset if view is not None else None,
            log_end_offset=view.state.next_offset if view is not None else None,
            lag=lag,
            lag_ms=0 if lag == 0 else lag_ms,
            pending_removal=tp in group.pending and pending is None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberInfo:
    """A member of a group that shares its partitions."""

    member_id: str
    client_id: str
    instance_id: str
    """`group.instance.id`; empty for a dynamic member."""
    topics: tuple[str, ...]
    partitions: tuple[TopicPartition, ...]
    """What it reads."""
    assigned: tuple[TopicPartition, ...]
    """What the group's generation gives to it. If this differs from `partitions`, a rebalance is under way."""
    seen_at: int
    """When it showed last that it lives."""
    session_timeout_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupInfo:
    """A consumer group."""

    group: str
    state: str
    """STABLE with members, EMPTY without a member. PREPARING_REBALANCE while partitions move between members, or until
    the others have removed a member whose session is over. Such a member is not shown (PROTOCOL.md,
    "Groups of many members")."""
    generation: int
    member_id: str
    """The member, or the first of them."""
    client_id: str
    topics: tuple[str, ...]
    updated_at: int
    offsets: tuple[GroupOffset, ...]
    assignor: str = ""
    members: tuple[MemberInfo, ...] = ()
    """In a store whose groups share partitions."""

    _repr_html_ = repr_html

    @classmethod
    def of(
        cls,
        group: GroupDescription,
        views: Mapping[TopicPartition, PartitionView],
        lags_ms: Mapping[TopicPartition, int] | None = None,
    ) -> Self:
        """Return the description of a group, with the lag in the partitions of `views`."""
        value = group.member or GroupValue(generation=-1, member_id="")
        members = tuple(
            _made(
                MemberInfo,
                each,
                partitions=tuple(sorted(partitions_of(each.owned))),
                assigned=tuple(sorted(partitions_of(each.assigned))),
                seen_at=group.beats.get(each.member_id, -1),
            )
            for each in group.living
        )
        behind = [each for each in group.living if each.owned != each.assigned or each.generation < value.generation]
        moves = bool(behind or group.silent)
        state = "EMPTY" if not value.member_id and not members else "PREPARING_REBALANCE" if moves else "STABLE"
        tps = sorted({*group.offsets, *group.pending})
        offsets = tuple(GroupOffset.of(group, tp, views.get(tp), (lags_ms or {}).get(tp)) for tp in tps)
        topics = tuple(sorted({topic for each in members for topic in each.topics})) or value.topics
        first = members[0] if members else value
        return cls(
            group=group.group,
            state=state,
            generation=value.generation,
            member_id=first.member_id,
            client_id=first.client_id,
            topics=topics,
            updated_at=value.updated_at,
            offsets=offsets,
            assignor=value.assignor if members else "",
            members=members,
        )


class GroupList(tuple[GroupInfo, ...]):
    """Consumer groups. A notebook shows their lag."""

    __slots__ = ()
    _repr_html_ = repr_html


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetReset:
    """A change of a group's offset."""

    topic: str
    partition: int
    before: int | None
    after: int
    asked: int | None = None
    """The offset that was asked for, if it is outside of the log: then `after` is the nearer end of the log."""


def _made(kind: Callable[..., T], source: object, **more: object) -> T:
    """Return a `kind` with the fields in `more`, and the others as `source` has them."""
    described: Any = kind
    names = [each.name for each in fields(described) if each.name not in more]
    return kind(**{name: getattr(source, name) for name in names}, **more)


def _ends(view: PartitionView) -> dict[str, Any]:
    """Return the fields that say which partition this is, and where it begins and ends."""
    return {
        "topic": view.topic_partition.topic,
        "partition": view.topic_partition.partition,
        "log_start_offset": view.state.log_start_offset,
        "last_stable_offset": view.state.last_stable_offset,
        "log_end_offset": view.state.next_offset,
    }


def _advice(txn: TransactionMetadata | None, tp: TopicPartition, now_ms: int) -> str:
    if txn is None:
        return "no transactional.id has this producer; look at it with `txlog dump-log`"
    if txn.state in PREPARED:
        return f"{txn.state} is decided and was not finished; `txlog transactions expire --execute` rolls it forward"
    if is_timed_out(txn, now_ms):
        return "it is past its time-out; `txlog transactions expire --execute` aborts it"
    if txn.state == "ONGOING" and tp in txn.partitions:
        return f"its producer may still be at work; `txlog transactions abort {txn.transactional_id}` ends it"
    return "its transactional.id does not know this partition; look at it with `txlog dump-log`"
