"""The closed list of types, ids that are never reused, and the only allowed change."""

from __future__ import annotations

import re

import msgspec
import pytest
from hypothesis import given, strategies as st

from txlog.core import envelope
from txlog.core.evolution import contradictions
from txlog.core.records import SchemaField, TopicMetadata
from txlog.core.schema import (
    KAFKA_FIELDS,
    MAX_NESTING,
    SCALAR_TYPES,
    add_columns,
    assign_ids,
    check_fields,
    check_new_names,
    decimal_type,
    describe,
    evolve,
    max_field_id,
    parse_decimal,
)
from txlog.errors import SchemaMismatchError


def col(
    name: str, type_name: str = "int64", *children: SchemaField, nullable: bool = True, field_id: int = 1
) -> SchemaField:
    return SchemaField(id=field_id, name=name, type=type_name, nullable=nullable, fields=children)


def nested(depth: int) -> SchemaField:
    field = col("element")
    for number in range(depth - 1):
        field = col("x" if number == depth - 2 else "element", "list", field)
    return field


OLD = assign_ids(
    [col("id", nullable=False), col("tags", "list", col("element", "string")), col("price", "decimal(10,2)")]
)

scalar_types = st.sampled_from(sorted(SCALAR_TYPES)) | st.builds(decimal_type, st.just(38), st.integers(0, 38))
names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=8)


def distinct(fields: list[SchemaField]) -> list[SchemaField]:
    return list({field.name.lower(): field for field in fields}.values())


def nest(inner: st.SearchStrategy[SchemaField]) -> st.SearchStrategy[SchemaField]:
    return st.one_of(
        st.builds(
            lambda name, item, nullable: col(name, "list", msgspec.structs.replace(item, name="element"), nullable=nullable),
            names, inner, st.booleans(),
        ),
        st.builds(
            lambda name, key, value: col(
                name, "map", msgspec.structs.replace(key, name="key", nullable=False), msgspec.structs.replace(value, name="value")
            ),
            names, inner, inner,
        ),
        st.builds(lambda name, children: col(name, "struct", *distinct(children)), names, st.lists(inner, min_size=1, max_size=3)),
    )  # fmt: skip


fields = st.recursive(st.builds(col, names, scalar_types, nullable=st.booleans()), nest, max_leaves=6).filter(
    lambda field: not field.name.lower().startswith(("_topic", "_partition", "_offset", "_timestamp"))
)
schemas = st.lists(fields, min_size=1, max_size=5).map(distinct)


