"""Which sinks does the harness kill? They have one interface, so that txlog and the others meet the same strikes.

Every process that needs a sink makes it again, by name. A sink adds points of its own to the common ones. If its code
cannot be changed, they are files that appear (`Point.hook` "file").
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol
from unittest import mock

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

import txlog
from lab.invariants import check_store
from pyspark_txlog import TxlogDataSource, install
from pyspark_txlog.sink.stream_writer import StreamFiles, TxlogStreamWriter
from tests.kill import points, strikes
from tests.kill.points import Point
from tests.kill.rivals import DeltaSink, ParquetSink
from tests.kill.strikes import STEP, Striker, StrikingStore
from txlog.client.session.runtime import Runtime
from txlog.storage.open import open_object_store

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False)])


class Sink(Protocol):
    """A place to which a streaming query appends. Rows have one column, `id` (bigint)."""

    name: str
    points: Sequence[Point]
    """The sink's own points, beside `points.COMMON`."""

    @property
    def config(self) -> Mapping[str, str]:
        """Return the Spark settings that a session needs for it."""

    def prepare(self, place: Path) -> None:
        """Make the empty sink, before any session exists."""

    def writer(self, stream: DataFrame, place: Path, strikes: Path) -> DataStreamWriter:
        """Return the write, without checkpoint and trigger. Strikes at its own points are in the folder `strikes`."""

    def read(self, spark: SparkSession, place: Path) -> DataFrame:
        """Return what a reader sees."""

    def check(self, place: Path) -> None:
        """Raise if the sink is damaged, after all processes have ended."""


class TxlogSink:
    name = "txlog"
    points: Sequence[Point] = points.TXLOG
    config: Mapping[str, str] = {}

    def prepare(self, place: Path) -> None:
        with txlog.open(str(place)) as store:
            store.create_topic("out", SCHEMA, partitions=2, config={"key.columns": "id"})

    def writer(self, stream: DataFrame, place: Path, strikes: Path) -> DataStreamWriter:
        # Spark's processes do not have the folder `tests`, so these modules are pickled by value.
        for module in _BY_VALUE:
            cloudpickle.register_pickle_by_value(module)
        stream.sparkSession.dataSource.register(StrikingDataSource)
        writer = stream.writeStream.format(StrikingDataSource.name()).option("topic", "out").option("path", str(place))
        return writer.option(_FOLDER, str(strikes))

    def read(self, spark: SparkSession, place: Path) -> DataFrame:
        return spark.read.format("txlog").option("subscribe", "out").option("columns", "id").load(str(place))

    def check(self, place: Path) -> None:
        check_store(open_object_store(str(place)))


class NativeSink(TxlogSink):
    """The same topic, after `install()`."""

    name = "txlog-native"
    points: Sequence[Point] = points.NATIVE

    def __init__(self) -> None:
        self._patched = ExitStack()

    def writer(self, stream: DataFrame, place: Path, strikes: Path) -> DataStreamWriter:
        install()
        # Until this program ends, because the query opens its store in another thread.
        self._patched.close()
        self._patched.enter_context(_striking(str(strikes), "commit"))
        writer = stream.writeStream.format("txlog").option("topic", "out").option("path", str(place))
        return writer.option("transactional.id", "killed")

    def read(self, spark: SparkSession, place: Path) -> DataFrame:
        self._patched.close()
        return super().read(spark, place)


SINKS: Mapping[str, Callable[[], Sink]] = {
    "txlog": TxlogSink,
    "txlog-native": NativeSink,
    "delta": DeltaSink,
    "parquet": ParquetSink,
}


# -- txlog's sink, with a striker at each request ----------------------------------------------------------------------

_FOLDER = "strikes.folder"


class StrikingDataSource(TxlogDataSource):
    """`format("txlog-striking")`; shipped code does not know it."""

    @classmethod
    def name(cls) -> str:
        return "txlog-striking"

    def streamWriter(self, schema: StructType, overwrite: bool) -> TxlogStreamWriter:
        folder = self.options[_FOLDER]
        options = {name: text for name, text in self.options.items() if name != _FOLDER}
        writer: StrikingWriter
        if self._made_here:
            with _striking(folder, "begin"):
                writer = StrikingWriter.begin(options, schema, overwrite=overwrite)
        else:
            writer = StrikingWriter.settling(options, schema)
        writer.folder = folder
        return writer


class StrikingWriter(TxlogStreamWriter):
    folder: str

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StreamFiles:  # type: ignore[override]
        with _striking(self.folder, "write"):
            return super().write(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        with _striking(self.folder, "commit"):
            super().commit(messages, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        # After a commit that died Spark calls a new process, whose later commits use the store that this call opens.
        with _striking(self.folder, "abort"):
            super().abort(messages, batchId)


@contextmanager
def _striking(folder: str, step: str) -> Iterator[None]:
    """Give every store that is opened in this block a striker, which also learns about the end of the block."""
    original, striker = Runtime.open, Striker(folder)
    os.environ[STEP] = step

    def open_striking(url: str, *, storage_options: Mapping[str, object] | None = None, **others: Any) -> Runtime:
        store: Any = StrikingStore(open_object_store(url, storage_options), striker)
        return original(url, storage_options=storage_options, object_store=store, **others)

    with mock.patch.object(Runtime, "open", open_striking):
        yield
    striker.at_request("done")


_BY_VALUE = (strikes,)
