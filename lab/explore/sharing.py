"""Scenarios of members whose clocks are wrong, and mutants of their rules.

As the shipped consumer, a member judges itself by its own clocks, and others by how long it has watched them (W53,
W54).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lab.explore import member_calls
from lab.explore.cleaner import wait
from lab.explore.client import Call, Client, patiently
from lab.explore.explorer import Budget, ClockErrors
from lab.explore.member_calls import SESSION_MS, TWO_PARTITIONS
from lab.explore.mutant import Mutant
from lab.explore.scene import Scenario, Scene, Size
from txlog.core import members
from txlog.core.ages import ClockReading
from txlog.core.effects import Program, ReadClocks
from txlog.core.groups import OffsetsCondition
from txlog.core.members import beat_of, find_member, partitions_of
from txlog.core.names import TopicPartition
from txlog.core.records import GroupMember, GroupRow, OffsetValue
from txlog.errors import CommitFailedError, OutcomeUnknownError, RetriableError
from txlog.protocol import groups, members as programs

SKEW_MS = 14 * 60_000
"""Within the error that a clock may have."""
AHEAD, BEHIND = ClockErrors(wall=(SKEW_MS,)), ClockErrors(wall=(-SKEW_MS,))
LATER_MS = SESSION_MS + 1_000


# -- calls ------------------------------------------------------------------------------------------------------------


def join(name: str, group: str = "g") -> Call:
    """Let a consumer join a group whose members share the two partitions of `orders`."""
    joining = GroupMember(
        member_id=name, topics=("orders",), assignors=("cooperative-sticky",), session_timeout_ms=SESSION_MS, generation=0
    )  # fmt: skip

    def call(client: Client) -> Program[Client]:
        began: ClockReading = yield ReadClocks()
        quiet = quiet_of(client, began)
        try:
            views, row = yield from patiently(
                client, lambda: programs.join(client.ctx, client.views, group, joining, TWO_PARTITIONS, quiet=quiet)
            )
        except (RetriableError, OutcomeUnknownError) as error:
            return client.noted("unknown", text=str(error), stop=True)
        return _shown(replace(client, views=views, alive_at=began), row, name, (yield ReadClocks()))

    return call


def sync(group: str = "g") -> Call:
    """Let a member look at its group, and write what it gives up and takes, if that is due."""

    def call(client: Client) -> Program[Client]:
        assert client.member is not None
        name = client.member.member_id
        try:
            views, row = yield from patiently(client, lambda: programs.look(client.ctx, client.views, group))
            now: ClockReading = yield ReadClocks()
            client = _shown(replace(client, views=views), row, name, now)
            if client.stopped or row is None:
                return client
            found = find_member(row.entry.value, name)
            assert found is not None
            held, quiet = client.held & partitions_of(found.assigned), quiet_of(client, now)
            views, row = yield from patiently(
                client, lambda: programs.sync(client.ctx, client.views, group, name, held, TWO_PARTITIONS, quiet)
            )
        except (RetriableError, OutcomeUnknownError) as error:
            return client.noted("unknown", text=str(error), stop=True)
        return _shown(replace(client, views=views, alive_at=now), row, name, (yield ReadClocks()))

    return call


def beat(group: str = "g") -> Call:
    """Let a member write a heartbeat, unless its own clocks say that its session is over."""

    def call(client: Client) -> Program[Client]:
        assert client.member is not None
        name = client.member.member_id
        now: ClockReading = yield ReadClocks()
        if is_gone(client, now):
            return client.noted("gone", stop=True)
        try:
            views, row = yield from patiently(
                client, lambda: programs.heartbeat(client.ctx, client.views, group, name, alive=True)
            )
        except (RetriableError, OutcomeUnknownError) as error:
            return client.noted("unknown", text=str(error), stop=True)
        return replace(client, views=views, alive_at=now).noted("done" if row is not None else "gone")

    return call


def commit(offset: int, group: str = "g") -> Call:
    """Commit an offset for each partition that the member reads."""

    def call(client: Client) -> Program[Client]:
        member = client.member
        assert member is not None
        now: ClockReading = yield ReadClocks()
        if is_gone(client, now):
            return client.noted("gone", stop=True)
        value = OffsetValue(offset=offset, metadata=f"member {member.member_id} {member.generation}")
        condition = replace(member, alive=True)
        try:
            views = yield from patiently(
                client,
                lambda: groups.commit_offsets(
                    client.ctx, client.views, group, dict.fromkeys(sorted(client.held), value), condition
                ),
            )
        except CommitFailedError:
            return client.noted("failed", stop=True)
        except (RetriableError, OutcomeUnknownError) as error:
            return client.noted("unknown", text=str(error), stop=True)
        return replace(client, views=views, alive_at=now).noted("done")

    return call


def owns_all() -> Call:
    """Note whether the member reads both partitions."""

    def call(client: Client) -> Program[Client]:
        yield from ()
        everything = {TopicPartition(topic, n) for topic, count in TWO_PARTITIONS.items() for n in range(count)}
        return client.noted("owns all" if client.held == everything else "owns less")

    return call


def is_gone(client: Client, now: ClockReading) -> bool:
    """Return whether the member's session is over by its own clocks (W54)."""
    return client.alive_at is None or now.ms_since(client.alive_at) > SESSION_MS


