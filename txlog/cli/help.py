"""How does `--help` look, and how does it show whole names in a narrow terminal?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

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
    """Let typer print tables of options with the names of an option in one column, and with whole words."""
    # Local imports, because only help needs these modules.
    from rich.columns import Columns
    from rich.table import Table
    from rich.text import Text
    from typer import rich_utils

    class WholeNames(Table):
        def add_row(self, *cells: Any, **more: Any) -> None:
            match cells:
                case (
                    *required,
                    Text() as long,
                    Text() as short,
                    Text() as no,
                    Text() as short_no,
                    kind,
                    Columns() as about,
                ):
                    yes, no = (Text(", ").join(filter(None, pair)) for pair in ((long, short), (no, short_no)))
                    # Columns would cut a word that is wider than its column.
                    cells = (
                        *required,
                        Text("\n").join(filter(None, (yes, no))),
                        kind,
                        Text(" ").join(cast("list[Text]", about.renderables)),
                    )
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
