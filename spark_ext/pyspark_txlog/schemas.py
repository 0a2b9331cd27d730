"""How do a topic's columns map to Spark's, and do a user's columns fit a topic?

A topic's types and Spark's are the same list with different names (PROTOCOL.md, "Types"). A read shows the topic's
columns unchanged. It shows `_topic`, `_partition`, `_offset`, `_timestamp` only if the option `columns` or the schema
of `spark.read.schema(...)` names them. A write may widen numbers. It narrows an integer column if every value fits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import types as spark

from txlog.engine import schemas as log_schema
from txlog.engine.schemas import SchemaField
from txlog.errors import SchemaMismatchError
from txlog.text import nearest

ALL_COLUMNS = "*"
"""In the option `columns`: all of the topic's own columns."""

_SCALARS: Mapping[str, spark.DataType] = {
    "bool": spark.BooleanType(),
    "int8": spark.ByteType(),
    "int16": spark.ShortType(),
    "int32": spark.IntegerType(),
    "int64": spark.LongType(),
    "float32": spark.FloatType(),
    "float64": spark.DoubleType(),
    "string": spark.StringType(),
    "binary": spark.BinaryType(),
    "date": spark.DateType(),
    "timestamp": spark.TimestampType(),
    "timestamp_ntz": spark.TimestampNTZType(),
}
_INTEGERS = ("int8", "int16", "int32", "int64")
INTEGER_RANGES: Mapping[str, tuple[int, int]] = {
    name: (-(1 << bits - 1), (1 << bits - 1) - 1) for name, bits in zip(_INTEGERS, (8, 16, 32, 64), strict=True)
}
# The widest integer whose every value the float holds exactly.
_WIDENED_TO_FLOAT = {"float32": ("int8", "int16"), "float64": ("int8", "int16", "int32", "float32")}
METADATA = spark.StructType(
    [spark.StructField(name, _SCALARS[type_], False) for name, type_ in log_schema.OWN_COLUMNS.items()]
)
"""The place of a row in its log, and the log-append time of its batch."""

_NESTED: dict[type[spark.DataType], str] = {spark.StructType: "struct", spark.ArrayType: "list", spark.MapType: "map"}
_NAMES = {type(spark_type): name for name, spark_type in _SCALARS.items()} | _NESTED


def to_spark(fields: Sequence[SchemaField]) -> spark.StructType:
    """Return a topic's columns as Spark's."""
    return spark.StructType([spark.StructField(field.name, _spark_type(field), field.nullable) for field in fields])


def to_fields(schema: spark.StructType, where: str) -> tuple[SchemaField, ...]:
    """Return Spark's columns as a topic's (ids from 1, depth first). Raises SchemaMismatchError for a type that topics
    do not have."""
    return log_schema.assign_ids([_field(column, where, column.name) for column in schema.fields])


