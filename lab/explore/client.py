"""Which calls does an actor make? The calls of scripts: each takes a client, runs shipped programs, and returns the
next client.

A client is a value: its views, its transaction, its sequences, and *notes* of the answers that it got. The rules
compare the notes with the log.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, TypeVar

import msgspec

from lab.topic_looks import LooksAtKnown
from txlog.core import names
from txlog.core.ages import ClockReading
from txlog.core.append_rules import BatchDraft
from txlog.core.effects import InlineRows, NewId, NewProducerId, Program, ReadClocks, WriteRows
from txlog.core.groups import OffsetsCondition
from txlog.core.names import TopicPartition
from txlog.core.records import (
    NO_SEQUENCE,
    DataFile,
    StagedPart,
    StagedRows,
    TopicMetadata,
    TransactionMetadata,
    TransactionRow,
)
from txlog.core.transactions import Skipped, TxnVersion
from txlog.errors import (
    AbortableError,
    FencedError,
    OutcomeUnknownError,
    RetriableError,
    TxlogError,
    UnknownTopicOrPartitionError,
)
from txlog.protocol import expiry, topic_changes, topics as topic_programs, transactions
from txlog.protocol.append import append_batch
from txlog.protocol.context import Context, Views
from txlog.protocol.load import get_fresh_view
from txlog.protocol.seal import seal
from txlog.protocol.topics import TopicLooks

T = TypeVar("T")
Word: TypeAlias = tuple[TopicPartition, str]
"""A row: every scenario writes each word once, so a word identifies its writer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """One answer that a client got."""

    kind: str
    """appended, refused, committed, aborted, failed, skipped, unknown, ready (init returned), read, looked (at a
    snapshot), too old (a snapshot that can no longer be read), merged (a run took effect; `text` is its index),
    fetched, broken, done."""
    words: tuple[Word, ...] = ()
    tp: TopicPartition | None = None
    offset: int = -1
    producer_id: int = -1
    producer_epoch: int = -1
    rows: tuple[tuple[int, str], ...] = ()
    """For a read: (offset, word)."""
    end: int = -1
    offsets: tuple[tuple[int, int | None], ...] = ()
    """(partition of `orders`, offset committed for group g)."""
    ends: tuple[tuple[TopicPartition, int], ...] = ()
    """For a snapshot: where it ends in each partition."""
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """One process, between two of its calls."""

    ctx: Context
    transactional_id: str = ""
    views: Views = field(default_factory=dict)
    txn: TransactionMetadata | None = None
    pid: int = -1
    epoch: int = -1
    sequences: tuple[tuple[TopicPartition, int], ...] = ()
    staged: tuple[StagedPart, ...] = ()
    topics: tuple[TopicMetadata, ...] = ()
    """The topics that it has opened. Scenarios without topics have only partitions."""
    looks: TopicLooks = field(default_factory=LooksAtKnown)
    words: tuple[Word, ...] = ()
    """The rows of the open transaction."""
    sent: tuple[tuple[int, int | None], ...] = ()
    """The offsets of the open transaction."""
    prepare: TransactionRow | None = None
    member: OffsetsCondition | None = None
    """The member of the group that it joined."""
    held: frozenset[TopicPartition] = frozenset()
    """What the member reads, in a group whose members share partitions."""
    alive_at: ClockReading | None = None
    """When the member began the last record that shows that it lives."""
    watched: tuple[tuple[str, int, int], ...] = ()
    """(member, its last heartbeat, when this process saw it first by its monotonic clock)."""
    started: int | None = None
    """The offset that the job started from."""
    tries: int = 2
    """The maximum number of tries of a call. Few replies are lost, so more tries show nothing new."""
    answers: tuple[Any, ...] = ()
    """What a publisher has got that fell asleep."""
    notes: tuple[Note, ...] = ()
    stopped: bool = False

    def noted(self, kind: str, *, stop: bool = False, **said: Any) -> Client:
        return replace(self, notes=(*self.notes, Note(kind=kind, **said)), stopped=stop)

    def broken(self, error: Exception) -> Client:
        """Return the client after an error that no call of a correct protocol raises."""
        return self.noted("broken", text=f"{type(error).__name__}: {error}", stop=True)

    def taking(self, txn: TransactionMetadata) -> Client:
        """Return the client with the id's record: a new epoch begins new sequences."""
        fresh = (txn.producer_id, txn.producer_epoch) != (self.pid, self.epoch)
        return replace(
            self,
            txn=txn,
            pid=txn.producer_id,
            epoch=txn.producer_epoch,
            sequences=() if fresh else self.sequences,
            staged=() if fresh else self.staged,
        )

    def schema_of(self, topic: str) -> int:
        """Return the schema id with which it writes there."""
        return next((each.schema_id for each in self.topics if each.topic == topic), 0)

    def after_end(self, txn: TransactionMetadata) -> Client:
        return replace(self.taking(txn), words=(), sent=())


