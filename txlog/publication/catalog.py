"""How does a table in a catalog follow the publications of a topic?

A catalog holds which version of a table is the newest, and engines ask it. The table there has a separate folder in
the topic's folder. It has the table's lists of files, its metadata, and copies of the topic's files. With
`publish.files=log` the table names the topic's files themselves. So a program that drops the table, or deletes its
files, deletes nothing else (W60). The catalog alone knows the newest version. Each step from one publication to the
next is a pure function of the two and of what the catalog has. It is committed only if the catalog still has that, so a
publisher that was slower repeats it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from txlog.client.session.runtime import Runtime
from txlog.config.parse import TopicConfig
from txlog.core.ages import MAX_CLOCK_ERROR_MS
from txlog.core.effects import Get, List, Program
from txlog.core.publication import Tables
from txlog.core.records import SchemaField, TopicMetadata
from txlog.errors import (
    CatalogError,
    CorruptRecordError,
    InvalidRequestError,
    MissingObjectError,
    TableConflictError,
    TxlogError,
)
from txlog.logs import log
from txlog.protocol.context import Context
from txlog.protocol.publications import first_whole, read_chain, read_publications
from txlog.protocol.put import put_pure
from txlog.publication.expired import CatalogView
from txlog.publication.iceberg import iceberg_library, write_lists
from txlog.publication.iceberg_names import CATALOG_FOLDER, DATA_FOLDER, FOLDER, IcebergTable, copy_name
from txlog.storage.backends import canonical_url
from txlog.text import shorten

if TYPE_CHECKING:
    from txlog.publication.catalog_table import InCatalog

_LOG = logging.getLogger(__name__)

_MAX_ROUNDS = 60
_MAX_STEPS = 20
"""A table that is further behind takes all publications in one step, which a reader of new rows does not follow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A table that this process has written and the catalog has not taken yet."""

    table_id: str
    shows: object
    """The publication, and the settings by which it was written."""
    began_ms: int
    """When writing it began, by the monotonic clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a topic's table is: its catalog, by pyiceberg's configuration, and its name there."""

    catalog: str
    identifier: tuple[str, ...]

    @property
    def text(self) -> str:
        return f"table {'.'.join(self.identifier)} in the catalog {self.catalog!r}"


def place_of(runtime: Runtime, topic: TopicMetadata) -> Place | None:
    """Return where the catalog's table of a topic is, by its settings; None if it has none, or is not published.

    Raises InvalidRequestError without the format that it needs.
    """
    config = runtime.settings.topic_config(topic)
    place = _named_place(config, topic.topic) if config.publish_formats else None
    if place is not None and "iceberg" not in config.publish_formats:
        if topic.deleted:
            return None  # its settings cannot be changed any more
        raise InvalidRequestError(
            f"topic {topic.topic!r}: publish.catalog = {place.catalog!r}, and the topic is not published as "
            "iceberg. hint: add 'iceberg' to publish.formats, or unset publish.catalog"
        )
    return place


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """What a publisher does for the catalog."""

    columns: Callable[[Tables], tuple[TopicMetadata, Sequence[Sequence[SchemaField]]]]
    """Returns the topic as a publication names it, and the columns of its files as they were written."""
    again: Callable[[], Tables | None]
    """Creates a publication that changes nothing, for a version with other settings; None if another publisher was
    faster."""


def follow(
    runtime: Runtime,
    topic: TopicMetadata,
    place: Place,
    known: Mapping[int, Tables],
    prepared: dict[str, Prepared],
    way: Way,
) -> int:
    """Bring the catalog's table of a topic to its newest publication. Return how many commits that took.

    `known` are tables after publications by their numbers, the newest one among them. `prepared` has tables that this
    process could not register yet, by topic, and is changed. The call may be repeated, by several processes at once. A
    deleted topic gets no new table.

    Raises CatalogError if the catalog does not answer or refuses. Raises TableConflictError if the name belongs to
    another table, or another program has committed to it. Raises MissingObjectError if vacuum was faster. Raises
    InvalidRequestError without pyiceberg or a configuration of the catalog, unless the topic is deleted.
    """
    try:
        follower = _Follower(runtime, topic, place, dict(known), prepared, way)
        for _ in range(_MAX_ROUNDS):
            if follower.step():
                return follower.commits
    except InvalidRequestError as error:
        if not topic.deleted:
            raise
        # Its settings cannot be changed any more.
        text = "topic %r is deleted, and its table in a catalog still shows its rows: %s"
        log(_LOG, logging.WARNING, "tables_not_emptied", text, topic.topic, error, topic=topic.topic)
        return 0
    raise CatalogError(
        f"topic {topic.topic!r}: other programs changed {place.text} each time in {_MAX_ROUNDS} rounds, so it does not "
        "show the newest publication. hint: publish again"
    )


def view_of_catalog(runtime: Runtime, topic: TopicMetadata, retention_ms: int) -> CatalogView | None:
    """Return what vacuum must know of a topic's table in a catalog; None without a catalog or an answer (C17).

    Versions that were replaced less than `retention_ms` ago have readers.
    """
    try:
        # Also after the publication has ended: when the table is dropped, its objects may go.
        place = _named_place(runtime.settings.topic_config(topic), topic.topic)
        if place is None:
            return None
        library = _catalog_library()
        with _asking(topic.topic, place):
            handle = library.load(library.open_catalog(place.catalog), place.identifier)
        if handle is None or _is_of_another(topic, handle):
            return CatalogView(folder=None)
        found = _own(runtime, topic.topic, place, handle)
    except (CatalogError, InvalidRequestError, TableConflictError) as error:
        text = "topic %r: vacuum leaves the objects of its table in a catalog: %s"
        log(_LOG, logging.WARNING, "catalog_not_vacuumed", text, topic.topic, error, topic=topic.topic)
        return None
    return CatalogView(
        folder=found.table.folder.removeprefix(CATALOG_FOLDER),
        table=found.table,
        number=found.number,
        digest=found.digest,
        # Clocks of publishers differ from that by which vacuum keeps publications.
        lists=found.lists_since(runtime.clock.now_ms() - retention_ms + 2 * MAX_CLOCK_ERROR_MS),
        is_empty=found.is_empty,
        metadata_files=found.metadata_files,
    )


# -- details ----------------------------------------------------------------------------------------------------------


def _named_place(config: TopicConfig, topic: str) -> Place | None:
    if config.publish_catalog is None:
        return None
    name = config.publish_table
    identifier = ("txlog", topic) if name is None else tuple(name.split("."))
    return Place(catalog=config.publish_catalog, identifier=identifier)


class _Follower:
    def __init__(
        self,
        runtime: Runtime,
        topic: TopicMetadata,
        place: Place,
        known: dict[int, Tables],
        prepared: dict[str, Prepared],
        way: Way,
    ) -> None:
        self._runtime = runtime
        self._topic = topic
        self._place = place
        self._known = known
        self._prepared = prepared
        self._way = way
        self._config = runtime.settings.topic_config(topic)
        self._has_copies = self._config.publish_files == "copy"
        """Whether the table shall name copies, not files of the log."""
        self._library = _catalog_library()
        with _asking(topic.topic, place):
            self._catalog = self._library.open_catalog(place.catalog)
        self.commits = 0
        self._is_taken = False
        """Whether the catalog would not register a table, because something has its name."""

    def step(self) -> bool:
        """Take one step. Return whether the catalog's table shows the newest publication."""
        name, place = self._topic.topic, self._place
        began_ms = self._runtime.clock.monotonic_ms()
        newest = self._known[max(self._known)]
        with _asking(name, place):
            handle = self._library.load(self._catalog, place.identifier)
        if handle is None or _is_of_another(self._topic, handle):
            return self._topic.deleted or self._register(newest, began_ms)
        self._prepared.pop(name, None)
        found = _own(self._runtime, name, place, handle)
        if found.number > newest.number:
            chain = self._runtime.run(read_chain(name))
            self._known = {each.number: each for each in chain.tables}
            if max(self._known, default=-1) < found.number:
                raise _conflict(name, place, f"it shows publication {found.number}, and the store has none so new")
            return False
        before = self._at(found, newest)
        if found.number == newest.number:
            if found.table.has_copies == self._has_copies or self._topic.deleted:
                return True
            made = self._way.again()
            self._known |= {} if made is None else {made.number: made}
            return False
        if found.newest_sequence_number > found.table.sequence_number(found.number):
            self._bring_forward(found, before, newest, began_ms)
            return False
        ahead = [number for number in sorted(self._known) if number > found.number]
        is_near = before is not None and ahead == list(range(found.number + 1, newest.number + 1))[:_MAX_STEPS]
        after = self._known[ahead[0]] if is_near else newest
        try:
            self._commit(found, before, after, began_ms)
        except MissingObjectError:
            # Vacuum may have deleted files that only publications before the newest one name.
            if after is newest:
                raise
            self._commit(found, before, newest, began_ms)
        return False

    def _at(self, found: InCatalog, newest: Tables) -> Tables | None:
        """Return the tables that the catalog's table shows; None if the store has deleted their publication.

        The publications behind it are read, too, if they are few.
        """
        number = found.number
        if number not in self._known:
            last = newest.number if newest.number - number <= _MAX_STEPS else number
            try:
                chain = self._runtime.run(read_publications(self._topic.topic, first_whole(number), last))
            except MissingObjectError:
                return None
            self._known = {each.number: each for each in chain.tables if each.number >= number} | self._known
        tables = self._known[number]
        if tables.digest != found.digest:
            raise _conflict(self._topic.topic, self._place, f"its publication {number} is not that of the store")
        return tables

    def _bring_forward(self, found: InCatalog, before: Tables | None, newest: Tables, began_ms: int) -> None:
        """Bring a table to the newest publication that another program has put back to an older version."""
        if newest.number in found.lists and found.table.has_copies == self._has_copies:
            with _asking(self._topic.topic, self._place):
                is_done = self._library.put_forward(self._catalog, found, newest.number)
            self._tell(newest, is_done=is_done)
        elif found.table.sequence_number(newest.number) > found.newest_sequence_number:
            self._commit(found, before, newest, began_ms)
        else:
            why = "another program has put it back to an older version, and it does not have the newest one any more"
            raise _conflict(self._topic.topic, self._place, why)

    def _register(self, after: Tables, began_ms: int) -> bool:
        runtime, name = self._runtime, self._topic.topic
        if self._is_taken:
            raise _conflict(name, self._place, "the catalog has the name, and gives no Iceberg table for it")
        with _asking(name, self._place):
            # Before anything is copied: the catalog may refuse this process.
            self._library.make_namespace(self._catalog, self._place.identifier[:-1])
        prepared = self._prepared.pop(name, None)
        shows = (after.digest, self._has_copies, self._place)
        if prepared is None or prepared.shows != shows or not self._is_young(prepared.began_ms):
            prepared = Prepared(table_id=runtime.ids.new_id(), shows=shows, began_ms=began_ms)
        table = IcebergTable(
            topic=name,
            table_id=prepared.table_id,
            first=after.number,
            url=canonical_url(runtime.where),
            folder=f"{CATALOG_FOLDER}{prepared.table_id}/",
            has_copies=self._has_copies,
        )
        data = self._write(table, None, None, after)
        path = self._library.first_metadata(table)
        runtime.run(put_pure(Context(), table.path(path), data))
        self._check_age(prepared.began_ms)
        self._prepared[name] = prepared
        with _asking(name, self._place):
            is_done = self._library.register(self._catalog, self._place.identifier, table, path)
        self._is_taken = not is_done
        self._tell(after, is_done=is_done)
        return bool(is_done)

    def _commit(self, found: InCatalog, before: Tables | None, after: Tables, began_ms: int) -> None:
        table = replace(found.table, has_copies=self._has_copies)
        data = self._write(table, found, before, after)
        self._check_age(began_ms)
        with _asking(self._topic.topic, self._place):
            is_done = self._library.commit(self._catalog, found, data)
        self._tell(after, is_done=is_done)

    def _write(self, table: IcebergTable, found: InCatalog | None, before: Tables | None, after: Tables) -> bytes:
        """Write what a version of the table names. Return its metadata file."""
        runtime, files = self._runtime, iceberg_library()
        columns, written = self._way.columns(after)
        metadata = None if found is None else found.metadata
        schema = self._library.schema_in(metadata, files.columns(columns))
        if table.has_copies:
            runtime.run(_write_copies(table, after))
        lines: Sequence[Any] = ()
        if found is not None and before is not None and found.table == table:
            lines = runtime.run(_kept_lines(files, found, schema))
        begins = found is not None and found.table.has_copies != table.has_copies
        if metadata is not None and begins:
            # While the table names copies, no version that names files of the log may be left: a program may delete all
            # that the table's versions name (W60). So this version begins a new history, which adds all files.
            metadata, before = {**metadata, "snapshots": []}, None
        parent = None if metadata is None else metadata["current-snapshot-id"]
        path, summary = runtime.run(write_lists(files, table, schema, before, after, lines, parent, begins=begins))
        made: bytes = files.metadata(
            table,
            metadata,
            after,
            columns,
            written,
            path,
            summary,
            self._config.publish_retention_ms,
            schema,
            self._library.properties(table),
            # Readers of the catalog see it from now on, so the age of the version before it counts from now (C17).
            max(after.newest.created_at, runtime.clock.now_ms()),
        )
        return made

    def _check_age(self, began_ms: int) -> None:
        """Vacuum takes objects that nothing names after the grace, and this process may have slept since (W60)."""
        if not self._is_young(began_ms):
            raise CatalogError(
                f"topic {self._topic.topic!r}: writing a version of {self._place.text} took more than half of "
                "delete.grace.ms, so its files may be gone. hint: publish again"
            )

    def _is_young(self, began_ms: int) -> bool:
        return self._runtime.clock.monotonic_ms() - began_ms < self._runtime.constants.delete_grace_ms // 2

    def _tell(self, after: Tables, *, is_done: bool) -> None:
        self.commits += is_done
        text = "topic %r: %s shows publication %d" if is_done else "topic %r: another program changed %s before %d"
        event = "catalog_followed" if is_done else "catalog_conflict"
        log(
            _LOG, logging.INFO, event, text, after.newest.topic, self._place.text, after.number, topic=self._topic.topic
        )


