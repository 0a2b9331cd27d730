"""What an erasure leaves: `--verify` names each object that a search of all bytes finds, and maintenance deletes it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from tests.client.world import World, tp
from tests.publication.erasing_lives import decoded
from tests.publication.lives import publish
from txlog.client import reading
from txlog.client.staged import StagedTransaction
from txlog.client.transactions.staged_files import read_staged_folder
from txlog.core.effects import Program
from txlog.core.names import staged_folder
from txlog.errors import TxlogError
from txlog.maintenance.erase import begin_erasure, list_erasures
from txlog.maintenance.erase_check import find_remains
from txlog.maintenance.maintain import Maintainer, MaintainPolicy
from txlog.maintenance.vacuum import vacuum
from txlog.protocol import erase as protocol, publications
from txlog.protocol.expiry import expire
from txlog.storage.conform import conform
from txlog.storage.object_store import ObjectStore
from txlog.storage.parquet_writer import write_rows_file
from txlog.testing.failing_store import Fault

SCHEMA = pa.schema((pa.field("customer", pa.string()), pa.field("n", pa.int64())))
SMALL = {"segment.batches": 3, "inline.max.bytes": 4096}
SHOWN = {"publish.max.lag.ms": 0, "publish.retention.ms": 1}
DAY_MS = 86_400_000
ANN = "customer = 'ann-secret'"


@pytest.mark.parametrize("formats", ["delta", "iceberg"])
@pytest.mark.parametrize("customer", ["ann", "bob", "x" * 31 + "éé", "x" * 28 + "\U0010ffff" * 2])
def test_statistics_of_a_deleted_file_may_have_a_value(world: World, customer: str, formats: str) -> None:
    """Another column of an erased row may be its lowest or highest value, and a long text is cut."""
    if formats == "iceberg":
        pytest.importorskip("pyiceberg")
    store = world.open()
    store.create_topic("shown", SCHEMA, config={**SHOWN, "publish.formats": formats, "segment.batches": 1})
    with store.producer(inline_max_bytes=0) as producer:
        rows = [{"customer": name, "n": 987_654_321 if name == customer else 1} for name in ("a", customer, "y")]
        producer.send("shown", rows).result()
    world.clock.advance_ms(10)
    publish(world.open(), "shown")
    where = f"customer = '{customer}'"
    assert store.admin().erase("shown", where=where) == {tp("shown", 0): 1}
    settle(world, "shown")
    holding = found_by_bytes(world, "987654321")
    assert "shown/publication/00000000000000000001.json" in holding
    found = remains(world, "shown", where)
    assert holding <= found.keys()
    assert set(found.values()) == {0}


@pytest.mark.parametrize("partition", [0, 1])
def test_files_of_one_name_are_told_apart(world: World, partition: int) -> None:
    """A task of Spark gives its files of several partitions the same last part of the path."""
    store = world.open()
    config = {**SHOWN, "publish.formats": "delta", "segment.batches": 100}
    store.create_topic("shown", SCHEMA, partitions=2, config=config)
    topic = store.runtime.topic("shown", 0)
    staged = StagedTransaction.begin(store.runtime, "works")
    folder = staged_folder(staged.producer_id, staged.producer_epoch, "0123456789abcdef")
    for each, names in ((partition, ("ann-secret", "bob")), (1 - partition, ("carl", "dora"))):
        rows = conform([{"customer": name, "n": 1} for name in names], topic.schema, topic="shown")
        path = f"{folder}_partition={each}/part-00000-abc.c000.snappy.parquet"
        write_rows_file(store.runtime.store, "shown", path, rows.to_batches(), topic.schema)
    staged.commit(read_staged_folder(store.runtime, topic, folder))
    world.clock.advance_ms(10)
    publish(world.open(), "shown")
    before = remains(world, "shown", ANN)
    # The record of the partition names the file, too.
    assert f"shown/{partition}/00000000000000000000.batch" in before
    assert before.keys() == found_by_bytes(world, "ann-secret")
    assert sum(before.values()) == 1
    store.admin().erase("shown", where=ANN)
    settle(world, "shown")
    left = remains(world, "shown", ANN)
    assert left.keys() == found_by_bytes(world, "ann-secret")
    assert left == {f"shown/{each}/00000000000000000001.json": 0 for each in ("_delta_log", "publication")}


@pytest.mark.parametrize("then", ["open", "aborted", "committed"])
@pytest.mark.parametrize("transactions", range(12, 18))
@pytest.mark.parametrize("inline_max_bytes", [0, 4096])
def test_a_decision_in_a_snapshot_goes_whatever_follows_it(
    world: World, then: str, transactions: int, inline_max_bytes: int
) -> None:
    """The next transaction of the id says that it has ended (W27), and may have no row of the topic."""
    store = world.open()
    for topic in ("visits", "other"):
        store.create_topic(topic, SCHEMA, partitions=2, config=SMALL)
    with store.producer("works", inline_max_bytes=inline_max_bytes) as producer:
        send_ann(producer, transactions)
        producer.begin_transaction()
        producer.send("other", [{"customer": "bob", "n": 1}], partition=0)
        producer.flush()
        if then == "aborted":
            producer.abort_transaction()
        elif then == "committed":
            producer.commit_transaction()
        assert remains(world, "visits", ANN).keys() == found_by_bytes(world, "ann-secret")
        world.open().admin().erase("visits", where=ANN)
        if then == "open":
            producer.abort_transaction()
    settle(world)
    assert remains(world, "visits", ANN) == {}
    assert found_by_bytes(world, "ann-secret") == set()


@pytest.mark.parametrize("then", ["closed", "going on", "open"])
@pytest.mark.parametrize("transactions", range(13, 18))
def test_a_decision_goes_from_segments_that_ended_and_are_not_sealed(
    world: World, then: str, transactions: int
) -> None:
    """A writer may die after it has ended a segment, and before it seals it."""
    store = world.open()
    for topic in ("visits", "other"):
        store.create_topic(topic, SCHEMA, partitions=2, config=SMALL)
    outage, opened = world.outage()
    producer = opened.producer("works", inline_max_bytes=4096)
    producer.init_transactions()
    send_ann(producer, 6)
    outage.pattern = r"put.* __transaction_state/.*(index|snapshot)$"
    send_ann(producer, transactions - 6)
    if then == "going on":
        producer.begin_transaction()
        producer.send("other", [{"customer": "bob", "n": 1}], partition=0)
        producer.commit_transaction()
    if then != "open":
        producer.close()
    world.open().admin().erase("visits", where=ANN)
    settle(world)
    assert remains(world, "visits", ANN) == {}
    assert found_by_bytes(world, "ann-secret") == set()
    producer.close()


@pytest.mark.parametrize("then", ["closed", "going on", "open"])
@pytest.mark.parametrize("transactions", [1, 5])
def test_a_decision_between_roll_forward_and_ends_goes(
    world: World, then: str, transactions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows are below the ends. So its end must come before the table is sealed."""
    store = world.open()
    for topic in ("visits", "other"):
        store.create_topic(topic, SCHEMA, partitions=2, config=SMALL)
    producer = store.producer("works", inline_max_bytes=4096)
    producer.init_transactions()
    send_ann(producer, transactions)

    def committed_after(*args: Any) -> Program[Any]:
        found = yield from expire(*args)
        monkeypatch.setattr(protocol, "expire", expire)
        send_ann(producer, 1)
        return found

    monkeypatch.setattr(protocol, "expire", committed_after)
    erased = world.open().admin().erase("visits", where=ANN)
    assert erased == {tp("visits", 1): transactions + 1}
    if then == "going on":
        for _ in range(3):
            with producer.transaction():
                producer.send("other", [{"customer": "bob", "n": 1}], partition=1)
    if then != "open":
        producer.close()
    settle(world)
    assert remains(world, "visits", ANN) == {}
    assert found_by_bytes(world, "ann-secret") == set()
    producer.close()


