"""How does a snapshot hold a partition's state, and may a stored one be used?"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from txlog.core import envelope, names
from txlog.core.names import TopicPartition
from txlog.core.record_checks import check_group, check_transaction
from txlog.core.records import PendingOffsets, ProducerStateEntry, Snapshot
from txlog.core.state import BATCHES_TO_RETAIN, PartitionState
from txlog.errors import CorruptRecordError


def to_snapshot(state: PartitionState) -> Snapshot:
    """Return the stored form of a state at a segment's end (W38); equal states give equal bytes.

    Producers are kept here and not in rows, so no maintenance job loses a sequence (C11).
    """
    return Snapshot(
        partition=str(state.topic_partition),
        offset=state.next_offset,
        log_start_offset=state.log_start_offset,
        deleted_version=state.deleted_version,
        last_timestamp=state.last_timestamp,
        last_digest=state.last_digest,
        producers=tuple(state.producers[pid] for pid in sorted(state.producers)),
        transactions=tuple(state.transactions[key] for key in sorted(state.transactions)),
        committed=tuple(state.committed[key] for key in sorted(state.committed)),
        pending=tuple(
            PendingOffsets(producer_id=pid, rows=tuple(rows[key] for key in sorted(rows)))
            for pid, rows in sorted(state.pending.items())
        ),
        groups=tuple(state.groups[key] for key in sorted(state.groups)),
    )


def from_snapshot(snapshot: Snapshot, tp: TopicPartition) -> PartitionState:
    """Return the state that `snapshot` holds: an empty active segment begins at its offset."""
    return PartitionState(
        topic_partition=tp,
        log_start_offset=snapshot.log_start_offset,
        next_offset=snapshot.offset,
        segment_base=snapshot.offset,
        last_timestamp=snapshot.last_timestamp,
        last_digest=snapshot.last_digest,
        deleted_version=snapshot.deleted_version,
        producers={entry.producer_id: entry for entry in snapshot.producers},
        transactions={row.value.transactional_id: row for row in snapshot.transactions},
        committed={row.entry.key: row for row in snapshot.committed},
        pending={p.producer_id: {row.entry.key: row for row in p.rows} for p in snapshot.pending},
        groups={row.entry.group: row for row in snapshot.groups},
    )


def decode_snapshot(data: bytes, tp: TopicPartition, offset: int) -> PartitionState:
    """Return the state in `<offset>.snapshot`; raise CorruptRecordError naming it if it is damaged."""
    path = tp.folder + names.snapshot_name(offset)
    snapshot, _ = envelope.decode(data, Snapshot, path)
    if snapshot.offset != offset:
        raise CorruptRecordError(f"{path}: it says offset {snapshot.offset}; an object was swapped or copied")
    check_snapshot(snapshot, path)
    return from_snapshot(snapshot, tp)


def check_snapshot(snapshot: Snapshot, path: str) -> None:
    """Raise CorruptRecordError naming `path` unless the snapshot is possible at its offset (PROTOCOL.md, R21)."""
    names.check_own(snapshot.partition, path)
    if snapshot.log_start_offset > snapshot.offset:
        raise CorruptRecordError(
            f"{path}: log start {snapshot.log_start_offset}, above the log end {snapshot.offset} of this state"
        )
    tables: dict[str, list[Any]] = {
        "producers": [entry.producer_id for entry in snapshot.producers],
        "transactions": [row.value.transactional_id for row in snapshot.transactions],
        "committed": [row.entry.key for row in snapshot.committed],
        "pending": [each.producer_id for each in snapshot.pending],
        "groups": [row.entry.group for row in snapshot.groups],
        **{
            f"pending of producer {each.producer_id}": [row.entry.key for row in each.rows] for each in snapshot.pending
        },
    }
    for name, keys in tables.items():
        if any(a >= b for a, b in pairwise(keys)):
            raise CorruptRecordError(f"{path}: its table of {name} is not in order, or holds a key twice")
    for entry in snapshot.producers:
        _check_producer(entry, snapshot.offset, path)
    opened = {entry.producer_id for entry in snapshot.producers if entry.txn_first_offset >= 0}
    for each in snapshot.pending:
        if each.producer_id not in opened or not each.rows:
            raise CorruptRecordError(
                f"{path}: it has pending offsets of producer {each.producer_id}, which has no open transaction in it"
            )
    for row in snapshot.transactions:
        check_transaction(row.value.transactional_id, row.value, path)
    for group in snapshot.groups:
        if group.entry.value is not None:
            check_group(group.entry.group, group.entry.value, path)
            ids = {member.member_id for member in group.entry.value.members}
            beats = [beat.member_id for beat in group.beats]
            if beats != sorted(ids.intersection(beats)):
                raise CorruptRecordError(f"{path}: heartbeats of group {group.entry.group!r} are not of its members")
    positions = [
        *(row.offset for row in snapshot.transactions),
        *(row.position for row in snapshot.committed),
        *(row.position for row in snapshot.groups),
        *(row.position for each in snapshot.pending for row in each.rows),
    ]
    if any(position >= snapshot.offset for position in positions):
        raise CorruptRecordError(f"{path}: a row of it is of offset {max(positions)}, above its own offset")
    if None in [*(row.entry.value for row in snapshot.committed), *(row.entry.value for row in snapshot.groups)]:
        raise CorruptRecordError(f"{path}: a row of it is a tombstone, and those are not kept")


def _check_producer(entry: ProducerStateEntry, end: int, path: str) -> None:
    ordered = [0, *(at for batch in entry.batches for at in (batch.base_offset, batch.base_offset + 1)), end]
    if (
        ordered != sorted(ordered)
        or any(batch.base_sequence > batch.last_sequence for batch in entry.batches)
        or len(entry.batches) > BATCHES_TO_RETAIN
        or (entry.batches and entry.batches[-1].last_sequence != entry.last_sequence)
        or max(entry.last_offset, entry.txn_first_offset) >= end
    ):
        raise CorruptRecordError(
            f"{path}: the state of producer {entry.producer_id} (last sequence {entry.last_sequence}, last offset "
            f"{entry.last_offset}, transaction from {entry.txn_first_offset}, {len(entry.batches)} batches) is not "
            f"possible at offset {end}"
        )
