"""What do the options of a write mean, together and with the store's settings?

A stream takes the options of a batch write except `txn.version`, which is the micro-batch's number there, and
`checkpointLocation` and `commitSourceOffsets`. If the latter is false, the sink never reads the checkpoint: for a
checkpoint that only Spark can read (HDFS). A checkpoint in an object store of the same kind as the log's is read with
the log's `storage.` options, any other with the environment's defaults.

A stream's `transactional.id` defaults to `spark-stream:` and the checkpoint's location:
`spark-stream:/data/checkpoints/orders`, `spark-stream:s3://bucket/checkpoints/orders`. It must stay the same as long as
the query exists, so name it if the checkpoint may move. The `transactional.id` of a configuration file is not used
there, because one shared id would fence all queries except one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pyspark_txlog.messages import plain_errors
from pyspark_txlog.option_table import names_of
from pyspark_txlog.options import Given, StoreOptions
from pyspark_txlog.sink.checkpoint import Checkpoint, default_transactional_id
from txlog.engine import Settings
from txlog.errors import InvalidRequestError


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """The options of a batch write, checked as far as possible without the store."""

    store: StoreOptions
    topic: str | None
    """None: the column `topic` names the topic of each row."""
    key: tuple[str, ...] | None
    """Columns whose hash chooses the partition; None: the topic's `key.columns`."""
    transactional_id: str | None
    txn_version: int | None
    transaction_timeout_ms: int | None
    """None, here and below: the producer's setting is used."""
    compression_type: str | None
    query: str = ""
    """The streaming query that writes, if there is one. It is not an option: the sink sets it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamWriteOptions:
    """The options of a query's sink, checked as far as possible without the store."""

    write: WriteOptions
    """With a transactional.id, and without a version, because each micro-batch has its own."""
    checkpoint_location: str
    commit_source_offsets: bool

    def checkpoint(self) -> Checkpoint:
        """Return the query's checkpoint. Sends no request. Raises UnsupportedStoreError."""
        return Checkpoint.beside(self.checkpoint_location, self.write.store.path, self.write.store.storage)

    def of_query(self, query_id: str | None) -> StreamWriteOptions:
        """Return these options with the query's identity: its id, or the checkpoint's location if the checkpoint is not read."""
        query = query_id if query_id is not None and self.commit_source_offsets else self.checkpoint_location
        return replace(self, write=replace(self.write, query=query))


@plain_errors
def parse_write_options(options: Mapping[str, str]) -> WriteOptions:
    """Parse the options of `df.write`. Raises UnknownOptionError and InvalidRequestError with option, expected and
    found."""
    return _write_options(Given(options, names_of("write"), "a write"))


@plain_errors
def parse_stream_write_options(options: Mapping[str, str]) -> StreamWriteOptions:
    """Parse the options of `writeStream`. Raises UnknownOptionError and InvalidRequestError with option, expected and found."""
    if any(name.lower() == "txn.version" for name in options):
        raise InvalidRequestError(
            "option 'txn.version': in a stream the version is the micro-batch's number, so that a repeated batch is written once. hint: leave it out"
        )
    given = Given(options, names_of("writeStream"), "a streaming write")
    location = given["checkpointLocation"]
    if location is None:
        raise InvalidRequestError(
            "where is the query's checkpoint? Name it in .option('checkpointLocation', …): Spark does not pass spark.sql.streaming.checkpointLocation "
            "to a Python sink, and without a checkpoint txlog cannot detect repeated micro-batches"
        )
    write = _write_options(given)
    if write.transactional_id is None:
        write = replace(write, transactional_id=default_transactional_id(location))
    return StreamWriteOptions(
        write=write, checkpoint_location=location, commit_source_offsets=given["commitSourceOffsets"]
    )


def settled_write(options: WriteOptions, settings: Settings) -> WriteOptions:
    """Return the options of a batch write, with the transactional.id of the store's settings if the call names none.

    Raises InvalidRequestError for a version without an id.
    """
    name = options.transactional_id or settings.producer_config({}).transactional_id
    if options.txn_version is not None and name is None:
        raise InvalidRequestError(
            "txn.version numbers the transactions of one transactional.id: set that option too, or txlog cannot detect a repeated write"
        )
    return replace(options, transactional_id=name)


def _write_options(given: Given) -> WriteOptions:
    return WriteOptions(
        store=given.store("save"),
        topic=given["topic"],
        key=given["key"],
        transactional_id=given["transactional.id"],
        txn_version=given["txn.version"],
        transaction_timeout_ms=given["transaction.timeout.ms"],
        compression_type=given["compression.type"],
    )