class TestTypes:
    @pytest.mark.parametrize("type_name", sorted(SCALAR_TYPES))
    def test_scalars(self, type_name: str) -> None:
        check_fields([col("x", type_name)])

    @pytest.mark.parametrize(
        ("type_name", "parsed"),
        [
            ("decimal(1,0)", (1, 0)),
            ("decimal(38,38)", (38, 38)),
            ("decimal(39,0)", None),
            ("decimal(0,0)", None),
            ("decimal(5,6)", None),
            ("decimal(05,2)", None),
            ("decimal(5, 2)", None),
            ("decimal(5,-2)", None),
            ("decimal(5,2)\n", None),
            ("decimal(5)", None),
            ("decimal(٥,2)", None),
            ("", None),
        ],
    )
    def test_decimals(self, type_name: str, parsed: tuple[int, int] | None) -> None:
        assert parse_decimal(type_name) == parsed
        if parsed:
            check_fields([col("x", type_name)])
        else:
            with pytest.raises(SchemaMismatchError, match="is not supported"):
                check_fields([col("x", type_name)])

    @pytest.mark.parametrize(
        "type_name",
        [
            "uint8",
            "float16",
            "large_string",
            "dictionary",
            "timestamp[ns]",
            "time64",
            "null",
            "Int64",
            "decimal256(50,2)",
            "duration",
        ],
    )
    def test_others_are_refused_and_the_known_ones_named(self, type_name: str) -> None:
        with pytest.raises(
            SchemaMismatchError,
            match=r"orders: column 'x': type .* is not supported; use one of binary, bool, .*decimal",
        ):
            check_fields([col("x", type_name)], "orders")

    @pytest.mark.parametrize(
        ("field", "message"),
        [
            (col("x", "list"), "a list cannot have 0 child fields"),
            (col("x", "list", col("a"), col("b", field_id=2)), "a list cannot have 2"),
            (col("x", "map", col("key", nullable=False)), "a map cannot have 1"),
            (col("x", "map", col("key"), col("value")), "the key of a map cannot be null"),
            (col("x", "struct"), "a struct cannot have 0"),
            (col("x", "int64", col("y")), "a int64 cannot have 1"),
            (col("x", "list", col("element", "uint8")), "column 'x.element': type 'uint8'"),
            (col("x", "list", col("item")), "child fields of a list are named element, found item"),
            (col("x", "struct", col("a"), col("A")), "in 'x': columns 'a' and 'A'"),
            (nested(MAX_NESTING + 1), "nest deeper than 8"),
        ],
    )
    def test_nested_ones_are_checked_all_the_way(self, field: SchemaField, message: str) -> None:
        with pytest.raises(SchemaMismatchError, match=message):
            check_fields(assign_ids([field]))

    def test_the_deepest_legal_schema_can_be_stored(self) -> None:
        schema = assign_ids([nested(MAX_NESTING)])
        check_fields(schema)
        topic = TopicMetadata(
            number=0,
            topic="t",
            topic_id="0" * 32,
            partitions=1,
            schema=schema,
            schema_id=0,
            created_at=0,
            write_id="0" * 32,
        )
        assert envelope.decode(envelope.encode(topic), TopicMetadata, "p")[0] == topic

    @given(schemas)
    def test_any_legal_schema_passes_and_can_be_stored(self, schema: list[SchemaField]) -> None:
        numbered = assign_ids(schema)
        check_fields(numbered)
        topic = TopicMetadata(
            number=0,
            topic="t",
            topic_id="0" * 32,
            partitions=1,
            schema=numbered,
            schema_id=0,
            created_at=0,
            write_id="0" * 32,
        )
        assert envelope.decode(envelope.encode(topic), TopicMetadata, "p")[0] == topic


class TestNames:
    @pytest.mark.parametrize("name", ["a", "A b", "é", "日本", "a.b", "_x", "topic", "_to", "x" * 1000])
    def test_legal(self, name: str) -> None:
        check_fields([col(name)])

    @pytest.mark.parametrize("name", ["", "a\0b", "\ud800", "x" * 1001])
    def test_illegal(self, name: str) -> None:
        with pytest.raises(SchemaMismatchError, match="must have 1 to 1000 characters"):
            check_fields([col(name)])

    @pytest.mark.parametrize(
        "name", ["_offset", "_Offset", "_offset_2", "_timestamp", "_topic", "_partition", "_PARTITION"]
    )
    def test_reserved(self, name: str) -> None:
        with pytest.raises(SchemaMismatchError, match="belong to txlog; rename it"):
            check_fields([col(name)])
        check_fields(assign_ids([col("x", "struct", col(name))]))  # a read adds only whole columns

    @pytest.mark.parametrize(("one", "other"), [("a", "a"), ("a", "A"), ("É", "é")])
    def test_equal_but_for_case(self, one: str, other: str) -> None:
        match = "two columns have the name" if one == other else "differ in case only, and Spark confuses them"
        with pytest.raises(SchemaMismatchError, match=match):
            check_fields(assign_ids([col(one), col(other)]))

    @pytest.mark.parametrize(("one", "other"), [("i", "ı"), ("İd", "id"), ("ſum", "Sum"), ("µ", "μ")])
    def test_what_only_spark_takes_for_one_name(self, one: str, other: str) -> None:
        both = assign_ids([col(one), col("x"), col(other)])
        check_fields(both)  # a topic that has both stays readable
        with pytest.raises(SchemaMismatchError, match=f"columns '{one}' and '{other}' differ, but Spark"):
            check_new_names(both)
        with pytest.raises(SchemaMismatchError, match="in 'outer': columns"):
            check_new_names(assign_ids([col("outer", "struct", col(one), col(other))]))
        with pytest.raises(SchemaMismatchError, match="takes them for one"):
            add_columns(assign_ids([col(one)]), [col(other)])
        check_new_names(assign_ids([col("straße"), col("strasse"), col("ŉ"), col("n")]))

    def test_none_at_all(self) -> None:
        with pytest.raises(SchemaMismatchError, match="at least one column"):
            check_fields([])


