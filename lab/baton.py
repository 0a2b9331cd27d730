"""What happens if another thread comes in between? Real threads, one at a time, in an order that a test decides.

A `Baton` passes the right to run from thread to thread, only at switch points. These are each request to the store
(`BatonStore`), each lock, wait and sleep. The same decisions give the same run. Time stands still while any thread
can run, so no test waits. If no thread can run, or the run does not end, all threads are stopped and `StuckError`
contains the position of each thread.

With `with hooked("txlog.client", ...) as hook` the named modules make their locks, conditions and threads here. It
finds every module that imported `threading`, so a new lock is a new switch point. Locks that a module made at import
stay real: no request may be made while one is held.
"""

from __future__ import annotations

import contextlib
import pkgutil
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from importlib import import_module
from types import FrameType, TracebackType
from typing import Any, Self, TypeVar

from txlog.storage.object_store import ObjectStore
from txlog.testing.clock import ManualClock

MAX_STEPS = 100_000
_REAL_HANG_S = 120.0


class StuckError(Exception):
    """No thread can run, or the run does not end; the text contains the position of each thread."""


class _Stopped(BaseException):
    """Ends the threads of a run that is stuck."""


class _Task:
    def __init__(self, name: str, rank: int) -> None:
        self.name = name
        self.rank = rank
        self.gate = threading.Semaphore(0)
        self.ready: Callable[[], bool] | None = None
        """The condition for which it waits; None if it can run."""
        self.until_ms: int | None = None
        self.done = False
        self.ended = threading.Event()
        self.ident = 0

    def can_run(self, now_ms: int) -> bool:
        late = self.until_ms is not None and now_ms >= self.until_ms
        return not self.done and (self.ready is None or late or self.ready())


T = TypeVar("T")
Choose = Callable[[list["_Task"], "_Task"], "_Task"]
"""Chooses the next of the threads that can run; the second argument is the one that runs now."""


def keep_on(able: list[_Task], now: _Task) -> _Task:
    """Choose the thread of the highest rank; among several, the one that runs now."""
    return max(able, key=lambda task: (task.rank, task is now))


class Baton:
    """One run. The thread that makes it takes part as `main`, whose rank is below all others'."""

    def __init__(
        self, choose: Choose = keep_on, *, clock: BatonClock | None = None, max_steps: int = MAX_STEPS
    ) -> None:
        self.clock = clock or BatonClock()
        self.clock.baton = self
        self.steps = 0
        """The number of switch points so far."""
        self.choose = choose
        self.stuck: StuckError | None = None
        self._max_steps = max_steps
        self._tasks: dict[int, _Task] = {}
        self._main = _Task("main", -1)
        self._main.ident = threading.get_ident()
        self._tasks[self._main.ident] = self._main

    # -- switch points ------------------------------------------------------------------------------------------------

    def switch(self, ready: Callable[[], bool] | None = None, timeout_ms: int | None = None) -> bool:
        """Let another thread run if it is its turn. Return when `ready()` (True) or when the time is up (False)."""
        if self.stuck is not None:
            raise _Stopped
        me = self._tasks[threading.get_ident()]
        me.ready = ready
        me.until_ms = None if timeout_ms is None else self.clock.monotonic_ms() + timeout_ms
        self.steps += 1
        if self.steps > self._max_steps:
            self._stop(f"the run did not end within {self._max_steps} steps")
        else:
            self._hand_over(me)
        if self.stuck is not None:
            raise _Stopped
        me.ready, me.until_ms = None, None
        return ready is None or ready()

    def _hand_over(self, me: _Task) -> None:
        following = self._following(me)
        if following is None or following is me:
            return
        following.gate.release()
        if not me.done and not me.gate.acquire(timeout=_REAL_HANG_S):
            self._stop("a thread blocks on something that is not hooked")

    def _following(self, me: _Task) -> _Task | None:
        while True:
            able = [task for task in self._tasks.values() if task.can_run(self.clock.monotonic_ms())]
            if able:
                return self.choose(able, me)
            waits = [task.until_ms for task in self._tasks.values() if not task.done and task.until_ms is not None]
            if not waits:
                self._stop("no thread can run")
                return None
            self.clock.advance_ms(min(waits) - self.clock.monotonic_ms())

    def _stop(self, why: str) -> None:
        frames = sys._current_frames()
        where = [f"{task.name}:\n{_stack(frames.get(task.ident))}" for task in self._tasks.values() if not task.done]
        self.stuck = StuckError(f"{why}\n" + "\n".join(where))

    # -- threads ------------------------------------------------------------------------------------------------------

    def run(self, work: Callable[[], T]) -> T:
        """Return what `work` returns, called in this thread; all other threads have then ended. Raises StuckError."""
        try:
            result = work()
            others = [task for task in self._tasks.values() if task is not self._main]
            self.switch(lambda: all(task.done for task in others))
            return result
        except _Stopped:
            assert self.stuck is not None
            raise self.stuck from None
        finally:
            if self.stuck is None and len(self._tasks) > 1:
                self._stop("the run was given up")
            for task in [task for task in self._tasks.values() if task is not self._main]:
                task.gate.release()
                task.ended.wait()

    def _end(self, task: _Task) -> None:
        task.done = True
        del self._tasks[task.ident]
        task.ended.set()
        if self.stuck is None:
            self._hand_over(task)
        else:
            self._main.gate.release()


