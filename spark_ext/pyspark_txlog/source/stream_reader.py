"""Which calls does Spark make on a streaming read, and when?

One process beside the driver holds the reader as long as the query runs. Spark asks it for the initial offset, the
latest offset, and the input partitions between two offsets, and reports what has been processed.
`pyspark_txlog.source.stream_source` answers. The reader is also sent to the executors, which only call `read`. So it
opens nothing before the first call. It must not fail earlier either, because Spark would report that as an error of
Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_txlog import option_table as table
from pyspark_txlog.messages import plain_errors
from pyspark_txlog.source.batch_reader import read_input
from pyspark_txlog.source.options import parse_stream_options
from pyspark_txlog.source.read_limits import (
    HAS_LIMITS,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark_txlog.source.stream_source import StreamSource
from pyspark_txlog.stream_offsets import StreamOffset

if TYPE_CHECKING:
    import pyarrow as pa

    from txlog.engine.schemas import TopicMetadata


def stream_reader(
    options: Mapping[str, str], schema: StructType, known: Mapping[str, TopicMetadata] | None = None
) -> OlderStreamReader:
    """Return the reader for this Spark."""
    return (TxlogStreamReader if HAS_LIMITS else OlderStreamReader)(options, schema, known)


class OlderStreamReader(DataSourceStreamReader):
    """A streaming read before Spark 4.2. `read` runs on the executors, everything else on the driver's side."""

    def __init__(
        self, options: Mapping[str, str], schema: StructType, known: Mapping[str, TopicMetadata] | None = None
    ) -> None:
        self._options = options
        self._schema = schema
        self._known = known
        self._opened: StreamSource | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  Spark's name
        """Return a constant; the end of the first batch contains where the query begins. Raises errors of wrong options
        and stores."""
        return self._source().initial()

    @plain_errors
    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802  Spark's name
        """Return where the next batch ends, without a limit; the end of the last one if there is nothing to read."""
        return dict(self._source().latest_after_plan())

    @plain_errors
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the batch as runs of pieces. Raises OffsetOutOfRangeError, SchemaMismatchError."""
        return [InputPartition(tasks) for tasks in self._source().plan(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one input partition, in the order of offsets within each topic partition."""
        return read_input(partition, self._schema, parse_stream_options(self._options))

    @plain_errors
    def commit(self, end: dict[str, Any]) -> None:
        """Commit for `group.id` everything before `end`, because Spark has processed it."""
        self._source().commit(StreamOffset.from_json(end).ends)

    def stop(self) -> None:
        """Close the store. The next run of the query commits the last batch for the group."""
        if self._opened is not None:
            self._opened.close()

    @plain_errors
    def _source(self) -> StreamSource:
        if self._opened is None:
            options = parse_stream_options(self._options)
            runtime = options.open()
            try:
                self._opened = StreamSource(runtime, options, self._schema, self._known)
            except BaseException:
                runtime.close()
                raise
        return self._opened


class TxlogStreamReader(OlderStreamReader, SupportsTriggerAvailableNow):
    """The same from Spark 4.2 on, with limits, and with a report of the lag."""

    @plain_errors
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  Spark's name
        """Stop the query at the present ends of the log."""
        self._source().stop_at_what_is_there()

    @plain_errors
    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  Spark's name
        """Tell Spark whether there are limits. At Trigger.Once Spark asks for everything, whatever the options are.

        Spark cannot express both limits together, so `latestOffset` uses the options instead.
        """
        options = parse_stream_options(self._options)
        if (at_most := options[table.MAX_OFFSETS_PER_TRIGGER]) is not None:
            return ReadMaxRows(at_most)
        if (at_least := options[table.MIN_OFFSETS_PER_TRIGGER]) is not None:
            return ReadMinRows(at_least)
        return ReadAllAvailable()

    @plain_errors
    def latestOffset(  # type: ignore[override]  # noqa: N802  Spark's name
        self, start: dict[str, Any], limit: ReadLimit
    ) -> dict[str, Any]:
        """Return where a batch that begins at `start` ends; `start` itself if there is nothing to read."""
        return dict(self._source().latest(start, limited=not isinstance(limit, ReadAllAvailable)))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802  Spark's name
        """Return the ends of the log, lag and loss for the query's progress, without a request."""
        return None if self._opened is None else self._opened.report()
