"""Which maintenance is due in a store, and in which order is it done?

A round is a sweep of small steps. Each step is safe beside writers, readers and other rounds. The first step rolls
decided transactions forward and aborts overdue ones, because they hold back all that follows. Then a round removes idle
ids and groups, seals finished segments, and removes rows that are too old. It merges and compacts the others, and
deletes objects that no reader or writer can still use. If a step fails for one partition, the round goes on with the
next one.

A `Maintainer` remembers what it has looked at. So a round in which nothing is due costs a few LIST requests and one GET
for each partition, and writes nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar

import msgspec

from txlog.client import reading
from txlog.client.runtime import Runtime
from txlog.client.session import Call
from txlog.core import names
from txlog.core.cleaning import DEFAULT_MIN_SEGMENTS, DEFAULT_TARGET_BYTES, MergePolicy
from txlog.core.compaction import CompactionPolicy
from txlog.core.effects import List, Program
from txlog.core.names import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, SegmentName, TopicPartition
from txlog.core.records import TopicMetadata
from txlog.errors import (
    CorruptLogError,
    InvalidRequestError,
    OutcomeUnknownError,
    RetriableError,
    StoreChangedError,
    TxlogError,
    UnknownTopicOrPartitionError,
)
from txlog.maintenance.compact import Compacted, compact_partition, compaction_policy
from txlog.maintenance.history import Recorder, recorded
from txlog.maintenance.merge import Merged, merge_partition
from txlog.maintenance.retention import Retained, apply_partition, plan_partition, policy_from, retained_of
from txlog.maintenance.vacuum import vacuum
from txlog.protocol import topics as topic_protocol
from txlog.protocol.append import append_log_start
from txlog.protocol.context import Context, PartitionView, Views
from txlog.protocol.expiry import ExpireResult, expire, expire_producers, idle_producers
from txlog.protocol.groups import expire_groups
from txlog.protocol.retention import RetentionPolicy
from txlog.protocol.seal import finished_segments, seal
from txlog.text import bytes_text, count_text, duration_text, time_text

Merger: TypeAlias = Callable[[Sequence[TopicPartition], MergePolicy], tuple[Sequence[Merged], Sequence[TxlogError]]]
"""Merges what is due in these partitions. Returns the runs that were made, and the errors of those that failed."""

Compactor: TypeAlias = Callable[
    [Mapping[TopicPartition, CompactionPolicy]], tuple[Sequence[Compacted], Sequence[TxlogError]]
]
"""Compacts these partitions. Returns the passes that were made, and the errors of those that failed."""

T = TypeVar("T")

MAX_NAMED = 1_000
"""A report names this many actions and this many things that were left; further ones are only counted."""
_AT_ONCE = 512
"""Partitions that are looked at together."""
_MAX_HELD = 16_384
"""Views that are kept from one round to the next. Other partitions are opened again."""
_VACUUM_INTERVAL_MS = 3_600_000
_LOOK_AGAIN_MS = 300_000
"""Kafka's `log.retention.check.interval.ms`: how often the round looks for work that becomes due only with time."""
_MAX_EXPIRES = 100
"""Maximum number of records by which one round ends idle producers of a partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintainPolicy:
    """How a store is maintained."""

    merge_target_bytes: int = DEFAULT_TARGET_BYTES
    """Target size of a merged file."""
    merge_min_segments: int = DEFAULT_MIN_SEGMENTS
    """Minimum number of sealed segments before a partition is merged, because each merge writes their rows again."""
    merge_max_ratio: int = 4
    """A run is merged with the segments after it once these have a fourth of its bytes.

    So a row is written only a few times, however often maintenance runs.
    """
    offsets_retention_ms: int = -1
    """Kafka's `offsets.retention.minutes`: a group without members that commits nothing for so long is deleted. -1:
    never."""
    vacuum_interval_ms: int | None = None
    """How often one process vacuums, which reads the name of every object.

    None: every hour, and four times in `delete.grace.ms`.
    """
    skip: frozenset[str] = frozenset()
    """The steps of STEPS that are skipped."""

    def __post_init__(self) -> None:
        if unknown := sorted(self.skip - set(STEPS)):
            raise InvalidRequestError(
                f"{unknown[0]!r} is not a step of maintenance; expected one of {', '.join(STEPS)}"
            )


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was done, left undone, or failed."""

    text: str
    topic: str | None = None
    partition: int | None = None
    """None if it is about the whole store."""


class StepReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one step of a round."""

    step: str
    took_ms: int
    done: tuple[Action, ...]
    left: tuple[Action, ...]
    """Work that is not due or that another process does, and the reason."""
    failed: tuple[Action, ...]
    counts: dict[str, int]
    """How much was done, left and failed, including what is not named."""


class MaintainReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one round."""

    store: str
    started_at: int
    ended_at: int
    partitions: int
    """Partitions that were looked at."""
    is_whole: bool
    """Whether all steps ran. False if the round was asked to stop."""
    steps: tuple[StepReport, ...]

    @property
    def failures(self) -> int:
        return sum(step.counts.get("failed", 0) for step in self.steps)

    @property
    def is_idle(self) -> bool:
        """Return whether nothing was done and nothing failed."""
        return not any(step.done or step.failed for step in self.steps)


class Maintainer:
    """Run rounds over one store, and remember between rounds what need not be looked at again."""

    def __init__(
        self,
        runtime: Runtime,
        policy: MaintainPolicy | None = None,
        *,
        should_stop: Callable[[], bool] = lambda: False,
        merger: Merger | None = None,
        compactor: Compactor | None = None,
    ) -> None:
        self.runtime = runtime
        self.policy = policy or MaintainPolicy()
        self.should_stop = should_stop
        """Called between two steps, and between two partitions of a step."""
        self.merger = merger
        """Merges partitions elsewhere, as a Spark job does, and writes the history itself. None: merge here, one after
        the other."""
        self.compactor = compactor
        """The same for compactions."""
        self.session = reading.read_session(runtime)
        self.first_error: TxlogError | None = None
        """First error of the last round; a program may end with it."""
        self._topics: dict[str, tuple[TopicMetadata, int]] = {}
        self._merged: dict[TopicPartition, tuple[SegmentName, ...]] = {}
        """Segments in which the last plan found nothing to merge."""
        self._looks: dict[tuple[str, TopicPartition], tuple[tuple[SegmentName, ...], int]] = {}
        """What a job last looked at in a partition, and when. What depends on time is looked at again."""
        self._vacuum_session = reading.read_session(runtime)
        # Vacuum drops its views after each use, so it has its own session. The other steps need views that stay.
        self._vacuumed_at_ms: int | None = None

    def run(self) -> MaintainReport:
        """Run one round.

        The report names each failure for a topic, a partition or a whole step, and the round goes on.

        Raises StoreChangedError if this maintainer knows another store, or an older log: then make a new maintainer.
        Raises NotAStoreError, ClockSkewError, UnsupportedStoreError, and StorageError if the store cannot be reached.
        """
        self.runtime.require_store()
        self.runtime.check_store()
        self.runtime.ensure_writable()
        self.first_error = None
        started_at = self.runtime.clock.now_ms()
        reports: list[StepReport] = []
        whole = True
        with recorded(self.runtime, "maintain") as history:
            a_round = _Round(self, history)
            for name, work in _STEPS.items():
                if name in self.policy.skip:
                    continue
                if self.should_stop():
                    whole = False
                    break
                step = _Step(self, name)
                try:
                    # The next steps delete by the clock, which may have changed since the last step.
                    self.runtime.ensure_writable()
                    work(a_round, step)
                except _RoundStoppedError:
                    whole = False
                except StoreChangedError:
                    raise
                except TxlogError as error:
                    step.fail(error)
                reports.append(step.report())
        for tp in list(self.session.views)[_MAX_HELD:]:
            self.session.forget([tp])
        return MaintainReport(
            store=self.runtime.where,
            started_at=started_at,
            ended_at=self.runtime.clock.now_ms(),
            partitions=len(a_round.looked_at),
            is_whole=whole,
            steps=tuple(reports),
        )

    # -- what there is ------------------------------------------------------------------------------------------------

    def topics(self, step: _Step) -> list[TopicMetadata]:
        """Return users' topics, deleted ones included, at most `metadata.max.age.ms` old.

        A topic that cannot be read is a failure of the step. Costs one LIST, and two requests for each topic that is
        looked up.
        """
        now_ms = self.runtime.clock.monotonic_ms()
        listed = self.runtime.run(topic_protocol.topic_names())
        limit_ms = self.session.metadata_max_age_ms
        known = {name: found for name, found in self._topics.items() if name in listed and now_ms - found[1] < limit_ms}
        for name in listed:
            if name in known:
                continue
            with step.attempt():
                found = self.runtime.run(topic_protocol.find_topic(name))
                if found is not None:
                    known[name] = (found, now_ms)
                    if not found.deleted:
                        self.runtime.remember_topic(found)
        self._topics = known
        return [known[name][0] for name in listed if name in known]

    def newest(self, topic: TopicMetadata) -> TopicMetadata | None:
        """Return the topic's metadata as they are now, or None if the topic was deleted or created again.

        A step that removes rows by the topic's settings must use these (PROTOCOL.md, W45).
        """
        found = self.runtime.run(topic_protocol.find_topic(topic.topic))
        if found is None or found.deleted or found.topic_id != topic.topic_id:
            return None
        self._topics[topic.topic] = (found, self.runtime.clock.monotonic_ms())
        self.runtime.remember_topic(found)
        return found

    def internal_partitions(self, topic: str) -> list[TopicPartition]:
        """Return the partitions of an internal topic that are not empty. Costs one LIST."""

        def program() -> Program[Sequence[str]]:
            listed: Sequence[str] = yield List(f"{topic}/")
            return listed

        numbers = [names.parse_partition_folder(name) for name in self.runtime.run(program())]
        return [TopicPartition(topic, number) for number in sorted(each for each in numbers if each is not None)]


