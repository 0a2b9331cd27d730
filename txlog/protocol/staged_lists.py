"""How does a PREPARE_COMMIT name its staged parts, inline or in an object of their own (W29)?"""

from __future__ import annotations

import msgspec

from txlog.core import envelope, names
from txlog.core.effects import Get, NewId, Program
from txlog.core.names import TopicPartition
from txlog.core.record_checks import check_targets
from txlog.core.records import StagedList, StagedObject, StagedPart, TransactionMetadata
from txlog.errors import CorruptRecordError, MissingObjectError, RecordTooLargeError
from txlog.protocol.context import Context
from txlog.protocol.put import put_pure
from txlog.protocol.table import state_partition

MAX_STAGED_INLINE_BYTES = 256 * 2**10
"""A longer list of staged files is written to a separate object, so that the table's records stay small."""


def partitions_of(ctx: Context, prepare: TransactionMetadata) -> Program[tuple[TopicPartition, ...]]:
    """Return the partitions that need a marker of a PREPARE_*.

    These are the registered ones and, for a commit, those of staged parts.
    """
    staged = yield from read_parts(ctx, prepare)
    parts = {part.topic_partition for part in staged} if prepare.state == "PREPARE_COMMIT" else set()
    return tuple(sorted({*prepare.partitions, *parts}))


def store_parts(
    ctx: Context, txn: TransactionMetadata, staged: tuple[StagedPart, ...]
) -> Program[tuple[tuple[StagedPart, ...], StagedObject | None]]:
    """Return what the record of `txn` holds: the parts, or the object to which a long list was written.

    Raises RecordTooLargeError.
    """
    # Base64 makes rows a third longer, and what else a part with inline rows has is below 1 KiB.
    limit = MAX_STAGED_INLINE_BYTES
    most = sum(2 * len(part.payload) + 1024 if part.payload else limit + 1 for part in staged)
    if most <= limit or len(msgspec.json.encode(staged)) <= limit:
        return staged, None
    unique = yield NewId()
    name = names.staged_list_name(txn.producer_id, txn.producer_epoch, unique)
    data = envelope.encode(StagedList(staged=staged))
    if len(data) > envelope.MAX_OBJECT_BYTES:
        raise RecordTooLargeError(
            f"transactional.id {txn.transactional_id!r}: a list of staged files of {len(data)} bytes, more than the "
            f"{envelope.MAX_OBJECT_BYTES} that one may have; write fewer and larger files"
        )
    yield from put_pure(ctx, state_partition(ctx, txn.transactional_id).folder + name, data)
    return (), StagedObject(name=name, bytes=len(data), digest=envelope.digest(data))


def read_parts(ctx: Context, txn: TransactionMetadata) -> Program[tuple[StagedPart, ...]]:
    """Return the staged parts of `txn`, checked. Raises CorruptRecordError or MissingObjectError."""
    table = state_partition(ctx, txn.transactional_id).folder
    where = f"{table} transactional.id {txn.transactional_id!r}"
    if txn.staged_object is None:
        check_targets(txn.partitions, txn.staged, where)
        return txn.staged
    if names.parse_staged_list_name(txn.staged_object.name) is None:
        raise CorruptRecordError(
            f"transactional.id {txn.transactional_id!r}: {txn.staged_object.name!r} is not the name of a staged list"
        )
    path = table + txn.staged_object.name
    data = yield Get(path)
    if data is None:
        raise MissingObjectError(
            f"{path}: the staged files of transactional.id {txn.transactional_id!r} are listed there, and it is gone"
        )
    if envelope.digest(data) != txn.staged_object.digest:
        raise CorruptRecordError(f"{path}: its digest is not the one in the PREPARE record of {txn.transactional_id!r}")
    if len(data) != txn.staged_object.bytes:
        raise CorruptRecordError(
            f"{path}: it has {len(data)} bytes, and the PREPARE record of {txn.transactional_id!r} says "
            f"{txn.staged_object.bytes}"
        )
    value, _ = envelope.decode(data, StagedList, path)
    check_targets(txn.partitions, value.staged, path)
    return value.staged
