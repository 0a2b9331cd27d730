"""What does Spark ask of a streaming read, and when?

Beside the driver one process holds the reader as long as the query runs: Spark asks it for the initial offset, the
latest one, the input partitions between two of them, and tells it what has been processed; `pyspark_txlog.stream_source`
answers. The reader is also sent to the executors, whose processes only call `read`: so it opens nothing before it is
asked, and it must not fail before either, for Spark reports that as an error of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from pyspark_txlog.messages import plain_errors
from pyspark_txlog.options import parse_stream_options
from pyspark_txlog.reader import open_runtime, read_input
from pyspark_txlog.stream_offsets import StreamOffset
from pyspark_txlog.stream_source import StreamSource

if TYPE_CHECKING:
    import pyarrow as pa


class TxlogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming read. Driver side: everything but `read`, which runs on the executors."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._opened: StreamSource | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  Spark's name
        """That a query begins; where, the end of its first batch says. Raises what wrong options and stores raise."""
        return self._source().initial()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  Spark's name
        """Keeps the query from reading beyond what is there now."""
        self._source().stop_at_what_is_there()

    @plain_errors
    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  Spark's name
        """That there are limits, if there are any: Spark asks for everything at Trigger.Once, whatever the options say.

        Spark has no name for both together; what counts is the options, which `latestOffset` knows.
        """
        options = parse_stream_options(self._options)
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.min_offsets_per_trigger is not None:
            return ReadMinRows(options.min_offsets_per_trigger)
        return ReadAllAvailable()

    @plain_errors
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802  Spark's name
        """Where a batch that begins at `start` ends; `start` itself if there is nothing to do."""
        return dict(self._source().latest(start, limited=not isinstance(limit, ReadAllAvailable)))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802  Spark's name
        """For the query's progress, without a request: the ends of the log, lag and loss."""
        return None if self._opened is None else self._opened.report()

    @plain_errors
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The batch as runs of pieces; raises OffsetOutOfRangeError, SchemaMismatchError."""
        return [InputPartition(tasks) for tasks in self._source().plan(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one input partition, in the order of offsets within each topic partition."""
        options = parse_stream_options(self._options)
        return read_input(partition, self._schema, fail_on_data_loss=options.read.fail_on_data_loss)

    @plain_errors
    def commit(self, end: dict[str, Any]) -> None:
        """Commits for `group.id` what lies before `end`: Spark has processed it."""
        self._source().commit(StreamOffset.from_json(end).ends)

    def stop(self) -> None:
        """Closes the store; the last batch is committed for the group by whoever runs the query next."""
        if self._opened is not None:
            self._opened.close()

    @plain_errors
    def _source(self) -> StreamSource:
        if self._opened is None:
            options = parse_stream_options(self._options)
            self._opened = StreamSource(open_runtime(options.read), options, self._schema)
        return self._opened