def test_a_transaction_of_another_topic_that_cannot_end_holds_no_erasure_back(world: World) -> None:
    store = world.open()
    for topic in ("visits", "other"):
        store.create_topic(topic, SCHEMA, config=SMALL)
    visitor = store.producer("visitor")
    visitor.init_transactions()
    with visitor.transaction():
        visitor.send("visits", [{"customer": "ann-secret", "n": 1}, {"customer": "bob", "n": 2}])
    begin_erasure(reading.read_session(world.open().runtime), "visits", ANN)
    outage, opened = world.outage()
    stuck = opened.producer("stuck", inline_max_bytes=4096)
    stuck.init_transactions()
    outage.pattern = r"put.* other/"
    with pytest.raises(TxlogError), stuck.transaction():
        stuck.send("other", [{"customer": "carl", "n": 1}])
    refused = Fault(action="403", match=r"^put_if_absent other/", times=10**6)
    _, maintaining = world.failing(refused)
    Maintainer(maintaining.runtime).run()
    assert not list_erasures(world.open().runtime)
    assert [row["customer"] for row in store.table("visits").scan(["customer"]).read_all().to_pylist()] == ["bob"]
    outage.pattern = None
    for producer in (visitor, stuck):
        producer.close()


def test_an_erasure_that_waits_leaves_the_table_of_transactions_alone(world: World) -> None:
    """And transactions whose time is up, which another step of maintenance aborts."""
    store = world.open()
    for topic in ("visits", "other"):
        store.create_topic(topic, SCHEMA, config=SMALL)
    with store.producer("visitor") as producer, producer.transaction():
        producer.send("visits", [{"customer": "ann-secret", "n": 1}])
    holder = store.producer("holder", transaction_timeout_ms=900_000)
    late = store.producer("late", transaction_timeout_ms=1000)
    for producer, topic in ((holder, "visits"), (late, "other")):
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, [{"customer": "carl", "n": 1}])
        producer.flush()
    begin_erasure(reading.read_session(world.open().runtime), "visits", ANN)
    skip = MaintainPolicy(skip=frozenset({"transactions", "vacuum"}))
    counts = []
    for _ in range(3):
        world.clock.advance_ms(5000)
        Maintainer(world.open().runtime, skip).run()
        counts.append(len(list(_below(world.memory, "__transaction_state/"))))
    assert counts == counts[:1] * 3
    states = {each.transactional_id: each.state for each in store.admin().list_transactions()}
    assert (states["holder"], states["late"]) == ("ONGOING", "ONGOING")
    holder.abort_transaction()
    Maintainer(world.open().runtime, skip).run()
    assert not list_erasures(world.open().runtime)
    for producer in (holder, late):
        producer.close()