class _RoundStoppedError(Exception):
    """The round was asked to stop."""


class _Step:
    """Collect the results of one step."""

    def __init__(self, maintainer: Maintainer, name: str) -> None:
        self.name = name
        self._maintainer = maintainer
        self._clock = maintainer.runtime.clock
        self._began_ms = self._clock.monotonic_ms()
        self._actions: dict[str, list[Action]] = {"done": [], "left": [], "failed": []}
        self._counts: dict[str, int] = {}

    def did(self, text: str, tp: TopicPartition | None = None, **counts: int) -> None:
        """Record that something was done. `counts` are the figures of the report."""
        self._note("done", text, tp)
        for name, number in counts.items():
            self._counts[name] = self._counts.get(name, 0) + number

    def leave(self, text: str, tp: TopicPartition | None = None) -> None:
        """Record that something was not done, and why."""
        self._note("left", text, tp)

    def fail(self, error: TxlogError, tp: TopicPartition | None = None) -> None:
        """Record a failure.

        If another process was faster, or the store could not be reached, the next round tries again.
        """
        if isinstance(error, UnknownTopicOrPartitionError):
            # The topic was deleted during this round, so none of its rows needs maintenance.
            self.leave(str(error), tp)
            return
        self._maintainer.first_error = self._maintainer.first_error or error
        again = " (the next round tries again)" if isinstance(error, (RetriableError, OutcomeUnknownError)) else ""
        self._note("failed", f"{error}{again}", tp)

    @contextlib.contextmanager
    def attempt(self, tp: TopicPartition | None = None) -> Iterator[None]:
        """Record an error of the work inside the `with` block, and go on."""
        if self._maintainer.should_stop():
            raise _RoundStoppedError
        try:
            yield
        except StoreChangedError:
            raise
        except TxlogError as error:
            self.fail(error, tp)

    def report(self) -> StepReport:
        return StepReport(
            step=self.name,
            took_ms=self._clock.monotonic_ms() - self._began_ms,
            done=tuple(self._actions["done"]),
            left=tuple(self._actions["left"]),
            failed=tuple(self._actions["failed"]),
            counts=self._counts,
        )

    def _note(self, kind: str, text: str, tp: TopicPartition | None) -> None:
        self._counts[kind] = self._counts.get(kind, 0) + 1
        if len(self._actions[kind]) < MAX_NAMED:
            self._actions[kind].append(
                Action(text=text, topic=tp.topic if tp else None, partition=tp.partition if tp else None)
            )


