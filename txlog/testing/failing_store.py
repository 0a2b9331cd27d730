"""What happens if exactly this request fails? A store that fails at a chosen point.

A `Fault` selects the operation (the k-th one whose `"<verb> <path>"` matches a pattern), the time (before the operation
takes effect, or after) and the failure. `Fault.parse("kill after put_if_absent orders/0/")` reads one from a command
line. Scripts that kill real processes use it.
"""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar, cast, get_args

from txlog.errors import InvalidRequestError, NotAStoreError, StorageError, StoreAccessError, UnsupportedStoreError
from txlog.storage.object_store import Names, ObjectStore, PutOutcome, make_durable

T = TypeVar("T")

Action: TypeAlias = Literal["fail", "lose_reply", "damage", "403", "404", "501", "crash", "kill", "stop"]
Moment: TypeAlias = Literal["before", "after"]
_REFUSALS: dict[str, type[InvalidRequestError]] = {
    "403": StoreAccessError,
    "404": NotAStoreError,
    "501": UnsupportedStoreError,
}


class SimulatedCrash(BaseException):
    """The process died here. No `except Exception` catches it, and the store does not answer any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A failure, and when and where it occurs.

    fail        StorageError.
    lose_reply  the caller cannot know: UNKNOWN from put_if_absent, StorageError from all others.
    damage      a get returns bytes of which one was changed on the way; for gets only.
    403         StoreAccessError, as for credentials that were withdrawn.
    404         NotAStoreError, as for a bucket that does not exist any more.
    501         UnsupportedStoreError, as from a gateway that does not know the request.
    crash       SimulatedCrash, now and at every later operation.
    kill        SIGKILL to this process.
    stop        SIGSTOP to this process; it goes on here after SIGCONT.
    """

    action: Action
    moment: Moment = "before"
    """Before the operation takes effect (it then never does, except after a stop), or after it."""
    match: str = ""
    """Regular expression, searched in `"<verb> <path>"`; verbs are the names of the port's methods.

    For a conditional write, a space and the first line of its data follow, so that the content of a record can select
    it.
    """
    number: int = 1
    """Number of the matching operation, from 1."""
    times: int = 1
    """How many matching operations fail, from that one on."""

    @staticmethod
    def parse(text: str) -> Fault:
        """Parse `<action> <before|after> [<number>] [<pattern>]`. Raises InvalidRequestError."""
        words = text.split(" ", 2)
        rest = words[2] if len(words) > 2 else ""
        number, _, pattern = rest.partition(" ")
        if not number.isdigit():
            number, pattern = "1", rest
        if len(words) < 2 or words[0] not in get_args(Action) or words[1] not in get_args(Moment):
            raise InvalidRequestError(
                f"{text!r} is not a fault: expected '<{'|'.join(get_args(Action))}> "
                "<before|after> [<number>] [<pattern>]'"
            )
        return Fault(action=cast(Action, words[0]), moment=cast(Moment, words[1]), match=pattern, number=int(number))


