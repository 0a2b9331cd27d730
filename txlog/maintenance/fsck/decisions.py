"""Does each partition hold the marker of every decision that names it and is still stored?

A `PREPARE_*` record names its partitions. No record of the same id follows it before each of these partitions holds a
marker with its producer, its epoch and, as `coordinator_epoch`, its offset. The check compares all decisions, not only
the latest one of each id, because no writer writes a lost marker again after its id has gone on. There may be millions
of markers and decisions, so both are kept as numbers in arrays.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from txlog.core.names import TopicPartition
from txlog.core.records import (
    CommitRecord,
    IndexEntry,
    Snapshot,
    StagedObject,
    StagedPart,
    TransactionEntry,
    TransactionMetadata,
    TransactionRow,
)
from txlog.core.transactions import PREPARED


class ExpectedMarker(NamedTuple):
    """The marker that a decided transaction must have left in a partition."""

    producer_id: int
    epoch: int
    is_commit: int
    table_partition: int
    """Partition of the transaction-state table that holds the decision ..."""
    prepared_at: int
    """... and the decision's offset there."""
    updated_at: int


class SeenMarker(NamedTuple):
    """A marker that is still stored in a partition."""

    producer_id: int
    epoch: int
    is_commit: int
    coordinator_epoch: int
    """-1 if only the index of its segment is left, because the index does not have it."""
    slot: int
    """The offset that names the object of its record."""


M = TypeVar("M", ExpectedMarker, SeenMarker)


def kind_of(marker: ExpectedMarker | SeenMarker) -> str:
    return "commit" if marker.is_commit else "abort"


class _Markers(Generic[M]):
    """Markers of one partition, as the numbers of their fields."""

    _kind: type[M]

    def __init__(self) -> None:
        self._numbers = array("q")

    def __len__(self) -> int:
        return len(self._numbers) // len(self._kind._fields)

    def __getitem__(self, number: int) -> M:
        width = len(self._kind._fields)
        return self._kind._make(self._numbers[number * width : (number + 1) * width])

    def take(self, other: Self) -> None:
        """Add the markers of `other`."""
        self._numbers.extend(other._numbers)

    def table(self) -> NDArray[np.int64]:
        # A copy, because an array cannot grow while a numpy view of it exists.
        return np.array(self._numbers, dtype=np.int64).reshape(-1, len(self._kind._fields))


class ExpectedMarkers(_Markers[ExpectedMarker]):
    """The expected markers of one partition."""

    _kind = ExpectedMarker

    def add(self, table_partition: int, prepared_at: int, value: TransactionMetadata) -> None:
        """Add the marker of a decision."""
        is_commit = int(value.state == "PREPARE_COMMIT")
        self._numbers.extend(
            (value.producer_id, value.producer_epoch, is_commit, table_partition, prepared_at, value.updated_at)
        )


