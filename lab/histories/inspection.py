"""How does the checker read the log itself? Programs of effects; the driver and a simulation run them."""

from __future__ import annotations

from lab.histories.events import (
    Batch,
    Inspect,
    InspectTransactions,
    OpenTransaction,
    TransactionRecord,
)
from txlog.core import chain, envelope, names
from txlog.core.effects import Get, List, Program
from txlog.core.names import TRANSACTION_STATE_TOPIC, TopicPartition
from txlog.core.record_checks import stored_records
from txlog.core.records import SegmentIndex, TransactionEntry
from txlog.errors import MissingObjectError
from txlog.protocol.context import Context
from txlog.protocol.load import load


def inspect_partition(ctx: Context, tp: TopicPartition, *, final: bool = False) -> Program[Inspect]:
    """Return every batch from the log start on, the open transactions, and the digest of the last record."""
    view = yield from load(ctx, tp)
    batches: list[Batch] = []
    for name in view.walk:
        path = tp.folder + name.index
        data = yield Get(path)
        if data is None:
            raise MissingObjectError(f"{path}: the log names it, and it is gone")
        index, _ = envelope.decode(data, SegmentIndex, path)
        batches.extend(
            Batch(
                base_offset=entry.base_offset,
                records=entry.records,
                kind=entry.kind,
                producer_id=entry.producer_id,
                producer_epoch=entry.producer_epoch,
                transactional=entry.transactional,
            )
            for entry in index.entries
        )
    batches.extend(
        Batch(
            base_offset=stored.record.base_offset,
            records=stored.record.records,
            kind=stored.record.kind,
            producer_id=stored.record.producer_id,
            producer_epoch=stored.record.producer_epoch,
            transactional=stored.record.transactional,
        )
        for stored in view.tail
    )
    opened = tuple(
        OpenTransaction(
            producer_id=entry.producer_id, producer_epoch=entry.producer_epoch, first_offset=entry.txn_first_offset
        )
        for entry in view.state.open_transactions
    )
    return Inspect(
        topic=tp.topic,
        partition=tp.partition,
        batches=tuple(batches),
        open=opened,
        digest=view.state.last_digest,
        final=final,
    )


def inspect_transactions(ctx: Context) -> Program[InspectTransactions]:
    """Return the records of the transaction-state table whose slots still exist."""
    found: list[TransactionRecord] = []
    for number in range(ctx.constants.transaction_state_partitions):
        tp = TopicPartition(TRANSACTION_STATE_TOPIC, number)
        listed = yield List(tp.folder)
        # Below the boundary a late write may have recreated a slot. That slot is not part of the log.
        for base_offset in chain.parse_listing(listed, tp.folder).batches:
            data = yield Get(tp.folder + names.batch_name(base_offset))
            if data is None:
                continue
            records = (stored.record for stored in stored_records(data, tp, base_offset))
            found.extend(
                TransactionRecord(
                    offset=record.base_offset,
                    transactional_id=entry.key,
                    producer_id=entry.value.producer_id,
                    producer_epoch=entry.value.producer_epoch,
                    last_epoch=entry.value.last_epoch,
                    state=entry.value.state,
                )
                for record in records
                for entry in record.entries
                if isinstance(entry, TransactionEntry) and entry.value is not None
            )
    return InspectTransactions(records=tuple(found))
