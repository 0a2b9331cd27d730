"""Where does a consumer stand in each partition, what comes next, and when does it look for new rows and topics?

A position is the offset of the next row to return. It moves past markers and aborted rows, which are never returned
(PROTOCOL.md, R10, R11). The consumer looks for new rows by name: one GET for each partition, and a LIST only every
`metadata.max.age.ms`. Rows often follow rows, so a consumer that had rows a moment ago looks often, and an idle one
seldom.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa

from txlog.client.reading import plan_reads, read_task, tasks
from txlog.client.rows import last_offset, schema_of
from txlog.client.session.runtime import Runtime
from txlog.client.session.session import Session
from txlog.clock import Clock, SystemClock
from txlog.config import IsolationLevel
from txlog.core.names import TopicPartition, check_topic_name
from txlog.core.records import TopicMetadata
from txlog.core.schema import OFFSET_COLUMN, PARTITION_COLUMN, TIMESTAMP_COLUMN, TOPIC_COLUMN
from txlog.errors import InvalidRequestError, InvalidTopicError, SchemaMismatchError, UnknownTopicOrPartitionError
from txlog.protocol.context import PartitionView
from txlog.protocol.read import ReadIndexes, ReadPlan, end_offset
from txlog.storage.arrow_schema import field_id
from txlog.storage.object_store import Watch, watch

MAX_SEGMENTS_AHEAD = 64
"""One plan reads the indexes of at most this many segments, in parallel, so memory does not grow with the log."""

STALE_MS = 1000
"""A reader that is behind looks at the end of the log this often, to learn that rows before it were erased (R23)."""
CREATED_AGAIN_MS = 1000
"""How often a deleted topic is looked for. A look costs three requests."""

Topics: TypeAlias = str | Iterable[str] | re.Pattern[str]
"""Topics that a program names, or a regular expression for their whole names."""

COLUMNS = (OFFSET_COLUMN, TIMESTAMP_COLUMN, TOPIC_COLUMN, PARTITION_COLUMN)
"""The columns that a consumer adds to the topic's columns."""

_FIRST_PAUSE_MS = 1
LOOKS_A_PAUSE = 16
"""After this many looks the pauses double. So a row that comes t ms after another one waits for t / 16 ms at most,
about: a consumer sees it late by a small part of the time that it has waited."""
_MAX_DOUBLINGS = 31
_LEAST_PAUSE_MS = 5
"""A new object ends no pause earlier, nor before the time that a look takes: beside a busy writer each one would cost
a look."""


