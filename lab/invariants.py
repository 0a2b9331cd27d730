"""Does the content of a store obey PROTOCOL.md, after any writer and any crash?

`find_violations` reads every metadata object of a store as bytes, folds every chain from its start and compares. It
compares the chain with itself, sealed segments and snapshots with the chain, the partitions with the table of
transactions. It shares the fold and the codecs with the library, and none of its decisions. A test must add what only a
client knows: its acknowledged writes, its earlier reads.

Sentences begin with the invariant of PROTOCOL.md that is broken. It is for tests: all slots of a partition are read.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass

import msgspec

from lab.store_contents import Contents, Partition
from lab.transaction_states import VALID_PREVIOUS_STATES
from txlog.clock import SystemClock, SystemIds
from txlog.core import envelope, names
from txlog.core.names import SegmentName, TopicPartition
from txlog.core.record_checks import StoredRecord
from txlog.core.records import (
    CommitRecord,
    SegmentIndex,
    StagedList,
    StagedPart,
    StoreConstants,
    StoreDescriptor,
    TopicMetadata,
    TransactionEntry,
    TransactionMetadata,
    TxnIndex,
)
from txlog.core.segments import build_index
from txlog.core.snapshot_state import to_snapshot
from txlog.core.state import PartitionState, replay
from txlog.core.transactions import IDLE, PREPARED
from txlog.errors import CorruptLogError, TxlogError
from txlog.protocol.context import Context
from txlog.protocol.load import load
from txlog.storage.driver import Driver
from txlog.storage.object_store import ObjectStore

THREADS = 16
"""GETs in flight: on an object store each takes milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Census:
    """The examined objects."""

    partitions: int
    records: int
    rows: int
    """Rows of user topics, including aborted ones."""
    segments: int
    decisions: int
    """Transactions with a decision."""


def check_store(store: ObjectStore, *, settled: bool = True) -> Census:
    """Raise AssertionError with all that `find_violations` finds."""
    census, violations = find_violations(store, settled=settled)
    if violations:
        raise AssertionError(f"{store.url}: {len(violations)} violations\n" + "\n".join(violations))
    return census


def find_violations(store: ObjectStore, *, settled: bool = True) -> tuple[Census, list[str]]:
    """Return (what was examined, a sentence for each broken rule). The store must be at rest.

    `settled` means that no client writes, and that one maintenance pass, or an init of every id, came after the last
    crash. Then nothing may be open (invariants 5, 7, 11). Without `settled`, missing parts of an unfinished transaction
    are allowed.
    """
    data = store.get(names.STORE_DESCRIPTOR)
    if data is None:
        left = [name for name in store.list("") if name != names.PROBE_FOLDER]
        return _census({}, {}), [f"store: no {names.STORE_DESCRIPTOR}, but {left}"] if left else []
    descriptor, _ = envelope.decode(data, StoreDescriptor, names.STORE_DESCRIPTOR)
    judge = _Judge(store, descriptor.constants, settled)
    with ThreadPoolExecutor(THREADS) as pool, closing(judge.driver):
        judge.look(pool)
        judge.check()
    return _census(judge.partitions, judge.decisions), judge.violations


@dataclass(frozen=True, slots=True, kw_only=True)
class _Decision:
    """A PREPARE_*: its place, its content and its partitions."""

    tp: TopicPartition
    offset: int
    value: TransactionMetadata
    parts: tuple[StagedPart, ...]
    completed: bool

    @property
    def partitions(self) -> set[TopicPartition]:
        return {*self.value.partitions, *(part.topic_partition for part in self.parts)}