class _Round:
    """What the steps of one round share: topics and partitions, looked up when they are first needed."""

    def __init__(self, maintainer: Maintainer, history: Recorder) -> None:
        self.maintainer = maintainer
        self.runtime = maintainer.runtime
        self.session = maintainer.session
        self.policy = maintainer.policy
        self.history = history
        self.looked_at: set[TopicPartition] = set()
        self._topics: list[TopicMetadata] | None = None
        self._scanned = False
        self._internal: dict[str, list[TopicPartition]] = {}

    def internal(self, topic: str) -> list[TopicPartition]:
        """Return the partitions of an internal topic that are not empty."""
        if topic not in self._internal:
            self._internal[topic] = self.maintainer.internal_partitions(topic)
        return self._internal[topic]

    def over_table(self, topic: str, step: _Step, what: str, sweep: Callable[[Sequence[int]], Call[T]]) -> list[T]:
        """Apply `sweep` to the partitions of an internal topic, and return its results.

        It is applied to all partitions at once and, if that fails, to each one by itself.
        """
        partitions = self.internal(topic)
        try:
            swept = [self.session.call(what, sweep([tp.partition for tp in partitions]))]
        except StoreChangedError:
            raise
        except TxlogError:
            # A damaged partition must not hide the others, nor what was done to them.
            swept = []
            for tp in partitions:
                with step.attempt(tp):
                    swept.append(self.session.call(what, sweep([tp.partition])))
                    self.looked_at.add(tp)
        else:
            self.looked_at |= set(partitions)
        return swept

    def topics(self, step: _Step) -> list[TopicMetadata]:
        """Return users' topics, deleted ones included. If one cannot be read, the first step that asks has failed."""
        if self._topics is None:
            self._topics = self.maintainer.topics(step)
        return self._topics

    def partitions(self, step: _Step, *, internal: bool = True) -> list[TopicPartition]:
        """Return all partitions that can be opened, with a view of this round. Each other one is a failure of the step."""
        wanted = [
            TopicPartition(topic.topic, number) for topic in self.topics(step) for number in range(topic.partitions)
        ]
        wanted += [tp for topic in (TRANSACTION_STATE_TOPIC, CONSUMER_OFFSETS_TOPIC) for tp in self.internal(topic)]
        if not self._scanned:
            self._scanned = True
            stale = [tp for tp in wanted if tp not in self.looked_at]
            for first in range(0, len(stale), _AT_ONCE):
                self._look(stale[first : first + _AT_ONCE], step)
        return [tp for tp in wanted if tp in self.looked_at and (internal or not names.is_reserved(tp.topic))]

    def partitions_of(self, topic: TopicMetadata, step: _Step) -> list[TopicPartition]:
        """Return the partitions of one topic."""
        self.partitions(step)
        every = (TopicPartition(topic.topic, number) for number in range(topic.partitions))
        return [tp for tp in every if tp in self.looked_at]

    def is_worth_a_look(self, job: str, tp: TopicPartition) -> bool:
        """Return whether the partition has changed since `job` last looked at it, or that look is too long ago."""
        last = self.maintainer._looks.get((job, tp))
        if last is None:
            return True
        candidates, at_ms = last
        return candidates != _candidates(self.view(tp)) or self.runtime.clock.monotonic_ms() - at_ms >= _LOOK_AGAIN_MS

    def looked(self, job: str, tp: TopicPartition) -> None:
        """Remember that `job` has looked at the partition as it is now."""
        self.maintainer._looks[job, tp] = (_candidates(self.view(tp)), self.runtime.clock.monotonic_ms())

    def view(self, tp: TopicPartition) -> PartitionView:
        """Return the last view of the partition."""
        view = self.session.views.get(tp)
        return view if view is not None else self.session.fresh_views([tp], "looking at a partition")[tp]

    def _look(self, tps: Sequence[TopicPartition], step: _Step) -> None:
        try:
            self.session.fresh_views(list(tps), "looking at partitions")
            self.looked_at |= set(tps)
        except StoreChangedError:
            raise
        except TxlogError:
            # A damaged partition must not hide the others.
            for tp in tps:
                with step.attempt(tp):
                    self.session.fresh_views([tp], "looking at a partition")
                    self.looked_at.add(tp)


