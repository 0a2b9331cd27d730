"""How does txlog take part on Spark?"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import txlog
from benchmarks import counted_sink
from benchmarks.rivals.table_formats import TableFormat
from pyspark_txlog import TxLog, session
from txlog.maintenance.maintain import Maintainer
from txlog.storage.open import open_object_store
from txlog.testing.counting_store import CountingStore

PARTITIONS = 2
"""Of a topic, as many as Spark has tasks here."""


@contextmanager
def start_spark() -> Iterator[SparkSession]:
    """Start the session of all txlog's ways: `pyspark_txlog.session()`, with its settings."""
    spark = session("txlog benchmark")
    # A query is always stopped in the middle of a micro-batch, which Spark logs as an error.
    spark.sparkContext.setLogLevel("OFF")
    try:
        yield spark
    finally:
        try:
            spark.stop()
        except Exception:
            # Its JVM has died. Without this, pyspark would look for it again.
            SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
            SparkSession._instantiatedSession = None


class Native(TableFormat):
    """txlog through `TxLog`, with its requests counted; a stream is one of `format("txlog")`, not counted."""

    def __init__(self, spark: SparkSession, folder: Path, *, fsync: bool = False) -> None:
        super().__init__(spark, folder, "txlog, native")
        self.options = {"fsync": fsync}
        self._url = str(folder / "store")
        self._counting = CountingStore(open_object_store(self._url, self.options))
        self._log = TxLog(spark, self._url, self.options, object_store=self._counting)

    def create(self, name: str, like: DataFrame) -> None:
        with txlog.open(self._url, storage_options=self.options) as store:
            store.create_topic(name, like.limit(0).toArrow().schema, PARTITIONS)

    def append(self, frame: DataFrame, name: str) -> None:
        with self._log.transaction(name) as txn:
            txn.write(frame, name)

    def read(self, name: str) -> DataFrame:
        return self._log.to_dfs(name)[name]

    def create_keyed(self, name: str, like: DataFrame, key: str) -> None:
        config = {"key.columns": key, "cleanup.policy": "compact", "publish.formats": "delta,iceberg"}
        config |= {"publish.rows": "latest", "publish.max.lag.ms": "0", "min.cleanable.dirty.ratio": "0.1"}
        with txlog.open(self._url, storage_options=self.options) as store:
            store.create_topic(name, like.limit(0).toArrow().schema, PARTITIONS, config=config)
        self._kept = txlog.open(self._url, storage_options=self.options)
        self._maintainer = Maintainer(self._kept.runtime)

    def settle(self, name: str) -> None:
        self._kept.admin().seal(name)
        self._maintain()

    def change(self, frame: DataFrame, name: str, key: str) -> None:
        self.append(frame, name)
        self._maintain()

    def _maintain(self) -> None:
        if failures := self._maintainer.run().failures:
            raise RuntimeError(f"maintenance failed: {failures}")

    def newest(self, name: str) -> DataFrame:
        return self.spark.read.format("txlog").option("subscribe", name).option("rows", "latest").load(self._url)

    def stream_into(self, source: DataFrame, name: str, checkpoint: Path) -> StreamingQuery:
        writer = source.writeStream.format("txlog").options(**self._write_options(name))
        return writer.option("checkpointLocation", str(checkpoint)).start(self._url)

    def _write_options(self, name: str) -> dict[str, str]:
        return {"topic": name, "transactional.id": name, "storage.fsync": self._fsync}

    @property
    def _fsync(self) -> str:
        return str(self.options["fsync"]).lower()

    def stream_from(self, name: str) -> DataFrame:
        reader = self.spark.readStream.format("txlog").option("subscribe", name)
        return reader.option("startingOffsets", "earliest").load(self._url)

    def drop(self, name: str) -> None:
        shutil.rmtree(self.folder / "store" / name)

    def stored_in(self) -> Path:
        return self.folder / "store"

    def requests(self) -> int:
        return self._counting.requests().total

    def close(self) -> None:
        self._log.close()


class Format(Native):
    """txlog as Spark's users try it first: `format("txlog")`, natively where `session()` makes that possible."""

    def append(self, frame: DataFrame, name: str) -> None:
        writer = frame.write.format("txlog").mode("append").options(**self._write_options(name))
        writer.save(self._url)

    def read(self, name: str) -> DataFrame:
        return self.spark.read.format("txlog").option("subscribe", name).load(self._url)

    def _write_options(self, name: str) -> dict[str, str]:
        return {"topic": name, "storage.fsync": self._fsync}

    def requests(self) -> int:
        # The other store objects of this process, and those of Spark's workers, are not counted.
        return 0


class FormatWithId(Format):
    """The same, with the transactional.id that `Native` has."""

    def _write_options(self, name: str) -> dict[str, str]:
        return {**super()._write_options(name), "transactional.id": name}


class PythonSink(Format):
    """txlog's streaming sink in Python, with the requests of all processes counted."""

    def __init__(self, spark: SparkSession, folder: Path, *, fsync: bool = False) -> None:
        super().__init__(spark, folder, fsync=fsync)
        self._counts = folder / "counts.jsonl"
        counted_sink.register(spark)

    def stream_into(self, source: DataFrame, name: str, checkpoint: Path) -> StreamingQuery:
        writer = source.writeStream.format(counted_sink.NAME).option("topic", name)
        writer.option("storage.fsync", self._fsync).option(counted_sink.COUNTS_FILE, str(self._counts))
        return writer.option("checkpointLocation", str(checkpoint)).start(self._url)

    def requests(self) -> int:
        return counted_sink.total(self._counts)


WAYS: dict[str, Callable[[SparkSession, Path], TableFormat]] = {
    "txlog, native": Native,
    'format("txlog")': Format,
    'format("txlog"), same id': FormatWithId,
    "txlog, Python sink": PythonSink,
    "txlog, native, fsync": partial(Native, fsync=True),
}
"""By the name that the table of results shows."""
