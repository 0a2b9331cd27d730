"""Columns change by id: which changes are allowed, which versions may follow, and who can read which rows."""

from __future__ import annotations

import itertools
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from txlog.core.evolution import (
    AddColumn,
    AllowNulls,
    Change,
    DropColumn,
    MoveColumn,
    RenameColumn,
    SetType,
    WrittenSchema,
    apply_changes,
    contradictions,
    describe_changes,
    find_path,
    has_default,
    impossible,
    is_wider,
    last_field_id,
    why_unreadable,
    written_schema,
)
from txlog.core.records import SchemaField, TopicMetadata
from txlog.core.schema import SCALAR_TYPES, assign_ids, check_fields, max_field_id
from txlog.errors import SchemaMismatchError

UNSET = msgspec.UNSET


def col(name: str, type_name: str = "int32", *children: SchemaField, nullable: bool = True, **more: Any) -> SchemaField:
    return SchemaField(
        id=more.pop("field_id", 1), name=name, type=type_name, nullable=nullable, fields=children, **more
    )


OLD = assign_ids(
    [
        col("id", nullable=False),  # 1
        col("name", "string"),  # 2
        col("price", "decimal(9,2)"),  # 3
        col("tags", "list", col("element", "int8", nullable=False)),  # 4, 5
        col("at", "struct", col("x", "float32"), col("y", "int16", nullable=False)),  # 6, 7, 8
        col("by", "map", col("key", "struct", col("k"), nullable=False), col("value", "struct", col("v"))),  # 9, 10, 11, 12, 13
    ]
)  # fmt: skip
LAST = 13


def names(fields: tuple[SchemaField, ...]) -> list[tuple[str, int]]:
    return [(field.name, field.id) for field in fields]


def changed(*changes: Change) -> tuple[SchemaField, ...]:
    return apply_changes(OLD, LAST, changes, "t")[0]


