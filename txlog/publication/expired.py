"""Which objects of a format may vacuum delete, because no version that it keeps needs them?

These are objects of Delta tables. The publications show what a version needs; no object of a table is read
(PROTOCOL.md, C14). Names that txlog does not write are left alone (W59).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from txlog.core.effects import Get, List, Program
from txlog.core.vacuum import Dead, Kind, Why
from txlog.protocol.context import Context
from txlog.protocol.requests import many, modified
from txlog.protocol.vacuum_published import KeptVersions
from txlog.publication.deletion_vectors import VECTOR_FOLDER
from txlog.publication.delta import LAST_CHECKPOINT, LOG_FOLDER, hinted_version, vector_objects

_VERSION = re.compile(r"(\d{20})\.(json|checkpoint\.parquet)\Z", re.ASCII)
_VECTOR = re.compile(r"deletion_vector_[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\.bin\Z", re.ASCII)


def expired_objects(ctx: Context, kept: KeptVersions) -> Program[tuple[Dead, ...]]:
    """Return the dead objects of the formats. Costs a LIST, and a request for each one that may be dead."""
    return (*(yield from _versions(ctx, kept)), *(yield from _vectors(ctx, kept)))


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
    old = [match[0] for match in found if match[2] != "json" and int(match[1]) <= limit]
    aged = yield from _aged(ctx, kept, folder, old)
    # A name begins with its version, in 20 digits.
    last = max(aged, default="")[:20]
    return [
        Dead(path=folder + match[0], kind=Kind.TABLE, why=Why.OLD_PUBLICATION) for match in found if match[1] < last
    ]


def _vectors(ctx: Context, kept: KeptVersions) -> Program[list[Dead]]:
    folder = f"{kept.topic}/{VECTOR_FOLDER}/"
    listed = [name for name in kept.listed if _VECTOR.match(name)]
    if not listed:
        return []
    named = vector_objects(kept.tables)
    rest = [name for name in listed if f"{VECTOR_FOLDER}/{name}" not in named]
    aged = yield from _aged(ctx, kept, folder, rest)
    return [Dead(path=folder + name, kind=Kind.TABLE, why=Why.NOT_PUBLISHED) for name in aged]


def _aged(ctx: Context, kept: KeptVersions, folder: str, some: Sequence[str]) -> Program[list[str]]:
    """Return those of the objects that the store has had for the grace."""
    times_ms = yield from many([modified(folder + name) for name in some])
    grace_ms = ctx.constants.delete_grace_ms
    return [
        name
        for name, at_ms in zip(some, times_ms, strict=True)
        if at_ms is not None and kept.now_ms - at_ms >= grace_ms
    ]
