"""Every command of `txlog`, with its arguments and options, from the programs themselves."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import typer

from conf.site.markdown import code, escape, table
from pyspark_txlog.jobs import ingest_kafka
from txlog.cli.options import PANEL
from txlog.cli.program import app

_HEAD = """# All commands

[The tour](../cli.md) shows the commands at work. Each command prints its help with `--help`. Options of the store and of the output
are accepted before and after the name of a command.
"""


_INGEST = "python -m pyspark_txlog.jobs.ingest_kafka"


def page() -> str:
    """Return the page."""
    found = list(commands())
    lines = [_HEAD]
    lines += table(
        ["command", ""], [[f"[{code(path)}](#{_anchor(path)})", _first(command.help)] for path, command in found[1:]]
    )
    lines += ["## Options of every command", "", *_options(list(_shared().values()))]
    for path, command in found:
        lines += [f"{'###' if ' ' in path.removeprefix('txlog ') else '##'} `{path}` {{ #{_anchor(path)} }}", ""]
        if not _is_group(command):
            lines += ["```text", _usage(path, command), "```", ""]
        lines += [escape(_one_line(command.help or "")), ""]
        own = visible(command)
        arguments = [each for each in own if each.param_type_name == "argument"]
        if arguments:
            lines += table(["argument", ""], [[code(_metavar(each)), escape(each.help or "")] for each in arguments])
        lines += _options([each for each in own if each not in arguments])
        if command.epilog:
            lines += [escape(command.epilog), ""]
    job: Any = typer.main.get_command(ingest_kafka.app)
    lines += [
        f"## `{_INGEST}` {{ #ingest-kafka }}",
        "",
        "This job needs Spark. [From Kafka](../kafka.md#a-kafka-topic-into-txlog) shows it at work.",
        "",
    ]
    lines += [escape(_one_line(job.help or "")), "", *_options([each for each in job.params if not each.hidden])]
    return "\n".join(lines)


def commands() -> Iterator[tuple[str, Any]]:
    """Yield every command and group that the help shows, with its path: `txlog topics create`."""
    yield from _below(typer.main.get_command(app), "txlog")


def visible(command: Any) -> list[Any]:
    """Return the arguments and options that the help shows, without those that are the same for every command."""
    return [each for each in command.params if not each.hidden and each.help not in _shared()]


@cache
def _shared() -> dict[str, Any]:
    """Return the options of every command, by their help."""
    root: Any = typer.main.get_command(app)
    return {each.help: each for each in root.params if each.rich_help_panel == PANEL}


def _below(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    yield path, command
    if _is_group(command):
        context = typer.Context(command, info_name=path)
        for name in command.list_commands(context):
            # Another package's command is loaded by its context.
            with command.get_command(context, name).make_context(
                name, [], parent=context, resilient_parsing=True
            ) as own:
                yield from _below(own.command, f"{path} {name}") if not own.command.hidden else ()


def _is_group(command: Any) -> bool:
    return hasattr(command, "commands")


def _usage(path: str, command: Any) -> str:
    words = [path, "[OPTIONS]"]
    for each in command.params:
        if each.param_type_name == "argument" and not each.hidden:
            word = _metavar(each)
            words.append(f"{word if each.required else f'[{word}]'}{'...' if each.nargs == -1 else ''}")
    return " ".join(words)


def _options(options: list[Any]) -> list[str]:
    rows = []
    for each in options:
        names = [f"{' / '.join([*each.opts, *each.secondary_opts])}{f' {each.metavar}' if each.metavar else ''}"]
        said = [escape(each.help or "")]
        if each.required:
            said.append("Required.")
        elif each.show_default and each.default not in (None, False, (), []) and not callable(each.default):
            said.append(f"Default: {code(str(getattr(each.default, 'value', each.default)))}.")
        rows.append([code(names[0]), " ".join(said)])
    return table(["option", ""], rows) if rows else []


def _metavar(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper())


def _first(text: str | None) -> str:
    return escape(_one_line((text or "").split("\n\n")[0]))


def _one_line(text: str) -> str:
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


def _anchor(path: str) -> str:
    return path.removeprefix("txlog ").replace(" ", "-")
