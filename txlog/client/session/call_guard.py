"""Which process and which thread may call a client now?

A client belongs to the process that made it. A forked child has copies of its parent's clients. Two processes must not
act as one producer or as one member of a group, so a copy refuses every call, and closing it does nothing.

Some calls exclude each other: the transaction calls of a producer, all calls of a consumer. While one of them runs,
another thread gets an IllegalStateError at once (Kafka's consumer: ConcurrentModificationException). No call waits for
its turn, except a producer's `close`.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import threading
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import CodeType, FrameType, FunctionType
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from txlog.errors import IllegalStateError

P = ParamSpec("P")
T = TypeVar("T")


class InsideCallError(IllegalStateError):
    """A call was refused inside another one of the same thread, as in the handler of a signal.

    If the handler lets it through, it ends the outer call as an interrupt does. The store did not answer it.
    """


class Owner:
    """The process that made a client."""

    def __init__(self, who: str, kind: str) -> None:
        self._who = who
        self._kind = kind
        self._process = os.getpid()

    @property
    def is_elsewhere(self) -> bool:
        """Whether this process is a forked child of the one that made the client."""
        return os.getpid() != self._process

    def check(self) -> None:
        """Raises IllegalStateError in a forked child."""
        if self.is_elsewhere:
            raise IllegalStateError(
                f"{self._who} was made in process {self._process}, and this is process {os.getpid()}, forked from it: "
                f"two processes must not act as one {self._kind}. "
                f"hint: make a new {self._kind} here"
            )


def call_below(
    frame: FrameType | None, methods: tuple[Callable[..., object], ...], client: object, *, but: Callable[..., object]
) -> str:
    """Return which of these methods of `client` runs in `frame` or below it in this thread's stack; empty if none does.

    Then the handler of a signal, or a callback, makes a call while that method waits for it to return. While `but`
    runs, the method that has called it holds nothing that the call waits for.
    """
    codes = _names_of((*methods, but))
    holds = True
    while frame is not None:
        if frame.f_code in codes and frame.f_locals.get("self") is client:
            name = codes[frame.f_code]
            if holds and name != but.__name__:
                return name
            holds = name != but.__name__
        frame = frame.f_back
    return ""


@functools.cache
def _names_of(methods: tuple[Callable[..., object], ...]) -> dict[CodeType, str]:
    raw = map(inspect.unwrap, methods)
    return {method.__code__: method.__name__ for method in raw if isinstance(method, FunctionType)}


def has_ended(frame: FrameType) -> bool:
    """Return whether a function has returned or raised. It forgets the variables of one that has."""
    try:
        frame.clear()
    except RuntimeError:  # it runs, in this thread or in another one
        return False
    return True


@dataclass(slots=True, eq=False)
class _Turn:
    """A call that has the turn, as a context manager. A generator would have steps in which a Ctrl-C is lost."""

    guard: CallGuard
    call: str
    wait: Callable[[], None] | None
    thread: threading.Thread
    frame: FrameType
    """The function that holds the turn. If it has ended, a Ctrl-C has ended it before it could give the turn back."""
    before: _Turn | None = None

    def __enter__(self) -> None:
        self.guard.begin(self)

    def __exit__(self, *_: object) -> None:
        # No lock here: a Ctrl-C while this thread waits for a lock would keep the turn for ever.
        self.guard.end(self)


class CallGuard(Owner):
    """Calls of one client that exclude each other.

    `lock` guards which thread has the turn, and is held only briefly. With `nested` a thread may make another call
    inside its own. `mend` is called when a call begins that is not inside another one: it undoes what an interrupted
    call has left half done.
    """

    def __init__(
        self,
        who: str,
        kind: str,
        *,
        lock: threading.RLock | None = None,
        nested: bool = False,
        mend: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(who, kind)
        self._lock = threading.RLock() if lock is None else lock
        self._nested = nested
        self._mend = mend
        self.turn: _Turn | None = None
        """The innermost call that has the turn, or had it when an interrupt ended it."""

    def is_free(self) -> bool:
        """Return whether no call runs; with `nested`, no call of another thread."""
        turn = self._current()
        return turn is None or (self._nested and turn.thread is threading.current_thread())

    def refuse_inside(self, call: str, below: str) -> None:
        """Raise InsideCallError if `call` is made inside a call of this thread: `below`, or the one that has the
        turn."""
        turn = self._current()
        if turn is not None and turn.thread is threading.current_thread():
            below = turn.call
        if below:
            raise InsideCallError(
                f"{self._who}: {call}() was called inside {below}() of the same thread, as in the handler of a "
                "signal: it would wait for itself. "
                "hint: let the handler raise an exception or set a flag"
            )

    def check_free(self, call: str, *, beside: Collection[str] = ()) -> None:
        """Raise IllegalStateError unless `call` is allowed now; the calls in `beside` may run at the same time."""
        turn = self._current()
        if turn is not None and turn.call not in beside and not self.is_free():
            is_own = turn.thread is threading.current_thread()
            raise (InsideCallError if is_own else IllegalStateError)(
                f"{self._who}: {call}() was called while {turn.call}() runs in thread {turn.thread.name!r}. "
                f"hint: call it after {turn.call}() has returned, or use one {self._kind} for each thread"
            )

    def take(
        self,
        call: str,
        *,
        wait: Callable[[], None] | None = None,
        frame: FrameType | None = None,
    ) -> AbstractContextManager[None]:
        """Hold the turn for `call` while the `with` block runs. `wait` is called first, with the lock held.

        `frame` is the function with that block, if it is not the caller. Raises IllegalStateError in a forked child, or
        if another call has the turn.
        """
        self.check()
        frame = frame or sys._getframe(1)
        return _Turn(self, call, wait, threading.current_thread(), frame)

    def begin(self, turn: _Turn) -> None:
        """Give the turn to a call. Raises IllegalStateError if another one has it."""
        with self._lock:
            if turn.wait is not None:
                turn.wait()
            self.check_free(turn.call)
            turn.before = self._current()
            self.turn = turn
        if turn.before is None and self._mend is not None:
            try:
                self._mend()
            except BaseException:
                self.end(turn)
                raise

    def end(self, turn: _Turn) -> None:
        """Take the turn back."""
        if self.turn is turn:
            self.turn = turn.before

    def poll(self, read: Callable[[], T | None], frame: FrameType) -> T | None:
        """Return what `read` returns. Unless that is None, the call `poll` still has the turn, until `frame` ends.

        That function gives the turn back in the line in which rows leave it. Before that line, a call of another thread
        would take for interrupted what is about to be returned.
        """
        self.check()
        turn = _Turn(self, "poll", None, threading.current_thread(), frame)
        self.begin(turn)
        try:
            found = read()
        except BaseException:
            self.end(turn)
            raise
        if found is None:
            self.end(turn)
        else:
            self.turn = turn  # and not a call inside it that an interrupt has ended
        return found

    def _current(self) -> _Turn | None:
        turn = self.turn
        while turn is not None and has_ended(turn.frame):
            turn = turn.before
        return turn


def close_after(error: BaseException | None, who: str, close: Callable[[], None]) -> None:
    """Close a client at the end of its `with` block. An error of the block is the result of the call, and stays."""
    if error is None:
        close()
        return
    try:
        close()
    except Exception as failure:
        error.add_note(f"closing {who} failed too: {type(failure).__name__}: {failure}")


class _Takes(Protocol):
    @property
    def _guard(self) -> CallGuard: ...


C = TypeVar("C", bound=_Takes)


def in_turn(method: Callable[Concatenate[C, P], T]) -> Callable[Concatenate[C, P], T]:
    """Return a method that raises IllegalStateError while another thread runs a method of this kind."""

    @functools.wraps(method)
    def called(self: C, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with self._guard.take(method.__name__):
            return method(self, *args, **kwargs)

    return called
