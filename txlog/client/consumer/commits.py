"""Which offsets does a consumer commit by itself, and which does it know to be committed?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from txlog.client.consumer.fetcher import Fetcher
from txlog.client.groups import GroupMembership, Offsets, offset_values
from txlog.client.groups.group_log import GroupLog
from txlog.client.groups.members import SharedMembership
from txlog.client.session.session import Session
from txlog.config import ConsumerConfig
from txlog.core.names import TopicPartition
from txlog.errors import CommitFailedError

Membership: TypeAlias = GroupMembership | SharedMembership
"""The consumer's membership."""


class Commits:
    """The commits of one consumer, with `enable.auto.commit` also those that it makes by itself."""

    def __init__(self, session: Session, config: ConsumerConfig, fetcher: Fetcher) -> None:
        self._session = session
        self._group = config.group_id or ""
        self._is_automatic = config.group_id is not None and config.enable_auto_commit
        self._interval_ms = config.auto_commit_interval_ms
        self._fetcher = fetcher
        self._log = GroupLog(session.who, self._group)
        self.known: dict[TopicPartition, int] = {}
        """Committed offsets that this consumer knows. It does not commit the same offset again."""
        self.handed: dict[TopicPartition, int] = {}
        """Positions before the last poll. All rows below were returned earlier and have been processed."""
        self._last_ms = session.clock.monotonic_ms()

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget what is known of these partitions."""
        for tp in partitions:
            self.known.pop(tp, None)
            self.handed.pop(tp, None)

    def forget_all(self) -> None:
        """Forget everything."""
        self.known, self.handed = {}, {}

    def commit(self, by: Membership, offsets: Offsets) -> None:
        """Commit these offsets."""
        values = offset_values(offsets)
        if not values:
            return
        self._session.runtime.ensure_writable()
        # The rows before these offsets must still exist.
        self._session.prove(values, "looking whether the log still holds what was read")
        by.commit(self._group, values)
        self.known.update({tp: value.offset for tp, value in values.items()})

    def begin_poll(self, by: Membership) -> None:
        """Note that everything returned so far was processed, and commit it if that is due."""
        self.handed, now_ms = self._fetcher.positions, self._session.clock.monotonic_ms()
        if self._is_automatic and now_ms - self._last_ms >= self._interval_ms:
            self._commit_new(by, self.handed)
            self._last_ms = now_ms

    def give_up(self, by: Membership, partitions: Iterable[TopicPartition]) -> None:
        """Commit what was processed of these partitions, before another member reads them."""
        if self._is_automatic:
            positions = self._fetcher.positions
            self._commit_new(by, {tp: positions[tp] for tp in partitions if tp in positions})

    def end(self, by: Membership, positions: Mapping[TopicPartition, int], what: str) -> None:
        """Commit these positions at last. A loss is only logged: another consumer reads those rows again."""
        try:
            if self._is_automatic:
                self._commit_new(by, positions)
        except CommitFailedError as error:
            self._log.failed("positions_not_committed", f"{what} without committing its positions", error)

    def _commit_new(self, by: Membership, positions: Mapping[TopicPartition, int]) -> None:
        self.commit(by, {tp: offset for tp, offset in positions.items() if self.known.get(tp) != offset})
