"""Which objects of a format may vacuum delete, because no version that it keeps needs them?

While a topic is published, its publications show what a version needs. Only the newest metadata file of Iceberg's
table is read, because names depend on the table's id (PROTOCOL.md, C14). Names that txlog does not write stay (W59).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from txlog.core import names
from txlog.core.effects import Get, List, Program
from txlog.core.publication import Tables
from txlog.core.vacuum import Dead, Kind, Why
from txlog.protocol.context import Context
from txlog.protocol.publications import newest_number
from txlog.protocol.requests import many, modified
from txlog.protocol.vacuum_published import KeptVersions
from txlog.publication.deletion_vectors import VECTOR_FOLDER
from txlog.publication.delta import LAST_CHECKPOINT, LOG_FOLDER, hinted_version, vector_objects
from txlog.publication.iceberg import named_manifests, names_in_list
from txlog.publication.iceberg_names import CATALOG_FOLDER, DATA_FOLDER, FOLDER, HINT, IcebergTable, copy_name

_VERSION = re.compile(r"(?P<version>\d{20})\.(?P<kind>json|checkpoint\.parquet)\Z", re.ASCII)
_METADATA = re.compile(
    r"(?:v(?P<version>\d{1,19})\.metadata\.json|snap-(?P<snapshot>\d{1,19})(?:-[0-9a-f]{16})?\.avro|"
    r"m(?P<group>\d{1,19})-(?P<number>\d{1,19})-[0-9a-f]{16}(?:-deletes)?\.avro|"
    r"d(?P<since>\d{1,19})-[0-9a-f]{32}\.parquet)\Z",
    re.ASCII,
)
_OF_CATALOG = re.compile(r"\d{5,}-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\.metadata\.json\Z", re.ASCII)
"""The names that catalogs give to their metadata files."""
_IN_CATALOG = re.compile(r"[0-9a-f]{32}/\Z", re.ASCII)
_VECTOR = re.compile(r"deletion_vector_[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\.bin\Z", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogView:
    """What the catalog of a topic had before the pass planned anything."""

    folder: str | None
    """The folder of the topic's table, in the folder of such tables; None if the catalog has no such table."""
    table: IcebergTable | None = None
    number: int = -1
    """The publication that it shows."""
    digest: str = ""
    """The digest of that publication."""
    lists: Mapping[int, str] = field(default_factory=dict)
    """The list of manifests of each version that has readers, by publication, relative to the table's folder."""
    is_empty: bool = False
    """Whether the newest version has no file."""
    metadata_files: Collection[str] = ()
    """Names of the metadata files that it may need."""


def expired_objects(ctx: Context, kept: KeptVersions, catalog: CatalogView | None = None) -> Program[tuple[Dead, ...]]:
    """Return the dead objects of the formats. Costs a LIST and a GET each, and a request for each one that may be
    dead.

    Without an answer of the `catalog` nothing of its table is dead (C17).
    """
    of_catalog = () if catalog is None else (yield from _catalog(ctx, kept, catalog))
    if kept.are_gone:
        return (*(yield from _tables(kept)), *(yield from _vectors(ctx, kept)), *of_catalog)
    return (
        *(yield from _versions(ctx, kept)),
        *(yield from _vectors(ctx, kept)),
        *(yield from _iceberg(ctx, kept)),
        *of_catalog,
    )


def _versions(ctx: Context, kept: KeptVersions) -> Program[list[Dead]]:
    """Return versions of a Delta log, and their checkpoints, that lie below the checkpoint from which readers go on.

    That is one at or below the oldest publication that exists. A reader of a kept version does not need what lies
    below. A publisher may have died before it named its checkpoint, and readers begin at the named one.
    """
    first = kept.tables[-1].newest.formats.get("delta")
    if first is None or kept.oldest <= first:
        return []
    folder = f"{kept.topic}/{LOG_FOLDER}"
    found = [match for name in (yield List(folder)) if (match := _VERSION.match(name))]
    hint = yield Get(folder + LAST_CHECKPOINT)
    limit = min(kept.oldest - first, kept.oldest if hint is None else hinted_version(hint))
    old = [match[0] for match in found if match["kind"] != "json" and int(match["version"]) <= limit]
    aged = yield from _aged(ctx, kept, folder, old)
    # A name begins with its version, in 20 digits.
    last = max(aged, default="")[:20]
    return [
        Dead(path=folder + match[0], kind=Kind.TABLE, why=Why.OLD_PUBLICATION)
        for match in found
        if match["version"] < last
    ]