class FailingStore:
    """Pass every call on to `inner` until a fault occurs. Thread-safe."""

    def __init__(self, inner: ObjectStore, *faults: Fault) -> None:
        self.inner = inner
        self._lock = threading.Lock()
        self._plans = [_Plan(fault) for fault in faults]
        self._operations: list[str] = []
        self._dead = False
        self._struck = False

    @property
    def url(self) -> str:
        return self.inner.url

    @property
    def place(self) -> str:
        return self.inner.place

    @property
    def dead(self) -> bool:
        """Whether a crash has occurred."""
        return self._dead

    @property
    def struck(self) -> bool:
        """Whether a fault has occurred."""
        return self._struck

    @property
    def operations(self) -> tuple[str, ...]:
        """`"<verb> <path>"` of every operation that was begun, in order. A test chooses crash points from it."""
        with self._lock:
            return tuple(self._operations)

    def crash(self) -> None:
        """Let the process be dead from here on."""
        self._dead = True

    def get(self, path: str) -> bytes | None:
        return self._do("get", path, lambda: self.inner.get(path))

    def get_range(self, path: str, start: int, end: int) -> bytes:
        return self._do("get_range", path, lambda: self.inner.get_range(path, start, end))

    def size(self, path: str) -> int:
        return self._do("size", path, lambda: self.inner.size(path))

    def put_if_absent(self, path: str, data: bytes) -> PutOutcome:
        line = data.partition(b"\n")[0].decode("latin-1")
        return self._do("put_if_absent", path, lambda: self.inner.put_if_absent(path, data), written=line)

    def write_file(self, path: str, chunks: Iterable[bytes]) -> int:
        return self._do("write_file", path, lambda: self.inner.write_file(path, chunks))

    def list(self, prefix: str, start_after: str = "") -> Names:
        return self._do("list", prefix, lambda: self.inner.list(prefix, start_after))

    def delete(self, path: str) -> None:
        self._do("delete", path, lambda: self.inner.delete(path))

    def make_durable(self, path: str) -> None:
        self._do("make_durable", path, lambda: make_durable(self.inner, path))

    def modified_ms(self, path: str) -> int | None:
        return self._do("modified_ms", path, lambda: self.inner.modified_ms(path))

    def _do(self, verb: str, path: str, operation: Callable[[], T], written: str = "") -> T:
        fault = self._begin(f"{verb} {path}", written)
        if fault is None or fault.moment == "after" or fault.action in ("stop", "damage"):
            if fault is not None and fault.moment == "before" and fault.action == "stop":
                _signal(signal.SIGSTOP)
            result = operation()
            # If another thread has crashed meanwhile, this thread never sees the answer.
            self._check_alive()
            if fault is not None and fault.action == "damage":
                return cast(T, _damaged(result))
            if fault is None or fault.moment == "before":
                return result
            if fault.action == "stop":
                _signal(signal.SIGSTOP)
                return result
        return cast(T, self._strike(fault, verb, path))

    def _begin(self, operation: str, written: str) -> Fault | None:
        with self._lock:
            self._check_alive()
            self._operations.append(operation)
            struck = [plan.fault for plan in self._plans if plan.strikes(f"{operation} {written}".rstrip())]
            fault = struck[0] if struck else None
            self._struck = self._struck or fault is not None
            if fault is not None and fault.action == "crash" and fault.moment == "before":
                self._dead = True
            return fault

    def _strike(self, fault: Fault, verb: str, path: str) -> Any:
        where = f"{fault.moment} {verb} {path!r}"
        if fault.action == "kill":
            _signal(signal.SIGKILL)
        if fault.action == "crash":
            self._dead = True
            raise SimulatedCrash(where)
        if fault.action in _REFUSALS:
            raise _REFUSALS[fault.action](f"{self.url}: injected refusal {where}")
        if fault.action == "lose_reply" and verb == "put_if_absent":
            return PutOutcome.UNKNOWN
        raise StorageError(f"{self.url}: injected failure {where}")

    def _check_alive(self) -> None:
        if self._dead:
            raise SimulatedCrash("this process is dead")


class _Plan:
    """A fault, and how many matching operations have passed."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self._pattern = re.compile(fault.match)
        self._seen = 0

    def strikes(self, operation: str) -> bool:
        if not self._pattern.search(operation):
            return False
        self._seen += 1
        return self.fault.number <= self._seen < self.fault.number + self.fault.times


def _damaged(found: object) -> object:
    if not isinstance(found, bytes) or not found:
        return found
    middle = len(found) // 2
    return found[:middle] + bytes([found[middle] ^ 1]) + found[middle + 1 :]


def _signal(number: signal.Signals) -> None:
    # Send it to this very thread. A signal to the process may reach another one, and this thread would run on for a
    # moment.
    signal.pthread_kill(threading.get_ident(), number)
