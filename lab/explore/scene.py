"""What does a small world consist of? A few actors over one store, and a budget of faults.

The past of a scenario (its prelude) runs alone, so that the actors begin where races are possible. *quick* is the size
for every run of the tests, *full* the size of `make simulate`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import msgspec

from lab.explore.alone import run_alone, run_until
from lab.explore.client import Call, Client
from lab.explore.explorer import Budget, ClockErrors, Explorer
from lab.explore.keys import Compacted
from lab.explore.machine import Machine
from lab.explore.oracle import read_chain
from lab.explore.rules import Rules
from lab.explore.world import START_MS, World
from txlog.core.ages import MAX_CLOCK_ERROR_MS
from txlog.core.append_rules import RollPolicy
from txlog.core.cleaning import MergePolicy
from txlog.core.compaction import CompactionPolicy
from txlog.core.names import TRANSACTION_STATE_TOPIC, TopicPartition
from txlog.core.records import StoreConstants, TransactionRow
from txlog.protocol.context import Context

Size: TypeAlias = Literal["quick", "full"]

A = TopicPartition("orders", 0)

B = TopicPartition("orders", 1)

C = TopicPartition("audit", 0)

TABLE = TopicPartition(TRANSACTION_STATE_TOPIC, 0)

CONSTANTS = StoreConstants(transaction_state_partitions=1, consumer_offsets_partitions=1)

GRACE_MS = CONSTANTS.delete_grace_ms

TIMEOUT_MS = 60_000

NEVER = RollPolicy(batches=10**9)

HOUR_MS = 3_600_000
"""This is less than a tenth of the grace, so views stay young over it."""

PUBLISH_RETENTION_MS = GRACE_MS + HOUR_MS
"""How long a version of a published table is kept after it was replaced."""

LONG = 100

SMALL_ONES = MergePolicy(target_bytes=2 * LONG)
"""A file with one long word is so large that no merge copies it."""

KEYED = CompactionPolicy(
    key_columns=("key",), key=(1,), delete_retention_ms=HOUR_MS, min_compaction_lag_ms=0, min_cleanable_dirty_ratio=0.0,
)  # fmt: skip
"""Compacts everything that may be compacted; a tombstone waits for an hour."""

FORGOTTEN_MS = HOUR_MS + 2 * MAX_CLOCK_ERROR_MS
"""The time after which everything with a limit of an hour is removed, even if the clocks of two processes are wrong.

