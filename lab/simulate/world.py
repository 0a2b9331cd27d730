"""What happens in one world, from its seed to its verdict?

Five producers (two banks, two pipelines, one kind without transactions) and the other actors come and go. Several
instances of one id may run at a time. Between any two requests of one process others may run. A request may be lost,
late, silently applied, or refused. A process may die in it, or sleep for a second, a timeout or more than the grace.
Meanwhile segments are sealed and their slots deleted. Every process has a clock with an error, including those that
delete, and the grace may be shorter than that error. In some worlds wall clocks jump both ways, or a monotonic clock
does not count a machine's sleep. In one world of four the store is restored to an older state once, while processes run
that know the newer one. Then the faults end, everything recovers, the log is read once more, and the history goes to
the checker.
"""

from __future__ import annotations

import hashlib
import itertools
import random
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from lab.histories.anomaly import Anomaly
from lab.histories.checker import Report, check
from lab.histories.events import Event, Isolation, Note, TopicPolicy
from lab.histories.inspection import inspect_partition, inspect_transactions
from lab.histories.recorder import Recorder, encode_history
from lab.simulate.actors import live
from lab.simulate.client import Client
from lab.simulate.cluster import FAULTS_OF_FILES, FAULTS_OF_READS, FAULTS_OF_WRITES, Cluster, Fault, Machine, WriteFile
from lab.simulate.keepers import expire_idle_producers, make_drafts
from lab.simulate.life import (
    ACCOUNTS,
    BANKS,
    DRAFTS,
    EVENTS,
    GROUP,
    PARTITIONS,
    PIPELINES,
    USERS,
    WATCHERS,
    GaveUpError,
    Habits,
    Life,
)
from lab.simulate.remains import wrong_objects, wrong_uncommitted
from lab.simulate.sharers import SHARERS, Readers
from lab.simulate.task import Fiber, Task
from txlog.core.ages import MAX_CLOCK_SKEW_MS
from txlog.core.append_rules import RollPolicy
from txlog.core.effects import Program, PutIfAbsent, WriteRows
from txlog.core.records import StoreConstants
from txlog.errors import (
    AbortableError,
    FencedError,
    MissingObjectError,
    OffsetOutOfRangeError,
    OutcomeUnknownError,
    RetriableError,
)
from txlog.protocol.context import PROOF_AGE_MS, Context, Views

SECOND_MS, MINUTE_MS, HOUR_MS, DAY_MS = 1_000, 60_000, 3_600_000, 86_400_000
GRACES_MS = (DAY_MS, DAY_MS, 10 * MINUTE_MS, MINUTE_MS)
"""The default and, equally often, a grace that is shorter than the error of a clock."""
SKEWS_MS = (0, 0, -SECOND_MS, SECOND_MS, -MAX_CLOCK_SKEW_MS, MAX_CLOCK_SKEW_MS)
"""The possible errors of a process's clock against the store's (W2)."""
JUMPS_MS = (
    SECOND_MS, 61 * SECOND_MS, 20 * MINUTE_MS, 2 * HOUR_MS, 25 * HOUR_MS, 8 * DAY_MS,
)  # fmt: skip
"""The jumps of a wall clock, in both directions."""
Trouble: TypeAlias = Literal["none", "jumps", "sleeps", "one host"]
"""How clocks change beside their skews.

Wall clocks of processes jump, or machines sleep and their monotonic clocks do not count it, or all processes and the
store share one wall clock, which is set.
"""
LEVELS: tuple[Isolation, ...] = ("read_committed", "read_uncommitted")
DEFAULT_STEPS = 2_000
LIVING_ON = 12
"""The number of processes that know the newer store and continue after it was put back."""
MAX_SETTLING_STEPS = 60_000
"""The maximum number of steps until a world is at rest: more steps mean a livelock."""

