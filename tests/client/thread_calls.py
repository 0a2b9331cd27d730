"""Every public method of the client, ready to run beside another one. The table of threads runs these calls.

A `Scene` is one store and the clients that a program made from it; the first call that needs a client makes it. `CALLS`
has an entry for each public method of each kind of client. A method without an entry fails a test.
"""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

import txlog
from lab.baton import Baton, BatonStore
from txlog.client.admin.admin import Admin
from txlog.client.consumer import Consumer
from txlog.client.producer import Producer
from txlog.client.producer.batches import SendFuture
from txlog.client.producer.transaction_scope import TransactionScope
from txlog.client.reading import read_session
from txlog.client.staged import StagedTransaction
from txlog.client.store import Store
from txlog.core.names import TopicPartition
from txlog.core.records import StagedPart, StagedRows
from txlog.errors import TxlogError
from txlog.maintenance.erase import begin_erasure
from txlog.storage.inline_rows import encode_ipc
from txlog.storage.memory import MemoryObjectStore
from txlog.testing.clock import SeededIds

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False)])
A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
IN0, IN1 = TopicPartition("in", 0), TopicPartition("in", 1)
IN_ROWS = range(900, 906)
KINDS: dict[str, type] = {
    "plain": Producer,
    "eager": Producer,
    "staged": Producer,
    "deferred": Producer,
    "future": SendFuture,
    "consumer": Consumer,
    "store": Store,
    "admin": Admin,
    "handle": StagedTransaction,
    "scope": TransactionScope,
}
"""Kinds of clients: a producer without transactional.id, and of each kind of transaction; a future of each send; a
staged transaction."""
STAGED = {"eager": False, "staged": True, "deferred": None}


@dataclass(slots=True)
class Sent:
    """A row of one call of `send`, and its result."""

    kind: str
    id: int
    future: Future[Any] | None = None


