"""Many processes, many faults, one seed: clients, maintenance and readers take turns at every request.

The clients share a few transactional.ids. Maintenance expires transactions, seals and cleans. At the end the simulation
compares the log with the answers that the clients got.

A request may be lost, be late, be applied without an answer, or fail. At any request a process may die or sleep: for a
second, for a timeout, or for more than the grace period. `Simulation(seed).run()` raises AssertionError and prints the
story.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

from tests.protocol.harness import (
    GRACE_MS,
    A,
    B,
    C,
    Cluster,
    Died,
    Fault,
    Process,
    Task,
    rolling,
)
from txlog.config import IsolationLevel
from txlog.core import envelope, names
from txlog.core.effects import PutIfAbsent, WriteRows
from txlog.core.groups import OffsetsCondition
from txlog.core.names import SegmentObject, TopicPartition
from txlog.core.records import Boundary
from txlog.errors import (
    AbortableError,
    FencedError,
    OutcomeUnknownError,
    RetriableError,
    TxlogError,
)
from txlog.protocol import expiry
from txlog.protocol.load import load, refresh
from txlog.protocol.read import plan_read
from txlog.protocol.seal import seal

PARTITIONS = (A, B, C)
LEVELS: tuple[IsolationLevel, ...] = ("read_committed", "read_uncommitted")


@dataclass
class Story:
    """A transaction as its client saw it."""

    tag: str
    parts: set[TopicPartition] = field(default_factory=set)
    offset: tuple[int, int] | None = None
    """(committed offset at the start, the offset that it commits)."""
    outcome: str = "unknown"


class Simulation:
    """The run of one seed."""

    def __init__(self, seed: int, steps: int = 400) -> None:
        self.random = random.Random(seed)
        self.steps = steps
        self.cluster = Cluster()
        self.ctx = replace(
            rolling(self.random.choice([1, 2, 3, 5, 100])), max_settles=self.random.choice([1, 2, 40, 40])
        )
        self.stories: list[Story] = []
        self.plain: dict[str, str] = {}
        """Words of idempotent producers -> acknowledged, unknown or failed."""
        self.readings: dict[int, tuple[TopicPartition, IsolationLevel, int, int, dict[int, str]]] = {}
        self.tasks: dict[str, Task] = {}
        self.stable: dict[TopicPartition, tuple[int, dict[int, str]]] = {}
        self.sealed_at: dict[str, int] = {}
        self.calm = self.random.random() * 0.9
        # Each seed has its own rates (swarm testing): a fault that is rare in one seed is common in another.
        self.sleep_rate = self.random.choice([0, 0, 0.01, 0.03])
        self.offsets_rate = self.random.choice([0.1, 0.5, 1])
        self.kinds = [
            kind for kind in ("x", "y", "plain", "maintenance", "reader") for _ in range(self.random.randint(0, 3))
        ]
        self.kinds = self.kinds or ["x", "y"]
        self.weights: dict[str, float] = {}
        self.story: list[str] = []
        self.numbers = iter(range(10**9))

    # -- actors -------------------------------------------------------------------------------------------------------

    def client(self, transactional_id: str) -> Any:
        """Run transactions of one instance until it is fenced or has ended three of them."""
        process = Process(self.cluster, transactional_id, self.ctx)
        choose = random.Random(self.random.random())
        try:
            yield from self.patiently(lambda: process.init(self.random.choice([60_000, 900_000])))
            for _ in range(choose.randint(1, 3)):
                yield from self.transaction(process, choose)
        except FencedError:
            return

    def transaction(self, process: Process, choose: random.Random) -> Any:
        story = Story(f"t{next(self.numbers)}")
        self.stories.append(story)
        style = choose.choice(["eager", "staged", "mixed"])
        chosen = [tp for tp in PARTITIONS if choose.random() < 0.6] or [A]
        try:
            for tp in chosen:
                story.parts.add(tp)
                if style == "staged" or (style == "mixed" and choose.random() < 0.5):
                    process.stage(tp, f"{story.tag}.0", f"{story.tag}.1")
                    continue
                if tp not in process.identity.partitions:
                    yield from self.patiently(lambda tp=tp: process.register(tp))
                for row in range(2):
                    draft = process.draft(tp, f"{story.tag}.{row}", in_file=choose.random() < 0.3)
                    yield from self.patiently(lambda tp=tp, draft=draft: process.append(tp, draft))
            if choose.random() < self.offsets_rate:
                yield from self.offsets(process, story)
            if choose.random() < 0.75:
                ended = yield from self.patiently(lambda staged=list(process.staged): process.commit(staged=staged))
                story.outcome = "committed"
            else:
                ended = yield from self.patiently(process.abort)
                story.outcome = "committed" if ended.already_committed else "aborted"
        except (AbortableError, RetriableError):
            ended = yield from self.patiently(process.abort)
            story.outcome = "committed" if ended.already_committed else "aborted"

    def offsets(self, process: Process, story: Story) -> Any:
        found = yield from self.patiently(lambda: process.fetch_offsets(0))
        start = found[0]
        target = (start or 0) + 1
        condition = OffsetsCondition(expected={A: start})
        # from here on the offset may be pending, and a commit with an unknown outcome may commit it
        story.offset = (start or 0, target)
        yield from self.patiently(lambda: process.send_offsets({0: target}, condition=condition))

    def plain_client(self) -> Any:
        process = Process(self.cluster, "", self.ctx)
        yield from process.idempotent()
        choose = random.Random(self.random.random())
        for _ in range(choose.randint(1, 5)):
            word = f"p{next(self.numbers)}"
            self.plain[word] = "unknown"
            draft = process.draft(A, word, in_file=choose.random() < 0.3)
            try:
                # A partition may forget a drawn producer id. Its state then decides nothing, so an unknown outcome is
                # not retried.
                yield from self.patiently(lambda draft=draft: process.append(A, draft), unknown=False)
            except (OutcomeUnknownError, RetriableError):
                return
            self.plain[word] = "acknowledged"

    def patiently(self, call: Any, tries: int = 12, *, unknown: bool = True) -> Any:
        """Retry the identical call while retrying is allowed."""
        for attempt in range(tries):
            try:
                return (yield from call())
            except (RetriableError, OutcomeUnknownError) as error:
                if attempt == tries - 1 or (isinstance(error, OutcomeUnknownError) and not unknown):
                    raise
        return None

    def maintenance(self) -> Any:
        try:
            what = self.random.choice(["expire", "seal", "producers"])
            if what == "expire":
                yield from expiry.expire(self.ctx, {})
            elif what == "seal":
                for tp in PARTITIONS:
                    yield from seal(self.ctx, (yield from load(self.ctx, tp)))
            else:
                for tp in PARTITIONS:
                    yield from expiry.expire_producers(self.ctx, {}, tp)
        except TxlogError:
            return

    def reader(self) -> Any:
        """Tail a partition by name. What this consumer delivered must stay what the log holds at these offsets."""
        choose = random.Random(self.random.random())
        tp = choose.choice(PARTITIONS)
        isolation: IsolationLevel = choose.choice(["read_committed", "read_uncommitted"])
        try:
            view = yield from self.patiently(lambda: load(self.ctx, tp))
            start = at = view.state.log_start_offset
            seen: dict[int, str] = {}
            for _ in range(choose.randint(1, 8)):
                view = yield from self.patiently(lambda view=view: refresh(self.ctx, view))
                view, plan = yield from self.patiently(
                    lambda view=view, at=at: plan_read(self.ctx, view, at, None, isolation)
                )
                seen.update(self.cluster.words(plan))
                at = plan.end
                self.readings[next(self.numbers)] = (tp, isolation, start, at, dict(seen))
        except RetriableError:
            return

    def clean(self) -> None:
        """Delete the slots of segments that were sealed for the grace period, in one step, as maintenance does."""
        ages: dict[TopicPartition, list[tuple[int, int]]] = {}
        for path in self.cluster.objects:
            if path.endswith(".index"):
                since = self.sealed_at.setdefault(path, self.cluster.now_ms)
                topic, partition, name = path.split("/")
                parsed = names.parse_partition_object(name)
                assert isinstance(parsed, SegmentObject)
                ages.setdefault(TopicPartition(topic, int(partition)), []).append((parsed.segment.end_offset, since))
        for tp, ends in ages.items():
            old = [end for end, since in ends if self.cluster.now_ms - since >= GRACE_MS]
            if not old:
                continue
            boundary = envelope.encode(Boundary(offset=max(old), created_at=self.cluster.now_ms))
            self.cluster.objects.setdefault(tp.folder + names.boundary_name(max(old)), boundary)
            for path in list(self.cluster.objects):
                if tp.folder <= path < tp.folder + names.batch_name(max(old)) and path.endswith(".batch"):
                    del self.cluster.objects[path]
                    self.story.append(f"deleted {path}")

    # -- the run ------------------------------------------------------------------------------------------------------

    def run(self) -> Simulation:
        for _ in range(self.steps):
            if len(self.tasks) < 5:
                self.spawn()
            alive = list(self.tasks)
            name = self.random.choices(alive, [self.weights[each] for each in alive])[0]
            task = self.tasks[name]
            if not task.done:
                self.step(name, task)
            if task.done:
                self.end(name, task)
            self.weather()
        self.settle()
        self.check()
        return self

    def spawn(self) -> None:
        kind = self.random.choice(self.kinds)
        name = f"{kind}{next(self.numbers)}"
        self.weights[name] = self.random.choice([0.01, 0.3, 1, 1])  # some are as slow as if they slept
        if kind == "maintenance":
            program = self.maintenance()
        elif kind == "plain":
            program = self.plain_client()
        elif kind == "reader":
            program = self.reader()
        else:
            program = self.client(kind)
        self.tasks[name] = Task(self.cluster, program)

    def end(self, name: str, task: Task) -> None:
        """Add an error that a client may get to its story. Any other error fails the run."""
        del self.tasks[name]
        try:
            _ = task.result
        except (RetriableError, OutcomeUnknownError, FencedError, AbortableError) as error:
            self.story.append(f"{name} ended: {error!r}"[:150])

    def step(self, name: str, task: Task) -> None:
        fault: Fault | None = None
        if self.random.random() > self.calm:
            pending = task.pending
            choices: list[Fault] = ["crash", "error"]
            if isinstance(pending, PutIfAbsent):
                choices = [
                    "crash",
                    "crash after",
                    "crash in flight",
                    "applied",
                    "lost",
                    "late",
                    "hidden retry",
                    "error",
                ]
                choices += ["applied", "lost", "late", "hidden retry"] * 3
            elif isinstance(pending, WriteRows):
                choices = ["crash", "crash after", "error"]
            fault = self.random.choice(choices)
            if fault is not None and fault.startswith("crash") and self.random.random() < 0.7:
                fault = None
        self.story.append(f"{name}: {str(task.pending)[:90]} {fault or ''}")
        pending = task.pending
        try:
            task.step(fault)
            if isinstance(pending, PutIfAbsent) and pending.path.endswith(".index"):
                self.sealed_at.setdefault(pending.path, self.cluster.now_ms)
        except Died:
            task.done = True

    def weather(self) -> None:
        dice = self.random.random()
        if dice < 0.1 and self.cluster.in_flight:
            number = self.random.randrange(len(self.cluster.in_flight))
            path, data = self.cluster.in_flight.pop(number)
            self.cluster.objects.setdefault(path, data)
            self.story.append(f"landed {path}")
        elif dice < 0.13:
            self.cluster.pass_ms(self.random.choice([5, 1_000, 61_000]))
        elif dice < 0.13 + self.sleep_rate:
            self.cluster.pass_ms(self.random.choice([GRACE_MS // 10, GRACE_MS // 2, GRACE_MS, GRACE_MS]))
            self.story.append("slept")
            self.clean()
        elif dice > 0.96:
            self.look()

    def look(self) -> None:
        """Check invariants 6 and 7 as a reader sees the log."""
        for tp in PARTITIONS:
            lso, seen = self.stable.get(tp, (0, {}))
            now = self.cluster.state(tp)
            assert now.last_stable_offset >= lso, f"{tp}: the LSO went back"
            rows = self.cluster.read(tp)
            assert {offset: word for offset, word in rows.items() if offset < lso} == seen, f"{tp}: not repeatable"
            self.stable[tp] = (now.last_stable_offset, rows)

    def settle(self) -> None:
        """End the faults, let every process finish, and let two new instances recover."""
        for name, task in list(self.tasks.items()):
            self.end(name, task.run())
        for transactional_id in ("x", "y"):
            process = Process(self.cluster, transactional_id, self.ctx)
            process.do(process.init())
        self.look()
        self.cluster.land()
        self.cluster.pass_ms(GRACE_MS)
        self.clean()
        for transactional_id in ("x", "y"):
            process = Process(self.cluster, transactional_id, self.ctx)
            process.do(process.init())
        self.look()

    def check(self) -> None:
        self.cluster.check()
        rows = {tp: list(self.cluster.read(tp).values()) for tp in PARTITIONS}
        for tp, words in rows.items():
            assert len(words) == len(set(words)), f"{tp}: a row twice: {words}"
        for story in self.stories:
            found = {tp for tp in PARTITIONS if any(word.startswith(f"{story.tag}.") for word in rows[tp])}
            for tp in found:
                mine = [word for word in rows[tp] if word.startswith(f"{story.tag}.")]
                assert mine == [f"{story.tag}.0", f"{story.tag}.1"], f"{story}: torn within {tp}: {mine}"
            if story.outcome == "committed":
                assert found == story.parts, f"{story}: acknowledged, and found in {found}"
            elif story.outcome == "aborted":
                assert not found, f"{story}: aborted, and found in {found}"
            elif found:
                assert found == story.parts, f"{story}: torn: {found}"
        for word, outcome in self.plain.items():
            if outcome == "acknowledged":
                assert word in rows[A], f"{word}: acknowledged and lost"
        final = {level: {tp: self.cluster.read(tp, level) for tp in PARTITIONS} for level in LEVELS}
        for tp, isolation, start, end, seen in self.readings.values():
            there = {offset: word for offset, word in final[isolation][tp].items() if start <= offset < end}
            assert seen == there, f"a {isolation} reader of {tp} from {start} to {end}: {seen}, and there is {there}"
        # each committed transaction with offsets moved the group by exactly one from its start
        moves = sorted(
            story.offset
            for story in self.stories
            if story.offset is not None and any(w.startswith(f"{story.tag}.") for words in rows.values() for w in words)
        )
        assert [move[0] for move in moves] == list(range(len(moves))), f"offsets: {moves}"
        assert self.cluster.committed() == ({0: len(moves)} if moves else {}), f"offsets: {moves}"


def simulate(seed: int, steps: int = 400) -> Simulation:
    simulation = Simulation(seed, steps)
    try:
        return simulation.run()
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from error