def test_a_second_erasure_writes_nothing_to_the_table_of_transactions(world: World) -> None:
    store = world.open()
    store.create_topic("visits", SCHEMA, partitions=2, config=SMALL)
    with store.producer("works", inline_max_bytes=4096) as producer:
        send_ann(producer, 3)
    counts = []
    for _ in range(2):
        world.open().admin().erase("visits", where=ANN)
        counts.append(sum(path.startswith("__transaction_state/") for path in _below(world.memory, "")))
    assert counts == counts[:1] * 2


@pytest.mark.parametrize("first", ["delta", "iceberg"])
def test_publications_and_vacuum_without_delays_leave_no_value(
    world: World, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in the log of a table that began at a later publication: its tenth versions are other ones."""
    pytest.importorskip("pyiceberg")
    monkeypatch.setattr(publications, "WHOLE_EVERY", 10)
    store = world.open()
    store.create_topic("shown", SCHEMA, config={**SHOWN, "publish.formats": first, "segment.batches": 1})
    for name in ("bob", "carl", "dora", "ann-secret"):
        with store.producer(inline_max_bytes=0) as producer:
            producer.send("shown", [{"customer": name, "n": 1}]).result()
        world.clock.advance_ms(10)
        publish(world.open(), "shown")
        store.alter_topic("shown", config={"publish.formats": "delta,iceberg"})
    assert store.admin().erase("shown", where=ANN) == {tp("shown", 0): 1}
    quiet = 0
    while quiet < 2:
        world.clock.advance_ms(1000)
        publish(world.open(), "shown")
        opened = world.open().runtime
        report = vacuum(opened, reading.read_session(opened), dry_run=False, now=True)
        quiet = 0 if report.deleted else quiet + 1
    assert remains(world, "shown", ANN) == {}
    assert found_by_bytes(world, "ann-secret") == set()


def send_ann(producer: Any, transactions: int) -> None:
    for number in range(transactions):
        with producer.transaction():
            producer.send("visits", [{"customer": "ann-secret", "n": number}], partition=1)


def settle(world: World, published: str | None = None) -> None:
    """Let the delays of vacuum pass, with publications between."""
    for _ in range(3):
        if published is not None:
            publish(world.open(), published)
        world.clock.advance_ms(2 * DAY_MS)
        opened = world.open().runtime
        assert not vacuum(opened, reading.read_session(opened), dry_run=False).failed


def remains(world: World, topic: str, where: str) -> dict[str, int]:
    found = find_remains(reading.read_session(world.open().runtime), topic, where)
    return {each.path: each.rows for each in found}


def found_by_bytes(world: World, text: str) -> set[str]:
    """Return the objects whose bytes have the text when they are decoded."""
    memory = world.memory
    stored = {path: memory.get(path) for path in _below(memory, "")}
    return {path for path, data in stored.items() if data is not None and text.encode() in decoded(path, data)}


def _below(memory: ObjectStore, folder: str) -> Iterator[str]:
    for name in memory.list(folder):
        if name.endswith("/"):
            yield from _below(memory, folder + name)
        else:
            yield folder + name