def _write_copies(table: IcebergTable, after: Tables) -> Program[None]:
    """Copy the files of a publication that have no copy yet. One LIST shows which."""
    there = {DATA_FOLDER + name for name in (yield List(table.path(DATA_FOLDER)))}
    for path in sorted(after.files):
        if copy_name(path) not in there:
            data = yield Get(f"{table.topic}/{path}")
            if data is None:
                raise MissingObjectError(
                    f"{table.topic}/{path}: publication {after.number} names this file, and it is missing, so the "
                    "table in the catalog cannot have a copy. hint: check the store with `txlog fsck`"
                )
            yield from put_pure(Context(), table.path(copy_name(path)), data)


def _kept_lines(files: Any, found: InCatalog, schema: Any) -> Program[Sequence[Any]]:
    """Return the manifests of the table that the next version may name, too."""
    if files.has_other_types(found.metadata, schema):
        return ()
    path = found.table.path(found.lists[found.number])
    data = yield Get(path)
    try:
        lines: Sequence[Any] = () if data is None else files.read_manifest_list(data, path)
    except CorruptRecordError:
        return ()  # the next version has no need of it
    there = {*(yield List(found.table.path(FOLDER)))}
    # Vacuum may have deleted some, if the table is far behind.
    return lines if all(each.manifest_path.rpartition("/")[2] in there for each in lines) else ()


