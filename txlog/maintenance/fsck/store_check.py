"""Which parts does a check of a whole store have, and in which order?

The check reads the transaction-state table first, then committed offsets, then the partitions. So on a store in use, a
partition is never older than what it is compared with. See PROTOCOL.md, "Integrity".
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import msgspec

from txlog.client.reading import read_session
from txlog.client.session.runtime import Runtime
from txlog.clock import Clock, SystemClock
from txlog.core import names
from txlog.core.features import COMBINED_RECORDS, KNOWN_FEATURES
from txlog.core.names import CONSUMER_OFFSETS_TOPIC, INTERNAL_TOPICS, TRANSACTION_STATE_TOPIC, TopicPartition
from txlog.core.records import CleanupRun, Erasure, StoreDescriptor
from txlog.errors import NotAStoreError, TxlogError, UnknownTopicOrPartitionError
from txlog.maintenance.fsck.findings import Finding, Findings, Reader, S, few, lost_record
from txlog.maintenance.fsck.partition_check import Checked, PartitionTask, look_at, look_elsewhere
from txlog.maintenance.fsck.publication_check import check_publications
from txlog.maintenance.fsck.repair import RepairedObject
from txlog.maintenance.fsck.topic_check import Topic, TopicCheck
from txlog.maintenance.fsck.transaction_check import TransactionCheck
from txlog.maintenance.workers import Here, Progress, Task, Workers
from txlog.storage.object_store import ObjectStore
from txlog.text import count_text

_OWN_FOLDERS = frozenset({names.PROBE_FOLDER, names.MAINTENANCE_FOLDER, names.ERASURES_FOLDER})


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
    * `workers` check the partitions of users' topics (None: this process). Comparisons between partitions are made
      here.

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


class _Shown:
    """Count the objects that were checked, and show them."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._objects = 0
        self._where: object = "the root"
        self.done = self.total = 0
        """Partitions that were checked, and all of them."""

    def turn_to(self, tp: TopicPartition) -> None:
        """Show the next partition."""
        self._where = tp
        self.count(0)

    def count(self, objects: int = 1) -> None:
        """Count more objects."""
        self._objects += objects
        self.show_task(self._where, 0, 0)

    def show_task(self, where: object, objects: int, total: int) -> None:
        """Show a task that has checked this many objects."""
        if self._progress is not None:
            text = f"{where}, {count_text(self._objects + objects, 'object')}"
            self._progress(text, self.done, self.total)


