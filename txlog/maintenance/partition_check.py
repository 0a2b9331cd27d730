"""Is every object of one partition present, whole, and in agreement with the others?

The check compares everything that is stored twice.

* The fold of the records, with the snapshots.
* The records, with their index.
* The index, with the snapshot at its end.
* The files, with the objects that name them.

Only objects that PROTOCOL.md lets maintenance delete, or that a crash can leave undone, may be missing. Objects are
read one after the other. Memory holds at most the records of one segment, without their inline rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec

from txlog.core import chain, names
from txlog.core.names import INTERNAL_TOPICS, NumberedName, SegmentName, SegmentObject, TopicPartition
from txlog.core.record_checks import StoredRecord, stored_record
from txlog.core.records import (
    FIRST_DRAWN_PRODUCER_ID,
    Boundary,
    Clean,
    CommitRecord,
    DataFile,
    GroupEntry,
    IndexEntry,
    OffsetEntry,
    SchemaField,
    SegmentIndex,
    Snapshot,
    TransactionEntry,
    TxnIndex,
)
from txlog.core.segments import build_index, check_index
from txlog.core.snapshot_state import check_snapshot, from_snapshot, to_snapshot
from txlog.core.state import PartitionState, kept_lso, kept_snapshot, replay
from txlog.core.txn_index import check_txn_index
from txlog.errors import CorruptLogError, TxlogError, UnsupportedStoreError
from txlog.maintenance.decisions import SeenMarkers
from txlog.maintenance.file_check import Placed, check_inline_rows, check_rows_file
from txlog.maintenance.findings import LOST_RECORD, Reader, reason
from txlog.text import count_text, shorten

Schemas: TypeAlias = Mapping[int, tuple[SchemaField, ...]]
"""Columns of a topic by the version of its metadata that introduced them."""

_FOLD_RECORDS = 64
_FOLD_BYTES = 16 * 2**20
"""The fold copies its dictionaries once after so many records, or after so many bytes of records."""
_STATE = "the state that the records before it fold to"
_NAMED = 3
"""Number of names in a note about many objects."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What the check of a partition found out."""

    topic_partition: TopicPartition
    state: PartitionState | None
    """The fold of the whole chain. None if the end of the chain cannot be read because of damage."""
    markers: SeenMarkers
    """The markers that are still stored: in records, or in indexes of segments whose records were deleted."""
    boundary: int
    """The offset at which the chain begins."""
    is_whole: bool
    """Whether `markers` holds all markers from the boundary on."""
    hidden: Hidden | None
    """Records that were rightly deleted together with their indexes. None if there are none."""
    staged_files: frozenset[str]
    """Spark's files that a record or index names, relative to the topic's folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hidden:
    """Facts about records below the boundary of which maintenance has left nothing."""

    last_timestamp: int
    """No such record has a later timestamp."""
    snapshot: Snapshot
    """The state at the boundary."""


@dataclass(slots=True, kw_only=True)
class PartitionTask:
    """A partition to check, and what the check needs to know about it."""

    topic_partition: TopicPartition
    schemas: Schemas = field(default_factory=dict)
    last_version: int = 0
    """Number of the topic's newest version."""
    versions_are_whole: bool = True
    """Whether all versions could be read. Otherwise an unknown schema is not counted as damage of the record."""
    rows: bool = True
    """Whether data files are opened. Otherwise only their lengths are checked."""
    prepared_files: Collection[str] = ()
    """Files that a decided transaction will append, relative to the topic's folder."""
    on_record: Callable[[CommitRecord], None] | None = None
    """Called with each record of the chain that can be read, in order."""
    on_snapshot: Callable[[Snapshot], None] | None = None
    """Called in order with the snapshots up to the chain's first one, and with each at which the fold begins again."""


def check_partition(reader: Reader, task: PartitionTask) -> Checked:
    """Check every object of a partition, and report to the reader's findings. Raises StorageError if its LIST fails."""
    return _PartitionCheck(reader, task).run()