def _tables(kept: KeptVersions) -> Program[list[Dead]]:
    """Return all objects of tables that have ended. Until a later pass, those of the newest versions stay.

    So no reader finds an older version, with rows.
    """
    log: Sequence[str] = yield List(f"{kept.topic}/{LOG_FOLDER}")
    metadata: Sequence[str] = yield List(f"{kept.topic}/{FOLDER}")
    every, old = _own_of(log, metadata)
    # A topic that was created again may have begun a table before the LIST, and its publication before that.
    if not every or (yield from newest_number(kept.topic)) != kept.tables[-1].number:
        return []
    return [Dead(path=f"{kept.topic}/{path}", kind=Kind.TABLE, why=Why.NOT_PUBLISHED) for path in old or every]


def _own_of(log: Sequence[str], metadata: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return all objects of tables in their folders, and those of older versions, by their paths below the topic's."""
    every: list[str] = []
    old: list[str] = []
    for folder, listed, pattern, hint in (
        (LOG_FOLDER, log, _VERSION, LAST_CHECKPOINT),
        (FOLDER, metadata, _METADATA, HINT.removeprefix(FOLDER)),
    ):
        own = [match for each in listed if (match := pattern.match(each))]
        # A group of manifests has the version that readers may begin with.
        versions = {folder + match[0]: int(match["version"]) for match in own if match["version"]}
        every += [folder + match[0] for match in own]
        every += [folder + each for each in listed if each == hint]
        old += [path for path, version in versions.items() if version < max(versions.values())]
    return every, old


def _vectors(ctx: Context, kept: KeptVersions) -> Program[list[Dead]]:
    folder = f"{kept.topic}/{VECTOR_FOLDER}/"
    listed = [name for name in kept.listed if _VECTOR.match(name)]
    if not listed:
        return []
    named = vector_objects(kept.tables)
    rest = [name for name in listed if f"{VECTOR_FOLDER}/{name}" not in named]
    aged = yield from _aged(ctx, kept, folder, rest)
    return [Dead(path=folder + name, kind=Kind.TABLE, why=Why.NOT_PUBLISHED) for name in aged]


def _iceberg(ctx: Context, kept: KeptVersions) -> Program[list[Dead]]:
    """Return metadata of Iceberg that only versions name which are not kept.

    The oldest kept version names all older manifests that newer versions name, too. Publishers that died may have left
    others.
    """
    first = kept.tables[-1].newest.formats.get("iceberg")
    if first is None:
        return []
    own = [tables for tables in kept.tables if tables.number >= first]
    hint = yield Get(f"{kept.topic}/{HINT}")
    oldest = own[0].number
    if hint is None or not hint.isdigit() or first + int(hint) - 1 < oldest:
        return []  # readers begin at the version that the hint names, and the next publisher mends it
    found = yield from named_manifests(own[0])
    if found is None:
        return []
    table, manifests = found
    folder = f"{kept.topic}/{FOLDER}"
    listed = [match for name in (yield List(folder)) if (match := _METADATA.match(name))]
    is_dead = _judge(table, [tables.number for tables in own], own, oldest, manifests)
    aged = yield from _aged(ctx, kept, folder, [match[0] for match in listed if is_dead(match)])
    return [Dead(path=folder + name, kind=Kind.TABLE, why=Why.OLD_PUBLICATION) for name in aged]


def _catalog(ctx: Context, kept: KeptVersions, catalog: CatalogView) -> Program[list[Dead]]:
    """Return what no version needs that the catalog has, or that a publisher may bring it to."""
    dead: list[Dead] = []
    for folder in (yield List(f"{kept.topic}/{CATALOG_FOLDER}")):
        path, why = f"{kept.topic}/{CATALOG_FOLDER}{folder}", Why.NOT_PUBLISHED
        found: Sequence[str] = yield from _all_of(kept.topic, folder)
        if catalog.folder is None and not kept.are_gone and not _was_never_registered(kept, folder, found):
            # The table was dropped, or this process asks another catalog than the publishers do.
            continue
        if folder == catalog.folder:
            # Otherwise the table was dropped, or its publisher was not the first to register one.
            found, why = (yield from _unused(kept, catalog, found)), Why.OLD_PUBLICATION
        aged = yield from _aged(ctx, kept, path, found)
        dead += [Dead(path=path + name, kind=Kind.TABLE, why=why) for name in aged]
    return dead


def _all_of(topic: str, folder: str) -> Program[list[str]]:
    """Return the objects of a table in a catalog, relative to its folder, without those that others put there (W59)."""
    path = f"{topic}/{CATALOG_FOLDER}{folder}"
    if not _IN_CATALOG.match(folder):
        return []
    copies = [DATA_FOLDER + name for name in (yield List(path + DATA_FOLDER)) if _is_copy(name)]
    metadata = yield List(path + FOLDER)
    return copies + [FOLDER + name for name in metadata if _METADATA.match(name) or _OF_CATALOG.match(name)]


def _was_never_registered(kept: KeptVersions, folder: str, found: Sequence[str]) -> bool:
    """Return whether a catalog that refused a table has left its objects: an older publication, and no commit."""
    table_id = folder.rstrip("/")
    numbers = (tables.number for tables in kept.tables)
    first = (IcebergTable(topic=kept.topic, table_id=table_id, first=number, url="") for number in numbers)
    young = {f"{FOLDER}snap-{each.snapshot_id(each.first)}-" for each in first}
    return not any(
        name.rpartition("-")[0] + "-" in young
        or (_OF_CATALOG.match(name.removeprefix(FOLDER)) and not name.startswith(f"{FOLDER}00000-"))
        for name in found
    )


def _is_copy(name: str) -> bool:
    path = name.replace("~", "/")
    segment = names.parse_partition_object(path.rpartition("/")[2])
    return (
        names.parse_rows_path(path) is not None
        or names.parse_published_copy_path(path) is not None
        or (isinstance(segment, names.SegmentObject) and segment.kind == "parquet")
    )


def _unused(kept: KeptVersions, catalog: CatalogView, listed: Sequence[str]) -> Program[list[str]]:
    """Return those of the objects in the table's folder that no version with readers needs, nor a later one."""
    table = catalog.table
    assert table is not None  # the catalog has it
    if kept.are_gone and not catalog.is_empty:
        return []  # its readers have no newer version until the table is dropped
    oldest = min(catalog.lists)
    data = yield Get(table.path(catalog.lists[oldest]))
    manifests = None if data is None else names_in_list(data, catalog.lists[oldest])
    if manifests is None:
        return []
    known = {tables.number: tables for tables in kept.tables}
    if catalog.number in known and known[catalog.number].digest != catalog.digest:
        return []  # the store was put back to an earlier state, and a publisher refuses the table
    # Which files an older version names is not known any more.
    keeps_all = len(catalog.lists) > 1 if kept.are_gone else not catalog.lists.keys() <= known.keys()
    needed = {FOLDER + name for name in catalog.metadata_files}
    needed |= {copy_name(path) for tables in kept.tables for path in tables.files}
    is_dead = _judge(table, {*known, *catalog.lists}, kept.tables, oldest, manifests)

    def is_unused(name: str) -> bool:
        match = _METADATA.match(name.removeprefix(FOLDER))
        if match is not None:
            # Rows that are left out of files belong to these.
            return is_dead(match) and not (keeps_all and match["since"])
        return name not in needed and not (keeps_all and name.startswith(DATA_FOLDER))

    return [name for name in listed if is_unused(name)]


def _judge(
    table: IcebergTable, numbers: Collection[int], versions: Sequence[Tables], oldest: int, manifests: Collection[str]
) -> Callable[[re.Match[str]], bool]:
    """Return what tells whether metadata of a table are dead, by their names.

    The versions of the publications `numbers` are kept, of which `versions` are known. `manifests` are those that
    version `oldest` names.
    """
    newest = max(numbers)
    partial = {file.since for tables in versions for file in tables.files.values() if file.is_partial}
    snapshots = {table.snapshot_id(number) for number in numbers}

    def is_dead(match: re.Match[str]) -> bool:
        if match["snapshot"]:
            return int(match["snapshot"]) not in snapshots
        if match["version"]:
            return table.first + int(match["version"]) - 1 < oldest
        if match["since"]:
            return int(match["since"]) <= newest and int(match["since"]) not in partial
        return int(match["number"]) <= oldest and match[0] not in manifests

    return is_dead


def _aged(ctx: Context, kept: KeptVersions, folder: str, some: Sequence[str]) -> Program[list[str]]:
    """Return those of the objects that the store has had for the grace."""
    times_ms = yield from many([modified(folder + name) for name in some])
    grace_ms = ctx.vacuum_grace_ms
    return [
        name
        for name, at_ms in zip(some, times_ms, strict=True)
        if at_ms is not None and kept.now_ms - at_ms >= grace_ms
    ]
