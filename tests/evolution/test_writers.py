"""A writer that lives longer than the names of the columns: its values stay in the columns that it meant, or it gets an
error."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from tests.client.world import World
from txlog.client.session.runtime import Runtime
from txlog.client.store import Store
from txlog.client.topics import column_names
from txlog.client.topics.column_names import ColumnNames, topic_versions
from txlog.core.records import TopicMetadata
from txlog.errors import SchemaMismatchError, TransactionAbortableError, UnknownTopicOrPartitionError

AB = pa.schema(
    (("id", pa.int32()), ("a", pa.string()), ("b", pa.string()), ("s", pa.struct((("x", pa.int8()), ("y", pa.int8())))))
)
CHANGED = (
    r"topic 'orders': since version \d+ the name '{}' means another column.*when this producer began.*"
    r"make a new producer"
)


@pytest.fixture
def store(world: World) -> Store:
    made = world.open()
    made.create_topic("orders", AB)
    return made


def rows(store: Store, *columns: str) -> list[dict[str, Any]]:
    return store.table("orders").to_arrow(columns=list(columns)).to_pylist()


def forms() -> dict[str, Any]:
    """Return rows with the columns `a` and `b` in each form that a producer takes."""
    made = pa.table({"a": ["A"], "b": ["B"]})
    return {
        "row": {"a": "A", "b": "B"},
        "rows": [{"b": "B"}, {"a": "A", "b": "B"}],
        "table": made,
        "batch": made.to_batches()[0],
        "stream": pd.DataFrame({"a": ["A"], "b": ["B"]}),
    }


@pytest.mark.parametrize("form", forms())
@pytest.mark.parametrize(
    "changes",
    [
        [{"rename_columns": {"a": "b", "b": "a"}}],
        [{"rename_columns": {"a": "c"}}, {"rename_columns": {"b": "a"}}, {"rename_columns": {"c": "b"}}],
        [{"drop_columns": ["a"]}, {"add_columns": pa.schema({"a": pa.string()})}],
    ],
    ids=["swap", "swap in three versions", "drop and add"],
)
def test_a_producer_that_sleeps_across_a_change_of_names_is_told(
    world: World, store: Store, changes: list[dict[str, Any]], form: str
) -> None:
    with world.open().producer(metadata_max_age_ms=10) as producer:
        producer.send("orders", {"a": "A", "b": "B"}).result()
        for change in changes:
            store.alter_topic("orders", **change)
        world.clock.advance_ms(11)
        with pytest.raises(SchemaMismatchError, match=CHANGED.format("a")):
            producer.send("orders", forms()[form])
        # Rows without such a column are as before, and the producer still works.
        producer.send("orders", [{"id": 1}, {"id": 2, "s": {"x": 1, "y": 2}}]).result()
    assert [row["id"] for row in rows(store, "id")] == [None, 1, 2]
    assert store.table("orders").count(where="a = 'B' OR b = 'A'") == ("rename_columns" in changes[0])


def test_a_producer_that_knows_an_older_version_writes_the_columns_that_it_means(world: World, store: Store) -> None:
    with world.open().producer(metadata_max_age_ms=10**9) as producer:
        producer.send("orders", {"a": "A", "b": "B"}).result()
        store.alter_topic("orders", rename_columns={"a": "b", "b": "a"})
        producer.send("orders", {"a": "A", "b": "B"}).result()
    assert rows(store, "a", "b") == [{"a": "B", "b": "A"}] * 2


def test_a_producer_that_learns_new_names_because_a_row_has_them_is_told_too(world: World, store: Store) -> None:
    with world.open().producer(metadata_max_age_ms=10**9) as producer:
        producer.send("orders", {"a": "A", "b": "B"}).result()
        store.alter_topic("orders", rename_columns={"a": "b", "b": "a"}, add_columns=pa.schema({"c": pa.string()}))
        with pytest.raises(SchemaMismatchError, match=CHANGED.format("a")):
            producer.send("orders", {"a": "A", "c": "C"})
        # The producer asked for the newest columns, so from now on it knows them.
        with pytest.raises(SchemaMismatchError, match=CHANGED.format("b")):
            producer.send("orders", {"b": "B"})
        producer.send("orders", {"c": "C"}).result()
    assert rows(store, "a", "b", "c") == [{"a": "B", "b": "A", "c": None}, {"a": None, "b": None, "c": "C"}]


def test_a_transaction_goes_on_after_rows_were_refused(world: World, store: Store) -> None:
    with world.open().producer("t", metadata_max_age_ms=10) as producer:
        producer.begin_transaction()
        producer.send("orders", {"a": "A"})
        store.alter_topic("orders", rename_columns={"a": "b", "b": "a"})
        world.clock.advance_ms(11)
        with pytest.raises(SchemaMismatchError, match=CHANGED.format("a")):
            producer.send("orders", {"a": "A"})
        producer.send("orders", {"id": 1})
        producer.commit_transaction()
    assert rows(store, "id", "a", "b") == [{"id": None, "a": None, "b": "A"}, {"id": 1, "a": None, "b": None}]


@pytest.mark.parametrize(
    ("change", "row", "found"),
    [
        ({"rename_columns": {"a": "title"}}, {"b": "B"}, {"title": None, "b": "B"}),
        ({"rename_columns": {"a": "title"}}, {"title": "A"}, {"title": "A", "b": None}),
        ({"drop_columns": ["b"]}, {"a": "A"}, {"a": "A"}),
        ({"set_types": {"id": "int64"}, "column_order": ["b"]}, {"a": "A", "b": "B"}, {"b": "B", "a": "A"}),
        ({"add_columns": pa.schema({"c": pa.int8()})}, {"a": "A", "c": 1}, {"a": "A", "b": None, "c": 1}),
        ({"add_fields": {"s": pa.schema({"z": pa.int8()})}}, {"s": {"z": 1}}, {"s": {"x": None, "y": None, "z": 1}}),
        ({"rename_columns": {"s.x": "z"}}, {"s": {"z": 1}}, {"s": {"z": 1, "y": None}}),
    ],
)
def test_other_changes_do_not_stop_a_producer(
    world: World, store: Store, change: dict[str, Any], row: dict[str, Any], found: dict[str, Any]
) -> None:
    with world.open().producer(metadata_max_age_ms=10) as producer:
        producer.send("orders", {"id": 1}).result()
        store.alter_topic("orders", **change)
        world.clock.advance_ms(11)
        producer.send("orders", row).result()
    assert rows(store, *found)[1] == found


def test_a_renamed_column_is_unknown_by_its_old_name(world: World, store: Store) -> None:
    with world.open().producer(metadata_max_age_ms=10) as producer:
        producer.send("orders", {"a": "A"}).result()
        store.alter_topic("orders", rename_columns={"a": "title"})
        world.clock.advance_ms(11)
        with pytest.raises(
            SchemaMismatchError,
            match=r"column 'a' is unknown; the topic has id, title, b, s. 'a' was renamed to 'title'",
        ):
            producer.send("orders", {"a": "A"})


def test_names_inside_of_a_column_count(world: World, store: Store) -> None:
    with world.open().producer(metadata_max_age_ms=10) as producer:
        producer.send("orders", {"s": {"x": 1, "y": 2}}).result()
        store.alter_topic("orders", rename_columns={"s.x": "y", "s.y": "x"})
        world.clock.advance_ms(11)
        with pytest.raises(SchemaMismatchError, match=CHANGED.format("s")):
            producer.send("orders", {"s": {"x": 1, "y": 2}})
        # Back to the names that the producer knows.
        store.alter_topic("orders", rename_columns={"s.x": "y", "s.y": "x"})
        world.clock.advance_ms(11)
        producer.send("orders", {"s": {"x": 1, "y": 2}}).result()
    assert rows(store, "s") == [{"s": {"x": 1, "y": 2}}] * 2


def test_a_topic_that_is_created_again_has_names_of_its_own(world: World, store: Store) -> None:
    with world.open().producer(metadata_max_age_ms=10) as producer:
        producer.send("orders", {"a": "A"}).result()
        store.delete_topic("orders")
        store.create_topic("orders", AB)
        world.clock.advance_ms(11)
        with pytest.raises(UnknownTopicOrPartitionError, match="was deleted and created again"):
            producer.send("orders", {"a": "A"})
        producer.send("orders", {"a": "A"}).result()
    assert rows(store, "a") == [{"a": "A"}]


def test_a_name_that_a_version_in_between_used_otherwise_is_told(world: World, store: Store) -> None:
    names = ColumnNames("this query", "restart the query")
    for change in ({"add_columns": pa.schema({"c": pa.string()})}, {"rename_columns": {"c": "d"}}):
        names.check(store.runtime.topic("orders", 0), ["a", "c"])
        store.alter_topic("orders", **change)
    names.check(store.runtime.topic("orders", 0), ["a", "c"])
    store.alter_topic("orders", add_columns=pa.schema({"c": pa.string()}))
    names.check(store.runtime.topic("orders", 0), ["a", "d"])
    with pytest.raises(
        SchemaMismatchError, match=r"the name 'c' means another column.*this query began.*hint: restart"
    ):
        names.check(store.runtime.topic("orders", 0), ["a", "c"])


@pytest.mark.parametrize("change", [{"drop_columns": ["b"]}, {"add_columns": pa.schema({"c": pa.int8()})}], ids=str)
@pytest.mark.parametrize("flush", [True, False])
def test_a_staged_transaction_across_a_change_of_columns_can_only_be_repeated(
    world: World, store: Store, change: dict[str, Any], flush: bool
) -> None:
    """W29: a COMMIT marker has the rows of one schema. The send already raises the error, not only the commit."""
    with world.open().producer("t", staged=True, inline_max_bytes=0, metadata_max_age_ms=10) as producer:
        producer.begin_transaction()
        sent = producer.send("orders", {"id": 1, "a": "A"})
        if flush:
            producer.flush()
        store.alter_topic("orders", **change)
        world.clock.advance_ms(11)
        second = producer.send("orders", {"id": 2, "a": "B"})
        with pytest.raises(TransactionAbortableError) as error:
            second.result()
        assert "orders-0: the topic's columns changed in this transaction." in str(error.value)
        assert "staged rows of schema 0, these rows have schema 1" in str(error.value)
        assert str(error.value).endswith("hint: abort the transaction, and send its rows again")
        with pytest.raises(TransactionAbortableError, match="columns changed in this transaction"):
            producer.commit_transaction()
        producer.abort_transaction()
        assert sent.exception() is None
        with producer.transaction():
            producer.send("orders", [{"id": 1, "a": "A"}, {"id": 2, "a": "B"}])
    assert rows(store, "id") == [{"id": 1}, {"id": 2}]


def run(world: World, data: Any, version: int) -> bool:
    """Run a job's transaction once. Return whether it was skipped as a repetition."""
    with world.open().producer("job") as producer:
        with producer.transaction(version=version) as scope:
            future = producer.send("orders", data)
        assert scope.result is not None
        assert not scope.result.skipped or future.result().records == 0
        return scope.result.skipped


