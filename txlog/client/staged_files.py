"""How do the rows of one task become parts of a staged transaction?

Rows are collected by partition and written to `rows/<producer id>-<epoch>-<unique>.parquet`, normally one file for each
partition. A file is written when the task ends, or earlier when too many rows are in memory. A few rows (up to
`inline.max.bytes`) are returned instead, so that the decision itself can carry them if there is room.

Nothing here appends: the files belong to no log until the transaction that lists them commits. A task that died leaves
files that no record ever names (PROTOCOL.md, "Staged").
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from txlog.client.row_writer import RowWriter
from txlog.client.runtime import Runtime, check_partition
from txlog.core.features import STAGED_INLINE
from txlog.core.records import DataFile, StagedPart, StagedRows, TopicMetadata, TransactionMetadata

MAX_BUFFER_BYTES = 256 * 2**20
"""Rows that a task holds in memory, as Arrow counts them. Above this, the partition with the most rows is written."""


class StagedFiles:
    """Collect rows for one transaction and write them. Not thread-safe; each task has its own."""

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

    def add(self, topic: TopicMetadata, rows: pa.Table, partitions: int | NDArray[np.int32]) -> None:
        """Add rows with exactly the topic's schema (`conform.conform`), each to its own partition or all to one.

        Raises UnknownTopicOrPartitionError for a partition out of range, StorageError.
        """
        for partition, part in _split(rows, partitions):
            check_partition(topic, partition)
            buffer = self._buffers.setdefault((topic.topic, partition), _Buffer(topic, partition))
            buffer.tables.append(part)
            buffer.bytes += part.nbytes
        while sum(buffer.bytes for buffer in self._buffers.values()) > self._max_buffer_bytes:
            self._write(max(self._buffers.values(), key=lambda buffer: buffer.bytes))

    def finish(self) -> tuple[StagedPart, ...]:
        """Write what is left. Return a part for each partition that got rows, in order. Raises StorageError."""
        parts = []
        for (topic, partition), buffer in sorted(self._buffers.items()):
            inline = self._inline(buffer)
            self._write(buffer)
            if buffer.files or inline is not None:
                part = StagedPart(
                    topic=topic, partition=partition, schema_id=buffer.topic.schema_id, files=tuple(buffer.files)
                )
                parts.append(part if inline is None else msgspec.structs.replace(part, inline=inline))
        return tuple(parts)

    def _inline(self, buffer: _Buffer) -> StagedRows | None:
        """Take the rows out of the buffer if they are few and are all rows of the partition."""
        if buffer.files or not buffer.tables or buffer.bytes > self._inline_bytes:
            return None
        rows = pa.concat_tables(buffer.tables)
        payload = self._row_writer.inline(rows, buffer.topic)
        if payload is None or len(payload) > self._inline_bytes:
            return None
        self._inline_bytes -= len(payload)
        buffer.tables, buffer.bytes = [], 0
        return StagedRows(rows=rows.num_rows, payload=payload)

    def _write(self, buffer: _Buffer) -> None:
        if not buffer.tables:
            return
        rows = pa.concat_tables(buffer.tables)
        buffer.tables, buffer.bytes = [], 0
        txn = self._txn
        buffer.files.append(
            self._row_writer.file(rows, buffer.topic, buffer.partition, txn.producer_id, txn.producer_epoch)
        )


class _Buffer:
    """Rows of one partition that wait, and the files of those that were written."""

    __slots__ = ("bytes", "files", "partition", "tables", "topic")

    def __init__(self, topic: TopicMetadata, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.tables: list[pa.Table] = []
        self.bytes = 0
        self.files: list[DataFile] = []


def _split(table: pa.Table, partitions: int | NDArray[np.int32]) -> Iterator[tuple[int, pa.Table]]:
    """Yield the rows of each partition, in their order. They are copies, so that writing a partition frees its memory."""
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
