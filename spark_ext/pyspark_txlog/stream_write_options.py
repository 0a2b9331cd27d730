"""Which options does `writeStream.format("txlog")` take?

Those of a batch write (`options`), but for `txn.version`, which is the micro-batch's number here, and two of its own:

    checkpointLocation     needed, as an option: Spark's session-wide default does not reach a Python sink
    commitSourceOffsets    true (the default): the sources' offsets are part of each micro-batch's transaction. false: the
                           sink never looks into the checkpoint, for one that only Spark can read (HDFS)

`transactional.id` defaults to `spark-stream:` and the checkpoint's location: `spark-stream:/data/checkpoints/orders`,
`spark-stream:s3://bucket/checkpoints/orders`. It must stay the same as long as the query lives: name it where the checkpoint
may move. A configuration file's `transactional.id` does not count here: one id would fence all queries but one. A checkpoint in an object store of the same kind as the log's is read with the log's `storage.` options, any other
with what the environment gives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pyspark_txlog.checkpoint import Checkpoint, default_transactional_id
from pyspark_txlog.messages import plain_errors
from pyspark_txlog.options import STREAM_WRITE_OPTIONS, WriteOptions, parse_write_options
from txlog.errors import InvalidRequestError

CHECKPOINT_LOCATION = "checkpointLocation"
COMMIT_SOURCE_OFFSETS = "commitSourceOffsets"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamWriteOptions:
    """The options of a query's sink, checked as far as they can be without the store."""

    write: WriteOptions
    """With a transactional.id, and without a version: that is each micro-batch's."""
    checkpoint_location: str
    commit_source_offsets: bool

    def checkpoint(self) -> Checkpoint:
        """The query's checkpoint; contacts nobody. Raises UnsupportedStoreError."""
        return Checkpoint.beside(self.checkpoint_location, self.write.store.path, self.write.store.storage)

    def of_query(self, query_id: str | None) -> StreamWriteOptions:
        """These options with what tells the query from others: its id or, if nobody looks into the checkpoint, its place."""
        query = query_id if query_id is not None and self.commit_source_offsets else self.checkpoint_location
        return replace(self, write=replace(self.write, query=query))


@plain_errors
def parse_stream_write_options(options: Mapping[str, str]) -> StreamWriteOptions:
    """The options of `writeStream`; raises UnknownOptionError and InvalidRequestError, naming option, expected, found."""
    rest = {name: value for name, value in options.items() if name.lower() not in _OWN}
    own = {name.lower(): value.strip() for name, value in options.items() if name.lower() in _OWN}
    if any(name.lower() == "txn.version" for name in rest):
        raise InvalidRequestError(
            "option 'txn.version': in a stream the micro-batch's number is the version, so that a batch which Spark runs again is written once; leave it out"
        )
    location = own.get(CHECKPOINT_LOCATION.lower())
    if not location:
        raise InvalidRequestError(
            f"where is the query's checkpoint? Name it in .option({CHECKPOINT_LOCATION!r}, …): what spark.sql.streaming.checkpointLocation says does not "
            "reach a Python sink, and a query without a checkpoint of its own could not recognise its micro-batches"
        )
    commit = own.get(COMMIT_SOURCE_OFFSETS.lower(), "true").lower()
    if commit not in {"true", "false"}:
        raise InvalidRequestError(f"option {COMMIT_SOURCE_OFFSETS!r}: expected true or false, found {commit!r}")
    write = parse_write_options(rest, STREAM_WRITE_OPTIONS, "a streaming write")
    if write.transactional_id is None:
        write = replace(write, transactional_id=default_transactional_id(location))
    return StreamWriteOptions(write=write, checkpoint_location=location, commit_source_offsets=commit == "true")


# Spark hands the query's name on among the options; the sink has no use for it.
_OWN = frozenset({CHECKPOINT_LOCATION.lower(), COMMIT_SOURCE_OFFSETS.lower(), "queryname"})
