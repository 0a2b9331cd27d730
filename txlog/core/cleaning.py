"""Which sealed segments does a merge combine, how is the run's index made, and may it still be published?

Pure functions: they take names, indexes and the last `.clean`, and return decisions (PROTOCOL.md, "Clean-up", C1 to
C5).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from txlog.core.ages import MAX_CLOCK_ERROR_MS
from txlog.core.chain import NO_CLEAN, PartitionListing
from txlog.core.fates import walk_batches
from txlog.core.names import SegmentName, TopicPartition
from txlog.core.records import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    AbortedTxn,
    Clean,
    CleanedRun,
    Compaction,
    DataFile,
    IndexedFile,
    IndexEntry,
    SegmentIndex,
    Superseded,
    TransactionMetadata,
    TxnIndex,
)
from txlog.core.snapshots import epoch_shown_with
from txlog.core.transactions import COMPLETE, PREPARED
from txlog.errors import CorruptLogError

if TYPE_CHECKING:
    # The command line imports this module for `--help`, which should not load numpy.
    from txlog.core.partitioning import Offsets

MARKERS = frozenset({"commit", "abort"})
MAX_COALESCED_ROWS = 131_072
"""Rows of an entry that stands for many batches. A read by offset opens at most this many, as many as a row group
has."""
COALESCED_MS = 3_600_000
"""All batches of one entry are of the same hour, however often they are merged: retention of a compacted run removes
whole entries."""
_SHARED = {
    "kind": "data",
    "producer_id": NO_PRODUCER_ID,
    "producer_epoch": NO_PRODUCER_EPOCH,
    "base_sequence": NO_SEQUENCE,
    "transactional": False,
}
"""Fields of an entry that stands for many batches."""

DEFAULT_MAX_KEYS = 5_000_000
"""Keys that one pass of a compaction can hold, at 24 bytes each: as many as Kafka's default
log.cleaner.dedupe.buffer.size of 128 MiB."""
DEFAULT_TARGET_BYTES = 512 * 2**20
"""Compressed size of a merged file: half of Kafka's default segment, four times Spark's default split."""


DEFAULT_MIN_SEGMENTS = 10
"""Sealed segments that a partition must have before maintenance merges them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergePolicy:
    """How large a merged run should be."""

    target_bytes: int = DEFAULT_TARGET_BYTES
    """Target size of one run's Parquet file. Runs of at least half that size are not rewritten."""
    max_inputs: int = 10_000
    """Segments and runs that one run may combine."""
    max_ratio: int = 0
    """A member with more than this many times the bytes of all other members is not rewritten until the others have
    grown. Otherwise a job that merges again for each new segment would rewrite the large member each time. 0: no
    limit."""
    rewrite: frozenset[str] = frozenset()
    """Paths of files that are rewritten whatever their size: other formats would misread them."""


def count_small(files: Iterable[DataFile]) -> int:
    """Return how many files have less than half the size that a merge aims at by default."""
    return sum(file.bytes * 2 < DEFAULT_TARGET_BYTES for file in files)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLayout:
    """How a run's file is laid out, beyond what the protocol requires. Names are those of the topic's columns."""

    sort: tuple[str, ...] = ()
    """Columns by which neighbouring rows are sorted, nulls last. Each row keeps its own `_offset`."""
    bloom: tuple[str, ...] = ()
    """Columns that get a Bloom filter per row group."""


PLAIN = FileLayout()
"""Rows in the order of offsets, no filters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What a compaction or an erasure keeps of the batches of its inputs: all in order, markers included."""

    rows: Offsets
    """Rows kept of each batch."""
    timestamps: Offsets
    """Timestamp of the last kept row of each batch (ms); without meaning for a batch that keeps no row."""
    compaction: Compaction | None = None
    """None: what is left of the inputs' compactions."""

    def of(self, at: int, entry: IndexEntry) -> IndexEntry:
        """Return `entry`, which is batch number `at`, with only the rows that are kept."""
        records = int(self.rows[at])
        timestamp = int(self.timestamps[at]) if records else entry.timestamp
        return msgspec.structs.replace(entry, records=records, timestamp=timestamp)


