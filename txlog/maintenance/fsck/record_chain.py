"""Does each record of a partition follow from the one before it, and do snapshots and indexes agree with the fold?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from txlog.core import names
from txlog.core.names import SegmentName
from txlog.core.record_checks import StoredRecord, stored_records
from txlog.core.records import CommitRecord, DataFile, TxnIndex
from txlog.core.segments import build_index
from txlog.core.snapshot_state import from_snapshot, to_snapshot
from txlog.core.state import PartitionState, kept_lso, kept_snapshot, replay
from txlog.errors import CorruptLogError, TxlogError, UnsupportedStoreError
from txlog.maintenance.fsck.findings import lost_record, reason, taken_slot
from txlog.maintenance.fsck.partition_objects import PartitionObjects
from txlog.text import shorten

if TYPE_CHECKING:
    from txlog.maintenance.fsck.partition_check import PartitionCheck

_FOLD_RECORDS = 64
_FOLD_BYTES = 16 * 2**20
"""The fold copies its dictionaries once after so many records, or after so many bytes of records."""
_STATE = "the state that the records before it fold to"


class RecordChain:
    """Follow the records of a partition and fold them. After damage, begin again at the next snapshot."""

    def __init__(self, objects: PartitionObjects, check: PartitionCheck, state: PartitionState | None) -> None:
        self.is_whole = state is not None
        """Whether the fold has come from the beginning of the chain without a gap."""
        self.matched: set[SegmentName] = set()
        """Indexes that were compared with the records of their segment."""
        self._objects = objects
        self._findings = objects.findings
        self._folder = objects.folder
        self._check = check
        self._state = state
        self._waiting: list[StoredRecord] = []
        self._segment: list[CommitRecord] = []
        """Records of the active segment, without their inline rows. Empty if its beginning is not known."""
        self._segment_is_whole = state is not None
        self._last_digest = ""

    def take(self, base: int, path: str, data: bytes | None) -> None:
        """Take the next object of the LIST, without `data` if it was deleted or cannot be read."""
        self._close_gap(base)
        if data is None:
            self._findings.missing(path, "a commit record, which was listed a moment ago")
            self._lose()
            return
        stored = self._decode(path, data, base)
        if not stored:
            self._lose()
        for each in stored:
            self._append(each, path)

    def end(self) -> PartitionState | None:
        """Return the state after the last record."""
        while (at := self._next_offset()) is not None and self._objects.evidence_beyond(at) is not None:
            # The LIST may have missed it.
            path, stored = self._get(at)
            if not stored:
                break
            for each in stored:
                self._append(each, path)
        self._fold()
        return self._state

    def _next_offset(self) -> int | None:
        if self._waiting:
            return self._waiting[-1].record.end_offset
        return None if self._state is None else self._state.next_offset

    def _close_gap(self, base: int) -> None:
        """Ask by name for the slots before `base` that the LIST did not show, because a LIST is not atomic."""
        while (at := self._next_offset()) is not None and at < base:
            path, stored = self._get(at)
            if not stored:
                self._findings.missing(
                    path, f"a commit record, because the log continues at offset {base}", lost_record(path)
                )
                self._lose()
            for each in stored:
                self._append(each, path)
        if (at := self._next_offset()) is not None and at > base:
            self._findings.damaged(
                self._folder + names.batch_name(base),
                "a record that begins where the previous one ends",
                f"the previous one ends at {at}",
            )
            self._lose()
        if self._next_offset() is None and base in self._objects.snapshots:
            self._state = from_snapshot(self._objects.snapshots[base], self._objects.tp)
            self._segment, self._segment_is_whole = [], True
            self._check.begin_again(self._objects.snapshots[base])

    def _get(self, at: int) -> tuple[str, tuple[StoredRecord, ...]]:
        """Return the path of the slot at this offset, and its records if it is valid."""
        path = self._folder + names.batch_name(at)
        data = self._objects.reader.get(path)
        return path, () if data is None else self._decode(path, data, at)

    def _decode(self, path: str, data: bytes, base: int) -> tuple[StoredRecord, ...]:
        try:
            stored = stored_records(data, self._objects.tp, base)
        except (CorruptLogError, UnsupportedStoreError) as error:
            self._findings.damaged(path, "a valid commit record", reason(error, path))
            return ()
        for each in stored:
            self._check.check_record(each, path)
        return stored

    def _append(self, stored: StoredRecord, path: str) -> None:
        record = stored.record
        if record.segment_base == record.base_offset and self._next_offset() is not None:
            self._fold()
            if self._state is not None and self._segment:
                if self._segment_is_whole:
                    self._finish_segment(self._state)
                self._segment, self._segment_is_whole = [], True
        if self._next_offset() is None:
            # The fold is lost, but this record by itself can still be checked.
            self._check.take_lost(record, path)
            return
        self._waiting.append(stored)
        size = sum(len(each.data) for each in self._waiting)
        if record.end_offset in self._objects.snapshots or len(self._waiting) >= _FOLD_RECORDS or size >= _FOLD_BYTES:
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
        self._state = after
        if len(good) < len(waiting):
            self._lose()
        else:
            self._compare_snapshot(after)

    def _fold_singly(
        self, state: PartitionState, waiting: Sequence[StoredRecord]
    ) -> tuple[PartitionState, list[StoredRecord]]:
        good: list[StoredRecord] = []
        for stored in waiting:
            try:
                state = replay(state, (stored,))
            except TxlogError as error:
                path = self._folder + names.batch_name(stored.slot)
                self._findings.damaged(
                    path, "a record that follows from the previous one", reason(error, path), taken_slot(path)
                )
                break
            good.append(stored)
        return state, good

    def _pass(self, stored: StoredRecord) -> None:
        """Take a record that is at its place."""
        record = stored.record
        if not self._segment and record.segment_base != record.base_offset:
            self._segment_is_whole = False
        self._segment.append(record)
        self._last_digest = stored.digest
        self._check.take(stored, self._folder + names.batch_name(stored.slot))

    def _lose(self) -> None:
        self._fold()
        self._state = None
        self._waiting, self._segment, self._segment_is_whole = [], [], False
        self.is_whole = False

    def _finish_segment(self, after: PartitionState) -> None:
        """Compare all records of a segment with the segment's index."""
        records, indexes = self._segment, self._objects.indexes
        base = records[0].base_offset
        for name in [name for name in indexes if not name.generation and name.base_offset == base]:
            self.matched.add(name)
            index = indexes[name]
            path = self._folder + name.index
            if name.end_offset != records[-1].end_offset:
                self._findings.damaged(
                    path, f"a segment that ends at {records[-1].end_offset}, as its records say", f"{name.end_offset}"
                )
                continue
            inline = next((file for file in index.files if file.offset_column), None)
            plain = None if inline is None else DataFile(**inline.file_fields)
            try:
                expected, txn_index = build_index(self._objects.tp, records, self._last_digest, plain)
            except CorruptLogError as error:
                self._findings.damaged(path, "an index of the segment's records", error.problem)
                continue
            expected = msgspec.structs.replace(expected, last_stable_offset=kept_lso(after, index.last_stable_offset))
            if index != expected:
                self._findings.damaged(path, "the index of the segment's records", _difference(index, expected))
            found = self._objects.txn_indexes.get(name)
            wanted = txn_index or TxnIndex(partition=str(self._objects.tp), aborted=())
            if found is not None and found != wanted:
                self._findings.damaged(
                    self._folder + name.txnindex,
                    "the aborted transactions of the segment's records",
                    _difference(found, wanted),
                )

    def _compare_snapshot(self, state: PartitionState) -> None:
        """Compare the snapshot at the end of `state`, if there is one."""
        found = self._objects.snapshots.get(state.next_offset)
        if found is not None and found != (expected := kept_snapshot(to_snapshot(state), found)):
            self._findings.damaged(
                self._folder + names.snapshot_name(found.offset), _STATE, _difference(found, expected)
            )


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