def divided(names: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of a topic's own columns, and those of METADATA, each in the order of `names`."""
    own = tuple(name for name in names if name not in METADATA.names)
    return own, tuple(name for name in names if name in METADATA.names)


def select(topics: Mapping[str, Sequence[SchemaField]], columns: Sequence[str] | None) -> spark.StructType:
    """Return the schema of a read of `topics`: their columns, or those that `columns` names, in that order.

    Topics that are read together must agree in every column that is read. Raises SchemaMismatchError with the topic and
    the column.
    """
    first_topic, first = next(iter(topics.items()))
    wanted = [ALL_COLUMNS] if columns is None else list(columns)
    known = {field.name: field for field in first}
    names: list[str] = []
    for column in wanted:
        names += list(known) if column == ALL_COLUMNS else [column]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise SchemaMismatchError(f"columns: {twice!r} is asked for twice")
    schema = to_spark(first)
    chosen = [METADATA[name] if name in METADATA.names else _column(schema, name, first_topic) for name in names]
    for topic, fields in topics.items():
        own = {field.name: field for field in fields}
        if ALL_COLUMNS in wanted and own.keys() != known.keys():
            column = next(iter(own.keys() ^ known.keys()))
            raise SchemaMismatchError(
                f"topics {first_topic!r} and {topic!r} have different columns: only one has {column!r}. "
                "hint: name the shared ones in the option 'columns', or read the topics one by one"
            )
        for name in divided(names)[0]:
            if name not in own:
                _column(to_spark(fields), name, topic)
            if log_schema.describe(own[name]) != log_schema.describe(known[name]):
                raise SchemaMismatchError(
                    f"column {name!r} is {log_schema.describe(known[name])} in topic {first_topic!r}, and "
                    f"{log_schema.describe(own[name])} in topic {topic!r}. "
                    "hint: read the topics one by one"
                )
    return spark.StructType(chosen)


def check_user_schema(schema: spark.StructType, topics: Mapping[str, Sequence[SchemaField]]) -> None:
    """Raise SchemaMismatchError unless every topic, with the four columns of METADATA, has each column of `schema`.

    The types must be equal. The user's column may be nullable if the topic's is not; the reverse would fail at the
    first null.
    """
    if not schema.fields:
        raise SchemaMismatchError("the schema of a read needs at least one column")
    for topic, fields in topics.items():
        known = to_spark(fields)
        for column in schema.fields:
            own = METADATA[column.name] if column.name in METADATA.names else _column(known, column.name, topic)
            if not _loosened(own.dataType, column.dataType) or (own.nullable and not column.nullable):
                raise SchemaMismatchError(
                    f"topic {topic!r}: column {column.name!r}: the topic has {_shown(own)}, the schema of this read "
                    f"asks for {_shown(column)}; a read selects columns, cast afterwards"
                )


def check_frame(schema: spark.StructType, fields: Sequence[SchemaField], topic: str) -> None:
    """Raise SchemaMismatchError with column, expected and found, unless rows of `schema` fit the topic.

    Columns match by name, in any order. A nullable column may be missing. Integers, floats and decimals may be narrower
    than the topic's. An integer column may also be wider: the write refuses each value that does not fit. A nullable
    column is accepted for one that is not nullable, because most of Spark's are nullable; the write then refuses each
    null.
    """
    columns = {column.name: column for column in schema.fields}
    if len(columns) != len(schema.fields):
        twice = next(name for name in schema.names if schema.names.count(name) > 1)
        raise SchemaMismatchError(f"topic {topic!r}: the DataFrame has two columns {twice!r}")
    known = {field.name: field for field in fields}
    for column in schema.fields:
        field = known.get(column.name)
        if field is None:
            raise SchemaMismatchError(
                f"topic {topic!r}: the topic has no column {column.name!r}, which the DataFrame "
                f"has.{nearest(column.name, known)} The columns are {', '.join(known)}{_reserved_hint(column.name)}"
            )
        if not _fits(column.dataType, _spark_type(field), field) and not needs_range_check(column.dataType, field):
            raise SchemaMismatchError(
                f"topic {topic!r}: column {column.name!r}: expected {_spark_type(field).simpleString()}, found "
                f"{column.dataType.simpleString()}{_cast_hint(column, field)}"
            )
    for field in fields:
        if field.name not in columns and not field.nullable:
            raise SchemaMismatchError(
                f"topic {topic!r}: column {field.name!r} ({log_schema.describe(field)}) is missing from the DataFrame"
            )


def needs_range_check(found: spark.DataType, field: SchemaField) -> bool:
    """Return whether `found` is an integer type with values that the integer column `field` cannot hold."""
    name = _NAMES.get(type(found))
    return name in _INTEGERS and field.type in _INTEGERS and _INTEGERS.index(name) > _INTEGERS.index(field.type)


def _spark_type(field: SchemaField) -> spark.DataType:
    scalar = _SCALARS.get(field.type)
    if scalar is not None:
        return scalar
    decimal = log_schema.parse_decimal(field.type)
    if decimal is not None:
        return spark.DecimalType(*decimal)
    if field.type == "struct":
        return to_spark(field.fields)
    if field.type == "list":
        return spark.ArrayType(_spark_type(field.fields[0]), field.fields[0].nullable)
    if field.type == "map":
        key, value = field.fields
        return spark.MapType(_spark_type(key), _spark_type(value), value.nullable)
    raise SchemaMismatchError(f"column {field.name!r}: type {field.type!r} has no counterpart in Spark")


def _field(column: spark.StructField, where: str, path: str) -> SchemaField:
    kind = column.dataType
    if isinstance(kind, spark.DecimalType):
        name = log_schema.decimal_type(kind.precision, kind.scale)
    elif isinstance(kind, spark.CharType | spark.VarcharType):
        name = "string"
    elif type(kind) in _NAMES:
        name = _NAMES[type(kind)]
    else:
        raise SchemaMismatchError(f"{where}: column {path!r}: no topic can hold {kind.simpleString()}")
    fields = tuple(_field(child, where, f"{path}.{child.name}") for child in _children(kind))
    return SchemaField(id=1, name=column.name, type=name, nullable=column.nullable, fields=fields)


def _children(kind: spark.DataType) -> list[spark.StructField]:
    """Return the fields of a struct, the element of a list, the key and the value of a map; none for other types."""
    if isinstance(kind, spark.ArrayType):
        return [spark.StructField("element", kind.elementType, kind.containsNull)]
    if isinstance(kind, spark.MapType):
        value = spark.StructField("value", kind.valueType, kind.valueContainsNull)
        return [spark.StructField("key", kind.keyType, False), value]
    return kind.fields if isinstance(kind, spark.StructType) else []


def _column(schema: spark.StructType, name: str, topic: str) -> spark.StructField:
    if name in schema.names:
        return schema[name]
    known = [*schema.names, *METADATA.names]
    raise SchemaMismatchError(
        f"topic {topic!r} has no column {name!r}.{nearest(name, known)} The columns are {', '.join(known)}"
    )


def _loosened(own: spark.DataType, asked: spark.DataType) -> bool:
    """Whether `asked` is equal to `own`, except that parts of it may be nullable where `own` is not."""
    if type(own) in _NESTED and type(asked) is type(own):
        parts, others = _children(own), _children(asked)
        return [part.name for part in parts] == [other.name for other in others] and all(
            _loosened(part.dataType, other.dataType) and (other.nullable or not part.nullable)
            for part, other in zip(parts, others, strict=True)
        )
    return own == asked


def _fits(found: spark.DataType, expected: spark.DataType, field: SchemaField) -> bool:
    """Whether every value of `found` except null is a value of `expected`."""
    if isinstance(found, spark.NullType):
        return field.nullable
    if isinstance(found, spark.CharType | spark.VarcharType):
        return field.type == "string"
    if type(found) in _NESTED and type(found) is type(expected):
        # Fields of structs are found by name, in any order.
        own = {part.name: (part.dataType, child) for part, child in zip(_children(expected), field.fields, strict=True)}
        parts = _children(found)
        return {part.name for part in parts} == set(own) and all(
            _fits(part.dataType, *own[part.name]) for part in parts
        )
    if isinstance(found, spark.DecimalType) and isinstance(expected, spark.DecimalType):
        whole = expected.precision - expected.scale
        return found.scale <= expected.scale and found.precision - found.scale <= whole
    name = _NAMES.get(type(found))
    if name in _INTEGERS and field.type in _INTEGERS:
        return _INTEGERS.index(name) <= _INTEGERS.index(field.type)
    return name == field.type or name in _WIDENED_TO_FLOAT.get(field.type, ())


def _shown(column: spark.StructField) -> str:
    return column.dataType.simpleString() + ("" if column.nullable else " not null")


def _cast_hint(column: spark.StructField, field: SchemaField) -> str:
    """Return a hint for two scalar types between which Spark can cast."""
    kind = _spark_type(field)
    if field.fields or isinstance(column.dataType, spark.StructType | spark.ArrayType | spark.MapType | spark.NullType):
        return ""
    return f". hint: cast it: df.withColumn({column.name!r}, df[{column.name!r}].cast({kind.simpleString()!r}))"


def _reserved_hint(name: str) -> str:
    if name in METADATA.names:
        return f"; {name!r} is set by the log, drop it before writing"
    return ". hint: drop it, or let the write add it with .option('mergeSchema', 'true')"
