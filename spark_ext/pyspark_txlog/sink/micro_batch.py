"""Which source offsets does a micro-batch commit, and is a batch that is about to be skipped really the committed one?

A micro-batch of `stream_writer` is a transaction whose version is the batch number. The end offsets of its sources are
part of it (`committed_offsets`).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark_txlog.messages import mismatch
from pyspark_txlog.sink.checkpoint import Checkpoint
from pyspark_txlog.sink.committed_offsets import (
    Batch,
    SourceOffset,
    committed_elsewhere,
    committed_opaque,
    offsets_to_send,
    same_json,
)
from txlog.engine import GroupOffsets, Session, TopicPartition, TransactionMetadata
from txlog.engine.offsets import committed_offsets
from txlog.errors import CommitFailedError, GroupIdNotFoundError, InvalidRequestError, TxnVersionScopeError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LOG = logging.getLogger(__name__)

QUERY_ID_PROPERTY = "sql.streaming.queryId"
"""Spark's local property with the id of the streaming query in which a thread or a task works."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """One micro-batch of a query."""

    query_id: str
    number: int
    checkpoint: Checkpoint | None
    """None: the commit does not include the sources' offsets."""

    def offsets(self, session: Session, before: TransactionMetadata) -> tuple[GroupOffsets, ...]:
        """Return the sources' offsets for the batch's transaction; `before` is the id's record when the transaction
        began.

        Raises CommitFailedError, and InvalidRequestError if the log lacks micro-batches that are committed in the
        checkpoint.
        """
        transactional_id = before.transactional_id
        # The id's record must contain the previous micro-batch, because each one commits, even an empty one.
        if before.txn_scope == self.query_id and 0 <= before.txn_version < self.number - 1:
            error = InvalidRequestError(
                f"query {self.query_id}, micro-batch {self.number}: the last one that transactional.id "
                f"{transactional_id!r} has committed is {before.txn_version}, but the "
                "checkpoint counts all before "
                f"{self.number} as committed: the log was put back to an older "
                'state. hint: start with a new checkpoint; see the page "After a lost checkpoint"'
            )
            raise self._mismatch(error, before)
        if self.checkpoint is None:
            return ()
        batch = self._planned(self.checkpoint, with_previous=True)
        return offsets_to_send(
            session, batch, transactional_id=transactional_id, is_first_commit=before.txn_version < 0
        )

    def check_replay(self, session: Session, current: TransactionMetadata) -> None:
        """Raise InvalidRequestError unless the micro-batch is the same one that `current` has committed before.

        After a crash Spark repeats the last batch with the same plan. But a checkpoint restored from a copy repeats
        older batches, or plans the last one again with other ends. Skipping such a batch would lose rows silently.
        """
        transactional_id = current.transactional_id
        if self.number < current.txn_version:
            what = f"transactional.id {transactional_id!r} has committed micro-batch {current.txn_version} of it"
            raise self._older_checkpoint(what, current)
        if self.checkpoint is None:
            return
        batch = self._planned(self.checkpoint, with_previous=False)
        known: Mapping[str, SourceOffset] = {}
        with suppress(GroupIdNotFoundError):
            known = committed_opaque(session, transactional_id)
        for source, committed in known.items():
            is_this = (committed.query_id, committed.batch_id) == (self.query_id, self.number)
            if is_this and source in batch.ends and not same_json(batch.ends[source], committed.json):
                end = batch.ends[source]
                what = f"committed up to {committed.json} of source {source}, but planned up to {end} now"
                raise self._older_checkpoint(what, current)
        # The next batch's condition would find this too, but only when a partition gets new rows, which may never
        # happen.
        elsewhere = committed_elsewhere(session, batch, transactional_id=transactional_id)
        if elsewhere is not None:
            raise self._older_checkpoint(elsewhere, current)

    def _older_checkpoint(self, what: str, current: TransactionMetadata) -> InvalidRequestError:
        error = InvalidRequestError(
            f"query {self.query_id}, micro-batch {self.number}: {what}. The checkpoint is older than the log, as after "
            "a restore from a copy: its next micro-batches have numbers that are already committed, and would be "
            'skipped. hint: start with a new checkpoint; see the page "After a lost checkpoint"'
        )
        return self._mismatch(error, current)

    def _mismatch(self, error: InvalidRequestError, current: TransactionMetadata) -> InvalidRequestError:
        name = current.transactional_id
        return mismatch(_LOG, error, transactional_id=name, query_id=self.query_id, batch_id=self.number)

    def _planned(self, checkpoint: Checkpoint, *, with_previous: bool) -> Batch:
        return Batch(
            query_id=self.query_id,
            batch_id=self.number,
            ends=checkpoint.planned(self.number),
            previous_ends=checkpoint.planned(self.number - 1) if with_previous and self.number else {},
            noted_start=checkpoint.noted_start,
        )