def choose_merges(
    walk: Sequence[SegmentName],
    indexes: Mapping[SegmentName, SegmentIndex],
    *,
    log_start_offset: int,
    last_stable_offset: int,
    policy: MergePolicy,
) -> tuple[tuple[SegmentName, ...], ...]:
    """Return groups of neighbours to merge into one run each, oldest first.

    Each group lies wholly below the LSO and has no member wholly below the log start. It has at least two members, or
    one whose rows lie in several files, or in one that must be rewritten. `indexes` holds those of the whole walk. Any
    other member with one file of at least half the target size is not rewritten, so no row is merged more than a few
    times.
    """
    groups: list[tuple[SegmentName, ...]] = []
    group: list[SegmentName] = []
    size = 0

    def must(index: SegmentIndex) -> bool:
        return any(file.path in policy.rewrite for file in index.files)

    def close() -> None:
        nonlocal group, size
        parts = _without_large(group, indexes, policy.max_ratio)
        groups.extend(
            tuple(part)
            for part in parts
            if len(part) > 1 or (part and (len(indexes[part[0]].files) > 1 or must(indexes[part[0]])))
        )
        group, size = [], 0

    for name in walk:
        if name.end_offset > last_stable_offset:
            break
        if name.end_offset <= log_start_offset:
            continue
        index = indexes[name]
        its_bytes = sum(file.bytes for file in index.files)
        if len(index.files) == 1 and its_bytes * 2 >= policy.target_bytes:
            close()
            if must(index):
                groups.append((name,))
            continue
        if group and (size + its_bytes > policy.target_bytes or len(group) >= policy.max_inputs):
            close()
        group.append(name)
        size += its_bytes
    close()
    return tuple(groups)


def choose_erasures(
    walk: Sequence[SegmentName],
    indexes: Mapping[SegmentName, SegmentIndex],
    *,
    may_match: Callable[[SegmentName], bool],
    log_start_offset: int,
    last_stable_offset: int,
    end_offset: int,
    target_bytes: int,
) -> tuple[tuple[SegmentName, ...], ...]:
    """Return groups of neighbours in which rows below `end_offset` may have to be erased, oldest first (C15).

    As in a merge, each group lies wholly below the LSO, and no member lies wholly below the log start. It has about
    `target_bytes` at most.
    """
    groups: list[list[SegmentName]] = []
    size = 0
    for name in walk:
        if name.base_offset >= end_offset or name.end_offset > last_stable_offset:
            break
        if name.end_offset <= log_start_offset or not may_match(name):
            continue
        its_bytes = sum(file.bytes for file in indexes[name].files)
        is_next = bool(groups) and groups[-1][-1].end_offset == name.base_offset
        if is_next and size + its_bytes <= target_bytes:
            groups[-1].append(name)
            size += its_bytes
        else:
            groups.append([name])
            size = its_bytes
    return tuple(map(tuple, groups))


def merged_run(inputs: Sequence[SegmentName], unique: str) -> CleanedRun:
    """Return the run that replaces `inputs`, which are neighbours in order (C1).

    Raises CorruptLogError if there is a gap between two inputs.
    """
    for before, after in itertools.pairwise(inputs):
        if before.end_offset != after.base_offset:
            raise CorruptLogError(f"{before.index} and {after.index} are not neighbours: a run cannot have holes")
    return CleanedRun(
        base_offset=inputs[0].base_offset,
        end_offset=inputs[-1].end_offset,
        generation=1 + max(name.generation for name in inputs),
        unique=unique,
    )


