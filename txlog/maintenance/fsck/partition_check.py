"""Is every object of one partition present, whole, and in agreement with the others?

The check compares everything that is stored twice.

* The fold of the records, with the snapshots (`record_chain`).
* The records, with their index (`record_chain`).
* The index, with the snapshot at its end (`partition_objects`).
* The files, with the objects that name them.

Only objects that PROTOCOL.md lets maintenance delete, or that a crash can leave undone, may be missing. Objects are
read one after the other. Memory holds at most the records of one segment, without their inline rows.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeAlias

from txlog.client.session.session import Session
from txlog.core import chain, names
from txlog.core.names import NumberedName, SegmentName, SegmentObject, TopicPartition
from txlog.core.record_checks import StoredRecord
from txlog.core.records import (
    FIRST_DRAWN_PRODUCER_ID,
    CommitRecord,
    DataFile,
    GroupEntry,
    HeartbeatEntry,
    OffsetEntry,
    SchemaField,
    SegmentIndex,
    Snapshot,
    TransactionEntry,
)
from txlog.core.snapshot_state import from_snapshot
from txlog.core.state import PartitionState
from txlog.errors import CorruptLogError
from txlog.maintenance.fsck.decisions import SeenMarkers
from txlog.maintenance.fsck.file_check import Placed, PlacedIn, check_inline_rows, check_rows_file
from txlog.maintenance.fsck.findings import Findings, Reader, lost_record, reason
from txlog.maintenance.fsck.partition_objects import Hidden, PartitionObjects
from txlog.maintenance.fsck.record_chain import RecordChain
from txlog.maintenance.workers import Progress

_ROUNDS = 5
"""How often a partition is checked that seems damaged and changes during each check."""

Schemas: TypeAlias = Mapping[int, tuple[SchemaField, ...]]
"""Columns of a topic by the version of its metadata that introduced them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What the check of a partition found out. Picklable."""

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
    findings: Findings
    objects: int
    """Objects that were read, data files included."""
    bytes: int


@dataclass(slots=True, kw_only=True)
class PartitionTask:
    """A partition to check, and what the check needs to know about it."""

    topic_partition: TopicPartition
    schemas: Schemas = field(default_factory=dict)
    last_version: int = 0
    """Number of the topic's newest version."""
    versions_are_whole: bool = True
    """Whether all versions could be read. Otherwise an unknown schema is not counted as damage of the record."""
    one_phase: bool = False
    """Whether transactions of the store may be committed in one phase."""
    rows: bool = True
    """Whether data files are opened. Otherwise only their lengths are checked."""
    prepared_files: Collection[str] = ()
    """Files that a decided transaction will append, relative to the topic's folder."""
    on_record: Callable[[CommitRecord], None] | None = None
    """Called with each record of the chain that can be read, in order."""
    on_snapshot: Callable[[Snapshot], None] | None = None
    """Called in order with the snapshots up to the chain's first one, and with each at which the fold begins again."""


def look_at(reader: Reader, task: Callable[[], PartitionTask]) -> Checked:
    """Check a partition, and again if it seems damaged and has changed during the check, because that may be a race.

    `task` is asked again for each check.
    """
    for round_ in range(_ROUNDS):
        wanted = task()
        folder = wanted.topic_partition.folder
        before = reader.list(folder)
        checked = PartitionCheck(reader.with_findings(Findings()), wanted).run()
        if checked.findings.is_clean or round_ == _ROUNDS - 1 or reader.list(folder) == before:
            break
    return checked


def look_elsewhere(task: PartitionTask, threads: int, session: Session, progress: Progress | None) -> Checked:
    """Check the partition of a worker's task, with this number of threads."""
    numbers = itertools.count(1)
    shown = None if progress is None else lambda: progress(task.topic_partition, next(numbers), 0)
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(threads, "txlog-fsck")) if threads else None
        return look_at(Reader(session.runtime.store, session.clock, Findings(), pool, shown), lambda: task)


