"""Which offset ranges of a partition belong to aborted transactions?

Entries are in the order of their ABORT markers. An entry is in the index of the segment with the marker, not of the
segment with the rows. So a search goes on into later segments until it is complete. See
PROTOCOL.md, "Transaction index"; Kafka's TransactionIndex.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from txlog.core import names
from txlog.core.names import SegmentName
from txlog.core.records import NO_OFFSET, AbortedTxn, CommitRecord, IndexEntry, TxnIndex
from txlog.errors import CorruptRecordError
from txlog.text import count_text


@dataclass(frozen=True, slots=True, kw_only=True)
class TxnIndexSearchResult:
    """Aborted transactions that overlap the range. If `is_complete`, later entries cannot overlap it."""

    aborted: tuple[AbortedTxn, ...]
    is_complete: bool


def aborted_txn_of(record: CommitRecord) -> AbortedTxn | None:
    """Return the index entry of a commit record: only an ABORT of a transaction with rows in this partition has one."""
    if record.kind != "abort" or record.first_offset == NO_OFFSET:
        return None
    return AbortedTxn(
        producer_id=record.producer_id,
        first_offset=record.first_offset,
        last_offset=record.base_offset,
        last_stable_offset=record.last_stable_offset,
    )


def collect_aborted_txns(
    txns: Iterable[AbortedTxn], *, fetch_offset: int, upper_bound_offset: int
) -> TxnIndexSearchResult:
    """Return the aborted transactions that overlap a range (R10), as Kafka's TransactionIndex does.

    The range is `[fetch_offset, upper_bound_offset)`.
    """
    found = []
    for txn in txns:
        if txn.last_offset >= fetch_offset and txn.first_offset < upper_bound_offset:
            found.append(txn)
        # Every transaction that was open at that time had begun at or above the stable offset, so no later entry can
        # overlap. This holds because the stored offset is the one just after this marker.
        if txn.last_stable_offset >= upper_bound_offset:
            return TxnIndexSearchResult(aborted=tuple(found), is_complete=True)
    return TxnIndexSearchResult(aborted=tuple(found), is_complete=False)


def check_txn_index(
    txn_index: TxnIndex,
    name: SegmentName,
    path: str,
    *,
    expected: int | None = None,
    entries: Sequence[IndexEntry] | None = None,
) -> None:
    """Raise CorruptRecordError naming `path` unless `txn_index` fits the segment `name` (R8).

    `expected` is the number of entries that the segment's `.index` announces, `entries` its batches. In generation 0
    the batches hold every ABORT marker. So a transaction index of another partition is detected even if all its offsets
    fit.
    """
    names.check_own(txn_index.partition, path)
    if expected is not None and len(txn_index.aborted) != expected:
        raise CorruptRecordError(
            f"{path}: holds {count_text(len(txn_index.aborted), 'aborted transaction')}, and the index announces {expected}"
        )
    last_offset = name.base_offset - 1
    last_stable_offset = 0
    for txn in txn_index.aborted:
        if not last_offset < txn.last_offset < name.end_offset:
            raise CorruptRecordError(
                f"{path}: the ABORT marker at offset {txn.last_offset} of producer {txn.producer_id} is out of order or outside "
                f"[{name.base_offset}, {name.end_offset})"
            )
        if not txn.first_offset < txn.last_offset:
            raise CorruptRecordError(
                f"{path}: producer {txn.producer_id}: first offset {txn.first_offset} is not below the marker's, {txn.last_offset}"
            )
        if not last_stable_offset <= txn.last_stable_offset <= txn.last_offset + 1:
            raise CorruptRecordError(
                f"{path}: last stable offset {txn.last_stable_offset} at the marker {txn.last_offset}: expected "
                f"{last_stable_offset} to {txn.last_offset + 1}"
            )
        last_offset, last_stable_offset = txn.last_offset, txn.last_stable_offset
    if entries is not None and not name.generation:
        _check_markers(txn_index, entries, path)


def _check_markers(txn_index: TxnIndex, entries: Sequence[IndexEntry], path: str) -> None:
    listed = {txn.last_offset: txn for txn in txn_index.aborted}
    opened: dict[int, list[int]] = {}
    log_start_moved = -1
    for entry in entries:
        if entry.kind == "log_start":
            log_start_moved = entry.base_offset
        if entry.kind == "data":
            if entry.transactional:
                firsts = opened.setdefault(entry.producer_id, [])
                # The log start may have moved, and the transaction's next rows may then have become its first.
                if not firsts or firsts[-1] < log_start_moved:
                    firsts.append(entry.base_offset)
            continue
        if entry.kind not in ("commit", "abort"):
            continue
        firsts = opened.pop(entry.producer_id, [])
        txn = listed.pop(entry.base_offset, None)
        if txn is None:
            if entry.kind == "abort" and firsts:
                raise CorruptRecordError(
                    f"{path}: the transaction of producer {entry.producer_id} that the marker at offset {entry.base_offset} "
                    f"aborted had rows from offset {firsts[0]} on, and is not in it"
                )
            continue
        if (entry.kind, entry.producer_id) != ("abort", txn.producer_id):
            raise CorruptRecordError(
                f"{path}: the index has {entry.kind} of producer {entry.producer_id} at offset {entry.base_offset}, and it "
                f"lists an ABORT of producer {txn.producer_id}; an object was swapped or copied"
            )
        # A transaction that began before the segment may have more rows here.
        if txn.first_offset not in firsts and txn.first_offset >= entries[0].base_offset:
            raise CorruptRecordError(
                f"{path}: the transaction of producer {txn.producer_id} that the marker at offset {txn.last_offset} aborted begins at "
                f"{firsts[0] if firsts else 'no offset'} in the index, and it says {txn.first_offset}; an object was swapped or copied"
            )
    for txn in listed.values():
        raise CorruptRecordError(f"{path}: the index has no marker at offset {txn.last_offset}")
