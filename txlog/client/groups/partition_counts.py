"""How many partitions do the topics of a member have, as far as this process knows?"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Collection, Mapping

from txlog.client.session.session import Session
from txlog.core.names import TopicPartition
from txlog.core.records import GroupRow
from txlog.errors import UnknownTopicOrPartitionError


class PartitionCounts:
    """The numbers of partitions of the topics that a consumer subscribes to."""

    def __init__(self, session: Session, partitions: Collection[TopicPartition] = ()) -> None:
        self._session = session
        self._first: Mapping[str, int] = Counter(tp.topic for tp in partitions)
        """The numbers when the consumer subscribed, or that the group knew then. Rows of later partitions are all
        new."""
        self.now: Mapping[str, int] = self._first
        self.deleted: frozenset[str] = frozenset()
        """Topics that are deleted now."""

    def begin_at(self, row: GroupRow | None) -> None:
        """Take partitions for new that the group does not know yet: they were added while it had members."""
        known = row.entry.value.partitions if row is not None and row.entry.value is not None else {}
        self._first = {topic: min(n, known.get(topic, n)) for topic, n in self._first.items()}

    def read(self, needed: Collection[TopicPartition] = ()) -> None:
        """Look up the numbers, if `metadata.max.age.ms` is over or one of `needed` is not known.

        Another member may have made a generation with partitions that this process has not seen yet.
        """
        runtime, counts = self._session.runtime, dict(self.now)
        for topic in self._first:
            # A poll finds a deleted topic in its log, and reports it.
            with contextlib.suppress(UnknownTopicOrPartitionError):
                counts[topic] = len(runtime.partitions(topic, self._session.metadata_max_age_ms))
                if any(tp.topic == topic and tp.partition >= counts[topic] for tp in needed):
                    counts[topic] = len(runtime.partitions(topic, 0))
        self.now = counts

    def add(self, topics: Collection[str]) -> None:
        """Count the partitions of these topics, too. All rows of a topic that was not counted before are new."""
        self._first = {**dict.fromkeys(topics, 0), **self._first}
        self.read()

    def leave_out(self, topics: Collection[str]) -> None:
        """Count no partitions of deleted topics. If one is created again, all of its rows are new."""
        self._first = {topic: 0 if topic in topics else count for topic, count in self._first.items()}
        self.read()
        self.now = {topic: count for topic, count in self.now.items() if topic not in topics}
        self.deleted = frozenset(topics)

    def has(self, tp: TopicPartition) -> bool:
        """Return whether the partition exists as far as this process knows."""
        return tp.partition < self.now.get(tp.topic, 0)

    def is_new(self, tp: TopicPartition) -> bool:
        """Return whether the partition was added to its topic after the subscription."""
        return tp.partition >= self._first.get(tp.topic, tp.partition + 1)