Call: TypeAlias = Callable[[Client], Program[Client]]


def patiently(client: Client, call: Callable[[], Program[T]], *, unknown: bool = True) -> Program[T]:
    """Retry the identical call while that is allowed; raise its last error.

    An error after a try of unknown outcome describes only the retry. Its cause is the unknown outcome.
    """
    first: OutcomeUnknownError | None = None
    for attempt in range(client.tries):
        try:
            return (yield from call())
        except OutcomeUnknownError as error:
            first = first or error
            if attempt == client.tries - 1 or not unknown:
                raise
        except RetriableError:
            if attempt == client.tries - 1:
                if first is not None:
                    raise first from None
                raise
        except TxlogError as error:
            if first is not None:
                raise error from first
            raise
    raise AssertionError


def refused(error: TxlogError, kind: str) -> str:
    """Return the kind of note for a call that ended in `error`."""
    return "unknown" if isinstance(error.__cause__, OutcomeUnknownError) else kind


# -- producers --------------------------------------------------------------------------------------------------------


def init(timeout_ms: int = 60_000) -> Call:
    """Call init_transactions."""

    def call(client: Client) -> Program[Client]:
        try:
            views, txn = yield from patiently(
                client,
                lambda: transactions.init_producer(client.ctx, client.views, client.transactional_id, timeout_ms),
            )
        except (RetriableError, OutcomeUnknownError) as error:
            return client.noted("unknown", text=str(error), stop=True)
        after = replace(client, views=views).taking(txn)
        return after.noted("ready", producer_id=txn.producer_id, producer_epoch=txn.producer_epoch)

    return call


def idempotent() -> Call:
    """Draw the producer id of a producer without a transactional.id."""

    def call(client: Client) -> Program[Client]:
        pid = yield NewProducerId()
        return replace(client, pid=pid, epoch=0)

    return call


def opened(*tps: TopicPartition) -> Call:
    """Open partitions, so that the next append is a warm one."""

    def call(client: Client) -> Program[Client]:
        views = client.views
        for tp in tps:
            views, _ = yield from get_fresh_view(client.ctx, views, tp)
        return replace(client, views=views)

    return call


def register(*tps: TopicPartition) -> Call:
    """Call add_partitions_to_transaction."""

    def call(client: Client) -> Program[Client]:
        assert client.txn is not None
        txn = client.txn
        try:
            views, registered = yield from patiently(
                client, lambda: transactions.add_partitions(client.ctx, client.views, txn, tps)
            )
        except TxlogError as error:
            return (yield from failed(client, error))
        assert not isinstance(registered, Skipped)
        return replace(client, views=views).taking(registered)

    return call


