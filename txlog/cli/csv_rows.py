"""How are rows read from CSV?

The file is cut into blocks of whole rows, which pyarrow parses. pyarrow's own reader of streams would read ahead in a
thread, which can end the program with an abort, and would accept a file that ends inside a quote. It would also change
numbers that a float cannot hold.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from txlog.cli.rows import BASE64_CELL, BOM, decode_value
from txlog.core.records import SchemaField
from txlog.core.schema import CHILD_NAMES, NUMBERS, describe, range_left
from txlog.errors import SchemaMismatchError
from txlog.text import shorten

_BLOCK_BYTES = 1 << 20
_MAX_ROW_BYTES = 1 << 26
_QUOTED = re.compile(rb'"(?<=[,\r\n]")[^"]*(?:""[^"]*)*("?)')
"""A cell in quotes, without its end if the bytes end first. As in pyarrow, only a quote that begins a cell counts."""
_NAMES = re.compile(rb'(?:[^"\r\n]|"[^"]*"?)*')
_LINE = re.compile(rb"[^\r\n]*")
_AT_ROW = re.compile(r"(?:CSV column #(\d+): )?Row #(\d+): (.*)", re.DOTALL)
_VALUE = re.compile(r"CSV conversion error to (.+): invalid value '(.*)'", re.DOTALL)
_GZIP = b"\x1f\x8b"
_SPELLED = (*CHILD_NAMES, "struct", "binary")
"""Types whose cells are JSON or may be JSON."""


def csv_batches(
    stream: BinaryIO, fields: Sequence[SchemaField], schema: pa.Schema, where: str
) -> Iterator[pa.RecordBatch]:
    """Yield the rows. Names may be there twice. Raises SchemaMismatchError, ArrowInvalid."""
    reader = _Reader(fields, schema, where)
    size, rest, ended, started = _BLOCK_BYTES, b"", False, False
    while not ended:
        block = stream.read(size)
        ended = not block
        if not started:
            if block.startswith(_GZIP):
                raise SchemaMismatchError(f"{where}: it is compressed with gzip. hint: decompress it first")
            block, started = block.removeprefix(BOM), True
        rest += block
        end, is_open = end_of_rows(rest)
        if ended and not is_open:
            end = len(rest)
        if end or (ended and reader.names is None and not is_open):
            yield from reader.parse(rest[:end])
            rest, size = rest[end:], _BLOCK_BYTES
        elif len(rest) > _MAX_ROW_BYTES:
            raise SchemaMismatchError(
                f"{where}: row {reader.rows + 1} is longer than {_MAX_ROW_BYTES} bytes. "
                "hint: look for a quote that is not closed"
            )
        else:
            size = max(size, len(rest))  # so that a long row is not searched again and again
    if rest:
        raise SchemaMismatchError(
            f"{where}: row {reader.rows + 1}: it ends inside a quote. hint: the file may be cut off; or close the quote"
        )


def _check_names(names: bytes, where: str) -> None:
    """Raise SchemaMismatchError if the line with the names of the columns is not text."""
    try:
        names.decode()
    except UnicodeDecodeError as error:
        raise SchemaMismatchError(
            f"{where}: the line with the names of the columns is not UTF-8 ({error.reason}). "
            "hint: convert the file to UTF-8"
        ) from None


def end_of_rows(data: bytes) -> tuple[int, bool]:
    """Return where the last whole row in `data` ends, and whether `data` ends in a cell whose quote is not closed.

    `data` begins with a row.
    """
    text = b"\n" + data
    cells = list(_QUOTED.finditer(text)) if b'"' in data else []
    end = len(text)
    for cell in reversed(cells):
        if (found := _line_end(text, cell.end(), end)) > 0:
            return found - 1, not cells[-1][1]
        end = cell.start()
    return max(_line_end(text, 1, end) - 1, 0), bool(cells) and not cells[-1][1]


def _line_end(text: bytes, start: int, end: int) -> int:
    """Return the position after the last line end in a part of `text`; 0 if there is no line end."""
    # A carriage return at the end may be half of a line end.
    return text.rfind(b"\n", start, end) + 1 or text.rfind(b"\r", start, min(end, len(text) - 1)) + 1


class _Reader:
    """Parse blocks of whole rows, the first of which begins with the names of the columns."""

    def __init__(self, fields: Sequence[SchemaField], schema: pa.Schema, where: str) -> None:
        self.rows = 0
        """How many rows were parsed."""
        self.names: list[str] | None = None
        self._fields = {field.name: field for field in fields if field.type in (*_SPELLED, "float32", "float64")}
        self._schema = schema
        self._where = where
        self._ignore_empty_lines = True
        self._types = {field.name: field.type for field in schema}
        self._types |= {field.name: pa.string() for field in self._fields.values() if field.type != "binary"}

    def parse(self, block: bytes) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a block. Raises SchemaMismatchError, ArrowInvalid."""
        if self.names is not None and self._ignore_empty_lines and not block.strip(b"\r\n"):
            return
        if self.names is None:
            # Names with line ends are in quotes.
            _check_names(_NAMES.match(block)[0], self._where)  # type: ignore[index]
            # In an input of one column an empty line is a null.
            first = _LINE.match(_QUOTED.sub(b"x", b"\n" + block), 1)[0]  # type: ignore[index]
            self._ignore_empty_lines = not first or b"," in first
        # pyarrow skips these bytes at the beginning, but here they belong to a cell.
        data = BOM + block if block.startswith(BOM) else block
        parsing = csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=self._ignore_empty_lines)
        try:
            table = csv.read_csv(
                cast(Any, pa.BufferReader(data)),
                # Errors name the row only if one thread reads.
                read_options=csv.ReadOptions(use_threads=False, block_size=len(data) + 1, column_names=self.names),
                parse_options=parsing,
                convert_options=csv.ConvertOptions(
                    column_types=self._types,
                    null_values=[""],
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=False,
                ),
            )
        except pa.ArrowInvalid as error:
            found = _AT_ROW.search(str(error))
            if found is None:
                raise
            # The line with the names is row 1, but it is only in the first block.
            place, column, what = self._place(int(found[2]) - (2 if self.names is None else 1)), "", found[3]
            if found[1]:
                line = _NAMES.match(data.lstrip(b"\r\n"))[0] + b"\n"  # type: ignore[index]
                names = self.names or csv.read_csv(cast(Any, pa.BufferReader(line)), parse_options=parsing).column_names
                column = f"column {names[int(found[1])]!r}: "
            if value := _VALUE.fullmatch(what):
                what = f"expected {value[1]}, found {shorten(value[2], 100)!r}"
            elif what.startswith("Expected"):  # another number of cells
                what += ". hint: separate cells by commas, and quote a cell with a comma"
            raise SchemaMismatchError(f"{place}: {column}{what}") from None
        if self.names is None:
            self._check_first_line(table.column_names)
        self.names = table.column_names
        for batch in table.to_batches():
            yield self._converted(batch)
            self.rows += batch.num_rows

    def _check_first_line(self, names: Sequence[str]) -> None:
        known = self._schema.names
        # Another separator makes one name of several.
        is_torn = re.search(r"[;\t|]", "".join(set(names).difference(known)))
        if is_torn or {name.lower() for name in names}.isdisjoint(map(str.lower, known)):
            raise SchemaMismatchError(
                f"{self._where}: its first line does not name columns of the topic, which has "
                f"{shorten(', '.join(known), 200)}: found {shorten(','.join(names), 100)!r}. "
                "hint: name the columns in the first line, and separate all cells by commas"
            )

    def _converted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = [
            self._column(batch.column(at), self._fields[name]) if name in self._fields else batch.column(at)
            for at, name in enumerate(batch.schema.names)
        ]
        return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)

    def _column(self, cells: Any, field: SchemaField) -> Any:
        if field.type in NUMBERS:
            return self._floats(cells, field)
        values = [
            cell
            if cell is None or (isinstance(cell, bytes) and not cell.startswith(BASE64_CELL))
            else decode_value(cell, field, self._place(at))
            for at, cell in enumerate(cells.to_pylist())
        ]
        return pa.array(values, self._schema.field(field.name).type)

    def _floats(self, cells: Any, field: SchemaField) -> Any:
        """Return texts as floats, by the rule of JSON: an integer is not rounded, and a number not made infinite."""
        target: Any = self._schema.field(field.name).type
        cells = pc.utf8_trim(cells, " \t")
        try:
            found = cells.cast(target)
        except pa.ArrowInvalid:
            at = next(at for at, cell in enumerate(cells) if not _is_float(cell, target))
            raise self._mismatch(cells[at].as_py(), field, at) from None
        # All smaller integers are exact.
        large = pc.greater_equal(pc.abs(found), pa.scalar(NUMBERS[field.type][1], target))
        for at in pc.indices_nonzero(large).to_pylist():
            text = cells[at].as_py()
            digits = text.lstrip("+-")
            if digits.lower() in ("inf", "infinity"):
                continue
            is_infinite = math.isinf(found[at].as_py())
            number = 10**400 if is_infinite else int(digits.lstrip("0")) if digits.isdigit() else 0
            range_ = range_left(field.type, number)
            if range_ is not None:
                raise self._mismatch(text, field, at, f" ({range_})")
        return found

    def _mismatch(self, text: str, field: SchemaField, at: int, needs: str = "") -> SchemaMismatchError:
        return SchemaMismatchError(
            f"{self._place(at)}: column {field.name!r}: expected {describe(field)}{needs}, found {shorten(text, 100)!r}"
        )

    def _place(self, at: int) -> str:
        return f"{self._where}: row {self.rows + at + 1}"


def _is_float(cell: Any, target: Any) -> bool:
    try:
        cell.cast(target)
    except pa.ArrowInvalid:
        return False
    return True
