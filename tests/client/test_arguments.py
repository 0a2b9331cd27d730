"""Does each public call answer a wrong argument in one sentence, before it does anything?

`tests/arguments.py` gives each kind of value to each argument.
"""

from __future__ import annotations

import contextlib
import dis
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast
from unittest import mock

import numpy
import pyarrow as pa
import pytest

import txlog
from tests.arguments import Arguments, parameters_of, public_calls, unchecked, wrong_answers
from tests.client.world import ORDERS, World, orders, rows_of, tp
from txlog.client.admin.admin import Admin
from txlog.client.consumer import Consumer
from txlog.client.producer import Producer
from txlog.client.producer.transaction_scope import TransactionScope
from txlog.client.session.runtime import Runtime
from txlog.client.staged import StagedTransaction
from txlog.client.store import Store
from txlog.client.tables.snapshot import Snapshot
from txlog.client.tables.table import Changes, TopicTable
from txlog.client.transactions.staged_files import StagedFiles
from txlog.errors import InvalidRequestError, SchemaMismatchError, TxlogError
from txlog.storage.memory import MemoryObjectStore
from txlog.testing.clock import ManualClock

T0 = tp("orders", 0)
CLASSES = (Store, Producer, Consumer, Admin, TopicTable, Snapshot)
CALLS: dict[str, Callable[..., object]] = {"txlog.open": txlog.open, **public_calls(CLASSES)}
WITHOUT = {
    Changes: "its calls have no arguments",
    StagedFiles: "for engines, which give it what txlog returned",
    StagedTransaction: "for engines, which give it what txlog returned",
    TransactionScope: "its calls have no arguments",
}
FOR_TESTS = {"txlog.open": ("clock", "ids", "object_store")}
"""Arguments for tests and fault injection: objects with methods, whatever their types are."""

NAMES = {"name": "orders"}
TOPIC = {"topic": "orders"}
PARTITION = {"topic": "orders", "partition": 0}
GROUP = {"group": "g"}
ID = {"transactional_id": "loader"}
GIVEN: Arguments = {
    "txlog.open": {"url": "memory://arguments"},
    "Store.create_topic": {"name": "new"},
    **{f"Store.{call}": NAMES for call in ("alter_topic", "delete_topic", "schema_history", "table", "topic")},
    "Store.snapshot": {"*": ("orders",)},
    "Producer.partitions_for": TOPIC,
    "Producer.send": {"topic": "orders", "data": [{"id": 7}]},
    "Producer.send_offsets_to_transaction": {"offsets": {T0: 1}, "group": "g"},
    **{f"Consumer.{call}": {"topics": "orders"} for call in ("assign_topics", "subscribe")},
    "Consumer.assign": {"partitions": [T0]},
    "Consumer.offsets_for_times": {"times": {T0: 0}},
    "Consumer.position": {"partition": T0},
    "Consumer.seek": {"partition": T0, "offset": 0},
    **{f"Admin.{call}": ID for call in ("abort_transaction", "describe_transaction", "expire_id", "fence")},
    **{f"Admin.{call}": PARTITION for call in ("delete_records", "describe_partition", "describe_producers")},
    **{f"Admin.{call}": GROUP for call in ("delete_group", "describe_group", "remove_members")},
    "Admin.list_offsets": {"topics": "orders"},
    "Admin.seal": TOPIC,
    "Admin.erase": {"topic": "orders", "where": "id = 7"},
    "Admin.cancel_erasure": {"erasure_id": "7" * 32},
    "Admin.plan_reset": {"group": "g", "spec": "earliest"},
    "Admin.reset_offsets": {"group": "g", "offsets": {T0: 1}},
    "Admin.delete_offsets": {"group": "g", "partitions": [T0]},
    "Snapshot.table": NAMES,
}
KEYWORDS = {
    "Store.producer": "linger_ms",
    "Store.consumer": "max_poll_records",
    "Store.admin": "retries",
    "TopicTable.to_arrow": "end",
    "TopicTable.to_pandas": "start",
    "TopicTable.to_polars": "isolation_level",
}
"""One of the further keywords that a call takes."""
WHERE_USED = {
    "object": "rows, schemas and settings",
    "Any": "what `scan` takes, and options of pandas",
    "Where | None": "a condition on columns",
    "Position": "offsets or times of a read",
    "datetime.datetime | None": "a time needs a zone",
    "TopicPartition": "a pair is one, too",
    "TopicPartition | None": "as above",
    "int | OffsetAndMetadata": "an offset has a range",
    "int | TxnVersion | None": "a version has a range, and a date gets a hint",
    "str | ConsumerGroupMetadata": "the name of a group has a length",
    "str | int | OffsetSpec": "a word, JSON or a time",
    "str | int | OffsetSpec | None": "as above",
    "Clock | None": "for tests",
    "IdGenerator | None": "for tests",
    "ObjectStore | None": "for tests",
}
"""Annotations that are checked where the argument is used, and why."""
IN_TRANSACTION = ("send", "send_offsets_to_transaction", "commit_transaction")
_filled: dict[str, tuple[dict[str, Any], int]] = {}


