"""What an exporter says about a store, what a look costs, and what happens when the store does not answer."""

from __future__ import annotations

import logging
import random
import subprocess
import sys
import threading
from typing import Any, cast

import msgspec
import pytest

from lab.testing.damage import overwrite
from tests.client.world import ORDERS, Outage, World, many, orders, tp
from tests.metrics.world import commit, exporter_of, filled, hang, opener
from tests.publication.lives import publish
from txlog.client.reading import read_session
from txlog.core.names import TopicPartition, publication_path
from txlog.core.records import IndexEntry, SegmentIndex
from txlog.exporter.exporter import Exporter
from txlog.exporter.gauges import gauges
from txlog.inspection.look import SegmentSize
from txlog.maintenance.maintain import Maintainer, MaintainPolicy
from txlog.maintenance.size import measure_partition
from txlog.metrics import Registry
from txlog.metrics.table import METRICS
from txlog.protocol import publications
from txlog.protocol.read import ReadIndex
from txlog.storage.object_store import ObjectStore

OF_STORE = [name for name, metric in METRICS.items() if metric.source == "store"]


@pytest.fixture
def exporter(world: World, registry: Registry) -> Exporter:
    return exporter_of(world, registry)


def look(world: World, exporter: Exporter) -> int:
    """Look when the last look is too old, and return how many requests it took."""
    world.clock.sleep_ms(20_000)
    with world.counting.counting() as cost:
        exporter.refresh()
    return cost.total


def value(registry: Registry, name: str, *labels: str) -> float:
    return registry.values(f"txlog_{name}")[labels]


# -- what a look costs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("topics", "partitions", "published"), [(1, 1, 0), (1, 5, 1), (7, 3, 2)])
def test_a_look_at_a_quiet_store_costs_what_the_help_says(
    world: World, registry: Registry, exporter: Exporter, topics: int, partitions: int, published: int
) -> None:
    store = filled(world, topics, partitions)
    with store.producer(transactional_id="one") as producer, producer.transaction():
        producer.send("t0", orders(7), partition=0)
    commit(store, "g", 1)
    for number in range(published):
        store.alter_topic(f"t{number}", config={"publish.formats": "delta", "publish.max.lag.ms": 0})
    Maintainer(store.runtime, MaintainPolicy(skip=frozenset({"vacuum"}))).run()
    exporter.refresh()
    internal = 2
    expected = topics + topics * partitions + internal + published + 5
    for _ in range(3):
        assert look(world, exporter) == expected
        assert value(registry, "exporter_look_requests") == expected
    with world.counting.counting() as cost:
        exporter.refresh()
    assert cost.total == 0


def test_a_new_record_costs_one_request_and_many_cost_a_list(
    world: World, registry: Registry, exporter: Exporter
) -> None:
    store = filled(world, 1, 1, segment_batches=10)
    exporter.refresh()
    quiet = look(world, exporter)
    with store.producer() as producer:
        for number in range(5):
            producer.send("t0", orders(number), partition=0).result()
        assert look(world, exporter) == quiet + 5
        for number in range(300):
            producer.send("t0", orders(number), partition=0).result()
    # 64 by name; then a LIST, the snapshot, and the tail, of which no segment is sealed.
    assert look(world, exporter) < quiet + 64 + 3 + 2 * 10 + 31
    assert value(registry, "log_end_offset", "t0", "0") == 306


def test_a_look_reads_a_limited_number_of_indexes(world: World, registry: Registry) -> None:
    store = filled(world, 1, 1, segment_batches=1)
    with store.producer() as producer:
        for number in range(9):
            producer.send("t0", orders(number), partition=0).result()
    sealed = len(store.admin().describe_partition("t0", 0).segments)
    exporter = exporter_of(world, registry, max_reads=3)
    exporter.refresh()
    quiet = 1 + 1 + 5
    left = [sealed - 3]
    while left[-1]:
        assert value(registry, "unmeasured_segments", "t0", "0") == left[-1]
        assert look(world, exporter) == quiet + min(3, left[-1])
        left.append(max(left[-1] - 3, 0))
    assert value(registry, "unmeasured_segments", "t0", "0") == 0
    assert look(world, exporter) == quiet


