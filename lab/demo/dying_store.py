"""Where does a process of the demo die?

At a conditional write to the store that the demo chose: it kills or stops itself there.
"""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable
from typing import Any, cast

from txlog.errors import InvalidRequestError
from txlog.storage.object_store import ObjectStore, PutOutcome

_FAULT = re.compile(r"(?P<action>kill|stop) (?P<moment>before|after) (?P<number>\d+) put_if_absent (?P<pattern>.*)")


class DyingStore:
    """Passes every request on to `inner`. At one `put_if_absent` this process kills (SIGKILL) or stops (SIGSTOP)
    itself.

    fault: `<kill|stop> <before|after> <number> put_if_absent <pattern>`. `pattern` is a regular expression, matched at
    the beginning of the object's path, a space and the first line of its bytes. The store counts the writes that match,
    from 1.
    kill: what kills the process. A driver of Spark ends its JVM too.

    Raises InvalidRequestError for another fault.
    """

    def __init__(self, inner: ObjectStore, fault: str) -> None:
        parsed = _FAULT.fullmatch(fault)
        if parsed is None:
            raise InvalidRequestError(
                f"{fault!r} is not a fault: expected '<kill|stop> <before|after> <number> put_if_absent <pattern>'"
            )
        self.kill: Callable[[], None] = lambda: os.kill(os.getpid(), signal.SIGKILL)
        self._inner = inner
        self._action, self._moment = parsed["action"], parsed["moment"]
        self._pattern = re.compile(parsed["pattern"])
        self._left = int(parsed["number"])
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def put_if_absent(self, path: str, data: bytes) -> PutOutcome:
        """Write the object as `inner` does; the chosen write ends or stops this process before it, or after it."""
        first_line = data.partition(b"\n")[0].decode("latin-1")
        struck = False
        if self._pattern.match(f"{path} {first_line}"):
            with self._lock:
                self._left -= 1
                struck = self._left == 0
        if struck and self._moment == "before":
            self._strike()
        outcome = self._inner.put_if_absent(path, data)
        if struck and self._moment == "after":
            self._strike()
        return outcome

    def _strike(self) -> None:
        if self._action == "kill":
            self.kill()
        # To this very thread: a signal to the process may reach another one, and this one would run on for a moment.
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


def dying(inner: ObjectStore, fault: str) -> ObjectStore:
    """Return a `DyingStore`, which has all that the port asks for."""
    return cast(ObjectStore, DyingStore(inner, fault))
