"""How do programs look at a whole store again and again, and how many requests does that cost?

The exporter, `txlog top` and the page of `txlog inspect` look this way. Indexes of segments, append times of records
and runs of the journal cannot change, and are read once. A look at a store in which nothing happened costs these
requests. (A LIST of more than 1,000 names is several requests.)

* One GET reads the store's descriptor, and one LIST finds the names of topics.
* One GET for each topic looks for newer metadata. Deleted topics count, too.
* One GET for each partition looks for a new record. Partitions of the tables of transactions and of consumer offsets
  count if they hold anything.
* One LIST for each of these two tables finds these partitions.
* One LIST reads the names of the journal of maintenance, at most 2,000.
* One GET for each published topic looks for a newer publication.

Without `max_reads` a monitor leaves the last one out and reads no index, and without `max_runs` the journal.

The first look and changes cost more.

* A new record costs one GET. A partition with more than 64 new records is listed again.
* A partition is also listed again when `metadata.max.age.ms` is over. That costs one LIST, and one GET for each record
  of its tail, one for its snapshot and one for its list of cleaned runs. A store that was put back to an older state is
  noticed by then.
* A new run of maintenance costs one GET, for at most `max_runs` runs a look. A new publication costs one LIST, and a
  GET for each publication since the last one that lists all files. Its folder is also listed when `metadata.max.age.ms`
  is over.
* An index of a segment costs one GET, or two if the segment has aborted transactions. A look reads at most `max_reads`
  of them.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias, TypeVar

from txlog.client.admin.descriptions import GroupInfo
from txlog.client.session.runtime import Runtime
from txlog.client.session.session import Session
from txlog.core.ages import ClockReading
from txlog.core.cleaning import count_small
from txlog.core.effects import Get, Program, ReadClocks, gathered
from txlog.core.fates import LogBatch, walk_batches
from txlog.core.names import (
    CONSUMER_OFFSETS_TOPIC,
    TRANSACTION_STATE_TOPIC,
    SegmentName,
    TopicPartition,
    publication_path,
)
from txlog.core.records import (
    AbortedTxn,
    CleanupRun,
    Publication,
    TopicMetadata,
    TransactionRow,
)
from txlog.core.segments import aborted_txn_of
from txlog.errors import CorruptLogError, MissingObjectError, StoreAccessError, TxlogError, UnsupportedStoreError
from txlog.protocol import history, table, topics as topic_protocol
from txlog.protocol.context import Context, PartitionView, Views, with_views
from txlog.protocol.groups import GroupDescription, groups_of
from txlog.protocol.load import load, refresh
from txlog.protocol.publications import newest_number, read_chain
from txlog.protocol.read import ReadIndex, read_indexes
from txlog.protocol.requests import partitions_in_use

T = TypeVar("T")
K = TypeVar("K", TopicPartition, str, "tuple[TopicPartition, SegmentName]")

_AT_ONCE = 64
"""Programs of one call. What a call has read is kept, also if a later call fails."""
_OF_ONE_PART = (CorruptLogError, UnsupportedStoreError, StoreAccessError)
"""Errors of a part of the store, which must not hide the other parts."""
_INTERNAL = (TRANSACTION_STATE_TOPIC, CONSUMER_OFFSETS_TOPIC)

Place: TypeAlias = tuple[TopicPartition, int]
"""A partition and an offset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentSize:
    """What a sealed segment consists of. It never changes."""

    files: int
    small_files: int
    bytes: int
    rows_end: int
    """The end of the last batch with rows that were not aborted. -1 if there is none."""
    bases: array[int]
    """First offset of each batch."""
    times: array[int]
    """Append time of each batch."""

    @classmethod
    def of(cls, tp: TopicPartition, read: ReadIndex) -> SegmentSize:
        """Return the size of a segment from its index."""
        entries, files = read.index.entries, read.index.files
        return cls(
            files=len(files),
            small_files=count_small(files),
            bytes=sum(file.bytes for file in files),
            rows_end=rows_end(walk_batches(tp=tp, indexes=[read.index], aborted=read.aborted)),
            bases=array("q", (each.base_offset for each in entries)),
            times=array("q", (each.timestamp for each in entries)),
        )

    def time_at(self, offset: int) -> int | None:
        """Return when the record at `offset` was appended. None if maintenance has removed all records up to it."""
        at = bisect_right(self.bases, offset) - 1
        return self.times[at] if at >= 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """How far the tables of a topic are."""

    number: int
    formats: tuple[str, ...]
    ends: tuple[int, ...]
    listed_ms: int
    """When the publications were last listed, by the monotonic clock."""