class TestChanges:
    def test_a_rename_keeps_the_id_and_the_place(self) -> None:
        assert names(changed(RenameColumn(("name",), "title")))[:3] == [("id", 1), ("title", 2), ("price", 3)]

    def test_names_can_be_swapped_over_a_third_one(self) -> None:
        swapped = changed(RenameColumn(("id",), "tmp"), RenameColumn(("name",), "id"), RenameColumn(("tmp",), "name"))
        assert names(swapped)[:2] == [("name", 1), ("id", 2)]

    def test_a_dropped_name_comes_back_with_another_id(self) -> None:
        fields, last = apply_changes(OLD, LAST, [DropColumn(("by",)), AddColumn(col("by"))])
        assert names(fields)[-2:] == [("at", 6), ("by", 14)]
        assert last == 14
        again, last = apply_changes(fields, last, [DropColumn(("by",)), AddColumn(col("by"))])
        assert (again[-1].id, last) == (15, 15)

    def test_an_id_is_not_taken_from_what_is_left(self) -> None:
        fields, last = apply_changes(OLD, LAST, [DropColumn(("by",))])
        assert (max_field_id(fields), last) == (8, LAST)

    def test_columns_are_moved(self) -> None:
        assert names(changed(MoveColumn(("price",))))[:3] == [("price", 3), ("id", 1), ("name", 2)]
        assert names(changed(MoveColumn(("id",), "price")))[:3] == [("name", 2), ("price", 3), ("id", 1)]
        assert names(changed(MoveColumn(("at", "y")))[4].fields) == [("y", 8), ("x", 7)]

    def test_types_become_wider_at_every_depth(self) -> None:
        fields = changed(
            SetType(("id",), "int64"),
            SetType(("price",), "decimal(12,2)"),
            SetType(("tags", "element"), "int32"),
            SetType(("at", "x"), "float64"),
            SetType(("by", "value", "v"), "int64"),
        )
        assert [fields[0].type, fields[2].type] == ["int64", "decimal(12,2)"]
        assert fields[3].fields[0].type == "int32"
        assert fields[4].fields[0].type == "float64"
        assert fields[5].fields[1].fields[0].type == "int64"

    def test_nulls_are_allowed_at_every_depth(self) -> None:
        fields = changed(AllowNulls(("id",)), AllowNulls(("tags", "element")), AllowNulls(("at", "y")))
        assert fields[0].nullable
        assert fields[3].fields[0].nullable
        assert fields[4].fields[1].nullable

    def test_columns_are_added_at_every_depth(self) -> None:
        more = col("more", "struct", col("deep", nullable=False))
        fields = changed(AddColumn(more), AddColumn(col("z"), ("at",)), AddColumn(col("w"), ("by", "value")))
        assert names(fields)[-1] == ("more", 14)
        assert names(fields[-1].fields) == [("deep", 15)]
        assert names(fields[4].fields)[-1] == ("z", 16)
        assert names(fields[5].fields[1].fields)[-1] == ("w", 17)

    def test_a_change_that_is_there_already_changes_nothing(self) -> None:
        assert changed(
            RenameColumn(("name",), "name"), SetType(("id",), "int32"), AllowNulls(("name",)), MoveColumn(("id",))
        ) == OLD  # fmt: skip

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (RenameColumn(("nam",), "x"), "t: column 'nam' does not exist. Did you mean 'name'"),
            (RenameColumn(("name",), "price"), "two columns have the name 'price'"),
            (RenameColumn(("name",), "PRICE"), "'PRICE' differ"),
            (RenameColumn(("name",), "_offset"), "belong to txlog"),
            (RenameColumn(("name",), ""), "must have 1 to 1000 characters"),
            (RenameColumn(("at", "x"), "Y"), "'y' and 'Y' differ"),
            (RenameColumn(("tags", "element"), "x"), "'tags.element' belongs to a list: it cannot be renamed"),
            (DropColumn(("by", "value")), "'by.value' belongs to a map"),
            (DropColumn(("by", "value", "v")), "'by.value.v' is the last one of its struct"),
            (MoveColumn(("tags", "element")), "belongs to a list"),
            (MoveColumn(("id",), "id"), "column 'id' does not exist"),
            (MoveColumn(("id",), "x"), "column 'x' does not exist"),
            (SetType(("id",), "int16"), "'id' cannot change from int32 to int16; allowed are: add a nullable column"),
            (SetType(("id",), "string"), "'id' cannot change from int32 to string"),
            (SetType(("id",), "float64"), "from int32 to float64"),
            (SetType(("price",), "decimal(8,2)"), r"from decimal\(9,2\) to decimal\(8,2\)"),
            (SetType(("price",), "decimal(12,3)"), r"to decimal\(12,3\)"),
            (SetType(("price",), "decimal(39,2)"), r"to decimal\(39,2\)"),
            (SetType(("tags",), "map"), "from list to map"),
            (SetType(("by", "key"), "int64"), "the key of a map cannot change"),
            (SetType(("by", "key", "k"), "int64"), "the key of a map cannot change"),
            (RenameColumn(("by", "key", "k"), "l"), "the key of a map cannot change"),
            (AllowNulls(("by", "key")), "the key of a map cannot change"),
            (AddColumn(col("z"), ("by", "key")), "'by.key' is the key of a map"),
            (AddColumn(col("z"), ("tags",)), "'tags' is a list, and only a struct"),
            (AddColumn(col("z"), ("nope",)), "column 'nope' does not exist"),
            (AddColumn(col("z", nullable=False)), "'z' must be nullable"),
            (AddColumn(col("NAME")), "'name' and 'NAME'"),
            (AddColumn(col("z", "uint8")), "type 'uint8' is not supported"),
            (AddColumn(col("z", "struct", col("y", default=1))), "only the whole column can have a default"),
            (AddColumn(col("z", "list", col("element"), default=1)), "1 is not a default for list"),
        ],
    )  # fmt: skip
    def test_anything_else_is_refused(self, change: Change, message: str) -> None:
        with pytest.raises(SchemaMismatchError, match=message):
            changed(change)

    def test_the_last_column_stays(self) -> None:
        with pytest.raises(SchemaMismatchError, match="last one"):
            apply_changes(OLD[:1], 1, [DropColumn(("id",))])


def test_what_a_type_can_become() -> None:
    types = [*sorted(SCALAR_TYPES), "decimal(9,2)", "decimal(38,2)", "decimal(38,3)", "list", "struct"]
    assert {(old, new) for old in types for new in types if is_wider(old, new)} == {
        ("int8", "int16"), ("int8", "int32"), ("int8", "int64"), ("int16", "int32"), ("int16", "int64"),
        ("int32", "int64"),
        ("float32", "float64"), ("decimal(9,2)", "decimal(38,2)"),
    }  # fmt: skip


