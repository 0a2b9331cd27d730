"""How does a client call the protocol: with which views, how often again, and until when?

A session holds one client's views, an immutable mapping that is replaced by what a call returns; a failed call leaves
it as it was (a held view may be stale, never wrong). What may be repeated is repeated, with back-off, until the call's
time is up.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from txlog.client.runtime import Runtime
from txlog.clock import Clock
from txlog.core.effects import Effect, Gather, Program, Sleep
from txlog.core.names import TopicPartition
from txlog.errors import (
    ConcurrentTransactionsError,
    CoordinatorContentionError,
    OutcomeUnknownError,
    RetriableError,
    StorageError,
    TxlogTimeoutError,
    UnstableOffsetCommitError,
)
from txlog.protocol.context import Context, PartitionView, Views
from txlog.protocol.load import load, refresh
from txlog.protocol.transactions import EndResult

__all__ = ["Call", "EndResult", "Session", "TopicPartition", "limited"]

LONG_TAIL_RECORDS = 512
LONG_TAIL_AGE_MS = 5000
"""A view followed by name keeps the rows of its tail in memory. A long tail whose first segment is finished is listed
again after this time: by then that segment is sealed, and its rows are in a file."""

T = TypeVar("T")
Call = Callable[[Context, Views], Program[tuple[Views, T]]]
"""A protocol call that lacks only what the session knows."""


class Session:
    """One client's views and its patience. Thread-safe."""

    def __init__(
        self,
        runtime: Runtime,
        *,
        who: str,
        timeout_ms: int,
        setting: str,
        retries: int,
        retry_backoff_ms: int,
        retry_backoff_max_ms: int,
        metadata_max_age_ms: int,
    ) -> None:
        self.runtime = runtime
        self.who = who
        """Begins messages: which client this is."""
        self.timeout_ms = timeout_ms
        self.setting = setting
        """The configuration key of `timeout_ms`, for messages."""
        self.retries = retries
        self.metadata_max_age_ms = metadata_max_age_ms
        self._retry_backoff_ms = retry_backoff_ms
        self._retry_backoff_max_ms = retry_backoff_max_ms
        self._lock = threading.Lock()
        self._views: Views = {}

    @property
    def clock(self) -> Clock:
        return self.runtime.clock

    @property
    def views(self) -> Views:
        """What this client knows of partitions."""
        return self._views

    def context(self) -> Context:
        """The context of one call."""
        return self.runtime.context(
            retry_backoff_ms=self._retry_backoff_ms, retry_backoff_max_ms=self._retry_backoff_max_ms
        )

    def call(self, what: str, program: Call[T], timeout_ms: int | None = None, *, wait: bool = True) -> T:
        """Runs a protocol call and keeps the views that it returns.

        Errors that allow the same call again are followed by it, until the time or `retries` is used up: then a
        TxlogTimeoutError is raised for trouble with the store, else the error itself. What a call that ran out of time
        has done is unknown; the same call joins it. Without `wait` the outcome of others' transactions is not waited for.
        """
        limit_ms = self.timeout_ms if timeout_ms is None else timeout_ms
        deadline_ms = self.clock.monotonic_ms() + limit_ms
        ctx = self.context()
        attempt = 0
        while True:
            before = self._views
            try:
                after, result = self.runtime.run(
                    limited(program(ctx, before), self.clock, deadline_ms, lambda: self._late(what, limit_ms, None))
                )
            except TxlogTimeoutError:
                raise
            except (RetriableError, OutcomeUnknownError) as error:
                left_ms = deadline_ms - self.clock.monotonic_ms()
                if not wait and isinstance(error, UnstableOffsetCommitError | ConcurrentTransactionsError):
                    raise
                if attempt >= self.retries or left_ms <= 0:
                    if isinstance(error, StorageError | CoordinatorContentionError):
                        raise self._late(what, limit_ms, error) from error
                    raise
                self.clock.sleep_ms(min(self.runtime.ids.jitter(ctx.backoff_ms(attempt)), left_ms))
                attempt += 1
                continue
            self.keep(before, after)
            return result

    def keep(self, before: Views, after: Views) -> None:
        """Takes over the views of `after` that are not in `before`; another thread may have done so too."""
        changed = {tp: view for tp, view in after.items() if before.get(tp) is not view}
        if changed:
            with self._lock:
                self._views = {**self._views, **changed}

    def keep_view(self, view: PartitionView) -> None:
        """Takes over one view."""
        self.keep({}, {view.topic_partition: view})

    def forget(self, partitions: list[TopicPartition]) -> None:
        """Drops views that are not needed any more, and the rows that their tails hold."""
        with self._lock:
            self._views = {tp: view for tp, view in self._views.items() if tp not in partitions}

    def fresh_views(self, partitions: list[TopicPartition], what: str) -> dict[TopicPartition, PartitionView]:
        """Views of `partitions` on the fresh tail, read in parallel: one GET each if they are warm and nothing is new."""
        if not partitions:
            return {}
        max_age_ms = self.metadata_max_age_ms

        def program(ctx: Context, views: Views) -> Program[tuple[Views, None]]:
            def one(tp: TopicPartition) -> Program[PartitionView]:
                view = views.get(tp)
                if view is None:
                    return (yield from load(ctx, tp))
                long_ms = LONG_TAIL_AGE_MS if _is_long(view) else max_age_ms
                return (yield from refresh(ctx, view, min(max_age_ms, long_ms)))

            found = yield Gather(tuple(one(tp) for tp in partitions))
            return {**views, **{view.topic_partition: view for view in found}}, None

        self.call(what, program)
        views = self._views
        return {tp: views[tp] for tp in partitions}

    def _late(self, what: str, limit_ms: int, error: Exception | None) -> TxlogTimeoutError:
        cause = f": {error}" if error is not None else ""
        return TxlogTimeoutError(
            f"{self.who}: {what} did not finish within {limit_ms} ms ({self.setting}){cause}. What it has done is unknown; repeat the same call"
        )


def _is_long(view: PartitionView) -> bool:
    tail = view.tail
    return len(tail) > LONG_TAIL_RECORDS and tail[0].record.segment_base != tail[-1].record.segment_base


def limited(program: Program[T], clock: Clock, deadline_ms: int, late: Callable[[], TxlogTimeoutError]) -> Program[T]:
    """`program`, abandoned by raising `late()` before the first effect that comes after `deadline_ms`.

    Abandoning is what a crash does, at a place of our choosing: every program survives it.
    """
    answer: Any = None
    failure: Exception | None = None
    while True:
        try:
            effect: Effect = program.send(answer) if failure is None else program.throw(failure)
        except StopIteration as end:
            result: T = end.value
            return result
        answer, failure = None, None
        left_ms = deadline_ms - clock.monotonic_ms()
        if left_ms < 0:
            program.close()
            raise late()
        match effect:
            case Gather(programs):
                effect = Gather(tuple(limited(each, clock, deadline_ms, late) for each in programs))
            case Sleep(ms):
                effect = Sleep(min(ms, left_ms + 1))
        try:
            answer = yield effect
        except Exception as error:
            failure = error
