"""How does a consumer join and leave its group, and commit as its member (W36)?"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping

from txlog.client.session import Session
from txlog.core.effects import Program
from txlog.core.groups import OffsetsCondition
from txlog.core.names import TopicPartition
from txlog.core.records import GroupValue, OffsetValue
from txlog.errors import StoreChangedError
from txlog.protocol import groups as protocol
from txlog.protocol.context import Context, Views

_LOG = logging.getLogger(__name__)


class GroupMembership:
    """Membership in at most one group at a time. A consumer that only commits has none."""

    def __init__(self, session: Session, client_id: str) -> None:
        self._session = session
        self._client_id = client_id
        self._group = ""
        self._member: GroupValue | None = None

    @property
    def generation(self) -> int:
        """Generation of the membership; -1 without one."""
        return self._member.generation if self._member is not None else -1

    @property
    def member_id(self) -> str:
        """Id of the member; empty without a membership."""
        return self._member.member_id if self._member is not None else ""

    def join(self, group: str, topics: tuple[str, ...]) -> None:
        """Become the member of the group, which fences the member before. Log a warning if that is another consumer."""
        member_id = f"{self._client_id or 'consumer'}-{self._session.runtime.ids.new_id()}"

        def program(ctx: Context, views: Views) -> Program[tuple[Views, tuple[GroupValue, GroupValue | None]]]:
            return protocol.take_group(ctx, views, group, member_id, self._client_id, topics)

        own_id = self.member_id
        self._member, before = self._session.call(f"joining group {group!r}", program)
        self._group = group
        if before is not None and before.member_id not in ("", own_id):
            _LOG.warning(
                "%s: took the group over from member %r. If that consumer still runs, its next commit fails, because a group has one "
                "member. hint: give each consumer a group.id of its own",
                self._session.who,
                before.member_id,
            )

    def leave(self) -> None:
        """Leave the group, if this is its member."""
        member, group = self._member, self._group
        if member is None:
            return
        self._member = None

        def program(ctx: Context, views: Views) -> Program[tuple[Views, None]]:
            return (yield from protocol.leave_group(ctx, views, group, member.generation, member.member_id)), None

        # A store that was created again, or restored to an older state, does not know this member.
        with contextlib.suppress(StoreChangedError):
            self._session.call(f"leaving group {group!r}", program)

    def commit(self, group: str, values: Mapping[TopicPartition, OffsetValue]) -> None:
        """Commit offsets, on the condition that this is still the member if it has joined. Raises CommitFailedError."""
        member = self._member
        condition = (
            OffsetsCondition(generation=member.generation, member_id=member.member_id) if member is not None else None
        )

        def program(ctx: Context, views: Views) -> Program[tuple[Views, None]]:
            return (yield from protocol.commit_offsets(ctx, views, group, values, condition)), None

        self._session.call(f"committing offsets of group {group!r}", program)
