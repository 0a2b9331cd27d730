"""Which rows does a published table of newest rows have, and what changes in it?

The rule is that of every reader of newest rows (`core/compaction.py`). A table has the newest row of each key in a
partition, as far as the cut goes, unless it is a tombstone. It has all rows without a key. Only keys are looked at
again whose rows have come or gone. All other rows are in the table as they were before, in whatever file they are now.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from txlog.client.session.runtime import Runtime
from txlog.client.tables.latest import tombstones_of
from txlog.client.tables.predicate import bounds_in
from txlog.client.topics.row_writer import keys_of_latest
from txlog.core.compaction import Flags, Newest
from txlog.core.partitioning import Offsets
from txlog.core.publication import Copy, OfBatch, ShownFile, ShownPartition, Tables, rows_of_cut
from txlog.core.records import DataFile, TopicMetadata
from txlog.core.records.publications import PublishedFile, RowRun
from txlog.core.row_runs import packed, removed_from, rows_in, runs_of
from txlog.core.schema import OFFSET_COLUMN, value_columns
from txlog.publication.file_rows import read_columns
from txlog.storage.keys import NewestOffsets, key_values


@dataclass(slots=True, kw_only=True)
class NewestChanges:
    """What must change in a table of newest rows."""

    listed: list[PublishedFile] = field(default_factory=list)
    """Files that are new, or of which other rows are left out."""
    copies: list[Copy] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    has_new_rows: bool = False
    """Whether the cut has rows that the one before did not have."""
    is_change: bool = False
    """Whether rows come into the table or leave it."""
    rows_added: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How the rows of files come into the tables."""

    misread: Collection[str]
    """Files whose rows must be copied, and copies that must be made again."""
    copies_partial: bool
    """Whether the rows of a file are copied, too, if some of them are not in the table."""
    starts_over: bool
    """Whether the tables have other columns, another key, or all rows until now."""


def newest_changes(
    runtime: Runtime,
    topic: TopicMetadata,
    before: Tables,
    partitions: Sequence[ShownPartition],
    offsets: Mapping[str, Sequence[int]],
    way: Way,
) -> NewestChanges:
    """Return what must change so that the tables show the newest rows of `partitions`, which are all of the topic.

    `offsets` holds the offset of each row of the files that are unclear. Reads the columns of the key, of each
    partition that has changed. Memory holds the bytes of each key that is looked at, several times. Raises
    InvalidRequestError for a topic without a key, CorruptLogError if the cut is older than the tables, and what reading
    raises.
    """
    keys = keys_of_latest(runtime.settings, topic)
    split = rows_of_cut(None if way.starts_over else before, partitions, offsets)
    found = NewestChanges()
    for number, partition in enumerate(partitions):
        held = [file for file in before.files.values() if file.partition == number]
        _Partition(runtime, topic, keys, partition, [] if way.starts_over else held).look(split, way, found)
    if way.starts_over:
        found.removed = sorted(before.files.keys() - {file.path for file in found.listed})
        found.is_change = True
    return found


