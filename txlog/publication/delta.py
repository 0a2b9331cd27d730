"""How does a topic become a Delta table?

Each publication is one version of the table, an object in `_delta_log/` below the topic's folder. The table's root is
the topic's folder, so that it names txlog's own files by relative paths. What a version contains is a pure function of
the publications, and any process may write it again (PROTOCOL.md, "Publication"). The
format is described by Delta's own specification. Only txlog may write to the table and vacuum it: it has a writer
feature that other programs do not know.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, Literal, TypeAlias
from urllib.parse import quote

import msgspec

from txlog.core.effects import Delete, Get, List, Program, PutIfAbsent, Size
from txlog.core.publication import Tables
from txlog.core.records import TopicMetadata
from txlog.core.records.commit import Id, Offset, Time
from txlog.core.records.publications import PublishedFile
from txlog.core.row_runs import removed_from
from txlog.protocol.context import Context
from txlog.protocol.put import create_or_read, put_pure
from txlog.protocol.requests import many
from txlog.publication.deletion_vectors import DeletionVector, deletion_vector
from txlog.publication.delta_schema import delta_schema, needed_features
from txlog.publication.delta_statistics import delta_statistics
from txlog.publication.foreign import as_type, json_object, whole_number
from txlog.publication.formats import is_decided, new_table_id, table_conflict

LOG_FOLDER = "_delta_log/"
LAST_CHECKPOINT = "_last_checkpoint"
"""The object in that folder from which readers learn the newest checkpoint."""
OWN_FEATURE = "txlogManaged"
"""A writer feature that other programs do not know, and so refuse to write to the table."""
CHECKPOINT_EVERY = 10

Action: TypeAlias = dict[str, Any]

_DELETION_VECTORS = "deletionVectors"
# Spark refuses a table with columns that are not nullable if it lacks this feature.
_WRITER_FEATURES = ("invariants", OWN_FEATURE)
# Delta on Spark before 3.1 may run VACUUM without a look at the writer features. VACUUM would delete all of txlog's own
# objects that are older than this, so it is as long as any store lives.
_NEVER = "interval 18250 days"
_MAX_VERSION = 10**20 - 1
"""A version has 20 digits in its name."""
_AHEAD = re.compile(r"(\d{20})\.(?:json\Z|checkpoint\b)", re.ASCII)
"""How a version, and a checkpoint in one or more parts, begins."""
_OURS, _OURS_WITH_ID = "txlog", "txlog.table"
"""The field of `commitInfo` from which the next version takes what it must know of this one.

