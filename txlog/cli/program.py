"""`txlog`: which commands are there, and how does a command line end?"""

from __future__ import annotations

import importlib
import logging
import re
import sys
from collections.abc import Callable, Sequence
from inspect import Parameter
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from txlog._version import __version__
from txlog.cli.completion import PROGRAM, prepare
from txlog.cli.errors import INTERRUPTED, STATUS_WORDS, complain, reader_is_gone, report
from txlog.cli.help import Command, Group
from txlog.cli.options import (
    Session,
    accept,
    command,
    environment_settings,
    extended,
    keyword,
    option,
    shared_parameters,
)
from txlog.cli.output import OutputFormat
from txlog.errors import InvalidRequestError, TxlogError
from txlog.logs import print_from

if TYPE_CHECKING:
    from txlog.cli.options import WorkersOf

_MANAGE, _RECORDS, _MAINTENANCE, _INSPECT = "Topics and state", "Records", "Maintenance", "Inspect"
_MORE = "More commands"


def _demo(session: Session) -> None:
    """Name the command that runs the demo. The demo is in the repository of txlog, not in its package."""
    raise InvalidRequestError("the demo is not in the package; run `make demo` in a clone of txlog's repository")


_COMMANDS = {
    "topics": ("topics:app", _MANAGE),
    "get-offsets": ("offsets:get_offsets", _MANAGE),
    "consumer-groups": ("groups:app", _MANAGE),
    "transactions": ("transactions:app", _MANAGE),
    "produce": ("produce:produce", _RECORDS),
    "consume": ("consume:consume", _RECORDS),
    "sql": ("sql:sql", _RECORDS),
    "seal": ("seal:seal", _MAINTENANCE),
    "merge": ("merge:merge", _MAINTENANCE),
    "compact": ("compact:compact", _MAINTENANCE),
    "erase": ("erase:erase", _MAINTENANCE),
    "erasures": ("erase:app", _MAINTENANCE),
    "retention": ("retention:retention", _MAINTENANCE),
    "vacuum": ("vacuum:vacuum", _MAINTENANCE),
    "publish": ("publish:publish", _MAINTENANCE),
    "maintain": ("maintain:maintain", _MAINTENANCE),
    "dump-log": ("dump:dump_log", _INSPECT),
    "fsck": ("fsck:fsck", _INSPECT),
    "history": ("history:history", _INSPECT),
    "doctor": ("doctor:doctor", _INSPECT),
    "top": ("top:top", _INSPECT),
    "inspect": ("inspect:inspect", _INSPECT),
    "exporter": ("exporter:exporter", _INSPECT),
    "completion": ("completion:completion", _MORE),
    "demo": ("program:_demo", _MORE),
}
"""Name, in the order of the help -> the module and its function or group, and the panel of the help that shows it.

Only the module of the called command is imported. The help imports all of them.
"""

_OF_KAFKA = {
    **dict.fromkeys(
        ("--bootstrap-server", "--bootstrap-servers", "--broker-list", "--zookeeper"),
        "there are no servers, so name the store with --store URL",
    ),
    **dict.fromkeys(
        ("--command-config", "--consumer.config", "--producer.config"),
        "settings are in a TOML file, which --config FILE names",
    ),
    **{
        f"--{verb}": f"this is a command, not an option; write `{verb}`"
        for verb in ("list", "describe", "create", "alter")
    },
    "--delete": "this is a command of topics and groups, not an option; clean-up deletes with --execute",
    "--replication-factor": "leave it out, because the storage keeps the copies",
}
"""Options of Kafka's tools, and what to write instead."""

# Newer versions of typer contain a copy of click. The common base class of its errors has the same name in both.
_USAGE_ERROR: type[Any] = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


