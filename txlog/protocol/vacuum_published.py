"""Which files must stay because a published table names them, and which objects of publications may go?

A reader of a published table is a reader: he may use the newest version that is in his format, and every one that was
replaced there less than `publish.retention.ms` ago (PROTOCOL.md, C13). A publisher may die between a publication and
its formats. So what counts is when the formats were written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from txlog.core import names
from txlog.core.effects import List, Modified, NewId, Now, Program
from txlog.core.publication import Tables
from txlog.core.records import Publication
from txlog.core.records.publications import FormatName
from txlog.core.vacuum import NOT_KNOWN_YET, Dead, Kind, Why
from txlog.protocol.context import Context
from txlog.protocol.publications import append_publication, first_whole, read_publications
from txlog.protocol.requests import get, many, modified


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptVersions:
    """What of a topic's publications stays."""

    topic: str
    now_ms: int
    """The store's time, before the pass planned anything."""
    listed: tuple[str, ...] = field(repr=False)
    """The names in the folder of the publications."""
    oldest: int
    """The lowest publication that existed when the pass began."""
    tables: tuple[Tables, ...] = field(repr=False)
    """The versions that readers may use, and the newest one."""
    are_gone: bool
    """Whether the tables have ended, and no reader may use a version with rows any more (C14)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishRetention:
    """How long the replaced versions of a topic's tables are kept."""

    retention_ms: int
    is_ended: bool = False
    """Whether the topic is not published any more. Then its newest version is kept no longer than the others."""
    deleted_version: int | None = None
    """The version that deleted the topic, if it was published then (C16)."""
    expired: Callable[[Context, KeptVersions], Program[tuple[Dead, ...]]]
    """Finds the dead objects of the formats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptFiles:
    """What the publications of a topic keep from being deleted, and what of them is dead."""

    until_ms: Mapping[str, int] = field(default_factory=dict, repr=False)
    """Path relative to the topic's folder -> when it may go, at the earliest."""
    dead: tuple[Dead, ...] = ()

    def judge(self, topic: str, dead: Dead) -> Dead:
        """Return `dead`, which waits if a published table names it."""
        until_ms = self.until_ms.get(dead.path.removeprefix(f"{topic}/"))
        if until_ms is None or dead.kind not in (Kind.ROWS, Kind.SEGMENT_ROWS):
            return dead
        return replace(dead, waits_until_ms=max(until_ms, dead.waits_until_ms or 0))


