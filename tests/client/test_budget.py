"""What the client's calls cost in requests (PROTOCOL.md, "Request budget")."""

from __future__ import annotations

from typing import Any

import pytest

from tests.client.world import ORDERS, orders, rows_of, tp
from txlog.core.features import DELETION_RECORDS, STORE_FEATURES
from txlog.core.record_checks import StoredRecord
from txlog.errors import TxlogTimeoutError, UnknownTopicOrPartitionError
from txlog.protocol.context import INTERNAL_ROLL
from txlog.protocol.load import load
from txlog.protocol.stores import create_store
from txlog.protocol.table import state_partition


def waits_for_all(store, *, staged=False, **settings):
    """Return a producer that sends everything of a transaction in one flush."""
    return store.producer("loader", staged=staged, linger_ms=10**6, **settings)


def test_warm_append_is_one_conditional_put(world, store):
    with store.producer() as producer:
        producer.send("orders", orders(1), partition=0).result()
        with world.counting.counting() as cost:
            producer.send("orders", orders(2), partition=0).result()
    assert str(cost.requests()).startswith("1 put_if_absent, ")
    assert cost.total == 1


def test_warm_append_of_a_file_is_one_more(world, store):
    with store.producer(inline_max_bytes=0) as producer:
        producer.send("orders", orders(1), partition=0).result()
        with world.counting.counting() as cost:
            producer.send("orders", orders(2), partition=0).result()
    assert (cost.write_file, cost.put_if_absent, cost.total) == (1, 1, 2)


@pytest.mark.parametrize("partitions", [1, 4])
def test_eager_transaction(world, store, partitions):
    with waits_for_all(store) as producer:
        for warm in (False, True):
            with world.counting.counting() as cost, producer.transaction():
                for partition in range(partitions):
                    producer.send("orders", orders(partition), partition=partition)
            assert cost.put_if_absent == 2 * partitions + 2
            if warm:
                assert cost.total == cost.put_if_absent


@pytest.mark.usefixtures("two_phases")
@pytest.mark.parametrize("partitions", [1, 4])
@pytest.mark.parametrize("files", [0, 1])
def test_staged_transaction(world, store, partitions, files):
    settings = {"inline_max_bytes": 0} if files else {}
    with waits_for_all(store, staged=True, **settings) as producer:
        for warm in (False, True):
            with world.counting.counting() as cost, producer.transaction():
                for partition in range(partitions):
                    producer.send("orders", orders(partition), partition=partition)
            assert (cost.put_if_absent, cost.write_file) == (partitions + 1, partitions * files)
            if warm:
                assert (cost.get, cost.total) == (0, partitions * (1 + files) + 1)


@pytest.mark.usefixtures("two_phases")
def test_a_commit_looks_at_its_topics_once_after_each_deletion_of_any(world, store):
    """W46: with records of deletions one GET after each of them, and in an older store one GET a commit."""
    with waits_for_all(store, staged=True) as producer:
        gets = []
        for turn in range(6):
            if turn in (2, 4):
                store.create_topic("other", ORDERS)
                world.open().delete_topic("other")
            with world.counting.counting() as cost, producer.transaction():
                producer.send("orders", orders(turn), partition=0)
            gets.append(sum("orders/topic" in path for verb, path in cost.calls() if verb == "get"))
    assert gets == [1, 0, 1, 0, 1, 0]


@pytest.fixture
def of_earlier_release(world):
    store = world.open()
    features = tuple(each for each in STORE_FEATURES if each != DELETION_RECORDS)
    store.runtime.run(create_store(store.runtime.constants, features=features))
    store = world.open()
    store.create_topic("orders", ORDERS)
    return store


def test_a_commit_that_had_looked_and_failed_looks_again_in_a_store_of_an_earlier_release(world, of_earlier_release):
    outage, other = world.outage(max_block_ms=300)
    with other.producer("loader", staged=True) as producer:
        producer.begin_transaction()
        producer.send("orders", orders(1), partition=0)
        producer.send_offsets_to_transaction({tp("orders", 0): 1}, "g")
        outage.pattern = "__consumer_offsets"
        with pytest.raises(TxlogTimeoutError):
            producer.commit_transaction()
        outage.pattern = None
        world.open().delete_topic("orders")
        with pytest.raises(UnknownTopicOrPartitionError, match="'orders' was deleted"):
            producer.commit_transaction()
        producer.abort_transaction()


