"""How is a large store checked on a Spark cluster?

    python -m pyspark_txlog.jobs.fsck --store s3://bucket/log

or the file itself under spark-submit. As `txlog fsck`, and with its report and its status: the driver reads the table of
transactions, executors the partitions of users' topics, each a task.
"""

from __future__ import annotations

import sys
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from pyspark_txlog import fsck
from pyspark_txlog.jobs.command_line import job_session, pairs
from txlog.cli.errors import LOOK, exit_status
from txlog.cli.fsck import show_report
from txlog.cli.output import Output, OutputFormat
from txlog.cli.progress import progress_bar
from txlog.client.runtime import Runtime
from txlog.errors import TxlogError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def main(
    store: Annotated[str, typer.Option(help="Folder or URL of the txlog store.", envvar="TXLOG_STORE")],
    topic: Annotated[list[str] | None, typer.Argument(help="Only these topics; all if none is named.")] = None,
    metadata_only: Annotated[bool, typer.Option(help="Open no Parquet file, only ask for its length.")] = False,
    output: Annotated[OutputFormat, typer.Option(help="Tables for people, or JSON for programs.")] = OutputFormat.TEXT,
    storage_option: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Options of the store's driver.")
    ] = None,
    conf: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Spark's settings; not under spark-submit.")
    ] = None,
) -> None:
    """Verify every object of a store on a Spark cluster, and how they hang together. Nothing is changed."""
    spark: SparkSession | None = None
    out = Output(output)
    try:
        with closing(Runtime.open(store, storage_options=pairs("--storage-option", storage_option))) as runtime:
            runtime.require_store()
            spark = job_session("txlog-fsck", pairs("--conf", conf))
            with progress_bar("the store") as progress:
                report = fsck.check(spark, runtime, topic or (), rows=not metadata_only, progress=progress)
        out.show(report, lambda out: show_report(out, report))
    except TxlogError as error:
        typer.echo(f"fsck: {error}", err=True)
        sys.exit(exit_status(error))
    finally:
        if spark is not None:
            spark.stop()
    if not report.is_clean:
        sys.exit(LOOK)


if __name__ == "__main__":
    typer.run(main)
