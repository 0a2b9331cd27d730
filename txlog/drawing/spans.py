"""How are a million batches drawn on a few hundred pixels?"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

_FIRST = ("open", "aborted", "compacted", "merged", "tail", "sealed", "unread", "committed", "control")
"""If a span holds several kinds, the first of them gives the colour, so that the rare ones stay visible."""


@dataclass(slots=True)
class Span:
    """A range of offsets, and what is in it."""

    start: int
    end: int
    kind: str
    counts: Counter[str]
    """Batches or segments of each kind."""
    title: str = ""


class Spans:
    """Collect ranges of one partition from the last to the first, as at most `limit` spans.

    While there are few, each keeps its limits; with `joined`, neighbours of one kind become one span. Beyond the limit
    the offsets are cut into equal parts, and each part counts what it meets. Memory does not grow with the ranges.
    """

    def __init__(self, start: int, end: int, limit: int, *, joined: bool) -> None:
        self._start, self._end, self._limit, self._joined = start, end, limit, joined
        self._width = max(1, -(-(end - start) // limit))
        self._spans: list[Span] = []
        self._parts: dict[int, Counter[str]] | None = None

    def add(self, start: int, end: int, kind: str, title: str = "") -> None:
        """Add a range that ends at or before the start of the range before it.

        Offsets below the first one are cut off.
        """
        start = max(start, self._start)
        if start >= end:
            return
        if self._parts is not None:
            self._count(start, end, kind, 1)
            return
        last = self._spans[-1] if self._spans else None
        if self._joined and last is not None and last.kind == kind and last.start == end:
            last.start = start
            last.counts[kind] += 1
            return
        self._spans.append(Span(start, end, kind, Counter({kind: 1}), title))
        if len(self._spans) > self._limit:
            self._parts = {}
            for span in self._spans:
                for each, count in span.counts.items():
                    self._count(span.start, span.end, each, count)

    def result(self) -> list[Span]:
        """Return the spans, from the first to the last."""
        if self._parts is None:
            return self._spans[::-1]
        found: list[Span] = []
        for part, counts in sorted(self._parts.items()):
            kind = min(counts, key=_FIRST.index)
            start = self._start + part * self._width
            end = min(start + self._width, self._end)
            if found and found[-1].kind == kind and found[-1].end == start and len(counts) == 1:
                found[-1].end = end
                found[-1].counts.update(counts)
            else:
                found.append(Span(start, end, kind, counts))
        return found

    def _count(self, start: int, end: int, kind: str, count: int) -> None:
        assert self._parts is not None
        first, last = (start - self._start) // self._width, (end - 1 - self._start) // self._width
        for part in range(first, last + 1):
            # A range that several parts share counts in the first of them. The others only get its colour.
            self._parts.setdefault(part, Counter())[kind] += count if part == first else 0