class Fetcher:
    """The positions of the assigned partitions, and the reads in progress."""

    def __init__(self, session: Session, isolation: IsolationLevel, max_rows: int, max_wait_ms: int) -> None:
        self._session = session
        self._isolation = isolation
        self._max_rows = max_rows
        self._partitions: dict[TopicPartition, _Fetch] = {}
        self._paused: frozenset[TopicPartition] = frozenset()
        self._skipped: frozenset[str] = frozenset()
        self._turn = 0
        self.pace = Pace(session.clock, max_wait_ms)
        self._watch: Watch | None = None
        self._asked_for_watch = False
        self.taken: Taken | None = None
        """The rows that a poll took last, until it has returned them. The poll sets None in its very last line."""

    def mend(self) -> None:
        """Take back the rows of a poll that an interrupt or an error has ended: the next poll reads them again."""
        if self.taken is not None:
            # The generator of an interrupted read has ended, and looks like one at the end of its plan.
            self.taken.fetch.batches = None
            self.taken.fetch.position = self.taken.position
            self.taken = None

    @property
    def assigned(self) -> tuple[TopicPartition, ...]:
        """Return the partitions that are read, in order."""
        return tuple(self._partitions)

    @property
    def positions(self) -> dict[TopicPartition, int]:
        """Return the positions that are known. Rows that a poll has not returned yet lie at or above them."""
        known = {tp: fetch.position for tp, fetch in self._partitions.items() if fetch.position is not None}
        taken = self.taken
        if taken is not None and taken.position is not None:
            # The caller is inside that poll: a listener, or the handler of a signal.
            known |= {tp: taken.position for tp in known if self._partitions[tp] is taken.fetch}
        return known

    @property
    def lost(self) -> list[TopicPartition]:
        """Return partitions whose position is not known yet."""
        return [tp for tp, fetch in self._partitions.items() if fetch.position is None]

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly `partitions` from now on. Partitions that were assigned before keep their positions."""
        self._set({tp: self._partitions.get(tp) or _Fetch() for tp in partitions})

    def start(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly `partitions` from now on, from the group's offsets or where `auto.offset.reset` says."""
        self._set({tp: _Fetch() for tp in partitions})

    def _set(self, fetches: dict[TopicPartition, _Fetch]) -> None:
        self._session.forget([tp for tp in self._partitions if tp not in fetches])
        fetches = {tp: fetches[tp] for tp in sorted(fetches)}
        # One line, here and below: an interrupt comes before all of the change or after all of it.
        self._partitions, self._paused, self._turn = fetches, self._paused & fetches.keys(), 0
        self.pace.reset()

    def seek(self, positions: Mapping[TopicPartition, int | None], *, looked: bool = False) -> None:
        """Read on from these positions. None: from the group's offset, or from `auto.offset.reset`.

        Unless the caller has `looked` at the ends, the read begins with a look: what is known of the log may be old
        (R23).
        """
        looked_ms = None if looked else self._session.clock.monotonic_ms() - STALE_MS
        fetches = {tp: _Fetch(at, looked_ms=looked_ms) for tp, at in positions.items()}
        self._partitions = {**self._partitions, **fetches}
        self.pace.reset()

    def pause(self, partitions: Iterable[TopicPartition], paused: bool) -> None:
        """Set whether these partitions are paused."""
        self._paused = self._paused.union(partitions) if paused else self._paused.difference(partitions)
        self.pace.reset()

    def skip(self, topics: Iterable[str]) -> None:
        """Set the topics of which nothing is read, and drop reads of them that are in progress."""
        self._skipped = frozenset(topics)
        for tp, fetch in self._partitions.items():
            if tp.topic in self._skipped:
                fetch.batches = None

    @property
    def paused(self) -> tuple[TopicPartition, ...]:
        """Return the paused partitions."""
        return tuple(tp for tp in self._partitions if tp in self._paused)

    def next_batch(self) -> pa.RecordBatch | None:
        """Take rows of reads that are planned already. The partitions take turns. `mend` gives the rows back."""
        self.mend()
        fetches = list(self._partitions.items())
        for step in range(len(fetches)):
            number = (self._turn + step) % len(fetches)
            tp, fetch = fetches[number]
            if tp in self._paused or fetch.batches is None:
                continue
            self.taken = Taken(fetch, fetch.position)
            batch = fetch.next()
            if batch is not None:
                self._turn = number + 1
                self.pace.reset()
                return batch
            self.taken = None
        return None

    def plan(self) -> bool:
        """Plan a read of every partition that is known to have more rows. Return whether there was one.

        Raises OffsetOutOfRangeError for a position outside of the log, UnknownTopicOrPartitionError for a deleted
        topic.
        """
        self._look_behind()
        ranges: dict[TopicPartition, tuple[int, int | None]] = {}
        for tp, fetch in self._partitions.items():
            view = self._session.views.get(tp)
            if not self._is_read(tp) or fetch.batches is not None or fetch.position is None or view is None:
                continue
            # A plan below the log start or above the log end is refused. Between LSO and log end there is nothing to
            # read yet.
            if fetch.position < end_offset(view, self._isolation) or fetch.position > view.state.next_offset:
                ranges[tp] = (fetch.position, fetch.end_of_plan(view))
        known = {tp: self._partitions[tp].indexes for tp in ranges}
        plans = plan_reads(self._session, ranges, self._isolation, known)
        try:
            made = tasks(self._session.runtime, list(plans.values()), metadata_columns=COLUMNS)
        except UnknownTopicOrPartitionError:
            # The views are of a deleted topic of this name. The next poll looks at the log again.
            self._session.forget(list(ranges))
            raise
        for (tp, plan), task in zip(plans.items(), made, strict=True):
            fetch = self._partitions[tp]
            fetch.batches = read_task(task, self._session.runtime.store, max_rows=self._max_rows)
            fetch.planned(plan)
        return bool(ranges)

    def _look_behind(self) -> None:
        """Look at the ends of partitions that are read far behind them, if the last look was long ago."""
        now_ms = self._session.clock.monotonic_ms()
        stale = []
        for tp in self._waiting():
            fetch, view = self._partitions[tp], self._session.views.get(tp)
            if view is None or fetch.position is None or fetch.position >= view.state.next_offset:
                continue
            if fetch.looked_ms is None:
                fetch.looked_ms = now_ms  # the view was made for this read
            elif now_ms - fetch.looked_ms >= STALE_MS:
                stale.append(tp)
        if stale:
            self._session.fresh_views(stale, "looking whether rows were erased")
            for tp in stale:
                self._partitions[tp].looked_ms = now_ms

    def wait(self, limit_ms: int) -> None:
        """Return when the next look is due or an object has come, after at most `limit_ms` milliseconds."""
        pause_ms = self.pace.left_ms(limit_ms)
        waiting = self._waiting()
        # A consumer that was closed within a poll reads nothing, and must not watch again.
        if waiting and not self._asked_for_watch:
            # A watch waits by the machine's clock.
            if isinstance(self._session.clock, SystemClock):
                self._watch = watch(self._session.runtime.store)
            self._asked_for_watch = True  # not before: an interrupted poll asks again
        if waiting and self._watch is not None:
            least_ms = max(self.pace.left_ms(limit_ms, early=True), 0)
            self._session.clock.sleep_ms(least_ms)
            self._watch.wait([tp.folder for tp in waiting], pause_ms - least_ms)
        else:
            self._session.clock.sleep_ms(pause_ms)

    def close(self) -> None:
        """Free the watch."""
        if self._watch is not None:
            self._watch.close()

    def look(self) -> None:
        """Look for new rows in every partition that has been read to its known end."""
        began_ms = self._session.clock.monotonic_ms()
        waiting = self._waiting()
        self._session.fresh_views(waiting, "looking for new rows")
        for tp in waiting:
            self._partitions[tp].looked_ms = began_ms
        self.pace.looked(began_ms)

    def out_of_range(self) -> list[TopicPartition]:
        """Return partitions whose position is outside of the log, as far as the log is known."""
        found = []
        for tp, fetch in self._partitions.items():
            view = self._session.views.get(tp)
            if view is None or fetch.position is None or not self._is_read(tp):
                continue
            if not view.state.log_start_offset <= fetch.position <= view.state.next_offset:
                found.append(tp)
        return found

    def _waiting(self) -> list[TopicPartition]:
        """Return the partitions that are read to their known end."""
        return [tp for tp, fetch in self._partitions.items() if self._is_read(tp) and fetch.batches is None]

    def _is_read(self, tp: TopicPartition) -> bool:
        return tp not in self._paused and tp.topic not in self._skipped


