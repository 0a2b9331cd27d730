"""`Store.alter_topic` and `txlog topics alter` change columns by id."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

import txlog
from tests.cli.support import FAST, Cli
from tests.client.world import World
from tests.evolution.log import SCHEMA, made, topic_of
from txlog.client.store import Store
from txlog.client.topics.column_changes import stored_default
from txlog.core.evolution import contradictions
from txlog.core.features import SCHEMA_EVOLUTION, STORE_FEATURES
from txlog.core.records import SchemaField
from txlog.core.schema import describe
from txlog.errors import InvalidConfigurationError, InvalidRequestError, SchemaMismatchError, UnsupportedStoreError
from txlog.protocol.stores import create_store


def columns(store: Store) -> list[tuple[int, str, str]]:
    return [(field.id, field.name, describe(field)) for field in topic_of(store).schema]


def opened(world: World) -> Store:
    made(world)
    return world.open()


def test_one_call_makes_one_version(world: World) -> None:
    store = opened(world)
    with store.producer() as producer:
        producer.send("orders", [{"id": 1, "name": "n", "price": Decimal("1.25"), "at": {"x": 0.5, "y": 2}}]).result()
    before = topic_of(store)
    changed = store.alter_topic(
        "orders",
        rename_columns={"name": "price", "price": "name", "at": "place", "at.x": "y", "at.y": "x"},
        drop_columns=["tags"],
        set_types={"price": "decimal( 20, 2 )", "at.x": pa.float64()},
        add_columns=pa.schema((pa.field("tags", pa.string()), pa.field("day", pa.date32()))),
        add_fields={"place": pa.schema([pa.field("z", pa.int8())])},
        column_defaults={"tags": "none", "day": datetime.date(1969, 12, 31), "place.z": 7},
        column_order=["place.z", "place.x", "day", "id"],
    )
    assert (changed.version, changed.schema_id) == (1, 1)
    assert [*contradictions(before, topic_of(store))] == []
    assert columns(store) == [
        (10, "day", "date"),
        (1, "id", "int32 not null"),
        (2, "price", "string"),
        (3, "name", "decimal(20,2)"),
        (4, "place", "struct<z int8, x int16, y float64>"),
        (9, "tags", "string"),
    ]
    (row,) = world.open().table("orders").to_arrow(columns=["*"]).to_pylist()
    assert row == {
        "day": datetime.date(1969, 12, 31),
        "id": 1,
        "price": "n",
        "name": Decimal("1.25"),
        "place": {"z": 7, "x": 2, "y": 0.5},
        "tags": "none",
    }


def test_a_key_column_is_renamed_and_cannot_be_dropped(world: World) -> None:
    store = opened(world)
    assert store.alter_topic("orders", rename_columns={"id": "order"}).config["key.columns"] == "order"
    with pytest.raises(InvalidConfigurationError, match=r"'order' is in key\.columns and cannot be dropped"):
        store.alter_topic("orders", drop_columns=["order"])


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"drop_columns": ["nam"]}, "column 'nam' does not exist. Did you mean 'name'"),
        (
            {"set_types": {"price": "int64"}},
            r"column 'price' cannot change from decimal\(7,2\) to int64; allowed are: add",
        ),
        ({"set_types": {"price": "bigint"}}, r"column 'price': 'bigint' is not a type\. hint: name one of int64"),
        ({"set_types": {"price": float}}, r"column 'price': <class 'float'> is not a type\. hint: name one of int64"),
        ({"set_types": {"at": pa.time64("us")}}, r"column 'at': Arrow's time64\[us\] is not a type of a topic"),
        ({"set_types": {"at.y": "int8"}}, r"column 'at\.y' cannot change from int16 to int8"),
        ({"rename_columns": {"name": "id"}}, "id"),
        ({"rename_columns": {"tags.element": "e"}}, "belongs to a list: it cannot be renamed"),
        ({"column_defaults": {"name": "x"}}, "'name' has a default and is not a new column"),
        (
            {"add_columns": pa.schema([pa.field("at.z", pa.int8())])},
            r"'at' is a struct\. hint: add the field with add_fields",
        ),
        (
            {"add_columns": pa.schema([pa.field("at.z", pa.int8())]), "column_defaults": {"at.z": 1}},
            r"'at' is a struct\. hint: add the field with add_fields",
        ),
        ({"add_fields": {"name": pa.schema([pa.field("z", pa.int8())])}}, "is a string, and only a struct"),
        (
            {"add_columns": pa.schema([pa.field("n", pa.int8())]), "column_defaults": {"n": 200}},
            "200 is not a default for int8",
        ),
    ],
)
def test_what_is_not_allowed_is_refused_with_the_reason(world: World, given: dict[str, Any], error: str) -> None:
    store = opened(world)
    before = topic_of(store)
    with pytest.raises(SchemaMismatchError, match=error):
        store.alter_topic("orders", **given)
    assert topic_of(store) == before


def test_columns_and_settings_are_two_calls(world: World) -> None:
    store = opened(world)
    with pytest.raises(InvalidRequestError, match="make two calls"):
        store.alter_topic("orders", drop_columns=["tags"], config={"retention.ms": 1})
    assert topic_of(store).number == 0


def test_a_store_without_the_feature_refuses_and_can_still_add_columns(world: World) -> None:
    store = world.open()
    features = tuple(each for each in STORE_FEATURES if each != SCHEMA_EVOLUTION)
    store.runtime.run(create_store(store.runtime.constants, features=features))
    store.create_topic("orders", SCHEMA)
    with pytest.raises(UnsupportedStoreError, match=r"was made without the feature schema-evolution.*copy the rows"):
        store.alter_topic("orders", drop_columns=["tags"])
    assert store.alter_topic("orders", add_columns=pa.schema([pa.field("new", pa.int8())])).version == 1
    assert topic_of(store).last_field_id is msgspec.UNSET


@pytest.mark.parametrize(
    ("kind", "value", "stored"),
    [
        ("decimal(9,2)", Decimal("1.50"), "1.50"),
        ("decimal(9,2)", Decimal("1.5E+3"), "1500"),
        ("decimal(9,1)", Decimal("1.50"), "1.5"),
        ("decimal(9,0)", 12, "12"),
        ("binary", b"\x00\xff", "00ff"),
        ("date", datetime.date(1970, 1, 2), 1),
        ("timestamp", datetime.datetime(1970, 1, 1, 1, tzinfo=datetime.timezone(datetime.timedelta(hours=1))), 0),
        ("timestamp_ntz", datetime.datetime(1969, 12, 31, 23, 59, 59, 999999), -1),
        ("string", "x", "x"),
        ("string", np.str_("x"), "x"),
        ("int64", np.int64(5), 5),
        ("bool", np.bool_(True), True),
        ("float32", np.float32(0.5), 0.5),
    ],
)
def test_defaults_are_stored_as_topic_versions_have_them(kind: str, value: object, stored: object) -> None:
    found = stored_default(SchemaField(id=1, name="c", type=kind), value, "topic 't'")
    assert (type(found), found) == (type(stored), stored)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("timestamp", datetime.datetime(1970, 1, 1)),
        ("decimal(9,0)", Decimal("NaN")),
        ("string", None),
        ("string", "\ud800"),
        ("timestamp", np.datetime64(1, "ns")),
        ("string", np.str_("a\udfff")),
        ("decimal(9,0)", True),
    ],
)
def test_other_defaults_are_refused(kind: str, value: object) -> None:
    with pytest.raises(SchemaMismatchError, match="topic 't': column 'c': "):
        stored_default(SchemaField(id=1, name="c", type=kind), value, "topic 't'")


# -- the command line -------------------------------------------------------------------------------------------------


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    made = Cli(tmp_path / "store")
    made(
        "topics",
        "create",
        "orders",
        "--column",
        "id:int32:not-null",
        "--column",
        "name:string",
        "--column",
        "at:struct<x float32>",
    )
    with txlog.open(str(made.root), storage_options=FAST) as store, store.producer() as producer:
        producer.send("orders", [{"id": 1, "name": "n", "at": {"x": 0.5}}]).result()
    return made


def test_the_command_changes_columns(cli: Cli) -> None:
    done = cli(
        *(
            "topics",
            "alter",
            "orders",
            "--rename-column",
            "name=title",
            "--set-type",
            "at.x=float64",
            "--nullable",
            "id",
        ),
        *("--add-column", "at.y:int8=3", "--add-column", "price:decimal(5,2)=1.5", "--add-column", "name:string"),
        *("--column-order", "title,id"),
    )
    assert done.out == "Changed topic 'orders': version 1, 1 partition, 5 columns, no settings of its own.\n"
    cli("topics", "alter", "orders", "--drop-column", "id")
    (described,) = cli("topics", "describe", "orders", "--schema-history", "-o", "json").json
    assert [(each["id"], each["name"]) for each in described["columns"]] == [
        (2, "title"),
        (3, "at"),
        (5, "price"),
        (6, "name"),
    ]
    assert described["schema_history"][-1]["changes"] == ["dropped id"]
    with txlog.open(str(cli.root), storage_options=FAST) as store:
        (row,) = store.table("orders").to_arrow(columns=["*"]).to_pylist()
    assert row == {"title": "n", "at": {"x": 0.5, "y": 3}, "price": Decimal("1.50"), "name": None}


def test_the_command_says_what_is_wrong(cli: Cli) -> None:
    alter = ("topics", "alter", "orders")
    assert cli.fails(*alter).startswith("nothing to alter; give --set, --unset, --partitions, --add-column")
    assert "--rename-column takes KEY=VALUE" in cli.fails(*alter, "--rename-column", "name")
    assert "'x' is not a default for int8" in cli.fails(*alter, "--add-column", "n:int8=x")
    assert "'' is not a default for list" in cli.fails(*alter, "--add-column", "n:list<int8>=")
    assert "name the new columns in one way" in cli.fails(*alter, "--add-column", "n:int8", "--column", "m:int8")
    assert "allowed are: add a nullable column" in cli.fails(*alter, "--set-type", "id=int8")
    assert "make two calls" in cli.fails(*alter, "--drop-column", "name", "--set", "retention.ms=1")


def test_the_command_says_that_a_wider_column_moves_the_keys_of_programs(cli: Cli) -> None:
    """Kafka's serializers write an int64 in more bytes, so a program that sends with `key="id"` moves its keys."""
    assert "warning" not in cli("topics", "alter", "orders", "--set-type", "id=int64").err  # one partition
    columns = [text for each in ("n:int16", "m:int8", "x:float32") for text in ("--column", each)]
    cli("topics", "create", "many", "--partitions", 2, *columns)
    wider = cli("topics", "alter", "many", "--set-type", "n=int32", "--set-type", "m=int64", "--set-type", "x=float64")
    assert wider.err.startswith(
        "warning: 'n' became wider, and Kafka's serializers write a wider integer in more bytes."
    )
    assert "warning" not in cli("topics", "alter", "many", "--rename-column", "n=id").err
    assert "'id' became wider" in cli("topics", "alter", "many", "--set-type", "id=int64", "-o", "json").err


def test_a_new_column_of_an_existing_name_is_refused(cli: Cli) -> None:
    alter = ("topics", "alter", "orders", "--add-column")
    assert "column 'name' exists already; choose another name" in cli.fails(*alter, "name:string=x")
    assert "column 'at.x' exists already; choose another name" in cli.fails(*alter, "at.x:float32")
    assert "name" in cli.fails(*alter, "NAME:string=x")
