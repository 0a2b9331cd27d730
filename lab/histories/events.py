"""Which calls did the clients of a log make, and which answers did they get?

A history is a list of events. An operation is an `invoke` and, with the same process and number, its completion:

    ok    It took effect, and `what` holds the answer.
    fail  It did not take effect, and never will.
    info  The outcome is unknown. The same is true of an operation without a completion, whose process died in it.

Facts that are not calls (a topic's policy, a crash, a transaction that began in memory) are single `ok` events. Events
contain only what a client itself saw. Nothing is added from the store afterwards, except by `Inspect` and
`InspectTransactions`, whose events state that they read the store. `lab.histories.checker` draws the conclusions.

Rules for writing a history: a row's `value` is unique in the whole history and stored in a column of the row. A `txn`
label is unique too. A process does one thing at a time, and a name is not used again after a crash.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from txlog.core.names import TopicPartition

Kind: TypeAlias = Literal["invoke", "ok", "fail", "info"]
Isolation: TypeAlias = Literal["read_committed", "read_uncommitted"]
NO_OFFSET = -1


class Operation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="op"):
    """The subject of an event. Unknown offsets are -1."""


class Init(Operation, frozen=True, kw_only=True, tag="init"):
    """`init_transactions`; ok: the identity of this instance."""

    transactional_id: str
    producer_id: int = -1
    producer_epoch: int = -1


class Begin(Operation, frozen=True, kw_only=True, tag="begin"):
    """A transaction begins (a single event): `txn` names it in this history, the rest is its identity."""

    txn: str
    transactional_id: str
    producer_id: int = -1
    producer_epoch: int = -1


class Send(Operation, frozen=True, kw_only=True, tag="send"):
    """Rows for one partition, in order; ok: they are in the log or staged. `base_offset`: their place in the log."""

    topic: str
    partition: int
    values: tuple[int, ...]
    txn: str = ""
    """Empty: not part of a transaction."""
    contents: tuple[str, ...] = ()
    """The other contents of the rows, one text for each row (or a digest); () if they are not recorded."""
    keys: tuple[str, ...] = ()
    deletes: bool = False
    """Whether the rows delete their keys."""
    schema_id: int = -1
    """For a topic that may be deleted and created again: the version of its metadata for which the rows were made."""
    base_offset: int = NO_OFFSET


class OffsetRange(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Rows `[start, end)` of a partition were processed; `end` is committed."""

    topic: str
    partition: int
    start: int
    end: int


class SendOffsets(Operation, frozen=True, kw_only=True, tag="send_offsets"):
    """`send_offsets_to_transaction`."""

    txn: str
    group: str
    ranges: tuple[OffsetRange, ...]


class CommitOffsets(Operation, frozen=True, kw_only=True, tag="commit_offsets"):
    """A plain commit of a group; with `reset` it may move backwards."""

    group: str
    ranges: tuple[OffsetRange, ...]
    reset: bool = False


class FetchOffsets(Operation, frozen=True, kw_only=True, tag="fetch_offsets"):
    """A read of a group's committed offsets; ok: `ranges` with the offset in `end`, -1 for none (`start` has no
    meaning)."""

    group: str
    ranges: tuple[OffsetRange, ...]
    final: bool = False


class End(Operation, frozen=True, kw_only=True, tag="end"):
    """`commit_transaction` or `abort_transaction`; ok: the outcome (an abort may come too late)."""

    txn: str
    commit: bool
    outcome: Literal["", "committed", "aborted", "skipped"] = ""


class Assign(Operation, frozen=True, kw_only=True, tag="assign"):
    """This process reads from other positions from now on: assign, subscribe, seek, a reset. A single event."""

    topic: str = ""
    partition: int = -1
    """-1: all partitions (of the topic, or of all topics)."""


