"""Which small worlds are explored? Each has a few actors over one store, and a budget of faults.

The past of a scenario (its prelude) runs alone, so that the actors begin where races are possible. *quick* is the size
for every run of the tests, *full* the size of `make simulate`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import msgspec

from lab.explore import client as calls
from lab.explore.alone import run_alone, run_until
from lab.explore.cleaner import (
    INDEXES,
    bound,
    compact,
    deletes,
    everything,
    forget_cleans,
    merge,
    retain,
    vacuum,
    wait,
)
from lab.explore.client import Call, Client
from lab.explore.explorer import STORE, Budget, ClockErrors, Explorer
from lab.explore.keys import Compacted
from lab.explore.machine import Machine
from lab.explore.oracle import read_chain
from lab.explore.publisher import make_published, publish
from lab.explore.rules import Rules
from lab.explore.world import GHOST, START_MS, World
from txlog.core import envelope
from txlog.core.ages import MAX_CLOCK_ERROR_MS, ClockReading
from txlog.core.append_rules import RollPolicy
from txlog.core.cleaning import MergePolicy
from txlog.core.compaction import CompactionPolicy
from txlog.core.features import STORE_FEATURES
from txlog.core.names import STORE_DESCRIPTOR, TRANSACTION_STATE_TOPIC, TopicPartition, batch_name
from txlog.core.records import StoreConstants, StoreDescriptor, TransactionRow
from txlog.core.transactions import TxnVersion
from txlog.protocol.context import Context, KnownStore

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
_LONG = 100
_SMALL_ONES = MergePolicy(target_bytes=2 * _LONG)
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
    """Return a context with one partition of each internal topic, segments of that many batches in `orders`, and few tries."""
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
    recovers: bool = True
    judges: bool = True
    """Whether the shipped reader must be able to open every store. Not if the log was damaged on purpose."""
    compacted: dict[TopicPartition, Compacted] = field(default_factory=dict)
    """Partitions whose words have keys (`lab.explore.keys`), and are compacted."""
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
        # The oracle adds the parts that are in an object of their own.
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
            recovers=self.recovers and self.judges, judges=self.judges, expects=self.expects,
            compacted=self.compacted, publisher=self.publisher, publishes=self.publishes,
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


def _slot(size: Size) -> Scene:
    full = size == "full"
    scene = Scene(budget=Budget(lost=2 if full else 1))
    # A client that does not retry a call trusts its error.
    one = scene.before("one", replace(scene.client(), tries=1), calls.idempotent(), calls.opened(A))
    later = scene.before("z", one, calls.send(A, "z"))
    stale = replace(later, views=one.views)
    scene.actor("first", stale, calls.send(A, "a"))
    scene.actor("retry", later, calls.send(A, "a"))
    scene.actor("nobody", scene.client(), calls.send(A, "n"))
    if full:
        two = scene.before("two", scene.client(), calls.idempotent())
        scene.actor("second", two, calls.send(A, "b"))
    scene.expects = {name: {"appended"} for name in scene.actors}
    return scene


def _fencing(size: Size) -> Scene:
    scene = Scene(transactional_ids=("x",), budget=Budget(lost=1))
    old = scene.before("old", scene.client("x"), calls.init(), calls.send(A, "a"))
    scene.actor("old", old, calls.send(A, "b"), calls.commit())
    scene.actor(
        "new", scene.client("x"), calls.init(), calls.send(A, "c"), *([calls.commit()] if size == "full" else [])
    )
    return scene


def _commit(size: Size) -> Scene:
    scene = Scene(transactional_ids=("x",), partitions=(A, B), budget=Budget(lost=1))
    old = scene.before("old", scene.client("x"), calls.init(), calls.send(A, "a"), calls.send(B, "b"))
    scene.actor("owner", old, calls.commit())
    scene.actor("takeover", scene.client("x"), calls.init())
    if size == "full":
        scene.actor("sweep", scene.client(), calls.sweep())
    return scene


def _abort(size: Size) -> Scene:
    scene = Scene(transactional_ids=("x",), partitions=(A, B), budget=Budget(lost=1))
    old = scene.before("old", scene.client("x"), calls.init(), calls.send(A, "a"), calls.send(B, "b"))
    scene.actor("owner", old, calls.abort(), *([calls.send(A, "c"), calls.commit()] if size == "full" else []))
    scene.actor("takeover", scene.client("x"), calls.init())
    return scene


def _late_abort(size: Size) -> Scene:
    scene = Scene(transactional_ids=("x",), budget=Budget(lost=2 if size == "full" else 0))
    owner = scene.before("owner", scene.client("x"), calls.init(), calls.send(A, "a"))
    scene.dies("sweep", owner, calls.abort(), "orders/")
    slow = replace(scene.client(), views=owner.views, prepare=scene.prepared())
    scene.actor("slow", slow, calls.roll_forward())
    scene.actor("owner", owner, calls.abort(), calls.send(A, "b"), calls.commit())
    if size == "full":
        scene.actor("second", replace(slow, views={}), calls.roll_forward())
    return scene


def _goes_on(size: Size) -> Scene:
    """The owner's next record follows its PREPARE_* directly, while another process rolls that one forward."""
    scene = Scene(transactional_ids=("x",), partitions=(A, B), budget=Budget(lost=1))
    owner = scene.before("x", scene.client("x"), calls.init(), calls.send(A, "a"), calls.send(B, "b"))
    scene.actor("owner", owner, calls.abort(), calls.send(A, "c"), *([calls.commit()] if size == "full" else []))
    scene.actor("sweep", scene.client(), calls.sweep())
    return scene


def _goes_on_staged(size: Size) -> Scene:
    """One PREPARE_COMMIT follows another, while another process rolls the first one forward or takes over."""
    full = size == "full"
    scene = Scene(transactional_ids=("x",), budget=Budget(lost=1 if full else 0))
    owner = scene.before("x", scene.client("x"), calls.init(), calls.stage(A, "a"))
    scene.actor("owner", owner, calls.commit(), calls.stage(A, "b"), calls.commit())
    scene.actor("sweep", scene.client(), calls.sweep())
    if full:
        scene.actor("takeover", scene.client("x"), calls.init())
    return scene


def _completes(size: Size) -> Scene:
    """A transaction has every marker and no COMPLETE_*. Its owner goes on; its idle thread and others complete it."""
    full = size == "full"
    scene = Scene(transactional_ids=("x",), budget=Budget(lost=1))
    owner = scene.before("x", scene.client("x"), calls.init(), calls.send(A, "a"), calls.commit())
    scene.actor("owner", owner, calls.send(A, "b"), *([calls.commit()] if full else []))
    scene.actor("idle", owner, calls.complete())
    if full:
        scene.actor("takeover", scene.client("x"), calls.init())
    else:
        scene.actor("slow", replace(scene.client(), prepare=scene.prepared()), calls.roll_forward())
    return scene


def _forgets(size: Size) -> Scene:
    """A tombstone follows PREPARE_COMMIT, while another process rolls that forward, and a late try is to forget the id."""
    full = size == "full"
    scene = Scene(
        ctx=context(constants=FORGETFUL), transactional_ids=("x",), budget=Budget(ticks=(FORGOTTEN_MS,) if full else ())
    )
    owner = scene.before("x", scene.client("x"), calls.init(), calls.stage(A, "a"))
    scene.actor("owner", owner, calls.commit(), calls.forget())
    scene.actor("late", owner, calls.forget())
    scene.actor("sweep", scene.client(), calls.sweep())
    if full:
        scene.actor("expirer", scene.client(), calls.expire_producers(A))
    return scene


def _staged(size: Size) -> Scene:
    full = size == "full"
    scene = Scene(transactional_ids=("x",), partitions=(A, B), budget=Budget(lost=1 if full else 0))
    owner = scene.before("owner", scene.client("x"), calls.init(), calls.stage(A, "a"), calls.stage(B, "b"))
    scene.actor("owner", owner, calls.commit())
    scene.actor("takeover", scene.client("x"), calls.init())
    scene.actor("sweep", scene.client(), calls.sweep())
    return scene


def _mixed(size: Size) -> Scene:
    """Staged and eager rows are in one transaction; the next transaction is aborted."""
    scene = Scene(transactional_ids=("x",), partitions=(A, B), budget=Budget(lost=1))
    owner = scene.before(
        "owner", scene.client("x"), calls.init(), calls.send(A, "a"), calls.stage(B, "b"), calls.stage(A, "c")
    )
    scene.actor("owner", owner, calls.commit(), calls.send(A, "d"), calls.abort())
    scene.actor("sweep", scene.client(), calls.sweep(), *([calls.sweep()] if size == "full" else []))
    return scene


def _inits(size: Size) -> Scene:
    full = size == "full"
    scene = Scene(transactional_ids=("x",), budget=Budget(lost=1))
    old = scene.before("old", scene.client("x"), calls.init(), calls.send(A, "a"))
    scene.actor("one", scene.client("x"), calls.init())
    scene.actor("two", scene.client("x"), calls.init())
    if full:
        scene.actor("old", old, calls.commit())
    return scene


def _first_init(size: Size) -> Scene:
    more = (calls.send(A, "b"), calls.commit()) if size == "full" else ()
    scene = Scene(ctx=context(max_settles=2), transactional_ids=("x", "y"), budget=Budget(lost=1))
    scene.actor("one", scene.client("x"), calls.init(), calls.send(A, "a"), calls.commit())
    scene.actor("two", scene.client("x"), calls.init(), *more)
    return scene


