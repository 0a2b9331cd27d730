"""Which topics does a consumer follow: which partitions were added to them, and which of them were deleted?"""

from __future__ import annotations

from collections.abc import Iterable

from txlog.client.fetcher import Fetcher
from txlog.client.session import Session
from txlog.core.names import TopicPartition
from txlog.errors import UnknownTopicOrPartitionError


class FollowedTopics:
    """The topics whose partitions are all read, and which assigned topics were deleted."""

    def __init__(self, session: Session, fetcher: Fetcher) -> None:
        self.names: tuple[str, ...] = ()
        """Topics whose partitions are all read, new partitions included."""
        self.added: set[TopicPartition] = set()
        """Partitions without a position yet that were added to a topic after the subscription."""
        self._session = session
        self._runtime = session.runtime
        self._fetcher = fetcher
        self._looked_at_ms = self._runtime.clock.monotonic_ms()
        self._deleted: dict[str, UnknownTopicOrPartitionError] = {}
        """The topics that were deleted and not created again, each with the error that polls raise."""
        self._reported: set[str] = set()
        """Those of `_deleted` whose error a poll has raised."""

    def start(self, names: tuple[str, ...]) -> None:
        """Follow `names` from now on, and forget what was found before."""
        self.names, self.added = names, set()
        self._deleted, self._reported = {}, set()
        self._looked_at_ms = self._runtime.clock.monotonic_ms()

    def partitions(self, names: Iterable[str]) -> list[TopicPartition]:
        """Return all partitions of `names`. Raises UnknownTopicOrPartitionError."""
        return [tp for name in names for tp in self._runtime.partitions(name, self._session.metadata_max_age_ms)]

    def take_added(self) -> None:
        """Assign partitions that were added since the last look, once in `metadata.max.age.ms`."""
        now_ms = self._runtime.clock.monotonic_ms()
        if not self.names or now_ms - self._looked_at_ms < self._session.metadata_max_age_ms:
            return
        self._looked_at_ms = now_ms
        now: list[TopicPartition] = []
        for name in self.names:
            try:
                now += self.partitions([name])
            except UnknownTopicOrPartitionError as error:
                self._deleted[name] = error
                now += [tp for tp in self._fetcher.assigned if tp.topic == name]
        added = set(now).difference(self._fetcher.assigned)
        if added:
            self.added |= added
            self._fetcher.assign(now)

    def check_deleted(self) -> None:
        """Read no deleted topics, and read those again that were created again.

        Raises UnknownTopicOrPartitionError if no poll has raised it for a deleted topic yet, or if no other topic is
        assigned.
        """
        assigned = {tp.topic for tp in self._fetcher.assigned}
        for topic in sorted(self._deleted.keys() | {tp.topic for tp in self._fetcher.assigned if self._is_behind(tp)}):
            try:
                self._runtime.topic(topic, 0)
            except UnknownTopicOrPartitionError as error:
                self._deleted[topic] = error
            else:
                self._deleted.pop(topic, None)
        self._reported &= self._deleted.keys()
        self._fetcher.skip(self._deleted)
        if self._deleted.keys() - self._reported or self._deleted.keys() >= assigned:
            self.report_deleted()

    def report_deleted(self) -> None:
        """Raise UnknownTopicOrPartitionError if a topic is deleted."""
        if self._deleted:
            self._reported = set(self._deleted)
            raise UnknownTopicOrPartitionError("; ".join(map(str, self._deleted.values())))

    def _is_behind(self, tp: TopicPartition) -> bool:
        """Return whether the log shows a deletion that this process's metadata of the topic do not show."""
        view = self._session.views.get(tp)
        if view is None or not view.state.deleted_version:
            return False
        known = self._runtime.known_topic(tp.topic)
        return known is None or known.number < view.state.deleted_version
