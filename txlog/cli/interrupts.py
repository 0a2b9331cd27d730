"""When may Ctrl-C or SIGTERM end a command that has to finish its current step?

A signal ends it between two steps, where it calls `check`, and while it waits within `at_once`. Elsewhere the signal is
only noted, so that every step completes. A second signal ends the command wherever it is. A program that started other
processes uses `orderly_end` instead.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from txlog.clock import Clock


_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(KeyboardInterrupt):
    """A signal ended the command. The text, if there is one, tells the user what became of the work."""

    def __init__(self, received: signal.Signals, text: str = "", *, torn: bool = False) -> None:
        super().__init__(text)
        self.received = received
        self.torn = torn
        """Whether the signal interrupted a step."""

    @property
    def status(self) -> int:
        """Return the status that a shell reports for a program that the signal ended."""
        return 128 + self.received


class Interrupts:
    """Handle signals inside the `with` block. Signals that the parent process set to be ignored stay ignored."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._at_once = False
        self._handlers: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        # Only the main thread may set handlers. A program that runs commands in another thread handles signals itself.
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._handlers[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def check(self) -> None:
        """Raise Interrupted if a signal has come."""
        if self.received is not None:
            raise Interrupted(self.received)

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Let a signal raise Interrupted at once inside the block, for work that may wait for ever or can be
        repeated."""
        self._at_once = True
        try:
            self.check()
            yield
        finally:
            self._at_once = False

    def sleep(self, clock: Clock, ms: int) -> None:
        """Wait that long, but not at all after a signal, and at most until one comes."""
        with suppress(Interrupted), self.at_once():
            clock.sleep_ms(ms)

    def _note(self, number: int, _: FrameType | None) -> None:
        again, self.received = self.received is not None, signal.Signals(number)
        if again:
            raise Interrupted(
                self.received, f"Ended by a second signal, {self.received.name}, before all was in order.", torn=True
            )
        if self._at_once:
            raise Interrupted(self.received)


@contextmanager
def orderly_end() -> Iterator[None]:
    """Inside the block, SIGTERM and SIGHUP end this process as Ctrl-C does, so that it cleans up."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
