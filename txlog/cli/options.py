"""Which options does every command have, and what does a command receive?

`command` registers a function and gives it the shared options. They are accepted before and after a command's name; the
one nearest to the end of the line counts. A topic, group or transactional.id after the name may also be given as
Kafka's tools take it, in an option. The function receives a `Session`: the store, opened at its first use, and the
output.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Self, get_args, get_origin

import typer
from typer.models import ArgumentInfo

from txlog.cli.errors import raise_first, reader_is_gone, report, report_interrupt
from txlog.cli.help import Command, Group
from txlog.cli.interrupts import Interrupted
from txlog.cli.output import Output, OutputFormat
from txlog.errors import InvalidRequestError, NotAStoreError, TxlogError
from txlog.text import parse_storage_value, parse_time

if TYPE_CHECKING:
    from txlog.client import Admin, Store
    from txlog.client.session.runtime import Runtime
    from txlog.maintenance.workers import Workers

    WorkersOf = Callable[[Runtime], Workers]

PANEL = "Store and output"

STORE_ENV = "TXLOG_STORE"
CONFIG_ENV = "TXLOG_CONFIG"


def option(spelled: str, text: str, *others: str, **more: Any) -> Any:
    """Return an option for a parameter's annotation, as in `option("--limit N", "Only the newest N.")`.

    Without a second word it is a flag. `others` are more names, `more` are further arguments of `typer.Option`.
    """
    name, _, metavar = spelled.partition(" ")
    return typer.Option(name, *others, metavar=metavar, help=text, **more)


def argument(metavar: str, text: str) -> Any:
    """Return an argument for a parameter's annotation. A shell completes one that begins with TOPIC."""
    complete = complete_topics if metavar.startswith("TOPIC") else None
    return typer.Argument(metavar=metavar, help=text, autocompletion=complete)


