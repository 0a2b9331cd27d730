"""Stores and topics as version chains: every outcome of every write, races at every slot, and what a crash leaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tests.support import ASK_STORE, World
from txlog.core import envelope, features, names
from txlog.core.effects import Delete, Effect, Gather, Get, List, Program, PutIfAbsent, PutOutcome
from txlog.core.features import DELETION_RECORDS, STORE_FEATURES
from txlog.core.names import STORE_DESCRIPTOR, TopicPartition
from txlog.core.records import SchemaField, StoreConstants, StoreDescriptor, TopicMetadata
from txlog.core.schema import KAFKA_FIELDS, assign_ids, max_field_id
from txlog.errors import (
    CoordinatorContentionError,
    CorruptRecordError,
    InvalidConfigurationError,
    InvalidPartitionsError,
    InvalidTopicError,
    MissingObjectError,
    NotAStoreError,
    OutcomeUnknownError,
    SchemaMismatchError,
    StorageError,
    TopicExistsError,
    UnknownTopicOrPartitionError,
    UnsupportedStoreError,
)
from txlog.protocol import stores, topic_changes, topics
from txlog.protocol.context import Context

CTX = Context()


def col(name: str, type_name: str = "int64", *, nullable: bool = True) -> SchemaField:
    return SchemaField(id=1, name=name, type=type_name, nullable=nullable)


FIELDS = [col("id", nullable=False), col("note", "string")]


class Partitions:
    """A stand-in for the partitions' logs: the deletion of each `log_start`, and the number of appends."""

    def __init__(self) -> None:
        self.deleted: dict[TopicPartition, int] = {}
        self.appends: list[tuple[TopicPartition, int]] = []
        self.fail_at: int | None = None

    def append_log_start(self, tp: TopicPartition, version: int) -> Program[None]:
        if self.fail_at == len(self.appends):
            raise StorageError(f"{tp}: crashed")
        if self.deleted.get(tp, 0) < version:
            self.appends.append((tp, version))
            self.deleted[tp] = version
        yield Gather(())


def test_a_name_whose_records_lost_their_metadata_is_not_made_anew_in_silence():
    calls = Topics()
    calls.create()
    calls.world.run(_put("orders/0/" + names.batch_name(0)))
    path = names.topic_metadata_path("orders", 0)
    calls.world.run(_delete(path))
    with pytest.raises(MissingObjectError, match=rf"{path}: is missing, but orders/0/ holds records.*restore"):
        calls.create()
    assert calls.world.run(topics.find_topic("orders")) is None


def test_a_topic_made_meanwhile_exists_and_its_records_are_no_loss():
    calls = Topics()
    program = topic_changes.create_topic(CTX, "orders", append_log_start=calls.partitions.append_log_start)

    def run() -> None:
        listed = 0
        answer: Any = None
        while True:
            effect = program.send(answer)
            listed += isinstance(effect, List)
            if isinstance(effect, List) and listed == 2:
                calls.create()
                calls.world.run(_put("orders/0/" + names.batch_name(0)))
            answer = calls.world.run(_one(effect))

    with pytest.raises(TopicExistsError):
        run()


@pytest.mark.parametrize(("there", "asked", "refused"), [("ok", "OK", True), ("ok", "oK", True), ("ok", "okk", False)])
def test_names_that_differ_in_case_only(there, asked, refused):
    """Some file systems treat two names that differ only in case as one name (W41)."""
    calls = Topics()
    calls.create(there)
    calls.world.run(topic_changes.check_case(there))
    if refused:
        with pytest.raises(InvalidTopicError, match=f"topic name {asked!r} differs from {there!r}"):
            calls.world.run(topic_changes.check_case(asked))
    else:
        calls.world.run(topic_changes.check_case(asked))


def _one(effect: Effect) -> Program[Any]:
    return (yield effect)


def _put(path: str, data: bytes = b"record") -> Program[Any]:
    return (yield PutIfAbsent(path, data))


def _delete(path: str) -> Program[Any]:
    return (yield Delete(path))


