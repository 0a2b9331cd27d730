"""How does `--help` look? Plain text, in which each name is whole, also in a narrow terminal."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup


class _PlainHelp:
    """Has the help of click, with options and commands in their panels. typer's own would cut long names."""

    def get_help_option(self, ctx: Any) -> Any:
        option = super().get_help_option(ctx)  # type: ignore[misc]
        if option is not None:
            option.metavar = ""  # not that it takes a bool
        return option

    def format_help(self: Any, ctx: Any, formatter: Any) -> None:
        self.format_usage(ctx, formatter)
        self.format_help_text(ctx, formatter)
        self.format_options(ctx, formatter)
        self.format_epilog(ctx, formatter)

    def format_options(self: Any, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for param in self.get_params(ctx):
            if param.param_type_name == "argument" and not param.hidden:
                panels["Arguments"].append((param.metavar, param.help))
            elif (record := param.get_help_record(ctx)) is not None:
                panels.setdefault(param.rich_help_panel or "Options", []).append(record)
        for panel, name, text in self.summaries():
            panels.setdefault(panel, []).append((name, " ".join((text or "").partition("\n\n")[0].split())))
        for panel, rows in panels.items():
            if rows:
                with formatter.section(panel):
                    formatter.write_dl(rows)


class Command(_PlainHelp, TyperCommand):
    """A command of txlog."""

    def summaries(self) -> Any:
        return ()


class Group(_PlainHelp, TyperGroup):
    """A group of commands of txlog."""

    def summaries(self) -> Any:
        """Yield the panel, the name and the help of each command."""
        for name, command in self.commands.items():
            if not command.hidden:
                yield "Commands", name, command.help
