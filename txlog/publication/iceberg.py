"""How does a publication become a version of the topic's Iceberg table?

The objects of a version are a pure function of the topic's publications. Any publisher may write them, and write them
again. They are created in the order in which they name each other, the metadata file last: it makes the version
visible. A path-based reader finds it by its number, or by `version-hint.text`, which may lag behind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from txlog.core.effects import Delete, Get, Program, PutIfAbsent, Size, gathered
from txlog.core.names import table_version_path
from txlog.core.publication import Tables
from txlog.core.records import SchemaField, TopicMetadata
from txlog.core.records.publications import PublishedFile
from txlog.core.row_runs import removed_from
from txlog.errors import CorruptRecordError, InvalidRequestError, TableConflictError
from txlog.protocol.context import Context
from txlog.protocol.put import create_or_read, put_pure
from txlog.publication.foreign import foreign, json_object
from txlog.publication.formats import is_decided, new_table_id, table_conflict
from txlog.publication.iceberg_names import (
    CUT_AT,
    DIGEST,
    FOLDER,
    HINT,
    IcebergTable,
    group_of,
    is_manifest_list,
)
from txlog.text import install_text


def check_writable(topic: TopicMetadata, url: str) -> None:
    """Raise InvalidRequestError without pyiceberg, and for columns or a place that Iceberg does not take."""
    library = iceberg_library()
    if found := sorted({"#", "?"} & set(url)):
        raise InvalidRequestError(
            f"topic {topic.topic!r}: Iceberg's readers do not find files of a store with "
            f"{found[0]!r} in its URL, {url}. "
            "hint: move the store, or publish in the format delta"
        )
    try:
        library.columns(topic)
    except ValueError as error:
        why = " ".join(str(error).split())
        raise InvalidRequestError(
            f"topic {topic.topic!r}: Iceberg does not take these columns: {why}. "
            "hint: rename one of them, or publish in the format delta"
        ) from error


def write_version(
    before: Tables | None,
    after: Tables,
    topic: TopicMetadata,
    url: str,
    *,
    retention_ms: int,
    written: Sequence[Sequence[SchemaField]] = (),
) -> Program[None]:
    """Write the version of the Iceberg table that publication `after.number` makes.

    `before` is the state one publication earlier, whose version is written already. Without it the table gets a new
    history, which begins with this version and has all files. `topic` is the version that the publication names, and
    `url` that of the store. `written` are the columns of the files, as they were when each was written. Snapshots that
    were replaced `retention_ms` before this publication are left out.

    Raises InvalidRequestError without pyiceberg, TableConflictError if another program has written to the table, and
    otherwise as txlog.protocol.put.create.
    """
    library = iceberg_library()
    if after.version_of("iceberg") == 0:
        # The topic may have had publications of another format.
        before = None
    known = None if before is None else (yield from _read_before(library, before))
    table_id = new_table_id(after) if known is None else known.table.table_id
    table = IcebergTable(topic=topic.topic, table_id=table_id, first=after.newest.formats["iceberg"], url=url)
    schema = library.columns(topic)
    # Metadata name files by the URL of the store. Lists and rows left out that use different spellings do not fit.
    keeps_lists = known is not None and known.has_digest and known.location == table.location
    previous = None if known is None else known.metadata
    with foreign(lambda: _conflict(after if before is None else before)):
        if previous is not None and library.has_other_types(previous, schema):
            keeps_lists = False
    lines = known.manifests if known is not None and keeps_lists else ()
    parent = None if previous is None else previous["current-snapshot-id"]
    path, summary = yield from write_lists(library, table, schema, before, after, lines, parent)
    with foreign(lambda: _conflict(after if before is None else before)):
        own = library.path_properties(table)
        at_ms = after.newest.created_at
        data = library.metadata(table, previous, after, topic, written, path, summary, retention_ms, schema, own, at_ms)
    yield from _check_end(after)
    found = yield from create_or_read(Context(), after.path_of("iceberg"), data, lambda there: there, what="it")
    # Another publisher may have spelled the URL of the store differently, or left out other snapshots.
    if found != data:
        yield from check_version(after, found)
    yield from put_hint(after)


def write_lists(
    library: Any,
    table: IcebergTable,
    schema: Any,
    before: Tables | None,
    after: Tables,
    lines: Sequence[Any],
    parent: int | None,
    *,
    begins: bool = False,
) -> Program[tuple[str, dict[str, str]]]:
    """Write the lists of files of a version of a table. Return the path of their list, and what its snapshot does.

    `before` is the state that the version before shows, `lines` its manifests as far as they may be named again, and
    `parent` its snapshot. Without `before`, if there is one, readers must not follow the table over this version. If it
    `begins` the table's history, it adds all files.
    Raises as `txlog.protocol.put.create`.
    """
    writer = _Writer(library, table, schema, before, after, begins=begins)
    live = _by_group(after.files)
    old = {} if before is None else _by_group(before.files)
    made: list[Any] = []
    for group in sorted({*live, after.number} if writer.gone else live):
        members = live.get(group, [])
        listed = [line for line in lines if group_of(line.manifest_path) == group]
        if not listed or members != old.get(group):
            listed = yield from writer.write_group(group, members)
        made += listed
    data = library.manifest_list(table, made, after.number, parent)
    path = table.manifest_list(after.number, data)
    yield from writer.put(path, data)
    return path, writer.summary()


def check_version(tables: Tables, data: bytes) -> Program[None]:
    """Check that the metadata file `data` is the version of a publication. Raises TableConflictError.

    A version that txlog wrote for a publication that the store has lost is still there after an incomplete copy. Then
    `version-hint.text` is removed: until somebody removes the table, readers find none, instead of rows that the log
    does not have.
    """
    if _version_of(tables, data) is not None:
        return
    if _is_of_txlog(data):
        yield Delete(f"{tables.newest.topic}/{HINT}")
    raise _conflict(tables)


def complete_version(after: Tables) -> Program[None]:
    """Let `version-hint.text` name a version, as `put_hint`.

    Raises TableConflictError if the table goes on behind its end.
    """
    yield from _check_end(after)
    yield from put_hint(after)


def put_hint(tables: Tables) -> Program[None]:
    """Let `version-hint.text` name the version of the newest publication, unless it names a newer one.

    Another publisher may do the same at the same time. The hint then names one of the two versions. A publisher that
    dies between the two steps leaves none, and the next one calls this again. A hint that names a version
    of no publication is replaced: readers would find rows that the log does not have.
    """
    newest = tables.newest
    path, version = f"{newest.topic}/{HINT}", tables.version_of("iceberg") + 1
    found: bytes | None = yield Get(path)
    wanted = str(version).encode()
    if found == wanted:
        return
    hinted = int(found[:20]) if found is not None and found.isdigit() else 0
    if hinted > version:
        hinted_path = f"{newest.topic}/{FOLDER}v{hinted}.metadata.json"
        # A publisher was faster, unless the store is an incomplete copy: it lacks the version, or the publication.
        size = yield Size(hinted_path)
        if size is not None and (yield from is_decided("iceberg", tables, hinted - 1)):
            return
    if found is not None:
        yield Delete(path)
    yield PutIfAbsent(path, wanted)


def named_manifests(tables: Tables) -> Program[tuple[IcebergTable, frozenset[str]] | None]:
    """Return the table of the version of a publication, and the names of the manifests that this version names.

    None if it is not there, or without pyiceberg. Costs two GETs.
    """
    data = yield Get(tables.path_of("iceberg"))
    known = None if data is None else _version_of(tables, data)
    with suppress(InvalidRequestError, TableConflictError):
        if known is not None:
            lines = yield from _read_manifests(iceberg_library(), tables, known)
            return known.table, frozenset(line.manifest_path.rpartition("/")[2] for line in lines)
    return None


def iceberg_library() -> Any:
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


def names_in_list(data: bytes, path: str) -> frozenset[str] | None:
    """Return the names of the manifests in a list; None without pyiceberg, or if it is not txlog's."""
    with suppress(InvalidRequestError, CorruptRecordError):
        lines = iceberg_library().read_manifest_list(data, path)
        return frozenset(line.manifest_path.rpartition("/")[2] for line in lines)
    return None