@pytest.mark.usefixtures("two_phases")
def test_each_commit_in_a_store_of_an_earlier_release_looks_at_its_topics(world, of_earlier_release):
    store = of_earlier_release
    with store.producer("loader") as producer:
        for turn in range(3):
            with world.counting.counting() as cost, producer.transaction():
                producer.send("orders", orders(turn), partition=0)
            assert [path for verb, path in cost.calls() if verb == "get" and "orders/topic" in path], turn
        producer.begin_transaction()
        producer.send("orders", orders(3), partition=0)
        world.open().delete_topic("orders")
        with pytest.raises(UnknownTopicOrPartitionError, match=r"'orders' was deleted \(version 1 "):
            producer.commit_transaction()
        producer.abort_transaction()


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_deletion_writes_to_each_partition_of_the_table_that_is_in_use(world, store, partitions):
    for name in ("one", "two", "three"):
        store.producer(name).init_transactions()
    store.create_topic("other", ORDERS, partitions=partitions)
    with world.counting.counting() as cost:
        world.open().delete_topic("other")
    assert cost.put_if_absent == 2 + 3 + partitions


def test_offsets_of_one_group_in_a_staged_transaction(world, store):
    with waits_for_all(store, staged=True) as producer:
        for _ in range(2):
            with world.counting.counting() as cost, producer.transaction():
                producer.send("orders", orders(1), partition=0)
                producer.send_offsets_to_transaction({tp("orders", 0): 1}, "g")
    # The registration, the offsets and their marker come on top of the cost of a transaction in one partition.
    assert (cost.put_if_absent, cost.write_file, cost.get, cost.total) == (1 + 2 + 2, 0, 0, 5)


def test_conditional_offsets_of_a_staged_transaction(world, store):
    groups = ["one", "two"]
    with waits_for_all(store, staged=True) as producer:
        for turn in (None, 1):
            with world.counting.counting() as cost, producer.transaction():
                for partition in range(4):
                    producer.send("orders", orders(1), partition=partition)
                for group in groups:
                    producer.send_offsets_to_transaction(
                        {tp("orders", 0): (turn or 0) + 1}, group, expected={tp("orders", 0): turn}
                    )
            assert cost.put_if_absent == 4 + 2 + 2 * len(groups)


def test_init_is_one_conditional_put(world, store):
    for number in range(3):
        producer = world.open().producer("loader")
        with world.counting.counting() as cost:
            producer.init_transactions()
        assert cost.put_if_absent == 1, number
        assert (cost.list, cost.get) == (1, number)
        producer.close()


def test_idle_poll_is_one_get_a_partition(world, store):
    consumer = store.consumer("orders", auto_offset_reset="earliest")
    rows_of(consumer)
    for _ in range(3):
        with world.counting.counting() as cost:
            assert consumer.poll(0) is None
        assert (cost.get, cost.total) == (4, 4)


@pytest.mark.parametrize(("fetch_max_wait_ms", "gets"), [(500, 10_800), (5_000, 1_440), (60_000, 110)])
@pytest.mark.parametrize("timeout_ms", [500, 60_000])
def test_an_idle_hour_costs_what_the_page_on_settings_says(world, store, fetch_max_wait_ms, gets, timeout_ms):
    consumer = world.open().consumer(fetch_max_wait_ms=fetch_max_wait_ms)
    consumer.assign([tp("orders", 0)])
    consumer.poll(1_300_000)
    end_ms = world.clock.monotonic_ms() + 3_600_000
    with world.counting.counting() as cost:
        while world.clock.monotonic_ms() < end_ms:
            assert consumer.poll(max(timeout_ms, fetch_max_wait_ms)) is None
    # The world's clock oversleeps a little, so some looks are missing.
    assert 0.9 * gets <= cost.get <= gets
    assert cost.list in (11, 12)


