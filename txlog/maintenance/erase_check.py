"""Which objects of a store still hold rows that match a condition, and until when?

This is the proof after an erasure. It opens each object in which rows of the topic can be, whether or not a reader
still needs it: files of rows, commit records, staged rows, copies for published tables. Then it looks for objects that
name such a file, because indexes and the metadata of other formats hold the lowest and highest values of its columns.
Metadata of published tables hold these values for longer than the file exists.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import starmap
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from txlog.client.session.session import Session
from txlog.client.tables.predicate import Predicate, Statistics
from txlog.core import envelope, names
from txlog.core.effects import Program
from txlog.core.names import TRANSACTION_STATE_TOPIC, TopicPartition
from txlog.core.record_checks import decode_records
from txlog.core.records import (
    Publication,
    SchemaField,
    Snapshot,
    StagedList,
    StagedPart,
    TopicMetadata,
    TransactionEntry,
    TransactionMetadata,
)
from txlog.core.schema import OWN_COLUMNS
from txlog.errors import CorruptRecordError, InvalidRequestError, MissingObjectError
from txlog.maintenance.erase import condition_of
from txlog.maintenance.partition_loop import refuse_own
from txlog.maintenance.vacuum import vacuum
from txlog.maintenance.workers import Progress
from txlog.protocol.context import Context, Views, with_view
from txlog.protocol.load import gather_fresh_views, relisting
from txlog.protocol.publications import read_chain
from txlog.protocol.read import read_partition
from txlog.publication.iceberg_names import is_copy
from txlog.storage.object_store import ObjectStore
from txlog.text import install_text

if TYPE_CHECKING:
    import pyarrow as pa

_BATCH_ROWS = 65_536

_Named: TypeAlias = tuple[str, Statistics, int]
"""A file that an object names: its path, in which folders may stand before those of the topic; its statistics by id of
the column; and its rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remains:
    """An object that holds rows that match, or lowest and highest values of a file that does or did."""

    path: str
    rows: int
    """0: it names a file with such rows, or has statistics of a deleted file that may have had some."""
    is_current: bool
    """Whether a read that begins now may return the rows."""
    gone_at_ms: int | None
    """When vacuum may delete it, by the store's clock. None: that is not known yet, or something still needs it."""


def find_remains(session: Session, topic: str, where: str, progress: Progress | None = None) -> tuple[Remains, ...]:
    """Return the objects that still hold rows of a topic for which `where` is true, by path.

    It reads the columns of the condition in each file of the topic, and each small object of it and of the table of
    transactions. Nothing is changed. Raises UnknownTopicOrPartitionError, InvalidRequestError for an internal topic and
    for a condition on columns that no file holds, SchemaMismatchError, CorruptRecordError naming a damaged object.
    """
    refuse_own(topic)
    runtime = session.runtime
    found = runtime.topic(topic, 0)
    condition = condition_of(runtime, found, where)
    if others := [name for name in condition.columns if name in OWN_COLUMNS]:
        raise InvalidRequestError(
            f"where = {where!r}: {others[0]} is not stored with each row. hint: name columns of the topic"
        )
    look = _Look(runtime.store, found, condition)
    paths = [*_walk(runtime.store, f"{topic}/"), *_walk(runtime.store, f"{TRANSACTION_STATE_TOPIC}/")]
    rows: dict[str, int] = {}
    for number, path in enumerate(sorted(paths, key=_names_files)):
        if progress is not None:
            progress(topic, number, len(paths))
        with suppress(MissingObjectError):  # vacuum was faster
            count = look.look_at(path)
            if count is not None:
                rows[path] = count
    searched = [name for name in (topic, TRANSACTION_STATE_TOPIC) if any(path.startswith(f"{name}/") for path in paths)]
    report = vacuum(runtime, session, searched, dry_run=True)
    gone = {each.dead.path: 0 for each in report.deleted} | {each.path: each.waits_until_ms for each in report.waiting}
    current = _current_objects(session, [TopicPartition(topic, number) for number in range(found.partitions)])
    return tuple(
        Remains(
            path=path,
            rows=count,
            # The catalog may still show a copy until vacuum has found that it does not.
            is_current=bool(count) and (path in current or (is_copy(path) and path not in gone)),
            gone_at_ms=gone.get(path),
        )
        for path, count in sorted(rows.items())
    )