class TestIds:
    def test_depth_first_parents_before_children(self) -> None:
        schema = assign_ids([col("a", "struct", col("b"), col("c", "list", col("d"))), col("e")])
        assert [(f.name, f.id) for f in schema] == [("a", 1), ("e", 5)]
        assert [(f.name, f.id) for f in schema[0].fields] == [("b", 2), ("c", 3)]
        assert schema[0].fields[1].fields[0].id == 4
        assert max_field_id(schema) == 5
        assert max_field_id([]) == 0

    def test_from_another_first(self) -> None:
        assert [field.id for field in assign_ids([col("a"), col("b")], 8)] == [8, 9]

    @pytest.mark.parametrize("ids", [(1, 1), (0, 1), (-1, 1), (1, 2**31)])
    def test_must_be_distinct_and_in_range(self, ids: tuple[int, int]) -> None:
        with pytest.raises(SchemaMismatchError, match="field ids must be distinct"):
            check_fields([col("a", field_id=ids[0]), col("b", field_id=ids[1])])

    def test_kafka_shape(self) -> None:
        check_fields(KAFKA_FIELDS)
        assert [(field.id, field.name, describe(field)) for field in KAFKA_FIELDS] == [
            (1, "key", "binary"),
            (2, "value", "binary"),
            (3, "headers", "list<struct<key string, value binary>>"),
            (7, "timestamp", "timestamp"),
        ]


class TestEvolve:
    def test_nothing_new(self) -> None:
        assert evolve(OLD, OLD) == OLD
        assert evolve(OLD, assign_ids(OLD[::-1], 50)) == OLD  # ids and order of the new schema do not matter

    def test_new_columns_come_last_with_new_ids(self) -> None:
        schema = evolve(OLD, [col("note", "string"), *OLD, col("more", "list", col("element"))])
        assert schema[:3] == OLD
        assert [(field.name, field.id) for field in schema[3:]] == [("note", 5), ("more", 6)]
        assert schema[4].fields[0].id == 7

    def test_lists_may_spell_their_element_differently(self) -> None:
        assert evolve(OLD, [OLD[0], col("tags", "list", col("item", "string")), OLD[2]]) == OLD

    @pytest.mark.parametrize(
        ("new", "message"),
        [
            (OLD[1:], "t: column 'id' is missing; columns can be added, not dropped or renamed"),
            ([col("ID", nullable=False), *OLD[1:]], "column 'id' is missing"),
            (
                [col("id", "int32", nullable=False), *OLD[1:]],
                "column 'id': expected int64 not null, found int32 not null",
            ),
            ([col("id"), *OLD[1:]], "column 'id': expected int64 not null, found int64"),
            (
                [*OLD[:2], col("price", "decimal(12,2)")],
                r"column 'price': expected decimal\(10,2\), found decimal\(12,2\)",
            ),
            (
                [OLD[0], col("tags", "list", col("element", "binary")), OLD[2]],
                "expected list<string>, found list<binary>",
            ),
            ([*OLD, col("new", nullable=False)], "new column 'new' must be nullable"),
            ([*OLD, col("new", "uint8")], "type 'uint8' is not supported"),
            ([*OLD, col("PRICE")], "columns 'price' and 'PRICE'"),
            ([*OLD, col("new"), col("new", "string")], "two columns have the name 'new'"),
            ([*OLD, col("_offset")], "belong to txlog"),
        ],
    )
    def test_anything_else_is_refused(self, new: list[SchemaField], message: str) -> None:
        with pytest.raises(SchemaMismatchError, match=message):
            evolve(OLD, new, "t")

    def test_fields_of_a_struct_do_not_change_either(self) -> None:
        old = assign_ids([col("s", "struct", col("a"))])
        with pytest.raises(SchemaMismatchError, match="expected struct<a int64>, found struct<a int64, b int64>"):
            evolve(old, [col("s", "struct", col("a"), col("b"))])

    @given(schemas, schemas)
    def test_old_columns_never_change_and_ids_are_new(
        self, first: list[SchemaField], second: list[SchemaField]
    ) -> None:
        old = assign_ids(first)
        taken = {field.name.lower() for field in old}
        added = [msgspec.structs.replace(field, nullable=True) for field in second if field.name.lower() not in taken]
        schema = add_columns(old, added)
        assert schema == evolve(old, [*added, *old])
        assert schema[: len(old)] == old
        assert [field.name for field in schema[len(old) :]] == [field.name for field in added]
        assert min((field.id for field in schema[len(old) :]), default=max_field_id(old) + 1) == max_field_id(old) + 1


