"""How often is a call retried, and until when?

A call that may be repeated is retried with back-off until its time or its `retries` are used up. A program that is out
of time is abandoned between two effects. This equals a crash at that place, and every program is safe against crashes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar

from txlog import metrics
from txlog.clock import Clock, IdGenerator
from txlog.config import ClientConfig, ConsumerConfig, ProducerConfig
from txlog.core.effects import Delete, Effect, Gather, NewId, Now, Program, PutIfAbsent, ReadClocks, Sleep, WriteRows
from txlog.errors import (
    ConcurrentTransactionsError,
    CoordinatorContentionError,
    OutcomeUnknownError,
    RetriableError,
    StorageError,
    TxlogError,
    TxlogTimeoutError,
    UnstableOffsetCommitError,
    split_hint,
)
from txlog.logs import log
from txlog.protocol.context import Context
from txlog.storage.driver import Driver

T = TypeVar("T")
_LOG = logging.getLogger(__name__)
WARN_AFTER_MS = 10_000
"""A call that is retried for longer logs a warning, and another one after each such time."""

MAX_REQUEST_RETRIES = 4
"""How often in a row one request is retried before the whole call starts over."""
_LOCAL = (Now, ReadClocks, NewId)
"""Effects that make no request."""
_WAITING = (UnstableOffsetCommitError, ConcurrentTransactionsError)
"""Errors of a call that waits for another transaction. The call itself has written nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """The retry limits of one kind of call, and the client that waits."""

    who: str
    """Beginning of messages: which client this is."""
    timeout_ms: int
    setting: str
    """The configuration key of `timeout_ms`, for messages."""
    retries: int

    @classmethod
    def of(cls, config: ClientConfig | ConsumerConfig | ProducerConfig, who: str) -> Self:
        """Return the limits that these settings give to the calls of client `who`."""
        if isinstance(config, ProducerConfig):
            timeout_ms, setting = config.max_block_ms, "max.block.ms"
        else:
            timeout_ms, setting = config.default_api_timeout_ms, "default.api.timeout.ms"
        return cls(who=who, timeout_ms=timeout_ms, setting=setting, retries=config.retries)

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
        """Return the program's result. `program` returns a new program for every try.

        At the end, TxlogTimeoutError is raised for trouble with the store, and otherwise the error itself. Without
        `wait` the call does not wait for the outcome of other transactions.

        With `settles` an error must mean that no part of the call took effect. After a try of unknown outcome that is
        not certain, so the error becomes an OutcomeUnknownError (PROTOCOL.md, W44). Calls that only read, and calls
        whose every try looks for earlier effects, pass `settles=False`.
        """
        clock = driver.clock
        deadline_ms = clock.monotonic_ms() + self.timeout_ms
        log_of_retries = RetryLog(self.who, what, clock)
        met: Exception | None = None
        wrote = False

        def on_write() -> None:
            nonlocal wrote
            wrote = True

        # An abandoned try that met no error itself was started because of the error of the try before it.
        limit = Limit(
            deadline_ms,
            lambda error: self.late(what, error or met, wrote=wrote),
            self.retries,
            ctx.backoff_ms,
            log_of_retries.note,
            on_write,
        )
        attempt = 0
        in_doubt = False
        created = False

        def note() -> None:
            nonlocal created
            created = True

        while True:
            created = False
            try:
                return driver.run(limited(program(), clock, limit, created=note))
            except TxlogTimeoutError:
                # A real sleep takes longer than asked, so a call that waits for other transactions ends in an abandoned
                # try.
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
                        raise self.late(what, error, wrote=wrote) from error
                    if in_doubt and isinstance(error, RetriableError):
                        raise self._in_doubt(what, error) from error
                    raise
            except TxlogError as error:
                if not in_doubt:
                    raise
                raise self._in_doubt(what, error) from error
            log_of_retries.note(met)
            pause(clock, driver.ids, ctx.backoff_ms(attempt), left_ms)
            attempt += 1
            metrics.count("txlog_retries_total", 1, "call")

    def late(self, what: str, error: Exception | None, *, wrote: bool) -> TxlogTimeoutError:
        """Return the error of a call that is out of time.

        `error` is the last error that it met. `wrote`: whether it has tried to change anything.
        """
        cause = f": {split_hint(str(error))[0]}" if error is not None else ""
        if wrote:
            hint = "repeat the same call: it joins whatever this one has done"
        elif isinstance(error, StorageError):
            hint = "check the endpoint, the region and the network"
        else:
            hint = "repeat the same call"
        return TxlogTimeoutError(
            f"{self.who}: {what} did not finish within {self.timeout_ms} ms ({self.setting}){cause}. hint: {hint}"
        )

    def _in_doubt(self, what: str, error: TxlogError) -> OutcomeUnknownError:
        """Return the error of a call whose last try was refused, but whose first try may have taken effect."""
        return OutcomeUnknownError(
            f"{self.who}: {what}: an earlier try of this very call may have taken effect, and a later one was "
            f"refused ({error.problem}). "
            "hint: look at what is there before you do it again"
        )


