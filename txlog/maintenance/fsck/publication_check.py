"""Do the publications of a topic form a chain, and do the files exist that its published tables name?"""

from __future__ import annotations

from collections.abc import Collection

from txlog.core import envelope, names
from txlog.core.publication import Tables
from txlog.core.published_checks import follow
from txlog.core.records import Publication
from txlog.errors import CorruptLogError
from txlog.maintenance.fsck.findings import Reader, reason
from txlog.protocol.publications import first_whole
from txlog.publication.iceberg_names import CATALOG_FOLDER

FORMAT_FOLDERS = ("_delta_log/", "metadata/", CATALOG_FOLDER)
"""Folders in a topic's folder that belong to the formats in which it is published."""
_LIES = "as long as a published table names it (C13)"


def check_publications(reader: Reader, topic: str) -> None:
    """Check the publications that are needed to know the newest tables, and the files of these."""
    folder = f"{topic}/{names.PUBLICATION_FOLDER}"
    listed = reader.list(folder)
    numbers = _numbers(listed)
    if not numbers:
        return
    newest = max(numbers)
    needed = range(first_whole(newest), newest + 1)
    for number in needed:
        if number not in numbers:
            reader.findings.missing(names.publication_path(topic, number), "a publication that later ones build on")
    if any(number not in numbers for number in needed):
        return
    tables: Tables | None = None
    for path, data in reader.get_many([names.publication_path(topic, number) for number in needed]):
        publication = None if data is None else reader.decode(path, data, Publication, "publication")
        if data is None or publication is None:
            # A missing one is a vacuum's work: there is a newer whole one now.
            return
        try:
            tables = follow(tables, publication, envelope.digest(data), path)
        except CorruptLogError as error:
            reader.findings.damaged(path, "a publication that follows from the one before", reason(error, path))
            return
    if tables is not None and tables.newest.formats:
        lost = _lost(reader, topic, tables)
        # Files of a table that is not the newest any more may have gone meanwhile.
        if lost and max(_numbers(reader.list(folder)), default=-1) == newest:
            for path in lost:
                reader.findings.missing(f"{topic}/{path}", _LIES)


def _numbers(listed: Collection[str]) -> set[int]:
    return {number for name in listed if (number := names.parse_publication_name(name)) is not None}


def _lost(reader: Reader, topic: str, tables: Tables) -> list[str]:
    lost = set(tables.files)
    for folder in sorted({path[: path.rfind("/") + 1] for path in lost}):
        lost.difference_update(folder + name for name in reader.list(f"{topic}/{folder}"))
    return sorted(lost)