def _time_out(size: Size) -> Scene:
    full = size == "full"
    scene = Scene(transactional_ids=("x",), budget=Budget(lost=1 if full else 0, ticks=(TIMEOUT_MS + 1,)))
    owner = scene.before("owner", scene.client("x"), calls.init(), calls.send(A, "a"))
    scene.actor("owner", owner, calls.send(A, "b"), calls.commit())
    scene.actor("sweep", scene.client(), calls.sweep())
    return scene


def _pause(size: Size) -> Scene:
    """A producer pauses within its transaction for longer than idle producers are kept, and no sweep runs."""
    scene = Scene(ctx=context(constants=FORGETFUL), transactional_ids=("x",), budget=Budget(ticks=(FORGOTTEN_MS,)))
    owner = scene.before("x", scene.client("x"), calls.init(), calls.send(A, "a"))
    plain = scene.before("p", scene.client(), calls.idempotent())
    scene.actor("owner", owner, calls.send(A, "b"), calls.commit())
    scene.actor("plain", plain, calls.send(A, "p"), *([calls.expire_producers(A)] if size == "full" else []))
    scene.expects = {"owner": {"committed"}}
    return scene


def _operator(size: Size) -> Scene:
    scene = Scene(transactional_ids=("x",), partitions=(A, B), budget=Budget(lost=1 if size == "full" else 0))
    owner = scene.before("owner", scene.client("x"), calls.init(), calls.send(A, "a"))
    scene.actor("owner", owner, calls.send(B, "b"), calls.commit())
    scene.actor("operator", scene.client(), calls.operator_abort("x"))
    return scene


def _offsets(size: Size) -> Scene:
    scene = Scene(transactional_ids=("x", "y"), partitions=(A, B), exclusive=("range",))
    ready = {
        name: scene.before(
            name, scene.client(name), calls.init(), calls.fetch_offsets(), calls.stage(B, f"range by {name}")
        )
        for name in ("x", "y")
    }
    send = calls.send_offsets(None, expected=True)
    if size == "full":
        scene.actor("x", ready["x"], send, calls.commit())
    else:
        scene.actor("x", scene.before("x1", ready["x"], send), calls.commit())
    scene.actor("y", ready["y"], send, calls.commit())
    return scene


def _pending(size: Size) -> Scene:
    """An eager transaction with offsets dies; a plain commit and a fetch meet its pending offsets."""
    full = size == "full"
    scene = Scene(transactional_ids=("x",), budget=Budget(ticks=(TIMEOUT_MS + 1,) if full else ()))
    owner = scene.before(
        "x", scene.client("x"), calls.init(), calls.fetch_offsets(), calls.send_offsets(3, expected=True)
    )
    scene.actor("x", owner, calls.commit())
    scene.actor("plain", scene.client(), calls.commit_offsets(7), calls.fetch_offsets())
    return scene


def _order(size: Size) -> Scene:
    """Two transactions with offsets of one group, neither with a condition: the later send counts."""
    full = size == "full"
    scene = Scene(transactional_ids=("x", "y"), budget=Budget(lost=2 if full else 0))
    one = scene.before("x", scene.client("x"), calls.init(), calls.send_offsets(1, expected=False))
    two = scene.before("y", scene.client("y"), calls.init(), calls.send_offsets(2, expected=False))
    scene.actor("x", one, calls.commit())
    scene.actor("y", two, calls.commit())
    return scene


def _internal(size: Size) -> Scene:
    """Internal topics are sealed in the middle of a transaction with offsets."""
    ctx = context(internal_roll=RollPolicy(batches=2 if size == "full" else 1))
    scene = Scene(ctx=ctx, transactional_ids=("x",), budget=Budget(lost=1 if size == "full" else 0))
    owner = scene.before("x", scene.client("x"), calls.init())
    scene.actor("owner", owner, calls.send_offsets(1, expected=True), calls.commit())
    scene.actor("plain", scene.client(), calls.commit_offsets(7))
    if size == "full":
        scene.actor("sweep", scene.client(), calls.sweep())
    return scene


def _seal(size: Size) -> Scene:
    full = size == "full"
    scene = Scene(ctx=context(batches=2), budget=Budget(lost=2 if full else 1))
    one = scene.before("one", scene.client(), calls.idempotent(), calls.send(A, "a"), calls.opened(A))
    two = scene.before("two", scene.client(), calls.idempotent())
    scene.actor("one", one, calls.send(A, "b"), calls.send(A, "c"))
    scene.actor("two", two, calls.send(A, "d"), *([calls.send(A, "e")] if full else []))
    scene.actor("sealer", scene.client(), calls.seal_all(A))
    return scene


def _seal_txn(size: Size) -> Scene:
    """Segments end within transactions: markers, snapshots and transaction indexes of open transactions."""
    scene = Scene(ctx=context(batches=1), transactional_ids=("x",), budget=Budget(lost=1 if size == "full" else 0))
    owner = scene.before("x", scene.client("x"), calls.init(), calls.send(A, "a"))
    plain = scene.before("p", scene.client(), calls.idempotent())
    scene.actor("owner", owner, calls.abort(), calls.send(A, "b"), calls.commit())
    scene.actor("plain", plain, calls.send(A, "p"))
    scene.actor("reader", scene.client(), calls.read(A), calls.read(A))
    return scene


def _stale(size: Size) -> Scene:
    scene = Scene(ctx=context(batches=1), deletable=deletes(A), budget=Budget(lost=1, ticks=(GRACE_MS,)))
    sleeper = scene.before("s", scene.client(), calls.idempotent(), calls.opened(A))
    other = scene.before("o", scene.client(), calls.idempotent(), calls.send(A, "o"), calls.send(A, "p"))
    scene.actor("sleeper", sleeper, calls.send(A, "s"))
    scene.actor("cleaner", scene.client(), bound(A))
    if size == "full":
        scene.actor("other", other, calls.send(A, "q"))
    return scene


def _deleted_tail(size: Size) -> Scene:
    """A client asks for the next slot by name, but the slot was deleted. The missing slot is not the end of the log."""
    scene = Scene(ctx=context(batches=1), deletable=deletes(A), budget=Budget(ticks=(GRACE_MS,)))
    sleeper = scene.before("s", scene.client(), calls.idempotent(), calls.opened(A))
    later = scene.before("z", sleeper, calls.send(A, "z"))
    other = scene.before("o", scene.client(), calls.idempotent(), calls.send(A, "o"), calls.send(A, "p"))
    scene.actor("sleeper", replace(later, views=sleeper.views), calls.send(A, "s"))
    scene.actor("cleaner", scene.client(), bound(A))
    if size == "full":
        scene.actor("other", other, calls.send(A, "q"))
    scene.expects = {"sleeper": {"appended"}}
    return scene


def _stale_txn(size: Size) -> Scene:
    """The sleeper is a transaction's owner, or a client that rolls the transaction forward."""
    full = size == "full"
    scene = Scene(
        ctx=context(batches=1),
        deletable=deletes(A),
        transactional_ids=("x",),
        budget=Budget(lost=1 if full else 0, ticks=(GRACE_MS,)),
    )
    owner = scene.before("x", scene.client("x"), calls.init(), calls.send(A, "a"))
    scene.dies("x!", owner, calls.abort(), "orders/")
    slow = replace(scene.client(), views=owner.views, prepare=scene.prepared())
    scene.before("y", scene.client("x"), calls.init(), calls.send(A, "b"), *([calls.commit()] if full else []))
    scene.actor("slow", slow, calls.roll_forward())
    scene.actor("late", owner, calls.send(A, "c"))
    scene.actor("cleaner", scene.client(), bound(A))
    return scene


def _reader(size: Size) -> Scene:
    scene = Scene(
        ctx=context(batches=2), transactional_ids=("x",), deletable=deletes(A, kinds=INDEXES),
        budget=Budget(ticks=(GRACE_MS,)), recovers=False,
    )  # fmt: skip
    plain = scene.before("p", scene.client(), calls.idempotent())
    owner = scene.before("x", scene.client("x"), calls.init(), calls.send(A, "a"))
    plain = scene.before("p1", plain, calls.send(A, "p"))
    owner = scene.before("x1", owner, calls.abort(), calls.send(A, "b"), calls.commit())
    plain = scene.before("p2", plain, calls.send(A, "q"))
    scene.actor("reader", scene.client(), *[calls.read(A)] * (3 if size == "full" else 2))
    scene.actor("cleaner", scene.client(), merge(A), bound(A, superseded=True))
    return scene


def _merge(size: Size) -> Scene:
    """A merge leaves two things alone: a large segment with an aborted row, and everything from an open transaction on.

    The merge copies the marker of the aborted row.
    """
    full = size == "full"
    scene = Scene(ctx=context(batches=1), transactional_ids=("x", "y"), budget=Budget(lost=1 if full else 0))
    plain = scene.before("p", scene.client(), calls.idempotent())
    aborts = scene.before("x", scene.client("x"), calls.init(), calls.send(A, "a" * _LONG))
    plain = scene.before("p1", plain, calls.send(A, "p"))
    scene.before("x1", aborts, calls.abort())
    plain = scene.before("p2", plain, calls.send(A, "q"))
    owner = scene.before("y", scene.client("y"), calls.init(), calls.send(A, "b"))
    scene.before("p3", plain, calls.send(A, "r"))
    scene.actor("merger", scene.client(), merge(A, _SMALL_ONES))
    scene.actor("owner", owner, calls.abort())
    scene.actor("reader", scene.client(), calls.read(A))
    return scene


