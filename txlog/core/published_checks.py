"""Can a stored publication be what a publisher has decided?

Its checksum only shows that its bytes are those that somebody wrote. Vacuum keeps the files that publications name and
deletes others, and formats name them to programs that trust them. So a publication that no publisher can have made is
refused before anything is written or deleted (PROTOCOL.md, R3, C13, invariant 18).
"""

from __future__ import annotations

from collections.abc import Sequence

from txlog.core import envelope, names
from txlog.core.publication import Tables, fold
from txlog.core.records.publications import Publication, PublishedFile, RowRun
from txlog.core.row_runs import count_rows, removed_from
from txlog.errors import CorruptRecordError


def follow(before: Tables | None, publication: Publication, digest: str, path: str) -> Tables:
    """Return the tables after the publication at `path`, which has this `digest`.

    `before` are the tables one publication earlier. None: they are not known, or this is the first one. Then it must be
    `whole`. Raises CorruptRecordError, which names `path`, for a publication that is not the one of its path, or that
    cannot follow `before`.
    """
    why = why_not_next(before, publication, path)
    if why is not None:
        raise CorruptRecordError(
            f"{path}: {why}. hint: restore this object from a backup; vacuum deletes nothing of the topic until then"
        )
    return fold(before, publication, digest)


def why_not_next(before: Tables | None, publication: Publication, path: str) -> str | None:
    """Return why a publication cannot be the one at `path` that follows `before`; None if it can."""
    number = publication.number
    if path != names.publication_path(publication.topic, number):
        return f"it says publication {number} of topic {publication.topic!r}; an object was swapped or copied"
    if before is not None and publication.previous != before.digest:
        return (
            f"it follows a publication with digest {publication.previous[:12]}…, and {before.number} has "
            f"{before.digest[:12]}…; one of the two was replaced"
        )
    if before is None and not publication.whole:
        return "it builds on the publication before it, which is not known"
    if number == 0 and publication.previous != envelope.digest(publication.topic.encode()):
        return "it is the first publication, and follows another one"
    if before is not None and publication.topic_id != before.newest.topic_id:
        return f"it has topic_id {publication.topic_id}, and the one before {before.newest.topic_id}"
    for name, first in publication.formats.items():
        # A format that comes back begins a new table.
        known = None if before is None else before.newest.formats.get(name, number)
        if first > number or first != (first if known is None else known):
            return f"format {name} begins at publication {first}, expected {number if known is None else known}"
    return (
        _why_cut(before, publication)
        or _why_list(before, publication)
        or next((why for file in publication.added if (why := _why_file(publication, file)) is not None), None)
    )


def _why_cut(before: Tables | None, publication: Publication) -> str | None:
    then = () if before is None else before.newest.partitions
    if len(publication.partitions) < len(then):
        return f"its cut has {len(publication.partitions)} partitions, and the one before has {len(then)}"
    for number, (now, earlier) in enumerate(zip(publication.partitions, then, strict=False)):
        if now.end_offset < earlier.end_offset:
            return (
                f"its cut of partition {number} ends at offset {now.end_offset}, and the one "
                f"before at {earlier.end_offset}"
            )
    for number, now in enumerate(publication.partitions):
        least = 0
        for run in now.hidden:
            if not least <= run.first_offset < min(run.end_offset, now.end_offset):
                return (
                    f"it hides offsets {run.first_offset} to {run.end_offset} of partition {number}, and they are not "
                    f"in order below {now.end_offset}"
                )
            least = run.end_offset
    return None


def _why_list(before: Tables | None, publication: Publication) -> str | None:
    added, removed = {file.path for file in publication.added}, set(publication.removed)
    if len(added) < len(publication.added) or len(removed) < len(publication.removed) or added & removed:
        return "it names a file twice"
    if not publication.whole and before is not None and (lost := sorted(removed - before.files.keys())):
        return f"it removes {lost[0]!r}, which the tables do not have"
    return None


def _why_file(publication: Publication, file: PublishedFile) -> str | None:
    if file.partition >= len(publication.partitions):
        return (
            f"it names {file.path!r} of partition {file.partition}, and its cut has "
            f"{len(publication.partitions)} partitions"
        )
    copied_for = names.parse_published_copy_path(file.path)
    try:
        names.check_data_path(publication.topic, file.partition, file.source or file.path)
    except CorruptRecordError:
        return f"it names {file.source or file.path!r}, which cannot belong to partition {file.partition}"
    if file.source and (copied_for is None or copied_for > publication.number):
        return f"it names {file.path!r} as a copy, which is not a name of one"
    if not file.since <= file.group <= publication.number:
        return (
            f"it names {file.path!r} of publication {file.since} in the list of {file.group}, which is not "
            f"possible in {publication.number}"
        )
    if not _are_in_order(file.removed, file.rows):
        return f"the removed rows of {file.path!r} are not in order below {file.rows}"
    try:
        removed_from(file)
    except ValueError as error:
        return f"the removed rows of {file.path!r} are damaged: {error}"
    copied = count_rows(file.source_rows)
    if not _are_in_order(file.source_rows, 2**48) or copied != (file.rows if file.source else 0):
        return f"{file.path!r} has {file.rows} rows, and is a copy of {copied} rows of {file.source!r}"
    return None


def _are_in_order(rows: Sequence[RowRun], end_row: int) -> bool:
    least = 0
    for run in rows:
        if not least <= run.first_row < run.end_row <= end_row:
            return False
        least = run.end_row
    return True
