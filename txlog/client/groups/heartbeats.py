"""How long does the heartbeat thread of a member run?"""

from __future__ import annotations

import logging
import threading
import weakref
from typing import Protocol

from txlog.logs import log

_LOG = logging.getLogger(__name__)


class Stop:
    """Ends the heartbeat thread of one membership."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._is_set = False

    def set(self) -> None:
        """Let `wait` return at once."""
        with self._condition:
            self._is_set = True
            self._condition.notify_all()

    def wait(self, seconds: float) -> bool:
        """Return after that time, or at once after `set`: then True."""
        with self._condition:
            if not self._is_set:
                self._condition.wait(seconds)
            return self._is_set


class Beating(Protocol):
    """A membership, as its heartbeat thread sees it."""

    def tick(self) -> None:
        """Write a heartbeat if it is due."""


def beat(of: weakref.ref[Beating], stop: Stop, tick_ms: int) -> None:
    """Write heartbeats until the membership ends, or the program drops the consumer."""
    while not stop.wait(tick_ms / 1000):
        membership = of()
        if membership is None:
            return
        try:
            membership.tick()
        except Exception as error:
            # The next tick tries again, unless the store was closed. If none succeeds in time, the session ends, and a
            # poll reports that.
            log(_LOG, logging.DEBUG, "heartbeat_failed", "no heartbeat: %s", error, error=type(error).__name__)
        del membership
