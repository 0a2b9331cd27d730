"""How does a chain of commit records look to a reader that shares no code with the fold and the shipped reader?

Some dozens of lines over decoded records, from the first one on, including deleted slots. They compute which rows are
in the log, which are committed, the last stable offset, and the committed offsets of each group. Shipped code is
compared with the result.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from lab.explore import group_oracle
from lab.explore.world import GHOST, WRITTEN_AT, decoded_once
from txlog.core import envelope, names
from txlog.core.names import TopicPartition
from txlog.core.record_checks import StoredRecord
from txlog.core.records import CommitRecord, GroupEntry, OffsetEntry, StagedList, TransactionEntry, TransactionMetadata


@dataclass(slots=True, kw_only=True)
class Truth:
    """The content of one partition."""

    stored: tuple[StoredRecord, ...]
    words: dict[int, str] = field(default_factory=dict)
    """Offset -> word, of every data batch and COMMIT with rows."""
    committed: dict[int, str] = field(default_factory=dict)
    """... if they belong to no transaction, or to one that was committed here."""
    last_stable_offset: int = 0
    log_end_offset: int = 0
    open: dict[int, int] = field(default_factory=dict)
    """Producer id -> first offset of its open transaction, unless a deletion removed all of its rows."""
    newest: dict[int, int] = field(default_factory=dict)
    """Producer id -> offset of the last row that it sent."""
    markers: list[CommitRecord] = field(default_factory=list)
    offsets: dict[tuple[str, str, int], int | None] = field(default_factory=dict)
    """Committed offsets of groups."""
    offset_commits: set[tuple[int, tuple[str, str, int], int | None]] = field(default_factory=set)
    """Every (producer id, key, value) that was ever committed."""
    log_start_offset: int = 0
    deleted_version: int = 0
    table: list[tuple[int, str, TransactionMetadata | None]] = field(default_factory=list)
    """Records of transactional ids, in order."""
    wrong: str | None = None

    @property
    def stable(self) -> dict[int, str]:
        """Return the rows of read_committed."""
        return self.kept({offset: word for offset, word in self.committed.items() if offset < self.last_stable_offset})

    def kept(self, rows: dict[int, str]) -> dict[int, str]:
        """Return `rows` without the rows that retention or a deletion removed."""
        return {offset: word for offset, word in rows.items() if offset >= self.log_start_offset}


def read_chain(files: Mapping[str, bytes], tp: TopicPartition) -> Truth:
    """Return the truth about a partition, from the objects below its folder (ghosts included)."""
    stored: list[StoredRecord] = []
    at = 0
    while True:
        path = tp.folder + names.batch_name(at)
        data = files.get(GHOST + path, files.get(path))
        if data is None:
            break
        stored += decoded_once(data, tp, at)
        at = stored[-1].record.end_offset
    truth = Truth(stored=tuple(stored), log_end_offset=at)
    _follow(truth, files, tp)
    # A transaction without a row in the log holds no reader back.
    held = [first for pid, first in truth.open.items() if truth.newest[pid] >= truth.log_start_offset]
    truth.last_stable_offset = max(min(held, default=at), truth.log_start_offset)
    return truth


def _follow(truth: Truth, files: Mapping[str, bytes], tp: TopicPartition) -> None:
    waiting: dict[int, dict[int, str]] = {}
    pending: dict[int, list[tuple[int, OffsetEntry]]] = {}
    positions: dict[tuple[str, str, int], int] = {}
    seen: set[tuple[int, int, int]] = set()
    epochs: dict[int, int] = {}
    generations: dict[str, int] = {}
    members: dict[str, group_oracle.Group] = {}

    def commit_offsets(pid: int, rows: Iterable[tuple[int, OffsetEntry]]) -> None:
        for position, entry in rows:
            value = entry.value.offset if entry.value is not None else None
            truth.offset_commits.add((pid, entry.key, value))
            if position >= positions.get(entry.key, -1):
                positions[entry.key] = position
                truth.offsets[entry.key] = value

    for each in truth.stored:
        record, pid = each.record, each.record.producer_id
        words = _words(record, each.payload, files, tp)
        rows = [(record.base_offset + n, e) for n, e in enumerate(record.entries) if isinstance(e, OffsetEntry)]
        truth.words.update(words)
        for n, entry in enumerate(record.entries):
            if isinstance(entry, TransactionEntry):
                truth.table.append((record.base_offset + n, entry.key, _with_parts(entry.value, files, tp)))
        generations.update(
            {
                entry.group: entry.value.generation
                for entry in record.entries
                if isinstance(entry, GroupEntry) and entry.value
            }
        )
        written = files.get(WRITTEN_AT + tp.folder + names.batch_name(record.base_offset))
        if (wrong := group_oracle.wrong(members, record, None if written is None else int(written))) is not None:
            truth.wrong = f"12 offsets: {tp}: {wrong} at {record.base_offset}"
        for _, entry in rows:
            # The metadata of a member's commit contains its generation.
            said = entry.value.metadata.removeprefix("generation ") if entry.value is not None else ""
            if said.isdecimal() and int(said) < generations.get(entry.group, 0):
                truth.wrong = (
                    f"12 offsets: {tp}: a member of generation {said} committed at {record.base_offset}, and "
                    f"{generations[entry.group]} had joined"
                )
        if words and record.schema_id < truth.deleted_version:
            truth.wrong = f"2 acknowledged: {tp}: rows of a deleted topic at {record.base_offset}"
        if record.kind == "log_start":
            truth.log_start_offset = max(truth.log_start_offset, min(record.log_start_offset, record.end_offset))
            truth.deleted_version = max(truth.deleted_version, record.deleted_version)
        if record.kind == "data":
            for _, entry in rows:
                held = [
                    e.value for other, e in _others(pending, pid, entry) if e.value is not None and e.value.conditional
                ]
                conditional = entry.value is not None and entry.value.conditional
                if held and (conditional or not record.transactional):
                    truth.wrong = (
                        f"12 offsets: {tp}: the commit at {record.base_offset} overtakes conditional offsets of "
                        "an undecided transaction"
                    )
            key = (pid, record.producer_epoch, record.base_sequence)
            if record.base_sequence >= 0 and key in seen:
                truth.wrong = f"3 once: {tp}: producer {pid}, epoch {key[1]}, sequence {key[2]} is there twice"
            seen.add(key)
            if record.transactional:
                if truth.newest.get(pid, -1) < truth.log_start_offset:
                    truth.open.pop(pid, None)
                truth.open.setdefault(pid, record.base_offset)
                truth.newest[pid] = record.last_offset
                waiting.setdefault(pid, {}).update(words)
                pending.setdefault(pid, []).extend(rows)
                if epochs.setdefault(pid, record.producer_epoch) != record.producer_epoch:
                    truth.wrong = f"10 markers: {tp}: one transaction of producer {pid} has batches of two epochs"
            else:
                truth.committed.update(words)
                commit_offsets(pid, rows)
        elif record.kind in ("commit", "abort"):
            truth.markers.append(record)
            epoch = epochs.pop(pid, record.producer_epoch - 1)
            if epoch != record.producer_epoch - 1:
                truth.wrong = (
                    f"10 markers: {tp}: the {record.kind.upper()} at {record.base_offset} of epoch "
                    f"{record.producer_epoch} ends a transaction of epoch {epoch}"
                )
            truth.open.pop(pid, None)
            mine, offsets = waiting.pop(pid, {}), pending.pop(pid, [])
            if record.kind == "commit":
                truth.committed.update(mine)
                truth.committed.update(words)
                commit_offsets(pid, [*offsets, *rows])
    truth.offsets = {key: value for key, value in truth.offsets.items() if value is not None}


def _with_parts(
    txn: TransactionMetadata | None, files: Mapping[str, bytes], tp: TopicPartition
) -> TransactionMetadata | None:
    """Return the record with its staged parts, also if they are in an object of their own."""
    if txn is None or txn.staged_object is None:
        return txn
    path = tp.folder + txn.staged_object.name
    listed, _ = envelope.decode(files.get(path) or files[GHOST + path], StagedList, path)
    return msgspec.structs.replace(txn, staged=listed.staged)


def _others(
    pending: Mapping[int, list[tuple[int, OffsetEntry]]], pid: int, wanted: OffsetEntry
) -> list[tuple[int, OffsetEntry]]:
    """Return undecided offsets of other producers for the same key."""
    return [
        (other, entry)
        for other, rows in pending.items()
        if other != pid
        for _, entry in rows
        if entry.key == wanted.key
    ]


def _words(record: CommitRecord, payload: bytes, files: Mapping[str, bytes], tp: TopicPartition) -> dict[int, str]:
    if payload:
        found = json.loads(payload)
    else:
        found = []
        for file in record.files:
            path = f"{tp.topic}/{file.path}"
            data = files.get(path, files.get(GHOST + path))
            # Another rule reports that the file is missing.
            found.extend([word for _, word in json.loads(data)] if data is not None else ["?"] * file.rows)
    return {record.base_offset + number: word for number, word in enumerate(found)}
