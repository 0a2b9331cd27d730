"""What does a round of maintenance share between its steps, and what does it report?"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import msgspec

from txlog.core import names
from txlog.core.effects import Program
from txlog.core.names import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, SegmentName, TopicPartition
from txlog.core.records import TopicMetadata
from txlog.errors import (
    OutcomeUnknownError,
    RetriableError,
    StoreChangedError,
    TxlogError,
    UnknownTopicOrPartitionError,
)
from txlog.logs import Fields, log
from txlog.maintenance.history import Recorder
from txlog.protocol import topics as topic_protocol
from txlog.protocol.context import PartitionView, Views
from txlog.protocol.requests import names_in, partitions_in_use

if TYPE_CHECKING:
    from txlog.maintenance.maintain import Maintainer

_LOG = logging.getLogger(__name__)
_LEVELS = {"done": logging.INFO, "left": logging.DEBUG, "failed": logging.WARNING}
T = TypeVar("T")

MAX_NAMED = 1_000
"""A report names this many actions and this many things that were left; further ones are only counted."""
_AT_ONCE = 512
"""Partitions that are looked at together."""
_LOOK_AGAIN_MS = 300_000
"""Kafka's `log.retention.check.interval.ms`: how often the round looks for work that becomes due only with time."""


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


class RoundStoppedError(Exception):
    """The round was asked to stop."""


class Step:
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
        self._note("failed", " ".join((f"{error}{again}", *getattr(error, "__notes__", ()))), tp)

    @contextlib.contextmanager
    def attempt(self, tp: TopicPartition | None = None) -> Iterator[None]:
        """Record an error of the work inside the `with` block, and go on."""
        self._maintainer.check_stop()
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
        place: Fields = {"step": self.name} if tp is None else {"step": self.name, "topic_partition": str(tp)}
        where = "" if tp is None else f"{tp}: "
        log(
            _LOG,
            _LEVELS[kind],
            f"maintenance_{kind}",
            "maintain, %s: %s%s",
            self.name,
            where,
            text,
            **place,
        )
        if len(self._actions[kind]) < MAX_NAMED:
            self._actions[kind].append(
                Action(text=text, topic=tp.topic if tp else None, partition=tp.partition if tp else None)
            )