# -- details ----------------------------------------------------------------------------------------------------------


def _check_end(tables: Tables) -> Program[None]:
    """Check that the next version is not there before its publication. An incomplete copy of the store may leave it.

    Spark goes on from the hint to the next versions. The hint is removed as by `check_version`.
    """
    following = tables.version_of("iceberg") + 1
    path = table_version_path("iceberg", tables.newest.topic, following)
    size = yield Size(path)
    if size is not None and not (yield from is_decided("iceberg", tables, following)):
        yield Delete(f"{tables.newest.topic}/{HINT}")
        raise table_conflict("iceberg", tables.newest.topic, path)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """A version of the table."""

    table: IcebergTable
    metadata: dict[str, Any] = field(repr=False)
    location: str
    """Where the table was, as its publisher spelled the URL of the store."""
    has_digest: bool
    """Whether it names its publication by the digest, as older programs did not."""
    list_path: str
    manifests: tuple[Any, ...] = field(default=(), repr=False)


def _read_before(library: Any, before: Tables) -> Program[_Known]:
    """Return the version before, with the lines of its manifest list."""
    topic, path = before.newest.topic, before.path_of("iceberg")
    data = yield Get(path)
    if data is None:
        raise table_conflict("iceberg", topic, path)
    yield from check_version(before, data)
    known = _version_of(before, data)
    assert known is not None  # check_version has found it
    return replace(known, manifests=(yield from _read_manifests(library, before, known)))


