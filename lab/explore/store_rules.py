"""Which rules hold over a whole store: the table of transactions, the markers, and the objects that records name?"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from lab.explore.client import Note
from lab.explore.oracle import Truth
from lab.explore.world import GHOST, WRITTEN_AGAIN
from txlog.core import envelope, names
from txlog.core.names import NumberedName, SegmentObject, TopicPartition
from txlog.core.record_checks import decode_records
from txlog.core.records import FIRST_DRAWN_PRODUCER_ID, Boundary, Clean, CommitRecord, SegmentIndex, TransactionMetadata

NAMES = {
    1: "chain", 2: "acknowledged", 3: "once", 4: "decision", 5: "atomic", 6: "stable", 7: "lso", 8: "fencing", 9: "registered",
    10: "markers", 11: "recovery", 12: "offsets", 13: "clean-up", 14: "stale writers", 15: "liveness", 16: "references", 17: "snapshots",
    18: "published",
}  # fmt: skip
"""Invariants of PROTOCOL.md that are checked here."""
_EXCLUSIVE_OUTCOMES = {"PREPARE_COMMIT": "commit", "PREPARE_ABORT": "abort"}
_LEGAL: dict[str, set[str | None]] = {
    "EMPTY": {"EMPTY", "COMPLETE_COMMIT", "COMPLETE_ABORT", None},
    "ONGOING": {"ONGOING", "EMPTY", "COMPLETE_COMMIT", "COMPLETE_ABORT", "PREPARE_COMMIT", "PREPARE_ABORT"},
    "PREPARE_COMMIT": {"ONGOING", "EMPTY", "COMPLETE_COMMIT", "COMPLETE_ABORT", "PREPARE_COMMIT", "PREPARE_ABORT"},
    "PREPARE_ABORT": {"ONGOING", "EMPTY", "COMPLETE_COMMIT", "COMPLETE_ABORT", "PREPARE_COMMIT", "PREPARE_ABORT"},
    "COMPLETE_COMMIT": {"PREPARE_COMMIT", "COMPLETE_COMMIT"},
    "COMPLETE_ABORT": {"PREPARE_ABORT", "COMPLETE_ABORT"},
}
_Table = list[tuple[int, str, TransactionMetadata | None]]


def attached_to(txn: TransactionMetadata | None) -> frozenset[TopicPartition]:
    """Return the partitions where an instance may commit in one phase."""
    return frozenset() if txn is None else frozenset(txn.attached or ())


def wrong_decisions(table: _Table, truths: dict[TopicPartition, Truth]) -> str | None:
    """4: one outcome for each transaction, legal transitions, epochs that only rise, a version that only a commit
    changes."""
    last: dict[str, TransactionMetadata | None] = {}
    outcomes: dict[tuple[int, int], str] = {}
    for offset, key, txn in table:
        before = last.get(key)
        last[key] = txn
        if txn is None:
            if attached_to(before):
                return f"8 fencing: {key!r} at {offset}: it was removed, and an instance is attached to partitions"
            continue
        where = f"4 decision: {key!r} at {offset}"
        if txn.state not in _LEGAL or (before.state if before is not None else None) not in _LEGAL[txn.state]:
            return f"{where}: {txn.state} follows {before.state if before is not None else 'nothing'}"
        if before is not None and before.producer_id == txn.producer_id and txn.producer_epoch < before.producer_epoch:
            return f"{where}: the epoch went back from {before.producer_epoch} to {txn.producer_epoch}"
        had, has = attached_to(before), attached_to(txn)
        attaches = before is not None and before.producer_epoch == txn.producer_epoch and has > had
        if before is not None and before.state == txn.state in ("COMPLETE_COMMIT", "COMPLETE_ABORT") and not attaches:
            return f"{where}: {txn.state} follows itself, and attaches nothing"
        if had - has - ({*txn.partitions} if txn.state == "PREPARE_ABORT" else set()):
            return f"8 fencing: {key!r} at {offset}: an instance was attached to {had - has}, and is not fenced there"
        own_epoch = txn.last_epoch if txn.state in _EXCLUSIVE_OUTCOMES else txn.producer_epoch
        if before is not None and before.state in _EXCLUSIVE_OUTCOMES and own_epoch != before.producer_epoch:
            return f"{where}: {txn.state} of epoch {own_epoch} follows {before.state} of epoch {before.producer_epoch}"
        if (
            txn.state == "EMPTY"
            and before is not None
            and txn.producer_epoch <= before.producer_epoch
            and not (attaches and before.state == "EMPTY")
        ):
            return f"8 fencing: {key!r} at {offset}: an init took the epoch {txn.producer_epoch} of another instance"
        outcome = _EXCLUSIVE_OUTCOMES.get(txn.state)
        if outcome is not None:
            if outcomes.setdefault((txn.producer_id, txn.last_epoch), outcome) != outcome:
                return f"{where}: the transaction of epoch {txn.last_epoch} has two outcomes"
            if txn.producer_epoch != txn.last_epoch + 1:
                return f"{where}: PREPARE carries epoch {txn.producer_epoch}, the transaction's was {txn.last_epoch}"
        prepare = before if txn.state.startswith("COMPLETE") else None
        if (
            prepare is not None
            and prepare.state in _EXCLUSIVE_OUTCOMES
            and (txn.producer_epoch, txn.state[9:]) != (prepare.producer_epoch, prepare.state[8:])
        ):
            return (
                f"{where}: {txn.state} with epoch {txn.producer_epoch} after {prepare.state} with "
                f"{prepare.producer_epoch}"
            )
        if before is not None and txn.state != "PREPARE_COMMIT" and txn.txn_version != before.txn_version:
            return f"{where}: {txn.state} changed the version from {before.txn_version} to {txn.txn_version}"
        if before is not None and txn.txn_version < before.txn_version:
            return f"{where}: the version went back from {before.txn_version} to {txn.txn_version}"
        if before is not None and txn.state == "PREPARE_COMMIT" and before.txn_version == txn.txn_version >= 0:
            return f"{where}: version {txn.txn_version} was committed twice"
    return None


def wrong_markers(table: _Table, truths: dict[TopicPartition, Truth]) -> str | None:
    """10: a marker belongs to a decision, is in a partition that the decision names, and exists once."""
    decided = {
        (txn.producer_id, txn.producer_epoch): txn
        for _, _, txn in table
        if txn is not None and txn.state in _EXCLUSIVE_OUTCOMES
    }
    for tp, truth in truths.items():
        seen: set[tuple[int, int]] = set()
        for marker in truth.markers:
            key = (marker.producer_id, marker.producer_epoch)
            where = (
                f"10 markers: {tp}: the {marker.kind.upper()} at {marker.base_offset} of producer "
                f"{key[0]}, epoch {key[1]}"
            )
            txn = decided.get(key)
            if txn is None or _EXCLUSIVE_OUTCOMES[txn.state] != marker.kind:
                return f"{where} was never decided so"
            if tp not in txn.partitions and tp not in [part.topic_partition for part in txn.staged]:
                return f"{where} is in no partition of its transaction"
            if key in seen:
                return f"{where} is there twice"
            seen.add(key)
    return None


def missing_markers(table: _Table, truths: dict[TopicPartition, Truth]) -> str | None:
    """5: before any record of the id follows PREPARE_*, the marker, with the staged rows, is in every partition."""
    for number, (offset, key, txn) in enumerate(table):
        before = [t for _, other, t in table[:number] if other == key]
        prepare = before[-1] if before else None
        if prepare is None or prepare.state not in _EXCLUSIVE_OUTCOMES:
            continue
        for tp in {*prepare.partitions, *(part.topic_partition for part in prepare.staged)}:
            there = truths[tp].markers if tp in truths else []
            if not any(
                (m.producer_id, m.producer_epoch, m.kind)
                == (prepare.producer_id, prepare.producer_epoch, _EXCLUSIVE_OUTCOMES[prepare.state])
                for m in there
            ):
                after = "the tombstone" if txn is None else txn.state
                return (
                    f"5 atomic: {key!r}: {after} at {offset}, and {tp} has no marker of epoch {prepare.producer_epoch}"
                )
    return None


def unregistered_batch(table: _Table, truths: dict[TopicPartition, Truth]) -> str | None:
    """9: every eager transactional batch is in a partition that its transaction registered.

    Every other batch of a PID of the table is in a partition to which its instance was attached.
    """
    registered = {
        (txn.producer_id, txn.producer_epoch, tp)
        for _, _, txn in table
        if txn is not None and txn.state == "ONGOING"
        for tp in txn.partitions
    }
    attached = {
        (txn.producer_id, txn.producer_epoch, tp) for _, _, txn in table if txn is not None for tp in attached_to(txn)
    }
    for tp, truth in truths.items():
        for each in truth.stored:
            record = each.record
            writer = (record.producer_id, record.producer_epoch, tp)
            plain = record.kind == "data" and not record.transactional and record.base_sequence >= 0
            if plain and record.producer_id < FIRST_DRAWN_PRODUCER_ID and writer not in attached:
                return (
                    f"9 registered: {tp}: the batch at {record.base_offset} of producer {record.producer_id}, epoch "
                    f"{record.producer_epoch}, is of an instance that is not attached"
                )
            eager = record.kind == "data" and record.transactional
            if eager and (record.producer_id, record.producer_epoch, tp) not in registered:
                return (
                    f"9 registered: {tp}: the batch at {record.base_offset} of producer {record.producer_id}, epoch "
                    f"{record.producer_epoch}, was not registered"
                )
    return None


def wrong_references(tp: TopicPartition, files: dict[str, bytes]) -> str | None:
    """16: no record that counts, and no index, names a missing file; all segments below a boundary are sealed."""
    there = {path: data for path, data in files.items() if not path.startswith(GHOST)}
    if again := next((path for path in there if path.endswith(WRITTEN_AGAIN)), None):
        return f"16 references: {again.removesuffix(WRITTEN_AGAIN)} was written twice: a name of rows is for one writer"
    boundary, ends = 0, {0}
    named: dict[str, list[str]] = {}
    for path, data in there.items():
        parsed = names.parse_partition_object(path[len(tp.folder) :])
        match parsed:
            case NumberedName(kind="batch"):
                named[path] = [file.path for record, _ in decode_records(data, path) for file in record.files]
            case NumberedName(kind="boundary"):
                boundary = max(boundary, envelope.decode(data, Boundary, path)[0].offset)
            case SegmentObject(segment=segment, kind="index"):
                ends.add(segment.end_offset)
                named[path] = [file.path for file in envelope.decode(data, SegmentIndex, path)[0].files]
    for path, wanted in named.items():
        for each in wanted:
            if f"{tp.topic}/{each}" not in there:
                return f"16 references: {path} names {each}, which is gone"
    return None if boundary in ends else f"16 references: {tp}: a boundary at {boundary}, where no segment ends"


@lru_cache(maxsize=10_000)
def highest_clean(objects: frozenset[tuple[str, bytes]]) -> Clean | None:
    cleans = sorted((path, data) for path, data in objects if path.endswith(".clean") and not path.startswith(GHOST))
    return envelope.decode(cleans[-1][1], Clean, cleans[-1][0])[0] if cleans else None


def current_runs(tp: TopicPartition, files: Mapping[str, bytes]) -> list[SegmentIndex]:
    """Return the indexes of the runs that the highest `.clean` names."""
    clean = highest_clean(frozenset(files.items()))
    paths = [tp.folder + run.name.index for run in clean.runs] if clean is not None else []
    return [envelope.decode(files[path], SegmentIndex, path)[0] for path in paths]


def of_older(record: CommitRecord, note: Note) -> str | None:
    if (
        record.kind == "data"
        and (record.producer_id == note.producer_id)
        and record.producer_epoch < note.producer_epoch
    ):
        return f"a batch of epoch {record.producer_epoch}"
    for entry in record.entries:
        txn = getattr(entry, "value", None)
        if not isinstance(txn, TransactionMetadata) or txn.producer_id != note.producer_id:
            continue
        old_commit = txn.state == "PREPARE_COMMIT" and txn.last_epoch < note.producer_epoch
        if txn.producer_epoch < note.producer_epoch or old_commit:
            return f"{txn.state} of epoch {txn.producer_epoch}"
    return None
