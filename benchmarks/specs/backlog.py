"""Row growth: does a process that comes back need more, the more others have written meanwhile?

Other processes write rows, transactions and offsets, while the process of each operation is idle. Then it makes its
call. Each of its requests takes `REQUEST_MS` of the store's clock, and requests of several threads overlap. A `Baton`
decides which thread runs, so requests and time are counts which repeat exactly. Each call is made twice: while the
others rest, and while they write on at a steady pace.

A call has a bound that does not depend on what the others wrote. It is the sum over the partitions that the call looks
at: the slots that it follows by name, and the tail that it opens then. Maintenance and reads may also look at each new
segment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from benchmarks.harness import Contestant, Goal, Place, Samples, Spec
from benchmarks.worlds import World
from lab.baton import Baton, BatonClock, Hook, hooked
from lab.testing.latency_store import LatencyStore
from txlog.client.store import Store
from txlog.core.append_rules import RollPolicy
from txlog.core.names import TopicPartition
from txlog.inspection.look import StoreMonitor
from txlog.maintenance.maintain import STEPS, Maintainer, MaintainPolicy
from txlog.protocol import members
from txlog.protocol.context import INTERNAL_ROLL
from txlog.protocol.load import MAX_SLOTS_BY_NAME
from txlog.testing.counting_store import CountingStore

REQUEST_MS = 20
PACE_MS = 100
"""How often the others write while an operation runs: 10 times a second, once for five requests."""
TOPIC = "accounts"
FIRST = TopicPartition(TOPIC, 0)
_FIELDS: list[pa.Field[Any]] = [pa.field("key", pa.string(), nullable=False), pa.field("value", pa.int64())]
SCHEMA = pa.schema(_FIELDS)
ROWS = pa.table({"key": ["k"], "value": [1]}, SCHEMA)
LONGEST_MS = 60_000
"""How long a call may take while others write on: the default of `max.block.ms`."""
_DAY_MS = 86_400_000
HOOKED = ("txlog.client", "txlog.storage")
"""Packages whose threads take turns."""
_MAX_STEPS = 10**7
"""The longest run takes about 2 million."""
_QUIET: dict[str, Any] = {
    "heartbeat_interval_ms": _DAY_MS,
    "session_timeout_ms": 10 * _DAY_MS,
    "max_poll_interval_ms": _DAY_MS,
}
"""A member whose own thread writes nothing while another operation is counted."""


class Beside(World):
    """A store in which others write, beside processes that look at it from time to time."""

    def __init__(self, hook: Hook, segment_batches: int = RollPolicy().batches) -> None:
        clock = BatonClock()
        # A producer has a thread of its own. On a clock that each request moves, the thread would use up the time of
        # the calls, and on the machine's clock it would wake up at any place of a run.
        self.baton = hook.baton = Baton(clock=clock, max_steps=_MAX_STEPS)
        super().__init__({"transaction.state.log.num.partitions": 1, "offsets.topic.num.partitions": 1}, clock)
        self._opened: list[Store] = []
        store = self.open()
        config = {
            "key.columns": "key",
            "cleanup.policy": "compact",
            "publish.formats": "delta",
            "segment.batches": segment_batches,
        }
        store.create_topic(TOPIC, SCHEMA, config=config)
        self._rows = store.producer()
        self._transactions = store.producer("others")
        self._transactions.init_transactions()
        self._group = store.consumer(group_id="others", enable_auto_commit=False)
        self._group.assign([FIRST])
        self._lock = hook.Lock()
        self._due_ms: int | None = None
        self.written = 0
        self.others_write(2)

    def open(self, counting: CountingStore | None = None) -> Store:
        """Open the store in another process, without threads."""
        self._opened.append(super().open(counting))
        return self._opened[-1]

    def close(self) -> None:
        """End all processes."""

        def close() -> None:
            for store in self._opened:
                store.close()

        self.baton.run(close)

    def others_write(self, times: int) -> None:
        """Write that many times one record to the topic, one transaction of it, and one offset; one each PACE_MS."""
        for _ in range(times):
            self._write()
            self.clock.sleep_ms(PACE_MS)

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Let the others write on in the block, one time each PACE_MS."""
        self._due_ms = self.clock.monotonic_ms() + PACE_MS
        try:
            yield
        finally:
            self._due_ms = None

    def sleep_ms(self, ms: int) -> None:
        """Pass the time of one request. Requests of several threads pass at once."""
        self.clock.sleep_ms(ms)
        while self._due_ms is not None and self.clock.monotonic_ms() >= self._due_ms:
            self._due_ms += PACE_MS
            self._write()

    def now_ms(self) -> int:
        return self.clock.now_ms()

    def monotonic_ms(self) -> int:
        return self.clock.monotonic_ms()

    def _write(self) -> None:
        with self._lock:
            self._rows.send(TOPIC, ROWS, partition=0).result()
            with self._transactions.transaction():
                self._transactions.send(TOPIC, ROWS, partition=0)
            self.written += 1
            self._group.commit({FIRST: self.written})


Begin = Callable[[Store], Callable[[], object]]
"""Sets a process up, and returns the call that it repeats."""