def version(number: int = 3, **fields: object) -> TopicMetadata:
    told = {"topic_id": "0" * 32, "partitions": 2, "schema": OLD, "schema_id": 0, "deleted": False, **fields}
    return TopicMetadata(number=number, topic="t", created_at=0, write_id="0" * 32, **told)  # type: ignore[arg-type]


NOTE = col("note", field_id=5)
GONE = version(deleted=True)
ANEW = {"topic_id": "1" * 32, "schema_id": 4, "schema": (NOTE,)}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (version(), {}),
        (version(), {"deleted": True}),
        (version(), {"partitions": 3}),
        (version(), {"schema": (*OLD, NOTE), "schema_id": 4}),
        (GONE, ANEW),
    ],
)
def test_a_version_that_follows(before: TopicMetadata, after: dict[str, object]) -> None:
    assert list(contradictions(before, version(4, **after))) == []


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (version(), {"topic_id": "1" * 32}, "topic_id 0{32}"),
        (GONE, {**ANEW, "topic_id": "0" * 32}, "another topic_id than 0{32}"),
        (GONE, {**ANEW, "schema_id": 0}, "schema_id 4"),
        (GONE, {**ANEW, "schema": (col("note", field_id=4),)}, "field ids from 5 on"),
        (version(), {"partitions": 1}, "at least 2 partitions"),
        (version(), {"schema_id": 4}, "schema_id 0"),
        (version(), {"schema": (*OLD, NOTE)}, "the schema of version 3, or schema_id 4"),
        (version(), {"schema": OLD[:2], "schema_id": 4}, r"column 'price' \(id 4\)"),
        (version(), {"schema": (col("key", nullable=False), *OLD[1:]), "schema_id": 4}, r"column 'id' \(id 1\): int64 not null"),
        (version(), {"schema": (*OLD[:2], col("price", "decimal(10,2)", field_id=9)), "schema_id": 4}, r"column 'price' \(id 4\)"),
        (version(), {"schema": (*OLD, col("note", field_id=5, nullable=False)), "schema_id": 4}, "new columns that are nullable"),
    ],
)  # fmt: skip
def test_a_version_that_cannot_follow(before: TopicMetadata, after: dict[str, object], expected: str) -> None:
    (found,) = contradictions(before, version(4, **after))
    assert re.match(expected, found[0]), found


def test_descriptions_are_readable() -> None:
    field = col("x", "map", col("key", "string", nullable=False), col("value", "list", col("element", "decimal(5,2)")))
    assert describe(field) == "map<string not null, list<decimal(5,2)>>"
