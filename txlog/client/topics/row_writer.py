"""Where is a row stored? In which partition, by which key, and in its commit record or in a Parquet file?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa

from txlog.client.session.runtime import Runtime, check_columns, check_partition
from txlog.client.session.settings import Settings
from txlog.client.topics.column_names import ColumnNames, FormerIds, former_column
from txlog.config import Layer
from txlog.core.append_rules import RollPolicy
from txlog.core.features import INLINE_ZSTD
from txlog.core.names import TopicPartition, rows_file_path
from txlog.core.partitioning import partition_for
from txlog.core.records import DataFile, TopicMetadata
from txlog.core.schema import kafka_key
from txlog.errors import InvalidRequestError, SchemaMismatchError
from txlog.storage.conform import conform, single_row
from txlog.storage.inline_rows import compressed, encode_ipc
from txlog.storage.keys import NO_KEY, partition_table
from txlog.storage.one_row import OneRow, RowForm, Rows, table_of
from txlog.storage.parquet_writer import ROW_GROUP_ROWS, write_rows_file
from txlog.text import count_text


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """The settings of a topic that a producer needs."""

    inline_max_bytes: int
    compression: str
    roll: RollPolicy
    key_columns: tuple[str, ...]
    compacted: bool
    form: RowForm
    """Makes rows that are sent alone."""


class RowWriter:
    """Write rows inline or to a file. Thread-safe."""

    def __init__(self, runtime: Runtime, call: Layer, names: ColumnNames | None = None) -> None:
        """`names` are what the writer's columns meant until now; None for rows that already have the topic's
        columns."""
        self._runtime = runtime
        self._call = call
        self._names = names
        self._former_ids = FormerIds(runtime)
        self._settings: dict[tuple[str, int], TopicSettings] = {}

    def settings(self, topic: TopicMetadata) -> TopicSettings:
        """Return the settings for rows of this version of the topic."""
        found = self._settings.get((topic.topic, topic.number))
        if found is None:
            config = self._runtime.settings.topic_config(topic)
            row_config = self._runtime.settings.row_config(self._call, topic)
            found = self._settings[topic.topic, topic.number] = TopicSettings(
                inline_max_bytes=min(row_config.inline_max_bytes, config.max_message_bytes),
                compression=row_config.compression_type,
                roll=self._runtime.settings.roll_policy(topic),
                key_columns=key_columns_of(self._runtime.settings, topic),
                compacted="compact" in config.cleanup_policy,
                form=RowForm(topic.schema, topic.topic, partial(former_column, self._runtime, topic)),
            )
        return found

    def rows(self, topic: TopicMetadata, data: object) -> Rows:
        """Return rows that a program gives with the columns of this version of the topic.

        Raises SchemaMismatchError, also for a column whose name has meant another one before, and for rows that were
        read from this topic before such a change.
        """
        if self._names is not None:
            self._names.check_rows(topic, data)
        row = single_row(data)
        if row is not None:
            return self.settings(topic).form.take(row)
        return conform(
            data,
            topic.schema,
            topic=topic.topic,
            check=partial(self._former_ids.check, topic),
            former=partial(former_column, self._runtime, topic),
        )

    def inline(self, table: pa.Table, topic: TopicMetadata) -> bytes | None:
        """Return the rows in the form for the commit record, or None if they are too large for that."""
        settings = self.settings(topic)
        limit = settings.inline_max_bytes
        # The stream is larger than the table, because buffers are padded and framed.
        if table.nbytes > limit:
            return None
        stream = encode_ipc(table)
        if len(stream) >= limit:
            return None
        compress = settings.compression != "none" and INLINE_ZSTD in self._runtime.require_store().features
        return compressed(stream, table.num_rows) if compress else stream

    def file(self, table: pa.Table, topic: TopicMetadata, partition: int, pid: int, epoch: int) -> DataFile:
        """Write the rows to a new Parquet file, whose name contains the producer id. Raises StorageError."""
        runtime = self._runtime
        return write_rows_file(
            runtime.store,
            topic.topic,
            rows_file_path(partition, pid, epoch, runtime.ids.new_id()),
            table.to_batches(max_chunksize=ROW_GROUP_ROWS),
            topic.schema,
            compression=self.settings(topic).compression,
        )


def key_columns_of(settings: Settings, topic: TopicMetadata, columns: Sequence[str] | None = None) -> tuple[str, ...]:
    """Return the key columns of the call, else those of the topic, else `key` in a topic with Kafka's columns.

    The call's are `columns`; the topic's are its `key.columns`. Raises SchemaMismatchError for a column that the topic
    does not have.
    """
    if columns is not None:
        return check_columns(topic, tuple(columns))
    return settings.topic_config(topic).key_columns or kafka_key(topic.schema)


def keys_of_latest(settings: Settings, topic: TopicMetadata) -> tuple[str, ...]:
    """Return the topic's key columns. Raises InvalidRequestError if it has none."""
    keys = key_columns_of(settings, topic)
    if not keys:
        raise InvalidRequestError(
            f"topic {topic.topic!r} has no key, so no row of it is newer than another one. "
            "hint: set key.columns of the topic"
        )
    return keys


def check_keys(table: pa.Table, topic: TopicMetadata, key_columns: Sequence[str]) -> None:
    """Raise SchemaMismatchError for a row without a key.

    A compacted topic keeps the latest row of each key, so no later row could ever supersede a row without a key (C2).
    """
    nulls = [table.column(name).is_null().to_numpy() for name in key_columns]
    keyless = np.logical_and.reduce(nulls)
    if bool(keyless.any()):
        raise SchemaMismatchError(
            f"topic {topic.topic!r} is compacted: row {int(np.argmax(keyless))} has no key ({', '.join(key_columns)} "
            f"is null), {count_text(int(keyless.sum()), 'row')} in all; expected a key in every row"
        )


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
        self, table: Rows, topic: TopicMetadata, key: str | Sequence[str] | None, partition: int | None
    ) -> Sequence[tuple[TopicPartition, Rows]]:
        """Return the rows of each partition, in their order.

        A named partition comes before a key, and `key` before the topic's own key columns (`key_columns_of`). All
        rows without a key are sent to the same partition. Raises UnknownTopicOrPartitionError with the valid range,
        SchemaMismatchError for an invalid key.
        """
        settings = self._row_writer.settings(topic)
        columns = settings.key_columns if key is None else (key,) if isinstance(key, str) else tuple(key)
        if isinstance(table, OneRow):
            return [(self._place(table, topic, settings, columns, partition), table)]
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

    def _place(
        self, row: OneRow, topic: TopicMetadata, settings: TopicSettings, columns: Sequence[str], partition: int | None
    ) -> TopicPartition:
        if settings.compacted and row.key(settings.key_columns) is None:
            check_keys(table_of([row]), topic, settings.key_columns)
        if partition is not None:
            return check_partition(topic, partition)
        key = row.key(columns)
        if key is None:
            return self._stick(topic, row.nbytes)
        return TopicPartition(topic.topic, partition_for(key, topic.partitions))

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
