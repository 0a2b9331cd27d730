"""How is a store maintained on a Spark cluster?

    python -m pyspark_txlog.jobs.maintain --store s3://bucket/log

or the file itself under spark-submit. It is one round of `txlog maintain --once`, which a scheduler repeats. Executors
merge (one run for each task) and compact (one partition for each task). The driver does the rest, which is a few small
requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from pyspark_txlog.jobs.command_line import ConfOption, OutputOption, StorageOption, StoreOption, running
from pyspark_txlog.jobs.compact import compact_partitions
from pyspark_txlog.jobs.merge import merge_partitions
from txlog.cli.maintain import show_round
from txlog.cli.output import Output, OutputFormat
from txlog.client.store import Store
from txlog.core.cleaning import DEFAULT_MIN_SEGMENTS, DEFAULT_TARGET_BYTES, MergePolicy
from txlog.core.names import TopicPartition
from txlog.errors import TxlogError
from txlog.maintenance.maintain import Maintainer, MaintainPolicy, MaintainReport
from txlog.maintenance.merge import Merged
from txlog.maintenance.metrics import Metrics, write_metrics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def maintain(
    spark: SparkSession, store: Store, policy: MaintainPolicy | None = None
) -> tuple[MaintainReport, TxlogError | None]:
    """Run one round, with the copying of rows on executors; return the report and the first error, if there is one.

    Raises what `Maintainer.run` raises, and InvalidRequestError over Spark Connect.
    """

    def merger(
        partitions: Sequence[TopicPartition], wanted: MergePolicy
    ) -> tuple[Sequence[Merged], Sequence[TxlogError]]:
        return merge_partitions(spark, store, partitions, wanted)

    compactor = partial(compact_partitions, spark, store)
    maintainer = Maintainer(store.runtime, policy, merger=merger, compactor=compactor)
    return maintainer.run(), maintainer.first_error


def main(
    store: StoreOption = None,
    target_bytes: Annotated[int, typer.Option(min=1, help="Target size of a merged file.")] = DEFAULT_TARGET_BYTES,
    merge_min_segments: Annotated[
        int, typer.Option(help="Merge a partition once it has this many sealed segments.")
    ] = DEFAULT_MIN_SEGMENTS,
    offsets_retention_ms: Annotated[
        int,
        typer.Option(help="Forget consumer groups without a member that committed nothing for this long; -1: never."),
    ] = -1,
    skip: Annotated[list[str] | None, typer.Option(metavar="STEP", help="Skip this step.")] = None,
    metrics_file: Annotated[
        str | None, typer.Option(metavar="PATH", help="Write Prometheus metrics to this file.")
    ] = None,
    output: OutputOption = OutputFormat.TEXT,
    storage_option: StorageOption = None,
    conf: ConfOption = None,
) -> None:
    """Do everything that is due in a store, once: end transactions, forget what is idle, seal, merge, compact, retire, vacuum."""
    out = Output(output)
    with running("maintain") as job:
        policy = MaintainPolicy(
            merge_target_bytes=target_bytes,
            merge_min_segments=merge_min_segments,
            offsets_retention_ms=offsets_retention_ms,
            skip=frozenset(skip or ()),
        )
        opened = job.open(store, storage_option)
        report, error = maintain(job.session(conf), opened, policy)
        if metrics_file is not None:
            metrics = Metrics()
            metrics.add(report)
            write_metrics(metrics_file, metrics)
        out.show(report, lambda out: show_round(out, report))
        if error is not None:
            raise error


if __name__ == "__main__":
    typer.run(main)