class TestDefaults:
    @pytest.mark.parametrize(
        ("type_name", "value", "stored"),
        [
            ("bool", False, False), ("int8", -128, -128), ("int64", 2**63 - 1, 2**63 - 1),
            ("float32", 0.1, 0.10000000149011612), ("float64", 0.1, 0.1), ("float64", 3, 3.0),
            ("string", "", ""), ("binary", "00ff", "00ff"), ("date", -1, -1), ("timestamp", 0, 0),
            ("timestamp_ntz", 1, 1),
            ("decimal(5,2)", "-123.45", "-123.45"), ("decimal(5,2)", "7", "7"), ("decimal(2,2)", "0.25", "0.25"),
        ],
    )  # fmt: skip
    def test_a_default_is_kept_as_its_type_holds_it(self, type_name: str, value: Any, stored: Any) -> None:
        field = changed(AddColumn(col("new", type_name, default=value)))[-1]
        assert (field.default, type(field.default)) == (stored, type(stored))

    @pytest.mark.parametrize(
        ("type_name", "value"),
        [
            ("bool", 1), ("int8", 128), ("int8", True), ("int32", 1.0), ("int64", 2**63), ("int64", "1"),
            ("float64", True), ("float32", 1e39),
            ("float64", float("nan")), ("float64", float("inf")), ("float64", "1"), ("float64", 2**53 + 1),
            ("float64", 10**400), ("string", 1),
            ("binary", "0"), ("binary", "FF"), ("binary", 1), ("date", 2**31), ("date", "2020-01-01"),
            ("timestamp", 1.5),
            ("decimal(5,2)", "1234"), ("decimal(5,2)", "0.123"), ("decimal(5,2)", 1), ("decimal(5,2)", "1e2"),
            ("decimal(5,2)", ""),
        ],
    )  # fmt: skip
    def test_other_values_are_refused(self, type_name: str, value: Any) -> None:
        with pytest.raises(SchemaMismatchError, match=f"is not a default for {re.escape(type_name)}"):
            changed(AddColumn(col("new", type_name, default=value)))

    def test_a_column_with_a_default_is_nullable(self) -> None:
        with pytest.raises(SchemaMismatchError, match="must be nullable"):
            check_fields([col("x", nullable=False, default=1)])

    def test_a_rename_and_a_wider_type_keep_it(self) -> None:
        added = changed(AddColumn(col("new", "float32", default=0.1)))
        (field,) = apply_changes(added, 14, [RenameColumn(("new",), "x"), SetType(("x",), "float64")])[0][-1:]
        assert (field.name, field.type, field.default) == ("x", "float64", 0.10000000149011612)

    def test_only_rows_of_before_have_it(self) -> None:
        field = col("new", field_id=14, default=1)
        assert has_default(field, 13)
        assert not has_default(field, 14)
        assert not has_default(col("new", field_id=14), 13)


class TestPaths:
    def test_a_name_may_have_dots(self) -> None:
        fields = assign_ids(
            [col("a.b"), col("a", "struct", col("c"), col("d.e")), col("m", "map", col("key"), col("value"))]
        )
        assert find_path(fields, "a.b") == ("a.b",)
        assert find_path(fields, "a.c") == ("a", "c")
        assert find_path(fields, "a.d.e") == ("a", "d.e")
        assert find_path(fields, "m.value") == ("m", "value")
        with pytest.raises(SchemaMismatchError, match=r"t: column 'a\.x' does not exist"):
            find_path(fields, "a.x", "t")

    def test_two_meanings_are_refused(self) -> None:
        with pytest.raises(SchemaMismatchError, match=r"'a\.b' names 2 fields"):
            find_path(assign_ids([col("a.b"), col("a", "struct", col("b"))]), "a.b")


def version(number: int = 3, **fields: Any) -> TopicMetadata:
    told = {"topic_id": "0" * 32, "partitions": 2, "schema": OLD, "schema_id": 0, "deleted": False, **fields}
    return TopicMetadata(number=number, topic="t", created_at=0, write_id="0" * 32, **told)


def after(*changes: Change, before: TopicMetadata | None = None) -> TopicMetadata:
    base = before or version()
    fields, last = apply_changes(base.schema, last_field_id(base), changes)
    number = base.number + 1
    return msgspec.structs.replace(base, number=number, schema=fields, schema_id=number, last_field_id=last)


CHANGES: list[Change] = [
    AddColumn(col("new", default=1)),
    RenameColumn(("name",), "title"),
    DropColumn(("name",)),
    MoveColumn(("id",), "at"),
    SetType(("price",), "decimal(38,2)"),
    AllowNulls(("id",)),
    AddColumn(col("z", "struct", col("deep", nullable=False)), ("at",)),
    DropColumn(("at", "y")),
]


