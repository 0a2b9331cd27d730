"""What do many writers achieve together, if every request to the store takes a network's time?

The writers run the shipped protocol (PROTOCOL.md, "Transactions") on a simulated store. Time is virtual: each request
takes a time that is drawn for it, and no processor is waited for. So the answer depends on the protocol and on the
store alone, never on the machine that computes it.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from lab.histories.events import Row
from lab.simulate.cluster import Cluster, Machine, Request, encode_rows
from lab.simulate.task import Fiber, Task
from txlog.core.effects import Program, PutIfAbsent, ReadClocks, Sleep
from txlog.core.features import COMBINED_RECORDS, STORE_FEATURES
from txlog.core.names import TopicPartition
from txlog.core.records import StagedPart, StagedRows, StoreConstants
from txlog.errors import OutcomeUnknownError, RetriableError
from txlog.protocol import transactions
from txlog.protocol.context import Context, PartitionView, Views
from txlog.protocol.one_phase import OnePhase, attach, commit_in_one_phase
from txlog.protocol.waiting import Desk, lead_on, look_on

TOPIC = "orders"
SPREAD = 0.35
"""Sigma of a request's lognormal time: the slowest of a hundred takes about 2.3 times the median."""
PAYLOAD_ROWS = 100
LOOKERS = 8
CONTEXT = Context(features=(COMBINED_RECORDS, *STORE_FEATURES))


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What the writers do."""

    writers: int
    partitions: int
    """Partitions of the topic. Writer n writes to partition n modulo this number."""
    latency_ms: int
    """The median time of a request."""
    seconds: int
    """How long the writers are watched, in virtual time, after each has made its first transaction."""
    table_partitions: int = 50
    """Partitions of `__transaction_state` (transaction.state.log.num.partitions)."""
    two_phases: bool = False
    """Whether each transaction has a decision in the table, as those of several partitions do."""
    seed: int = 0


@dataclass(slots=True, kw_only=True)
class Achieved:
    """What happened while the writers were watched."""

    load: Load
    seconds: float
    commits: int = 0
    retries: int = 0
    """Calls that ended in a retriable error and were repeated."""
    commit_ms: list[int] = field(default_factory=list)
    """How long each commit took, its repetitions included."""
    requests: Counter[str] = field(default_factory=Counter)
    """Requests by kind: get, put, list ..."""
    folders: Counter[str] = field(default_factory=Counter)
    """Requests by the folder of their object."""

    @property
    def commits_per_second(self) -> float:
        return self.commits / self.seconds

    @property
    def requests_per_commit(self) -> float:
        return self.requests.total() / self.commits if self.commits else math.nan

    @property
    def busiest_per_second(self) -> float:
        """Return the requests of the busiest folder: object stores limit the rate of each."""
        return max(self.folders.values(), default=0) / self.seconds

    def percentile_ms(self, percent: int) -> int:
        """Return the time within which `percent` of the commits returned."""
        ordered = sorted(self.commit_ms)
        return ordered[min(len(ordered) * percent // 100, len(ordered) - 1)] if ordered else -1


class _Watch:
    """Counts from the moment at which every writer has made its first transaction."""

    def __init__(self, load: Load, cluster: Cluster) -> None:
        self.load = load
        self.achieved = Achieved(load=load, seconds=load.seconds)
        self.began_ms: int | None = None
        self._cluster = cluster
        self._warming = load.writers

    def warm(self) -> None:
        self._warming -= 1
        if not self._warming:
            self.began_ms = self._cluster.passed_ms

    def over(self) -> bool:
        return self.began_ms is not None and self._cluster.passed_ms >= self.began_ms + self.load.seconds * 1000

    def request(self, request: Request) -> None:
        if self.began_ms is not None:
            path = getattr(request, "path", getattr(request, "prefix", ""))
            self.achieved.requests["put" if isinstance(request, PutIfAbsent) else type(request).__name__.lower()] += 1
            self.achieved.folders[path.rpartition("/")[0]] += 1

    def committed(self, asked_at_ms: int, retries: int) -> None:
        if self.began_ms is not None:
            self.achieved.commits += 1
            self.achieved.retries += retries
            self.achieved.commit_ms.append(self._cluster.passed_ms - asked_at_ms)


def achieve(load: Load) -> Achieved:
    """Let the writers commit one transaction after the other, and return what they achieved.

    Every transaction has inline rows of one partition. Raises what a writer raises, but retriable errors.
    """
    cluster = Cluster()
    watch = _Watch(load, cluster)
    draw = random.Random(load.seed)
    due: list[tuple[float, int, Task, Fiber]] = []
    numbers = iter(range(2**62))

    def queue(task: Task, waiting: Sequence[Fiber] = ()) -> None:
        for fiber in task.fibers:
            if fiber in waiting:
                continue
            wait_ms = load.latency_ms * draw.lognormvariate(0, SPREAD)
            at_ms = cluster.passed_ms + wait_ms if fiber.wakes_at_ms is None else fiber.wakes_at_ms
            heapq.heappush(due, (at_ms, next(numbers), task, fiber))

    def lead(machine: Machine, desks: dict[TopicPartition, Desk], view: PartitionView, pace_ms: int) -> None:
        """Go on to lead beside the writer's own work, as a producer's threads do."""
        if (desk := desks.get(view.topic_partition)) is not None and desk.is_open:
            return
        desk = desks[view.topic_partition] = Desk(view, pace_ms=pace_ms)
        for program in (lead_on(CONTEXT, desk), *(look_on(desk) for _ in range(LOOKERS))):
            queue(Task(cluster, machine, program))

    for number in range(load.writers):
        machine = Machine(f"writer-{number}")
        ctx = replace(CONTEXT, leads=partial(lead, machine, {}))
        queue(Task(cluster, machine, _writer(cluster, watch, number, ctx)))
    while due and not watch.over():
        at_ms, _, task, fiber = heapq.heappop(due)
        cluster.passed_ms = max(cluster.passed_ms, math.ceil(at_ms))
        if fiber.request is not None:
            watch.request(fiber.request)
        waiting = [other for other in task.fibers if other is not fiber]
        task.step(fiber)
        if task.error is not None:
            raise task.error
        queue(task, waiting)
    return watch.achieved


def _writer(cluster: Cluster, watch: _Watch, number: int, ctx: Context) -> Program[None]:
    load = watch.load
    ctx = replace(ctx, constants=StoreConstants(transaction_state_partitions=load.table_partitions))
    views: Views = {}
    tp = TopicPartition(TOPIC, number % load.partitions)
    rows = [Row(offset=-1, value=value, content="x" * 90) for value in range(PAYLOAD_ROWS)]
    inline = StagedRows(rows=PAYLOAD_ROWS, payload=encode_rows(rows))
    part = StagedPart(topic=tp.topic, partition=tp.partition, inline=inline)
    views, txn = yield from transactions.init_producer(ctx, views, f"id-{number}", 60_000)
    warm, sequence = False, 0
    while True:
        asked_at_ms, retries = cluster.passed_ms, 0
        one = OnePhase(part=part, base_sequence=sequence, begun=(yield ReadClocks()), since=0)
        while True:
            try:
                if load.two_phases:
                    views, ended = yield from transactions.end_transaction(ctx, views, txn, True, (part,))
                    txn = ended.txn
                else:
                    if not txn.attached:
                        views, txn = yield from attach(ctx, views, txn, tp)
                    views, _ = yield from commit_in_one_phase(ctx, views, txn, one)
                    sequence += PAYLOAD_ROWS
                break
            except (RetriableError, OutcomeUnknownError):
                yield Sleep(ctx.backoff_ms(retries))
                retries, one = retries + 1, replace(one, in_doubt=True)
        watch.committed(asked_at_ms, retries)
        if not warm:
            warm = True
            watch.warm()