class _Judge(Contents):
    def __init__(self, store: ObjectStore, constants: StoreConstants, settled: bool) -> None:
        super().__init__(store)
        self.driver = Driver(store, SystemClock(), SystemIds(), threads=THREADS)
        self.constants = constants
        self.settled = settled
        self.decisions: dict[tuple[int, int], _Decision] = {}
        """(producer id, epoch of the markers) -> the decision."""
        self.registered: dict[tuple[int, int], set[TopicPartition]] = defaultdict(set)
        """(producer id, epoch of the transaction) -> partitions that ONGOING records name."""
        self.transactional_ids: dict[int, str] = {}
        self.named: Counter[str] = Counter()
        """File of rows -> the number of batches that name it."""

    # -- checking -----------------------------------------------------------------------------------------------------

    def check(self) -> None:
        for seen in self.partitions.values():
            self._check_chain(seen)
        for seen in self.partitions.values():
            if seen.tp.topic == names.TRANSACTION_STATE_TOPIC:
                self._check_table(seen)
        for seen in self.partitions.values():
            self._check_segments(seen)
            self._check_snapshots(seen)
            self._check_against_table(seen)
            self._check_loaded(seen)
            if self.settled:
                self._check_settled(seen)
        for decision in self.decisions.values():
            self._check_outcome(decision)
        for topic, versions in self.topics.items():
            self._check_topic(topic, versions)
        for path, count in self.named.items():
            if count > 1:
                self.say("3", path, f"{count} batches name this file")

    def _check_chain(self, seen: Partition) -> None:
        """Check invariants 1, 3, 7, 8, 16: each record on the fold of those before it."""
        if seen.base is None:
            return
        state = seen.base
        sequences: set[tuple[int, int, int]] = set()
        for stored in seen.records:
            record = stored.record
            try:
                after = replay(state, [stored])
            except CorruptLogError as error:
                self.say("1", seen.tp, str(error))
                return
            where = f"{seen.tp} offset {record.base_offset}"
            if record.timestamp < state.last_timestamp:
                self.say("1", where, f"timestamp {record.timestamp} after {state.last_timestamp}")
            if after.last_stable_offset < state.last_stable_offset:
                self.say("7", where, f"the LSO falls from {state.last_stable_offset} to {after.last_stable_offset}")
            if record.base_sequence >= 0:
                key = (record.producer_id, record.producer_epoch, record.base_sequence)
                if key in sequences:
                    self.say("3", where, f"(producer, epoch, sequence) {key} a second time")
                sequences.add(key)
            self._check_producer(where, state, record)
            self._check_abort(where, state, after, record)
            self._check_files(where, seen.tp, record)
            if record.segment_base == record.base_offset and state.next_offset:
                seen.states[record.base_offset] = state
            state = after
        seen.state = state
        seen.states[state.next_offset] = state

    def _check_producer(self, where: str, state: PartitionState, record: CommitRecord) -> None:
        known = state.producers.get(record.producer_id)
        if record.producer_id < 0 or record.kind not in ("data", "commit", "abort"):
            return
        epoch = known.producer_epoch if known is not None else -1
        if record.kind != "data":
            if record.producer_epoch <= epoch:
                self.say(
                    "10", where, f"a marker of epoch {record.producer_epoch}, and epoch {epoch} was there before it"
                )
            return
        if record.producer_epoch < epoch:
            self.say("8", where, f"a batch of epoch {record.producer_epoch} after epoch {epoch}")
        if record.base_sequence < 0:
            return
        last = known.last_sequence if known is not None and epoch == record.producer_epoch else -1
        if record.base_sequence != last + 1:
            self.say("3", where, f"sequence {record.base_sequence} after {last}")
        if known is not None and known.txn_first_offset >= 0 and not record.transactional:
            self.say("9", where, "a batch outside of the transaction that its producer has open here")

    def _check_abort(self, where: str, state: PartitionState, after: PartitionState, record: CommitRecord) -> None:
        if record.kind != "abort":
            return
        known = state.producers.get(record.producer_id)
        first = known.txn_first_offset if known is not None else -1
        if (record.first_offset, record.last_stable_offset) != (first, after.last_stable_offset):
            self.say(
                "5",
                where,
                f"an ABORT that says first offset {record.first_offset}, LSO {record.last_stable_offset}; the chain "
                f"says {first}, {after.last_stable_offset}",
            )

    def _check_files(self, where: str, tp: TopicPartition, record: CommitRecord) -> None:
        for file in record.files:
            path = f"{tp.topic}/{file.path}"
            self.named[path] += 1
            parsed = names.parse_rows_path(file.path)
            epoch = record.producer_epoch - (record.kind == "commit")
            if parsed is None or (parsed.producer_id, parsed.producer_epoch) != (record.producer_id, epoch):
                self.say(
                    "16",
                    where,
                    f"{file.path} does not carry producer {record.producer_id}, epoch {epoch} (PROTOCOL W7)",
                )
            self._check_object(where, path, file.bytes, file.digest)

    def _check_object(self, where: str, path: str, size: int, digest: str | None) -> None:
        data = self.store.get(path)
        if data is None:
            self.say("16", where, f"{path} is gone")
        elif len(data) != size or (digest is not None and hashlib.sha256(data).hexdigest() != digest):
            self.say("16", where, f"{path} is not what its record says ({len(data)} bytes, expected {size})")

    # -- the table of transactions ------------------------------------------------------------------------------------

    def _check_table(self, seen: Partition) -> None:
        """Check invariant 4 and the rules of epochs (PROTOCOL, "The coordinator") over the whole history of every
        id."""
        last: dict[str, TransactionMetadata] = {}
        if seen.base is not None:
            last = {key: row.value for key, row in seen.base.transactions.items()}
        open_prepares: dict[str, tuple[int, TransactionMetadata]] = {}
        for stored in seen.records:
            for number, entry in enumerate(stored.record.entries):
                if not isinstance(entry, TransactionEntry):
                    self.say("4", seen.tp, f"an entry of another table at offset {stored.record.base_offset}")
                    continue
                offset = stored.record.base_offset + number
                where = f"{seen.tp} offset {offset} ({entry.key})"
                before = last.pop(entry.key, None)
                value = entry.value
                if entry.key in open_prepares:
                    # Every record that follows a PREPARE_* shows that its transaction is complete (W25).
                    self._decided(seen, *open_prepares.pop(entry.key), completed=True)
                if value is None:
                    if before is not None and before.state == "ONGOING":
                        self.say("4", where, f"a tombstone over {before.state}")
                    continue
                last[entry.key] = value
                self.transactional_ids[value.producer_id] = entry.key
                self._check_transition(where, seen, offset, before, value)
                if value.state == "ONGOING":
                    self.registered[value.producer_id, value.producer_epoch].update(value.partitions)
                elif value.state in PREPARED:
                    open_prepares[entry.key] = (offset, value)
        for offset, value in open_prepares.values():
            self._decided(seen, offset, value, completed=False)
        for key, value in last.items():
            if self.settled and value.state not in ("EMPTY", "COMPLETE_COMMIT", "COMPLETE_ABORT"):
                self.say("11", f"{seen.tp} ({key})", f"its transaction is still {value.state}")

    def _check_transition(
        self, where: str, seen: Partition, offset: int, before: TransactionMetadata | None, value: TransactionMetadata
    ) -> None:
        if before is None:
            expected = offset * self.constants.transaction_state_partitions + seen.tp.partition
            if value.state != "EMPTY" or value.producer_epoch != 0 or value.producer_id != expected:
                self.say(
                    "4",
                    where,
                    f"a new id begins as {value.state}, producer {value.producer_id} (expected {expected}), "
                    f"epoch {value.producer_epoch}",
                )
            return
        attaches = value.state in IDLE and value.attached != before.attached
        goes_on = attaches and (value.state, value.producer_epoch) == (before.state, before.producer_epoch)
        if before.state not in VALID_PREVIOUS_STATES[value.state] and not goes_on:
            self.say("4", where, f"{value.state} after {before.state}")
        if value.producer_id != before.producer_id:
            self.say("4", where, f"producer {value.producer_id} after {before.producer_id}")
        rises = value.state == "EMPTY" or value.state in PREPARED
        if value.producer_epoch != before.producer_epoch + rises:
            self.say("8", where, f"{value.state} of epoch {value.producer_epoch} after epoch {before.producer_epoch}")
        if value.state in PREPARED and value.last_epoch != before.producer_epoch:
            self.say(
                "4", where, f"{value.state} ends epoch {value.last_epoch}, the open one is {before.producer_epoch}"
            )
        if before.state == "ONGOING" and value.state != "EMPTY":
            lost = set(before.partitions) - set(value.partitions)
            if lost:
                self.say("9", where, f"{value.state} forgets the registered {sorted(map(str, lost))}")
        if value.txn_version < before.txn_version and value.txn_scope == before.txn_scope:
            self.say("4", where, f"txn.version {value.txn_version} after {before.txn_version}")

    def _decided(self, seen: Partition, offset: int, value: TransactionMetadata, *, completed: bool) -> None:
        parts = value.staged
        if value.staged_object is not None:
            path = seen.tp.folder + value.staged_object.name
            staged, _ = envelope.decode(self.store.get(path) or b"", StagedList, path)
            parts = staged.staged
        key = (value.producer_id, value.producer_epoch)
        if key in self.decisions:
            self.say("4", f"{seen.tp} offset {offset}", f"a second decision of (producer, epoch) {key}")
        self.decisions[key] = _Decision(tp=seen.tp, offset=offset, value=value, parts=parts, completed=completed)

    def _check_outcome(self, decision: _Decision) -> None:
        """Check invariant 5: when complete, every partition has the marker, and a COMMIT has the rows of the
        decision."""
        value = decision.value
        if not decision.completed and not self.settled:
            return
        parts = {part.topic_partition: part for part in decision.parts}
        for tp in decision.partitions:
            seen = self.partitions.get(tp)
            if seen is not None and seen.boundary:
                continue  # maintenance may have removed the marker
            markers = seen.markers.get((value.producer_id, value.producer_epoch), []) if seen is not None else []
            where = f"{tp}, transaction of {value.transactional_id} decided at {decision.tp} offset {decision.offset}"
            if len(markers) != 1:
                self.say("5", where, f"{len(markers)} markers, expected one")
                continue
            part = parts.get(tp)
            marker = markers[0]
            if part is None and marker.records:
                self.say("5", where, f"its marker has {marker.records} rows, and none were staged")
            elif part is not None and (marker.files, marker.entries) != (part.files, part.entries):
                deleted = seen is not None and seen.state is not None and seen.state.deleted_version > part.schema_id
                if not (deleted and not marker.records):
                    self.say("5", where, "its marker does not carry the rows that were staged")

    # -- partitions against the rest ----------------------------------------------------------------------------------

    def _check_against_table(self, seen: Partition) -> None:
        """Check invariants 9 and 10: every transactional record belongs to a registration or a decision."""
        for record in (stored.record for stored in seen.records):
            where = f"{seen.tp} offset {record.base_offset}"
            if record.kind == "data" and record.transactional:
                known = self.registered.get((record.producer_id, record.producer_epoch), set())
                if seen.tp not in known and self._knows_all_of(record.producer_id):
                    self.say(
                        "9", where, f"producer {record.producer_id}, epoch {record.producer_epoch} never registered it"
                    )
            if record.kind not in ("commit", "abort"):
                continue
            decision = self.decisions.get((record.producer_id, record.producer_epoch))
            if decision is None:
                if self._knows_all_of(record.producer_id):
                    self.say("10", where, f"a marker of a transaction that was never decided: {record.producer_id}")
            elif (
                record.kind != decision.value.last_outcome
                or record.coordinator_epoch != decision.offset
                or seen.tp not in decision.partitions
            ):
                self.say(
                    "10",
                    where,
                    f"a {record.kind} marker; decided was {decision.value.last_outcome} at {decision.tp} offset "
                    f"{decision.offset} for {sorted(map(str, decision.partitions))}",
                )

    def _knows_all_of(self, producer_id: int) -> bool:
        """Return whether the table's partition that gave out this id still has its whole history."""
        number = producer_id % self.constants.transaction_state_partitions
        table = self.partitions.get(TopicPartition(names.TRANSACTION_STATE_TOPIC, number))
        return table is None or not table.boundary

    def _check_segments(self, seen: Partition) -> None:
        """Check invariants 1, 16: sealed segments follow one another and agree with the chain.

        Vacuum deletes those below the boundary in an internal partition, below the log start in a user's. It deletes
        each after its grace, so there may be gaps between those that are left.
        """
        start = seen.boundary
        if seen.tp.topic not in names.INTERNAL_TOPICS:
            start = seen.state.log_start_offset if seen.state is not None else 0
        expected = 0
        for name in seen.segments:
            where = seen.tp.folder + name.index
            if name.base_offset != expected and name.base_offset > start and not seen.has_runs:
                self.say("1", where, f"the segment before it ends at {expected}")
            expected = name.end_offset
            records = seen.by_segment.get(name.base_offset, [])
            if not records or name.base_offset < seen.boundary:
                continue
            try:
                self._check_segment(seen, name, where, records)
            except CorruptLogError as error:
                self.say("16", where, str(error))

    def _check_segment(self, seen: Partition, name: SegmentName, where: str, records: Sequence[StoredRecord]) -> None:
        index, _ = envelope.decode(self.store.get(where) or b"", SegmentIndex, where)
        inline = next((file for file in index.files if file.offset_column), None)
        if inline is not None:
            self._check_object(where, f"{seen.tp.topic}/{inline.path}", inline.bytes, inline.digest)
        built, aborted = build_index(seen.tp, [stored.record for stored in records], records[-1].digest, inline)
        after = seen.states.get(name.end_offset)
        if after is None:
            self.say("1", where, "no segment of the chain ends there")
            return
        built = msgspec.structs.replace(built, last_stable_offset=after.last_stable_offset)
        if envelope.encode(built) != envelope.encode(index):
            self.say("16", where, "it is not the index of its records")
        path = seen.tp.folder + name.txnindex
        data = self.store.get(path)
        if (data is None) != (aborted is None):
            self.say(
                "6", path, f"{'missing' if data is None else 'there'}, with {built.aborted_txns} aborted transactions"
            )
        elif data is not None and aborted is not None and envelope.decode(data, TxnIndex, path)[0] != aborted:
            self.say("6", path, "it is not the transaction index of its records")
        if self.store.get(seen.tp.folder + names.snapshot_name(name.end_offset)) is None:
            self.say("1", where, "sealed without a snapshot")

    def _check_snapshots(self, seen: Partition) -> None:
        for offset, state in seen.states.items():
            path = seen.tp.folder + names.snapshot_name(offset)
            data = self.store.get(path)
            if data is not None and data != envelope.encode(to_snapshot(state)):
                self.say("1", path, "it is not the fold of the chain")

    def _check_loaded(self, seen: Partition) -> None:
        """Check that what the library opens, through snapshots and indexes, is the fold of the whole chain."""
        if seen.state is None:
            return
        try:
            view = self.driver.run(load(Context(constants=self.constants), seen.tp))
        except TxlogError as error:
            self.say("1", seen.tp, f"it cannot be opened: {error}")
            return
        if to_snapshot(view.state) != to_snapshot(seen.state):
            self.say("1", seen.tp, "what a reader opens is not the fold of the chain")
        opened = {pid: entry for pid, entry in view.state.producers.items() if entry.txn_first_offset >= 0}
        if view.state.open_producers != opened:
            self.say(
                "7",
                seen.tp,
                f"{sorted(opened)} have open transactions, and the state says {sorted(view.state.open_producers)}",
            )

    def _check_settled(self, seen: Partition) -> None:
        state = seen.state
        if state is None:
            return
        if state.open_transactions:
            who = [self.transactional_ids.get(e.producer_id, e.producer_id) for e in state.open_transactions]
            self.say("7", seen.tp, f"transactions of {who} are open")
        if state.last_stable_offset != state.next_offset:
            self.say("7", seen.tp, f"LSO {state.last_stable_offset}, log end {state.next_offset}")
        if state.pending:
            self.say("12", seen.tp, f"offsets of producers {sorted(state.pending)} are pending")

    def _check_topic(self, topic: str, versions: Sequence[TopicMetadata]) -> None:
        gone: set[int] = set()
        for number, metadata in enumerate(versions):
            if (metadata.topic, metadata.number) != (topic, number):
                self.say("1", topic, f"version {number} says {metadata.topic} {metadata.number}")
            before = versions[number - 1] if number else None
            if before is not None and metadata.partitions < before.partitions:
                self.say("1", topic, f"version {number} has {metadata.partitions} partitions after {before.partitions}")
            ids = {column.id for column in metadata.schema}
            for again in sorted(ids & gone):
                self.say("1", topic, f"version {number} has field id {again}, whose column was dropped (PROTOCOL W39)")
            gone |= {column.id for column in before.schema} - ids if before is not None else set()
        if versions and versions[-1].deleted and self.settled:
            for seen in self._partitions_of(topic):
                start = seen.state.log_start_offset if seen.state is not None else 0
                rows = sum(s.record.records for s in seen.records if s.record.end_offset > start)
                if rows:
                    self.say("5", seen.tp, f"{topic} is deleted, and {rows} rows from {start} on are not")

    def _partitions_of(self, topic: str) -> Iterator[Partition]:
        return (seen for tp, seen in self.partitions.items() if tp.topic == topic)


def _census(partitions: dict[TopicPartition, Partition], decisions: dict[tuple[int, int], _Decision]) -> Census:
    return Census(
        partitions=len(partitions),
        records=sum(len(seen.records) for seen in partitions.values()),
        rows=sum(
            stored.record.records
            for tp, seen in partitions.items()
            if tp.topic not in names.INTERNAL_TOPICS
            for stored in seen.records
        ),
        segments=sum(len(seen.segments) for seen in partitions.values()),
        decisions=len(decisions),
    )