Programs that know only the first would continue a table under the topic's id, although it has another id. They find no
field, and refuse the table.
"""


def write_version(
    before: Tables | None, after: Tables, topic: TopicMetadata, url: str, *, retention_ms: int
) -> Program[None]:
    """Write the objects of one version of the table. It may be repeated, by several processes at once.

    `before` are the tables one publication earlier; None: this is the first version. `topic` has the columns of the
    publication. Older versions of the table can be read for `retention_ms`. Costs a GET and a PUT, a PUT for each large
    deletion vector, and four requests more if the version has a checkpoint. Raises TableConflictError if another
    program wrote to the table, and as `create`.
    """
    ctx = Context()
    folder, version = f"{topic.topic}/{LOG_FOLDER}", after.version_of("delta")
    held = None if before is None else (yield from _read(f"{folder}{version - 1:020d}.json", before))
    features = {*(held.features if held else ()), *needed_features(topic.schema)}
    if any(file.is_partial for file in after.files.values()):
        features.add(_DELETION_VECTORS)
    state = _State(
        publication=after.number,
        digest=after.digest,
        features=tuple(sorted(features)),
        created_at=after.newest.created_at if held is None else held.created_at,
        # Streams of Spark go on by the table's id. So a table that begins again has another one.
        table_id=new_table_id(after) if held is None else held.table_id,
    )
    look = _Look(topic, after.newest.topic_id, state, retention_ms)
    look.state = state = msgspec.structs.replace(state, metadata=hashlib.sha256(_line(look.metadata)).hexdigest())
    yield from many([put_pure(ctx, f"{topic.topic}/{each.path}", each.content) for each in look.objects(before, after)])
    lines = [_line(action) for action in look.actions(before, after, held)]
    path = f"{folder}{version:020d}.json"
    data = b"".join(lines)
    # Another version of txlog may write other bytes for the same publication.
    is_there = yield from create_or_read(
        ctx, path, data, lambda stored: stored == data or _is_own(stored, after), what="the version"
    )
    if not is_there:
        raise table_conflict("delta", topic.topic, path)
    if _has_checkpoint(version, after):
        yield from _write_checkpoint(ctx, folder, version, look, after)


def check_version(tables: Tables, data: bytes) -> Program[None]:
    """Check that `data` is the version of a publication. Raises TableConflictError."""
    yield from ()
    if not _is_own(data, tables):
        raise table_conflict("delta", tables.newest.topic, tables.path_of("delta"))


def complete_version(after: Tables, columns: Program[TopicMetadata], *, retention_ms: int) -> Program[None]:
    """Write the checkpoint of a version if its publisher died before. Readers would replay the log from an older one.

    `columns` reads the topic with the columns of the publication. Costs a LIST, two requests if the table has a
    checkpoint, and five more if this version has one. Raises TableConflictError as `write_version`, and if the log goes
    on behind this version.
    """
    folder, version = f"{after.newest.topic}/{LOG_FOLDER}", after.version_of("delta")
    yield from _check_end(folder, version, after)
    if not _has_checkpoint(version, after):
        return
    state = yield from _read(f"{folder}{version:020d}.json", after)
    look = _Look((yield from columns), after.newest.topic_id, state, retention_ms)
    yield from _write_checkpoint(Context(), folder, version, look, after)


def vector_objects(versions: Iterable[Tables]) -> set[str]:
    """Return the objects beside the log that versions need, relative to the topic's folder.

    They hold deletion vectors that are too large for the log, and are in the folder of the publications.
    """
    files = {
        (path, file.since): (file, tables.newest.topic_id)
        for tables in versions
        for path, file in tables.files.items()
        if file.is_partial
    }
    found = (_vector(file, topic_id) for file, topic_id in files.values())
    return {each.path for each in found if each is not None and each.path}


class _State(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a version says about itself, in `commitInfo`. The next version builds on it."""

    publication: Offset
    digest: str
    features: tuple[str, ...]
    created_at: Time
    table_id: Id | Literal[""] = ""
    """Empty: an older program began the table, which has the id of the topic."""
    metadata: str = ""
    """Digest of the version's `metaData`."""


