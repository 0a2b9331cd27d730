"""How do the records of a Kafka cluster get into txlog, each of them once?

    python -m pyspark_txlog.jobs.ingest_kafka --bootstrap-servers HOST:PORT --subscribe orders \\
        --store s3://bucket/log --transactional-id orders-ingest --checkpoint s3://bucket/checkpoints/orders-ingest \\
        --conf spark.jars.packages=org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0

or the file itself under spark-submit, with `--packages` there. The connector has the version of your Spark, or is the
newest one before it. It is one streaming query: Spark's Kafka source, a
projection, txlog's sink. A micro-batch is one transaction, and Kafka's offsets are part of it: rows and offsets become
visible together or not at all. So the job does not depend on the checkpoint. If the checkpoint is lost, a start with an
empty one continues at the offsets that the last transaction committed (`kafka_resume`). After any crash, no record is
lost or doubled.

Kafka's own transactions are respected: records that were aborted there are not copied. For that,
`kafka.isolation.level` defaults to read_committed, unlike in Spark. Records keep their partition, and so Kafka's order
within it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

import txlog
from pyspark_txlog.jobs.command_line import ConfOption, StorageOption, StoreOption, pairs, running, store_url
from pyspark_txlog.jobs.kafka_resume import KafkaCluster, Query, resume
from pyspark_txlog.messages import say
from pyspark_txlog.option_values import storage_settings
from txlog import Store
from txlog.cli.help import Command
from txlog.cli.interrupts import orderly_end
from txlog.errors import InvalidRequestError, UnknownTopicOrPartitionError
from txlog.text import parse_storage_value

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

KAFKA_VIEW = "kafka"
"""The name of the view of the records for `--sql`."""
POLL_SECONDS = 1


@dataclass(frozen=True, kw_only=True)
class Ingest(Query):
    """The source and the target of the job. `storage_options` and `kafka_options` may hold credentials."""

    bootstrap_servers: str
    subscribe: str | None = None
    subscribe_pattern: str | None = None
    assign: str | None = None
    """Exactly one of these three, as Spark's Kafka source takes them."""
    topic: str | None = None
    """The topic of all records; None: each record goes to the topic with the name of its Kafka topic."""
    sql: str | None = None
    """A query over the view `kafka`; None: Kafka's record unchanged, for a topic without a schema of its own."""
    keep_partitions: bool = True
    """Whether a record goes into the partition with the same number; otherwise the topic's key decides."""
    create_topics: bool = True
    """Whether to create missing topics of Kafka's record shape, and to add partitions that Kafka has added."""
    starting_offsets: str = "earliest"
    """Where the very first start begins; later starts continue where the last transaction ended."""
    max_offsets_per_trigger: int | None = None
    kafka_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """More options of Spark's Kafka source; names that begin with `kafka.` are passed to Kafka's clients."""


def start(spark: SparkSession, ingest: Ingest, *, trigger: Mapping[str, Any] | None = None) -> StreamingQuery:
    """Start the query; `trigger` is `DataStreamWriter.trigger`'s (default: `{"availableNow": True}`).

    Raises InvalidRequestError if options contradict each other or Spark has no Kafka connector, and what
    `kafka_resume.resume` raises.
    """
    mode = _subscription(ingest)
    cluster = KafkaCluster.connect(spark, ingest.bootstrap_servers, ingest.kafka_options)
    with cluster, txlog.open(ingest.store, storage_options=ingest.storage_options) as store:
        partitions = cluster.partitions(*mode)
        if ingest.create_topics and ingest.sql is None:
            _create_topics(store, ingest, partitions)
        offsets = resume(spark, store, ingest, partitions)
    records = read_kafka(spark, ingest, mode, offsets or ingest.starting_offsets)
    writer = (
        project(spark, ingest, records)
        .writeStream.format("txlog")
        .queryName(ingest.transactional_id)
        .option("transactional.id", ingest.transactional_id)
        .option("checkpointLocation", ingest.checkpoint)
        .options(**storage_settings(ingest.storage_options))
        .trigger(**(trigger or {"availableNow": True}))
    )
    if ingest.topic is not None:
        writer = writer.option("topic", ingest.topic)
    return writer.start(ingest.store)


def read_kafka(spark: SparkSession, ingest: Ingest, mode: tuple[str, str], offsets: str) -> DataFrame:
    """Return Spark's Kafka source with the options of this job."""
    options = {
        "kafka.isolation.level": "read_committed",
        "failOnDataLoss": "true",
        **ingest.kafka_options,
        "kafka.bootstrap.servers": ingest.bootstrap_servers,
        "includeHeaders": "true",
        "startingOffsets": offsets,
        mode[0]: mode[1],
    }
    if ingest.max_offsets_per_trigger is not None:
        options["maxOffsetsPerTrigger"] = str(ingest.max_offsets_per_trigger)
    return spark.readStream.format("kafka").options(**options).load()


def project(spark: SparkSession, ingest: Ingest, records: DataFrame) -> DataFrame:
    """Return the columns to write from Kafka's records: those of the topics, and `topic` and `partition` for
    routing."""
    routing = [*(["topic"] if ingest.topic is None else []), *(["partition"] if ingest.keep_partitions else [])]
    if ingest.sql is None:
        return records.select("key", "value", "headers", "timestamp", *routing)
    records.createOrReplaceTempView(KAFKA_VIEW)
    return spark.sql(ingest.sql)


