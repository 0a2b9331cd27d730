"""Which formats can a topic be published in, and which module writes each?"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from importlib import import_module

from txlog.client.session.runtime import Runtime
from txlog.core.effects import Get, List, Program, Size
from txlog.core.names import MAX_OFFSET, publication_path
from txlog.core.publication import Tables
from txlog.core.records import SchemaField, TopicMetadata
from txlog.core.records.publications import FormatName
from txlog.errors import TableConflictError, UnsupportedStoreError

_MODULES: dict[FormatName, str] = {"delta": "txlog.publication.delta", "iceberg": "txlog.publication.iceberg"}
_TABLES: dict[FormatName, tuple[str, str]] = {
    "delta": ("a Delta table", "_delta_log/"),
    "iceberg": ("an Iceberg table", "metadata/"),
}

_VERSION = re.compile(r"(?:(\d{20})\.(?:json|checkpoint\b.*\.parquet)|v\d+\.metadata\.json)\Z", re.ASCII)


def check_feature(runtime: Runtime, feature: str, effect: str) -> None:
    """Raise UnsupportedStoreError if the store was made without a feature. `effect` is what other programs would do."""
    if feature not in runtime.require_store().features:
        raise UnsupportedStoreError(
            f"{runtime.where}: the store was made without the feature {feature!r}, and programs that do not know it "
            f"would {effect}. hint: copy its topics to a new store"
        )


def check_writable(formats: Iterable[FormatName], topic: TopicMetadata, url: str) -> None:
    """Raise InvalidRequestError if a format needs an extra that is not installed, or cannot have this topic."""
    if "iceberg" in formats:
        import_module(_MODULES["iceberg"]).check_writable(topic, url)


def write_version(
    name: FormatName,
    before: Tables | None,
    after: Tables,
    topic: TopicMetadata,
    *,
    url: str,
    retention_ms: int,
    written: Sequence[Sequence[SchemaField]] = (),
) -> Program[None]:
    """Write what a format needs for its next version. It may be repeated, by several processes at once.

    `before` are the tables one publication earlier; None: this is the first version of the format. `written` are the
    columns of the files, as they were when each was written. Raises
    InvalidRequestError if the format's extra is not installed, TableConflictError if another program wrote to the
    table.
    """
    more = {"written": written} if name == "iceberg" else {}
    yield from import_module(_MODULES[name]).write_version(before, after, topic, url, retention_ms=retention_ms, **more)


def is_written(name: FormatName, tables: Tables) -> Program[bool]:
    """Return whether the version of a publication is there. Raises TableConflictError if another one is."""
    data = yield Get(tables.path_of(name))
    if data is not None:
        yield from import_module(_MODULES[name]).check_version(tables, data)
    return data is not None


def complete_version(
    name: FormatName, after: Tables, columns: Program[TopicMetadata], *, retention_ms: int
) -> Program[None]:
    """Write what a publisher that died has left out of a version, although readers see the version already.

    `columns` reads the topic with the columns of the publication. Raises TableConflictError, also if the table goes on
    behind the newest publication, as after an incomplete copy of the store.
    """
    module = import_module(_MODULES[name])
    if name == "iceberg":
        yield from module.complete_version(after)
    else:
        yield from module.complete_version(after, columns, retention_ms=retention_ms)


def first_version(name: FormatName, topic: str) -> Program[str | None]:
    """Return the path of the lowest version that the folder of a format has; None if it has no version.

    Vacuum deletes old versions, so it need not be version 0.
    """
    folder = f"{topic}/{_TABLES[name][1]}"
    versions = [each for each in (yield List(folder)) if _VERSION.match(each)]
    return folder + min(versions, key=lambda each: (len(each), each)) if versions else None


def check_begins(topic: str, begun: Sequence[FormatName]) -> Program[None]:
    """Raise TableConflictError if a format begins where a table lies already, which it would continue wrongly."""
    for name in begun:
        path = yield from first_version(name, topic)
        if path is not None:
            raise TableConflictError(
                f"{path}: topic {topic!r} is to be published as {name} from now on, and a table lies there "
                "already: an earlier publication or another program made it. "
                f"hint: move or delete {path.rpartition('/')[0]}/, and publish again"
            )


def is_decided(name: FormatName, tables: Tables, version: int) -> Program[bool]:
    """Return whether there is a publication for a version that is newer than that of `tables`.

    It is there before the version is.
    """
    number = tables.newest.formats[name] + version
    size = None if number > MAX_OFFSET else (yield Size(publication_path(tables.newest.topic, number)))
    return size is not None


def new_table_id(first: Tables) -> str:
    """Return the id of a table that begins with a publication. No other table of the topic has it."""
    return hashlib.sha256(f"table {first.newest.topic_id} {first.digest}".encode()).hexdigest()[:32]


def table_conflict(name: FormatName, topic: str, path: str) -> TableConflictError:
    """Return the error of a version at `path` that is not the one of a publication."""
    table, folder = _TABLES[name]
    return TableConflictError(
        f"{path}: this version of topic {topic!r} as {table} is not the one that txlog published; another program "
        "wrote to the table, or deleted it. "
        f"hint: remove {name!r} from the topic's publish.formats, publish, delete "
        f"{topic}/{folder}, and add {name!r} again"
    )
