"""What do all jobs share on their command lines: options, a Spark session (local or under spark-submit), and the
end."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from txlog.cli.errors import exit_status
from txlog.cli.options import STORE_ENV, Session, Settings
from txlog.errors import InvalidRequestError, TxlogError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

StoreOption = Annotated[str | None, typer.Option(help="Folder or URL of the txlog store.", envvar=STORE_ENV)]
StorageOption = Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="Options of the store's driver.")]
ConfOption = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="NAME=VALUE", help="Spark's settings; not under spark-submit.", show_default=False),
]


class Job:
    """The Spark session of a command line inside `running`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.spark: SparkSession | None = None

    def session(self, conf: Sequence[str] | None) -> SparkSession:
        """Return the job's session, with the settings of the option."""
        if self.spark is None:
            self.spark = job_session(f"txlog-{self.name.replace('_', '-')}", pairs("--conf", conf))
        return self.spark


@contextmanager
def running(name: str) -> Iterator[Job]:
    """Run the command line of the job `name`: print a TxlogError and exit with its status; stop Spark."""
    job = Job(name)
    try:
        yield job
    except TxlogError as error:
        typer.echo(f"{name}: {error}", err=True)
        sys.exit(exit_status(error))
    finally:
        if job.spark is not None:
            job.spark.stop()


def store_url(given: str | None) -> str:
    """Return the location of the store.

    Raises InvalidRequestError, with the same text as `txlog`, if `given` has none.
    """
    return Session(Settings(store=given)).url


def job_session(name: str, conf: Mapping[str, str]) -> SparkSession:
    """Return the session of a job called `name`. Under spark-submit it is the cluster's, and `conf` raises
    InvalidRequestError."""
    from pyspark.sql import SparkSession

    from pyspark_txlog.spark_session import session

    # Under spark-submit the session is the cluster's, with its master and settings.
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
    """Parse `NAME=VALUE` of a repeated option. Raises InvalidRequestError, which does not show the text, because it may
    be a secret."""
    found = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise InvalidRequestError(
                f"{option}: expected NAME=VALUE, found a text without '=' (not shown: it may be a secret)"
            )
        found[name] = value
    return found