class Topics:
    """The calls, over one world."""

    def __init__(self) -> None:
        self.world = World()
        self.partitions = Partitions()

    def create(self, topic: str = "orders", **given: Any) -> TopicMetadata:
        return self.world.run(
            topic_changes.create_topic(CTX, topic, append_log_start=self.partitions.append_log_start, **given)
        )

    def alter(self, topic: str = "orders", **given: Any) -> TopicMetadata:
        return self.world.run(topic_changes.alter_topic(CTX, topic, **given))

    def delete(self, topic: str = "orders", ctx: Context = CTX) -> TopicMetadata:
        ending = self.partitions.append_log_start
        return self.world.run(topic_changes.delete_topic(ctx, topic, append_log_start=ending))

    def describe(self, topic: str = "orders") -> TopicMetadata:
        return self.world.run(topics.describe_topic(topic))

    def versions(self, topic: str = "orders") -> list[TopicMetadata]:
        return [
            envelope.decode(data, TopicMetadata, path)[0]
            for path, data in sorted(self.world.store.items())
            if path.startswith(f"{topic}/topic.")
        ]


@pytest.fixture
def log() -> Topics:
    return Topics()


Answers = Callable[[Effect], Any]


def puts(*answers: object, world: World, land: bool = True) -> Answers:
    """Answer the first PUTs: an outcome (UNKNOWN lands or not), an exception, or a callable that runs before the
    PUT."""
    left = list(answers)

    def hook(effect: Effect) -> Any:
        if not isinstance(effect, PutIfAbsent) or not left:
            return ASK_STORE
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        if callable(answer):
            world.hook = lambda effect: ASK_STORE
            answer()
            world.hook = hook
            return ASK_STORE
        if answer is PutOutcome.UNKNOWN and land:
            world.store.setdefault(effect.path, effect.data)
        return answer

    return hook


# -- the store --------------------------------------------------------------------------------------------------------


class TestStore:
    def test_an_empty_location_is_no_store_yet(self, log: Topics) -> None:
        assert log.world.run(stores.read_store()) is None
        log.world.store["__probe/x"] = b"scratch"
        assert log.world.run(stores.read_store()) is None

    def test_create_then_read(self, log: Topics) -> None:
        constants = StoreConstants(delete_grace_ms=5_000)
        made = log.world.run(stores.create_store(constants))
        assert made == StoreDescriptor(
            features=STORE_FEATURES, store_id=f"{1:032x}", created_at=log.world.now_ms, constants=constants
        )
        assert log.world.run(stores.read_store()) == made
        # The store keeps its constants even if a later creator asks for others.
        assert log.world.run(stores.create_store(StoreConstants())) == made
        assert list(log.world.store) == [STORE_DESCRIPTOR]

    def test_reading_costs_one_get(self, log: Topics) -> None:
        log.world.run(stores.create_store(StoreConstants()))
        log.world.requests.clear()
        log.world.run(stores.read_store())
        assert log.world.requests == [Get(STORE_DESCRIPTOR)]

    @pytest.mark.parametrize("name", ["data.parquet", "orders/x", "__maintenance/x", "__probe"])
    def test_something_else_lies_there(self, log: Topics, name: str) -> None:
        log.world.store[name] = b""
        log.world.store["__probe/x"] = b""
        for program in (stores.read_store("s3://b/l"), stores.create_store(StoreConstants(), "s3://b/l")):
            with pytest.raises(NotAStoreError, match=rf"s3://b/l holds '{name.partition('/')[0]}"):
                log.world.run(program)
        assert STORE_DESCRIPTOR not in log.world.store

    def test_another_makes_it_between_the_get_and_the_list(self, log: Topics) -> None:
        def hook(effect: Effect) -> Any:
            if isinstance(effect, List):
                log.world.hook = lambda effect: ASK_STORE
                log.world.run(stores.create_store(StoreConstants()))
                log.create()
            return ASK_STORE

        log.world.hook = hook
        found = log.world.run(stores.read_store())
        assert found is not None

    def test_another_wins_the_race_and_is_used(self, log: Topics) -> None:
        other: list[StoreDescriptor] = []
        constants = StoreConstants(delete_grace_ms=77)
        log.world.hook = puts(lambda: other.append(log.world.run(stores.create_store(constants))), world=log.world)
        assert log.world.run(stores.create_store(StoreConstants())) == other[0]
        assert other[0].constants == constants

    @pytest.mark.parametrize("land", [True, False])
    def test_an_unknown_outcome_is_settled(self, log: Topics, land: bool) -> None:
        log.world.hook = puts(PutOutcome.UNKNOWN, world=log.world, land=land)
        made = log.world.run(stores.create_store(StoreConstants()))
        assert log.world.run(stores.read_store()) == made
        assert sum(isinstance(request, PutIfAbsent) for request in log.world.requests) == (1 if land else 2)

    def test_a_store_that_never_says(self, log: Topics) -> None:
        log.world.hook = puts(*[PutOutcome.UNKNOWN] * 100, world=log.world, land=False)
        with pytest.raises(
            OutcomeUnknownError, match=r"txlog\.json: the store did not say in 40 tries whether .* of here"
        ):
            log.world.run(stores.create_store(StoreConstants(), "here"))

    def test_unknown_features_are_refused_even_if_the_rest_is_unreadable(self, log: Topics) -> None:
        """The features are read first (W3, R1)."""
        made = log.world.run(stores.create_store(StoreConstants()))
        later = msgspec.structs.replace(made, features=("txn-v2", "time-travel"))
        fields = msgspec.json.decode(msgspec.json.encode(later))
        fields["constants"]["key_hash"] = "murmur3"
        for value in (later, msgspec.defstruct("Later", list(fields), kw_only=True)(**fields)):
            log.world.store[STORE_DESCRIPTOR] = envelope.encode(value)
            with pytest.raises(UnsupportedStoreError, match="the store needs time-travel"):
                log.world.run(stores.read_store())

    def test_damage_is_named(self, log: Topics) -> None:
        log.world.run(stores.create_store(StoreConstants()))
        log.world.store[STORE_DESCRIPTOR] = log.world.store[STORE_DESCRIPTOR][:-5]
        with pytest.raises(CorruptRecordError, match=r"^txlog\.json: "):
            log.world.run(stores.read_store())

    def test_a_newer_format_is_refused(self, log: Topics) -> None:
        made = log.world.run(stores.create_store(StoreConstants()))
        log.world.store[STORE_DESCRIPTOR] = envelope.encode(msgspec.structs.replace(made, version=2))
        with pytest.raises(UnsupportedStoreError, match="format version 2"):
            log.world.run(stores.read_store())