def merged_index(
    tp: TopicPartition,
    run: CleanedRun,
    inputs: Sequence[tuple[SegmentIndex, Sequence[AbortedTxn]]],
    aborted: Iterable[AbortedTxn],
    file: IndexedFile | None,
    *,
    log_start_offset: int,
    keeps_distinct: Callable[[IndexEntry], bool],
    kept: Kept | None = None,
) -> tuple[SegmentIndex, TxnIndex | None]:
    """Return the index and the transaction index of a run that keeps the committed rows of `inputs`.

    The run keeps all committed rows, or only those that `kept` names. `inputs` are the indexes, each with the aborted
    transactions whose markers it holds. `aborted` holds all aborted transactions that overlap the run, also those whose
    markers come later. (Below the LSO no marker can come later, but the caller need not know that.)

    `file` holds the kept rows in order of offsets; without rows there is no file.

    A batch for which `keeps_distinct` is true keeps its producer, epoch and offsets (C3), even if no row of it is left.
    Other batches are combined into shared entries. Raises CorruptLogError if the file does not have as many rows as the
    batches.
    """
    compacted = (kept.compaction if kept is not None else None) or _compacted([index for index, _ in inputs])
    entries, row = _merged_entries(tp, [index for index, _ in inputs], aborted, keeps_distinct, kept, compacted)
    if row != (file.rows if file is not None else 0):
        raise CorruptLogError(
            f"{tp}: the batches of {run.name.index} have {row} rows, and "
            f"{'no file was written' if file is None else f'{file.path} holds {file.rows}'}"
        )
    kept_aborted = tuple(txn for _, txns in inputs for txn in txns if txn.last_offset >= log_start_offset)
    made = SegmentIndex(
        partition=str(tp),
        base_offset=run.base_offset,
        end_offset=run.end_offset,
        generation=run.generation,
        files=() if file is None else (file,),
        entries=tuple(entries),
        aborted_txns=len(kept_aborted),
        last_digest="",
        last_stable_offset=inputs[-1][0].last_stable_offset,
        compacted=compacted,
    )
    return made, TxnIndex(partition=str(tp), aborted=kept_aborted) if kept_aborted else None


def rows_of_entries(
    tp: TopicPartition,
    inputs: Sequence[SegmentIndex],
    aborted: Iterable[AbortedTxn],
    keeps_distinct: Callable[[IndexEntry], bool],
) -> tuple[int, ...]:
    """Return the rows of each entry that `merged_index` makes of all committed rows, in order."""
    entries, _ = _merged_entries(tp, inputs, aborted, keeps_distinct, None, _compacted(inputs))
    return tuple(entry.records for entry in entries if entry.records)


def distinct_bounds(store_now_ms: int, grace_ms: int) -> tuple[int, int]:
    """Return from which times on a run that is planned at `store_now_ms` must keep transactions distinct (C3).

    The second one is for batches whose transactional.id the table lacks.

    A snapshot may be used for the grace, as two processes measure it. So a transaction that was complete a grace and
    two clock errors ago was complete before every snapshot that may still be used. The time of a COMPLETE_* has an
    error too, which makes three. A transaction of a removed id had begun at most a grace before its end, as two more
    clocks measured: five (PROTOCOL.md, "Time").
    """
    distinct_from_ms = store_now_ms - grace_ms - 3 * MAX_CLOCK_ERROR_MS
    return distinct_from_ms, distinct_from_ms - grace_ms - 2 * MAX_CLOCK_ERROR_MS


def settled_epochs(
    table: Iterable[TransactionMetadata], indexes: Iterable[SegmentIndex], before_ms: int
) -> dict[int, int]:
    """Return producer id -> the highest marker epoch whose transaction is known to be COMPLETE before `before_ms`.

    A later completion is not enough. A snapshot that began earlier and is younger than the grace may have seen the
    marker in one partition only. It must hide the transaction in both (C3). An id that the table lacks is not in the
    result. `indexes` may be of any part of a partition: a producer begins a transaction only after the one before it
    was COMPLETE.
    """
    settled = {}
    for txn in table:
        epoch, since_ms = txn.producer_epoch, txn.started_at if txn.state == "ONGOING" else txn.updated_at
        if txn.state in PREPARED or (txn.state in COMPLETE and since_ms >= before_ms):
            # The table shows only that the transaction before this one was complete when this one began.
            epoch, since_ms = epoch - 1, txn.started_at
        settled[txn.producer_id] = epoch if since_ms < before_ms else NO_PRODUCER_EPOCH
    for index in indexes:
        for entry in index.entries:
            known = settled.get(entry.producer_id)
            is_of_one = entry.kind in MARKERS or epoch_shown_with(entry) is not None
            if known is None or entry.timestamp >= before_ms or not is_of_one:
                continue
            epoch = entry.producer_epoch - (entry.kind in MARKERS)
            settled[entry.producer_id] = max(known, epoch)
    return settled


