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

from pyspark_txlog import option_table as table
from pyspark_txlog.messages import plain_errors
from pyspark_txlog.options import Options
from pyspark_txlog.sink.checkpoint import Checkpoint, default_transactional_id
from txlog.engine import Settings
from txlog.errors import InvalidRequestError


@plain_errors
def parse_write_options(options: Mapping[str, str]) -> Options:
    """Parse the options of `df.write`. Raises UnknownOptionError and InvalidRequestError with option, expected and
    found."""
    return Options.parse(options, "write")


@plain_errors
def parse_stream_write_options(options: Mapping[str, str]) -> Options:
    """Parse the options of `writeStream`; the result has a transactional.id.

    Raises UnknownOptionError and InvalidRequestError with option, expected and found.
    """
    if any(name.lower() == "txn.version" for name in options):
        raise InvalidRequestError(
            "option 'txn.version': in a stream the version is the micro-batch's number, so that a repeated batch is "
            "written once. hint: leave it out"
        )
    parsed = Options.parse(options, "writeStream")
    if table.TRANSACTIONAL_ID in parsed:
        return parsed
    return parsed.having(table.TRANSACTIONAL_ID, default_transactional_id(parsed[table.CHECKPOINT_LOCATION]))


def checkpoint_of(options: Options) -> Checkpoint:
    """Return the checkpoint of a streaming query. Sends no request. Raises UnsupportedStoreError."""
    return Checkpoint.beside(options[table.CHECKPOINT_LOCATION], options[table.PATH], options.storage)


def settled_write(options: Options, settings: Settings) -> Options:
    """Return the options of a batch write, with the transactional.id of the store's settings if the call names none.

    Raises InvalidRequestError for a version without an id.
    """
    name = options[table.TRANSACTIONAL_ID] or settings.producer_config({}).transactional_id
    if name is not None:
        return options.having(table.TRANSACTIONAL_ID, name)
    if table.TXN_VERSION in options:
        raise InvalidRequestError(
            "txn.version numbers the transactions of one transactional.id: set that option too, or txlog "
            "cannot detect a repeated write"
        )
    return options