# -- the steps, in their order ----------------------------------------------------------------------------------------


def _transactions(a_round: _Round, step: _Step) -> None:
    """Finish decided transactions, abort overdue ones, and delete idle ids."""

    def expiring(numbers: Sequence[int]) -> Call[ExpireResult]:
        return lambda ctx, views: expire(ctx, views, numbers)

    for done in a_round.over_table(TRANSACTION_STATE_TOPIC, step, "ending transactions", expiring):
        for each in done.rolled_forward:
            step.did(f"rolled forward the transaction of {each!r}, which was decided", rolled_forward=1)
        for each in done.aborted:
            step.did(f"aborted the transaction of {each!r}, which was past its time-out", aborted=1)
        for each in done.removed:
            step.did(f"forgot the transactional.id {each!r}, idle for too long", forgotten_ids=1)
    now_ms = a_round.runtime.clock.now_ms()
    for tp in a_round.internal(TRANSACTION_STATE_TOPIC):
        view = a_round.session.views.get(tp)
        for row in view.state.transactions.values() if view is not None else ():
            if row.value.state == "ONGOING":
                step.leave(
                    f"the transaction of {row.value.transactional_id!r} is open for "
                    f"{duration_text(max(0, now_ms - row.value.started_at))}, within its time-out of "
                    f"{duration_text(row.value.timeout_ms)}"
                )


def _groups(a_round: _Round, step: _Step) -> None:
    """Delete consumer groups that are not used any more, if that was asked for."""
    idle_ms = a_round.policy.offsets_retention_ms
    if idle_ms < 0:
        return

    def forgetting(numbers: Sequence[int]) -> Call[tuple[str, ...]]:
        return lambda ctx, views: expire_groups(ctx, views, idle_ms, numbers)

    for gone in a_round.over_table(CONSUMER_OFFSETS_TOPIC, step, "forgetting groups", forgetting):
        for group in gone:
            step.did(f"forgot the consumer group {group!r}, idle for {duration_text(idle_ms)}", forgotten_groups=1)


def _deletions(a_round: _Round, step: _Step) -> None:
    """Complete interrupted deletions of topics."""
    for topic in a_round.topics(step):
        if not topic.deleted:
            continue
        for tp in (TopicPartition(topic.topic, number) for number in range(topic.partitions)):
            if tp in _opened(a_round, step) and a_round.view(tp).state.deleted_version < topic.number:
                with step.attempt(tp):
                    a_round.session.call("finishing a deletion", _ending_log(tp, topic.number))
                    step.did("ended the log of a deleted topic", tp, ended_logs=1)