class _PartitionCheck:
    def __init__(self, reader: Reader, task: PartitionTask) -> None:
        self.reader = reader
        self.findings = reader.findings
        self.task = task
        self.tp = task.topic_partition
        self.folder = self.tp.folder
        self.internal = self.tp.topic in INTERNAL_TOPICS
        # List the files before the records. A later record can name a file that this LIST does not have, and such a file
        # is not an orphan.
        self.files = set(reader.list(f"{self.folder}rows/")) if not self.internal else set()
        self.listed = reader.list(self.folder)
        self.listing = chain.parse_listing(self.listed, self.folder)
        self.parsed = {name: parsed for name in self.listed if (parsed := names.parse_partition_object(name))}
        self.indexes: dict[SegmentName, SegmentIndex] = {}
        self.txn_indexes: dict[SegmentName, TxnIndex] = {}
        self.snapshots: dict[int, Snapshot] = {}
        self.named: set[str] = set()
        """Files that a record or index names, relative to the topic's folder."""
        self.checked_files: set[str] = set()
        self.matched: set[SegmentName] = set()
        """Indexes that were compared with the records of their segment."""
        self.markers = SeenMarkers()
        self.is_whole = True
        """Whether the fold reached the end of the chain from its beginning without a gap."""

    def run(self) -> Checked:
        self._check_strange_names()
        self._read_boundaries()
        clean, clean_is_known = self._read_cleans()
        self._read_snapshots()
        self._read_indexes()
        for name in sorted(self.indexes):
            # Below the boundary only the index of a marker is left. The other markers are in their records.
            if not name.generation and name.base_offset < self.listing.boundary:
                self.note_markers(self.indexes[name].entries)
        state = self._check_records()
        self._compare_indexes_with_snapshots()
        if clean_is_known:
            self._check_walk(clean, state)
        current = self._current(clean, 0 if state is None else state.log_start_offset)
        self._check_files(current)
        self._check_orphans(current)
        staged = frozenset(path for path in self.named if path.startswith("staged/"))
        return Checked(
            topic_partition=self.tp,
            state=state,
            markers=self.markers,
            boundary=self.listing.boundary,
            is_whole=self.is_whole,
            hidden=self._hidden(),
            staged_files=staged,
        )

    # -- objects one by one -------------------------------------------------------------------------------------------

    def _check_strange_names(self) -> None:
        strange = [
            name
            for name in self.listed
            if name not in self.parsed
            and name != "rows/"
            and not (self.tp.topic == names.TRANSACTION_STATE_TOPIC and names.parse_staged_list_name(name))
        ]
        self._note_many(self.folder, strange, "only names of txlog's", "not txlog's: {}", "move them elsewhere")
        odd = [name for name in self.files if names.parse_rows_path(f"{self.tp.partition}/rows/{name}") is None]
        self.files -= set(odd)
        self._note_many(f"{self.folder}rows/", odd, "only names of txlog's", "not txlog's: {}", "move them elsewhere")

    def _numbers(self, kind: str) -> list[int]:
        return sorted(p.number for p in self.parsed.values() if isinstance(p, NumberedName) and p.kind == kind)

    def _read_boundaries(self) -> None:
        for number in self._numbers("boundary"):
            path = self.folder + names.boundary_name(number)
            found = self.reader.read(path, Boundary, "boundary")
            if found is not None and found.offset != number:
                self.findings.damaged(path, f"offset {number}, as its name says", f"offset {found.offset}")

    def _read_cleans(self) -> tuple[Clean | None, bool]:
        """Return the highest `.clean`, and whether it could be read or does not exist."""
        highest: Clean | None = None
        known = True
        for number in self._numbers("clean"):
            path = self.folder + names.clean_name(number)
            highest = self.reader.read(path, Clean, "list of cleaned runs")
            known = highest is not None
            if highest is not None:
                try:
                    chain.check_clean(highest, number, path)
                except CorruptLogError as error:
                    self.findings.damaged(path, "ordered, disjoint runs under its own number", reason(error, path))
                    known = False
        return (highest if known else None), known

    def _read_snapshots(self) -> None:
        for number in self._numbers("snapshot"):
            path = self.folder + names.snapshot_name(number)
            found = self.reader.read(path, Snapshot, "snapshot")
            if found is None:
                continue
            if found.offset != number:
                self.findings.damaged(path, f"offset {number}, as its name says", f"offset {found.offset}")
                continue
            try:
                check_snapshot(found, path)
            except CorruptLogError as error:
                self.findings.damaged(path, "a state of the partition that it lies in", reason(error, path))
                continue
            self.snapshots[number] = found

    def _read_indexes(self) -> None:
        kinds: dict[SegmentName, set[str]] = {}
        for parsed in self.parsed.values():
            if isinstance(parsed, SegmentObject):
                kinds.setdefault(parsed.segment, set()).add(parsed.kind)
        for name in sorted(kinds):
            if "index" in kinds[name]:
                self._read_index(name)
        for name in sorted(kinds):
            if "txnindex" in kinds[name]:
                self._read_txn_index(name)
        for name, index in self.indexes.items():
            if index.aborted_txns and "txnindex" not in kinds[name]:
                self.findings.missing(
                    self.folder + name.txnindex,
                    f"{count_text(index.aborted_txns, 'aborted transaction')}, which the .index announces",
                )

    def _read_index(self, name: SegmentName) -> None:
        path = self.folder + name.index
        index = self.reader.read(path, SegmentIndex, "segment index")
        if index is None:
            return
        try:
            check_index(index, name, path)
        except CorruptLogError as error:
            self.findings.damaged(path, "an index that hangs together, of the segment in its name", reason(error, path))
            return
        self.indexes[name] = index

    def _read_txn_index(self, name: SegmentName) -> None:
        path = self.folder + name.txnindex
        found = self.reader.read(path, TxnIndex, "transaction index")
        if found is None:
            return
        index = self.indexes.get(name)
        try:
            check_txn_index(
                found,
                name,
                path,
                expected=None if index is None else index.aborted_txns,
                entries=None if index is None else index.entries,
            )
        except CorruptLogError as error:
            self.findings.damaged(path, "the aborted transactions of its segment", reason(error, path))
            return
        self.txn_indexes[name] = found

    def _current(self, clean: Clean | None, log_start: int) -> set[SegmentName]:
        """Return the names that readers use: current runs, and above the log start generation 0 where no run covers it."""
        runs = {run.name for run in clean.runs} if clean is not None else set()
        return runs | {
            name
            for name in self.indexes
            if not name.generation
            and name.end_offset > log_start
            and not any(run.base_offset <= name.base_offset and name.end_offset <= run.end_offset for run in runs)
        }

    # -- the chain of records -----------------------------------------------------------------------------------------

    def _check_records(self) -> PartitionState | None:
        """Fold the chain from the highest boundary on. Return the state at its end, or None if damage hides the end."""
        boundary = self.listing.boundary
        self._check_dead_slots(boundary)
        state: PartitionState | None = PartitionState.empty(self.tp)
        if boundary:
            snapshot = self.snapshots.get(boundary)
            state = None if snapshot is None else from_snapshot(snapshot, self.tp)
            if snapshot is None:
                self.is_whole = False
                self.findings.missing(
                    self.folder + names.snapshot_name(boundary),
                    f"the state at offset {boundary}, below which records may have been deleted",
                )
            elif self.task.on_snapshot is not None:
                for number in sorted(self.snapshots):
                    if number <= boundary:
                        self.task.on_snapshot(self.snapshots[number])
        chained = _Chain(self, state)
        for path, data in self.reader.get_many([self.folder + names.batch_name(base) for base in self.listing.batches]):
            chained.take(path, data)
        state = chained.end()
        self._check_end(state)
        return state

    def _check_dead_slots(self, boundary: int) -> None:
        """Check the slots below the boundary. No reader uses them, but a vacuum does, because they name files."""
        dead = [number for number in self._numbers("batch") if number < boundary]
        for path, data in self.reader.get_many([self.folder + names.batch_name(number) for number in dead]):
            record = None if data is None else self.reader.decode(path, data, CommitRecord, "commit record")
            if record is not None:
                self.named.update(file.path for file in record.files)

    def evidence_beyond(self, end_offset: int) -> str | None:
        """Return an object that proves a record at `end_offset`: a segment is sealed only after the next one has begun."""
        found = [
            *(self.folder + name.index for name in self.indexes if name.end_offset >= end_offset),
            *(self.folder + names.snapshot_name(number) for number in self.snapshots if number >= end_offset),
        ]
        if end_offset and self.listing.boundary >= end_offset:
            found.append(self.folder + names.boundary_name(self.listing.boundary))
        return found[0] if found else None

    def _check_end(self, state: PartitionState | None) -> None:
        if state is None:
            return
        evidence = self.evidence_beyond(state.next_offset)
        if evidence is not None:
            self.findings.missing(
                self.folder + names.batch_name(state.next_offset),
                f"a commit record: {evidence} is there, and a segment is sealed only once the next record is in",
                LOST_RECORD,
            )
        elif self.is_whole:
            for name in self.indexes:
                if not name.generation and name.base_offset >= self.listing.boundary and name not in self.matched:
                    self.findings.damaged(
                        self.folder + name.index,
                        "a segment of the records",
                        f"the records have no segment from {name.base_offset} to {name.end_offset}",
                    )

    def check_record(self, stored: StoredRecord, path: str) -> None:
        """Check one record by itself: its rows and its schema."""
        record = stored.record
        self.named.update(file.path for file in record.files)
        if self.internal:
            self._check_entries(record, path)
            return
        if record.deleted_version > self.task.last_version:
            self._miss_version(record.deleted_version, path)
        if record.kind == "data" and record.transactional != (0 <= record.producer_id < FIRST_DRAWN_PRODUCER_ID):
            self.findings.damaged(
                path,
                "a transactional batch of each producer id that a coordinator gave out, and of no other",
                f"producer {record.producer_id}, transactional {record.transactional}",
            )
        if not record.records:
            return
        if record.entries:
            self.findings.damaged(path, "rows in files or inline", "entries, which only txlog's own topics have")
            return
        fields = self._fields(record.schema_id, path)
        if fields is not None and record.payload_bytes:
            check_inline_rows(self.findings, path, record, stored.payload, fields)

    def _check_entries(self, record: CommitRecord, path: str) -> None:
        kinds: tuple[type, ...] = (TransactionEntry,)
        if self.tp.topic != names.TRANSACTION_STATE_TOPIC:
            kinds = (OffsetEntry, GroupEntry)
        if record.files or record.payload_bytes or not all(isinstance(entry, kinds) for entry in record.entries):
            self.findings.damaged(path, f"entries of {self.tp.topic}", "rows or entries that do not belong here")

    def finish_segment(self, records: Sequence[CommitRecord], last_digest: str, after: PartitionState) -> None:
        """Compare all records of a segment with the segment's index."""
        base = records[0].base_offset
        names_here = [name for name in self.indexes if not name.generation and name.base_offset == base]
        for name in names_here:
            self.matched.add(name)
            index = self.indexes[name]
            path = self.folder + name.index
            if name.end_offset != records[-1].end_offset:
                self.findings.damaged(
                    path, f"a segment that ends at {records[-1].end_offset}, as its records say", f"{name.end_offset}"
                )
                continue
            inline = next((file for file in index.files if file.offset_column), None)
            plain = None if inline is None else _as_data_file(inline)
            try:
                expected, txn_index = build_index(self.tp, records, last_digest, plain)
            except CorruptLogError as error:
                self.findings.damaged(path, "an index of the segment's records", str(error))
                continue
            expected = msgspec.structs.replace(expected, last_stable_offset=kept_lso(after, index.last_stable_offset))
            if index != expected:
                self.findings.damaged(path, "the index of the segment's records", _difference(index, expected))
            found = self.txn_indexes.get(name)
            wanted = txn_index or TxnIndex(partition=str(self.tp), aborted=())
            if found is not None and found != wanted:
                self.findings.damaged(
                    self.folder + name.txnindex,
                    "the aborted transactions of the segment's records",
                    _difference(found, wanted),
                )

    def compare_snapshot(self, state: PartitionState) -> None:
        """Compare the snapshot at the end of `state`, if there is one."""
        found = self.snapshots.get(state.next_offset)
        if found is not None and found != (expected := kept_snapshot(to_snapshot(state), found)):
            self.findings.damaged(self.folder + names.snapshot_name(found.offset), _STATE, _difference(found, expected))

    def _compare_indexes_with_snapshots(self) -> None:
        """Check segments whose records were deleted, and that a segment is sealed only after its snapshot exists."""
        for name, index in self.indexes.items():
            if name.generation:
                continue
            snapshot = self.snapshots.get(name.end_offset)
            path = self.folder + name.index
            before = self.snapshots.get(name.base_offset)
            if snapshot is not None and (before is not None or not name.base_offset):
                self._check_log_start(name, 0 if before is None else before.log_start_offset, snapshot)
            if snapshot is None:
                if name.end_offset >= self.listing.boundary and not self._is_listed("snapshot", name.end_offset):
                    self.findings.missing(
                        self.folder + names.snapshot_name(name.end_offset),
                        f"the state at the end of the sealed segment {name.index}",
                    )
                continue
            if index.last_digest != snapshot.last_digest:
                self.findings.damaged(
                    path,
                    f"a last record with digest {snapshot.last_digest[:12]}…, as the snapshot at its end says",
                    f"{index.last_digest[:12]}…; one of the two is of another log",
                )
            lso = kept_lso(from_snapshot(snapshot, self.tp), index.last_stable_offset)
            if index.last_stable_offset != lso:
                self.findings.damaged(
                    path, f"last stable offset {lso}, as the snapshot at its end says", f"{index.last_stable_offset}"
                )

    def _check_log_start(self, name: SegmentName, before: int, after: Snapshot) -> None:
        """Check that only a log-start record moves the log start."""
        moved = any(entry.kind == "log_start" for entry in self.indexes[name].entries)
        if after.log_start_offset < before or (after.log_start_offset > before and not moved):
            self.findings.damaged(
                self.folder + names.snapshot_name(after.offset),
                f"log start {before}, as {self.folder + name.index} has no record that moves it",
                f"{after.log_start_offset}",
            )

    def _is_listed(self, kind: str, number: int) -> bool:
        return NumberedName(kind, number).name in self.parsed

    def note_markers(self, batches: Iterable[CommitRecord | IndexEntry]) -> None:
        """Keep the markers among the batches."""
        for batch in batches:
            self.markers.add(batch)

    def _hidden(self) -> Hidden | None:
        """Return what neither a record nor an index of generation 0 shows, because it was below the boundary."""
        boundary = self.listing.boundary
        snapshot = self.snapshots.get(boundary)
        if not boundary or snapshot is None:
            return None
        end = 0
        last: int | None = None
        for name in sorted(each for each in self.indexes if not each.generation and each.base_offset < boundary):
            if name.base_offset > end and self.indexes[name].entries:
                last = self.indexes[name].entries[0].timestamp
            end = max(end, name.end_offset)
        if end < boundary:
            last = snapshot.last_timestamp
        return None if last is None else Hidden(last_timestamp=last, snapshot=snapshot)

    # -- the walk and the files ---------------------------------------------------------------------------------------

    def _check_walk(self, clean: Clean | None, state: PartitionState | None) -> None:
        """Check the chain rule, from where a reader begins."""
        start = self.listing.boundary
        if not self.internal:
            if state is None:
                return
            start = state.log_start_offset
        try:
            walked = chain.walk(self.listing, clean, start)
        except CorruptLogError as error:
            self.findings.missing(self.folder, "a segment or run at every offset", found=reason(error, self.folder))
            return
        for name in walked:
            if name.index not in self.parsed:
                self.findings.missing(self.folder + name.index, "the run that the highest .clean names")

    def _check_files(self, current: Collection[SegmentName]) -> None:
        for name in sorted(self.indexes):
            index = self.indexes[name]
            self.named.update(file.path for file in index.files)
            for number, file in enumerate(index.files):
                placed = _placed(index, number) if file.offset_column else None
                self._check_file(file, file.schema_id, self.folder + name.index, name in current, placed, name)

    def check_record_files(self, record: CommitRecord, path: str) -> None:
        """Check the files of a record that is not sealed yet. The files of a sealed record are in its index too."""
        for file in record.files:
            self._check_file(file, record.schema_id, path, True, None, None)

    def _check_file(
        self,
        file: DataFile,
        schema_id: int,
        named_by: str,
        needed: bool,
        placed: Sequence[Placed] | None,
        segment: SegmentName | None,
    ) -> None:
        if file.path in self.checked_files:
            return
        fields = self._fields(schema_id, named_by)
        if fields is None:
            return
        if needed:
            self.checked_files.add(file.path)
        check_rows_file(
            self.reader,
            self.tp,
            file,
            fields,
            named_by,
            needed=needed,
            rows=self.task.rows,
            placed=placed,
            segment=segment,
        )

    def _fields(self, schema_id: int, named_by: str) -> tuple[SchemaField, ...] | None:
        fields = self.task.schemas.get(schema_id)
        if fields is None:
            self._miss_version(schema_id, named_by)
        return fields

    def _miss_version(self, number: int, named_by: str) -> None:
        path = names.topic_metadata_path(self.tp.topic, number)
        if number > self.task.last_version or number < 0:
            self.findings.missing(path, f"the version of the topic that {named_by} speaks of")
        elif self.task.versions_are_whole:
            self.findings.damaged(named_by, "a schema_id that introduced a schema", f"{number}, a version that did not")

    def _check_orphans(self, current: Collection[SegmentName]) -> None:
        self.named.update(self.task.prepared_files)
        orphans = [name for name in self.files if f"{self.tp.partition}/rows/{name}" not in self.named]
        self._note_many(
            f"{self.folder}rows/",
            orphans,
            "files that a record names",
            "named by nothing: {}",
            "nothing: their writer died, lost, or has not committed yet; a vacuum removes them",
        )
        strays = []
        for name, parsed in self.parsed.items():
            match parsed:
                case SegmentObject(segment=segment, kind="parquet"):
                    if f"{self.tp.partition}/{name}" not in self.named:
                        strays.append(name)
                case SegmentObject(segment=segment, kind="index") if segment.generation and segment not in current:
                    strays.append(name)
                case SegmentObject(segment=segment, kind="txnindex") if segment not in self.indexes:
                    if segment.index not in self.parsed:
                        strays.append(name)
                case NumberedName(kind="snapshot", number=number):
                    if number > _sealed_end(self.indexes) and number > self.listing.boundary:
                        strays.append(name)
                case _:
                    pass
        self._note_many(
            self.folder,
            strays,
            "objects of sealed segments and current runs",
            "of no sealed segment and no current run: {}",
            "nothing: a sealing, a merge or a compaction was interrupted, lost, or is under way; a vacuum removes them",
        )

    def _note_many(self, path: str, found: Iterable[str], expected: str, words: str, advice: str) -> None:
        listed = sorted(found)
        if listed:
            shown = ", ".join(listed[:_NAMED]) + (f" and {len(listed) - _NAMED} more" if len(listed) > _NAMED else "")
            self.findings.note(path, expected, words.format(shown), advice)


