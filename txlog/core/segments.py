"""How are a segment's index and transaction index made and checked, and where in a segment is an offset or a timestamp?

`build_index` is a pure function of the segment's commit records, except for the one file that takes the inline rows
(W38). See PROTOCOL.md, "Segment index".

Entries of a transaction index are in the order of their ABORT markers. An entry is in the index of the segment with the
marker, not of the segment with the rows. So a search goes on into later segments until it is complete. See
PROTOCOL.md, "Transaction index"; Kafka's TransactionIndex.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from operator import attrgetter

import msgspec

from txlog.core import names
from txlog.core.names import SegmentName, TopicPartition
from txlog.core.records import (
    NO_OFFSET,
    NO_PRODUCER_ID,
    AbortedTxn,
    CommitRecord,
    DataFile,
    IndexedFile,
    IndexEntry,
    SegmentIndex,
    TxnIndex,
)
from txlog.errors import CorruptLogError, CorruptRecordError
from txlog.text import count_text


def build_index(
    tp: TopicPartition, records: Sequence[CommitRecord], last_digest: str, inline_file: DataFile | None
) -> tuple[SegmentIndex, TxnIndex | None]:
    """Return the generation-0 index of a segment, and its transaction index.

    A transaction index exists only if a marker in the segment aborted a transaction with rows. Otherwise return None.
    `records` are all records of one segment of `tp`, in order; `last_digest` is the digest of the last. `inline_file`
    holds the inline rows of all batches, in offset order, with an `_offset` column; None if no batch has inline rows.

    Raises CorruptLogError if the records are not one segment, or if the file does not hold exactly their inline rows.
    """
    if not records:
        raise CorruptLogError("a segment cannot be empty")
    base_offset = expected = records[0].base_offset
    inline = [record for record in records if record.payload_bytes]
    inline_rows = sum(record.records for record in inline)
    if (inline_file.rows if inline_file is not None else 0) != inline_rows:
        found = "none" if inline_file is None else f"{inline_file.path} with {inline_file.rows}"
        raise CorruptLogError(
            f"segment {base_offset}: {inline_rows} rows rode inline, and the file for them is {found}"
        )

    files: list[IndexedFile] = []
    entries: list[IndexEntry] = []
    inline_number = sum(len(record.files) for record in records)
    inline_row = 0
    for record in records:
        if record.base_offset != expected or record.segment_base != base_offset:
            raise CorruptLogError(
                f"segment {base_offset}: found the record of offset {record.base_offset} in segment "
                f"{record.segment_base} where offset {expected} was expected"
            )
        expected = record.end_offset
        check_rows(record, f"segment {base_offset}")
        file: int | None = None
        first_row = 0
        if record.files:
            file = len(files)
            files.extend(indexed_file(data_file, record.schema_id) for data_file in record.files)
        elif record.payload_bytes:
            file, first_row = inline_number, inline_row
            inline_row += record.records
        entries.append(
            IndexEntry(
                base_offset=record.base_offset,
                records=record.records,
                kind=record.kind,
                producer_id=record.producer_id,
                producer_epoch=record.producer_epoch,
                base_sequence=record.base_sequence,
                transactional=record.transactional,
                timestamp=record.timestamp,
                file=file,
                first_row=first_row,
            )
        )
    if inline_file is not None:
        # Rows of older schemas are written in the segment's newest schema, which can hold all of them.
        files.append(indexed_file(inline_file, max(record.schema_id for record in inline), offset_column=True))
    aborted = tuple(txn for txn in map(aborted_txn_of, records) if txn is not None)
    index = SegmentIndex(
        partition=str(tp),
        base_offset=base_offset,
        end_offset=expected,
        generation=0,
        files=tuple(files),
        entries=tuple(entries),
        aborted_txns=len(aborted),
        last_digest=last_digest,
    )
    return index, TxnIndex(partition=str(tp), aborted=aborted) if aborted else None


def indexed_file(
    file: DataFile, schema_id: int, *, offset_column: bool = False, sorted_by: Sequence[int] = ()
) -> IndexedFile:
    """Return a file for the table of an index; `sorted_by` has the meaning of IndexedFile's."""
    order = tuple(sorted_by) or msgspec.UNSET
    return IndexedFile(**file.file_fields, schema_id=schema_id, offset_column=offset_column, sorted_by=order)


