"""Which rows does a pyarrow expression keep, and which files and row groups cannot contain such a row?

The meaning of an expression is pyarrow's. A row is kept if the expression is true for it, and not if it is false or
null. One difference to a condition in SQL: NaN is neither less than nor greater than any number.

Arrow itself decides which files may match: it simplifies the expression with what the statistics guarantee.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from txlog.client.rows import schema_of
from txlog.client.tables.predicate import OWN_FIELDS, Bounds, Statistics, bounds_in, bounds_in_piece
from txlog.core.fetch_plan import Piece
from txlog.core.records import SchemaField
from txlog.core.schema import OWN_COLUMNS
from txlog.errors import SchemaMismatchError

_FORMAT = ds.IpcFileFormat()
_NO_FILE: Any = pa.py_buffer(b"")
_TEXTS = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
"""Literals in an expression as pyarrow shows it."""


class Expression:
    """A pyarrow expression on the columns of one topic and on txlog's own."""

    def __init__(self, expression: pc.Expression, fields: Sequence[SchemaField], topic: str) -> None:
        """Raises SchemaMismatchError if the topic lacks a column, if a column has another type, or if the expression
        names a column by its number."""
        # The batches that are filtered have only some of the columns, in another order.
        if "FieldPath(" in _TEXTS.sub("", str(expression)):
            raise SchemaMismatchError(
                f"where = {str(expression)[:300]}: the expression names a column of topic {topic!r} by its number. "
                f"hint: name it, as in pyarrow.compute.field({fields[0].name!r})"
            )
        schema = schema_of(fields, None, tuple(OWN_COLUMNS))
        empty = schema.empty_table()
        try:
            empty.filter(expression)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise SchemaMismatchError(
                f"where = {str(expression)[:300]}: this is not a condition on the columns of topic {topic!r}: "
                f"{_reason(error)}. The columns are {', '.join(schema.names)}"
            ) from None
        self._expression = expression
        # An expression does not list its columns. It cannot be evaluated without one of them.
        self._schema = pa.schema([each for each in schema if _fails(empty.drop_columns([each.name]), expression)])
        known = {**{each.name: each for each in fields}, **OWN_FIELDS}
        self._fields = [known[name] for name in self._schema.names]

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the expression uses, including txlog's own."""
        return tuple(self._schema.names)

    def on(self, columns: Collection[str]) -> Expression | None:
        """Return the expression if it uses no other column than these, else None."""
        return self if set(columns).issuperset(self.columns) else None

    def keep(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of `batch` for which the expression is true."""
        # A table's own filter runs in several threads and may change the order of the rows.
        scanner = ds.Scanner.from_batches(
            iter([batch]), schema=batch.schema, filter=self._expression, use_threads=False
        )
        found = scanner.to_table().combine_chunks().to_batches()
        return found[0] if found else batch.slice(0, 0)

    def may_match(self, piece: Piece) -> bool:
        """Return whether the piece may contain a matching row, judged by its file's statistics (PROTOCOL.md, R14a)."""
        return self._may_match(lambda field: bounds_in_piece(field, piece))

    def may_match_rows(self, statistics: Statistics, rows: int) -> bool:
        """Return whether `rows` rows with these statistics may contain a matching row."""
        return self._may_match(lambda field: bounds_in(field, statistics, rows))

    def _may_match(self, bounds_of: Callable[[SchemaField], Bounds | None]) -> bool:
        known = [
            _guarantee(pc.field(field.name), bounds, arrow.type)
            for field, arrow in zip(self._fields, self._schema, strict=True)
            if (bounds := bounds_of(field)) is not None
        ]
        if not known:
            return True
        guarantee = reduce(lambda left, right: left & right, known)
        # Arrow compares only this guarantee with the expression. It opens no file.
        fragment = _FORMAT.make_fragment(_NO_FILE, partition_expression=guarantee)
        dataset = ds.FileSystemDataset([fragment], self._schema, _FORMAT)
        return any(True for _ in dataset.get_fragments(filter=self._expression))


def _guarantee(column: Any, bounds: Bounds, arrow: pa.DataType) -> Any:
    """Return what is true for every row, as Arrow makes it of a Parquet file's statistics."""
    if not bounds.values:
        return column.is_null()
    low, high = (_scalar(value, arrow) for value in (bounds.low, bounds.high))
    within = (column >= low) & (column <= high)
    return within | column.is_null() if bounds.nulls else within


def _scalar(value: Any, arrow: pa.DataType) -> Any:
    if pa.types.is_date32(arrow):
        return pa.scalar(value, pa.int32()).cast(arrow)
    if pa.types.is_timestamp(arrow):
        return pa.scalar(value, pa.int64()).cast(arrow)
    return pa.scalar(value, arrow)


def _reason(error: Exception) -> str:
    return str(error).split("\n", 1)[0].partition(" in ")[0]


def _fails(table: pa.Table, expression: pc.Expression) -> bool:
    try:
        table.filter(expression)
    except (pa.ArrowException, TypeError, ValueError):
        return True
    return False
