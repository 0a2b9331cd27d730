"""How is a thread started once, and awaited, although an interrupt may end the call that does it at any place?"""

from __future__ import annotations

import threading
from collections.abc import Callable


class OneThread:
    """A thread that starts when it is first needed."""

    def __init__(self, name: str, lock: threading.RLock, work: Callable[[], None]) -> None:
        self._name = name
        self._lock = lock
        self._work = work
        self._launched = False
        """Whether a thread was started. An interrupt can hide that; then a second one starts, and ends at once."""
        self._begun = False
        self.thread: threading.Thread | None = None
        """The thread, from its first step on."""
        self._running = threading.Lock()

    def start(self) -> None:
        """Start the thread unless it was started before. Requires the lock."""
        if not self._launched:
            # A daemon, so that a program that ends without close() does not hang. txlog.client.producer.at_exit takes
            # care of its rows.
            threading.Thread(target=self._run, name=self._name, daemon=True).start()
            self._launched = True

    def join(self) -> None:
        """Wait for the end of the work, if it has begun. Call it without the lock."""
        if self._begun:
            # Not Thread.join: an interrupted one can take the thread for ended.
            with self._running:
                # Not `pass`: Python leaves that out of the block, so an interrupt of a debugger would keep the lock.
                self._begun = True

    def _run(self) -> None:
        with self._running:
            with self._lock:
                if self._begun:
                    return
                self._begun, self.thread = True, threading.current_thread()
            self._work()