def next_clean(
    before: Clean | None, listing: PartitionListing, run: CleanedRun, inputs: Sequence[SegmentName], now_ms: int
) -> Clean | None:
    """Return the version of the list of runs that publishes `run`; None if an input is no longer current (C4).

    `before` is the `.clean` that `listing` shows as the highest. The new version lists what the run supersedes, with
    `now_ms`, and all that earlier versions list. Vacuum removes an entry when it has deleted the object (C5).
    """
    before = before or NO_CLEAN
    current = {each.name for each in before.runs}
    covered = [(each.base_offset, each.end_offset) for each in before.runs]
    segments = set(listing.segments)
    for name in inputs:
        if name.generation:
            if name not in current:
                return None
        elif name not in segments or any(base < name.end_offset and name.base_offset < end for base, end in covered):
            return None
    gone = set(inputs)
    runs = [each for each in before.runs if each.name not in gone]
    noted = {each.name for each in before.superseded}
    new = [Superseded(name=name.index, since=now_ms) for name in inputs if name.index not in noted]
    return Clean(
        number=before.number + 1,
        runs=tuple(sorted((*runs, run), key=lambda each: each.base_offset)),
        superseded=(*before.superseded, *new),
        created_at=now_ms,
    )


def _without_large(
    group: Sequence[SegmentName], indexes: Mapping[SegmentName, SegmentIndex], max_ratio: int
) -> list[Sequence[SegmentName]]:
    """Split `group` at each member that has more than `max_ratio` times the bytes of all others. Return the parts."""
    found: list[Sequence[SegmentName]] = []
    left = [group]
    while left:
        part = left.pop()
        sizes = [sum(file.bytes for file in indexes[name].files) for name in part]
        at = max(range(len(part)), key=sizes.__getitem__, default=0)
        is_large = max_ratio and len(part) > 1 and sizes[at] > max_ratio * (sum(sizes) - sizes[at])
        if is_large and len(indexes[part[at]].files) == 1:
            left += [part[at + 1 :], part[:at]]
        else:
            found.append(part)
    return found


def _compacted(inputs: Sequence[SegmentIndex]) -> Compaction | msgspec.UnsetType:
    """Return what a merge keeps of its inputs' compactions. A merge adds no row, so all of it stays true (C2a, C2b)."""
    found = [index.compacted for index in inputs if index.compacted is not msgspec.UNSET]
    if not found:
        return msgspec.UNSET
    furthest = max(found, key=lambda each: each.end_offset)
    tombstones = [each for one in found if one.key == furthest.key for each in one.tombstones]
    return msgspec.structs.replace(furthest, tombstones=tuple(tombstones))


def _merged_entries(
    tp: TopicPartition,
    inputs: Sequence[SegmentIndex],
    aborted: Iterable[AbortedTxn],
    keeps_distinct: Callable[[IndexEntry], bool],
    kept: Kept | None,
    compacted: Compaction | msgspec.UnsetType,
) -> tuple[list[IndexEntry], int]:
    """Return the entries of a run, and the sum of their rows."""
    clean_end = 0 if compacted is msgspec.UNSET else compacted.end_offset
    entries: list[IndexEntry] = []
    row = 0
    for at, batch in enumerate(walk_batches(tp=tp, indexes=inputs, aborted=aborted)):
        entry = batch.entry
        if batch.fate != "committed" or not isinstance(entry, IndexEntry):
            continue
        distinct = keeps_distinct(entry)
        if kept is not None:
            entry = kept.of(at, entry)
        if not entry.records:
            if distinct:
                entries.append(msgspec.structs.replace(entry, file=None, first_row=0))
            continue
        last = entries[-1] if entries else None
        if (
            not distinct
            and last is not None
            and (last.kind, last.producer_id, last.transactional) == ("data", NO_PRODUCER_ID, False)
            # An entry does not cross the compaction's end, so that compacted rows can be distinguished from the
            # others later.
            and not last.base_offset < clean_end <= entry.base_offset
            and last.records + entry.records <= MAX_COALESCED_ROWS
            and last.timestamp // COALESCED_MS == entry.timestamp // COALESCED_MS
        ):
            # The rows may have gaps: a run's offsets are in its `_offset` column.
            entries[-1] = msgspec.structs.replace(last, records=last.records + entry.records, timestamp=entry.timestamp)
        elif distinct:
            entries.append(msgspec.structs.replace(entry, file=0, first_row=row))
        else:
            entries.append(msgspec.structs.replace(entry, **_SHARED, file=0, first_row=row))
        row += entry.records
    return entries, row