class _Look:
    """The actions of one version of a table."""

    def __init__(self, topic: TopicMetadata, topic_id: str, state: _State, retention_ms: int) -> None:
        self._topic = topic
        self._topic_id = topic_id
        self.state = state
        reader = list(state.features)
        named = state.table_id or topic_id
        self.protocol: Action = {
            "protocol": {
                "minReaderVersion": 3 if reader else 1,
                "minWriterVersion": 7,
                **({"readerFeatures": reader} if reader else {}),
                "writerFeatures": sorted([*reader, *_WRITER_FEATURES]),
            }
        }
        self.metadata: Action = {
            "metaData": {
                "id": "-".join((named[:8], named[8:12], named[12:16], named[16:20], named[20:])),
                "name": topic.topic,
                "format": {"provider": "parquet", "options": {}},
                "schemaString": _json(delta_schema(topic.schema)),
                "partitionColumns": [],
                "configuration": {
                    "delta.deletedFileRetentionDuration": _NEVER,
                    "delta.logRetentionDuration": f"interval {retention_ms} milliseconds",
                },
                "createdTime": state.created_at,
            }
        }

    def actions(self, before: Tables | None, after: Tables, held: _State | None) -> Iterator[Action]:
        """Yield the actions of the version that follows `before`, of which `held` is known."""
        publication = after.newest
        # A reader that follows the table must see no change if rows only moved to other files.
        is_change = before is None or publication.operation == "append"
        changed = _changed(before, after)
        yield {
            "commitInfo": {
                "timestamp": publication.created_at,
                "operation": "WRITE" if is_change else "OPTIMIZE",
                "operationParameters": {
                    "txlog.publication": str(publication.number),
                    "txlog.topic_id": publication.topic_id,
                    "txlog.cut": _json([_cut(each) for each in publication.partitions]),
                    "txlog.cut_at": str(publication.cut_at),
                },
                "isBlindAppend": is_change and all(old is None for old, _ in changed),
                "engineInfo": "txlog",
                _OURS_WITH_ID if self.state.table_id else _OURS: msgspec.to_builtins(self.state),
            }
        }
        if held is None or held.features != self.state.features:
            yield self.protocol
        if held is None or held.metadata != self.state.metadata:
            yield self.metadata
        for old, _ in changed:
            if old is not None:
                yield self._remove(old, publication.created_at, is_change)
        for _, new in changed:
            if new is not None:
                yield self.add(new, is_change)

    def add(self, file: PublishedFile, is_change: bool) -> Action:
        """Return the action that makes a file a part of the table."""
        return {
            "add": {
                "path": quote(file.path, safe="/="),
                "partitionValues": {},
                "size": file.bytes,
                # The chain does not say when a file was written: a list of all files has only the publication that
                # added it. Delta needs a time that is the same in the log and in each checkpoint, with any writer,
                # and a later one for a later file. Only its VACUUM compares it with a clock, and that is refused here.
                "modificationTime": self.state.created_at + file.since,
                "dataChange": is_change,
                "stats": _json(delta_statistics(file, self._topic.schema)),
                **self._removed_rows(file),
            }
        }

    def _remove(self, file: PublishedFile, now_ms: int, is_change: bool) -> Action:
        return {
            "remove": {
                "path": quote(file.path, safe="/="),
                "deletionTimestamp": now_ms,
                "dataChange": is_change,
                "extendedFileMetadata": True,
                "partitionValues": {},
                "size": file.bytes,
                **self._removed_rows(file),
            }
        }

    def objects(self, before: Tables | None, after: Tables) -> list[DeletionVector]:
        """Return the deletion vectors of this version that need an object."""
        found = (_vector(new, self._topic_id) for _, new in _changed(before, after) if new is not None)
        return [each for each in found if each is not None and each.path]

    def _removed_rows(self, file: PublishedFile) -> Action:
        vector = _vector(file, self._topic_id)
        return {} if vector is None else {"deletionVector": vector.descriptor}


# -- details ----------------------------------------------------------------------------------------------------------


def _vector(file: PublishedFile, topic_id: str) -> DeletionVector | None:
    return deletion_vector(removed_from(file), table_id=topic_id, path=file.path)


def _changed(before: Tables | None, after: Tables) -> list[tuple[PublishedFile | None, PublishedFile | None]]:
    """Return each file that changes as the table had it and as it will have it, by path; None: not at all."""
    old = {} if before is None else before.files
    return [
        (old.get(path), after.files.get(path))
        for path in sorted(old.keys() | after.files.keys())
        if path not in old or path not in after.files or _rows(old[path]) != _rows(after.files[path])
    ]


def _rows(file: PublishedFile) -> object:
    return file.removed, file.removed_rows


def _cut(partition: Any) -> Action:
    return {
        "end_offset": partition.end_offset,
        "hidden": [[run.first_offset, run.end_offset] for run in partition.hidden],
    }


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def _line(action: Action) -> bytes:
    return _json(action).encode() + b"\n"


def _read(path: str, tables: Tables) -> Program[_State]:
    """Return what the version of `tables` says about itself."""
    data = yield Get(path)
    own = None if data is None else _own(data)
    if own is None or own.digest != tables.digest:
        raise table_conflict("delta", tables.newest.topic, path)
    return own


