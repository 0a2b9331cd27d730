"""What does an object of a store contain, explained in sentences?

`dump_object` decodes any metadata object by its name and explains it. `dump_partition` returns a partition's whole
chain, batch by batch, with the fate of each batch. Both only read, and they use no cache: they show what is stored. See
PROTOCOL.md, "Layout" and "Objects".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import msgspec

from txlog.client import reading
from txlog.client.descriptions import PartitionDescription
from txlog.client.runtime import Runtime
from txlog.core import envelope, names
from txlog.core.effects import Gather, Program
from txlog.core.names import TopicPartition
from txlog.core.records import (
    FIRST_DRAWN_PRODUCER_ID,
    AbortedTxn,
    BatchKind,
    Boundary,
    Clean,
    CleanupRun,
    CommitRecord,
    DataFile,
    Entry,
    IndexEntry,
    OffsetEntry,
    SegmentIndex,
    Snapshot,
    StagedList,
    StoreDescriptor,
    TopicMetadata,
    TransactionEntry,
    TransactionMetadata,
    TxnIndex,
)
from txlog.core.schema import OFFSET_COLUMN, describe
from txlog.core.segments import end_of_entry
from txlog.errors import InvalidRequestError, MissingObjectError, UnknownTopicOrPartitionError
from txlog.protocol.context import Context, PartitionView
from txlog.protocol.load import load
from txlog.protocol.read import ReadIndexes, aborted_transactions, read_index
from txlog.storage.inline_rows import read_ipc
from txlog.storage.object_store import ObjectStore
from txlog.text import bytes_text, count_text, duration_text, range_text, time_text

ObjectKind: TypeAlias = Literal[
    "store", "topic", "batch", "index", "txnindex", "snapshot", "boundary", "clean", "staged", "history", "rows"
]
BatchFate: TypeAlias = Literal["plain", "committed", "aborted", "open", "control"]
"""Fate of a batch: `plain` without a transaction, else its transaction's outcome so far; `control` has no rows."""


class RowsFileName(msgspec.Struct, frozen=True, kw_only=True):
    """What the name of a Parquet file shows. Its rows are read with a consumer or with Spark."""

    topic: str
    partition: int
    rows_of: Literal["producer", "spark", "sealed segment", "cleaned run"]
    producer_id: int | None = None
    producer_epoch: int | None = None
    base_offset: int | None = None
    end_offset: int | None = None
    generation: int | None = None


Dumped: TypeAlias = (
    StoreDescriptor
    | TopicMetadata
    | CommitRecord
    | SegmentIndex
    | TxnIndex
    | Snapshot
    | Boundary
    | Clean
    | StagedList
    | CleanupRun
    | RowsFileName
)


class DumpedObject(msgspec.Struct, frozen=True, kw_only=True):
    """One object of the store: its kind, an explanation, and all its fields."""

    path: str
    """Path relative to the store's root."""
    kind: ObjectKind
    bytes: int
    explanation: tuple[str, ...]
    """Sentences. The first one says what kind of object it is."""
    value: Dumped
    rows: list[dict[str, Any]] | None = None
    """The rows of a batch, if they were asked for."""


