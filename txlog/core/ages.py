"""How old is something, and how far may two clocks differ?

An age that allows a process to delete, hide or merge is measured in one of three ways.

* A process measures the age of its own views, snapshots and files with both of its clocks (`ClockReading`).
* The age of an object is the difference of two times of the store (`StoreNow`).
* Where times of different processes must be compared, MAX_CLOCK_ERROR_MS is added once for each clock.

See PROTOCOL.md, "Time".
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_CLOCK_SKEW_MS = 15 * 60_000
"""A process does not write if its clock differs from the store's by more than this (W2)."""
MAX_CLOCK_STEP_MS = 60_000
"""If a wall clock was set or has drifted by more than this since the last comparison with the store's, it is compared
again."""
MAX_CLOCK_ERROR_MS = MAX_CLOCK_SKEW_MS + MAX_CLOCK_STEP_MS
"""So a time that a process writes differs from the store's by at most this."""


@dataclass(frozen=True, slots=True)
class ClockReading:
    """The readings of both clocks of one process at one time."""

    wall_ms: int
    monotonic_ms: int | None = None
    """None: not known. A monotonic clock has no meaning in another process."""

    def ms_since(self, earlier: ClockReading) -> int:
        """Return how long ago `earlier` was: the greater of the two clocks' differences (W14).

        The monotonic clock may stop while the machine sleeps, and the wall clock may be set back. The other one still
        shows the age.
        """
        by_wall = self.wall_ms - earlier.wall_ms
        if self.monotonic_ms is None or earlier.monotonic_ms is None:
            return by_wall
        return max(self.monotonic_ms - earlier.monotonic_ms, by_wall)

    def __reduce__(self) -> tuple[type[ClockReading], tuple[int]]:
        return ClockReading, (self.wall_ms,)
