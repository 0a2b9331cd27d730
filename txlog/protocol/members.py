"""How do members join and leave a group, share its partitions, and show that they live (W51 to W54, W57)?

Each call is one record, and a compare-and-set on the row of the group: the judgement is made again at each slot.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TypeAlias

from txlog.core import members as rules
from txlog.core.ages import MAX_CLOCK_ERROR_MS
from txlog.core.effects import NewId, Now, Program
from txlog.core.groups import find_job
from txlog.core.members import Quiet, beat_of, is_over
from txlog.core.names import TopicPartition, batch_name, boundary_name
from txlog.core.records import Entry, GroupMember, GroupRow, HeartbeatEntry
from txlog.core.state import PartitionState
from txlog.errors import InvalidRequestError, StorageError, StoreAccessError, TxlogError
from txlog.protocol.context import Context, PartitionView, Views
from txlog.protocol.groups import append_change, home_of
from txlog.protocol.load import get_fresh_view
from txlog.protocol.requests import many, modified, store_now

_LITTLE_MS = 1000
"""Clocks that NTP keeps differ by less than this."""

Judge: TypeAlias = Callable[..., tuple[Entry, ...] | TxlogError | None]
"""(the group's row, `now_ms`: the time of the record) -> the entries to append, an error, or None: nothing to write."""


def join(
    ctx: Context,
    views: Views,
    group: str,
    joining: GroupMember,
    partitions: Mapping[str, int],
    *,
    beside_jobs: bool = False,
    quiet: Quiet | None = None,
) -> Program[tuple[Views, GroupRow | None]]:
    """Join a group, and return its row. Sessions that are over end. A bearer of the same `instance_id` is replaced.

    `partitions` are the numbers of partitions of the subscribed topics. Raises InvalidRequestError if no assignor is
    common to all members, or if a job commits offsets of the group and `beside_jobs` is false (W57). A call of unknown
    outcome is repeated with the same member id.

    `quiet` are the members that this process has found silent. With it, the store's own clock decides about members
    whose sessions seem to be over, and that this process has not watched long enough (W53).
    """
    if quiet is not None:
        views, row = yield from look(ctx, views, group)
        if row is not None:
            quiet = {**quiet, **(yield from _find_silent(views[home_of(ctx, group)], row))}

    def check(state: PartitionState) -> TxlogError | None:
        job = "" if beside_jobs else find_job(state, group)
        if not job:
            return None
        return InvalidRequestError(
            f"group {group!r}: {joining.member_id!r} may not become a member, because {job} has committed offsets "
            "of this group and reads its partitions alone. "
            "hint: name another group.id, or set allow.mixed.groups=true: then both read the same rows"
        )

    judge = partial(rules.judge_join, group=group, joining=joining, partitions=partitions, quiet=quiet)
    return (yield from _change(ctx, views, group, judge, check))


def sync(
    ctx: Context,
    views: Views,
    group: str,
    member_id: str,
    held: Collection[TopicPartition],
    partitions: Mapping[str, int],
    quiet: Quiet | None = None,
    topics: tuple[str, ...] = (),
    written: Callable[[], None] = lambda: None,
) -> Program[tuple[Views, GroupRow | None]]:
    """Take part in the group's generation as a member that still reads `held`. Return the group's row.

    The member reads no row of another partition any more (W52). It gets the partitions that are assigned to it and
    free. If a session is over, or a topic has more partitions, a new generation is made first (W53). It is also made
    with `topics`, and the member subscribes to them. `quiet` are the members that this one has found silent; with it,
    its own clocks say that it lives itself. `written` is called if there was something to write.
    """
    judge = partial(
        rules.judge_sync, group=group, member_id=member_id, held=held, partitions=partitions, quiet=quiet, topics=topics
    )
    return (yield from _change(ctx, views, group, judge, written=written))


def heartbeat(
    ctx: Context, views: Views, group: str, member_id: str, *, alive: bool = False
) -> Program[tuple[Views, GroupRow | None]]:
    """Show that a member lives, unless it was removed or its session is over (W54). Return the group's row.

    `alive`: its own clocks say that its session is not over.
    """
    judge = partial(rules.judge_heartbeat, group=group, member_id=member_id, alive=alive)
    return (yield from _change(ctx, views, group, judge))


def leave(
    ctx: Context, views: Views, group: str, member_id: str, quiet: Quiet | None = None
) -> Program[tuple[Views, GroupRow | None]]:
    """Leave a group: the others get the partitions of this member. Return the group's row. `quiet` as in `sync`."""
    judge = partial(rules.judge_leave, group=group, member_id=member_id, quiet=quiet)
    return (yield from _change(ctx, views, group, judge))


def look(ctx: Context, views: Views, group: str) -> Program[tuple[Views, GroupRow | None]]:
    """Return the group's row, read fresh."""
    views, view = yield from get_fresh_view(ctx, views, home_of(ctx, group))
    return views, view.state.groups.get(group)


def _find_silent(view: PartitionView, row: GroupRow) -> Program[Quiet]:
    """Return the members whose last heartbeat is older than their session by the store's clock.

    Costs nothing if no session seems to be over. Otherwise it reads the store's time, and the time of one object for
    each such member. That is the record of the heartbeat, or else the last sealed segment or the boundary, which are
    newer. Then a member is also silent if its heartbeat's `timestamp` is too old by that time, and an error of one
    clock.
    """
    own_ms: int = yield Now()
    now_ms = max(own_ms, view.state.last_timestamp)
    group, value = row.entry.group, row.entry.value
    members = () if value is None else value.members
    # A heartbeat from the future tells nothing: one of the two clocks is wrong.
    limit_ms = own_ms + _LITTLE_MS
    seem_over = [each for each in members if is_over(row, each, now_ms) or beat_of(row, each.member_id) > limit_ms]
    if not seem_over:
        return {}
    tp = view.topic_partition
    newest = view.walk[-1].index if view.walk else boundary_name(view.boundary)
    paths = {each.member_id: tp.folder + newest for each in seem_over}
    exact = set()
    for stored in view.tail:
        for entry in stored.record.entries:
            if isinstance(entry, HeartbeatEntry) and entry.group == group and entry.member_id in paths:
                paths[entry.member_id] = tp.folder + batch_name(stored.slot)
                exact.add(entry.member_id)
    try:
        times_ms = yield from many([modified(path) for path in paths.values()])
        store_ms = yield from store_now()
    except (StoreAccessError, StorageError):
        return {}  # the members are watched instead
    silent = {}
    for each, written_ms in zip(seem_over, times_ms, strict=True):
        beat_ms = beat_of(row, each.member_id)
        # Some stores cut their times to a second.
        age_ms = -1 if written_ms is None else store_ms - written_ms - (0 if written_ms % 1000 else 999)
        if each.member_id not in exact:
            age_ms = max(age_ms, store_ms - beat_ms - MAX_CLOCK_ERROR_MS)
        if age_ms > each.session_timeout_ms:
            silent[each.member_id] = beat_ms
    return silent


def _change(
    ctx: Context,
    views: Views,
    group: str,
    judge: Judge,
    check: Callable[[PartitionState], TxlogError | None] = lambda _: None,
    written: Callable[[], None] = lambda: None,
) -> Program[tuple[Views, GroupRow | None]]:
    """Append what `judge` makes of the group's row, unless `check` returns an error for the fold."""

    def judge_fold(state: PartitionState, now_ms: int) -> tuple[Entry, ...] | TxlogError | None:
        return check(state) or judge(state.groups.get(group), now_ms=max(now_ms, state.last_timestamp))

    views, view, is_written = yield from append_change(ctx, views, group, judge_fold, (yield NewId()))
    if is_written:
        written()
    return views, view.state.groups.get(group)