def _two_merges(size: Size) -> Scene:
    full = size == "full"
    scene = Scene(ctx=context(batches=1), budget=Budget(lost=1 if full else 0))
    plain = scene.before("p", scene.client(), calls.idempotent(), *(calls.send(A, word) for word in "abc"))
    scene.actor("one", scene.client(), merge(A))
    scene.actor("two", scene.client(), merge(A))
    scene.actor("writer", plain, calls.send(A, "d"))
    return scene


def _late_merge(size: Size) -> Scene:
    """A merger sleeps during two merges of another one, and until the number that it wants to create is removed."""
    full = size == "full"
    scene = Scene(ctx=context(batches=1), deletable=deletes(A, kinds=(".clean",)), budget=Budget(lost=1 if full else 0))
    plain = scene.before("p", scene.client(), calls.idempotent(), *(calls.send(A, word) for word in "abc"))
    scene.actor("slow", scene.client(), merge(A))
    scene.actor("fast", plain, merge(A), calls.send(A, "d"), merge(A), forget_cleans(A))
    return scene


def _merge_looks(size: Size, past_ms: int = 0, constants: StoreConstants = CONSTANTS) -> Scene:
    """A commit has its marker in one partition. This is merged before, while and after the other partition gets its marker."""
    scene = Scene(
        ctx=context(batches=1, constants=constants), transactional_ids=("x",), partitions=(A, B), past_ms=past_ms, recovers=size == "full",
    )  # fmt: skip
    owner = scene.before("x", scene.client("x"), calls.init(), calls.send(A, "xa"), calls.send(B, "xb"))
    scene.before("p", scene.client(), calls.idempotent(), calls.send(A, "p"))
    scene.dies("x!", owner, calls.commit(), B.folder)
    slow = replace(scene.client(), views=owner.views, prepare=scene.prepared())
    scene.actor("slow", slow, calls.roll_forward())
    scene.actor("merger", scene.client(), merge(A))
    scene.actor("looks", scene.client(), calls.look(A, B))
    return scene


def _merge_looks_late(size: Size) -> Scene:
    """... and no client had rolled it forward for longer than the grace."""
    return _merge_looks(size, past_ms=GRACE_MS + HOUR_MS)


def _merge_looks_skewed(size: Size) -> Scene:
    """... by the clock of the client that finishes it.

    The merger's clock was set forward by a day, and no client has noticed that yet.
    """
    scene = _merge_looks(size, past_ms=BRIEF.delete_grace_ms + HOUR_MS, constants=BRIEF)
    scene.recovers = False
    scene.clocks = {
        "slow": ClockErrors(wall=(-MAX_CLOCK_ERROR_MS,)),
        "merger": ClockErrors(wall=(GRACE_MS + HOUR_MS,)),
        "looks": ClockErrors(wall=(MAX_CLOCK_ERROR_MS,)),
    }
    return scene


def _merge_looks_forgotten(size: Size) -> Scene:
    """... for longer than twice the grace, and ids expire after an hour: the id is removed, and then A is merged."""
    scene = Scene(
        ctx=context(batches=1, constants=FORGETFUL),
        transactional_ids=("x",),
        partitions=(A, B),
        past_ms=2 * GRACE_MS + HOUR_MS,
        budget=Budget(ticks=(HOUR_MS,)),
        recovers=size == "full",
    )
    owner = scene.before("x", scene.client("x"), calls.init(), calls.send(A, "xa"), calls.send(B, "xb"))
    scene.before("p", scene.client(), calls.idempotent(), calls.send(A, "p"))
    scene.dies("x!", owner, calls.commit(), B.folder)
    scene.cleaner("maintenance", calls.sweep(), calls.sweep(), merge(A))
    scene.actor("looks", scene.client(), calls.look(A, B))
    return scene


def _compaction(size: Size) -> Scene:
    """Rows of a key are followed by aborted rows, by rows of an open transaction, and by a row beyond it."""
    full = size == "full"
    scene = Scene(
        ctx=context(batches=1),
        transactional_ids=("x", "y"),
        compacted={A: Compacted()},
        budget=Budget(lost=1 if full else 0),
        recovers=full,
    )
    words = (calls.send(A, "a@k", "b@j", "o@i"), calls.send(A, "c@i"))
    plain = scene.before("p", scene.client(), calls.idempotent(), *words)
    scene.before("x", scene.client("x"), calls.init(), calls.send(A, "x@k"), calls.abort())
    owner = scene.before("y", scene.client("y"), calls.init(), calls.send(A, "y@j"))
    scene.before("p1", plain, calls.send(A, "d@k"), calls.send(A, "e"))
    scene.actor("compactor", scene.client(), compact(A, KEYED))
    scene.actor("owner", owner, calls.abort())
    scene.actor("reader", scene.client(), *[calls.read(A)] * (2 if full else 1))
    return scene


def _compaction_merge(size: Size) -> Scene:
    """The same segments are compacted and merged before a sleeping reader. One has a tombstone, one has no key."""
    full = size == "full"
    scene = Scene(ctx=context(batches=1), compacted={A: Compacted()}, budget=Budget(lost=1 if full else 0))
    words = ("a@k", "-@k", "n", "c@j") if full else ("a@k", "-@k", "n")
    plain = scene.before("p", scene.client(), calls.idempotent(), *(calls.send(A, word) for word in words))
    scene.before("q", plain, calls.send(A, "d@j"))
    scene.actor("compactor", scene.client(), compact(A, KEYED), *[compact(A, KEYED)] * full)
    scene.actor("merger", scene.client(), merge(A))
    scene.actor("reader", scene.client(), calls.read(A))
    return scene


def _two_compactions(size: Size) -> Scene:
    """Two compactions, one with little memory, run on a log while a writer seals another segment, and compacts once more."""
    full = size == "full"
    scene = Scene(
        ctx=context(batches=1), compacted={A: Compacted()}, budget=Budget(lost=1 if full else 0), recovers=full
    )
    words = ("a@k", "b@j", "-@k", "c@j") if full else ("a@k", "b@j", "c@k", "d")
    plain = scene.before("p", scene.client(), calls.idempotent(), *(calls.send(A, word) for word in words))
    scene.actor("one", scene.client(), compact(A, KEYED))
    scene.actor("two", scene.client(), compact(A, replace(KEYED, max_keys=1)))
    if full:
        scene.actor("writer", plain, calls.send(A, "d@k"), compact(A, KEYED))
    return scene


def _tombstone(size: Size) -> Scene:
    """Everything older than a tombstone is compacted already. After its retention the tombstone is removed."""
    full = size == "full"
    scene = Scene(
        ctx=context(batches=1),
        compacted={A: Compacted(tombstones_stay=False)},
        budget=Budget(ticks=(HOUR_MS,)),
        recovers=full,
    )
    plain = scene.before("p", scene.client(), calls.idempotent(), calls.send(A, "a@k"), calls.send(A, "b@j"))
    scene.before("c", scene.client(), compact(A, KEYED))
    scene.before("q", plain, calls.send(A, "-@k"), calls.send(A, "c@j"))
    scene.actor("compactor", scene.client(), compact(A, KEYED), wait(HOUR_MS), compact(A, KEYED))
    scene.actor("merger", scene.client(), merge(A))
    if full:
        scene.actor("reader", scene.client(), calls.read(A))
    return scene


def _compaction_looks(size: Size) -> Scene:
    """As in `merge looks`, in a log with keys: newer rows supersede some or all rows of the transaction."""
    full = size == "full"
    scene = Scene(
        ctx=context(batches=1), transactional_ids=("x",), partitions=(A, B), compacted={A: Compacted()}, recovers=full
    )
    plain = scene.before("p", scene.client(), calls.idempotent(), calls.send(A, "p@k"))
    words = (calls.send(A, "xa@k"), calls.send(A, "xc@j"), calls.send(B, "xb"))
    owner = scene.before("x", scene.client("x"), calls.init(), *words)
    scene.dies("x!", owner, calls.commit(), B.folder)
    scene.before("q", plain, calls.send(A, "q@k"), calls.send(A, "r"))
    slow = replace(scene.client(), views=owner.views, prepare=scene.prepared())
    scene.actor("slow", slow, calls.roll_forward())
    scene.actor("compactor", scene.client(), compact(A, KEYED), *[merge(A)] * full)
    scene.actor("looks", scene.client(), calls.look(A, B))
    return scene