class SeenMarkers(_Markers[SeenMarker]):
    """The stored markers of one partition. One marker can be here twice, from its record and from an index."""

    _kind = SeenMarker

    def add(self, batch: CommitRecord | IndexEntry, slot: int) -> None:
        """Add the batch if it is a marker."""
        if batch.kind in ("commit", "abort"):
            decided = batch.coordinator_epoch if isinstance(batch, CommitRecord) else -1
            is_commit = int(batch.kind == "commit")
            self._numbers.extend((batch.producer_id, batch.producer_epoch, is_commit, decided, slot))


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How the markers of a partition differ from the markers that decisions require."""

    missing: tuple[int, ...]
    """Numbers of expected markers of which nothing is left."""
    other: tuple[tuple[int, int], ...]
    """Numbers of an expected and a stored marker with the same producer and epoch, but another kind or decision."""
    uncalled: tuple[int, ...]
    """Numbers of stored markers without an expected one. Only markers from records count, not those from indexes."""


def compare(expected: ExpectedMarkers, seen: SeenMarkers) -> Comparison:
    """Compare by (producer, epoch), because this pair names one transaction."""
    wanted, found = expected.table(), seen.table()
    if not len(wanted) and not len(found):
        return Comparison(missing=(), other=(), uncalled=())
    _, inverse = np.unique(np.concatenate((wanted[:, :2], found[:, :2])), axis=0, return_inverse=True)
    names = inverse.reshape(-1)
    wanted_names, found_names = names[: len(wanted)], names[len(wanted) :]
    missing = np.flatnonzero(~np.isin(wanted_names, found_names))
    uncalled = np.flatnonzero(~np.isin(found_names, wanted_names) & (found[:, 3] >= 0))
    # Compare each stored marker with the last decision of its name. Only a damaged table has more than one decision.
    decision = np.full(int(names.max()) + 1, -1)
    decision[wanted_names] = np.arange(len(wanted))
    of = decision[found_names]
    same = (of < 0) | (
        (wanted[of, 2] == found[:, 2]) & ((found[:, 3] < 0) | (wanted[of, 4] == found[:, 3]))
        if len(wanted)
        else np.zeros(len(found), dtype=bool)
    )
    other = {int(of[number]): int(number) for number in np.flatnonzero(~same)}
    return Comparison(
        missing=tuple(map(int, missing)), other=tuple(sorted(other.items())), uncalled=tuple(map(int, uncalled))
    )


@dataclass(slots=True)
class Decisions:
    """Follow one partition of the table in its order: which decisions were carried out, and where are their markers?"""

    table_partition: int
    prepared: dict[str, TransactionRow] = field(default_factory=dict)
    """Decisions without a later record of their id."""
    staged_objects: dict[str, StagedObject] = field(default_factory=dict)
    lists: dict[str, tuple[StagedPart, ...]] = field(default_factory=dict)
    """The contents of the staged lists, filled in as they are read."""
    _expected: dict[TopicPartition, ExpectedMarkers] = field(default_factory=dict)
    _with_list: list[TransactionRow] = field(default_factory=list)
    """Decisions that were carried out and whose staged partitions are listed in an object."""
    _taken: dict[str, int] = field(default_factory=dict)
    """For each id, the offset of its last entry that was taken."""

    def take_snapshot(self, snapshot: Snapshot) -> None:
        """Take the state of the table up to the snapshot's offset."""
        rows = {row.value.transactional_id: row for row in snapshot.transactions}
        for transactional_id, prepare in list(self.prepared.items()):
            if transactional_id not in rows and prepare.offset < snapshot.offset:
                self._take(transactional_id, None, snapshot.offset - 1)  # a tombstone: take the record that it ended
        for transactional_id, row in rows.items():
            self._take(transactional_id, row.value, row.offset)

    def take_record(self, record: CommitRecord) -> None:
        """Take the next record that exists."""
        for number, entry in enumerate(record.entries):
            if isinstance(entry, TransactionEntry):
                self._take(entry.key, entry.value, record.base_offset + number)

    def parts_of(self, value: TransactionMetadata) -> tuple[StagedPart, ...]:
        """Return the staged parts of a PREPARE_COMMIT, as far as they are known."""
        if value.staged_object is None:
            return value.staged
        return self.lists.get(value.staged_object.name, ())

    def expected(self) -> Iterator[tuple[TopicPartition, ExpectedMarkers]]:
        """Yield the required markers by partition."""
        waiting, self._with_list = self._with_list, []
        for prepare in waiting:
            self._expect(prepare)
        yield from self._expected.items()

    def _take(self, transactional_id: str, value: TransactionMetadata | None, offset: int) -> None:
        if offset <= self._taken.get(transactional_id, -1):
            return
        self._taken[transactional_id] = offset
        before = self.prepared.pop(transactional_id, None)
        if before is not None:
            # No record can follow a decision before all its markers are written.
            if before.value.staged_object is None:
                self._expect(before)
            else:
                self._with_list.append(before)
        if value is not None and value.state in PREPARED:
            self.prepared[transactional_id] = TransactionRow(offset=offset, value=value)
            if value.staged_object is not None:
                self.staged_objects[value.staged_object.name] = value.staged_object

    def _expect(self, prepare: TransactionRow) -> None:
        value = prepare.value
        for tp in {*value.partitions, *(part.topic_partition for part in self.parts_of(value))}:
            self._expected.setdefault(tp, ExpectedMarkers()).add(self.table_partition, prepare.offset, value)


def is_decision(record: CommitRecord, marker: SeenMarker) -> bool:
    """Return whether a record of the table is the decision that a marker belongs to."""
    state = f"PREPARE_{kind_of(marker).upper()}"
    return any(
        isinstance(entry, TransactionEntry)
        and entry.value is not None
        and (entry.value.state, entry.value.producer_id, entry.value.producer_epoch)
        == (state, marker.producer_id, marker.epoch)
        for entry in record.entries
    )
