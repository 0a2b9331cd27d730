"""What else does a store of format version 1 hold? This script writes what `v1` and `v2` do not have.

    python -m tests.golden.make_frozen [FOLDER]        # default: tests/golden/v3, which must not exist

`tests/golden/v3` is never written again. It has all features of the frozen format, and its own constants. Together
the golden stores hold every field, every enumerated value and every kind of object of PROTOCOL.md: `coverage.py` walks
their bytes, and `test_frozen.py` reads them. What a reader must see of `v3` is in `v3.json` beside it.

The story: rows of every type in every place, eager and staged transactions with every end, groups with members,
tombstones, a compaction, merges that are sorted, a topic that is deleted and created again, tables of other formats,
and the history of the jobs that did it. At the end a crash leaves open and decided transactions, and pending offsets.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

import txlog
from tests.golden.every_type import SPARK_FILE, TYPES, row
from tests.golden.make_evolved import paths
from txlog.client import reading
from txlog.client.groups import OffsetAndMetadata
from txlog.client.staged import StagedTransaction
from txlog.client.store import Store
from txlog.client.transactions.staged_files import StagedFiles, read_staged_folder
from txlog.core import names
from txlog.core.append_rules import BatchDraft
from txlog.core.cleaning import FileLayout, MergePolicy
from txlog.core.names import TopicPartition
from txlog.core.records import OffsetEntry, StagedRows, TransactionMetadata
from txlog.core.transactions import TxnVersion
from txlog.maintenance import history
from txlog.maintenance.compact import compact_partitions, compaction_policy
from txlog.maintenance.fsck import check_store
from txlog.maintenance.fsck.repair import repair
from txlog.maintenance.history import record, recorded
from txlog.maintenance.maintain import Maintainer, MaintainPolicy
from txlog.maintenance.merge import merge_partitions
from txlog.maintenance.partition_loop import gather
from txlog.maintenance.publish import publish_topics
from txlog.maintenance.retention import policy_of, retain_partitions
from txlog.maintenance.vacuum import vacuum
from txlog.protocol import append, transactions
from txlog.protocol.groups import home_of
from txlog.storage.conform import conform
from txlog.storage.inline_rows import encode_ipc
from txlog.storage.memory import MemoryObjectStore
from txlog.storage.parquet_writer import write_rows_file
from txlog.testing.clock import ManualClock, SeededIds
from txlog.testing.failing_store import FailingStore, Fault, SimulatedCrash

FORMAT_FOLDER = Path(__file__).parent / "v3"
START_MS = 1_764_000_000_000
MINUTE_MS, HOUR_MS = 60_000, 3_600_000
LONG_MS = 2**31 - 1
FEATURES = (
    "group-members",
    "inline-zstd",
    "publication",
    "schema-evolution",
    "sorted-runs",
    "staged-commit",
    "staged-inline",
    "txn-v2",
)
"""The features of the frozen format."""
CONFIG: dict[str, object] = {
    "linger.ms": 0,
    "delete.grace.ms": HOUR_MS,
    "producer.id.expiration.ms": 2 * HOUR_MS,
    "transactional.id.expiration.ms": 300 * HOUR_MS,
    "transaction.state.log.num.partitions": 3,
    "offsets.topic.num.partitions": 2,
}
ORDERS = pa.schema((pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())))
TYPES_0, ORDERS_0, ORDERS_1 = TopicPartition("types", 0), TopicPartition("orders", 0), TopicPartition("orders", 1)
PRICES_0, OLD_0, TALLY_0 = TopicPartition("prices", 0), TopicPartition("old", 0), TopicPartition("tally", 0)
LARGE = MergePolicy(target_bytes=2**30)


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FORMAT_FOLDER
    if folder.exists():
        sys.exit(f"{folder} exists; a golden store is never changed")
    make(folder)
    print(f"{folder}: {sum(path.is_file() for path in folder.rglob('*'))} objects, pyarrow {pa.__version__}")


def make(folder: Path) -> None:
    """Write the golden store into `folder`."""
    story = Story()
    host, process = SimpleNamespace(gethostname=lambda: "worker-3"), SimpleNamespace(getpid=lambda: 4711)
    with mock.patch.object(history, "socket", host), mock.patch.object(history, "os", process):
        story.tell()
    for path in paths(story.memory):
        data = story.memory.get(path)
        assert data is not None
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    story.close()


def orders(*ids: int) -> list[dict[str, Any]]:
    return [{"id": number, "name": f"n{number}"} for number in ids]


class Story:
    """The store, and the processes that open it."""

    def __init__(self) -> None:
        self.clock = ManualClock(START_MS, oversleeps_ms=3)
        self.memory = MemoryObjectStore(clock=self.clock)
        self.processes: list[Store] = []
        self.left: list[Any] = []
        """Clients that die: nothing closes them before the store is written to its folder."""
        self.store = self.open()

    def tell(self) -> None:
        self.store.create_topic("types", TYPES, config={"segment.batches": 3})
        self.store.create_topic("orders", ORDERS, partitions=2, config={"segment.batches": 4})
        keyed = {"key.columns": "id", "cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0, "segment.batches": 2}
        self.store.create_topic("prices", ORDERS, config={**keyed, "delete.retention.ms": 30 * 24 * HOUR_MS})
        self.store.create_topic("old", ORDERS)
        self.store.create_topic("short", ORDERS, config={"segment.batches": 1})
        self.store.create_topic("tally", ORDERS, config={"segment.batches": 1})
        self.every_type()
        self.transactions()
        self.groups()
        self.prices()
        self.tables()
        self.deleted_topic()
        self.jobs()
        self.crash()

    def close(self) -> None:
        for store in self.processes:
            store.runtime.close()

    # -- rows of every type, in every place --------------------------------------------------------------------------

    def every_type(self) -> None:
        self.send("types", [row(0)], compression_type="none")
        self.send("types", [row(number) for number in range(1, 8)])
        with self.short_row_groups():
            self.send("types", [row(number) for number in range(8, 14)], inline_max_bytes=0)
        # Of these two parts a stream is smaller than a frame would be, and a frame is smaller than a stream.
        for version, numbers in ((1, range(14, 15)), (2, range(15, 22))):
            staged = self.begin("nightly")
            rows = conform([row(number) for number in numbers], self.topic("types").schema, topic="types")
            parts = self.collect(staged, "types", rows, inline_bytes=2**16)
            if version == 1:
                plain = StagedRows(rows=rows.num_rows, payload=encode_ipc(rows))
                parts = (msgspec.structs.replace(parts[0], inline=plain),)
            staged.commit(parts, version=TxnVersion(version=version, topics=frozenset({"types"})))
        self.by_spark()
        self.several_files()
        self.store.alter_topic(
            "types",
            add_columns=pa.schema((("rate", pa.float64()), ("code", pa.binary()))),
            column_defaults={"rate": -0.5, "code": b"\x00\xff"},
        )
        self.store.alter_topic("types", add_columns=pa.schema({"open": pa.bool_()}), column_defaults={"open": True})
        self.send("types", [{**row(40), "rate": None, "code": b"", "open": False}])

    def by_spark(self) -> None:
        """Commit files that other writers left in the transaction's folder: Spark's, one with small row groups, an
        empty one."""
        staged = StagedTransaction.begin(self.open().runtime, "by-spark")
        topic = self.topic("types")
        folder = names.staged_folder(staged.producer_id, staged.producer_epoch, staged.session.runtime.ids.new_id())
        spark = pq.read_table(SPARK_FILE)
        part = "part-00000-4d1c27a4-2f36-4d7b-8a40-b4fd1d1e1c9e.c000.snappy.parquet"
        self.memory.write_file(f"types/{folder}_partition=0/{part}", [SPARK_FILE.read_bytes()])
        rows = conform([row(number) for number in range(22, 27)], topic.schema, topic="types")
        for number, table in enumerate((rows, rows.slice(0, 0)), 1):
            sink = pa.BufferOutputStream()
            pq.write_table(table, sink, row_group_size=2, write_page_checksum=True)
            path = f"types/{folder}_partition=0/{part.replace('00000', f'0000{number}')}"
            self.memory.write_file(path, [sink.getvalue().to_pybytes()])
        parts = read_staged_folder(staged.session.runtime, topic, folder)
        assert sum(part.rows for part in parts) == spark.num_rows + rows.num_rows
        staged.commit(parts, version=TxnVersion(version=3, scope="8f6e3f0a-query", topics=frozenset({"types"})))

    def several_files(self) -> None:
        """Append a batch of several files, one of which has no row, as the format allows."""
        runtime = self.store.runtime
        topic, pid = self.topic("types"), runtime.ids.new_producer_id()
        rows = conform([row(number) for number in range(27, 30)], topic.schema, topic="types")
        files = tuple(
            write_rows_file(
                self.memory,
                "types",
                names.rows_file_path(0, pid, 0, runtime.ids.new_id()),
                part.to_batches(),
                topic.schema,
            )
            for part in (rows.slice(0, 2), rows.slice(0, 0), rows.slice(2))
        )
        draft = BatchDraft(
            records=3, producer_id=pid, producer_epoch=0, base_sequence=0, schema_id=topic.schema_id, files=files
        )
        runtime.run(append.append_batch(runtime.context(), {}, TYPES_0, draft))

    # -- transactions with every end ---------------------------------------------------------------------------------

    def transactions(self) -> None:
        with self.open().producer("loader", staged=False) as producer:
            producer.begin_transaction()
            self.to_orders(producer, 0, 1, 2)
            self.to_orders(producer, 1, 3)
            producer.commit_transaction()
            # The owner goes on before it writes the COMPLETE_COMMIT.
            producer.begin_transaction()
            self.to_orders(producer, 0, 901, 902)
            producer.flush()
            producer.abort_transaction()
        self.tick()
        self.abort_without_rows()
        with self.open(inline_max_bytes=0).producer("bulk") as producer:
            for version in (7, 8):
                producer.begin_transaction(version=version)
                self.to_orders(producer, 0, 4 * version, 5 * version)
                self.to_orders(producer, 1, 6 * version)
                producer.commit_transaction()
        self.tick()
        with self.store.producer() as producer:  # five batches of one producer, in a snapshot then
            for number in range(10, 16):
                producer.send("tally", orders(number)).result()
                self.tick(1000)
        batch = BatchDraft(records=1, payload=self.inline("tally", orders(16)))
        runtime = self.store.runtime
        runtime.run(append.append_batch(runtime.context(), {}, TALLY_0, batch))
        # Drawn ids leave tombstones, and an id that was only made is EMPTY.
        drawn = StagedTransaction.begin(self.open().runtime, None)
        rows = conform(orders(17), self.topic("tally").schema, topic="tally")
        drawn.commit(self.collect(drawn, "tally", rows, inline_bytes=2**16))
        assert drawn.forget()
        self.keep(self.open().producer("idle")).init_transactions()
        self.timed_out()

    def timed_out(self) -> None:
        """Let a sweep abort a transaction whose producer went silent."""
        producer = self.keep(self.open().producer("silent", staged=False, transaction_timeout_ms=1000))
        producer.init_transactions()
        producer.begin_transaction()
        self.to_orders(producer, 1, 904)
        producer.flush()
        self.tick(MINUTE_MS)
        assert self.store.admin().expire().aborted == ("silent",)

    def abort_without_rows(self) -> None:
        """Register two partitions, write to one of them, and abort."""
        runtime = self.open().runtime
        ctx = runtime.context()
        views, txn = runtime.run(transactions.init_producer(ctx, {}, "careful", MINUTE_MS))
        views, registered = runtime.run(transactions.add_partitions(ctx, views, txn, [ORDERS_0, ORDERS_1]))
        assert isinstance(registered, TransactionMetadata)
        payload = self.inline("orders", orders(903))
        draft = BatchDraft(
            records=1,
            producer_id=txn.producer_id,
            producer_epoch=txn.producer_epoch,
            base_sequence=0,
            transactional=True,
            payload=payload,
        )
        views, _ = runtime.run(append.append_batch(ctx, views, ORDERS_0, draft, registered))
        views, ended = runtime.run(transactions.end_transaction(ctx, views, registered, False))
        runtime.run(transactions.complete(ctx, views, ended.txn))
        self.tick()

    # -- groups -------------------------------------------------------------------------------------------------------

    def groups(self) -> None:
        settings: dict[str, Any] = {"auto_offset_reset": "earliest", "enable_auto_commit": False}
        cooperative: dict[str, Any] = {"partition_assignment_strategy": "cooperative-sticky,range"}
        first = self.keep(
            self.open().consumer(group_id="team", client_id="a", group_instance_id="one", **settings, **cooperative)
        )
        first.subscribe("orders")
        second = self.keep(self.open().consumer(group_id="team", client_id="b", **settings, **cooperative))
        second.subscribe("orders")
        for _ in range(3):
            self.tick(5000)
            for member in (first, second):
                while member.poll(0) is not None:
                    pass
        for member in (first, second):
            member.commit()
            self.tick(1000)
        # A member commits in a transaction, which then carries its heartbeat.
        with self.open().producer("mover", staged=False) as producer:
            producer.begin_transaction()
            producer.send("tally", orders(18))
            offsets = {tp: first.position(tp) for tp in first.assignment()}
            producer.send_offsets_to_transaction(offsets, first.group_metadata())
            producer.commit_transaction()
        self.tick()
        with self.open().consumer("orders", group_id="left", **settings) as consumer:
            consumer.poll(0)
        for name in ("shrinking", "gone"):
            with self.open().consumer(group_id=name, **settings) as consumer:
                consumer.assign([ORDERS_0, ORDERS_1])
                person: Any = OffsetAndMetadata(offset=3, metadata="of a person")
                consumer.commit({ORDERS_0: person, ORDERS_1: 1})
            self.tick()
        admin = self.store.admin()
        with self.open().consumer("orders", group_id="gone", **settings) as consumer:
            consumer.poll(0)
        admin.delete_offsets("shrinking", [ORDERS_1])
        admin.delete_group("gone", force=True)
        self.pending()

    def pending(self) -> None:
        """Leave offsets of an open transaction in a snapshot: one that is set, and one that is removed."""
        producer = self.keep(self.long_producer("holder"))
        producer.init_transactions()
        producer.begin_transaction()
        group = "held"
        producer.send_offsets_to_transaction({TALLY_0: 2}, group, expected={TALLY_0: None})
        runtime = self.open().runtime
        ctx = runtime.context()
        home = home_of(ctx, group)
        txn = self.store.admin().describe_transaction("holder")
        draft = BatchDraft(
            records=1,
            producer_id=txn.producer_id,
            producer_epoch=txn.producer_epoch,
            transactional=True,
            entries=(OffsetEntry(group=group, topic="tally", partition=1, value=None),),
        )
        (row_of_id,) = [each for each in self.table() if each.transactional_id == "holder"]
        runtime.run(append.append_batch(ctx, {}, home, draft, row_of_id))
        # A segment of an internal topic has 16 records.
        with self.open().consumer(group_id="busy" if home_of(ctx, "busy") == home else "busy2") as consumer:
            consumer.assign([TALLY_0])
            for number in range(1, 20):
                consumer.commit({TALLY_0: number % 7})
                self.tick(1000)

    # -- a compacted topic ---------------------------------------------------------------------------------------------

    def prices(self) -> None:
        with self.open().producer("pricer", staged=False) as producer:
            producer.begin_transaction()
            producer.send("prices", orders(1, 2))
            producer.commit_transaction()
        self.tick()
        for number in (1, 2, 3, 4, 3, 4):
            self.send("prices", orders(number))
        self.send("prices", [{"id": 3, "name": None}])
        self.send("prices", orders(5))
        self.send("prices", orders(6))
        self.tick(HOUR_MS // 2)
        policy = compaction_policy(self.store.runtime, self.topic("prices"), min_cleanable_dirty_ratio=0)
        assert policy is not None
        session = reading.read_session(self.store.runtime)
        gather(record(self.store.runtime, "compact", compact_partitions(session, {PRICES_0: policy})))
        self.send("prices", orders(7))

    # -- tables of other formats ---------------------------------------------------------------------------------------

    def tables(self) -> None:
        self.store.alter_topic("orders", config={"publish.formats": "delta,iceberg", "publish.max.lag.ms": 0})
        opened = self.keep(self.long_producer("late"))
        opened.init_transactions()
        opened.begin_transaction()
        self.to_orders(opened, 0, 20, 21)
        opened.flush()
        self.send("orders", orders(22, 23), partition=0)
        self.publish("orders")
        opened.commit_transaction()
        self.tick()
        self.merge("orders", FileLayout(sort=("name",)))
        self.publish("orders")
        self.store.admin().delete_records("orders", 0, before=2)
        self.send("orders", orders(24), partition=1)
        self.publish("orders")
        for number in range(30, 42):
            self.send("orders", orders(number), partition=0)
        self.merge("orders", FileLayout(sort=("name",)))
        self.publish("orders")
        self.store.alter_topic("tally", config={"publish.formats": "delta"})
        self.publish("tally")
        self.store.alter_topic("tally", remove_config=["publish.formats"])
        self.publish("tally")

    def publish(self, topic: str) -> None:
        self.tick()
        session = reading.read_session(self.open().runtime)
        for _, outcome in publish_topics(session, [self.topic(topic)]):
            assert not isinstance(outcome, Exception), outcome
        self.tick()

    # -- a topic that ends, and begins again ---------------------------------------------------------------------------

    def deleted_topic(self) -> None:
        self.send("old", orders(1, 2))
        self.store.delete_topic("old")
        self.tick()
        columns = pa.schema((("key", pa.string()), ("when", pa.timestamp("us"))))
        self.store.create_topic("old", columns, config={"segment.batches": 2})
        for key in ("a", "b", "c"):
            self.send("old", [{"key": key, "when": None}])

    # -- jobs, and their history ---------------------------------------------------------------------------------------

    def jobs(self) -> None:
        runtime = self.store.runtime
        for number in range(50, 58):
            self.send("tally", orders(number))
        for number in range(1, 4):
            self.send("short", orders(number))
        # Another merge is faster than this one, whose run is discarded then.
        raced: list[bool] = []

        def race(*_: object) -> None:
            if not raced:
                raced.append(True)
                other = reading.read_session(self.open().runtime)
                gather(merge_partitions(other, [TALLY_0], LARGE))

        session = reading.read_session(runtime)
        gather(record(runtime, "merge", merge_partitions(session, [TALLY_0], LARGE, progress=race)))
        assert raced
        self.tick()
        # A store that refuses the list of runs lets a merge fail.
        refusing = self.open(FailingStore(self.memory, Fault(action="403", match=r"put_if_absent types/.*\.clean")))
        refused = merge_partitions(reading.read_session(refusing.runtime), [TYPES_0], LARGE)
        _, failed = gather(record(refusing.runtime, "merge", refused))
        assert failed
        self.tick()
        self.store.alter_topic("short", config={"retention.ms": HOUR_MS})
        self.tick(2 * HOUR_MS)
        self.send("short", orders(4))
        self.send("short", orders(5))
        policies = {TopicPartition("short", 0): policy_of(runtime, "short")}
        session = reading.read_session(runtime)
        gather(record(runtime, "retention", retain_partitions(session, policies, dry_run=False)))  # type: ignore[arg-type]
        self.lost_index()
        with recorded(runtime, "vacuum") as kept:
            report = vacuum(runtime, reading.read_session(runtime), ["tally"], dry_run=False)
            for tp, (count, size) in report.by_partition().items():
                kept.add(tp, "deleted", deleted_objects=count, deleted_bytes=size)
        self.tick()
        self.tick(2 * HOUR_MS)
        self.send("short", orders(6))
        self.send("short", orders(7))
        # Without vacuum: it would delete the records of what has ended, and the golden store is to hold these.
        skip = frozenset({"merge", "compact", "vacuum"})
        Maintainer(self.open().runtime, MaintainPolicy(skip=skip)).run()

    def lost_index(self) -> None:
        """Delete an index, as an operator may do by mistake, and let a repair make it again."""
        index = next(path for path in paths(self.memory, "__consumer_offsets/") if path.endswith("-0.index"))
        self.memory.delete(index)
        found = repair(self.store.runtime, check_store(self.memory).findings, dry_run=False)
        assert [each.path for each in found if each.is_made] == [index]
        self.tick()

    # -- the end: a crash ---------------------------------------------------------------------------------------------

    def crash(self) -> None:
        """Leave transactions as a crash may do: open, decided to commit and decided to abort."""
        opened = self.keep(self.long_producer("hanging"))
        opened.init_transactions()
        opened.begin_transaction()
        self.to_orders(opened, 1, 70)
        opened.flush()
        for name, state in (("undone", "PREPARE_ABORT"), ("decided", "PREPARE_COMMIT")):
            dying = self.open(FailingStore(self.memory, Fault(action="crash", moment="after", match=state)))
            producer = self.keep(dying.producer(name, staged=False))
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("orders", orders(71 if state == "PREPARE_ABORT" else 72), partition=1)
            producer.flush()
            try:
                producer.abort_transaction() if state == "PREPARE_ABORT" else producer.commit_transaction()
            except SimulatedCrash:
                continue
            raise AssertionError(f"{name} did not die")

    # -- the calls of its processes -----------------------------------------------------------------------------------

    def open(self, object_store: Any = None, **settings: object) -> Store:
        """Open the store in another process."""
        config = {**CONFIG, **{name.replace("_", "."): value for name, value in settings.items()}}
        ids = SeededIds(len(self.processes) + 1)
        store = txlog.open(
            "memory://", config=config, clock=self.clock, ids=ids, object_store=object_store or self.memory
        )
        self.processes.append(store)
        return store

    def keep(self, client: Any) -> Any:
        self.left.append(client)
        return client

    def tick(self, ms: int = 250) -> None:
        self.clock.advance_ms(ms)

    def topic(self, name: str) -> Any:
        return self.store.runtime.topic(name, 0)

    def table(self) -> list[TransactionMetadata]:
        from txlog.protocol.table import list_transactions

        runtime = self.open().runtime
        _, rows = runtime.run(list_transactions(runtime.context(), {}))
        return [each.value for each in rows]

    def inline(self, topic: str, rows: list[dict[str, Any]]) -> bytes:
        return encode_ipc(conform(rows, self.topic(topic).schema, topic=topic))

    def send(self, topic: str, rows: list[dict[str, Any]], partition: int | None = None, **settings: object) -> None:
        with self.open(**settings).producer() as producer:
            producer.send(topic, rows, partition=partition).result()
        self.tick()

    def to_orders(self, producer: Any, partition: int, *ids: int) -> None:
        producer.send("orders", orders(*ids), partition=partition)

    def long_producer(self, name: str) -> Any:
        return self.open().producer(
            name, staged=False, transaction_timeout_ms=LONG_MS, transaction_max_timeout_ms=LONG_MS
        )

    def begin(self, name: str) -> StagedTransaction:
        return StagedTransaction.begin(self.open().runtime, name)

    def collect(self, staged: StagedTransaction, topic: str, rows: pa.Table, inline_bytes: int) -> Any:
        files = StagedFiles(staged.session.runtime, staged.txn, inline_bytes=inline_bytes)
        files.add(self.topic(topic), rows, 0)
        return files.finish()

    def merge(self, topic: str, layout: FileLayout | None = None) -> None:
        runtime = self.open().runtime
        tps = [TopicPartition(topic, number) for number in range(self.topic(topic).partitions)]
        with self.short_row_groups():
            merged = merge_partitions(reading.read_session(runtime), tps, LARGE, layout or FileLayout())
            _, failed = gather(record(runtime, "merge", merged))
        assert not failed, failed
        self.tick()

    def short_row_groups(self) -> Any:
        """Let files have row groups of four rows, so that a small file has several."""
        return mock.patch.dict(write_rows_file.__kwdefaults__, row_group_rows=4)


if __name__ == "__main__":
    main()
