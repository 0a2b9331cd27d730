"""A topic of a test and its publications, with real Parquet files, in a folder or in memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pyarrow as pa

from txlog.clock import SystemClock
from txlog.core import envelope
from txlog.core.publication import Tables, fold
from txlog.core.records import Publication, SchemaField, TopicMetadata
from txlog.core.records.publications import OffsetRun, PublishedFile, PublishedPartition, RowRun
from txlog.publication import delta
from txlog.storage.arrow_schema import to_arrow
from txlog.storage.driver import Driver
from txlog.storage.local import LocalObjectStore
from txlog.storage.memory import MemoryObjectStore
from txlog.storage.parquet_writer import write_rows_file
from txlog.testing.clock import SeededIds

TOPIC_ID = "716b2dae6755486ebc17640aee413cb2"
CREATED_AT = 1_700_000_000_000
RETENTION_MS = 604_800_000


class PublishedTopic:
    """Writes files, and publishes them as a publisher does."""

    def __init__(self, fields: Sequence[SchemaField], root: Path | None = None, name: str = "orders") -> None:
        self.store = MemoryObjectStore() if root is None else LocalObjectStore(str(root), fsync=False)
        self.driver = Driver(self.store, SystemClock(), SeededIds())
        self.topic = TopicMetadata(
            number=0,
            topic=name,
            topic_id=TOPIC_ID,
            partitions=1,
            schema=tuple(fields),
            schema_id=0,
            created_at=CREATED_AT,
            write_id="0" * 32,
        )
        self.tables: list[Tables] = []
        self.first = 0
        """The first publication of the format."""
        self._files = 0

    def file(
        self, rows: pa.Table, *, path: str = "", removed: Sequence[tuple[int, int]] = (), row_group_rows: int = 131_072
    ) -> PublishedFile:
        """Write rows to a new file."""
        self._files += 1
        path = path or f"0/rows/7-0-{self._files:08d}.parquet"
        batches = rows.cast(to_arrow(self.topic.schema)).to_batches()
        file = write_rows_file(
            self.store, self.topic.topic, path, batches, self.topic.schema, row_group_rows=row_group_rows
        )
        return PublishedFile(
            **{name: getattr(file, name) for name in file.__struct_fields__},
            partition=0,
            schema_id=0,
            removed=runs(removed),
            since=0,
            group=0,
        )

    def change(self, fields: Sequence[SchemaField]) -> None:
        """Give the topic other columns."""
        number = self.topic.number + 1
        self.topic = msgspec.structs.replace(self.topic, number=number, schema=tuple(fields), schema_id=number)

    def decide(
        self, *added: PublishedFile, removed: Sequence[str] = (), replace: bool = False, whole: bool = False
    ) -> Tables:
        """Decide the next publication, without writing the table."""
        before = self.tables[-1] if self.tables else None
        number = 0 if before is None else before.number + 1
        publication = Publication(
            number=number,
            topic=self.topic.topic,
            topic_id=self.topic.topic_id,
            topic_version=self.topic.number,
            formats={"delta": self.first},
            operation="replace" if replace else "append",
            partitions=(PublishedPartition(end_offset=100 * number, hidden=(OffsetRun(3, 5),)),),
            cut_at=CREATED_AT + 1_000 * number,
            whole=before is None,
            added=tuple(msgspec.structs.replace(file, since=number, group=number) for file in added),
            removed=tuple(removed),
            created_at=CREATED_AT + 1_000 * number + 7,
            write_id=f"{number:032x}",
            previous="0" * 64 if before is None else before.digest,
        )
        tables = fold(before, publication, envelope.digest(envelope.encode(publication)))
        self.tables.append(tables)
        return tables

    def write(self, at: int = -1, *, retention_ms: int = RETENTION_MS) -> None:
        """Write the table's version of a publication."""
        after = self.tables[at]
        before = self.tables[after.number - 1] if after.number > self.first else None
        self.driver.run(delta.write_version(before, after, self.topic, self.store.url, retention_ms=retention_ms))

    def publish(self, *added: PublishedFile, removed: Sequence[str] = (), replace: bool = False) -> Tables:
        """Decide a publication and write it."""
        tables = self.decide(*added, removed=removed, replace=replace)
        self.write()
        return tables

    def without(self, path: str, *removed: tuple[int, int]) -> PublishedFile:
        """Return a published file without these rows."""
        return msgspec.structs.replace(self.tables[-1].files[path], removed=runs(removed))


def runs(rows: Sequence[tuple[int, int]]) -> tuple[RowRun, ...]:
    return tuple(RowRun(first, end) for first, end in rows)
