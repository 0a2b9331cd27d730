"""Which topics can be maintained? Only users' topics: txlog's own topics have their snapshots."""

from __future__ import annotations

from collections.abc import Iterable

from txlog.core.names import INTERNAL_TOPICS
from txlog.errors import InvalidRequestError


def refuse_internal(topics: Iterable[str], what: str) -> None:
    """Raise InvalidRequestError if one of `topics` is txlog's own; `what` is the verb in the message ("merged")."""
    for topic in topics:
        if topic in INTERNAL_TOPICS:
            raise InvalidRequestError(
                f"{topic} is not {what}: the snapshots of an internal topic are its compaction, and are made whenever one of its "
                "segments is sealed"
            )
