"""A micro-batch query without Spark: it calls a stream's source in Spark's order, and keeps a checkpoint.

Offsets go through JSON as in Spark. A test stops wherever it needs to: `plan` without `done` is a crash in the middle
of a batch. Then it makes another query on the same checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from pyspark_txlog.source.batch_reader import read_input, schema_and_topics
from pyspark_txlog.source.options import parse_schema_options, parse_stream_options
from pyspark_txlog.source.stream_source import StreamSource
from txlog.client.session.runtime import Runtime
from txlog.client.store import Store
from txlog.storage.object_store import ObjectStore


class Checkpoint:
    """Spark's checkpoint of one source: the end of each batch, written before it runs, and the number of finished
    batches."""

    def __init__(self) -> None:
        self.ends: list[str] = []
        self.done = 0


class Query:
    """A streaming query that reads `columns` with other `options`, on its own checkpoint or on another query's."""

    passes_start = True
    """Whether Spark passes where a batch begins, as from 4.2 on."""

    def __init__(
        self,
        store: Store,
        checkpoint: Checkpoint | None = None,
        *,
        schema: StructType | None = None,
        object_store: ObjectStore | None = None,
        clock: Any = None,
        **options: str,
    ) -> None:
        given = {"path": store.runtime.url, "storage.fsync": "false", "startingOffsets": "earliest"}
        given |= {name.replace("_", "."): value for name, value in options.items()}
        if "subscribePattern" not in given and "assign" not in given:
            given.setdefault("subscribe", "orders")
        self.options = parse_stream_options(given)
        known = None
        if schema is None:
            schema, known = schema_and_topics(parse_schema_options(given))
        self.schema = schema
        self.runtime = Runtime.open(
            store.runtime.url, storage_options={"fsync": False}, object_store=object_store, clock=clock
        )
        self.source = StreamSource(self.runtime, self.options, self.schema, known)
        self.checkpoint = checkpoint or Checkpoint()
        self._has_asked = False

    def next(self, *, limited: bool = True) -> bool:
        """Ask for the end of the next batch and keep it. Return False if there is no batch to run."""
        kept = self.checkpoint
        if len(kept.ends) > kept.done:
            return True
        start = kept.ends[-1] if kept.ends else json.dumps(self.source.initial())
        end = json.dumps(self._end(json.loads(start), limited=limited))
        if kept.ends and end == start:
            return False
        kept.ends.append(end)
        return True

    def _end(self, start: dict[str, Any], *, limited: bool) -> Mapping[str, Any]:
        if self.passes_start:
            return self.source.latest(start, limited=limited)
        if self.checkpoint.ends and not self._has_asked:
            # So Spark tells a reader of its kind the newest offset.
            assert self.source.plan(start, start) == []
        self._has_asked = True
        return self.source.latest_after_plan()

    def plan(self) -> list[InputPartition]:
        """Return the input partitions of the batch that `next` has kept."""
        kept = self.checkpoint
        start = kept.ends[kept.done - 1] if kept.done else json.dumps(self.source.initial())
        planned = self.source.plan(json.loads(start), json.loads(kept.ends[kept.done]))
        return [InputPartition(tasks) for tasks in planned]

    def read(self, planned: Sequence[InputPartition]) -> list[dict[str, Any]]:
        """Return the rows, in order within each input partition."""
        batches = [batch for part in planned for batch in read_input(part, self.schema, self.options)]
        return [row for batch in batches for row in batch.to_pylist()]

    def done(self) -> None:
        """Note that the batch is in the sink, as Spark does."""
        self.checkpoint.done += 1

    def batch(self, *, limited: bool = True) -> list[int] | None:
        """Run one batch. Return the sorted order ids that it read, or None if there was no batch to run."""
        if not self.next(limited=limited):
            return None
        rows = self.read(self.plan())
        self.done()
        return sorted(row["order_id"] for row in rows)

    def drain(self, batches: int = 50) -> list[int]:
        """Run all batches. Return the order ids that they read, sorted, with duplicates."""
        found: list[int] = []
        for _ in range(batches):
            ids = self.batch()
            if ids is None:
                return sorted(found)
            found += ids
        raise AssertionError(f"the query did not come to rest within {batches} batches")

    def ends(self) -> Mapping[str, Any]:
        """Return the last end in the checkpoint."""
        parsed: Mapping[str, Any] = json.loads(self.checkpoint.ends[-1])
        return parsed

    def progress(self) -> Mapping[str, Any]:
        """Return what the source adds to the query's progress."""
        report = self.source.report()
        assert report is not None
        found: Mapping[str, Any] = report["txlog:source"]
        return found
