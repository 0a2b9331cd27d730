"""Objects of one partition in the place of another's, and lost versions: an error names one of them.

Wrong rows never appear.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec
import pytest

from lab.testing.damage import overwrite
from tests.client.world import ORDERS, World, orders, rows_of, tp
from txlog.core import envelope, names
from txlog.core.records import CommitRecord, SegmentIndex
from txlog.core.state import PartitionState
from txlog.errors import CorruptRecordError, MissingObjectError
from txlog.maintenance.fsck import check_store
from txlog.protocol.append import append_log_start
from txlog.protocol.load import load
from txlog.protocol.read import plan_read
from txlog.protocol.table import state_partition

EAST = "east/0/00000000000000000000-00000000000000000004-0.txnindex"


def alike(world: World) -> None:
    """Make two topics whose first segments have the same names, with transactions of different producers."""
    store = world.open()
    for topic in ("east", "west"):
        store.create_topic(topic, ORDERS, config={"segment.batches": 4})
        with store.producer("a-" + topic) as first, store.producer("b-" + topic) as second:
            # The aborted transaction is the first one in `east` and the second one in `west`.
            for number, producer in enumerate((first, second)):
                producer.begin_transaction()
                producer.send(topic, orders(10 * number), partition=0).result()
                if (number == 0) == (topic == "east"):
                    producer.abort_transaction()
                else:
                    producer.commit_transaction()
            with first.transaction():
                first.send(topic, orders(20), partition=0)


def swap(world: World, one: str, other: str) -> None:
    first, second = world.memory.get(one), world.memory.get(other)
    assert first is not None
    assert second is not None
    overwrite(world.memory, one, second)
    overwrite(world.memory, other, first)


def objects_below(world: World, folder: str) -> list[str]:
    found = [folder + name for name in world.memory.list(folder)]
    return [path for name in found for path in (objects_below(world, name) if name.endswith("/") else [name])]


def swap_folders(world: World, one: str, other: str) -> None:
    moved = {
        **{other + path.removeprefix(one): world.memory.get(path) for path in objects_below(world, one)},
        **{one + path.removeprefix(other): world.memory.get(path) for path in objects_below(world, other)},
    }
    for path in [*objects_below(world, one), *objects_below(world, other)]:
        world.memory.delete(path)
    for path, data in moved.items():
        assert data is not None
        overwrite(world.memory, path, data)


def rewritten(world: World, source: str, target: str, **fields: object) -> None:
    """Put the record of `source`, with changed fields and a right checksum, in the place of `target`."""
    record, payload = envelope.decode(world.memory.get(source) or b"", CommitRecord, source)
    overwrite(world.memory, target, envelope.encode(msgspec.structs.replace(record, **fields), payload))


def read(world: World, topic: str) -> list[object]:
    consumer = world.open().consumer(topic, auto_offset_reset="earliest")
    return [row["id"] for row in rows_of(consumer)]


def test_a_transaction_index_of_another_partition_is_not_believed(world: World) -> None:
    alike(world)
    assert read(world, "east") == [10, 20]
    assert read(world, "west") == [0, 20]
    swap(world, EAST, EAST.replace("east", "west"))
    for topic in ("east", "west"):
        with pytest.raises(
            CorruptRecordError, match=f"{topic}/0/.*txnindex.*swapped or copied|{topic}/0/.*txnindex.*not in it"
        ):
            read(world, topic)


def test_a_transaction_index_of_the_same_transaction_is_not_believed(world: World) -> None:
    """The marker has the same offset in both partitions.

    The transaction began in an earlier segment, at different offsets.
    """
    store = world.open()
    store.create_topic("east", ORDERS, partitions=2, config={"segment.batches": 4})
    with store.producer() as plain, store.producer("loader") as loader:
        loader.begin_transaction()
        for partition in range(2):
            for number in range(4):
                producer = loader if number == partition else plain
                producer.send("east", orders(10 * partition + number), partition=partition).result()
        loader.abort_transaction()
        for partition in range(2):
            for number in range(5, 9):
                plain.send("east", orders(10 * partition + number), partition=partition).result()
    index = "00000000000000000004-00000000000000000008-0.txnindex"
    assert world.memory.get("east/0/" + index) != world.memory.get("east/1/" + index)
    assert 0 not in read(world, "east")
    swap(world, "east/0/" + index, "east/1/" + index)
    with pytest.raises(CorruptRecordError, match=rf"^east/\d/{index}: it says .*'east-\d'; an object was swapped"):
        read(world, "east")


def test_an_index_of_markers_alone_does_not_hide_rows(world: World) -> None:
    store = world.open()
    for topic in ("east", "west"):
        store.create_topic(topic, ORDERS, config={"segment.batches": 2})
    with store.producer() as producer:
        for number in range(3):
            producer.send("east", orders(number)).result()
    for number in range(2):
        store.runtime.run(append_log_start(store.runtime.context(), {}, tp("west", 0), number + 1))
    with store.producer() as producer:
        for number in range(3):
            producer.send("west", orders(number)).result()
    index = "0/00000000000000000000-00000000000000000002-0.index"
    assert read(world, "east") == [0, 1, 2]
    swap(world, "east/" + index, "west/" + index)
    with pytest.raises(CorruptRecordError, match=f"^east/{index}: it says that it is of partition 'west-0'"):
        read(world, "east")


def test_an_lso_above_an_open_transaction_does_not_end_the_search_for_aborted_rows(world: World) -> None:
    """The transaction has rows in two segments and its ABORT in a third. Only the first segment is read (R10)."""
    store = world.open()
    store.create_topic("east", ORDERS, config={"segment.batches": 2})
    with store.producer() as plain, store.producer("loader") as loader:
        loader.begin_transaction()
        for number in range(4):
            (plain if number % 2 else loader).send("east", orders(number)).result()
        loader.abort_transaction()
        for number in range(5, 8):
            plain.send("east", orders(number)).result()

    def plan() -> list[int]:
        ctx = store.runtime.context()
        view = store.runtime.run(load(ctx, tp("east", 0)))
        return [txn.last_offset for txn in store.runtime.run(plan_read(ctx, view, 0, 2, "read_committed"))[1].aborted]

    assert plan() == [4]
    path = "east/0/00000000000000000002-00000000000000000004-0.index"
    index, _ = envelope.decode(world.memory.get(path) or b"", SegmentIndex, path)
    overwrite(world.memory, path, envelope.encode(msgspec.structs.replace(index, last_stable_offset=4)))
    with pytest.raises(CorruptRecordError, match=f"^{path}: last stable offset 4, and a transaction .* from offset 2"):
        plan()


def test_a_folder_of_another_topic_is_not_believed(world: World) -> None:
    """A sealed partition is opened by its snapshot, so the first record, which names the partition, is not read."""
    store = world.open()
    for topic in ("east", "west"):
        store.create_topic(topic, ORDERS, config={"segment.batches": 2})
        with store.producer() as producer:
            for number in range(3):
                producer.send(topic, orders(number)).result()
    swap_folders(world, "east/0/", "west/0/")
    with pytest.raises(CorruptRecordError, match=r"^east/0/0+2\.snapshot: it says that it is of partition 'west-0'"):
        read(world, "east")
    assert not check_store(world.memory, threads=0, clock=world.clock).is_clean


def test_a_folder_of_other_transactions_is_not_believed(world: World) -> None:
    """An id that its partition does not know has no version, so a committed transaction would commit again."""
    store = world.open()
    store.create_topic("east", ORDERS)
    folders = []
    for name in ("one", "two"):
        with store.producer(name) as producer:
            for version in range(120):
                with producer.transaction(version):
                    producer.send("east", orders(version))
        folders.append(state_partition(store.runtime.context(), name).folder)
    swap_folders(world, *folders)
    with pytest.raises(CorruptRecordError, match=r"\.snapshot: it says that it is of partition '__transaction_state-"):
        world.open().producer("one").init_transactions()


def test_a_lost_version_of_a_topic_loses_no_column(world: World) -> None:
    store = world.open()
    store.create_topic("east", ORDERS.remove(1))
    store.alter_topic("east", add_columns=ORDERS.remove(0))
    with store.producer() as producer:
        producer.send("east", orders(1))
    path = names.topic_metadata_path("east", 1)
    world.memory.delete(path)
    with pytest.raises(MissingObjectError, match=path):
        read(world, "east")


def test_rows_that_do_not_fit_name_their_record(world: World) -> None:
    store = world.open()
    store.create_topic("east", ORDERS)
    store.create_topic("plain")
    with store.producer() as producer:
        producer.send("east", orders(1))
        producer.send("plain", [{"key": b"k", "value": b"v"}])
    path = "east/0/" + names.batch_name(0)
    overwrite(world.memory, path, world.memory.get(path.replace("east", "plain")) or b"")
    with pytest.raises(CorruptRecordError, match=f"^{path}: as the first record of east-0 .* another partition's"):
        read(world, "east")
    # Even if the links are right.
    rewritten(world, path.replace("east", "plain"), path, previous=PartitionState.empty(tp("east", 0)).last_digest)
    with pytest.raises(CorruptRecordError, match=f"^{path}: column"):
        read(world, "east")


def test_a_file_of_another_partition_is_refused_by_the_name_of_the_record(world: World) -> None:
    store = world.open()
    store.create_topic("east", ORDERS, partitions=2)
    with store.producer("files", inline_max_bytes=0) as producer, producer.transaction():
        producer.send("east", orders(1), partition=0)
    data = world.memory.get("east/0/" + names.batch_name(0))
    assert data is not None
    assert envelope.decode(data, CommitRecord, "")[0].files
    overwrite(world.memory, "east/1/" + names.batch_name(0), data)
    with pytest.raises(CorruptRecordError, match=f"^east/1/{names.batch_name(0)}: .* cannot belong to this partition"):
        read(world, "east")


def test_a_replaced_record_is_named_with_the_one_after_it(world: World) -> None:
    store = world.open()
    store.create_topic("east", ORDERS)
    with store.producer() as producer:
        for number in range(2):
            producer.send("east", orders(number)).result()
    first = "east/0/" + names.batch_name(0)
    rewritten(world, first, first, write_id="0" * 32)
    with pytest.raises(
        CorruptRecordError, match=f"^east/0/{names.batch_name(1)}: .*{first}.* one of the two was replaced"
    ):
        read(world, "east")


def test_a_record_that_no_other_leads_to_is_not_passed_over(world: World) -> None:
    """The first record has two rows, but replaces one with one row, so the second record overlaps it."""
    store = world.open()
    store.create_topic("east", ORDERS, partitions=2)
    with store.producer() as producer:
        for number in range(2):
            producer.send("east", orders(number), partition=0).result()
        producer.send("east", orders(7, 8), partition=1).result()
    swap(world, "east/0/" + names.batch_name(0), "east/1/" + names.batch_name(0))
    with pytest.raises(CorruptRecordError, match=f"east/0/{names.batch_name(1)}: .* inside the batch"):
        world.open().admin().describe_partition("east", 0)


@pytest.mark.parametrize("into", ["__consumer_offsets", "__transaction_state", "east"])
def test_a_record_of_another_kind_of_topic_is_refused(world: World, into: str) -> None:
    store = world.open(**{"transaction.state.log.num.partitions": 1, "offsets.topic.num.partitions": 1})
    store.create_topic("east", ORDERS)
    with store.producer("loader") as producer, producer.transaction():
        producer.send("east", orders(1))
        producer.send_offsets_to_transaction({tp("east", 0): 1}, "g")
    folders = ("__consumer_offsets/0/", "__transaction_state/0/", "east/0/")
    for folder in folders:
        if folder.startswith(into):
            continue
        data = world.memory.get(folder + names.batch_name(0))
        assert data is not None
        overwrite(world.memory, f"{into}/0/" + names.batch_name(0), data)
        admin = world.open().admin()
        looks: dict[str, Callable[[], object]] = {
            "east": partial(admin.describe_partition, "east", 0),
            "__consumer_offsets": admin.list_groups,
            "__transaction_state": admin.list_transactions,
        }
        message = f"^{into}/0/{names.batch_name(0)}: .* does not belong in {into}"
        with pytest.raises(CorruptRecordError, match=message):
            looks[into]()