class TestVersions:
    @pytest.mark.parametrize("change", CHANGES)
    def test_every_allowed_change_may_follow(self, change: Change) -> None:
        later = after(change)
        assert list(contradictions(version(), later)) == []
        assert list(impossible(later)) == []

    @pytest.mark.parametrize("change", CHANGES)
    def test_without_a_last_field_id_only_additions_may_follow(self, change: Change) -> None:
        later = msgspec.structs.replace(after(change), last_field_id=UNSET)
        assert [*contradictions(version(), later), *impossible(later)]

    def test_all_of_them_in_one_version(self) -> None:
        assert list(contradictions(version(), after(*CHANGES[3:], RenameColumn(("name",), "b")))) == []

    @pytest.mark.parametrize(
        ("changes", "expected"),
        [
            ({"schema": (col("id", field_id=1), *OLD[2:]), "last_field_id": 12}, "last_field_id of at least 13"),
            ({"schema": (col("id", "int16", field_id=1, nullable=False), *OLD[1:])}, r"what column 'id' \(id 1\): int32 not null may become"),
            ({"schema": (col("id", "string", field_id=1), *OLD[1:])}, "what column 'id'"),
            ({"schema": (OLD[0], col("name", "string", field_id=2, nullable=False), *OLD[2:])}, "what column 'name'"),
            ({"schema": (OLD[0], col("name", "string", field_id=2, default="x"), *OLD[2:])}, "what column 'name'"),
            ({"schema": (*OLD, col("new", field_id=13))}, None),
            ({"schema": (*OLD, col("new", field_id=14, nullable=False)), "last_field_id": 14}, "new columns that are nullable"),
            ({"schema": (*OLD[:3], col("tags", "list", col("element", "int8", field_id=14), field_id=4)), "last_field_id": 14}, "new columns"),
            ({"schema": (*OLD[:4], col("x", "float32", field_id=7))}, r"what column 'x' \(id 7\)"),
            ({"schema": OLD[:1], "schema_id": 0}, "the schema of version 3, or schema_id 4"),
            ({"last_field_id": 14, "schema_id": 0}, "last_field_id UNSET, as the schema is the same"),
        ],
    )  # fmt: skip
    def test_what_cannot_follow(self, changes: dict[str, Any], expected: str | None) -> None:
        later = version(4, **{"last_field_id": 13, "schema_id": 4, **changes})
        found = list(contradictions(version(), later))
        if expected is None:
            with pytest.raises(SchemaMismatchError, match="ids must be distinct"):
                check_fields(later.schema)
        else:
            assert re.match(expected, found[0][0]), found

    def test_the_key_of_a_map_stays_as_it_is(self) -> None:
        key = col("key", "struct", col("k", "int64", field_id=11), field_id=10, nullable=False)
        by = msgspec.structs.replace(OLD[5], fields=(key, OLD[5].fields[1]))
        found = list(contradictions(version(), version(4, schema=(*OLD[:5], by), schema_id=4, last_field_id=13)))
        assert found[0][0].startswith("what column 'by'")

    def test_a_dropped_id_never_comes_back(self) -> None:
        dropped = after(DropColumn(("name",)))
        back = version(5, schema=OLD, schema_id=5, last_field_id=13)
        assert list(contradictions(dropped, back)) == [("new field ids from 14 on", "'name' (id 2): string")]

    def test_a_topic_of_the_same_name_begins_above_every_dropped_id(self) -> None:
        gone = msgspec.structs.replace(after(DropColumn(("by",))), number=5, deleted=True)
        anew = {"topic_id": "1" * 32, "schema_id": 6}
        assert list(contradictions(gone, version(6, schema=(col("a", field_id=14),), **anew))) == []
        (found,) = contradictions(gone, version(6, schema=(col("a", field_id=9),), **anew))
        assert found[0].startswith("field ids from 14 on")

    def test_the_mark_does_not_go_away(self) -> None:
        dropped = after(DropColumn(("name",)))
        later = after(AddColumn(col("new")), before=dropped)
        assert list(contradictions(dropped, later)) == []
        unmarked = msgspec.structs.replace(later, last_field_id=UNSET)
        assert next(contradictions(dropped, unmarked))[0].startswith("last_field_id of at least 13")

    def test_one_version_contradicts_itself(self) -> None:
        assert list(impossible(version(last_field_id=12))) == [("last_field_id of at least 13, the highest id", "12")]
        lone = version(schema=(col("a", default=1),))
        assert list(impossible(lone)) == [("no default without last_field_id", "'a' (id 1): default 1")]


