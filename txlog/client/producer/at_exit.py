"""What happens to a producer that its program never closed?

At the program's end, a producer without transactional.id sends its waiting rows, within FLUSH_MS: the program handed
them over to be written, and no transaction decides about them. Nothing else is written. An open transaction was not
committed, and only someone who knows that its program has ended may abort it.

Rows that are lost, or may be, are always reported. The logger `txlog.client.producer.at_exit` logs an error with the
name of each such producer, and txlog prints it by default. There is also a ResourceWarning.

None of this happens if a program is killed, or ends with `os._exit` as the workers of multiprocessing do.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import threading
import warnings
import weakref
from typing import Protocol

from txlog.logs import log

FLUSH_MS = 5000
"""How long the end of a program may take for waiting rows, whatever the store does."""
_POLL_MS = 10
_LOG = logging.getLogger(__name__)


class OpenProducer(Protocol):
    """A producer as the end of the program sees it."""

    def _send_at_exit(self) -> bool:
        """Send waiting rows, unless a transaction decides about them. Return whether no row is left to wait for."""

    def _lost_at_exit(self) -> str | None:
        """Return what is lost, or may be lost, if the program ends now."""


def watch(producer: OpenProducer) -> None:
    """Check the producer when the program ends, unless it is closed or garbage-collected by then."""
    _WATCHED.add(producer)


def unwatch(producer: OpenProducer) -> None:
    """Stop checking a producer, because it was closed."""
    _WATCHED.discard(producer)


def end_producers() -> None:
    """Handle the end of the program. It counts polls and uses no clock, because a clock may stand still."""
    producers, pause = list(_WATCHED), threading.Event()
    _WATCHED.clear()
    for _ in range(FLUSH_MS // _POLL_MS):
        if not [producer for producer in producers if not producer._send_at_exit()]:
            break
        pause.wait(_POLL_MS / 1000)
    for text in [text for producer in producers if (text := producer._lost_at_exit()) is not None]:
        log(_LOG, logging.ERROR, "producer_not_closed", "%s", text)
        # As an error it would end this loop, and hide the producers after it.
        with contextlib.suppress(ResourceWarning):
            warnings.warn(text, ResourceWarning, stacklevel=2)


_WATCHED: weakref.WeakSet[OpenProducer] = weakref.WeakSet()
# At import, before any producer exists: so a program's own exit handlers, which may close producers, run before this
# one.
atexit.register(end_producers)