def send(tp: TopicPartition, *words: str, in_file: bool = False) -> Call:
    """Register the partition if necessary, append a batch, and seal finished segments as a producer does."""

    def call(client: Client) -> Program[Client]:
        if client.txn is not None and tp not in client.txn.partitions:
            client = yield from register(tp)(client)
            if client.stopped:
                return client
        sequence = dict(client.sequences).get(tp, 0)
        draft = BatchDraft(
            records=len(words),
            producer_id=client.pid,
            producer_epoch=client.epoch,
            base_sequence=sequence if client.pid >= 0 else NO_SEQUENCE,
            transactional=client.txn is not None,
            schema_id=client.schema_of(tp.topic),
            payload=b"" if in_file else json.dumps(words).encode(),
            roll=client.ctx.roll_of(tp),
        )
        begun: ClockReading | None = None
        if in_file:
            begun = yield ReadClocks()
            try:
                draft = replace(draft, files=((yield from patiently(client, lambda: _write_file(client, tp, words))),))
            except RetriableError as error:
                return client.noted("unknown", words=client.words, text=str(error), stop=True)
        said = tuple((tp, word) for word in words)
        if client.txn is not None:
            client = replace(client, words=(*client.words, *said))
        try:
            # A partition may forget a drawn producer id. Its state then decides nothing, so an unknown outcome is not
            # retried.
            views, result = yield from patiently(
                client,
                lambda: append_batch(client.ctx, client.views, tp, draft, client.txn, files_begun=begun),
                unknown=client.txn is not None,
            )
        except (AbortableError, FencedError, UnknownTopicOrPartitionError) as error:
            return (yield from failed(client.noted(refused(error, "refused"), words=said, tp=tp), error))
        except RetriableError as error:  # nothing was decided, and nothing will be
            return client.noted("refused", words=said, tp=tp, text=str(error), stop=True)
        except OutcomeUnknownError as error:
            return client.noted("unknown", words=said, text=str(error), stop=True)
        view = yield from seal(client.ctx, views[tp])
        after = replace(
            client,
            views={**views, tp: view},
            sequences=(*((at, n) for at, n in client.sequences if at != tp), (tp, sequence + len(words))),
        )
        return after.noted("appended", words=said, tp=tp, offset=result.base_offset)

    return call


def stage(tp: TopicPartition, *words: str, inline: bool = False) -> Call:
    """Write a file that the commit will name; with `inline` keep the rows, which the commit will hold."""

    def call(client: Client) -> Program[Client]:
        part = StagedPart(topic=tp.topic, partition=tp.partition, schema_id=client.schema_of(tp.topic))
        if inline:
            rows = StagedRows(rows=len(words), payload=json.dumps(words).encode())
            part = msgspec.structs.replace(part, inline=rows)
        else:
            file = yield from patiently(client, lambda: _write_file(client, tp, words))
            part = msgspec.structs.replace(part, files=(file,))
        said = tuple((tp, word) for word in words)
        return replace(client, staged=(*client.staged, part), words=(*client.words, *said))

    return call


def end(*, commit: bool, version: TxnVersion | None = None, then_abort: bool = False) -> Call:
    """Call commit_transaction or abort_transaction.

    With `then_abort`, a client aborts after a commit of unknown outcome, as Spark does.
    """

    def call(client: Client) -> Program[Client]:
        assert client.txn is not None
        txn = client.txn
        said: dict[str, Any] = {"words": client.words, "offsets": client.sent, "producer_id": client.pid}
        unsure = False
        looks: TopicLooks = replace(client.looks, known={each.topic: each for each in client.topics})

        def noted(found: TopicLooks) -> None:
            nonlocal looks
            looks = found

        try:
            for attempt in range(client.tries):
                try:
                    views, ended = yield from transactions.end_transaction(
                        client.ctx,
                        client.views,
                        txn,
                        commit and not (then_abort and attempt),
                        client.staged,
                        version,
                        None if unsure else looks,
                        noted,
                    )
                    break
                except (RetriableError, OutcomeUnknownError) as error:
                    unsure = unsure or isinstance(error, OutcomeUnknownError)
                    if attempt == client.tries - 1:
                        return client.noted("unknown", text=str(error), stop=True, **said)
        except (AbortableError, FencedError, UnknownTopicOrPartitionError) as error:
            # The answer to a repeated call describes only the repeated call.
            kind = "unknown" if unsure else "failed"
            return client.noted(kind, text=type(error).__name__, stop=True, **said)
        after = replace(client, views=views, looks=looks)
        if ended.skipped:
            return after.noted("skipped", **said).after_end(ended.txn)
        committed = ended.already_committed or (commit and not (then_abort and attempt))
        return after.noted("committed" if committed else "aborted", **said).after_end(ended.txn)

    return call