class Row(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A row as a reader got it."""

    offset: int
    value: int
    content: str = ""


class Poll(Operation, frozen=True, kw_only=True, tag="poll"):
    """A read of `[start, end)` of one partition; ok: every row that the isolation level shows there."""

    topic: str
    partition: int
    isolation: Isolation = "read_committed"
    start: int = NO_OFFSET
    """The position of the reader. -1: at the log start."""
    end: int = NO_OFFSET
    """The position after the read, which counts markers and aborted rows."""
    rows: tuple[Row, ...] = ()
    txn: str = ""
    """The transaction for which the rows are."""
    audit: str = ""
    """The audit to which it belongs."""
    log_start: int = NO_OFFSET
    last_stable: int = NO_OFFSET
    log_end: int = NO_OFFSET
    """The ends of the log, which the reader got within this poll."""
    to_end: bool = False
    """Whether it read until there were no more rows."""
    deleted_version: int = 0
    """The version of the topic's metadata that deleted everything before the log start, if the reader found one."""
    final: bool = False
    """Whether it read the whole log after everything had recovered."""
    group: str = ""
    """The group whose members share the partitions, if the reader is one of them."""
    generation: int = -1
    """The generation of the group in which the reader took part."""
    member: str = ""
    """The reader in its group: its `group.instance.id`, or else its member id."""


class Audit(Operation, frozen=True, kw_only=True, tag="audit"):
    """An auditor's polls of all partitions of a topic, from the log start; see `bank`.

    Its completion follows theirs.
    """

    audit: str
    topic: str
    quiet: bool = False
    """Whether the auditor saw that no transaction was in progress, so that its cut shows every transfer whole."""


class Ends(Operation, frozen=True, kw_only=True, tag="ends"):
    """`list_offsets` of one partition."""

    topic: str
    partition: int
    log_start: int = NO_OFFSET
    last_stable: int = NO_OFFSET
    log_end: int = NO_OFFSET


class Batch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A commit record in the log."""

    base_offset: int
    records: int
    kind: Literal["data", "commit", "abort", "log_start", "expire"]
    producer_id: int = -1
    producer_epoch: int = -1
    transactional: bool = False

    @property
    def end_offset(self) -> int:
        return self.base_offset + max(self.records, 1)


class OpenTransaction(msgspec.Struct, frozen=True, kw_only=True):
    """A transaction without a marker in a partition."""

    producer_id: int
    producer_epoch: int
    first_offset: int


class Inspect(Operation, frozen=True, kw_only=True, tag="inspect"):
    """The content of the log of one partition."""

    topic: str
    partition: int
    batches: tuple[Batch, ...] = ()
    open: tuple[OpenTransaction, ...] = ()
    digest: str = ""
    """Digest of the last record: equal ends must have equal digests."""
    final: bool = False
    """Whether everything had recovered, so that nothing may be open."""


class TransactionRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One record of the transaction-state table."""

    offset: int
    """The offset within the id's partition of the table."""
    transactional_id: str
    producer_id: int
    producer_epoch: int
    last_epoch: int = -1
    state: str = ""


class InspectTransactions(Operation, frozen=True, kw_only=True, tag="inspect_transactions"):
    """The records of the table that still exist, by partition and offset."""

    records: tuple[TransactionRecord, ...] = ()


class TopicPolicy(Operation, frozen=True, kw_only=True, tag="topic"):
    """A topic's cleanup policy. Superseded rows of a compacted topic may be missing. A single event."""

    topic: str
    compacted: bool = False


class DeleteTopic(Operation, frozen=True, kw_only=True, tag="delete_topic"):
    """A topic is deleted; ok: the version of the deletion in its metadata. The name may be used again."""

    topic: str
    version: int = -1


class Note(Operation, frozen=True, kw_only=True, tag="note"):
    """Anything else that helps to read the history: a crash, a clock jump, maintenance. A single event."""

    text: str


What: TypeAlias = (
    Init
    | Begin
    | Send
    | SendOffsets
    | CommitOffsets
    | FetchOffsets
    | End
    | Assign
    | Poll
    | Audit
    | Ends
    | Inspect
    | InspectTransactions
    | TopicPolicy
    | DeleteTopic
    | Note
)


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of a history."""

    source: str
    """The recorder that wrote the event; each has one file."""
    number: int
    """Counts the events of the source."""
    process: str
    """The sequential client that made the operation."""
    operation: int
    """Counts the operations of the source: connects a completion with its invocation."""
    type: Kind
    wall_ms: int
    monotonic_ms: int
    """By a clock that all sources of a history share and that never steps back."""
    what: What
    error: str = ""
    """`ClassName: text`, of fail and info."""

    def __str__(self) -> str:
        detail = msgspec.json.encode(self.what).decode()
        error = f" {self.error}" if self.error else ""
        return f"{self.source}:{self.number} {self.process} {self.type} {detail[:400]}{error[:200]}"


Partitioned: TypeAlias = Send | Poll | Ends | Inspect


def partition_of(what: Partitioned) -> TopicPartition:
    """Return the partition of an operation."""
    return TopicPartition(what.topic, what.partition)