def run(spark: SparkSession, ingest: Ingest, trigger: Mapping[str, Any]) -> None:
    """Start the query and wait until it ends or fails; SIGTERM and Ctrl-C end it. Raises the error of the query."""
    with orderly_end():
        query = start(spark, ingest, trigger=trigger)
        try:
            while not query.awaitTermination(POLL_SECONDS):
                pass
        finally:
            query.stop()
    done = query.recentProgress
    say(
        f"{ingest.transactional_id!r}: {sum(one.numInputRows for one in done):,} records in {len(done):,} micro-batches"
    )


def main(
    *,
    bootstrap_servers: Annotated[str, typer.Option(help="Kafka's brokers, HOST:PORT,...")],
    store: StoreOption = None,
    transactional_id: Annotated[
        str, typer.Option(help="The query's name in the store; a second instance fences the first.")
    ],
    checkpoint: Annotated[str, typer.Option(help="Folder or URL of Spark's checkpoint; may be lost.")],
    subscribe: Annotated[str | None, typer.Option(help="Kafka's topics, separated by commas.")] = None,
    subscribe_pattern: Annotated[str | None, typer.Option(help="... or a Java regular expression.")] = None,
    assign: Annotated[str | None, typer.Option(help='... or partitions, {"orders": [0, 1]}.')] = None,
    topic: Annotated[
        str | None,
        typer.Option(help="The txlog topic of all records (default: the topic with the same name)."),
    ] = None,
    sql: Annotated[
        str | None,
        typer.Option(help=f"A query over the view '{KAFKA_VIEW}' (default: Kafka's record unchanged)."),
    ] = None,
    keep_partitions: Annotated[
        bool, typer.Option(help="Write into the partition of the same number; else the key decides.")
    ] = True,
    create_topics: Annotated[
        bool, typer.Option(help="Create missing topics of Kafka's record shape, with as many partitions.")
    ] = True,
    starting_offsets: Annotated[
        str, typer.Option(help="Where the very first start begins: earliest, latest, or JSON.")
    ] = "earliest",
    max_offsets_per_trigger: Annotated[
        int | None, typer.Option(min=1, help="Maximum offsets of one transaction.")
    ] = None,
    every: Annotated[
        str | None,
        typer.Option(
            help="Keep running, with a transaction every '10 seconds' (default: end when everything has been read)."
        ),
    ] = None,
    kafka_option: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="More options of Spark's Kafka source.")
    ] = None,
    storage_option: StorageOption = None,
    conf: ConfOption = None,
) -> None:
    """Copy Kafka's topics into txlog, each record exactly once, with Kafka's offsets in the same transaction."""
    with running("ingest_kafka") as job:
        ingest = Ingest(
            bootstrap_servers=bootstrap_servers,
            store=store_url(store),
            transactional_id=transactional_id,
            checkpoint=checkpoint,
            subscribe=subscribe,
            subscribe_pattern=subscribe_pattern,
            assign=assign,
            topic=topic,
            sql=sql,
            keep_partitions=keep_partitions,
            create_topics=create_topics,
            starting_offsets=starting_offsets,
            max_offsets_per_trigger=max_offsets_per_trigger,
            kafka_options=pairs("--kafka-option", kafka_option),
            storage_options={
                name: parse_storage_value(text) for name, text in pairs("--storage-option", storage_option).items()
            },
        )
        run(job.session(conf), ingest, {"processingTime": every} if every else {"availableNow": True})


def _subscription(ingest: Ingest) -> tuple[str, str]:
    texts = {"subscribe": ingest.subscribe, "subscribePattern": ingest.subscribe_pattern, "assign": ingest.assign}
    given = [(name, text) for name, text in texts.items() if text]
    if len(given) != 1:
        found = " and ".join(name for name, _ in given) or "none"
        raise InvalidRequestError(
            "which records should be read from Kafka? Expected one of subscribe, "
            f"subscribePattern, assign; found {found}"
        )
    taken = [name for name in ingest.kafka_options if name.lower() in {*map(str.lower, texts), "startingoffsets"}]
    if taken:
        raise InvalidRequestError(
            f"kafka options: {', '.join(taken)} must be set with the job's own parameter. hint: remove it here"
        )
    return given[0]


def _create_topics(store: Store, ingest: Ingest, partitions: Mapping[str, Sequence[int]]) -> None:
    """Create each target with at least the partitions that it will receive."""
    wanted: dict[str, int] = {}
    for source, numbers in partitions.items():
        target = ingest.topic or source
        wanted[target] = max(wanted.get(target, 1), max(numbers, default=0) + 1)
    for target, count in wanted.items():
        try:
            found = store.topic(target)
        except UnknownTopicOrPartitionError:
            store.create_topic(target, None, count, if_not_exists=True)
            continue
        if ingest.keep_partitions and found.partitions < count:
            store.alter_topic(target, partitions=count)


app = typer.Typer(add_completion=False)
app.command(cls=Command)(main)

if __name__ == "__main__":
    app()