def quiet_of(client: Client, now: ClockReading) -> dict[str, int]:
    """Return the members that the process has watched for longer than their session (W53)."""
    return {
        name: beat_ms for name, beat_ms, seen_ms in client.watched if (now.monotonic_ms or 0) - seen_ms > SESSION_MS
    }


def _shown(client: Client, row: GroupRow | None, name: str, now: ClockReading) -> Client:
    """Return the client after a look, or after its own record."""
    value = row.entry.value if row is not None else None
    found = find_member(value, name)
    if row is None or value is None or found is None or is_gone(client, now):
        return client.noted("lost", stop=True)
    seen = {(each, beat_ms): seen_ms for each, beat_ms, seen_ms in client.watched}
    beats = {each.member_id: beat_of(row, each.member_id) for each in value.members if each.member_id != name}
    watched = tuple(
        (each, beat_ms, seen.get((each, beat_ms), now.monotonic_ms or 0)) for each, beat_ms in beats.items()
    )
    condition = OffsetsCondition(generation=found.generation, member_id=name)
    return replace(client, member=condition, held=partitions_of(found.owned), watched=watched).noted("done")


# -- scenarios --------------------------------------------------------------------------------------------------------


def _scene(size: Size, clocks: dict[str, ClockErrors], *, later: bool = False) -> Scene:
    budget = Budget(lost=1 if size == "full" else 0, ticks=(LATER_MS,) if later else ())
    # Nobody deletes. The times of objects are kept, because a join asks for them.
    return Scene(budget=budget, clocks=clocks, vacuumed=True)


def _stranger(size: Size) -> Scene:
    """A process of another group commits, by a clock that is ahead by more than a session. All members live."""
    full = size == "full"
    scene = _scene(size, {"stranger": AHEAD})
    one = scene.before("one", scene.client(), join("one"))
    scene.actor("one", one, sync(), beat(), commit(1))
    scene.actor("stranger", scene.client(), member_calls.commit_offsets(5, "h"))
    scene.actor("two", scene.client(), join("two"), sync(), *[sync()] * full, commit(2))
    scene.expects = {"one": {"done"}, "two": {"done"}}
    return scene


def _stranger_dies(size: Size) -> Scene:
    """... and a member dies. The other one gets its partition a session later, not 14 minutes."""
    full = size == "full"
    scene = _scene(size, {"stranger": AHEAD}, later=True)
    scene.before("dead", scene.client(), join("dead"))
    two = scene.before("two", scene.client(), join("two"))
    scene.before("dead again", scene.client(), beat_as("dead"))
    scene.actor("stranger", scene.client(), member_calls.commit_offsets(5, "h"))
    scene.actor("two", two, sync(), *watching(full), sync(), owns_all())
    scene.expects = {"two": {"owns all", "lost", "gone"}}
    return scene


def beat_as(name: str) -> Call:
    """Write a last heartbeat of a member that then dies."""

    def call(client: Client) -> Program[Client]:
        views, _ = yield from programs.heartbeat(client.ctx, client.views, "g", name, alive=True)
        return replace(client, views=views)

    return call


def watching(full: bool) -> tuple[Call, ...]:
    """Stay alive until the session of another member is over."""
    return (wait(LATER_MS), rejoin(), *[beat()] * full)