class _Chain:
    """Follow the records of a partition and fold them. After damage, begin again at the next snapshot."""

    def __init__(self, check: _PartitionCheck, state: PartitionState | None) -> None:
        self._check = check
        self._state = state
        self._waiting: list[StoredRecord] = []
        self._segment: list[CommitRecord] = []
        """Records of the active segment, without their inline rows. Empty if its beginning is not known."""
        self._segment_is_whole = state is not None
        self._last_digest = ""

    def take(self, path: str, data: bytes | None) -> None:
        """Take the next object of the LIST, without `data` if it was deleted or cannot be read."""
        check = self._check
        base = _base_of(path)
        self._close_gap(base)
        if data is None:
            check.findings.missing(path, "a commit record: it was listed a moment ago")
            self._lose()
            return
        stored = self._decode(path, data, base)
        if stored is not None:
            self._append(stored, path)
        else:
            self._lose()

    def end(self) -> PartitionState | None:
        """Return the state after the last record."""
        check = self._check
        while (at := self._next_offset()) is not None and check.evidence_beyond(at) is not None:
            # The LIST may have missed it.
            path = check.folder + names.batch_name(at)
            data = check.reader.get(path)
            stored = None if data is None else self._decode(path, data, at)
            if stored is None:
                break
            self._append(stored, path)
        self._fold()
        return self._state

    def _next_offset(self) -> int | None:
        if self._waiting:
            return self._waiting[-1].record.end_offset
        return None if self._state is None else self._state.next_offset

    def _close_gap(self, base: int) -> None:
        """Ask by name for the slots before `base` that the LIST did not show, because a LIST is not atomic."""
        check = self._check
        while (at := self._next_offset()) is not None and at < base:
            path = check.folder + names.batch_name(at)
            data = check.reader.get(path)
            stored = None if data is None else self._decode(path, data, at)
            if stored is None:
                check.findings.missing(path, f"a commit record: the log goes on at offset {base}", LOST_RECORD)
                self._lose()
            else:
                self._append(stored, path)
        if (at := self._next_offset()) is not None and at > base:
            check.findings.damaged(
                check.folder + names.batch_name(base), "a record where the one before it ends", f"that one ends at {at}"
            )
            self._lose()
        if self._next_offset() is None and base in check.snapshots:
            self._state = from_snapshot(check.snapshots[base], check.tp)
            self._segment, self._segment_is_whole = [], True
            if check.task.on_snapshot is not None:
                check.task.on_snapshot(check.snapshots[base])

    def _decode(self, path: str, data: bytes, base: int) -> StoredRecord | None:
        check = self._check
        try:
            stored = stored_record(data, check.tp, base)
        except (CorruptLogError, UnsupportedStoreError) as error:
            check.findings.damaged(path, "a valid commit record", reason(error, path))
            return None
        check.check_record(stored, path)
        return stored

    def _append(self, stored: StoredRecord, path: str) -> None:
        check = self._check
        record = stored.record
        if record.segment_base == record.base_offset and self._next_offset() is not None:
            self._fold()
            if self._state is not None and self._segment:
                self._finish(self._state)
        if self._next_offset() is None:
            # The fold is lost, but this record by itself can still be checked.
            check.check_record_files(record, path)
            if check.task.on_record is not None:
                check.task.on_record(record)
            return
        self._waiting.append(stored)
        size = sum(len(each.data) for each in self._waiting)
        if record.end_offset in check.snapshots or len(self._waiting) >= _FOLD_RECORDS or size >= _FOLD_BYTES:
            self._fold()

    def _fold(self) -> None:
        waiting, self._waiting = self._waiting, []
        state = self._state
        if state is None or not waiting:
            return
        try:
            after = replay(state, waiting)
            good = waiting
        except TxlogError:
            after, good = self._fold_singly(state, waiting)
        for stored in good:
            self._pass(stored)
        if len(good) < len(waiting):
            self._state = after
            self._lose()
            return
        self._state = after
        self._check.compare_snapshot(after)

    def _fold_singly(
        self, state: PartitionState, waiting: Sequence[StoredRecord]
    ) -> tuple[PartitionState, list[StoredRecord]]:
        good: list[StoredRecord] = []
        for stored in waiting:
            try:
                state = replay(state, (stored,))
            except TxlogError as error:
                path = self._check.folder + names.batch_name(stored.record.base_offset)
                self._check.findings.damaged(
                    path, "the record that follows the one before it", reason(error, path), LOST_RECORD
                )
                break
            good.append(stored)
        return state, good

    def _pass(self, stored: StoredRecord) -> None:
        """Take a record that is at its place."""
        check = self._check
        record = stored.record
        if not self._segment and record.segment_base != record.base_offset:
            self._segment_is_whole = False
        self._segment.append(record)
        self._last_digest = stored.digest
        check.note_markers((record,))
        if check.task.on_record is not None:
            check.task.on_record(record)
        check.check_record_files(record, check.folder + names.batch_name(record.base_offset))

    def _finish(self, after: PartitionState) -> None:
        """Finish the active segment, because the next one begins."""
        if self._segment_is_whole:
            self._check.finish_segment(self._segment, self._last_digest, after)
        self._segment, self._segment_is_whole = [], True

    def _lose(self) -> None:
        self._fold()
        self._state = None
        self._waiting, self._segment, self._segment_is_whole = [], [], False
        self._check.is_whole = False


