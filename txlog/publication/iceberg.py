"""How does a publication become a version of the topic's Iceberg table?

The objects of a version are a pure function of the topic's publications. Any publisher may write them, and write them
again. They are created in the order in which they name each other, the metadata file last: it makes the version visible.
A path-based reader finds it by its number, or by `version-hint.text`, which may lag behind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import msgspec

from txlog.core.effects import Delete, Get, Program, PutIfAbsent, PutOutcome, Size, gathered
from txlog.core.publication import Tables
from txlog.core.records import TopicMetadata
from txlog.core.records.publications import PublishedFile
from txlog.core.row_runs import count_rows
from txlog.errors import InvalidRequestError
from txlog.protocol.context import Context
from txlog.protocol.put import create
from txlog.publication.formats import table_conflict
from txlog.publication.iceberg_names import HINT, IcebergTable, group_of
from txlog.text import install_text


def check_writable(topic: TopicMetadata, url: str) -> None:
    """Raise InvalidRequestError without pyiceberg, and for columns or a place of the store that Iceberg does not take."""
    library = _library()
    if found := sorted({"#", "?"} & set(url)):
        raise InvalidRequestError(
            f"topic {topic.topic!r}: Iceberg's readers do not find files of a store with {found[0]!r} in its URL, {url}. "
            "hint: move the store, or publish in the format delta"
        )
    try:
        library.columns(topic)
    except ValueError as error:
        why = " ".join(str(error).split())
        raise InvalidRequestError(
            f"topic {topic.topic!r}: Iceberg does not take these columns: {why}. hint: rename one of them, or publish in the format delta"
        ) from error


def write_version(
    before: Tables | None,
    after: Tables,
    topic: TopicMetadata,
    url: str,
    *,
    retention_ms: int,
    ctx: Context | None = None,
) -> Program[None]:
    """Write the version of the Iceberg table that publication `after.number` makes.

    `before` is the state one publication earlier, whose version is written already. Without it the table gets a new
    history, which begins with this version and has all files. `topic` is the version that the publication names, and
    `url` that of the store. Snapshots that were replaced `retention_ms` before this publication are left out.

    Raises InvalidRequestError without pyiceberg, TableConflictError if another program has written to the table, and
    otherwise as txlog.protocol.put.create.
    """
    library = _library()
    ctx = ctx or Context()
    publication = after.newest
    number = publication.number
    table = IcebergTable(
        topic=topic.topic, topic_id=publication.topic_id, first=publication.formats["iceberg"], url=url
    )
    if after.version_of("iceberg") == 0:
        # The topic may have had publications of another format.
        before = None
    previous, manifests = (None, ()) if before is None else (yield from _read_before(library, table, before))
    schema = library.columns(topic)
    writer = _Writer(ctx, library, table, schema, before, after)
    is_wider = previous is not None and library.has_other_types(previous, schema)

    live = _by_group(after.files)
    old = {} if before is None else _by_group(before.files)
    lines: list[Any] = []
    for group in sorted({*live, number} if writer.gone else live):
        members = live.get(group, [])
        written = [line for line in manifests if group_of(line.manifest_path) == group]
        if not written or members != old.get(group) or is_wider:
            written = yield from writer.write_group(group, members)
        lines += written

    path = table.manifest_list(number)
    parent = None if previous is None else previous["current-snapshot-id"]
    yield from writer.put(path, library.manifest_list(table, path, lines, number, parent))
    data = library.metadata(table, previous, publication, topic, writer.summary(publication.operation), retention_ms)
    yield from _put_metadata(ctx, table, number, data)
    yield from put_hint(after)


def put_hint(tables: Tables) -> Program[None]:
    """Let `version-hint.text` name the version of the newest publication, unless it names a newer one.

    Another publisher may do the same at the same time. The hint then names one of the two versions. A publisher that
    dies between the two steps leaves none, and the next one calls this again.
    """
    newest = tables.newest
    path, version = f"{newest.topic}/{HINT}", tables.version_of("iceberg") + 1
    found: bytes | None = yield Get(path)
    if found is not None and found.isdigit() and int(found) >= version:
        return
    if found is not None:
        yield Delete(path)
    yield PutIfAbsent(path, str(version).encode())


# -- details ----------------------------------------------------------------------------------------------------------


def _library() -> Any:
    try:
        # Imported here, because only a topic that is published as an Iceberg table needs it.
        from txlog.publication import iceberg_files
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "pyiceberg":
            raise
        raise InvalidRequestError(
            f"publish.formats: 'iceberg' needs pyiceberg, which is not installed. hint: {install_text('iceberg')}"
        ) from None
    return iceberg_files


def _read_before(library: Any, table: IcebergTable, before: Tables) -> Program[tuple[Any, tuple[Any, ...]]]:
    """Return the metadata file of the version before, and the lines of its manifest list."""
    path, list_path = (
        f"{table.topic}/{each}" for each in (table.path(before.number), table.manifest_list(before.number))
    )
    data = yield Get(path)
    lines = yield Get(list_path)
    if data is None or lines is None:
        raise table_conflict("iceberg", table.topic, path if data is None else list_path)
    previous = _own(table, before.number, data, path)
    return previous, library.read_manifest_list(lines, list_path)


def _own(table: IcebergTable, number: int, data: bytes, path: str) -> dict[str, Any]:
    """Return the metadata file of a publication. Raises TableConflictError for the file of another program."""
    try:
        value: dict[str, Any] = msgspec.json.decode(data, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise table_conflict("iceberg", table.topic, path) from error
    expected = (str(UUID(table.topic_id)), table.snapshot_id(number))
    if (value.get("table-uuid"), value.get("current-snapshot-id")) != expected:
        raise table_conflict("iceberg", table.topic, path)
    return value


class _Writer:
    """Creates the objects that a publication's metadata file names."""

    def __init__(
        self, ctx: Context, library: Any, table: IcebergTable, schema: Any, before: Tables | None, after: Tables
    ) -> None:
        self._ctx = ctx
        self._library = library
        self._table = table
        self._schema = schema
        self._number = after.number
        self._files = after.files
        self._held = {} if before is None else before.files
        self._is_new_history = before is None
        self.is_first = after.version_of("iceberg") == 0
        self.gone = [file for path, file in sorted(self._held.items()) if path not in after.files]

    def write_group(self, group: int, members: Sequence[PublishedFile]) -> Program[list[Any]]:
        """Write the manifests of a group's files and of the rows that are left out of them. Return their lines."""
        library, table, number = self._library, self._table, self._number
        entries = [
            library.data_entry(
                table, number, library.ADDED if self._is_new(file) else library.EXISTING, file, self._schema
            )
            for file in members
        ]
        if group == number:
            entries += [library.data_entry(table, number, library.DELETED, file, self._schema) for file in self.gone]
        lines = [(yield from self._write_manifest(table.manifest(group, number), entries))]
        partial = [file for file in members if file.removed]
        if partial:
            sizes = yield from gathered(self._write_deletes(file) for file in partial)
            entries = [
                library.delete_entry(
                    table, number, library.ADDED if self._has_new_deletes(file) else library.EXISTING, file, size
                )
                for file, size in zip(partial, sizes, strict=True)
            ]
            lines.append((yield from self._write_manifest(table.delete_manifest(group, number), entries)))
        return lines

    def summary(self, operation: str) -> dict[str, str]:
        """Return what the snapshot does, and its counts by Iceberg's names."""
        files = self._files.values()
        added = [file for file in files if self._is_new(file)]
        deletes = [file for file in files if file.removed]
        new_deletes = [file for file in deletes if self._has_new_deletes(file)]
        kept = {(file.path, file.since) for file in files}
        old_deletes = [file for file in self._held.values() if file.removed and (file.path, file.since) not in kept]
        changed = {
            "added-data-files": len(added),
            "added-records": sum(file.rows for file in added),
            "added-files-size": sum(file.bytes for file in added),
            "added-delete-files": len(new_deletes),
            "added-position-deletes": sum(count_rows(file.removed) for file in new_deletes),
            "deleted-data-files": len(self.gone),
            "deleted-records": sum(file.rows for file in self.gone),
            "removed-files-size": sum(file.bytes for file in self.gone),
            "removed-delete-files": len(old_deletes),
            "removed-position-deletes": sum(count_rows(file.removed) for file in old_deletes),
        }
        totals = {
            "total-data-files": len(files),
            "total-records": sum(file.rows for file in files),
            "total-files-size": sum(file.bytes for file in files),
            "total-delete-files": len(deletes),
            "total-position-deletes": sum(count_rows(file.removed) for file in deletes),
            "total-equality-deletes": 0,
        }
        counts = {name: count for name, count in changed.items() if count} | totals
        made = {name: str(count) for name, count in counts.items()}
        if self.is_first or operation == "append":
            # A reader of appended files does not look at deletes. By Iceberg's definition an append adds none, and such
            # a reader fails at an overwrite, instead of reading rows of aborted transactions.
            operation = "overwrite" if any(file.removed for file in added) else "append"
        return {"operation": operation, **made}

    def _is_new(self, file: PublishedFile) -> bool:
        return self.is_first if self._is_new_history else file.path not in self._held

    def _has_new_deletes(self, file: PublishedFile) -> bool:
        return self.is_first or file.since == self._number

    def _write_manifest(self, path: str, entries: Sequence[Any]) -> Program[Any]:
        size = yield from self.put(path, self._library.manifest(self._table, path, entries, self._schema))
        return self._library.listed(self._table, path, entries, size, self._number)

    def _write_deletes(self, file: PublishedFile) -> Program[int]:
        # Imported here, because pyarrow is slow to load and most files have all their rows.
        from txlog.storage.parquet_deletes import position_deletes

        data = position_deletes(self._table.uri(file.path), file.removed)
        return (yield from self.put(self._table.deletes(file.path, file.since), data))

    def put(self, path: str, data: bytes) -> Program[int]:
        """Create an object and return its length. Another publisher's has the same meaning, but may have another length."""
        full_path = f"{self._table.topic}/{path}"

        def look(outcome: PutOutcome) -> Program[int | None]:
            if outcome is PutOutcome.WRITTEN:
                return len(data)
            size: int | None = (yield Size(full_path)) if outcome is PutOutcome.CONFLICT else None
            return size

        return (yield from create(self._ctx, full_path, data, look, what="it"))


def _put_metadata(ctx: Context, table: IcebergTable, number: int, data: bytes) -> Program[None]:
    path = f"{table.topic}/{table.path(number)}"

    def look(outcome: PutOutcome) -> Program[bytes | None]:
        if outcome is PutOutcome.WRITTEN:
            return data
        found: bytes | None = (yield Get(path)) if outcome is PutOutcome.CONFLICT else None
        return found

    found = yield from create(ctx, path, data, look, what="it")
    # An own one may differ in the snapshots that are left out.
    if found != data:
        _own(table, number, found, path)


def _by_group(files: Mapping[str, PublishedFile]) -> dict[int, list[PublishedFile]]:
    groups: dict[int, list[PublishedFile]] = {}
    for _, file in sorted(files.items()):
        groups.setdefault(file.group, []).append(file)
    return groups