class Process:
    """One process and its call. The first call has been made."""

    def __init__(self, beside: Beside, begin: Begin) -> None:
        self._beside = beside
        self.latency = LatencyStore(beside.memory, REQUEST_MS, beside)
        self.counting = CountingStore(self.latency)
        self.store = beside.open(self.counting)
        self.call = begin(self.store)
        self.call()

    def cost(self) -> tuple[int, int]:
        """Make the call once more. Return its requests, and the milliseconds that they took."""
        clock = self._beside.clock
        began = clock.monotonic_ms()
        with self.counting.counting() as cost:
            self.call()
        return cost.total, clock.monotonic_ms() - began


@dataclass(frozen=True, slots=True)
class Operation:
    """What a process does again and again, and which partitions it looks at."""

    begin: Begin
    topic: bool = False
    table: bool = False
    """The table of transactions."""
    groups: bool = False
    """Consumer offsets."""
    segments: bool = False
    """Whether it looks at each new segment."""

    def at_most(self, written: int) -> int:
        """Return how many requests the call may make after the others have written that often."""
        batches = RollPolicy().batches
        bounds = ((self.topic, batches), (self.table, INTERNAL_ROLL.batches), (self.groups, INTERNAL_ROLL.batches))
        most = sum(MAX_SLOTS_BY_NAME + _LONGEST_TAIL * each + _BESIDE for looks, each in bounds if looks)
        return most + self._for_segments(written)

    def longest_ms(self, written: int) -> int:
        """Return how long the call may take while the others write on, after they have written that often."""
        return LONGEST_MS + REQUEST_MS * self._for_segments(written)

    def _for_segments(self, written: int) -> int:
        # Each time adds two records to the topic, and one to each of the two other partitions.
        new = 2 * written // RollPolicy().batches + self.table * written // INTERNAL_ROLL.batches
        return _OF_A_SEGMENT * new * self.segments


_LONGEST_TAIL = 2
"""Segments of a tail: one is sealed when the next but one begins."""
_BESIDE = 15
"""Requests of a look at one partition beside its records: its LIST, its snapshot, lost slots, seals, the topic."""
_OF_A_SEGMENT = 4
"""Requests of a job for one segment: its index, its rows, its age, and the run that replaces it."""


def _append(store: Store) -> Callable[[], object]:
    producer = store.producer()

    def call() -> None:
        producer.send(TOPIC, ROWS, partition=0)
        producer.flush()

    return call


def _transaction(**settings: Any) -> Begin:
    def begin(store: Store) -> Callable[[], object]:
        producer = store.producer(f"commits {settings}", **settings)
        producer.init_transactions()

        def call() -> None:
            with producer.transaction():
                producer.send(TOPIC, ROWS, partition=0)

        return call

    return begin


def _aborted(store: Store) -> Callable[[], object]:
    producer = store.producer("aborts", staged=False)
    producer.init_transactions()

    def call() -> None:
        producer.begin_transaction()
        producer.send(TOPIC, ROWS, partition=0)
        producer.flush()
        producer.abort_transaction()

    return call


def _offsets_in_transaction(store: Store) -> Callable[[], object]:
    producer, position = store.producer("with offsets"), iter(range(10**6))
    producer.init_transactions()

    def call() -> None:
        with producer.transaction():
            producer.send(TOPIC, ROWS, partition=0)
            producer.send_offsets_to_transaction({FIRST: next(position)}, "offsets")

    return call


def _init(store: Store) -> Callable[[], object]:
    def call() -> None:
        store.producer("inits").init_transactions()

    return call


def _commit(store: Store) -> Callable[[], object]:
    consumer, position = store.consumer(group_id="commits", enable_auto_commit=False), iter(range(10**6))
    consumer.assign([FIRST])
    return lambda: consumer.commit({FIRST: next(position)})


def _committed(store: Store) -> Callable[[], object]:
    consumer = store.consumer(group_id="commits", enable_auto_commit=False)
    consumer.assign([FIRST])
    return lambda: consumer.committed(FIRST)


def _member(store: Store) -> Callable[[], object]:
    """Commit and look as a member, and show that it lives."""
    consumer = store.consumer(TOPIC, group_id="members", enable_auto_commit=False, auto_offset_reset="latest", **_QUIET)
    consumer.poll(0)
    member, session = consumer.group_metadata().member_id, consumer._session
    return lambda: session.call("beat", lambda ctx, views: members.heartbeat(ctx, views, "members", member))


def _join(store: Store) -> Callable[[], object]:
    consumer = store.consumer(group_id="joins", enable_auto_commit=False, auto_offset_reset="latest", **_QUIET)

    def call() -> None:
        consumer.subscribe([TOPIC])
        consumer.poll(0)
        consumer.unsubscribe()

    return call


def _poll(store: Store) -> Callable[[], object]:
    consumer = store.consumer(TOPIC, auto_offset_reset="latest", max_poll_records=10)

    def call() -> None:
        consumer.poll(0)
        consumer.seek(FIRST, consumer.end_offsets()[FIRST])

    return call


