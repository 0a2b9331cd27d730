"""How old is something, and how far may two clocks be apart?

An age that lets somebody delete, hide or merge is taken in one of three ways. A process measures the age of what it holds
itself with both of its clocks (`Moment`). The age of an object is a difference of two times of the store (`StoreNow`). Where
times of different processes must be compared, MAX_CLOCK_ERROR_MS is added once for each clock. See PROTOCOL.md, "Time".
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_CLOCK_SKEW_MS = 15 * 60_000
"""A process whose clock is further from the store's does not write (W2)."""
MAX_CLOCK_STEP_MS = 60_000
"""A wall clock that was set, or has drifted, by more than this since it was compared with the store's is compared again."""
MAX_CLOCK_ERROR_MS = MAX_CLOCK_SKEW_MS + MAX_CLOCK_STEP_MS
"""So no time that a process writes is further from the store's."""


@dataclass(frozen=True, slots=True)
class Moment:
    """What both clocks of one process said at one time."""

    wall_ms: int
    monotonic_ms: int | None = None
    """None: not known, for a monotonic clock says nothing in another process."""

    def ms_since(self, earlier: Moment) -> int:
        """How long ago `earlier` was: the greater of what the two clocks say (W14).

        The monotonic clock may stop while the machine sleeps, and the wall clock may be set back: the other one still tells.
        """
        by_wall = self.wall_ms - earlier.wall_ms
        if self.monotonic_ms is None or earlier.monotonic_ms is None:
            return by_wall
        return max(self.monotonic_ms - earlier.monotonic_ms, by_wall)

    def __reduce__(self) -> tuple[type[Moment], tuple[int]]:
        return Moment, (self.wall_ms,)