class _StoreCheck:
    def __init__(self, reader: Reader, clock: Clock, rows: bool, shown: _Shown, workers: Workers, threads: int) -> None:
        self.reader = reader
        self.findings = reader.findings
        self.clock = clock
        self.rows = rows
        self.shown = shown
        self.workers = workers
        self.threads = threads
        self.topics: dict[str, Topic] = {}
        self.committed: dict[TopicPartition, tuple[int, str]] = {}
        """The highest committed offset of each partition, and its group."""

    def run(self, wanted: Collection[str]) -> FsckReport:
        root = self.reader.list("")
        self._need_store(root)
        descriptor = self._read_descriptor(root)
        constants = None if descriptor is None else descriptor.constants
        self.one_phase = descriptor is not None and COMBINED_RECORDS in descriptor.features
        self.topic_check = TopicCheck(self.reader, descriptor)
        self.transactions = TransactionCheck(self.reader, self.clock, constants, self.topics, self.rows)
        self._check_root(root)
        folders = (_topic_of(entry) for entry in root)
        users = [name for name in folders if name is not None and name not in INTERNAL_TOPICS]
        for name in wanted:
            if name not in users and name not in INTERNAL_TOPICS:
                raise UnknownTopicOrPartitionError(
                    f"{self.reader.store.url}: there is no topic {name!r}; it has {', '.join(users) or 'none'}"
                )
        chosen = [name for name in users if not wanted or name in wanted]
        offsets = [CONSUMER_OFFSETS_TOPIC] if not wanted or CONSUMER_OFFSETS_TOPIC in wanted else []
        for name in [TRANSACTION_STATE_TOPIC, *offsets, *chosen]:
            self.topics[name] = self.topic_check.read(name)
        self.shown.total = sum(len(topic.folders) for topic in self.topics.values())
        self.transactions.check_table(self._look_here)
        self._add_unwritten()
        for name in offsets:
            self._check_offsets(self.topics[name])
        self._check_topics([self.topics[name] for name in chosen])
        if not wanted:
            self.transactions.check_unknown_topics()
            self._check_history()
            self._check_erasures()
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
            f"{self.reader.store.url} holds {few(others)}, and neither {names.STORE_DESCRIPTOR} nor a topic: it is "
            "not a txlog store; name the root of a store"
        )

    def _is_topic(self, entry: str) -> bool:
        name = _topic_of(entry)
        if name is None or name in INTERNAL_TOPICS:
            return name is not None
        return any(names.parse_topic_metadata_name(each) is not None for each in self.reader.list(entry))

    def _read_descriptor(self, root: Collection[str]) -> StoreDescriptor | None:
        path = names.STORE_DESCRIPTOR
        data = self.reader.get(path)
        if data is None:
            if any(name not in _OWN_FOLDERS for name in root):
                self.findings.missing(path, "the descriptor of the store, without which it cannot be opened")
            return None
        descriptor = self.reader.decode(path, data, StoreDescriptor, "store descriptor")
        unknown = [] if descriptor is None else sorted(set(descriptor.features) - KNOWN_FEATURES)
        if unknown:
            self.findings.damaged(
                path, "features that this txlog knows", ", ".join(unknown), "check the store with a newer txlog"
            )
        return descriptor

    def _check_root(self, root: Iterable[str]) -> None:
        own = {names.STORE_DESCRIPTOR, *_OWN_FOLDERS}
        self.findings.note_strange("", [entry for entry in root if entry not in own and _topic_of(entry) is None])

    def _check_history(self) -> None:
        """Check the history of maintenance. Nothing depends on it, so a damaged object may be deleted."""
        folder = names.MAINTENANCE_FOLDER
        for path, run in self._flat(folder, names.parse_history_name, CleanupRun, "run of a job"):
            if path != folder + names.history_name(max(run.started_at, 0), run.run_id):
                found = f"run {run.run_id} of {run.started_at}"
                hint = "delete it: nothing depends on the history"
                self.findings.damaged(path, "the run and the start time of its name", found, hint)

    def _check_erasures(self) -> None:
        """Check the records of erasures that have not ended."""
        for path, found in self._flat(names.ERASURES_FOLDER, names.parse_erasure_name, Erasure, "erasure"):
            if path != names.erasure_path(found.erasure_id):
                hint = "delete it, and call `txlog erase` again"
                self.findings.damaged(path, "the erasure of its name", f"erasure {found.erasure_id}", hint)

    def _flat(self, folder: str, parse: Callable[[str], object], kind: type[S], what: str) -> Iterator[tuple[str, S]]:
        """Yield the records of a folder without folders, by path. Note what is none of them, or damaged."""
        listed = self.reader.list(folder)
        strange = [name for name in listed if parse(name) is None]
        self.findings.note_strange(folder, strange)
        for path, data in self.reader.get_many([folder + name for name in listed if name not in strange]):
            found = None if data is None else self.reader.decode(path, data, kind, what)
            if found is not None:
                yield path, found

    # -- partitions ---------------------------------------------------------------------------------------------------

    def _add_unwritten(self) -> None:
        """Add partitions without a folder that finished transactions wrote to: these are checked, too."""
        for tp in self.transactions.expected:
            topic = self.topics.get(tp.topic)
            if topic is not None and tp.partition not in topic.folders:
                topic.folders.append(tp.partition)
                self.shown.total += 1

    def _check_offsets(self, topic: Topic) -> None:
        for number in topic.folders:
            tp = TopicPartition(CONSUMER_OFFSETS_TOPIC, number)
            checked = self._look_here(tp, partial(self._task, tp, topic))
            self._judge(checked)
            for row in checked.state.committed.values() if checked.state is not None else ():
                target = TopicPartition(row.entry.topic, row.entry.partition)
                if row.entry.value is not None and row.entry.value.offset > self.committed.get(target, (-1, ""))[0]:
                    self.committed[target] = (row.entry.value.offset, row.entry.group)

    def _check_topics(self, topics: Sequence[Topic]) -> None:
        named: dict[str, set[str]] = {topic.name: set() for topic in topics}
        before = {topic.name: self.reader.list(f"{topic.name}/staged/") for topic in topics}
        tasks: list[Task[TopicPartition, Checked]] = []
        for topic in topics:
            newest = topic.versions.get(topic.last_version)
            for number in topic.folders:
                later = names.topic_metadata_path(topic.name, topic.last_version + 1)
                # The topic may have got partitions since the check has read its versions.
                if newest is not None and number >= newest.partitions and self.reader.get(later) is None:
                    self.findings.missing(
                        later, f"a version of the topic with partition {number}, which was written to"
                    )
                tp = TopicPartition(topic.name, number)
                work = partial(look_elsewhere, self._task(tp, topic), self.threads)
                tasks.append(Task(subject=tp, title=f"txlog fsck: {tp}", work=work))
        for _, checked in self.workers.map(tasks, self.shown.show_task):
            if isinstance(checked, TxlogError):
                raise checked
            self.shown.count(checked.objects)
            named[checked.topic_partition.topic] |= checked.staged_files
            self._judge(self._take(checked))
        for topic in topics:
            prepared = [paths for tp, paths in self.transactions.prepared_files.items() if tp.topic == topic.name]
            self.topic_check.check_staged_folder(topic, before[topic.name], named[topic.name].union(*prepared))
            if topic.is_published:
                check_publications(self.reader, topic.name)

    def _look_here(self, tp: TopicPartition, task: Callable[[], PartitionTask]) -> Checked:
        """Check a partition in this process."""
        self.shown.turn_to(tp)
        return self._take(look_at(self.reader, task))

    def _task(self, tp: TopicPartition, topic: Topic) -> PartitionTask:
        return PartitionTask(
            topic_partition=tp,
            schemas=topic.schemas,
            last_version=topic.last_version,
            versions_are_whole=topic.is_whole,
            one_phase=self.one_phase,
            rows=self.rows,
            prepared_files=self.transactions.prepared_files.get(tp, ()),
        )

    def _take(self, checked: Checked) -> Checked:
        self.reader.objects += checked.objects
        self.reader.bytes += checked.bytes
        self.findings.take(checked.findings)
        self.shown.done += 1
        self.shown.turn_to(checked.topic_partition)
        return checked

    def _judge(self, checked: Checked) -> None:
        """Check a partition against the transactions and the committed offsets."""
        state = checked.state
        if state is None:
            return
        tp = checked.topic_partition
        self.transactions.judge(checked, state)
        if tp in self.committed and self.committed[tp][0] > state.next_offset:
            offset, group = self.committed[tp]
            slot = tp.folder + names.batch_name(state.next_offset)
            self.findings.note(
                tp.folder,
                f"a log up to offset {offset}, where group {group!r} continues",
                f"group {group!r} continues at offset {offset} of {tp}, whose log ends at {state.next_offset}",
                f"unless the group's offset was set by hand, records were lost: {lost_record(slot)}",
            )

    def _report(self, checked: Iterable[str]) -> FsckReport:
        order = ("damaged", "missing", "note")
        counts = self.findings.counts
        return FsckReport(
            store=self.reader.store.url,
            topics=tuple(checked),
            partitions=self.shown.done,
            objects=self.reader.objects,
            bytes=self.reader.bytes,
            rows_checked=self.rows,
            damaged=counts["damaged"],
            missing=counts["missing"],
            notes=counts["note"],
            findings=tuple(sorted(self.findings, key=lambda each: (order.index(each.kind), each.path, each.expected))),
        )


def _topic_of(entry: str) -> str | None:
    """Return the topic whose folder an entry of the root can be."""
    name = entry[:-1]
    can_be = names.is_topic_name(name) and (not name.startswith("__") or name in INTERNAL_TOPICS)
    return name if can_be and entry.endswith("/") else None
