"""How is a large store checked on a Spark cluster?

    python -m pyspark_txlog.jobs.fsck --store s3://bucket/log

or the file itself under spark-submit. It does the same as `txlog fsck`, with the same report and exit status. The
driver reads the table of transactions; executors read the partitions of users' topics, one for each task.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from pyspark_txlog import fsck
from pyspark_txlog.jobs.command_line import ConfOption, OutputOption, StorageOption, StoreOption, running
from txlog.cli.errors import LOOK
from txlog.cli.fsck import show_report
from txlog.cli.output import Output, OutputFormat
from txlog.cli.progress import progress_bar


def main(
    store: StoreOption = None,
    topic: Annotated[list[str] | None, typer.Argument(help="Topics (default: the whole store).")] = None,
    metadata_only: Annotated[bool, typer.Option(help="Open no Parquet file, only ask for its length.")] = False,
    output: OutputOption = OutputFormat.TEXT,
    storage_option: StorageOption = None,
    conf: ConfOption = None,
) -> None:
    """Verify every object of a store, and the references between them, on a Spark cluster. Nothing is changed."""
    out = Output(output)
    with running("fsck") as job:
        runtime = job.open(store, storage_option).runtime
        spark = job.session(conf)
        with progress_bar("the store") as progress:
            report = fsck.check(spark, runtime, topic or (), rows=not metadata_only, progress=progress)
        out.show(report, lambda out: show_report(out, report))
    if not report.is_clean:
        sys.exit(LOOK)


if __name__ == "__main__":
    typer.run(main)
