"""A progress bar."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator


@contextlib.contextmanager
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