def test_a_look_after_the_metadata_age_lists_again(world: World, registry: Registry, exporter: Exporter) -> None:
    filled(world, 1, 2)
    exporter.refresh()
    quiet = look(world, exporter)
    world.clock.sleep_ms(300_000)
    # Instead of one GET for a partition: one LIST, and one GET for its record.
    assert look(world, exporter) == quiet + 2
    assert look(world, exporter) == quiet


# -- what the numbers say ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("merged", [False, True])
def test_sizes_are_those_that_topics_describe_shows(world: World, registry: Registry, merged: bool) -> None:
    luck = random.Random(1)
    store = filled(world, 1, 2, segment_batches=4)
    with store.producer() as producer, store.producer("txn") as transactional:
        for number in range(40):
            rows = many(3000, number) if luck.random() < 0.3 else orders(number)
            producer.send("t0", rows, partition=luck.randrange(2)).result()
            if luck.random() < 0.2:
                transactional.begin_transaction()
                transactional.send("t0", orders(1, 2), partition=0)
                transactional.flush()
                transactional.abort_transaction() if luck.random() < 0.5 else transactional.commit_transaction()
    if merged:
        Maintainer(store.runtime, MaintainPolicy(merge_min_segments=2, skip=frozenset({"vacuum"}))).run()
    exporter_of(world, registry).refresh()
    session = read_session(world.open().runtime)
    for number in range(2):
        size = measure_partition(session, tp("t0", number))
        of_partition = ("t0", str(number))
        assert size.files >= (1 if merged else 5)
        assert value(registry, "files", *of_partition) == size.files
        assert value(registry, "small_files", *of_partition) == size.small_files
        assert value(registry, "log_size_bytes", *of_partition) == size.bytes
        assert value(registry, "segments", *of_partition, "sealed") == size.segments
        assert value(registry, "tail_batches", *of_partition) == size.tail_batches


def test_an_open_transaction_holds_readers_back(world: World, registry: Registry, exporter: Exporter) -> None:
    store = filled(world)
    producer = hang(store, transaction_timeout_ms=60_000)
    world.clock.advance_ms(30_000)
    producer.send("t0", orders(9), partition=0)
    producer.flush()
    world.clock.advance_ms(10_000)
    exporter.refresh()
    assert value(registry, "lso_hold_offsets", "t0", "0") == 4
    assert value(registry, "lso_hold_offsets", "t0", "1") == 0
    assert value(registry, "lso_hold_seconds", "t0", "0") == pytest.approx(40, abs=1)
    assert value(registry, "lso_hold_seconds", "t0", "1") == 0
    assert registry.values("txlog_open_transactions") == {
        ("ONGOING",): 1,
        ("PREPARE_COMMIT",): 0,
        ("PREPARE_ABORT",): 0,
    }
    assert value(registry, "oldest_open_transaction_seconds") == pytest.approx(40, abs=1)
    assert value(registry, "overdue_transactions") == 0
    look(world, exporter)
    assert value(registry, "overdue_transactions") == 1
    producer.abort_transaction()
    look(world, exporter)
    assert value(registry, "lso_hold_offsets", "t0", "0") == 0
    assert value(registry, "lso_hold_seconds", "t0", "0") == 0
    assert value(registry, "oldest_open_transaction_seconds") == 0


def test_an_init_between_two_requests_of_a_look_does_not_make_a_transaction_old(
    world: World, registry: Registry, exporter: Exporter
) -> None:
    hang(filled(world))
    world.clock.advance_ms(40_000)
    exporter.open()
    assert exporter._monitor is not None
    seen = exporter._monitor.look()
    (row,) = seen.transactions
    after = msgspec.structs.replace(row.value, state="EMPTY", started_at=-1)
    seen.transactions = (msgspec.structs.replace(row, value=after),)
    assert gauges(seen)["txlog_lso_hold_seconds"]["t0", "0"] == pytest.approx(40, abs=1)


