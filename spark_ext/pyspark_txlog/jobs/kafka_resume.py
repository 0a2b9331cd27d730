"""Where does a query over Kafka go on whose checkpoint is lost?

At the offsets that its last transaction committed: the sink keeps the JSON of every source in the transaction that holds
the rows. With a checkpoint in which Spark planned a batch there is nothing to do, unless it is older than the log. Without
one, in this order:

1. The transactional.id is fenced: what an older run had decided is finished, what it had not is gone.
2. The id is forgotten. Its last version belongs to the lost query, and one query's numbers say nothing about another's.
3. The offsets are read, and partitions that Kafka has had since are added, from their beginning.

Two starts at once, or an older run that comes back, cannot take a range twice: whoever commits first gives the id a
version of its own query, and the other's commit is refused for that (`TxnVersionScopeError`). For this the offsets must be
read after the id was forgotten, never before.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from pyspark_txlog.checkpoint import parse_offsets
from pyspark_txlog.messages import say
from pyspark_txlog.source_offsets import by_topic, committed_source_offsets
from txlog.client.store import Store
from txlog.errors import (
    ConcurrentTransactionsError,
    GroupIdNotFoundError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    TransactionalIdNotFoundError,
)

if TYPE_CHECKING:
    from types import TracebackType

    from pyspark.sql import SparkSession

EARLIEST = -2
CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13"

KafkaOffsets: TypeAlias = Mapping[str, Mapping[str, int]]
"""As in Spark's `startingOffsets`: the next offset, by topic and partition."""


@dataclass(frozen=True, kw_only=True)
class Query:
    """One query, wherever it runs."""

    store: str
    transactional_id: str
    checkpoint: str
    storage_options: Mapping[str, object] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, kw_only=True)
class PlannedBatch:
    """A micro-batch of a query over one Kafka source, and where it ends."""

    query_id: str
    number: int
    offsets: KafkaOffsets
    not_read: KafkaOffsets = field(default_factory=dict)
    """Of a committed one: where topics ended that earlier batches read and this one did not."""

    @property
    def reached(self) -> KafkaOffsets:
        """How far each topic has been taken, whether it is still read or not."""
        topics = (*self.not_read, *self.offsets)
        return {topic: {**self.not_read.get(topic, {}), **self.offsets.get(topic, {})} for topic in topics}


class KafkaCluster:
    """Kafka's own administration client, in Spark's JVM: Spark's source asks for all partitions by number."""

    def __init__(self, jvm: Any, admin: Any) -> None:
        self._jvm = jvm
        self._admin = admin

    @classmethod
    def connect(cls, spark: SparkSession, bootstrap_servers: str, options: Mapping[str, str]) -> Self:
        """Speaks to Kafka with the settings among `options` that begin with `kafka.`.

        Raises InvalidRequestError if Spark has no Kafka connector, or Kafka's client refuses its settings.
        """
        from py4j.java_gateway import JavaPackage
        from py4j.protocol import Py4JJavaError

        jvm = _jvm(spark)
        # A class that is not there looks like a package to py4j.
        source = jvm.org.apache.spark.sql.kafka010.KafkaSourceProvider
        admin = jvm.org.apache.kafka.clients.admin.AdminClient
        if isinstance(source, JavaPackage) or isinstance(admin, JavaPackage):
            raise InvalidRequestError(
                f"this Spark has no Kafka connector: start it with --packages {CONNECTOR}:{spark.version}, or the newest version before "
                f"it that there is (setting spark.jars.packages, before the first session of the process)"
            )
        settings = jvm.java.util.Properties()
        for name, value in options.items():
            if name.startswith("kafka.") and name != "kafka.isolation.level":
                settings.setProperty(name.removeprefix("kafka."), value)
        settings.setProperty("bootstrap.servers", bootstrap_servers)
        try:
            return cls(jvm, admin.create(settings))
        except Py4JJavaError as error:
            raise InvalidRequestError(f"Kafka at {bootstrap_servers}: {_cause(error)}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._admin.close()

    def partitions(self, mode: str, text: str) -> dict[str, list[int]]:
        """The partitions that Spark's Kafka source reads for `subscribe`, `subscribePattern` or `assign`, by topic.

        Raises InvalidRequestError for a topic that Kafka does not have, or a Kafka that does not answer.
        """
        from py4j.protocol import Py4JJavaError

        if mode == "assign":
            return {topic: sorted(numbers) for topic, numbers in _object("assign", text).items()}
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
            raise InvalidRequestError(f"Kafka's topics, {mode} {text!r}: {_cause(error)}") from None


def resume(spark: SparkSession, store: Store, query: Query, partitions: Mapping[str, Sequence[int]]) -> str | None:
    """`startingOffsets` for a query that has lost its checkpoint; None if it has one, or has never committed anything.

    Older instances are fenced, as they will be when the query starts. `partitions` are Kafka's now. Raises
    InvalidRequestError if the id committed the offsets of something else than one Kafka source, or the checkpoint does not
    follow on the log; OffsetOutOfRangeError if Kafka lacks a partition that was read; ConcurrentTransactionsError,
    TxlogTimeoutError.
    """
    admin = store.admin()
    known = True
    try:
        admin.describe_transaction(query.transactional_id)
        admin.fence(query.transactional_id)
    except TransactionalIdNotFoundError:
        # Of a first start, or forgotten by one that died before its first commit: the offsets are there all the same.
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
            f"transactional.id {query.transactional_id!r}: another instance has begun a transaction just now; end it, or wait for it"
        )
    committed = committed_batch(query) or committed
    # Where a first batch was to begin is kept here before it is planned. What was committed since counts.
    folder.forget_start()
    say(
        f"transactional.id {query.transactional_id!r}: no batch is planned in the checkpoint {query.checkpoint}; going on at the "
        f"offsets of the last transaction, {json.dumps(committed.reached)}"
    )
    return json.dumps(complete(committed.reached, partitions))