# -- topics -----------------------------------------------------------------------------------------------------------


class TestCreate:
    def test_first_version(self, log: Topics) -> None:
        made = log.create(fields=FIELDS, partitions=8, config={"retention.ms": 1000, "key.columns": ["id"]})
        assert made == TopicMetadata(
            number=0,
            topic="orders",
            topic_id=f"{1:032x}",
            partitions=8,
            config={"retention.ms": "1000", "key.columns": "id"},
            schema=assign_ids(FIELDS),
            schema_id=0,
            created_at=log.world.now_ms,
            write_id=f"{2:032x}",
        )
        assert list(log.world.store) == [names.topic_metadata_path("orders", 0)]
        assert log.describe() == made
        assert log.partitions.appends == []

    def test_without_a_schema_it_has_kafkas_shape(self, log: Topics) -> None:
        assert log.create().schema == KAFKA_FIELDS

    def test_ids_of_the_callers_fields_do_not_matter(self, log: Topics) -> None:
        assert [field.id for field in log.create(fields=FIELDS).schema] == [1, 2]

    def test_it_exists_already(self, log: Topics) -> None:
        log.create(partitions=3)
        with pytest.raises(TopicExistsError, match="topic 'orders' exists already, with 3 partitions"):
            log.create()

    @pytest.mark.parametrize(
        ("given", "error", "message"),
        [
            ({"partitions": 0}, InvalidPartitionsError, "0 is not a number of partitions; expected 1 to 100000"),
            ({"partitions": -1}, InvalidPartitionsError, "-1 is not a number"),
            ({"partitions": 100_001}, InvalidPartitionsError, "100001 is not a number"),
            ({"partitions": True}, InvalidPartitionsError, "True is not a number"),
            ({"partitions": "3"}, InvalidPartitionsError, "'3' is not a number"),
            ({"fields": []}, SchemaMismatchError, "at least one column"),
            ({"fields": [col("_offset")]}, SchemaMismatchError, "topic 'orders': column '_offset'"),
            ({"fields": [col("x", "uint8")]}, SchemaMismatchError, "type 'uint8' is not supported"),
            ({"config": {"retention.msec": 1}}, InvalidConfigurationError, "retention.ms"),
            ({"config": {"retention.ms": "soon"}}, InvalidConfigurationError, "retention.ms"),
            (
                {"config": {"key.columns": "kye"}},
                InvalidConfigurationError,
                "'kye', which is not a column. Did you mean 'key'",
            ),
            (
                {"fields": [col("price", "decimal(9,2)")], "config": {"key.columns": "price"}},
                InvalidConfigurationError,
                "'price', a decimal(9,2), which cannot be a key; use string, binary, int16",
            ),
            ({"config": {"cleanup.policy": "compact"}}, InvalidConfigurationError, "so it needs key.columns"),
        ],
    )
    def test_what_cannot_be(self, log: Topics, given: dict[str, Any], error: type[Exception], message: str) -> None:
        with pytest.raises(error) as caught:
            log.create(**given)
        assert message in str(caught.value)
        assert log.world.store == {}

    @pytest.mark.parametrize("topic", ["", "..", "a/b", "__transaction_state", "__consumer_offsets", "__mine"])
    def test_names_that_cannot_be(self, log: Topics, topic: str) -> None:
        for call in (log.create, log.alter, log.delete, log.describe):
            with pytest.raises(InvalidTopicError):
                call(topic)
        assert log.world.store == {}

    def test_another_creates_it_first(self, log: Topics) -> None:
        log.world.hook = puts(lambda: log.create(partitions=2), world=log.world)
        with pytest.raises(TopicExistsError, match="with 2 partitions"):
            log.create()
        assert len(log.versions()) == 1

    @pytest.mark.parametrize("outcome", [PutOutcome.UNKNOWN, PutOutcome.CONFLICT])
    def test_an_answer_that_was_lost(self, log: Topics, outcome: PutOutcome) -> None:
        # The conflict may be with the writer's own request, which a lower layer retried.
        def hook(effect: Effect) -> Any:
            if isinstance(effect, PutIfAbsent) and effect.path not in log.world.store:
                log.world.store[effect.path] = effect.data
                return outcome
            return ASK_STORE

        log.world.hook = hook
        assert log.create() == log.describe()
        assert len(log.versions()) == 1

    def test_unknown_and_not_there_tries_the_same_slot_again(self, log: Topics) -> None:
        log.world.hook = puts(PutOutcome.UNKNOWN, PutOutcome.UNKNOWN, world=log.world, land=False)
        made = log.create()
        put = [request for request in log.world.requests if isinstance(request, PutIfAbsent)]
        assert len(put) == 3
        assert len({(request.path, request.data) for request in put}) == 1
        assert log.describe() == made

    def test_unknown_and_anothers(self, log: Topics) -> None:
        def hook(effect: Effect) -> Any:
            if not isinstance(effect, PutIfAbsent):
                return ASK_STORE
            log.world.hook = lambda effect: ASK_STORE
            log.create(partitions=5)
            return PutOutcome.UNKNOWN

        log.world.hook = hook
        with pytest.raises(TopicExistsError, match="with 5 partitions"):
            log.create()

    def test_a_store_that_never_says(self, log: Topics) -> None:
        log.world.hook = puts(*[PutOutcome.UNKNOWN] * 100, world=log.world, land=False)
        with pytest.raises(OutcomeUnknownError, match=r"orders/topic\.0+\.json: the store did not say in 40 tries"):
            log.create()