Views stay young over it, too.
"""

BRIEF = StoreConstants(transaction_state_partitions=1, consumer_offsets_partitions=1, delete_grace_ms=600_000)
"""The grace is shorter than the error that a clock may have."""

FORGETFUL = StoreConstants(
    transaction_state_partitions=1,
    consumer_offsets_partitions=1,
    producer_id_expiration_ms=HOUR_MS,
    transactional_id_expiration_ms=HOUR_MS,
)


def context(batches: int = 10**9, **changes: Any) -> Context:
    """Return a context with one partition of each internal topic, segments of that many batches in `orders`, and few
    tries."""
    values: dict[str, Any] = {
        "constants": CONSTANTS,
        "roll": {"orders": RollPolicy(batches=batches)},
        "internal_roll": NEVER,
        "max_settles": 4,
        "max_races": 12,
        "max_loads": 4,
    }
    return Context(**{**values, **changes})


@dataclass(slots=True, kw_only=True)
class Scene:
    """A scenario during its setup: its world, its past, and its actors."""

    ctx: Context = field(default_factory=context)
    budget: Budget = field(default_factory=Budget)
    partitions: tuple[TopicPartition, ...] = (A,)
    transactional_ids: tuple[str, ...] = ()
    exclusive: tuple[str, ...] = ()
    deletable: Callable[[str], bool] = lambda _: False
    looks: bool = False
    """Whether no transaction may be decided for a topic that was deleted before: only where no reply is lost."""
    recovers: bool = True
    judges: bool = True
    """Whether the shipped reader must be able to open every store. Not if the log was damaged on purpose."""
    compacted: dict[TopicPartition, Compacted] = field(default_factory=dict)
    """Partitions whose words have keys (`lab.explore.keys`), and are compacted."""
    erased: bool = False
    """Whether words are erased (`lab.explore.eraser`)."""
    expects: dict[str, set[str]] = field(default_factory=dict)
    """How an actor must end (the kind of its last note), whatever the faults are."""
    vacuumed: bool = False
    """Whether files of rows are listed, and times are kept."""
    settled: Callable[[str], bool] = lambda _: False
    """Paths that no actor creates."""
    publisher: Client | None = None
    """A client that has opened the published topic, if there is one."""
    publishes: bool = True
    """Whether a lone publisher goes on from every store, also if the scenario does not recover."""
    past_ms: int = 0
    """The time between the prelude and the beginning of the scenario."""
    world: World = field(init=False)
    store: int = field(init=False)
    actors: dict[str, tuple[Client, Sequence[Call]]] = field(default_factory=dict)
    clocks: dict[str, ClockErrors] = field(default_factory=dict)
    """The errors of clocks: an actor's, or the store's (`STORE`)."""
    in_turn: set[str] = field(default_factory=set)
    """Actors that make the requests of a round one by one."""

    def __post_init__(self) -> None:
        self.world = World(self.deletable, vacuumed=self.vacuumed, settled=self.settled)
        self.store = self.world.from_files({})

    def client(self, transactional_id: str = "") -> Client:
        return Client(ctx=self.ctx, transactional_id=transactional_id)

    def before(self, name: str, client: Client, *script: Call) -> Client:
        """Run those calls alone, before the scenario begins."""
        for number, call in enumerate(script):
            self.store, client = run_alone(
                self.world, self.store, START_MS - self.past_ms, call(client), f"{name}{number}"
            )
        return client

    def dies(self, name: str, client: Client, call: Call, before: str) -> None:
        """Let a process begin that call, and die before the first conditional write to such a path."""
        self.store = run_until(self.world, self.store, START_MS - self.past_ms, call(client), before, name)

    def actor(self, name: str, client: Client, *script: Call) -> None:
        self.actors[name] = (replace(client, notes=()), script)

    def cleaner(self, name: str, *script: Call, client: Client | None = None) -> None:
        """Add an actor that reads many objects, and changes them one by one."""
        self.actor(name, client or self.client(), *script)
        self.in_turn.add(name)

    def prepared(self) -> TransactionRow:
        """Return the PREPARE_* at the end of the table."""
        files = dict(self.world.objects[number] for number in self.world.folder(self.store, TABLE.folder))
        offset, _, txn = next(
            row for row in reversed(read_chain(files, TABLE).table) if row[2] and row[2].state.startswith("PREPARE")
        )
        assert txn is not None
        # The oracle adds the parts that are in separate objects.
        return TransactionRow(
            offset=offset, value=txn if txn.staged_object is None else msgspec.structs.replace(txn, staged=())
        )

    def explorer(self, *, order: Literal["breadth", "depth"] = "breadth") -> Explorer:
        machines = {
            name: Machine(name, client, script, in_turn=name in self.in_turn)
            for name, (client, script) in self.actors.items()
        }
        rules = Rules(
            self.world, self.ctx, self.transactional_ids, self.partitions, self.exclusive,
            looks=self.looks, recovers=self.recovers and self.judges, judges=self.judges, expects=self.expects,
            compacted=self.compacted, erased=self.erased, publisher=self.publisher, publishes=self.publishes,
        )  # fmt: skip
        explorer = Explorer(self.world, machines, self.store, self.budget, rules, order=order, clocks=self.clocks)
        rules.times = tuple(explorer.times)
        return explorer


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A named world."""

    name: str
    what: str
    rules: tuple[int, ...]
    """The invariants for which the scenario exists. All of them are checked."""
    build: Callable[[Size], Scene]
    patches: Mapping[str, Any] = field(default_factory=dict)
    """Constants of the shipped code that are smaller here, by their places."""