def finishing(client: Client, finish: Callable[[], Program[Views]]) -> Program[Client]:
    """Finish a decided transaction; what becomes of it does not hang on this call."""
    try:
        views = yield from patiently(client, finish)
    except (RetriableError, OutcomeUnknownError) as error:
        return client.noted("unknown", text=str(error))
    return replace(client, views=views).noted("done")


def complete() -> Call:
    """Write the COMPLETE_* of the transaction that the client has ended, as an idle producer does."""

    def call(client: Client) -> Program[Client]:
        assert client.txn is not None
        txn = client.txn
        return (yield from finishing(client, lambda: transactions.complete(client.ctx, client.views, txn)))

    return call


def forget() -> Call:
    """Remove the client's own id, as a job with a drawn id does after its transaction."""

    def call(client: Client) -> Program[Client]:
        assert client.txn is not None
        txn = client.txn
        try:
            views, _ = yield from patiently(client, lambda: expiry.remove_own(client.ctx, client.views, txn))
        except (RetriableError, OutcomeUnknownError) as error:
            return client.noted("unknown", text=str(error))
        return replace(client, views=views).noted("done")

    return call


def commit(version: TxnVersion | None = None, *, then_abort: bool = False) -> Call:
    return end(commit=True, version=version, then_abort=then_abort)


def abort() -> Call:
    return end(commit=False)


# -- topics -----------------------------------------------------------------------------------------------------------


def make_topic(topic: str) -> Call:
    """Create a topic of one partition, also under the name of a deleted topic."""

    def call(client: Client) -> Program[Client]:
        made = yield from topic_changes.create_topic(
            client.ctx, topic, append_log_start=topic_changes.ending_logs(client.ctx)
        )
        return replace(client, topics=_with_topic(client, made)).noted("done")

    return call


def delete_topic(topic: str) -> Call:
    """Delete a topic."""

    def call(client: Client) -> Program[Client]:
        yield from topic_changes.delete_topic(client.ctx, topic, append_log_start=topic_changes.ending_logs(client.ctx))
        return client.noted("done")

    return call


def open_topic(*topics: str) -> Call:
    """Read the topics' metadata, so that later writes are for the current topics."""

    def call(client: Client) -> Program[Client]:
        for topic in topics:
            try:
                found = yield from topic_programs.describe_topic(topic)
            except UnknownTopicOrPartitionError:
                return client.noted("done", stop=True)
            client = replace(client, topics=_with_topic(client, found))
        return client

    return call


def _with_topic(client: Client, topic: TopicMetadata) -> tuple[TopicMetadata, ...]:
    return (*(each for each in client.topics if each.topic != topic.topic), topic)


# -- helpers ----------------------------------------------------------------------------------------------------------


def _write_file(client: Client, tp: TopicPartition, words: tuple[str, ...]) -> Program[DataFile]:
    unique = yield NewId()
    path = names.rows_file_path(tp.partition, client.pid, client.epoch, unique)
    rows = InlineRows(payload=json.dumps(words).encode(), base_offset=0, timestamp=0, schema_id=0)
    file: DataFile = yield WriteRows(tp.topic, path, (rows,))
    return file


def failed(client: Client, error: TxlogError) -> Program[Client]:
    """React to a failed call of a transaction: abort if the error requires it, else stop."""
    if client.txn is None or isinstance(error, FencedError):
        return client.noted("failed", words=client.words, offsets=client.sent, text=type(error).__name__, stop=True)
    if isinstance(error, AbortableError | UnknownTopicOrPartitionError):
        ended = yield from abort()(client)
        return replace(ended, stopped=True)
    return client.noted("unknown", words=client.words, offsets=client.sent, text=str(error), stop=True)
