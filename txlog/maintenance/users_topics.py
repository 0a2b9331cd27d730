"""What may be cleaned: topics of users. txlog's own have their snapshots."""

from __future__ import annotations

from collections.abc import Iterable

from txlog.core.names import INTERNAL_TOPICS
from txlog.errors import InvalidRequestError


def refuse_internal(topics: Iterable[str], what: str) -> None:
    """Raises InvalidRequestError if one of `topics` is txlog's own, and thus not to be merged, compacted: `what`."""
    for topic in topics:
        if topic in INTERNAL_TOPICS:
            raise InvalidRequestError(
                f"{topic} is not {what}: the snapshots of an internal topic are its compaction, and are made whenever one of its "
                "segments is sealed"
            )
