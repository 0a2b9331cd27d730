"""Which options does `writeStream.format("txlog")` take?

It takes those of a batch write (`options`), except `txn.version`, which is the micro-batch's number here, and two more:

    checkpointLocation     Required as an option: Spark does not pass its session-wide default to a Python sink.
    commitSourceOffsets    true (the default): the sources' offsets are part of each micro-batch's transaction. false:
                           the sink never reads the checkpoint. Use it if only Spark can read the checkpoint (HDFS).

`transactional.id` defaults to `spark-stream:` and the checkpoint's location: `spark-stream:/data/checkpoints/orders`,
`spark-stream:s3://bucket/checkpoints/orders`. It must stay the same as long as the query exists, so name it if the
checkpoint may move. The `transactional.id` of a configuration file is not used here, because one shared id would fence
all queries except one. A checkpoint in an object store of the same kind as the log's is read with the log's `storage.`
options, any other with the environment's defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pyspark_txlog.messages import plain_errors
from pyspark_txlog.options import STREAM_WRITE_OPTIONS, WriteOptions, parse_write_options
from pyspark_txlog.sink.checkpoint import Checkpoint, default_transactional_id
from txlog.errors import InvalidRequestError

CHECKPOINT_LOCATION = "checkpointLocation"
COMMIT_SOURCE_OFFSETS = "commitSourceOffsets"


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
def parse_stream_write_options(options: Mapping[str, str]) -> StreamWriteOptions:
    """Parse the options of `writeStream`. Raises UnknownOptionError and InvalidRequestError with option, expected and found."""
    rest = {name: value for name, value in options.items() if name.lower() not in _OWN}
    own = {name.lower(): value.strip() for name, value in options.items() if name.lower() in _OWN}
    if any(name.lower() == "txn.version" for name in rest):
        raise InvalidRequestError(
            "option 'txn.version': in a stream the version is the micro-batch's number, so that a repeated batch is written once. hint: leave it out"
        )
    location = own.get(CHECKPOINT_LOCATION.lower())
    if not location:
        raise InvalidRequestError(
            f"where is the query's checkpoint? Name it in .option({CHECKPOINT_LOCATION!r}, …): Spark does not pass spark.sql.streaming.checkpointLocation "
            "to a Python sink, and without a checkpoint txlog cannot detect repeated micro-batches"
        )
    commit = own.get(COMMIT_SOURCE_OFFSETS.lower(), "true").lower()
    if commit not in {"true", "false"}:
        raise InvalidRequestError(f"option {COMMIT_SOURCE_OFFSETS!r}: expected true or false, found {commit!r}")
    write = parse_write_options(rest, STREAM_WRITE_OPTIONS, "a streaming write")
    if write.transactional_id is None:
        write = replace(write, transactional_id=default_transactional_id(location))
    return StreamWriteOptions(write=write, checkpoint_location=location, commit_source_offsets=commit == "true")


# Spark passes the query's name among the options; the sink does not use it.
_OWN = frozenset({CHECKPOINT_LOCATION.lower(), COMMIT_SOURCE_OFFSETS.lower(), "queryname"})
