"""A txlog data source whose store fails at chosen points, in the process in which Spark runs that step.

`format("txlog-faulty")` has the options `fault.begin`, `fault.write`, `fault.commit` and `fault.abort`. Each is a fault
in the syntax of `txlog.testing.failing_store.Fault.parse`. Shipped code does not know this source. `failing_driver`
does the same to a job.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

import txlog
from pyspark_txlog import TxlogDataSource
from pyspark_txlog.sink.batch_writer import TaskFiles, TxlogWriter
from txlog.client.session.runtime import Runtime
from txlog.client.store import Store
from txlog.storage.open import open_object_store
from txlog.testing.failing_store import FailingStore, Fault


class FaultyDataSource(TxlogDataSource):
    @classmethod
    def name(cls) -> str:
        return "txlog-faulty"

    def writer(self, schema: StructType, overwrite: bool) -> TxlogWriter:
        faults = {name: text for name, text in self.options.items() if name.startswith("fault.")}
        options = {name: text for name, text in self.options.items() if name not in faults}
        with failing(faults.get("fault.begin")):
            writer = FaultyWriter.begin(options, schema, overwrite=overwrite)
        writer.faults = faults
        return writer


class FaultyWriter(TxlogWriter):
    faults: Mapping[str, str]

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskFiles:  # type: ignore[override]
        with failing(self.faults.get("fault.write")):
            return super().write(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        with failing(self.faults.get("fault.commit")):
            super().commit(messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        with failing(self.faults.get("fault.abort")):
            super().abort(messages)


@contextmanager
def failing(fault: str | None) -> Iterator[None]:
    """Let every store that is opened in this block fail as `fault` describes."""
    if fault is None:
        yield
        return
    original = Runtime.open

    def open_failing(url: str, *, storage_options: Mapping[str, object] | None = None, **others: Any) -> Runtime:
        store = FailingStore(open_object_store(url, storage_options), Fault.parse(fault))
        return original(url, storage_options=storage_options, object_store=store, **others)

    with mock.patch.object(Runtime, "open", open_failing):
        yield


@contextmanager
def failing_driver(url: str, match: str, number: int = 1) -> Iterator[Store]:
    """Yield the store at `url` for a job: its driver fails at the `number`-th matching request and at all later ones.

    Executors open their own stores, which do not fail.
    """
    options = {"fsync": False}
    store = FailingStore(
        open_object_store(url, options), Fault(action="fail", match=match, number=number, times=1_000_000)
    )
    # Long enough for what must not fail, also beside other tests on a slow machine.
    config = {"default.api.timeout.ms": 3_000}
    with txlog.open(url, storage_options=options, config=config, object_store=store) as opened:
        yield opened
        assert store.struck