def check_rows(record: CommitRecord, where: str) -> None:
    """Raise CorruptLogError unless the record names exactly one place for its rows. `where` begins the message.

    Rows are in files, inline, or (in internal topics) in entries. Only data batches and COMMITs have rows, and a data
    batch has at least one.
    """
    places = [bool(record.files), bool(record.payload_bytes), bool(record.entries)]
    if sum(places) > 1:
        raise CorruptLogError(
            f"{where}: the batch at offset {record.base_offset} has rows in more than one place: files, inline, entries"
        )
    if record.records == 0 and (record.kind == "data" or any(places)):
        raise CorruptLogError(
            f"{where}: the {record.kind} batch at offset {record.base_offset} says that it has no rows"
        )
    if record.records > 0 and (record.kind not in {"data", "commit"} or not any(places)):
        raise CorruptLogError(
            f"{where}: the {record.kind} batch at offset {record.base_offset} cannot have {record.records} rows"
        )
    found = sum(file.rows for file in record.files) if record.files else len(record.entries) or record.records
    if found != record.records:
        raise CorruptLogError(
            f"{where}: the batch at offset {record.base_offset} has {record.records} rows, and "
            f"what it names holds {found}"
        )


def check_files(files: Iterable[DataFile], tp: TopicPartition, path: str) -> None:
    """Raise CorruptRecordError, beginning with `path`, unless the files can be the partition's.

    They must also have as many rows as their row groups.
    """
    for file in files:
        try:
            names.check_data_path(tp.topic, tp.partition, file.path)
        except CorruptRecordError as error:
            raise CorruptRecordError(f"{path}: {error}") from None
        if sum(file.row_groups) != file.rows:
            raise CorruptRecordError(
                f"{path}: {file.path}: {file.rows} rows, and its row groups hold {sum(file.row_groups)}"
            )


def floor_entry(index: SegmentIndex, offset: int) -> int:
    """Return the position of the last entry that begins at or below `offset`; -1 if there is no such entry.

    In generation 0 that entry contains the offset, if the segment does.
    """
    return bisect_right(index.entries, offset, key=attrgetter("base_offset")) - 1


def end_of_entry(index: SegmentIndex, at: int) -> int:
    """Return the offset after the last one that a row of entry `at` can have.

    Rows of a cleaned run's entry may have gaps.
    """
    if not index.generation:
        return index.entries[at].end_offset
    return index.entries[at + 1].base_offset if at + 1 < len(index.entries) else index.end_offset


def is_coalesced(index: SegmentIndex, entry: IndexEntry) -> bool:
    """Return whether an entry may stand for several batches: it is in a cleaned run and has no producer."""
    return index.generation > 0 and entry.producer_id == NO_PRODUCER_ID and not entry.transactional


def first_at_or_after_timestamp(index: SegmentIndex, timestamp: int) -> int | None:
    """Return the position of the first entry whose timestamp is at least `timestamp` (ms); else None.

    Entries without rows do not count. Timestamps of a partition never decrease. A coalesced entry of a cleaned run has
    the timestamp of its last row, so the entry found contains the wanted row.
    """
    at = bisect_left(index.entries, timestamp, key=attrgetter("timestamp"))
    return next((position for position in range(at, len(index.entries)) if index.entries[position].records), None)