@dataclass
class Scene:
    """One store, the clients of a program, and the answers that they got."""

    memory: MemoryObjectStore
    baton: Baton
    sent: list[Sent] = field(default_factory=list)
    ends: dict[str, list[str]] = field(default_factory=dict)
    """The ends of each transactional client's transactions, in order: commit or abort."""
    handed: list[Any] = field(default_factory=list)
    """Ids that polls of the racing threads returned."""
    moved: set[str] = field(default_factory=set)
    """Events of the racing calls that weaken the expectations: ended (also by another instance), deleted, sought,
    closed."""
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.store = self.open(BatonStore(self.memory, self.baton))
        self.producers: dict[str, Producer] = {}
        self.states: dict[str, str] = {}
        self._consumer: Consumer | None = None
        self._admin: Admin | None = None
        self._handle: StagedTransaction | None = None
        self._futures: dict[str, Future[Any]] = {}
        self._next = 0

    def open(self, store: Any, seed: int = 1, clock: Any = None) -> Store:
        opened = txlog.open(
            "memory://",
            object_store=store,
            clock=clock or self.baton.clock,
            ids=SeededIds(seed),
            config={"linger.ms": 20},
        )
        opened.runtime.driver._threads = 0  # a gather runs in the thread that calls it
        return opened

    # -- clients, made once and in the state that the first caller needs ----------------------------------------------

    def producer(self, kind: str, state: str = "open") -> Producer:
        """Return a producer of `kind`: new, ready (no open transaction), or open with rows in two partitions and an
        offset."""
        made = self.producers.get(kind)
        if made is None:
            settings: dict[str, Any] = {} if kind == "plain" else {"transactional_id": kind, "staged": STAGED[kind]}
            made = self.producers[kind] = self.store.producer(**settings)
            self.states[kind] = state
            if kind != "plain" and state != "new":
                made.init_transactions()
            if kind != "plain" and state == "open":
                made.begin_transaction()
                made.send_offsets_to_transaction({IN0: 5}, f"g-{kind}", expected={IN0: None})
            if state == "open":
                self.send(kind, partition=0)
                self.send(kind, partition=1)
        return made

    def send(self, kind: str, partition: int = 0) -> Future[Any]:
        self._next += 1
        sent = Sent(kind, self._next)
        self.sent.append(sent)
        sent.future = self.producers[kind].send("a", [{"id": sent.id}], partition=partition)
        return sent.future

    def future(self) -> Future[Any]:
        if "plain" not in self._futures:
            self.producer("plain")
            self._futures["plain"] = self.send("plain")
        return self._futures["plain"]

    def consumer(self) -> Consumer:
        if self._consumer is None:
            self._consumer = self.store.consumer(
                "in", group_id="group", auto_offset_reset="earliest", max_poll_records=1, enable_auto_commit=False
            )
            self.hand(self._consumer.poll(0))
        return self._consumer

    @property
    def is_closed(self) -> bool:
        """Return whether a racing call closed the store."""
        return self.store._closed

    @property
    def has_consumer(self) -> bool:
        return self._consumer is not None

    def hand(self, batch: pa.RecordBatch | None) -> None:
        self.handed += batch.column("id").to_pylist() if batch is not None else []

    def admin(self) -> Admin:
        if self._admin is None:
            self._admin = self.store.admin()
        return self._admin

    def handle(self) -> StagedTransaction:
        if self._handle is None:
            self._handle = StagedTransaction.begin(self.store.runtime, "handle")
        return self._handle

    def commit_parts(self) -> None:
        """Commit one row with the staged transaction."""
        self._next += 1
        sent = Sent("handle", self._next)
        self.sent.append(sent)
        table = pa.table({"id": [sent.id]}, schema=SCHEMA)
        rows = StagedRows(rows=1, payload=encode_ipc(table))
        schema_id = self.store.runtime.topic("a").schema_id
        self.handle().commit([StagedPart(topic="a", partition=0, schema_id=schema_id, inline=rows)])
        sent.future = Future()
        sent.future.set_result(None)

    # -- calls that note their answers --------------------------------------------------------------------------------

    def commit(self, kind: str) -> object:
        before = [sent for sent in self.sent if sent.kind == kind and sent.future is not None]
        result = self.producers[kind].commit_transaction()
        self.ended(kind, "commit", before)
        return result

    def abort(self, kind: str) -> None:
        self.producers[kind].abort_transaction()
        self.ended(kind, "abort", [])

    def ended(self, kind: str, end: str, before: Iterable[Sent] = ()) -> None:
        self.ends.setdefault(kind, []).append(end)
        for sent in before:
            if sent.future is not None and not sent.future.done():
                self.wrong.append(f"{kind}: commit returned, and the future of {sent.id} is open")

    def flush(self, kind: str) -> None:
        sender, waited = self.producers[kind]._sender, set()
        wait = sender.wait

        def noting(done: Callable[[], bool], deadline_ms: int | None) -> bool:
            waited.update(sender.unfinished)
            return wait(done, deadline_ms)

        sender.wait = noting  # type: ignore[method-assign]
        self.producers[kind].flush()
        if any(batch.error is not None for batch in waited) or waited & sender.unfinished:
            self.wrong.append(f"{kind}: flush returned, and rows that it waited for are not in")

    def transaction(self, kind: str) -> None:
        with self.producers[kind].transaction():
            future = self.send(kind)
        self.ended(kind, "commit", [sent for sent in self.sent if sent.future is future])

    def moving(self, what: str, call: Callable[[], object]) -> object:
        self.moved |= set(what.split())
        return call()


Prepare = Callable[[Scene], Callable[[], object]]
"""Make what a call needs, and return the call."""


def _producer(kind: str) -> dict[str, Prepare]:
    def entry(state: str, call: Callable[[Scene, Producer], object]) -> Prepare:
        def prepare(scene: Scene) -> Callable[[], object]:
            producer = scene.producer(kind, state)
            return lambda: call(scene, producer)

        return prepare

    return {
        "init_transactions": entry("new", lambda s, p: p.init_transactions()),
        "begin_transaction": entry("ready", lambda s, p: p.begin_transaction()),
        "send": entry("open", lambda s, p: s.send(kind).exception()),
        "flush": entry("open", lambda s, p: s.flush(kind)),
        "send_offsets_to_transaction": entry("open", lambda s, p: p.send_offsets_to_transaction({IN1: 7}, f"g-{kind}")),
        "commit_transaction": entry("open", lambda s, p: s.commit(kind)),
        "abort_transaction": entry("open", lambda s, p: s.abort(kind)),
        "transaction": entry("ready", lambda s, p: s.transaction(kind)),
        "close": entry("open", lambda s, p: s.moving("closed", p.close)),
        "partitions_for": entry("ready", lambda s, p: p.partitions_for("a")),
        "producer_id": entry("open", lambda s, p: p.producer_id),
        "producer_epoch": entry("open", lambda s, p: p.producer_epoch),
    }


