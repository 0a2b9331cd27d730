"""Opening a store, its topics, and refused calls: the messages that a user sees."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pandas as pd
import pyarrow as pa
import pytest

import txlog
from lab.testing.damage import overwrite
from tests.client.world import ORDERS, World, orders, rows_of, tp
from txlog.client import reading
from txlog.client.session.retry import MAX_REQUEST_RETRIES
from txlog.core import envelope
from txlog.core.records import StoreConstants, StoreDescriptor
from txlog.errors import (
    ClockSkewError,
    CorruptRecordError,
    IllegalStateError,
    InvalidConfigurationError,
    InvalidPartitionsError,
    InvalidRequestError,
    InvalidTopicError,
    InvalidTxnTimeoutError,
    MissingObjectError,
    NotAStoreError,
    OutcomeUnknownError,
    SchemaMismatchError,
    StorageError,
    TopicExistsError,
    UnknownOptionError,
    UnknownTopicOrPartitionError,
    UnsupportedStoreError,
)
from txlog.maintenance.maintain import Maintainer, MaintainPolicy
from txlog.protocol.put import MAX_DAMAGED_READS
from txlog.storage import parquet_writer
from txlog.storage.local import LocalObjectStore
from txlog.storage.memory import MemoryObjectStore
from txlog.storage.object_store import ObjectStore
from txlog.testing.clock import ManualClock
from txlog.testing.failing_store import FailingStore, Fault

# -- opening ----------------------------------------------------------------------------------------------------------


def test_package_offers_the_calls():
    assert txlog.open is not None
    assert {"Store", "Producer", "Consumer", "Admin"} <= set(dir(txlog))
    assert txlog.client.TopicPartition("a", 1) == tp("a", 1)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = txlog.client.nothing


def test_empty_location_becomes_a_store_with_its_first_topic(tmp_path):
    root = tmp_path / "log"
    store = txlog.open(str(root))
    # A typing error in the URL must not look like a store without topics.
    with pytest.raises(NotAStoreError, match="check the URL, or create a topic first"):
        store.topics()
    assert not root.exists()
    with store.producer() as producer, pytest.raises(UnknownTopicOrPartitionError):
        producer.send("orders", orders(1))
    with pytest.raises(NotAStoreError):
        store.producer("loader").init_transactions()
    assert not root.exists()
    store.create_topic("orders", ORDERS)
    assert (root / "txlog.json").exists()
    assert [topic.name for topic in txlog.open(str(root)).topics()] == ["orders"]
    store.close()


def test_store_is_named_by_a_path_object_or_below_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    with txlog.open(tmp_path / "log") as store:
        store.create_topic("orders", ORDERS)
        # Another process, for example a Spark task, opens this URL.
        assert store.runtime.url == f"file://{tmp_path}/log"
    with txlog.open("~/log") as store:
        assert [topic.name for topic in store.topics()] == ["orders"]


def test_nothing_is_written_to_an_empty_location_without_a_topic(world):
    store = world.open()
    empty = "memory:// is empty, there is no store yet"
    with pytest.raises(UnknownTopicOrPartitionError, match=f"topic 'orders' does not exist: {empty}. Check the URL"):
        store.consumer("orders")
    with pytest.raises(UnknownTopicOrPartitionError, match=empty):
        store.topic("orders")
    with pytest.raises(UnknownTopicOrPartitionError, match=empty):
        store.delete_topic("orders")
    with store.producer() as producer, pytest.raises(UnknownTopicOrPartitionError, match=empty):
        producer.send("orders", orders(1))
    with pytest.raises(NotAStoreError, match=f"{empty}; check the URL, or create a topic first"):
        store.producer("loader").init_transactions()
    admin = store.admin()
    with pytest.raises(txlog.TransactionalIdNotFoundError, match=empty):
        admin.describe_transaction("x")
    with pytest.raises(txlog.GroupIdNotFoundError, match=empty):
        admin.describe_group("x")
    with pytest.raises(NotAStoreError, match=empty):
        admin.delete_offsets("g", [tp("orders", 0)])
    for call in (
        lambda: admin.fence("x"),
        store.topics,
        admin.list_transactions,
        admin.list_groups,
        admin.find_hanging,
    ):
        with pytest.raises(NotAStoreError, match=empty):
            call()
    assert world.memory.list("") == []


def test_directory_that_is_no_store(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(NotAStoreError, match=r"holds 'notes.txt', and no txlog.json: it is not"):
        txlog.open(str(tmp_path))
    assert sorted(os.listdir(tmp_path)) == ["notes.txt"]


def put_descriptor(world: World, **changes: Any) -> None:
    descriptor = StoreDescriptor(store_id="5" * 32, created_at=1, constants=StoreConstants())
    overwrite(world.memory, "txlog.json", envelope.encode(msgspec.structs.replace(descriptor, **changes)))


def test_newer_format_is_refused(world):
    put_descriptor(world, version=2)
    with pytest.raises(UnsupportedStoreError, match=r"txlog.json: format version 2.*upgrade pyspark-txlog"):
        world.open()


def test_unknown_feature_is_refused(world):
    put_descriptor(world, features=("txn-v2", "warp-drive"))
    with pytest.raises(
        UnsupportedStoreError, match=r"memory://: the store needs warp-drive, and this txlog knows .*upgrade"
    ):
        world.open()


def test_damaged_descriptor_is_named(world, store):
    data = bytearray(world.memory.get("txlog.json"))
    data[20] ^= 4
    overwrite(world.memory, "txlog.json", bytes(data))
    with pytest.raises(CorruptRecordError, match=r"txlog.json: checksum"):
        world.open()


def test_backend_that_overwrites_is_refused():
    class Overwriting(MemoryObjectStore):
        def put_if_absent(self, path, data):
            self.delete(path)
            return super().put_if_absent(path, data)

    store = txlog.open("memory://overwriting", object_store=Overwriting("overwriting"))
    with pytest.raises(
        UnsupportedStoreError, match="memory://overwriting: the backend ignores the condition of a create"
    ):
        store.create_topic("orders", ORDERS)


def test_wrong_clock_is_refused(tmp_path):
    store = txlog.open("x", object_store=LocalObjectStore(str(tmp_path / "skewed")), clock=ManualClock(now_ms=10**12))
    with pytest.raises(ClockSkewError, match=r"this machine's clock is .* s behind the store's"):
        store.create_topic("orders", ORDERS)
    assert not (tmp_path / "skewed" / "txlog.json").exists()


@pytest.mark.parametrize(
    "url",
    [
        "s3://AKIAKEY:hunter2@bucket/log",
        "http://user:hunter2@host/log",
        "memory://hunter2:hunter2@x",
        "ftp://me:hunter2@host/x",
    ],
)
def test_credentials_never_appear(url):
    options = {"key": "AKIAKEY", "secret": "hunter2", "password": "hunter2"}
    with pytest.raises((InvalidRequestError, UnsupportedStoreError)) as caught:
        txlog.open(url, storage_options=options).create_topic("t")
    texts = [str(caught.value), *getattr(caught.value, "__notes__", [])]
    cause = caught.value.__cause__ or caught.value.__context__
    texts += [str(cause)] if cause is not None else []
    assert not any("hunter2" in text for text in texts)


def test_representations_hold_no_credentials():
    memory = MemoryObjectStore("safe")
    store = txlog.open("s3://AKIA:hunter2@bucket/log", storage_options={"secret": "hunter2"}, object_store=memory)
    store.create_topic("orders", ORDERS)
    plan = reading.plan(store.runtime, "orders", 0, 0, None)
    (task,) = reading.tasks(store.runtime, [plan])
    for thing in (store, store.runtime, store.producer(), store.consumer("orders"), task):
        assert "hunter2" not in repr(thing)
    assert (task.url, task.storage_options) == ("s3://AKIA:hunter2@bucket/log", {"secret": "hunter2"})
    store.close()


def test_unknown_storage_option(tmp_path):
    with pytest.raises(UnknownOptionError, match=r"storage option 'fsink' is unknown.*Did you mean 'fsync'\?"):
        txlog.open(str(tmp_path), storage_options={"fsink": True})


def test_closing_a_store_closes_what_it_made(world):
    store = world.open()
    store.create_topic("orders", ORDERS)
    producer = store.producer("loader")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("orders", orders(1)).result()
    consumer = store.consumer("orders", group_id="g")
    with store:
        pass
    store.close()
    for call in (store.topics, store.producer, store.consumer, store.admin):
        with pytest.raises(IllegalStateError, match="is closed; open it again"):
            call()
    with pytest.raises(IllegalStateError):
        producer.begin_transaction()
    with pytest.raises(IllegalStateError):
        consumer.poll(0)
    assert world.read() == []
    assert world.open().admin().describe_transaction("loader").state == "COMPLETE_ABORT"


# -- topics -----------------------------------------------------------------------------------------------------------


def test_topic_is_described(world, store):
    made = store.create_topic("t", ORDERS, partitions=3, config={"segment.batches": 7, "key.columns": "id"})
    assert made == world.open().topic("t")
    assert (made.name, made.partitions, made.schema_id, made.version) == ("t", 3, 0, 0)
    assert made.config == {"key.columns": "id", "segment.batches": "7"}
    assert made.schema.remove_metadata().names == ["id", "name"]
    assert [field.id for field in made.fields] == [1, 2]
    assert [topic.name for topic in store.topics()] == ["orders", "t"]


@pytest.mark.parametrize(
    "schema", [ORDERS, list(ORDERS), [("id", pa.int64()), ("name", pa.string())]], ids=["schema", "fields", "pairs"]
)
def test_what_can_be_a_schema(store, schema):
    assert store.create_topic("t", schema).schema.names == ["id", "name"]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"name": "a b"}, InvalidTopicError, r"topic name 'a b' is not valid: expected 1 to 249 of the characters"),
        ({"name": "__mine"}, InvalidTopicError, "'__mine' is reserved"),
        ({"name": ".."}, InvalidTopicError, "not valid"),
        ({"name": "orders"}, TopicExistsError, "topic 'orders' exists already, with 4 partitions"),
        ({"partitions": 0}, InvalidPartitionsError, "0 is not a number of partitions"),
        ({"config": {"retention.msec": 1}}, InvalidConfigurationError, r"'retention.msec'.*Did you mean 'retention.ms'\?"),
        ({"config": {"partitionBy": "id"}}, InvalidConfigurationError, r"'partitionBy'\. Did you mean 'key\.columns'\?"),
        ({"config": {"primary_key": "id"}}, InvalidConfigurationError, r"'primary_key'\. Did you mean 'key\.columns'\?"),
        ({"config": {"key": "name"}}, InvalidConfigurationError, r"'key'\. Did you mean 'key\.columns'\?"),
        ({"config": {"segment.batches": 0}}, InvalidConfigurationError, "segment.batches = 0: expected an integer of at least 1"),
        ({"config": {"key.columns": "nam"}}, InvalidConfigurationError, r"key.columns names 'nam'.*Did you mean 'name'\?"),
        ({"config": {"linger.ms": 1}}, InvalidConfigurationError, "it is a setting of the producer, not of the topic"),
        ({"schema": pa.schema([("n", pa.uint8())])}, SchemaMismatchError, "topic 't': column 'n': Arrow's uint8 .* use int16"),
        ({"schema": pa.schema([("_offset", pa.int64())])}, SchemaMismatchError, "'_offset'.*belong to txlog"),
        ({"schema": pa.schema([("a", pa.int8()), ("A", pa.int8())])}, SchemaMismatchError, "differ in case only"),
        ({"schema": pa.schema([])}, SchemaMismatchError, "a topic needs at least one column"),
        ({"schema": 7}, SchemaMismatchError, "topic 't': int is not a schema: expected a pyarrow.Schema"),
        ({"schema": {"id": "int64", "n": "bigint"}}, SchemaMismatchError, r"column 'n': 'bigint' is not a type\. hint: name one of int64"),
        ({"schema": {"n": "decimal(10,2)"}}, SchemaMismatchError, r"'decimal\(10,2\)' is not .* pyarrow\.decimal128\(10, 2\)$"),
        ({"schema": {"id": int}}, SchemaMismatchError, r"column 'id': <class 'int'> is not a type\. hint: name one of int64"),
    ],
)  # fmt: skip
def test_topic_that_cannot_be(world, store, arguments, error, message):
    before = world.memory.list("")
    with pytest.raises(error, match=message):
        store.create_topic(**{"name": "t", "schema": ORDERS, **arguments})
    assert world.memory.list("") == before


def test_topic_that_exists_is_left_as_it_is(world, store):
    made = store.create_topic("t", ORDERS, partitions=3, config={"segment.batches": 7}, if_not_exists=True)
    before = world.memory.list("t/")
    asked = pa.schema([ORDERS.field("name"), ORDERS.field("id")])
    for again in (
        store.create_topic("t", ORDERS, partitions=3, config={"segment.batches": 7}, if_not_exists=True),
        store.create_topic("t", asked, if_not_exists=True),
        world.open().create_topic("t", ORDERS, partitions=9, config={"segment.batches": 2}, if_not_exists=True),
    ):
        assert again == made
    assert world.memory.list("t/") == before
    with pytest.raises(TopicExistsError):
        store.create_topic("t", ORDERS, partitions=3)
    grown = store.alter_topic("t", add_columns=pa.schema([("price", pa.float64())]))
    assert store.create_topic("t", ORDERS, if_not_exists=True) == grown
    store.delete_topic("t")
    assert store.create_topic("t", ORDERS, partitions=3, if_not_exists=True).topic_id != made.topic_id


def test_topic_without_a_schema_is_asked_for_again(store):
    made = store.create_topic("t", if_not_exists=True)
    assert store.create_topic("t", if_not_exists=True) == made


@pytest.mark.parametrize(
    ("schema", "what"),
    [
        (pa.schema([*ORDERS, ("price", pa.float64())]), "it has no column 'price'"),
        (pa.schema([ORDERS.field("id"), pa.field("name", pa.binary())]), "its column 'name' is string, and binary was asked for"),
        (pa.schema([pa.field("id", pa.int64()), ORDERS.field("name")]), "its column 'id' is int64 not null, and int64 was asked for"),
        (pa.schema([ORDERS.field("name")]), r"its column 'id' \(int64 not null\) was not asked for, and takes no null"),
        (None, "it has no column 'key'"),
    ],
)  # fmt: skip
def test_topic_that_exists_with_other_columns_is_an_error(store, schema, what):
    before = store.topic("orders")
    with pytest.raises(
        SchemaMismatchError,
        match=f"topic 'orders' exists already, with another schema: {what}. Its columns are id int64 not "
        "null, name string. hint: ask",
    ):
        store.create_topic("orders", schema, if_not_exists=True)
    assert store.topic("orders") == before


def test_topic_is_made_once_by_many_at_a_time(world):
    stores = [world.open() for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda store: store.create_topic("t", ORDERS, 2, if_not_exists=True), stores))
    assert len({topic.topic_id for topic in made}) == 1
    assert [topic.version for topic in made] == [0] * 8


def test_topic_is_altered(world, store):
    with store.producer() as producer:
        producer.send("orders", orders(1), partition=0)
    store.alter_topic("orders", config={"retention.ms": 5, "segment.batches": 2}, partitions=5)
    described = store.alter_topic(
        "orders", remove_config=["retention.ms"], add_columns=pa.schema([("price", pa.float64())])
    )
    assert (described.partitions, described.config, described.version) == (5, {"segment.batches": "2"}, 2)
    assert described.schema_id == 2
    with store.producer() as producer:
        producer.send("orders", [{"id": 2, "price": 1.0}], partition=0)
    assert world.read(column="price") == [None, 1.0]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"partitions": 3}, InvalidPartitionsError, "'orders' has 4 partitions; 3 would be fewer"),
        ({"config": {"retention.mss": 1}}, InvalidConfigurationError, "Did you mean 'retention.ms'"),
        ({"add_columns": pa.schema([pa.field("p", pa.int8(), nullable=False)])}, SchemaMismatchError, "'p' must be nullable"),
        ({"add_columns": pa.schema([("id", pa.string())])}, SchemaMismatchError, "column 'id': expected int64 not null, found string"),
        ({"name": "order"}, UnknownTopicOrPartitionError, r"'order' does not exist. Did you mean 'orders'\?"),
    ],
)  # fmt: skip
def test_alteration_that_cannot_be(store, arguments, error, message):
    before = store.topic("orders")
    with pytest.raises(error, match=message):
        store.alter_topic(**{"name": "orders", **arguments})
    assert store.topic("orders") == before


def test_deleted_topic_is_gone_and_its_offsets_are_not_given_again(world, store):
    with store.producer() as producer:
        producer.send("orders", orders(1, 2), partition=0)
    store.delete_topic("orders")
    with pytest.raises(UnknownTopicOrPartitionError, match="'orders' was deleted"):
        store.topic("orders")
    with pytest.raises(UnknownTopicOrPartitionError):
        store.delete_topic("orders")
    assert store.topics() == ()
    store.create_topic("orders", ORDERS, partitions=4)
    with store.producer() as producer:
        assert producer.send("orders", orders(3), partition=0).result().base_offset == 3
    assert world.read() == [3]


class Interrupted:
    """A store whose matching requests fail so often that one try of a call fails; then `then` runs.

    With `landed`, the requests are reads that return damaged objects, after writes that were applied without a reply.
    """

    def __init__(self, inner: ObjectStore, pattern: str, then: Callable[[], object], *, landed: bool = False) -> None:
        lost = Fault(action="lose_reply", moment="after", match="^put_if_absent .*/topic", times=MAX_DAMAGED_READS)
        self._inner = FailingStore(inner, *((lost,) if landed else ()))
        self._pattern, self._then, self._landed = pattern, then, landed
        self.left = MAX_DAMAGED_READS if landed else 1 + MAX_REQUEST_RETRIES

    def __getattr__(self, verb: str) -> Any:
        found = getattr(self._inner, verb)

        def request(path: str, *args: Any) -> Any:
            if not self.left or re.search(self._pattern, f"{verb} {path}") is None:
                return found(path, *args)
            self.left -= 1
            if not self.left:
                self._then()
            if not self._landed:
                raise StorageError(f"{verb} {path!r} fails")
            return b"damaged"

        return request if callable(found) else found


def made_anew_by_another(world):
    """Delete `orders` in another process if it exists, and create it again with a row. Return the topic."""
    other = world.open()
    with contextlib.suppress(UnknownTopicOrPartitionError):
        other.delete_topic("orders")
    made = other.create_topic("orders", ORDERS, 4)
    with other.producer() as producer:
        producer.send("orders", orders(7), partition=0).result()
    return made


@pytest.mark.parametrize("twice", [False, True])
def test_a_deletion_that_is_tried_again_spares_the_topic_that_was_made_anew_meanwhile(world, store, twice):
    """All tries of one call are about the same topic (W50)."""
    made = []

    def others() -> None:
        made_anew_by_another(world)
        # The topic that exists now may also be a third one, or have changed.
        made.append(made_anew_by_another(world) if twice else world.open().alter_topic("orders", partitions=5))

    slow = Interrupted(world.memory, "put_if_absent orders/0/", others)
    world.open(slow).delete_topic("orders")
    assert [world.open().topic("orders")] == made
    assert world.read() == [7]


def test_a_deletion_that_loses_the_race_spares_the_topic_that_was_made_anew(world, store):
    made = []
    slow = Interrupted(world.memory, "put_if_absent orders/topic", lambda: made.append(made_anew_by_another(world)))
    with pytest.raises(UnknownTopicOrPartitionError, match="'orders' was deleted"):
        world.open(slow).delete_topic("orders")
    assert not slow.left
    assert [world.open().topic("orders")] == made
    assert world.read() == [7]


@pytest.mark.parametrize("version", [1, 2])
def test_a_deletion_in_doubt_is_finished_by_its_next_try_and_no_other_is(world, store, version):
    slow = Interrupted(
        world.memory, f"get orders/topic.*{version}.json", lambda: made_anew_by_another(world), landed=True
    )
    # The version in doubt is this call's own, so the answer is that of a deletion.
    world.open(slow).delete_topic("orders")
    assert not slow.left
    assert world.open().topic("orders").version == 3
    assert world.read() == [7]


@pytest.mark.parametrize("landed", [False, True])
def test_an_alteration_that_is_tried_again_spares_the_topic_that_was_made_anew_meanwhile(world, store, landed):
    pattern = "get orders/topic.*1.json" if landed else "put_if_absent orders/topic"
    slow = Interrupted(world.memory, pattern, lambda: made_anew_by_another(world), landed=landed)
    refused = OutcomeUnknownError if landed else UnknownTopicOrPartitionError
    with pytest.raises(refused, match="was deleted and created again \\(version"):
        world.open(slow).alter_topic("orders", config={"retention.ms": 1000})
    assert not slow.left
    assert world.open().topic("orders").config == {}


def test_a_topic_that_was_made_and_deleted_is_not_made_again_by_the_same_call(world, store):
    slow = Interrupted(world.memory, "get new/topic", lambda: world.open().delete_topic("new"), landed=True)
    with pytest.raises(OutcomeUnknownError, match=r"'new' was deleted \(version 2"):
        world.open(slow).create_topic("new", ORDERS)
    with pytest.raises(UnknownTopicOrPartitionError):
        store.topic("new")


def test_a_topic_that_was_made_and_altered_is_known_by_the_same_call(world, store):
    slow = Interrupted(
        world.memory, "get new/topic", lambda: world.open().alter_topic("new", partitions=2), landed=True
    )
    made = world.open(slow).create_topic("new", ORDERS, 1)
    assert (made.version, made.partitions) == (1, 2)


def test_a_look_of_a_commit_leaves_what_another_call_has_read_of_its_topic_meanwhile(world, store):
    class Slow:
        """A store that answers the look after `orders` was altered."""

        alter: Callable[[], object] | None = None

        def __getattr__(self, verb: str) -> Any:
            found = getattr(world.memory, verb)

            def request(path: str, *args: Any) -> Any:
                answer = found(path, *args)
                if verb == "get" and path.startswith("orders/topic") and self.alter is not None:
                    alter, self.alter = self.alter, None
                    alter()
                return answer

            return request if callable(found) else found

    slow = Slow()
    opened = world.open(slow)
    with opened.producer("loader") as producer:
        producer.begin_transaction()
        producer.send("orders", orders(1), partition=0)
        slow.alter = lambda: opened.alter_topic("orders", partitions=5)
        producer.commit_transaction()
    assert opened.runtime.known_topic("orders").number == 1
    assert world.read() == [1]


def test_deleting_a_topic_leaves_no_transaction_hanging(world, store):
    with store.producer("loader") as producer:
        producer.begin_transaction()
        producer.send("orders", orders(1), partition=0).result()
        world.open().delete_topic("orders")
        producer.commit_transaction()
    store.create_topic("orders", ORDERS, partitions=4)
    start, lso, leo = world.ends()
    assert start <= lso == leo
    assert world.read() == []


def test_a_topic_made_anew_with_other_columns_is_written_sealed_and_merged(world):
    store = world.open()
    store.create_topic("t", ORDERS, config={"segment.batches": 4})
    with store.producer() as producer:
        producer.send("t", orders(1, 2)).result()
    store.delete_topic("t")
    other = pa.schema((pa.field("code", pa.string(), nullable=False), pa.field("count", pa.int32(), nullable=False)))
    store = world.open()
    store.create_topic("t", other, config={"segment.batches": 4})
    for number in range(8):
        # Inline rows of both topics are never in the same segment, because no file could hold them.
        with store.producer(f"loader-{number % 2}") as producer, producer.transaction():
            producer.send("t", [{"code": f"c{number}", "count": number}])
    report = Maintainer(store.runtime, MaintainPolicy(merge_min_segments=2)).run()
    assert not report.failures
    assert any(step.done for step in report.steps if step.step == "merge")
    assert world.read("t", column="code") == [f"c{number}" for number in range(8)]


def test_a_commit_goes_on_where_a_segment_cannot_be_sealed(world, monkeypatch):
    store = world.open()
    store.create_topic("t", ORDERS, partitions=2, config={"segment.batches": 2})

    def damaged(*_, **__):
        raise CorruptRecordError("a batch of another writer cannot be read")

    monkeypatch.setattr(parquet_writer, "write_inline_rows", damaged)
    with store.producer("loader") as producer:
        for number in range(4):
            with producer.transaction():
                producer.send("t", orders(number), partition=0)
                producer.send("t", orders(number), partition=1)
    assert world.read("t") == [0, 1, 2, 3] * 2


# -- settings ---------------------------------------------------------------------------------------------------------


def test_unknown_setting_names_the_nearest(world, store):
    with pytest.raises(InvalidConfigurationError, match=r"'linger.msec'. Did you mean 'linger.ms'\?"):
        store.producer(linger_msec=1)
    with pytest.raises(InvalidConfigurationError, match=r"'auto.offset.rest'. Did you mean 'auto.offset.reset'\?"):
        store.consumer("orders", config={"auto.offset.rest": "latest"})
    with pytest.raises(InvalidConfigurationError, match=r"'isolation.levl'. Did you mean 'isolation.level'\?"):
        store.consumer("orders", config={"isolation.levl": "x"})
    with pytest.raises(InvalidConfigurationError, match=r"'isolation.levl'. Did you mean 'isolation.level'\?"):
        world.open(**{"isolation.levl": "x"})  # a store is opened with settings of all that is made from it
    with pytest.raises(InvalidConfigurationError, match=r"bootstrap.servers'.*there are no servers"):
        store.producer(bootstrap_servers="localhost:9092")
    with pytest.raises(InvalidConfigurationError, match=r"linger.ms is given twice: as linger_ms= and in config"):
        store.producer(config={"linger.ms": 1}, linger_ms=2)
    with pytest.raises(InvalidConfigurationError, match=r"linger.ms = 'soon': expected an integer of at least 0"):
        world.open(**{"linger.ms": "soon"})


def test_settings_layers(tmp_path, monkeypatch):
    file = tmp_path / "txlog.toml"
    file.write_text(
        '[consumer]\n"max.poll.records" = 11\n"auto.offset.reset" = "earliest"\n[topic]\nsegment.batches = 2\n'
    )
    monkeypatch.setenv("TXLOG_CONFIG", str(file))
    memory = MemoryObjectStore()

    with txlog.open("memory://", object_store=memory) as store:
        store.create_topic("orders", ORDERS)
        with store.producer() as producer:
            producer.send("orders", orders(*range(100)))

    def polled(config=None, **call):
        store = txlog.open("memory://", config=config, object_store=memory)
        batch = store.consumer("orders", **call).poll(0)
        store.close()
        assert batch is not None
        return batch.num_rows

    assert polled() == 11
    assert polled({"max.poll.records": 22}) == 22
    assert polled({"max.poll.records": 22}, max_poll_records=33) == 33
    other = tmp_path / "other.toml"
    other.write_text('[consumer]\n"max.poll.records" = 44\n"auto.offset.reset" = "earliest"\n')
    store = txlog.open("memory://", config_file=other, object_store=memory)
    batch = store.consumer("orders").poll(0)
    assert batch is not None
    assert batch.num_rows == 44
    store.close()


def test_topic_settings_lie_between_client_and_file(tmp_path):
    file = tmp_path / "txlog.toml"
    file.write_text("[topic]\nsegment.batches = 2\n")
    world = World()

    def sealed(name, config=None, **client):
        store = txlog.open(
            "memory://",
            config={"linger.ms": 0, **client},
            config_file=file,
            object_store=world.memory,
            clock=world.clock,
        )
        store.create_topic(name, ORDERS, config=config)
        with store.producer() as producer:
            for number in range(7):
                producer.send(name, orders(number)).result()
        described = store.admin().describe_partition(name, 0)
        store.close()
        return [segment.batches for segment in described.segments]

    assert sealed("a") == [2, 2, 2]
    assert sealed("b", {"segment.batches": 3}) == [3, 3]
    assert sealed("c", {"segment.batches": 3}, **{"segment.batches": 5}) == [5]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[producer]\nlinger.msx = 1\n", r"txlog.toml: unknown producer configuration key 'linger.msx'. Did you mean"),
        ("[produce]\n", r"txlog.toml: unknown configuration table \[produce\]"),
        ("not toml", r"txlog.toml: not a TOML file.*at line 1"),
        ("[producer]\ntransaction.timeout.ms = 0\n", r"txlog.toml: transaction.timeout.ms = 0: expected"),
        (
            "[producer]\ntransaction.timeout.ms = 900001\n",
            r"beyond transaction.max.timeout.ms = 900000.*settings of .*txlog.toml",
        ),
    ],
)
def test_configuration_file_that_cannot_be(tmp_path, text, message):
    file = tmp_path / "txlog.toml"
    file.write_text(text)
    with pytest.raises((InvalidConfigurationError, InvalidTxnTimeoutError), match=message):
        txlog.open("memory://bad-files", config_file=file).producer("loader")


def test_configuration_file_that_is_missing(tmp_path, monkeypatch):
    with pytest.raises(
        InvalidConfigurationError, match=r"config_file names '.*nowhere.toml', which cannot be read: No such"
    ):
        txlog.open("memory://", config_file=tmp_path / "nowhere.toml")
    monkeypatch.setenv("TXLOG_CONFIG", str(tmp_path / "gone.toml"))
    with pytest.raises(InvalidConfigurationError, match=r"TXLOG_CONFIG names '.*gone.toml', which cannot be read"):
        txlog.open("memory://")


def test_constants_are_fixed_when_the_store_is_made(world):
    small = {"transaction.state.log.num.partitions": 3, "offsets.topic.num.partitions": 2, "delete.grace.ms": 60_000}
    world.open(**small).create_topic("orders", ORDERS)
    constants = world.open(**{"transaction.state.log.num.partitions": 9}).runtime.constants
    assert (constants.transaction_state_partitions, constants.consumer_offsets_partitions) == (3, 2)
    assert constants.delete_grace_ms == 60_000
    with world.open().producer("loader") as producer, producer.transaction():
        producer.send("orders", orders(1))
    assert all(int(name[:-1]) < 3 for name in world.memory.list("__transaction_state/"))


# -- processes --------------------------------------------------------------------------------------------------------


def _in_child(root, queue, producer):
    answers: list[object] = []
    for call in (
        lambda: producer.send("orders", orders(1)),
        producer.begin_transaction,
        producer.flush,
        producer.__enter__,
    ):
        try:
            call()
            answers.append("worked")
        except IllegalStateError as error:
            answers.append(str(error))
    producer.close()
    with txlog.open(root) as store, store.producer() as own:
        answers.append(own.send("orders", orders(2)).result().records)
    queue.put(answers)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded, use of fork:DeprecationWarning")
def test_forked_child_refuses_the_parents_producer(tmp_path):
    fork = multiprocessing.get_context("fork")
    root = str(tmp_path / "log")
    with txlog.open(root) as store:
        store.create_topic("orders", ORDERS)
        with store.producer("loader") as producer:
            producer.begin_transaction()
            producer.send("orders", orders(0)).result()
            queue = fork.Queue()
            child = fork.Process(target=_in_child, args=(root, queue, producer))
            child.start()
            answers = queue.get(timeout=60)
            child.join(60)
            producer.commit_transaction()
        assert child.exitcode == 0
        assert answers[-1] == 1
        for answer in answers[:-1]:
            assert f"was made in process {os.getpid()}, and this is process {child.pid}, forked from it" in answer
            assert "hint: make a new producer here" in answer
        rows = rows_of(store.consumer("orders", auto_offset_reset="earliest"))
        assert sorted(row["id"] for row in rows) == [0, 2]


def test_names_that_a_file_system_may_take_for_one_are_refused_there(tmp_path):
    with txlog.open(tmp_path / "log") as store:
        store.create_topic("ok")
        with pytest.raises(InvalidTopicError, match=r"'OK' differs from 'ok'.*in case only"):
            store.create_topic("OK")
        with pytest.raises(TopicExistsError):
            store.create_topic("ok")
        store.delete_topic("ok")
        assert store.create_topic("ok").version == 3
    with txlog.open("memory://cases") as store:
        store.create_topic("ok")
        store.create_topic("OK")


def test_rows_of_a_topic_whose_file_was_deleted_do_not_come_back(tmp_path):
    with txlog.open(tmp_path / "log") as store:
        store.create_topic("orders")
        with store.producer() as producer:
            producer.send("orders", [{"value": b"old"}]).result()
    (tmp_path / "log" / "orders" / "topic.00000000000000000000.json").unlink()
    with txlog.open(tmp_path / "log") as store:
        for again in (False, True):
            with pytest.raises(MissingObjectError, match="would show the old rows"):
                store.create_topic("orders", if_not_exists=again)


def test_a_file_of_rows_that_is_gone_says_who_names_it(tmp_path):
    with txlog.open(tmp_path / "log") as store:
        store.create_topic("orders")
        with store.producer() as producer:
            producer.send("orders", [{"value": b"x" * 1_000_000}] * 3, partition=0).result()
        (file,) = (tmp_path / "log" / "orders" / "0" / "rows").rglob("*.parquet")
        file.unlink()
        named = rf"{file.name}: this file, with the rows of orders-0 at offsets 0 to 2, is missing .*txlog fsck"
        with (
            store.consumer("orders", auto_offset_reset="earliest") as consumer,
            pytest.raises(MissingObjectError, match=named),
        ):
            list(consumer.iterate(0))


def test_a_frame_gives_a_topic_its_columns(store):
    frame = pd.DataFrame({"id": [1], "at": pd.to_datetime(["2026-11-24"]), "name": pd.Categorical(["x"])})
    made = store.create_topic("frame", frame)
    assert [(each.name, each.type) for each in made.fields] == [
        ("id", "int64"),
        ("at", "timestamp_ntz"),
        ("name", "string"),
    ]
    with store.producer() as producer:
        producer.send("frame", frame).result()
    assert store.table("frame").to_arrow(["id", "name"]).to_pylist() == [{"id": 1, "name": "x"}]
    assert store.create_topic("names", {"id": "int64"}).fields[0].type == "int64"


def test_a_column_of_mixed_values_is_named(store):
    frame = pd.DataFrame({"id": [1, 2, 3], "name": ["x", None, 7]})
    with store.producer() as producer:
        with pytest.raises(SchemaMismatchError, match="row 2: column 'name': expected string, found int 7"):
            producer.send("orders", frame)
        with pytest.raises(SchemaMismatchError, match=r"found list \[1, 2\]. hint: a dictionary is one row; for lists"):
            producer.send("orders", {"id": [1, 2]})


def test_a_renamed_column_is_asked_for_by_its_old_name(store):
    store.alter_topic("orders", rename_columns={"name": "title"})
    with pytest.raises(
        SchemaMismatchError, match=r"no column 'name', because 'name' was renamed to 'title'. Its"
    ) as met:
        store.create_topic("orders", ORDERS, if_not_exists=True)
    assert met.value.hint == "ask for these, add columns with alter_topic, or choose another name"
    with store.producer() as producer, pytest.raises(SchemaMismatchError, match="'name' was renamed to 'title'"):
        producer.send("orders", pa.table({"id": [1], "name": ["x"]}))
    with pytest.raises(
        SchemaMismatchError, match=r"has no column 'name'. 'name' was renamed to 'title'. The columns are id"
    ):
        store.table("orders").to_arrow(["name"])


@pytest.mark.parametrize("argument", ["drop_columns", "nullable_columns", "column_order"])
def test_a_text_is_not_a_list_of_columns(store, argument):
    with pytest.raises(
        SchemaMismatchError, match=rf"{argument} = 'name': expected a list of names. hint: .*=\['name'\]"
    ):
        store.alter_topic("orders", **{argument: "name"})


def test_a_topics_folder_is_not_a_store(tmp_path):
    with txlog.open(tmp_path / "s") as made:
        made.create_topic("sales")
    with pytest.raises(NotAStoreError, match=r"is a topic's folder inside of a store. hint: open the folder above it"):
        txlog.open(tmp_path / "s" / "sales")


@pytest.mark.parametrize("inner", ["consumer", "store"])
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_rows_that_an_error_left_unprocessed_are_not_committed(world, store, inner, error):
    with store.producer() as producer:
        producer.send("orders", orders(1, 2, 3), partition=0)

    def process() -> None:
        with world.open(auto_offset_reset="earliest") as opened, contextlib.ExitStack() as stack:
            consumer = opened.consumer("orders", group_id="g")
            if inner == "consumer":
                stack.enter_context(consumer)
            assert consumer.poll(0) is not None
            raise error

    with pytest.raises(error):
        process()
    with world.open(auto_offset_reset="earliest") as again, again.consumer("orders", group_id="g") as consumer:
        assert [row["id"] for row in rows_of(consumer)] == [1, 2, 3]