class TestDescribe:
    def test_one_list_and_one_get(self, log: Topics) -> None:
        log.create()
        log.alter(partitions=3)
        log.world.store["orders/0/00000000000000000000.batch"] = b""
        log.world.store["orders/staged/x"] = b""
        log.world.store["orders/topic.txt"] = b""
        log.world.requests.clear()
        assert log.describe().partitions == 3
        assert log.world.requests == [List("orders/", "topic."), Get(names.topic_metadata_path("orders", 1))]

    def test_unknown_names_a_near_one(self, log: Topics) -> None:
        log.create("orders")
        with pytest.raises(
            UnknownTopicOrPartitionError, match=r"topic 'ordres' does not exist\. Did you mean 'orders'\?"
        ):
            log.describe("ordres")
        with pytest.raises(UnknownTopicOrPartitionError, match=r"topic 'zebra' does not exist. The topics are orders$"):
            log.describe("zebra")

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"number": 1}, "holds version 1 of topic 'orders'"),
            ({"topic": "other"}, "holds version 0 of topic 'other'"),
            ({"schema_id": 1}, "its schema is of version 1, later than its own"),
            ({"schema": ()}, "at least one column"),
            ({"schema": (col("x", "uint8"),)}, "type 'uint8'"),
        ],
    )
    def test_metadata_that_cannot_be_is_refused_by_name(
        self, log: Topics, change: dict[str, Any], message: str
    ) -> None:
        made = log.create()
        path = names.topic_metadata_path("orders", 0)
        log.world.store[path] = envelope.encode(msgspec.structs.replace(made, **change))
        with pytest.raises(CorruptRecordError, match=message) as caught:
            log.describe()
        assert str(caught.value).startswith(path)

    def test_listed_and_gone(self, log: Topics) -> None:
        log.create()
        log.world.hook = lambda effect: None if isinstance(effect, Get) else ASK_STORE
        with pytest.raises(MissingObjectError, match=r"orders/topic\.0+\.json: was listed and is gone"):
            log.describe()

    def test_list(self, log: Topics) -> None:
        log.world.run(stores.create_store(StoreConstants()))
        for topic in ("b", "a", "gone"):
            log.create(topic)
        log.delete("gone")
        log.world.store["__transaction_state/0/x"] = b""
        log.world.store["foreign/file"] = b""
        log.world.store["not a topic/topic.00000000000000000000.json"] = b""
        assert [t.topic for t in log.world.run(topics.list_topics())] == ["a", "b"]
        assert [(t.topic, t.deleted) for t in log.world.run(topics.list_topics(deleted=True))] == [
            ("a", False),
            ("b", False),
            ("gone", True),
        ]


