"""How often is a call tried again, and until when?

What may be repeated is repeated, with back-off, until the call's time or its `retries` are used up. A program that is
out of time is abandoned between two effects: that is what a crash does, at a place of our choosing, and every program
survives it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from txlog.clock import Clock, IdGenerator
from txlog.core.effects import Effect, Gather, Program, PutIfAbsent, Sleep, WriteRows
from txlog.errors import (
    ConcurrentTransactionsError,
    CoordinatorContentionError,
    OutcomeUnknownError,
    RetriableError,
    StorageError,
    TxlogError,
    TxlogTimeoutError,
    UnstableOffsetCommitError,
)
from txlog.protocol.context import Context
from txlog.storage.driver import Driver

T = TypeVar("T")

MAX_REQUEST_RETRIES = 4
"""How often in a row one request is tried again before the whole call starts over."""
_WAITING = (UnstableOffsetCommitError, ConcurrentTransactionsError)
"""What a call meets that waits for another transaction: nothing of the call itself was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long one kind of call may take, and who waits."""

    who: str
    """Begins messages: which client this is."""
    timeout_ms: int
    setting: str
    """The configuration key of `timeout_ms`, for messages."""
    retries: int

    def run(
        self,
        driver: Driver,
        ctx: Context,
        what: str,
        program: Callable[[], Program[T]],
        *,
        wait: bool = True,
        settles: bool = True,
    ) -> T:
        """The program's result; `program` is asked for a new one for every try.

        At the end a TxlogTimeoutError is raised for trouble with the store, else the error itself. Without `wait` the
        outcome of others' transactions is not waited for. With `settles` an error is to tell that nothing of the call
        took effect: after a try of unknown outcome none can, so it becomes an OutcomeUnknownError (PROTOCOL.md, W44).
        A call that reads, or whose every try looks at what is there, leaves that out.
        """
        clock = driver.clock
        deadline_ms = clock.monotonic_ms() + self.timeout_ms
        met: Exception | None = None
        # An abandoned try that met nothing itself was begun because of what the one before it met.
        limit = Limit(deadline_ms, lambda error: self.late(what, error or met), self.retries, ctx.backoff_ms)
        attempt = 0
        in_doubt = False
        created = False

        def note() -> None:
            nonlocal created
            created = True

        while True:
            created = False
            try:
                return driver.run(limited(watched(program(), note), clock, limit))
            except TxlogTimeoutError:
                # A real sleep takes longer than asked, so a call that waits for others ends in a try that was abandoned.
                if created or in_doubt or not isinstance(met, _WAITING):
                    raise
                raise met from None
            except (RetriableError, OutcomeUnknownError) as error:
                met = error
                in_doubt = in_doubt or (settles and isinstance(error, OutcomeUnknownError))
                left_ms = deadline_ms - clock.monotonic_ms()
                if not wait and isinstance(error, _WAITING):
                    raise
                if attempt >= self.retries or left_ms <= 0:
                    if isinstance(error, StorageError | CoordinatorContentionError):
                        raise self.late(what, error) from error
                    if in_doubt and isinstance(error, RetriableError):
                        raise self._in_doubt(what, error) from error
                    raise
            except TxlogError as error:
                if not in_doubt:
                    raise
                raise self._in_doubt(what, error) from error
            pause(clock, driver.ids, ctx.backoff_ms(attempt), left_ms)
            attempt += 1

    def late(self, what: str, error: Exception | None) -> TxlogTimeoutError:
        """The error of a call that is out of time; `error` is what it met last."""
        cause = f": {error}" if error is not None else ""
        return TxlogTimeoutError(
            f"{self.who}: {what} did not finish within {self.timeout_ms} ms ({self.setting}){cause}. Repeat the same call: it joins whatever this one has done"
        )

    def _in_doubt(self, what: str, error: TxlogError) -> OutcomeUnknownError:
        """The error of a call whose last try was refused, and whose first may have done what was asked."""
        return OutcomeUnknownError(
            f"{self.who}: {what}: an earlier try of this very call may have taken effect, and a later one was refused ({error}). Do not take it for "
            "failed: look at what is there before you do it again"
        )


def pause(clock: Clock, ids: IdGenerator, backoff_ms: int, left_ms: int) -> None:
    """Backs off, no longer than there is time."""
    clock.sleep_ms(min(ids.jitter(backoff_ms), left_ms))


@dataclass(frozen=True, slots=True)
class Limit:
    """When a program is abandoned, and how often one request of it is tried again before the program learns of it."""

    deadline_ms: int
    late: Callable[[Exception | None], TxlogTimeoutError]
    retries: int
    backoff_ms: Callable[[int], int]


def watched(program: Program[T], created: Callable[[], None]) -> Program[T]:
    """`program`; calls `created` when the store has answered a create of it, be it unclearly, with anything but a refusal."""
    answer: Any = None
    failure: Exception | None = None
    while True:
        try:
            effect = program.send(answer) if failure is None else program.throw(failure)
        except StopIteration as end:
            result: T = end.value
            return result
        answer, failure = None, None
        try:
            answer = yield effect
        except Exception as error:
            failure = error
        else:
            if isinstance(effect, PutIfAbsent):
                created()


def limited(program: Program[T], clock: Clock, limit: Limit, met: list[Exception] | None = None) -> Program[T]:
    """`program`, abandoned by raising `limit.late` before the first effect that comes after the deadline.

    A request that failed without effect is tried again here: a program that catches up over many slots would seldom get
    through a store that fails one request in ten, if each failure made it start over. `met` has what failed so far, also in
    the programs that run beside this one: the last of it is why there was no time left.
    """
    answer: Any = None
    failure: Exception | None = None
    met = [] if met is None else met
    while True:
        try:
            effect: Effect = program.send(answer) if failure is None else program.throw(failure)
        except StopIteration as end:
            result: T = end.value
            return result
        answer, failure = None, None
        left_ms = limit.deadline_ms - clock.monotonic_ms()
        if left_ms < 0:
            program.close()
            raise limit.late(met[-1] if met else None)
        match effect:
            case Gather(programs):
                effect = Gather(tuple(limited(each, clock, limit, met) for each in programs))
            case Sleep(ms):
                effect = Sleep(min(ms, left_ms + 1))
        # A Gather's programs have tried again themselves; the name of a file of rows is used once.
        tries = 0 if isinstance(effect, Gather | WriteRows) else min(limit.retries, MAX_REQUEST_RETRIES)
        for number in range(tries + 1):
            try:
                answer, failure = (yield effect), None
                break
            except StorageError as error:
                failure = error
                met[:] = [error]
                left_ms = limit.deadline_ms - clock.monotonic_ms()
                if number < tries and left_ms > 0:
                    yield Sleep(min(limit.backoff_ms(number), left_ms))
            except Exception as error:
                failure = error
                break
