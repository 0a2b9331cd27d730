"""The rows of the published topic of story.py. Engines with a Python of their own import this, so it needs nothing."""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Iterable, Mapping
from typing import Any

LARGE = 2**40
"""Added to numbers in the columns that have become wider."""


def row(number: int, *, changed: bool = False) -> dict[str, Any]:
    """Return a row in the first columns, or in the changed ones."""
    made: dict[str, Any] = {
        "id": number,
        "tiny": number,
        "small": number,
        "num": number * 10,
        "single": number / 2,
        "double": number / 4,
        "text": f"text {number} " + "x" * 40,
        "raw": bytes([number]),
        "day": dt.date(2026, 1, 1) + dt.timedelta(number),
        "at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=number),
        "clock": dt.datetime(2026, 1, 1) + dt.timedelta(seconds=number),
        "price": decimal.Decimal(number) / 100,
        "ok": number % 2 == 1,
        "tags": [f"t{number}", None],
        "attrs": [("a", number), ("b", None)],
        "place": {"city": f"c{number}", "zip": number},
        "items": [{"sku": f"k{number}", "qty": number}],
        "old": f"old {number}",
    }
    if changed:
        del made["old"]
        made |= {"small": number + LARGE, "number": made.pop("num"), "extra": f"e{number}"}
        made["place"] = {"town": f"c{number}", "zip": number + LARGE, "land": "de"}
    return made


def expected() -> dict[int, dict[str, Any]]:
    """Return the rows at the end of the story, by id, as `plain` returns them."""
    rows = {}
    for number in (*range(3, 20), 22, 23, 24, *range(26, 30)):
        made = row(number)
        del made["old"]
        made |= {"number": made.pop("num"), "extra": None, "place": {"town": f"c{number}", "zip": number, "land": None}}
        rows[number] = plain(made)
    return rows | {number: plain(row(number, changed=True)) for number in range(30, 45)}


def plain(value: Any) -> Any:
    """Return a value of a row in one form, whatever engine it is from."""
    if isinstance(value, dt.datetime):
        return (value.astimezone(dt.UTC) if value.tzinfo else value).replace(tzinfo=None).isoformat()
    if isinstance(value, dt.date):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return f"{value:.2f}"
    if isinstance(value, bytes | bytearray):
        return value.hex()
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list):
        if value and isinstance(value[0], tuple):
            return {name: plain(each) for name, each in value}
        if value and isinstance(value[0], Mapping) and set(value[0]) == {"key", "value"}:
            return {each["key"]: plain(each["value"]) for each in value}
        return [plain(each) for each in value]
    return value


def check(rows: Iterable[Mapping[str, Any]]) -> None:
    """Assert that an engine has read the end of the story."""
    found = [plain(each) for each in rows]
    assert len(found) == len({each["id"] for each in found})
    assert {each["id"]: each for each in found} == expected()
