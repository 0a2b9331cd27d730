"""The Delta log of a topic: which actions each version has, and that any process writes the same."""

from __future__ import annotations

import io
import json
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.publication.delta_topic import CREATED_AT, TOPIC_ID, PublishedTopic
from tests.storage.arrow_rows import FIELDS, rows_table
from tests.support import ASK_STORE, World
from txlog.core.effects import Effect, Get, PutIfAbsent, PutOutcome
from txlog.core.publication import Tables
from txlog.errors import OutcomeUnknownError, TableConflictError
from txlog.publication import delta
from txlog.publication.deletion_vectors import z85
from txlog.publication.formats import new_table_id
from txlog.storage.arrow_schema import to_fields

NUMBERS = to_fields(pa.schema((pa.field("n", pa.int64(), nullable=False), pa.field("s", pa.string()))))
EVERY_OTHER = [(row, row + 1) for row in range(0, 40_000, 2)]


def numbers(first: int = 0, count: int = 10) -> pa.Table:
    return pa.table({"n": range(first, first + count), "s": [f"row {n}" for n in range(first, first + count)]})


@pytest.fixture
def topic() -> PublishedTopic:
    return PublishedTopic(NUMBERS)


def log(topic: PublishedTopic, version: int) -> list[dict[str, Any]]:
    data = topic.store.get(f"orders/_delta_log/{version:020d}.json")
    assert data is not None
    assert data.endswith(b"\n")
    return [json.loads(line) for line in data.decode().split("\n")[:-1]]


def kinds(actions: list[dict[str, Any]]) -> list[str]:
    return [kind for action in actions for kind in action]


def only(actions: list[dict[str, Any]], kind: str) -> list[Any]:
    return [action[kind] for action in actions if kind in action]


def names(topic: PublishedTopic) -> list[str]:
    return list(topic.store.list("orders/_delta_log/"))


