"""In which formats are rows written to the standard output?

JSON lines are those of `txlog.cli.rows`. In CSV a null is empty and an empty text is `""`. A list, struct or map is
JSON. Binary is text if it is UTF-8, otherwise `{"base64": "…"}`.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from txlog.cli.interrupts import Interrupts
from txlog.cli.lines import write_bytes, write_lines
from txlog.cli.rows import BASE64_CELL, base64_value, encode_row, json_value
from txlog.errors import InvalidRequestError

if TYPE_CHECKING:
    import pyarrow as pa


_GROUP_BYTES = 64 * 1024 * 1024
"""How many bytes of rows are written to a Parquet file together, as one row group."""


class FileFormat(StrEnum):
    """The values of `--format`."""

    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"
    ARROW = "arrow"


class RowOutput(Protocol):
    """Writes rows to the standard output."""

    is_complete: bool
    """Whether the rows can be read before `close`."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Write rows. Raises Interrupted if the reader takes nothing."""

    def close(self) -> None:
        """Write the end."""


def row_output(
    kind: FileFormat, schema: pa.Schema | None, interrupts: Interrupts, option: str = "--format"
) -> RowOutput:
    """Return an output in this format. `schema` has the columns of all batches. JSON needs no schema. `option`
    chose the format.

    Raises InvalidRequestError for bytes at a terminal.
    """
    if kind is FileFormat.JSON:
        return _JsonLines(interrupts)
    assert schema is not None
    if kind is not FileFormat.CSV and sys.stdout.isatty():
        raise InvalidRequestError(f"{option} {kind} writes bytes. hint: send them to a file, as in > rows.{kind}")
    return _ArrowOutput(kind, schema, interrupts)


class _JsonLines:
    is_complete = True

    def __init__(self, interrupts: Interrupts) -> None:
        self._interrupts = interrupts

    def write(self, batch: pa.RecordBatch) -> None:
        rows = batch.to_pylist()
        for field in batch.schema:
            if _has_maps(field.type):
                for row in rows:
                    row[field.name] = _with_empty_maps(row[field.name], field.type)
        write_lines([f"{encode_row(row)}\n" for row in rows], sys.stdout, self._interrupts)

    def close(self) -> None:
        """Do nothing: a line is complete by itself."""


class _ArrowOutput:
    """CSV, Parquet and Arrow's stream, as pyarrow writes them."""

    def __init__(self, kind: FileFormat, schema: pa.Schema, interrupts: Interrupts) -> None:
        self.is_complete = kind is FileFormat.CSV
        self._is_csv = kind is FileFormat.CSV
        self._interrupts = interrupts
        self._group_bytes = _GROUP_BYTES if kind is FileFormat.PARQUET else 0
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self._sink = _Sink()
        self._writer = _writer(kind, self._sink, _flat_schema(schema) if self._is_csv else schema)
        self._drain()

    def write(self, batch: pa.RecordBatch) -> None:
        self._waiting.append(_flat(batch) if self._is_csv else batch)
        self._waiting_bytes += batch.nbytes
        if self._waiting_bytes >= self._group_bytes:
            self._write_waiting()

    def _write_waiting(self) -> None:
        if self._waiting:
            import pyarrow as pa

            self._writer.write_table(pa.Table.from_batches(self._waiting))
            self._waiting, self._waiting_bytes = [], 0
            self._drain()

    def close(self) -> None:
        self._write_waiting()
        self._writer.close()
        self._drain()

    def _drain(self) -> None:
        write_bytes(self._sink.take(), sys.stdout, self._interrupts)


class _Sink:
    """Collects what pyarrow writes. So a signal never comes in the middle of its work."""

    closed = False

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def write(self, data: Any) -> int:
        self._parts.append(bytes(data))
        self._size += len(self._parts[-1])
        return len(self._parts[-1])

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:
        """Do nothing: `take` returns everything."""

    def close(self) -> None:
        """Do nothing: the last bytes are still to be taken."""

    def take(self) -> bytes:
        """Return the bytes since the last call."""
        taken, self._parts = b"".join(self._parts), []
        return taken


def _writer(kind: FileFormat, sink: Any, schema: pa.Schema) -> Any:
    if kind is FileFormat.PARQUET:
        from txlog.storage.parquet_exchange import parquet_writer

        return parquet_writer(sink, schema)
    import pyarrow as pa
    from pyarrow import csv

    return csv.CSVWriter(sink, schema) if kind is FileFormat.CSV else pa.ipc.new_stream(sink, schema)


def _flat_schema(schema: pa.Schema) -> pa.Schema:
    import pyarrow as pa

    return pa.schema([pa.field(each.name, pa.string()) if _is_spelled(each.type) else each for each in schema])


def _is_spelled(arrow: Any) -> bool:
    """Return whether txlog spells values of this type as text itself, because pyarrow cannot write all of them."""
    import pyarrow as pa

    return pa.types.is_nested(arrow) or pa.types.is_binary(arrow)


def _flat(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows with nested values and bytes as text."""
    import pyarrow as pa

    columns: list[Any] = [
        pa.array([None if value is None else _spell(value, column.type) for value in column.to_pylist()], pa.string())
        if _is_spelled(column.type)
        else column
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_flat_schema(batch.schema))


def _has_maps(arrow: Any) -> bool:
    import pyarrow as pa

    return pa.types.is_map(arrow) or (
        pa.types.is_nested(arrow) and any(_has_maps(arrow.field(at).type) for at in range(arrow.num_fields))
    )


def _with_empty_maps(value: Any, arrow: Any) -> Any:
    """Return a value with each empty map as a dictionary. pyarrow gives an empty list, as for a list."""
    import pyarrow as pa

    if value is None or not pa.types.is_nested(arrow):
        return value
    kind: Any = arrow
    if pa.types.is_map(arrow):
        key, item = arrow.key_type, arrow.item_type
        return [(_with_empty_maps(k, key), _with_empty_maps(v, item)) for k, v in value] or {}
    if pa.types.is_struct(arrow):
        return {field.name: _with_empty_maps(value[field.name], field.type) for field in arrow}
    return [_with_empty_maps(item, kind.value_type) for item in value]


def _spell(value: Any, arrow: Any) -> str:
    looks_like_base64 = isinstance(value, bytes) and value.startswith(BASE64_CELL)
    text = base64_value(value) if looks_like_base64 else json_value(_with_empty_maps(value, arrow))
    # Text is bytes that were UTF-8. All other values of JSON are written as JSON.
    return text if isinstance(text, str) else msgspec.json.encode(text).decode()