class TestRefresh:
    def test_by_name(self, log: Topics) -> None:
        made = log.create()
        log.world.requests.clear()
        assert log.world.run(topics.refresh_topic(made)) == made
        assert log.world.requests == [Get(names.topic_metadata_path("orders", 1))]
        log.alter(partitions=2)
        newest = log.alter(partitions=3)
        log.world.requests.clear()
        assert log.world.run(topics.refresh_topic(made)) == newest
        assert len(log.world.requests) == 3

    def test_deleted_or_made_anew_is_another_topic(self, log: Topics) -> None:
        made = log.create()
        log.delete()
        with pytest.raises(UnknownTopicOrPartitionError, match="topic 'orders' was deleted"):
            log.world.run(topics.refresh_topic(made))
        log.create()
        with pytest.raises(UnknownTopicOrPartitionError, match="was deleted and created again \\(version 3, "):
            log.world.run(topics.refresh_topic(made))


class TestAlter:
    def test_config(self, log: Topics) -> None:
        made = log.create(config={"retention.ms": 5, "segment.batches": 7})
        altered = log.alter(config={"retention.ms": None, "segment.batches": 8, "segment.ms": 9})
        assert altered.config == {"segment.batches": "8", "segment.ms": "9"}
        assert (altered.number, altered.schema_id, altered.topic_id) == (1, 0, made.topic_id)
        assert altered.write_id != made.write_id
        assert log.describe() == altered

    def test_partitions(self, log: Topics) -> None:
        log.create(partitions=2)
        assert log.alter(partitions=5).partitions == 5
        with pytest.raises(InvalidPartitionsError, match="topic 'orders' has 5 partitions; 4 would be fewer"):
            log.alter(partitions=4)

    def test_columns(self, log: Topics) -> None:
        made = log.create(fields=FIELDS)
        altered = log.alter(add_columns=[col("more", "string")])
        assert altered.schema == (*made.schema, msgspec.structs.replace(col("more", "string"), id=3))
        assert (altered.number, altered.schema_id) == (1, 1)
        # A change of settings alone does not change the schema's id: files name the schema in which they were written.
        again = log.alter(config={"segment.ms": 5})
        assert (again.number, again.schema_id) == (2, 1)

    def test_everything_at_once_is_one_version(self, log: Topics) -> None:
        log.create(fields=FIELDS)
        altered = log.alter(config={"key.columns": "more"}, partitions=2, add_columns=[col("more")])
        assert altered.number == 1
        assert (altered.config, altered.partitions, len(altered.schema)) == ({"key.columns": "more"}, 2, 3)

    @pytest.mark.parametrize(
        "given",
        [
            {},
            {"partitions": 3},
            {"config": {"segment.ms": "7"}},
            {"config": {"retention.ms": None}},
            {"add_columns": [col("note", "string")]},
        ],
    )
    def test_what_holds_already_makes_no_version(self, log: Topics, given: dict[str, Any]) -> None:
        made = log.create(fields=FIELDS, partitions=3, config={"segment.ms": 7})
        assert log.alter(**given) == made
        assert len(log.versions()) == 1

    @pytest.mark.parametrize(
        ("given", "error"),
        [
            ({"partitions": 0}, InvalidPartitionsError),
            ({"partitions": 100_001}, InvalidPartitionsError),
            ({"config": {"nonsense": "1"}}, InvalidConfigurationError),
            ({"config": {"nonsense": None}}, InvalidConfigurationError),
            ({"config": {"segment.ms": "x"}}, InvalidConfigurationError),
            ({"config": {"key.columns": "nope"}}, InvalidConfigurationError),
            ({"add_columns": [col("new", nullable=False)]}, SchemaMismatchError),
            ({"add_columns": [col("note", "int64")]}, SchemaMismatchError),
            ({"add_columns": [col("NOTE", "string")]}, SchemaMismatchError),
        ],
    )
    def test_what_cannot_be(self, log: Topics, given: dict[str, Any], error: type[Exception]) -> None:
        log.create(fields=FIELDS)
        with pytest.raises(error):
            log.alter(**given)
        assert len(log.versions()) == 1

    def test_no_such_topic(self, log: Topics) -> None:
        with pytest.raises(UnknownTopicOrPartitionError, match="does not exist"):
            log.alter(partitions=2)

    def test_a_lost_race_decides_again_on_what_won(self, log: Topics) -> None:
        log.create(fields=FIELDS)

        def other() -> None:
            log.alter(config={"segment.ms": 5}, add_columns=[col("theirs")])

        log.world.hook = puts(other, world=log.world)
        altered = log.alter(partitions=4, add_columns=[col("ours")])
        assert [field.name for field in altered.schema] == ["id", "note", "theirs", "ours"]
        assert [field.id for field in altered.schema] == [1, 2, 3, 4]
        assert (altered.number, altered.partitions, altered.config) == (2, 4, {"segment.ms": "5"})

    def test_a_race_that_makes_it_impossible(self, log: Topics) -> None:
        log.create(partitions=1)
        log.world.hook = puts(lambda: log.alter(partitions=9), world=log.world)
        with pytest.raises(InvalidPartitionsError, match="has 9 partitions; 4 would be fewer"):
            log.alter(partitions=4)

    def test_a_race_with_the_same_wish(self, log: Topics) -> None:
        log.create()
        log.world.hook = puts(lambda: log.alter(partitions=4), world=log.world)
        assert log.alter(partitions=4) == log.describe()
        assert len(log.versions()) == 2

    @pytest.mark.parametrize("anew", [False, True])
    def test_deleted_meanwhile(self, log: Topics, anew: bool) -> None:
        log.create()

        def other() -> None:
            log.delete()
            if anew:
                log.create()

        log.world.hook = puts(other, world=log.world)
        with pytest.raises(UnknownTopicOrPartitionError, match="was deleted"):
            log.alter(partitions=4)
        assert log.versions()[-1].partitions == 1

    @pytest.mark.parametrize("land", [True, False])
    def test_unknown(self, log: Topics, land: bool) -> None:
        log.create()
        log.world.hook = puts(PutOutcome.UNKNOWN, world=log.world, land=land)
        altered = log.alter(partitions=2)
        assert log.versions()[1:] == [altered]

    def test_always_too_late(self, log: Topics) -> None:
        log.create()
        wanted = 1

        def other() -> None:
            nonlocal wanted
            wanted += 1
            log.alter(partitions=wanted)

        log.world.hook = puts(*[other] * 5, world=log.world)
        with pytest.raises(CoordinatorContentionError, match="3 versions in a row"):
            log.world.run(topic_changes.alter_topic(Context(max_races=3), "orders", config={"segment.ms": 1}))

    def test_an_error_of_the_store_is_the_callers(self, log: Topics) -> None:
        log.create()
        log.world.hook = puts(StorageError("403"), world=log.world)
        with pytest.raises(StorageError, match="403"):
            log.alter(partitions=2)