class _Root(Group):
    """Show errors, and load the commands of `_COMMANDS` when they are called."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**{**more, "commands": dict.fromkeys(_COMMANDS)})

    def main(self, *args: Any, **more: Any) -> Any:
        """Run a command line and raise SystemExit with its status. Without `standalone_mode`, raise errors instead."""

        def run() -> Any:
            return super(_Root, self).main(*args, **{**more, "standalone_mode": False})

        return sys.exit(status_of(run)) if more.get("standalone_mode", True) else run()

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in self.commands and self.commands[cmd_name] is None:
            self.commands[cmd_name] = typer.main.get_command(_program(cmd_name))
        return self.commands.get(cmd_name)

    def summaries(self) -> Any:
        for name, (_, panel) in _COMMANDS.items():
            what = _load(name)
            yield panel, name, what.info.help if isinstance(what, typer.Typer) else what.__doc__


def _load(name: str) -> Any:
    module, _, attribute = _COMMANDS[name][0].partition(":")
    return getattr(importlib.import_module(f"txlog.cli.{module}"), attribute)


def _program(name: str) -> typer.Typer:
    """Return a group, or a command as a separate program."""
    what = _load(name)
    if isinstance(what, typer.Typer):
        return what
    program = typer.Typer(add_completion=False)
    command(program, name)(what)
    return program


_CONTEXT_SETTINGS = {"help_option_names": ["--help", "-h"]}

app = typer.Typer(
    cls=_Root,
    name="txlog",
    help="Look into a store of topics, read and write its rows, and maintain it. A store is a folder, or a "
    "place in an object store.",
    epilog=STATUS_WORDS,
    no_args_is_help=True,
    add_completion=False,
    context_settings=_CONTEXT_SETTINGS,
    # Tracebacks are for bugs. They are complete, but never contain values of variables, which may be credentials.
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool | None) -> None:
    if wanted:
        typer.echo(f"txlog {__version__}")
        raise typer.Exit


_VERSION = option("--version", "Show the version and exit.", is_eager=True, callback=_show_version)
accept(app, [keyword("version", Annotated[bool, _VERSION]), *shared_parameters()])


def run() -> NoReturn:
    """Run the command line of this process."""
    prepare()
    typer.main.get_command(app).main(prog_name=PROGRAM)
    raise AssertionError("a command line ends with SystemExit")


def run_verb(
    name: str,
    args: Sequence[str],
    *,
    prog_name: str,
    workers: WorkersOf,
    option: Parameter,
    take: Callable[[Any], None],
) -> NoReturn:
    """Run the command `txlog NAME`, with its tasks on these workers, as a separate program.

    The program has one more `option`, and `take` gets its value first.
    """
    (verb,) = _program(name).registered_commands
    assert verb.callback is not None
    program = typer.Typer(add_completion=False)
    program.command(name, cls=Command, context_settings=_CONTEXT_SETTINGS)(extended(verb.callback, option, take))
    main: Any = typer.main.get_command(program).main
    settings = environment_settings(workers)
    sys.exit(status_of(lambda: main(list(args), prog_name=prog_name, standalone_mode=False, obj=settings)))


def status_of(run: Callable[[], Any]) -> int:
    """Run a command line, show its error if it fails, and return its status. Warnings go to standard error."""
    print_from(logging.WARNING)
    try:
        result = run()
        sys.stdout.flush()
    except TxlogError as error:
        return report(error, OutputFormat.TEXT)
    except _USAGE_ERROR as error:
        return _report_usage(error)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        return reader_is_gone()
    except SystemExit as error:
        # rich, which prints tables, ends the program itself if the pipe is closed.
        if isinstance(error.__context__, BrokenPipeError):
            return reader_is_gone()
        raise
    return result if isinstance(result, int) else 0


def _report_usage(error: Any) -> int:
    context = getattr(error, "ctx", None)
    message = _in_plain_words(error.format_message())
    if type(error).__name__ == "NoArgsIsHelpError":
        # A command line without arguments asks for help.
        typer.echo(message)
    else:
        option = getattr(error, "option_name", "")
        if option in _OF_KAFKA and type(error).__name__ == "NoSuchOption":
            message = f"No such option: {option}. hint: {_OF_KAFKA[option]}"
        complain(message, *([f"Try '{context.command_path} --help'."] if context is not None else []))
    return int(error.exit_code)


def _in_plain_words(message: str) -> str:
    """Return the message of a parser without the library's own terms."""
    message = message.replace("Value error, ", "")
    message = re.sub(r"Input should be a valid integer\b.*", "expected an integer", message)
    message = re.sub(r"Input should be a valid number\b.*", "expected a number", message)
    message = message.replace("Input should be less than or equal to", "expected at most")
    return message.replace("Input should be greater than or equal to", "expected at least")
