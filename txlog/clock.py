"""What time is it, and which id does a new object get?

Only this module asks the machine for time, randomness or identifiers. All other code gets a `Clock` and an
`IdGenerator`, so that tests and the simulator control both (`txlog.testing.clock`).
"""

from __future__ import annotations

import secrets
import sys
import time
from typing import Protocol

from txlog.core.records import FIRST_DRAWN_PRODUCER_ID


class Clock(Protocol):
    """Time as a component: the wall clock for what is stored, the monotonic one for ages and deadlines."""

    def now_ms(self) -> int:
        """Return the wall clock in milliseconds since the epoch; it may step backwards."""

    def monotonic_ms(self) -> int:
        """Return milliseconds of a clock that never steps back; only differences count.

        It goes on while the machine sleeps, where the system has such a clock. An age that matters also counts by the
        wall clock (`txlog.core.ages`).
        """

    def sleep_ms(self, ms: int) -> None:
        """Return after about `ms` milliseconds; at once if `ms` is not positive."""


class IdGenerator(Protocol):
    """Identity and randomness as a component."""

    def new_id(self) -> str:
        """Return 32 lower-case hex digits that no process has used before."""

    def new_producer_id(self) -> int:
        """Return a producer id for a producer without transactional.id, drawn from [2^62, 2^63) (PROTOCOL.md, W18)."""

    def jitter(self, ms: int) -> int:
        """Return a random number of milliseconds between a half and one and a half of `ms`."""


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return _monotonic_ns() // 1_000_000

    def sleep_ms(self, ms: int) -> None:
        if ms > 0:
            time.sleep(ms / 1000)


class SystemIds:
    """Ids from the operating system's randomness: unique across processes, forks included (PROTOCOL.md, W4)."""

    def new_id(self) -> str:
        return secrets.token_hex(16)

    def new_producer_id(self) -> int:
        return FIRST_DRAWN_PRODUCER_ID + secrets.randbelow(2**62)

    def jitter(self, ms: int) -> int:
        return ms // 2 + secrets.randbelow(ms + 1) if ms > 0 else 0


def _ageing_clock(platform: str) -> int | None:
    """Return the system's clock that goes on while the machine sleeps; None if Python cannot read such a clock here.

    A view that was held over a weekend must not look young (PROTOCOL.md, W14). Linux stops CLOCK_MONOTONIC while the
    machine is suspended. macOS does not stop it, but time.monotonic() reads another clock there, which stops. On a
    system without such a clock, the age of a view still counts by the wall clock.
    """
    name = {"linux": "CLOCK_BOOTTIME", "darwin": "CLOCK_MONOTONIC"}.get(platform)
    found: int | None = getattr(time, name, None) if name is not None else None
    return found


_AGEING_CLOCK = _ageing_clock(sys.platform)


def _monotonic_ns() -> int:
    return time.monotonic_ns() if _AGEING_CLOCK is None else time.clock_gettime_ns(_AGEING_CLOCK)
