"""How does the demo look?

Steps with their times, tables, a partition as it lies in the store, and Spark's own messages.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn
from rich.status import Status
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from txlog.clock import SystemClock
from txlog.text import count_text, duration_text

if TYPE_CHECKING:
    from lab.demo.proof import Proof
    from txlog.client import Store
    from txlog.client.admin.descriptions import OffsetInfo, PartitionDescription

PIPE_WIDTH = 120
"""Columns without a terminal and without COLUMNS; every table fits in 80."""
INDENT = 3
"""The indentation of everything below a step's headline."""
NOISE = "WARNING: Using incubator modules"
"""The first output of every JVM of Spark. No option suppresses it, and it needs no action."""

_FIGURES = {
    "source": "rows that went in",
    "read_committed": "rows that Spark reads back",
    "lost": "rows missing",
    "doubled": "rows too many",
    "torn": "months visible in part",
    "out_of_order": "rows behind a later one of their partition",
    "read_uncommitted": "all rows in the log",
    "hidden": "the difference of the two",
    "aborted": "rows of aborted transactions: as many as are hidden",
}
"""The figures of a `Proof`, and what they count."""
_JUDGED = frozenset({"lost", "doubled", "torn", "out_of_order"})
_KINDS = {
    "index": "its batches, by offset",
    "txnindex": "its aborted transactions",
    "parquet": "its rows",
    "snapshot": "state of the partition there: producers, open transactions",
    "batch": "a commit record",
}


class Show:
    """The demo's output. Everything is indented below the headline of its step."""

    def __init__(self, file: TextIO | None = None) -> None:
        file = file or sys.stdout
        known = file.isatty() or "COLUMNS" in os.environ
        self._console = Console(file=file, width=None if known else PIPE_WIDTH, highlight=False)
        self._clock = SystemClock()
        self._started_ms = self._clock.monotonic_ms()

    def headline(self, text: str) -> None:
        """The very first line."""
        self._console.rule(f"[bold]{text}[/]")

    @contextmanager
    def step(self, number: int, text: str) -> Iterator[None]:
        """Show a step: its headline, the output inside the block, and its duration."""
        started_ms = self._clock.monotonic_ms()
        self._console.print(f"\n[bold]{number}. {text}[/]")
        yield
        self.line(f"[dim]{self._time_since(started_ms)}[/]")

    def total(self) -> str:
        """Return the total time so far."""
        return self._time_since(self._started_ms)

    def line(self, text: str, *, indent: int = INDENT) -> None:
        """A line; a long one is wrapped at its own indentation."""
        self._console.print(Padding(text, (0, 0, 0, indent), expand=False))

    def paragraph(self, text: str) -> None:
        """A line that belongs to no step, an empty one before."""
        self._console.print(f"\n{text}")

    def command(self, text: str) -> None:
        """Print a command to copy; never wrapped, because that would break it."""
        self._console.print(Text(" " * INDENT + text), soft_wrap=True)

    def quote(self, text: str, style: str = "red") -> None:
        """What a user reads, as it is printed there."""
        self._console.print(Padding(Text(text, style=style), (0, 0, 0, INDENT + 2), expand=False))

    def waiting(self, text: str) -> Status:
        """Return a spinner, shown while it is entered; it shows nothing without a terminal."""
        return self._console.status(text)

    def progress(self) -> Progress:
        """Return a bar for each added task; other output appears above it."""
        return Progress(
            SpinnerColumn(finished_text=" " * 2),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            console=self._console,
        )

    def offsets(self, title: str, offsets: Sequence[OffsetInfo], counts: Sequence[tuple[int, int]]) -> None:
        """Log start, LSO and log end of each partition, and the rows that each isolation level reads."""
        table = _table("partition", "log\nstart", "LSO", "log\nend", "read_\ncommitted", "read_\nuncommitted")
        for info, (committed, uncommitted) in zip(offsets, counts, strict=True):
            held = info.last_stable_offset < info.log_end_offset
            lso = f"{info.last_stable_offset:,}"
            table.add_row(
                f"{info.topic}-{info.partition}",
                f"{info.log_start_offset:,}",
                f"[yellow]held back at {lso}[/]" if held else lso,
                f"{info.log_end_offset:,}",
                f"{committed:,}",
                f"{uncommitted:,}",
            )
        self.line(title)
        self._table(table)

    def proofs(self, proofs: Sequence[Proof]) -> None:
        """The table at the end: a column a topic, so that it holds in a narrow terminal, and its figures explained."""
        table = _table("", *(proof.topic for proof in proofs))
        table.add_column("", style="dim", overflow="fold")
        for figure, meaning in _FIGURES.items():
            if all(getattr(proof, figure) is None for proof in proofs):
                continue
            cells = []
            for proof in proofs:
                text = f"{getattr(proof, figure):,}"
                style = "bold green" if proof.holds else "bold red"
                cells.append(f"[{style}]{text}[/]" if figure in _JUDGED else text)
            table.add_row(figure, *cells, meaning)
        self._table(table)

    def sizes(self, topics: Sequence[tuple[str, Sequence[str]]]) -> None:
        """What each topic consists of, before and after."""
        table = _table("topic", "segments", "files", "bytes", "aborted rows")
        for topic, cells in topics:
            table.add_row(topic, *cells)
        self._table(table)

    def partition(self, log: Store, described: PartitionDescription) -> None:
        """A partition's objects: the first and the last sealed segment, and the active tail."""
        folder = f"{described.topic}/{described.partition}/"
        names = log.runtime.store.list(folder)
        tree = Tree(f"[bold]{folder}[/]")
        segments = described.segments
        for number, segment in enumerate(segments):
            if 0 < number < len(segments) - 1:
                if number == 1:
                    tree.add(f"[dim]... and {count_text(len(segments) - 2, 'more sealed segment')} ...[/]")
                continue
            node = tree.add(
                f"offsets {segment.base_offset:,} to {segment.end_offset - 1:,}: a sealed segment of "
                f"{count_text(segment.batches, 'batch')}, {count_text(segment.aborted_txns, 'aborted transaction')}"
            )
            inside = [name for name in names if segment.base_offset <= _offset(name) < segment.end_offset]
            self._objects(node, log, folder, [name for name in inside if not name.endswith(".batch")])
            records = [name for name in inside if name.endswith(".batch")]
            node.add(f"{records[0]}  [dim]and {len(records) - 1} more: its commit records, no longer needed[/]")
        node = tree.add(f"offsets {described.sealed_end:,} to {described.log_end_offset - 1:,}: the active tail")
        self._objects(node, log, folder, [name for name in names if _offset(name) >= described.sealed_end])
        self._console.print(Padding(tree, (0, 0, 0, INDENT), expand=False))

    def _objects(self, node: Tree, log: Store, folder: str, names: Sequence[str]) -> None:
        for name in names:
            size = log.runtime.store.size(folder + name)
            what = _KINDS.get(name.rpartition(".")[2], "rows")
            node.add(f"{name}  [dim]{size:,} B, {what}[/]")

    def _table(self, table: Table) -> None:
        self._console.print(Padding(table, (0, 0, 0, INDENT), expand=False))

    def _time_since(self, since_ms: int) -> str:
        return duration_text(self._clock.monotonic_ms() - since_ms)


