"""How many requests does a micro-batch of the streaming sink cost?

This data source has stores that count. It writes to a file the requests of `begin` and `commit` (beside the driver) and
of `write` (each task): one line for each call, with its process. Shipped code does not know this source.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from pyspark_txlog import TxlogDataSource
from pyspark_txlog.sink.stream_writer import StreamFiles, TxlogStreamWriter
from txlog.client.session.runtime import Runtime
from txlog.storage.open import open_object_store
from txlog.testing.counting_store import CountingStore

NAME = "txlog-counting"
COUNTS_FILE = "counts.file"
_STORES = "txlog_benchmark_stores"


def register(spark: SparkSession) -> None:
    """Register `format("txlog-counting")`.

    Spark's processes do not have the folder `benchmarks`, so the class is pickled by value.
    """
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
    spark.dataSource.register(CountingDataSource)


def total(file: Path) -> int:
    """Return the requests in all processes so far."""
    lines = file.read_text().splitlines() if file.exists() else []
    return sum(json.loads(line)["requests"] for line in lines)


class CountingDataSource(TxlogDataSource):
    """`format("txlog-counting")`."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def streamWriter(self, schema: StructType, overwrite: bool) -> TxlogStreamWriter:  # noqa: N802  Spark's name
        file = self.options[COUNTS_FILE]
        options = {name: text for name, text in self.options.items() if name != COUNTS_FILE}
        writer: CountingWriter
        if self._made_here:
            with _counting(file, "begin"):
                writer = CountingWriter.begin(options, schema, overwrite=overwrite)
        else:
            writer = CountingWriter.settling(options, schema)
        writer.file = file
        return writer


class CountingWriter(TxlogStreamWriter):
    file: str

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StreamFiles:  # type: ignore[override]
        with _counting(self.file, "write"):
            return super().write(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  Spark's name
        with _counting(self.file, "commit"):
            super().commit(messages, batchId)


@contextmanager
def _counting(file: str, step: str) -> Iterator[None]:
    """Let every store that is opened in this block count, and keep counting if it stays open."""
    original = Runtime.open
    # This code is pickled by value, with new globals each time. The process keeps the list.
    stores: list[CountingStore] = vars(sys.modules["txlog"]).setdefault(_STORES, [])

    def open_counting(url: str, *, storage_options: Mapping[str, object] | None = None, **others: Any) -> Runtime:
        stores.append(CountingStore(open_object_store(url, storage_options)))
        return original(url, storage_options=storage_options, object_store=stores[-1], **others)

    before = sum(store.requests().total for store in stores)
    with mock.patch.object(Runtime, "open", open_counting):
        yield
    line = {"step": step, "pid": os.getpid(), "requests": sum(store.requests().total for store in stores) - before}
    with open(file, "a") as lines:
        lines.write(json.dumps(line) + "\n")