def _compaction_hides(size: Size) -> Scene:
    """A hanging commit has a newer row of a key in the compacted log; snapshots show the older row."""
    full = size == "full"
    scene = Scene(
        ctx=context(batches=1), transactional_ids=("x",), partitions=(A, B), compacted={A: Compacted()}, recovers=False
    )
    scene.before("p", scene.client(), calls.idempotent(), calls.send(A, "p@k"))
    owner = scene.before("x", scene.client("x"), calls.init(), calls.send(A, "x@k"), calls.send(B, "xb"))
    scene.dies("x!", owner, calls.commit(), B.folder)
    scene.before("r", scene.client(), calls.idempotent(), calls.send(A, "r"))
    slow = replace(scene.client(), views=owner.views, prepare=scene.prepared())
    scene.actor("slow", slow, calls.roll_forward())
    scene.cleaner("compactor", compact(A, KEYED), *[compact(A, KEYED)] * full, calls.look(A, B, anew=True))
    scene.actor("looks", scene.client(), calls.look(A, B, anew=True))
    # A snapshot that begins after the compaction is never too old for it.
    scene.expects = {"compactor": {"looked"}}
    return scene


def _compaction_vacuum(size: Size) -> Scene:
    """A reader sleeps while all segments of its plan are compacted, and deleted a grace later."""
    scene = Scene(
        ctx=context(batches=1), deletable=everything(A), vacuumed=True, past_ms=2 * GRACE_MS, budget=Budget(ticks=(GRACE_MS,)), recovers=False,
        compacted={A: Compacted(tombstones_stay=False, all_distinct=False)},
    )  # fmt: skip
    first = ("a@k",) if size == "full" else ("a@k", "b@k")
    plain = scene.before("p", scene.client(), calls.idempotent(), calls.send(A, *first, in_file=True))
    scene.before("q", plain, *(calls.send(A, word) for word in (("-@k", "z") if size == "full" else ("z",))))
    scene.actor("reader", scene.client(), calls.read(A))
    scene.cleaner("cleaner", compact(A, KEYED), *[vacuum(A)] * (2 if size == "full" else 1))
    return scene


def _vacuum_reader(size: Size) -> Scene:
    """Old segments are merged, and deleted after a grace. A reader that planned before need not read its plan again."""
    scene = Scene(
        ctx=context(batches=1), deletable=everything(A), vacuumed=True, past_ms=2 * GRACE_MS, budget=Budget(ticks=(GRACE_MS,)), recovers=False,
    )  # fmt: skip
    plain = scene.before("p", scene.client(), calls.idempotent(), calls.send(A, "a", in_file=True), calls.send(A, "b"))
    scene.before("q", plain, *(calls.send(A, word) for word in ("cz" if size == "full" else "z")))
    scene.actor("reader", scene.client(), calls.read(A))
    scene.cleaner("cleaner", merge(A), vacuum(A), vacuum(A))
    return scene


def _merge_vacuum(size: Size) -> Scene:
    """A merger is about to publish, or has published, or never will."""
    scene = Scene(
        ctx=context(batches=1),
        deletable=everything(A),
        vacuumed=True,
        past_ms=2 * GRACE_MS,
        budget=Budget(ticks=(GRACE_MS,)),
        recovers=False,
    )
    scene.before("p", scene.client(), calls.idempotent(), *(calls.send(A, word) for word in "abc"))
    scene.actor("merger", scene.client(), merge(A))
    scene.cleaner("vacuum", vacuum(A), wait(GRACE_MS), *[vacuum(A)] * (2 if size == "full" else 1))
    return scene


def _stale_writer(size: Size) -> Scene:
    """As in `stale`, with the shipped vacuum, which may sleep too, while another one deletes the objects of its plan."""
    scene = Scene(
        ctx=context(batches=1),
        deletable=everything(A),
        vacuumed=True,
        budget=Budget(lost=1, ticks=(GRACE_MS,)),
        recovers=False,
    )
    sleeper = scene.before("s", scene.client(), calls.idempotent(), calls.opened(A))
    scene.before("o", scene.client(), calls.idempotent(), calls.send(A, "o"), calls.send(A, "p"))
    scene.actor("sleeper", sleeper, calls.send(A, "s"))
    scene.cleaner("vacuum", vacuum(A))
    return scene


def _young_writer(clocks: dict[str, ClockErrors], constants: StoreConstants = CONSTANTS, tick_ms: int = 0) -> Scene:
    """A writer opened its partition just now. Other writers filled two segments since then, and vacuum runs."""
    scene = Scene(
        ctx=context(batches=1, constants=constants),
        deletable=everything(A),
        vacuumed=True,
        budget=Budget(ticks=(tick_ms,)),
        recovers=False,
        clocks=clocks,
    )
    sleeper = scene.before("s", scene.client(), calls.idempotent(), calls.opened(A))
    scene.before("o", scene.client(), calls.idempotent(), calls.send(A, "o"), calls.send(A, "p"))
    scene.actor("sleeper", sleeper, calls.send(A, "s"))
    scene.cleaner("vacuum", vacuum(A))
    return scene


def _skewed_vacuum(size: Size) -> Scene:
    """... whose clock is ahead by more than the grace, but within the allowed error; in full size the writer's is behind."""
    ahead, behind = ClockErrors(wall=(MAX_CLOCK_ERROR_MS,)), ClockErrors(wall=(-MAX_CLOCK_ERROR_MS,))
    clocks = {"vacuum": ahead, "sleeper": behind} if size == "full" else {"vacuum": ahead}
    return _young_writer(clocks, BRIEF, BRIEF.delete_grace_ms)


def _host_set_forward(size: Size) -> Scene:
    """... and the clock of the only machine, which the store shares, is set to tomorrow."""
    set_forward = ClockErrors(wall=(0, GRACE_MS + HOUR_MS))
    return _young_writer({"sleeper": set_forward, "vacuum": set_forward, STORE: set_forward})


def _machine_slept(size: Size) -> Scene:
    """... a day later. The writer's monotonic clock did not count meanwhile."""
    return _young_writer({"sleeper": ClockErrors(monotonic=(0, -GRACE_MS))}, tick_ms=GRACE_MS)


def _writer_set_back(size: Size) -> Scene:
    """... a day later. The writer's wall clock was set back by a day."""
    return _young_writer({"sleeper": ClockErrors(wall=(0, -GRACE_MS))}, tick_ms=GRACE_MS)


def _two_vacuums(size: Size) -> Scene:
    """Two vacuums delete segments that were merged long ago, beside a writer that started before."""
    scene = Scene(
        ctx=context(batches=1), deletable=everything(A), vacuumed=True, past_ms=2 * GRACE_MS,
        recovers=False,
    )  # fmt: skip
    plain = scene.before("p", scene.client(), calls.idempotent(), *(calls.send(A, word) for word in "abc"))
    scene.before("m", scene.client(), merge(A))
    if size == "full":
        scene.actor("writer", plain, calls.send(A, "d"))
    scene.cleaner("one", vacuum(A))
    scene.cleaner("two", vacuum(A))
    return scene


def _vacuumed(size: Size, *transactional_ids: str, ticks: tuple[int, ...] = ()) -> Scene:
    """A partition whose objects may be deleted, and which no writer can repair any more."""
    budget = Budget(lost=1 if size == "full" else 0, ticks=ticks)
    return Scene(
        transactional_ids=transactional_ids, deletable=everything(A), vacuumed=True, budget=budget, recovers=False
    )


def _slow_prepare(size: Size) -> Scene:
    """A new id stages a file and commits at any speed. Another instance takes over, and vacuum decides about the file."""
    scene = _vacuumed(size, "x")
    scene.actor("owner", scene.client("x"), calls.init(), calls.stage(A, "a"), calls.commit())
    scene.actor("takeover", scene.client("x"), calls.init())
    scene.cleaner("vacuum", vacuum(A))
    return scene


def _slow_append(size: Size) -> Scene:
    """... a transaction's file is written, and an append names it long after."""
    scene = _vacuumed(size, "x")
    owner = scene.before("x", scene.client("x"), calls.init(), calls.register(A))
    scene.actor("owner", owner, calls.send(A, "a", in_file=True), calls.commit())
    scene.actor("takeover", scene.client("x"), calls.init())
    scene.cleaner("vacuum", vacuum(A))
    return scene


def _slow_drawn(size: Size) -> Scene:
    """A producer without an id sleeps between its file and the append that names it."""
    scene = _vacuumed(size, ticks=(GRACE_MS + 1,))
    plain = scene.before("p", scene.client(), calls.idempotent(), calls.send(A, "p"))
    scene.actor("writer", plain, calls.send(A, "s", in_file=True))
    scene.cleaner("vacuum", vacuum(A))
    return scene


def _retention_merge(size: Size) -> Scene:
    """The log start moves into an aborted transaction, of which a large row stays. The segment with its marker is merged."""
    scene = Scene(ctx=context(batches=1), transactional_ids=("x",), recovers=size == "full")
    owner = scene.before("x", scene.client("x"), calls.init(), calls.send(A, "a"), calls.send(A, "b" * _LONG))
    plain = scene.before("p", scene.client(), calls.idempotent(), calls.send(A, "p"))
    scene.before("x1", owner, calls.abort())
    scene.before("q", plain, calls.send(A, "q"), calls.send(A, "r"))
    scene.actor("retention", scene.client(), calls.log_start(A, 1))
    scene.actor("merger", scene.client(), merge(A, _SMALL_ONES), *([merge(A, _SMALL_ONES)] if size == "full" else []))
    scene.actor("reader", scene.client(), *[calls.read(A)] * (2 if size == "full" else 1))
    return scene