@dataclass(slots=True, kw_only=True)
class StoreState:
    """What one look found."""

    at_ms: int
    topics: dict[str, TopicMetadata] = field(default_factory=dict)
    """Existing topics whose metadata could be read."""
    views: dict[TopicPartition, PartitionView] = field(default_factory=dict)
    """Partitions of these topics that could be read. Their tails have no rows."""
    sizes: dict[TopicPartition, dict[SegmentName, SegmentSize]] = field(default_factory=dict)
    """The segments whose index is known."""
    transactions: tuple[TransactionRow, ...] = ()
    groups: tuple[GroupDescription, ...] = ()
    published: dict[str, Published] = field(default_factory=dict)
    runs: tuple[CleanupRun, ...] = ()
    """Runs of maintenance that were read so far, the oldest first."""
    damaged: list[tuple[str, TxlogError]] = field(default_factory=list)
    """What could not be read: a topic's name, or empty text for an internal part, and why."""
    times: dict[Place, int] = field(default_factory=dict)
    """Append times of the records that groups and tables come to next, where they are known."""

    def walk(self, tp: TopicPartition) -> list[SegmentName]:
        """Return the sealed segments of a partition that readers still read."""
        view = self.views[tp]
        return [name for name in view.walk if name.end_offset > view.state.log_start_offset]

    def group_infos(self, topics: Collection[str]) -> list[GroupInfo]:
        """Return all groups, or with `topics` those that have an offset in one of them."""
        infos = [GroupInfo.of(group, self.views) for group in self.groups]
        return [each for each in infos if not topics or any(offset.topic in topics for offset in each.offsets)]


