"""One partition's log for tests of the fold: the shipped rules make records, the shipped codec bytes, a replay the
state."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from txlog.core import envelope
from txlog.core.append_rules import (
    BatchDraft,
    Duplicate,
    MarkerDraft,
    Proceed,
    Refuse,
    RollPolicy,
    check_batch,
    marker_is_there,
    next_control,
    next_marker,
    next_record,
)
from txlog.core.names import TopicPartition
from txlog.core.record_checks import StoredRecord, stored_record
from txlog.core.records import CommitRecord, DataFile, Entry, OffsetEntry, OffsetValue
from txlog.core.state import PartitionState, replay

TP = TopicPartition("orders", 0)
OFFSETS_TP = TopicPartition("__consumer_offsets", 0)
NEVER_ROLL = RollPolicy(batches=10**9)


def rows_file(tp: TopicPartition, pid: int, epoch: int, rows: int, unique: str = "0" * 8) -> DataFile:
    return DataFile(
        path=f"{tp.partition}/rows/{pid}-{epoch}-{unique}.parquet",
        rows=rows,
        bytes=100 * rows,
        digest=None,
        footer_digest="f" * 64,
        row_groups=(rows,),
    )


def offset_entry(group: str, partition: int, offset: int | None, conditional: bool = False) -> OffsetEntry:
    value = None if offset is None else OffsetValue(offset=offset, conditional=conditional)
    return OffsetEntry(group=group, topic="orders", partition=partition, value=value)


class Log:
    """A log that appends what the rules allow. The test sets `now_ms`, the wall clock."""

    def __init__(self, tp: TopicPartition = TP, roll: RollPolicy = NEVER_ROLL, start: PartitionState | None = None):
        self.tp = tp
        self.roll = roll
        self.now_ms = 1_000
        self.state = start or PartitionState.empty(tp)
        self.start = self.state
        self.records: list[StoredRecord] = []
        self._writes = 0

    def append(self, make: Callable[[PartitionState, str], CommitRecord], payload: bytes = b"") -> StoredRecord:
        self._writes += 1
        record = make(self.state, f"{self._writes:032x}")
        return self.add(stored_record(envelope.encode(record, payload), self.tp, record.base_offset))

    def add(self, stored: StoredRecord) -> StoredRecord:
        self.state = replay(self.state, [stored])
        self.records.append(stored)
        return stored

    def draft(
        self,
        pid: int,
        epoch: int,
        sequence: int,
        rows: int = 1,
        *,
        txn: bool = False,
        entries: tuple[Entry, ...] = (),
        schema_id: int = 0,
    ) -> BatchDraft:
        files = () if entries else (rows_file(self.tp, max(pid, 0), max(epoch, 0), rows),)
        return BatchDraft(
            records=len(entries) or rows,
            producer_id=pid,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=txn,
            schema_id=schema_id,
            files=files,
            entries=entries,
            roll=self.roll,
        )

    def put(self, draft: BatchDraft) -> StoredRecord:
        """Append without checking the rules: a replay accepts every record that is in a log."""
        return self.append(lambda state, write_id: next_record(state, draft, now_ms=self.now_ms, write_id=write_id))

    def data(self, pid: int, epoch: int, sequence: int, rows: int = 1, **kwargs: Any) -> Any:
        """Return the answer of `check_batch`: the base offset, `("duplicate", offset)`, or the error's type."""
        draft = self.draft(pid, epoch, sequence, rows, **kwargs)
        verdict = check_batch(self.state, draft)
        if isinstance(verdict, Duplicate):
            return ("duplicate", verdict.base_offset)
        if isinstance(verdict, Refuse):
            return type(verdict.error)
        assert isinstance(verdict, Proceed)
        return self.put(draft).record.base_offset

    def plain(self, rows: int = 1) -> int:
        return self.put(self.draft(-1, -1, -1, rows)).record.base_offset

    def offsets(self, entries: Iterable[OffsetEntry], pid: int = -1, epoch: int = -1) -> int:
        return self.put(self.draft(pid, epoch, -1, txn=pid >= 0, entries=tuple(entries))).record.base_offset

    def marker(
        self,
        commit: bool,
        pid: int,
        epoch: int,
        *,
        rows: int = 0,
        entries: tuple[Entry, ...] = (),
        schema_id: int = 0,
        coordinator_epoch: int = 0,
        force: bool = False,
    ) -> int | None:
        """Return the marker's offset, or None if `marker_is_there`."""
        if not force and marker_is_there(self.state, pid, epoch):
            return None
        files = (rows_file(self.tp, pid, epoch - 1, rows),) if rows else ()
        draft = MarkerDraft(
            commit=commit,
            producer_id=pid,
            marker_epoch=epoch,
            coordinator_epoch=coordinator_epoch,
            records=rows + len(entries),
            schema_id=schema_id,
            files=files,
            entries=entries,
            roll=self.roll,
        )
        stored = self.append(lambda state, write_id: next_marker(state, draft, now_ms=self.now_ms, write_id=write_id))
        return stored.record.base_offset

    def commit(self, pid: int, epoch: int, **kwargs: Any) -> int | None:
        return self.marker(True, pid, epoch, **kwargs)

    def abort(self, pid: int, epoch: int, **kwargs: Any) -> int | None:
        return self.marker(False, pid, epoch, **kwargs)

    def log_start(self, offset: int, deleted_version: int = 0) -> int:
        return self.append(
            lambda state, write_id: next_control(
                state,
                now_ms=self.now_ms,
                write_id=write_id,
                log_start_offset=offset,
                deleted_version=deleted_version,
                roll=self.roll,
            )
        ).record.base_offset

    def expire(self, *pids: int) -> int:
        return self.append(
            lambda state, write_id: next_control(
                state, now_ms=self.now_ms, write_id=write_id, expired=pids, roll=self.roll
            )
        ).record.base_offset

    @property
    def lso(self) -> int:
        return self.state.last_stable_offset

    @property
    def leo(self) -> int:
        return self.state.next_offset

    def last(self) -> CommitRecord:
        return self.records[-1].record

    def committed(self) -> dict[tuple[str, int], int]:
        """Return (group, partition) -> committed offset."""
        return {
            (key[0], key[2]): row.entry.value.offset
            for key, row in self.state.committed.items()
            if row.entry.value is not None
        }
