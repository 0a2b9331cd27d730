"""Which columns has each metadata table? `.option("metadata", "transactions")` and others.

TABLES is the contract: name, type and meaning of every column, in order. New columns may be added at the end; existing
ones never change, move or disappear. Times are timestamps, or null. `source.metadata_tables` reads the rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import types as spark

_PLACE = spark.StructType().add("topic", "string").add("partition", "integer")
_BOUNDS = spark.StructType().add("min", "string").add("max", "string").add("nulls", "long")
# Listed here because Spark parses types in the JVM, and planning processes have no JVM.
_TYPES: Mapping[str, spark.DataType] = {
    "string": spark.StringType(),
    "int": spark.IntegerType(),
    "bigint": spark.LongType(),
    "boolean": spark.BooleanType(),
    "timestamp": spark.TimestampType(),
    "array<string>": spark.ArrayType(spark.StringType()),
    "array<struct<topic:string,partition:int>>": spark.ArrayType(_PLACE),
    "map<string,struct<min:string,max:string,nulls:bigint>>": spark.MapType(spark.StringType(), _BOUNDS),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataTable:
    """A table of the log's state."""

    doc: str
    columns: tuple[tuple[str, str, str], ...]
    """(name, Spark's type, meaning)."""

    @property
    def schema(self) -> spark.StructType:
        """The columns as Spark's, with their meaning as comments."""
        return spark.StructType(
            [spark.StructField(name, _TYPES[kind], True, {"comment": doc}) for name, kind, doc in self.columns]
        )


_PARTITION = (("topic", "string", "the topic's name"), ("partition", "int", "the partition's number"))