def test_the_lag_of_a_group_in_offsets_and_seconds(world: World, registry: Registry, exporter: Exporter) -> None:
    store = filled(world, 1, 2, segment_batches=2)
    began_ms = world.clock.now_ms()
    with store.producer() as producer:
        for number in range(9):
            world.clock.advance_ms(1000)
            producer.send("t0", orders(number), partition=0).result()
    commit(store, "slow", 2)  # in a sealed segment
    commit(store, "fast", 9)  # in the tail
    commit(store, "done", 10)
    exporter.refresh()
    waited = (world.clock.now_ms() - began_ms) / 1000
    found = {group: value(registry, "group_lag_offsets", group, "t0", "0") for group in ("slow", "fast", "done")}
    assert found == {"slow": 8, "fast": 1, "done": 0}
    assert value(registry, "group_lag_seconds", "slow", "t0", "0") == pytest.approx(waited - 2, abs=0.5)
    assert value(registry, "group_lag_seconds", "fast", "t0", "0") == pytest.approx(waited - 9, abs=0.5)
    assert value(registry, "group_lag_seconds", "done", "t0", "0") == 0
    assert registry.values("txlog_group_members") == {(group,): 0 for group in found}
    with store.consumer("t0", group_id="fast") as consumer:
        consumer.poll(0)
        look(world, exporter)
        assert value(registry, "group_members", "fast") == 1
    killed = store.consumer("t0", group_id="fast", group_instance_id="one")
    killed.close()  # a static member does not leave
    look(world, exporter)
    assert value(registry, "group_members", "fast") == 1
    world.clock.advance_ms(45_000)
    look(world, exporter)
    assert value(registry, "group_members", "fast") == 0


def test_the_lag_of_published_tables(world: World, registry: Registry, exporter: Exporter) -> None:
    pytest.importorskip("pyiceberg")  # make test-minimum does not have it
    config = {"publish.formats": "delta,iceberg", "publish.max.lag.ms": 0}
    store = world.open()
    store.create_topic("t0", ORDERS, 2, config=config)
    with store.producer() as producer:
        producer.send("t0", many(3000), partition=0).result()
    maintainer = Maintainer(store.runtime, MaintainPolicy(skip=frozenset({"vacuum"})))
    maintainer.run()
    exporter.refresh()
    for each in ("delta", "iceberg"):
        assert value(registry, "publication_lag_offsets", "t0", each) == 0
        assert value(registry, "publication_lag_seconds", "t0", each) == 0
    # An aborted transaction leaves a marker that no table ever shows: nothing waits.
    aborted = store.producer("aborts", inline_max_bytes=0)
    aborted.init_transactions()
    aborted.begin_transaction()
    aborted.send("t0", orders(1), partition=0)
    aborted.flush()
    aborted.abort_transaction()
    look(world, exporter)
    assert value(registry, "publication_lag_offsets", "t0", "delta") == 0
    with store.producer() as producer:
        producer.send("t0", many(3000), partition=1).result()
    world.clock.advance_ms(7000)
    look(world, exporter)
    assert value(registry, "publication_lag_offsets", "t0", "delta") == 3000
    assert value(registry, "publication_lag_seconds", "t0", "delta") == pytest.approx(27, abs=1)
    maintainer.run()
    look(world, exporter)
    assert value(registry, "publication_lag_seconds", "t0", "iceberg") == 0


def test_the_lag_of_tables_whose_next_publication_was_vacuumed(
    world: World, registry: Registry, exporter: Exporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publications, "WHOLE_EVERY", 2)
    store = world.open()
    store.create_topic("t0", ORDERS, 1, config={"publish.formats": "delta", "publish.max.lag.ms": 0})
    publish(store, "t0")
    exporter.refresh()
    with store.producer() as producer:
        for number in range(3):
            producer.send("t0", orders(number)).result()
            world.clock.advance_ms(1)
            newest = publish(store, "t0").number
    for number in range(newest - 1):
        world.memory.delete(publication_path("t0", number))
    world.clock.sleep_ms(300_000)  # metadata.max.age.ms
    exporter.refresh()
    assert value(registry, "publication_lag_offsets", "t0", "delta") == 0


def test_what_maintenance_did_last(world: World, registry: Registry, exporter: Exporter) -> None:
    store = filled(world, 1, 1, segment_batches=1)
    with store.producer() as producer:
        for number in range(9):
            producer.send("t0", orders(number), partition=0).result()
    exporter.refresh()
    assert registry.values("txlog_maintenance_last_run_rows") == {}
    Maintainer(store.runtime, MaintainPolicy(merge_min_segments=2)).run()
    look(world, exporter)
    assert value(registry, "maintenance_last_run_rows", "merge") >= 9
    assert value(registry, "maintenance_last_run_failures", "merge") == 0
    ended = value(registry, "maintenance_last_run_timestamp_seconds", "merge")
    assert world.clock.now_ms() / 1000 - 60 < ended < world.clock.now_ms() / 1000


