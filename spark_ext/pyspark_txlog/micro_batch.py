"""What does a micro-batch commit of its sources, and is one that is about to be skipped the very one that was committed?

Both ways into a topic ask it, the sink of `writeStream` (`stream_writer`) and `TopicTable.append_stream` over
`foreachBatch`: a micro-batch is a transaction whose version is its number, and the offsets where its sources end ride in
it (`source_offsets`).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from pyspark_txlog.checkpoint import Checkpoint
from pyspark_txlog.source_offsets import (
    Batch,
    SourceOffset,
    committed_elsewhere,
    committed_opaque,
    offsets_to_send,
    same_json,
)
from txlog.client.groups import GroupOffsets
from txlog.client.offsets import committed_offsets
from txlog.client.session import Session
from txlog.core.names import TopicPartition
from txlog.core.records import TransactionMetadata
from txlog.errors import CommitFailedError, GroupIdNotFoundError, InvalidRequestError, TxnVersionScopeError


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """One micro-batch of a query."""

    query_id: str
    number: int
    checkpoint: Checkpoint | None
    """None: the sources' offsets are no part of the commit."""

    def offsets(self, session: Session, before: TransactionMetadata) -> tuple[GroupOffsets, ...]:
        """The sources' offsets for the batch's transaction; `before` is the id's record as the transaction began.

        Raises CommitFailedError; InvalidRequestError if the log lacks micro-batches that the checkpoint takes for committed.
        """
        self._check_next(before)
        if self.checkpoint is None:
            return ()
        return offsets_to_send(
            session,
            self._planned(self.checkpoint, with_previous=True),
            store_id=session.runtime.require_store().store_id,
            transactional_id=before.transactional_id,
            is_first_commit=before.txn_version < 0,
        )

    def _check_next(self, before: TransactionMetadata) -> None:
        """Each micro-batch commits, an empty one too, so the one before stands in the id's record."""
        if before.txn_scope == self.query_id and 0 <= before.txn_version < self.number - 1:
            raise InvalidRequestError(
                f"query {self.query_id}, micro-batch {self.number}: the last one that transactional.id {before.transactional_id!r} has committed is "
                f"{before.txn_version}, and the checkpoint takes all before {self.number} for committed: the log was put back to an older state, and lacks "
                f"their rows. Start with a new checkpoint, as after one that was lost: the query goes on at the offsets that the log has"
            )

    def check_replay(self, session: Session, current: TransactionMetadata) -> None:
        """Raises InvalidRequestError unless the micro-batch, which `current` has committed before, is the very one.

        After a crash Spark repeats the last batch, as it was planned. A checkpoint that was restored from a copy repeats
        older ones, or plans the last one anew, up to other offsets: to skip that would lose rows in silence.
        """
        who = f"query {self.query_id}, micro-batch {self.number}"
        if self.number < current.txn_version:
            raise _older_checkpoint(
                f"{who}: transactional.id {current.transactional_id!r} has committed micro-batch {current.txn_version} of it"
            )
        if self.checkpoint is None:
            return
        batch = self._planned(self.checkpoint, with_previous=False)
        known: Mapping[str, SourceOffset] = {}
        with suppress(GroupIdNotFoundError):
            known = committed_opaque(session, current.transactional_id)
        for source, committed in known.items():
            is_this = (committed.query_id, committed.batch_id) == (self.query_id, self.number)
            if is_this and source in batch.ends and not same_json(batch.ends[source], committed.json):
                raise _older_checkpoint(
                    f"{who}: committed up to {committed.json} of source {source}, and planned up to {batch.ends[source]} now"
                )
        # The next batch's condition would find this, too: but only once a partition has rows again, and perhaps it never has.
        elsewhere = committed_elsewhere(
            session,
            batch,
            store_id=session.runtime.require_store().store_id,
            transactional_id=current.transactional_id,
        )
        if elsewhere is not None:
            raise _older_checkpoint(f"{who}: {elsewhere}")

    def _planned(self, checkpoint: Checkpoint, *, with_previous: bool) -> Batch:
        return Batch(
            query_id=self.query_id,
            batch_id=self.number,
            ends=checkpoint.planned(self.number),
            previous_ends=checkpoint.planned(self.number - 1) if with_previous and self.number else {},
            noted_start=checkpoint.noted_start,
        )


def check_without_offsets(session: Session, transactional_id: str) -> None:
    """Raises InvalidRequestError if the id has committed sources' offsets, and is to go on without: they would stay behind,
    and a query that resumed from them would take rows again.

    Offsets of another group are not found; those that its source committed by itself, or an operator, have no condition and
    do not count.
    """
    # Here and not at the top: who commits offsets needs nothing of it.
    from txlog.client.admin import Admin

    try:
        described = Admin(session.runtime).describe_group(transactional_id).offsets
    except GroupIdNotFoundError:
        return
    partitions = [TopicPartition(each.topic, each.partition) for each in described]
    found = committed_offsets(session, transactional_id, partitions)
    known = [tp for tp in partitions if (value := found[tp]) is not None and value.conditional]
    if known:
        raise InvalidRequestError(
            f"commitSourceOffsets=false, and transactional.id {transactional_id!r} has committed where its sources end (of {known[0].topic}, to begin "
            f"with): they would stay behind, and a query that resumed from them would take rows twice. Leave it on, or give the offsets up for good: "
            f"`txlog consumer-groups delete --group {transactional_id}`"
        )


def add_hint(error: CommitFailedError, number: int) -> None:
    """Says how a condition on sources' offsets fails besides by another job, where batches of the query went before."""
    if number:
        error.add_note(
            "Or earlier micro-batches of this query committed no offsets (commitSourceOffsets=false): then stop it, set the group to the offset that this "
            "micro-batch starts from, for every partition (`txlog consumer-groups reset-offsets`), and start it again"
        )


def check_scope(current: TransactionMetadata, query_id: str | None) -> None:
    """Raises TxnVersionScopeError if the id's micro-batches are another query's, which says how one goes on.

    `query_id` is None for a query that is about to get its id, with a new checkpoint.
    """
    if current.txn_version < 0 or current.txn_scope == query_id:
        return
    name = current.transactional_id
    theirs = (
        f"micro-batch {current.txn_version} of query {current.txn_scope}"
        if current.txn_scope
        else f"txn.version {current.txn_version}, of a batch write"
    )
    this = "a query with a new checkpoint" if query_id is None else f"query {query_id}"
    raise TxnVersionScopeError(
        f"transactional.id {name!r} holds {theirs}, and this is {this}, which counts its micro-batches from 0 again: a checkpoint that was lost or "
        f"made anew, or two queries with one id. Another query needs another 'transactional.id'. If the checkpoint was lost: stop the old query, forget the id "
        f"(`txlog transactions expire --transactional-id {name} --force`), and start with startingOffsets=committed and group.id={name} (or the group.id that "
        f"the source had), which goes on behind the last committed micro-batch; a source that is not txlog's must begin where "
        f"pyspark_txlog.committed_source_offsets(...) says"
    )


def _older_checkpoint(what: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"{what}. The checkpoint is older than the log, as one that was restored from a copy: its next micro-batches have numbers that are committed "
        "already, and other rows, which would be skipped. Start with a new checkpoint, as after one that was lost"
    )