def kept_files(ctx: Context, topic: str, kept: PublishRetention, *, now_ms: int, dry_run: bool) -> Program[KeptFiles]:
    """Read which files the publications of a topic name. It must be called after its chains were read (C8).

    If the newest publication is older than the grace, one that changes nothing is appended first, except in a dry run.
    A publisher that has slept since before the files were superseded would take this number. The tables of a topic that
    is not published any more get their last publications.
    """
    folder = f"{topic}/{names.PUBLICATION_FOLDER}"
    listed = yield List(folder)
    numbers, copies = _parsed(listed)
    if not numbers:
        return KeptFiles()
    newest = numbers[-1]
    newest_ms: int | None = yield Modified(names.publication_path(topic, newest))
    recent = yield from _recent(topic, numbers)
    if not dry_run:
        age_ms = None if newest_ms is None else now_ms - newest_ms
        late = age_ms is None or age_ms >= ctx.vacuum_grace_ms
        is_due = late and not kept.is_ended
        if is_due and ctx.without_grace:
            # No publisher sleeps, but values of rows may have to go. One that is not written keeps all before it.
            is_due = _has_removed(recent) and (yield from _is_written(recent[-1]))
        changes: dict[str, object] | None = {} if is_due else None
        if kept.is_ended and recent[-1].newest.formats:
            changes = _last_changes(recent[-1], kept, is_old=late and (age_ms or 0) >= kept.retention_ms)
        if changes is not None:
            made = yield from append_nothing(ctx, recent[-1], changes)
            if made is not None and ctx.without_grace and not kept.is_ended:
                made = yield from _up_to_whole(ctx, made)
            listed = yield List(folder)
            numbers, copies = _parsed(listed)
            newest = numbers[-1]
            recent = (
                [*recent, made] if made is not None and made.number == newest else (yield from _recent(topic, numbers))
            )
    horizon_ms = now_ms - kept.retention_ms
    # The formats are those of the newest publication that has some: the last one of a topic has none.
    formats = next((each.newest.formats for each in reversed(recent) if each.newest.formats), {})
    ended = None
    for tables in reversed(recent):
        if tables.newest.formats:
            break
        ended = tables.number  # later ones change nothing

    written: dict[FormatName, int] = {}

    def shown_ms(number: int) -> Program[int | None]:
        asked = formats if ended is None or number < ended else {}
        found = yield from _shown_ms(topic, number, asked, written)
        if found is None and not written:
            # Not written yet, or deleted since.
            newest_written = yield from _newest_written(topic, numbers, formats)
            written.update(newest_written)
            found = yield from _shown_ms(topic, number, asked, written)
        return found

    # Formats are written in order, so their times rise. The version before the first young one was still shown then.
    ended_ms = None if ended is None else (yield from shown_ms(ended))
    low, high = 0, len(numbers)
    if ended_ms is not None and ended_ms <= horizon_ms:
        low = high  # also if formats of earlier publications were never written
    while low < high:
        middle = (low + high) // 2
        modified_ms = yield from shown_ms(numbers[middle])
        if modified_ms is not None and modified_ms <= horizon_ms:
            low = middle + 1
        else:
            high = middle
    first = numbers[max(low - 1, 0)] if low < len(numbers) or not kept.is_ended else newest + 1
    oldest = first_whole(min(first, newest))
    chain = [tables for tables in recent if tables.number >= oldest]
    if oldest < recent[0].number:
        earlier = yield from read_publications(topic, max(oldest, numbers[0]), recent[0].number - 1)
        chain = [*earlier.tables, *recent]
    earliest_ms = now_ms
    if first < newest:
        replaced_ms = yield from shown_ms(first + 1)
        earliest_ms = NOT_KNOWN_YET if replaced_ms is None else replaced_ms + kept.retention_ms
    until_ms: dict[str, int] = {}
    for tables in chain:
        if tables.number >= first:
            held = NOT_KNOWN_YET if tables.number == newest and not kept.is_ended else earliest_ms
            until_ms.update(dict.fromkeys(tables.files, held))
    is_written = oldest > numbers[0] and (yield from _is_written(chain[0]))
    dead = [
        Dead(path=names.publication_path(topic, number), kind=Kind.PUBLICATION, why=Why.OLD_PUBLICATION)
        for number in numbers
        if number < oldest and is_written
    ]
    dead += [
        Dead(path=f"{topic}/{path}", kind=Kind.ROWS, why=Why.NOT_PUBLISHED)
        for path, number in copies.items()
        if number <= newest and path not in until_ms
    ]
    needed = tuple(each for each in chain if each.number >= min(first, newest))
    are_gone = ended is not None and (first > newest or not any(each.files for each in needed))
    versions = KeptVersions(
        topic=topic, now_ms=now_ms, listed=tuple(listed), oldest=numbers[0], tables=needed, are_gone=are_gone
    )
    of_formats = yield from kept.expired(ctx, versions)
    dead += of_formats
    if are_gone and not of_formats and not dry_run:
        yield from _forget_files(ctx, recent[-1], is_alone=len(numbers) == 1)
    return KeptFiles(until_ms=until_ms, dead=tuple(dead))


def _parsed(listed: Iterable[str]) -> tuple[list[int], dict[str, int]]:
    """Return the numbers of the publications, in order, and the copied files, each with its publication."""
    numbers: list[int] = []
    copies: dict[str, int] = {}
    for name in listed:
        number = names.parse_publication_name(name)
        copied_for = names.parse_published_copy_name(name)
        if number is not None:
            numbers.append(number)
        elif copied_for is not None:
            copies[names.PUBLICATION_FOLDER + name] = copied_for
    return sorted(numbers), copies


def _recent(topic: str, numbers: Sequence[int]) -> Program[list[Tables]]:
    """Return the tables after each of the newest publications, from a whole one on.

    They are at least two, unless a vacuum has deleted one of the others.
    """
    newest = numbers[-1]
    first = first_whole(max(newest - 1, 0))
    if not {*range(first, newest)} <= {*numbers}:
        # A vacuum died while it deleted the publications before a whole one.
        first = first_whole(newest)
    return list((yield from read_publications(topic, first, newest)).tables)


