"""How do the rows of a small transaction enter the log? They wait for its commit, which publishes them in two rounds.

The decision, PREPARE_COMMIT, carries them, and the COMMIT marker of each partition holds its rows (PROTOCOL.md,
"Staged"). The rows of a partition that are too large to be inline are written to a file first. Until the decision
nothing is in the store, so a producer that dies holds no reader back. `txlog.client.producer.sender` says when a
transaction gives this up and sends its rows at once, or writes them to files.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from txlog.client.producer.batches import NO_OFFSET, Batch
from txlog.client.staged import MAX_INLINE_BYTES
from txlog.client.topics.row_writer import RowWriter
from txlog.core.effects import Program
from txlog.core.names import TopicPartition
from txlog.core.records import NO_TIMESTAMP, CommitRecord, StagedPart, StagedRows
from txlog.errors import TransactionAbortableError
from txlog.protocol.context import Views
from txlog.protocol.slot_record import AppendResult

MAX_DEFERRED_BYTES = MAX_INLINE_BYTES
"""Size of the rows of one transaction that may wait for its commit: what one PREPARE_COMMIT may carry."""


def have_one_schema(batches: Iterable[Batch]) -> bool:
    """Return whether all rows of a topic have one schema, as the rows of one record must."""
    schemas = {(batch.tp.topic, batch.topic.schema_id) for batch in batches}
    return len(schemas) == len({topic for topic, _ in schemas})


def check_one_schema(parts: Sequence[StagedPart], batch: Batch) -> None:
    """Raise TransactionAbortableError if the transaction has staged rows of this partition in another schema (W29)."""
    last = next((part for part in reversed(parts) if part.topic_partition == batch.tp), None)
    if last is not None and last.schema_id != batch.topic.schema_id:
        raise TransactionAbortableError(
            f"{batch.tp}: the topic's columns changed in this transaction. It has staged rows of schema "
            f"{last.schema_id}, these rows have schema {batch.topic.schema_id} (versions of the topic), and "
            "they cannot be one batch. "
            "hint: abort the transaction, and send its rows again"
        )


class DeferredRows:
    """The rows that one commit publishes. False if there are none."""

    def __init__(self, batches: Sequence[Batch], row_writer: RowWriter, producer_id: int, producer_epoch: int) -> None:
        """Encode the rows that can be inline; `programs` write the other ones."""
        self._row_writer = row_writer
        self._producer_id = producer_id
        self._producer_epoch = producer_epoch
        self._batches: dict[TopicPartition, list[Batch]] = {}
        for batch in batches:
            self._batches.setdefault(batch.tp, []).append(batch)
        self._parts: dict[TopicPartition, StagedPart] = {}
        self._large: dict[TopicPartition, pa.Table] = {}
        for tp, group in self._batches.items():
            table = pa.concat_tables([batch.table() for batch in group])
            payload = row_writer.inline(table, group[-1].topic)
            if payload is None:
                self._large[tp] = table
            else:
                rows = StagedRows(rows=table.num_rows, payload=payload)
                self._parts[tp] = StagedPart(
                    topic=tp.topic, partition=tp.partition, schema_id=group[-1].topic.schema_id, inline=rows
                )

    def __bool__(self) -> bool:
        return bool(self._batches)

    @property
    def batches(self) -> list[Batch]:
        """Return the rows, those of a partition in the order of their sends."""
        return [batch for group in self._batches.values() for batch in group]

    @property
    def parts(self) -> tuple[StagedPart, ...]:
        """Return what the decision carries. Requires that the `programs` have run."""
        return tuple(self._parts[tp] for tp in self._batches)

    @property
    def inline_bytes(self) -> int:
        """Return the size of the rows that the decision itself would carry."""
        return sum(len(part.payload) for part in self._parts.values())

    def programs(self) -> list[Program[None]]:
        """Return the programs that write the rows which are too large to be inline, except those that have
        succeeded."""
        return [self._write(tp) for tp in self._large if tp not in self._parts]

    def _write(self, tp: TopicPartition) -> Program[None]:
        yield from ()
        topic = self._batches[tp][-1].topic
        file = self._row_writer.file(self._large[tp], topic, tp.partition, self._producer_id, self._producer_epoch)
        self._parts[tp] = StagedPart(topic=tp.topic, partition=tp.partition, schema_id=topic.schema_id, files=(file,))

    def committed(self, views: Views, appended: AppendResult | None) -> None:
        """Complete the futures. Call it without a lock, because callbacks run here.

        Offset and timestamp are those of `appended`, after a commit in one phase, or of the markers in `views`. They
        are -1 where `views` have no marker with these rows: another process wrote it, the transaction was skipped as a
        repetition, or the topic was deleted meanwhile.
        """
        for tp, group in self._batches.items():
            marker = self._marker(views, tp)
            found = marker is not None and marker.records == sum(batch.rows for batch in group)
            at, timestamp = (marker.base_offset, marker.timestamp) if marker and found else (NO_OFFSET, NO_TIMESTAMP)
            if appended is not None:
                at, timestamp = appended.base_offset, appended.timestamp
            for batch in group:
                batch.done(at, timestamp)
                at += batch.rows if at >= 0 else 0

    def _marker(self, views: Views, tp: TopicPartition) -> CommitRecord | None:
        """Return the COMMIT marker of this epoch, which carries the next epoch (PROTOCOL.md, W24)."""
        owner = (self._producer_id, self._producer_epoch + 1)
        tail = views[tp].tail if tp in views else ()
        records = (stored.record for stored in reversed(tail))
        return next((each for each in records if (each.producer_id, each.producer_epoch) == owner), None)