@pytest.mark.parametrize("form", forms())
@pytest.mark.parametrize(
    "change",
    [
        {"rename_columns": {"a": "title"}},
        {"rename_columns": {"a": "b", "b": "a"}},
        {"drop_columns": ["b"]},
        {"drop_columns": ["a"], "add_columns": pa.schema({"c": pa.string()})},
    ],
)
def test_a_repeated_transaction_is_skipped_whatever_became_of_its_columns(
    world: World, store: Store, change: dict[str, Any], form: str
) -> None:
    assert not run(world, forms()[form], 1)
    count = store.table("orders").count()
    store.alter_topic("orders", **change)
    assert run(world, forms()[form], 1)
    assert store.table("orders").count() == count
    # New rows are checked as before.
    with pytest.raises(SchemaMismatchError, match="unknown"):
        run(world, {"nothing": 1}, 2)
    assert not run(world, {"id": 1}, 2)
    assert store.table("orders").count() == count + 1


def test_rows_that_do_not_fit_are_never_dropped_by_the_next_transaction(
    world: World, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not run(world, {"id": 1}, 1)
    with world.open().producer("job") as producer:
        producer.begin_transaction(version=1)
        inner = producer._split

        def end_and_begin() -> None:
            """End the repeated transaction, and begin one that is not repeated."""
            producer.abort_transaction()
            producer.begin_transaction(version=2)

        def split(*given: Any) -> Any:
            try:
                return inner(*given)
            finally:
                with ThreadPoolExecutor(1) as other:
                    other.submit(end_and_begin).result()

        monkeypatch.setattr(producer, "_split", split)
        with pytest.raises(SchemaMismatchError, match="'nothing' is unknown"):
            producer.send("orders", {"nothing": 1})
        producer.abort_transaction()


SWAP: dict[str, Any] = {"rename_columns": {"a": "b", "b": "a"}}
AGAIN: list[dict[str, Any]] = [{"drop_columns": ["a"]}, {"add_columns": pa.schema({"a": pa.string()})}]
WITH_IDS = {
    "table": lambda store: store.table("orders").to_arrow(columns=["id", "a", "b", "s"]),
    "batch": lambda store: store.table("orders").to_arrow(columns=["a", "b"]).combine_chunks().to_batches()[0],
    "reader": lambda store: store.table("orders").scan(columns=["a"]),
}


@pytest.mark.parametrize("form", WITH_IDS)
@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ([SWAP], r"now of column 'b'\), expected 3: "),
        (AGAIN, r"of a dropped column\), expected \d+: "),
        (
            [{"set_types": {"id": "int64"}}, SWAP, {"add_columns": pa.schema({"n": pa.int8()})}],
            "now of column 'b'",
        ),
    ],
    ids=["swap", "again", "later"],
)
def test_rows_that_were_read_before_a_change_of_names_are_not_sent_back(
    world: World, store: Store, changes: list[dict[str, Any]], found: str, form: str
) -> None:
    with world.open().producer() as producer:
        producer.send("orders", {"id": 1, "a": "A", "b": "B"}).result()
    read = WITH_IDS[form](store)
    if form == "reader":
        read = pa.RecordBatchReader.from_batches(read.schema, list(read))
    for change in changes:
        store.alter_topic("orders", **change)
    with (
        world.open().producer() as producer,
        pytest.raises(
            SchemaMismatchError,
            match=rf"topic 'orders': column 'a' of the rows has the field id 2 \({found}.*read as version \d.*hint: "
            "rename",
        ),
    ):
        producer.send("orders", read)
    assert store.table("orders").count() == 1


