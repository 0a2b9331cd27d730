"""Which formats can a topic be published in, and which module writes each?"""

from __future__ import annotations

from importlib import import_module

from txlog.core.effects import Program
from txlog.core.publication import Tables
from txlog.core.records import TopicMetadata
from txlog.core.records.publications import FormatName

_MODULES: dict[FormatName, str] = {"delta": "txlog.publication.delta", "iceberg": "txlog.publication.iceberg"}


def version_path(name: FormatName, tables: Tables) -> str:
    """Return the path of the object that declares the version of the table that `tables` has in a format."""
    return _path(name, tables.newest.topic, tables.version_of(name))


def first_version_path(name: FormatName, topic: str) -> str:
    """Return that path of a table's first version."""
    return _path(name, topic, 0)


def write_version(
    name: FormatName, before: Tables | None, after: Tables, topic: TopicMetadata, *, url: str, retention_ms: int
) -> Program[None]:
    """Write what a format needs for its next version. It may be repeated, by several processes at once.

    `before` are the tables one publication earlier; None: this is the first version of the format. Raises
    InvalidRequestError if the format's extra is not installed, TableConflictError if another program wrote to the table.
    """
    yield from import_module(_MODULES[name]).write_version(before, after, topic, url, retention_ms=retention_ms)


def _path(name: FormatName, topic: str, version: int) -> str:
    if name == "delta":
        return f"{topic}/_delta_log/{version:020d}.json"
    return f"{topic}/metadata/v{version + 1}.metadata.json"