def complete_topics(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the topics of the store that the line or the environment names, for a shell.

    An error completes nothing.
    """
    given: dict[str, Any] = {}
    above: Any = ctx
    while above is not None:
        given = {name: value for name, value in above.params.items() if name in _SHARED and value} | given
        above = above.parent
    try:
        with Session(environment_settings().overlaid(**(dict.fromkeys(_SHARED) | given))) as session:
            return [each.name for each in session.store.topics() if each.name.startswith(incomplete)]
    except Exception:
        return []


_SHARED: dict[str, tuple[Any, ...]] = {
    "store": (
        str | None,
        "--store URL",
        f"The store: a path, or a URL such as s3://bucket/log (environment: {STORE_ENV}).",
    ),
    "config": (str | None, "--config FILE", f"Settings, as in conf/txlog.toml (environment: {CONFIG_ENV})."),
    "storage_option": (
        list[str] | None,
        "--storage-option KEY=VALUE",
        "An option of the store's driver: text, true, false or a JSON object; may be repeated.",
    ),
    "output": (
        OutputFormat | None,
        "--output text|json",
        "Tables for people, or JSON for programs. (default: text)",
        "-o",
    ),
}
"""The name of each shared option, its type, and the arguments of `option`."""
_KAFKAS = {"TOPIC": "topic", "GROUP": "group", "ID": "transactional.id"}
"""Arguments that Kafka's tools take in an option. The option is accepted, too, and help does not show it."""

TopicName = Annotated[str, argument("TOPIC", "The topic's name.")]
Topics = Annotated[list[str], argument("TOPIC", "Only these topics; all if none is named.")]
TopicsOrPartitions = Annotated[
    list[str], argument("TOPIC", "Only these topics, or partitions as in orders/0; all if none is named.")
]
Partitions = Annotated[str | None, option("--partitions 0,1,…", "Only these partitions.", "--partition")]

Execute = Annotated[bool, option("--execute", "Do it. Without this option the command only shows what it would do.")]
"""Everything that deletes or overwrites is a dry run without it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The values of the shared options. Those of a group are the defaults of its commands."""

    store: str | None = None
    config: str | None = None
    storage_options: Mapping[str, object] = field(default_factory=dict)
    output: OutputFormat = OutputFormat.TEXT
    workers: WorkersOf | None = None
    """Which workers a command about a store uses for its tasks. None: this process."""

    def overlaid(
        self, store: str | None, config: str | None, storage_option: list[str] | None, output: OutputFormat | None
    ) -> Settings:
        """Return these settings, overridden by the given options. Raises InvalidRequestError for a malformed one."""
        if config is not None and not Path(config).is_file():
            hint = f"; give the path of a TOML file, or leave --config out to use {CONFIG_ENV}"
            if "=" in config:
                hint = "; settings are given as --set KEY=VALUE (topics) or --property KEY=VALUE (produce, consume)"
            raise InvalidRequestError(f"--config {config!r}: this file does not exist{hint}")
        given = {
            key: parse_storage_value(text) for key, text in parse_pairs(storage_option, "--storage-option").items()
        }
        return Settings(
            # An empty name may be a variable that a script did not set. Do not use the environment's store instead.
            store=self.store if store is None else store,
            config=self.config if config is None else config,
            storage_options={**self.storage_options, **given},
            output=output or self.output,
            workers=self.workers,
        )


class Session:
    """What a command works with. It closes what it opened."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.out = Output(settings.output)
        self.repeatable = True
        """Whether the same command line may be run again after a failure. A command that adds rows sets it."""
        self._store: Store | None = None
        self._admin: Admin | None = None

    @property
    def store(self) -> Store:
        """The existing store. Raises InvalidRequestError without `--store`, NotAStoreError if there is no store."""
        return self.open()

    @property
    def admin(self) -> Admin:
        """The store's administrative calls. The session has only one, so that it reads nothing twice."""
        if self._admin is None:
            self._admin = self.open().admin()
        return self._admin

    @property
    def url(self) -> str:
        """The URL of the store. Raises InvalidRequestError without `--store`."""
        if self.settings.store == "":
            raise InvalidRequestError(
                "--store is empty; name the store's URL, or leave --store out to use " + STORE_ENV
            )
        if self.settings.store is None:
            raise InvalidRequestError(f"which store? Name it with --store URL, or in the environment as {STORE_ENV}")
        return self.settings.store

    def damaged_runtime(self) -> Runtime:
        """Return the store without a look at its descriptor, so that even a damaged one can be checked."""
        from txlog.client.session.runtime import Runtime
        from txlog.storage.open import open_object_store

        options = self.settings.storage_options
        return Runtime(open_object_store(self.url, options), url=self.url, storage_options=options)

    def workers(self, runtime: Runtime) -> Workers | None:
        """Return the workers for tasks about this store. None: this process."""
        return None if self.settings.workers is None else self.settings.workers(runtime)

    def open(self, *, may_be_new: bool = False) -> Store:
        """Open the store. An empty or missing location is accepted only if it `may_be_new`."""
        if self._store is None:
            url = self.url
            # A local import, because pyarrow loads more slowly than all of `--help` runs.
            import txlog

            self._store = txlog.open(
                url,
                storage_options=self.settings.storage_options,
                config_file=self.settings.config,
            )
        if not may_be_new and self._store.runtime.descriptor is None:
            raise NotAStoreError(
                f"{self._store.url} holds no txlog store: it is empty or missing. Check --store; "
                "`txlog topics create` makes one"
            )
        return self._store

    def show(self, document: object, text: Callable[[Output], None], failed: Sequence[TxlogError]) -> None:
        """Show a result, then raise the first error of what is not in it, if there is one."""
        self.out.show(document, text)
        raise_first(failed)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._store is None:
            return
        try:
            self._store.close()
        except Exception as failure:
            if error is None:
                raise
            # Keep the first error; the error of closing is a note.
            error.add_note(f"closing the store failed too: {failure}")


def command(
    app: typer.Typer, name: str, *, panel: str | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function, whose first parameter is the `Session`, as a command with the shared options.

    A function with a parameter `output` has formats of its own in place of the shared ones. An argument of `_KAFKAS`
    may also be given in Kafka's way. The function gets both lists as one, or the one name that it needs unless it has a
    default.
    """

    def register(function: Callable[..., None]) -> Callable[..., None]:
        own = [p for p in inspect.signature(function, eval_str=True).parameters.values() if p.name != "session"]
        has_formats = any(p.name == "output" for p in own)

        def run(ctx: typer.Context, **given: Any) -> None:
            shared = {name: given.pop(name) for name in _SHARED if not (has_formats and name == "output")}
            if has_formats and given["output"] is not None:
                # Errors are documents if the result is JSON.
                shared["output"] = OutputFormat.JSON if given["output"] == OutputFormat.JSON else OutputFormat.TEXT
            settings = settings_of(ctx).overlaid(**{"output": None, **shared})
            session = Session(settings)
            try:
                with session:
                    function(session, **{p.name: _value(p, given) for p in own})
            except TxlogError as error:
                raise typer.Exit(report(error, settings.output, repeatable=session.repeatable)) from error
            except Interrupted as error:
                raise typer.Exit(report_interrupt(error, settings.output)) from error
            except BrokenPipeError as error:
                raise typer.Exit(reader_is_gone()) from error

        accepted = [each for p in own for each in _accepted(p)]
        shown = [p for p in shared_parameters() if not (has_formats and p.name == "output")]
        _sign(run, _paragraphs(function.__doc__ or ""), [_CONTEXT, *accepted, *shown])
        app.command(name, cls=Command, rich_help_panel=panel)(run)
        return function

    return register


def extended(
    function: Callable[..., None], option: inspect.Parameter, take: Callable[[Any], None]
) -> Callable[..., None]:
    """Return the function of a registered command with one more option, whose value `take` gets first."""

    def run(**given: Any) -> None:
        take(given.pop(option.name))
        function(**given)

    _sign(run, function.__doc__, [*inspect.signature(function).parameters.values(), option])
    return run


def group(name: str, text: str) -> typer.Typer:
    """Return a group of commands. It accepts the shared options too, but only the commands show them in their help."""
    app = typer.Typer(name=name, help=text, cls=Group, no_args_is_help=True, add_completion=False)
    accept(app, shared_parameters(hidden=True))
    return app


def accept(app: typer.Typer, parameters: list[inspect.Parameter]) -> None:
    """Let a group of commands accept these options, and keep those that are shared for its commands.

    The client reads TXLOG_CONFIG, not this function.
    """

    def run(ctx: typer.Context, **given: Any) -> None:
        ctx.obj = settings_of(ctx).overlaid(**{name: given[name] for name in _SHARED})

    _sign(run, None, [_CONTEXT, *parameters])
    app.callback()(run)


def environment_settings(workers: WorkersOf | None = None) -> Settings:
    """Return the settings of a command line without options."""
    return Settings(store=os.environ.get(STORE_ENV) or None, workers=workers)


def settings_of(ctx: Any) -> Settings:
    """Return the settings that the groups above this context have collected."""
    return ctx.obj if isinstance(ctx.obj, Settings) else environment_settings()


def parse_pairs(given: list[str] | None, option: str) -> dict[str, str]:
    """Parse `KEY=VALUE` of a repeated option. Raises InvalidRequestError with the name of the option."""
    pairs: dict[str, str] = {}
    for text in given or ():
        key, found, value = text.partition("=")
        if not found or not key:
            # A malformed --storage-option may contain a credential, so it is not shown.
            shown = "one" if option == "--storage-option" or not key else repr(key)
            raise InvalidRequestError(f"{option} takes KEY=VALUE, found {shown} without {'a key' if found else '='}")
        pairs[key] = value
    return pairs


def parse_moment(text: str, option: str, also: str = "") -> int:
    """Parse the time of an option as milliseconds since 1970. An error names what the option takes `also`.

    Raises InvalidRequestError with the name of the option.
    """
    moment = parse_time(text.strip())
    if moment is None or moment < 0:
        raise InvalidRequestError(
            f"{option} {text!r}: expected {also}a moment as in 2013-01-31T05:17:00Z, or milliseconds since 1970"
        )
    return moment


_CONTEXT = inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)


def keyword(name: str, annotation: Any) -> inspect.Parameter:
    """Return a parameter with the default None."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def shared_parameters(*, hidden: bool = False) -> list[inspect.Parameter]:
    """Return the shared options. `hidden`: no help shows them."""
    return [
        keyword(name, Annotated[kind, option(*spelled, hidden=hidden, rich_help_panel=PANEL)])
        for name, (kind, *spelled) in _SHARED.items()
    ]


def _accepted(parameter: inspect.Parameter) -> list[inspect.Parameter]:
    """Return the parameters that a command line has for one of a function."""
    if (what := _in_kafka(parameter)) is None:
        return [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)]
    kind, _ = get_args(parameter.annotation)
    kafkas = typer.Option(f"--{what.replace('.', '-')}", hidden=True)
    return [keyword(parameter.name, parameter.annotation), keyword(_other(parameter), Annotated[kind, kafkas])]


def _value(parameter: inspect.Parameter, given: Mapping[str, Any]) -> Any:
    """Return the value of a function's parameter. Raises InvalidRequestError for no name, or for two."""
    value = given[parameter.name]
    if (what := _in_kafka(parameter)) is None:
        return value
    other = given[_other(parameter)]
    if get_origin(get_args(parameter.annotation)[0]) is list:
        return [*(value or ()), *(other or ())]
    if value is not None and other is not None and value != other:
        raise InvalidRequestError(f"two {what}s are named, {value!r} and {other!r}; name one")
    name = value if value is not None else other
    if name is None and parameter.default is parameter.empty:
        raise InvalidRequestError(f"which {what}? Name it after the command")
    return name


def _in_kafka(parameter: inspect.Parameter) -> str | None:
    """Return what an argument names, if Kafka's tools take it in an option."""
    _, shown = get_args(parameter.annotation)
    return _KAFKAS.get(shown.metavar or "") if isinstance(shown, ArgumentInfo) else None


def _other(parameter: inspect.Parameter) -> str:
    return f"{parameter.name}_option"


def _paragraphs(doc: str) -> str:
    """Return a docstring with each paragraph on one line. Otherwise help keeps its line ends, at another width."""
    return "\n\n".join(" ".join(part.split()) for part in inspect.cleandoc(doc).split("\n\n"))


def _sign(run: Callable[..., None], doc: str | None, parameters: list[inspect.Parameter]) -> None:
    """Give a function the signature from which typer reads options."""
    run.__doc__ = doc
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
