"""Does each decision of a transaction have its markers, and each marker its decision?

The transaction-state table is read before the partitions. So on a store in use, a partition is never older than the
decisions that it is compared with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from txlog.clock import Clock
from txlog.core import envelope, names
from txlog.core.internal_partitions import internal_partition
from txlog.core.names import INTERNAL_TOPICS, TRANSACTION_STATE_TOPIC, TopicPartition
from txlog.core.records import (
    FIRST_DRAWN_PRODUCER_ID,
    ProducerStateEntry,
    StagedList,
    StagedPart,
    StoreConstants,
    TransactionEntry,
)
from txlog.core.state import PartitionState
from txlog.core.transactions import PREPARED
from txlog.maintenance.fsck.decisions import (
    Decisions,
    ExpectedMarker,
    ExpectedMarkers,
    SeenMarker,
    compare,
    is_decision,
    kind_of,
)
from txlog.maintenance.fsck.file_check import check_rows_file
from txlog.maintenance.fsck.findings import Findings, Reader, lost_record, taken_slot
from txlog.maintenance.fsck.partition_check import Checked, PartitionTask
from txlog.maintenance.fsck.topic_check import SKEW_MS, Topic
from txlog.text import duration_text

Look: TypeAlias = Callable[[TopicPartition, Callable[[], PartitionTask]], Checked]
"""Checks a partition."""


@dataclass(slots=True)
class TransactionCheck:
    """Check the transaction-state table, then partitions against it. The reader's findings take what is wrong."""

    reader: Reader
    clock: Clock
    constants: StoreConstants | None
    topics: Mapping[str, Topic]
    rows: bool
    """Whether data files are opened."""
    expected: dict[TopicPartition, ExpectedMarkers] = field(default_factory=dict)
    """The markers that the table requires of each partition."""
    prepared_files: dict[TopicPartition, set[str]] = field(default_factory=dict)
    """Files that decided transactions will append."""
    _table_ends: dict[int, int | None] = field(default_factory=dict)
    """Log end of each partition of the table. None if it is not known."""
    _table_starts: dict[int, int] = field(default_factory=dict)
    """For each partition of the table, the offset from which all its records were read. Absent if some could not be
    read."""

    @property
    def findings(self) -> Findings:
        return self.reader.findings

    def check_table(self, look: Look) -> None:
        """Check the table, and remember what it requires of the partitions."""
        topic = self.topics[TRANSACTION_STATE_TOPIC]
        for number in topic.folders:
            tp = TopicPartition(TRANSACTION_STATE_TOPIC, number)
            followed = Decisions(number)

            def task(tp: TopicPartition = tp) -> PartitionTask:
                nonlocal followed
                followed = Decisions(tp.partition)
                return PartitionTask(
                    topic_partition=tp, on_record=followed.take_record, on_snapshot=followed.take_snapshot
                )

            checked = look(tp, task)
            self._table_ends[number] = None if checked.state is None else checked.state.next_offset
            self._check_staged_lists(tp, followed)
            for target, expected in followed.expected():
                self.expected.setdefault(target, ExpectedMarkers()).take(expected)
            if checked.is_whole:
                self._table_starts[number] = checked.boundary
            if checked.state is not None:
                self._check_ids(tp, checked.state, followed)

    def _check_staged_lists(self, tp: TopicPartition, followed: Decisions) -> None:
        """Check every `.staged` object. The lists of decided transactions must exist and have the expected content."""
        listed = {name for name in self.reader.list(tp.folder) if names.parse_staged_list_name(name)}
        orphans = []
        for name in sorted(listed):
            path = tp.folder + name
            data = self.reader.get(path)
            if data is None:
                continue
            found = self.reader.decode(path, data, StagedList, "list of staged files")
            named = followed.staged_objects.get(name)
            if named is None:
                orphans.append(name)
            elif (len(data), envelope.digest(data)) != (named.bytes, named.digest):
                self.findings.damaged(
                    path,
                    f"{named.bytes} bytes with digest {named.digest[:12]}…",
                    f"{len(data)} bytes of another digest",
                )
            elif found is not None:
                followed.lists[name] = found.staged
        advice = "nothing: their writer died or was fenced before it decided; vacuum deletes them"
        self.findings.note_names(tp.folder, orphans, "lists that a PREPARE_COMMIT names", "no record names {}", advice)
        for prepare in followed.prepared.values():
            named = prepare.value.staged_object
            if named is not None and named.name not in listed:
                self.findings.missing(
                    tp.folder + named.name,
                    f"the staged files of transactional.id {prepare.value.transactional_id!r}, which "
                    f"is {prepare.value.state}",
                )

    def _check_ids(self, tp: TopicPartition, state: PartitionState, followed: Decisions) -> None:
        now_ms = self.clock.now_ms()
        for transactional_id, row in sorted(state.transactions.items()):
            value = row.value
            path = tp.folder + names.batch_name(row.offset)
            if self.constants is not None:
                belongs = internal_partition(transactional_id, self.constants.transaction_state_partitions)
                if belongs != tp.partition:
                    self.findings.damaged(
                        path, f"transactional.id {transactional_id!r} in partition {belongs}", f"in {tp.partition}"
                    )
            if value.state in PREPARED:
                self.findings.note(
                    path,
                    "transactions that are finished",
                    f"transactional.id {transactional_id!r} is {value.state}: decided, but some of its "
                    "markers may still be missing",
                    "nothing: the next writer finishes it, and so does `txlog transactions expire --execute`",
                )
                self._check_prepared(path, followed.parts_of(value))
            elif value.state == "ONGOING" and 0 <= value.started_at < now_ms - value.timeout_ms:
                over = duration_text(now_ms - value.started_at - value.timeout_ms)
                self.findings.note(
                    path,
                    f"transactions that end within their time-out of {duration_text(value.timeout_ms)}",
                    f"transactional.id {transactional_id!r} is ONGOING, {over} overdue",
                    "`txlog transactions expire --execute` aborts it",
                )

    def _check_prepared(self, path: str, parts: Iterable[StagedPart]) -> None:
        """Check that everything which a decided transaction will append exists. Otherwise no process can finish it."""
        for part in parts:
            tp = part.topic_partition
            self.prepared_files.setdefault(tp, set()).update(file.path for file in part.files)
            topic = self.topics.get(tp.topic)
            if topic is None or tp.topic in INTERNAL_TOPICS:
                continue
            fields = topic.schemas.get(part.schema_id)
            if fields is None:
                version = names.topic_metadata_path(tp.topic, part.schema_id)
                # The topic may have changed since the check has read its versions.
                if self.reader.get(version) is None:
                    self.findings.missing(version, f"the version of the topic that {path} refers to")
            else:
                for file in part.files:
                    check_rows_file(self.reader, tp, file, fields, path, rows=self.rows)

    def judge(self, checked: Checked, state: PartitionState) -> None:
        """Check a partition against the finished transactions, and the table against the partition's markers."""
        self._judge_markers(checked, state)
        if self.constants is None:
            return
        for pid, entry in state.producers.items():
            if 0 <= pid < FIRST_DRAWN_PRODUCER_ID:
                slot, partition = divmod(pid, self.constants.transaction_state_partitions)
                self._need_table_slot(partition, slot, f"the record that gave out producer id {pid}")
                self._need_table_slot(partition, entry.coordinator_epoch, f"the decision over producer id {pid}")

    def _judge_markers(self, checked: Checked, state: PartitionState) -> None:
        """Compare the markers of a partition with all decisions that name it, in both directions."""
        tp = checked.topic_partition
        expected = self.expected.get(tp, ExpectedMarkers())
        found = compare(expected, checked.markers)
        lost = [number for number in found.missing if not self._may_be_gone(expected[number], checked, state)]
        if lost:
            first = expected[lost[0]]
            before = state.producers.get(first.producer_id)
            slot = tp.folder + names.batch_name(state.next_offset)
            if state.last_timestamp < first.updated_at or (before is None and not state.next_offset):
                path, gone, advice = slot, "the records from here on are missing", lost_record(slot)
            else:
                gone = f"the log, which ends at offset {state.next_offset}, does not have it"
                path, advice = tp.folder, taken_slot(slot)
            self.findings.missing(path, self._marker_text(first), advice, gone, count=len(lost))
        for wanted, seen in found.other:
            marker = checked.markers[seen]
            if marker.is_commit != expected[wanted].is_commit:
                what = f"a marker of kind {kind_of(marker)}"
            else:
                what = f"a marker of the decision at offset {marker.coordinator_epoch}"
            # An index with a wrong value also differs from its records, if these are left.
            path = tp.folder + (names.batch_name(marker.slot) if marker.coordinator_epoch >= 0 else "")
            self.findings.damaged(path, self._marker_text(expected[wanted]), what, taken_slot(path))
        for seen in found.uncalled:
            self._need_decision(tp, checked.markers[seen])

    def _may_be_gone(self, marker: ExpectedMarker, checked: Checked, state: PartitionState) -> bool:
        """Return whether a merge or compaction may have dropped a marker of which nothing is left."""
        topic = self.topics.get(checked.topic_partition.topic)
        newest = None if topic is None else topic.versions.get(topic.last_version)
        if newest is not None and newest.deleted:
            return True
        if not checked.is_whole:
            # It may be among records that could not be read, which is a finding already. Only later records can decide
            # then.
            return self._may_be_before(marker, state.producers.get(marker.producer_id), state.last_timestamp)
        hidden = checked.hidden
        if hidden is None or hidden.last_timestamp + SKEW_MS < marker.updated_at:
            return False
        producers = {entry.producer_id: entry for entry in hidden.snapshot.producers}
        return self._may_be_before(marker, producers.get(marker.producer_id), hidden.snapshot.last_timestamp)

    def _may_be_before(self, marker: ExpectedMarker, entry: ProducerStateEntry | None, timestamp: int) -> bool:
        """Return whether a state with that last timestamp can be the result of a log that had the marker."""
        if entry is not None:
            return entry.producer_epoch >= marker.epoch
        # A record ends the state of an idle producer, and not before this time.
        return self.constants is None or (
            timestamp + SKEW_MS >= marker.updated_at + self.constants.producer_id_expiration_ms
        )

    def _marker_text(self, marker: ExpectedMarker) -> str:
        path = _decision_path(marker.table_partition, marker.prepared_at)
        table = TopicPartition(TRANSACTION_STATE_TOPIC, marker.table_partition)
        record = self.reader.record_at(table, marker.prepared_at)
        entries = () if record is None else record.entries
        ids = [entry.key for entry in entries if isinstance(entry, TransactionEntry)]
        whose = f" (transactional.id {ids[0]!r})" if ids else ""
        return (
            f"the {kind_of(marker).upper()} of producer {marker.producer_id}, epoch {marker.epoch}{whose}, which "
            f"{path} decided and which is COMPLETE"
        )

    def _need_decision(self, tp: TopicPartition, marker: SeenMarker) -> None:
        """Check a marker without a completed decision. The decision may be in progress, or its record is lost."""
        if self.constants is None or not 0 <= marker.producer_id < FIRST_DRAWN_PRODUCER_ID:
            return
        partition = marker.producer_id % self.constants.transaction_state_partitions
        start, end = self._table_starts.get(partition), self._table_ends.get(partition)
        if start is None or end is None or not start <= marker.coordinator_epoch < end:
            return  # `_need_table_slot` checks the slots after the log end
        path = _decision_path(partition, marker.coordinator_epoch)
        table = TopicPartition(TRANSACTION_STATE_TOPIC, partition)
        record = self.reader.record_at(table, marker.coordinator_epoch)
        if record is None or not is_decision(record, marker):
            self.findings.missing(
                path,
                f"the PREPARE_{kind_of(marker).upper()} of producer {marker.producer_id}, epoch {marker.epoch}, which "
                f"{tp.folder}{names.batch_name(marker.slot)} carries out",
                lost_record(path) if record is None else taken_slot(path),
                "it does not exist" if record is None else "another record is stored there",
            )

    def _need_table_slot(self, partition: int, slot: int, what: str) -> None:
        end = self._table_ends.get(partition, 0)
        if end is None or slot < end:
            return
        tp = TopicPartition(TRANSACTION_STATE_TOPIC, partition)
        # The table was read earlier, so it may have grown since.
        if self.reader.record_at(tp, slot) is None:
            path = tp.folder + names.batch_name(slot)
            self.findings.missing(path, what, lost_record(path))

    def check_unknown_topics(self) -> None:
        """Report finished transactions whose topic does not exist."""
        for tp, markers in self.expected.items():
            if tp.topic not in self.topics:
                path = _decision_path(markers[0].table_partition, markers[0].prepared_at)
                self.findings.missing(
                    f"{tp.topic}/",
                    f"the topic of a transaction that is COMPLETE: {path} names {tp}",
                    count=len(markers),
                )


def _decision_path(partition: int, offset: int) -> str:
    return TopicPartition(TRANSACTION_STATE_TOPIC, partition).folder + names.batch_name(offset)
