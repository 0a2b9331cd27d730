"""Which updates bring a table in a catalog to a publication, and what does the catalog say about the table?

Only this module and `txlog.publication.iceberg_files` need pyiceberg.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.locations import SimpleLocationProvider
from pyiceberg.table.metadata import TableMetadataV2
from pyiceberg.table.update import (
    AddSchemaUpdate,
    AddSnapshotUpdate,
    AssertRefSnapshotId,
    AssertTableUUID,
    RemoveSnapshotsUpdate,
    SetCurrentSchemaUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    TableUpdate,
)
from pyiceberg.typedef import Properties

from txlog.errors import InvalidRequestError
from txlog.publication.iceberg_files import NO_WRITERS
from txlog.publication.iceberg_names import CATALOG_FOLDER, CUT_AT, DIGEST, FOLDER, PUBLICATION, IcebergTable

_FILES = "txlog.files"
"""The property that says whether the table names copies."""
_LATEST_METADATA_FILES = 10

_is_txlog: ContextVar[bool] = ContextVar("is_txlog", default=False)


class OnlyTxlog(SimpleLocationProvider):
    """The location provider that the tables name. Commits of pyiceberg load it, reads do not.

    Raises PermissionError for a commit that is not one of txlog.
    """

    def __init__(self, table_location: str, table_properties: Properties) -> None:
        if not _is_txlog.get():
            raise PermissionError(f"{table_location}: this table shows a topic of txlog, and only txlog writes to it")
        super().__init__(table_location, table_properties)


@dataclass(frozen=True, slots=True, kw_only=True)
class InCatalog:
    """A table as the catalog has it."""

    handle: Table = field(repr=False)
    metadata: Mapping[str, Any] = field(repr=False)
    table: IcebergTable
    number: int
    """The publication that it shows."""
    digest: str
    lists: Mapping[int, str]
    """The list of manifests of each publication that it has a snapshot of, relative to the table's folder."""

    def lists_since(self, horizon_ms: int) -> dict[int, str]:
        """Return the lists of the newest version, and of those that were replaced after that time."""
        history = self.metadata["snapshot-log"]
        replaced_ms = [each["timestamp-ms"] for each in history[1:]]
        young = {each["snapshot-id"] for each, at_ms in zip(history, replaced_ms, strict=False) if at_ms > horizon_ms}
        young.add(self.metadata["current-snapshot-id"])
        return {number: path for number, path in self.lists.items() if self.table.snapshot_id(number) in young}

    @property
    def newest_sequence_number(self) -> int:
        """The number of the newest version that the table has had. It is not that of now if a program has gone back."""
        return int(self.metadata["last-sequence-number"])

    @property
    def is_empty(self) -> bool:
        """Whether the newest version has no file."""
        (current,) = (
            each for each in self.metadata["snapshots"] if each["snapshot-id"] == self.metadata["current-snapshot-id"]
        )
        return bool(current["summary"].get("total-data-files") == "0")

    @property
    def metadata_files(self) -> set[str]:
        """Names of the metadata files that the catalog may still need."""
        older = (each["metadata-file"] for each in self.metadata.get("metadata-log", ()))
        uris = [self.handle.metadata_location, *older]
        return {uri.rpartition("/")[2] for uri in uris}


def open_catalog(name: str) -> Catalog:
    """Return a catalog by its name in pyiceberg's configuration. Raises InvalidRequestError if it is not there.

    Otherwise raises what pyiceberg raises.
    """
    try:
        return load_catalog(name)
    except ValueError as error:
        raise InvalidRequestError(
            f"publish.catalog = {name!r}: pyiceberg has no such catalog in its configuration: {error}. "
            f"hint: correct the name, or configure it in .pyiceberg.yaml or as PYICEBERG_CATALOG__{name.upper()}__URI, "
            "for each process that publishes or vacuums"
        ) from error


def load(catalog: Catalog, identifier: tuple[str, ...]) -> Table | None:
    """Return a table; None if the catalog does not have it."""
    try:
        return catalog.load_table(identifier)
    except (NoSuchTableError, NoSuchNamespaceError):
        return None


def in_catalog(handle: Table, topic: str, url: str) -> InCatalog | None:
    """Return what a catalog's table shows; None if it is not that of the topic, or another program wrote to it."""
    value = json.loads(handle.metadata.model_dump_json(exclude_none=True))
    table_id = UUID(value["table-uuid"]).hex
    current = [each for each in value.get("snapshots", ()) if each["snapshot-id"] == value.get("current-snapshot-id")]
    summary = current[0]["summary"] if current else {}
    if DIGEST not in summary or CUT_AT not in summary:
        return None
    number = int(summary[PUBLICATION])
    table = IcebergTable(
        topic=topic,
        table_id=table_id,
        first=number - current[0]["sequence-number"] + 1,
        url=url,
        folder=f"{CATALOG_FOLDER}{table_id}/",
        has_copies=value["properties"].get(_FILES) == "copy",
    )
    if value["location"] != table.location or current[0]["snapshot-id"] != table.snapshot_id(number):
        return None
    lists = {
        int(each["summary"][PUBLICATION]): each["manifest-list"].removeprefix(f"{table.location}/")
        for each in value["snapshots"]
        if PUBLICATION in each["summary"]
    }
    return InCatalog(handle=handle, metadata=value, table=table, number=number, digest=summary[DIGEST], lists=lists)