def test_a_deleted_topic_is_gone(world: World, registry: Registry, exporter: Exporter) -> None:
    store = filled(world, 2, 1)
    exporter.refresh()
    assert set(registry.values("txlog_topic_up")) == {("t0",), ("t1",)}
    store.delete_topic("t0")
    look(world, exporter)
    assert set(registry.values("txlog_topic_up")) == {("t1",)}
    assert set(registry.values("txlog_log_end_offset")) == {("t1", "0")}


# -- what happens in trouble ------------------------------------------------------------------------------------------


def test_an_unreachable_store_is_down_and_comes_back(
    world: World, registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    filled(world)
    outage = Outage(world.counting)
    exporter = exporter_of(world, registry, cast(ObjectStore, outage))
    exporter.refresh()
    assert value(registry, "up") == 1
    looked_at = value(registry, "exporter_look_timestamp_seconds")
    outage.pattern = ""
    for number in (1, 2):
        look(world, exporter)
        assert {name for name in OF_STORE if registry.values(name)} == {"txlog_up"}
        assert value(registry, "up") == 0
        assert value(registry, "exporter_errors_total", "store") == number
        assert value(registry, "exporter_look_timestamp_seconds") == looked_at
    assert value(registry, "exporter_looks_total", "failed") == 2
    outage.pattern = None
    look(world, exporter)
    assert value(registry, "up") == 1
    assert value(registry, "log_end_offset", "t0", "0") == 1
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1, warnings  # the second failure is the same one


def test_a_store_that_is_down_from_the_beginning(world: World, registry: Registry) -> None:
    filled(world)
    outage = Outage(world.counting)
    outage.pattern = ""
    exporter = exporter_of(world, registry, cast(ObjectStore, outage))
    exporter.refresh()
    assert value(registry, "up") == 0
    outage.pattern = None
    look(world, exporter)
    assert value(registry, "up") == 1


def test_a_store_that_was_replaced_is_opened_again(world: World, registry: Registry, exporter: Exporter) -> None:
    filled(world)
    exporter.refresh()
    other = World()
    other.open()  # so that the next process draws another store_id
    filled(other, 1, 1)
    memory = world.memory
    memory._objects = other.memory._objects
    look(world, exporter)
    assert value(registry, "up") == 0
    look(world, exporter)
    assert value(registry, "up") == 1
    assert set(registry.values("txlog_log_end_offset")) == {("t0", "0")}
    other.close()


def test_a_store_that_was_put_back_is_noticed(world: World, registry: Registry, exporter: Exporter) -> None:
    store = filled(world, 1, 1)
    memory = world.memory
    backup = dict(memory._objects)
    with store.producer() as producer:
        producer.send("t0", orders(1), partition=0).result()
    exporter.refresh()
    assert value(registry, "log_end_offset", "t0", "0") == 2
    memory._objects = backup
    world.clock.sleep_ms(300_000)
    look(world, exporter)
    assert value(registry, "up") == 0
    look(world, exporter)
    assert value(registry, "log_end_offset", "t0", "0") == 1


@pytest.mark.parametrize(
    "path", ["t1/topic.00000000000000000000.json", "t1/1/00000000000000000000.batch"], ids=["metadata", "record"]
)
def test_a_damaged_topic_hides_no_other(world: World, registry: Registry, exporter: Exporter, path: str) -> None:
    filled(world, 3, 2)
    overwrite(world.memory, path, b"damaged\n")
    for number in (1, 2):
        look(world, exporter)
        assert value(registry, "up") == 1
        assert registry.values("txlog_topic_up") == {("t0",): 1, ("t1",): 0, ("t2",): 1}
        assert {("t0", "1"), ("t2", "0")} <= set(registry.values("txlog_log_end_offset"))
        assert ("t1", "1") not in registry.values("txlog_log_end_offset")
        assert value(registry, "exporter_errors_total", "topic") == number


def test_a_damaged_table_of_transactions_hides_no_topic(world: World, registry: Registry, exporter: Exporter) -> None:
    hang(filled(world))
    (folder,) = world.memory.list("__transaction_state/")
    overwrite(world.memory, f"__transaction_state/{folder}00000000000000000000.batch", b"damaged\n")
    exporter.refresh()
    assert value(registry, "up") == 1
    assert value(registry, "exporter_errors_total", "internal") == 1
    assert value(registry, "lso_hold_offsets", "t0", "0") == 3


def test_an_index_that_maintenance_has_removed_is_no_damage(world: World, registry: Registry) -> None:
    store = filled(world, 1, 1, segment_batches=1)
    with store.producer() as producer:
        for number in range(9):
            producer.send("t0", orders(number), partition=0).result()
    exporter = exporter_of(world, registry, max_reads=1)
    exporter.refresh()
    for name in world.memory.list("t0/0/"):
        if name.endswith(".index"):
            world.memory.delete(f"t0/0/{name}")
    look(world, exporter)
    assert value(registry, "topic_up", "t0") == 1
    assert value(registry, "unmeasured_segments", "t0", "0") > 0


def test_an_opener_that_fails_in_any_way_ends_no_scrape(registry: Registry, caplog: pytest.LogCaptureFixture) -> None:
    def open_store() -> None:
        raise ZeroDivisionError("a bug")

    exporter = Exporter(open_store, registry)  # type: ignore[arg-type]
    exporter.refresh()
    assert value(registry, "up") == 0
    assert "ZeroDivisionError" in caplog.text


def test_a_look_that_takes_too_long_gives_the_numbers_of_the_one_before(world: World, registry: Registry) -> None:
    filled(world)
    may_go = threading.Event()
    may_go.set()

    class Slow(Outage):
        def __getattr__(self, verb: str) -> Any:
            may_go.wait(20)
            return super().__getattr__(verb)

    slow = Slow(world.counting)
    exporter = exporter_of(world, registry, cast(ObjectStore, slow), longest_wait_ms=50)
    exporter.open()
    exporter.refresh()
    assert exporter._running is not None
    exporter._running.result(20)
    assert value(registry, "up") == 1
    may_go.clear()
    slow.pattern = ""
    for _ in range(2):
        look(world, exporter)  # the second scrape begins no look beside the first one
        assert value(registry, "up") == 1
    may_go.set()
    exporter._running.result(20)
    assert value(registry, "up") == 0
    assert value(registry, "exporter_looks_total", "failed") == 1
    exporter.close()


def test_the_program_ends_during_a_look_that_gets_no_answer() -> None:
    program = """
import threading
from tests.client.world import Outage, World
from tests.metrics.world import exporter_of, filled
from txlog.metrics import Registry

class Silent(Outage):
    def __getattr__(self, verb):
        if self.pattern:
            threading.Event().wait()
        return super().__getattr__(verb)

world = World()
filled(world).close()
silent = Silent(world.memory)
exporter = exporter_of(world, Registry(), silent, longest_wait_ms=50)
exporter.open()
silent.pattern = "."
exporter.refresh()
assert not exporter._running.done()
exporter.close()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_scrapes_at_once_share_a_look(world: World, registry: Registry, exporter: Exporter) -> None:
    filled(world)
    exporter.open()
    with world.counting.counting() as cost:
        threads = [threading.Thread(target=exporter.refresh) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert value(registry, "exporter_looks_total", "ok") == 1
    assert value(registry, "exporter_look_requests") == cost.total


def test_a_store_is_opened_once(world: World, registry: Registry) -> None:
    filled(world)
    opened = []

    def open_store() -> object:
        opened.append(1)
        return opener(world)()

    exporter = Exporter(open_store, registry, clock=world.clock)  # type: ignore[arg-type]
    exporter.open()
    exporter.refresh()
    look(world, exporter)
    assert len(opened) == 1


def test_the_rows_of_a_merged_entry_reach_up_to_the_next_one() -> None:
    """Between its rows lay aborted ones, so its last row may have a higher offset than the number of rows tells."""
    entry = IndexEntry(
        base_offset=0, records=2, kind="data", producer_id=-1, producer_epoch=-1, base_sequence=-1, transactional=False,
        timestamp=1, file=0,
    )  # fmt: skip
    index = SegmentIndex(
        partition="t0-0", base_offset=0, end_offset=9, generation=1, files=(), entries=(entry,), aborted_txns=0,
        last_digest="",
    )  # fmt: skip
    assert SegmentSize.of(TopicPartition("t0", 0), ReadIndex(index=index, aborted=())).rows_end == 9