class TestReaders:
    def test_a_reader_of_the_newest_columns_reads_all_rows_of_before(self) -> None:
        first = version()
        for change in CHANGES:
            if change != DropColumn(("name",)):
                assert why_unreadable(after(change).schema, written_schema(first)) is None, change

    @pytest.mark.parametrize(
        ("change", "why"),
        [
            (RenameColumn(("name",), "title"), None),
            (MoveColumn(("id",), "at"), None),
            (AddColumn(col("new")), None),
            (DropColumn(("name",)), "column 'name' was dropped"),
            (DropColumn(("at", "y")), "column 'at.y' was dropped"),
            (SetType(("id",), "int64"), "column 'id' is int64 now, and this read has int32"),
            (SetType(("tags", "element"), "int16"), "column 'tags.element' is int16 now"),
            (AllowNulls(("id",)), "column 'id' may be null now"),
            (AllowNulls(("at", "y")), "column 'at.y' may be null now"),
        ],
    )
    def test_an_older_reader_stops_where_its_columns_cannot_hold_the_rows(
        self, change: Change, why: str | None
    ) -> None:
        found = why_unreadable(OLD, written_schema(after(change)))
        assert (found or "").startswith(why or "")
        assert (found is None) == (why is None)

    def test_only_the_columns_that_are_read_count(self) -> None:
        assert why_unreadable(OLD[1:], written_schema(after(SetType(("id",), "int64")))) is None

    def test_a_name_that_was_taken_by_another_column_is_not_read(self) -> None:
        later = after(DropColumn(("price",)), RenameColumn(("name",), "price"))
        assert why_unreadable([OLD[2]], written_schema(later)) == "column 'price' was dropped"
        assert why_unreadable([OLD[1]], written_schema(later)) is None
        assert [field.id for field in later.schema if field.name == "price"] == [2]

    def test_a_column_that_is_not_nullable_must_be_there(self) -> None:
        new = [col("new", field_id=14, nullable=False)]
        assert why_unreadable(new, WrittenSchema(OLD, 13)) == "column 'new' is not nullable, and these rows lack it"


@st.composite
def histories(draw: st.DrawFn) -> list[TopicMetadata]:
    """Return versions of a topic that were made by drawn changes."""
    chain = [version(0, schema=OLD, schema_id=0)]
    for step in range(draw(st.integers(1, 8))):
        before = chain[-1]
        field = draw(st.sampled_from(before.schema))
        other = draw(st.sampled_from(before.schema))
        change: Any = draw(
            st.sampled_from(
                [
                    AddColumn(col(f"n{step}", "int8", default=step)),
                    AddColumn(col(draw(st.sampled_from(["id", "name", "again"])), "string")),
                    RenameColumn((field.name,), draw(st.sampled_from([f"r{step}", "id", "name"]))),
                    DropColumn((field.name,)),
                    MoveColumn((field.name,), other.name),
                    SetType((field.name,), draw(st.sampled_from(["int16", "int64", "decimal(20,2)"]))),
                    AllowNulls((field.name,)),
                ]
            )
        )
        try:
            later = after(change, before=before)
        except SchemaMismatchError:
            continue
        if later.schema != before.schema:
            chain.append(later)
    return chain


@given(histories())
def test_an_id_means_one_column_over_the_whole_history(chain: list[TopicMetadata]) -> None:
    living: dict[int, str] = {}
    dead: set[int] = set()
    for before, later in itertools.pairwise(chain):
        assert list(contradictions(before, later)) == []
        assert list(impossible(later)) == []
        gone = {field.id for field in before.schema} - {field.id for field in later.schema}
        dead |= gone
        assert not dead & {field.id for field in later.schema}
    for each in chain:
        for field in each.schema:
            kind = (
                "decimal" if field.type.startswith("decimal") else "int" if field.type.startswith("int") else field.type
            )
            assert living.setdefault(field.id, kind) == kind


@given(histories())
def test_the_newest_columns_read_every_row_of_the_history(chain: list[TopicMetadata]) -> None:
    for older in chain:
        assert why_unreadable(chain[-1].schema, written_schema(older)) is None


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ([], []),
        ([RenameColumn(("at", "x"), "lon")], ["renamed at.x to at.lon"]),
        ([RenameColumn(("at",), "place"), SetType(("place", "x"), "float64")], ["renamed at to place", "widened place.x from float32 to float64"]),
        ([DropColumn(("name",)), AddColumn(col("name", "int8", default=3))], ["dropped name", "added name int8, default 3"]),
        ([AllowNulls(("id",)), AddColumn(col("z"), ("at",))], ["allowed null in id", "added at.z int32"]),
        ([MoveColumn(("by",))], ["moved: by, id, name, price, tags, at"]),
    ],
)  # fmt: skip
def test_changes_are_told_to_people(changes: list[Change], text: list[str]) -> None:
    assert list(describe_changes(OLD, changed(*changes))) == text
