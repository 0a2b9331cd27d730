"""Which objects does a partition have, is each of them whole, and do indexes, snapshots and lists of runs agree?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import msgspec

from txlog.core import chain, names
from txlog.core.names import INTERNAL_TOPICS, NumberedName, SegmentName, SegmentObject, TopicPartition
from txlog.core.records import Boundary, Clean, SegmentIndex, Snapshot, TxnIndex
from txlog.core.segments import check_index, check_txn_index
from txlog.core.snapshot_state import check_snapshot, from_snapshot
from txlog.core.state import kept_lso
from txlog.errors import CorruptLogError
from txlog.maintenance.fsck.findings import Reader, reason
from txlog.text import count_text

S = TypeVar("S", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hidden:
    """Facts about records below the boundary of which maintenance has left nothing."""

    last_timestamp: int
    """No such record has a later timestamp."""
    snapshot: Snapshot
    """The state at the boundary."""


class PartitionObjects:
    """The objects of one partition, as one LIST showed them. The reader's findings take what is wrong."""

    def __init__(self, reader: Reader, tp: TopicPartition) -> None:
        self.reader = reader
        self.findings = reader.findings
        self.tp = tp
        self.folder = tp.folder
        self.internal = tp.topic in INTERNAL_TOPICS
        # List the files before the records. A later record can name a file that this LIST does not have, and such a
        # file is not an orphan.
        self.files = set(reader.list(f"{self.folder}rows/")) if not self.internal else set()
        self.listed = reader.list(self.folder)
        self.listing = chain.parse_listing(self.listed, self.folder)
        self.parsed = {name: parsed for name in self.listed if (parsed := names.parse_partition_object(name))}
        self.indexes: dict[SegmentName, SegmentIndex] = {}
        self.txn_indexes: dict[SegmentName, TxnIndex] = {}
        self.snapshots: dict[int, Snapshot] = {}
        self.clean: Clean | None = None
        """The highest `.clean`."""
        self.clean_is_known = True
        """Whether it could be read or does not exist."""

    def read(self) -> None:
        """Read every object but the records and the files."""
        self._check_strange_names()
        for number in self.numbers("boundary"):
            path = self.folder + names.boundary_name(number)
            if (found := self.reader.read(path, Boundary, "boundary")) is not None:
                self._is_of_offset(found, path, number)
        for number in self.numbers("clean"):
            check = partial(chain.check_clean, number=number)
            expected = "ordered, disjoint runs under its own number"
            self.clean = self._read(names.clean_name(number), Clean, "list of cleaned runs", check, expected)
            self.clean_is_known = self.clean is not None
        self._read_snapshots()
        self._read_indexes()

    def _check_strange_names(self) -> None:
        strange = [
            name
            for name in self.listed
            if name not in self.parsed
            and name not in ("rows/", names.WAITING_FOLDER)
            and not (self.tp.topic == names.TRANSACTION_STATE_TOPIC and names.parse_staged_list_name(name))
        ]
        self.findings.note_strange(self.folder, strange)
        odd = [name for name in self.files if names.parse_rows_path(f"{self.tp.partition}/rows/{name}") is None]
        self.files -= set(odd)
        self.findings.note_strange(f"{self.folder}rows/", odd)

    def numbers(self, kind: str) -> list[int]:
        return sorted(p.number for p in self.parsed.values() if isinstance(p, NumberedName) and p.kind == kind)

    def _segments(self, kind: str) -> list[SegmentName]:
        return sorted(p.segment for p in self.parsed.values() if isinstance(p, SegmentObject) and p.kind == kind)

    def _read(self, name: str, kind: type[S], noun: str, check: Callable[..., object], expected: str) -> S | None:
        """Return the object, or None if it does not exist. Damage, and what `check` raises, is a finding."""
        path = self.folder + name
        found = self.reader.read(path, kind, noun)
        if found is not None:
            try:
                check(found, path=path)
            except CorruptLogError as error:
                self.findings.damaged(path, expected, reason(error, path))
                return None
        return found

    def _is_of_offset(self, found: Boundary | Snapshot, path: str, number: int) -> bool:
        if found.offset != number:
            self.findings.damaged(path, f"offset {number}, as its name says", f"offset {found.offset}")
        return found.offset == number

    def _read_snapshots(self) -> None:
        for number in self.numbers("snapshot"):

            def check(found: Snapshot, path: str, number: int = number) -> None:
                if self._is_of_offset(found, path, number):
                    check_snapshot(found, path)
                    self.snapshots[number] = found

            self._read(names.snapshot_name(number), Snapshot, "snapshot", check, "a state of this partition")

    def _read_indexes(self) -> None:
        for name in self._segments("index"):
            expected = "a consistent index of the segment in its name"
            index = self._read(name.index, SegmentIndex, "segment index", partial(check_index, name=name), expected)
            if index is not None:
                self.indexes[name] = index
        for name in self._segments("txnindex"):
            index = self.indexes.get(name)
            check = partial(
                check_txn_index,
                name=name,
                expected=None if index is None else index.aborted_txns,
                entries=None if index is None else index.entries,
            )
            expected = "the aborted transactions of its segment"
            found = self._read(name.txnindex, TxnIndex, "transaction index", check, expected)
            if found is not None:
                self.txn_indexes[name] = found
        for name, index in self.indexes.items():
            if index.aborted_txns and name.txnindex not in self.parsed:
                self.findings.missing(
                    self.folder + name.txnindex,
                    f"{count_text(index.aborted_txns, 'aborted transaction')}, which the .index announces",
                )

    def current(self, log_start: int) -> set[SegmentName]:
        """Return the names that readers use: current runs, and generation 0 above the log start where no run is."""
        runs = {run.name for run in self.clean.runs} if self.clean is not None else set()
        return runs | {
            name
            for name in self.indexes
            if not name.generation
            and name.end_offset > log_start
            and not any(run.base_offset <= name.base_offset and name.end_offset <= run.end_offset for run in runs)
        }

    def evidence_beyond(self, end_offset: int) -> str | None:
        """Return an object that proves a record at `end_offset`: a segment is sealed after the next one has begun."""
        found = [
            *(self.folder + name.index for name in self.indexes if name.end_offset >= end_offset),
            *(self.folder + names.snapshot_name(number) for number in self.snapshots if number >= end_offset),
        ]
        if end_offset and self.listing.boundary >= end_offset:
            found.append(self.folder + names.boundary_name(self.listing.boundary))
        return found[0] if found else None

    def compare_indexes_with_snapshots(self) -> None:
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
                if name.end_offset >= self.listing.boundary and names.snapshot_name(name.end_offset) not in self.parsed:
                    self.findings.missing(
                        self.folder + names.snapshot_name(name.end_offset),
                        f"the state at the end of the sealed segment {name.index}",
                    )
                continue
            if index.last_digest != snapshot.last_digest:
                self.findings.damaged(
                    path,
                    f"a last record with digest {snapshot.last_digest[:12]}…, as the snapshot at its end says",
                    f"{index.last_digest[:12]}…; one of the two belongs to another log",
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

    def hidden(self) -> Hidden | None:
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
