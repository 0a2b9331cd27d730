"""How does DuckDB read only those columns and files of a topic that a query needs?

DuckDB asks a pyarrow Dataset for a scanner, with the columns of the query and the part of its condition that Arrow
evaluates as DuckDB does. It does not apply that part again. So the scan applies it to every row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from txlog.client.tables.table import TopicTable
from txlog.errors import SchemaMismatchError


class QueryTable(ds.InMemoryDataset):
    """A topic of a snapshot, for DuckDB's `register`. Each `scanner` reads the same rows."""

    def __init__(
        self,
        table: TopicTable,
        progress: Callable[[object, int, int], None] | None = None,
        *,
        latest: bool = False,
    ) -> None:
        """`progress` gets the topic and the number of rows that were read, from any thread. `latest`: only the newest
        row of each key."""
        super().__init__(table.schema.empty_table())  # type: ignore[call-arg]
        self.error: Exception | None = None
        """The first error of a scan. DuckDB raises an error of its own instead."""
        self._table = table
        self._read = table.latest if latest else table.scan
        self._progress = progress
        self._rows = 0

    def scanner(  # type: ignore[override]
        self,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,  # noqa: A002
        **_: Any,
    ) -> _Scanner:
        """Return the rows for which `filter` is true."""
        names = self.schema.names if columns is None else list(columns)
        try:
            reader = self._read(names, filter)
            expected = pa.schema([self.schema.field(name) for name in names])
            if not reader.schema.equals(expected):
                raise SchemaMismatchError(
                    f"topic {self._table.name!r}: its columns have changed during the query: expected "
                    f"{expected.names}, found {reader.schema.names}, with other types. "
                    "hint: run the query again"
                )
        except Exception as error:
            self.error = self.error or error
            raise
        return _Scanner(pa.RecordBatchReader.from_batches(reader.schema, self._watched(reader)))

    def _watched(self, reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        try:
            for batch in reader:
                self._rows += batch.num_rows
                if self._progress is not None:
                    self._progress(self._table.name, self._rows, 0)
                yield batch
        except Exception as error:
            self.error = self.error or error
            raise


class _Scanner:
    """What DuckDB uses of a pyarrow Scanner."""

    def __init__(self, reader: pa.RecordBatchReader) -> None:
        self._reader = reader

    def to_reader(self) -> pa.RecordBatchReader:
        return self._reader
