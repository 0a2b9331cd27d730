"""How is a condition `where` understood that is a text? `amount > 100 AND country = 'FR'` becomes a predicate on a
topic's columns.

sqlglot parses the text as Spark's SQL. Then txlog accepts only conditions that statistics can answer and that mean the
same everywhere. These are comparisons of one column with a literal, IN, BETWEEN, IS NULL, boolean columns, AND, OR,
NOT. Everything else is refused with a hint to filter the rows after the read. A condition must never be applied only in
part.

Names are not case-sensitive, as in Spark, and `_topic`, `_partition`, `_offset`, `_timestamp` are columns too. A
literal takes the column's type, or is refused. Whole numbers and decimals are compared exactly, floats as doubles.
`DATE '2013-01-31'` and `'2013-01-31'` are dates. Times are ISO 8601 with at most six digits of a second. A time without
an offset is UTC, whatever the session's time zone is.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Mapping, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from txlog.client.tables.predicate import (
    FLIPPED,
    OWN_FIELDS,
    Compare,
    Every,
    Known,
    Node,
    Null,
    OneOf,
    Operator,
    Predicate,
    Some,
    Value,
    negate,
)
from txlog.core.records import SchemaField
from txlog.core.schema import describe, parse_decimal
from txlog.errors import InvalidRequestError, SchemaMismatchError
from txlog.text import install_text, is_unicode, microseconds, nearest

if TYPE_CHECKING:
    from sqlglot import exp

MAX_LENGTH = 100_000
"""Maximum length of the text. Nobody writes a longer condition by hand, and parsing it takes long."""

_INTEGER_BITS: Mapping[str, int] = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
_OPERATORS: Mapping[str, Operator] = {"EQ": "=", "NEQ": "!=", "LT": "<", "LTE": "<=", "GT": ">", "GTE": ">="}
"""Class of sqlglot -> operator."""
_EPOCH = datetime.date(1970, 1, 1)
_ISO_TIME = re.compile(
    r"\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?(Z|[+-]\d{2}:\d{2})?)?", re.ASCII | re.IGNORECASE
)
_ISO_DATE = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_ESCAPES = re.compile(r"\\(?!['\"\\])")
_TWO_WORDS = re.compile(r"\b(?!and\b|or\b|not\b)[a-z_]\w*\s+\w+\s*([=<>!]|(is|in|like|between)\b)", re.IGNORECASE)
_EXACT = Context(prec=1000)
_MAX_EXPONENT = 400
_SHOWN = 300
_EXAMPLE = "a condition such as amount > 100 AND country = 'FR'"


def bind(text: str, fields: Sequence[SchemaField], topic: str) -> Predicate:
    """Bind the condition `text` to the columns `fields` of `topic`.

    Raises InvalidRequestError if the text is not a supported condition, SchemaMismatchError if the topic lacks a column
    or a literal does not fit its column's type. Each error names the place.
    """
    try:
        return Predicate(text=text, root=_Binder(text, fields, topic).node(_parse(text)))
    except RecursionError:
        raise InvalidRequestError(f"where = {_shown(text)}: the condition is too deeply nested") from None


def check(text: str) -> None:
    """Raise InvalidRequestError if `text` is not a condition in SQL, independent of the columns."""
    _parse(text)


@lru_cache(maxsize=64)
def _parse(text: str) -> exp.Expr:
    # Imported here because the import takes a sixth of a second, and only this option needs it.
    try:
        import sqlglot
        from sqlglot.errors import SqlglotError
    except ModuleNotFoundError as error:
        raise InvalidRequestError(
            f"'where' as text needs sqlglot: {install_text('sql')}, or filter the rows after the read"
        ) from error

    if len(text) > MAX_LENGTH:
        raise InvalidRequestError(f"where: {len(text)} characters are too many; at most {MAX_LENGTH} are parsed")
    if _ESCAPES.search(text):
        raise InvalidRequestError(
            f"where = {_shown(text)}: a backslash may only stand before a quote or another backslash. "
            "hint: write the character itself"
        )
    try:
        found = sqlglot.parse(text, dialect="spark")
    except SqlglotError as error:
        plain = re.sub(r"\x1b\[\d*m", "", str(error)).split("\n")[0].rstrip(".")
        hint = ". hint: put a name with a space in backticks, as in `first name` = 'Ann'" * bool(
            _TWO_WORDS.search(text)
        )
        raise InvalidRequestError(f"where = {_shown(text)}: expected {_EXAMPLE}: {plain}{hint}") from None
    if len(found) != 1 or found[0] is None:
        raise InvalidRequestError(
            f"where = {_shown(text)}: expected one condition, found {len([x for x in found if x])}"
        )
    return found[0]


class _Binder:
    """Turns sqlglot's tree into a predicate on the columns of one topic."""

    def __init__(self, text: str, fields: Sequence[SchemaField], topic: str) -> None:
        self._text = text
        self._topic = topic
        self._fields = {field.name.lower(): field for field in (*fields, *OWN_FIELDS.values())}

    def node(self, found: exp.Expr) -> Node:
        from sqlglot import exp

        if isinstance(found, exp.Paren):
            return self.node(found.this)
        if isinstance(found, exp.And | exp.Or):
            parts = tuple(self.node(part) for part in found.flatten(unnest=False))
            return Every(parts=parts) if isinstance(found, exp.And) else Some(parts=parts)
        if isinstance(found, exp.Not):
            return negate(self.node(found.this))
        if isinstance(found, exp.Column):
            return self._compare(self._boolean(found), "=", True)
        if isinstance(found, exp.Is):
            return self._is(found)
        if isinstance(found, exp.Between):
            if found.args.get("symmetric") is not None:
                # sqlglot accepts it in every dialect. Read as a plain BETWEEN it would keep other rows.
                raise self._refusal(
                    found, "Spark has neither SYMMETRIC nor ASYMMETRIC; write BETWEEN with the lower bound first"
                )
            field = self._field(found.this)
            low = self._compare(field, ">=", self._value(found.args["low"]))
            return Every(parts=(low, self._compare(field, "<=", self._value(found.args["high"]))))
        if isinstance(found, exp.In) and not found.args.get("query") and found.expressions:
            return self._one_of(self._field(found.this), [self._value(each) for each in found.expressions])
        operator = _OPERATORS.get(type(found).__name__)
        if operator is None:
            raise self._refusal(found, "this kind of condition is not supported here")
        left, right = _bare(found.this), _bare(found.expression)
        if isinstance(right, exp.Column) and not isinstance(left, exp.Column):
            left, right, operator = right, left, FLIPPED[operator]
        return self._compare(self._field(left), operator, self._value(right))

    def _is(self, found: exp.Expr) -> Node:
        from sqlglot import exp

        right = _bare(found.expression)
        if isinstance(right, exp.Null):
            return Null(field=self._field(found.this), negated=False)
        if isinstance(right, exp.Boolean):
            field = self._boolean(found.this)
            # IS TRUE is never null: NOT (flag IS TRUE) holds for a null.
            return Every(parts=(Null(field=field, negated=True), self._compare(field, "=", bool(right.this))))
        raise self._refusal(found, "IS takes NULL, TRUE or FALSE")

    def _boolean(self, found: exp.Expr) -> SchemaField:
        field = self._field(found)
        if field.type != "bool":
            raise SchemaMismatchError(
                f"where = {_shown(self._text)}: column {field.name!r} of topic {self._topic!r} is {describe(field)}, "
                "but a boolean is needed here"
            )
        return field

    def _field(self, found: exp.Expr) -> SchemaField:
        from sqlglot import exp

        column = _bare(found)
        if isinstance(column, exp.Literal) and f'"{column.this}"' in self._text:
            raise self._refusal(found, f"text in double quotes is a value; write the column as `{column.this}`")
        if not isinstance(column, exp.Column) or isinstance(column.this, exp.Star):
            raise self._refusal(found, "one side of a comparison must be a column, the other a literal")
        if len(column.parts) != 1:
            raise self._refusal(
                found, "only whole columns can be compared; quote a name that contains a dot with backticks"
            )
        name = column.name
        field = self._fields.get(name.lower())
        if field is None:
            known = [each.name for each in self._fields.values()]
            raise SchemaMismatchError(
                f"where = {_shown(self._text)}: topic {self._topic!r} has no column {name!r}.{nearest(name, known)} "
                f"The columns are {', '.join(known)}"
            )
        return field

    def _value(self, found: exp.Expr) -> _Literal:
        from sqlglot import exp

        literal = _bare(found)
        if isinstance(literal, exp.Null):
            raise self._refusal(found, "a comparison with NULL is never true; use IS NULL")
        if isinstance(literal, exp.Boolean):
            return bool(literal.this)
        if isinstance(literal, exp.Neg) and _is_number(_bare(literal.this)):
            return self._number(found, f"-{_bare(literal.this).name}")
        if _is_number(literal):
            return self._number(found, literal.name)
        if isinstance(literal, exp.Literal):
            return str(literal.this)
        if isinstance(literal, exp.Cast) and isinstance(literal.this, exp.Literal) and literal.this.is_string:
            kind = str(literal.to.this.value)
            if kind in ("DATE", "TIMESTAMPTZ", "TIMESTAMPLTZ", "TIMESTAMP", "TIMESTAMPNTZ"):
                return str(literal.this.this)
        if isinstance(literal, exp.Concat):
            raise self._refusal(found, r"two texts stand side by side; write a quote within a text as \'")
        raise self._refusal(found, "one side of a comparison must be a column, the other a literal")

    def _number(self, found: exp.Expr, text: str) -> Decimal:
        try:
            number = _EXACT.create_decimal(text)
        except ArithmeticError:
            raise self._refusal(found, "this is not a number") from None
        if not number.is_finite() or abs(number.adjusted()) > _MAX_EXPONENT:
            raise self._refusal(found, "this number is too large, or too small")
        return number

    def _one_of(self, field: SchemaField, literals: list[_Literal]) -> Node:
        parts = [self._compare(field, "=", literal) for literal in literals]
        values = tuple(dict.fromkeys(part.value for part in parts if isinstance(part, Compare)))
        # Literals that no value of the column can equal matter only if there is no other literal.
        return OneOf(field=field, values=values, negated=False) if values else Known(field=field, truth=False)

    def _compare(self, field: SchemaField, operator: Operator, literal: _Literal) -> Compare | Known:
        if field.type in _INTEGER_BITS and isinstance(literal, Decimal):
            limit = Decimal(2 ** (_INTEGER_BITS[field.type] - 1))
            return _exact(field, operator, literal, Decimal(1), -limit, limit - 1)
        decimal = parse_decimal(field.type)
        if decimal is not None and isinstance(literal, Decimal):
            precision, scale = decimal
            unit = Decimal(1).scaleb(-scale)
            limit = _EXACT.subtract(Decimal(1).scaleb(precision - scale), unit)
            return _exact(field, operator, literal, unit, -limit, limit)
        if field.type in ("float32", "float64") and isinstance(literal, Decimal):
            number = float(literal)
            if not math.isfinite(number):
                raise self._unfit(field, literal)
            # A literal 0 matches both zeros.
            return Compare(field=field, operator=operator, value=number + 0.0)
        if field.type == "bool" and isinstance(literal, bool) and operator in ("=", "!="):
            return Compare(field=field, operator=operator, value=literal)
        if isinstance(literal, str):
            value: Value | None = None
            if field.type == "string":
                value = literal if is_unicode(literal) else None
            elif field.type == "date" and _ISO_DATE.fullmatch(literal):
                value = _days(literal)
            elif field.type in ("timestamp", "timestamp_ntz") and _ISO_TIME.fullmatch(literal):
                value = _microseconds(literal, zoned=field.type == "timestamp")
            if value is not None:
                return Compare(field=field, operator=operator, value=value)
        raise self._unfit(field, literal)

    def _unfit(self, field: SchemaField, literal: _Literal) -> SchemaMismatchError:
        shown = f"{literal:f}" if isinstance(literal, Decimal) else repr(literal)
        return SchemaMismatchError(
            f"where = {_shown(self._text)}: column {field.name!r} of topic {self._topic!r} is {describe(field)}, and "
            f"{shown} cannot be compared with that. {_expected(field)}"
        )

    def _refusal(self, found: exp.Expr, why: str) -> InvalidRequestError:
        return InvalidRequestError(
            f"where = {_shown(self._text)}: {found.sql(dialect='spark')}: {why}. "
            "hint: compare a column with a literal that your program has computed, or use IN, BETWEEN, IS NULL, AND, "
            "OR, NOT; for anything else filter the rows after the read"
        )