def check_plan(planned: PlannedBatch, start: KafkaOffsets | None, committed: PlannedBatch, query: Query) -> None:
    """Raises InvalidRequestError unless what the checkpoint has planned follows on what is committed.

    One restored from a copy knows less than the log: its next batches would have numbers that are committed already, and
    be skipped, but other records. One that is batches ahead counts records as written that the log, itself put back to an
    older state, does not have. And a query that resumed and died in its first batch may only repeat it (from `start`,
    which the source noted) if nobody has committed since.
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
        expected = f"a first batch that begins there (the last one committed was {committed.number} of query {committed.query_id})"
    if not fits:
        raise InvalidRequestError(
            f"the checkpoint {query.checkpoint} does not follow on the log: transactional.id {query.transactional_id!r} stands at "
            f"{json.dumps(committed.offsets)}; expected {expected}, found batch {planned.number} of query {planned.query_id}, up to "
            f"{json.dumps(planned.offsets)}. Was one of the two restored from a copy, or did another run commit meanwhile? Stop the others, and remove this "
            f"checkpoint or name an empty folder: without one the query goes on at the offsets that were committed"
        )


def complete(committed: KafkaOffsets, partitions: Mapping[str, Sequence[int]]) -> dict[str, dict[str, int]]:
    """`committed` for exactly the partitions that are read: new ones from their beginning, topics no longer asked for left out.

    Raises OffsetOutOfRangeError if a topic lacks a partition that was read: it was made anew, and its offsets count other
    records.
    """
    for topic, numbers in partitions.items():
        gone = sorted(int(number) for number in committed.get(topic, {}) if int(number) not in numbers)
        if gone:
            raise OffsetOutOfRangeError(
                f"Kafka's topic {topic!r} has no partition {', '.join(map(str, gone))} any more, of which records were ingested: was it "
                f"deleted and made anew, or does 'assign' leave it out? Take another transactional.id, and startingOffsets as they should be"
            )
    return {
        topic: {str(number): committed.get(topic, {}).get(str(number), EARLIEST) for number in numbers}
        for topic, numbers in partitions.items()
    }


def committed_batch(query: Query) -> PlannedBatch | None:
    """The last batch that the query committed; None if it never did.

    Raises InvalidRequestError if it is not one of one Kafka source, UnstableOffsetCommitError.
    """
    try:
        found = committed_source_offsets(query.store, query.transactional_id, query.storage_options)
    except GroupIdNotFoundError:
        return None
    if not found:
        return None
    (first, *others) = found.values()
    offsets = _kafka_offsets(first.json)
    if others or offsets is None:
        raise InvalidRequestError(
            f"transactional.id {query.transactional_id!r}: its last transaction holds the offsets of something else than one Kafka source: "
            f"{' and '.join(one.json for one in found.values()):.300}. This job needs an id of its own"
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
        """The newest batch that Spark planned here; None if it planned none. Raises InvalidRequestError."""
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
        offsets = _kafka_offsets(next(iter(sources.values()))) if len(sources) == 1 else None
        if offsets is None:
            raise InvalidRequestError(
                f"{where}: expected the offsets of one Kafka source, found {' and '.join(sources.values()):.300}; this checkpoint is of another "
                f"query: give this one its own"
            )
        return PlannedBatch(query_id=json.loads(self._read("metadata"))["id"], number=number, offsets=offsets)

    def start(self) -> KafkaOffsets | None:
        """Where the query's first batch began, as Spark's Kafka source noted it."""
        if not self._files.exists(self._path(self._location, "sources/0/0")):
            return None
        # A zero byte and a version stand before the offsets.
        return _kafka_offsets(self._read("sources/0/0").partition("\n")[2])

    def forget_start(self) -> None:
        """Removes what the sources noted before a first batch."""
        self._files.delete(self._path(self._location, "sources"), True)

    def _read(self, name: str) -> str:
        stream = self._files.open(self._path(self._location, name))
        try:
            return bytes(stream.readAllBytes()).decode()
        finally:
            stream.close()


def _jvm(spark: SparkSession) -> Any:
    # Spark Connect has none: the job needs a driver of its own.
    found = getattr(spark, "_jvm", None)
    if found is None:
        raise InvalidRequestError(
            "this job speaks to Kafka and to the checkpoint from Spark's driver: start it with spark-submit, not over Spark Connect"
        )
    return found


def _kafka_offsets(text: str) -> dict[str, dict[str, int]] | None:
    try:
        parsed = json.loads(text)
    except ValueError:
        return None
    if not isinstance(parsed, dict):
        return None
    for numbers in parsed.values():
        if not isinstance(numbers, dict) or not all(isinstance(offset, int) for offset in numbers.values()):
            return None
    return parsed


def _object(name: str, text: str) -> dict[str, Any]:
    try:
        parsed = json.loads(text)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        raise InvalidRequestError(f"{name}: expected a JSON object of topics, found {text!r}")
    return parsed


def _cause(error: Any) -> str:
    """What Kafka says, without Java's frames: the innermost cause."""
    cause = error.java_exception
    while cause.getCause() is not None:
        cause = cause.getCause()
    return str(cause.toString())