def _producers(a_round: _Round, step: _Step) -> None:
    """End producers that are idle for too long by a record, also those with drawn producer ids."""
    expiration_ms = a_round.runtime.constants.producer_id_expiration_ms
    for tp in a_round.partitions(step):
        gone = 0
        for _ in range(_MAX_EXPIRES):
            if not idle_producers(a_round.view(tp).state, a_round.runtime.clock.now_ms(), expiration_ms):
                break
            ended: tuple[int, ...] = ()
            with step.attempt(tp):
                ended = a_round.session.call("ending idle producers", _ending_producers(tp))
            gone += len(ended)
            if not ended:
                break
        if gone:
            step.did(
                f"forgot {count_text(gone, 'producer')}, idle for {duration_text(expiration_ms)}",
                tp,
                forgotten_producers=gone,
            )


def _seal(a_round: _Round, step: _Step) -> None:
    """Write the indexes of finished segments."""
    for tp in a_round.partitions(step):
        finished = len(finished_segments(a_round.view(tp)))
        if not finished:
            continue

        def program(ctx: Context, views: Views, tp: TopicPartition = tp) -> Program[tuple[Views, None]]:
            view = yield from seal(ctx, views[tp])
            return {**views, tp: view}, None

        with step.attempt(tp):
            a_round.session.call("sealing", program)
            step.did(f"sealed {count_text(finished, 'segment')}", tp, sealed_segments=finished)


def _merge(a_round: _Round, step: _Step) -> None:
    """Merge many small files into a few large ones."""
    wanted = a_round.policy
    policy = MergePolicy(target_bytes=wanted.merge_target_bytes, max_ratio=wanted.merge_max_ratio)
    maintainer = a_round.maintainer
    due = []
    gone = {topic.topic for topic in a_round.topics(step) if topic.deleted}
    for tp in a_round.partitions(step, internal=False):
        candidates = _candidates(a_round.view(tp))
        if not candidates or maintainer._merged.get(tp) == candidates:
            continue
        fresh = sum(not name.generation for name in candidates)
        if fresh >= wanted.merge_min_segments:
            due.append(tp)
        elif fresh and tp.topic not in gone:
            step.leave(
                f"{count_text(fresh, 'sealed segment')} will be merged with others: from {wanted.merge_min_segments} on (`txlog merge` does it now)",
                tp,
            )
    # Only a LIST shows what other processes have merged; without it their work would be done again and discarded.
    a_round.session.forget(due)
    if maintainer.merger is not None and due:
        made, failed = maintainer.merger(due, policy)
        for merged in made:
            _tell_merged(step, merged)
        for error in failed:
            step.fail(error)
        # Every partition that failed has work left. If the store failed, do not ask it again for each partition.
        for tp in () if failed else set(due) - {merged.topic_partition for merged in made}:
            _remember(a_round, step, tp)
        return
    for tp in due:
        with step.attempt(tp), a_round.history.over(tp, "merge"):
            made = merge_partition(a_round.runtime, a_round.session, tp, policy)
            for merged in made:
                a_round.history.add_merged(merged)
                _tell_merged(step, merged)
            if made:
                a_round.session.forget([tp])
            else:
                _remember(a_round, step, tp)


def _remember(a_round: _Round, step: _Step, tp: TopicPartition) -> None:
    """Remember that no merge was due here, so that the partition is looked at only after it has changed."""
    with step.attempt(tp):
        a_round.maintainer._merged[tp] = _candidates(a_round.view(tp))


def _compact(a_round: _Round, step: _Step) -> None:
    """Keep the latest row of each key in compacted topics. Then apply their retention.bytes to the compacted size."""
    _compact_keys(a_round, step)
    if "retention" not in a_round.policy.skip:
        _retire(a_round, step, after_compaction=True)


