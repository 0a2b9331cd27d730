"""Small objects that need much memory. `python -m tests.fuzz.bombs [NAME…]` opens them with little memory to spare."""

from __future__ import annotations

import json
import os
import resource
import struct
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq

from lab.testing.damage import overwrite
from tests.fuzz.hostile import closed, sealed
from txlog.core import envelope, record_checks
from txlog.core.fetch_plan import RowRange
from txlog.core.names import TopicPartition
from txlog.core.records import SchemaField, Snapshot
from txlog.errors import TxlogError
from txlog.storage.inline_rows import read_inline_rows
from txlog.storage.memory import MemoryObjectStore
from txlog.storage.parquet_file import describe_file
from txlog.storage.parquet_reader import read_ranges

SPARE_BYTES = 256 * 2**20
"""Memory that a bomb may take beyond the memory in use before it is opened."""
BOMB_BYTES = 3 * SPARE_BYTES
TP = TopicPartition("orders", 0)
PATH = "orders/0/00000000000000000000.batch"
NUMBERS = (SchemaField(id=1, name="id", type="int64"),)
LISTS = (SchemaField(id=1, name="id", type="list", fields=(SchemaField(id=2, name="element", type="int64"),)),)
ID = {"PARQUET:field_id": "1"}


@dataclass(frozen=True, slots=True)
class Bomb:
    """How to make a bomb, in a separate process, and how a reader opens it."""

    make: Callable[[], bytes]
    open: Callable[[bytes], object]


BOMBS: dict[str, Bomb] = {}


def bomb(open_: Callable[[bytes], object]) -> Callable[[Callable[[], bytes]], None]:
    """Register the function that makes a bomb, under its name."""

    def register(make: Callable[[], bytes]) -> None:
        BOMBS[make.__name__] = Bomb(make, open_)

    return register


def record(rows: int, payload: bytes) -> bytes:
    """Return a commit record with that many inline rows."""
    fields = {
        "version": 1, "base_offset": 0, "records": rows, "kind": "data", "transactional": False, "timestamp": 0,
        "segment_base": 0,
        "payload_bytes": len(payload), "write_id": "0" * 32, "previous": "0" * 64,
    }  # fmt: skip
    return closed(fields, payload)


def rows_of(fields: tuple[SchemaField, ...]) -> Callable[[bytes], pa.RecordBatch]:
    """Return a function that reads all inline rows of a record."""

    def read(data: bytes) -> pa.RecordBatch:
        stored = record_checks.stored_record(data, TP, 0)
        wanted = RowRange(first_row=0, rows=stored.record.records, base_offset=0, timestamp=0)
        return read_inline_rows(stored.payload, wanted, fields, where=PATH)

    return read


def snapshot(data: bytes) -> object:
    return envelope.decode(data, Snapshot, PATH)


def rows_file(data: bytes) -> object:
    store = MemoryObjectStore("bombs")
    path = "0/rows/7-0-0123456789abcdef.parquet"
    overwrite(store, f"orders/{path}", data)
    fields = (SchemaField(id=1, name="id", type="binary"),)
    file = describe_file(store, "orders", path, fields)
    wanted = RowRange(first_row=0, rows=file.rows, base_offset=0, timestamp=0)
    return [batch.num_rows for batch in read_ranges(store, "orders", file, [wanted], fields)]


def stream(batch: pa.RecordBatch, compression: Literal["zstd"] | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression, allow_64bit=True)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def numbers(rows: int) -> bytes:
    schema = pa.schema([pa.field("id", pa.int64(), metadata=ID)])
    return stream(pa.record_batch([pa.array(range(rows), pa.int64())], schema=schema))


@bomb(rows_of(NUMBERS))
def many_rows() -> bytes:
    """A record that claims 2^60 rows."""
    return record(2**60, numbers(1))


@bomb(rows_of(NUMBERS))
def as_many_rows_as_a_count_can_say() -> bytes:
    return record(2**48, numbers(1))


@bomb(rows_of(NUMBERS))
def many_nulls() -> bytes:
    """Rows without buffers: a column of Arrow's null type needs none."""
    schema = pa.schema([pa.field("id", pa.null(), metadata=ID)])
    return record(2**33, stream(pa.record_batch([pa.nulls(2**33)], schema=schema)))


@bomb(rows_of(NUMBERS))
def many_hidden_nulls() -> bytes:
    """The record has one row, and the stream has 2^33."""
    schema = pa.schema([pa.field("id", pa.null(), metadata=ID)])
    return record(1, stream(pa.record_batch([pa.nulls(2**33)], schema=schema)))


@bomb(rows_of(NUMBERS))
def rows_without_columns() -> bytes:
    """A column that the topic does not have gives the number of rows, and has no buffers."""
    schema = pa.schema([pa.field("other", pa.null(), metadata={"PARQUET:field_id": "9"})])
    return record(2**33, stream(pa.record_batch([pa.nulls(2**33)], schema=schema)))


