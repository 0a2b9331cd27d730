"""Which bytes have the objects of a topic's Iceberg table? The table has format version 2 and is not partitioned.

Only this module needs pyiceberg, whose types and writers it uses.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import BytesIO
from typing import Any, cast
from uuid import UUID

import msgspec
from pyiceberg.avro.file import AvroFile, AvroOutputFile
from pyiceberg.conversions import from_bytes, to_bytes
from pyiceberg.manifest import (
    MANIFEST_LIST_FILE_SCHEMAS,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    PartitionFieldSummary,
    data_file_with_partition,
    manifest_entry_schema_with_data_file,
)
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadataV2
from pyiceberg.typedef import Record
from pyiceberg.types import (
    DoubleType,
    FloatType,
    IcebergType,
    ListType,
    MapType,
    NestedField,
    PrimitiveType,
    StructType,
)

from txlog.core.evolution import last_field_id
from txlog.core.publication import Tables
from txlog.core.records import SchemaField, TopicMetadata
from txlog.core.records.publications import PublishedFile
from txlog.core.row_runs import removed_from
from txlog.core.schema import OFFSET_COLUMN, TIMESTAMP_COLUMN
from txlog.errors import CorruptRecordError
from txlog.publication.iceberg_names import CUT_AT, DIGEST, FOLDER, PUBLICATION, IcebergTable
from txlog.storage.parquet_deletes import FILE_PATH_ID

ADDED, EXISTING, DELETED = ManifestEntryStatus.ADDED, ManifestEntryStatus.EXISTING, ManifestEntryStatus.DELETED
_SCALARS = {
    "bool": "boolean",
    **dict.fromkeys(("int8", "int16", "int32"), "int"),
    "int64": "long",
    "float32": "float",
    "float64": "double",
    "timestamp": "timestamptz",
    "timestamp_ntz": "timestamp",
}
"""Types that have another name in Iceberg."""
NAME_MAPPING = "schema.name-mapping.default"
_UNPUBLISHED = {OFFSET_COLUMN: 2_147_000_001, TIMESTAMP_COLUMN: 2_147_000_002}
"""Ids for columns of files that have none, and are no columns of the table."""
NO_WRITERS = "txlog.is.the.only.writer.of.this.Table"
"""A class that does not exist. A writer of rows must load it, so it fails and shows this name; a reader does not."""
_ENTRY = manifest_entry_schema_with_data_file(2, data_file_with_partition(StructType(), 2))
_LIST = MANIFEST_LIST_FILE_SCHEMAS[2]


# -- columns ----------------------------------------------------------------------------------------------------------


def columns(topic: TopicMetadata) -> Schema:
    """Return the topic's columns as Iceberg's, with the same ids.

    The schema's id is the topic's version that made it.
    """
    return _schema(topic.schema, topic.schema_id)


def _schema(fields: Sequence[SchemaField], number: int) -> Schema:
    value = {"type": "struct", "fields": [_field(field) for field in fields], "schema-id": number}
    return Schema.model_validate(value)


def _field(field: SchemaField) -> dict[str, Any]:
    return {"id": field.id, "name": field.name, "type": _type(field), "required": not field.nullable}


def _type(field: SchemaField) -> str | dict[str, Any]:
    if field.type == "struct":
        return {"type": "struct", "fields": [_field(child) for child in field.fields]}
    made: dict[str, Any] = {"type": field.type}
    for child in field.fields:
        # A list has `element-id`, `element` and `element-required`, and a map has the same of its key and value.
        made |= {f"{child.name}-id": child.id, child.name: _type(child), f"{child.name}-required": not child.nullable}
    made.pop("key-required", None)
    return made if field.fields else _SCALARS.get(field.type, field.type)


def has_other_types(before: Mapping[str, Any], schema: Schema) -> bool:
    """Return whether a column had another type in the version before. Its older bounds are then shorter.

    pyiceberg 0.11 cannot read these, so the manifests are written again.
    """
    (older,) = (each for each in before["schemas"] if each["schema-id"] == before["current-schema-id"])
    types = {field.field_id: field.field_type for field in Schema.model_validate(older).fields}
    return any(
        isinstance(field.field_type, PrimitiveType) and types.get(field.field_id, field.field_type) != field.field_type
        for field in schema.fields
    )


def name_mapping(schemas: Sequence[Schema]) -> str:
    """Return which ids the names of columns mean in files that lack ids: all names that each column has had.

    `schemas` are in order. pyiceberg finds columns by these names, all of them, in a file where one column has no id,
    as `_offset` in sealed files. A name that two columns have had means the later one: no file of the table has the
    earlier one (`txlog.publication.columns`).
    """
    own: list[dict[str, Any]] = [{"field-id": number, "names": [name]} for name, number in _UNPUBLISHED.items()]
    return json.dumps(_mapped([schema.fields for schema in schemas]) + own)


def _mapped(versions: Iterable[Sequence[NestedField]]) -> list[dict[str, Any]]:
    fields: dict[int, dict[str, list[IcebergType]]] = {}
    newest: dict[str, int] = {}
    for version in versions:
        for field in version:
            fields.setdefault(field.field_id, {}).setdefault(field.name, []).append(field.field_type)
            newest[field.name] = field.field_id
    made = []
    for number, types in fields.items():
        names = [name for name in types if newest[name] == number]
        if names:
            nested = _mapped(_children(each) for listed in types.values() for each in listed)
            made.append({"field-id": number, "names": names, **({"fields": nested} if nested else {})})
    return made


def _contradict(before: str | None, mapping: str) -> bool:
    """Return whether two mappings of names give one name to two columns."""

    def placed(fields: Any, above: int = 0) -> Iterator[tuple[tuple[int, str], int]]:
        for field in fields:
            yield from (((above, name), field["field-id"]) for name in field["names"])
            yield from placed(field.get("fields", ()), field["field-id"])

    older = {} if before is None else dict(placed(json.loads(before)))
    return any(older.get(place, number) != number for place, number in placed(json.loads(mapping)))


def _children(of: IcebergType) -> Sequence[NestedField]:
    if isinstance(of, StructType):
        return of.fields
    if isinstance(of, ListType):
        return (of.element_field,)
    return (of.key_field, of.value_field) if isinstance(of, MapType) else ()


# -- manifests --------------------------------------------------------------------------------------------------------


def data_entry(
    table: IcebergTable, number: int, status: ManifestEntryStatus, file: PublishedFile, schema: Schema
) -> ManifestEntry:
    """Return the entry of a file in a manifest that publication `number` writes."""
    lower: dict[int, bytes] = {}
    upper: dict[int, bytes] = {}
    nulls: dict[int, int] = {}
    types = {field.field_id: field.field_type for field in schema.fields}
    # An entry that removes a file stays in the newest manifest. No reader needs its bounds, and the rows may be erased.
    for key, (least, greatest, missing) in () if status is DELETED else file.statistics.items():
        kind = types.get(int(key))
        if not isinstance(kind, PrimitiveType):
            continue
        nulls[int(key)] = missing
        if least is not None:
            lower[int(key)] = _bound(kind, least, -0.0)
        if greatest is not None:
            upper[int(key)] = _bound(kind, greatest, 0.0)
    data = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=table.file_uri(file.path),
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=file.rows,
        file_size_in_bytes=file.bytes,
        value_counts=dict.fromkeys(nulls, file.rows),
        null_value_counts=nulls,
        lower_bounds=lower,
        upper_bounds=upper,
    )
    return _entry(table, number, status, file, data)


def delete_entry(
    table: IcebergTable, number: int, status: ManifestEntryStatus, file: PublishedFile, path: str, size: int
) -> ManifestEntry:
    """Return the entry of the deletes of a file, which have `size` bytes. They have the sequence number of the file."""
    uri = table.file_uri(file.path).encode()
    deletes = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=table.uri(path),
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=len(removed_from(file)),
        file_size_in_bytes=size,
        # Readers see from equal bounds that the deletes are those of one file.
        lower_bounds={FILE_PATH_ID: uri},
        upper_bounds={FILE_PATH_ID: uri},
    )
    return _entry(table, number, status, file, deletes)


def _entry(
    table: IcebergTable, number: int, status: ManifestEntryStatus, file: PublishedFile, data: DataFile
) -> ManifestEntry:
    # An added file has the sequence number of the snapshot that adds it. Deletes apply to files with the same number,
    # too, but pyiceberg 0.10 applies them only to lower ones.
    since = table.sequence_number(file.since)
    own = None if status is ADDED and since == table.sequence_number(number) else since
    has_deletes = file.is_partial and data.content is DataFileContent.DATA
    sequence_number = since - 1 if has_deletes else own
    return ManifestEntry.from_args(
        status=status,
        snapshot_id=table.snapshot_id(file.since if status is EXISTING else number),
        sequence_number=sequence_number,
        file_sequence_number=own,
        data_file=data,
    )


def _bound(kind: PrimitiveType, value: Any, zero: float) -> bytes:
    # Readers in Java take -0.0 for less than 0.0, and SQL takes them for equal.
    return to_bytes(kind, zero if isinstance(kind, FloatType | DoubleType) and value == 0 else value)


def manifest(table: IcebergTable, entries: Sequence[ManifestEntry], schema: Schema) -> bytes:
    """Return a manifest. All its entries are of data files, or all are of deletes."""
    has_deletes = is_of_deletes(entries)
    meta = {
        "schema": schema.model_dump_json(),
        "schema-id": str(schema.schema_id),
        "partition-spec": "[]",
        "partition-spec-id": "0",
        "format-version": "2",
        "content": "deletes" if has_deletes else "data",
    }
    return _avro(table, "manifest_entry", _ENTRY, meta, entries)


def is_of_deletes(entries: Sequence[ManifestEntry]) -> bool:
    """Return whether entries of a manifest are of rows that are left out of files."""
    return entries[0].data_file.content is not DataFileContent.DATA


def listed(table: IcebergTable, path: str, entries: Sequence[ManifestEntry], size: int, number: int) -> ManifestFile:
    """Return the line of the manifest list for a manifest of `size` bytes that publication `number` has written."""
    sequence_number = table.sequence_number(number)
    older = [e.sequence_number for e in entries if e.status is not DELETED and e.sequence_number is not None]
    of = {status: [e.data_file.record_count for e in entries if e.status is status] for status in ManifestEntryStatus}
    return ManifestFile.from_args(
        manifest_path=table.uri(path),
        manifest_length=size,
        partition_spec_id=0,
        content=ManifestContent.DELETES if is_of_deletes(entries) else ManifestContent.DATA,
        sequence_number=sequence_number,
        min_sequence_number=min(older, default=sequence_number),
        added_snapshot_id=table.snapshot_id(number),
        added_files_count=len(of[ADDED]),
        existing_files_count=len(of[EXISTING]),
        deleted_files_count=len(of[DELETED]),
        added_rows_count=sum(of[ADDED]),
        existing_rows_count=sum(of[EXISTING]),
        deleted_rows_count=sum(of[DELETED]),
        partitions=[],
    )


def manifest_list(table: IcebergTable, manifests: Sequence[ManifestFile], number: int, parent: int | None) -> bytes:
    """Return the list of all manifests of publication `number`."""
    meta = {
        "snapshot-id": str(table.snapshot_id(number)),
        "parent-snapshot-id": "null" if parent is None else str(parent),
        "sequence-number": str(table.sequence_number(number)),
        "format-version": "2",
    }
    return _avro(table, "manifest_file", _LIST, meta, manifests)


def read_manifest_list(data: bytes, path: str) -> tuple[ManifestFile, ...]:
    """Return the manifests of a list that `manifest_list` made. Raises CorruptRecordError."""
    types: Any = {-1: ManifestFile, 508: PartitionFieldSummary}
    try:
        with AvroFile[ManifestFile](_Memory(path, data), _LIST, types, {517: ManifestContent}) as reader:  # type: ignore[arg-type]
            return tuple(reader)
    except Exception as error:
        raise CorruptRecordError(f"{path}: it is not a list of Iceberg's manifests: {error}") from error


def read_avro(data: bytes, path: str) -> list[Any]:
    """Return the records of an Avro file of a table. Raises CorruptRecordError."""
    try:
        with AvroFile[Any](_Memory(path, data)) as reader:  # type: ignore[arg-type]
            return list(reader)
    except Exception as error:
        raise CorruptRecordError(f"{path}: it is not an Avro file: {error}") from error


def statistics_of(
    entries: Iterable[Any], fields: Sequence[SchemaField]
) -> Iterator[tuple[str, dict[str, tuple[Any, Any, int]], int]]:
    """Yield the path of each data file of a manifest, its statistics by id of the column, and its rows.

    `entries` are those of `read_avro`. Older programs wrote statistics also for files that the manifest removes. A
    bound that was written for another type of the column is left out.
    """
    types = {field.field_id: field.field_type for field in _schema(fields, 0).fields}
    places = [each.name for each in cast(StructType, _ENTRY.find_type("data_file")).fields]
    for entry in entries:
        file = dict(zip(places, entry[4]._data, strict=True))
        nulls = file["null_value_counts"]
        if file["content"] != DataFileContent.DATA.value or (entry[0] == DELETED.value and not nulls):
            continue
        found = {}
        for number, missing in (nulls or {}).items():
            try:
                bounds = [
                    None if value is None else from_bytes(cast(PrimitiveType, types[number]), value)
                    for value in (file["lower_bounds"].get(number), file["upper_bounds"].get(number))
                ]
            except (KeyError, ValueError, struct.error):
                continue
            found[str(number)] = (bounds[0], bounds[1], missing)
        yield file["file_path"], found, file["record_count"]


def _avro(table: IcebergTable, name: str, schema: Schema, meta: Mapping[str, str], records: Sequence[Any]) -> bytes:
    sink = _Memory(name)
    output = AvroOutputFile[Any](sink, schema, name, metadata={**meta, "avro.codec": "deflate"})  # type: ignore[arg-type]
    output.sync_bytes = table.sync_marker(name)
    with output:
        if records:
            output.write_block(list(records))
    return sink.data


class _Memory:
    """What pyiceberg needs of a file."""

    def __init__(self, location: str, data: bytes = b"") -> None:
        self.location = location
        self.data = data

    def open(self, seekable: bool = True) -> BytesIO:
        return BytesIO(self.data)

    def create(self, overwrite: bool = False) -> BytesIO:
        memory = self

        class Sink(BytesIO):
            def close(self) -> None:
                memory.data = self.getvalue()
                super().close()

        return Sink()


# -- the table --------------------------------------------------------------------------------------------------------


def path_properties(table: IcebergTable) -> dict[str, str]:
    """Return the properties that keep other programs from changing a table that is read by its path."""
    return {
        # Files of the log belong to txlog. Spark's procedures that delete files refuse a table with this property.
        "gc.enabled": "false",
        # A commit by path refuses this property, even one that writes no rows. Its value is the default.
        "write.metadata.path": table.uri(FOLDER.rstrip("/")),
        "write.location-provider.impl": NO_WRITERS,
        "write.py-location-provider.impl": NO_WRITERS,
    }


def metadata(
    table: IcebergTable,
    before: Mapping[str, Any] | None,
    tables: Tables,
    topic: TopicMetadata,
    written: Sequence[Sequence[SchemaField]],
    manifest_list: str,
    summary: Mapping[str, str],
    retention_ms: int,
    schema: Schema,
    properties: Mapping[str, str],
    at_ms: int,
) -> bytes:
    """Return the metadata file of a publication. `before` is that of the one before it, if the table has one.

    `written` are the columns of its files, as they were when each was written. The version is of the time `at_ms`.
    """
    publication, number = tables.newest, tables.number
    older: Mapping[str, Any] = before or {"last-updated-ms": 0, "last-column-id": 0, "schemas": [], "snapshots": []}
    own = schema.model_dump(mode="json", by_alias=True)
    schemas = [each for each in older["schemas"] if each["schema-id"] != schema.schema_id] + [own]
    # Clocks of publishers differ, and times of a table do not decrease.
    now = max(at_ms, older["last-updated-ms"])
    snapshot = {
        "snapshot-id": table.snapshot_id(number),
        "parent-snapshot-id": older.get("current-snapshot-id"),
        "sequence-number": table.sequence_number(number),
        "timestamp-ms": now,
        "manifest-list": table.uri(manifest_list),
        "summary": {
            **summary,
            PUBLICATION: str(number),
            DIGEST: tables.digest,
            "txlog.topic_id": publication.topic_id,
            "txlog.cut": msgspec.json.encode(publication.partitions).decode(),
            CUT_AT: str(publication.cut_at),
        },
        "schema-id": schema.schema_id,
    }
    # As vacuum keeps files (C13): the age of a snapshot counts from the next one. Otherwise a publication after a quiet
    # time would drop the snapshot that it replaces, and a reader that follows the table could not go on from there.
    replaced_ms = [*(each["timestamp-ms"] for each in older["snapshots"][1:]), now]
    kept = [each for each, at_ms in zip(older["snapshots"], replaced_ms, strict=False) if at_ms > now - retention_ms]
    *earlier, newest = (Schema.model_validate(each) for each in schemas)
    mapping = name_mapping([*earlier, *(_schema(fields, 0) for fields in written), newest])
    if before is not None and _contradict(before["properties"].get(NAME_MAPPING), mapping):
        # In sealed files of older snapshots a name means another column.
        kept = []
    snapshots = [*kept, snapshot]
    value = {
        "format-version": 2,
        "table-uuid": str(UUID(table.table_id)),
        "location": table.location,
        "last-sequence-number": table.sequence_number(number),
        "last-updated-ms": now,
        "last-column-id": max(last_field_id(topic), older["last-column-id"]),
        "schemas": schemas,
        "current-schema-id": schema.schema_id,
        "partition-specs": [{"spec-id": 0, "fields": []}],
        "default-spec-id": 0,
        "last-partition-id": 999,
        "sort-orders": [{"order-id": 0, "fields": []}],
        "default-sort-order-id": 0,
        "properties": {
            NAME_MAPPING: mapping,
            "history.expire.max-snapshot-age-ms": str(retention_ms),
            **properties,
        },
        "snapshots": snapshots,
        "current-snapshot-id": snapshot["snapshot-id"],
        "refs": {"main": {"snapshot-id": snapshot["snapshot-id"], "type": "branch"}},
        "snapshot-log": [{name: each[name] for name in ("snapshot-id", "timestamp-ms")} for each in snapshots],
    }
    return TableMetadataV2.model_validate(value).model_dump_json(exclude_none=True).encode()
