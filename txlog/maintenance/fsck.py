"""Is the store whole? Every object is read and compared with everything that must agree with it. Nothing is changed.

The check reads the transaction-state table first, then committed offsets, then the partitions. So on a store in use, a
partition is never older than what it is compared with. If a partition seems to lack an object and has changed during
its check, the check looks at it again. See PROTOCOL.md, "Integrity".
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

import msgspec

from txlog.client.reading import read_session
from txlog.client.runtime import Runtime
from txlog.client.session import Session
from txlog.clock import Clock, SystemClock
from txlog.core import envelope, names
from txlog.core.ages import MAX_CLOCK_ERROR_MS
from txlog.core.features import KNOWN_FEATURES
from txlog.core.names import CONSUMER_OFFSETS_TOPIC, INTERNAL_TOPICS, TRANSACTION_STATE_TOPIC, TopicPartition
from txlog.core.partitioning import internal_partition
from txlog.core.records import (
    FIRST_DRAWN_PRODUCER_ID,
    CleanupRun,
    CommitRecord,
    ProducerStateEntry,
    SchemaField,
    StagedList,
    StagedPart,
    StoreConstants,
    StoreDescriptor,
    TopicMetadata,
    TransactionEntry,
)
from txlog.core.schema import check_fields, contradictions
from txlog.core.state import PartitionState
from txlog.errors import NotAStoreError, SchemaMismatchError, TxlogError, UnknownTopicOrPartitionError
from txlog.maintenance.decisions import (
    PREPARED,
    Decisions,
    ExpectedMarker,
    ExpectedMarkers,
    SeenMarker,
    compare,
    is_decision,
)
from txlog.maintenance.file_check import check_rows_file
from txlog.maintenance.findings import LOST_RECORD, Finding, Findings, Reader
from txlog.maintenance.partition_check import Checked, PartitionTask, Schemas, check_partition
from txlog.maintenance.repair import RepairedObject
from txlog.maintenance.workers import Here, Progress, Task, Workers
from txlog.storage.object_store import ObjectStore
from txlog.text import count_text, duration_text

_ROUNDS = 5
"""How often a partition is checked that seems damaged and changes during each check."""
_SKEW_MS = 2 * MAX_CLOCK_ERROR_MS
"""The largest difference between the clocks of two writers (PROTOCOL.md, W2)."""
_OWN_FOLDERS = frozenset({names.PROBE_FOLDER, names.MAINTENANCE_FOLDER})


class FsckReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a check of the store read, and what it found."""

    store: str
    topics: tuple[str, ...]
    partitions: int
    objects: int
    """Objects that were read, data files included."""
    bytes: int
    rows_checked: bool
    """Whether data files were opened."""
    damaged: int
    missing: int
    notes: int
    findings: tuple[Finding, ...]
    """Damaged objects first, then missing ones, then notes; each kind sorted by path."""
    repairable: tuple[RepairedObject, ...] = ()
    """The objects among them that the log can recreate, and why others cannot be recreated, if that was asked for."""
    repaired: tuple[RepairedObject, ...] = ()
    """Objects that were recreated before this check."""

    @property
    def is_clean(self) -> bool:
        """Return whether no object is damaged or missing."""
        return not self.damaged and not self.missing


def check_store(
    store: ObjectStore,
    *,
    topics: Collection[str] = (),
    rows: bool = True,
    threads: int = 16,
    clock: Clock | None = None,
    progress: Progress | None = None,
    workers: Workers | None = None,
) -> FsckReport:
    """Verify everything. Reads only.

    Arguments:

    * `topics` limits the check to these topics and the transaction-state table that they are compared with.
    * `rows`: if it is False, data files are not opened and only their lengths are checked.
    * `threads` is the number of threads that fetch metadata objects of one partition.
    * `progress` is called with (what is checked now and objects so far, partitions done, partitions in all).
    * `workers` check the partitions of users' topics (None: this process). Comparisons between partitions are made here.

    Memory holds the state of one partition, the records of one segment, the transaction-state table, and 48 bytes for
    each marker that the table requires. Raises NotAStoreError if there is no part of a store,
    UnknownTopicOrPartitionError for a topic that does not exist, StorageError if a LIST of the store fails.
    """
    clock = clock or SystemClock()
    with contextlib.ExitStack() as stack:
        if workers is None:
            workers = Here(read_session(stack.enter_context(contextlib.closing(Runtime(store, clock=clock)))))
        pool = stack.enter_context(ThreadPoolExecutor(threads, "txlog-fsck")) if threads else None
        shown = _Shown(progress)
        reader = Reader(store, clock, Findings(), pool, shown.count)
        return _StoreCheck(reader, clock, rows, shown, workers, threads).run(topics)


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """What the check saw of one partition. Picklable."""

    checked: Checked
    findings: Findings
    objects: int
    bytes: int