def check_index(index: SegmentIndex, name: SegmentName, path: str) -> None:
    """Raise CorruptRecordError naming `path` unless the index is what its name says and is consistent (R8).

    `path` is relative to the root, `<topic>/<partition>/<name>`. The checks are:

    * Partition, base offset, end offset and generation are those of the name.
    * Entries are in order and, in generation 0, without gaps.
    * Every file can belong to this partition.
    * The rows of every batch are inside the files that it names.

    A read can be planned from an index that passes, without any other check.
    """
    if (index.base_offset, index.end_offset, index.generation) != (name.base_offset, name.end_offset, name.generation):
        raise CorruptRecordError(
            f"{path}: holds segment {index.base_offset} to {index.end_offset} of generation {index.generation}, and "
            f"its name says {name.base_offset} to {name.end_offset} of generation {name.generation}"
        )
    names.check_own(index.partition, path)
    topic, _, rest = path.partition("/")
    partition = rest.partition("/")[0]
    check_files(index.files, TopicPartition(topic, int(partition) if partition.isdecimal() else -1), path)
    at, time = index.base_offset, -1
    for number, entry in enumerate(index.entries):
        if entry.base_offset < at or (index.generation == 0 and entry.base_offset != at):
            raise CorruptRecordError(f"{path}: entry {number} begins at offset {entry.base_offset}, expected {at}")
        if entry.timestamp < time:
            raise CorruptRecordError(
                f"{path}: entry {number} has timestamp {entry.timestamp}, the one before it {time}"
            )
        at, time = entry.end_offset, entry.timestamp
        _check_entry_rows(index, number, topic in names.INTERNAL_TOPICS, path)
    if index.last_stable_offset > index.end_offset:
        raise CorruptRecordError(
            f"{path}: last stable offset {index.last_stable_offset}, beyond the end at {index.end_offset}"
        )
    if at > index.end_offset or (index.generation == 0 and at != index.end_offset):
        raise CorruptRecordError(f"{path}: the entries end at offset {at}, the segment at {index.end_offset}")
    if bool(index.generation) == bool(index.last_digest):
        raise CorruptRecordError(f"{path}: generation {index.generation} with last_digest {index.last_digest[:12]!r}")
    _check_compacted(index, path)
    _check_aborts(index, path)
    if topic not in names.INTERNAL_TOPICS:
        _check_places(index, path)


def _check_compacted(index: SegmentIndex, path: str) -> None:
    compacted = index.compacted
    if compacted is msgspec.UNSET:
        return
    ends = [item.end_offset for item in compacted.tombstones]
    if not index.generation or compacted.end_offset > index.end_offset or ends != sorted({*ends}) or any(
        end > compacted.end_offset for end in ends
    ):  # fmt: skip
        raise CorruptRecordError(
            f"{path}: generation {index.generation}, offsets up to {index.end_offset}: it cannot have been compacted "
            f"up to {compacted.end_offset}, with tombstones up to {ends}"
        )


def _check_aborts(index: SegmentIndex, path: str) -> None:
    """Raise CorruptRecordError if the index announces fewer aborted transactions than its entries show.

    Readers would otherwise return the rows of the missing ones.
    """
    if index.generation:
        return
    opened: set[int] = set()
    least = most = 0
    for entry in index.entries:
        if entry.kind == "data":
            if entry.transactional:
                opened.add(entry.producer_id)
        elif entry.kind == "abort":
            most += 1
            least += entry.producer_id in opened
        if entry.kind in ("commit", "abort"):
            opened.discard(entry.producer_id)
    if not least <= index.aborted_txns <= most:
        raise CorruptRecordError(
            f"{path}: it announces {index.aborted_txns} aborted transactions, and its entries show {least} to {most}"
        )


def _check_places(index: SegmentIndex, path: str) -> None:
    """Raise CorruptRecordError unless the entries use all rows of the files in order (PROTOCOL.md, R8)."""
    before = list(accumulate((file.rows for file in index.files), initial=0))
    # In generation 0 the inline rows are in a separate file, the last one.
    inline = len(index.files) - 1 if not index.generation and index.files and index.files[-1].offset_column else None
    odd = [
        file.path
        for number, file in enumerate(index.files)
        if file.offset_column != (bool(index.generation) or number == inline)
    ]
    if odd:
        raise CorruptRecordError(
            f"{path}: `offset_column` of {odd[0]} is not what it is in generation {index.generation}"
        )
    if not index.generation and any(file.sorted_by for file in index.files):
        raise CorruptRecordError(f"{path}: a file has `sorted_by`, which only files of a run have, in generation 0")
    rows, inline_rows = 0, 0 if inline is None else before[inline]
    for number, entry in enumerate(index.entries):
        if not entry.records or entry.file is None:
            continue
        expected = inline_rows if entry.file == inline else rows
        found = before[entry.file] + entry.first_row
        if found != expected:
            raise CorruptRecordError(
                f"{path}: entry {number} begins at row {entry.first_row} of file {entry.file}, {found - expected:+d} "
                "rows from the end of the entry before it"
            )
        if entry.file == inline:
            inline_rows += entry.records
        else:
            rows += entry.records
    ends = (before[-1] if inline is None else before[inline], before[-1])
    if (rows, inline_rows if inline is not None else before[-1]) != ends:
        raise CorruptRecordError(f"{path}: its files have {before[-1]} rows, and its entries do not take them all")


