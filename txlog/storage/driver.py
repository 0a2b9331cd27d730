"""How does a protocol generator reach the store and the clock?

The driver performs each effect and sends the answer back. A failed effect is thrown into the generator, which may
settle it or let it propagate. A BaseException that is not an `Exception` (KeyboardInterrupt, a simulated crash) is not
thrown into it. It leaves `run` at once, as if the process were killed.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from txlog.clock import Clock, IdGenerator
from txlog.core import effects
from txlog.core.ages import ClockReading
from txlog.errors import MissingObjectError, OutcomeUnknownError
from txlog.storage.forks import lock_for_forks
from txlog.storage.object_store import ObjectStore, delete_all
from txlog.storage.open import store_now_ms

T = TypeVar("T")


class Driver:
    """Runs programs against one store. Any number of threads may call `run`.

    `threads` is the number of helper threads that all gathers of this driver share. The calling thread always works
    too, so a gather needs no helper to finish, however deeply nested.
    """

    def __init__(self, store: ObjectStore, clock: Clock, ids: IdGenerator, *, threads: int = 16) -> None:
        self.store = store
        self.clock = clock
        self.ids = ids
        self._threads = threads
        self._lock = lock_for_forks()
        self._pool: ThreadPoolExecutor | None = None
        self._pool_owner = 0
        self._closed = False

    def run(self, program: effects.Program[T]) -> T:
        """Return the program's result; raise what it raises."""
        answer: Any = None
        error: Exception | None = None
        while True:
            try:
                effect = program.send(answer) if error is None else program.throw(error)
            except StopIteration as end:
                result: T = end.value
                return result
            answer, error = None, None
            try:
                answer = self._perform(effect)
            except Exception as failure:
                error = failure

    def close(self) -> None:
        """Stop the helpers after their present programs. Later programs still run, without helpers."""
        with self._lock:
            self._closed, pool = True, self._pool
        # The pool is forgotten last, so that a call after an interrupted one waits for it, too.
        if pool is not None and self._pool_owner == os.getpid():
            pool.shutdown(wait=True)
        self._pool = None

    def _perform(self, effect: effects.Effect) -> Any:
        match effect:  # the frequent ones first
            case effects.ReadClocks():
                return ClockReading(self.clock.now_ms(), self.clock.monotonic_ms())
            case effects.Now():
                return self.clock.now_ms()
            case effects.NewId():
                return self.ids.new_id()
            case effects.Gather(programs):
                return self._gather(programs)
            case effects.Get(path):
                return self.store.get(path)
            case effects.PutIfAbsent(path, data):
                try:
                    return self.store.put_if_absent(path, data)
                except OutcomeUnknownError:
                    return effects.PutOutcome.UNKNOWN
            case effects.List(prefix, start_after):
                return tuple(self.store.list(prefix, start_after))
            case effects.Delete(path, others):
                return delete_all(self.store, (path, *others)) if others else self.store.delete(path)
            case effects.Modified(path):
                return _of_existing(self.store.modified_ms, path)
            case effects.Size(path):
                return _of_existing(self.store.size, path)
            case effects.StoreNow():
                return store_now_ms(self.store, self.clock, self.ids)
            case effects.NewProducerId():
                return self.ids.new_producer_id()
            case effects.Sleep(ms, full_jitter):
                drawn_ms = self.ids.jitter(ms)
                return self.clock.sleep_ms(drawn_ms - ms // 2 if full_jitter else drawn_ms)
            case effects.WriteRows():
                # Imported here, because planning processes run a driver and should not load pyarrow.
                from txlog.storage.parquet_writer import write_inline_rows

                return write_inline_rows(self.store, effect)
        raise TypeError(f"a program yielded {effect!r}, which is not an effect")

    def _gather(self, programs: tuple[Generator[Any, Any, Any], ...]) -> tuple[Any, ...]:
        if len(programs) == 1:
            return (self.run(programs[0]),)
        work = _Work(self, programs)
        pool = self._helpers() if programs else None
        if pool is not None:
            for _ in range(min(len(programs) - 1, self._threads)):
                try:
                    pool.submit(work.help)
                except RuntimeError:
                    # The interpreter is shutting down, or `close` was called: this thread runs all programs.
                    break
        try:
            work.help()
            return work.results()
        finally:
            # After an interrupt, helpers begin no more programs of a call that has ended.
            work.stop()

    def _helpers(self) -> ThreadPoolExecutor | None:
        with self._lock:
            if self._closed or self._threads < 1:
                return None
            # A forked child has the pool object but not its threads.
            if self._pool is None or self._pool_owner != os.getpid():
                pool = ThreadPoolExecutor(self._threads, thread_name_prefix="txlog-driver")
                pool._idle_semaphore = _Idle()
                self._pool = pool
                self._pool_owner = os.getpid()
            return self._pool


class _Idle(threading.Semaphore):
    """How many helpers are idle.

    Python's own semaphore has a lock, and an interrupt can leave it locked for ever. Here each step is one call in C.
    """

    def __init__(self) -> None:
        super().__init__(0)
        self._free: SimpleQueue[None] = SimpleQueue()

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        """Take an idle helper, without waiting for one. Return whether there is one."""
        try:
            self._free.get_nowait()
        except Empty:
            return False
        return True

    def release(self, n: int = 1) -> None:
        """Note that a helper is idle."""
        self._free.put(None)


class _Work:
    """The programs of one gather. Each free thread takes the next one.

    A thread waits only for programs that another thread has begun, and those never wait for it: no deadlock.
    """

    def __init__(self, driver: Driver, programs: tuple[Generator[Any, Any, Any], ...]) -> None:
        self._driver = driver
        self._programs = programs
        self._answers: list[Any] = [None] * len(programs)
        self._errors: list[BaseException | None] = [None] * len(programs)
        # `with lock` is one step for a Ctrl-C, `with condition` is not: it could leave the lock held for ever.
        self._lock = threading.RLock()
        self._condition = threading.Condition(self._lock)
        self._next = 0
        self._running = 0
        self._crashed = False

    def help(self) -> None:
        """Run programs until all have been begun."""
        while (number := self._take()) is not None:
            try:
                self._answers[number] = self._driver.run(self._programs[number])
            except BaseException as error:
                self._errors[number] = error
                self._crashed |= not isinstance(error, Exception)
            finally:
                with self._lock:
                    self._running -= 1
                    self._condition.notify_all()

    def stop(self) -> None:
        """Begin no more programs."""
        self._crashed = True

    def results(self) -> tuple[Any, ...]:
        """Wait for the programs that helpers have begun.

        Raise the first error that is not an Exception, else the first error.
        """
        with self._lock:
            self._condition.wait_for(lambda: not self._running)
        errors = [error for error in self._errors if error is not None]
        errors.sort(key=lambda error: isinstance(error, Exception))
        if errors:
            raise errors[0]
        return tuple(self._answers)

    def _take(self) -> int | None:
        with self._lock:
            if self._crashed or self._next == len(self._programs):
                return None
            self._next += 1
            self._running += 1
            return self._next - 1


def _of_existing(ask: Callable[[str], int | None], path: str) -> int | None:
    """Return the store's answer about an object; None if the object does not exist."""
    try:
        return ask(path)
    except MissingObjectError:
        return None
