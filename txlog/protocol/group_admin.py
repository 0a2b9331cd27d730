"""How does an operator reset, empty or delete a consumer group?

Each change is one record. Its check runs again at the slot of the record, because a member may have joined since.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from txlog.core import groups as rules
from txlog.core.effects import NewId, Now, Program
from txlog.core.groups import OffsetsCondition
from txlog.core.members import find_living, without
from txlog.core.names import TopicPartition
from txlog.core.records import Entry, GroupEntry, GroupValue, OffsetValue
from txlog.core.state import PartitionState
from txlog.errors import GroupIdNotFoundError, InvalidRequestError, TxlogError
from txlog.protocol.context import Context, Views
from txlog.protocol.groups import (
    GroupChange,
    GroupDescription,
    active,
    append_entries,
    group_changed,
    home_of,
    known_group,
    membership,
    stamped_entries,
    tombstones,
)
from txlog.protocol.load import get_fresh_view
from txlog.text import count_text, time_text


def reset_offsets(
    ctx: Context,
    views: Views,
    group: str,
    offsets: Mapping[TopicPartition, OffsetValue | None],
    *,
    force: bool = False,
    dry_run: bool = False,
    change: GroupChange | None = None,
) -> Program[tuple[Views, GroupValue | None]]:
    """Commit offsets for an operator to a group without a member. A None offset removes one; an empty map does nothing.

    The same record removes the members, if their sessions are over, or with `force`. Return the removed member. If a
    member joins or leaves before the record has its slot, the call is judged again. With `dry_run` nothing is written.
    With the `change` of an earlier try the call continues that try. Raises InvalidRequestError (a member, without
    `force`), ConcurrentTransactionsError (a pending conditional offset; the membership changed: repeat the call),
    GroupIdNotFoundError (all offsets are None, and there is no such group).
    """
    if not offsets:
        return views, None
    views, view = yield from get_fresh_view(ctx, views, home_of(ctx, group))
    change = change or GroupChange((yield NewId()))
    if change.has_won(view):
        return views, change.member
    if all(value is None for value in offsets.values()):
        known_group(view.state, group)
    member = _member(view.state, group)

    def check_member(state: PartitionState, time_ms: int) -> TxlogError | None:
        now = _member(state, group)
        if not force and _lives(state, group, time_ms) and now is not None:
            return _in_use(group, now)
        return group_changed(group) if now != member else None

    if wrong := check_member(view.state, (yield Now())):
        raise wrong
    if dry_run:
        return views, member
    change.member = member
    now_ms = yield Now()
    moved = stamped_entries(group, offsets, now_ms)
    entries: tuple[Entry, ...] = (*_removal(group, member, now_ms), *moved)

    def check(state: PartitionState, time_ms: int) -> TxlogError | None:
        wrong = check_member(state, time_ms)
        # An empty condition: `check_member` says which members may be there.
        return wrong or rules.check_commit(state, moved, group=group, condition=OffsetsCondition(), producer_id=None)

    return (yield from append_entries(ctx, views, group, entries, check, change=change)), change.member


def remove_members(
    ctx: Context, views: Views, group: str, change: GroupChange | None = None, instance_ids: Collection[str] = ()
) -> Program[tuple[Views, GroupValue | None]]:
    """End the membership with generation + 1: if the member is still alive, its next commit fails. Return the member.

    With `instance_ids` only these static members are removed. With the `change` of an earlier try the call continues
    that try. Raises GroupIdNotFoundError, InvalidRequestError (no member has the instance id),
    ConcurrentTransactionsError (the membership changed: repeat the call).
    """
    change = change or GroupChange((yield NewId()))
    views, description = yield from _describe_unless_won(ctx, views, group, change)
    if description is None:
        return views, change.member
    member = active(description.member)
    static = sorted(each.instance_id for each in member.members if each.instance_id) if member is not None else []
    if unknown := sorted(set(instance_ids).difference(static)):
        raise InvalidRequestError(
            f"group {group!r} has no member with the group.instance.id {unknown[0]!r}; its static members are "
            f"{', '.join(static) or 'none'}"
        )
    if member is None:
        return views, None
    now_ms = yield Now()
    named = tuple(each for each in member.members if each.instance_id in instance_ids)
    if 0 < len(named) < len(member.members):
        change.member = msgspec.structs.replace(member, members=named)
        left = without(member, named, now_ms)
        entries: tuple[GroupEntry, ...] = (GroupEntry(group=group, value=left),)
    else:
        change.member, entries = member, _removal(group, member, now_ms)

    def check(state: PartitionState, _: int) -> TxlogError | None:
        return None if _member(state, group) == member else group_changed(group)

    return (yield from append_entries(ctx, views, group, entries, check, change=change)), change.member


def delete_group(
    ctx: Context,
    views: Views,
    group: str,
    *,
    force: bool = False,
    dry_run: bool = False,
    change: GroupChange | None = None,
) -> Program[tuple[Views, GroupValue | None]]:
    """Remove membership and offsets of a group without pending offsets.

    With `force` also remove its member, whose next commit fails. Return the removed member. With `dry_run` nothing is
    written. With the `change` of an earlier try the call continues that try. Raises GroupIdNotFoundError,
    InvalidRequestError (a member, without `force`; pending offsets), ConcurrentTransactionsError (the group changed:
    repeat the call).
    """
    change = change or GroupChange((yield NewId()))
    views, description = yield from _describe_unless_won(ctx, views, group, change)
    if description is None:
        return views, change.member
    member = active(description.member)
    entries = tombstones(description)

    def check(state: PartitionState, time_ms: int) -> TxlogError | None:
        """Check at the slot of the record: a member may have joined since the group was described."""
        try:
            now = known_group(state, group)
        except GroupIdNotFoundError as error:
            return error
        if now.pending:
            return InvalidRequestError(
                f"group {group!r} has offsets in an undecided transaction; it cannot be deleted before that ends "
                "(`txlog transactions list` shows it)"
            )
        if not force and _lives(state, group, time_ms) and now.member is not None:
            return _in_use(group, now.member)
        if now.offsets.keys() != description.offsets.keys() or now.member != description.member:
            return group_changed(group)
        return None

    if wrong := check(views[home_of(ctx, group)].state, (yield Now())):
        raise wrong
    if dry_run:
        return views, member
    change.member = member
    return (yield from append_entries(ctx, views, group, entries, check, change=change)), change.member


def _describe_unless_won(
    ctx: Context, views: Views, group: str, change: GroupChange
) -> Program[tuple[Views, GroupDescription | None]]:
    """Return the group, read fresh; None if an earlier try of `change` has won. Raises GroupIdNotFoundError."""
    views, view = yield from get_fresh_view(ctx, views, home_of(ctx, group))
    return views, None if change.has_won(view) else known_group(view.state, group)


def _member(state: PartitionState, group: str) -> GroupValue | None:
    return active(membership(state, group))


def _lives(state: PartitionState, group: str, now_ms: int) -> bool:
    """Return whether the group has a member whose session is not over. A member without a session always lives."""
    value, living = _member(state, group), find_living(state.groups.get(group), max(now_ms, state.last_timestamp))
    return living is not None or (value is not None and not value.members)


def _removal(group: str, member: GroupValue | None, now_ms: int) -> tuple[GroupEntry, ...]:
    if member is None:
        return ()
    value = GroupValue(generation=member.generation + 1, member_id="", updated_at=now_ms)
    return (GroupEntry(group=group, value=value),)


def _in_use(group: str, member: GroupValue) -> InvalidRequestError:
    ids = [each.member_id for each in member.members] or [member.member_id]
    more = f" and {count_text(len(ids) - 1, 'other member')}" if len(ids) > 1 else ""
    return InvalidRequestError(
        f"group {group!r} is in use by member {ids[0]!r}{more}, which joined {time_text(member.updated_at)}. "
        "hint: close that consumer first; if it is gone, --force (force=True) removes the member first. If it is "
        "still alive, its next commit fails"
    )