class _Look:
    """Looks into objects."""

    def __init__(self, store: ObjectStore, topic: TopicMetadata, condition: Predicate) -> None:
        self._store = store
        self._topic = topic.topic
        self._fields = [field for field in topic.schema if field.name in condition.columns]
        self._condition = condition
        self._names_are_ids = topic.last_field_id is msgspec.UNSET
        """Whether no column was renamed or dropped."""
        self._files: dict[str, int] = {}
        """The files of rows that were looked at, by their path below the topic's folder, each with the number of rows
        that match. The last part of a path is not enough: each task of Spark uses it again in several partitions."""
        self._holding: list[bytes] = []
        """Those of them with such rows."""

    def look_at(self, path: str) -> int | None:
        """Return how many rows in an object match. 0: it names a file with such rows, or may have named one.

        None: neither. Files of rows must come first. Raises MissingObjectError.
        """
        if not _names_files(path):
            name = path.removeprefix(f"{self._topic}/")
            count = self._files[name] = sum(map(self._count, self._batches(path)))
            if count:
                self._holding.append(name.encode())
            return count or None
        named: Iterable[_Named] = ()
        if path.endswith(".checkpoint.parquet"):
            text, named = b"", map(self._of_delta, self._checkpoint(path))
        elif path.endswith((".parquet", ".bin")):
            return None  # positions of rows
        else:
            data = self._store.get(path)
            if data is None:
                raise MissingObjectError(path)
            if f"/{names.WAITING_FOLDER}" in path and not _is_whole(path, data):
                return 0  # no reader needs it, and a vacuum deletes it
            payloads = [part.payload for part in self._parts(path, data)]
            if path.endswith(".batch") and path.startswith(f"{self._topic}/"):
                payloads += [payload for _, payload in decode_records(data, path)]
            if count := sum(self._inline(payload, path) for payload in payloads if payload):
                return count
            text, named = data, self._named_in(path, data)
            if path.endswith(".avro"):
                entries = _avro_entries(data, path)
                text = repr(entries).encode()
                # Other files name lists of files.
                named = _of_manifest(entries, self._fields) if path.rpartition("/")[2].startswith("m") else ()
        return 0 if any(name in text for name in self._holding) or any(starmap(self._may_have_matched, named)) else None

    def _may_have_matched(self, name: str, statistics: Statistics, rows: int) -> bool:
        parts = name.split("/")
        ends = ("/".join(parts[number:]) for number in range(len(parts)))
        rows_found = next((self._files[end] for end in ends if end in self._files), None)
        return self._condition.may_match_rows(statistics, rows) if rows_found is None else rows_found > 0

    def _named_in(self, path: str, data: bytes) -> Iterable[_Named]:
        """Yield the files whose statistics an object of a published table has."""
        folder, _, name = path.removeprefix(f"{self._topic}/").rpartition("/")
        if names.parse_publication_name(name) is not None and f"{folder}/" == names.PUBLICATION_FOLDER:
            for file in envelope.decode(data, Publication, path)[0].added:
                yield file.path, file.statistics, file.rows
        elif name.endswith((".batch", ".staged", ".snapshot")):
            records = decode_records(data, path) if name.endswith(".batch") else ()
            own = (file for record, _ in records for file in record.files)
            for each in (*own, *(file for part in self._parts(path, data) for file in part.files)):
                yield each.path, each.statistics, each.rows
        elif folder == "_delta_log" and name.endswith(".json"):
            for line in data.splitlines():
                if "add" in (action := json.loads(line)):
                    yield self._of_delta(action["add"])

    def _of_delta(self, add: Mapping[str, Any]) -> _Named:
        stats = json.loads(add.get("stats") or "{}")
        least, greatest, nulls = (stats.get(each, {}) for each in ("minValues", "maxValues", "nullCount"))
        # A column whose name may have been another one's then has no statistics here, so it may have matched.
        found = {
            str(field.id): (least.get(field.name), greatest.get(field.name), nulls[field.name])
            for field in self._fields
            if field.name in nulls and self._names_are_ids
        }
        return str(add["path"]), found, stats.get("numRecords", 0)

    def _checkpoint(self, path: str) -> Iterator[dict[str, Any]]:
        """Yield the files that a checkpoint of a Delta table names."""
        from txlog.storage.parquet_file import OpenedFile

        opened = OpenedFile(self._store, path, self._store.size(path), None)
        for group in range(opened.parquet.metadata.num_row_groups):
            opened.fetch(group, {"add"})
            for batch in opened.decode(group, ["add"], _BATCH_ROWS):
                yield from (add for add in batch.column(0).to_pylist() if add is not None)

    def _batches(self, path: str) -> Iterator[pa.RecordBatch]:
        """Yield the columns of the condition of a Parquet file, found by their ids."""
        from txlog.storage.arrow_schema import find_columns
        from txlog.storage.parquet_file import OpenedFile

        opened = OpenedFile(self._store, path, self._store.size(path), None)
        at = find_columns(opened.schema, self._fields)
        stored = [opened.schema.field(each).name for each in at if each is not None]
        for group in range(opened.parquet.metadata.num_row_groups):
            opened.fetch(group, set(stored))
            for batch in opened.decode(group, stored, _BATCH_ROWS):
                columns = [None if each is None else batch.column(opened.schema.field(each).name) for each in at]
                yield self._typed(columns, batch.num_rows, path)

    def _inline(self, payload: bytes, path: str) -> int:
        from txlog.storage.arrow_schema import find_columns
        from txlog.storage.inline_rows import read_ipc

        table = read_ipc(payload, path).combine_chunks()
        at = find_columns(table.schema, self._fields)
        columns = [None if each is None else table.column(each).combine_chunks() for each in at]
        return self._count(self._typed(columns, table.num_rows, path))

    def _parts(self, path: str, data: bytes) -> Iterator[StagedPart]:
        """Yield what an object holds that a transaction has staged for the topic."""
        values: Iterable[TransactionMetadata | StagedList | None] = ()
        if path.endswith(".batch"):
            entries = [entry for record, _ in decode_records(data, path) for entry in record.entries]
            values = (entry.value for entry in entries if isinstance(entry, TransactionEntry))
        elif path.endswith(".staged"):
            values = (envelope.decode(data, StagedList, path)[0],)
        elif path.endswith(".snapshot"):
            values = (row.value for row in envelope.decode(data, Snapshot, path)[0].transactions)
        return (part for value in values if value is not None for part in value.staged if part.topic == self._topic)

    def _typed(self, columns: list[Any], rows: int, path: str) -> pa.RecordBatch:
        import pyarrow as pa

        from txlog.storage.arrow_cast import stored_column
        from txlog.storage.arrow_evolution import older_rows
        from txlog.storage.arrow_schema import to_arrow

        schema = to_arrow(self._fields)
        arrays = [
            # Rows of a version have all of its columns, so these are older than the column.
            older_rows(rows, field, 0) if column is None else stored_column(column, rows, field, arrow, path)
            for column, field, arrow in zip(columns, self._fields, schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, names=schema.names)

    def _count(self, batch: pa.RecordBatch) -> int:
        return int(self._condition.matches(batch).true_count)


def _current_objects(session: Session, tps: list[TopicPartition]) -> set[str]:
    """Return the objects with rows that readers of the topic, and of its published tables, may open now."""
    topic = tps[0].topic

    def program(ctx: Context, views: Views) -> Program[tuple[Views, set[str]]]:
        views = yield from gather_fresh_views(ctx, views, tps)
        paths: set[str] = set()
        for tp in tps:
            view, (indexes, _) = yield from relisting(ctx, views[tp], read_partition)
            views = with_view(views, view)
            paths.update(file.path for name in view.walk if name in indexes for file in indexes[name].index.files)
            paths.update(file.path for stored in view.tail for file in stored.record.files)
            paths.update(f"{tp.partition}/{names.batch_name(stored.slot)}" for stored in view.tail)
        tables = (yield from read_chain(topic)).newest
        paths.update(() if tables is None or not tables.newest.formats else tables.files)
        return views, {f"{topic}/{path}" for path in paths}

    return session.call("looking at a topic", program)


def _walk(store: ObjectStore, folder: str) -> Iterator[str]:
    """Yield the paths of all objects below a folder."""
    for name in store.list(folder):
        if name.endswith("/"):
            yield from _walk(store, folder + name)
        else:
            yield folder + name


def _is_whole(path: str, data: bytes) -> bool:
    try:
        decode_records(data, path)
    except CorruptRecordError:
        return False
    return True


def _names_files(path: str) -> bool:
    """Return whether an object is not a file of the topic's rows. It may name some."""
    return not path.endswith(".parquet") or "/_delta_log/" in path or "/metadata/" in path


def _of_manifest(entries: Sequence[Any], fields: Sequence[SchemaField]) -> Iterator[_Named]:
    from txlog.publication.iceberg_files import statistics_of

    return statistics_of(entries, fields)


def _avro_entries(data: bytes, path: str) -> Sequence[Any]:
    """Return what an Avro file of an Iceberg table holds."""
    try:
        from txlog.publication.iceberg_files import read_avro
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "pyiceberg":
            raise
        raise InvalidRequestError(f"{path}: reading it needs pyiceberg: {install_text('iceberg')}") from None
    return read_avro(data, path)
