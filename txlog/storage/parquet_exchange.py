"""How are Parquet files of other programs read, and written for them? Rows in a store have their own files (W9)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from txlog.errors import InvalidRequestError


def parquet_writer(sink: Any, schema: pa.Schema) -> pq.ParquetWriter:
    """Return a writer of a file to `sink`. Its `close` writes the end of the file, and leaves `sink` open."""
    return pq.ParquetWriter(sink, schema, compression="zstd")


def parquet_rows(data: bytes, columns: Sequence[str]) -> list[dict[str, Any]]:
    """Return some columns of the file in `data`. What it raises is pyarrow's."""
    return pq.read_table(pa.BufferReader(data), columns=list(columns)).to_pylist()


def parquet_schema(path: str) -> pa.Schema:
    """Return the columns of a file. Raises InvalidRequestError, OSError."""
    try:
        return pq.read_schema(path)
    except pa.ArrowInvalid as error:
        raise InvalidRequestError(f"{path} cannot be read as a Parquet file: {error}") from error


def parquet_batches(source: Any, where: str, rows: int) -> tuple[int, Iterator[pa.RecordBatch]]:
    """Return the number of rows of a file, and the rows in batches of at most `rows`. Raises InvalidRequestError."""
    try:
        file = pq.ParquetFile(source)
    except (pa.ArrowInvalid, OSError) as error:
        raise InvalidRequestError(f"{where} cannot be read as a Parquet file: {error}") from error
    return file.metadata.num_rows, file.iter_batches(batch_size=rows)