@dataclass(slots=True)
class _Fetch:
    """The position of one partition, and its read."""

    position: int | None = None
    batches: Iterator[pa.RecordBatch] | None = None
    end: int = 0
    """Where the current read ends."""
    indexes: ReadIndexes = field(default_factory=dict)
    """Indexes that the next plan may need. Those of segments that were read are dropped."""
    ahead: int = 1
    """How many segments the next plan reads: first one, for a fast first row, and later more, for few rounds."""
    looked_ms: int | None = None
    """When the last look at the end of the log began, by the monotonic clock. None: when its view was made."""

    def end_of_plan(self, view: PartitionView) -> int | None:
        """Return the highest end of the next plan: some segments ahead, or None if only few segments are left."""
        assert self.position is not None
        first = bisect_right(view.walk, self.position, key=lambda name: name.end_offset)
        last = first + self.ahead - 1
        return view.walk[last].end_offset if last < len(view.walk) else None

    def planned(self, plan: ReadPlan) -> None:
        """Take over a plan."""
        self.end = plan.end
        self.indexes = {name: read for name, read in plan.indexes.items() if name.end_offset > plan.end}
        self.ahead = min(2 * self.ahead, MAX_SEGMENTS_AHEAD)

    def next(self) -> pa.RecordBatch | None:
        """Return the next rows of the read, or None at its end.

        At the end the position is past the rows that are not returned.
        """
        assert self.batches is not None
        assert self.position is not None
        batch = next(self.batches, None)
        if batch is None:
            self.batches = None
            self.position = max(self.position, self.end)
            return None
        self.position = last_offset(batch) + 1
        return batch