@contextlib.contextmanager
def hooked(*packages: str) -> Iterator[Hook]:
    """Give the modules of `packages` that use `threading`, and futures, the locks and threads of the hook's baton."""
    # A module that is first imported inside would make real ones: txlog imports a kind of client when it is used.
    for package in packages:
        for found in pkgutil.walk_packages(getattr(import_module(package), "__path__", ()), f"{package}."):
            import_module(found.name)
    hook = Hook()
    before = [
        (module, name)
        for path, module in list(sys.modules.items())
        if path.startswith(packages) or path == "concurrent.futures._base"
        for name, value in list(vars(module).items())
        if value is threading
    ]
    for module, name in before:
        setattr(module, name, hook)
    try:
        yield hook
    finally:
        for module, name in before:
            setattr(module, name, threading)


class Hook:
    """The replacement of the module `threading` in hooked modules. All its objects belong to `baton`."""

    baton: Baton

    def Lock(self) -> BatonLock:  # noqa: N802
        return BatonLock(self.baton)

    def RLock(self) -> BatonLock:  # noqa: N802
        return BatonLock(self.baton, nested=True)

    def Condition(self, lock: BatonLock | None = None) -> BatonCondition:  # noqa: N802
        return BatonCondition(self.baton, lock)

    def Thread(self, **arguments: Any) -> BatonThread:  # noqa: N802
        return BatonThread(self.baton, **arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(threading, name)


class BatonLock:
    """A lock, re-entrant if `nested`. Acquiring and releasing it are switch points."""

    def __init__(self, baton: Baton, *, nested: bool = False) -> None:
        self._baton = baton
        self._nested = nested
        self._holder = 0
        self._depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        me = threading.get_ident()
        if self._nested and self._holder == me:
            self._depth += 1
            return True
        self._baton.switch()
        if self._holder:
            if not blocking:
                return False
            if not self._baton.switch(lambda: not self._holder, None if timeout < 0 else int(timeout * 1000)):
                return False
        self._holder, self._depth = me, 1
        return True

    def _at_fork_reinit(self) -> None:
        """Be free in a forked child.

        Without this, a child of a later test would keep the locks that follow this one.
        """
        self._holder = self._depth = 0

    def release(self) -> None:
        self._depth -= 1
        if not self._depth:
            self._holder = 0
            if self._baton.stuck is None:
                self._baton.switch()

    def locked(self) -> bool:
        return bool(self._holder)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def _give_up(self) -> int:
        depth, self._depth, self._holder = self._depth, 0, 0
        return depth

    def _take_again(self, depth: int) -> None:
        self._baton.switch(lambda: not self._holder)
        self._holder, self._depth = threading.get_ident(), depth


class BatonCondition:
    """A condition on a BatonLock."""

    def __init__(self, baton: Baton, lock: BatonLock | None = None) -> None:
        self._baton = baton
        self._lock = lock or BatonLock(baton, nested=True)
        self._waiters: list[list[bool]] = []

    def wait(self, timeout: float | None = None) -> bool:
        told: list[bool] = []
        self._waiters.append(told)
        depth = self._lock._give_up()
        try:
            return self._baton.switch(lambda: bool(told), None if timeout is None else int(timeout * 1000))
        finally:
            self._waiters = [waiter for waiter in self._waiters if waiter is not told]
            self._lock._take_again(depth)

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        end_ms = None if timeout is None else self._baton.clock.monotonic_ms() + int(timeout * 1000)
        while not predicate():
            left_ms = None if end_ms is None else end_ms - self._baton.clock.monotonic_ms()
            if left_ms is not None and left_ms <= 0:
                return False
            self.wait(None if left_ms is None else left_ms / 1000)
        return True

    def notify(self, n: int = 1) -> None:
        for told in [waiter for waiter in self._waiters if not waiter][:n]:
            told.append(True)

    def notify_all(self) -> None:
        self.notify(len(self._waiters))

    def acquire(self) -> bool:
        return self._lock.acquire()

    def release(self) -> None:
        self._lock.release()

    def __enter__(self) -> Self:
        self._lock.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._lock.release()


class BatonThread(threading.Thread):
    """A thread that runs when it has the baton, and not before `ready()`. `join` is a switch point, `start` is not.

    Threads with a higher `rank` run first. With `lines`, each line of code in files whose path contains it is a switch
    point too. Only this finds a missing lock around a block without requests.
    """

    def __init__(
        self,
        baton: Baton,
        *,
        rank: int = 0,
        ready: Callable[[], bool] | None = None,
        lines: str = "",
        **arguments: Any,
    ) -> None:
        super().__init__(**{**arguments, "daemon": True})
        self._lines = lines
        self._baton = baton
        self.task = _Task(self.name, rank)
        self.task.ready = ready

    def start(self) -> None:
        super().start()
        assert self.ident is not None
        self.task.ident = self.ident
        self._baton._tasks[self.ident] = self.task

    def run(self) -> None:
        self.task.gate.acquire()
        if self._lines:
            sys.settrace(self._trace)
        try:
            self.task.ready = None
            if self._baton.stuck is None:
                super().run()
        except _Stopped:
            pass
        finally:
            sys.settrace(None)
            self._baton._end(self.task)

    def _trace(self, frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
        if self._lines not in frame.f_code.co_filename:
            return None
        if event == "line" and self._baton.stuck is None:
            self._baton.switch()
        return self._trace

    def join(self, timeout: float | None = None) -> None:
        self._baton.switch(lambda: self.task.done, None if timeout is None else int(timeout * 1000))

    def is_alive(self) -> bool:
        return not self.task.done


class BatonClock(ManualClock):
    """A clock that stands still while a thread can run. A thread that sleeps lets others run."""

    baton: Baton

    def sleep_ms(self, ms: int) -> None:
        self.baton.switch(lambda: False, max(ms, 0))


class BatonStore:
    """Passes every call to `inner`; each request is a switch point."""

    def __init__(self, inner: ObjectStore, baton: Baton) -> None:
        self._inner = inner
        self._baton = baton
        self.url, self.place = inner.url, inner.place

    def __getattr__(self, verb: str) -> Any:
        found = getattr(self._inner, verb)

        def request(*arguments: Any) -> Any:
            self._baton.switch()
            return found(*arguments)

        return request


def _stack(frame: FrameType | None) -> str:
    own = (__file__, threading.__file__)
    lines = [line for line in traceback.extract_stack(frame) if line.filename not in own] if frame is not None else []
    return "\n".join(
        f"  {line.filename.rpartition('/txlog/')[2]}:{line.lineno} {line.name}: {line.line}" for line in lines[-6:]
    )