def look_at(reader: Reader, task: Callable[[], PartitionTask]) -> Looked:
    """Check a partition, and check it again if it seems damaged and has changed, because that may be a race.

    It counts its objects itself.
    """
    for round_ in range(_ROUNDS):
        own = Findings()
        wanted = task()
        folder = wanted.topic_partition.folder
        before = reader.list(folder)
        mine = reader.with_findings(own)
        checked = check_partition(mine, wanted)
        if own.is_clean or round_ == _ROUNDS - 1 or reader.list(folder) == before:
            break
    return Looked(checked=checked, findings=own, objects=mine.objects, bytes=mine.bytes)


def _look(task: PartitionTask, threads: int, session: Session, progress: Progress | None) -> Looked:
    """Check the partition of a worker's task."""
    numbers = itertools.count(1)
    shown = None if progress is None else lambda: progress(task.topic_partition, next(numbers), 0)
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(threads, "txlog-fsck")) if threads else None
        return look_at(Reader(session.runtime.store, session.clock, Findings(), pool, shown), lambda: task)


@dataclass(slots=True, kw_only=True)
class _Topic:
    """A topic as its versions describe it."""

    name: str
    versions: dict[int, TopicMetadata] = field(default_factory=dict)
    folders: list[int] = field(default_factory=list)
    """Partitions that have a folder or that a finished transaction wrote to."""
    last_version: int = -1

    @property
    def is_whole(self) -> bool:
        return len(self.versions) == self.last_version + 1

    @property
    def schemas(self) -> Schemas:
        found: dict[int, tuple[SchemaField, ...]] = {}
        for number in sorted(self.versions):
            found.setdefault(self.versions[number].schema_id, self.versions[number].schema)
        return found