@dataclass(frozen=True, slots=True)
class Taken:
    """Rows that a poll has taken from a read, and not returned yet."""

    fetch: _Fetch
    position: int | None
    """Where their partition stood before."""


class OneSchema:
    """Gives all batches of a topic the same columns, although columns may be added while it is read."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._schemas: dict[str, tuple[pa.Schema, str | None]] = {}
        """topic -> the columns of its batches, and the id of the topic: another topic of this name has other
        columns."""

    def align(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of `batch` with the columns of the first batch of their topic.

        Raises SchemaMismatchError if that is not possible.
        """
        topic = batch.column(TOPIC_COLUMN)[0].as_py()
        known = self._runtime.known_topic(topic)
        topic_id = None if known is None else known.topic_id
        # Nulls cannot stand for columns that were dropped, or that have a default.
        is_changed = known is not None and known.last_field_id is not msgspec.UNSET
        if topic not in self._schemas:
            self._schemas[topic] = (_newest(None if is_changed else known, batch.schema), topic_id)
        schema, first_id = self._schemas[topic]
        if batch.schema.equals(schema, check_metadata=True):
            return batch
        places = {_identity(column): at for at, column in enumerate(batch.schema)}
        columns: list[pa.Array[Any]] = []
        for column in schema:
            at = places.get(_identity(column))
            found = None if at is None or topic_id != first_id else batch.column(at)
            is_lost = found is None and not column.nullable
            if is_changed or is_lost or (found is not None and found.type != column.type):
                raise SchemaMismatchError(
                    f"topic {topic!r}: {_changed(schema, batch.schema)} while the topic was read, and the rows from "
                    "here on do not have the columns of those before. "
                    "hint: call iterate() again, it goes on with these rows"
                )
            columns.append(pa.nulls(batch.num_rows, column.type) if found is None else found)
        return pa.RecordBatch.from_arrays(columns, schema=schema)


def _newest(known: TopicMetadata | None, schema: pa.Schema) -> pa.Schema:
    """Return the newest columns that this process knows, if all of `schema`, of a read that began before, are among
    them."""
    newest = schema if known is None else schema_of(known.schema, None, COLUMNS)
    return newest if set(map(_identity, schema)) <= set(map(_identity, newest)) else schema


def _changed(before: pa.Schema, after: pa.Schema) -> str:
    """Return what is different in the columns `after`, for people."""
    old, new = ({_identity(column): column for column in schema} for schema in (before, after))
    for identity, column in old.items():
        if identity not in new or not new[identity].equals(column, check_metadata=True):
            return f"column {column.name!r} has changed"
    added = [column.name for column in after if _identity(column) not in old]
    return f"column {added[0]!r} was added" if added else "the order of the columns has changed"


