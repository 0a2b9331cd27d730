"""Which formats can a topic be published in, and which module writes each?"""

from __future__ import annotations

from importlib import import_module

from txlog.core.effects import Program
from txlog.core.publication import Tables
from txlog.core.records import TopicMetadata
from txlog.core.records.publications import FormatName

_MODULES: dict[FormatName, str] = {"delta": "txlog.publication.delta", "iceberg": "txlog.publication.iceberg"}


def write_version(
    name: FormatName, before: Tables | None, after: Tables, topic: TopicMetadata, *, url: str, retention_ms: int
) -> Program[None]:
    """Write what a format needs for its next version. It may be repeated, by several processes at once.

    `before` are the tables one publication earlier; None: this is the first version of the format. Raises
    InvalidRequestError if the format's extra is not installed, TableConflictError if another program wrote to the table.
    """
    yield from import_module(_MODULES[name]).write_version(before, after, topic, url, retention_ms=retention_ms)


def complete_version(name: FormatName, tables: Tables) -> Program[None]:
    """Write what may be missing of a version that readers can see already, because its publisher died right there."""
    if name == "iceberg":
        yield from import_module(_MODULES[name]).put_hint(tables)
