"""In which partition is a row stored?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from txlog.client.keys import check_keys
from txlog.client.row_writer import RowWriter
from txlog.client.runtime import Runtime, check_partition
from txlog.core.names import TopicPartition
from txlog.core.records import TopicMetadata
from txlog.storage.keys import NO_KEY, partition_table


class Partitioner:
    """Choose partitions as Kafka does: a named one, by the hash of a key, or the same one for a while (sticky).

    Not thread-safe: the caller holds a lock.
    """

    def __init__(self, runtime: Runtime, row_writer: RowWriter, sticky_bytes: int) -> None:
        self._runtime = runtime
        self._row_writer = row_writer
        self._sticky_bytes = sticky_bytes
        self._sticky: dict[str, tuple[int, int]] = {}
        """topic -> (partition, bytes sent there so far)."""

    def split(
        self, table: pa.Table, topic: TopicMetadata, key: str | Sequence[str] | None, partition: int | None
    ) -> list[tuple[TopicPartition, pa.Table]]:
        """Return the rows of each partition, in their order.

        A named partition comes before a key, and `key` before the topic's own key columns (`keys.key_columns_of`). All
        rows without a key are sent to the same partition. Raises UnknownTopicOrPartitionError with the valid range,
        SchemaMismatchError for an invalid key.
        """
        settings = self._row_writer.settings(topic)
        columns = settings.key_columns if key is None else (key,) if isinstance(key, str) else tuple(key)
        if settings.compacted:
            check_keys(table, topic, settings.key_columns)
        if partition is not None:
            return [(check_partition(topic, partition), table)]
        hashed = partition_table(table, columns, topic.partitions)
        if not columns or bool((hashed == NO_KEY).all()):
            return [(self._stick(topic, table.nbytes), table)]
        if bool((hashed == NO_KEY).any()):
            keyless = self._stick(topic, int(table.nbytes * float((hashed == NO_KEY).mean())))
            hashed = np.where(hashed == NO_KEY, np.int32(keyless.partition), hashed)
        return [(TopicPartition(topic.topic, number), rows) for number, rows in _split(table, hashed)]

    def _stick(self, topic: TopicMetadata, size: int) -> TopicPartition:
        known = self._sticky.get(topic.topic)
        if known is None:
            partition, sent = int(self._runtime.ids.new_id()[-8:], 16) % topic.partitions, 0
        else:
            partition, sent = known
            if sent >= self._sticky_bytes:
                partition, sent = (partition + 1) % topic.partitions, 0
        self._sticky[topic.topic] = (partition, sent + size)
        return TopicPartition(topic.topic, partition)


def _split(table: pa.Table, partitions: np.ndarray[tuple[int], np.dtype[np.int32]]) -> Iterator[tuple[int, pa.Table]]:
    first = int(partitions[0])
    if bool((partitions == first).all()):
        yield first, table
        return
    order = np.argsort(partitions, kind="stable")
    sorted_rows = table.take(order)
    found, starts = np.unique(partitions[order], return_index=True)
    ends = [*starts[1:], table.num_rows]
    for number, start, end in zip(found, starts, ends, strict=True):
        yield int(number), sorted_rows.slice(int(start), int(end - start))