class PartitionCheck:
    """Check every object of a partition, and report to the reader's findings. Raises StorageError if its LIST fails."""

    def __init__(self, reader: Reader, task: PartitionTask) -> None:
        self.reader = reader
        self.findings = reader.findings
        self.task = task
        self.tp = task.topic_partition
        self.folder = self.tp.folder
        self.objects = PartitionObjects(reader, self.tp)
        self.named: set[str] = set()
        """Files that a record or index names, relative to the topic's folder."""
        self.checked_files: set[str] = set()
        self.markers = SeenMarkers()

    def run(self) -> Checked:
        objects = self.objects
        objects.read()
        for name in sorted(objects.indexes):
            # Below the boundary only the index of a marker is left. The other markers are in their records.
            if not name.generation and name.base_offset < objects.listing.boundary:
                for entry in objects.indexes[name].entries:
                    self.markers.add(entry, entry.base_offset)
        state, is_whole = self._check_records()
        objects.compare_indexes_with_snapshots()
        if objects.clean_is_known:
            self._check_walk(state)
        current = objects.current(0 if state is None else state.log_start_offset)
        self._check_files(current)
        self._check_orphans(current)
        staged = frozenset(path for path in self.named if path.startswith("staged/"))
        return Checked(
            topic_partition=self.tp,
            state=state,
            markers=self.markers,
            boundary=objects.listing.boundary,
            is_whole=is_whole,
            hidden=objects.hidden(),
            staged_files=staged,
            findings=self.findings,
            objects=self.reader.objects,
            bytes=self.reader.bytes,
        )

    # -- the chain of records -----------------------------------------------------------------------------------------

    def _check_records(self) -> tuple[PartitionState | None, bool]:
        """Fold the chain from the highest boundary on. Return the state at its end, or None if damage hides the end.

        Also return whether the fold reached the end from the beginning without a gap.
        """
        objects = self.objects
        boundary = objects.listing.boundary
        self._check_dead_slots(boundary)
        state: PartitionState | None = PartitionState.empty(self.tp)
        if boundary:
            snapshot = objects.snapshots.get(boundary)
            state = None if snapshot is None else from_snapshot(snapshot, self.tp)
            if snapshot is None:
                self.findings.missing(
                    self.folder + names.snapshot_name(boundary),
                    f"the state at offset {boundary}, below which records may have been deleted",
                )
            else:
                for number in sorted(objects.snapshots):
                    if number <= boundary:
                        self.begin_again(objects.snapshots[number])
        chained = RecordChain(objects, self, state)
        bases = objects.listing.batches
        records = self.reader.get_many([self.folder + names.batch_name(base) for base in bases])
        for base, (path, data) in zip(bases, records, strict=True):
            chained.take(base, path, data)
        state = chained.end()
        self._check_end(state, chained)
        return state, chained.is_whole

    def _check_dead_slots(self, boundary: int) -> None:
        """Check the slots below the boundary. No reader uses them, but a vacuum does, because they name files."""
        dead = [number for number in self.objects.numbers("batch") if number < boundary]
        for path, data in self.reader.get_many([self.folder + names.batch_name(number) for number in dead]):
            for record in () if data is None else self.reader.records(path, data):
                self.named.update(file.path for file in record.files)

    def _check_end(self, state: PartitionState | None, chained: RecordChain) -> None:
        if state is None:
            return
        evidence = self.objects.evidence_beyond(state.next_offset)
        if evidence is not None:
            path = self.folder + names.batch_name(state.next_offset)
            self.findings.missing(
                path,
                f"a commit record, because {evidence} exists, and a segment is sealed only after "
                "the next record was written",
                lost_record(path),
            )
        elif chained.is_whole:
            for name in self.objects.indexes:
                if (
                    not name.generation
                    and name.base_offset >= self.objects.listing.boundary
                    and name not in chained.matched
                ):
                    self.findings.damaged(
                        self.folder + name.index,
                        "a segment of the records",
                        f"the records have no segment from {name.base_offset} to {name.end_offset}",
                    )

    def check_record(self, stored: StoredRecord, path: str) -> None:
        """Check one record by itself: its rows and its schema."""
        record = stored.record
        self.named.update(file.path for file in record.files)
        if self.objects.internal:
            self._check_entries(record, path)
            return
        if record.deleted_version > self.task.last_version:
            self._miss_version(record.deleted_version, path)
        is_given = 0 <= record.producer_id < FIRST_DRAWN_PRODUCER_ID
        # A commit in one phase is not transactional (W61).
        is_one_phase = self.task.one_phase and record.base_sequence >= 0 and bool(record.payload_bytes)
        if record.kind == "data" and (not is_given if record.transactional else is_given and not is_one_phase):
            self.findings.damaged(
                path,
                "a transactional batch, or one of inline rows with a sequence, of each producer id that a coordinator "
                "gave out, and no transactional batch of another",
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
            kinds = (OffsetEntry, GroupEntry, HeartbeatEntry)
        if record.files or record.payload_bytes or not all(isinstance(entry, kinds) for entry in record.entries):
            self.findings.damaged(path, f"entries of {self.tp.topic}", "rows or entries that do not belong here")

    def take(self, stored: StoredRecord, path: str) -> None:
        """Take a record that is at its place in the chain."""
        self.markers.add(stored.record, stored.slot)
        self.take_lost(stored.record, path)

    def take_lost(self, record: CommitRecord, path: str) -> None:
        """Take a record whose place cannot be checked. The files of a sealed record are in its index too."""
        if self.task.on_record is not None:
            self.task.on_record(record)
        for file in record.files:
            self._check_file(file, record.schema_id, path, True, None)

    def begin_again(self, snapshot: Snapshot) -> None:
        """Take the snapshot at which the fold begins again."""
        if self.task.on_snapshot is not None:
            self.task.on_snapshot(snapshot)

    # -- the walk and the files ---------------------------------------------------------------------------------------

    def _check_walk(self, state: PartitionState | None) -> None:
        """Check the chain rule, from where a reader begins."""
        start = self.objects.listing.boundary
        if not self.objects.internal:
            if state is None:
                return
            start = state.log_start_offset
        try:
            walked = chain.walk(self.objects.listing, self.objects.clean, start)
        except CorruptLogError as error:
            self.findings.missing(self.folder, "a segment or run at every offset", found=reason(error, self.folder))
            return
        for name in walked:
            if name.index not in self.objects.parsed:
                self.findings.missing(self.folder + name.index, "the run that the highest .clean names")

    def _check_files(self, current: Collection[SegmentName]) -> None:
        for name in sorted(self.objects.indexes):
            index = self.objects.indexes[name]
            self.named.update(file.path for file in index.files)
            for number, file in enumerate(index.files):
                placed = (name, _placed(index, number)) if file.offset_column else None
                self._check_file(file, file.schema_id, self.folder + name.index, name in current, placed)

    def _check_file(self, file: DataFile, schema_id: int, named_by: str, needed: bool, placed: PlacedIn | None) -> None:
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
        )

    def _fields(self, schema_id: int, named_by: str) -> tuple[SchemaField, ...] | None:
        fields = self.task.schemas.get(schema_id)
        if fields is None:
            self._miss_version(schema_id, named_by)
        return fields

    def _miss_version(self, number: int, named_by: str) -> None:
        path = names.topic_metadata_path(self.tp.topic, number)
        if number > self.task.last_version or number < 0:
            # The topic may have changed since the check has read its versions.
            if self.reader.get(path) is None:
                self.findings.missing(path, f"the version of the topic that {named_by} refers to")
        elif self.task.versions_are_whole:
            self.findings.damaged(named_by, "a schema_id that introduced a schema", f"{number}, a version that did not")

    def _check_orphans(self, current: Collection[SegmentName]) -> None:
        self.named.update(self.task.prepared_files)
        orphans = [name for name in self.objects.files if f"{self.tp.partition}/rows/{name}" not in self.named]
        self.findings.note_names(
            f"{self.folder}rows/",
            orphans,
            "files that a record names",
            "no record names {}",
            "nothing: their writer died, was fenced, or has not committed yet; vacuum deletes them",
        )
        strays = []
        end = max([self.objects.listing.boundary, *(name.end_offset for name in self.objects.indexes)])
        for name, parsed in self.objects.parsed.items():
            match parsed:
                case SegmentObject(segment=segment, kind="parquet"):
                    if f"{self.tp.partition}/{name}" not in self.named:
                        strays.append(name)
                case SegmentObject(segment=segment, kind="index") if segment.generation and segment not in current:
                    strays.append(name)
                case SegmentObject(segment=segment, kind="txnindex") if segment not in self.objects.indexes:
                    if segment.index not in self.objects.parsed:
                        strays.append(name)
                case NumberedName(kind="snapshot", number=number) if number > end:
                    strays.append(name)
                case _:
                    pass
        self.findings.note_names(
            self.folder,
            strays,
            "objects of sealed segments and current runs",
            "objects of other segments or runs: {}",
            "nothing: sealing, a merge or a compaction was interrupted or still runs; vacuum deletes them",
        )


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