class Scene:
    """A store with rows of a keyed topic, a group with offsets, and an id with a transaction."""

    def __init__(self) -> None:
        if not _filled:
            world = World()
            with world.open() as store:
                store.create_topic("orders", ORDERS, 2, {"key.columns": "id"})
                with store.producer("loader") as producer, producer.transaction():
                    producer.send("orders", orders(*range(6)))
                store.admin().reset_offsets("g", {T0: 1})
            _filled["store"] = (dict(world.memory._objects), world.clock.now_ms())
        objects, now_ms = _filled["store"]
        clock = ManualClock(now_ms=now_ms)
        memory = MemoryObjectStore(clock=clock)
        memory._objects.update(objects)
        self.world = World.of(memory, clock)
        self.store = self.world.open()

    def call(self, name: str) -> Callable[..., object]:
        """Return the call of an object in the right state."""
        kind, _, method = name.partition(".")
        if kind == "txlog":
            return txlog.open
        found: Callable[..., object] = getattr(self._object(kind, method), method)
        return found

    def _object(self, kind: str, method: str) -> object:
        match kind:
            case "Store":
                return self.store
            case "Admin":
                return self.store.admin()
            case "TopicTable":
                return self.store.table("orders")
            case "Snapshot":
                return self.store.snapshot("orders")
            case "Consumer":
                consumer = self.store.consumer(group_id="h", auto_offset_reset="earliest", enable_auto_commit=False)
                consumer.assign([T0])
                return consumer
        producer = self.store.producer("loader")
        producer.init_transactions()
        if method in IN_TRANSACTION:
            producer.begin_transaction()
        return producer

    def use(self, result: Any) -> None:
        """Read what was planned, run a block, close a store."""
        if isinstance(result, Store):
            result.close()
        elif isinstance(result, Changes | pa.RecordBatchReader):
            result.read_all()
        elif isinstance(result, TransactionScope):
            with result:
                pass
        elif isinstance(result, Iterator):
            next(result, None)

    def close(self) -> None:
        """End the process."""
        with contextlib.suppress(TxlogError):
            self.store.close()
        self.world.close()


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A store at `x` is in a folder of the test."""
    monkeypatch.chdir(tmp_path)


def parameters() -> list[Any]:
    return [
        pytest.param(name, each, id=f"{name}-{each.name}")
        for name, call in sorted(CALLS.items())
        for each in parameters_of(call)
        if each.name not in FOR_TESTS.get(name, ())
    ]


@pytest.mark.parametrize(("name", "parameter"), parameters())
def test_a_wrong_argument_is_refused_in_one_sentence(name: str, parameter: Any) -> None:
    wrong = wrong_answers(Scene, name, parameter, GIVEN, KEYWORDS.get(name, ""))
    assert not wrong, "\n".join(wrong)


def test_the_classes_are_all_that_a_program_gets() -> None:
    from tests.lines.test_every_call import CLASSES as EVERY

    assert {*CLASSES, *WITHOUT} == set(EVERY)


def test_every_annotation_is_checked_at_the_call_or_where_it_is_used() -> None:
    assert unchecked(CALLS) == set(WHERE_USED)
    assert unchecked({"open": Runtime.open}) <= set(WHERE_USED)


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (
            lambda store: store.consumer("orders").poll(2.0),
            "poll(): timeout_ms = 2.0: expected a whole number of milliseconds, at least 0. "
            "hint: 2.0 seconds are timeout_ms=2000",
        ),
        (
            lambda store: store.consumer("orders").poll(timeout_ms=0.1),
            "poll(): timeout_ms = 0.1: expected a whole number of milliseconds, at least 0. "
            "hint: 0.1 seconds are timeout_ms=100",
        ),
        (
            lambda store: store.consumer("orders").poll(-1),
            "poll(): timeout_ms = -1: expected a whole number of milliseconds, at least 0",
        ),
        (
            lambda store: store.consumer("orders").iterate(1.5),
            "iterate(): timeout_ms = 1.5: expected a whole number of milliseconds, at least 0. "
            "hint: 1.5 seconds are timeout_ms=1500",
        ),
        (
            lambda store: store.consumer(["orders", "audit"]),
            "consumer(): topics = ['orders', 'audit']: expected text. "
            "hint: name them one by one, as in consumer('orders', 'audit')",
        ),
        (
            lambda store: store.admin().reset_offsets("g", "earliest"),
            "reset_offsets(): offsets = 'earliest': expected a dictionary with TopicPartitions as keys or what "
            "plan_reset(group, spec='earliest') returns",
        ),
        (
            lambda store: store.producer().send(pa.table({"id": [1]}), "orders"),
            "send(): topic = <Table>: expected text. hint: send(topic, rows)",
        ),
        (
            lambda store: store.alter_topic("orders", remove_config="retention.ms"),
            "alter_topic(): remove_config = 'retention.ms': expected a list of names. "
            "hint: remove_config=['retention.ms']",
        ),
        (
            lambda store: store.alter_topic("orders", set_types={"name": 5}),
            "topic 'orders': column 'name': 5 is not a type. hint: name one of int64, int32, int16, int8, float64, "
            "float32, bool, string, binary, date, timestamp, timestamp_ntz and decimal(p,s)",
        ),
        (
            lambda store: store.admin().delete_group("g", force="no"),
            "delete_group(): force = 'no': expected True or False",
        ),
        (
            lambda store: store.table("orders").scan(columns=[1]),
            "scan(): columns = [1]: expected a list of names",
        ),
    ],
)
def test_what_the_sentences_are(store: Store, act: Callable[[Any], object], message: str) -> None:
    with pytest.raises(InvalidRequestError) as met:
        act(store)
    assert str(met.value) == message


def test_what_hands_that_know_kafka_write_is_accepted(store: Store) -> None:
    with store.producer() as producer:
        producer.send("orders", orders(1, 2), key="id")
    for topics in ("orders", ["orders"], ("orders",), iter(["orders"])):
        with store.consumer(group_id="g", auto_offset_reset="earliest", enable_auto_commit=False) as consumer:
            consumer.subscribe(topics)
            assert len(rows_of(consumer)) == 2


def test_a_refused_send_does_not_end_the_transaction(store: Store) -> None:
    with store.producer("loader") as producer, producer.transaction() as txn:
        call: Any = producer.send
        for wrong in ((["orders"], orders(1)), ("orders", orders(1), 5)):
            with pytest.raises(InvalidRequestError, match=r"send\(\): (topic|key) = .*: expected"):
                call(*wrong)
        producer.send("orders", orders(1))
    assert txn.result is not None
    assert store.table("orders").count() == 1


def test_a_list_of_columns_is_an_error_of_the_columns(store: Store) -> None:
    table: Any = store.table("orders")
    for columns in ("id", [None], 5, (name for name in ["id"])):
        with pytest.raises(SchemaMismatchError, match=r"to_arrow\(\): columns = .*: expected a list of names"):
            table.to_arrow(columns)


def test_options_of_a_store_stay_secret() -> None:
    for options in ("secret=hunter2", {1: "hunter2"}):
        wrong: Any = options
        with pytest.raises(InvalidRequestError, match=r"open\(\): storage_options = <class '(str|dict)'>") as met:
            txlog.open("memory://arguments", storage_options=wrong)
        assert "hunter2" not in str(met.value)


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda store: store.topic(), "topic(): missing a required argument: 'name'; it takes name"),
        (
            lambda store: store.topic(nme="orders"),
            "topic(): missing a required argument: 'name'; it takes name",
        ),
        (
            lambda store: store.create_topic("new", num_partitions=3),
            "create_topic(): got an unexpected keyword argument 'num_partitions'; it takes name, schema, partitions, "
            "config, if_not_exists",
        ),
        (
            lambda store: store.consumer("orders").poll(timeout=1.0),
            "poll(): timeout= cannot be given; it takes timeout_ms. hint: consumer.poll(1000): a batch of at most "
            "max.poll.records rows, or None",
        ),
        (
            lambda store: store.consumer("orders").poll(1000, 10),
            "poll(): 10 cannot be given; it takes timeout_ms. hint: consumer.poll(1000): a batch of at most "
            "max.poll.records rows, or None",
        ),
        (
            lambda store: store.consumer("orders").commit(asynchronous=False),
            "commit(): got an unexpected keyword argument 'asynchronous'; it takes offsets. "
            "hint: consumer.commit() commits the positions",
        ),
        (
            lambda store: store.producer("loader").commit_transaction(30),
            "commit_transaction(): 30 cannot be given; it takes version. "
            "hint: producer.commit_transaction() without a time. version=7 numbers the transaction",
        ),
        (
            lambda store: store.producer().flush(10),
            "flush(): 10 cannot be given; it takes nothing. hint: producer.flush() without a time",
        ),
        (
            lambda store: store.producer().send("orders", value=b"1"),
            "send(): value= cannot be given; it takes topic, data, key, partition, on_delivery. hint: producer.send(",
        ),
        (
            lambda store: store.producer().send("orders"),
            "send(): missing a required argument: 'data'; it takes topic, data, key, partition, on_delivery",
        ),
        (
            lambda store: cast("Any", txlog.Producer)({"bootstrap.servers": "x"}),
            "Producer(): missing a required argument: 'call'; it takes runtime, call. "
            'hint: store = txlog.open("my-log"), then store.producer(config={...})',
        ),
        (
            lambda store: cast("Any", txlog.open)(bootstrap_servers="localhost:9092"),
            "open(): missing a required argument: 'url'; it takes url",
        ),
        (
            lambda store: store.consumer("orders", group_id="g").subscribe("orders", on_assign=lambda it, tps: None),
            "subscribe(): on_assign = <function ",
        ),
        (
            lambda store: store.consumer({"group.id": "g"}),
            "consumer(): topics = {'group.id': 'g'}: expected text. hint: consumer(config={...})",
        ),
        (
            lambda store: store.producer({"linger.ms": 5}),
            "producer(): transactional_id = {'linger.ms': 5}: expected text. hint: producer(config={...})",
        ),
        (
            lambda store: store.admin().fence("loader", 60000.0),
            "fence(): timeout_ms = 60000.0: expected a whole number",
        ),
    ],
)
def test_what_hands_that_know_kafka_get_wrong_is_named(
    store: Store, act: Callable[[Any], object], message: str
) -> None:
    with pytest.raises(InvalidRequestError) as met:
        act(store)
    assert str(met.value).startswith(message)


def test_a_call_of_kafkas_clients_is_answered_with_ours(store: Store) -> None:
    producer: Any = store.producer()
    with pytest.raises(AttributeError, match=r"'Producer' object has no attribute 'produce'\. hint: producer\.send\("):
        producer.produce("orders", b"1")
    consumer: Any = store.consumer("orders")
    for name in ("consume", "get_watermark_offsets", "store_offsets", "unassign", "memberid", "list_topics"):
        assert not hasattr(consumer, name)
        with pytest.raises(AttributeError, match=rf"'Consumer' object has no attribute '{name}'\. hint: "):
            getattr(consumer, name)
    with pytest.raises(AttributeError, match=r"'Store' object has no attribute 'create_topics'\. hint: store\."):
        _ = cast("Any", store).create_topics
    with pytest.raises(AttributeError, match=r"no attribute 'AdminClient'\. hint: store\.admin\(\)"):
        _ = cast("Any", txlog).AdminClient
    with pytest.raises(AttributeError, match=r"object has no attribute 'nothing'$"):
        _ = consumer.nothing


def test_a_report_is_what_takes_an_error_and_metadata(store: Store) -> None:
    def report(error: object, metadata: object, more: object = None) -> None: ...

    with store.producer() as producer:
        taken: Any = (report, mock.Mock(), functools.partial(report, more=1), print, lambda *_: None)
        for each in taken:
            producer.send("orders", orders(1), on_delivery=each).result()
        for wrong in (lambda metadata: None, lambda error, metadata, more: None):
            with pytest.raises(InvalidRequestError, match="expected a plain function of two arguments, error and meta"):
                producer.send("orders", orders(2), on_delivery=cast("Any", wrong))
    assert store.table("orders").count() == 5


def test_a_listener_is_what_takes_the_partitions(store: Store) -> None:
    def needs_two(context: object, partitions: object) -> None: ...

    def decorated(partitions: object) -> None:
        needs_two("context", partitions)

    functools.update_wrapper(decorated, needs_two)
    heard: list[object] = []
    taken: Any = (decorated, mock.Mock(spec=decorated), functools.partial(needs_two, 1), print, heard.append)
    for number, each in enumerate(taken):
        with store.consumer(group_id=f"g{number}") as consumer:
            consumer.subscribe("orders", on_assign=each)

    async def later(partitions: object) -> None: ...

    for wrong in (needs_two, later, functools.partial(later), lambda: None):
        with pytest.raises(InvalidRequestError, match="expected a plain function of one argument, the partitions"):
            store.consumer(group_id="g").subscribe("orders", on_assign=cast("Any", wrong))


def test_futures_and_tables_name_their_own_calls(store: Store) -> None:
    with store.producer() as producer:
        future: Any = producer.send("orders", orders(1))
        with pytest.raises(
            AttributeError, match=r"no attribute 'get'\. hint: producer\.send\(\.\.\.\)\.result\(timeout\)"
        ):
            future.get(10)
    table: Any = store.table("orders")
    with pytest.raises(AttributeError, match=r"'TopicTable' object has no attribute 'head'; it has .*to_pandas, "):
        table.head()
    with pytest.raises(InvalidRequestError, match=r"to_pandas\(\): filters= cannot be given; it takes columns, "):
        table.to_pandas(filters=[("id", ">", 3)])
    for wrong in (1_700_000_000, 1_700_000_000.5):
        with pytest.raises(InvalidRequestError, match=r"seconds are 1700000000[05]00"):
            store.consumer("orders").offsets_for_times(cast("Any", {T0: wrong}))

    class Ms(int):
        """A range would be searched for it, number by number."""

    assert store.consumer("orders").offsets_for_times({T0: Ms(0), tp("orders", 1): Ms(4_000_000_000_000)})
    with pytest.raises(AttributeError, match=r"'RecordMetadata' object .* 'offset'; it has base_offset, "):
        _ = cast("Any", future.result()).offset
    with store.consumer("orders", group_id="g") as consumer, store.producer("loader") as producer:
        producer.begin_transaction()
        with pytest.raises(InvalidRequestError, match=r"hint: give consumer\.group_metadata\(\)"):
            producer.send_offsets_to_transaction({T0: 1}, cast("Any", consumer))


def test_a_property_that_lacks_something_says_what(store: Store) -> None:
    class Named(Consumer):
        @property
        def name(self) -> Any:
            return cast("Any", self).nothing

    consumer = Named(store.runtime, {})
    with pytest.raises(AttributeError, match=r"'Named' object has no attribute 'nothing'$"):
        _ = consumer.name


def test_no_frame_stands_between_the_last_step_of_a_send_and_its_caller() -> None:
    """An interrupt there would look as if no row was sent."""
    raw: tuple[Any, ...] = (Producer.send, Producer.begin_transaction, Producer.commit_transaction, Consumer.poll)
    assert not [call for call in raw if hasattr(call, "__wrapped__")]
    alone: tuple[Any, ...] = (Producer.flush, Producer.init_transactions, Producer.abort_transaction, Producer.close)
    for call in alone:
        calls = [each.opname for each in dis.get_instructions(call) if each.opname.startswith("CALL")]
        assert calls[-1] == "CALL"


def test_an_error_of_types_inside_of_a_call_stays_as_it_is(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Runtime, "topic", lambda *_: len(cast("Any", 5)))
    with pytest.raises(TypeError, match="object of type 'int' has no len"):
        store.topic("orders")


def test_numbers_and_flags_of_numpy_are_accepted(store: Store) -> None:
    numbers: Any = numpy
    assert store.consumer("orders", auto_offset_reset="latest").poll(numbers.int64(0)) is None
    store.create_topic("orders", ORDERS, if_not_exists=numbers.bool_(True))
    admin = store.admin()
    admin.reset_offsets("g", {T0: 0})
    planned: Any = dict(enumerate(admin.plan_reset("g", spec="earliest"))).values()
    dry: Any = 1
    assert admin.reset_offsets("g", planned, dry_run=dry) == ()