class ChainBatch(msgspec.Struct, frozen=True, kw_only=True):
    """One batch of a partition, as the log describes it now."""

    base_offset: int
    last_offset: int
    records: int
    kind: BatchKind
    fate: BatchFate
    producer_id: int
    producer_epoch: int
    base_sequence: int
    timestamp: int
    object: str
    """The `.batch` or `.index` that names the batch."""
    rows_in: tuple[str, ...]
    """Files of its rows, relative to the topic's folder; `inline` for rows inside the record."""
    rows: list[dict[str, Any]] | None = None
    """Its rows with their `_offset`, if they were asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionChain(PartitionDescription):
    """A partition, and its chain of batches from the log start to the end."""

    batches: tuple[ChainBatch, ...]


# -- one object -------------------------------------------------------------------------------------------------------


def dump_object(runtime: Runtime, path: str, *, rows: bool = False) -> DumpedObject:
    """Return the object at `path`, which is relative to the store's root or begins with the store's URL.

    `rows` also reads the rows of a batch. Raises InvalidRequestError if the name is not a name of txlog's, the object
    does not exist, or it has no rows. Raises CorruptRecordError with the name of a damaged object,
    UnsupportedStoreError for a newer format.
    """
    store = runtime.store
    path = relative_path(store, path)
    name = _parse(path)
    if name is None:
        raise InvalidRequestError(
            f"{path!r} is not the name of an object of a txlog store; name one relative to the store's root, as in "
            f"{'orders/0/' + names.batch_name(0)!r}, or a partition, as in 'orders/0', to see its whole chain"
        )
    if rows and name.kind != "batch":
        raise InvalidRequestError(f"{path!r} has no rows to show: expected a partition, as in 'orders/0', or a .batch")
    if name.kind == "rows":
        try:
            size_bytes = store.size(path)
        except MissingObjectError:
            raise _nothing_there(store, path) from None
        assert isinstance(name.value, RowsFileName)
        return DumpedObject(
            path=path, kind="rows", bytes=size_bytes, explanation=_rows_words(name.value, size_bytes), value=name.value
        )
    data = store.get(path)
    if data is None:
        raise _nothing_there(store, path)
    value, payload = envelope.decode(data, _STRUCTS[name.kind], path)
    words = _EXPLAIN[name.kind](name, value)
    shown = _rows_of(runtime, name, value, payload) if rows else None
    return DumpedObject(path=path, kind=name.kind, bytes=len(data), explanation=words, value=value, rows=shown)


def parse_partition(runtime: Runtime, path: str) -> TopicPartition | None:
    """Return the partition that `path` names (`orders/0`, `orders-0`, `orders/0/`), or None if it names something else."""
    path = relative_path(runtime.store, path).rstrip("/")
    for separator in ("/", "-"):
        topic, found, number = path.rpartition(separator)
        if (
            found
            and names.is_topic_name(topic)
            and (partition := names.parse_partition_folder(number + "/")) is not None
        ):
            return TopicPartition(topic, partition)
    return None


def relative_path(store: ObjectStore, path: str) -> str:
    """Return `path` without the store's URL, if it begins with it."""
    for root in (store.url, store.url.removeprefix("file://")):
        prefix = root.rstrip("/") + "/"
        if path.startswith(prefix):
            return path[len(prefix) :].strip("/")
    return path.removeprefix("./")


@dataclass(frozen=True, slots=True)
class _Name:
    """What a path says about its object."""

    path: str
    kind: ObjectKind
    value: Any = None
    topic_partition: TopicPartition | None = None

    @property
    def where(self) -> str:
        return str(self.topic_partition)


def _parse(path: str) -> _Name | None:
    if path == names.STORE_DESCRIPTOR:
        return _Name(path, "store")
    topic, _, rest = path.partition("/")
    if topic + "/" == names.MAINTENANCE_FOLDER:
        run = names.parse_history_name(rest)
        return None if run is None else _Name(path, "history", run)
    if not names.is_topic_name(topic):
        return None
    if (number := names.parse_topic_metadata_name(rest)) is not None:
        return _Name(path, "topic", number)
    if (file := names.parse_rows_path(rest)) is not None:
        written = RowsFileName(
            topic=topic,
            partition=file.partition,
            rows_of="spark" if file.staged else "producer",
            producer_id=file.producer_id,
            producer_epoch=file.producer_epoch,
        )
        return _Name(path, "rows", written, TopicPartition(topic, file.partition))
    folder, _, name = rest.partition("/")
    partition = names.parse_partition_folder(folder + "/")
    if partition is None:
        return None
    tp = TopicPartition(topic, partition)
    if names.parse_staged_list_name(name) is not None:
        return _Name(path, "staged", names.parse_staged_list_name(name), tp)
    match names.parse_partition_object(name):
        case names.NumberedName(kind=("batch" | "snapshot" | "boundary" | "clean") as kind, number=number):
            return _Name(path, kind, number, tp)
        case names.SegmentObject(segment=segment, kind=("index" | "txnindex") as kind):
            return _Name(path, kind, segment, tp)
        case names.SegmentObject(segment=segment):
            sealed = RowsFileName(
                topic=topic,
                partition=partition,
                rows_of="cleaned run" if segment.generation else "sealed segment",
                base_offset=segment.base_offset,
                end_offset=segment.end_offset,
                generation=segment.generation,
            )
            return _Name(path, "rows", sealed, tp)
    return None


