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


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishRetention:
    """How long the replaced versions of a topic's tables are kept."""

    retention_ms: int
    is_ended: bool = False
    """Whether the topic is not published any more. Then its newest version is kept no longer than the others."""
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

    If the newest publication is older than the grace, one that changes nothing is appended first, except in a dry run:
    it takes the number that a publisher may use which has slept since before the files were superseded.
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
        late = newest_ms is None or now_ms - newest_ms >= ctx.constants.delete_grace_ms
        ends = kept.is_ended and bool(recent[-1].newest.formats)
        # A topic that is not published any more needs this once: its files go by the age of that publication.
        if ends or (late and not kept.is_ended):
            made = yield from _append_nothing(ctx, recent[-1], ends=ends)
            listed = yield List(folder)
            numbers, copies = _parsed(listed)
            newest = numbers[-1]
            recent = (
                [*recent, made] if made is not None and made.number == newest else (yield from _recent(topic, numbers))
            )
    horizon_ms = now_ms - kept.retention_ms
    # The formats are those of the newest publication that has some: the last one of a topic has none.
    formats = next((each.newest.formats for each in reversed(recent) if each.newest.formats), {})
    ended = None if recent[-1].newest.formats else newest

    def shown_ms(number: int) -> Program[int | None]:
        return (yield from _shown_ms(topic, number, {} if number == ended else formats))

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
    written = oldest > numbers[0] and (yield from _is_written(chain[0]))
    dead = [
        Dead(path=names.publication_path(topic, number), kind=Kind.PUBLICATION, why=Why.OLD_PUBLICATION)
        for number in numbers
        if number < oldest and written
    ]
    dead += [
        Dead(path=f"{topic}/{path}", kind=Kind.ROWS, why=Why.NOT_PUBLISHED)
        for path, number in copies.items()
        if number <= newest and path not in until_ms
    ]
    needed = tuple(each for each in chain if each.number >= min(first, newest))
    versions = KeptVersions(topic=topic, now_ms=now_ms, listed=tuple(listed), oldest=numbers[0], tables=needed)
    dead += yield from kept.expired(ctx, versions)
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


def _shown_ms(topic: str, number: int, formats: Mapping[FormatName, int]) -> Program[int | None]:
    """Return when the last of these formats got the version of a publication; None if one has not got it yet.

    Without a format that has such a version, return when the store got the publication itself.
    """
    paths = [
        names.table_version_path(name, topic, number - first) for name, first in formats.items() if first <= number
    ]
    found = yield from many([modified(path) for path in paths or [names.publication_path(topic, number)]])
    return max((each for each in found if each is not None), default=None) if None not in found else None


def _is_written(tables: Tables) -> Program[bool]:
    """Return whether the formats of a publication are written. If not, a publisher needs the publications before it."""
    found = yield from many([get(tables.path_of(name)) for name in tables.newest.formats])
    return None not in found


def _append_nothing(ctx: Context, before: Tables, *, ends: bool) -> Program[Tables | None]:
    """Append a publication that changes nothing, or one without formats if the publication `ends`.

    If another process takes the number, that serves as well, and the result is None.
    """
    publication: Publication = msgspec.structs.replace(
        before.newest,
        number=before.number + 1,
        operation="replace",
        formats={} if ends else before.newest.formats,
        added=(),
        removed=(),
        whole=False,
        created_at=(yield Now()),
        write_id=(yield NewId()),
        previous=before.digest,
    )
    return (yield from append_publication(ctx, before, publication))
