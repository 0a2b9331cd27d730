"""How do the parts that were staged for a transaction become one batch per partition?

See PROTOCOL.md, W29.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from txlog.core.names import TopicPartition
from txlog.core.records import OffsetEntry, StagedPart
from txlog.errors import InvalidRequestError


def merge_parts(parts: Iterable[StagedPart]) -> tuple[StagedPart, ...]:
    """Return one part per partition, in order.

    The files of a partition follow each other. If a key has several offsets, the last one counts. Parts without rows
    and entries are left out. Raises InvalidRequestError if the files of one partition have different schemas. It is
    also raised if inline rows are not the partition's only part, because a record has its rows in one place.
    """
    merged: dict[TopicPartition, StagedPart] = {}
    for part in parts:
        if part.files or part.entries or part.payload:
            before = merged.get(part.topic_partition)
            merged[part.topic_partition] = part if before is None else _joined(before, part)
    return tuple(merged[tp] for tp in sorted(merged))


def _joined(before: StagedPart, part: StagedPart) -> StagedPart:
    if before.schema_id != part.schema_id:
        raise InvalidRequestError(
            f"{part.topic_partition}: staged files of schema {before.schema_id} and of schema {part.schema_id} cannot be one batch; "
            "abort, and write again with the topic's present schema"
        )
    if before.payload or part.payload:
        raise InvalidRequestError(
            f"{part.topic_partition}: inline rows and other rows cannot be one batch; write all of them to files"
        )
    entries: dict[tuple[str, str, int], OffsetEntry] = {entry.key: entry for entry in (*before.entries, *part.entries)}
    return msgspec.structs.replace(
        before, files=(*before.files, *part.files), entries=tuple(entries[key] for key in sorted(entries))
    )
