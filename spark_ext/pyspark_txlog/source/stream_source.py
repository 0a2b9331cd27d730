"""Where is a stream, which offsets come next, and which were lost?

There is one StreamSource for each query, in the process that Spark keeps beside the driver while the query runs. It
holds nothing that a restart would miss. State that must survive is in the offsets, which Spark writes to the checkpoint
before it runs a batch (`pyspark_txlog.stream_offsets`).

* **Begin.** The initial offset is a constant. The first `latest` resolves where the query begins and stores that in the
  end of the first batch. So it is resolved once, even after a crash.
* **Join.** A partition that appears later belongs to a known topic, or to one that a pattern newly matches. It joins at
  its log start, without a row in its first batch. From then on the checkpoint contains its start.
* **Loss.** If retention or a deletion removed rows before the query read them, the query fails (`failOnDataLoss`, the
  default), or txlog counts and reports them. If a log ends before the query's offset, the store was restored to an
  older state. That is always an error, because new rows take offsets that count as read.
* **Limits.** They are those of Spark's Kafka source. Every offset counts, even without a row: markers and aborted rows
  use up the limit, as in Kafka.
* **Group.** When Spark asks to continue from an offset, everything before it is processed. txlog then commits that
  offset for `group.id`, if it is above the committed one. So the group is never ahead of the query, and at most the
  running batch behind it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from pyspark.sql.types import StructType

from pyspark_txlog import option_table as table
from pyspark_txlog.messages import mismatch
from pyspark_txlog.options import Options
from pyspark_txlog.source.batch_reader import check_schema, read_tasks
from pyspark_txlog.source.options import settled
from pyspark_txlog.source.subscription import named_topics, read_ranges, subscribed_partitions, subscribed_topics
from pyspark_txlog.stream_offsets import SOURCE_KEY, StreamOffset
from txlog import engine
from txlog.engine import PartitionView, ReadIndexes, ReadPlan, Runtime, TopicPartition, end_offset
from txlog.engine.offsets import append_times, raise_committed, removed_offsets
from txlog.engine.schemas import TopicMetadata
from txlog.errors import (
    ConcurrentTransactionsError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
    UnstableOffsetCommitError,
)
from txlog.logs import log

_LOG = logging.getLogger(__name__)

Offsets = Mapping[TopicPartition, int]

MAX_PLANS = 3
"""How often a batch is planned again because maintenance moved a log start in the meantime."""
_BEGIN_ANEW = (
    "a new checkpointLocation, and startingOffsets behind the rows that its sink has (a stream begins at the latest "
    'ones): see the page "After a lost checkpoint"'
)


class StreamSource:
    """Answers what `spark.readStream.format("txlog")` asks. Not thread-safe: Spark makes one call at a time."""

    def __init__(
        self,
        runtime: Runtime,
        options: Options,
        schema: StructType,
        known: Mapping[str, TopicMetadata] | None = None,
    ) -> None:
        """`known` are the topics as they were when `schema` was made from them. None: the user gave `schema`."""
        self._runtime = runtime
        self._read = settled(options, runtime.settings)
        self._schema = schema
        self._known = dict(known or {})
        self._store_id = runtime.require_store().store_id
        self._session = engine.read_session(runtime, options.settings)
        self._target: Offsets | None = None
        # As in Kafka's source: rows that exist when a query starts have waited long enough.
        self._last_batch_ms = runtime.clock.monotonic_ms() - options[table.MAX_TRIGGER_DELAY]
        self._subscribed: tuple[list[TopicPartition], int] | None = None
        self._gone: set[TopicPartition] = set()
        self._indexes: dict[TopicPartition, ReadIndexes] = {}
        self._group_has: dict[TopicPartition, int] = {}
        self._told: set[str] = set()
        self._lost = 0
        self._progress: dict[str, Any] | None = None
        self._planned: Mapping[str, Any] | None = None
        """The end of the last batch that Spark had planned."""

    def initial(self) -> dict[str, Any]:
        """Return the beginning of a query, unresolved. Spark asks for it again at every attempt of the first batch."""
        return self._offset({}, None).to_json()

    def stop_at_what_is_there(self) -> None:
        """Never let `latest` go beyond the present ends of the log (Trigger.AvailableNow)."""
        partitions = self._partitions(is_first=False)
        views = self._session.fresh_views(partitions, "looking up what is available now")
        self._target = {tp: self._end(view) for tp, view in views.items()}

    def latest(self, start: Mapping[str, Any], *, limited: bool) -> Mapping[str, Any]:
        """Return where a batch that begins at `start` ends; `start` itself if there is nothing to read.

        Called only after everything before `start` has been processed. Costs one GET for each partition without new
        rows. Raises OffsetOutOfRangeError, NoOffsetForPartitionError, UnknownTopicOrPartitionError, InvalidRequestError
        (a checkpoint of another store).
        """
        given = StreamOffset.from_json(start)
        self._check_store(given)
        is_first = given.is_unresolved
        partitions = self._partitions(is_first)
        if is_first:
            ranges = read_ranges(self._session, partitions, self._read)
            begins = {tp: at for tp, (at, _) in ranges.items()}
        else:
            self.commit(given.ends)
            begins = dict(given.ends)
            for tp, view in self._session.fresh_views(partitions, "looking for new rows").items():
                if begins.get(tp, 0) > view.state.next_offset:
                    raise _log_went_back(tp, begins[tp], view)
            self._look_after_gone(partitions, begins)
        views = {tp: self._session.views[tp] for tp in partitions}
        joining = {
            tp: self._joins_at(view)
            for tp, view in views.items()
            if tp not in begins and (self._target is None or tp in self._target)
        }
        starts = {tp: max(at, views[tp].state.log_start_offset) for tp, at in begins.items() if tp in views}
        ends = {tp: max(at, self._end(views[tp])) for tp, at in starts.items()}
        if self._target is not None:
            ends = {tp: max(min(end, self._target.get(tp, 0)), starts[tp]) for tp, end in ends.items()}
        chosen = {**begins, **joining, **self._limited(begins, starts, ends, limited=limited, is_first=is_first)}
        self._progress = self._report(chosen, views, self._about_to_lose(begins, starts, chosen))
        if is_first:
            return self._offset(chosen, begins).to_json()
        return start if chosen == given.ends else self._offset(chosen, None).to_json()

    def latest_after_plan(self) -> Mapping[str, Any]:
        """Return what `latest` returns, without limits, if Spark does not pass the start (before 4.2).

        That Spark plans each batch before it asks for the next one. When a query starts again, it first lets the newest
        offset of the checkpoint be planned, as a batch that begins and ends there. So without a plan the query is new.
        """
        return self.latest(self.initial() if self._planned is None else self._planned, limited=False)

    def plan(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[tuple[engine.ReadTask, ...]]:
        """Return what each input partition of the batch `[start, end)` reads; none of them is empty.

        Raises OffsetOutOfRangeError (data loss), SchemaMismatchError (a topic lacks a column of the query),
        InvalidRequestError (a checkpoint of another store).
        """
        first, last = StreamOffset.from_json(start), StreamOffset.from_json(end)
        self._check_store(first)
        self._check_store(last)
        begins = last.starts if first.is_unresolved else first.ends
        if begins is None:
            error = InvalidRequestError(
                "the end of the query's first batch does not contain the start of that batch: the "
                "checkpoint was changed by hand. "
                f"hint: restore it, or give the query {_BEGIN_ANEW}"
            )
            raise mismatch(_LOG, error, store=self._runtime.where)
        self._check_order(begins, last.ends)
        self._planned = end
        # A partition that `begins` lacks joins with this batch, without a row.
        wanted = {tp: (begins[tp], to) for tp, to in last.ends.items() if tp in begins and begins[tp] < to}
        plans, lost = self._plan(wanted)
        for tp, count in lost.items():
            start_of_loss = wanted[tp][0]
            text = (
                f"failOnDataLoss=false, {tp}: {count} offsets from {start_of_loss} on were removed before this query "
                "read them; the query continues after them"
            )
            self._count_loss(text, tp, start_of_loss, count)
        topics = {tp.topic: self._as_known(self._topic(tp.topic)) for tp in plans}
        check_schema(self._schema, topics, self._read)
        for tp, plan in plans.items():
            self._indexes[tp] = {name: read for name, read in plan.indexes.items() if name.end_offset > plan.end}
        tasks = read_tasks(self._runtime, plans.values(), self._schema.names, self._read, self._known)
        return engine.pack_tasks(tasks, self._read[table.MIN_PARTITIONS])

    def commit(self, ends: Offsets) -> None:
        """Raise the committed offsets of `group.id`, if the query has one, to `ends`: everything before them is
        processed."""
        group = self._read.group_id
        raised = {tp: offset for tp, offset in ends.items() if offset > self._group_has.get(tp, -1)}
        if group is None or not raised:
            return
        try:
            topics = ", ".join(sorted({tp.topic for tp in ends}))
            job = f"the streaming query over {topics}"
            raise_committed(self._session, group, raised, job, beside_members=self._read.allow_mixed_groups)
        except (UnstableOffsetCommitError, ConcurrentTransactionsError):
            # A transaction that is not decided yet holds offsets of this group. The next call, with later offsets, sees
            # its outcome. The group may be behind, but it must not block the query.
            return
        self._group_has.update(raised)

    def report(self) -> dict[str, Any] | None:
        """Return what the last `latest` saw, as the query's progress: the ends of the log, the lag behind them, and
        the loss.

        `rows` counts offsets, including markers and aborted rows. `seconds` is how long the oldest of them has waited.
        """
        return self._progress

    def close(self) -> None:
        """Stop the helper threads; idempotent."""
        self._runtime.close()

    # -- which partitions ---------------------------------------------------------------------------------------------

    def _partitions(self, is_first: bool) -> list[TopicPartition]:
        """Return the partitions to read, looked up every `metadata.max.age.ms`."""
        now_ms = self._runtime.clock.monotonic_ms()
        known = self._subscribed
        # A new query always looks: a named topic must exist, even with `failOnDataLoss=false`.
        if not is_first and known is not None and now_ms - known[1] < self._session.metadata_max_age_ms:
            return known[0]
        found = subscribed_partitions(self._session, self._read, self._topics(is_first))
        self._subscribed = (found, now_ms)
        return found

    def _topics(self, is_first: bool) -> dict[str, TopicMetadata]:
        if is_first or table.SUBSCRIBE_PATTERN in self._read:
            listed = subscribed_topics(self._runtime, self._read, may_be_none=True)
            for topic in listed.values():
                # The topic may have been deleted and created again. Old cached metadata would end the query.
                self._runtime.remember_topic(topic)
            return listed
        found: dict[str, TopicMetadata] = {}
        for name in named_topics(self._read):
            try:
                found[name] = self._topic(name, 0)
                self._told.discard(name)
            except UnknownTopicOrPartitionError as error:
                if self._read[table.FAIL_ON_DATA_LOSS]:
                    raise UnknownTopicOrPartitionError(
                        f"{error}. "
                        "hint: a running query reads this topic; failOnDataLoss=false continues with the other "
                        "topics, and with this one once it exists again"
                    ) from error
                if name not in self._told:
                    self._told.add(name)
                    text = f"failOnDataLoss=false, continuing without topic {name!r}: {error}"
                    log(_LOG, logging.WARNING, "topic_missing", text, topic=name)
        return found

    def _topic(self, name: str, max_age_ms: int | None = None) -> TopicMetadata:
        try:
            return self._runtime.topic(name, max_age_ms)
        except UnknownTopicOrPartitionError:
            # The topic was deleted, but perhaps created again since. The runtime has dropped its cached metadata.
            return self._runtime.topic(name, 0)

    def _as_known(self, topic: TopicMetadata) -> TopicMetadata:
        """Return a topic with the columns that the query knows: each batch reads the columns of the first one."""
        held = self._known.get(topic.topic)
        if held is None or held.topic_id != topic.topic_id:
            self._known[topic.topic] = held = topic
        return engine.columns_as_known(topic, held)

    def _look_after_gone(self, partitions: list[TopicPartition], begins: Offsets) -> None:
        """Report once what was lost with partitions that the query has read and that no longer exist, or fail."""
        gone = begins.keys() - set(partitions)
        newly = sorted(gone - self._gone)
        for tp, view in self._session.fresh_views(newly, "looking at partitions that are gone").items():
            try:
                self._topic(tp.topic, 0)
                end, is_loss, why = self._end(view), True, "the options of this query no longer name it"
                advice = "name it again; failOnDataLoss=false continues without its unread rows"
            except UnknownTopicOrPartitionError:
                end = begins[tp] + self._removed(view, begins[tp])
                is_loss, why = end > begins[tp], "its topic was deleted"
                advice = "its unread rows are lost; failOnDataLoss=false continues without them"
            unread = max(end - begins[tp], 0)
            if is_loss and self._read[table.FAIL_ON_DATA_LOSS]:
                raise OffsetOutOfRangeError(
                    f"{tp}: {why}; this query has read it up to offset {begins[tp]}, {unread} offsets are unread. "
                    f"hint: {advice}"
                )
            self._count_loss(f"{tp} is no longer read: {why}; {unread} offsets are unread", tp, begins[tp], unread)
        self._session.forget(newly)
        self._gone = set(gone)

    def _joins_at(self, view: PartitionView) -> int:
        """Return where a partition joins that did not exist when the query began: at its log start."""
        tp, log_start = view.topic_partition, view.state.log_start_offset
        # A topic that was created again continues the offsets of the old one, so rows need not be lost.
        if log_start and not self._runtime.is_recreated(self._topic(tp.topic)):
            if self._read[table.FAIL_ON_DATA_LOSS]:
                raise OffsetOutOfRangeError(
                    f"{tp} is new to this query, and its log begins at offset {log_start}: rows were removed "
                    "before the query read them. "
                    "hint: failOnDataLoss=false continues with the remaining rows; a shorter "
                    "metadata.max.age.ms finds partitions sooner"
                )
            text = f"failOnDataLoss=false, {tp} joins at offset {log_start}: earlier rows were removed"
            self._count_loss(text, tp, log_start, log_start)
        return log_start

    def _count_loss(self, text: str, tp: TopicPartition, offset: int, count: int) -> None:
        self._lost += count
        if self._lost:
            text = f"{text} ({self._lost} offsets lost since the query started)"
        log(_LOG, logging.WARNING, "data_loss", text, topic_partition=str(tp), offset=offset, count=count)

    # -- how far ------------------------------------------------------------------------------------------------------

    def _end(self, view: PartitionView) -> int:
        return end_offset(view, self._read.isolation_level)

    def _limited(self, begins: Offsets, starts: Offsets, ends: Offsets, *, limited: bool, is_first: bool) -> Offsets:
        """Return `ends` within the limits; nothing if it is too early for a batch. The first batch is never delayed."""
        now_ms = self._runtime.clock.monotonic_ms()
        offsets = available(starts, ends)
        may_wait = limited and not is_first and self._target is None
        enough, delay_ms = self._read[table.MIN_OFFSETS_PER_TRIGGER] or 0, self._read[table.MAX_TRIGGER_DELAY]
        may_wait = may_wait and not is_due(offsets, now_ms - self._last_batch_ms, enough, delay_ms)
        # A batch without rows moves the query past removed offsets. That batch counts them, or ends the query.
        is_overtaken = any(starts[tp] > begins[tp] for tp in starts)
        if not is_overtaken and (not offsets or may_wait):
            return {}
        self._last_batch_ms = now_ms
        most = self._read[table.MAX_OFFSETS_PER_TRIGGER]
        return at_most(starts, ends, most) if limited and most is not None else ends

    def _removed(self, view: PartitionView, start: int) -> int:
        return removed_offsets(self._session, view, start, self._read.isolation_level).offsets

    def _about_to_lose(self, begins: Offsets, starts: Offsets, chosen: Offsets) -> int:
        """Return how many removed offsets the batch up to `chosen` skips.

        Spark reads the progress before it plans the batch.
        """
        if self._read[table.FAIL_ON_DATA_LOSS]:
            return 0
        overtaken = [tp for tp, start in starts.items() if begins[tp] < min(start, chosen[tp])]
        return sum(min(self._removed(self._session.views[tp], begins[tp]), chosen[tp] - begins[tp]) for tp in overtaken)

    def _report(
        self, chosen: Offsets, views: Mapping[TopicPartition, PartitionView], about_to_lose: int
    ) -> dict[str, Any]:
        ends = {tp: max(self._end(view), chosen.get(tp, 0)) for tp, view in views.items()}
        unread = {
            tp: max(chosen[tp], views[tp].state.log_start_offset) for tp in ends if chosen.get(tp, ends[tp]) < ends[tp]
        }
        times = append_times(self._session, unread, self._indexes)
        waited_ms = max((self._runtime.clock.now_ms() - time for time in times.values()), default=0)
        report = self._offset({**chosen, **ends}, None).to_json()
        lag = {"rows": sum(ends[tp] - at for tp, at in unread.items()), "seconds": max(waited_ms, 0) / 1000}
        report[SOURCE_KEY].update(lag=lag, lost=self._lost + about_to_lose)
        return report

    # -- planning -----------------------------------------------------------------------------------------------------

    def _plan(
        self, wanted: Mapping[TopicPartition, tuple[int, int]]
    ) -> tuple[dict[TopicPartition, ReadPlan], dict[TopicPartition, int]]:
        """Return plans for the remaining part of `wanted`, and how many offsets of each partition are lost."""
        for attempt in range(MAX_PLANS):
            lacking = [tp for tp in wanted if attempt or tp not in self._session.views]
            self._session.fresh_views(lacking, "planning a batch")
            ranges: dict[TopicPartition, tuple[int, int | None]] = {}
            lost: dict[TopicPartition, int] = {}
            for tp, (start, end) in wanted.items():
                view = self._session.views[tp]
                log_start = view.state.log_start_offset
                if removed := min(self._removed(view, start), end - start):
                    lost[tp] = removed
                self._check_range(view, start, end, removed)
                if log_start < end:
                    ranges[tp] = (max(start, log_start), end)
            try:
                return engine.plan_reads(self._session, ranges, self._read.isolation_level, self._indexes), lost
            except OffsetOutOfRangeError:
                # Maintenance deleted objects, and a new LIST showed a later log start: look again.
                if attempt == MAX_PLANS - 1:
                    raise
        raise AssertionError("unreachable")

    def _check_range(self, view: PartitionView, start: int, end: int, removed: int) -> None:
        """Check that a batch of `[start, end)`, of which `removed` offsets no longer exist, may be read on `view`."""
        tp, state = view.topic_partition, view.state
        if removed and self._read[table.FAIL_ON_DATA_LOSS]:
            raise OffsetOutOfRangeError(
                f"{tp}: this query has read up to offset {start}, and the log begins at {state.log_start_offset}: "
                f"{removed} offsets of this batch were removed before it read them. "
                "hint: these rows are lost; failOnDataLoss=false continues behind them; retention.hold.groups keeps "
                "rows longer"
            )
        if end > state.next_offset:
            raise _log_went_back(tp, end, view)
        if end > self._end(view):
            raise OffsetOutOfRangeError(
                f"{tp}: this batch was planned up to offset {end}, but isolation.level={self._read.isolation_level} "
                f"shows rows up to {self._end(view)}: it was planned with read_uncommitted. "
                "hint: finish the batch with that level, or start again after the open transactions have ended"
            )

    def _check_order(self, begins: Offsets, ends: Offsets) -> None:
        """Raise InvalidRequestError for a batch that ends before it begins, or without a partition.

        `latest` never returns such an end. One could be in the checkpoint if Spark before 4.2 did not plan the newest
        offset first, as with its own wrapper for `availableNow`.
        """
        for tp, begin in begins.items():
            if ends.get(tp, -1) < begin:
                raise InvalidRequestError(
                    f"{tp}: this query has read up to offset {begin}, and the end of this batch is {ends.get(tp)}. It "
                    "would read rows twice. hint: set spark.sql.streaming.triggerAvailableNowWrapper.enabled=false, "
                    f"and give the query {_BEGIN_ANEW}"
                )

    def _offset(self, ends: Offsets, starts: Offsets | None) -> StreamOffset:
        return StreamOffset(store_id=self._store_id, group_id=self._read.group_id, ends=ends, starts=starts)

    def _check_store(self, offset: StreamOffset) -> None:
        if offset.store_id != self._store_id:
            error = InvalidRequestError(
                f"the checkpoint of this query is of the store {offset.store_id}, but {self._runtime.where} is the "
                f"store {self._store_id}. "
                f"hint: read the store that the query was started with, or give the query {_BEGIN_ANEW}"
            )
            raise mismatch(_LOG, error, store=self._runtime.where)


def available(starts: Offsets, ends: Offsets) -> int:
    """Return the number of offsets between `starts` and `ends`."""
    return sum(max(ends[tp] - starts[tp], 0) for tp in ends)


def is_due(offsets: int, waited_ms: int, enough: int, max_delay_ms: int) -> bool:
    """Whether `offsets` are worth a batch: there are enough of them, or they have waited long enough."""
    return offsets >= enough or (offsets > 0 and waited_ms >= max_delay_ms)


def at_most(starts: Offsets, ends: Offsets, limit: int) -> dict[TopicPartition, int]:
    """Return `ends`, reduced so that about `limit` offsets lie before them, in proportion to what each partition has.

    As in Kafka, each partition with offsets gives at least one. So the total may exceed `limit` by one for each
    partition.
    """
    total = available(starts, ends)
    if total <= limit:
        return dict(ends)
    return {
        tp: starts[tp] + min(max(limit * size // total, 1), size) if (size := end - starts[tp]) > 0 else end
        for tp, end in ends.items()
    }


def _log_went_back(tp: TopicPartition, offset: int, view: PartitionView) -> OffsetOutOfRangeError:
    return OffsetOutOfRangeError(
        f"{tp}: this query has read or planned up to offset {offset}, but the log ends at {view.state.next_offset}: "
        "the store was put back to an older state, and new rows would take offsets that count as read. "
        f"hint: give the query {_BEGIN_ANEW}"
    )
