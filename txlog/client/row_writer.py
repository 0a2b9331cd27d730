"""Where are the rows of a batch stored, in their commit record or in a Parquet file?"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from txlog.client.keys import key_columns_of
from txlog.client.runtime import Runtime
from txlog.config import Layer
from txlog.core.append_rules import RollPolicy
from txlog.core.features import INLINE_ZSTD
from txlog.core.names import rows_file_path
from txlog.core.records import DataFile, TopicMetadata
from txlog.storage.inline_rows import compressed, encode_ipc
from txlog.storage.parquet_writer import ROW_GROUP_ROWS, write_rows_file


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """The settings of a topic that a producer needs."""

    inline_max_bytes: int
    compression: str
    roll: RollPolicy
    key_columns: tuple[str, ...]
    compacted: bool


class RowWriter:
    """Write rows inline or to a file. Thread-safe."""

    def __init__(self, runtime: Runtime, call: Layer) -> None:
        self._runtime = runtime
        self._call = call
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
            )
        return found

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
