"""When does a waiting consumer look for new rows again?

Each look costs requests. Rows often follow rows, so a consumer that had rows a moment ago looks often, and an idle one
seldom.
"""

from __future__ import annotations

from txlog.clock import Clock

_FIRST_PAUSE_MS = 1
LOOKS_A_PAUSE = 16
"""After this many looks the pauses double. So a row that comes t ms after another one waits for t / 16 ms at most, about:
a consumer sees it late by a small part of the time that it has waited."""
_MAX_DOUBLINGS = 31


class Pace:
    """The pauses between looks that find nothing, until `reset` is called.

    They begin at 1 ms, or at the time that a look takes: shorter ones would cost requests and save little time. After
    every 16 looks they double, up to `longest_ms`.
    """

    def __init__(self, clock: Clock, longest_ms: int) -> None:
        self._clock = clock
        self._longest_ms = longest_ms
        self._pause_ms = 0
        self._looks = 0
        self._looked_at_ms = clock.monotonic_ms()

    def reset(self) -> None:
        """Make the next look due at once."""
        self._pause_ms = self._looks = 0

    def wait(self, limit_ms: int) -> None:
        """Return when the next look is due, after at most `limit_ms` milliseconds.

        The pause begins at the last look, so that a program that polls again at once does not look twice.
        """
        due_ms = self._looked_at_ms + self._pause_ms - self._clock.monotonic_ms()
        self._clock.sleep_ms(min(due_ms, limit_ms))

    def looked(self, began_ms: int) -> None:
        """Note a look that began at this monotonic time, and begin the pause after it."""
        self._looked_at_ms = self._clock.monotonic_ms()
        first_ms = max(self._looked_at_ms - began_ms, _FIRST_PAUSE_MS)
        doublings = min(self._looks // LOOKS_A_PAUSE, _MAX_DOUBLINGS)
        self._pause_ms = min(first_ms * 2**doublings, self._longest_ms)
        self._looks += 1