class StoreMonitor:
    """Reads one store again and again. Not thread-safe."""

    def __init__(
        self, runtime: Runtime, what: str, *, max_reads: int = 0, max_runs: int = 0, max_partitions: int | None = None
    ) -> None:
        """Set up a monitor; `what` names its owner in errors.

        A look reads at most `max_reads` indexes, and the newest `max_runs` runs of maintenance. It opens at most
        `max_partitions` partitions (None: all), and those that groups have offsets of.
        """
        self.runtime = runtime
        self._session = Session(runtime, runtime.settings.client_config(), f"{what} of {runtime.where}")
        self._max_reads = max_reads
        self._max_runs = max_runs
        self._max_partitions = max_partitions
        self._topics: dict[str, TopicMetadata] = {}
        self._sizes: dict[TopicPartition, dict[SegmentName, SegmentSize]] = {}
        self._published: dict[str, Published] = {}
        self._runs: dict[str, CleanupRun | None] = {}

    def look(self, topics: Collection[str] = ()) -> StoreState:
        """Look at the store, or of its topics only at those named, and at partitions that groups have offsets of.

        Raises TxlogError if the store does not answer, or is another one.
        """
        self.runtime.check_store(now=True)
        seen = StoreState(at_ms=self.runtime.clock.now_ms())
        self._look_at_topics(seen)
        internal = self._internal(seen)
        every = [
            TopicPartition(name, number) for name, topic in seen.topics.items() for number in range(topic.partitions)
        ]
        users = [tp for tp in every if not topics or tp.topic in topics][: self._max_partitions]
        views = self._look_at_partitions([*users, *internal], seen)
        seen.transactions = table.rows_of(view for tp, view in views.items() if tp.topic == TRANSACTION_STATE_TOPIC)
        homes = [view for tp, view in views.items() if tp.topic == CONSUMER_OFFSETS_TOPIC]
        seen.groups = groups_of(homes, seen.at_ms)
        of_groups = {tp for group in seen.groups for tp in (*group.offsets, *group.pending)} - views.keys()
        views = {**views, **self._look_at_partitions(sorted(of_groups & {*every} - {*users}), seen)}
        self._session.forget([tp for tp in self._session.views if tp not in views])
        seen.views = {tp: views[tp] for tp in every if tp in views}
        if self._max_reads:
            self._look_at_published(seen)
            self._measure(seen)
        if self._max_runs:
            self._look_at_journal(seen)
        return seen

    def _look_at_topics(self, seen: StoreState) -> None:
        listed = self._call("listing topics", topic_protocol.topic_names)

        def one(name: str) -> Program[TopicMetadata | None]:
            known = self._topics.get(name)
            return topic_protocol.find_topic(name) if known is None else topic_protocol.newest_version(known)

        found = self._each("looking up topics", listed, one)
        self._topics = {name: topic for name, topic in found.items() if isinstance(topic, TopicMetadata)}
        seen.topics = {name: topic for name, topic in self._topics.items() if not topic.deleted}
        seen.damaged += [(name, error) for name, error in found.items() if isinstance(error, TxlogError)]

    def _internal(self, seen: StoreState) -> list[TopicPartition]:
        """Return the partitions of internal topics that hold anything."""
        found = self._each("listing internal topics", _INTERNAL, partitions_in_use)
        seen.damaged += [(topic, error) for topic, error in found.items() if isinstance(error, TxlogError)]
        return [tp for tps in found.values() if not isinstance(tps, TxlogError) for tp in tps]

    def _look_at_partitions(self, tps: list[TopicPartition], seen: StoreState) -> Views:
        """Return views on the fresh tail, without rows. Errors of single partitions are added to `seen.damaged`."""
        limit_ms = self._session.metadata_max_age_ms
        views: dict[TopicPartition, PartitionView] = {}
        for some in _chunks(tps):

            def program(ctx: Context, held: Views) -> Program[tuple[Views, list[PartitionView | TxlogError]]]:
                def one(tp: TopicPartition) -> Program[PartitionView]:
                    view = held.get(tp)
                    if view is None:
                        return (yield from load(ctx, tp))
                    # Without a proof that the chain still holds the end of the view (W47), because this process writes
                    # nothing. The proof would double the requests of each look.
                    now: ClockReading = yield ReadClocks()
                    return (yield from refresh(ctx, replace(view, proven_at=now), limit_ms))

                found = yield from gathered(_caught(one(tp)) for tp in some)  # noqa: B023  called at once
                made = [each if isinstance(each, TxlogError) else _without_rows(each) for each in found]
                good = {each.topic_partition: each for each in made if isinstance(each, PartitionView)}
                return {**held, **good}, made

            for tp, found in zip(some, self._session.call("looking at partitions", program), strict=True):
                if isinstance(found, TxlogError):
                    seen.damaged.append((tp.topic, found))
                else:
                    views[tp] = found
        return views

    def _look_at_published(self, seen: StoreState) -> None:
        wanted = [name for name, topic in seen.topics.items() if name in self._published or self._is_published(topic)]
        now_ms = self.runtime.clock.monotonic_ms()

        def one(name: str) -> Program[Published | None]:
            known = self._published.get(name)
            if known is not None and (yield Get(publication_path(name, known.number + 1))) is None:
                if now_ms - known.listed_ms < self._session.metadata_max_age_ms:
                    return known
                # Vacuum may have deleted the next publication, and newer ones follow.
                if (yield from newest_number(name)) == known.number:
                    return replace(known, listed_ms=now_ms)
            chain = yield from read_chain(name)
            return None if chain.newest is None else _published(chain.newest.newest, now_ms)

        found = self._each("looking at published tables", wanted, one)
        self._published = {name: each for name, each in found.items() if isinstance(each, Published)}
        seen.published = dict(self._published)
        seen.damaged += [(name, error) for name, error in found.items() if isinstance(error, TxlogError)]

    def _is_published(self, topic: TopicMetadata) -> bool:
        try:
            return bool(self.runtime.settings.topic_config(topic).publish_formats)
        except TxlogError:
            return False  # a setting that no writer can use

    def _measure(self, seen: StoreState) -> None:
        """Read as many new indexes as one look may, first those that tell how long a group waits."""
        self._sizes = {
            tp: {name: size for name in seen.walk(tp) if (size := self._sizes.get(tp, {}).get(name)) is not None}
            for tp in seen.views
        }
        places = _places(seen)
        first = [(tp, name) for tp, offset in places if (name := _segment_of(seen, tp, offset)) is not None]
        rest = ((tp, name) for tp in seen.views for name in seen.walk(tp))
        wanted = dict.fromkeys(each for each in (*first, *rest) if each[1] not in self._sizes[each[0]])
        chosen = list(wanted)[: self._max_reads]

        def one(place: tuple[TopicPartition, SegmentName]) -> Program[SegmentSize | None]:
            tp, name = place
            try:
                read = yield from read_indexes(seen.views[tp], [name], {})
            except MissingObjectError:
                return None  # maintenance has just replaced it
            return SegmentSize.of(tp, read[name])

        for (tp, name), found in self._each("reading indexes", chosen, one).items():
            if isinstance(found, SegmentSize):
                self._sizes[tp][name] = found
            elif found is not None:
                seen.damaged.append((tp.topic, found))
        seen.sizes = self._sizes
        for tp, offset in places:
            at = self._append_time(seen, tp, offset)
            if at is not None:
                seen.times[tp, offset] = at

    def _append_time(self, seen: StoreState, tp: TopicPartition, offset: int) -> int | None:
        view = seen.views[tp]
        if offset >= view.sealed_end:
            records = (stored.record for stored in view.tail)
            return next((each.timestamp for each in records if each.base_offset <= offset < each.end_offset), None)
        name = _segment_of(seen, tp, offset)
        size = None if name is None else self._sizes[tp].get(name)
        return None if size is None else size.time_at(offset)

    def _look_at_journal(self, seen: StoreState) -> None:
        listed = self._call("listing the journal", history.list_runs)
        self._runs = {path: self._runs[path] for path in listed if path in self._runs}
        new = [path for path in listed if path not in self._runs]
        # Older runs of a long journal are never read.
        self._runs |= dict.fromkeys(new)
        found = self._each("reading the journal", new[-self._max_runs :], lambda path: history.read_runs([path]))
        for path, runs in found.items():
            if isinstance(runs, TxlogError):
                seen.damaged.append(("", runs))
            elif runs:
                self._runs[path] = runs[0]
        seen.runs = tuple(run for run in self._runs.values() if run is not None)

    def _call(self, what: str, program: Callable[[], Program[T]]) -> T:
        return self._session.call(what, lambda _, views: with_views(views, program()), settles=False)

    def _each(self, what: str, items: Sequence[K], program: Callable[[K], Program[T]]) -> dict[K, T | TxlogError]:
        """Return the result of each item's program, or why this part of the store cannot be read."""
        found: dict[K, T | TxlogError] = {}
        for some in _chunks(items):
            results = self._call(what, lambda: gathered(_caught(program(each)) for each in some))  # noqa: B023
            found |= dict(zip(some, results, strict=True))
        return found


