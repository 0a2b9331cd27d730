"""How do inline rows of several tasks become one batch for each partition?

A commit record has its rows in one place: in files, or inline. So the inline rows of several tasks or frames for one
partition are joined. They are written to a file if they are too large together, or if the partition also has files. The
order of parts is kept.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pyarrow as pa

from txlog.client.row_writer import RowWriter
from txlog.client.runtime import Runtime
from txlog.core.names import TopicPartition
from txlog.core.records import StagedPart, StagedRows, TransactionMetadata
from txlog.storage.inline_rows import read_ipc, select_fields


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

    def joined(self, group: list[StagedPart]) -> list[StagedPart]:
        """Return the parts of one partition joined: inline rows one after the other, or all in files."""
        inline = [part for part in group if part.payload]
        if not inline or len(group) == 1:
            return group
        if len(inline) < len(group):
            return [self.to_file(part) if part.payload else part for part in group]
        topic = self._runtime.topic(group[0].topic, 0)
        rows = self._rows(inline)
        whole = msgspec.structs.replace(group[0], schema_id=topic.schema_id)
        payload = self._row_writer.inline(rows, topic)
        if payload is not None:
            return [msgspec.structs.replace(whole, inline=StagedRows(rows=rows.num_rows, payload=payload))]
        return [self._file(whole, rows)]

    def to_file(self, part: StagedPart) -> StagedPart:
        """Return the part with its rows in a file."""
        return self._file(part, self._rows([part]))

    def _rows(self, parts: Sequence[StagedPart]) -> pa.Table:
        # All rows get the topic's present schema: a column that was added meanwhile is null.
        topic = self._runtime.topic(parts[0].topic, 0)
        where = f"staged rows of {parts[0].topic_partition}"
        return pa.concat_tables([select_fields(read_ipc(part.payload, where), topic.schema, where) for part in parts])

    def _file(self, part: StagedPart, rows: pa.Table) -> StagedPart:
        txn = self._txn
        topic = self._runtime.topic(part.topic, 0)
        file = self._row_writer.file(rows, topic, part.partition, txn.producer_id, txn.producer_epoch)
        return msgspec.structs.replace(part, schema_id=topic.schema_id, files=(file,), inline=msgspec.UNSET)