def tps(count: int) -> list[TopicPartition]:
    return [TopicPartition("orders", number) for number in range(count)]


class TestDelete:
    def test_a_version_then_a_log_start_in_every_partition(self, log: Topics) -> None:
        made = log.create(partitions=3)
        gone = log.delete()
        begun = msgspec.structs.replace(made, number=1, deleting=True, write_id=gone.write_id)
        assert gone == msgspec.structs.replace(made, number=2, deleted=True, write_id=gone.write_id)
        assert log.versions() == [made, begun, gone]
        assert log.partitions.appends == [(tp, 2) for tp in tps(3)]
        with pytest.raises(UnknownTopicOrPartitionError, match=r"topic 'orders' was deleted \(version 2"):
            log.describe()

    def test_a_store_without_the_feature_has_one_version_and_no_records_of_deletions(self, log: Topics) -> None:
        made = log.create()
        features = tuple(each for each in STORE_FEATURES if each != DELETION_RECORDS)
        gone = log.delete(ctx=Context(features=features))
        assert log.versions() == [made, msgspec.structs.replace(made, number=1, deleted=True, write_id=gone.write_id)]

    def test_no_such_topic(self, log: Topics) -> None:
        with pytest.raises(UnknownTopicOrPartitionError, match="does not exist"):
            log.delete()

    def test_twice(self, log: Topics) -> None:
        log.create(partitions=2)
        log.delete()
        with pytest.raises(UnknownTopicOrPartitionError, match="was deleted"):
            log.delete()
        assert len(log.versions()) == 3
        assert log.partitions.appends == [(tp, 2) for tp in tps(2)]

    def test_a_second_call_finishes_what_a_crash_left(self, log: Topics) -> None:
        log.create(partitions=3)
        log.partitions.fail_at = 1
        with pytest.raises(OutcomeUnknownError, match=r"is deleted .* finishing that failed .*crashed"):
            log.delete()
        log.partitions.fail_at = None
        with pytest.raises(UnknownTopicOrPartitionError):
            log.delete()
        assert log.partitions.deleted == dict.fromkeys(tps(3), 2)
        assert len(log.partitions.appends) == 3

    def test_partitions_that_a_race_added_are_emptied_too(self, log: Topics) -> None:
        log.create(partitions=1)
        log.world.hook = puts(lambda: log.alter(partitions=4), world=log.world)
        assert log.delete().number == 3
        assert log.partitions.deleted == dict.fromkeys(tps(4), 3)

    def test_another_deletes_it_first(self, log: Topics) -> None:
        log.create(partitions=2)
        log.world.hook = puts(log.delete, world=log.world)
        with pytest.raises(UnknownTopicOrPartitionError, match="was deleted"):
            log.delete()
        assert log.partitions.deleted == dict.fromkeys(tps(2), 2)

    @pytest.mark.parametrize("land", [True, False])
    def test_unknown(self, log: Topics, land: bool) -> None:
        log.create()
        log.world.hook = puts(PutOutcome.UNKNOWN, world=log.world, land=land)
        assert log.delete().deleted
        assert len(log.versions()) == 3
        assert log.partitions.deleted == dict.fromkeys(tps(1), 2)