@bomb(rows_of(LISTS))
def nested_nulls() -> bytes:
    """Two lists of 2^30 nulls each."""
    kind = pa.list_(pa.field("element", pa.null(), metadata={"PARQUET:field_id": "2"}))
    lists = pa.ListArray.from_arrays(pa.array([0, 2**30, 2**31 - 1], pa.int32()), pa.nulls(2**31 - 1), type=kind)
    schema = pa.schema([pa.field("id", kind, metadata=ID)])
    return record(2, stream(pa.record_batch([lists], schema=schema)))


@bomb(rows_of(NUMBERS))
def compressed_stream() -> bytes:
    """An Arrow stream whose buffers are compressed: zeros, 16,000 to 1."""
    rows = BOMB_BYTES // 8
    schema = pa.schema([pa.field("id", pa.int64(), metadata=ID)])
    column = pa.Array.from_buffers(pa.int64(), rows, [None, pa.py_buffer(bytes(rows * 8))])
    return record(rows, stream(pa.record_batch([column], schema=schema), "zstd"))


@bomb(rows_of(NUMBERS))
def zstd_frame() -> bytes:
    """An Arrow stream of zeros in one frame, 30,000 to 1."""
    rows = BOMB_BYTES // 8
    schema = pa.schema([pa.field("id", pa.int64(), metadata=ID)])
    column = pa.Array.from_buffers(pa.int64(), rows, [None, pa.py_buffer(bytes(rows * 8))])
    return record(rows, pa.compress(stream(pa.record_batch([column], schema=schema)), codec="zstd", asbytes=True))


MORE = tuple(SchemaField(id=number, name=f"n{number}", type="int64") for number in range(1, 13))


@bomb(rows_of(MORE))
def rows_of_missing_columns() -> bytes:
    """A frame of 25 million bits. The topic has 11 columns that the rows lack."""
    rows = 25_000_000
    schema = pa.schema([pa.field("n1", pa.bool_(), metadata=ID)])
    bits = pa.record_batch([pa.nulls(rows, pa.bool_())], schema=schema)
    return record(rows, pa.compress(stream(bits), codec="zstd", asbytes=True))


@bomb(rows_of(NUMBERS))
def claimed_buffer() -> bytes:
    """A compressed stream with a buffer that claims 2^60 bytes."""
    schema = pa.schema([pa.field("id", pa.int64(), metadata=ID)])
    data = bytearray(stream(pa.record_batch([pa.array([7] * 1000, pa.int64())], schema=schema), "zstd"))
    at = data.index(struct.pack("<q", 8000))
    data[at : at + 8] = struct.pack("<q", 2**60)
    return record(1000, bytes(data))


@bomb(snapshot)
def deep_json() -> bytes:
    """Millions of brackets."""
    return sealed(b'{"version":1,"offset":' + b"[" * (2 * 2**20) + b"]" * (2 * 2**20) + b"}")


@bomb(snapshot)
def deep_unknown_json() -> bytes:
    """Millions of brackets in an unknown field, which the parser skips."""
    return sealed(b'{"version":1,"unknown":' + b'{"":' * 2**20 + b"1" + b"}" * 2**20 + b"}")


@bomb(snapshot)
def large_object() -> bytes:
    """More bytes than a metadata object may have."""
    return bytes(envelope.MAX_OBJECT_BYTES + 1)


@bomb(snapshot)
def many_entries() -> bytes:
    """A snapshot with numbers in place of producers."""
    return sealed(json.dumps({"version": 1, "offset": 0, "producers": [0] * 2_000_000}).encode())


@bomb(rows_file)
def parquet_page() -> bytes:
    """A Parquet file of a few kilobytes whose only page has hundreds of megabytes."""
    schema = pa.schema([pa.field("id", pa.binary(), metadata=ID)])
    column = pa.array([bytes(2**20)] * (BOMB_BYTES // 2**20), pa.binary())
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink, schema, compression="zstd", use_dictionary=False, write_statistics=False, data_page_size=2**30,
        write_page_checksum=True,
    ) as writer:  # fmt: skip
        writer.write_batch(pa.record_batch([column], schema=schema))
    return sink.getvalue().to_pybytes()


def main(*wanted: str) -> None:
    """Open each bomb with little memory to spare, and print the result as a line of JSON."""
    for name in wanted or BOMBS:
        made = _made_elsewhere(BOMBS[name].make)
        with open("/proc/self/statm") as statm:
            limit = int(statm.read().split()[0]) * resource.getpagesize() + SPARE_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
        error: BaseException | None = None
        try:
            BOMBS[name].open(made)
        except Exception as failure:
            error = failure
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        kind = "opened" if error is None else "TxlogError" if isinstance(error, TxlogError) else "other"
        print(json.dumps({"name": name, "bytes": len(made), "end": kind, "error": repr(error)[:500]}), flush=True)
        del made, error


def _made_elsewhere(make: Callable[[], bytes]) -> bytes:
    """Return what `make` returns, from a child: memory that this process freed could hide a bomb's effect."""
    with tempfile.TemporaryFile() as file:
        child = os.fork()
        if not child:
            try:
                file.write(make())
                file.flush()
                os._exit(0)
            finally:
                os._exit(1)
        _, status = os.waitpid(child, 0)
        if status:
            raise RuntimeError(f"{make.__name__} could not be made: status {status}")
        file.seek(0)
        return file.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
