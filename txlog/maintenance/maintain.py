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

from collections.abc import Callable
from dataclasses import dataclass

from txlog.client import reading
from txlog.client.session.runtime import Runtime
from txlog.core.cleaning import DEFAULT_MIN_SEGMENTS, DEFAULT_TARGET_BYTES
from txlog.core.names import SegmentName, TopicPartition
from txlog.core.records import TopicMetadata
from txlog.errors import InvalidRequestError, StoreChangedError, TxlogError
from txlog.maintenance.erase import Course
from txlog.maintenance.history import recorded
from txlog.maintenance.round import MAX_NAMED, Action, MaintainReport, Round, RoundStoppedError, Step, StepReport
from txlog.maintenance.steps import WORK
from txlog.maintenance.workers import Workers
from txlog.publication.cache import PublicationCache

__all__ = ["MAX_NAMED", "STEPS", "Action", "MaintainPolicy", "MaintainReport", "Maintainer", "StepReport"]

STEPS = tuple(WORK)
"""The steps of a round, in their order."""

_MAX_HELD = 16_384
"""Views that are kept from one round to the next. Other partitions are opened again."""


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


class Maintainer:
    """Run rounds over one store, and remember between rounds what need not be looked at again."""

    def __init__(
        self,
        runtime: Runtime,
        policy: MaintainPolicy | None = None,
        *,
        should_stop: Callable[[], bool] = lambda: False,
        workers: Workers | None = None,
    ) -> None:
        self.runtime = runtime
        self.policy = policy or MaintainPolicy()
        self.should_stop = should_stop
        """Called between two steps, and between two partitions of a step."""
        self.workers = workers
        """Copy the rows of merges and compactions, and delete what vacuum found. None: this process does it."""
        self.session = reading.read_session(runtime)
        self.first_error: TxlogError | None = None
        """First error of the last round; a program may end with it."""
        self.known_topics: dict[str, tuple[TopicMetadata, int]] = {}
        """Metadata of users' topics, and when they were read."""
        self.merged: dict[TopicPartition, tuple[SegmentName, ...]] = {}
        """Segments in which the last plan found nothing to merge."""
        self.looks: dict[tuple[str, TopicPartition], tuple[tuple[SegmentName, ...], int]] = {}
        """What a job last looked at in a partition, and when. What depends on time is looked at again."""
        self.erasures: dict[str, Course] = {}
        """By id: what was looked at for erasures that have not ended."""
        self.published = PublicationCache()
        """What the next publication of a topic need not read again."""
        self.vacuum_session = reading.read_session(runtime)
        # Vacuum drops its views after each use, so it has its own session. The other steps need views that stay.
        self.vacuumed_at_ms: int | None = None

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
            a_round = Round(self, history)
            for name, work in WORK.items():
                if name in self.policy.skip:
                    continue
                if self.should_stop():
                    whole = False
                    break
                step = Step(self, name)
                try:
                    # The next steps delete by the clock, which may have changed since the last step.
                    self.runtime.ensure_writable()
                    work(a_round, step)
                except RoundStoppedError:
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

    def check_stop(self) -> None:
        """Raise RoundStoppedError if the round was asked to stop."""
        if self.should_stop():
            raise RoundStoppedError