class RetryLog:
    """Logs the retries of one call or batch. `who` and `what` begin the message."""

    def __init__(self, who: str, what: str, clock: Clock) -> None:
        self._who = who
        self._what = what
        self._clock = clock
        self._began_ms = self._quiet_ms = clock.monotonic_ms()
        self._number = 0

    def note(self, error: Exception) -> None:
        """Log that the call, or one of its requests, is tried again because of `error`."""
        self._number += 1
        now_ms = self._clock.monotonic_ms()
        is_long = now_ms - self._quiet_ms >= WARN_AFTER_MS
        if is_long:
            self._quiet_ms = now_ms
        log(
            _LOG,
            logging.WARNING if is_long else logging.DEBUG,
            "retry",
            "%s: %s: retry %d after %.1f s: %s",
            self._who,
            self._what,
            self._number,
            (now_ms - self._began_ms) / 1000,
            error,
            call=self._what,
            attempt=self._number,
            error=type(error).__name__,
        )


def pause(clock: Clock, ids: IdGenerator, backoff_ms: int, left_ms: int) -> None:
    """Back off, but not longer than there is time."""
    clock.sleep_ms(min(ids.jitter(backoff_ms), left_ms))


@dataclass(frozen=True, slots=True)
class Limit:
    """When a program is abandoned, and how often each of its requests is retried before the program sees the error."""

    deadline_ms: int
    late: Callable[[Exception | None], TxlogTimeoutError]
    retries: int
    backoff_ms: Callable[[int], int]
    note: Callable[[Exception], None]
    """Called before each retry of a request, with the error of the last try."""
    on_write: Callable[[], None] = lambda: None
    """Called before each request that may change the store."""


def limited(
    program: Program[T],
    clock: Clock,
    limit: Limit,
    met: list[Exception] | None = None,
    *,
    created: Callable[[], None] = lambda: None,
) -> Program[T]:
    """Return `program`, which now raises `limit.late` before the first request or sleep after the deadline.

    A request that failed without effect is retried here. Otherwise a program with many requests would start over at
    each failed one, and would seldom complete on a store that fails one request in ten. `met` collects the failures,
    also of programs that run beside this one. The last failure explains the time-out.

    `created` is called when the store has answered a create of `program` itself with anything but a refusal: the create
    may have taken effect.
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
        if isinstance(effect, _LOCAL):
            answer = yield effect
            continue
        left_ms = limit.deadline_ms - clock.monotonic_ms()
        if left_ms < 0:
            program.close()
            raise limit.late(met[-1] if met else None)
        match effect:
            case Gather(programs):
                effect = Gather(tuple(limited(each, clock, limit, met) for each in programs))
            case Sleep(ms):
                effect = replace(effect, ms=min(ms, left_ms + 1))
            case PutIfAbsent() | WriteRows() | Delete():
                limit.on_write()
        # A Gather's programs have retried already. The name of a data file is used only once.
        tries = 0 if isinstance(effect, Gather | WriteRows) else min(limit.retries, MAX_REQUEST_RETRIES)
        for number in range(tries + 1):
            try:
                answer, failure = (yield effect), None
                if isinstance(effect, PutIfAbsent):
                    created()
                break
            except StorageError as error:
                failure = error
                met[:] = [error]
                left_ms = limit.deadline_ms - clock.monotonic_ms()
                if number < tries and left_ms > 0:
                    limit.note(error)
                    metrics.count("txlog_retries_total", 1, "request")
                    yield Sleep(min(limit.backoff_ms(number), left_ms))
            except Exception as error:
                failure = error
                break
