"""What does a Delta log say about the values in a file, so that readers skip files?

Bounds are always bounds, never only a beginning: a reader that skips by them misses no row. See Delta's PROTOCOL.md,
"Per-file Statistics".
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime, timedelta
from typing import Any

from txlog.core.records import SchemaField
from txlog.core.records.publications import PublishedFile

_AS_THEY_ARE = frozenset({"int8", "int16", "int32", "int64", "float32", "float64", "string"})
_FIRST_DAY = date(1970, 1, 1)
_FIRST_MOMENT = datetime(1970, 1, 1)


def delta_statistics(file: PublishedFile, fields: Sequence[SchemaField]) -> dict[str, Any]:
    """Return the value of `stats` for a file. `numRecords` counts removed rows, too."""
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for field in fields:
        found = file.statistics.get(str(field.id))
        if found is None:
            continue
        nulls[field.name] = found[2]
        low, high = _bound(field.type, found[0], upper=False), _bound(field.type, found[1], upper=True)
        if low is not None and high is not None:
            least[field.name], greatest[field.name] = low, high
    return {
        "numRecords": file.rows,
        "minValues": least,
        "maxValues": greatest,
        "nullCount": nulls,
        # With rows removed, those that remain may have narrower bounds and fewer nulls.
        "tightBounds": not file.is_partial,
    }


def _bound(type_name: str, value: Any, *, upper: bool) -> Any:
    """Return a bound as Delta writes it; None if the type has none, or for a year outside of 1 to 9999."""
    if value is None or type_name in _AS_THEY_ARE:
        return value
    try:
        if type_name == "date":
            return (_FIRST_DAY + timedelta(days=value)).isoformat()
        if type_name in ("timestamp", "timestamp_ntz"):
            # Delta has milliseconds here. Some readers allow for an upper bound that is rounded down, others do not.
            whole_ms = -(-value // 1000) if upper else value // 1000
            text = (_FIRST_MOMENT + timedelta(milliseconds=whole_ms)).isoformat(timespec="milliseconds")
            return text + ("Z" if type_name == "timestamp" else "")
    except OverflowError:
        return None
    return None
