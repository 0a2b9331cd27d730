"""A store, the calls of it that can be interrupted, and what other processes see of it afterwards.

`Scene` is the store: three topics, a group with offsets, one with a member, a transaction that is open and one that has
ended. Each `Call` is made on objects of one process. `seen` is what another process sees. A call that is interrupted
has happened or not, and the same call again ends where an undisturbed one ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import txlog
from txlog.client.admin.admin import Admin
from txlog.client.groups import GroupOffsets
from txlog.client.producer import Producer, at_exit
from txlog.client.reading import read_session
from txlog.client.staged import StagedTransaction
from txlog.client.store import Store
from txlog.client.tables.snapshot import Snapshot
from txlog.client.tables.table import TopicTable
from txlog.client.transactions.staged_files import StagedFiles
from txlog.core.names import TopicPartition
from txlog.core.records import OffsetValue, StagedPart
from txlog.errors import (
    GroupIdNotFoundError,
    IllegalStateError,
    InvalidRequestError,
    SchemaMismatchError,
    TopicExistsError,
    TransactionalIdNotFoundError,
    TxlogError,
    UnknownTopicOrPartitionError,
)
from txlog.maintenance.erase import begin_erasure
from txlog.maintenance.fsck import check_store
from txlog.maintenance.maintain import Maintainer
from txlog.storage.memory import MemoryObjectStore
from txlog.testing.clock import ManualClock, SeededIds

COLUMNS = pa.schema((pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.string())))
T0, T1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
SETTINGS = {"linger.ms": 0, "enable.auto.commit": False, "auto.offset.reset": "earliest"}
_filled: dict[str, tuple[dict[str, Any], int]] = {}


class Scene:
    """One store, and the process whose call is interrupted."""

    def __init__(self) -> None:
        if not _filled:
            clock = ManualClock()
            memory = MemoryObjectStore(clock=clock)
            _fill(memory, clock)
            _filled["store"] = (dict(memory._objects), clock.now_ms())
        objects, now_ms = _filled["store"]
        self.clock = ManualClock(now_ms=now_ms)
        self.memory = MemoryObjectStore(clock=self.clock)
        self.memory._objects.update(objects)
        self.opened: list[Store] = []
        self.made: Any = None
        """What `prepare` of a call has made, for the ways to go on."""
        self.store = self.open()
        self.admin: Admin = self.store.admin()

    def open(self) -> Store:
        """Open the store in another process."""
        ids = SeededIds(len(self.opened) + 1)
        found = txlog.open("memory://", config=SETTINGS, clock=self.clock, ids=ids, object_store=self.memory)
        self.opened.append(found)
        return found

    def table(self) -> TopicTable:
        """Return the table of one topic."""
        return self.store.table("orders")

    def snapshot(self) -> Snapshot:
        """Return a snapshot of both topics."""
        return self.store.snapshot("orders", "audit")

    def staged(self, name: str | None = "staged") -> StagedTransaction:
        """Begin a staged transaction."""
        return StagedTransaction.begin(self.store.runtime, name)

    def parts(self, txn: StagedTransaction, *keys: int, inline: bool = False) -> tuple[StagedPart, ...]:
        """Return rows for both partitions of one topic, and for the other topic."""
        files = StagedFiles(self.store.runtime, txn.txn, inline_bytes=60_000 if inline else 0)
        add(self, files, *keys)
        files.add(self.store.runtime.topic("audit"), rows(*keys), 0)
        return files.finish()

    def close(self) -> None:
        """End the processes, as a crash would."""
        for store in self.opened:
            store.runtime.close()

    def seen(self, *, whole: bool = False) -> dict[str, Any]:
        """Return what another process sees, without drawn ids and times.

        With `whole`, fsck must find nothing either.
        """
        store = self.open()
        found: dict[str, Any] = {}
        for topic in store.topics():
            columns = [(each.name, each.type) for each in topic.fields]
            found[topic.name] = (topic.partitions, dict(topic.config), columns)
            with store.consumer(topic.name) as consumer:
                found[f"{topic.name} starts"] = {tp.partition: at for tp, at in consumer.beginning_offsets().items()}
                batches = consumer.iterate()
                found[f"{topic.name} rows"] = sorted(
                    (row["_partition"], row["k"]) for batch in batches for row in batch.to_pylist()
                )
        admin = store.admin()
        for group in admin.list_groups():
            offsets = {(each.topic, each.partition): (each.committed, each.pending) for each in group.offsets}
            found[f"group {group.group}"] = (offsets, len(group.members))
        for txn in admin.list_transactions():
            # The next process may write COMPLETE_*.
            ended = "ended" if "EMPTY" in txn.state or "COMPLETE" in txn.state else txn.state
            found[f"id {txn.transactional_id}"] = (ended, txn.txn_version)
        if whole:
            report = check_store(self.memory, threads=1, clock=self.clock)
            assert report.is_clean, report.findings
        return found


def rows(*keys: int) -> pa.Table:
    """Return rows with these keys."""
    return pa.table({"k": list(keys), "v": [f"v{key}" for key in keys]}, schema=COLUMNS)


def add(scene: Scene, files: StagedFiles, *keys: int) -> None:
    """Add rows for both partitions."""
    at = np.array([number % 2 for number in range(len(keys))], dtype=np.int32)
    files.add(scene.store.runtime.topic("orders"), rows(*keys), at)


def _fill(memory: MemoryObjectStore, clock: ManualClock) -> None:
    store = txlog.open("memory://", config=SETTINGS, clock=clock, ids=SeededIds(0), object_store=memory)
    store.create_topic("orders", COLUMNS, 2, {"segment.bytes": "14", "key.columns": "k"})
    store.create_topic("audit", COLUMNS, 1, {"inline.max.bytes": "0"})
    store.create_topic("held", COLUMNS)
    for half in (range(3), range(3, 6)):
        with store.producer() as producer:
            for number in range(2):
                producer.send("orders", rows(*half), partition=number)
            producer.send("audit", rows(*half))
    with store.producer("ended") as producer, producer.transaction(7):
        producer.send("audit", rows(6))
    eager: Producer = store.producer("open", staged=False)
    eager.init_transactions()
    eager.begin_transaction()
    eager.send("held", rows(-1)).result()
    eager.flush()
    with store.consumer(group_id="g") as consumer:
        consumer.assign([T0, T1])
        consumer.commit({T0: 2, T1: 3})
    member = store.consumer("audit", group_id="m")
    member.poll(0)
    member.commit()
    store.runtime.close()
    at_exit.unwatch(eager)  # its process has died


Act = Callable[[], Any]


def nothing(scene: Scene) -> None:
    """Go on with nothing."""


@dataclass(frozen=True)
class Call:
    """A call in one state. `prepare` makes what it needs, and returns the call."""

    method: str
    prepare: Callable[[Scene], Act]
    over: tuple[type[TxlogError], ...] = ()
    """What the same call raises if the interrupted one has taken effect."""
    steps: bool = False
    """Whether other processes may see it half done until it is called again."""
    end: Callable[[Scene], object] = nothing
    """What the program does afterwards."""
    ways: tuple[Callable[[Scene, Act], None], ...] = ()
    """Other ways to go on than the same call. The rows are there as before the call, or as after it."""
    state: str = ""

    def __str__(self) -> str:
        return f"{self.method} {self.state}".rstrip()


def of_store(name: str, act: Callable[[Scene], object], **more: Any) -> Call:
    return Call(f"Store.{name}", lambda scene: lambda: act(scene), **more)


def on_admin(
    name: str,
    *args: object,
    over: tuple[type[TxlogError], ...] = (),
    state: str = "",
    steps: bool = False,
    ways: tuple[Callable[[Scene, Act], None], ...] = (),
    **settings: Any,
) -> Call:
    """Return a call of an operator."""

    def prepare(scene: Scene) -> Act:
        return lambda: getattr(scene.admin, name)(*args, **settings)

    return Call(f"Admin.{name}", prepare, over=over, state=state, steps=steps, ways=ways)


def on_table(name: str, act: Callable[[TopicTable], object], state: str = "") -> Call:
    """Return a call of a table, of now and of a snapshot."""

    def prepare(scene: Scene) -> Act:
        table = scene.snapshot().table("orders") if "snapshot" in state else scene.table()
        return lambda: act(table)

    return Call(f"TopicTable.{name}", prepare, state=state)


def _taking(batches: Iterable[pa.RecordBatch]) -> Act:
    """Take batches one by one. The same call again goes on with the rest."""
    taken: list[pa.RecordBatch] = []

    def act() -> int:
        for batch in batches:
            taken.append(batch)  # noqa: PERF402  what was taken before an interrupt stays
        return sum(batch.num_rows for batch in taken)

    return act


def _exported(table: Any) -> pa.Table:
    """Give the rows to another library, through C. There an interrupt has become an error of Arrow."""
    try:
        return pa.table(table)
    except pa.ArrowInvalid as error:
        if "KeyboardInterrupt" in str(error):
            raise KeyboardInterrupt from error
        raise


def _topic(scene: Scene, again: bool) -> Act:
    """Create a topic, perhaps one that was deleted before."""
    if again:
        scene.store.delete_topic("orders")
    return lambda: scene.store.create_topic("orders" if again else "new", COLUMNS, 2).name


def _closing(scene: Scene) -> Act:
    producer = scene.store.producer("closing")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("orders", rows(50), partition=0)
    consumer = scene.store.consumer("orders", group_id="closing")
    consumer.poll(0)
    scene.made = (producer, consumer)  # a store closes what the program still has
    return scene.store.close


def _exit(scene: Scene) -> Act:
    _closing(scene)
    leave = scene.store.__exit__
    return lambda: leave(None, None, None)


def _expire_later(scene: Scene) -> Any:
    scene.clock.advance_ms(100_000)
    return scene.admin.expire


def _by_time(scene: Scene, act: Act) -> None:
    """Leave it to others: they end what is half done when its time is over."""
    scene.clock.advance_ms(100_000)
    admin = scene.open().admin()
    admin.expire()


def _in_doubt(scene: Scene) -> Act:
    """Delete a group again, after an interrupt that came when the first record had landed."""
    landed = scene.memory.put_if_absent

    def put(path: str, data: bytes) -> None:
        landed(path, data)
        raise KeyboardInterrupt

    scene.memory.put_if_absent = put  # type: ignore[assignment]
    with suppress(KeyboardInterrupt):
        scene.admin.delete_group("m", force=True)
    scene.memory.put_if_absent = landed  # type: ignore[method-assign]
    return lambda: len(scene.admin.delete_group("m", force=True))


def _produced(scene: Scene) -> None:
    with scene.store.producer() as producer:
        producer.send("audit", rows(71)).result()


def _consumed(scene: Scene) -> object:
    scene.clock.advance_ms(60_000)  # an interrupted call may have left a member behind
    consumer = scene.store.consumer("audit", group_id="fresh")
    found = [row["k"] for batch in consumer.iterate() for row in batch.to_pylist()]
    consumer.close()
    return found


def _staged(inline: bool = False, version: int | None = None, offsets: bool = False) -> Callable[[Scene], Act]:
    def prepare(scene: Scene) -> Act:
        scene.made = txn = scene.staged()
        parts = scene.parts(txn, 30, 31, 32, inline=inline)
        sent = [GroupOffsets(group="g", offsets={T0: OffsetValue(offset=4)})] if offsets else []
        return lambda: txn.commit(parts, version=version, offsets=sent).skipped

    return prepare


def _next(scene: Scene) -> None:
    """Commit the next transaction of the same object."""
    scene.made.commit(scene.parts(scene.made, 40, 41))


def _abort_instead(scene: Scene, act: Act) -> None:
    """Abort. The answer shows what the interrupted commit has done."""
    committed = scene.made.abort().already_committed
    assert keys(scene).count(30) == committed, f"abort() said {committed}"
    _next(scene)
    assert keys(scene).count(30) == committed, "the next transaction changed what the abort had said"


def _go_on(scene: Scene, act: Act) -> None:
    """Take the object for the next transaction, without a look at the interrupted one. It may refuse that."""
    try:
        _next(scene)
    except IllegalStateError as error:
        if "call abort()" not in str(error):
            raise
        scene.made.abort()
        _next(scene)
    assert keys(scene).count(40) == 1, keys(scene)


def keys(scene: Scene) -> list[int]:
    with scene.open().consumer("orders") as consumer:
        return [row["k"] for batch in consumer.iterate() for row in batch.to_pylist()]


def _aborting(scene: Scene) -> Act:
    scene.made = txn = scene.staged()
    txn.commit(scene.parts(txn, 30))
    other = StagedTransaction.resume(scene.store.runtime, txn.txn, drawn=False, attempted=True)
    scene.made = other
    return lambda: other.abort().already_committed


def _forgetting(scene: Scene) -> Act:
    scene.made = txn = scene.staged(None)
    txn.commit(scene.parts(txn, 30))
    return lambda: scene.made.forget() in (True, False)


def _cancelling(scene: Scene) -> Act:
    begun = begin_erasure(read_session(scene.store.runtime), "orders", "k = 1")
    return lambda: scene.admin.cancel_erasure(begun.erasure_id)


def _by_maintenance(scene: Scene, act: Act) -> None:
    """Leave it to maintenance, which finishes an erasure that has begun."""
    assert not Maintainer(scene.open().runtime).run().failures


def _files(limit: int, inline: int, finish: bool) -> Callable[[Scene], Act]:
    """Collect rows, some of which are written by the call that is interrupted."""

    def prepare(scene: Scene) -> Act:
        txn = scene.staged()
        files = StagedFiles(scene.store.runtime, txn.txn, max_buffer_bytes=limit, inline_bytes=inline)
        add(scene, files, 30, 31)
        scene.made = (txn, files)
        return (lambda: len(files.finish())) if finish else (lambda: add(scene, files, 32, 33, 34, 35))

    return prepare


def _commit_files(scene: Scene) -> None:
    txn, files = scene.made
    txn.commit(files.finish())


STORES = (
    Call("Store.create_topic", lambda scene: _topic(scene, False), over=(TopicExistsError,)),
    Call("Store.create_topic", lambda scene: _topic(scene, True), over=(TopicExistsError,), state="again"),
    of_store("topic", lambda scene: scene.store.topic("orders")),
    of_store("topics", lambda scene: scene.store.topics()),
    of_store("schema_history", lambda scene: scene.store.schema_history("orders")),
    of_store(
        "alter_topic",
        lambda scene: scene.store.alter_topic("orders", config={"retention.ms": "5"}).config,
        state="config",
    ),
    of_store(
        "alter_topic", lambda scene: scene.store.alter_topic("audit", partitions=3).partitions, state="partitions"
    ),
    of_store(
        "alter_topic",
        lambda scene: scene.store.alter_topic("orders", add_columns=pa.schema([pa.field("w", pa.int64())])).schema,
        state="add",
        over=(SchemaMismatchError,),
    ),
    of_store(
        "alter_topic",
        lambda scene: scene.store.alter_topic("orders", rename_columns={"v": "w"}).schema,
        state="rename",
        over=(SchemaMismatchError,),
    ),
    of_store(
        "delete_topic",
        lambda scene: scene.store.delete_topic("orders"),
        over=(UnknownTopicOrPartitionError,),
        steps=True,
    ),
    of_store("producer", lambda scene: repr(scene.store.producer("made")), end=_produced),
    of_store("consumer", lambda scene: len(scene.store.consumer("audit").assignment()), end=_consumed),
    of_store(
        "consumer",
        lambda scene: scene.store.consumer("audit", group_id="fresh").subscription(),
        end=_consumed,
        state="member",
    ),
    of_store("table", lambda scene: repr(scene.store.table("orders"))),
    of_store("snapshot", lambda scene: repr(scene.store.snapshot("orders", "audit"))),
    of_store("admin", lambda scene: len(scene.store.admin().list_groups())),
    Call("Store.close", _closing, steps=True),
    Call("Store.__exit__", _exit, steps=True),
    Call("txlog.open", lambda scene: lambda: repr(scene.open())),
)
ADMINS = (
    on_admin("list_transactions"),
    on_admin("describe_transaction", "open"),
    on_admin("find_hanging", -1),
    on_admin("abort_transaction", "open", steps=True, ways=(_by_time,)),
    on_admin("fence", "open", steps=True, ways=(_by_time,)),
    on_admin("expire", dry_run=True, state="dry"),
    Call(
        "Admin.expire",
        _expire_later,
        steps=True,
        ways=(_by_time,),
    ),
    on_admin("expire_id", "ended", force=True, over=(TransactionalIdNotFoundError,)),
    on_admin("describe_producers", "orders", 1),
    on_admin("list_offsets", ["orders", "audit"]),
    on_admin("list_offsets", "orders", 1, state="time"),
    on_admin("describe_partition", "orders", 0),
    on_admin("delete_records", "orders", 0, 2),
    on_admin("delete_records", "audit", 0, state="all"),
    on_admin("seal", "orders"),
    on_admin("seal", "audit", state="done"),
    on_admin("erase", "orders", where="k = 1", steps=True, ways=(_by_maintenance,)),
    on_admin("list_erasures"),
    Call("Admin.cancel_erasure", _cancelling, over=(InvalidRequestError,)),
    on_admin("list_groups"),
    on_admin("describe_group", "g"),
    on_admin("plan_reset", "g", None, "earliest"),
    on_admin("plan_reset", "g", None, shift_by=1, state="shift"),
    on_admin("reset_offsets", "g", {T0: 1, T1: 1}),
    on_admin("reset_offsets", "m", {TopicPartition("audit", 0): 1}, force=True, state="force"),
    on_admin("delete_offsets", "g", [T0]),
    on_admin("remove_members", "m"),
    on_admin("delete_group", "g", over=(GroupIdNotFoundError,)),
    on_admin("delete_group", "m", force=True, over=(GroupIdNotFoundError,), state="force"),
    Call("Admin.delete_group", _in_doubt, state="in doubt", end=lambda scene: scene.admin.list_groups()),
)
TABLES = (
    on_table("topic", lambda table: table.topic()),
    on_table("schema", lambda table: table.schema),
    on_table("scan", lambda table: table.scan().read_all()),
    on_table("scan", lambda table: table.scan(["k"], "k > 1").read_all(), "of a snapshot"),
    Call("TopicTable.scan", lambda scene: _taking(scene.table().scan()), over=(IllegalStateError,), state="taken"),
    Call("Changes.__iter__", lambda scene: _taking(scene.table().changes()), over=(IllegalStateError,)),
    Call("Changes.read_all", lambda scene: lambda: scene.table().changes().read_all()),
    Call("Changes.__arrow_c_stream__", lambda scene: lambda: _exported(scene.table().changes())),
    on_table("to_arrow", lambda table: table.to_arrow(where=pc.field("k") > 1)),
    on_table("to_pandas", lambda table: table.to_pandas(["k"]).to_dict("list")),
    on_table("to_polars", lambda table: table.to_polars(["k"]).to_dict(as_series=False)),
    on_table("count", lambda table: table.count()),
    on_table("count", lambda table: table.count("k > 1"), "of a snapshot"),
    on_table("latest", lambda table: table.latest().read_all()),
    on_table("changes", lambda table: dict((found := table.changes()).offsets) | {"rows": found.read_all().num_rows}),
    on_table("__arrow_c_stream__", _exported),
    Call("Snapshot.table", lambda scene: (scene.snapshot(), lambda: repr(scene.snapshot().table("orders")))[1]),
    Call("Snapshot.tables", lambda scene: lambda: sorted(scene.snapshot().tables())),
    Call("Snapshot.ends", lambda scene: lambda: dict(scene.snapshot().ends)),
)
STAGED = (
    Call("StagedTransaction.begin", lambda scene: lambda: scene.staged().transactional_id, state="new"),
    Call(
        "StagedTransaction.begin",
        lambda scene: lambda: scene.staged("open").transactional_id,
        state="open",
        steps=True,
        ways=(_by_time,),
    ),
    Call(
        "StagedTransaction.commit",
        _staged(),
        end=_next,
        steps=True,
        ways=(_abort_instead, _go_on, _by_time),
        state="files",
    ),
    Call(
        "StagedTransaction.commit",
        _staged(True),
        end=_next,
        steps=True,
        ways=(_abort_instead, _go_on, _by_time),
        state="inline",
    ),
    Call(
        "StagedTransaction.commit",
        _staged(True, 3, True),
        end=_next,
        steps=True,
        ways=(_abort_instead, _by_time),
        state="offsets and version",
    ),
    Call("StagedTransaction.abort", _aborting, end=_next, steps=True),
    Call("StagedTransaction.look_again", lambda scene: scene.staged().look_again),
    Call("StagedTransaction.forget", _forgetting),
    Call("StagedFiles.add", _files(10**6, 0, False), end=_commit_files, state="in memory"),
    Call("StagedFiles.add", _files(60, 0, False), end=_commit_files, state="to files"),
    Call("StagedFiles.finish", _files(10**6, 0, True), end=_commit_files, state="to files"),
    Call("StagedFiles.finish", _files(10**6, 60_000, True), end=_commit_files, state="inline"),
)