def test_poll_of_one_new_batch_is_one_get_more(world, store):
    consumer = store.consumer("orders", auto_offset_reset="earliest")
    with world.open().producer() as producer:
        producer.send("orders", orders(1), partition=2).result()
        rows_of(consumer)
        producer.send("orders", orders(2), partition=2).result()
    with world.counting.counting() as cost:
        assert consumer.poll(0) is not None
    assert (cost.get, cost.total) == (5, 5)


def test_a_poll_copies_only_the_rows_that_it_returns_of_a_long_tail(world, store, monkeypatch):
    consumer = store.consumer("orders", auto_offset_reset="earliest")
    with world.open().producer() as producer:
        for number in range(20):
            producer.send("orders", orders(number), partition=0).result()
        assert len(rows_of(consumer)) == 20
        copied: list[StoredRecord] = []
        whole: Any = StoredRecord.payload

        def payload(stored: StoredRecord) -> Any:
            copied.append(stored)
            return whole.fget(stored)

        monkeypatch.setattr(StoredRecord, "payload", property(payload))
        producer.send("orders", orders(20), partition=0).result()
        copied.clear()
        assert [row["id"] for row in rows_of(consumer)] == [20]
    assert [stored.record.base_offset for stored in copied] == [20]


def test_listing_again_is_a_matter_of_age(world, store):
    """A consumer that tails lists every `metadata.max.age.ms` (R9)."""
    consumer = store.consumer("orders", auto_offset_reset="earliest")
    rows_of(consumer)
    world.clock.advance_ms(300_000)
    with world.counting.counting() as cost:
        assert consumer.poll(0) is None
    assert cost.list == 4
    with world.counting.counting() as cost:
        assert consumer.poll(0) is None
    assert (cost.list, cost.total) == (0, 4)


def test_latest_offsets_warm_are_one_get_a_partition(world, store):
    """A reader looks for the end again, although it has just found it (R17)."""
    admin = store.admin()
    admin.list_offsets("orders")
    with world.counting.counting() as cost:
        admin.list_offsets("orders")
    assert (cost.get, cost.total) == (4, 4)


def test_opening_a_store_is_one_get(world, store):
    with world.counting.counting() as cost:
        world.open()
    assert cost.total == cost.get == 1


def test_sends_do_not_look_at_the_topic_again(world, store):
    store.create_topic("t", ORDERS)
    with store.producer() as producer:
        producer.send("t", orders(1)).result()
        with world.counting.counting() as cost:
            for number in range(20):
                producer.send("t", orders(number)).result()
        assert cost.total == 20
        world.clock.advance_ms(300_000)
        with world.counting.counting() as cost:
            producer.send("t", orders(99)).result()
    # The producer also checks that this is the same store, and that the log still holds the last record.
    assert sorted(path for verb, path in cost.calls() if verb == "get") == [
        "t/0/00000000000000000020.batch",
        "t/topic.00000000000000000001.json",
        "txlog.json",
    ]


@pytest.mark.parametrize("segments", [4, 40])
def test_the_first_rows_cost_one_index_and_one_file_however_long_the_log_is(world, segments):
    world.open().create_topic("long", ORDERS, config={"segment.batches": 1})
    with world.open().producer() as producer:
        for number in range(segments):
            producer.send("long", orders(number), partition=0).result()
    # The last of these segments is the tail.
    with world.open().consumer("long", auto_offset_reset="earliest", max_poll_records=1) as consumer:
        consumer.position(tp("long", 0))
        with world.counting.counting() as cost:
            assert [row["id"] for row in consumer.poll(0).to_pylist()] == [0]
        assert (cost.get, cost.get_range, cost.list) == (1, 1, 0), str(cost.requests())
        with world.counting.counting() as cost:
            assert [row["id"] for row in rows_of(consumer)] == list(range(1, segments))
        # One index and one file for each, and one GET that finds no next record.
        assert (cost.get, cost.get_range) == (segments - 2 + 1, segments - 2), str(cost.requests())


