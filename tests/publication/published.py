"""A topic with publications of its Iceberg table, without a log: files of rows, and which of them each publication
names."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from txlog.core import envelope, evolution
from txlog.core.names import publication_path
from txlog.core.publication import Tables, fold
from txlog.core.records import SchemaField, TopicMetadata
from txlog.core.records.publications import Publication, PublishedFile, PublishedPartition, RowRun
from txlog.core.schema import assign_ids
from txlog.publication.iceberg import write_version
from txlog.storage.arrow_schema import OFFSET_FIELD, TIMESTAMP_FIELD, to_arrow
from txlog.storage.driver import Driver
from txlog.storage.local import LocalObjectStore
from txlog.storage.object_store import ObjectStore
from txlog.storage.parquet_writer import write_rows_file
from txlog.testing.clock import ManualClock, SeededIds

START_MS = 1_764_000_000_000
HOUR_MS = 3_600_000


def column(name: str, type_name: str, *children: SchemaField, nullable: bool = True) -> SchemaField:
    return SchemaField(id=1, name=name, type=type_name, nullable=nullable, fields=children)


class PublishedTopic:
    """Publishes what a test says, and writes each version of the table at once."""

    def __init__(
        self,
        folder: Path,
        columns: Sequence[SchemaField],
        *,
        name: str = "orders",
        first: int = 0,
        store: ObjectStore | None = None,
        retention_ms: int = 24 * HOUR_MS,
    ) -> None:
        self.url = folder.as_uri()
        self.path = folder / name
        self.store: ObjectStore = store or LocalObjectStore(str(folder))
        self.driver = Driver(self.store, ManualClock(START_MS), SeededIds(), threads=0)
        self.retention_ms = retention_ms
        self.first = first
        self.tables: Tables | None = None
        self.topic = TopicMetadata(
            number=0,
            topic=name,
            topic_id="00000001000000000000000000000002",
            partitions=2,
            schema=assign_ids(columns),
            schema_id=0,
            created_at=START_MS,
            write_id="0" * 32,
        )
        self._files = 0

    def change_columns(self, *changes: evolution.Change) -> None:
        last = evolution.last_field_id(self.topic)
        schema, last = evolution.apply_changes(self.topic.schema, last, changes)
        number = self.topic.number + 1
        self.topic = msgspec.structs.replace(
            self.topic, number=number, schema=schema, schema_id=number, last_field_id=last
        )

    def file(
        self,
        rows: Sequence[Mapping[str, Any]],
        *,
        removed: Iterable[tuple[int, int]] = (),
        sealed: bool = False,
        partition: int = 0,
    ) -> PublishedFile:
        """Write rows as txlog does, in the topic's present columns.

        A sealed file has `_offset` and `_timestamp`, too.
        """
        self._files += 1
        schema = to_arrow(self.topic.schema)
        table = pa.Table.from_pylist([dict(row) for row in rows], schema=schema)
        if sealed:
            table = table.append_column(OFFSET_FIELD, pa.array(range(len(rows)), pa.int64()))
            table = table.append_column(TIMESTAMP_FIELD, pa.array([START_MS * 1000] * len(rows), TIMESTAMP_FIELD.type))
        unique = hashlib.sha256(str(self._files).encode()).hexdigest()[:32]
        path = f"{partition}/rows/1-{self._files}-{unique}.parquet"
        if not sealed:
            path = f"staged/1-{self._files}-{unique}/_partition={partition}/part-0.parquet"
        written = write_rows_file(
            self.store, self.topic.topic, path, table.to_batches(), self.topic.schema, offset_column=sealed
        )
        runs = tuple(RowRun(first, end) for first, end in removed)
        own = msgspec.structs.asdict(written)
        return PublishedFile(**own, partition=partition, schema_id=self.topic.schema_id, removed=runs, since=0, group=0)

    def publish(
        self,
        *added: PublishedFile,
        gone: Iterable[PublishedFile] = (),
        operation: str = "append",
        created_at: int | None = None,
        whole: bool = False,
    ) -> Tables:
        """Decide the next publication and write its version of the table."""
        before = self.tables
        after = self.decide(*added, gone=gone, operation=operation, created_at=created_at, whole=whole)
        self.write(before, after)
        return after

    def decide(
        self,
        *added: PublishedFile,
        gone: Iterable[PublishedFile] = (),
        operation: str = "append",
        created_at: int | None = None,
        whole: bool = False,
    ) -> Tables:
        before = self.tables
        number = self.first if before is None else before.number + 1
        numbered = tuple(
            sorted(
                (msgspec.structs.replace(file, since=number, group=number) for file in added),
                key=lambda file: file.path,
            )
        )
        publication = Publication(
            number=number,
            topic=self.topic.topic,
            topic_id=self.topic.topic_id,
            topic_version=self.topic.number,
            formats={"iceberg": self.first},
            operation=operation,  # type: ignore[arg-type]
            partitions=(PublishedPartition(end_offset=number + 1), PublishedPartition(end_offset=0)),
            cut_at=START_MS,
            whole=before is None or whole,
            added=numbered,
            removed=tuple(sorted(file.path for file in gone)),
            created_at=START_MS + number * 60_000 if created_at is None else created_at,
            write_id="0" * 32,
            previous="0" * 64,
        )
        data = envelope.encode(publication)
        self.store.put_if_absent(publication_path(self.topic.topic, number), data)
        self.tables = fold(before, publication, envelope.digest(data))
        return self.tables

    def write(self, before: Tables | None, after: Tables) -> None:
        self.driver.run(write_version(before, after, self.topic, self.url, retention_ms=self.retention_ms))
