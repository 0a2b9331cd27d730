"""How does `--help` look, and how does it show whole names in a narrow terminal?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from typer.core import TyperCommand, TyperGroup


class _PlainHelp:
    """Does not show in the help that `--help` takes a bool, and cuts no name."""

    def get_help_option(self, ctx: Any) -> Any:
        option = super().get_help_option(ctx)  # type: ignore[misc]
        if option is not None:
            option.metavar = ""
        return option

    def format_help(self, ctx: Any, formatter: Any) -> None:
        with _whole_names():
            super().format_help(ctx, formatter)  # type: ignore[misc]


class Command(_PlainHelp, TyperCommand):
    """A command of txlog."""


class Group(_PlainHelp, TyperGroup):
    """A group of commands of txlog."""


@contextmanager
def _whole_names() -> Iterator[None]:
    """Let typer print tables of options in which only the columns of the values and of the texts become narrower."""
    # Local imports, because only help needs these modules.
    from rich.table import Table
    from typer import rich_utils

    class WholeNames(Table):
        def add_row(self, *cells: Any, **more: Any) -> None:
            super().add_row(*cells, **more)
            for column in self.columns[:-2]:
                column.no_wrap = True
            for column in self.columns[-2:]:
                column.overflow = "fold"

    names = vars(rich_utils)
    original = names["Table"]
    names["Table"] = WholeNames
    try:
        yield
    finally:
        names["Table"] = original
