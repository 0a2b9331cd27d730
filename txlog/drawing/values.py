"""Which parts does a page have? Drawings, tables and sections, as plain values.

Times are milliseconds since 1970. A `kind` is one of KINDS: it selects a colour, and the legend tells its meaning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

Axis: TypeAlias = Literal["offset", "time", "rows"]
Cell: TypeAlias = str | int | None

KINDS: Mapping[str, str] = {
    "committed": "committed",
    "aborted": "aborted",
    "open": "open",
    "control": "control records",
    "unread": "not read",
    "deleted": "deleted (below the log start)",
    "sealed": "sealed segment",
    "merged": "merged",
    "compacted": "compacted",
    "tail": "tail",
    "lso": "last stable offset (LSO)",
    "end": "log end",
    "ongoing": "ongoing",
    "prepare": "prepared",
    "timeout": "past its time-out",
    "lag": "lag",
    "published": "published",
    "discarded": "discarded",
    "failed": "failed",
}
"""Kind -> its word."""

LEGEND: Mapping[str, str] = {
    **KINDS,
    "committed": "committed (readers see it)",
    "aborted": "aborted (never visible)",
    "open": "open (not visible yet)",
    "control": "records of txlog without rows",
    "sealed": "sealed segment (as it was written)",
    "tail": "tail (not sealed yet)",
}
"""Kind -> what a legend says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A rectangle in a lane, from `start` to `end` on the axis."""

    lane: int
    start: float
    end: float
    kind: str
    title: str
    """Shown on hover."""
    low: float = 0.0
    high: float = 1.0
    """Bottom and top, as parts of the lane's height."""
    text: str = ""
    """Written at its right end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A line across a lane."""

    lane: int
    at: float
    kind: str
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lanes:
    """A drawing of lanes over one axis, the first lane on top."""

    alt: str
    """What it shows, for people who cannot see it."""
    axis: Axis
    labels: Sequence[str]
    boxes: Sequence[Box]
    marks: Sequence[Mark] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """Stacked columns. Each kind has a number in each column."""

    label: str
    unit: Literal["bytes", "files"]
    series: Mapping[str, Sequence[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """A drawing of panels over one axis of time. Column n begins at `start + n * width`."""

    alt: str
    start: float
    width: float
    titles: Sequence[str]
    """For each column, shown on hover."""
    panels: Sequence[Panel]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows under headings."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    noun: str = "line"
    """What a row describes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of a page: a drawing, its legend, and a table with the same contents."""

    title: str
    table: Table | None = None
    drawing: Lanes | Columns | None = None
    legend: Sequence[str] = ()
    """Kinds."""
    note: str = ""
    is_part: bool = False
    """Whether it belongs to the section before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A document about one store."""

    title: str
    subtitle: str
    figures: Sequence[tuple[str, str]]
    """The summary: names and values."""
    warnings: Sequence[str]
    sections: Sequence[Section]


def visible(text: str) -> str:
    """Return `text` with characters that cannot be seen, or that change the order of others, as escapes like
    `\\u202e`."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode("ascii") for each in text)