def _retention_vacuum(size: Size) -> Scene:
    """Retention removes rows, and vacuum their objects, while they are merged and read."""
    scene = Scene(ctx=context(batches=1), deletable=everything(A), vacuumed=True, past_ms=2 * GRACE_MS, recovers=False)
    scene.before("p", scene.client(), calls.idempotent(), *(calls.send(A, word) for word in "abc"))
    scene.cleaner("cleaner", retain(A, GRACE_MS), vacuum(A))
    scene.actor("merger", scene.client(), merge(A))
    if size == "full":
        scene.actor("reader", scene.client(), calls.read(A))
    return scene


def _snapshot(size: Size) -> Scene:
    """A staged and an eager commit. One reader takes a snapshot during them, and each writer after its commit."""
    full = size == "full"
    scene = Scene(transactional_ids=("x", "y"), partitions=(A, B), budget=Budget(lost=1 if full else 0), recovers=False)
    staged = scene.before("x", scene.client("x"), calls.init(), calls.stage(A, "xa"), calls.stage(B, "xb"))
    eager = scene.before("y", scene.client("y"), calls.init(), calls.send(A, "ya"), calls.send(B, "yb"))
    scene.actor("eager", eager, calls.commit(), *((calls.look(A, B),) if full else ()))
    scene.actor("staged", staged, calls.commit(), *((calls.look(A, B),) if full else ()))
    scene.actor("looks", scene.client(), calls.look(A, B))
    return scene


def _snapshot_new(size: Size) -> Scene:
    """An eager transaction, the first of its id, completes after the table was read and before the logs are read."""
    scene = Scene(
        transactional_ids=("x",), partitions=(A, B), budget=Budget(lost=1 if size == "full" else 0), recovers=False
    )
    words = (calls.send(A, "xa"), calls.send(B, "xb"))
    scene.actor("new", scene.client("x"), calls.init(), *words, calls.commit(), calls.look(A, B))
    scene.actor("looks", scene.client(), calls.look(A, B))
    return scene


def _two_aborts(size: Size) -> Scene:
    """Two open transactions are in separate segments, and are aborted one after the other."""
    full = size == "full"
    scene = Scene(ctx=context(batches=2), transactional_ids=("x", "y"), budget=Budget(lost=2 if full else 0))
    one = scene.before("x", scene.client("x"), calls.init(), calls.send(A, "a"))
    two = scene.before("y", scene.client("y"), calls.init(), calls.send(A, "b"))
    scene.actor("x", one, calls.abort())
    scene.actor("y", two, calls.send(A, "c"), calls.abort())
    return scene


def _retention(size: Size) -> Scene:
    """The log start moves into an open transaction."""
    full = size == "full"
    scene = Scene(ctx=context(batches=2), transactional_ids=("x",), budget=Budget(lost=2 if full else 0))
    owner = scene.before("x", scene.client("x"), calls.init(), calls.send(A, "a"))
    scene.before("p", scene.client(), calls.idempotent(), calls.send(A, "p"))
    scene.actor("owner", owner, calls.send(A, "b"), calls.commit())
    scene.actor("retention", scene.client(), calls.log_start(A, 2))
    if full:
        scene.actor("reader", scene.client(), calls.read(A), calls.read(A))
    return scene


def _deletion(size: Size) -> Scene:
    """A topic is deleted while a staged commit and an append are on their way."""
    full = size == "full"
    scene = Scene(transactional_ids=("x",), partitions=(), budget=Budget(lost=1))
    staged = scene.before(
        "x", scene.client("x"), calls.init(), calls.stage(A, "a"), *([calls.send(A, "b")] if full else [])
    )
    plain = scene.before("p", scene.client(), calls.idempotent(), calls.opened(A))
    scene.actor("owner", staged, calls.commit())
    scene.actor("plain", plain, calls.send(A, "p"))
    scene.actor("deletion", scene.client(), calls.log_start(A, None, deleted_version=1))
    return scene


def _made_anew(size: Size) -> Scene:
    """A client that knows one of its topics from before the deletion begins, writes and commits a staged transaction."""
    full = size == "full"
    scene = Scene(transactional_ids=("x",), partitions=(C,), budget=Budget(lost=2 if full else 1))
    scene.before("t", scene.client(), calls.make_topic(A.topic), calls.make_topic(C.topic))
    owner = scene.before("x", scene.client("x"), calls.init(), calls.open_topic(A.topic, C.topic), calls.stage(C, "xc"))
    if full:
        owner = scene.before("x1", owner, calls.stage(A, "xa"))
    scene.before("d", scene.client(), calls.delete_topic(A.topic), *([calls.make_topic(A.topic)] if full else []))
    scene.actor("owner", owner, *([] if full else [calls.stage(A, "xa")]), calls.commit())
    if full:
        new = scene.before("y", scene.client(), calls.idempotent(), calls.open_topic(A.topic))
        scene.actor("new", new, calls.send(A, "y"))
    else:
        scene.actor("topics", scene.client(), calls.make_topic(A.topic))
    scene.expects = {"owner": {"failed"}}
    return scene


def _deleted_under(size: Size) -> Scene:
    """A topic is deleted and created again while rows for it are staged and committed."""
    full = size == "full"
    scene = Scene(transactional_ids=("x",), partitions=(C,), budget=Budget(lost=1 if full else 0))
    scene.before("t", scene.client(), calls.make_topic(A.topic), calls.make_topic(C.topic))
    owner = scene.before("x", scene.client("x"), calls.init(), calls.open_topic(A.topic, C.topic))
    scene.actor("owner", owner, calls.stage(A, "xa"), calls.stage(C, "xc"), calls.commit())
    scene.actor("topics", scene.client(), calls.delete_topic(A.topic), calls.make_topic(A.topic))
    return scene


def _open_over(size: Size) -> Scene:
    """A transaction is open in a topic that is deleted and created again.

    Another transaction commits there, and then the first one continues.
    """
    full = size == "full"
    budget = Budget(lost=1 if full else 0)
    scene = Scene(ctx=context(batches=2), transactional_ids=("x",), partitions=(), budget=budget)
    scene.before("t", scene.client(), calls.make_topic(A.topic))
    owner = scene.before("x", scene.client("x"), calls.init(), calls.open_topic(A.topic), calls.send(A, "xa"))
    scene.actor("owner", owner, calls.open_topic(A.topic), calls.send(A, "xb"), calls.commit())
    topics = (calls.delete_topic(A.topic), calls.make_topic(A.topic))
    new = scene.before("y", scene.client(), calls.idempotent())
    scene.actor("topics", new, *topics, calls.send(A, "y"), *([calls.send(A, "z")] if full else []))
    return scene


def _generations(size: Size) -> Scene:
    """A second consumer joins a group while the first commits its offsets."""
    scene = Scene(budget=Budget(lost=2 if size == "full" else 1))
    one = scene.before("one", scene.client(), calls.join_group("one"))
    scene.actor("one", one, calls.commit_offsets(1))
    scene.actor("two", scene.client(), calls.join_group("two"), calls.commit_offsets(2))
    if size == "full":
        scene.actor("three", scene.client(), calls.join_group("three"))
    return scene


def _members(size: Size) -> Scene:
    """A second member joins while the first one commits and gives up half, plainly or in a transaction.

    A producer still has the membership of the first one as it was before.
    """
    full = size == "full"
    scene = Scene(transactional_ids=("x",) if full else (), budget=Budget(lost=1 if full else 0))
    one = scene.before(
        "one", scene.client("x" if full else ""), *([calls.init()] if full else []), calls.join_members("one")
    )
    commits = [calls.sync_member(), calls.commit_held(2, everything=True)]
    if full:
        commits = [calls.commit_held(1, transaction=True), calls.sync_member(), calls.commit()]
    scene.actor("one", one, *commits)
    scene.actor("producer", replace(one, txn=None), calls.commit_held(1))
    scene.actor("two", scene.client(), calls.join_members("two"), calls.sync_member(), calls.commit_held(3))
    return scene


def _outsider(size: Size) -> Scene:
    """A consumer that is no member commits plainly while a member joins, commits and leaves."""
    full = size == "full"
    scene = Scene(budget=Budget(lost=1 if full else 0, ticks=(calls.SESSION_MS + 1,) if full else ()))
    scene.actor("one", scene.client(), calls.join_members("one"), calls.commit_held(1), calls.leave_members())
    scene.actor("outsider", scene.client(), calls.commit_offsets(7, outsider=True))
    return scene


def _member_sleeps(size: Size) -> Scene:
    """A member sleeps past its session, between any two requests of its commit, while another member goes on."""
    full = size == "full"
    scene = Scene(budget=Budget(lost=1 if full else 0, ticks=(calls.SESSION_MS + 1,)))
    one = scene.before("one", scene.client(), calls.join_members("one"))
    two = scene.before("two", scene.client(), calls.join_members("two"))
    one = scene.before("one again", one, calls.sync_member())
    scene.actor("one", one, calls.commit_held(1), calls.beat_member(), *([calls.commit_held(2)] if full else []))
    scene.actor("two", two, calls.beat_member(), calls.sync_member(), calls.commit_held(3))
    return scene