class SparkMessages:
    """The standard error of Spark's processes, shown in its place and without the noise.

    The processes keep the standard error with which they start, so it is replaced only while `capture` is entered.
    """

    def __init__(self, show: Show) -> None:
        self._show = show
        self._lines: list[str] = []
        self._arrived = threading.Condition()

    @contextmanager
    def capture(self) -> Iterator[None]:
        """Capture what processes print that start inside the block, as long as they live."""
        read, write = os.pipe()
        threading.Thread(target=self._pump, args=(read,), name="spark-messages", daemon=True).start()
        sys.stderr.flush()
        ours = os.dup(2)
        os.dup2(write, 2)
        os.close(write)
        try:
            yield
        finally:
            os.dup2(ours, 2)
            os.close(ours)

    def wait_for(self, text: str, timeout_s: float = 30) -> str | None:
        """Return the first line that contains `text`; None if it does not appear in time."""
        with self._arrived:
            self._arrived.wait_for(lambda: any(text in line for line in self._lines), timeout_s)
            return next((line for line in self._lines if text in line), None)

    def _pump(self, read: int) -> None:
        with open(read, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if line.startswith(NOISE):
                    continue
                self._show.quote(line.rstrip(), style="cyan")
                with self._arrived:
                    self._lines.append(line.rstrip())
                    self._arrived.notify_all()


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        # In a narrow terminal a figure continues on the next line. If it were cut, it would be a different figure.
        table.add_column(column, justify="right" if number else "left", overflow="fold")
    return table


def _offset(name: str) -> int:
    """The offset that a partition's object begins at; -1 of a folder."""
    return int(name[:20]) if name[:20].isdigit() else -1
