"""Which of a consumer's topics were deleted, and when does a poll say so?"""

from __future__ import annotations

from txlog.client.fetcher import Fetcher
from txlog.client.session import Session
from txlog.core.names import TopicPartition
from txlog.errors import UnknownTopicOrPartitionError


class DeletedTopics:
    """The assigned topics that were deleted and not created again, each with the error that polls raise."""

    def __init__(self, session: Session, fetcher: Fetcher) -> None:
        self._session = session
        self._runtime = session.runtime
        self._fetcher = fetcher
        self._found: dict[str, UnknownTopicOrPartitionError] = {}
        self._reported: set[str] = set()
        """Those whose error a poll has raised."""

    def clear(self) -> None:
        """Forget all, because other partitions are assigned."""
        self._found, self._reported = {}, set()

    def add(self, topic: str, error: UnknownTopicOrPartitionError) -> None:
        """Add a topic that was found deleted."""
        self._found[topic] = error

    def check(self) -> None:
        """Read no deleted topics, and read those again that were created again.

        Raises UnknownTopicOrPartitionError if no poll has raised it for a deleted topic yet, or if no other topic is
        assigned.
        """
        assigned = {tp.topic for tp in self._fetcher.assigned}
        for topic in sorted(self._found.keys() | {tp.topic for tp in self._fetcher.assigned if self._is_behind(tp)}):
            try:
                self._runtime.topic(topic, 0)
            except UnknownTopicOrPartitionError as error:
                self._found[topic] = error
            else:
                self._found.pop(topic, None)
        self._reported &= self._found.keys()
        self._fetcher.skip(self._found)
        if self._found.keys() - self._reported or self._found.keys() >= assigned:
            self.report()

    def report(self) -> None:
        """Raise UnknownTopicOrPartitionError if a topic is deleted."""
        if self._found:
            self._reported = set(self._found)
            raise UnknownTopicOrPartitionError("; ".join(map(str, self._found.values())))

    def _is_behind(self, tp: TopicPartition) -> bool:
        """Return whether the log shows a deletion that this process's metadata of the topic do not show."""
        view = self._session.views.get(tp)
        if view is None or not view.state.deleted_version:
            return False
        known = self._runtime.known_topic(tp.topic)
        return known is None or known.number < view.state.deleted_version