def _own(data: bytes) -> _State | None:
    """Return what txlog stored in a version for itself; None if another program wrote the version."""
    info = json_object(data.partition(b"\n")[0]).get("commitInfo")
    return as_type(info.get(_OURS_WITH_ID, info.get(_OURS)), _State) if isinstance(info, dict) else None


def _is_own(data: bytes, tables: Tables) -> bool:
    found = _own(data)
    return found is not None and found.digest == tables.digest


def _check_end(folder: str, version: int, after: Tables) -> Program[None]:
    """Check that no version lies behind the one of `after`, unless another publisher was faster.

    Readers would go on to it, or begin with its checkpoint. An incomplete copy of the store may have left it. A
    checkpoint alone is removed: it is made of versions. So is a `_last_checkpoint` that names none: readers would find
    no table.
    """
    listed = yield List(folder, start_after=f"{version:020d}.json")
    ahead = [(int(match[1]), name) for name in listed if (match := _AHEAD.match(name))]
    for number, name in sorted(ahead, reverse=True):
        if (yield from is_decided("delta", after, number)):
            break
        if name.endswith(".json"):
            raise table_conflict("delta", after.newest.topic, folder + name)
        yield Delete(folder + name)
    if LAST_CHECKPOINT in listed:
        there = yield Get(folder + LAST_CHECKPOINT)
        # Another publisher replaces it if it is not there now.
        if there is not None and not (yield from _is_there(_checkpoint_path(folder, hinted_version(there)))):
            yield Delete(folder + LAST_CHECKPOINT)


def _has_checkpoint(version: int, tables: Tables) -> bool:
    """Return whether a version has a checkpoint: each tenth, and that of a publication with all files.

    Readers need no publication before such a one. With a checkpoint there they need no older version either (C14).
    """
    return version > 0 and (version % CHECKPOINT_EVERY == 0 or tables.newest.whole)


def _checkpoint_path(folder: str, version: int) -> str:
    return f"{folder}{version:020d}.checkpoint.parquet"


def _write_checkpoint(ctx: Context, folder: str, version: int, look: _Look, after: Tables) -> Program[None]:
    """Write the whole table as one file, and name it as the newest. Without it readers only take longer.

    A checkpoint of other files, from which readers would begin, is replaced.
    """
    # Imported here, because most versions have no checkpoint, and pyarrow takes long to load.
    from txlog.publication.delta_checkpoint import checkpoint, is_same_table

    adds = [look.add(after.files[path], is_change=False) for path in sorted(after.files)]
    actions = [look.protocol, look.metadata, *adds]
    data, path = checkpoint(actions), _checkpoint_path(folder, version)
    stored = yield from create_or_read(ctx, path, data, lambda there: there, what="the checkpoint")
    if stored != data and not is_same_table(stored, actions):
        # An incomplete copy of the store may have left it. The log decides what is in the table.
        yield Delete(path)
        yield from put_pure(ctx, path, data)
    newest = folder + LAST_CHECKPOINT
    there = yield Get(newest)
    if there is not None:
        hinted = hinted_version(there)
        if hinted == version or (hinted > version and (yield from _is_there(_checkpoint_path(folder, hinted)))):
            return
        # The object is replaced in two steps. A reader that finds none between them lists the whole folder.
        yield Delete(newest)
    hint = {"version": version, "size": len(actions), "sizeInBytes": len(data), "numOfAddFiles": len(adds)}
    yield PutIfAbsent(newest, _line(hint))


def hinted_version(hint: bytes) -> int:
    """Return the version of a `_last_checkpoint`; -1 if it cannot be read."""
    found = whole_number(json_object(hint).get("version"))
    return -1 if found is None or found > _MAX_VERSION else found


def _is_there(path: str) -> Program[bool]:
    size = yield Size(path)
    return size is not None