EXPECTED_ERRORS = (
    AbortableError,
    FencedError,
    GaveUpError,
    OffsetOutOfRangeError,
    OutcomeUnknownError,
    RetriableError,
)
"""Errors with which a process may end; any other error is a bug."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The verdict on one world."""

    seed: int
    steps: int
    report: Report
    trouble: tuple[str, ...]
    """What failed beside the history: an error that no client should get, or a world that did not come to rest."""
    digest: str
    """Digest of the whole history and of every object in the store."""
    requests: int
    faults: int
    deaths: int
    events: tuple[Event, ...] = field(repr=False)

    @property
    def ok(self) -> bool:
        return not self.trouble and not self.report.anomalies

    @property
    def anomalies(self) -> tuple[Anomaly, ...]:
        return self.report.anomalies

    def __str__(self) -> str:
        return "\n".join([*self.trouble, *map(str, self.anomalies)]) or f"seed {self.seed}: no anomaly"


class World:
    """The world of one seed. Call `run` once."""

    def __init__(self, seed: int, steps: int = DEFAULT_STEPS) -> None:
        self.seed = seed
        self.steps = steps
        self.random = random.Random(seed)
        self.cluster = Cluster()
        self.recorder = Recorder("world", self.cluster)
        self.trouble: list[str] = []
        self.readers = Readers()
        self.deaths = 0
        self._numbers = itertools.count(1)
        self._tasks: dict[str, Task] = {}
        self._weights: dict[str, float] = {}
        choice = self.random.choice
        roll = RollPolicy(batches=choice([1, 2, 3, 5, 20, 100]))
        self._grace_ms = choice(GRACES_MS)
        self._ctx = Context(
            constants=StoreConstants(
                transaction_state_partitions=2, consumer_offsets_partitions=2, delete_grace_ms=self._grace_ms
            ),
            roll={tp.topic: roll for tp in PARTITIONS},
            internal_roll=RollPolicy(batches=choice([1, 3, 5, 20, 100])),
            max_settles=choice([1, 2, 40, 40]),
        )
        rivals = choice([True, False])
        remakers = choice([0, 0, 2, 4])
        self._habits = Habits(
            timeout_ms=choice([(60_000,), (5_000, 60_000), (900_000,)]),
            rivals=rivals,
            by_generation=choice([True, False]),
            aborts=choice([0, 0.2, 0.5]),
            staged=choice([0, 0.3, 0.7, 1]),
            most=choice([2, 5, 20]),
            drafts=choice([0.5, 0.9]) if remakers else 0,
        )
        self._crowd = choice([3, 5, 8])
        self._fault_rate = choice([0, 0.01, 0.03, 0.1, 0.3])
        self._death_rate = choice([0.1, 0.3])
        self._sleep_rate = choice([0, 0.001, 0.004, 0.01])
        troubles: tuple[Trouble, ...] = ("none", "jumps", "sleeps", "one host")
        self._clocks: Trouble = choice(troubles)
        self._jump_rate = choice([0.01, 0.03]) if self._clocks in ("jumps", "one host") else 0
        self._may_go_back_at_ms = 0
        kinds = [*BANKS, *(PIPELINES if rivals else PIPELINES[:1]), "plain", "tail", "watcher", "auditor", "sweeper"]
        self.kinds = [kind for kind in kinds for _ in range(self.random.randint(0, 3))] or [*BANKS]
        if rivals:
            self.kinds += PIPELINES * 2
        sharers = random.Random(seed).choice([0, 0, 10, 100])
        self.kinds += ["sharer"] * sharers
        self._calm = sharers > 10
        """Whether little time is lost: otherwise hardly a member outlives the few requests of its join."""
        self.kinds += ["merger"] * choice([0, 1, 4])
        self.kinds += ["compactor"] * choice([0, 1, 4])
        self.kinds += ["vacuum"] * choice([0, 1, 2]) + ["retention"] * choice([0, 1])
        if remakers:
            self.kinds += ["remaker"] * remakers + [*BANKS, "plain"] * 4
            self.kinds += ["evolver"] * random.Random(seed).choice([0, 2, 4])
        else:
            # If topics are created again, rows of a snapshot disappear for another reason.
            self.kinds += ["looker"] * random.Random(seed).choice([0, 0, 1, 2])
        self.goes_back = choice([True, False, False, False]) and not remakers
        """Whether the store is put back to an older state once, between the calls of processes that live on."""
        self._living: list[tuple[str, Machine, Client]] = []

    def run(self) -> Result:
        self.recorder.single("world", TopicPolicy(topic=USERS.topic, compacted=True))
        try:
            if "remaker" in self.kinds:
                self._run_alone("remaker", make_drafts)
            self._live(self.steps - self.steps // 4 if self.goes_back else self.steps)
            if self.goes_back:
                self._go_back(self.steps // 4)
            self._settle()
            if "remaker" in self.kinds:
                self._run_alone("versions", self._check_versions)
        except _NoRestError as error:
            self.trouble.append(str(error))
        rests = not self.trouble
        self.trouble += self.readers.trouble
        self.trouble += wrong_objects(self.cluster.objects, self._ctx.constants, settled=rests)
        self.trouble += wrong_uncommitted(self.recorder.events, self.cluster.objects)
        history = encode_history(self.recorder.events)
        digest = hashlib.sha256(history)
        for path in sorted(self.cluster.objects):
            digest.update(path.encode() + b"\0" + self.cluster.objects[path])
        return Result(
            seed=self.seed,
            steps=self.steps,
            report=check(self.recorder.events),
            trouble=tuple(f"seed {self.seed}: {each}" for each in self.trouble),
            digest=digest.hexdigest(),
            requests=self.cluster.requests,
            faults=self.cluster.faults,
            deaths=self.deaths,
            events=tuple(self.recorder.events),
        )

    def _live(self, steps: int) -> None:
        for _ in range(steps):
            while len(self._tasks) < self._crowd:
                self._spawn()
            self._step(self._fault_rate)
            self._weather()

    def _go_back(self, steps: int) -> None:
        """Copy the store while no process runs, let the world continue, and put the store back between all calls.

        Everything since the copy is lost, so its history is removed, too. Some processes live on with their knowledge
        of partitions. They must notice the change (W47). Otherwise the log is damaged, and rows are missing at the end.
        """
        self._rest()
        self._land_all()
        objects, written = dict(self.cluster.objects), dict(self.cluster.written_at_ms)
        events, newest = len(self.recorder.events), dict(self.readers.newest)
        self._living = []
        self._live(steps)
        self._rest()
        self._land_all()
        self.cluster.objects, self.cluster.written_at_ms = objects, written
        del self.recorder.events[events:]
        self.readers.newest = newest
        self._pass(PROOF_AGE_MS)
        self.recorder.single("weather", Note(text="the store is put back to an older state"))
        for kind, machine, client in self._living[-LIVING_ON:]:
            self._start(kind, lambda life, kind=kind: live(kind, life), machine, client.views)
        self._rest()

    # -- processes ----------------------------------------------------------------------------------------------------

    def _spawn(self) -> None:
        kind = self.random.choice(self.kinds)
        name = self._start(kind, lambda life: live(kind, life))
        # Some are as slow as if they slept, and make their next request long after the one before.
        self._weights[name] = self.random.choice([0.01, 0.1, 1, 1, 1])

    def _start(self, kind: str, program: Any, before: Machine | None = None, views: Views | None = None) -> str:
        """Start a process; `before` and `views` belong to a process that lives on."""
        name = f"{kind}#{next(self._numbers)}"
        skew_ms = self.cluster.store_skew_ms if self._clocks == "one host" else self.random.choice(SKEWS_MS)
        machine = Machine(name, skew_ms=skew_ms, monotonic_base_ms=self.random.randrange(10**9))
        if before is not None:
            machine = replace(before, name=name)
        client = Client(machine, self._ctx, self.recorder, lambda: next(self._numbers))
        client.views = views or {}
        if self.goes_back:
            self._living.append((kind, machine, client))
        life = Life(client, random.Random(self.random.random()), self._habits, self.cluster, self.readers)
        self._tasks[name] = Task(self.cluster, machine, program(life))
        self._weights[name] = 1
        return name

    def _step(self, fault_rate: float) -> None:
        ready = [(name, fiber) for name, task in self._tasks.items() for fiber in task.ready(self.cluster.passed_ms)]
        if not ready:
            wakes = [task.wakes_at_ms for task in self._tasks.values()]
            self.cluster.passed_ms = min(ms for ms in wakes if ms is not None)
            return
        name, fiber = self.random.choices(ready, [self._weights[name] for name, _ in ready])[0]
        task = self._tasks[name]
        task.step(fiber, self._fault(fiber, fault_rate))
        if task.done:
            self._end(name, task)

    def _end(self, name: str, task: Task) -> None:
        del self._tasks[name]
        # A process whose requests are days apart lists again and again, and vacuum is faster each time.
        outrun = self._weights.pop(name) < 1 and isinstance(task.error, MissingObjectError)
        if task.died:
            self.deaths += 1
            self.recorder.single(name, Note(text="died"))
        elif task.error is not None:
            self.recorder.single(name, Note(text=f"ended: {task.error!r}"[:300]))
            if not outrun and not isinstance(task.error, EXPECTED_ERRORS):
                self.trouble.append(f"{name} met an error that no client should: {task.error!r}")

    def _fault(self, fiber: Fiber, rate: float) -> Fault | None:
        if fiber.request is None or self.random.random() >= rate:
            return None
        if isinstance(fiber.request, PutIfAbsent):
            fault = self.random.choice(FAULTS_OF_WRITES)
        elif isinstance(fiber.request, WriteRows | WriteFile):
            fault = self.random.choice(FAULTS_OF_FILES)
        else:
            fault = self.random.choice(FAULTS_OF_READS)
        return None if fault.startswith("crash") and self.random.random() > self._death_rate else fault

    # -- faults -------------------------------------------------------------------------------------------------------

    def _weather(self) -> None:
        self.cluster.passed_ms += self.random.choice([0, 0, 1, 5, 20])
        dice = self.random.random()
        if dice < 0.1 and self.cluster.in_flight:
            path = self.cluster.land(self.random.randrange(len(self.cluster.in_flight)))
            self.recorder.single("weather", Note(text=f"landed {path}"))
        elif dice < 0.105:
            if not self._calm or self.random.random() < 0.1:
                self._pass(self.random.choice([SECOND_MS, 61 * SECOND_MS, 16 * MINUTE_MS]))
        elif self._calm and self.random.random() < 0.9:
            return
        elif dice < 0.105 + self._sleep_rate:
            grace_ms = self._grace_ms
            self._pass(self.random.choice([grace_ms // 10, grace_ms // 2, grace_ms, grace_ms, 8 * DAY_MS]))
            # Maintenance can do this during such a night, while slow processes sleep.
            if self.random.random() < 0.5:
                self._run_alone("merger", lambda life: live("merger", life))
            if self.random.random() < 0.5:
                self._run_alone("compactor", lambda life: live("compactor", life))
            if self.random.random() < 0.7:
                self._run_alone("vacuum", lambda life: live("vacuum", life))
            if self.random.random() < 0.5:
                self._run_alone("sweeper", expire_idle_producers)
        elif dice < 0.105 + self._sleep_rate + self._jump_rate:
            self._jump()

    def _jump(self) -> None:
        names = list(self._tasks)
        jump_ms = self.random.choice(JUMPS_MS) * self.random.choice([-1, 1])
        if self._clocks == "one host":
            # No rule covers a jump forward and back within the age of a view
            # (PROTOCOL.md, "What is promised, and what is not").
            if jump_ms < 0 and self.cluster.passed_ms < self._may_go_back_at_ms:
                return
            if jump_ms > 0:
                self._may_go_back_at_ms = self.cluster.passed_ms + self._grace_ms
            self.cluster.store_skew_ms += jump_ms
        else:
            names = [self.random.choice(names)]
        for name in names:
            self._tasks[name].machine.skew_ms += jump_ms
        self.recorder.single("weather", Note(text=f"the clock of {', '.join(names)} jumps by {jump_ms} ms"))

    def _pass(self, ms: int) -> None:
        self.cluster.passed_ms += ms
        for task in self._tasks.values():
            if self._clocks == "sleeps" and self.random.random() < 0.5:
                task.machine.stopped_ms += ms
        self.recorder.single("weather", Note(text=f"{ms} ms pass"))

    # -- the end ------------------------------------------------------------------------------------------------------

    def _rest(self) -> None:
        """End the faults, and let every living process finish."""
        for _ in range(MAX_SETTLING_STEPS):
            if not self._tasks:
                break
            self._step(0)
            self.cluster.passed_ms += 1
        else:
            raise _NoRestError(f"{sorted(self._tasks)} did not end in {MAX_SETTLING_STEPS} steps of fair weather")

    def _settle(self) -> None:
        """Let everything come to rest, let new instances of all ids take over, and land all writes in flight."""
        self._rest()
        self._recover()
        if "remaker" in self.kinds:
            # If a deletion of the topic is not finished, this finishes it.
            self._run_alone("remaker", make_drafts)
        self._land_all()
        for _ in range(2):
            for kind in ("merger", "compactor"):
                self._run_alone(kind, lambda life, kind=kind: live(kind, life))
            self._pass(self._grace_ms)
            self._run_alone("vacuum", lambda life: live("vacuum", life))
        self._recover()
        self._run_alone("final", _read_all)

    def _check_versions(self, life: Life) -> Program[None]:
        """Check the columns of the topic that is deleted, created again and evolved."""
        self.trouble += yield from life.client.check_versions(DRAFTS.topic)

    def _land_all(self) -> None:
        while self.cluster.in_flight:
            self.cluster.land(0)

    def _recover(self) -> None:
        for transactional_id in (*BANKS, *PIPELINES):
            self._run_alone(transactional_id, lambda life, name=transactional_id: life.client.init(name, 60_000))

    def _run_alone(self, kind: str, program: Any) -> None:
        """Run a process without faults."""
        name = self._start(kind, program)
        task = self._tasks[name]
        for _ in range(MAX_SETTLING_STEPS):
            if task.done:
                self._end(name, task)
                return
            ready = task.ready(self.cluster.passed_ms)
            if ready:
                task.step(ready[0])
            else:
                self.cluster.passed_ms = task.wakes_at_ms or self.cluster.passed_ms
        raise _NoRestError(f"{name} did not end in {MAX_SETTLING_STEPS} steps")


def simulate(seed: int, steps: int = DEFAULT_STEPS) -> Result:
    """Run one world. The same seed and steps give the same history and the same store, byte for byte."""
    return World(seed, steps).run()


def _read_all(life: Life) -> Program[None]:
    """Read everything for the last time, after the recovery."""
    client = life.client
    for tp in PARTITIONS:
        for isolation in LEVELS:
            client.go_elsewhere(tp)
            yield from client.poll(tp, -1, isolation=isolation, final=True, again=True)
        yield from client.look(tp)
        client.record((yield from inspect_partition(client.ctx, tp, final=True)))
    yield from client.fetch(GROUP, ACCOUNTS, final=True)
    yield from client.fetch(WATCHERS, [EVENTS], final=True)
    yield from client.fetch(SHARERS, ACCOUNTS, final=True)
    client.record((yield from inspect_transactions(client.ctx)))


class _NoRestError(Exception):
    """A world that does not come to rest."""
