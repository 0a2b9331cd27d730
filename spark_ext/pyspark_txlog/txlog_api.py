"""Where does a Spark program begin that wants more than one DataFrame at a time? `TxLog(spark, root)`.

`spark.read.format("txlog")` and `df.write.format("txlog")` stand for one frame each, in processes of their own. A TxLog
lives in the driver's own process, beside its session: it plans and commits there, and leaves the rows to Spark. So
several frames can share one cut of the log when they are read, and one decision when they are written.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from pyspark.sql import SparkSession

from pyspark_txlog.messages import plain_errors
from pyspark_txlog.table import TopicTable
from txlog.client.runtime import Runtime
from txlog.errors import UnsupportedStoreError
from txlog.storage.object_store import ObjectStore


class TxLog:
    """One store, through one Spark session. Thread-safe; `close` ends its helper threads."""

    @plain_errors
    def __init__(
        self,
        spark: SparkSession,
        root: str | os.PathLike[str],
        storage_options: Mapping[str, object] | None = None,
        *,
        object_store: ObjectStore | None = None,
    ) -> None:
        """Opens the store at `root`: a folder, or a URL as in `.load(...)`; `storage_options` are its driver's.

        `object_store` is for tests and fault injection. Raises NotAStoreError if something else lies there,
        UnsupportedStoreError, CorruptRecordError.
        """
        if str(root).lower().startswith("memory:"):
            raise UnsupportedStoreError(
                f"{str(root)!r}: a store in memory lives in one process, and Spark reads and writes from many; use a folder or an object store"
            )
        self.spark = spark
        self.runtime = Runtime.open(root, storage_options=storage_options, object_store=object_store)

    def __repr__(self) -> str:
        return f"TxLog({self.runtime.where!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def store(self) -> ObjectStore:
        """Where the bytes lie."""
        return self.runtime.store

    @property
    def url(self) -> str:
        """Where the store is, without credentials."""
        return self.runtime.where

    def table(self, topic: str) -> TopicTable:
        """One topic. Raises UnknownTopicOrPartitionError, naming the most similar one."""
        return TopicTable(self, topic)

    def close(self) -> None:
        """Ends the helper threads; idempotent. DataFrames that were made from this stay good."""
        self.runtime.close()