def _nothing_there(store: ObjectStore, path: str) -> InvalidRequestError:
    folder, _, _ = path.rpartition("/")
    listed = store.list(f"{folder}/" if folder else "")
    if not listed:
        return InvalidRequestError(f"{store.url}: there is no {path!r}, and its folder is empty or missing")
    shown = ", ".join(repr(name) for name in listed[:5]) + (f" and {len(listed) - 5} more" if len(listed) > 5 else "")
    return InvalidRequestError(f"{store.url}: there is no {path!r}; its folder holds {shown}")


def _rows_of(runtime: Runtime, name: _Name, record: CommitRecord, payload: bytes) -> list[dict[str, Any]]:
    assert name.topic_partition is not None
    _check_has_rows(name.topic_partition)
    rows: list[dict[str, Any]] = read_ipc(payload, name.path).to_pylist() if payload else []
    if record.files:
        written = read_rows(runtime, name.topic_partition, record.base_offset, record.end_offset)
        rows = [{column: value for column, value in row.items() if column != OFFSET_COLUMN} for row in written]
    return rows


# -- words ------------------------------------------------------------------------------------------------------------


def _store_words(_: _Name, value: StoreDescriptor) -> tuple[str, ...]:
    constants = value.constants
    return (
        f"The descriptor of a txlog store, format {value.version}, made {time_text(value.created_at)}; it never changes.",
        f"Its id is {value.store_id}. Whoever opens it must know {', '.join(value.features) or 'no particular feature'}.",
        f"Superseded objects stay for {duration_text(constants.delete_grace_ms)}; idle producers are forgotten after "
        f"{duration_text(constants.producer_id_expiration_ms)}, idle transactional.ids after "
        f"{duration_text(constants.transactional_id_expiration_ms)}.",
        f"Transactions live in {count_text(constants.transaction_state_partitions, 'partition')} of "
        f"{names.TRANSACTION_STATE_TOPIC}, offsets of groups in {constants.consumer_offsets_partitions} of "
        f"{names.CONSUMER_OFFSETS_TOPIC}.",
    )


def _topic_words(name: _Name, value: TopicMetadata) -> tuple[str, ...]:
    if value.deleted:
        state = f"Version {value.number} deletes topic {value.topic!r}"
    elif value.number == 0:
        state = f"The first version of topic {value.topic!r}"
    else:
        state = f"Version {value.number} of topic {value.topic!r}"
    columns = ", ".join(f"{field.name} {describe(field)}" for field in value.schema)
    settings = ", ".join(f"{key} = {text}" for key, text in sorted(value.config.items())) or "none of its own"
    return (
        f"{state}, written {time_text(value.created_at)}: {count_text(value.partitions, 'partition')}.",
        f"Columns (since version {value.schema_id}): {columns}.",
        f"Settings: {settings}.",
    )