def _compact_keys(a_round: _Round, step: _Step) -> None:
    due: dict[TopicPartition, CompactionPolicy] = {}
    for topic in a_round.topics(step):
        with step.attempt():
            if topic.deleted or compaction_policy(a_round.runtime, topic) is None:
                continue
            wanted = [tp for tp in a_round.partitions_of(topic, step) if a_round.is_worth_a_look("compact", tp)]
            # If a user ends the compaction of a topic, that holds from then on, not from the next time this process
            # looks.
            newest = a_round.maintainer.newest(topic) if wanted else None
            policy = None if newest is None else compaction_policy(a_round.runtime, newest)
            if policy is not None:
                due |= dict.fromkeys(wanted, policy)
    a_round.session.forget(list(due))
    compactor = a_round.maintainer.compactor
    if compactor is not None and due:
        made, failed = compactor(due)
        for done in made:
            _tell_compacted(step, done)
        for error in failed:
            step.fail(error)
        # As with merges.
        for tp in () if failed else due:
            with step.attempt(tp):
                a_round.looked("compact", tp)
        return
    for tp, policy in due.items():
        with step.attempt(tp), a_round.history.over(tp, "compact"):
            compacted = compact_partition(a_round.runtime, a_round.session, tp, policy)
            for done in compacted:
                a_round.history.add_compacted(done)
                _tell_compacted(step, done)
            if compacted:
                a_round.session.forget([tp])
            a_round.looked("compact", tp)


def _tell_compacted(step: _Step, done: Compacted) -> None:
    before = f"{count_text(done.rows_before, 'row')}, {bytes_text(done.bytes_before)}"
    if not done.took_effect:
        step.leave(f"compacting {before}: another was faster", done.topic_partition)
        return
    step.did(
        f"compacted {before} into {count_text(done.rows, 'row')}, {bytes_text(done.bytes)}",
        done.topic_partition,
        superseded_rows=done.superseded,
        expired_tombstones=done.expired_tombstones,
        bytes_before=done.bytes_before,
        bytes_after=done.bytes,
    )


def _retention(a_round: _Round, step: _Step) -> None:
    """Remove rows that are older, or more, than their topic keeps, so that no merge or compaction rewrites them."""
    _retire(a_round, step, after_compaction=False)


def _retire(a_round: _Round, step: _Step, *, after_compaction: bool) -> None:
    job = "retention after compaction" if after_compaction else "retention"
    for topic in a_round.topics(step):
        if topic.deleted:
            continue
        policy = _retention_now(a_round, topic, after_compaction)
        if policy is None:
            continue
        for tp in a_round.partitions_of(topic, step):
            if not a_round.is_worth_a_look(job, tp):
                continue
            with step.attempt(tp), a_round.history.over(tp, "retention"):
                plan = plan_partition(a_round.session, tp, policy)
                if plan.moves:
                    # As with a compaction: only the settings as they are now may remove rows.
                    newest = a_round.maintainer.newest(topic)
                    now = None if newest is None else _retention_now(a_round, newest, after_compaction)
                    if now != policy:
                        step.leave("the topic's settings changed; the next round goes by them", tp)
                        continue
                    apply_partition(a_round.session, plan)
                    _tell_retained(a_round, step, retained_of(plan))
                elif plan.hold is not None:
                    step.leave(f"rows that would go are held for consumer group {plan.hold.group!r}", tp)
                a_round.looked(job, tp)


def _retention_now(a_round: _Round, topic: TopicMetadata, after_compaction: bool) -> RetentionPolicy | None:
    """Return what a topic keeps, before or after its compaction, or None if it keeps everything.

    In a compacted topic only age counts before the compaction. By size, retention would remove the latest rows of keys,
    although the compaction makes room for them.
    """
    config = a_round.runtime.settings.topic_config(topic)
    policy = policy_from(config)
    waits = "compact" in config.cleanup_policy and config.retention_bytes >= 0 and "compact" not in a_round.policy.skip
    if policy is None or after_compaction:
        return policy if waits else None
    if not waits:
        return policy
    return replace(policy, retention_bytes=-1) if policy.retention_ms >= 0 else None


