"""When does a waiting consumer look for new rows again?

Each look costs requests. Rows often follow rows, so a consumer that had rows a moment ago looks often, and an idle one
seldom.
"""

from __future__ import annotations

from txlog.clock import Clock

_FIRST_PAUSE_MS = 1


class Pace:
    """The pauses between looks that find nothing: from 1 ms, doubling up to `longest_ms`, until `reset` is called."""

    def __init__(self, clock: Clock, longest_ms: int) -> None:
        self._clock = clock
        self._longest_ms = longest_ms
        self._pause_ms = 0
        self._looked_at_ms = clock.monotonic_ms()

    def reset(self) -> None:
        """Make the next look due at once."""
        self._pause_ms = 0

    def wait(self, limit_ms: int) -> None:
        """Return when the next look is due, after at most `limit_ms` milliseconds.

        The pause begins at the last look, so that a program that polls again at once does not look twice.
        """
        due_ms = self._looked_at_ms + self._pause_ms - self._clock.monotonic_ms()
        self._clock.sleep_ms(min(due_ms, limit_ms))

    def looked(self) -> None:
        """Note a look, and begin the pause after it."""
        self._looked_at_ms = self._clock.monotonic_ms()
        self._pause_ms = min(max(2 * self._pause_ms, _FIRST_PAUSE_MS), self._longest_ms)