def properties(table: IcebergTable) -> dict[str, str]:
    """Return the properties of a table in a catalog. An engine may drop it, but not write to it."""
    return {
        _FILES: "copy" if table.has_copies else "log",
        # A program that deletes a table's files then leaves those of the log, if it obeys.
        "gc.enabled": "true" if table.has_copies else "false",
        "write.metadata.delete-after-commit.enabled": "true",
        "write.metadata.previous-versions-max": str(_LATEST_METADATA_FILES),
        "write.location-provider.impl": NO_WRITERS,
        "write.py-location-provider.impl": f"{OnlyTxlog.__module__}.{OnlyTxlog.__name__}",
    }


def schema_in(metadata: Mapping[str, Any] | None, own: Schema) -> Schema:
    """Return the topic's columns with the number that the catalog gives them.

    Catalogs number the schemas of a table themselves: one that they have keeps its number, and another gets the next.
    """
    if metadata is None:
        return own
    schemas = [Schema.model_validate(each) for each in metadata["schemas"]]
    number = next((each.schema_id for each in schemas if each.fields == own.fields), None)
    if number is None:
        number = max(each.schema_id for each in schemas) + 1
    return own.model_copy(update={"schema_id": number})


def make_namespace(catalog: Catalog, namespace: tuple[str, ...]) -> None:
    """Create a namespace, and those around it, if they are not there."""
    for depth in range(1, len(namespace) + 1):
        try:
            catalog.create_namespace(namespace[:depth])
        except NamespaceAlreadyExistsError:
            continue
        except Exception:
            # A program may register tables in a namespace without the right to create one.
            if not catalog.namespace_exists(namespace[:depth]):
                raise


def register(catalog: Catalog, identifier: tuple[str, ...], table: IcebergTable, path: str) -> bool:
    """Register a table by its metadata file. False: another table has the name meanwhile."""
    try:
        catalog.register_table(identifier, table.uri(path))
    except TableAlreadyExistsError:
        return False
    return True


def commit(catalog: Catalog, found: InCatalog, data: bytes) -> bool:
    """Bring a table to the version in the metadata file `data`, which continues the one that was found.

    False: another commit was faster, or the outcome is not known.
    """
    return _commit(catalog, found, *_updates(found.metadata, TableMetadataV2.model_validate_json(data)))


def put_forward(catalog: Catalog, found: InCatalog, number: int) -> bool:
    """Let the version of publication `number` be the newest again. Otherwise as `commit`."""
    return _commit(catalog, found, _newest_is(found.table.snapshot_id(number)))


def first_metadata(table: IcebergTable) -> str:
    """Return the path of the metadata file with which a table is registered, as catalogs name theirs."""
    return f"{FOLDER}00000-{UUID(table.table_id)}.metadata.json"


def _commit(catalog: Catalog, found: InCatalog, *updates: TableUpdate) -> bool:
    parent = found.metadata["current-snapshot-id"]
    needed = (
        AssertTableUUID(uuid=UUID(found.metadata["table-uuid"])),
        AssertRefSnapshotId.model_validate({"ref": "main", "snapshot-id": parent}),
    )
    with _writing():
        try:
            catalog.commit_table(found.handle, needed, updates)
        except (CommitFailedException, CommitStateUnknownException, NoSuchTableError):
            return False
    return True


def _newest_is(snapshot_id: int) -> TableUpdate:
    return SetSnapshotRefUpdate.model_validate({"ref-name": "main", "type": "branch", "snapshot-id": snapshot_id})


def _updates(before: Mapping[str, Any], after: TableMetadataV2) -> Iterator[TableUpdate]:
    number = after.current_schema_id
    is_known = any(each["schema-id"] == number for each in before["schemas"])
    if not is_known:
        yield AddSchemaUpdate(schema=after.schema())
    if before["current-schema-id"] != number:
        yield SetCurrentSchemaUpdate.model_validate({"schema-id": number if is_known else -1})
    snapshot = after.current_snapshot()
    assert snapshot is not None  # each version has one
    yield AddSnapshotUpdate(snapshot=snapshot)
    yield _newest_is(snapshot.snapshot_id)
    kept = {each.snapshot_id for each in after.snapshots}
    for each in before["snapshots"]:
        if each["snapshot-id"] not in kept:
            # Servers take one of them in an update.
            yield RemoveSnapshotsUpdate.model_validate({"snapshot-ids": [each["snapshot-id"]]})
    changed = {name: text for name, text in after.properties.items() if before["properties"].get(name) != text}
    if changed:
        yield SetPropertiesUpdate(updates=changed)


@contextmanager
def _writing() -> Iterator[None]:
    token = _is_txlog.set(True)
    try:
        yield
    finally:
        _is_txlog.reset(token)
