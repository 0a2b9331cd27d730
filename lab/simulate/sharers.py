"""How do the members of one group behave in a random world?

Each life joins the group, and then reads, commits, writes heartbeats and sleeps in any order, as the shipped consumer
does. It judges itself by its own clocks, and the others by how long it has watched them (W53, W54). It returns no row
after its session (W56).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from lab.simulate.client import Client
from txlog.core.ages import ClockReading
from txlog.core.effects import Program, ReadClocks, Sleep
from txlog.core.groups import OffsetsCondition
from txlog.core.members import beat_of, find_member, needs_sync, partitions_of
from txlog.core.names import TopicPartition
from txlog.core.records import GroupMember, GroupRow
from txlog.errors import CommitFailedError, OutcomeUnknownError, RetriableError
from txlog.protocol import members

SHARERS = "sharers"
SESSIONS_MS = (10_000, 60_000, 20 * 60_000)
"""Nights and jumps of clocks end any of them, and a minute that passes ends the short ones."""


class Readers:
    """The newest generation that has read each partition: no member of an older one may return a row of it."""

    def __init__(self) -> None:
        self.newest: dict[TopicPartition, int] = {}
        self.trouble: list[str] = []
        self.generations: set[tuple[int, str]] = set()
        """Which members have read in which generation: the worlds must have generations of several."""

    def returned(self, name: str, generation: int, tp: TopicPartition) -> None:
        self.generations.add((generation, name))
        newest = self.newest.setdefault(tp, generation)
        if newest > generation:
            self.trouble.append(
                f"{name} of generation {generation} returned rows of {tp}, which generation {newest} had read before"
            )
        self.newest[tp] = max(newest, generation)


class LostError(Exception):
    """The member's session is over, or the group has removed it."""