def _consumer() -> dict[str, Prepare]:
    def entry(call: Callable[[Scene, Consumer], object]) -> Prepare:
        def prepare(scene: Scene) -> Callable[[], object]:
            consumer = scene.consumer()
            return lambda: call(scene, consumer)

        return prepare

    def sought(call: Callable[[Consumer], object]) -> Prepare:
        return entry(lambda s, c: s.moving("sought", lambda: call(c)))

    return {
        "subscribe": sought(lambda c: c.subscribe("in")),
        "assign": sought(lambda c: c.assign([IN0])),
        "assign_topics": sought(lambda c: c.assign_topics("in")),
        "unsubscribe": sought(lambda c: c.unsubscribe()),
        "enforce_rebalance": entry(lambda s, c: c.enforce_rebalance()),
        "assignment": entry(lambda s, c: c.assignment()),
        "awaited": entry(lambda s, c: c.awaited),
        "subscription": entry(lambda s, c: c.subscription()),
        "pause": sought(lambda c: c.pause(IN0)),
        "resume": entry(lambda s, c: c.resume(IN0)),
        "paused": entry(lambda s, c: c.paused()),
        "poll": entry(lambda s, c: s.hand(c.poll(0))),
        "iterate": entry(lambda s, c: s.hand(next(c.iterate(), None))),
        "position": entry(lambda s, c: c.position(IN0)),
        "seek": sought(lambda c: c.seek(IN0, 0)),
        "seek_to_beginning": sought(lambda c: c.seek_to_beginning()),
        "seek_to_end": sought(lambda c: c.seek_to_end()),
        "seek_to_committed": sought(lambda c: c.seek_to_committed()),
        "beginning_offsets": entry(lambda s, c: c.beginning_offsets([IN0])),
        "end_offsets": entry(lambda s, c: c.end_offsets([IN0])),
        "offsets_for_times": entry(lambda s, c: c.offsets_for_times({IN0: 0})),
        "lag": entry(lambda s, c: c.lag(IN0)),
        "commit": entry(lambda s, c: c.commit()),
        "committed": entry(lambda s, c: c.committed()),
        "group_metadata": entry(lambda s, c: c.group_metadata()),
        "close": sought(lambda c: c.close()),
    }


def _store() -> dict[str, Prepare]:
    def entry(call: Callable[[Scene], object]) -> Prepare:
        return lambda scene: lambda: call(scene)

    def made(scene: Scene) -> None:
        producer = scene.store.producer()
        scene.producers["plain 2"] = producer
        with contextlib.suppress(TxlogError):  # the other thread may have closed the store, or deleted the topic
            scene.send("plain 2")

    return {
        "url": entry(lambda s: s.store.url),
        "create_topic": entry(lambda s: s.store.create_topic("new", SCHEMA)),
        "topic": entry(lambda s: s.store.topic("spare")),
        "topics": entry(lambda s: s.store.topics()),
        "schema_history": entry(lambda s: s.store.schema_history("spare")),
        "alter_topic": entry(lambda s: s.store.alter_topic("spare", config={"retention.ms": 1})),
        "delete_topic": entry(lambda s: s.moving("deleted", lambda: s.store.delete_topic("a"))),
        "producer": entry(made),
        "consumer": entry(lambda s: s.store.consumer("in", group_id="other").assignment()),
        "admin": entry(lambda s: s.store.admin().list_groups()),
        "table": entry(lambda s: s.store.table("spare").count()),
        "snapshot": entry(lambda s: s.store.snapshot("spare").table("spare").count()),
        "close": entry(lambda s: s.moving("closed sought", s.store.close)),
    }