def _batch_words(name: _Name, value: CommitRecord) -> tuple[str, ...]:
    where = f"at {range_text(value.base_offset, value.last_offset)} of {name.where}"
    by = _producer_words(value.producer_id, value.producer_epoch)
    words: list[str] = []
    if value.kind == "data":
        sequences = "" if value.base_sequence < 0 else f", sequences {value.base_sequence} to {value.last_sequence}"
        txn = ", within a transaction" if value.transactional else ""
        noun = "entry" if value.entries else "row"
        words.append(f"A batch of {count_text(value.records, noun)} {where}{by}{sequences}{txn}.")
    elif value.kind == "commit":
        carried = (
            f", carrying {count_text(value.records, 'entry' if value.entries else 'row')}" if value.records else ""
        )
        words.append(f"The COMMIT marker {where}{by}{carried}: what the producer's transaction wrote is valid.")
    elif value.kind == "abort":
        words.append(f"An ABORT marker {where}{by}.")
        if value.first_offset >= 0:
            words.append(
                f"Rows of this producer from offset {value.first_offset} to here are hidden from read_committed; the "
                f"last stable offset after it is {value.last_stable_offset}."
            )
        else:
            words.append("Its transaction had no rows in this partition.")
    elif value.kind == "log_start":
        why = f", because version {value.deleted_version} of the topic deleted it" if value.deleted_version else ""
        words.append(f"A log start {where}: the log begins at offset {value.log_start_offset} now{why}.")
    else:
        what = (
            f"the state of {count_text(len(value.expired), 'producer')} ends here" if value.expired else "it ends none"
        )
        words.append(f"An expiry of idle producers {where}: {what}.")
    if value.files:
        size_bytes = sum(file.bytes for file in value.files)
        words.append(f"Its rows lie in {count_text(len(value.files), 'Parquet file')}, {bytes_text(size_bytes)}.")
    if value.payload_bytes:
        words.append(f"Its rows ride inline, {bytes_text(value.payload_bytes)} of Arrow IPC after the line of JSON.")
    if value.coordinator_epoch >= 0:
        words.append(
            f"It rolls forward the decision at offset {value.coordinator_epoch} of its transaction-state partition."
        )
    words += [_entry_words(entry) for entry in value.entries]
    previous = f"after the record with digest {value.previous[:12]}…" if value.base_offset else "as the first record"
    words.append(
        f"Appended {time_text(value.timestamp)}, {previous}, in the segment that begins at {value.segment_base}."
    )
    return tuple(words)


def _entry_words(entry: Entry) -> str:
    if isinstance(entry, TransactionEntry):
        if entry.value is None:
            return f"transactional.id {entry.key!r} is removed."
        return f"{_transaction_words(entry.value)}."
    if isinstance(entry, OffsetEntry):
        at = "has no offset any more" if entry.value is None else f"goes on at offset {entry.value.offset}"
        return f"Group {entry.group!r} {at} in {entry.topic}-{entry.partition}."
    if entry.value is None:
        return f"Group {entry.group!r} is removed."
    member = f"member {entry.value.member_id!r}" if entry.value.member_id else "nobody"
    return f"Group {entry.group!r}, generation {entry.value.generation}, belongs to {member}."


def _transaction_words(txn: TransactionMetadata) -> str:
    held = f", {count_text(len(txn.partitions), 'partition')} registered" if txn.partitions else ""
    staged = f", {count_text(len(txn.staged), 'staged part')}" if txn.staged else ""
    listed = f", staged parts listed in {txn.staged_object.name}" if txn.staged_object is not None else ""
    version = f", txn.version {txn.txn_version}" if txn.txn_version >= 0 else ""
    return (
        f"transactional.id {txn.transactional_id!r} is {txn.state}: producer {txn.producer_id}, epoch {txn.producer_epoch}"
        f"{held}{staged}{listed}{version}"
    )


def _index_words(name: _Name, value: SegmentIndex) -> tuple[str, ...]:
    what = f"cleaned run, generation {value.generation}," if value.generation else "sealed segment"
    control = sum(entry.kind != "data" for entry in value.entries)
    rows = sum(entry.records for entry in value.entries)
    size_bytes = sum(file.bytes for file in value.files)
    aborted = count_text(value.aborted_txns, "aborted transaction")
    return (
        f"The index of a {what} of {name.where}: {range_text(value.base_offset, value.end_offset - 1)}.",
        f"{count_text(len(value.entries), 'batch').capitalize()} ({control} of them control) with {count_text(rows, 'row')} in "
        f"{count_text(len(value.files), 'Parquet file')}, {bytes_text(size_bytes)}.",
        f"It holds {aborted}{', listed in the .txnindex beside it' if value.aborted_txns else ''}; the last stable offset at "
        f"its end was {value.last_stable_offset}.",
    )


