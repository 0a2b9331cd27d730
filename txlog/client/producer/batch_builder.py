"""Under which producer id, epoch and sequence is a batch appended, and where are its rows?"""

from __future__ import annotations

from txlog.client.producer.batches import Batch
from txlog.client.session.runtime import Runtime
from txlog.client.topics.row_writer import RowWriter
from txlog.client.transactions.coordinator import Coordinator
from txlog.core.append_rules import BatchDraft
from txlog.core.names import TopicPartition
from txlog.protocol.context import Context


class BatchBuilder:
    """Builds the batches of one producer. `coordinator` is None for a producer without transactional.id."""

    def __init__(self, runtime: Runtime, row_writer: RowWriter) -> None:
        self._runtime = runtime
        self._row_writer = row_writer
        self._sequences: dict[TopicPartition, int] = {}
        self._drawn_id: int | None = None

    def identity(self, coordinator: Coordinator | None) -> tuple[int, int]:
        """Return the producer id and epoch of the next batch."""
        if coordinator is not None:
            return coordinator.txn.producer_id, coordinator.txn.producer_epoch
        if self._drawn_id is None:
            self._drawn_id = self._runtime.ids.new_producer_id()
        return self._drawn_id, 0

    def new_identity(self) -> None:
        """Draw a new producer id, because the next sequence of the old one is not known (W16, W18)."""
        self._drawn_id = None
        self._sequences = {}

    def new_epoch(self) -> None:
        """Begin each partition at sequence 0 again: sequences end with their epoch."""
        self._sequences = {}

    def place(self, ctx: Context, batch: Batch, coordinator: Coordinator | None) -> BatchDraft:
        """Return the batch's draft, with its rows inline or in a file. Raises StorageError.

        It is made once, so that a retry is identical (W16). A file that vacuum might delete is written again under a
        new name (W8).
        """
        now = self._runtime.read_clocks()
        draft = batch.draft
        stale = bool(draft and draft.files) and now.ms_since(batch.placed_at) >= ctx.max_view_age_ms
        if draft is not None and not stale:
            return draft
        pid, epoch = (draft.producer_id, draft.producer_epoch) if draft is not None else self.identity(coordinator)
        # Commits in one phase and batches of a transaction share an epoch, and its sequences.
        first = coordinator.next_sequence(batch.tp) if coordinator is not None else 0
        sequence = draft.base_sequence if draft is not None else self._sequences.get(batch.tp, first)
        table = batch.table()
        payload = self._row_writer.inline(table, batch.topic)
        files = (
            () if payload is not None else (self._row_writer.file(table, batch.topic, batch.tp.partition, pid, epoch),)
        )
        batch.placed_at = now
        batch.draft = BatchDraft(
            records=batch.rows,
            transactional_id=coordinator.transactional_id if coordinator is not None else "",
            producer_id=pid,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=coordinator is not None,
            schema_id=batch.topic.schema_id,
            files=files,
            payload=payload or b"",
            roll=self._row_writer.settings(batch.topic).roll,
        )
        return batch.draft

    def appended(self, batch: Batch, coordinator: Coordinator | None) -> None:
        """Take note that a batch is in the log, so that the next one of its partition follows it."""
        assert batch.draft is not None
        if (batch.draft.producer_id, batch.draft.producer_epoch) == self.identity(coordinator):
            self._sequences[batch.tp] = batch.draft.last_sequence + 1
