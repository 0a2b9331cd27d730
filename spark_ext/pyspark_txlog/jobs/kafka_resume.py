"""Where does a query over Kafka continue after its checkpoint is lost?

It continues at the offsets that its last transaction committed: the sink stores the JSON of every source in the
transaction of the rows. If Spark planned a batch in the checkpoint, nothing is done, unless the checkpoint is older
than the log. Otherwise, in this order:

1. The transactional.id is fenced. Decided transactions of an older run are finished, others are aborted.
2. The id is forgotten. Its last version belongs to the lost query, whose batch numbers mean nothing for the new one.
3. The offsets are read. Partitions that Kafka has added since then start at their beginning.

Two concurrent starts, or an older run that comes back, cannot process a range twice. The first commit gives the id a
version of its own query, and the other commit then fails with `TxnVersionScopeError`. For this the offsets must be read
after the id was forgotten, never before.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from pyspark_txlog.messages import say
from pyspark_txlog.sink.checkpoint import parse_offsets
from pyspark_txlog.sink.committed_offsets import committed_source_offsets
from pyspark_txlog.stream_offsets import by_topic, json_object, offsets_by_topic
from txlog import Store
from txlog.errors import (
    ConcurrentTransactionsError,
    GroupIdNotFoundError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    TransactionalIdNotFoundError,
)
from txlog.text import shorten

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EARLIEST = -2
CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13"
_ADVICE = "hint: check that the brokers run, their address and the security settings"

KafkaOffsets: TypeAlias = Mapping[str, Mapping[str, int]]
"""The next offset, by topic and partition, as in Spark's `startingOffsets`."""


@dataclass(frozen=True, kw_only=True)
class Query:
    """One query, in any place."""

    store: str
    transactional_id: str
    """One id, one query: a second instance fences the first."""
    checkpoint: str
    storage_options: Mapping[str, object] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, kw_only=True)
class PlannedBatch:
    """A micro-batch of a query over one Kafka source, and where it ends."""

    query_id: str
    number: int
    offsets: KafkaOffsets
    not_read: KafkaOffsets = field(default_factory=dict)
    """For a committed batch: the ends of topics that earlier batches read and this one did not."""

    @property
    def reached(self) -> KafkaOffsets:
        """Return how far each topic has been processed, whether it is still read or not."""
        topics = (*self.not_read, *self.offsets)
        return {topic: {**self.not_read.get(topic, {}), **self.offsets.get(topic, {})} for topic in topics}