class Round:
    """What the steps of one round share: topics and partitions, looked up when they are first needed."""

    def __init__(self, maintainer: Maintainer, history: Recorder) -> None:
        self.maintainer = maintainer
        self.runtime = maintainer.runtime
        self.session = maintainer.session
        self.policy = maintainer.policy
        self.history = history
        self.looked_at: set[TopicPartition] = set()
        self._topics: list[TopicMetadata] | None = None
        self._has_erasures = False
        self._scanned = False
        self._internal: dict[str, list[TopicPartition]] = {}

    def internal(self, topic: str) -> list[TopicPartition]:
        """Return the partitions of an internal topic that are not empty. Costs one LIST."""
        if topic not in self._internal:
            self._internal[topic] = self.runtime.run(partitions_in_use(topic))
        return self._internal[topic]

    def over_table(self, topic: str, step: Step, what: str, sweep: Callable[..., Program[tuple[Views, T]]]) -> list[T]:
        """Apply `sweep` to the `partitions` of an internal topic, and return its results, as `_together`."""

        def swept(tps: Sequence[TopicPartition]) -> T:
            return self.session.call(what, partial(sweep, partitions=[tp.partition for tp in tps]))

        return self._together(self.internal(topic), step, swept)

    def topics(self, step: Step) -> list[TopicMetadata]:
        """Return users' topics, deleted ones included, at most `metadata.max.age.ms` old.

        If a topic cannot be read, the first step that asks has failed. Costs one LIST, and two requests for each topic
        that is looked up.
        """
        if self._topics is None:
            now_ms = self.runtime.clock.monotonic_ms()
            root = self.runtime.run(names_in(""))
            self._has_erasures = names.ERASURES_FOLDER in root
            listed = topic_protocol.topics_in(root)
            oldest_ms = now_ms - self.session.metadata_max_age_ms
            before = self.maintainer.known_topics
            known = {name: before[name] for name in listed if name in before and before[name][1] > oldest_ms}
            for name in listed:
                if name in known:
                    continue
                with step.attempt():
                    found = self.runtime.run(topic_protocol.find_topic(name))
                    if found is not None:
                        known[name] = (found, now_ms)
                        if not found.deleted:
                            self.runtime.remember_topic(found)
            self.maintainer.known_topics = known
            self._topics = [known[name][0] for name in listed if name in known]
        return self._topics

    def has_erasures(self, step: Step) -> bool:
        """Return whether there may be erasures that have not ended. Costs nothing beside `topics`."""
        self.topics(step)
        return self._has_erasures

    def newest(self, topic: TopicMetadata) -> TopicMetadata | None:
        """Return the topic's metadata as they are now, or None if the topic was deleted or created again.

        A step that removes rows by the topic's settings must use these (PROTOCOL.md, W45).
        """
        found = self.runtime.run(topic_protocol.find_topic(topic.topic))
        if found is None or found.deleted or found.topic_id != topic.topic_id:
            return None
        self.maintainer.known_topics[topic.topic] = (found, self.runtime.clock.monotonic_ms())
        self.runtime.remember_topic(found)
        return found

    def partitions(self, step: Step, *, internal: bool = True) -> list[TopicPartition]:
        """Return all partitions that can be opened, with a view of this round.

        Each other one is a failure of the step.
        """
        wanted = [
            TopicPartition(topic.topic, number) for topic in self.topics(step) for number in range(topic.partitions)
        ]
        wanted += [tp for topic in (TRANSACTION_STATE_TOPIC, CONSUMER_OFFSETS_TOPIC) for tp in self.internal(topic)]
        if not self._scanned:
            self._scanned = True
            stale = [tp for tp in wanted if tp not in self.looked_at]
            for first in range(0, len(stale), _AT_ONCE):
                self._together(stale[first : first + _AT_ONCE], step, self._fresh_views)
        return [tp for tp in wanted if tp in self.looked_at and (internal or not names.is_reserved(tp.topic))]

    def partitions_of(self, topic: TopicMetadata, step: Step) -> list[TopicPartition]:
        """Return the partitions of one topic."""
        self.partitions(step)
        every = (TopicPartition(topic.topic, number) for number in range(topic.partitions))
        return [tp for tp in every if tp in self.looked_at]

    def is_worth_a_look(self, job: str, tp: TopicPartition) -> bool:
        """Return whether the partition has changed since `job` last looked at it, or that look is too long ago."""
        last = self.maintainer.looks.get((job, tp))
        if last is None:
            return True
        candidates, at_ms = last
        return candidates != candidates_of(self.view(tp)) or self.runtime.clock.monotonic_ms() - at_ms >= _LOOK_AGAIN_MS

    def looked(self, job: str, tp: TopicPartition) -> None:
        """Remember that `job` has looked at the partition as it is now."""
        self.maintainer.looks[job, tp] = (candidates_of(self.view(tp)), self.runtime.clock.monotonic_ms())

    def view(self, tp: TopicPartition) -> PartitionView:
        """Return the last view of the partition."""
        view = self.session.views.get(tp)
        return view if view is not None else self._fresh_views([tp])[tp]

    def until_stopped(self, partitions: Iterable[TopicPartition]) -> Iterator[TopicPartition]:
        """Yield partitions until the round is asked to stop."""
        for tp in partitions:
            self.maintainer.check_stop()
            yield tp

    def _fresh_views(self, tps: Sequence[TopicPartition]) -> Views:
        return self.session.fresh_views(list(tps), f"looking at {'partitions' if len(tps) > 1 else 'a partition'}")

    def _together(
        self, tps: Sequence[TopicPartition], step: Step, work: Callable[[Sequence[TopicPartition]], T]
    ) -> list[T]:
        """Return the results of `work` on all partitions at once or, if that fails, on each one by itself."""
        try:
            found = [work(tps)]
        except StoreChangedError:
            raise
        except TxlogError:
            # A damaged partition must not hide the others, nor what was done to them.
            found = []
            for tp in tps:
                with step.attempt(tp):
                    found.append(work([tp]))
                    self.looked_at.add(tp)
        else:
            self.looked_at |= set(tps)
        return found


def candidates_of(view: PartitionView) -> tuple[SegmentName, ...]:
    """Return all that a plan of merges depends on: indexes do not change, and the log start counts by segment."""
    log_start, stable = view.state.log_start_offset, view.state.last_stable_offset
    return tuple(name for name in view.walk if log_start < name.end_offset <= stable)
