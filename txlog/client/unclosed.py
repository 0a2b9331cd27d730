"""What becomes of a producer that its program never closed?

At the program's end the rows that wait in a producer without transactional.id go out, within FLUSH_MS: they were handed
over to be written, and no transaction asks whether. Nothing else is written: an open transaction was not committed, and
ending it is for whoever knows that its program is gone. Rows that are lost, or may be, are never lost in silence: each such
producer is named by an error of the logger `txlog.client.unclosed`, which Python prints unless told otherwise, and by a
ResourceWarning.

A program that is killed, or that leaves by `os._exit` as the workers of multiprocessing do, comes to no end of this kind.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import threading
import warnings
import weakref
from typing import Protocol

FLUSH_MS = 5000
"""How long the end of a program may take for rows that wait, whatever the store does."""
_POLL_MS = 10
_LOG = logging.getLogger(__name__)


class Unclosed(Protocol):
    """A producer, as the end of the program sees it."""

    def _hurry_out(self) -> bool:
        """Has waiting rows go out, unless a transaction decides about them; whether none is left to wait for."""

    def _left_behind(self) -> str | None:
        """What is lost, or may be, if the program ends now."""


def watch(producer: Unclosed) -> None:
    """Has the producer looked at when the program ends, unless it is closed or forgotten by then."""
    _WATCHED.add(producer)


def unwatch(producer: Unclosed) -> None:
    """The producer was closed."""
    _WATCHED.discard(producer)


def end_all() -> None:
    """The end of the program. Bounded by polls, not by a clock: a clock may be one that stands still."""
    producers, pause = list(_WATCHED), threading.Event()
    _WATCHED.clear()
    for _ in range(FLUSH_MS // _POLL_MS):
        if not [producer for producer in producers if not producer._hurry_out()]:
            break
        pause.wait(_POLL_MS / 1000)
    for text in [text for producer in producers if (text := producer._left_behind()) is not None]:
        _LOG.error("%s", text)
        # As an error it would end this loop, and hide the producers after it.
        with contextlib.suppress(ResourceWarning):
            warnings.warn(text, ResourceWarning, stacklevel=2)


_WATCHED: weakref.WeakSet[Unclosed] = weakref.WeakSet()
# At import, which comes before any producer: a program's own exit handlers, which may close theirs, run before this one.
atexit.register(end_all)
