"""Which rows does a condition on columns keep, and which files cannot contain such a row?

A bound predicate is a tree of plain values, made by `where.bind` for one topic's columns, and picklable. It has three
readers that must agree: `may_match` on statistics, `keep` on Arrow batches, and the filter that Spark gets. The
semantics are Spark's: a comparison with null is neither true nor false, and only rows for which the whole condition is
true are kept. NaN equals nothing, but is greater than every number; `-0.0` equals `0.0`.

Statistics can only exclude files. They are outer bounds of a whole file (strings are cut at 32 bytes). A column with
NaN or infinity has no bounds. If a column has no bounds, the file is read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from operator import ge, gt, le, lt
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from txlog.client.tables.packing import offsets_of
from txlog.core.fetch_plan import InlinePiece, Piece
from txlog.core.records import SchemaField
from txlog.core.schema import OFFSET_COLUMN, OWN_COLUMNS, PARTITION_COLUMN, TOPIC_COLUMN, describe, value_columns
from txlog.errors import SchemaMismatchError

if TYPE_CHECKING:
    import pyarrow as pa

Operator: TypeAlias = Literal["=", "!=", "<", "<=", ">", ">="]
Value: TypeAlias = bool | int | float | str | Decimal
Statistics: TypeAlias = Mapping[str, Any]
"""Lowest and highest value and number of nulls by field id, as in a commit record."""

NEGATED: Mapping[Operator, Operator] = {"=": "!=", "!=": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
FLIPPED: Mapping[Operator, Operator] = {"=": "=", "!=": "!=", "<": ">", ">": "<", "<=": ">=", ">=": "<="}
_PYTHON: Mapping[Operator, Callable[[Any, Any], Any]] = {"<": lt, ">": gt, "<=": le, ">=": ge}
_ARROW = {"=": "equal", "!=": "not_equal", "<": "less", ">": "greater", "<=": "less_equal", ">=": "greater_equal"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Compare:
    """`field <operator> value`. The type of the value follows the column. It is an integer for whole numbers, days for
    dates, microseconds for timestamps, a float for both sizes of floats, a Decimal of the column's scale."""

    field: SchemaField
    operator: Operator
    value: Value


@dataclass(frozen=True, slots=True, kw_only=True)
class OneOf:
    """`field IN values`, or NOT IN with `negated`; values as in Compare."""

    field: SchemaField
    values: tuple[Value, ...]
    negated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Null:
    """`field IS NULL`, or IS NOT NULL with `negated`."""

    field: SchemaField
    negated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A comparison that is true for every value of the column, or false for every value (`an_int8 < 1000`). Null stays
    unknown."""

    field: SchemaField
    truth: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Every:
    """AND."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Some:
    """OR."""

    parts: tuple[Node, ...]


