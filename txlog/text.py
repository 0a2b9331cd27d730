"""How does txlog write times, sizes, numbers and similar names for people, and read what people wrote?

Tables, dumps and messages use the same spelling. Programs get milliseconds and bytes instead.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import re
import reprlib
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SHOWN = reprlib.Repr()
_SHOWN.maxstring = _SHOWN.maxother = 80
_IRREGULAR = {"entry": "entries", "index": "indexes", "batch": "batches"}


def time_text(timestamp_ms: int) -> str:
    """Return a time as RFC 3339 in UTC, to the millisecond.

    Returns `-` for a negative number (none) or beyond the year 9999.
    """
    if timestamp_ms < 0:
        return "-"
    try:
        moment = _EPOCH + timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return "-"
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse_storage_value(text: str) -> object:
    """Return a storage option's value: a bool for true and false, a dict for a JSON object, other text as it is."""
    if text.strip().lower() in {"true", "false"}:
        return text.strip().lower() == "true"
    if text.lstrip().startswith("{"):
        with contextlib.suppress(ValueError):
            return json.loads(text)
    return text


def parse_time(text: str) -> int | None:
    """Return an RFC 3339 time or a date as milliseconds since the epoch; None for other text.

    Without a zone the time is UTC.
    """
    if re.fullmatch(r"\d{1,18}", text, re.ASCII):
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def microseconds(time: datetime) -> int:
    """Return a time as microseconds since the epoch. Without a zone it is UTC."""
    return (time.replace(tzinfo=time.tzinfo or UTC) - _EPOCH) // timedelta(microseconds=1)


def duration_text(duration_ms: int) -> str:
    """Return a duration as text; `-` for a negative number.

    Examples are `850 ms`, `12.5 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`.
    """
    if duration_ms < 0:
        return "-"
    if duration_ms < 1000:
        return f"{duration_ms} ms"
    if duration_ms < 60_000:
        return f"{duration_ms / 1000:.1f}".removesuffix(".0") + " s"
    minutes, seconds = divmod(duration_ms // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (seconds, "s")]
    first = next(at for at, (number, _) in enumerate(parts) if number)
    return " ".join(f"{number} {unit}" for number, unit in parts[first : first + 2] if number)


def bytes_text(size_bytes: int) -> str:
    """Return a size as text: `812 B`, `4.1 KiB`, `1 GiB`."""
    size: float = size_bytes
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1024 or unit == "TiB":
            break
        size /= 1024
    return f"{size_bytes} B" if unit == "B" else f"{size:.1f}".removesuffix(".0") + f" {unit}"


def count_text(number: int, noun: str) -> str:
    """Return a number with its noun: `1 row`, `2,048 rows`, `no rows`."""
    plural = _IRREGULAR.get(noun, noun + "s")
    return f"no {plural}" if number == 0 else f"{number:,} {noun if number == 1 else plural}"


def range_text(first: int, last: int) -> str:
    """Return a closed range of offsets as text: `offset 7`, `offsets 7 to 12`."""
    return f"offset {first}" if first == last else f"offsets {first} to {last}"


def install_text(extra: str) -> str:
    """Return the command that adds an extra to an installed txlog."""
    # It is right for a txlog from a clone, too: pip finds the installed package, and adds the packages of the extra.
    return f"pip install 'pyspark-txlog[{extra}]'"


def digest_text(digest: str) -> str:
    """Return the first 12 of a digest's 64 digits: enough to tell two digests apart."""
    return f"{digest[:12]}…"


def is_unicode(text: str) -> bool:
    """Return whether UTF-8 can encode the text. It cannot encode lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def shorten(text: str, most: int) -> str:
    """Return `text` with at most `most` characters. A `…` at the end shows that it was cut."""
    return text if len(text) <= most else text[: most - 1] + "…"


def any_text(value: object) -> str:
    """Return any value for a message: its repr, shortened, or the name of its type if the repr has several lines."""
    text = _SHOWN.repr(value)
    return f"<{type(value).__name__}>" if "\n" in text else text


def nearest(name: str, known: Iterable[str]) -> str:
    """Return " Did you mean 'x'?" with the most similar name of `known`, or "" if no name is similar."""
    folded = {_fold(candidate): candidate for candidate in known}
    matches = difflib.get_close_matches(_fold(name), list(folded), n=1, cutoff=0.6)
    # The first word of a longer name, as in `key` for `key.columns`.
    matches = matches or [each for each in folded if each.startswith(f"{_fold(name)}.")]
    return f" Did you mean '{folded[matches[0]]}'?" if matches else ""


def _fold(name: str) -> str:
    return str(name).lower().replace("_", ".")