class _Partition:
    def __init__(
        self,
        runtime: Runtime,
        topic: TopicMetadata,
        keys: Sequence[str],
        partition: ShownPartition,
        held: Iterable[PublishedFile],
    ) -> None:
        self._runtime = runtime
        self._topic = topic
        self._keys = keys
        self._log_start = partition.log_start_offset
        self._shown = {each.file.path: each for each in partition.files}
        self._tables: dict[str, pa.Table] = {}
        self._parts: dict[str, list[PublishedFile]] = {}
        for file in held:
            self._parts.setdefault(file.source or file.path, []).append(file)

    def look(
        self, split: Mapping[str, tuple[Sequence[RowRun], Sequence[RowRun]]], way: Way, found: NewestChanges
    ) -> None:
        """Add to `found` what changes in this partition."""
        old = {path: _flags(split[path][0], each.file.rows) for path, each in self._shown.items()}
        new = {path: _flags(split[path][1], each.file.rows) for path, each in self._shown.items()}
        was = {path: old[path] & self._visible(path) for path in self._shown}
        gone = [file for path, files in self._parts.items() if path not in self._shown for file in files]
        touched = _Touched(self._keys)
        if gone:
            is_lost = self._follow(gone, old, was, touched)
            found.is_change = found.is_change or is_lost
        want = {path: flags.copy() for path, flags in was.items()}
        fresh = [path for path, flags in new.items() if flags.any()]
        for path in fresh:
            is_keyed = touched.add(self._table(self._shown[path]).filter(pa.array(new[path])))
            # Rows without a key equal no other row.
            want[path][np.flatnonzero(new[path])[~is_keyed]] = True
        if touched:
            self._choose(touched, {path: old[path] | new[path] for path in self._shown}, was, want)
        found.has_new_rows = found.has_new_rows or bool(fresh)
        found.is_change = found.is_change or any((want[path] != was[path]).any() for path in want)
        found.rows_added += sum(int((want[path] & new[path]).sum()) for path in fresh)
        found.removed += [file.path for file in gone]
        for path, each in self._shown.items():
            self._list(each, want[path], way, found)

    def _visible(self, path: str) -> Flags:
        """Return which rows of a file of the log are in the tables."""
        flags = np.zeros(self._shown[path].file.rows, dtype=np.bool_)
        for part in self._parts.get(path, ()):
            rows = rows_in(part.source_rows) if part.source else np.arange(part.rows)
            flags[np.delete(rows, removed_from(part))] = True
        return flags

    def _follow(
        self, gone: Sequence[PublishedFile], old: Mapping[str, Flags], was: dict[str, Flags], touched: _Touched
    ) -> bool:
        """Find the rows of files that left the log in other ones, and the keys of those that are in none.

        Return whether one of these was in the tables.
        """
        tables = [self._table(_shown_file(file)) for file in gone]
        every = [_offsets(table) for table in tables]
        visible = np.concatenate([np.delete(each, removed_from(file)) for each, file in zip(every, gone, strict=True)])
        there = []
        for path, each in self._shown.items():
            if path not in self._parts and old[path].any():
                there.append(_offsets(self._table(each, ())))
                was[path] = old[path] & np.isin(there[-1], visible)
        stays = np.concatenate([*there, np.zeros(0, dtype=np.int64)])
        for table, rows in zip(tables, every, strict=True):
            touched.add(table.filter(pa.array((rows >= self._log_start) & ~np.isin(rows, stays))))
        return bool((~np.isin(visible[visible >= self._log_start], stays)).any())

    def _choose(
        self, touched: _Touched, in_cut: Mapping[str, Flags], was: Mapping[str, Flags], want: Mapping[str, Flags]
    ) -> None:
        """Choose the newest row of each touched key among all rows of the cut."""
        known, newest = touched.known(), NewestOffsets()
        found: dict[str, tuple[NDArray[np.intp], Offsets]] = {}
        for path, each in self._shown.items():
            if in_cut[path].any():
                table = self._table(each)
                keys = key_values(table, self._keys)
                at = np.flatnonzero(pc.is_in(keys, known).to_numpy(zero_copy_only=False) & in_cut[path])
                found[path] = at, _offsets(table)[at]
                newest.add(keys.take(at), found[path][1])
        newest_rows = Newest(newest.found()[1])
        for path, (at, offsets) in found.items():
            kept = newest_rows.keep(offsets, np.zeros(len(at), dtype=np.bool_))
            # A row that the tables have is no tombstone.
            asked = np.flatnonzero(kept & ~was[path][at])
            kept[asked[self._are_tombstones(self._shown[path], at[asked])]] = False
            want[path][at] = kept

    def _are_tombstones(self, shown: ShownFile, rows: NDArray[np.intp]) -> Flags:
        values = value_columns(self._topic.schema, self._keys)
        bounds = [
            bounds_in(each, shown.file.statistics, shown.file.rows)
            for each in self._topic.schema
            if each.name in values
        ]
        if not len(rows) or any(each is not None and not each.nulls for each in bounds):
            return np.zeros(len(rows), dtype=np.bool_)
        return tombstones_of(self._table(shown, values).take(rows), values)

    def _list(self, shown: ShownFile, want: Flags, way: Way, found: NewestChanges) -> None:
        """Let the tables have the rows `want` of a file, and no other ones of it."""
        path, rest = shown.file.path, want.copy()
        held = {file.path: file for file in self._parts.get(path, ())}
        listed: list[PublishedFile] = []
        for part in held.values():
            rows = rows_in(part.source_rows)
            if part.source and part.path not in way.misread and (want[rows].all() or not way.copies_partial):
                listed += [_without(part, ~want[rows])] if want[rows].any() else []
                rest[rows] = False
        if rest.any() and (path in way.misread or (way.copies_partial and not want.all())):
            found.copies.append(Copy(shown=shown, rows=runs_of(rest)))
        elif rest.any():
            listed.append(_without(_published(shown), ~rest))
        found.listed += [file for file in listed if _names(held.get(file.path)) != _names(file)]
        found.removed += sorted(held.keys() - {file.path for file in listed})

    def _table(self, shown: ShownFile, columns: Sequence[str] | None = None) -> pa.Table:
        """Return columns of all rows of a file, and `_offset`; those of the key if None."""
        if columns is not None:
            return read_columns(self._runtime, self._topic, shown, columns)
        # New files are read twice.
        path = shown.file.path
        if path not in self._tables:
            self._tables[path] = read_columns(self._runtime, self._topic, shown, self._keys)
        return self._tables[path]


class _Touched:
    """The keys to look at."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = keys
        self._found: list[pa.Array[Any]] = []

    def __bool__(self) -> bool:
        return any(map(len, self._found))

    def add(self, table: pa.Table) -> Flags:
        """Take the keys of rows, and return which rows have one."""
        keys = key_values(table, self._keys)
        self._found.append(keys.drop_null())
        return keys.is_valid().to_numpy(zero_copy_only=False)

    def known(self) -> pa.Array[Any]:
        return pa.concat_arrays(self._found).unique()


def _flags(runs: Sequence[RowRun], rows: int) -> Flags:
    flags = np.zeros(rows, dtype=np.bool_)
    flags[rows_in(runs)] = True
    return flags


def _offsets(table: pa.Table) -> Offsets:
    found: Offsets = table.column(OFFSET_COLUMN).to_numpy()
    return found


def _shown_file(file: PublishedFile) -> ShownFile:
    """Return a published file as one that can be read."""
    base = file.base_offset
    return ShownFile(
        partition=file.partition,
        file=DataFile(**file.file_fields),
        schema_id=file.schema_id,
        spans=(),
        batch=None if base is msgspec.UNSET else OfBatch(base_offset=base, timestamp=0),
    )


def _published(shown: ShownFile) -> PublishedFile:
    return PublishedFile(
        **shown.file.file_fields,
        partition=shown.partition,
        schema_id=shown.schema_id,
        base_offset=msgspec.UNSET if shown.batch is None else shown.batch.base_offset,
        since=0,
        group=0,
    )


def _without(file: PublishedFile, removed: Flags) -> PublishedFile:
    return msgspec.structs.replace(file, removed_rows=packed(np.flatnonzero(removed)))


def _names(file: PublishedFile | None) -> object:
    return None if file is None else (file.path, file.removed_rows)