def _txnindex_words(name: _Name, value: TxnIndex) -> tuple[str, ...]:
    segment: names.SegmentName = name.value
    return (
        f"{count_text(len(value.aborted), 'aborted transaction').capitalize()} whose markers lie in "
        f"{range_text(segment.base_offset, segment.end_offset - 1)} of {name.where}.",
        *(
            f"Producer {txn.producer_id}: its rows in {range_text(txn.first_offset, txn.last_offset)} are hidden from "
            f"read_committed; the last stable offset after it is {txn.last_stable_offset}."
            for txn in value.aborted
        ),
    )


def _snapshot_words(name: _Name, value: Snapshot) -> tuple[str, ...]:
    opened = [entry for entry in value.producers if entry.txn_first_offset >= 0]
    words = [
        f"The state of {name.where} just before offset {value.offset}: log start {value.log_start_offset}, last append "
        f"{time_text(value.last_timestamp)}.",
        f"It knows {count_text(len(value.producers), 'producer')}, {len(opened) or 'none'} with an open transaction.",
    ]
    if value.transactions or value.committed or value.groups or value.pending:
        words.append(
            f"Its table holds {count_text(len(value.transactions), 'transactional.id')}, {count_text(len(value.committed), 'committed offset')}, "
            f"{count_text(sum(len(pending.rows) for pending in value.pending), 'pending offset')} and {count_text(len(value.groups), 'group')}."
        )
    words += [f"{_transaction_words(row.value)}." for row in value.transactions]
    words += [_entry_words(row.entry) for row in value.committed]
    words += [_entry_words(row.entry) for row in value.groups]
    return tuple(words)


def _boundary_words(name: _Name, value: Boundary) -> tuple[str, ...]:
    return (
        f"The boundary at offset {value.offset} of {name.where}, made {time_text(value.created_at)}.",
        "Commit records below it may have been deleted: what they said is in sealed segments. The highest boundary counts.",
    )


def _clean_words(name: _Name, value: Clean) -> tuple[str, ...]:
    return (
        f"Version {value.number} of the list of cleaned runs of {name.where}, made {time_text(value.created_at)}: "
        f"{count_text(len(value.runs), 'run')}. The highest version counts.",
        *(
            f"{range_text(run.base_offset, run.end_offset - 1).capitalize()} are read from {run.name.index}."
            for run in value.runs
        ),
        f"It supersedes {count_text(len(value.superseded), 'object')} that vacuum has not deleted yet.",
    )


def _staged_words(name: _Name, value: StagedList) -> tuple[str, ...]:
    producer_id, producer_epoch, _ = name.value
    return (
        f"What a staged transaction of producer {producer_id}, epoch {producer_epoch}, appends when it is decided: "
        f"{count_text(len(value.staged), 'part')}.",
        *(
            f"{part.topic_partition}: "
            + (
                f"{count_text(part.rows, 'row')} inline."
                if part.payload
                else f"{count_text(part.rows, 'row')} in {count_text(len(part.files), 'file')}."
                if part.files
                else f"{count_text(len(part.entries), 'offset')} of consumer groups."
            )
            for part in value.staged
        ),
    )


def _history_words(_: _Name, value: CleanupRun) -> tuple[str, ...]:
    return (
        f"A run of {value.job} by {value.by}, which began {time_text(value.started_at)} and took "
        f"{duration_text(max(0, value.ended_at - value.started_at))}.",
        *(
            f"{step.topic}-{step.partition}: {step.job}, {step.outcome}"
            + (
                f", {range_text(step.base_offset, step.end_offset - 1)}"
                if 0 <= step.base_offset < step.end_offset
                else ""
            )
            + (f": {step.message}." if step.message else ".")
            for step in value.steps
        ),
    )