def query_id(spark: SparkSession) -> str | None:
    """Return the id of the streaming query in whose `foreachBatch` this thread works.

    None elsewhere, and where `hides_query`.
    """
    context = getattr(spark, "_sc", None)
    return None if context is None else context.getLocalProperty(QUERY_ID_PROPERTY)


def hides_query(spark: SparkSession) -> bool:
    """Return whether code in `foreachBatch` cannot see its query: each call may reach another Java thread, or Spark
    Connect's server runs the function in a process without Java."""
    context = getattr(spark, "_sc", None)
    if context is None:
        spec = getattr(sys.modules.get("__main__"), "__spec__", None)
        return spec is not None and spec.name.startswith("pyspark.sql.connect.streaming.worker")
    # Imported here because py4j does not exist without a JVM.
    from py4j.clientserver import ClientServer

    return not isinstance(context._gateway, ClientServer)


def compute_skipped(frame: DataFrame) -> None:
    """Run the plan of a write that is skipped.

    A stateful query keeps its state of a micro-batch only if each task of it ends.
    """
    frame.write.format("noop").mode("overwrite").save()


def in_micro_batch(spark: SparkSession) -> bool:
    """Return whether this thread works in a micro-batch, or may do so where nothing shows it."""
    return hides_query(spark) or query_id(spark) is not None


def task_of_batch(task: int, number: int) -> int:
    """Return the number that chooses the partition of a task's rows without a key. It moves on with each micro-batch,
    so that micro-batches of one task do not fill one partition alone."""
    return task + number


def check_without_offsets(session: Session, transactional_id: str) -> None:
    """Raise InvalidRequestError if the id has committed sources' offsets, but is to continue without them.

    The offsets would stay behind, and a query that resumed from them would process rows again. Offsets of other groups
    are not checked. Offsets that the group's source or an operator committed have no condition and do not count.
    """
    # Imported here because a query that commits offsets does not need it.
    from txlog.engine.tables import Admin

    try:
        described = Admin(session.runtime).describe_group(transactional_id).offsets
    except GroupIdNotFoundError:
        return
    partitions = [TopicPartition(each.topic, each.partition) for each in described]
    found = committed_offsets(session, transactional_id, partitions)
    known = [tp for tp in partitions if (value := found[tp]) is not None and value.conditional]
    if known:
        raise InvalidRequestError(
            f"commitSourceOffsets=false, but transactional.id {transactional_id!r} has committed where its sources "
            f"end (first: {known[0].topic}). Those offsets would stay behind. "
            "hint: leave the option on, or delete the offsets: "
            f"`txlog consumer-groups delete --group {transactional_id} --execute`"
        )


def add_hint(error: CommitFailedError, number: int) -> None:
    """Add the second reason why a condition on sources' offsets fails: earlier batches of the query committed no
    offsets."""
    if number:
        error.add_note(
            "Or earlier micro-batches of this query committed no offsets (commitSourceOffsets=false). Then "
            "stop it, set the group to the offset that this micro-batch starts from, for every partition "
            "(`txlog consumer-groups reset-offsets GROUP --topic TOPIC:PARTITION --to-offset N --execute`), "
            "and start it again"
        )


def check_scope(current: TransactionMetadata | None, query_id: str) -> None:
    """Raise TxnVersionScopeError if the id's micro-batches belong to another query; the message has the next steps.

    `current` is the id's record, or None.
    """
    if current is None or current.txn_version < 0 or current.txn_scope == query_id:
        return
    name = current.transactional_id
    theirs = f"txn.version {current.txn_version}, of a batch write"
    advice = ". hint: give this query another id; if that write was its own, start behind the rows that are in the log"
    if current.txn_scope:
        theirs = f"micro-batch {current.txn_version} of query {current.txn_scope}"
        # Who takes another id after a lost checkpoint writes all rows a second time, so the hint keeps the id.
        advice = (
            ": a lost checkpoint (another id would double its rows), or two queries with one id. hint: after a lost "
            f"checkpoint run `txlog transactions expire --transactional-id {name} --force --execute`, remove the new "
            f"checkpoint, and start with startingOffsets=committed and group.id={name} (or the source's own): "
            'see the page "After a lost checkpoint"'
        )
    error = TxnVersionScopeError(f"transactional.id {name!r} holds {theirs}, but this is query {query_id}{advice}")
    raise mismatch(_LOG, error, transactional_id=name, query_id=query_id)