_Literal = bool | str | Decimal


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")


def _bare(found: Any) -> Any:
    from sqlglot import exp

    while isinstance(found, exp.Paren):
        found = found.this
    return found


def _is_number(found: Any) -> bool:
    from sqlglot import exp

    return isinstance(found, exp.Literal) and not found.is_string


def _exact(
    field: SchemaField, operator: Operator, literal: Decimal, unit: Decimal, low: Decimal, high: Decimal
) -> Compare | Known:
    """Return an equivalent comparison with a multiple of `unit` in `[low, high]` instead of `literal`."""
    down = _EXACT.multiply(_EXACT.divide(literal, unit).to_integral_value(ROUND_FLOOR), unit)
    up = _EXACT.multiply(_EXACT.divide(literal, unit).to_integral_value(ROUND_CEILING), unit)
    if operator in ("=", "!=") and (down != up or not low <= literal <= high):
        return Known(field=field, truth=operator == "!=")
    bound = {"<": up, ">=": up, "<=": down, ">": down}.get(operator, down)
    if bound < low:
        return Known(field=field, truth=operator in (">", ">="))
    if bound > high:
        return Known(field=field, truth=operator in ("<", "<="))
    return Compare(field=field, operator=operator, value=int(bound) if unit == 1 and "int" in field.type else bound)


def _days(text: str) -> int | None:
    try:
        return (datetime.date.fromisoformat(text) - _EPOCH).days
    except ValueError:
        return None


def _microseconds(text: str, *, zoned: bool) -> int | None:
    try:
        time = datetime.datetime.fromisoformat(text.upper())
    except ValueError:
        return None
    if time.tzinfo is not None and not zoned:
        return None
    return microseconds(time)


def _expected(field: SchemaField) -> str:
    if field.type in _INTEGER_BITS or field.type.startswith(("float", "decimal")):
        return "Write a number."
    return {
        "bool": "Write TRUE or FALSE, with = or !=.",
        "string": "Write a text in single quotes.",
        "date": "Write a date as '2013-01-31'.",
        "timestamp": "Write a time as '2013-01-31 05:00:00' (UTC) or '2013-01-31T05:00:00+01:00'.",
        "timestamp_ntz": "Write a time as '2013-01-31 05:00:00', without an offset.",
    }.get(field.type, "Only IS NULL and IS NOT NULL work with this type.")
