"""How is a result shown to a person at a terminal, to a pipe, to a program?

Text is coloured at a terminal and plain in a pipe. Tables are aligned and never wrapped, with one row on each line.
JSON is one document, the same at a terminal and in a pipe, made of the structs that `txlog.cli.documents` lists.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from numbers import Number
from typing import TYPE_CHECKING, TypeAlias

import msgspec

if TYPE_CHECKING:
    from rich.table import Table

Cell: TypeAlias = str | int | float | Decimal | None
Row: TypeAlias = Sequence[Cell]

NOTHING = "-"
"""A cell without a value."""

_STYLES = {
    **dict.fromkeys(("committed", "COMPLETE_COMMIT", "commit"), "green"),
    **dict.fromkeys(("ongoing", "open", "ONGOING", "PREPARE_COMMIT", "PREPARE_ABORT", "note"), "yellow"),
    **dict.fromkeys(("aborted", "abort", "COMPLETE_ABORT"), "red"),
    **dict.fromkeys(("hanging", "damaged", "missing"), "bold red"),
    **dict.fromkeys(("control", NOTHING), "dim"),
}
"""Words that a table shows in colour."""

_NO_LIMIT = 10_000
"""Maximum width of a table in characters. No table is that wide."""

_NONES: tuple[object, ...] = (None, -1, 0, "", (), {})


class OutputFormat(StrEnum):
    """The values of `--output`."""

    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class Output:
    """Writer of results. Everything is written to the current standard output."""

    format: OutputFormat

    @property
    def is_json(self) -> bool:
        return self.format is OutputFormat.JSON

    def show(self, document: object, text: Callable[[Output], None]) -> None:
        """Write `document` as JSON, or call `text` to write it."""
        if self.is_json:
            write(encode_document(document))
        else:
            text(self)

    def line(self, text: str = "") -> None:
        """Write a line of text."""
        write(text + "\n")

    def note(self, text: str) -> None:
        """Write a line to the standard error, for information that a program reading the output does not need."""
        sys.stderr.write(text + "\n")
        sys.stderr.flush()

    def flush(self) -> None:
        """Flush what was written so far, for commands that run for long."""
        sys.stdout.flush()

    def heading(self, text: str) -> None:
        """Write an empty line and a heading."""
        _write_styled(("\n", ""), (text, "bold"))

    def fields(self, pairs: Iterable[tuple[str, Cell]]) -> None:
        """Write names and values, one pair on each line, with the values aligned."""
        shown = [(name, _text(value)) for name, value in pairs]
        width = max((len(name) for name, _ in shown), default=0)
        for name, value in shown:
            _write_styled((f"{name:<{width}}  ", "dim"), (value, _STYLES.get(value, "")))

    def table(self, columns: Sequence[str], rows: Iterable[Row], *, empty: str = "") -> None:
        """Write rows under upper-case headings, numbers aligned right, or the sentence `empty` if there are none."""
        listed = list(rows)
        if not listed:
            self.line(empty)
        elif sys.stdout.isatty():
            _print_table(columns, listed)
        else:
            _plain_table(columns, listed)

    def records(self, rows: Iterable[Mapping[str, Cell]], *, empty: str = "") -> None:
        """Write a table of rows that all have the same columns, by name."""
        listed = list(rows)
        self.table(list(listed[0]) if listed else (), [list(row.values()) for row in listed], empty=empty)

    def section(self, title: str, columns: Sequence[str], rows: Iterable[Row]) -> None:
        """Write a heading and a table, or nothing without rows."""
        listed = list(rows)
        if listed:
            self.heading(title)
            self.table(columns, listed)


def encode_document(document: object) -> str:
    """Return the JSON of a document, indented, with a newline at its end."""
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"


def encode_line(document: object) -> str:
    """Return the JSON of a document on one line."""
    return msgspec.json.encode(document).decode() + "\n"


def write(text: str) -> None:
    """Write text to the current standard output."""
    sys.stdout.write(text)


def tabulate(
    value: msgspec.Struct, *, complete: bool = False
) -> tuple[dict[str, Cell], dict[str, list[msgspec.Struct]]]:
    """Return a struct's fields as cells, and its lists of structs, each for a separate table.

    Nested structs are flattened: the names of their fields get a prefix and a dot. A field whose default means "none"
    is left out if it has that value, unless `complete`.
    """
    cells: dict[str, Cell] = {}
    tables: dict[str, list[msgspec.Struct]] = {}
    for field in msgspec.structs.fields(value):
        found = getattr(value, field.name)
        if isinstance(found, msgspec.Struct):
            inner, lists = tabulate(found, complete=complete)
            cells |= {f"{field.name}.{name}": cell for name, cell in inner.items()}
            tables |= {f"{field.name}.{name}": rows for name, rows in lists.items()}
        elif isinstance(found, tuple) and found and isinstance(found[0], msgspec.Struct):
            tables[field.name] = list(found)
        elif complete or found != field.default or found not in _NONES:
            cells[field.name] = cell_of(found)
    return cells, tables


def struct_table(structs: Sequence[msgspec.Struct]) -> tuple[list[str], list[Row]]:
    """Return columns and rows for structs of any kinds, with a column for each field that at least one of them
    shows."""
    names = dict.fromkeys(name for struct in structs for part in tabulate(struct) for name in part)
    rows: list[Row] = []
    for struct in structs:
        cells, tables = tabulate(struct, complete=True)
        rows.append([cell_of(tables[name]) if name in tables else cells.get(name) for name in names])
    return list(names), rows


def cell_of(value: object) -> Cell:
    """Return a value as a cell: text and whole numbers unchanged, everything else as JSON, and an absent value
    empty."""
    if value is msgspec.UNSET:
        return None
    if value is None or isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
        return value if value != "" else None
    return msgspec.json.encode(value).decode()


@contextmanager
def progress_bar(at_first: str, what: str = "") -> Iterator[Callable[[object, int, int], None] | None]:
    """Show a bar on the standard error and yield the function that moves it, with (where, done, in all).

    If the standard error is not a terminal, it yields None and shows nothing. `what` names the things that are counted,
    and is shown after the place. Until the first call the bar shows `at_first`.
    """
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(at_first, total=None)

        def show(where: object, done: int, total: int) -> None:
            bar.update(
                task, description=f"{where}, {what}" if what else str(where), completed=done, total=total or None
            )

        yield show


def _text(cell: Cell) -> str:
    return NOTHING if cell is None or cell == "" else str(cell)


def _plain_table(columns: Sequence[str], rows: Sequence[Row]) -> None:
    texts = [[column.upper() for column in columns], *([_text(cell) for cell in row] for row in rows)]
    widths = [max(len(row[at]) for row in texts) for at in range(len(columns))]
    sides = [">" if _is_number(rows, at) else "<" for at in range(len(columns))]
    for row in texts:
        cells = (f"{text:{side}{width}}" for text, side, width in zip(row, sides, widths, strict=True))
        write("  ".join(cells).rstrip() + "\n")


def _is_number(rows: Sequence[Row], at: int) -> bool:
    cells = [row[at] for row in rows]
    return any(cell is not None for cell in cells) and all(cell is None or isinstance(cell, Number) for cell in cells)


def rich_table(columns: Sequence[str], rows: Sequence[Row]) -> Table:
    """Return a table for a terminal."""
    # A local import: a pipe, JSON and `--help` do not need it.
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for at, column in enumerate(columns):
        table.add_column(column.upper(), justify="right" if _is_number(rows, at) else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(text, style=_STYLES.get(text, "")) for text in map(_text, row)))
    return table


def _print_table(columns: Sequence[str], rows: Sequence[Row]) -> None:
    from rich.console import Console

    table = rich_table(columns, rows)
    console = Console(file=sys.stdout)
    # Let the terminal wrap a table that is too wide, so that values stay whole and can be copied.
    console.width = max(console.width, console.measure(table, options=console.options.update(width=_NO_LIMIT)).maximum)
    console.print(table)


def _write_styled(*parts: tuple[str, str]) -> None:
    """Write texts as one line, and in their styles at a terminal."""
    if not sys.stdout.isatty():
        write("".join(text for text, _ in parts) + "\n")
        return
    from rich.console import Console
    from rich.text import Text

    Console(file=sys.stdout, soft_wrap=True).print(Text.assemble(*parts))