class KafkaCluster:
    """Kafka's own administration client, in Spark's JVM. Spark's source needs all partitions by number."""

    def __init__(self, jvm: Any, admin: Any, bootstrap_servers: str) -> None:
        self._jvm = jvm
        self._admin = admin
        self._bootstrap_servers = bootstrap_servers

    @classmethod
    def connect(cls, spark: SparkSession, bootstrap_servers: str, options: Mapping[str, str]) -> Self:
        """Connect to Kafka with the settings among `options` that begin with `kafka.`.

        Raises InvalidRequestError if Spark has no Kafka connector, or Kafka's client refuses its settings.
        """
        from py4j.java_gateway import JavaPackage
        from py4j.protocol import Py4JJavaError

        jvm = _jvm(spark)
        # For py4j a missing class looks like a package.
        source = jvm.org.apache.spark.sql.kafka010.KafkaSourceProvider
        admin = jvm.org.apache.kafka.clients.admin.AdminClient
        if isinstance(source, JavaPackage) or isinstance(admin, JavaPackage):
            raise InvalidRequestError(
                "this Spark has no Kafka connector. "
                f"hint: start it with --packages {CONNECTOR}:{spark.version}, the version of your Spark, or the "
                "newest one before it (setting spark.jars.packages, before the first session of the process)"
            )
        settings = jvm.java.util.Properties()
        for name, value in options.items():
            if name.startswith("kafka.") and name != "kafka.isolation.level":
                settings.setProperty(name.removeprefix("kafka."), value)
        settings.setProperty("bootstrap.servers", bootstrap_servers)
        try:
            return cls(jvm, admin.create(settings), bootstrap_servers)
        except Py4JJavaError as error:
            raise InvalidRequestError(
                f"Kafka at {bootstrap_servers}: cannot connect: {_cause(error)}. {_ADVICE}"
            ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._admin.close()

    def partitions(self, mode: str, text: str) -> dict[str, list[int]]:
        """Return the partitions that Spark's Kafka source reads for `subscribe`, `subscribePattern` or `assign`, by
        topic.

        Raises InvalidRequestError if Kafka lacks a topic or does not answer.
        """
        from py4j.protocol import Py4JJavaError

        if mode == "assign":
            if (assigned := json_object(text)) is None:
                raise InvalidRequestError(f"assign: expected a JSON object of topics, found {text!r}")
            return {topic: sorted(numbers) for topic, numbers in assigned.items()}
        try:
            if mode == "subscribe":
                topics = [name.strip() for name in text.split(",") if name.strip()]
            else:
                matches = self._jvm.java.util.regex.Pattern.compile(text)
                topics = [name for name in self._admin.listTopics().names().get() if matches.matcher(name).matches()]
            wanted = self._jvm.java.util.ArrayList()
            for topic in topics:
                wanted.add(topic)
            found = self._admin.describeTopics(wanted).allTopicNames().get()
            return {
                str(topic): sorted(int(partition.partition()) for partition in found[topic].partitions())
                for topic in sorted(found)
            }
        except Py4JJavaError as error:
            cause = _cause(error)
            advice = f". {_ADVICE}" if "TimeoutException" in cause else ""
            raise InvalidRequestError(
                f"Kafka at {self._bootstrap_servers}: cannot list topics, {mode} {text!r}: {cause}{advice}"
            ) from None


def resume(spark: SparkSession, store: Store, query: Query, partitions: Mapping[str, Sequence[int]]) -> str | None:
    """Return `startingOffsets` for a query that has lost its checkpoint; None if it has one, or has never committed.

    Older instances are fenced, as they will be when the query starts. `partitions` are Kafka's present ones. Raises
    InvalidRequestError if the id committed offsets of anything except one Kafka source, or if the checkpoint does not
    follow on the log. Raises OffsetOutOfRangeError if Kafka lacks a partition that was read. Raises
    ConcurrentTransactionsError, TxlogTimeoutError.
    """
    admin = store.admin()
    known = True
    try:
        admin.describe_transaction(query.transactional_id)
        admin.fence(query.transactional_id)
    except TransactionalIdNotFoundError:
        # The first start, or an earlier start forgot the id and died before its first commit. The offsets still exist
        # then.
        known = False
    committed = committed_batch(query)
    folder = _CheckpointFolder(spark, query.checkpoint)
    planned = folder.last_batch()
    if committed is None:
        return None
    if planned is not None:
        check_plan(planned, folder.start(), committed, query)
        return None
    if known and not admin.expire_id(query.transactional_id, force=True):
        raise ConcurrentTransactionsError(
            f"transactional.id {query.transactional_id!r}: another instance has just begun a transaction. "
            "hint: stop it, or wait for it"
        )
    committed = committed_batch(query) or committed
    # The source records here where a first batch begins, before it is planned. The committed offsets are newer.
    folder.forget_start()
    say(
        f"transactional.id {query.transactional_id!r}: no batch is planned in the checkpoint {query.checkpoint}; "
        f"continuing at the offsets of the last transaction, {json.dumps(committed.reached)}"
    )
    return json.dumps(complete(committed.reached, partitions))


def check_plan(planned: PlannedBatch, start: KafkaOffsets | None, committed: PlannedBatch, query: Query) -> None:
    """Raise InvalidRequestError unless the planned batch of the checkpoint follows on the committed one.

    A checkpoint restored from a copy is older than the log. The numbers of its next batches are already committed, so
    they would be skipped, but they hold other records. A checkpoint that is batches ahead counts records as written
    that are missing in the log, because the log was restored to an older state. A query that resumed and died in its
    first batch may only repeat that batch (from `start`, which the source recorded) if no other run has committed since
    then.
    """
    if planned.query_id == committed.query_id:
        fits = planned.number == committed.number + 1 or (
            planned.number == committed.number and planned.offsets == committed.offsets
        )
        expected = f"batch {committed.number} or the next one of this query"
    else:
        begins = start or {}
        fits = planned.number == 0 and all(
            begins.get(topic, {}).get(number, offset) == offset
            for topic, numbers in committed.reached.items()
            for number, offset in numbers.items()
        )
        expected = f"a first batch that begins there, after batch {committed.number} of query {committed.query_id}"
    if not fits:
        raise InvalidRequestError(
            f"this checkpoint does not follow on the log: transactional.id {query.transactional_id!r} stands at "
            f"{shorten(json.dumps(committed.offsets), 60)}; expected {expected}, found batch {planned.number} of "
            f"query {planned.query_id}. One of the two was restored from a copy, or another run committed. "
            f"hint: stop other runs and use an empty checkpoint folder, not {query.checkpoint}"
        )


def complete(committed: KafkaOffsets, partitions: Mapping[str, Sequence[int]]) -> dict[str, dict[str, int]]:
    """Return `committed` for exactly the partitions to read: new ones from their beginning, without topics no longer
    asked for.

    Raises OffsetOutOfRangeError if a topic lacks a partition that was read: it was created again, and its offsets count
    other records.
    """
    for topic, numbers in partitions.items():
        gone = sorted(int(number) for number in committed.get(topic, {}) if int(number) not in numbers)
        if gone:
            raise OffsetOutOfRangeError(
                f"Kafka's topic {topic!r} no longer has partition {', '.join(map(str, gone))}, whose records were "
                "ingested: the topic was deleted and created again, or 'assign' leaves it out. "
                "hint: name it in 'assign' again; for a topic created again use another transactional.id, with "
                "startingOffsets -2 for its partitions, and committed_source_offsets(...) for all others"
            )
    return {
        topic: {str(number): committed.get(topic, {}).get(str(number), EARLIEST) for number in numbers}
        for topic, numbers in partitions.items()
    }


def committed_batch(query: Query) -> PlannedBatch | None:
    """Return the last batch that the query committed; None if it has not committed.

    Raises InvalidRequestError if the batch does not have exactly one Kafka source, UnstableOffsetCommitError.
    """
    try:
        found = committed_source_offsets(query.store, query.transactional_id, query.storage_options)
    except GroupIdNotFoundError:
        return None
    if not found:
        return None
    (first, *others) = found.values()
    offsets = offsets_by_topic(first.json)
    if others or offsets is None:
        raise InvalidRequestError(
            f"transactional.id {query.transactional_id!r}: its last transaction holds the offsets of something else "
            f"than one Kafka source: {shorten(' and '.join(one.json for one in found.values()), 100)}. "
            "hint: give this job another id; it begins at startingOffsets"
        )
    return PlannedBatch(
        query_id=first.query_id, number=first.batch_id, offsets=offsets, not_read=by_topic(first.not_read)
    )


class _CheckpointFolder:
    """Spark's checkpoint, through the file system that Spark itself uses for it."""

    def __init__(self, spark: SparkSession, location: str) -> None:
        hadoop = _jvm(spark).org.apache.hadoop.fs
        self._location = location
        self._path = hadoop.Path
        self._files = hadoop.Path(location).getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())

    def last_batch(self) -> PlannedBatch | None:
        """Return the newest batch that Spark planned here; None if it planned none. Raises InvalidRequestError."""
        folder = self._path(self._location, "offsets")
        if not self._files.exists(folder):
            return None
        names = [str(found.getPath().getName()) for found in self._files.listStatus(folder)]
        numbers = [int(name) for name in names if name.isascii() and name.isdigit()]
        if not numbers:
            return None
        number = max(numbers)
        where = f"{self._location}/offsets/{number}"
        sources = parse_offsets(self._read(f"offsets/{number}"), where)
        offsets = offsets_by_topic(next(iter(sources.values()))) if len(sources) == 1 else None
        if offsets is None:
            raise InvalidRequestError(
                f"{where}: expected the offsets of one Kafka source, found "
                f"{shorten(' and '.join(sources.values()), 100)}. "
                "hint: this checkpoint belongs to another query; use another folder for this one"
            )
        return PlannedBatch(query_id=json.loads(self._read("metadata"))["id"], number=number, offsets=offsets)

    def start(self) -> KafkaOffsets | None:
        """Return where the query's first batch began, as Spark's Kafka source recorded it."""
        if not self._files.exists(self._path(self._location, "sources/0/0")):
            return None
        # A zero byte and a version precede the offsets.
        return offsets_by_topic(self._read("sources/0/0").partition("\n")[2])

    def forget_start(self) -> None:
        """Delete what the sources recorded before a first batch."""
        self._files.delete(self._path(self._location, "sources"), True)

    def _read(self, name: str) -> str:
        stream = self._files.open(self._path(self._location, name))
        try:
            return bytes(stream.readAllBytes()).decode()
        finally:
            stream.close()


def _jvm(spark: SparkSession) -> Any:
    # Spark Connect has no JVM here, but the job must run in the driver.
    found = getattr(spark, "_jvm", None)
    if found is None:
        raise InvalidRequestError(
            "this job uses Kafka and the checkpoint from Spark's driver. "
            "hint: start it with spark-submit, not over Spark Connect"
        )
    return found


def _cause(error: Any) -> str:
    """Return Kafka's error message without Java's frames: the innermost cause."""
    cause = error.java_exception
    while cause.getCause() is not None:
        cause = cause.getCause()
    return str(cause.toString())
