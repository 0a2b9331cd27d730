"""What does a publisher keep from one call to the next, so that it reads only what is new?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from txlog.core.names import TopicPartition
from txlog.core.publication import Tables
from txlog.protocol.context import PartitionView
from txlog.protocol.publications import Shown
from txlog.protocol.read import ReadIndexes
from txlog.publication.catalog import Prepared

MAX_HELD_BYTES = 1_048_576
"""A look whose tails have more bytes of rows is not kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A look at a topic that found nothing to publish."""

    topic_id: str
    tables: Tables = field(repr=False)
    """The newest tables. They were read before the views were listed, so the views serve as long as these stay
    (W58)."""
    views: Mapping[TopicPartition, PartitionView] = field(repr=False)
    """All partitions of the topic."""
    shows_all: bool
    """Whether the tables had each row below the log ends. Then a log that has not grown has nothing to publish."""

    def is_at(self, views: Mapping[TopicPartition, PartitionView]) -> bool:
        """Return whether `views` show the same logs, in the same segments and runs."""
        return all(
            view.state.next_offset == views[tp].state.next_offset
            and view.state.last_digest == views[tp].state.last_digest
            and view.walk == views[tp].walk
            for tp, view in self.views.items()
        )


@dataclass(slots=True)
class PublicationCache:
    """What one job knows of the topics that it publishes."""

    indexes: dict[TopicPartition, ReadIndexes] = field(default_factory=dict, repr=False)
    """The indexes of the log."""
    looks: dict[str, Look] = field(default_factory=dict, repr=False)
    """The last look at a topic."""
    emptied: set[str] = field(default_factory=set, repr=False)
    """Ids of deleted topics whose tables show no row."""
    prepared: dict[str, Prepared] = field(default_factory=dict, repr=False)
    """Tables that no catalog has taken yet, by topic."""

    def keep(self, topic_id: str, tables: Tables, views: Mapping[TopicPartition, PartitionView], shown: Shown) -> None:
        """Keep a look that found nothing to publish, unless its rows take much memory."""
        tails = (each.record.payload_bytes for view in views.values() for each in view.tail)
        if sum(tails) > MAX_HELD_BYTES:
            return
        cuts = {tp: shown.partitions[tp.partition].cut for tp in views}
        shows_all = all(cut.end_offset == views[tp].state.next_offset and not cut.hidden for tp, cut in cuts.items())
        self.looks[tables.newest.topic] = Look(topic_id=topic_id, tables=tables, views=views, shows_all=shows_all)