def state(topic: PublishedTopic) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the files of the newest version, by what Delta identifies them: as a reader replays the log."""
    found: dict[tuple[str, str], dict[str, Any]] = {}

    def key(action: dict[str, Any]) -> tuple[str, str]:
        vector = action.get("deletionVector") or {}
        return action["path"], vector.get("storageType", "") + vector.get("pathOrInlineDv", "")

    for name in names(topic):
        if name.endswith(".json"):
            for action in log(topic, int(name[:20])):
                if "remove" in action:
                    del found[key(action["remove"])]
                if "add" in action:
                    assert key(action["add"]) not in found
                    found[key(action["add"])] = action["add"]
    return found


# -- what a version contains ------------------------------------------------------------------------------------------


def test_the_first_version(topic: PublishedTopic) -> None:
    file = topic.file(numbers())
    tables = topic.publish(file)
    assert kinds(log(topic, 0)) == ["commitInfo", "protocol", "metaData", "add"]
    info, protocol, metadata, add = (next(iter(action.values())) for action in log(topic, 0))
    assert info == {
        "timestamp": CREATED_AT + 7,
        "operation": "WRITE",
        "operationParameters": {
            "txlog.publication": "0",
            "txlog.topic_id": TOPIC_ID,
            "txlog.cut": '[{"end_offset":0,"hidden":[[3,5]]}]',
            "txlog.cut_at": str(CREATED_AT),
        },
        "isBlindAppend": True,
        "engineInfo": "txlog",
        "txlog.table": {
            "publication": 0,
            "digest": tables.digest,
            "features": [],
            "created_at": CREATED_AT + 7,
            "table_id": new_table_id(tables),
            "metadata": info["txlog.table"]["metadata"],
        },
    }
    assert protocol == {
        "minReaderVersion": 1,
        "minWriterVersion": 7,
        "writerFeatures": ["invariants", "txlogManaged"],
    }
    assert json.loads(metadata.pop("schemaString")) == {
        "type": "struct",
        "fields": [
            {"name": "n", "type": "long", "nullable": False, "metadata": {}},
            {"name": "s", "type": "string", "nullable": True, "metadata": {}},
        ],
    }
    assert metadata == {
        "id": str(UUID(new_table_id(tables))),
        "name": "orders",
        "format": {"provider": "parquet", "options": {}},
        "partitionColumns": [],
        "configuration": {
            "delta.deletedFileRetentionDuration": "interval 18250 days",
            "delta.logRetentionDuration": "interval 604800000 milliseconds",
        },
        "createdTime": CREATED_AT + 7,
    }
    assert json.loads(add.pop("stats"))["numRecords"] == 10
    assert add == {
        "path": file.path,
        "partitionValues": {},
        "size": file.bytes,
        "modificationTime": CREATED_AT + 7,
        "dataChange": True,
    }


def test_an_append_adds_files(topic: PublishedTopic) -> None:
    topic.publish(topic.file(numbers()))
    second, third = topic.file(numbers(10)), topic.file(numbers(20))
    topic.publish(third, second)
    assert kinds(log(topic, 1)) == ["commitInfo", "add", "add"]
    assert [each["path"] for each in only(log(topic, 1), "add")] == [second.path, third.path]


def test_a_replace_changes_no_data(topic: PublishedTopic) -> None:
    files = [topic.file(numbers(10 * number)) for number in range(2)]
    topic.publish(*files)
    merged = topic.file(numbers(0, 20))
    topic.publish(merged, removed=[file.path for file in files], replace=True)
    actions = log(topic, 1)
    assert kinds(actions) == ["commitInfo", "remove", "remove", "add"]
    assert only(actions, "commitInfo")[0]["isBlindAppend"] is False
    assert [each["dataChange"] for each in (*only(actions, "remove"), *only(actions, "add"))] == [False] * 3
    assert only(actions, "remove")[0] == {
        "path": files[0].path,
        "deletionTimestamp": CREATED_AT + 1_007,
        "dataChange": False,
        "extendedFileMetadata": True,
        "partitionValues": {},
        "size": files[0].bytes,
    }
    assert list(state(topic)) == [(merged.path, "")]


def test_a_first_version_that_replaces_is_new_data(topic: PublishedTopic) -> None:
    """The format was chosen later than another one, and so its first version may be of any kind."""
    topic.decide(topic.file(numbers()))
    topic.first = 1
    topic.decide(replace=True)
    topic.write()
    assert names(topic) == ["00000000000000000000.json"]
    assert only(log(topic, 0), "add")[0]["dataChange"] is True


def test_removed_rows_need_a_newer_protocol_from_then_on(topic: PublishedTopic) -> None:
    whole, part = topic.file(numbers()), topic.file(numbers(10), removed=[(0, 4)])
    topic.publish(whole)
    topic.publish(part)
    assert kinds(log(topic, 1)) == ["commitInfo", "protocol", "add"]
    assert only(log(topic, 1), "protocol") == [
        {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": ["deletionVectors"],
            "writerFeatures": ["deletionVectors", "invariants", "txlogManaged"],
        }
    ]
    topic.publish(removed=[part.path], replace=True)
    topic.publish(topic.file(numbers(30), removed=[(1, 2)]))
    assert [len(only(log(topic, version), "protocol")) for version in range(4)] == [1, 1, 0, 0]


def test_other_rows_removed_are_a_remove_and_an_add(topic: PublishedTopic) -> None:
    file, large = topic.file(numbers(), removed=[(0, 4)]), topic.file(numbers(0, 40_000), removed=EVERY_OTHER)
    topic.publish(file, large)
    first = state(topic)
    assert sorted(kind for _, vector in first for kind in vector[:1]) == ["i", "u"]
    topic.publish(
        topic.without(file.path, (0, 5)), topic.without(large.path, *EVERY_OTHER[:-1], (39_998, 40_000)), replace=True
    )
    assert kinds(log(topic, 1)) == ["commitInfo", "remove", "remove", "add", "add"]
    second = state(topic)
    assert [path for path, _ in second] == [path for path, _ in first]
    assert first.keys().isdisjoint(second)
    assert [each["deletionVector"]["cardinality"] for each in second.values()] == [5, 20_001]
    assert json.loads(second[next(iter(second))]["stats"])["tightBounds"] is False


def test_all_rows_again(topic: PublishedTopic) -> None:
    file = topic.file(numbers(), removed=[(0, 4)])
    topic.publish(file)
    topic.publish(topic.without(file.path), replace=True)
    assert list(state(topic)) == [(file.path, "")]


def test_objects_of_deletion_vectors_are_written_first_and_named(topic: PublishedTopic) -> None:
    topic.publish(topic.file(numbers(), removed=[(0, 4)]), topic.file(numbers(0, 40_000), removed=EVERY_OTHER))
    vectors = [add.get("deletionVector") for add in only(log(topic, 0), "add")]
    (named,) = [each["pathOrInlineDv"] for each in vectors if each["storageType"] == "u"]
    (found,) = topic.store.list("orders/publication/")
    assert found.startswith("deletion_vector_")
    number = found.removeprefix("deletion_vector_").removesuffix(".bin").replace("-", "")
    assert named == "publication" + z85(bytes.fromhex(number))


def test_columns_change(topic: PublishedTopic) -> None:
    topic.publish(topic.file(numbers()))
    topic.change(to_fields(pa.schema([*pa.schema(list(numbers().schema)), pa.field("at", pa.timestamp("us"))])))
    topic.publish(replace=True)
    actions = log(topic, 1)
    assert kinds(actions) == ["commitInfo", "protocol", "metaData"]
    assert only(actions, "protocol")[0]["readerFeatures"] == ["timestampNtz"]
    (metadata,) = only(actions, "metaData")
    assert [each["name"] for each in json.loads(metadata["schemaString"])["fields"]] == ["n", "s", "at"]
    assert metadata["createdTime"] == CREATED_AT + 7
    topic.change(topic.topic.schema)
    topic.publish(replace=True)
    assert kinds(log(topic, 2)) == ["commitInfo"]


def test_every_type() -> None:
    topic = PublishedTopic(FIELDS)
    topic.publish(topic.file(rows_table()))
    (metadata,) = only(log(topic, 0), "metaData")
    found = {each["name"]: each for each in json.loads(metadata["schemaString"])["fields"]}
    assert {name: each["type"] for name, each in found.items() if isinstance(each["type"], str)} == {
        "flag": "boolean", "i8": "byte", "i16": "short", "i32": "integer", "i64": "long", "f32": "float",
        "f64": "double",
        "price": "decimal(12,2)", "big": "decimal(38,0)", "text": "string", "raw": "binary", "day": "date",
        "at": "timestamp", "local": "timestamp_ntz",
    }  # fmt: skip
    assert found["tags"]["type"] == {"type": "array", "elementType": "string", "containsNull": True}
    assert found["props"]["type"] == {
        "type": "map",
        "keyType": "string",
        "valueType": "long",
        "valueContainsNull": True,
    }
    assert found["point"]["type"]["fields"][1] == {"name": "y", "type": "double", "nullable": False, "metadata": {}}
    assert found["deep"]["type"]["elementType"]["fields"][1]["type"]["valueType"]["elementType"] == "integer"
    assert only(log(topic, 0), "protocol")[0]["readerFeatures"] == ["timestampNtz"]


def test_a_nested_type_needs_its_feature_too() -> None:
    local = pa.list_(pa.struct([pa.field("at", pa.timestamp("us"))]))
    topic = PublishedTopic(to_fields(pa.schema([pa.field("c", local)])))
    topic.publish()
    assert only(log(topic, 0), "protocol")[0]["readerFeatures"] == ["timestampNtz"]


def test_paths_are_uris(topic: PublishedTopic) -> None:
    path = "staged/3-1-abc/_partition=0/part-0#a@b+c~d.parquet"
    topic.publish(topic.file(numbers(), path=path))
    assert only(log(topic, 0), "add")[0]["path"] == "staged/3-1-abc/_partition=0/part-0%23a%40b%2Bc~d.parquet"


# -- checkpoints ------------------------------------------------------------------------------------------------------


def test_every_tenth_version_has_a_checkpoint(topic: PublishedTopic) -> None:
    cut = topic.file(numbers(0, 40_000), removed=EVERY_OTHER)
    topic.publish(cut, topic.file(numbers(1), removed=[(0, 4)]))
    for number in range(1, 21):
        topic.publish(
            topic.file(numbers(10 * number)), removed=[cut.path] if number == 12 else [], replace=number == 12
        )
    assert [name for name in names(topic) if "checkpoint" in name] == [
        "00000000000000000010.checkpoint.parquet",
        "00000000000000000020.checkpoint.parquet",
        "_last_checkpoint",
    ]
    for version, files in ((10, 12), (20, 21)):
        data = topic.store.get(f"orders/_delta_log/{version:020d}.checkpoint.parquet")
        assert data is not None
        rows = pq.read_table(io.BytesIO(data)).to_pylist(maps_as_pydicts="strict")
        assert [{kind for kind, value in row.items() if value is not None} for row in rows] == [
            {"protocol"}, {"metaData"}, *[{"add"}] * files,
        ]  # fmt: skip
        assert [row["metaData"] for row in rows[1:2]] == [
            {
                **only(log(topic, 0), "metaData")[0],
                "description": None,
                "format": {"provider": "parquet", "options": {}},
            }
        ]
        assert rows[0]["protocol"]["readerFeatures"] == ["deletionVectors"]
    assert data is not None
    hint = json.loads(topic.store.get("orders/_delta_log/_last_checkpoint") or b"")
    assert hint == {"version": 20, "size": 23, "sizeInBytes": len(data), "numOfAddFiles": 21}
    listed = [
        {name: value for name, value in row["add"].items() if value is not None} | {"dataChange": True}
        for row in rows
        if row["add"] is not None
    ]
    vectors = [
        {name: value for name, value in (each.get("deletionVector") or {}).items() if value is not None}
        for each in listed
    ]
    for each, vector in zip(listed, vectors, strict=True):
        each.pop("deletionVector", None)
        each |= {"deletionVector": vector} if vector else {}
    replayed = [{**each, "dataChange": True} for each in state(topic).values()]
    assert listed == sorted(replayed, key=lambda each: str(each["path"]))


def test_the_newest_checkpoint_stays_named(topic: PublishedTopic) -> None:
    for number in range(21):
        topic.publish(topic.file(numbers(number)))
    topic.write(10)
    assert json.loads(topic.store.get("orders/_delta_log/_last_checkpoint") or b"")["version"] == 20
    topic.store.delete("orders/_delta_log/_last_checkpoint")
    topic.store.put_if_absent("orders/_delta_log/_last_checkpoint", b"damage")
    topic.write(10)
    assert json.loads(topic.store.get("orders/_delta_log/_last_checkpoint") or b"")["version"] == 10


# -- many writers, and crashes ----------------------------------------------------------------------------------------


def test_a_repetition_changes_nothing(topic: PublishedTopic) -> None:
    for number in range(11):
        topic.publish(topic.file(numbers(10 * number), removed=[(2, 3)]))
    before = {name: topic.store.get(f"orders/_delta_log/{name}") for name in names(topic)}
    for at in range(11):
        topic.write(at)
    assert {name: topic.store.get(f"orders/_delta_log/{name}") for name in names(topic)} == before


class _Crash(BaseException):
    pass


@pytest.mark.parametrize("lost", [False, True])
def test_it_may_stop_at_any_request(topic: PublishedTopic, lost: bool) -> None:
    """The next process writes the rest. A request that was sent may have had its effect, or not."""
    files = [topic.file(numbers(10 * number), removed=[(2, 3)]) for number in range(10)]
    large = topic.file(numbers(0, 40_000), removed=EVERY_OTHER)
    for file in files:
        topic.decide(file)
    topic.decide(large)

    def write(world: World, at: int) -> None:
        before: Tables | None = topic.tables[at - 1] if at else None
        world.run(delta.write_version(before, topic.tables[at], topic.topic, "", retention_ms=1))

    done = World()
    for at in range(10):
        write(done, at)
    whole = World()
    whole.store = dict(done.store)
    write(whole, 10)
    for stop in range(len(whole.requests)):
        world = World()
        world.store = dict(done.store)

        def hook(effect: Effect, world: World = world, stop: int = stop) -> Any:
            if not isinstance(effect, Get | PutIfAbsent) or len(world.requests) <= stop:
                return ASK_STORE
            world.hook = lambda effect: ASK_STORE
            if lost:
                world.answer(effect)
            raise _Crash

        world.hook = hook
        with pytest.raises(_Crash):
            write(world, 10)
        write(world, 10)
        assert world.store == whole.store
    # A version, the one before it, a deletion vector, a checkpoint, and its name.
    assert len(whole.requests) == 6


def test_a_lost_answer_is_settled(topic: PublishedTopic) -> None:
    topic.decide(topic.file(numbers()))
    world = World()
    answers = iter([PutOutcome.UNKNOWN])

    def hook(effect: Effect) -> Any:
        if not isinstance(effect, PutIfAbsent):
            return ASK_STORE
        world.store.setdefault(effect.path, bytes(bytearray(effect.data)))
        return next(answers, ASK_STORE)

    world.hook = hook
    world.run(delta.write_version(None, topic.tables[0], topic.topic, "", retention_ms=1))
    assert [type(each).__name__ for each in world.requests] == ["PutIfAbsent", "Get"]


def test_a_store_that_never_answers(topic: PublishedTopic) -> None:
    topic.decide()
    world = World()
    world.hook = lambda effect: PutOutcome.UNKNOWN if isinstance(effect, PutIfAbsent) else ASK_STORE
    with pytest.raises(OutcomeUnknownError, match="40 tries"):
        world.run(delta.write_version(None, topic.tables[0], topic.topic, "", retention_ms=1))


def test_the_same_publication_in_other_bytes(topic: PublishedTopic) -> None:
    """Another version of txlog may write it differently."""
    topic.publish(topic.file(numbers()))
    path = "orders/_delta_log/00000000000000000000.json"
    other = (topic.store.get(path) or b"").replace(b'"engineInfo":"txlog"', b'"engineInfo":"later"')
    topic.store.delete(path)
    topic.store.put_if_absent(path, other)
    topic.write()
    assert topic.store.get(path) == other


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"damage\n",
        b"[]\n",
        b'{"commitInfo":{"operation":"DELETE"}}\n',
        b'{"commitInfo":{"txlog":7}}\n',
        b'{"commitInfo":{"txlog":{"digest":"another"}}}\n',
        b'{"commitInfo":{"txlog.table":7}}\n',
        b'{"add":{}}\n',
    ],
)
def test_another_program_wrote_to_the_table(topic: PublishedTopic, content: bytes) -> None:
    topic.publish(topic.file(numbers()))
    path = "orders/_delta_log/00000000000000000001.json"
    topic.store.put_if_absent(path, content)
    topic.decide(topic.file(numbers(10)))
    with pytest.raises(TableConflictError, match=path) as caught:
        topic.write()
    assert "publish.formats" in (caught.value.hint or "")
    assert topic.store.get(path) == content


def test_the_version_before_must_be_there(topic: PublishedTopic) -> None:
    topic.publish(topic.file(numbers()))
    topic.store.delete("orders/_delta_log/00000000000000000000.json")
    topic.decide(topic.file(numbers(10)))
    with pytest.raises(TableConflictError, match=r"_delta_log/00000000000000000000\.json"):
        topic.write()
    assert names(topic) == []


# -- costs ------------------------------------------------------------------------------------------------------------


def test_a_version_costs_two_requests_however_long_the_log_is(topic: PublishedTopic) -> None:
    costs = []
    world = World()
    for number in range(31):
        topic.decide(topic.file(numbers(number)))
        before = topic.tables[number - 1] if number else None
        world.requests.clear()
        world.run(delta.write_version(before, topic.tables[number], topic.topic, "", retention_ms=1))
        costs.append(len(world.requests))
    assert costs == [1, *[2] * 9, 5, *[2] * 9, 6, *[2] * 9, 6]