def _rows_words(value: RowsFileName, size_bytes: int) -> tuple[str, ...]:
    tp = TopicPartition(value.topic, value.partition)
    if value.base_offset is not None and value.end_offset is not None:
        offsets = range_text(value.base_offset, value.end_offset - 1)
        kind = (
            "that rode inline in the sealed segment of"
            if not value.generation
            else f"of a cleaned run, generation {value.generation}, over"
        )
        first = f"A Parquet file with the rows {kind} {offsets} of {tp}, {bytes_text(size_bytes)}."
    else:
        by = _producer_words(value.producer_id or 0, value.producer_epoch or 0)
        first = f"A Parquet file of rows for {tp}{by}{' through Spark' if value.rows_of == 'spark' else ''}, {bytes_text(size_bytes)}."
    return (
        first,
        "Its rows count only if a commit record or a current index names it; read them with a consumer or with Spark.",
    )


def _producer_words(producer_id: int, producer_epoch: int) -> str:
    if producer_id < 0:
        return ""
    drawn = " (without a transactional.id)" if producer_id >= FIRST_DRAWN_PRODUCER_ID else ""
    return f", by producer {producer_id}{drawn} at epoch {producer_epoch}"


_STRUCTS: Mapping[ObjectKind, type[Any]] = {
    "store": StoreDescriptor,
    "topic": TopicMetadata,
    "batch": CommitRecord,
    "index": SegmentIndex,
    "txnindex": TxnIndex,
    "snapshot": Snapshot,
    "boundary": Boundary,
    "clean": Clean,
    "staged": StagedList,
    "history": CleanupRun,
}
_EXPLAIN: Mapping[ObjectKind, Callable[[_Name, Any], tuple[str, ...]]] = {
    "store": _store_words,
    "topic": _topic_words,
    "batch": _batch_words,
    "index": _index_words,
    "txnindex": _txnindex_words,
    "snapshot": _snapshot_words,
    "boundary": _boundary_words,
    "clean": _clean_words,
    "staged": _staged_words,
    "history": _history_words,
}


# -- a partition ------------------------------------------------------------------------------------------------------


def dump_partition(runtime: Runtime, tp: TopicPartition) -> PartitionChain:
    """Return the chain of `tp` from its log start on, with the fate of each batch.

    Costs one LIST, and one GET for each object of the tail and each index. Deleted topics and txlog's own topics work
    too. Raises UnknownTopicOrPartitionError if there is no such partition, CorruptLogError with the name of a damaged
    or missing object.
    """
    chain = runtime.run(_partition(runtime.context(), tp))
    if not chain.log_end_offset:
        _check_exists(runtime, tp)
    return chain


def read_rows(runtime: Runtime, tp: TopicPartition, start: int, end: int) -> Iterator[dict[str, Any]]:
    """Yield the stored rows of `[start, end)` in order, rows of open and aborted transactions included.

    Each row has its `_offset`, then its columns. Offsets outside of the log are left out. Raises InvalidRequestError
    for one of txlog's own topics, CorruptLogError with the name of a damaged or missing object.
    """
    _check_has_rows(tp)
    view = runtime.run(load(runtime.context(), tp))
    start, end = max(start, view.state.log_start_offset), min(end, view.state.next_offset)
    if start >= end:
        return iter(())
    planned = reading.plan(runtime, tp.topic, tp.partition, start, end, "read_uncommitted")
    (task,) = reading.tasks(runtime, [planned], metadata_columns=(OFFSET_COLUMN,))
    rows = (row for batch in reading.read_task(task, runtime.store) for row in batch.to_pylist())
    return ({OFFSET_COLUMN: row.pop(OFFSET_COLUMN), **row} for row in rows)


def _check_has_rows(tp: TopicPartition) -> None:
    if tp.topic in names.INTERNAL_TOPICS:
        raise InvalidRequestError(
            f"{tp.topic} has no rows but entries; its .batch and .snapshot objects tell them, and a partition of it its batches"
        )