def _latest_offset(store: Store) -> Callable[[], object]:
    consumer = store.consumer(TOPIC, auto_offset_reset="latest")
    return consumer.end_offsets


def _look(store: Store) -> Callable[[], object]:
    monitor = StoreMonitor(store.runtime, "bench", max_reads=10)
    return monitor.look


def _maintain(*steps: str) -> Begin:
    def begin(store: Store) -> Callable[[], object]:
        policy = MaintainPolicy(skip=frozenset(STEPS) - frozenset(steps), vacuum_interval_ms=0)
        maintainer = Maintainer(store.runtime, policy)

        def call() -> None:
            if failures := maintainer.run().failures:
                raise RuntimeError(f"maintenance failed: {failures}")

        return call

    return begin


def _admin(call: Callable[[Any], object]) -> Begin:
    def begin(store: Store) -> Callable[[], object]:
        admin = store.admin()
        return lambda: call(admin)

    return begin


OPERATIONS: dict[str, Operation] = {
    "append a batch": Operation(_append, topic=True),
    "commit a deferred transaction": Operation(_transaction(), topic=True, table=True),
    "commit an eager transaction": Operation(_transaction(staged=False), topic=True, table=True),
    "abort a transaction": Operation(_aborted, topic=True, table=True),
    "commit a transaction with offsets": Operation(_offsets_in_transaction, topic=True, table=True, groups=True),
    "init a transactional.id": Operation(_init, table=True),
    "commit an offset": Operation(_commit, groups=True),
    "look up a committed offset": Operation(_committed, groups=True),
    "write a heartbeat": Operation(_member, groups=True),
    "join, poll and leave a group": Operation(_join, topic=True, groups=True),
    "poll ten rows": Operation(_poll, topic=True),
    "look up the end": Operation(_latest_offset, topic=True),
    "take a snapshot": Operation(lambda store: lambda: store.snapshot(TOPIC), topic=True, table=True),
    "count by a table": Operation(lambda store: lambda: store.table(TOPIC).count(), topic=True, segments=True),
    "describe a partition": Operation(_admin(lambda admin: admin.describe_partition(TOPIC, 0)), topic=True),
    "describe a transaction": Operation(_admin(lambda admin: admin.describe_transaction("others")), table=True),
    "describe a group": Operation(_admin(lambda admin: admin.describe_group("others")), topic=True, groups=True),
    "reset offsets": Operation(_admin(lambda admin: admin.reset_offsets("reset", {FIRST: 0})), groups=True),
    "look as an exporter": Operation(_look, topic=True, table=True, groups=True),
    "end transactions": Operation(_maintain("transactions", "groups"), topic=True, table=True, groups=True),
    "end producers": Operation(_maintain("producers"), topic=True, table=True, groups=True),
    "seal": Operation(_maintain("seal"), topic=True, table=True, groups=True),
    "publish": Operation(_maintain("publish"), topic=True, table=True, segments=True),
    "apply retention": Operation(_maintain("retention"), topic=True),
    "merge": Operation(_maintain("merge"), topic=True, table=True, segments=True),
    "compact": Operation(_maintain("compact"), topic=True, table=True, segments=True),
    "vacuum": Operation(_maintain("vacuum"), topic=True, table=True, groups=True, segments=True),
}


def measure(written: int, names: tuple[str, ...] = tuple(OPERATIONS)) -> dict[str, tuple[int, int, int]]:
    """Return the requests of each operation after the others have written that often, and its time.

    The second time is that of one more call, while the others write on.
    """
    with hooked(*HOOKED) as hook, closing(Beside(hook)) as beside:
        processes = {name: Process(beside, OPERATIONS[name].begin) for name in names}
        beside.others_write(written)
        rested = {name: process.cost() for name, process in processes.items()}
        beside.others_write(written)
        found = {}
        for name, process in processes.items():
            with beside.busy():
                _, busy_ms = process.cost()
            found[name] = (*rested[name], busy_ms)
        return found


@contextmanager
def after(place: Place, *, written: int) -> Iterator[Callable[[], Samples]]:
    """Yield a turn that measures all operations."""

    def turn() -> Samples:
        found = measure(place.sized(written, least=30))
        figures = (("requests", 0), ("ms", 1), ("ms beside writers", 2))
        return {f"{name}, {what}": [each[at]] for name, each in found.items() for what, at in figures}

    yield turn


SIZES = (100, 400, 1600)


def _goals() -> Iterator[Goal]:
    for written in SIZES:
        for name, operation in OPERATIONS.items():
            yield Goal(of=f"{written:,}", figure=f"{name}, requests", at_most=operation.at_most(written))
            yield Goal(of=f"{written:,}", figure=f"{name}, ms beside writers", at_most=operation.longest_ms(written))


SPECS = (
    Spec(
        row="growth",
        title=f"backlog: others wrote {', '.join(f'{size:,}' for size in SIZES)} times since the last look",
        contestants=tuple(Contestant(name=f"{written:,}", start=partial(after, written=written)) for written in SIZES),
        goals=tuple(_goals()),
        once=True,
    ),
)