def test_rows_with_the_ids_of_the_present_columns_are_sent_back(world: World, store: Store) -> None:
    with world.open().producer() as producer:
        producer.send("orders", {"id": 1, "a": "A", "b": "B", "s": {"x": 1, "y": 2}}).result()
    before = store.table("orders").to_arrow(columns=["a", "b"])
    store.alter_topic("orders", **SWAP)
    with world.open().producer() as producer:
        producer.send("orders", store.table("orders").to_arrow(columns=["id", "a", "b", "s"])).result()
        # What the hint says: other names for the same columns, or no ids.
        producer.send("orders", before.rename_columns(["b", "a"])).result()
        producer.send("orders", before.cast(pa.schema([(each.name, each.type) for each in before.schema]))).result()
    assert rows(store, "a", "b") == [{"a": "B", "b": "A"}] * 3 + [{"a": "A", "b": "B"}]


def test_ids_inside_of_a_column_count(world: World, store: Store) -> None:
    with world.open().producer() as producer:
        producer.send("orders", {"s": {"x": 1, "y": 2}}).result()
    before = store.table("orders").to_arrow(columns=["s"])
    store.alter_topic("orders", rename_columns={"s.x": "y", "s.y": "x"})
    with (
        world.open().producer() as producer,
        pytest.raises(
            SchemaMismatchError,
            match=r"column 's\.x' of the rows has the field id 5 \(now of column 's\.y'\)",
        ),
    ):
        producer.send("orders", before)


@pytest.mark.parametrize("changes", [[SWAP], AGAIN, [{"set_types": {"id": "int64"}}]], ids=["swap", "again", "widen"])
def test_rows_are_copied_between_topics_by_name(
    world: World, store: Store, changes: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[str] = []

    def versions(runtime: Runtime, topic: str) -> tuple[TopicMetadata, ...]:
        looks.append(topic)
        return topic_versions(runtime, topic)

    monkeypatch.setattr(column_names, "topic_versions", versions)
    # The same names with other ids: for `orders` they look like those of swapped columns.
    store.create_topic("source", pa.schema((("b", pa.string()), ("a", pa.string()), ("id", pa.int32()))))
    for change in changes:
        store.alter_topic("orders", **change)
    with world.open().producer() as producer:
        producer.send("source", {"id": 1, "a": "A", "b": "B"}).result()
        for _ in range(2):
            producer.send("orders", store.table("source").to_arrow(columns=["id", "a", "b"])).result()
    assert rows(store, "id", "a", "b") == [{"id": 1, "a": "A", "b": "B"}] * 2
    assert looks == ["orders"]
