"""What did a publisher do for a topic?"""

from __future__ import annotations

from dataclasses import dataclass

from txlog.core.names import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What one call did for a topic."""

    topic: str
    number: int
    """The newest publication; -1 if there is none."""
    publications: int
    """How many this call has created."""
    files_added: int = 0
    files_removed: int = 0
    rows_added: int = 0
    rows_copied: int = 0
    """Rows among those added that are in new files, because their file had been published without them."""
    catalog_commits: int | None = None
    """How many commits the topic's table in a catalog got; None if it has none."""
    must_rewrite: tuple[Unreadable, ...] = ()
    """Files that other formats would misread. As long as there are any, the tables stay as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """A file that must be rewritten by a merge before the topic can be published."""

    topic_partition: TopicPartition
    path: str
    why: str