def _identity(field: pa.Field[Any]) -> tuple[str, int | None]:
    # The name too: a topic that was created again has other columns with the same ids.
    return field.name, field_id(field)


class Pace:
    """The pauses between looks that find nothing, until `reset` is called.

    They begin at 1 ms, or at the time that a look takes: shorter ones would cost requests and save little time. After
    every 16 looks they double, up to `longest_ms`.
    """

    def __init__(self, clock: Clock, longest_ms: int) -> None:
        self._clock = clock
        self._longest_ms = longest_ms
        self._first_ms = self._pause_ms = 0
        self._looks = 0
        self._looked_at_ms = clock.monotonic_ms()

    def reset(self) -> None:
        """Make the next look due at once."""
        self._pause_ms = self._looks = 0

    def left_ms(self, limit_ms: int, *, early: bool = False) -> int:
        """Return in how many milliseconds the next look is due, at most `limit_ms`; 0 or less if it is due.

        With `early` in how many an object may end the pause.

        The pause begins at the last look, so that a program that polls again at once does not look twice.
        """
        pause_ms = min(self._pause_ms, max(self._first_ms, _LEAST_PAUSE_MS)) if early else self._pause_ms
        return min(self._looked_at_ms + pause_ms - self._clock.monotonic_ms(), limit_ms)

    def looked(self, began_ms: int) -> None:
        """Note a look that began at this monotonic time, and begin the pause after it."""
        is_due = began_ms >= self._looked_at_ms + self._pause_ms
        self._looked_at_ms = self._clock.monotonic_ms()
        self._first_ms = max(self._looked_at_ms - began_ms, _FIRST_PAUSE_MS)
        doublings = min(self._looks // LOOKS_A_PAUSE, _MAX_DOUBLINGS)
        self._pause_ms = min(self._first_ms * 2**doublings, self._longest_ms)
        # Pauses that objects end do not make later ones longer.
        self._looks += is_due


class FollowedTopics:
    """The topics whose partitions are all read, and which assigned topics were deleted."""

    def __init__(self, session: Session, fetcher: Fetcher) -> None:
        self.names: tuple[str, ...] = ()
        """Topics whose partitions are all read, new partitions included."""
        self.pattern: re.Pattern[str] | None = None
        """Later topics whose whole name matches it are read, too."""
        self.added: set[TopicPartition] = set()
        """Partitions without a position yet that were added to a topic after the subscription."""
        self._session = session
        self._runtime = session.runtime
        self._fetcher = fetcher
        self._looked_at_ms = self._runtime.clock.monotonic_ms()
        self.deleted: dict[str, UnknownTopicOrPartitionError] = {}
        """The topics that were deleted and not created again, each with the error that polls raise."""
        self._asked_ms = self._looked_at_ms
        """When these were looked for again."""
        self._is_shared = False
        """Whether a group decides which partitions are read."""
        self._reported: set[str] = set()
        """Those of `deleted` whose error a poll has raised."""

    def start(self, names: tuple[str, ...], *, shared: bool = False) -> None:
        """Follow `names` from now on, and forget what was found before. `shared`: the members of a group share them."""
        self._is_shared, self.pattern = shared, None
        self.names, self.added = names, set()
        self.deleted, self._reported = {}, set()
        self._looked_at_ms = self._runtime.clock.monotonic_ms()

    def check(self, topics: Topics) -> tuple[str, ...]:
        """Return the names of `topics`, each once.

        Raises InvalidRequestError, InvalidTopicError, UnknownTopicOrPartitionError if no topic matches a pattern.
        """
        if isinstance(topics, re.Pattern):
            if matching := self._matching(topics):
                return matching
            raise UnknownTopicOrPartitionError(
                f"{self._session.who}: no topic of {self._runtime.where} matches {topics.pattern!r:.200}; the whole "
                "name must match"
            )
        given = (topics,) if isinstance(topics, str) else tuple(topics)
        for name in given:
            if isinstance(name, str) and name.startswith("^"):
                raise InvalidTopicError(
                    f"topic name {name!r:.200} is not valid: a pattern is expected to be a re.Pattern. "
                    f"hint: subscribe to re.compile({name[1:]!r:.200}), which must match the whole name of a topic"
                )
        names = dict.fromkeys(map(check_topic_name, given))
        if not names:
            raise InvalidRequestError(f"{self._session.who}: no topic is named")
        return tuple(names)

    def partitions(self, names: Iterable[str]) -> list[TopicPartition]:
        """Return all partitions of `names`. Raises UnknownTopicOrPartitionError."""
        return [tp for name in names for tp in self._runtime.partitions(name, self._session.metadata_max_age_ms)]

    def take_added(self) -> None:
        """Assign partitions that were added since the last look, once in `metadata.max.age.ms`. Follow new topics."""
        now_ms = self._runtime.clock.monotonic_ms()
        is_idle = not self.names or (self._is_shared and self.pattern is None)
        if is_idle or now_ms - self._looked_at_ms < self._session.metadata_max_age_ms:
            return
        self._looked_at_ms = now_ms
        if self.pattern is not None:
            self.names = tuple(dict.fromkeys((*self.names, *self._matching(self.pattern))))
        if self._is_shared:
            return
        now: list[TopicPartition] = []
        for name in self.names:
            try:
                now += self.partitions([name])
            except UnknownTopicOrPartitionError as error:
                self.deleted[name] = error
                now += [tp for tp in self._fetcher.assigned if tp.topic == name]
        added = set(now).difference(self._fetcher.assigned)
        if added:
            self.added |= added
            self._fetcher.assign(now)

    def _matching(self, pattern: re.Pattern[str]) -> tuple[str, ...]:
        return tuple(each.topic for each in self._runtime.list_topics([]) if pattern.fullmatch(each.topic))

    def find_deleted(self) -> None:
        """Read no deleted topics, and read those again that were created again: these are looked for once a second."""
        now_ms = self._runtime.clock.monotonic_ms()
        behind = {tp.topic for tp in self._fetcher.assigned if self._is_behind(tp)} - self.deleted.keys()
        if self.deleted and now_ms - self._asked_ms >= CREATED_AGAIN_MS:
            self._asked_ms = now_ms
            behind |= self.deleted.keys()
        for topic in sorted(behind):
            try:
                self._runtime.topic(topic, 0)
            except UnknownTopicOrPartitionError as error:
                self.deleted[topic] = error
            else:
                self.deleted.pop(topic, None)
        self._reported &= self.deleted.keys()
        self._fetcher.skip(self.deleted)

    def report_deleted(self, *, at_end: bool = False) -> None:
        """Raise UnknownTopicOrPartitionError if a topic is deleted and no poll has raised that yet.

        A member of a group has given up the partitions then. Where they stay assigned, the error is raised again
        `at_end` of a poll without rows, and if no other topic is assigned.
        """
        if not self.deleted:
            return
        due = self.deleted.keys() - self._reported
        assigned = {tp.topic for tp in self._fetcher.assigned}
        if not self._is_shared and (due or at_end or self.deleted.keys() >= assigned):
            due = set(self.deleted)
        if due:
            self._reported = set(self.deleted)
            raise UnknownTopicOrPartitionError("; ".join(str(self.deleted[topic]) for topic in sorted(due)))

    def _is_behind(self, tp: TopicPartition) -> bool:
        """Return whether the log shows a deletion that this process's metadata of the topic do not show."""
        view = self._session.views.get(tp)
        if view is None or not view.state.deleted_version:
            return False
        known = self._runtime.known_topic(tp.topic)
        return known is None or known.number < view.state.deleted_version
