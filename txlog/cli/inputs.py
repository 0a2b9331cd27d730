"""Where do the rows of `txlog produce` come from? From the standard input or from files, in one of four formats.

Lines of JSON are read as they come. The other formats are read by pyarrow, in batches. A cell of CSV without a value is
null, and an empty text is `""`. A list, struct or map is JSON, and bytes may be `{"base64": "…"}` (see
`txlog.cli.rows`).
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from txlog.cli.formats import FileFormat
from txlog.cli.interrupts import Interrupted, Interrupts
from txlog.cli.lines import Lines, descriptor_of
from txlog.cli.pipes import Pipe, RowPipe, beside
from txlog.cli.rows import BOM, decode_rows
from txlog.errors import InvalidRequestError, SchemaMismatchError
from txlog.text import nearest

if TYPE_CHECKING:
    import pyarrow as pa

    from txlog.client.store import TopicDescription
    from txlog.clock import Clock

STDIN = "-"
_LINGER_MS = 1000
"""How long a line from a pipe waits for further lines, to be sent with them."""
_TYPED_LINGER_MS = 50
"""The same at a terminal: just long enough to paste many lines."""
_SUFFIXES = {
    **dict.fromkeys((".json", ".jsonl", ".ndjson"), FileFormat.JSON),
    ".csv": FileFormat.CSV,
    **dict.fromkeys((".parquet", ".pq"), FileFormat.PARQUET),
    **dict.fromkeys((".arrow", ".arrows", ".feather"), FileFormat.ARROW),
}
_ARROW_FILE = b"ARROW1"
"""How a file of Arrow's file format begins. A stream does not begin so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Some rows, and why the input ends after them, if it does."""

    rows: list[dict[str, Any]] | pa.RecordBatch
    count: int
    error: SchemaMismatchError | None = None
    place: str = ""
    """Where the error is, as in `line 7`."""
    pauses: bool = False
    """Whether no further row is there yet."""