def _check_entry_rows(index: SegmentIndex, number: int, internal: bool, path: str) -> None:
    entry = index.entries[number]
    if entry.records and entry.kind not in {"data", "commit"}:
        raise CorruptRecordError(
            f"{path}: entry {number}: a batch of kind {entry.kind} cannot have {entry.records} rows"
        )
    if entry.file is None:
        if entry.records and not internal:
            raise CorruptRecordError(f"{path}: entry {number} has {entry.records} rows and names no file")
        return
    if not 0 <= entry.file < len(index.files):
        raise CorruptRecordError(f"{path}: entry {number} names file {entry.file} of a table of {len(index.files)}")
    if entry.first_row and entry.first_row >= index.files[entry.file].rows:
        raise CorruptRecordError(
            f"{path}: entry {number} begins at row {entry.first_row} of a file of {index.files[entry.file].rows}"
        )
    wanted, file = entry.records + entry.first_row, entry.file
    while wanted > 0 and file < len(index.files):
        wanted -= index.files[file].rows
        file += 1
    if wanted > 0:
        raise CorruptRecordError(f"{path}: entry {number} names {wanted} rows more than its files hold")
    # The files are as their writer made them: each belongs to one batch alone, and the batch uses all of its rows.
    if index.generation == 0 and not index.files[entry.file].offset_column and (wanted or entry.first_row):
        raise CorruptRecordError(f"{path}: entry {number} uses {entry.file} and the next files only in part")


# -- transaction indexes ----------------------------------------------------------------------------------------------


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
) -> tuple[tuple[AbortedTxn, ...], bool]:
    """Return the aborted transactions that overlap a range, and whether the search is complete (R10).

    The range is `[fetch_offset, upper_bound_offset)`. After a complete search no later entry can overlap it. Kafka's
    TransactionIndex searches in the same way.
    """
    found = []
    for txn in txns:
        if txn.last_offset >= fetch_offset and txn.first_offset < upper_bound_offset:
            found.append(txn)
        # Every transaction that was open at that time had begun at or above the stable offset, so no later entry can
        # overlap. This holds because the stored offset is the one just after this marker.
        if txn.last_stable_offset >= upper_bound_offset:
            return tuple(found), True
    return tuple(found), False


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
            f"{path}: holds {count_text(len(txn_index.aborted), 'aborted transaction')}, and the "
            f"index announces {expected}"
        )
    last_offset = name.base_offset - 1
    last_stable_offset = 0
    for txn in txn_index.aborted:
        if not last_offset < txn.last_offset < name.end_offset:
            raise CorruptRecordError(
                f"{path}: the ABORT marker at offset {txn.last_offset} of producer {txn.producer_id} is out of order "
                f"or outside [{name.base_offset}, {name.end_offset})"
            )
        if not txn.first_offset < txn.last_offset:
            raise CorruptRecordError(
                f"{path}: producer {txn.producer_id}: first offset {txn.first_offset} is not below the "
                f"marker's, {txn.last_offset}"
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
                    f"{path}: the transaction of producer {entry.producer_id} that the marker at offset "
                    f"{entry.base_offset} aborted had rows from offset {firsts[0]} on, and is not in it"
                )
            continue
        if (entry.kind, entry.producer_id) != ("abort", txn.producer_id):
            raise CorruptRecordError(
                f"{path}: the index has {entry.kind} of producer {entry.producer_id} at offset {entry.base_offset}, "
                f"and it lists an ABORT of producer {txn.producer_id}; an object was swapped or copied"
            )
        # A transaction that began before the segment may have more rows here.
        if txn.first_offset not in firsts and txn.first_offset >= entries[0].base_offset:
            raise CorruptRecordError(
                f"{path}: the transaction of producer {txn.producer_id} that the marker at offset {txn.last_offset} "
                f"aborted begins at {firsts[0] if firsts else 'no offset'} in the index, and it says "
                f"{txn.first_offset}; an object was swapped or copied"
            )
    for txn in listed.values():
        raise CorruptRecordError(f"{path}: the index has no marker at offset {txn.last_offset}")