def _read_manifests(library: Any, tables: Tables, known: _Known) -> Program[tuple[Any, ...]]:
    """Return the lines of the manifest list of a version."""
    path = f"{tables.newest.topic}/{known.list_path}"
    data = yield Get(path)
    if data is None:
        raise table_conflict("iceberg", tables.newest.topic, path)
    found: tuple[Any, ...] = library.read_manifest_list(data, path)
    return found


def _version_of(tables: Tables, data: bytes) -> _Known | None:
    """Return the version of the table in a metadata file; None if it is not that of this publication."""
    with suppress(Exception):
        value = json_object(data)
        publication, number = tables.newest, tables.number
        table = IcebergTable(
            topic=publication.topic,
            table_id=UUID(value["table-uuid"]).hex,
            first=publication.formats["iceberg"],
            url=str(value["location"]).removesuffix(f"/{publication.topic}"),
        )
        (snapshot,) = (each for each in value["snapshots"] if each["snapshot-id"] == value["current-snapshot-id"])
        summary = snapshot["summary"]
        digest = summary.get(DIGEST)
        if digest is None:
            # An older program wrote this version. The time of the cut differs in another life of the topic.
            is_own = (table.table_id, summary[CUT_AT]) == (publication.topic_id, str(publication.cut_at))
        else:
            is_own = digest == tables.digest
        path = snapshot["manifest-list"].removeprefix(f"{table.location}/")
        if is_own and snapshot["snapshot-id"] == table.snapshot_id(number) and is_manifest_list(path):
            return _Known(
                table=table, metadata=value, location=table.location, has_digest=digest is not None, list_path=path
            )
    return None


def _is_of_txlog(data: bytes) -> bool:
    """Return whether txlog wrote the newest snapshot of a metadata file, for whatever publication."""
    with suppress(Exception):
        value = json_object(data)
        (found,) = (each for each in value["snapshots"] if each["snapshot-id"] == value["current-snapshot-id"])
        return CUT_AT in found["summary"]
    return False


def _conflict(tables: Tables) -> TableConflictError:
    return table_conflict("iceberg", tables.newest.topic, tables.path_of("iceberg"))


