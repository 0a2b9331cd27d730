"""How does a store of this format look? This script writes one of every object, the same bytes each time.

    python -m tests.golden.make_golden [FOLDER]        # default: tests/golden/v1, which must not exist

Time and ids come from the test kit, so only another pyarrow can change a byte of Parquet, and with it the digests of
these files. `tests/golden/v1` is never written again for the same format. An old program wrote it, and `test_golden.py`
reads it with the current code. A change of the format writes `v2` beside it, with a note in the CHANGELOG.

The story: a clerk (a producer without transactional.id), a loader (eager transactions: one commits, one aborts), and a
nightly job (staged, with a version). A schema grows, retention runs, producers expire, a merge runs, and a topic is
deleted and created again. At the end an open transaction and two decided ones are left for the reader to finish.
"""

from __future__ import annotations

import datetime
import decimal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import msgspec
import pyarrow as pa

from lab.older_writers import next_control_of_v1, staged_offsets
from txlog.core import envelope, names, records
from txlog.core.append_rules import BatchDraft, RollPolicy
from txlog.core.effects import Delete, NewId, NewProducerId, Now, Program, PutIfAbsent, PutOutcome
from txlog.core.fetch_plan import FilePiece
from txlog.core.groups import OffsetsCondition
from txlog.core.names import SegmentName, TopicPartition
from txlog.core.records import (
    AbortedTxn,
    DataFile,
    IndexedFile,
    IndexEntry,
    OffsetValue,
    SchemaField,
    StagedList,
    StagedObject,
    StagedPart,
    StoreConstants,
    TopicMetadata,
    TransactionMetadata,
)
from txlog.core.state import PartitionState
from txlog.core.transactions import Judgement, Transit, TxnVersion, judge_add_partitions, judge_end, judge_init
from txlog.protocol import append, expiry, groups, load, read, seal, stores, table, topic_changes, transactions
from txlog.protocol.context import Context, PartitionView, Views
from txlog.storage.arrow_schema import to_arrow
from txlog.storage.conform import conform
from txlog.storage.driver import Driver
from txlog.storage.inline_rows import encode_ipc
from txlog.storage.local import LocalObjectStore
from txlog.storage.parquet_reader import read_ranges
from txlog.storage.parquet_writer import write_rows_file
from txlog.testing.clock import ManualClock, SeededIds

T = TypeVar("T")
HERE = Path(__file__).parent
FORMAT_FOLDER = HERE / "v1"

START_MS = 1_764_000_000_000
HOUR_MS = 3_600_000
TIMEOUT_MS = 60_000
FEATURES = ("staged-commit", "txn-v2")
"""The features that existed when `v1` was written."""
MERGED_END = 14
"""Two sealed segments end at this offset."""

ORDERS_0, ORDERS_1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
AUDIT_0 = TopicPartition("audit", 0)
SCRATCH_0 = TopicPartition("scratch", 0)

ORDER_COLUMNS = (
    SchemaField(id=1, name="order_id", type="int64", nullable=False),
    SchemaField(id=1, name="customer", type="string"),
    SchemaField(id=1, name="amount", type="decimal(9,2)"),
    SchemaField(id=1, name="placed", type="timestamp"),
    SchemaField(id=1, name="tags", type="list", fields=(SchemaField(id=1, name="element", type="string"),)),
)
NOTE = SchemaField(id=1, name="note", type="string")


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FORMAT_FOLDER
    if folder.exists():
        sys.exit(f"{folder} exists; a golden store is never changed")
    make(folder)
    print(f"{folder}: {sum(path.is_file() for path in folder.rglob('*'))} objects, pyarrow {pa.__version__}")


def make(folder: Path) -> None:
    """Write the golden store into `folder`."""
    story = Story(folder)
    with (
        mock.patch.object(transactions, "judge_init", _as_v1(judge_init)),
        mock.patch.object(transactions, "judge_add_partitions", _as_v1(judge_add_partitions)),
    ):
        story.create()
        story.clerk_and_loader()
        story.schema_grows()
        story.nightly()
        story.a_day_later()
        story.clean_up()
        story.deleted_topic()
        story.left_unfinished()
    story.driver.close()