def _is_of_another(topic: TopicMetadata, handle: Any) -> bool:
    """Return whether the name of a deleted topic's table belongs to another table now, which nobody can settle."""
    return topic.deleted and f"/{topic.topic}/{CATALOG_FOLDER}" not in handle.location()


def _own(runtime: Runtime, topic: str, place: Place, handle: Any) -> InCatalog:
    found: InCatalog | None = None
    why = f"its location is {handle.location()}: it is not that of this topic, or another program has committed to it"
    try:
        found = _catalog_library().in_catalog(handle, topic, canonical_url(runtime.where))
    except Exception as error:
        raise _conflict(topic, place, f"{why} ({shorten(str(error), 80)})") from error
    if found is None:
        raise _conflict(topic, place, why)
    return found


def _conflict(topic: str, place: Place, why: str) -> TableConflictError:
    return TableConflictError(
        f"topic {topic!r}: {place.text} cannot follow the publications: {why}. "
        "hint: if it belongs to another store or program, set another publish.table; otherwise drop it from the "
        "catalog, and the next publication registers it again"
    )


@contextmanager
def _asking(topic: str, place: Place) -> Iterator[None]:
    """Raise CatalogError for whatever a catalog raises."""
    try:
        yield
    except TxlogError:
        raise
    except Exception as error:
        raise CatalogError(
            f"topic {topic!r}: {place.text} does not show the newest publication: "
            f"{type(error).__name__}: {shorten(' '.join(str(error).split()), 200)}. "
            "hint: look at pyiceberg's configuration of the catalog, and at the catalog. Drop the table there if its "
            "metadata file is gone. The log and the tables that are read by path have the rows, and the next call of "
            "publish repeats this"
        ) from error


def _catalog_library() -> Any:
    iceberg_library()
    # Imported here, because it needs pyiceberg.
    from txlog.publication import catalog_table

    return catalog_table
