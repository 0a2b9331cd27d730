"""How are rows of one file of the log read for a publication, and copied to a file for the tables alone?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from txlog.client.reading import written_schemas
from txlog.client.session.runtime import Runtime
from txlog.core import names
from txlog.core.fetch_plan import BY_COLUMN, FilePiece, RowRange
from txlog.core.names import TopicPartition
from txlog.core.publication import Copy, ShownFile
from txlog.core.records import DataFile, TopicMetadata
from txlog.core.records.publications import PublishedFile, RowRun

if TYPE_CHECKING:
    import pyarrow as pa


def offsets_of(runtime: Runtime, topic: TopicMetadata, shown: ShownFile) -> Sequence[int]:
    """Return the offset of each row of a file, as the rows lie in it."""
    from txlog.core.schema import OFFSET_COLUMN

    return read_columns(runtime, topic, shown, ()).column(OFFSET_COLUMN).to_numpy()  # type: ignore[return-value]


def read_columns(runtime: Runtime, topic: TopicMetadata, shown: ShownFile, columns: Sequence[str]) -> pa.Table:
    """Return columns of all rows of a file with `_offset` and `_timestamp`, as they lie in it."""
    import pyarrow as pa

    return pa.Table.from_batches(_read(runtime, topic, shown, (RowRun(0, shown.file.rows),), columns))


def write_copy(runtime: Runtime, topic: TopicMetadata, copy: Copy, number: int) -> PublishedFile:
    """Write the rows of a copy to a new file of publication `number`, with the topic's columns. Return the file."""
    from txlog.storage.parquet_writer import write_rows_file

    file = write_rows_file(
        runtime.store,
        topic.topic,
        names.published_copy_path(number, runtime.ids.new_id()),
        _read(runtime, topic, copy.shown, copy.rows, columns=None),
        topic.schema,
        compression=runtime.settings.row_config({}, topic).compression_type,
        offset_column=True,
    )
    return PublishedFile(
        **file.file_fields,
        partition=copy.shown.partition,
        schema_id=topic.schema_id,
        source=copy.shown.file.path,
        source_rows=copy.rows,
        since=number,
        group=number,
    )


def _read(
    runtime: Runtime,
    topic: TopicMetadata,
    of: ShownFile,
    wanted: Sequence[RowRun],
    columns: Sequence[str] | None,
) -> Iterator[pa.RecordBatch]:
    """Yield rows of a file with `_offset` and `_timestamp`, as they lie in it."""
    from txlog.client import rows

    file, batch = of.file, of.batch
    piece = FilePiece(
        topic_partition=TopicPartition(topic.topic, of.partition),
        # Without the fields of an index: its rows may be sorted, and a reader would put them in the order of offsets.
        file=DataFile(**file.file_fields),
        schema_id=of.schema_id,
        ranges=tuple(
            RowRange(
                first_row=run.first_row,
                rows=run.end_row - run.first_row,
                base_offset=BY_COLUMN if batch is None else batch.base_offset + run.first_row,
                timestamp=BY_COLUMN if batch is None else batch.timestamp,
            )
            for run in wanted
        ),
        offset_column=batch is None,
        start=0,
        end=names.MAX_OFFSET,
    )
    written = written_schemas(runtime, topic, [piece])
    return rows.read_pieces(runtime.store, [piece], topic.schema, columns, written=written)