def rejoin() -> Call:
    """Go on although time has passed: the member wrote heartbeats all the time, which are left out here."""

    def call(client: Client) -> Program[Client]:
        return replace(client, alive_at=(yield ReadClocks()))

    return call


def _skewed_members(size: Size) -> Scene:
    """The clock of one member is behind, that of the other ahead. A third one, whose clock is right, joins."""
    full = size == "full"
    scene = _scene(size, {"one": BEHIND, "two": AHEAD})
    one = scene.before("one", scene.client(), join("one"))
    scene.actor("one", one, beat(), *[sync()] * full, commit(1))
    scene.actor("two", scene.client(), join("two"), sync(), commit(2))
    if full:
        scene.actor("three", scene.client(), join("three"))
    return scene


def _skewed_sleeper(size: Size) -> Scene:
    """A member whose clock is ahead sleeps past its session, while another one whose clock is behind waits for it."""
    full = size == "full"
    scene = _scene(size, {"one": AHEAD, "two": BEHIND}, later=True)
    one = scene.before("one", scene.client(), join("one"))
    two = scene.before("two", scene.client(), join("two"))
    # Their own clocks have told them other times.
    one = replace(one, alive_at=_moved(one.alive_at, SKEW_MS))
    two = replace(two, alive_at=_moved(two.alive_at, -SKEW_MS))
    scene.actor("one", one, sync(), commit(1), *[beat()] * full)
    scene.actor("two", two, sync(), *watching(full), sync(), commit(2))
    return scene


def _moved(at: ClockReading | None, ms: int) -> ClockReading | None:
    return None if at is None else replace(at, wall_ms=at.wall_ms + ms)


SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario(name="stranger", what="another group's record comes from a clock that is ahead; all members live", rules=(12,), build=_stranger),
        Scenario(name="stranger, dead member", what="... and a member has died", rules=(12,), build=_stranger_dies),
        Scenario(name="members, skewed", what="members join and commit by clocks that differ by 28 minutes", rules=(12,), build=_skewed_members),
        Scenario(name="member sleeps, skewed", what="... and one sleeps past its session", rules=(12,), build=_skewed_sleeper),
    )
}  # fmt: skip


# -- mutants ----------------------------------------------------------------------------------------------------------


def _by_timestamps(row: GroupRow, member: GroupMember, now_ms: int, quiet: Any = None) -> bool:
    """Compare the times of records alone."""
    return now_ms - max(beat_of(row, member.member_id), 0) > member.session_timeout_ms


def _never_by_watching(row: GroupRow, member: GroupMember, now_ms: int, quiet: Any = None) -> bool:
    return bool(_IS_OVER(row, member, now_ms, None if quiet is None else {}))


def _whatever_beat(row: GroupRow, member: GroupMember, now_ms: int, quiet: Any = None) -> bool:
    """Remove a member that was silent, although it has written since."""
    return member.member_id in (quiet or {}) or bool(_IS_OVER(row, member, now_ms, quiet))


_IS_OVER = members.is_over


MUTANTS: tuple[Mutant, ...] = tuple(
    Mutant(name=name, scenario=scenario, rules=rules, patches=patches)
    for name, scenario, rules, patches in (
        ("sessions of others end by the times of records", "stranger", "W53", {"txlog.core.members.is_over": _by_timestamps}),
        ("a process that watches a dead member does not remove it", "stranger, dead member", "W53", {"txlog.core.members.is_over": _never_by_watching}),
        ("a member that was silent is removed although it has written since", "member sleeps, skewed", "W53", {"txlog.core.members.is_over": _whatever_beat}),
        ("heartbeats have the time of the partition", "stranger", "W54", {"txlog.core.append_rules._after_beats": lambda *_: -1}),
        ("a join does not ask the store how old a heartbeat is", "members, skewed", "W53", {"txlog.protocol.members._find_silent": lambda view, row: _seem_over(row)}),
    )
)  # fmt: skip


def _seem_over(row: GroupRow) -> Program[dict[str, int]]:
    """Return the members whose last heartbeat is older than a session by this process's own clock."""
    now: ClockReading = yield ReadClocks()
    found = row.entry.value.members if row.entry.value is not None else ()
    return {each.member_id: beat_of(row, each.member_id) for each in found if _by_timestamps(row, each, now.wall_ms)}