def rows_end(batches: Iterable[LogBatch]) -> int:
    """Return the end of the last of these batches that has committed rows; -1 if there is none."""
    return max((each.end_offset for each in batches if each.fate == "committed" and each.entry.records), default=-1)


def aborted_in_tail(view: PartitionView) -> list[AbortedTxn]:
    """Return the aborted transactions whose marker is in the tail."""
    found = (aborted_txn_of(stored.record) for stored in view.tail)
    return [txn for txn in found if txn is not None]


def _places(seen: StoreState) -> set[Place]:
    """Return the offsets that groups and published tables come to next, where rows wait for them."""
    stand = {(tp, value.offset) for group in seen.groups for tp, value in group.offsets.items()}
    for name, published in seen.published.items():
        stand |= {(TopicPartition(name, number), end) for number, end in enumerate(published.ends)}
    found = set()
    for tp, offset in stand:
        if (view := seen.views.get(tp)) is not None and offset < view.state.last_stable_offset:
            found.add((tp, max(offset, view.state.log_start_offset)))
    return found


def _segment_of(seen: StoreState, tp: TopicPartition, offset: int) -> SegmentName | None:
    return next((name for name in seen.walk(tp) if name.base_offset <= offset < name.end_offset), None)


def _published(newest: Publication, listed_ms: int) -> Published:
    ends = tuple(each.end_offset for each in newest.partitions)
    return Published(number=newest.number, formats=tuple(newest.formats), ends=ends, listed_ms=listed_ms)


def _without_rows(view: PartitionView) -> PartitionView:
    """Return the view without the rows of its tail, which would fill the memory of a process that watches a store."""
    return replace(view, tail=tuple(replace(stored, data=b"") if stored.data else stored for stored in view.tail))


def _caught(program: Program[T]) -> Program[T | TxlogError]:
    try:
        return (yield from program)
    except _OF_ONE_PART as error:
        return error


def _chunks(items: Sequence[K]) -> Iterator[Sequence[K]]:
    for first in range(0, len(items), _AT_ONCE):
        yield items[first : first + _AT_ONCE]
