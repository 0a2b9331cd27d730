"""What have the command lines of all jobs in common: options, a store, a Spark session, here or under spark-submit, and an end."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

import txlog
from txlog.cli.errors import exit_status
from txlog.cli.options import STORE_ENV, Session, Settings
from txlog.cli.output import OutputFormat
from txlog.client.store import Store
from txlog.errors import InvalidRequestError, TxlogError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

StoreOption = Annotated[str | None, typer.Option(help="Folder or URL of the txlog store.", envvar=STORE_ENV)]
Topics = Annotated[list[str] | None, typer.Argument(help="Topics; all if none is named.")]
OutputOption = Annotated[OutputFormat, typer.Option(help="Tables for people, or JSON for programs.")]
StorageOption = Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="Options of the store's driver.")]
ConfOption = Annotated[
    list[str] | None, typer.Option(metavar="NAME=VALUE", help="Spark's settings; not under spark-submit.")
]


class Job:
    """What a command line that is `running` works with."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.opened = ExitStack()
        self.spark: SparkSession | None = None

    def open(self, store: str | None, storage_option: Sequence[str] | None) -> Store:
        """The store that the options name. Raises InvalidRequestError if none does, NotAStoreError where none lies."""
        options = pairs("--storage-option", storage_option)
        found: Store = self.opened.enter_context(closing(txlog.open(store_url(store), storage_options=options)))
        found.runtime.require_store()
        return found

    def session(self, conf: Sequence[str] | None) -> SparkSession:
        """`job_session` with the settings that the option holds."""
        self.spark = job_session(f"txlog-{self.name.replace('_', '-')}", pairs("--conf", conf))
        return self.spark

    def raise_first(self, failed: Sequence[TxlogError]) -> None:
        """Raises the first of `failed`, if there is one; the others are shown here."""
        for other in failed[1:]:
            typer.echo(f"{self.name}: {other}", err=True)
        if failed:
            raise failed[0]


@contextmanager
def running(name: str) -> Iterator[Job]:
    """Around the command line of the job `name`: a TxlogError is shown, and is its exit status; what was opened is closed."""
    job = Job(name)
    try:
        with job.opened:
            yield job
    except TxlogError as error:
        typer.echo(f"{name}: {error}", err=True)
        sys.exit(exit_status(error))
    finally:
        if job.spark is not None:
            job.spark.stop()


def store_url(given: str | None) -> str:
    """Where the store is. Raises InvalidRequestError, with the words of `txlog`, if that is not `given`."""
    return Session(Settings(store=given)).url


def job_session(name: str, conf: Mapping[str, str]) -> SparkSession:
    """The session of a job called `name`. Under spark-submit it is the cluster's, and `conf` an InvalidRequestError."""
    from pyspark.sql import SparkSession

    from pyspark_txlog.spark_session import session

    # Under spark-submit the session is the cluster's: its master and settings stand.
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        if conf:
            raise InvalidRequestError(
                f"--conf {', '.join(conf)}: under spark-submit, give it there, before the program's name"
            )
        builder: Any = SparkSession.builder
        found: SparkSession = builder.appName(name).getOrCreate()
        return found
    return session(name, config=conf)


def pairs(option: str, given: Sequence[str] | None) -> dict[str, str]:
    """`NAME=VALUE` of a repeated option. Raises InvalidRequestError, which does not show what may be a secret."""
    found = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise InvalidRequestError(
                f"{option}: expected NAME=VALUE, found a text without '=' (not shown: it may be a secret)"
            )
        found[name] = value
    return found
