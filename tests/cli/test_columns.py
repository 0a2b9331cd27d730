"""Schemas on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from txlog.cli.columns import parse_columns
from txlog.core.schema import SCALAR_TYPES, describe
from txlog.errors import InvalidRequestError, SchemaMismatchError


@pytest.mark.parametrize(
    ("text", "name", "described"),
    [
        *((f"c:{kind}", "c", kind) for kind in sorted(SCALAR_TYPES)),
        ("id:int64:not-null", "id", "int64 not null"),
        ("id:int64 not null", "id", "int64 not null"),
        ("p:decimal(10,2)", "p", "decimal(10,2)"),
        ("p:decimal( 10 , 2 ):not-null", "p", "decimal(10,2) not null"),
        ("l:list<string>", "l", "list<string>"),
        ("l:list<list<int8 not null>>:not-null", "l", "list<list<int8 not null>> not null"),
        ("m:map<string,int64 not null>", "m", "map<string not null, int64 not null>"),
        ("m:map<string not null, decimal(4,1)>", "m", "map<string not null, decimal(4,1)>"),
        ("s:struct<a int32, b list<string> not null>", "s", "struct<a int32, b list<string> not null>"),
    ],
)
def test_a_column_is_read_as_it_is_written(text: str, name: str, described: str) -> None:
    fields = parse_columns([text], None)
    assert fields is not None
    assert (fields[0].name, describe(fields[0])) == (name, described)
    again = parse_columns([f"{name}:{described}"], None)
    assert again == fields


def test_ids_count_depth_first() -> None:
    fields = parse_columns(["a:struct<b int32>", "c:string"], None)
    assert fields is not None
    assert [fields[0].id, fields[0].fields[0].id, fields[1].id] == [1, 2, 3]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("qty", "--column 'qty': expected name:type, as in qty:int32"),
        (":int32", "expected name:type"),
        ("qty:in32", "type 'in32' is not supported; use one of .* Did you mean 'int32'"),
        ("qty:int", r"type 'int' is not supported; use one of .* Did you mean 'int32' or 'int64'\?$"),
        ("qty:BIGINT", r"Did you mean 'int64'\?$"),
        ("qty:list<long>", r"type 'long' is not supported; .* Did you mean 'int64'\?$"),
        ("qty:float", r"Did you mean 'float32' or 'float64'\?$"),
        ("qty:double", r"Did you mean 'float64'\?$"),
        ("qty:decimal", r"Did you mean 'decimal\(p,s\)'\?$"),
        ("qty:int32:notnull", "expected :not-null or nothing after the type, found 'notnull'"),
        ("qty:", "it ends where a type is expected"),
        ("qty:list", "it ends where '<' is expected"),
        ("qty:list<int32", "it ends where '>' is expected"),
        ("qty:map<string>", "a map cannot have 1 child fields"),
        ("qty:int32 int32", "'int32' was not expected after the type"),
        ("qty:decimal(50,2)", r"type 'decimal\(50,2\)' is not supported"),
        ("_offset:int32", "names that begin with _topic, _partition, _offset, _timestamp belong to txlog"),
    ],
)
def test_what_is_no_column_is_refused(text: str, message: str) -> None:
    with pytest.raises(SchemaMismatchError, match=message):
        parse_columns([text], None)


def test_a_schema_file(tmp_path: Path) -> None:
    path = tmp_path / "schema.json"
    path.write_text('[{"id": 9, "name": "a", "type": "int32", "nullable": false}, {"name": "b", "type": "string"}]')
    fields = parse_columns(None, str(path))
    assert fields is not None
    assert [(field.id, field.name, describe(field)) for field in fields] == [
        (1, "a", "int32 not null"),
        (2, "b", "string"),
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[", "expected a JSON list of {name, type, nullable, fields}"),
        ('[{"name": "a"}]', "missing required field `type`"),
        ('[{"name": "a", "type": "text"}]', "type 'text' is not supported"),
        ("[]", "a topic needs at least one column"),
    ],
)
def test_a_schema_file_that_is_none(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "schema.json"
    path.write_text(content)
    with pytest.raises(SchemaMismatchError, match=message) as caught:
        parse_columns(None, str(path))
    assert str(path) in str(caught.value)


def test_a_schema_in_two_ways_or_from_nowhere(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="--column and --schema are given"):
        parse_columns(["a:int32"], "x.json")
    with pytest.raises(InvalidRequestError, match=r"nowhere\.json: No such file"):
        parse_columns(None, str(tmp_path / "nowhere.json"))
    assert parse_columns(None, None) is None