class Inputs:
    """The rows of all files, one file after the other. A signal ends them as the end of a file does."""

    def __init__(
        self,
        files: Sequence[str],
        file_format: FileFormat | None,
        topic: TopicDescription,
        *,
        batch: int,
        clock: Clock,
        interrupts: Interrupts,
        show: Callable[[object, int, int], None] | None,
    ) -> None:
        """`file_format` None: each file's name tells. Raises InvalidRequestError for a file that does not exist."""
        self._files = [(name, _format_of(name, file_format)) for name in files or (STDIN,)]
        self._topic = topic
        self._batch = batch
        self._clock = clock
        self._interrupts = interrupts
        self._show = show
        self.cut_off = ""
        """What a signal ended in its middle, if anything."""

    @property
    def is_typed(self) -> bool:
        """Whether a person types lines."""
        return (STDIN, FileFormat.JSON) in self._files and sys.stdin.isatty()

    def __iter__(self) -> Generator[Chunk, None, None]:
        """Yield the rows. Raises InvalidRequestError for a file that cannot be read."""
        for name, kind in self._files:
            try:
                yield from self._file(name, kind)
            except Interrupted as error:
                if error.torn:
                    raise
            if self._interrupts.received:
                return

    def _file(self, name: str, kind: FileFormat) -> Iterator[Chunk]:
        done = 0
        with ExitStack() as stack:
            stream = sys.stdin.buffer if name == STDIN else stack.enter_context(self._open(name))
            pipe = self._pipe(stream, kind)
            if pipe is not None:
                stack.callback(self._ended, pipe)
            if kind is FileFormat.JSON:
                total, chunks = 0, self._lines(name, stream)
            else:
                total, batches = self._batches(name, kind, stream, pipe)
                chunks = (Chunk(rows=batch, count=batch.num_rows) for batch in batches)
            # Lines and pipes end by themselves, after the rows that were read.
            ends_itself = kind is FileFormat.JSON or (pipe is not None and kind is not FileFormat.PARQUET)
            for chunk in chunks:
                done += chunk.count
                yield chunk
                if pipe is not None:
                    pipe.used()
                if self._show is not None:
                    self._show("standard input" if name == STDIN else name, done, total)
                if self._interrupts.received and not ends_itself:
                    return

    def _open(self, name: str) -> BinaryIO:
        try:
            # A named pipe waits here for the program that writes to it.
            with self._interrupts.at_once():
                return Path(name).open("rb")
        except OSError as error:
            raise InvalidRequestError(f"--from {name}: {error.strerror or error}") from None

    def _pipe(self, stream: BinaryIO, kind: FileFormat) -> Pipe | None:
        """Return the stream as a pipe, or None if it is a file, or if this class waits for its lines itself."""
        descriptor = None if kind is FileFormat.JSON else descriptor_of(stream)
        if descriptor is None or stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        return (RowPipe if kind is FileFormat.CSV else Pipe)(descriptor, self._interrupts)

    def _ended(self, pipe: Pipe) -> None:
        pipe.end()
        if pipe.cut_off:
            self.cut_off = "input"

    def _lines(self, name: str, stream: BinaryIO) -> Iterator[Chunk]:
        is_typed = name == STDIN and sys.stdin.isatty()
        lines = Lines(
            stream,
            chunk=self._batch,
            linger_ms=_TYPED_LINGER_MS if is_typed else _LINGER_MS,
            clock=self._clock,
            interrupts=self._interrupts,
        )
        source = "" if name == STDIN else f"{name}, "
        first = 1
        for chunk in lines:
            if first == 1:
                chunk[0] = chunk[0].removeprefix(BOM)
            rows, error = self._decode(chunk, first, source)
            first += len(chunk)
            place = "" if error is None else source + str(error).removeprefix(source).partition(":")[0]
            yield Chunk(rows=rows, count=len(rows), error=error, place=place, pauses=len(chunk) < lines.chunk)
        if lines.cut_off:
            self.cut_off = "a line"

    def _decode(
        self, lines: list[bytes], first: int, source: str
    ) -> tuple[list[dict[str, Any]], SchemaMismatchError | None]:
        """Decode lines up to the first one that is not a row. Return the rows, and the error of that line."""
        rows: list[dict[str, Any]] = []
        try:
            for row in decode_rows(lines, self._topic.fields, self._topic.name, first=first, source=source):
                rows.append(row)  # noqa: PERF402 - those before the bad one are wanted
        except SchemaMismatchError as error:
            return rows, error
        return rows, None

    def _batches(
        self, name: str, kind: FileFormat, stream: BinaryIO, pipe: Pipe | None
    ) -> tuple[int, Iterator[pa.RecordBatch]]:
        """Return the number of rows, or 0 if it is not known, and the rows."""
        import pyarrow as pa

        where = "standard input" if name == STDIN else name
        source: Any = stream if pipe is None else pipe
        total = 0
        try:
            if kind is FileFormat.PARQUET:
                from txlog.storage.parquet_exchange import parquet_batches

                # The end of a file lists where its rows are, so a pipe is read to its end first.
                whole = name if name != STDIN and stream.seekable() else pa.BufferReader(source.read())
                total, batches = parquet_batches(whole, where, self._batch)
            elif kind is FileFormat.ARROW:
                batches = _arrow(name, source)
            else:
                from txlog.cli.csv_rows import csv_batches

                batches = csv_batches(source, self._topic.fields, self._topic.schema, where)
                if pipe is not None:
                    batches = beside(batches, pipe)
        except (pa.ArrowInvalid, OSError) as error:
            raise InvalidRequestError(f"{where} cannot be read as {kind}: {error}") from error
        return total, _checked(batches, where)


def _arrow(name: str, stream: Any) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    is_file = False
    if name != STDIN and stream.seekable():
        is_file = stream.read(len(_ARROW_FILE)) == _ARROW_FILE
        stream.seek(0)
    if is_file:
        file = pa.ipc.open_file(stream)
        return (file.get_batch(number) for number in range(file.num_record_batches))
    return iter(pa.ipc.open_stream(stream))


def _checked(batches: Iterator[pa.RecordBatch], where: str) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    try:
        yield from batches
    except (pa.ArrowInvalid, OSError) as error:
        raise SchemaMismatchError(f"{where}: {error}") from error


def _format_of(name: str, file_format: FileFormat | None) -> FileFormat:
    if name != STDIN and (not Path(name).exists() or Path(name).is_dir()):
        raise InvalidRequestError(
            f"--from {name}: this {'is a folder' if Path(name).is_dir() else 'file does not exist'}"
        )
    if file_format is not None:
        return file_format
    if name == STDIN:
        return FileFormat.JSON
    suffix = Path(name).suffix.lower()
    if suffix not in _SUFFIXES:
        raise InvalidRequestError(
            f"--from {name}: the format of {suffix or 'a name without a suffix'!r} is not "
            f"known.{nearest(suffix, _SUFFIXES)} "
            "hint: name it with --format json|csv|parquet|arrow"
        )
    return _SUFFIXES[suffix]
