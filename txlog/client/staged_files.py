"""How do the rows of one task become files that a staged transaction can publish?

Rows are collected by partition and written to `rows/<producer id>-<epoch>-<unique>.parquet`, normally one file a
partition: a file is written when the task ends, or earlier when the rows in memory grow too many. Nothing here appends:
the files belong to no log until the transaction that lists them commits, and a task that died leaves files that nobody
ever names (DESIGN 4.3).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from txlog.client.runtime import Runtime, check_partition
from txlog.core.names import rows_file_path
from txlog.core.records import DataFile, StagedPart, TopicMetadata, TransactionMetadata
from txlog.storage.segment_file import ROW_GROUP_ROWS, write_rows_file

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
    ) -> None:
        self._runtime = runtime
        self._txn = txn
        self._compression = compression
        self._max_buffer_bytes = max_buffer_bytes
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
        for buffer in self._buffers.values():
            self._write(buffer)
        return tuple(
            StagedPart(topic=topic, partition=partition, schema_id=buffer.topic.schema_id, files=tuple(buffer.files))
            for (topic, partition), buffer in sorted(self._buffers.items())
            if buffer.files
        )

    def _write(self, buffer: _Buffer) -> None:
        if not buffer.tables:
            return
        topic = buffer.topic
        settings = self._runtime.settings.row_config({"compression.type": self._compression}, topic)
        path = rows_file_path(
            buffer.partition, self._txn.producer_id, self._txn.producer_epoch, self._runtime.ids.new_id()
        )
        rows = pa.concat_tables(buffer.tables)
        buffer.tables, buffer.bytes = [], 0
        buffer.files.append(
            write_rows_file(
                self._runtime.store,
                topic.topic,
                path,
                rows.to_batches(max_chunksize=ROW_GROUP_ROWS),
                topic.schema,
                compression=settings.compression_type,
            )
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