def _two_leaders(size: Size) -> Scene:
    """A member has died, and the two others make the next generation at once, beside a third that joins."""
    full = size == "full"
    scene = Scene(budget=Budget(lost=1 if full else 0), past_ms=calls.SESSION_MS + 1)
    scene.before("dead", scene.client(), calls.join_members("dead"))
    scene.past_ms = 0
    one = scene.client()
    scene.actor("one", one, calls.join_members("one"), calls.sync_member(), calls.commit_held(1))
    scene.actor("two", scene.client(), calls.join_members("two"), calls.sync_member(), calls.commit_held(2))
    if full:
        scene.actor("three", scene.client(), calls.join_members("three"))
    return scene


def _revoked(size: Size) -> Scene:
    """A member dies between giving up a partition and its record, or leaves; another one waits for the partition."""
    full = size == "full"
    scene = Scene(budget=Budget(lost=1 if full else 0, ticks=(calls.SESSION_MS + 1,) if full else ()))
    one = scene.before("one", scene.client(), calls.join_members("one"))
    two = scene.before("two", scene.client(), calls.join_members("two"))
    scene.actor("one", one, calls.sync_member(), calls.commit_held(1), calls.leave_members())
    scene.actor("two", two, calls.sync_member(), calls.sync_member(), calls.commit_held(2))
    return scene


def _static_member(size: Size) -> Scene:
    """A consumer joins with the `group.instance.id` of a member that still commits."""
    scene = Scene(budget=Budget(lost=1 if size == "full" else 0))
    one = scene.before("one", scene.client(), calls.join_members("one", "first"))
    two = scene.before("two", scene.client(), calls.join_members("two", "second"))
    one = scene.before("one again", one, calls.sync_member())
    scene.actor("one", one, calls.commit_held(1), calls.beat_member(), calls.commit_held(2))
    scene.actor("two", two, calls.sync_member(), calls.commit_held(3))
    scene.actor("heir", scene.client(), calls.join_members("heir", "first"), calls.commit_held(4))
    return scene


def _expiry(size: Size) -> Scene:
    full = size == "full"
    scene = Scene(
        ctx=context(constants=FORGETFUL),
        transactional_ids=("x",),
        # In quick size the transaction is overdue when it begins.
        past_ms=0 if full else FORGOTTEN_MS,
        budget=Budget(ticks=(FORGOTTEN_MS, GRACE_MS + FORGOTTEN_MS) if full else (FORGOTTEN_MS,)),
    )
    owner = scene.before("x", scene.client("x"), calls.init(), calls.register(A), calls.opened(A))
    scene.actor("sleeper", owner, calls.send(A, "a"), *([calls.commit()] if full else []))
    forget = [calls.sweep(), calls.expire_producers(A), *([calls.sweep()] if full else [])]
    scene.actor("maintenance", scene.client(), *forget)
    return scene


def _slow_marker(size: Size) -> Scene:
    """The client that rolls forward sleeps until the partition has forgotten the producer."""
    scene = Scene(
        ctx=context(constants=FORGETFUL),
        transactional_ids=("x",),
        budget=Budget(lost=1 if size == "full" else 0, ticks=(FORGOTTEN_MS,)),
    )
    owner = scene.before("x", scene.client("x"), calls.init(), calls.stage(A, "a"))
    scene.dies("x!", owner, calls.commit(), "orders/")
    slow = replace(scene.client(), views=owner.views, prepare=scene.prepared())
    scene.actor("slow", slow, calls.roll_forward())
    scene.actor("sweep", scene.client(), calls.sweep(), *([calls.sweep()] if size == "full" else []))
    scene.actor("expiry", scene.client(), calls.expire_producers(A))
    return scene


def _forgotten(size: Size) -> Scene:
    """A drawn producer's batch of unknown outcome is sealed, deleted and forgotten before the producer asks for it."""
    scene = Scene(
        ctx=context(batches=1, constants=FORGETFUL),
        deletable=deletes(A),
        budget=Budget(lost=2 if size == "full" else 1, ticks=(FORGOTTEN_MS, GRACE_MS)),
    )
    sleeper = scene.before("s", scene.client(), calls.idempotent(), calls.opened(A))
    scene.actor("sleeper", sleeper, calls.send(A, "s"))
    scene.actor("maintenance", scene.client(), calls.expire_producers(A), bound(A))
    return scene


def _replay(size: Size) -> Scene:
    """A stream restarts from an old checkpoint, long after its last commit."""
    scene = Scene(
        ctx=context(constants=FORGETFUL),
        transactional_ids=("x",),
        exclusive=("batch 5",),
        budget=Budget(ticks=(FORGOTTEN_MS,)),
    )
    version = TxnVersion(version=5, scope="q")
    scene.before("x", scene.client("x"), calls.init(), calls.stage(A, "batch 5 first"), calls.commit(version))
    scene.actor("again", scene.client("x"), calls.init(), calls.stage(A, "batch 5 again"), calls.commit(version))
    scene.actor("sweep", scene.client(), calls.sweep(), *([calls.expire_producers(A)] if size == "full" else []))
    return scene


def _swapped(size: Size) -> Scene:
    """One record was replaced by another one: every reader of later records must find the chain broken."""
    scene = Scene(judges=False)
    plain = scene.before(
        "p", scene.client(), calls.idempotent(), calls.send(A, "a"), calls.send(A, "b"), calls.send(A, "c")
    )
    other = Scene()
    other.before("p", other.client(), calls.idempotent(), calls.send(A, "a"), calls.send(A, "?"))
    path = A.folder + batch_name(1)
    data = other.world.data(other.store, path)
    assert data is not None
    scene.actor("plain", plain, calls.send(A, "d"))
    files = dict(scene.world.objects[number] for number in scene.world.stores[scene.store])
    scene.store = scene.world.from_files({**files, path: data, GHOST + path: files[path]})
    scene.actor("reader", scene.client(), calls.read(A), *([calls.read(A)] if size == "full" else []))
    return scene


def _put_back(size: Size) -> Scene:
    """Four clients hold views of a log that was put back to an older state between their calls, and a new client begins."""
    full = size == "full"
    scene = Scene(transactional_ids=("x",), past_ms=HOUR_MS, budget=Budget(lost=1 if full else 0))
    plain = scene.before("plain", scene.client(), calls.idempotent(), calls.send(A, "p"))
    owner = scene.before("owner", scene.client("x"), calls.init(), calls.send(A, "o"), calls.commit())
    copy = scene.store
    plain = scene.before("plain, later", plain, calls.send(A, "gone"))
    owner = scene.before("owner, later", owner, calls.send(A, "gone too"), calls.commit())
    reader = scene.before("reader", scene.client(), calls.read(A))
    scene.store = copy
    # It slept so long that it lists its partition before it appends.
    long_ago = ClockReading(START_MS - GRACE_MS)
    views = {tp: replace(view, listed_at=long_ago) for tp, view in plain.views.items()}
    scene.actor("sleeper", replace(plain, views=views, sequences=()), calls.idempotent(), calls.send(A, "s"))
    scene.actor("plain", plain, calls.send(A, "a"))
    scene.actor("owner", owner, calls.send(A, "b"), calls.commit())
    scene.actor("reader", reader, calls.read(A))
    scene.actor("fresh", scene.client(), calls.idempotent(), calls.send(A, "n"))
    scene.expects = {name: {"failed"} for name in ("sleeper", "plain", "owner", "reader")}
    return scene


def _replaced(size: Size) -> Scene:
    """Clients with and without a view of a partition meet another store, in which the partition is empty or longer."""
    full = size == "full"
    scene = Scene(partitions=(A, B), past_ms=HOUR_MS, budget=Budget(lost=1 if full else 0))
    known = KnownStore(store_id="1" * 32, where="here")
    client = replace(scene.client(), ctx=replace(scene.ctx, store=known))
    scene.store = scene.world.from_files({STORE_DESCRIPTOR: _descriptor("1" * 32)})
    living = scene.before("living", client, calls.idempotent(), calls.send(A, "gone"), calls.opened(B))
    blank = scene.before("blank", client, calls.idempotent())
    scene.store = scene.world.from_files({STORE_DESCRIPTOR: _descriptor("2" * 32)})
    scene.before("other", scene.client(), calls.idempotent(), calls.send(A, "o"))
    scene.actor("behind", living, calls.send(A, "a"))
    scene.actor("empty", living, calls.send(B, "b"))
    scene.actor("blank", blank, calls.send(B, "c"))
    scene.actor("fresh", scene.client(), calls.idempotent(), calls.send(B, "n"))
    scene.expects = {name: {"failed"} for name in ("behind", "empty", "blank")}
    return scene


def _descriptor(store_id: str) -> bytes:
    return envelope.encode(
        StoreDescriptor(features=STORE_FEATURES, store_id=store_id, created_at=START_MS, constants=CONSTANTS)
    )


def _version(size: Size) -> Scene:
    full = size == "full"
    scene = Scene(transactional_ids=("x",), exclusive=("batch 5",), budget=Budget(lost=2 if full else 0))
    version = TxnVersion(version=5, scope="q")
    one = scene.before("one", scene.client("x"), calls.init(), calls.stage(A, "batch 5 by one"))
    scene.actor("one", one, calls.commit(version))
    scene.actor("two", scene.client("x"), calls.init(), calls.stage(A, "batch 5 by two"), calls.commit(version))
    return scene