def order(order_id: int, customer: str, amount: str, **more: object) -> dict[str, object]:
    """Return a row of `orders`."""
    placed = datetime.datetime.fromtimestamp(START_MS / 1000, datetime.UTC) - datetime.timedelta(minutes=order_id)
    row = {"order_id": order_id, "customer": customer, "amount": decimal.Decimal(amount), "placed": placed}
    return {**row, "tags": ["new"] if order_id % 2 else None, **more}


class Story:
    """The store, and the state of its writers."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock(START_MS)
        self.store = LocalObjectStore(str(folder), fsync=False)
        # There are no threads, because parallel programs would draw their ids in any order.
        self.driver = Driver(self.store, self.clock, SeededIds(1), threads=0)
        self.ctx = Context(
            constants=StoreConstants(),
            features=FEATURES,
            roll={"orders": RollPolicy(batches=4)},
            internal_roll=RollPolicy(batches=8),
        )
        self.views: Views = {}
        self.topics: dict[str, TopicMetadata] = {}
        self.sequences: dict[tuple[int, int, TopicPartition], int] = {}
        self.clerk = 0

    # -- chapters ---------------------------------------------------------------------------------------------------

    def create(self) -> None:
        self.run(stores.create_store(self.ctx.constants, features=FEATURES))
        for name, fields, partitions, config in (
            ("orders", ORDER_COLUMNS, 2, {"key.columns": "order_id", "segment.batches": 4}),
            ("audit", None, 1, {}),
            ("scratch", ORDER_COLUMNS[:1], 1, {}),
        ):
            self.create_topic(name, fields, partitions, config)

    def clerk_and_loader(self) -> None:
        self.clerk = self.run(_draw())
        self.send_as_clerk(ORDERS_0, [order(1, "ada", "10.00"), order(2, "bob", "2.50"), order(3, "cyd", "0.99")])
        self.send_as_clerk(ORDERS_0, [order(4, "ada", "7.00"), order(5, "dan", "1.25")])
        headers = [{"key": "source", "value": b"clerk"}]
        stamp = datetime.datetime.fromtimestamp(START_MS / 1000, datetime.UTC)
        self.send_as_clerk(AUDIT_0, [{"key": b"1", "value": b"opened", "headers": headers, "timestamp": stamp}])

        txn = self.init("loader")
        txn = self.register(txn, ORDERS_0, ORDERS_1)
        self.send_file(txn, ORDERS_0, [order(6, "eve", "100.00"), order(7, "eve", "200.00")])
        self.send_inline(txn, ORDERS_1, [order(8, "fay", "3.00"), order(9, "gus", "4.00")])
        condition = OffsetsCondition(expected={AUDIT_0: None})
        txn = self.send_offsets(txn, "billing", {AUDIT_0: OffsetValue(offset=1, metadata="first")}, condition)
        txn = self.end(txn, commit=True)

        txn = self.register(txn, ORDERS_0, ORDERS_1)
        self.send_inline(txn, ORDERS_0, [order(906, "bug", "1.00"), order(907, "bug", "1.00")])
        self.send_file(txn, ORDERS_1, [order(908, "bug", "1.00")])
        self.send_as_clerk(ORDERS_0, [order(10, "hal", "5.00")])
        self.end(txn, commit=False)

    def schema_grows(self) -> None:
        changed = self.run(
            topic_changes.alter_topic(self.ctx, "orders", add_columns=[NOTE], config={"retention.ms": 10**9})
        )
        self.topics["orders"] = changed

    def nightly(self) -> None:
        txn = self.init("nightly")
        rows_0 = [order(11, "ivy", "11.00", note="gift"), order(12, "jon", "12.00")]
        # Spark's own writer leaves such files: below `staged/`, without a digest of the whole file.
        rows_1 = [order(13, "kim", "13.00", note="late")]
        folder = names.staged_folder(txn.producer_id, txn.producer_epoch, self.new_id())
        spark_path = f"{folder}_partition=1/part-00000-of-00001.parquet"
        parts = (
            self.staged(ORDERS_0, [self.write(ORDERS_0, txn, rows_0)]),
            self.staged(ORDERS_1, [self.write(ORDERS_1, txn, rows_1, path=spark_path, digest=False)]),
            *staged_offsets("nightly-etl", {AUDIT_0: OffsetValue(offset=1)}, self.ctx.constants, self.clock.now_ms()),
        )
        self.end(txn, commit=True, staged=parts, version=TxnVersion(version=20251124))
        self.send_as_clerk(ORDERS_0, [order(14, "lea", "14.00", note="by phone")])
        self.views = self.run(groups.commit_offsets(self.ctx, self.views, "audit", {ORDERS_0: OffsetValue(offset=12)}))
        self.views, _ = self.run(
            groups.join_group(self.ctx, self.views, "audit", "audit-member-1", "audit-client", ("orders",))
        )
        once = self.init("once")
        self.views, _ = self.run(expiry.remove(self.ctx, self.views, once.transactional_id, force=True))

    def a_day_later(self) -> None:
        self.clock.advance_ms(25 * HOUR_MS)
        self.views, _ = self.run(expiry.expire_producers(self.ctx, self.views, ORDERS_0))
        self.views, _ = self.run(append.append_log_start(self.ctx, self.views, ORDERS_1, 2))
        # The partition has forgotten this producer, so the table is read again before its first batch.
        txn = self.init("loader")
        txn = self.register(txn, ORDERS_0)
        self.send_inline(txn, ORDERS_0, [order(15, "mia", "15.00")])
        self.end(txn, commit=True)

    def clean_up(self) -> None:
        """Merge [0, 14) of orders-0 by hand, as a cleaner does: no aborted rows, no markers, the same offsets."""
        view = self.run(load.load(self.ctx, ORDERS_0))
        inputs = [name for name in view.walk if name.end_offset <= MERGED_END]
        view, plan = self.run(read.plan_read(self.ctx, view, 0, MERGED_END, "read_committed"))
        fields = self.topics["orders"].schema
        run = SegmentName(0, MERGED_END, 1, self.new_id())
        batches: list[pa.RecordBatch] = []
        for piece in plan.pieces:
            assert isinstance(piece, FilePiece)
            batches.extend(read_ranges(self.store, "orders", piece.file, piece.ranges, fields))
        file = write_rows_file(
            self.store, "orders", names.segment_file_path(0, run), batches, fields, offset_column=True
        )
        indexes = [plan.indexes[name].index for name in inputs]
        aborted = [txn for name in inputs for txn in plan.indexes[name].aborted]
        entries: list[IndexEntry] = []
        first_row = 0
        for entry in (entry for index in indexes for entry in index.entries):
            if not entry.records or _is_aborted(entry, aborted):
                continue
            entries.append(msgspec.structs.replace(entry, file=0, first_row=first_row))
            first_row += entry.records
        assert first_row == file.rows
        indexed = IndexedFile(
            **msgspec.structs.asdict(file), schema_id=self.topics["orders"].schema_id, offset_column=True
        )
        index = records.SegmentIndex(
            partition=str(ORDERS_0),
            base_offset=0,
            end_offset=MERGED_END,
            generation=1,
            files=(indexed,),
            entries=tuple(entries),
            aborted_txns=len(aborted),
            last_digest="",
            last_stable_offset=indexes[-1].last_stable_offset,
        )
        self.put(ORDERS_0, run.txnindex, records.TxnIndex(partition=str(ORDERS_0), aborted=tuple(aborted)))
        self.put(ORDERS_0, run.index, index)
        now_ms = self.clock.now_ms()
        gone = [kind for name in inputs for kind in (name.index, name.txnindex)]
        gone += [Path(file.path).name for index in indexes for file in index.files if file.offset_column]
        listed = set(self.store.list(ORDERS_0.folder))
        clean = records.Clean(
            number=0,
            runs=(records.CleanedRun(base_offset=0, end_offset=MERGED_END, generation=1, unique=run.unique),),
            superseded=tuple(records.Superseded(name=name, since=now_ms) for name in sorted(gone) if name in listed),
            created_at=now_ms,
        )
        self.put(ORDERS_0, names.clean_name(0), clean)

        # The grace after sealing has passed: append a boundary, read it, and then delete the slots below it.
        self.put(ORDERS_0, names.boundary_name(MERGED_END), records.Boundary(offset=MERGED_END, created_at=now_ms))
        for name in self.store.list(ORDERS_0.folder):
            parsed = names.parse_partition_object(name)
            if isinstance(parsed, names.NumberedName) and parsed.kind == "batch" and parsed.number < MERGED_END:
                self.run(_delete(ORDERS_0.folder + name))

    def deleted_topic(self) -> None:
        self.send_as_clerk(SCRATCH_0, [{"order_id": 1}, {"order_id": 2}])
        # The program that wrote v1 did not begin a segment with a deletion. Stores of both forms exist.
        with mock.patch.object(append, "next_control", next_control_of_v1):
            self.run(topic_changes.delete_topic(self.ctx, "scratch", append_log_start=self.append_log_start))
        self.views = {tp: view for tp, view in self.views.items() if tp != SCRATCH_0}
        self.create_topic("scratch", ORDER_COLUMNS[:2], 1, {})
        self.send_as_clerk(SCRATCH_0, [{"order_id": 3, "customer": "ned"}])

    def left_unfinished(self) -> None:
        """Leave an open transaction, and a decided eager and a decided staged one, as a crash may do."""
        hanging = self.register(self.init("hanging"), ORDERS_1)
        self.send_inline(hanging, ORDERS_1, [order(16, "ola", "16.00")])

        decided = self.register(self.init("decided"), AUDIT_0)
        self.send_inline(decided, AUDIT_0, [{"key": b"2", "value": b"closed"}])
        self.prepare(decided)

        bulk = self.init("bulk")
        part = self.staged(
            ORDERS_1, [self.write(ORDERS_1, bulk, [order(17, "pam", "17.00"), order(18, "pam", "18.00")])]
        )
        name = names.staged_list_name(bulk.producer_id, bulk.producer_epoch, self.new_id())
        data = envelope.encode(StagedList(staged=(part,)))
        self.run(_create(table.state_partition(self.ctx, "bulk").folder + name, data))
        self.prepare(bulk, StagedObject(name=name, bytes=len(data), digest=envelope.digest(data)))

    # -- the calls of its writers -------------------------------------------------------------------------------------

    def run(self, program: Program[T]) -> T:
        self.clock.advance_ms(250)
        return self.driver.run(program)

    def new_id(self) -> str:
        return self.run(_new_id())

    def create_topic(
        self, name: str, fields: Sequence[SchemaField] | None, partitions: int, config: Mapping[str, object]
    ) -> None:
        self.topics[name] = self.run(
            topic_changes.create_topic(
                self.ctx,
                name,
                fields=fields,
                partitions=partitions,
                config=config,
                append_log_start=self.append_log_start,
            )
        )

    def append_log_start(self, tp: TopicPartition, deleted_version: int) -> Program[Any]:
        return append.append_log_start(self.ctx, {}, tp, None, deleted_version)

    def init(self, transactional_id: str) -> TransactionMetadata:
        self.views, txn = self.run(transactions.init_producer(self.ctx, self.views, transactional_id, TIMEOUT_MS))
        return txn

    def register(self, txn: TransactionMetadata, *tps: TopicPartition) -> TransactionMetadata:
        self.views, registered = self.run(transactions.add_partitions(self.ctx, self.views, txn, tps))
        assert isinstance(registered, TransactionMetadata)
        return registered

    def send_offsets(
        self,
        txn: TransactionMetadata,
        group: str,
        offsets: Mapping[TopicPartition, OffsetValue],
        condition: OffsetsCondition,
    ) -> TransactionMetadata:
        self.views, sent = self.run(groups.send_offsets(self.ctx, self.views, txn, group, offsets, condition))
        assert isinstance(sent, TransactionMetadata)
        return sent

    def end(
        self,
        txn: TransactionMetadata,
        *,
        commit: bool,
        staged: tuple[StagedPart, ...] = (),
        version: TxnVersion | None = None,
    ) -> TransactionMetadata:
        def end_and_complete() -> Program[TransactionMetadata]:
            views, ended = yield from transactions.end_transaction(
                self.ctx, self.views, txn, commit, staged=staged, version=version
            )
            self.views = yield from transactions.complete(self.ctx, views, ended.txn)
            return ended.txn

        return self.run(end_and_complete())

    def prepare(self, txn: TransactionMetadata, staged_object: StagedObject | None = None) -> None:
        """Write PREPARE_COMMIT; its writer dies then."""

        def judge(_: PartitionState, current: TransactionMetadata | None, now_ms: int, write_id: str) -> Judgement:
            return judge_end(current, txn, "commit", now_ms=now_ms, write_id=write_id, staged_object=staged_object)

        self.views, result = self.run(table.transit(self.ctx, self.views, txn.transactional_id, judge))
        assert isinstance(result, table.Written)

    def send_as_clerk(self, tp: TopicPartition, rows: Sequence[Mapping[str, object]]) -> None:
        self.append(tp, rows, self.clerk, 0, None, self.payload(tp, rows), ())

    def send_inline(self, txn: TransactionMetadata, tp: TopicPartition, rows: Sequence[Mapping[str, object]]) -> None:
        self.append(tp, rows, txn.producer_id, txn.producer_epoch, txn, self.payload(tp, rows), ())

    def send_file(self, txn: TransactionMetadata, tp: TopicPartition, rows: Sequence[Mapping[str, object]]) -> None:
        file = self.write(tp, txn, rows)
        self.append(tp, rows, txn.producer_id, txn.producer_epoch, txn, b"", (file,))

    def append(
        self,
        tp: TopicPartition,
        rows: Sequence[object],
        producer_id: int,
        producer_epoch: int,
        txn: TransactionMetadata | None,
        payload: bytes,
        files: tuple[DataFile, ...],
    ) -> None:
        sequence = self.sequences.get((producer_id, producer_epoch, tp), 0)
        draft = BatchDraft(
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=sequence,
            records=len(rows),
            schema_id=self.topics[tp.topic].schema_id,
            files=files,
            payload=payload,
            transactional=txn is not None,
            roll=self.ctx.roll_of(tp),
        )
        self.views, _ = self.run(append.append_batch(self.ctx, self.views, tp, draft, txn))
        self.sequences[producer_id, producer_epoch, tp] = sequence + len(rows)
        view: PartitionView = self.run(seal.seal(self.ctx, self.views[tp]))
        self.views = {**self.views, tp: view}

    def payload(self, tp: TopicPartition, rows: Sequence[Mapping[str, object]]) -> bytes:
        return encode_ipc(conform(list(rows), self.topics[tp.topic].schema, topic=tp.topic))

    def write(
        self,
        tp: TopicPartition,
        txn: TransactionMetadata,
        rows: Sequence[Mapping[str, object]],
        path: str | None = None,
        digest: bool = True,
    ) -> DataFile:
        fields = self.topics[tp.topic].schema
        path = path or names.rows_file_path(tp.partition, txn.producer_id, txn.producer_epoch, self.new_id())
        batches = conform(list(rows), fields, topic=tp.topic).to_batches()
        assert batches[0].schema.equals(to_arrow(fields))
        file = write_rows_file(self.store, tp.topic, path, batches, fields)
        return file if digest else msgspec.structs.replace(file, digest=None)

    def staged(self, tp: TopicPartition, files: Sequence[DataFile]) -> StagedPart:
        schema_id = self.topics[tp.topic].schema_id
        return StagedPart(topic=tp.topic, partition=tp.partition, schema_id=schema_id, files=tuple(files))

    def put(self, tp: TopicPartition, name: str, value: Any) -> None:
        self.run(_create(tp.folder + name, envelope.encode(value)))


def _is_aborted(entry: IndexEntry, aborted: Sequence[AbortedTxn]) -> bool:
    return any(
        txn.producer_id == entry.producer_id and txn.first_offset <= entry.base_offset <= txn.last_offset
        for txn in aborted
    )


def _draw() -> Program[int]:
    drawn: int = yield NewProducerId()
    return drawn


def _new_id() -> Program[str]:
    drawn: str = yield NewId()
    return drawn


def _create(path: str, data: bytes) -> Program[None]:
    yield Now()
    outcome = yield PutIfAbsent(path, data)
    assert outcome is PutOutcome.WRITTEN, path


def _as_v1(judge: Callable[..., Judgement]) -> Callable[..., Judgement]:
    """Return `judge` of the program that wrote v1: EMPTY and ONGOING records did not keep the last outcome."""

    def judged(*args: Any, **kwargs: Any) -> Judgement:
        verdict = judge(*args, **kwargs)
        if isinstance(verdict, Transit) and verdict.to.state in ("EMPTY", "ONGOING"):
            return Transit(msgspec.structs.replace(verdict.to, last_outcome=None))
        return verdict

    return judged


def _delete(path: str) -> Program[None]:
    yield Delete(path)


if __name__ == "__main__":
    main()