@dataclass(slots=True)
class Sharer:
    """One member: what it knows of its group, and of the time."""

    client: Client
    readers: Readers
    session_ms: int
    counts: Mapping[str, int]
    """The numbers of partitions of the topics that the group shares."""
    alive_at: ClockReading | None = None
    generation: int = -1
    held: frozenset[TopicPartition] = frozenset()
    at: dict[TopicPartition, int] = field(default_factory=dict)
    """Where it reads on: its positions."""
    committed: dict[TopicPartition, int] = field(default_factory=dict)
    watched: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Other members: their last heartbeat, and the monotonic time at which this process saw it first."""

    def join(self) -> Program[None]:
        client = self.client
        joining = GroupMember(
            member_id=client.name,
            topics=tuple(self.counts),
            assignors=("cooperative-sticky",),
            session_timeout_ms=self.session_ms,
            generation=0,
        )
        began: ClockReading = yield ReadClocks()

        def call() -> Program[GroupRow | None]:
            client.views, row = yield from members.join(
                client.ctx, client.views, SHARERS, joining, self.counts, quiet=self._quiet(began)
            )
            return row

        row = yield from client.patiently(call)
        self.alive_at = began
        yield from self._take(row)

    def sync(self) -> Program[None]:
        """Look at the group, give up what is assigned to others, and take what is free (W52)."""
        client = self.client

        def look() -> Program[GroupRow | None]:
            client.views, row = yield from members.look(client.ctx, client.views, SHARERS)
            return row

        row = yield from client.patiently(look)
        now: ClockReading = yield ReadClocks()
        yield from self._take(row)
        assert row is not None
        value = row.entry.value
        found = find_member(value, client.name)
        assert value is not None
        assert found is not None
        quiet = self._quiet(now)
        held = self.held & partitions_of(found.assigned)
        if not quiet and not needs_sync(value, found, held):
            return

        def written() -> None:
            self.alive_at = now

        def call() -> Program[GroupRow | None]:
            client.views, row = yield from members.sync(
                client.ctx, client.views, SHARERS, client.name, held, self.counts, quiet, written=written
            )
            return row

        # From here on it reads no partition that it gives up, whatever becomes of the call.
        self.held = held
        row = yield from client.patiently(call)
        yield from self._take(row)

    def beat(self) -> Program[None]:
        client = self.client
        now = yield from self._must_live()

        def call() -> Program[GroupRow | None]:
            client.views, row = yield from members.heartbeat(client.ctx, client.views, SHARERS, client.name, alive=True)
            return row

        row = yield from client.patiently(call)
        if row is None or find_member(row.entry.value, client.name) is None:
            raise LostError
        self.alive_at = now

    def leave(self) -> Program[None]:
        client = self.client

        def call() -> Program[None]:
            client.views, _ = yield from members.leave(client.ctx, client.views, SHARERS, client.name)

        self.held = frozenset()
        yield from client.patiently(call)

    def read(self, choose: random.Random, most: int) -> Program[None]:
        """Return rows of one partition that it holds, from its position on."""
        if not self.held:
            return
        client = self.client
        tp = choose.choice(sorted(self.held))
        yield from self._must_live()
        if tp not in self.at:
            self.at[tp] = self.committed[tp] = max((yield from client.fetch(SHARERS, [tp]))[tp], 0)
            client.go_elsewhere(tp)
        poll = yield from client.poll(
            tp, self.at[tp], most=most, reader=(SHARERS, self.generation), check=self._must_live
        )
        self.readers.returned(client.name, self.generation, tp)
        self.at[tp] = poll.end

    def commit(self) -> Program[None]:
        client = self.client
        ranges = {
            tp: (self.committed[tp], self.at[tp])
            for tp in self.held
            if tp in self.at and self.at[tp] > self.committed[tp]
        }
        if not ranges:
            return
        now = yield from self._must_live()
        condition = OffsetsCondition(generation=self.generation, member_id=client.name, alive=True)
        yield from client.commit_offsets(SHARERS, ranges, condition)
        self.alive_at = now
        self.committed |= {tp: end for tp, (_, end) in ranges.items()}

    def _must_live(self) -> Program[ClockReading]:
        """Return the time, unless the session is over by one of the member's own clocks (W14, W56)."""
        now: ClockReading = yield ReadClocks()
        if self.alive_at is None or now.ms_since(self.alive_at) > self.session_ms:
            raise LostError
        return now

    def _quiet(self, now: ClockReading) -> dict[str, int]:
        monotonic_ms = now.monotonic_ms or 0
        return {
            name: beat for name, (beat, seen_ms) in self.watched.items() if monotonic_ms - seen_ms > self.session_ms
        }

    def _take(self, row: GroupRow | None) -> Program[None]:
        """Take what the group's row shows. The row comes from a look, or this member wrote it."""
        now = yield from self._must_live()
        value = None if row is None else row.entry.value
        found = find_member(value, self.client.name)
        if row is None or value is None or found is None:
            raise LostError
        beats = {each.member_id: beat_of(row, each.member_id) for each in value.members if each is not found}
        self.watched = {
            name: self.watched[name]
            if name in self.watched and self.watched[name][0] == beat
            else (beat, now.monotonic_ms or 0)
            for name, beat in beats.items()
        }
        self.generation = found.generation
        self.held = partitions_of(found.owned)
        # A partition that comes back begins at its committed offset again.
        self.at = {tp: at for tp, at in self.at.items() if tp in self.held}


def share(
    client: Client, readers: Readers, choose: random.Random, counts: Mapping[str, int], most: int
) -> Program[None]:
    """Run the life of a member. It ends, as one that joins again under a new id, when its session is over."""
    sharer = Sharer(client, readers, choose.choice(SESSIONS_MS), counts)
    steps: list[Callable[[], Program[None]]] = [
        sharer.sync, sharer.sync, sharer.beat, sharer.commit, lambda: sharer.read(choose, choose.randint(1, most)),
        lambda: sharer.read(choose, choose.randint(1, most)),
    ]  # fmt: skip
    try:
        for _ in range(choose.randint(10, 60)):
            try:
                yield from (choose.choice(steps) if sharer.generation >= 0 else sharer.join)()
            except (RetriableError, OutcomeUnknownError):
                continue
            yield Sleep(choose.choice([0, 0, 200, 2_000]))
        if choose.random() < 0.5:
            yield from sharer.leave()
    except (LostError, CommitFailedError):
        return
