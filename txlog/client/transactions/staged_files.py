"""How do rows become parts of a staged transaction: those of a task, and those that another writer has left?

Rows are collected by partition and written to `rows/<producer id>-<epoch>-<unique>.parquet`, normally one file for each
partition. A file is written when the task ends, or earlier when too many rows are in memory. A few rows (up to
`inline.max.bytes`) are returned instead, so that the decision itself can carry them if there is room.

Nothing here appends: the files belong to no log until the transaction that lists them commits. A task that died leaves
files that no record ever names (PROTOCOL.md, "Staged").

A commit record has its rows in one place: in files, or inline. So `settle_inline` joins the inline rows of several
tasks or frames for one partition. The order of parts is kept.

Another writer, such as Spark's own, fills the transaction's folder
`<topic>/staged/<producer id>-<epoch>-<unique>/_partition=<n>/`. No file is moved or copied. `read_staged_folder` lists
the folder, reads and checks every footer, and returns what a commit record needs to name the files. Each folder belongs
to one job; the folder of a failed job is never read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from txlog.client.session.runtime import Runtime, check_partition
from txlog.client.topics.row_writer import RowWriter
from txlog.core.evolution import WrittenSchema
from txlog.core.features import STAGED_INLINE
from txlog.core.names import TopicPartition, parse_rows_path
from txlog.core.records import DataFile, StagedPart, StagedRows, TopicMetadata, TransactionMetadata
from txlog.errors import CorruptLogError, SchemaMismatchError, UnknownTopicOrPartitionError
from txlog.storage.arrow_evolution import select_as
from txlog.storage.inline_rows import read_ipc, select_fields
from txlog.storage.object_store import make_durable
from txlog.storage.parquet_file import describe_file
from txlog.text import count_text

MAX_BUFFER_BYTES = 256 * 2**20
"""Rows that a task holds in memory, as Arrow counts them. Above this, the partition with the most rows is written."""
PARALLEL_FOOTERS = 16
"""Footers that are read at once. Each costs one request and hardly any CPU time."""
_HIDDEN = (".", "_")
"""First characters of the names that Hadoop and Spark skip: `_SUCCESS`, `.part-….crc`."""
_NUMBER = re.compile(r"(\d+)", re.ASCII)
_FOLDER = re.compile(r"_partition=(0|[1-9]\d{0,8})/\Z", re.ASCII)


class StagedFiles:
    """Collect rows for one transaction and write them. Not thread-safe; each task has its own.

    An interrupted `add` has added nothing, and an interrupted `finish` goes on when it is called again. A file that
    such a call has written may stay in the store. No record names it.
    """

    def __init__(
        self,
        runtime: Runtime,
        txn: TransactionMetadata,
        *,
        compression: str | None = None,
        max_buffer_bytes: int = MAX_BUFFER_BYTES,
        inline_bytes: int = 0,
    ) -> None:
        """Set up an empty collection.

        `inline_bytes`: how many bytes may be returned inline, all partitions together. If it is 0, or the store was
        made before inline staged rows existed (PROTOCOL.md, "Features"), all rows are written to files.
        """
        self._txn = txn
        self._row_writer = RowWriter(runtime, {"compression.type": compression})
        self._max_buffer_bytes = max_buffer_bytes
        self._inline_bytes = inline_bytes if STAGED_INLINE in runtime.require_store().features else 0
        self._buffers: dict[tuple[str, int], _Buffer] = {}
        """Replaced in one step. Otherwise an interrupt could lose or double rows."""

    def add(self, topic: TopicMetadata, rows: pa.Table, partitions: int | NDArray[np.int32]) -> None:
        """Add rows with exactly the schema of `topic` (`conform.conform`), each to its own partition or all to one.

        All rows of a partition have one version of the columns. Raises SchemaMismatchError for rows of another version,
        UnknownTopicOrPartitionError for a partition out of range, StorageError. If it raises, it has added no row.
        """
        buffers = dict(self._buffers)
        for partition, part in _split(rows, partitions):
            check_partition(topic, partition)
            buffer = buffers.get((topic.topic, partition)) or _Buffer(topic, partition)
            # Rows are joined by place, so a column of another version could take the place of an older one.
            if buffer.topic.schema_id != topic.schema_id:
                raise SchemaMismatchError(
                    f"{topic.topic}-{partition}: rows for version {topic.schema_id} of the topic's columns cannot "
                    f"follow rows for version {buffer.topic.schema_id}: the columns changed while the rows were "
                    "written. Nothing was published. hint: write again"
                )
            buffers[topic.topic, partition] = replace(
                buffer, tables=(*buffer.tables, part), bytes=buffer.bytes + part.nbytes
            )
        while sum(buffer.bytes for buffer in buffers.values()) > self._max_buffer_bytes:
            largest = max(buffers, key=lambda at: buffers[at].bytes)
            buffers[largest] = self._written(buffers[largest])
        self._buffers = buffers

    def finish(self) -> tuple[StagedPart, ...]:
        """Write what is left. Return a part for each partition that got rows, in order. Raises StorageError.

        A second call returns the same parts.
        """
        parts = []
        for at, buffer in sorted(self._buffers.items()):
            if buffer.tables:
                self._buffers[at] = buffer = self._inlined(buffer) or self._written(buffer)
            if buffer.files or buffer.inline is not None:
                part = StagedPart(
                    topic=buffer.topic.topic,
                    partition=buffer.partition,
                    schema_id=buffer.topic.schema_id,
                    files=buffer.files,
                )
                parts.append(part if buffer.inline is None else msgspec.structs.replace(part, inline=buffer.inline))
        return tuple(parts)

    def _inlined(self, buffer: _Buffer) -> _Buffer | None:
        """Return the buffer with its rows inline, or None unless they are few and are all rows of the partition."""
        room = self._inline_bytes - sum(
            len(each.inline.payload) for each in self._buffers.values() if each.inline is not None
        )
        if buffer.files or buffer.bytes > room:
            return None
        rows = pa.concat_tables(buffer.tables)
        payload = self._row_writer.inline(rows, buffer.topic)
        if payload is None or len(payload) > room:
            return None
        return replace(buffer, tables=(), bytes=0, inline=StagedRows(rows=rows.num_rows, payload=payload))

    def _written(self, buffer: _Buffer) -> _Buffer:
        """Return the buffer with its rows in one more file."""
        txn = self._txn
        file = self._row_writer.file(
            pa.concat_tables(buffer.tables), buffer.topic, buffer.partition, txn.producer_id, txn.producer_epoch
        )
        return replace(buffer, tables=(), bytes=0, files=(*buffer.files, file))


@dataclass(frozen=True, slots=True)
class _Buffer:
    """Rows of one partition that wait, and what became of those before them."""

    topic: TopicMetadata
    partition: int
    tables: tuple[pa.Table, ...] = ()
    bytes: int = 0
    """Size of `tables`."""
    files: tuple[DataFile, ...] = ()
    inline: StagedRows | None = None


def _split(table: pa.Table, partitions: int | NDArray[np.int32]) -> Iterator[tuple[int, pa.Table]]:
    """Yield the rows of each partition, in their order.

    They are copies, so that writing a partition frees its memory.
    """
    if table.num_rows == 0:
        return
    if isinstance(partitions, int):
        yield partitions, table
        return
    found = np.unique(partitions)
    if len(found) == 1:
        yield int(found[0]), table
        return
    for partition in found:
        yield int(partition), table.take(np.flatnonzero(partitions == partition))


# -- inline rows ------------------------------------------------------------------------------------------------------


def settle_inline(
    runtime: Runtime,
    txn: TransactionMetadata,
    parts: Sequence[StagedPart],
    *,
    max_bytes: int,
    compression: str | None = None,
) -> tuple[StagedPart, ...]:
    """Return `parts` with inline rows only where a partition has no files.

    Inline rows of a partition stay below the topic's `inline.max.bytes`, and those of all partitions below `max_bytes`;
    the largest are written to files first. Raises StorageError, SchemaMismatchError, UnknownTopicOrPartitionError for a
    topic that was deleted since.
    """
    found: dict[TopicPartition, list[StagedPart]] = {}
    for part in parts:
        found.setdefault(part.topic_partition, []).append(part)
    settler = _Settler(runtime, txn, compression)
    settled = [each for group in found.values() for each in settler.joined(group)]
    room = max_bytes
    for number, part in sorted(enumerate(settled), key=lambda each: len(each[1].payload)):
        room -= len(part.payload)
        if part.payload and room < 0:
            settled[number] = settler.to_file(part)
    return tuple(settled)


class _Settler:
    def __init__(self, runtime: Runtime, txn: TransactionMetadata, compression: str | None) -> None:
        self._runtime = runtime
        self._txn = txn
        self._row_writer = RowWriter(runtime, {"compression.type": compression})
        self._topics: dict[str, TopicMetadata] = {}
        """The newest version of each topic, looked up once: rows and the version that they name must not differ."""

    def joined(self, group: list[StagedPart]) -> list[StagedPart]:
        """Return the parts of one partition joined: inline rows one after the other, or all in files."""
        inline = [part for part in group if part.payload]
        if not inline or len(group) == 1:
            return group
        if len(inline) < len(group):
            return [self.to_file(part) if part.payload else part for part in group]
        topic = self._topic(group[0].topic)
        rows = self._rows(inline, topic)
        whole = msgspec.structs.replace(group[0], schema_id=topic.schema_id)
        payload = self._row_writer.inline(rows, topic)
        if payload is not None:
            return [msgspec.structs.replace(whole, inline=StagedRows(rows=rows.num_rows, payload=payload))]
        return [self._file(whole, rows, topic)]

    def to_file(self, part: StagedPart) -> StagedPart:
        """Return the part with its rows in a file."""
        topic = self._topic(part.topic)
        return self._file(part, self._rows([part], topic), topic)

    def _topic(self, name: str) -> TopicMetadata:
        found = self._topics.get(name)
        if found is None:
            found = self._topics[name] = self._runtime.topic(name, 0)
        return found

    def _rows(self, parts: Sequence[StagedPart], topic: TopicMetadata) -> pa.Table:
        # All rows get the columns of `topic`: a column that was added meanwhile is null, or has its default.
        where = f"staged rows of {parts[0].topic_partition}"
        written: Mapping[int, WrittenSchema] = {}
        if topic.last_field_id is not msgspec.UNSET:
            written = self._runtime.written_schemas(topic, {part.schema_id for part in parts})

        def rows(part: StagedPart) -> pa.Table:
            table = read_ipc(part.payload, where)
            own = written.get(part.schema_id)
            if own is None:
                return select_fields(table, topic.schema, where)
            return select_as(table, own, topic.schema, where)

        return pa.concat_tables(map(rows, parts))

    def _file(self, part: StagedPart, rows: pa.Table, topic: TopicMetadata) -> StagedPart:
        txn = self._txn
        file = self._row_writer.file(rows, topic, part.partition, txn.producer_id, txn.producer_epoch)
        return msgspec.structs.replace(part, schema_id=topic.schema_id, files=(file,), inline=msgspec.UNSET)


# -- rows of another writer -------------------------------------------------------------------------------------------


def read_staged_folder(runtime: Runtime, topic: TopicMetadata, folder: str) -> tuple[StagedPart, ...]:
    """Return the rows below `folder` (`names.staged_folder`) by partition, files in the order of the numbers in their
    names.

    The result is empty if the folder is empty. From here on the rows survive a power cut. Raises:

    * SchemaMismatchError for a file that does not have exactly the topic's schema.
    * CorruptRecordError or CorruptLogError for content that a finished writer cannot have left.
    * UnknownTopicOrPartitionError, StorageError.
    """
    found = _listed(runtime, topic, folder)
    if not found:
        return ()

    def described(path: str) -> DataFile:
        make_durable(runtime.store, f"{topic.topic}/{path}")
        return describe_file(runtime.store, topic.topic, path, topic.schema, exact=True)

    with ThreadPoolExecutor(min(PARALLEL_FOOTERS, len(found)), thread_name_prefix="txlog-footers") as pool:
        files = list(pool.map(described, [path for _, path in found]))
    parts: dict[int, list[DataFile]] = {}
    for (partition, _), file in zip(found, files, strict=True):
        if file.rows:
            parts.setdefault(partition, []).append(file)
    return tuple(
        StagedPart(topic=topic.topic, partition=partition, schema_id=topic.schema_id, files=tuple(parts[partition]))
        for partition in sorted(parts)
    )


def _listed(runtime: Runtime, topic: TopicMetadata, folder: str) -> list[tuple[int, str]]:
    found = []
    for inner in runtime.store.list(f"{topic.topic}/{folder}"):
        if inner.startswith(_HIDDEN) and not inner.endswith("/"):
            continue
        match = _FOLDER.match(inner)
        if match is None:
            raise _strange(f"{topic.topic}/{folder}{inner}", "folders _partition=<n>/")
        partition = int(match[1])
        if partition >= topic.partitions:
            raise UnknownTopicOrPartitionError(
                f"{topic.topic}/{folder}{inner}: topic {topic.topic!r} has "
                f"{count_text(topic.partitions, 'partition')}, numbered 0 to {topic.partitions - 1}"
            )
        # A store lists -c1000 before -c101, but the writer has filled these files in the order of their numbers.
        for name in sorted(runtime.store.list(f"{topic.topic}/{folder}{inner}"), key=_by_number):
            path = f"{folder}{inner}{name}"
            if parse_rows_path(path) is not None:
                found.append((partition, path))
            elif not name.startswith(_HIDDEN) or name.endswith("/"):
                # A committer works in a hidden folder (`_temporary/`, `__magic/`), here if Spark wrote to one
                # partition's folder. If it is still there, rows may be in it.
                raise _strange(f"{topic.topic}/{path}", "files <name>.parquet")
    return found


def _by_number(name: str) -> list[tuple[int, str]]:
    """Return the sort key of a name whose numbers count as numbers. Every second part of it is a number."""
    return [(int(part), "") if number % 2 else (0, part) for number, part in enumerate(_NUMBER.split(name))]


def _strange(path: str, expected: str) -> CorruptLogError:
    return CorruptLogError(
        f"{path}: a job that has ended leaves only {expected} here; does another one write to the same folder, or "
        "does Spark's committer keep rows elsewhere? Nothing was published"
    )
