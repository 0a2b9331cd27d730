"""How does an operator reset, empty or delete a consumer group?

Each change is one record. Its check runs again at the slot of the record, because a member may have joined since.
"""

from __future__ import annotations

from collections.abc import Mapping

from txlog.core import groups as rules
from txlog.core.append_rules import BatchDraft
from txlog.core.effects import NewId, Now, Program
from txlog.core.groups import offset_entries, offsets_partition
from txlog.core.names import TopicPartition
from txlog.core.records import Entry, GroupEntry, GroupValue, OffsetValue
from txlog.core.state import PartitionState
from txlog.errors import InvalidRequestError, TxlogError
from txlog.protocol.context import Context, Views
from txlog.protocol.groups import (
    GroupChange,
    GroupDescription,
    active,
    append_entries,
    find_group,
    group_changed,
    no_such_group,
    stamped,
    tombstones,
)
from txlog.protocol.load import get_fresh_view
from txlog.text import time_text


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

    With `force` the same record removes the member. Return the removed member. If a member joins or leaves before the
    record has its slot, the call is judged again. With `dry_run` nothing is written. With the `change` of an earlier
    try the call continues that try. Raises InvalidRequestError (a member, without `force`), ConcurrentTransactionsError
    (a pending conditional offset; the membership changed: repeat the call).
    """
    if not offsets:
        return views, None
    views, view = yield from get_fresh_view(
        ctx, views, offsets_partition(group, ctx.constants.consumer_offsets_partitions)
    )
    change = change or GroupChange((yield NewId()))
    if change.has_won(view):
        return views, change.member
    member = _member(view.state, group)

    def check_member(state: PartitionState) -> TxlogError | None:
        now = _member(state, group)
        if now is not None and not force:
            return _in_use(group, now)
        return group_changed(group) if now != member else None

    if wrong := check_member(view.state):
        raise wrong
    if dry_run:
        return views, member
    change.member = member
    now_ms = yield Now()
    moved = offset_entries(group, {tp: stamped(tp, value, now_ms, False) for tp, value in offsets.items()})
    entries: tuple[Entry, ...] = (*_removal(group, member, now_ms), *moved)

    def check(state: PartitionState) -> TxlogError | None:
        wrong = check_member(state)
        return wrong or rules.check_commit(state, moved, group=group, condition=None, producer_id=None)

    draft = BatchDraft(records=len(entries), entries=entries)
    return (yield from append_entries(ctx, views, group, draft, check, change=change)), change.member


def remove_members(
    ctx: Context, views: Views, group: str, change: GroupChange | None = None
) -> Program[tuple[Views, GroupValue | None]]:
    """End the membership with generation + 1: if the member is still alive, its next commit fails. Return the member.

    With the `change` of an earlier try the call continues that try. Raises GroupIdNotFoundError,
    ConcurrentTransactionsError (the membership changed: repeat the call).
    """
    change = change or GroupChange((yield NewId()))
    views, description = yield from _describe_unless_won(ctx, views, group, change)
    if description is None:
        return views, change.member
    member = active(description.member)
    if member is None:
        return views, None
    change.member = member
    entries = _removal(group, member, (yield Now()))

    def check(state: PartitionState) -> TxlogError | None:
        return None if _member(state, group) == member else group_changed(group)

    draft = BatchDraft(records=len(entries), entries=entries)
    return (yield from append_entries(ctx, views, group, draft, check, change=change)), change.member


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

    def check(state: PartitionState) -> TxlogError | None:
        """Check at the slot of the record: a member may have joined since the group was described."""
        now = find_group(state, group)
        if now is None:
            return no_such_group(group)
        if now.pending:
            return InvalidRequestError(
                f"group {group!r} has offsets in an undecided transaction; it cannot be deleted before that ends "
                "(`txlog transactions list` shows it)"
            )
        if not force and (joined := active(now.member)) is not None:
            return _in_use(group, joined)
        if now.offsets.keys() != description.offsets.keys() or now.member != description.member:
            return group_changed(group)
        return None

    if wrong := check(views[offsets_partition(group, ctx.constants.consumer_offsets_partitions)].state):
        raise wrong
    if dry_run:
        return views, member
    change.member = member
    draft = BatchDraft(records=len(entries), entries=entries)
    return (yield from append_entries(ctx, views, group, draft, check, change=change)), change.member


def _describe_unless_won(
    ctx: Context, views: Views, group: str, change: GroupChange
) -> Program[tuple[Views, GroupDescription | None]]:
    """Return the group, read fresh; None if an earlier try of `change` has won. Raises GroupIdNotFoundError."""
    views, view = yield from get_fresh_view(
        ctx, views, offsets_partition(group, ctx.constants.consumer_offsets_partitions)
    )
    if change.has_won(view):
        return views, None
    description = find_group(view.state, group)
    if description is None:
        raise no_such_group(group)
    return views, description


def _member(state: PartitionState, group: str) -> GroupValue | None:
    row = state.groups.get(group)
    return active(row.entry.value) if row is not None else None


def _removal(group: str, member: GroupValue | None, now_ms: int) -> tuple[GroupEntry, ...]:
    if member is None:
        return ()
    value = GroupValue(generation=member.generation + 1, member_id="", updated_at=now_ms)
    return (GroupEntry(group=group, value=value),)


def _in_use(group: str, member: GroupValue) -> InvalidRequestError:
    return InvalidRequestError(
        f"group {group!r} is in use by member {member.member_id!r}, which joined {time_text(member.updated_at)}. hint: close that "
        "consumer first; if it is gone, --force (force=True) removes the member first. If it is still alive, its next commit fails"
    )