Leaf: TypeAlias = Compare | OneOf | Null | Known
Node: TypeAlias = Leaf | Every | Some


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The known bounds of a column in one file: every value that is not null lies in `[low, high]`."""

    low: Any
    high: Any
    nulls: bool
    """Whether there may be nulls."""
    values: bool
    """Whether there may be values that are not null."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicate:
    """A condition on the columns of one topic; `text` is what the user wrote."""

    text: str
    root: Node

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the condition uses, including txlog's own."""
        return tuple(dict.fromkeys(leaf.field.name for leaf in leaves(self.root)))

    def on(self, columns: Collection[str]) -> Predicate | None:
        """Return the parts of the condition, joined by AND, that use no other column; None if there is none."""
        parts = self.root.parts if isinstance(self.root, Every) else (self.root,)
        own = tuple(part for part in parts if all(leaf.field.name in columns for leaf in leaves(part)))
        return replace(self, root=Every(parts=own)) if own else None

    def of(self, fields: Sequence[SchemaField]) -> Predicate:
        """Return the condition on the same columns, found by id, of another version of the topic.

        Raises SchemaMismatchError if a column was dropped, or has another type.
        """
        known = {field.id: field for field in fields}

        def moved(node: Node) -> Node:
            if isinstance(node, Every | Some):
                return replace(node, parts=tuple(map(moved, node.parts)))
            if is_own(node.field):
                return node
            field = known.get(node.field.id)
            if field is None or describe(field) != describe(node.field):
                what = "was dropped" if field is None else f"is {describe(field)} now, and was {describe(node.field)}"
                raise SchemaMismatchError(f"where = {self.text!r}: the column {node.field.name!r} {what}")
            return replace(node, field=field)

        return replace(self, root=moved(self.root))

    def matches(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        """Return for which rows of `batch` the condition is true, and not false or unknown."""
        mask: pa.BooleanArray = _mask(self.root, batch).fill_null(False)
        return mask

    def may_match(self, piece: Piece) -> bool:
        """Whether the piece may contain a matching row, judged by its file's statistics and its place in the log
        (PROTOCOL.md, R14a)."""
        return _may_match(self.root, lambda field: bounds_in_piece(field, piece))

    def may_match_rows(self, statistics: Statistics, rows: int) -> bool:
        """Whether `rows` rows with these statistics may contain a matching row: a row group."""
        return _may_match(self.root, lambda field: bounds_in(field, statistics, rows))

    def keep(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the matching rows of `batch`, which must have all of `columns`."""
        return batch.filter(_mask(self.root, batch), null_selection_behavior="drop")


def without_tombstones(predicate: Predicate, fields: Sequence[SchemaField], keys: Sequence[str]) -> Predicate:
    """Return the condition with one more part wherever it may be true for a tombstone without all rows of its key.

    `fields` and `keys` are the columns of the topic, and those of its key. A row without a key is never a tombstone.
    """
    values = [field for field in fields if field.name in value_columns(fields, keys)] if keys else []
    names, of_key = {field.name for field in values}, {*keys, TOPIC_COLUMN, PARTITION_COLUMN}
    no_key = Every(parts=tuple(Null(field=field, negated=False) for field in fields if field.name in keys))
    no_tombstone = Some(parts=(*(Null(field=field, negated=True) for field in values), no_key))

    def may_match(node: Node) -> bool:
        if isinstance(node, Every | Some):
            return (all if isinstance(node, Every) else any)(map(may_match, node.parts))
        return node.field.name not in names or (isinstance(node, Null) and not node.negated)

    def without(node: Node) -> Node:
        if isinstance(node, Some):
            return Some(parts=tuple(map(without, node.parts)))
        if all(leaf.field.name in of_key for leaf in leaves(node)) or not may_match(node):
            return node
        return Every(parts=(node, no_tombstone))

    return replace(predicate, root=without(predicate.root)) if values else predicate


def negate(node: Node) -> Node:
    """Return NOT `node` by De Morgan's laws; null stays null."""
    if isinstance(node, Compare):
        return Compare(field=node.field, operator=NEGATED[node.operator], value=node.value)
    if isinstance(node, OneOf):
        return OneOf(field=node.field, values=node.values, negated=not node.negated)
    if isinstance(node, Null):
        return Null(field=node.field, negated=not node.negated)
    if isinstance(node, Known):
        return Known(field=node.field, truth=not node.truth)
    parts = tuple(negate(part) for part in node.parts)
    return Some(parts=parts) if isinstance(node, Every) else Every(parts=parts)


def leaves(node: Node) -> Iterator[Leaf]:
    """Yield the conditions on single columns."""
    if isinstance(node, Every | Some):
        for part in node.parts:
            yield from leaves(part)
    else:
        yield node


# -- helpers: files ---------------------------------------------------------------------------------------------------


def _may_match(node: Node, bounds_of: Callable[[SchemaField], Bounds | None]) -> bool:
    if isinstance(node, Every):
        return all(_may_match(part, bounds_of) for part in node.parts)
    if isinstance(node, Some):
        return any(_may_match(part, bounds_of) for part in node.parts)
    bounds = bounds_of(node.field)
    return bounds is None or _leaf_may_match(node, bounds)


def _leaf_may_match(leaf: Leaf, bounds: Bounds) -> bool:
    if isinstance(leaf, Null):
        return bounds.values if leaf.negated else bounds.nulls
    if not bounds.values:
        return False
    if isinstance(leaf, Known):
        return leaf.truth
    low, high = bounds.low, bounds.high
    if isinstance(leaf, OneOf):
        if leaf.negated:
            return not (low == high and low in leaf.values)
        return any(low <= value <= high for value in leaf.values)
    value: Any = leaf.value
    if leaf.operator == "=":
        return bool(low <= value <= high)
    if leaf.operator == "!=":
        return not low == high == value
    return bool(_PYTHON[leaf.operator](low if leaf.operator in ("<", "<=") else high, value))


def bounds_in_piece(field: SchemaField, piece: Piece) -> Bounds | None:
    """Return the bounds of the column in the piece; None if nothing is known."""
    if is_own(field):
        return _own_bounds(field.name, piece)
    return None if isinstance(piece, InlinePiece) else bounds_in(field, piece.file.statistics, piece.file.rows)


def bounds_in(field: SchemaField, statistics: Statistics, rows: int) -> Bounds | None:
    """Return the bounds of a column in `rows` rows of one file; None if nothing is known."""
    found = None if is_own(field) else statistics.get(str(field.id))
    if found is None or len(found) != 3:
        return None
    low, high, nulls = found
    # An impossible null count is ignored, and so are the bounds beside it.
    if isinstance(nulls, bool) or not isinstance(nulls, int) or not 0 <= nulls <= rows:
        return None
    if nulls == rows:
        return Bounds(low=None, high=None, nulls=True, values=False)
    kinds = _STATISTICS.get(field.type)
    if kinds is None or type(low) not in kinds or type(high) not in kinds or not low <= high:
        return None
    return Bounds(low=low, high=high, nulls=nulls > 0, values=True)


def is_own(field: SchemaField) -> bool:
    """Return whether the column is one of txlog's own."""
    return field.name.startswith("_") and field.id == OWN_ID


OWN_ID = 2**31 - 1
"""The id of txlog's own columns in a predicate. No column of a topic can be named `_topic` or the like."""

OWN_FIELDS = {
    name: SchemaField(id=OWN_ID, name=name, type=type_, nullable=False) for name, type_ in OWN_COLUMNS.items()
}

_STATISTICS: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("int8", "int16", "int32", "int64", "date", "timestamp", "timestamp_ntz"), (int,)),
    # JSON does not distinguish 1.0 from 1.
    **dict.fromkeys(("float32", "float64"), (float, int)),
    "bool": (bool,),
    "string": (str,),
}