def _base_of(path: str) -> int:
    parsed = names.parse_partition_object(path.rpartition("/")[2])
    assert isinstance(parsed, NumberedName)
    return parsed.number


def _sealed_end(indexes: Iterable[SegmentName]) -> int:
    return max((name.end_offset for name in indexes), default=0)


def _placed(index: SegmentIndex, number: int) -> list[Placed]:
    """Return the batches with rows in file `number` of the table, and the row where each begins."""
    if not index.generation:
        return [(entry.first_row, entry) for entry in index.entries if entry.file == number]
    # The files of a run are one table, so the rows of a batch may continue in the next file.
    before = [0]
    for file in index.files:
        before.append(before[-1] + file.rows)
    starts = [
        (before[entry.file] + entry.first_row - before[number], entry)
        for entry in index.entries
        if entry.file is not None and entry.file <= number
    ]
    first = max((at for at, (start, _) in enumerate(starts) if start <= 0), default=0)
    return starts[first:]


def _as_data_file(file: DataFile) -> DataFile:
    return DataFile(**{name: getattr(file, name) for name in DataFile.__struct_fields__})


def _difference(found: msgspec.Struct, expected: msgspec.Struct) -> str:
    """Return the fields that differ, shortened."""
    parts = []
    for name in found.__struct_fields__:
        mine, theirs = getattr(found, name), getattr(expected, name)
        if mine != theirs:
            parts.append(f"{name} is {_short(mine)} and should be {_short(theirs)}")
    return "; ".join(parts)


def _short(value: object) -> str:
    return shorten(msgspec.json.encode(value).decode(), 100)
