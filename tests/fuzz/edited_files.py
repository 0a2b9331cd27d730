"""Parquet files with edited bytes. `python -m tests.fuzz.edited_files` opens those that its input names, in a separate
process.

pyarrow can end the process on a hostile footer (docs/reliability.md). A test then sees one answer, and goes on.
"""

from __future__ import annotations

import hashlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterable
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from lab.testing.damage import overwrite
from tests.maintenance import damage as d
from txlog.core import envelope, records
from txlog.core.fetch_plan import BY_COLUMN, RowRange
from txlog.core.records import DataFile
from txlog.errors import TxlogError
from txlog.storage.memory import MemoryObjectStore
from txlog.storage.parquet_file import TRAILER_BYTES, describe_file, verify_file
from txlog.storage.parquet_reader import read_ranges
from txlog.storage.parquet_statistics import row_groups

GOLDEN = d.golden()
FILES = sorted(path for path in GOLDEN if path.endswith(".parquet"))
FIELDS = envelope.decode(GOLDEN["orders/topic.00000000000000000001.json"], records.TopicMetadata, "p")[0].schema
Edits = Iterable[tuple[int, int]]


class Answer(NamedTuple):
    """What opening a file gave: `rows`, `error` (one of txlog's), `other` (another exception), or `death`."""

    end: str
    text: str = ""


SHORT_BOUND = Answer("death", "Unexpected end of stream in _column_bounds")
"""The only known way to end a process by a footer: a bound in it is shorter than its type."""


def opened(path: str, edits: Edits) -> Answer:
    """Describe, verify and read a file of the golden store after it got other bytes at these places."""
    data = bytearray(GOLDEN[path])
    for at, byte in edits:
        data[at % (len(data) - 8)] = byte
    store = MemoryObjectStore("fuzz")
    topic, _, relative = path.partition("/")
    overwrite(store, path, bytes(data))
    is_segment = relative.count("/") == 1
    try:
        file = _indexed(path, bytes(data)) if is_segment else describe_file(store, topic, relative, FIELDS)
        if file.rows > 10**6:
            return Answer("rows")
        verify_file(store, topic, file)
        base = BY_COLUMN if is_segment else 0
        wanted = RowRange(first_row=0, rows=file.rows, base_offset=base, timestamp=0)
        for judged in ((), FIELDS):
            for _ in read_ranges(store, topic, file, [wanted], FIELDS, judged=judged, may_match=lambda *_: True):
                pass
    except TxlogError as error:
        return Answer("error", str(error))
    except Exception as error:
        return Answer("other", repr(error))
    return Answer("rows")


def _indexed(path: str, data: bytes) -> DataFile:
    """Return what an index says of a file of a segment, whose offsets are separate columns."""
    groups = row_groups(pq.ParquetFile(pa.BufferReader(GOLDEN[path])).metadata)
    footer = data[-TRAILER_BYTES - int.from_bytes(data[-TRAILER_BYTES:-4], "little") :]
    return DataFile(
        path=path.partition("/")[2], rows=sum(groups), bytes=len(data), digest=None,
        footer_digest=hashlib.sha256(footer).hexdigest(), row_groups=groups, statistics={},
    )  # fmt: skip


class Opener:
    """A process that opens edited files. If one ends it, the next file gets a new process."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def open(self, path: str, edits: Edits) -> Answer:
        """Return what `opened` returns there, or the death of the process."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-X", "faulthandler", "-W", "ignore", "-m", __spec__.name],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
        process: Any = self._process
        process.stdin.write(json.dumps([path, list(edits)]) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        if line:
            return Answer(*json.loads(line))
        text = self.close()
        by = signal.Signals(-process.returncode).name if process.returncode < 0 else f"status {process.returncode}"
        known = by == "SIGABRT" and "what():  Unexpected end of stream" in text and "in _column_bounds" in text
        return SHORT_BOUND if known else Answer("death", f"{by}: {text[-3000:]}")

    def close(self) -> str:
        """End the process. Return what it wrote to stderr."""
        if self._process is None:
            return ""
        _, text = self._process.communicate()
        self._process = None
        return text


if __name__ == "__main__":
    for asked in sys.stdin:
        print(json.dumps(opened(*json.loads(asked))), flush=True)