def _tell_retained(a_round: _Round, step: _Step, gone: Retained) -> None:
    a_round.history.add_retained(gone)
    step.did(
        f"moved the log start from {gone.log_start_before} to {gone.log_start_after}, by {gone.setting}: "
        f"{count_text(gone.rows, 'row')}, {bytes_text(gone.bytes)}",
        gone.topic_partition,
        retired_rows=gone.rows,
        retired_bytes=gone.bytes,
    )
    if gone.held_by is not None:
        step.leave(f"later rows are held for consumer group {gone.held_by!r}", gone.topic_partition)


def _vacuum(a_round: _Round, step: _Step) -> None:
    """Delete the objects that no reader or writer can still use, once `delete.grace.ms` has passed."""
    maintainer = a_round.maintainer
    now_ms = a_round.runtime.clock.monotonic_ms()
    grace_ms = a_round.runtime.constants.delete_grace_ms
    interval_ms = a_round.policy.vacuum_interval_ms
    if interval_ms is None:
        interval_ms = min(_VACUUM_INTERVAL_MS, grace_ms // 4)
    if maintainer._vacuumed_at_ms is not None and now_ms - maintainer._vacuumed_at_ms < interval_ms:
        return
    with step.attempt():
        report = vacuum(a_round.runtime, maintainer._vacuum_session, dry_run=False)
        maintainer._vacuumed_at_ms = now_ms
        with a_round.history.running("vacuum"):
            for tp, (objects, size) in report.by_partition().items():
                a_round.history.add(tp, "deleted", deleted_objects=objects, deleted_bytes=size)
                step.did(
                    f"deleted {count_text(objects, 'object')} that nothing needs, {bytes_text(size)}",
                    tp,
                    deleted_objects=objects,
                    deleted_bytes=size,
                )
        if report.waiting:
            known = [each.until_ms for each in report.waiting if each.until_ms is not None]
            until = f" of {duration_text(grace_ms)}, the first until {time_text(min(known))}" if known else ""
            step.leave(
                f"{count_text(len(report.waiting), 'object')} that nothing needs wait for the end of the grace{until}"
            )
        for each in report.failed:
            step.fail(CorruptLogError(f"{each.topic}: {each.error}"))


def _candidates(view: PartitionView) -> tuple[SegmentName, ...]:
    """Return everything that a plan of merges depends on: indexes do not change, and the log start counts by segment."""
    log_start, stable = view.state.log_start_offset, view.state.last_stable_offset
    return tuple(name for name in view.walk if log_start < name.end_offset <= stable)


def _tell_merged(step: _Step, merged: Merged) -> None:
    before = f"{count_text(merged.segments_before, 'segment')}, {count_text(merged.files_before, 'file')}, {bytes_text(merged.bytes_before)}"
    if not merged.took_effect:
        step.leave(f"merging {before}: another was faster", merged.topic_partition)
        return
    step.did(
        f"merged {before} into {count_text(merged.files, 'file')}, {bytes_text(merged.bytes)}",
        merged.topic_partition,
        merged_segments=merged.segments_before,
        bytes_before=merged.bytes_before,
        bytes_after=merged.bytes,
    )


def _ending_log(tp: TopicPartition, deleted_version: int) -> Call[int]:
    return lambda ctx, views: append_log_start(ctx, views, tp, None, deleted_version)


def _ending_producers(tp: TopicPartition) -> Call[tuple[int, ...]]:
    return lambda ctx, views: expire_producers(ctx, views, tp)


def _opened(a_round: _Round, step: _Step) -> Iterable[TopicPartition]:
    a_round.partitions(step)
    return a_round.looked_at


_STEPS: dict[str, Callable[[_Round, _Step], None]] = {
    "transactions": _transactions,
    "groups": _groups,
    "deletions": _deletions,
    "producers": _producers,
    "seal": _seal,
    "retention": _retention,
    "merge": _merge,
    "compact": _compact,
    "vacuum": _vacuum,
}
STEPS = tuple(_STEPS)
"""The steps of a round, in their order."""