class TestCreateAnew:
    def test_a_new_topic_of_the_old_name(self, log: Topics) -> None:
        old = log.create(fields=FIELDS, partitions=2, config={"segment.ms": 1})
        log.delete()
        made = log.create(fields=[col("id", "string")], partitions=3)
        assert (made.number, made.partitions, made.config, made.deleted) == (3, 3, {}, False)
        assert made.topic_id != old.topic_id
        # Rows of the old topic have a schema id below the deletion's version, rows of the new topic have one above it.
        assert made.schema_id == 3
        assert [field.id for field in made.schema] == [max_field_id(old.schema) + 1]
        assert log.describe() == made

    def test_never_fewer_partitions(self, log: Topics) -> None:
        log.create(partitions=4)
        log.delete()
        with pytest.raises(InvalidPartitionsError, match=r"a deleted topic of this name had 4.*ask for at least 4"):
            log.create(partitions=3)
        assert log.create(partitions=4).number == 3

    def test_the_deletion_is_finished_first(self, log: Topics) -> None:
        """Otherwise the new topic would show rows of the old one (W40)."""
        log.create(partitions=3)
        log.partitions.fail_at = 1
        with pytest.raises(OutcomeUnknownError):
            log.delete()
        with pytest.raises(StorageError):
            log.create(partitions=3)
        assert len(log.versions()) == 3  # no new version before every partition is empty
        log.partitions.fail_at = None
        log.create(partitions=5)
        assert log.partitions.deleted == dict.fromkeys(tps(3), 2)
        assert len(log.partitions.appends) == 3

    def test_again_and_again(self, log: Topics) -> None:
        ids: list[int] = []
        for _ in range(3):
            ids += [field.id for field in log.create(fields=FIELDS).schema]
            log.delete()
        assert ids == [1, 2, 3, 4, 5, 6]
        assert [version.deleted for version in log.versions()] == [False, False, True] * 3
        assert log.partitions.deleted == {TopicPartition("orders", 0): 8}

    def test_two_at_once(self, log: Topics) -> None:
        log.create()
        log.delete()
        log.world.hook = puts(lambda: log.create(partitions=2), world=log.world)
        with pytest.raises(TopicExistsError, match="with 2 partitions"):
            log.create()

    def test_made_and_deleted_by_another_meanwhile(self, log: Topics) -> None:
        log.create()
        log.delete()

        def other() -> None:
            log.create(partitions=2)
            log.delete()

        log.world.hook = puts(other, world=log.world)
        made = log.create(partitions=2)
        assert made.number == 6
        assert log.partitions.deleted == dict.fromkeys(tps(2), 5)