def _unsure(size: Size) -> Scene:
    """A commit of unknown outcome is followed by an abort, as in Spark. The late commit must not win after that."""
    full = size == "full"
    scene = Scene(ctx=context(max_settles=1), transactional_ids=("x",), budget=Budget(lost=2 if full else 1))
    owner = scene.before("x", scene.client("x"), calls.init(), calls.stage(A, "a"))
    scene.actor("owner", owner, calls.commit(then_abort=True))
    if full:
        scene.actor("takeover", scene.client("x"), calls.init())
    else:
        scene.actor("sweep", scene.client(), calls.sweep())
    return scene


def _weather(size: Size) -> Scene:
    """Requests of one client fail, or their outcome is unknown."""
    full = size == "full"
    scene = Scene(transactional_ids=("x",), partitions=(A, B), budget=Budget(lost=1, failures=2 if full else 1))
    owner = scene.before("x", scene.client("x"), calls.init(), calls.send(A, "a"))
    scene.actor("owner", owner, calls.send(B, "b", in_file=True), calls.commit(), calls.send(A, "c"), calls.abort())
    return scene


def published_topic(scene: Scene, partitions: int = 1, **config: object) -> Client:
    """Create the published topic. Return a publisher of it."""
    config = {"publish_formats": "delta", **config}
    scene.before("t", scene.client(), make_published(A.topic, partitions, **config))
    scene.publisher = scene.before("o", scene.client(), calls.open_topic(A.topic))
    return scene.publisher


def is_topic(path: str) -> bool:
    return "/topic." in path


def _publish_txn(size: Size) -> Scene:
    """Two transactions over both partitions end, one of them with rows in a commit record, while a publisher publishes."""
    full = size == "full"
    scene = Scene(
        transactional_ids=("x", "y"), partitions=(A, B), settled=is_topic, budget=Budget(lost=1 if full else 0)
    )
    publisher = published_topic(scene, 2)
    scene.before("p", scene.client(), calls.idempotent(), calls.send(A, "p", in_file=True))
    x_words = (calls.send(A, "xa", in_file=True), calls.send(B, "xb", in_file=True))
    x = scene.before("x", scene.client("x"), calls.init(), *x_words)
    publisher = scene.before("first", publisher, publish())
    y_words = (calls.send(A, "ya", in_file=True), calls.send(B, "yb"))
    y = scene.before("y", scene.client("y"), calls.init(), *y_words)
    scene.actor("x", x, calls.commit(), *([calls.send(A, "xc", in_file=True), calls.abort()] if full else []))
    scene.actor("y", y, calls.commit())
    scene.cleaner("publisher", publish(), client=publisher)
    scene.expects = {"publisher": {"published"}}
    return scene


def _two_publishers(size: Size) -> Scene:
    """A publisher died before it wrote the format. Two others go on, beside a producer.

    A file holds an aborted row, so other rows of it are copied.
    """
    full = size == "full"
    scene = Scene(ctx=context(batches=3), partitions=(A,), settled=is_topic, budget=Budget(lost=2 if full else 1))
    publisher = published_topic(scene, publish_formats="delta,iceberg" if full else "delta")
    plain = scene.before("p", scene.client(), calls.idempotent(), calls.send(A, "p"))
    x = scene.before("x", scene.client("x"), calls.init(), calls.send(A, "x"))
    scene.dies("first", publisher, publish(), "_delta_log")
    scene.before("x!", x, calls.abort())
    plain = scene.before("q", plain, calls.send(A, "q", in_file=True))
    scene.cleaner("one", publish(), client=publisher)
    scene.cleaner("two", publish(), client=publisher)
    return scene


def _publish_merge(size: Size) -> Scene:
    """Published files are merged with new ones, while a publisher publishes twice."""
    budget = Budget(lost=1 if size == "full" else 0)
    scene = Scene(ctx=context(batches=1), partitions=(A,), settled=is_topic, budget=budget)
    publisher = published_topic(scene)
    plain = scene.before("p", scene.client(), calls.idempotent(), *(calls.send(A, word) for word in "bc"))
    publisher = scene.before("first", publisher, publish())
    scene.before("q", plain, calls.send(A, "d"), calls.send(A, "e", in_file=True))
    scene.actor("merger", scene.client(), merge(A))
    scene.cleaner("publisher", publish(), publish(), client=publisher)
    return scene


def publish_scene(
    ticks: tuple[int, ...], retention_ms: int, words: Sequence[str], **changes: Any
) -> tuple[Scene, Client, Client]:
    """Files were published long ago. Vacuum may delete everything of the topic that it finds dead."""
    values: dict[str, Any] = {
        "ctx": context(batches=1),
        "deletable": _is_file,
        "settled": is_topic,
        "past_ms": 2 * GRACE_MS,
    }
    scene = Scene(**{**values, **changes}, vacuumed=True, budget=Budget(ticks=ticks), recovers=False)
    publisher = published_topic(scene, publish_retention_ms=retention_ms)
    plain = scene.before("p", scene.client(), calls.idempotent(), *(calls.send(A, word) for word in words))
    # The rows of the active segment have a file, so no publisher ends it.
    plain = scene.before("p!", plain, calls.send(A, "z", in_file=True))
    return scene, plain, scene.before("first", publisher, publish())


def _is_file(path: str) -> bool:
    return path.startswith((A.folder, f"{A.topic}/publication/")) and not path.endswith(".json")


def _publish_vacuum(size: Size) -> Scene:
    """Published files were merged. Readers read the version with them, while it is replaced and vacuum deletes files."""
    full = size == "full"
    scene, _, publisher = publish_scene((PUBLISH_RETENTION_MS,), PUBLISH_RETENTION_MS, "bc")
    scene.before("m", scene.client(), merge(A))
    if not full:
        # It deletes the indexes, so that the next one would delete the files.
        scene.past_ms = HOUR_MS
        scene.before("v", publisher, vacuum(A))
    scene.cleaner("publisher", publish(), client=publisher)
    scene.cleaner("vacuum", *[vacuum(A)] * (3 if full else 1), client=publisher)
    return scene


def _publish_sleeps(size: Size) -> Scene:
    """A publisher sleeps while the files of its cut are merged, and deleted a grace later."""
    full = size == "full"
    scene, plain, publisher = publish_scene((GRACE_MS + 1,), 0, "b")
    scene.before("q", plain, calls.send(A, "c"), calls.send(A, "y", in_file=True))
    scene.past_ms, scene.publishes = 0, full
    if not full:
        publisher = scene.before("half", publisher, publish(until_cut=True))
    scene.cleaner("publisher", publish(), client=publisher)
    scene.cleaner("vacuum", merge(A), wait(GRACE_MS), vacuum(A), vacuum(A), client=publisher)
    return scene


def _publish_retention(size: Size) -> Scene:
    """The log start lies behind a published file, and vacuum deletes it. A publisher follows.

    In full size the log start moves on at the same time.
    """
    full = size == "full"
    scene, plain, publisher = publish_scene((PUBLISH_RETENTION_MS,), PUBLISH_RETENTION_MS, "bc")
    scene.before("m", scene.client(), merge(A))
    publisher = scene.before("n", publisher, publish())
    scene.before("q", plain, calls.send(A, "y", in_file=True))
    scene.before("l", publisher, calls.log_start(A, 2), vacuum(A))
    # It deletes the index of the file, so that the next one would delete the file.
    scene.past_ms = HOUR_MS
    scene.before("v", publisher, vacuum(A))
    scene.cleaner("publisher", publish(), client=publisher)
    scene.cleaner("vacuum", *[calls.log_start(A, 3)] * full, vacuum(A), client=publisher)
    return scene


SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario(name="slot", what="two appenders and a retry compete for one slot", rules=(1, 2, 3), build=_slot),
        Scenario(name="fencing", what="init fences an append and a commit in flight", rules=(8, 9), build=_fencing),
        Scenario(name="commit", what="an eager commit over two partitions; its coordinator dies anywhere, one or two take over", rules=(4, 5, 11), build=_commit),
        Scenario(name="abort", what="an eager abort over two partitions; its coordinator dies anywhere, another takes over", rules=(4, 5, 11), build=_abort),
        Scenario(name="late abort", what="a delayed, repeated ABORT meets the producer's next transaction", rules=(10,), build=_late_abort),
        Scenario(name="goes on", what="an owner goes on after an end without COMPLETE, while another process rolls it forward", rules=(4, 5, 10, 11), build=_goes_on),
        Scenario(name="goes on staged", what="... and its next transaction is staged, too", rules=(4, 5, 10, 11), build=_goes_on_staged),
        Scenario(name="completes", what="COMPLETE is written late, beside the owner's next record and a takeover", rules=(4, 5, 8, 11), build=_completes),
        Scenario(name="forgets", what="an owner removes its id after an end without COMPLETE, while others roll it forward", rules=(4, 5, 11), build=_forgets),
        Scenario(name="staged", what="a staged commit over two partitions; two other instances take over", rules=(4, 5, 16), build=_staged),
        Scenario(name="mixed", what="a transaction both eager and staged during a sweep, and the next transaction", rules=(5, 10), build=_mixed),
        Scenario(name="inits", what="two inits race with each other and with a commit", rules=(8,), build=_inits),
        Scenario(name="first init", what="two instances create the same id at once, and commit", rules=(8, 9), build=_first_init),
        Scenario(name="time-out", what="the timeout races with an append and a commit", rules=(4, 5), build=_time_out),
        Scenario(name="pause", what="a producer pauses in its transaction for longer than idle producers are kept", rules=(7,), build=_pause),
        Scenario(name="operator", what="an operator's abort races with a registration and a commit", rules=(4, 5, 9), build=_operator),
        Scenario(name="offsets", what="two jobs process the same range, and both try to commit it", rules=(12,), build=_offsets),
        Scenario(name="pending", what="a plain commit and a fetch meet offsets of an undecided transaction", rules=(12,), build=_pending),
        Scenario(name="generations", what="a consumer joins a group while another commits", rules=(12,), build=_generations),
        Scenario(name="members", what="a member joins a group while another commits and gives up half", rules=(12,), build=_members),
        Scenario(name="member sleeps", what="a member sleeps past its session during a commit", rules=(12,), build=_member_sleeps),
        Scenario(name="outsider", what="a consumer that is no member commits beside a member", rules=(12,), build=_outsider),
        Scenario(name="two leaders", what="two members make the next generation without a dead one", rules=(12,), build=_two_leaders),
        Scenario(name="revoked", what="a member dies between a revocation and its record, or leaves", rules=(12,), build=_revoked),
        Scenario(name="static member", what="a consumer takes over the instance of a member that still commits", rules=(12,), build=_static_member),
        Scenario(name="order", what="two transactions send offsets of one group, and end in any order", rules=(12,), build=_order),
        Scenario(name="internal", what="internal topics are sealed while offsets are pending", rules=(12, 13), build=_internal),
        Scenario(name="seal", what="sealing races with appends that roll", rules=(1, 13, 16), build=_seal),
        Scenario(name="seal txn", what="segments end within transactions, and a reader reads them", rules=(6, 7, 13), build=_seal_txn),
        Scenario(name="two aborts", what="two open transactions are aborted in separate segments", rules=(5, 6), build=_two_aborts),
        Scenario(name="stale", what="a writer slept; its slot was sealed, bounded and deleted", rules=(2, 14), build=_stale),
        Scenario(name="deleted tail", what="a client reads a deleted slot by its name", rules=(13, 14), build=_deleted_tail),
        Scenario(name="stale txn", what="a coordinator and an owner slept, and the slots were deleted", rules=(10, 14), build=_stale_txn),
        Scenario(name="reader", what="a reader reads while segments are merged, bounded and deleted", rules=(6, 13), build=_reader),
        Scenario(name="merge", what="segments are merged below an open transaction, beside a large one with aborted rows", rules=(5, 6, 7, 13), build=_merge),
        Scenario(name="two merges", what="two mergers merge the same segments while a writer seals another one", rules=(6, 13, 15), build=_two_merges),
        Scenario(name="late merge", what="a merger sleeps during two merges of another one, and its number is free again", rules=(6, 13), build=_late_merge),
        Scenario(name="merge looks", what="a snapshot reads two partitions while one of them is merged", rules=(13, 17), build=_merge_looks),
        Scenario(name="merge looks late", what="... after a commit that was unfinished for longer than the grace", rules=(13, 17), build=_merge_looks_late),
        Scenario(name="merge looks, skewed", what="... with a grace that is shorter than the error of the clocks", rules=(13, 17), build=_merge_looks_skewed),
        Scenario(name="merge looks, forgotten", what="... for twice the grace, and its id expires after an hour", rules=(13, 17), build=_merge_looks_forgotten),
        Scenario(name="compaction", what="rows of a key are followed by aborted rows, open rows and later rows", rules=(5, 6, 7, 13), build=_compaction),
        Scenario(name="compaction merge", what="the same segments are compacted and merged, and read", rules=(6, 13), build=_compaction_merge),
        Scenario(name="two compactions", what="two compactions run on the same log while a writer seals another segment", rules=(6, 13, 15), build=_two_compactions),
        Scenario(name="tombstone", what="a tombstone waits for its time, and is removed with older rows", rules=(6, 13), build=_tombstone),
        Scenario(name="compaction looks", what="a snapshot reads two partitions while one of them is compacted", rules=(13, 17), build=_compaction_looks),
        Scenario(name="compaction hides", what="a commit hangs in a compacted log, with snapshots before and after the compaction", rules=(13, 17), build=_compaction_hides),
        Scenario(name="compaction vacuum", what="a reader sleeps while the segments of its plan are compacted and deleted", rules=(6, 13, 15), build=_compaction_vacuum),
        Scenario(name="vacuum reader", what="a reader sleeps while the segments of its plan are merged and deleted", rules=(6, 13, 15), build=_vacuum_reader),
        Scenario(name="merge vacuum", what="vacuum meets a run that is about to be published", rules=(6, 13), build=_merge_vacuum),
        Scenario(name="stale writer", what="a writer slept; its slot was sealed, and vacuum deletes it", rules=(2, 13, 14), build=_stale_writer),
        Scenario(name="skewed vacuum", what="the clock of a vacuum is ahead by more than the grace, beside a writer with a young view", rules=(2, 13, 14), build=_skewed_vacuum),
        Scenario(name="host set forward", what="the clock of the machine that has store, writer and vacuum is set forward by a day", rules=(2, 13, 14), build=_host_set_forward),
        Scenario(name="machine slept", what="a writer's monotonic clock stood still for the grace", rules=(2, 13, 14), build=_machine_slept),
        Scenario(name="writer set back", what="a writer's wall clock was set back by the grace, and the grace has passed", rules=(2, 13, 14), build=_writer_set_back),
        Scenario(name="two vacuums", what="two vacuums delete segments that were merged long ago, and a writer continues", rules=(2, 6, 13, 14), build=_two_vacuums),
        Scenario(name="slow prepare", what="vacuum meets a staged file before, while and after it is committed", rules=(5, 13, 16), build=_slow_prepare),
        Scenario(name="slow append", what="vacuum meets a file whose append is in flight, and an init that fences it", rules=(2, 8, 13, 16), build=_slow_append),
        Scenario(name="slow drawn", what="a producer without an id sleeps between its file and its append", rules=(2, 3, 16), build=_slow_drawn),
        Scenario(name="retention merge", what="the log start moves into an aborted transaction whose marker is merged", rules=(5, 6, 13), build=_retention_merge),
        Scenario(name="retention vacuum", what="old rows are removed while they are merged and read", rules=(6, 13), build=_retention_vacuum),
        Scenario(name="snapshot", what="a snapshot reads two partitions while transactions over both commit", rules=(17,), build=_snapshot),
        Scenario(name="snapshot new", what="a snapshot reads while an id is created and commits for the first time", rules=(17,), build=_snapshot_new),
        Scenario(name="retention", what="the log start moves into an open transaction", rules=(2, 5, 7), build=_retention),
        Scenario(name="deletion", what="a topic is deleted under a staged commit and an append", rules=(2, 5), build=_deletion),
        Scenario(name="made anew", what="a staged commit has rows for a topic that was deleted since its writer opened it", rules=(2, 5), build=_made_anew),
        Scenario(name="deleted under", what="a topic is deleted and created again while rows for it are staged and committed", rules=(2, 4, 5), build=_deleted_under),
        Scenario(name="open over", what="a topic is deleted and created again under an open transaction, which continues in the new one", rules=(5, 6, 7), build=_open_over),
        Scenario(name="expiry", what="an id and its producer state expire while the producer sleeps", rules=(8, 9, 11), build=_expiry),
        Scenario(name="slow marker", what="a client that rolls forward sleeps until the partition has forgotten the producer", rules=(5, 10), build=_slow_marker),
        Scenario(name="forgotten", what="a drawn producer's batch is sealed, deleted and forgotten before its outcome is known", rules=(3, 14), build=_forgotten),
        Scenario(name="replay", what="a stream restarts from an old checkpoint, long after its last commit", rules=(4, 8), build=_replay),
        Scenario(name="swapped", what="a record was replaced by another undamaged one", rules=(1, 6), build=_swapped),
        Scenario(name="version", what="two runs of one query commit the same version", rules=(4, 8), build=_version),
        Scenario(name="unsure", what="a commit of unknown outcome is followed by an abort", rules=(4, 5), build=_unsure),
        Scenario(name="put back", what="a store is put back to an older state while clients hold views of it", rules=(1, 2, 3), build=_put_back),
        Scenario(name="replaced", what="a store is deleted and created again while clients hold views of it", rules=(1, 2), build=_replaced),
        Scenario(name="publish txn", what="transactions end while a publisher takes a cut of both partitions", rules=(18,), build=_publish_txn),
        Scenario(name="two publishers", what="two publishers go on where another one died, one of its files with an aborted row", rules=(11, 18), build=_two_publishers),
        Scenario(name="publish merge", what="published files are merged with new ones while a publisher publishes", rules=(6, 18), build=_publish_merge),
        Scenario(name="publish vacuum", what="a published version is read while it is replaced, and its files are vacuumed", rules=(13, 18), build=_publish_vacuum),
        Scenario(name="publish sleeps", what="a publisher sleeps while the files of its cut are merged and deleted", rules=(13, 18), build=_publish_sleeps),
        Scenario(name="publish retention", what="the log start moves behind published files, and vacuum deletes them", rules=(13, 18), build=_publish_retention),
        Scenario(name="weather", what="requests fail, or their outcome is unknown", rules=(2, 3, 5, 11), build=_weather),
    )
}  # fmt: skip
