"""Which members of a group has this process found silent for their session (W53)?

A clock that is wrong, of this process or of another one, must not end the session of a member that lives. So this
process waits on its own monotonic clock, from the look that showed it the member's last heartbeat. Kafka's coordinator
does the same.
"""

from __future__ import annotations

from txlog.clock import Clock
from txlog.core.members import STOPPED, Quiet, beat_of
from txlog.core.records import GroupRow


class Timeouts:
    """The last heartbeats that this process has seen of the members of a group, and when it saw each first."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: dict[str, tuple[int, int, int]] = {}
        """member -> (the heartbeat, when it was seen first, the session)"""
        self._stopped: frozenset[str] = frozenset()

    def note(self, row: GroupRow | None) -> None:
        """Take what a look has shown. The look has ended: a heartbeat may be older, but not newer."""
        now_ms = self._clock.monotonic_ms()
        seen: dict[str, tuple[int, int, int]] = {}
        if row is None or row.entry.value is None:
            return
        for each in row.entry.value.members:
            beat_ms, before = beat_of(row, each.member_id), self._seen.get(each.member_id)
            first_ms = before[1] if before is not None and before[0] == beat_ms else now_ms
            seen[each.member_id] = (beat_ms, first_ms, each.session_timeout_ms)
        self._seen = seen

    def stop(self, member_id: str) -> None:
        """Note that this process is no longer this member, and reads nothing as it any more."""
        self._stopped |= {member_id}

    @property
    def quiet(self) -> Quiet:
        """The members that were silent for longer than their session, as far as this process has seen.

        A record that removes them is judged on the newest heartbeats: a newer one than that of here keeps a member.
        """
        now_ms = self._clock.monotonic_ms()
        silent = {
            member_id: beat_ms
            for member_id, (beat_ms, first_ms, session_ms) in self._seen.items()
            if now_ms - first_ms > session_ms
        }
        return {**silent, **dict.fromkeys(self._stopped, STOPPED)}
