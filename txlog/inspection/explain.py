"""How is an object of a store explained in sentences?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from txlog.core import names
from txlog.core.names import TopicPartition
from txlog.core.records import (
    FIRST_DRAWN_PRODUCER_ID,
    Boundary,
    Clean,
    CleanupRun,
    CleanupStep,
    CommitRecord,
    Entry,
    Erasure,
    HeartbeatEntry,
    OffsetEntry,
    SegmentIndex,
    Snapshot,
    StagedList,
    StagedPart,
    StoreDescriptor,
    TopicMetadata,
    TransactionEntry,
    TransactionMetadata,
    TxnIndex,
)
from txlog.core.schema import describe
from txlog.inspection.object_names import ObjectKind, ObjectName, RowsFileName
from txlog.text import bytes_text, count_text, duration_text, range_text, time_text


def _explain_store(_: ObjectName, value: StoreDescriptor) -> tuple[str, ...]:
    constants = value.constants
    return (
        f"The descriptor of a txlog store, format {value.version}, made "
        f"{time_text(value.created_at)}; it never changes.",
        f"Its id is {value.store_id}. Whoever opens it must know "
        f"{', '.join(value.features) or 'no particular feature'}.",
        f"Superseded objects stay for {duration_text(constants.delete_grace_ms)}; idle producers are forgotten after "
        f"{duration_text(constants.producer_id_expiration_ms)}, idle transactional.ids after "
        f"{duration_text(constants.transactional_id_expiration_ms)}.",
        f"Transactions live in {count_text(constants.transaction_state_partitions, 'partition')} of "
        f"{names.TRANSACTION_STATE_TOPIC}, offsets of groups in {constants.consumer_offsets_partitions} of "
        f"{names.CONSUMER_OFFSETS_TOPIC}.",
    )


def _explain_topic(name: ObjectName, value: TopicMetadata) -> tuple[str, ...]:
    if value.deleted:
        state = f"Version {value.number} deletes topic {value.topic!r}"
    elif value.deleting:
        state = f"Version {value.number} begins to delete topic {value.topic!r}"
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


def _explain_batch(name: ObjectName, value: CommitRecord) -> tuple[str, ...]:
    where = f"at {range_text(value.base_offset, value.last_offset)} of {name.where}"
    by = _explain_producer(value.producer_id, value.producer_epoch)
    noun = "entry" if value.entries else "row"
    words: list[str] = []
    if value.kind == "data":
        sequences = "" if value.base_sequence < 0 else f", sequences {value.base_sequence} to {value.last_sequence}"
        txn = ", within a transaction" if value.transactional else ""
        words.append(f"A batch of {count_text(value.records, noun)} {where}{by}{sequences}{txn}.")
    elif value.kind == "commit":
        carried = f", carrying {count_text(value.records, noun)}" if value.records else ""
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
        words.append(f"Its rows ride inline, {bytes_text(value.payload_bytes)} after the line of JSON.")
    if value.coordinator_epoch >= 0:
        words.append(
            f"It rolls forward the decision at offset {value.coordinator_epoch} of its transaction-state partition."
        )
    words += [_explain_entry(entry) for entry in value.entries]
    previous = f"after the record with digest {value.previous[:12]}…" if value.base_offset else "as the first record"
    words.append(
        f"Appended {time_text(value.timestamp)}, {previous}, in the segment that begins at {value.segment_base}."
    )
    return tuple(words)


def _explain_entry(entry: Entry) -> str:
    if isinstance(entry, TransactionEntry):
        if entry.value is None:
            return f"transactional.id {entry.key!r} is removed."
        return f"{_explain_transaction(entry.value)}."
    if isinstance(entry, OffsetEntry):
        at = "has no offset any more" if entry.value is None else f"goes on at offset {entry.value.offset}"
        return f"Group {entry.group!r} {at} in {entry.topic}-{entry.partition}."
    if isinstance(entry, HeartbeatEntry):
        return f"Member {entry.member_id!r} of group {entry.group!r} lives."
    if entry.value is None:
        return f"Group {entry.group!r} is removed."
    if entry.value.members:
        ids = ", ".join(repr(member.member_id) for member in entry.value.members)
        return (
            f"Group {entry.group!r}, generation {entry.value.generation}, has "
            f"{count_text(len(entry.value.members), 'member')}: {ids}."
        )
    member = f"member {entry.value.member_id!r}" if entry.value.member_id else "nobody"
    return f"Group {entry.group!r}, generation {entry.value.generation}, belongs to {member}."


def _explain_transaction(txn: TransactionMetadata) -> str:
    held = f", {count_text(len(txn.partitions), 'partition')} registered" if txn.partitions else ""
    staged = f", {count_text(len(txn.staged), 'staged part')}" if txn.staged else ""
    listed = f", staged parts listed in {txn.staged_object.name}" if txn.staged_object is not None else ""
    version = f", txn.version {txn.txn_version}" if txn.txn_version >= 0 else ""
    return (
        f"transactional.id {txn.transactional_id!r} is {txn.state}: producer {txn.producer_id}, epoch "
        f"{txn.producer_epoch}{held}{staged}{listed}{version}"
    )


def _explain_index(name: ObjectName, value: SegmentIndex) -> tuple[str, ...]:
    what = f"cleaned run, generation {value.generation}," if value.generation else "sealed segment"
    control = sum(entry.kind != "data" for entry in value.entries)
    rows = sum(entry.records for entry in value.entries)
    size_bytes = sum(file.bytes for file in value.files)
    aborted = count_text(value.aborted_txns, "aborted transaction")
    return (
        f"The index of a {what} of {name.where}: {range_text(value.base_offset, value.end_offset - 1)}.",
        f"{count_text(len(value.entries), 'batch').capitalize()} ({control} of them control) with "
        f"{count_text(rows, 'row')} in {count_text(len(value.files), 'Parquet file')}, {bytes_text(size_bytes)}.",
        f"It holds {aborted}{', listed in the .txnindex beside it' if value.aborted_txns else ''}; the last stable "
        f"offset at its end was {value.last_stable_offset}.",
    )


def _explain_txnindex(name: ObjectName, value: TxnIndex) -> tuple[str, ...]:
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


def _explain_snapshot(name: ObjectName, value: Snapshot) -> tuple[str, ...]:
    opened = [entry for entry in value.producers if entry.txn_first_offset >= 0]
    words = [
        f"The state of {name.where} just before offset {value.offset}: log start {value.log_start_offset}, last append "
        f"{time_text(value.last_timestamp)}.",
        f"It knows {count_text(len(value.producers), 'producer')}, {len(opened) or 'none'} with an open transaction.",
    ]
    if value.transactions or value.committed or value.groups or value.pending:
        words.append(
            f"Its table holds {count_text(len(value.transactions), 'transactional.id')}, "
            f"{count_text(len(value.committed), 'committed offset')}, "
            f"{count_text(sum(len(pending.rows) for pending in value.pending), 'pending offset')} and "
            f"{count_text(len(value.groups), 'group')}."
        )
    words += [f"{_explain_transaction(row.value)}." for row in value.transactions]
    words += [_explain_entry(row.entry) for row in value.committed]
    words += [_explain_entry(row.entry) for row in value.groups]
    return tuple(words)


def _explain_boundary(name: ObjectName, value: Boundary) -> tuple[str, ...]:
    return (
        f"The boundary at offset {value.offset} of {name.where}, made {time_text(value.created_at)}.",
        "Commit records below it may have been deleted: what they said is in sealed segments. The "
        "highest boundary counts.",
    )


def _explain_clean(name: ObjectName, value: Clean) -> tuple[str, ...]:
    return (
        f"Version {value.number} of the list of cleaned runs of {name.where}, made {time_text(value.created_at)}: "
        f"{count_text(len(value.runs), 'run')}. The highest version counts.",
        *(
            f"{range_text(run.base_offset, run.end_offset - 1).capitalize()} are read from {run.name.index}."
            for run in value.runs
        ),
        f"It supersedes {count_text(len(value.superseded), 'object')} that vacuum has not deleted yet.",
    )


def _explain_staged(name: ObjectName, value: StagedList) -> tuple[str, ...]:
    producer_id, producer_epoch, _ = name.value
    return (
        f"What a staged transaction of producer {producer_id}, epoch {producer_epoch}, appends when it is decided: "
        f"{count_text(len(value.staged), 'part')}.",
        *map(_explain_part, value.staged),
    )


def _explain_part(part: StagedPart) -> str:
    if part.payload:
        return f"{part.topic_partition}: {count_text(part.rows, 'row')} inline."
    if part.files:
        rows, files = count_text(part.rows, "row"), count_text(len(part.files), "file")
        return f"{part.topic_partition}: {rows} in {files}."
    return f"{part.topic_partition}: {count_text(len(part.entries), 'offset')} of consumer groups."


def _explain_history(_: ObjectName, value: CleanupRun) -> tuple[str, ...]:
    return (
        f"A run of {value.job} by {value.by}, which began {time_text(value.started_at)} and took "
        f"{duration_text(max(0, value.ended_at - value.started_at))}.",
        *map(_explain_step, value.steps),
    )


def _explain_erasure(_: ObjectName, value: Erasure) -> tuple[str, ...]:
    return (
        f"An erasure in topic {value.topic!r} that began {time_text(value.created_at)} and has not ended.",
        f"Rows for which this is true are erased: {value.where}",
        "`txlog maintain` finishes it, and then deletes this object.",
    )


def _explain_step(step: CleanupStep) -> str:
    has_offsets = 0 <= step.base_offset < step.end_offset
    offsets = f", {range_text(step.base_offset, step.end_offset - 1)}" if has_offsets else ""
    why = f": {step.message}" if step.message else ""
    return f"{step.topic}-{step.partition}: {step.job}, {step.outcome}{offsets}{why}."


def explain_rows(value: RowsFileName, size_bytes: int) -> tuple[str, ...]:
    """Return what the name of a file of rows says."""
    tp = TopicPartition(value.topic, value.partition)
    if value.base_offset is not None and value.end_offset is not None:
        offsets = range_text(value.base_offset, value.end_offset - 1)
        kind = "that rode inline in the sealed segment of"
        if value.generation:
            kind = f"of a cleaned run, generation {value.generation}, over"
        first = f"A Parquet file with the rows {kind} {offsets} of {tp}, {bytes_text(size_bytes)}."
    else:
        by = _explain_producer(value.producer_id or 0, value.producer_epoch or 0)
        through = " through Spark" if value.rows_of == "spark" else ""
        first = f"A Parquet file of rows for {tp}{by}{through}, {bytes_text(size_bytes)}."
    return (
        first,
        "Its rows count only if a commit record or a current index names it; read them with a consumer or with Spark.",
    )


def _explain_producer(producer_id: int, producer_epoch: int) -> str:
    if producer_id < 0:
        return ""
    drawn = " (without a transactional.id)" if producer_id >= FIRST_DRAWN_PRODUCER_ID else ""
    return f", by producer {producer_id}{drawn} at epoch {producer_epoch}"


EXPLAIN: Mapping[ObjectKind, tuple[type[Any], Callable[[ObjectName, Any], tuple[str, ...]]]] = {
    "store": (StoreDescriptor, _explain_store),
    "topic": (TopicMetadata, _explain_topic),
    "batch": (CommitRecord, _explain_batch),
    "index": (SegmentIndex, _explain_index),
    "txnindex": (TxnIndex, _explain_txnindex),
    "snapshot": (Snapshot, _explain_snapshot),
    "boundary": (Boundary, _explain_boundary),
    "clean": (Clean, _explain_clean),
    "staged": (StagedList, _explain_staged),
    "history": (CleanupRun, _explain_history),
    "erasure": (Erasure, _explain_erasure),
}
"""How each kind of object is decoded and explained."""