class _Writer:
    """Creates the objects that a publication's metadata file names."""

    def __init__(
        self, library: Any, table: IcebergTable, schema: Any, before: Tables | None, after: Tables, *, begins: bool
    ) -> None:
        self._library = library
        self._table = table
        self._schema = schema
        self._number = after.number
        self._files = after.files
        self._held = {} if before is None else before.files
        self._held_since = {(file.path, file.since) for file in self._held.values()}
        self._is_new_history = before is None
        self._is_first = begins or after.number == table.first
        self._operation = after.newest.operation
        if before is not None and before.number != after.number - 1:
            self._operation = "append"  # several versions in one may have new rows
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
        lines = [(yield from self._write_manifest(group, entries))]
        partial = [file for file in members if file.is_partial]
        if partial:
            deletes = yield from gathered(self._write_deletes(file) for file in partial)
            entries = [
                library.delete_entry(
                    table, number, library.ADDED if self._has_new_deletes(file) else library.EXISTING, file, *written
                )
                for file, written in zip(partial, deletes, strict=True)
            ]
            lines.append((yield from self._write_manifest(group, entries)))
        return lines

    def summary(self) -> dict[str, str]:
        """Return what the snapshot does, and its counts by Iceberg's names."""
        files = self._files.values()
        added = [file for file in files if self._is_new(file)]
        deletes = [file for file in files if file.is_partial]
        new_deletes = [file for file in deletes if self._has_new_deletes(file)]
        kept = {(file.path, file.since) for file in files}
        old_deletes = [file for file in self._held.values() if file.is_partial and (file.path, file.since) not in kept]
        changed = {
            "added-data-files": len(added),
            "added-records": sum(file.rows for file in added),
            "added-files-size": sum(file.bytes for file in added),
            "added-delete-files": len(new_deletes),
            "added-position-deletes": sum(len(removed_from(file)) for file in new_deletes),
            "deleted-data-files": len(self.gone),
            "deleted-records": sum(file.rows for file in self.gone),
            "removed-files-size": sum(file.bytes for file in self.gone),
            "removed-delete-files": len(old_deletes),
            "removed-position-deletes": sum(len(removed_from(file)) for file in old_deletes),
        }
        totals = {
            "total-data-files": len(files),
            "total-records": sum(file.rows for file in files),
            "total-files-size": sum(file.bytes for file in files),
            "total-delete-files": len(deletes),
            "total-position-deletes": sum(len(removed_from(file)) for file in deletes),
            "total-equality-deletes": 0,
        }
        counts = {name: count for name, count in changed.items() if count} | totals
        made = {name: str(count) for name, count in counts.items()}
        operation: str = self._operation
        if self._is_new_history and not self._is_first:
            operation = "overwrite"
        elif self._is_first or operation == "append":
            # A reader of appended files does not look at deletes. By Iceberg's definition an append adds none, and such
            # a reader fails at an overwrite, instead of reading rows of aborted transactions.
            operation = "overwrite" if new_deletes or self.gone else "append"
        return {"operation": operation, **made}

    def _is_new(self, file: PublishedFile) -> bool:
        return self._is_first if self._is_new_history else file.path not in self._held

    def _has_new_deletes(self, file: PublishedFile) -> bool:
        if self._is_new_history:
            return self._is_first or file.since == self._number
        return (file.path, file.since) not in self._held_since

    def _write_manifest(self, group: int, entries: Sequence[Any]) -> Program[Any]:
        library, table, number = self._library, self._table, self._number
        data = library.manifest(table, entries, self._schema)
        path = table.manifest(group, number, data, is_of_deletes=library.is_of_deletes(entries))
        yield from self.put(path, data)
        return library.listed(table, path, entries, len(data), number)

    def _write_deletes(self, file: PublishedFile) -> Program[tuple[str, int]]:
        # Imported here, because pyarrow is slow to load and most files have all their rows.
        from txlog.storage.parquet_deletes import position_deletes

        data = position_deletes(self._table.file_uri(file.path), removed_from(file))
        path = self._table.deletes(file.since, data)
        yield from self.put(path, data)
        return path, len(data)

    def put(self, path: str, data: bytes) -> Program[None]:
        """Create an object. One with its name has the same bytes."""
        yield from put_pure(Context(), self._table.path(path), data)


def _by_group(files: Mapping[str, PublishedFile]) -> dict[int, list[PublishedFile]]:
    groups: dict[int, list[PublishedFile]] = {}
    for _, file in sorted(files.items()):
        groups.setdefault(file.group, []).append(file)
    return groups