TABLES: Mapping[str, MetadataTable] = {
    "transactions": MetadataTable(
        doc="A row for every transactional.id: its producer, and its open or last transaction.",
        columns=(
            ("transactional_id", "string", "the id, which survives restarts"),
            ("producer_id", "bigint", "its producer id"),
            ("producer_epoch", "bigint", "its current epoch; older ones are fenced"),
            ("state", "string", "EMPTY, ONGOING, PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_COMMIT or COMPLETE_ABORT"),
            ("last_outcome", "string", "commit or abort: how the last transaction ended; null if there was none"),
            ("last_epoch", "bigint", "the epoch of the transaction that ended last; null after an init"),
            ("timeout_ms", "bigint", "transaction.timeout.ms of its producer"),
            (
                "started_at",
                "timestamp",
                "when the open or last transaction registered its first partition; null after an init",
            ),
            ("updated_at", "timestamp", "when the state changed last"),
            ("duration_ms", "bigint", "how long the transaction has been open; null if none is"),
            (
                "partitions",
                "array<struct<topic:string,partition:int>>",
                "partitions that are registered with it, or take its staged rows",
            ),
            ("txn_version", "bigint", "the highest committed txn.version; null if there never was one"),
            ("txn_scope", "string", "what these versions count in: a streaming query's id; empty for the user's own"),
            ("coordinator", "string", "the partition of the transaction-state table that holds the id"),
            ("coordinator_offset", "bigint", "where in it the id's last record lies"),
        ),
    ),
    "partitions": MetadataTable(
        doc="A row for every partition: its ends, what holds readers back, what it consists of.",
        columns=(
            *_PARTITION,
            ("log_start_offset", "bigint", "the first offset kept"),
            ("last_stable_offset", "bigint", "where read_committed ends"),
            ("log_end_offset", "bigint", "the next offset to be assigned; where read_uncommitted ends"),
            ("last_timestamp", "timestamp", "log-append time of the last batch"),
            ("open_transactions", "int", "transactions with rows here and no marker yet"),
            ("first_open_offset", "bigint", "the first row of the earliest of them"),
            ("segments", "int", "sealed segments and cleaned runs"),
            ("sealed_end_offset", "bigint", "below it the log lies in segments, from here on in commit records"),
            ("boundary_offset", "bigint", "commit records below it may have been deleted"),
            ("tail_batches", "int", "batches that are in no segment yet"),
            ("tail_records", "bigint", "their rows"),
            ("bytes", "bigint", "of the files that segments and tail name, and of the tail's commit records"),
        ),
    ),
    "segments": MetadataTable(
        doc="A row for every sealed segment and cleaned run of the current walk.",
        columns=(
            *_PARTITION,
            ("base_offset", "bigint", "its first offset"),
            ("end_offset", "bigint", "the first offset behind it"),
            ("generation", "int", "0 as sealed, more for cleaned runs"),
            ("index", "string", "the name of its index object"),
            ("batches", "int", "entries of the index, control batches included"),
            ("records", "bigint", "rows, aborted ones included"),
            ("files", "int", "files that hold them"),
            ("bytes", "bigint", "bytes of these"),
            ("aborted_txns", "int", "transactions whose ABORT marker lies in it"),
        ),
    ),
    "consumer_groups": MetadataTable(
        doc="A row for every partition that a consumer group has an offset for; one for a group that has none.",
        columns=(
            ("group_id", "string", "the group"),
            ("state", "string", "STABLE with a member, EMPTY without"),
            ("generation", "bigint", "its generation; older members are fenced"),
            ("member_id", "string", "its member"),
            ("client_id", "string", "what the member calls itself"),
            ("topics", "array<string>", "what the member subscribes to"),
            ("topic", "string", "the topic of an offset"),
            ("partition", "int", "the partition of an offset"),
            ("committed_offset", "bigint", "the next offset to read"),
            ("pending_offset", "bigint", "that of an undecided transaction"),
            ("metadata", "string", "what its committer wrote beside it"),
            ("committed_at", "timestamp", "when it was committed"),
            ("log_start_offset", "bigint", "the partition's first offset; null if the topic is gone"),
            ("last_stable_offset", "bigint", "where read_committed ends"),
            ("log_end_offset", "bigint", "the next offset to be assigned"),
            ("lag", "bigint", "offsets up to the last stable one not yet consumed; markers and aborted rows count"),
        ),
    ),
    "aborted": MetadataTable(
        doc="A row for every aborted transaction that had written rows to a partition.",
        columns=(
            *_PARTITION,
            ("producer_id", "bigint", "whose it was"),
            ("first_offset", "bigint", "its first row here"),
            ("last_offset", "bigint", "its ABORT marker"),
            ("last_stable_offset", "bigint", "the last stable offset just after the marker"),
        ),
    ),
    "history": MetadataTable(
        doc="A row for everything that a run of a maintenance job did to a partition; none for what did "
        "nothing. The newest 2,000 runs.",
        columns=(
            ("run_id", "string", "one run of a job"),
            ("job", "string", "merge, compact, retention, vacuum or repair"),
            *_PARTITION,
            ("started_at", "timestamp", "when it began"),
            ("ended_at", "timestamp", "when it ended; null if it did not"),
            ("outcome", "string", "published, discarded (another was first), deleted or failed"),
            ("base_offset", "bigint", "the first offset it worked on; null if it was about none"),
            ("end_offset", "bigint", "the first offset behind them"),
            ("generation", "int", "of the run it made; null if it made none"),
            ("input_files", "int", "files read"),
            ("output_files", "int", "files written"),
            ("rows_read", "bigint", "rows in the former"),
            ("rows_written", "bigint", "rows in the latter"),
            ("bytes_read", "bigint", "bytes of the former"),
            ("bytes_written", "bigint", "bytes of the latter"),
            ("deleted_objects", "bigint", "objects removed"),
            ("deleted_bytes", "bigint", "their bytes"),
            ("message", "string", "the reason of a failure"),
            ("by", "string", "the process that did it: host and process id"),
        ),
    ),
    "files": MetadataTable(
        doc="A row for every Parquet file that the log names from its start on; rows that ride in "
        "commit records have none.",
        columns=(
            *_PARTITION,
            ("path", "string", "relative to the topic's folder"),
            ("first_offset", "bigint", "the first offset that it holds a row of"),
            ("end_offset", "bigint", "the first offset behind its last row"),
            ("rows", "bigint", "rows in the file"),
            ("live_rows", "bigint", "those at or above the log start"),
            ("committed_rows", "bigint", "those that read_committed shows now: 0 for aborted and undecided ones"),
            ("bytes", "bigint", "its length"),
            ("row_groups", "int", "its row groups"),
            ("schema_id", "bigint", "the version of the topic whose columns it has"),
            ("first_timestamp", "timestamp", "log-append time of its first batch; null in a cleaned run"),
            ("last_timestamp", "timestamp", "log-append time of its last batch; null in a cleaned run"),
            ("segment", "string", "the index that names it; null as long as a commit record does"),
            ("has_offset_column", "boolean", "whether `_offset` and `_timestamp` are columns of the file"),
            ("producer_id", "bigint", "who wrote it; null for files of a segment"),
            ("producer_epoch", "bigint", "and in which epoch"),
            ("digest", "string", "SHA-256 of the file; null for what Spark's own writer wrote"),
            ("footer_digest", "string", "SHA-256 of its footer"),
            (
                "statistics",
                "map<string,struct<min:string,max:string,nulls:bigint>>",
                "by column, outer bounds as JSON: dates in days, times in microseconds, strings cut at 32 bytes",
            ),
        ),
    ),
}
"""The tables by their names in the option `metadata`."""
