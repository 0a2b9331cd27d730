"""Renaming, dropping, moving and widening columns: what the key and compaction need, races, and lost replies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from tests.protocol.test_topics import CTX, Partitions, puts
from tests.support import World
from txlog.core import features
from txlog.core.effects import PutOutcome
from txlog.core.evolution import (
    AddColumn,
    AllowNulls,
    Change,
    DropColumn,
    MoveColumn,
    RenameColumn,
    SetType,
    contradictions,
    impossible,
)
from txlog.core.records import SchemaField, TopicMetadata
from txlog.errors import (
    InvalidConfigurationError,
    SchemaMismatchError,
    TxlogError,
    UnknownTopicOrPartitionError,
    UnsupportedStoreError,
)
from txlog.protocol import topic_changes, topics
from txlog.protocol.column_changes import change_columns

WRITE_ID = "c" * 32


def col(name: str, type_name: str = "int32", *children: SchemaField, **more: Any) -> SchemaField:
    return SchemaField(id=1, name=name, type=type_name, fields=children, **more)


FIELDS = [col("id"), col("name", "string"), col("price", "float32"), col("zone", "string")]


class Orders:
    """One topic over one world."""

    def __init__(self, config: Mapping[str, object] | None = None, fields: list[SchemaField] | None = FIELDS) -> None:
        self.world = World()
        self.partitions = Partitions()
        self.base = self.create(config or {}, fields)

    def create(self, config: Mapping[str, object], fields: list[SchemaField] | None) -> TopicMetadata:
        return self.world.run(
            topic_changes.create_topic(
                CTX,
                "orders",
                fields=fields,
                partitions=2,
                config=config,
                append_log_start=self.partitions.append_log_start,
            )
        )

    def change(self, *changes: Change, write_id: str = WRITE_ID) -> TopicMetadata:
        return self.world.run(change_columns(CTX, self.base, changes, write_id=write_id))

    def newest(self) -> TopicMetadata:
        found = self.world.run(topics.find_topic("orders"))
        assert found is not None
        return found


def names(version: TopicMetadata) -> list[tuple[str, int]]:
    return [(field.name, field.id) for field in version.schema]


def test_a_change_is_the_next_version_and_follows_the_one_before() -> None:
    orders = Orders()
    changed = orders.change(
        DropColumn(("name",)),
        RenameColumn(("zone",), "name"),
        SetType(("price",), "float64"),
        AddColumn(col("new", default=1)),
    )
    assert changed == orders.newest()
    assert (changed.number, changed.schema_id, changed.last_field_id, changed.write_id) == (1, 1, 5, WRITE_ID)
    assert names(changed) == [("id", 1), ("price", 3), ("name", 4), ("new", 5)]
    assert [*contradictions(orders.base, changed), *impossible(changed)] == []


def test_what_is_there_already_makes_no_version() -> None:
    orders = Orders()
    assert orders.change(RenameColumn(("name",), "name"), MoveColumn(("id",))) == orders.base
    assert orders.change(AddColumn(col("new")), DropColumn(("new",))) == orders.base


def test_a_program_without_the_feature_makes_no_such_change(monkeypatch: pytest.MonkeyPatch) -> None:
    orders = Orders()
    monkeypatch.setattr(features, "KNOWN_FEATURES", features.KNOWN_FEATURES - {features.SCHEMA_EVOLUTION})
    with pytest.raises(UnsupportedStoreError, match="topic 'orders': the store needs schema-evolution"):
        orders.change(DropColumn(("name",)))
    assert orders.newest() == orders.base


def test_a_later_addition_takes_no_dropped_id() -> None:
    orders = Orders()
    orders.change(DropColumn(("zone",)))
    added = orders.world.run(topic_changes.alter_topic(CTX, "orders", add_columns=[col("zone", "string")]))
    assert names(added)[-1] == ("zone", 5)
    assert added.last_field_id == 5
    assert orders.newest() == added
    more = orders.world.run(topic_changes.alter_topic(CTX, "orders", partitions=3))
    assert (more.last_field_id, more.schema_id) == (5, 2)
    assert orders.newest() == more


class TestTries:
    def test_a_lost_reply_does_not_change_twice(self) -> None:
        orders = Orders()
        orders.world.hook = puts(PutOutcome.UNKNOWN, world=orders.world)
        changed = orders.change(RenameColumn(("name",), "title"))
        assert changed.number == 1
        assert orders.change(RenameColumn(("name",), "title")) == changed  # a later try of the same call
        assert orders.newest() == changed

    def test_a_try_finds_its_version_below_another_one(self) -> None:
        orders = Orders()
        orders.change(DropColumn(("name",)))
        orders.world.run(topic_changes.alter_topic(CTX, "orders", add_columns=[col("name")]))
        again = orders.change(DropColumn(("name",)))
        assert names(again)[-1] == ("name", 5)
        assert again == orders.newest()

    def test_another_change_meanwhile_is_not_taken_for_the_own_columns(self) -> None:
        orders = Orders()
        orders.change(RenameColumn(("name",), "old"), RenameColumn(("zone",), "name"), write_id="d" * 32)
        with pytest.raises(SchemaMismatchError, match=r"changed by another call \(version 1\)"):
            orders.change(DropColumn(("name",)))

    def test_other_settings_meanwhile_stay(self) -> None:
        orders = Orders()
        orders.world.run(topic_changes.alter_topic(CTX, "orders", config={"retention.ms": 5}))
        changed = orders.change(DropColumn(("name",)))
        assert (changed.number, changed.config) == (2, {"retention.ms": "5"})

    def test_a_lost_race_is_run_again_on_the_newer_version(self) -> None:
        orders = Orders()

        def other() -> PutOutcome:
            orders.world.hook = puts(world=orders.world)
            orders.world.run(topic_changes.alter_topic(CTX, "orders", partitions=3))
            return PutOutcome.CONFLICT

        orders.world.hook = puts(other, world=orders.world)
        changed = orders.change(DropColumn(("name",)))
        assert (changed.number, changed.partitions) == (2, 3)

    def test_a_deleted_topic_is_not_changed_nor_the_next_one_of_its_name(self) -> None:
        orders = Orders()
        orders.world.run(topic_changes.delete_topic(CTX, "orders", append_log_start=orders.partitions.append_log_start))
        with pytest.raises(UnknownTopicOrPartitionError, match="was deleted"):
            orders.change(DropColumn(("name",)))
        orders.create({}, FIELDS)
        with pytest.raises(UnknownTopicOrPartitionError, match="created again"):
            orders.change(DropColumn(("name",)))

    def test_endless_races_end(self) -> None:
        orders = Orders()
        orders.world.hook = puts(*[PutOutcome.UNKNOWN] * 1000, world=orders.world, land=False)
        with pytest.raises(TxlogError, match=r"version 1 of topic 'orders'|versions in a row"):
            orders.change(DropColumn(("name",)))
        orders.world.hook = puts(world=orders.world)
        assert orders.newest() == orders.base


class TestKeys:
    KEYED = {"key.columns": "id,zone"}  # noqa: RUF012

    def test_a_renamed_column_of_the_key_stays_in_it(self) -> None:
        orders = Orders(self.KEYED)
        changed = orders.change(RenameColumn(("zone",), "area"), RenameColumn(("name",), "zone"))
        assert changed.config == {"key.columns": "id,area"}

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (DropColumn(("zone",)), "'zone' is in key.columns and cannot be dropped"),
            (SetType(("id",), "int64"), r"'id' is in key\.columns: a wider type would move .*hint: create a new topic"),
            (RenameColumn(("id",), "a,b"), r"cannot name a column 'a,b'"),
            (RenameColumn(("id",), " a"), r"cannot name a column ' a'"),
        ],
    )
    def test_the_key_does_not_move(self, change: Change, message: str) -> None:
        orders = Orders(self.KEYED)
        with pytest.raises(InvalidConfigurationError, match=message):
            orders.change(change)

    def test_the_key_may_move_and_allow_nulls(self) -> None:
        fields = [col("id", nullable=False), *FIELDS[1:]]
        changed = Orders(self.KEYED, fields).change(MoveColumn(("id",), "zone"), AllowNulls(("id",)))
        assert names(changed)[-1] == ("id", 1)
        assert changed.config == self.KEYED

    def test_the_key_of_kafkas_columns_stays_too(self) -> None:
        orders = Orders(fields=None)
        for change in (RenameColumn(("key",), "k"), DropColumn(("headers",)), AddColumn(col("more"))):
            with pytest.raises(SchemaMismatchError, match="rows are distributed by the column 'key'"):
                orders.change(change)
        keyed = Orders({"key.columns": "key"}, fields=None)
        assert keyed.change(RenameColumn(("key",), "k")).config == {"key.columns": "k"}

    def test_a_rename_does_not_count_as_another_key(self) -> None:
        orders = Orders(self.KEYED)
        orders.change(RenameColumn(("zone",), "area"))
        compacted = orders.world.run(topic_changes.alter_topic(CTX, "orders", config={"cleanup.policy": "compact"}))
        assert compacted.config["cleanup.policy"] == "compact"


class TestTombstones:
    COMPACTED = {"key.columns": "id", "cleanup.policy": "compact"}  # noqa: RUF012

    @pytest.mark.parametrize("change", [DropColumn(("price",)), AddColumn(col("new", default=1))])
    def test_a_change_that_changes_which_rows_are_tombstones_is_refused(self, change: Change) -> None:
        orders = Orders(self.COMPACTED)
        with pytest.raises(SchemaMismatchError, match="would change which rows are tombstones"):
            orders.change(change)

    @pytest.mark.parametrize(
        "change",
        [
            RenameColumn(("id",), "key"),
            RenameColumn(("price",), "cost"),
            SetType(("price",), "float64"),
            MoveColumn(("zone",)),
            AddColumn(col("new")),
        ],
    )
    def test_other_changes_are_not(self, change: Change) -> None:
        assert Orders(self.COMPACTED).change(change).number == 1

    def test_in_kafkas_columns_the_value_alone_tells_it(self) -> None:
        orders = Orders({"key.columns": "key", "cleanup.policy": "compact"}, fields=None)
        for change in (RenameColumn(("value",), "v"), DropColumn(("headers",)), MoveColumn(("timestamp",))):
            with pytest.raises(SchemaMismatchError, match="would change which rows are tombstones"):
                orders.change(change)
        assert orders.change(AddColumn(col("more"))).number == 1


def test_versions_are_as_they_were_stored() -> None:
    orders = Orders()
    changed = orders.change(AddColumn(col("new", "decimal(5,2)", default="1.50")))
    found = orders.world.run(topics.read_version("orders", 1))
    assert found == changed
    assert msgspec.structs.asdict(found.schema[-1])["default"] == "1.50"