def test_a_topic_that_lives_has_no_deletion_to_finish(log: Topics) -> None:
    with pytest.raises(ValueError, match="is not a deletion"):
        log.world.run(topic_changes.finish_deletion(log.create(), log.partitions.append_log_start))


def crashing(log: Topics, at: int) -> Callable[[Effect], Any]:
    """Stop the process at its `at`-th request, before or after the request took effect."""
    count = 0

    def hook(effect: Effect) -> Any:
        nonlocal count
        if isinstance(effect, Get | List | PutIfAbsent):
            count += 1
            if count == at // 2 + 1:
                if at % 2 and isinstance(effect, PutIfAbsent):
                    log.world.store.setdefault(effect.path, effect.data)
                raise KeyboardInterrupt
        return ASK_STORE

    return hook


@pytest.mark.parametrize("at", range(16))
def test_after_a_crash_anywhere_the_next_call_goes_on(at: int) -> None:
    log = Topics()
    log.create(partitions=2)
    log.world.hook = crashing(log, at)

    def delete_and_make_anew() -> None:
        log.delete()
        log.create(partitions=3)

    with pytest.raises(KeyboardInterrupt):  # five requests and three
        delete_and_make_anew()
    log.world.hook = lambda effect: ASK_STORE
    if not log.versions()[-1].deleted and len(log.versions()) < 4:
        log.delete()
    if len(log.versions()) == 3:
        log.create(partitions=3)
    assert [version.deleted for version in log.versions()] == [False, False, True, False]
    assert log.describe().partitions == 3
    assert log.partitions.deleted == dict.fromkeys(tps(2), 2)


def changed_version(**fields: Any) -> bytes:
    schema = (msgspec.structs.replace(FIELDS[0], id=1), msgspec.structs.replace(FIELDS[1], id=3))
    told = {"topic": "orders", "topic_id": "0" * 32, "schema": schema, "schema_id": 0, "write_id": "0" * 32, **fields}
    return envelope.encode(TopicMetadata(number=0, partitions=1, created_at=0, **told))


def test_a_program_without_the_feature_refuses_a_topic_whose_columns_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "KNOWN_FEATURES", features.KNOWN_FEATURES - {features.SCHEMA_EVOLUTION})
    assert topics.decode_version(changed_version(), "orders", 0).schema_id == 0
    with pytest.raises(UnsupportedStoreError, match=r"orders/topic\.0{20}\.json: the store needs schema-evolution"):
        topics.decode_version(changed_version(last_field_id=3), "orders", 0)


def test_a_version_that_contradicts_itself_is_damage() -> None:
    assert topics.decode_version(changed_version(last_field_id=3), "orders", 0).last_field_id == 3
    with pytest.raises(CorruptRecordError, match="expected last_field_id of at least 3, the highest id, found 2"):
        topics.decode_version(changed_version(last_field_id=2), "orders", 0)
    defaults = (msgspec.structs.replace(FIELDS[1], default="x"),)
    with pytest.raises(CorruptRecordError, match=r"expected no default without last_field_id, found 'note' \(id 1\)"):
        topics.decode_version(changed_version(schema=defaults), "orders", 0)


def test_a_name_that_is_created_again_begins_above_every_dropped_column() -> None:
    calls = Topics()
    created = calls.create()
    dropped = msgspec.structs.replace(
        created, number=1, schema=created.schema[:1], schema_id=1, last_field_id=9, write_id="1" * 32
    )
    calls.world.run(_put(names.topic_metadata_path("orders", 1), envelope.encode(dropped)))
    calls.delete()
    assert min(field.id for field in calls.create().schema) == 10