def test_a_consumer_that_follows_holds_no_index_of_what_it_has_read(world):
    world.open().create_topic("long", ORDERS, config={"segment.batches": 2})
    fetched = []
    with (
        world.open().producer() as producer,
        world.open().consumer("long", auto_offset_reset="earliest") as consumer,
    ):
        for step in range(12):
            for number in range(6):
                producer.send("long", orders(6 * step + number), partition=0).result()
            world.clock.advance_ms(300_001)
            fetched += [row["id"] for row in rows_of(consumer)]
            (fetch,) = consumer._fetcher._partitions.values()
            assert len(fetch.indexes) <= 1
    assert fetched == list(range(72))


def test_no_more_files_are_opened_than_a_poll_returns_rows_of(world):
    world.open().create_topic("files", ORDERS, config={"segment.batches": 8, "inline.max.bytes": 0})
    with world.open().producer() as producer:
        for number in range(17):
            producer.send("files", orders(number), partition=0).result()
    with world.open().consumer("files", auto_offset_reset="earliest", max_poll_records=2) as consumer:
        consumer.position(tp("files", 0))
        with world.counting.counting() as cost:
            assert consumer.poll(0).num_rows == 2
        assert (cost.get, cost.get_range) == (1, 2), str(cost.requests())


@pytest.mark.parametrize(("staged", "most"), [(None, 17), (False, 23), (True, 18)])
def test_one_transaction_of_a_new_process_after_105(world, store, staged, most):
    """It costs `most` requests, and one for each record in the tail of the table."""
    with waits_for_all(store, staged=staged) as producer:
        for number in range(105):
            with producer.transaction():
                producer.send("orders", orders(number), partition=0)
    table = state_partition(store.runtime.context(), "loader")
    tail = len(store.runtime.run(load(store.runtime.context(), table)).tail)
    with (
        world.counting.counting() as cost,
        waits_for_all(world.open(), staged=staged) as producer,
        producer.transaction(),
    ):
        producer.send("orders", orders(105), partition=0)
    assert cost.total <= most + tail, (tail, str(cost.requests()))


def test_a_new_process_reads_105_small_transactions(world, store):
    with waits_for_all(store, staged=None) as producer:
        for number in range(105):
            with producer.transaction():
                producer.send("orders", orders(number), partition=0)
    with world.counting.counting() as cost:
        consumer = world.open().consumer(auto_offset_reset="earliest")
        consumer.assign([tp("orders", 0)])
        assert [row["id"] for row in rows_of(consumer)] == list(range(105))
    # Most rows are in the file of the sealed segment.
    assert (cost.list, cost.get_range) == (2, 1)
    assert cost.total <= 15, str(cost.requests())


def test_a_new_process_reads_few_records_of_the_table_however_many_it_has(world, store):
    with waits_for_all(store, staged=True) as producer:
        for number in range(40):
            with producer.transaction():
                producer.send("orders", orders(number), partition=0)
            with world.counting.counting() as cost:
                world.open().admin().describe_transaction("loader")
            read = [
                path for _, path in cost.calls() if path.startswith("__transaction_state/") and path.endswith(".batch")
            ]
            assert len(read) <= INTERNAL_ROLL.batches + 1


def test_an_operator_opens_only_internal_partitions_that_hold_anything(world, store):
    for number in range(3):
        with store.producer(f"id-{number}", staged=False) as producer, producer.transaction():
            producer.send("orders", orders(number), partition=0)
            producer.send_offsets_to_transaction({tp("orders", 0): number}, f"group-{number}")
    ids, homes = (len(world.memory.list(f"{topic}/")) for topic in ("__transaction_state", "__consumer_offsets"))
    assert 0 < ids < 50 > homes > 0
    # One LIST finds the partitions of an internal topic in use, and one opens each of them. Topics cost one LIST, and
    # one each.
    for call, lists in (
        (lambda admin: len(admin.list_transactions()), 1 + ids),
        (lambda admin: len(admin.list_groups()), 1 + homes + 2 + 1),
        (lambda admin: 3 + len(admin.find_hanging()), 1 + ids + 2 + 4),
    ):
        admin = world.open().admin()
        with world.counting.counting() as cost:
            assert call(admin) == 3
        assert cost.list == lists, str(cost.requests())