def _shown_ms(
    topic: str, number: int, formats: Mapping[FormatName, int], written: Mapping[FormatName, int]
) -> Program[int | None]:
    """Return when the last of these formats got the version of a publication; None if one has not got it yet.

    Without a format that has such a version, return when the store got the publication itself. `written` are the newest
    publications that formats have got. Versions before them that are missing were deleted (C14), so they are old.
    """
    own = {name: first for name, first in formats.items() if first <= number}
    paths = [names.table_version_path(name, topic, number - first) for name, first in own.items()]
    found = yield from many([modified(path) for path in paths or [names.publication_path(topic, number)]])
    if own:
        found = [
            0 if each is None and number < written.get(name, 0) else each for name, each in zip(own, found, strict=True)
        ]
    return max((each for each in found if each is not None), default=None) if None not in found else None


def _newest_written(
    topic: str, numbers: Sequence[int], formats: Mapping[FormatName, int]
) -> Program[dict[FormatName, int]]:
    """Return the newest publication of which each format has the version; -1 if there is none."""
    found = {}
    for name, first in formats.items():
        folder = names.table_version_path(name, topic, 0).rpartition("/")[0] + "/"
        listed = {folder + each for each in (yield List(folder))}
        paths = {number: names.table_version_path(name, topic, number - first) for number in numbers if number >= first}
        found[name] = max((number for number, path in paths.items() if path in listed), default=-1)
    return found


def _is_written(tables: Tables) -> Program[bool]:
    """Return whether the formats of a publication are written. If not, a publisher needs the publications before it."""
    found = yield from many([get(tables.path_of(name)) for name in tables.newest.formats])
    return None not in found


def _last_changes(last: Tables, kept: PublishRetention, *, is_old: bool) -> dict[str, object] | None:
    """Return what the next publication of an ended topic changes: it has no files, or no formats. None: none is due.

    The files of the tables are deleted by its age, so it is due once.
    """
    version = kept.deleted_version
    if version is not None and last.newest.topic_version < version:
        return emptied(last, version)
    return {"formats": {}} if version is None or (is_old and last.newest.topic_version == version) else None


def emptied(last: Tables, deleted_version: int) -> dict[str, object]:
    """Return the changes of the publication that takes the rows of a deleted topic out of its tables (C16).

    Publications of a topic that was created again name a later version.
    """
    return {"topic_version": deleted_version, "removed": tuple(sorted(last.files))}


def _forget_files(ctx: Context, last: Tables, *, is_alone: bool) -> Program[None]:
    """Continue the chain of tables that are gone up to a whole publication without files.

    Publications have the lowest and highest values of the files that they list. Once the whole one is old enough, the
    others can be deleted.
    """
    if last.number == first_whole(last.number) and not last.files:
        return
    if last.files or not is_alone:
        made = yield from append_nothing(ctx, last, {"removed": tuple(sorted(last.files))})
        if made is not None:
            yield from _up_to_whole(ctx, made)


def _has_removed(recent: Sequence[Tables]) -> bool:
    """Return whether the publications since the newest whole one list files that are not in the tables any more."""
    newest = recent[-1]
    own = (tables for tables in recent if tables.number >= first_whole(newest.number))
    return any(path not in newest.files for tables in own for path in tables.files)


def _up_to_whole(ctx: Context, last: Tables) -> Program[Tables | None]:
    """Append publications that change nothing until one is whole, and return that one; None if another process appends
    one."""
    made: Tables | None = last
    while made is not None and made.number != first_whole(made.number):
        made = yield from append_nothing(ctx, made, {})
    return made


def append_nothing(ctx: Context, before: Tables, changes: Mapping[str, object]) -> Program[Tables | None]:
    """Append a publication with the same rows and cut, except for `changes` of its fields.

    If another process takes the number, the result is None.
    """
    fields: dict[str, object] = {
        "number": before.number + 1,
        "operation": "replace",
        "added": (),
        "removed": (),
        "whole": False,
        "created_at": (yield Now()),
        "write_id": (yield NewId()),
        "previous": before.digest,
        **changes,
    }
    publication: Publication = msgspec.structs.replace(before.newest, **fields)
    return (yield from append_publication(ctx, before, publication))