def _check_exists(runtime: Runtime, tp: TopicPartition) -> None:
    if tp.topic not in names.INTERNAL_TOPICS:
        runtime.partition(tp.topic, tp.partition, 0)
        return
    constants = runtime.constants
    is_state = tp.topic == names.TRANSACTION_STATE_TOPIC
    partitions = constants.transaction_state_partitions if is_state else constants.consumer_offsets_partitions
    if tp.partition >= partitions:
        raise UnknownTopicOrPartitionError(
            f"{tp.topic} has no partition {tp.partition}: it has {partitions}, numbered 0 to {partitions - 1}"
        )


def _partition(ctx: Context, tp: TopicPartition) -> Program[PartitionChain]:
    for attempt in range(ctx.max_loads):
        view = yield from load(ctx, tp)
        try:
            return (yield from _chain(ctx, view))
        except MissingObjectError:
            # Maintenance may have changed the folder since the LIST, so list again. An object that stays missing is
            # damage.
            if attempt == ctx.max_loads - 1:
                raise
    raise MissingObjectError(f"{tp}: could not be read in {ctx.max_loads} tries")


def _chain(ctx: Context, view: PartitionView) -> Program[PartitionChain]:
    tp = view.topic_partition
    read = yield Gather(tuple(read_index(tp, name) for name in view.walk))
    indexes: ReadIndexes = dict(zip(view.walk, read, strict=True))
    view, aborted = yield from aborted_transactions(
        ctx, view, view.state.log_start_offset, view.state.next_offset, indexes
    )
    return PartitionChain.of(view, indexes, aborted, batches=tuple(_batches(view, indexes, aborted)))


def _batches(view: PartitionView, indexes: ReadIndexes, aborted: Iterable[AbortedTxn]) -> Iterable[ChainBatch]:
    ranges: dict[int, list[tuple[int, int]]] = {}
    for txn in aborted:
        ranges.setdefault(txn.producer_id, []).append((txn.first_offset, txn.last_offset))
    first_open = {entry.producer_id: entry.txn_first_offset for entry in view.state.open_transactions}

    def fate(kind: BatchKind, transactional: bool, producer_id: int, offset: int) -> BatchFate:
        if kind != "data":
            return "control"
        if not transactional:
            return "plain"
        if any(first <= offset < last for first, last in ranges.get(producer_id, ())):
            return "aborted"
        return "open" if offset >= first_open.get(producer_id, offset + 1) else "committed"

    for name, read in indexes.items():
        for at, entry in enumerate(read.index.entries):
            # A batch of a cleaned run may have gaps between its remaining rows.
            end_offset = end_of_entry(read.index, at)
            if end_offset > view.state.log_start_offset:
                yield ChainBatch(
                    base_offset=entry.base_offset,
                    last_offset=end_offset - 1,
                    records=entry.records,
                    kind=entry.kind,
                    fate=fate(entry.kind, entry.transactional, entry.producer_id, entry.base_offset),
                    producer_id=entry.producer_id,
                    producer_epoch=entry.producer_epoch,
                    base_sequence=entry.base_sequence,
                    timestamp=entry.timestamp,
                    object=name.index,
                    rows_in=_files_of(entry, read.index),
                )
    for stored in view.tail:
        record = stored.record
        if record.end_offset > view.state.log_start_offset:
            yield ChainBatch(
                base_offset=record.base_offset,
                last_offset=record.last_offset,
                records=record.records,
                kind=record.kind,
                fate=fate(record.kind, record.transactional, record.producer_id, record.base_offset),
                producer_id=record.producer_id,
                producer_epoch=record.producer_epoch,
                base_sequence=record.base_sequence,
                timestamp=record.timestamp,
                object=names.batch_name(record.base_offset),
                rows_in=tuple(file.path for file in record.files) or (("inline",) if record.records else ()),
            )


def _files_of(entry: IndexEntry, index: SegmentIndex) -> tuple[str, ...]:
    """Return the files that hold a batch's rows: its first file, and as many after it as the rows need."""
    if entry.file is None or not entry.records:
        return ()
    files: deque[DataFile] = deque(index.files[entry.file :])
    found: list[str] = []
    missing = entry.records + entry.first_row
    while missing > 0 and files:
        file = files.popleft()
        found.append(file.path)
        missing -= file.rows
    return tuple(found)
