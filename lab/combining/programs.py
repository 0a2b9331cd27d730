"""How does a batch get into the log by the record of another writer? The names of the rules are those of
`lab/scale/many-writers.md`.
"""

from __future__ import annotations

from lab.combining.rules import combined, draft_of, folder, shows_all, waiting_name
from lab.one_phase.rules import is_attached
from txlog.core.append_rules import BatchDraft, Duplicate, Refuse, check_batch, next_record
from txlog.core.effects import Delete, Gather, List, NewId, Now, Program, PutIfAbsent
from txlog.core.names import TopicPartition, batch_name
from txlog.core.record_checks import StoredRecord, stored_record
from txlog.core.records import TransactionMetadata
from txlog.core.transactions import not_registered_error
from txlog.errors import (
    CorruptRecordError,
    InvalidProducerEpochError,
    OutcomeUnknownError,
    UnknownTopicOrPartitionError,
)
from txlog.protocol.context import Context, PartitionView, Views, with_view
from txlog.protocol.load import get_fresh_view, get_view, refresh
from txlog.protocol.requests import get
from txlog.protocol.slot import AppendResult, encode_checked, find_own
from txlog.protocol.table import look_up

_FINAL = (InvalidProducerEpochError, UnknownTopicOrPartitionError)
"""Refusals that each later fold repeats: no leader can append the batch any more (*answer*)."""


def wait(
    ctx: Context, views: Views, tp: TopicPartition, draft: BatchDraft, txn: TransactionMetadata | None = None
) -> Program[tuple[Views, StoredRecord]]:
    """Put a batch beside the log, as the record that its writer would have put into the next slot.

    `txn` is the attached instance of a commit in one phase. The outcome of the request does not matter: from here on
    the batch may be taken. Raises the refusal of the table if the partition does not know the producer (*consent*).
    """
    write_id = yield NewId()
    views, view = yield from get_view(ctx, views, tp)
    if txn is not None and txn.producer_id not in view.state.producers:
        yield from consent(ctx, views, tp, txn)
    record = next_record(view.state, draft, now_ms=(yield Now()), write_id=write_id)
    stored = encode_checked(tp, record, draft.payload)
    yield PutIfAbsent(folder(tp) + waiting_name(stored), stored.data)
    return views, stored


def consent(ctx: Context, views: Views, tp: TopicPartition, txn: TransactionMetadata) -> Program[None]:
    """Raise what refuses the instance unless the table, read now, shows it attached (*consent*)."""
    _, current = yield from look_up(ctx, views, txn.transactional_id)
    if not is_attached(current, txn, tp):
        raise not_registered_error(current, txn, tp)


def answered(
    ctx: Context, views: Views, tp: TopicPartition, stored: StoredRecord
) -> Program[tuple[Views, AppendResult | None]]:
    """Look once for the outcome of a batch that waits (*answer*). None: not yet.

    Raises the refusal if no leader can append the batch any more.
    """
    draft = draft_of(stored)
    views, view = yield from get_fresh_view(ctx, views, tp)
    own = find_own(view, stored.record.write_id)
    if own is not None:
        yield Delete(folder(tp) + waiting_name(stored))
        return views, own
    verdict = check_batch(view.state, draft)
    if isinstance(verdict, Duplicate):
        return views, AppendResult(verdict.base_offset, draft.records, verdict.timestamp, duplicate=True)
    # A later state has forgotten the batches of an epoch that is over, so only the records show that it is not there.
    if isinstance(verdict, Refuse) and isinstance(verdict.error, _FINAL) and shows_all(view, stored):
        raise verdict.error
    return views, None


def lead(ctx: Context, views: Views, tp: TopicPartition, *own: StoredRecord) -> Program[Views]:
    """Append what waits, with the leader's own batches, as one record. It may be lost to another writer."""
    names = yield List(folder(tp))
    found = (yield Gather(tuple(get(folder(tp) + name) for name in names))) if names else ()
    read = [_waiting(data, tp, name) for name, data in zip(names, found, strict=True)]
    others = [each for each in read if each is not None]
    mine = {each.record.write_id for each in own}
    views, view = yield from get_fresh_view(ctx, views, tp)
    batches = [*own, *(each for each in others if each.record.write_id not in mine)]
    placed = combined(view, batches, (yield Now()))
    if placed:
        view = yield from _put(ctx, view, placed)
    return with_view(views, view)


def give_up(tp: TopicPartition) -> OutcomeUnknownError:
    """Return the error of a writer whose time is over while its batch waits: any leader may still take it."""
    return OutcomeUnknownError(f"{tp}: the batch waits, and a leader may still take it")


def _put(ctx: Context, view: PartitionView, placed: tuple[StoredRecord, ...]) -> Program[PartitionView]:
    tp = view.topic_partition
    yield PutIfAbsent(tp.folder + batch_name(placed[0].slot), b"".join(each.data for each in placed))
    # The record in the slot decides, also after an outcome that is not known (W12).
    return (yield from refresh(ctx, view))


def _waiting(data: bytes | None, tp: TopicPartition, name: str) -> StoredRecord | None:
    """Return what waits; None if it is gone, damaged or has another name. Nothing refers to it, so it is left out."""
    try:
        return None if data is None else stored_record(data, tp, int(name.partition("-")[0]))
    except (CorruptRecordError, ValueError):
        return None
