"""Verbs of maintenance with their tasks on executors, and their command lines in this process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import pytest
from pyspark.sql import SparkSession

from pyspark_txlog.jobs import run
from pyspark_txlog.jobs.spark_workers import SparkWorkers
from tests.spark.conftest import Log
from txlog.client.reading import read_session
from txlog.client.store import Store
from txlog.core.cleaning import PLAIN, FileLayout, MergePolicy
from txlog.core.compaction import CompactionPolicy
from txlog.core.names import TopicPartition
from txlog.errors import TxlogError
from txlog.maintenance.compact import Compacted, compact_partitions
from txlog.maintenance.history import record
from txlog.maintenance.merge import Merged, merge_partitions
from txlog.maintenance.partition_loop import gather
from txlog.maintenance.retention import policy_of, retain_partitions
from txlog.maintenance.vacuum import VacuumReport, vacuum
from txlog.protocol.retention import RetentionPlan

D = TypeVar("D")
Made = tuple[list[D], list[TxlogError]]


def on_spark(spark: SparkSession, store: Store) -> SparkWorkers:
    return SparkWorkers(store.runtime, lambda: spark)


def merge(
    spark: SparkSession,
    store: Store,
    partitions: Iterable[TopicPartition],
    policy: MergePolicy | None = None,
    layout: FileLayout = PLAIN,
) -> Made[Merged]:
    session, workers = read_session(store.runtime), on_spark(spark, store)
    merging = merge_partitions(session, partitions, policy or MergePolicy(), layout, workers)
    return gather(record(store.runtime, "merge", merging))


def compact(spark: SparkSession, store: Store, policies: Mapping[TopicPartition, CompactionPolicy]) -> Made[Compacted]:
    compacting = compact_partitions(read_session(store.runtime), policies, workers=on_spark(spark, store))
    return gather(record(store.runtime, "compact", compacting))


def retain(
    spark: SparkSession, store: Store, partitions: Iterable[TopicPartition], *, dry_run: bool = False
) -> Made[RetentionPlan]:
    policies = {tp: policy for tp in partitions if (policy := policy_of(store.runtime, tp.topic)) is not None}
    session = read_session(store.runtime)
    return gather(retain_partitions(session, policies, on_spark(spark, store), dry_run=dry_run))


def vacuum_topics(spark: SparkSession, store: Store, topics: Sequence[str]) -> VacuumReport:
    session = read_session(store.runtime)
    return vacuum(store.runtime, session, topics, dry_run=False, workers=on_spark(spark, store))


def run_job(verb: str, log: Log, *args: object) -> int:
    """The exit status of `python -m pyspark_txlog.jobs.run VERB`, on the store of `log`."""
    line = [verb, "--store", log.url, "--storage-option", "fsync=false", *map(str, args)]
    with pytest.raises(SystemExit) as ended:
        run.main(line)
    assert isinstance(ended.value.code, int)
    return ended.value.code
