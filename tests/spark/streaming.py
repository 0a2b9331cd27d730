"""A micro-batch query without Spark: asks a stream's source what Spark asks, in Spark's order, and keeps a checkpoint.

Offsets go through JSON as Spark's do. A test stops where it likes (`plan` without `done`: a crash in the middle of a
batch) and makes another query on the same checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from pyspark_txlog.options import parse_schema_options, parse_stream_options
from pyspark_txlog.source.batch_reader import read_input, schema_of
from pyspark_txlog.source.stream_source import StreamSource
from txlog.client.runtime import Runtime
from txlog.client.store import Store
from txlog.storage.object_store import ObjectStore


class Checkpoint:
    """What Spark keeps of one source: the end of each batch, written before it runs, and how many have been done."""

    def __init__(self) -> None:
        self.ends: list[str] = []
        self.done = 0


class Query:
    """A streaming query that reads `columns` and whatever else `options` say, on a checkpoint of its own or another's."""

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
        self.schema = schema or schema_of(parse_schema_options(given))
        self.runtime = Runtime.open(
            store.runtime.url, storage_options={"fsync": False}, object_store=object_store, clock=clock
        )
        self.source = StreamSource(self.runtime, self.options, self.schema)
        self.checkpoint = checkpoint or Checkpoint()

    def next(self, *, limited: bool = True) -> bool:
        """Asks for the next batch's end and keeps it; False if there is no batch to run."""
        kept = self.checkpoint
        if len(kept.ends) > kept.done:
            return True
        start = kept.ends[-1] if kept.ends else json.dumps(self.source.initial())
        end = json.dumps(self.source.latest(json.loads(start), limited=limited))
        if kept.ends and end == start:
            return False
        kept.ends.append(end)
        return True

    def plan(self) -> list[InputPartition]:
        """The input partitions of the batch that `next` has kept."""
        kept = self.checkpoint
        start = kept.ends[kept.done - 1] if kept.done else json.dumps(self.source.initial())
        planned = self.source.plan(json.loads(start), json.loads(kept.ends[kept.done]))
        return [InputPartition(tasks) for tasks in planned]

    def read(self, planned: Sequence[InputPartition]) -> list[dict[str, Any]]:
        """The rows, in order within each input partition."""
        lossy = self.options.read.fail_on_data_loss
        batches = [batch for part in planned for batch in read_input(part, self.schema, fail_on_data_loss=lossy)]
        return [row for batch in batches for row in batch.to_pylist()]

    def done(self) -> None:
        """The batch is in the sink, and Spark has noted it."""
        self.checkpoint.done += 1

    def batch(self, *, limited: bool = True) -> list[int] | None:
        """Runs one batch: the order ids that it read, sorted; None if there was none to run."""
        if not self.next(limited=limited):
            return None
        rows = self.read(self.plan())
        self.done()
        return sorted(row["order_id"] for row in rows)

    def drain(self, batches: int = 50) -> list[int]:
        """Runs batches until there is none: the order ids that they read, sorted, with multiplicity."""
        found: list[int] = []
        for _ in range(batches):
            ids = self.batch()
            if ids is None:
                return sorted(found)
            found += ids
        raise AssertionError(f"the query did not come to rest within {batches} batches")

    def ends(self) -> Mapping[str, Any]:
        """The last end that the checkpoint holds."""
        parsed: Mapping[str, Any] = json.loads(self.checkpoint.ends[-1])
        return parsed

    def progress(self) -> Mapping[str, Any]:
        """What the source puts into the query's progress."""
        report = self.source.report()
        assert report is not None
        found: Mapping[str, Any] = report["txlog:source"]
        return found