def _own_bounds(name: str, piece: Piece) -> Bounds | None:
    tp = piece.topic_partition
    low: object
    high: object
    if name == TOPIC_COLUMN:
        low, high = tp.topic, tp.topic
    elif name == PARTITION_COLUMN:
        low, high = tp.partition, tp.partition
    elif name == OFFSET_COLUMN:
        first, end = offsets_of(piece)
        low, high = first, end - 1
    else:
        ranges = (piece.range,) if isinstance(piece, InlinePiece) else piece.ranges
        if any(part.by_column for part in ranges):
            return None
        times = [part.timestamp * 1000 for part in ranges]
        low, high = min(times), max(times)
    return Bounds(low=low, high=high, nulls=False, values=True)


# -- helpers: Arrow ---------------------------------------------------------------------------------------------------


def _mask(node: Node, batch: pa.RecordBatch) -> Any:
    # Imported here because planning does not need pyarrow.
    import pyarrow as pa
    import pyarrow.compute as pc

    if isinstance(node, Every | Some):
        join = pc.and_kleene if isinstance(node, Every) else pc.or_kleene
        mask = _mask(node.parts[0], batch)
        for part in node.parts[1:]:
            mask = join(mask, _mask(part, batch))
        return mask
    column = batch.column(node.field.name)
    if isinstance(node, Null):
        return pc.is_valid(column) if node.negated else pc.is_null(column)
    if isinstance(node, Known):
        truth = pa.repeat(pa.scalar(node.truth), batch.num_rows)
        return pc.if_else(pc.is_valid(column), truth, pa.scalar(None, pa.bool_()))
    values, kind = _comparable(column, node.field)
    if isinstance(node, OneOf):
        found = pc.is_in(values, pa.array(node.values, kind))
        found = pc.invert(found) if node.negated else found
        return pc.if_else(pc.is_valid(column), found, pa.scalar(None, pa.bool_()))
    mask = pc.call_function(_ARROW[node.operator], [values, pa.scalar(node.value, kind)])
    if node.operator in (">", ">=") and pa.types.is_floating(kind):
        mask = pc.or_kleene(mask, pc.is_nan(values))
    return mask


def _comparable(column: Any, field: SchemaField) -> tuple[Any, Any]:
    """Return the column's values in the types that Compare uses, and their Arrow type."""
    import pyarrow as pa

    if field.type in ("float32", "float64"):
        # Adding zero makes both zeros equal. A look-up in a set would distinguish them.
        import pyarrow.compute as pc

        return pc.add(column.cast(pa.float64()), 0.0), pa.float64()
    if field.type == "date":
        return column.cast(pa.int32()), pa.int32()
    if field.type in ("timestamp", "timestamp_ntz"):
        return column.cast(pa.int64()), pa.int64()
    return column, column.type