def _admin() -> dict[str, Prepare]:
    def entry(call: Callable[[Admin], object], moved: str = "") -> Prepare:
        def prepare(scene: Scene) -> Callable[[], object]:
            admin = scene.admin()
            return lambda: scene.moving(moved, lambda: call(admin))

        return prepare

    def cancelling(scene: Scene) -> Callable[[], object]:
        begun = begin_erasure(read_session(scene.store.runtime), "spare", "id = 1")
        admin = scene.admin()
        return lambda: admin.cancel_erasure(begun.erasure_id)

    return {
        "list_transactions": entry(lambda a: a.list_transactions()),
        "describe_transaction": entry(lambda a: a.describe_transaction("idle")),
        "find_hanging": entry(lambda a: a.find_hanging()),
        "abort_transaction": entry(lambda a: a.abort_transaction("eager"), "ended"),
        "fence": entry(lambda a: a.fence("staged"), "ended"),
        "expire": entry(lambda a: a.expire()),
        "expire_id": entry(lambda a: a.expire_id("idle", force=True)),
        "describe_producers": entry(lambda a: a.describe_producers("a", 0)),
        "list_offsets": entry(lambda a: a.list_offsets("a")),
        "describe_partition": entry(lambda a: a.describe_partition("a", 0)),
        "delete_records": entry(lambda a: a.delete_records("a", 0), "deleted"),
        "seal": entry(lambda a: a.seal("spare")),
        "erase": entry(lambda a: a.erase("spare", where="id = 1")),
        "list_erasures": entry(lambda a: a.list_erasures()),
        "cancel_erasure": cancelling,
        "list_groups": entry(lambda a: a.list_groups()),
        "describe_group": entry(lambda a: a.describe_group("idle-group")),
        "plan_reset": entry(lambda a: a.plan_reset("idle-group", [IN0], "earliest")),
        "reset_offsets": entry(lambda a: a.reset_offsets("idle-group", {IN0: 1})),
        "delete_offsets": entry(lambda a: a.delete_offsets("idle-group", [IN0])),
        "remove_members": entry(lambda a: a.remove_members("idle-group")),
        "delete_group": entry(lambda a: a.delete_group("idle-group", force=True)),
    }


def _handle() -> dict[str, Prepare]:
    def entry(call: Callable[[Scene, StagedTransaction], object]) -> Prepare:
        def prepare(scene: Scene) -> Callable[[], object]:
            handle = scene.handle()
            return lambda: call(scene, handle)

        return prepare

    return {
        "begin": entry(lambda s, h: s.moving("ended", lambda: StagedTransaction.begin(s.store.runtime, "handle"))),
        "resume": entry(lambda s, h: StagedTransaction.resume(s.store.runtime, h.txn, drawn=False, attempted=False)),
        "txn": entry(lambda s, h: h.txn),
        "session": entry(lambda s, h: h.session),
        "transactional_id": entry(lambda s, h: h.transactional_id),
        "producer_id": entry(lambda s, h: h.producer_id),
        "producer_epoch": entry(lambda s, h: h.producer_epoch),
        "look_again": entry(lambda s, h: h.look_again()),
        "commit": entry(lambda s, h: s.commit_parts()),
        "abort": entry(lambda s, h: h.abort()),
        "forget": entry(lambda s, h: h.forget()),
    }


def _future() -> dict[str, Prepare]:
    def entry(call: Callable[[Future[Any]], object]) -> Prepare:
        def prepare(scene: Scene) -> Callable[[], object]:
            future = scene.future()
            return lambda: call(future)

        return prepare

    return {
        "result": entry(lambda f: f.result()),
        "exception": entry(lambda f: f.exception()),
        "done": entry(lambda f: f.done()),
    }


_WITHOUT_ID = ("send", "flush", "close", "partitions_for")
CALLS: dict[tuple[str, str], Prepare] = {
    (kind, name): prepare
    for kind, entries in {
        "plain": {name: entry for name, entry in _producer("plain").items() if name in _WITHOUT_ID},
        "eager": _producer("eager"),
        "staged": _producer("staged"),
        "deferred": _producer("deferred"),
        "future": _future(),
        "consumer": _consumer(),
        "store": _store(),
        "admin": _admin(),
        "handle": _handle(),
    }.items()
    for name, prepare in entries.items()
}


def public_names(kind: type) -> set[str]:
    """Return the methods and properties that the class itself adds, without those that it inherits from Python's
    types."""
    wanted = (staticmethod, classmethod, property)
    return {
        name
        for name, value in vars(kind).items()
        if not name.startswith("_") and (inspect.isfunction(value) or isinstance(value, wanted))
    }


def is_documented(kind: str, name: str, error: BaseException) -> bool:
    """Return whether the docstring of the method, or of its class, names the error or one of its base classes."""
    owner = KINDS[kind]
    text = f"{inspect.getdoc(getattr(owner, name))} {inspect.getdoc(owner)}"
    text += "".join(str(inspect.getdoc(getattr(owner, other))) for other in re.findall(r"what `(\w+)` raises", text))
    named = set(re.findall(r"\b\w+Error\b", text))
    return isinstance(error, TxlogError) and any(cls.__name__ in named for cls in type(error).__mro__)
