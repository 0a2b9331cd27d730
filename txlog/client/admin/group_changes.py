"""Which change of a group does an operator's call make: a new one, or one that an earlier call has left undecided?"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import TypeAlias

from txlog.client.session.call_guard import has_ended
from txlog.client.session.session import Session
from txlog.core.effects import Program
from txlog.core.records import GroupValue
from txlog.errors import OutcomeUnknownError, TxlogError, TxlogTimeoutError
from txlog.protocol.context import Context, Views
from txlog.protocol.groups import GroupChange

Change: TypeAlias = Callable[[Context, Views, GroupChange], Program[tuple[Views, GroupValue | None]]]


@dataclass(frozen=True, slots=True)
class _Call:
    what: str
    arguments: tuple[object, ...]
    change: GroupChange
    frame: FrameType
    """The call. If it has ended, the same call goes on with its change."""


class GroupChanges:
    """The changes of one operator's calls, each noted before its first request. Thread-safe."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._calls: dict[str, _Call] = {}
        """For each group, the last call whose outcome is unknown, or which runs."""

    def make(
        self, group: str, what: str, arguments: tuple[object, ...], program: Change, *, dry_run: bool = False
    ) -> tuple[str, ...]:
        """Change a group, and return the removed members.

        After an unknown outcome or an interrupt the same call joins the earlier one (PROTOCOL.md, W44). Raises
        OutcomeUnknownError instead of a refusal that does not show whether an earlier try succeeded.
        """
        session = self._session
        if dry_run:  # It settles nothing, and leaves an earlier call as it is.
            return _ids(session.call(what, lambda ctx, views: program(ctx, views, GroupChange("")), settles=False))
        known = self._calls.get(group)
        if known is not None and (known.what, known.arguments) == (what, arguments) and has_ended(known.frame):
            change = known.change
        else:
            change = GroupChange(session.runtime.ids.new_id())
        self._calls[group] = call = _Call(what, arguments, change, sys._getframe())
        try:
            # Not `settles`, because each try looks for the record of the earlier tries.
            removed = _ids(session.call(what, lambda ctx, views: program(ctx, views, change), settles=False))
        except TxlogError as error:
            if not change.in_doubt:
                self._forget(group, call)
                raise
            if isinstance(error, OutcomeUnknownError | TxlogTimeoutError):
                raise
            raise OutcomeUnknownError(
                f"{session.who}: {what}: an earlier try may have taken effect, and this one was "
                f"refused ({error.problem}). "
                "hint: look at the group before you do it again"
            ) from error
        # One line: before it the call has not returned, and the same call joins it.
        self._forget(group, call); return removed  # fmt: skip # noqa: E702

    def _forget(self, group: str, call: _Call) -> None:
        if self._calls.get(group) is call:
            self._calls.pop(group, None)


def _ids(member: GroupValue | None) -> tuple[str, ...]:
    return () if member is None else tuple(each.member_id for each in member.members) or (member.member_id,)
