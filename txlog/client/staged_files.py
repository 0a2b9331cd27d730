"""How do the rows of one task become what a staged transaction can publish?

Rows are collected by partition and written to `rows/<producer id>-<epoch>-<unique>.parquet`, normally one file a
partition: a file is written when the task ends, or earlier when the rows in memory grow too many. Rows that are few
(`inline.max.bytes`) are handed back instead, for the decision itself to carry, if whoever collects them has room.
Nothing here appends: the files belong to no log until the transaction that lists them commits, and a task that died
leaves files that no record ever names (PROTOCOL.md, "Staged").
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from txlog.client.placing import Placer
from txlog.client.runtime import Runtime, check_partition
from txlog.core.features import STAGED_INLINE
from txlog.core.records import DataFile, StagedPart, StagedRows, TopicMetadata, TransactionMetadata

MAX_BUFFER_BYTES = 256 * 2**20
"""Rows that a task holds in memory, as Arrow counts them; beyond, the partition with the most is written."""


class StagedFiles:
    """Collects rows for one transaction and writes them. Not thread-safe; one task has one."""

    def __init__(
        self,
        runtime: Runtime,
        txn: TransactionMetadata,
        *,
        compression: str | None = None,
        max_buffer_bytes: int = MAX_BUFFER_BYTES,
        inline_bytes: int = 0,
    ) -> None:
        """`inline_bytes`: how much may be handed back inline, all partitions together. 0, or a store made before there were
        such rows (PROTOCOL.md, "Features"): all rows go to files."""
        self._txn = txn
        self._placer = Placer(runtime, {"compression.type": compression})
        self._max_buffer_bytes = max_buffer_bytes
        self._inline_bytes = inline_bytes if STAGED_INLINE in runtime.require_store().features else 0
        self._buffers: dict[tuple[str, int], _Buffer] = {}

    def add(self, topic: TopicMetadata, rows: pa.Table, partitions: int | NDArray[np.int32]) -> None:
        """Takes rows with exactly the topic's schema (`arrow_schema.conform`), each to its partition or all to one.

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
        """Writes what is left; a part for each partition that got rows, in order. Raises StorageError."""
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
        """Takes the rows out of the buffer, if they are few and all of its partition's."""
        if buffer.files or not buffer.tables or buffer.bytes > self._inline_bytes:
            return None
        rows = pa.concat_tables(buffer.tables)
        payload = self._placer.inline(rows, buffer.topic)
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
            self._placer.file(rows, buffer.topic, buffer.partition, txn.producer_id, txn.producer_epoch)
        )


class _Buffer:
    """Rows of one partition that wait, and the files of those that do not."""

    __slots__ = ("bytes", "files", "partition", "tables", "topic")

    def __init__(self, topic: TopicMetadata, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.tables: list[pa.Table] = []
        self.bytes = 0
        self.files: list[DataFile] = []


def _split(table: pa.Table, partitions: int | NDArray[np.int32]) -> Iterator[tuple[int, pa.Table]]:
    """The rows of each partition, in their order; copies, so that a partition that is written frees its memory."""
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