class _Shown:
    """Count the objects that were checked, and show them."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._objects = 0
        self._where: object = "the root"
        self._done = self._total = 0

    def turn_to(self, where: object, done: int, total: int) -> None:
        """Show the next partition."""
        self._where, self._done, self._total = where, done, total
        self.count(0)

    def count(self, objects: int = 1) -> None:
        """Count more objects."""
        self._objects += objects
        self.show_task(self._where, 0, 0)

    def show_task(self, where: object, objects: int, total: int) -> None:
        """Show a task that has checked this many objects."""
        if self._progress is not None:
            text = f"{where}, {count_text(self._objects + objects, 'object')}"
            self._progress(text, self._done, self._total)


class _StoreCheck:
    def __init__(self, reader: Reader, clock: Clock, rows: bool, shown: _Shown, workers: Workers, threads: int) -> None:
        self.reader = reader
        self.findings = reader.findings
        self.clock = clock
        self.rows = rows
        self.shown = shown
        self.workers = workers
        self.threads = threads
        self.constants: StoreConstants | None = None
        self.created_at = 0
        self.topics: dict[str, _Topic] = {}
        self.expected: dict[TopicPartition, ExpectedMarkers] = {}
        self.prepared_files: dict[TopicPartition, set[str]] = {}
        self.table_ends: dict[int, int | None] = {}
        """Log end of each partition of the table. None if it is not known."""
        self.table_starts: dict[int, int] = {}
        """For each partition of the table, the offset from which all its records were read. Absent if some could not be
        read."""
        self.committed: dict[TopicPartition, tuple[int, str]] = {}
        """The highest committed offset of each partition, and its group."""
        self.staged_named: dict[str, set[str]] = {}
        self.done = self.total = self.partitions = 0

    def run(self, wanted: Collection[str]) -> FsckReport:
        root = self.reader.list("")
        self._need_store(root)
        self._check_descriptor(root)
        self._check_root(root)
        folders = [name[:-1] for name in root if name.endswith("/") and names.is_topic_name(name[:-1])]
        users = [name for name in folders if not name.startswith("__")]
        for name in wanted:
            if name not in users and name not in INTERNAL_TOPICS:
                raise UnknownTopicOrPartitionError(
                    f"{self.reader.store.url}: there is no topic {name!r}; it has {', '.join(users) or 'none'}"
                )
        chosen = [name for name in users if not wanted or name in wanted]
        offsets = [CONSUMER_OFFSETS_TOPIC] if not wanted or CONSUMER_OFFSETS_TOPIC in wanted else []
        for name in [TRANSACTION_STATE_TOPIC, *offsets, *chosen]:
            self.topics[name] = self._read_topic(name)
        self.total = sum(len(topic.folders) for topic in self.topics.values())
        self._check_table()
        self._add_unwritten()
        for name in offsets:
            self._check_offsets(self.topics[name])
        self._check_topics([self.topics[name] for name in chosen])
        if not wanted:
            self._check_unknown_partitions()
            self._check_history()
        return self._report([*offsets, *chosen])

    # -- the root -----------------------------------------------------------------------------------------------------

    def _need_store(self, root: Collection[str]) -> None:
        """Raise NotAStoreError for a folder without a descriptor and topics. A damaged store has some of them."""
        others = [name for name in root if name not in _OWN_FOLDERS]
        if names.STORE_DESCRIPTOR in others or any(self._is_topic(name) for name in others):
            return
        if not others:
            raise NotAStoreError(f"{self.reader.store.url} holds no txlog store: it is empty or missing. Check --store")
        raise NotAStoreError(
            f"{self.reader.store.url} holds {_few(others)}, and neither {names.STORE_DESCRIPTOR} nor a topic: it is not a "
            "txlog store; name the root of a store"
        )

    def _is_topic(self, entry: str) -> bool:
        name = entry[:-1]
        if not entry.endswith("/") or not names.is_topic_name(name) or not _is_ours(name):
            return False
        if name in INTERNAL_TOPICS:
            return True
        return any(names.parse_topic_metadata_name(each) is not None for each in self.reader.list(entry))

    def _check_descriptor(self, root: Collection[str]) -> None:
        path = names.STORE_DESCRIPTOR
        data = self.reader.get(path)
        if data is None:
            if any(name not in _OWN_FOLDERS for name in root):
                self.findings.missing(path, "the descriptor of the store: nobody can open it without")
            return
        descriptor = self.reader.decode(path, data, StoreDescriptor, "store descriptor")
        if descriptor is None:
            return
        unknown = sorted(set(descriptor.features) - KNOWN_FEATURES)
        if unknown:
            self.findings.damaged(
                path, "features that this txlog knows", ", ".join(unknown), "check the store with a newer txlog"
            )
        self.constants = descriptor.constants
        self.created_at = descriptor.created_at

    def _check_root(self, root: Iterable[str]) -> None:
        strange = [
            name
            for name in root
            if name != names.STORE_DESCRIPTOR
            and name not in _OWN_FOLDERS
            and not (name.endswith("/") and names.is_topic_name(name[:-1]) and _is_ours(name[:-1]))
        ]
        if strange:
            self.findings.note("", "only names of txlog's", f"not txlog's: {_few(strange)}", "move them elsewhere")

    # -- topics -------------------------------------------------------------------------------------------------------

    def _read_topic(self, name: str) -> _Topic:
        topic = _Topic(name=name)
        listed = self.reader.list(f"{name}/")
        strange = []
        numbers = []
        for entry in listed:
            if (partition := names.parse_partition_folder(entry)) is not None:
                topic.folders.append(partition)
            elif (number := names.parse_topic_metadata_name(entry)) is not None and name not in INTERNAL_TOPICS:
                numbers.append(number)
            elif entry != "staged/" or name in INTERNAL_TOPICS:
                strange.append(entry)
        topic.folders.sort()
        if strange:
            self.findings.note(
                f"{name}/", "only names of txlog's", f"not txlog's: {_few(strange)}", "move them elsewhere"
            )
        if name in INTERNAL_TOPICS:
            self._check_internal_folders(topic)
            return topic
        for path, data in self.reader.get_many([names.topic_metadata_path(name, number) for number in numbers]):
            version = None if data is None else self.reader.decode(path, data, TopicMetadata, "version of a topic")
            if version is not None:
                self._check_version(topic, version, path)
        self._check_versions(topic, numbers)
        return topic

    def _check_internal_folders(self, topic: _Topic) -> None:
        if self.constants is None:
            return
        is_table = topic.name == TRANSACTION_STATE_TOPIC
        count = self.constants.transaction_state_partitions if is_table else self.constants.consumer_offsets_partitions
        for number in topic.folders:
            if number >= count:
                self.findings.damaged(
                    f"{topic.name}/{number}/", f"partitions 0 to {count - 1}, as txlog.json says", f"partition {number}"
                )

    def _check_version(self, topic: _Topic, version: TopicMetadata, path: str) -> None:
        if path != names.topic_metadata_path(version.topic, version.number):
            self.findings.damaged(
                path, "the version and the topic of its name", f"version {version.number} of {version.topic!r}"
            )
            return
        try:
            check_fields(version.schema)
        except SchemaMismatchError as error:
            self.findings.damaged(path, "a valid schema", str(error))
            return
        topic.versions[version.number] = version
        if version.created_at + _SKEW_MS < self.created_at:
            self.findings.damaged(
                names.STORE_DESCRIPTOR,
                f"a store that was made before {path}",
                f"one made {duration_text(self.created_at - version.created_at)} later: the descriptor of another store",
            )

    def _check_versions(self, topic: _Topic, numbers: Collection[int]) -> None:
        """Check that the versions have no gaps and that each one follows from the one before."""
        topic.last_version = max(numbers, default=-1)
        if not numbers and not topic.folders:
            self.findings.note(
                f"{topic.name}/", "only folders of topics", "no topic: it has no versions", "move it elsewhere"
            )
            return
        for number in range(max(numbers, default=0) + 1):
            if number not in numbers:
                self.findings.missing(
                    names.topic_metadata_path(topic.name, number), "a version of the topic: none is ever removed"
                )
        for number, version in sorted(topic.versions.items()):
            before = topic.versions.get(number - 1)
            path = names.topic_metadata_path(topic.name, number)
            if version.schema_id > number:
                self.findings.damaged(path, f"a schema of version {number} or an older one", f"{version.schema_id}")
            if before is None:
                continue
            for expected, found in contradictions(before, version):
                self.findings.damaged(path, expected, found)

    def _check_topics(self, topics: Sequence[_Topic]) -> None:
        named: dict[str, set[str]] = {topic.name: set() for topic in topics}
        before = {topic.name: self.reader.list(f"{topic.name}/staged/") for topic in topics}
        tasks: list[Task[TopicPartition, Looked]] = []
        for topic in topics:
            newest = topic.versions.get(topic.last_version)
            for number in topic.folders:
                if newest is not None and number >= newest.partitions:
                    self.findings.missing(
                        names.topic_metadata_path(topic.name, topic.last_version + 1),
                        f"a version of the topic with partition {number}, which was written to",
                    )
                tp = TopicPartition(topic.name, number)
                work = partial(_look, self._task(tp, topic), self.threads)
                tasks.append(Task(subject=tp, title=f"txlog fsck: {tp}", work=work))
        for _, looked in self.workers.map(tasks, self.shown.show_task):
            if isinstance(looked, TxlogError):
                raise looked
            self.shown.count(looked.objects)
            named[looked.checked.topic_partition.topic] |= looked.checked.staged_files
            self._judge(self._take(looked))
        for topic in topics:
            self._check_staged_folder(topic, before[topic.name], named[topic.name])

    def _check_partition(self, tp: TopicPartition, topic: _Topic) -> Checked:
        self._show(tp)
        return self._take(look_at(self.reader, lambda: self._task(tp, topic)))

    def _task(self, tp: TopicPartition, topic: _Topic) -> PartitionTask:
        return PartitionTask(
            topic_partition=tp,
            schemas=topic.schemas,
            last_version=topic.last_version,
            versions_are_whole=topic.is_whole,
            rows=self.rows,
            prepared_files=self.prepared_files.get(tp, ()),
        )

    def _take(self, looked: Looked) -> Checked:
        self.reader.objects += looked.objects
        self.reader.bytes += looked.bytes
        self.findings.take(looked.findings)
        self.done += 1
        self.partitions += 1
        self._show(looked.checked.topic_partition)
        return looked.checked

    def _check_staged_folder(self, topic: _Topic, folders: Iterable[str], named: Collection[str]) -> None:
        """Check Spark's files that no record names. The others were checked with their partition."""
        prepared = {path for tp, paths in self.prepared_files.items() if tp.topic == topic.name for path in paths}
        orphans = []
        strange = []
        for folder in folders:
            for inner in self.reader.list(f"{topic.name}/staged/{folder}") if folder.endswith("/") else ():
                for name in self.reader.list(f"{topic.name}/staged/{folder}{inner}") if inner.endswith("/") else ():
                    path = f"staged/{folder}{inner}{name}"
                    if names.parse_rows_path(path) is None:
                        strange.append(path)
                    elif path not in named and path not in prepared:
                        orphans.append(path)
        if orphans:
            self.findings.note(
                f"{topic.name}/staged/",
                "files that a record names",
                f"named by nothing: {_few(orphans)}",
                "nothing: their job died, lost, or has not committed yet; a vacuum removes them",
            )
        if strange:
            self.findings.note(
                f"{topic.name}/staged/",
                "only names of txlog's",
                f"not txlog's: {_few(strange)}",
                "nothing, if Spark's committer left them",
            )

    # -- transactions -------------------------------------------------------------------------------------------------

    def _check_table(self) -> None:
        topic = self.topics[TRANSACTION_STATE_TOPIC]
        for number in topic.folders:
            tp = TopicPartition(TRANSACTION_STATE_TOPIC, number)
            self._show(tp)
            followed = Decisions(number)

            def task(tp: TopicPartition = tp) -> PartitionTask:
                nonlocal followed
                followed = Decisions(tp.partition)
                return PartitionTask(
                    topic_partition=tp, on_record=followed.take_record, on_snapshot=followed.take_snapshot
                )

            checked = self._take(look_at(self.reader, task))
            self.table_ends[number] = None if checked.state is None else checked.state.next_offset
            self._check_staged_lists(tp, followed)
            for target, expected in followed.expected():
                self.expected.setdefault(target, ExpectedMarkers()).take(expected)
            if checked.is_whole:
                self.table_starts[number] = checked.boundary
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
        if orphans:
            self.findings.note(
                tp.folder,
                "lists that a PREPARE_COMMIT names",
                f"named by nothing: {_few(orphans)}",
                "nothing: their writer died or lost before it decided; a vacuum removes them",
            )
        for prepare in followed.prepared.values():
            named = prepare.value.staged_object
            if named is not None and named.name not in listed:
                self.findings.missing(
                    tp.folder + named.name,
                    f"the staged files of transactional.id {prepare.value.transactional_id!r}, which is {prepare.value.state}",
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
                    f"transactional.id {transactional_id!r} is {value.state}: decided, its markers may be missing yet",
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
                self.findings.missing(
                    names.topic_metadata_path(tp.topic, part.schema_id),
                    f"the version of the topic that {path} speaks of",
                )
            else:
                for file in part.files:
                    check_rows_file(self.reader, tp, file, fields, path, rows=self.rows)

    def _judge(self, checked: Checked) -> None:
        """Check the partition against the finished transactions, and the table against the partition's markers."""
        state = checked.state
        if state is None:
            return
        tp = checked.topic_partition
        self._judge_markers(checked, state)
        if self.constants is not None:
            for pid, entry in state.producers.items():
                if 0 <= pid < FIRST_DRAWN_PRODUCER_ID:
                    slot, partition = divmod(pid, self.constants.transaction_state_partitions)
                    self._need_table_slot(partition, slot, f"the record that gave out producer id {pid}")
                    self._need_table_slot(partition, entry.coordinator_epoch, f"the decision over producer id {pid}")
        if tp in self.committed and self.committed[tp][0] > state.next_offset:
            offset, group = self.committed[tp]
            self.findings.note(
                tp.folder,
                f"a log up to offset {offset}, where group {group!r} goes on",
                f"group {group!r} goes on at offset {offset} of {tp}, whose log ends at {state.next_offset}",
                f"if nobody set the group's offset by hand, records were lost: {LOST_RECORD}",
            )

    def _judge_markers(self, checked: Checked, state: PartitionState) -> None:
        """Compare the markers of a partition with all decisions that name it, in both directions."""
        tp = checked.topic_partition
        expected = self.expected.get(tp, ExpectedMarkers())
        found = compare(expected, checked.markers)
        lost = [number for number in found.missing if not self._may_be_gone(expected[number], checked, state)]
        if lost:
            first = expected[lost[0]]
            before = state.producers.get(first.producer_id)
            if state.last_timestamp < first.updated_at or (before is None and not state.next_offset):
                path, gone = tp.folder + names.batch_name(state.next_offset), "records from here on are gone"
            else:
                path, gone = tp.folder, f"no record of the log, which ends at offset {state.next_offset}, is it"
            self.findings.missing(path, self._marker_text(first), LOST_RECORD, gone, count=len(lost))
        for wanted, seen in found.other:
            marker = checked.markers[seen]
            if marker.kind != expected[wanted].kind:
                what = f"a marker of kind {marker.kind}"
            else:
                what = f"a marker of the decision at offset {marker.coordinator_epoch}"
            # An index with a wrong value also differs from its records, if these are left.
            path = tp.folder + (names.batch_name(marker.offset) if marker.coordinator_epoch >= 0 else "")
            self.findings.damaged(path, self._marker_text(expected[wanted]), what, LOST_RECORD)
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
        if hidden is None or hidden.last_timestamp + _SKEW_MS < marker.updated_at:
            return False
        producers = {entry.producer_id: entry for entry in hidden.snapshot.producers}
        return self._may_be_before(marker, producers.get(marker.producer_id), hidden.snapshot.last_timestamp)

    def _may_be_before(self, marker: ExpectedMarker, entry: ProducerStateEntry | None, timestamp: int) -> bool:
        """Return whether a state with that last timestamp can be the result of a log that had the marker."""
        if entry is not None:
            return entry.producer_epoch >= marker.epoch
        # A record ends the state of an idle producer, and not before this time.
        return self.constants is None or (
            timestamp + _SKEW_MS >= marker.updated_at + self.constants.producer_id_expiration_ms
        )

    def _marker_text(self, marker: ExpectedMarker) -> str:
        path = _decision_path(marker.table_partition, marker.prepared_at)
        record = self.reader.read(path, CommitRecord, "commit record")
        entries = () if record is None else record.entries
        ids = [entry.key for entry in entries if isinstance(entry, TransactionEntry)]
        whose = f" (transactional.id {ids[0]!r})" if ids else ""
        return (
            f"the {marker.kind.upper()} of producer {marker.producer_id}, epoch {marker.epoch}{whose}, which {path} "
            "decided and which is COMPLETE"
        )

    def _need_decision(self, tp: TopicPartition, marker: SeenMarker) -> None:
        """Check a marker without a completed decision. The decision may be in progress, or its record is lost."""
        if self.constants is None or not 0 <= marker.producer_id < FIRST_DRAWN_PRODUCER_ID:
            return
        partition = marker.producer_id % self.constants.transaction_state_partitions
        start, end = self.table_starts.get(partition), self.table_ends.get(partition)
        if start is None or end is None or not start <= marker.coordinator_epoch < end:
            return  # `_need_table_slot` checks the slots after the log end
        path = _decision_path(partition, marker.coordinator_epoch)
        record = self.reader.read(path, CommitRecord, "commit record")
        if record is None or not is_decision(record, marker):
            self.findings.missing(
                path,
                f"the PREPARE_{marker.kind.upper()} of producer {marker.producer_id}, epoch {marker.epoch}, which "
                f"{tp.folder}{names.batch_name(marker.offset)} carries out",
                LOST_RECORD,
                "it is not there" if record is None else "another record lies there",
            )

    def _need_table_slot(self, partition: int, slot: int, what: str) -> None:
        end = self.table_ends.get(partition, 0)
        if end is None or slot < end:
            return
        tp = TopicPartition(TRANSACTION_STATE_TOPIC, partition)
        # The table was read earlier, so it may have grown since.
        if self.reader.get(tp.folder + names.batch_name(slot)) is None:
            self.findings.missing(tp.folder + names.batch_name(slot), what, LOST_RECORD)

    # -- committed offsets, and partitions that others speak of --------------------------------------------------------

    def _check_offsets(self, topic: _Topic) -> None:
        for number in topic.folders:
            tp = TopicPartition(CONSUMER_OFFSETS_TOPIC, number)
            checked = self._check_partition(tp, topic)
            self._judge(checked)
            for row in checked.state.committed.values() if checked.state is not None else ():
                target = TopicPartition(row.entry.topic, row.entry.partition)
                if row.entry.value is not None and row.entry.value.offset > self.committed.get(target, (-1, ""))[0]:
                    self.committed[target] = (row.entry.value.offset, row.entry.group)

    def _add_unwritten(self) -> None:
        """Add partitions without a folder that finished transactions wrote to, so that their folders are checked too."""
        for tp in self.expected:
            topic = self.topics.get(tp.topic)
            if topic is not None and tp.partition not in topic.folders:
                topic.folders.append(tp.partition)
                self.total += 1

    def _check_unknown_partitions(self) -> None:
        for tp, markers in self.expected.items():
            if tp.topic not in self.topics:
                path = _decision_path(markers[0].table_partition, markers[0].prepared_at)
                self.findings.missing(
                    f"{tp.topic}/",
                    f"the topic of a transaction that is COMPLETE: {path} names {tp}",
                    count=len(markers),
                )

    def _check_history(self) -> None:
        """Check the history of maintenance. Nothing depends on it, so a damaged object may be deleted."""
        folder = names.MAINTENANCE_FOLDER
        listed = self.reader.list(folder)
        strange = [name for name in listed if names.parse_history_name(name) is None]
        if strange:
            self.findings.note(folder, "only names of txlog's", f"not txlog's: {_few(strange)}", "move them elsewhere")
        for path, data in self.reader.get_many([folder + name for name in listed if name not in strange]):
            run = None if data is None else self.reader.decode(path, data, CleanupRun, "run of a job")
            if run is not None and path != folder + names.history_name(max(run.started_at, 0), run.run_id):
                self.findings.damaged(
                    path,
                    "the run and the beginning of its name",
                    f"run {run.run_id} of {run.started_at}",
                    "delete it: it is history, and nothing depends on it",
                )

    def _show(self, tp: TopicPartition) -> None:
        self.shown.turn_to(tp, self.done, self.total)

    def _report(self, checked: Iterable[str]) -> FsckReport:
        order = ("damaged", "missing", "note")
        counts = self.findings.counts
        return FsckReport(
            store=self.reader.store.url,
            topics=tuple(checked),
            partitions=self.partitions,
            objects=self.reader.objects,
            bytes=self.reader.bytes,
            rows_checked=self.rows,
            damaged=counts["damaged"],
            missing=counts["missing"],
            notes=counts["note"],
            findings=tuple(sorted(self.findings, key=lambda each: (order.index(each.kind), each.path, each.expected))),
        )


def _decision_path(partition: int, offset: int) -> str:
    return TopicPartition(TRANSACTION_STATE_TOPIC, partition).folder + names.batch_name(offset)


def _is_ours(name: str) -> bool:
    return not name.startswith("__") or name in INTERNAL_TOPICS


def _few(found: Iterable[str]) -> str:
    listed = sorted(found)
    return ", ".join(listed[:3]) + (f" and {len(listed) - 3:,} more" if len(listed) > 3 else "")
