"""How does a client call the protocol: with which views, how many retries, and until when?

A session holds one client's views in an immutable mapping, which is replaced by the result of a call. A held view may
be stale, but it is never wrong. So a call that fails leaves what it has read until then, and its repetition does not
start over. Calls that may be repeated are retried with back-off until the call's time is up.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from txlog.client.session.retry import RetryPolicy
from txlog.client.session.runtime import Runtime
from txlog.clock import Clock
from txlog.config import ClientConfig, ConsumerConfig, ProducerConfig
from txlog.core.effects import Program, gathered
from txlog.core.names import TopicPartition
from txlog.errors import CorruptLogError, TxlogError
from txlog.protocol.context import Context, PartitionView, Views
from txlog.protocol.load import load, prove, refresh
from txlog.protocol.transactions import resolve
from txlog.storage.forks import lock_for_forks

__all__ = ["Call", "Session", "TopicPartition"]

LONG_TAIL_RECORDS = 512
LONG_TAIL_AGE_MS = 5000
"""A view that is followed by name keeps the rows of its tail in memory.

A long tail whose first segment is finished is listed again after this time. By then that segment is sealed, and its
rows are in a file.
"""

OVERDUE_LOOK_MS = 10_000
"""Kafka's `transaction.abort.timed.out.transaction.cleanup.interval.ms`: how often to look for dead transactions."""

T = TypeVar("T")
Call = Callable[[Context, Views], Program[tuple[Views, T]]]
"""A protocol call that needs only the context and views of a session."""


class Session:
    """One client's views and its retries. Thread-safe."""

    def __init__(self, runtime: Runtime, config: ClientConfig | ConsumerConfig | ProducerConfig, who: str) -> None:
        self.runtime = runtime
        self.retry = RetryPolicy.of(config, who)
        self.metadata_max_age_ms = config.metadata_max_age_ms
        self._config = config
        self._lock = lock_for_forks()
        self._views: Views = {}
        self._looked_at_ms: dict[int, int] = {}

    @property
    def who(self) -> str:
        """Beginning of messages: which client this is."""
        return self.retry.who

    @property
    def clock(self) -> Clock:
        return self.runtime.clock

    @property
    def views(self) -> Views:
        """What this client knows about partitions."""
        return self._views

    def context(self) -> Context:
        """Return the context of one call. A call that fails gives its `learned` to `keep_learned`."""
        return replace(self.runtime.context(self._config), learned={})

    def call(
        self, what: str, program: Call[T], *, wait: bool = True, settles: bool = True, limit_ms: int | None = None
    ) -> T:
        """Run a protocol call with retries, and keep the views that it returns.

        `wait`, `settles` and errors are as in `RetryPolicy.run`. The call takes at most `limit_ms`. The outcome of a
        call that ran out of time is unknown; the same call joins it.
        """
        ctx = self.context()

        def attempt() -> Program[tuple[Views, Views, T]]:
            self.keep_learned(ctx)
            before = self._views
            after, result = yield from program(ctx, before)
            return before, after, result

        retry = self.retry
        if limit_ms is not None and limit_ms < retry.timeout_ms:
            retry = replace(retry, timeout_ms=limit_ms, setting="all that this call waits")
        try:
            before, after, result = retry.run(self.runtime.driver, ctx, what, attempt, wait=wait, settles=settles)
        except BaseException:
            self.keep_learned(ctx)
            raise
        self.keep(before, after)
        return result

    def with_timeout(self, timeout_ms: int) -> Session:
        """Return a session with the same views whose calls may take `timeout_ms` each, for jobs of many requests."""
        made = copy.copy(self)
        made.retry = replace(self.retry, timeout_ms=timeout_ms, setting="all that one step of a job may take")
        return made

    def keep(self, before: Views, after: Views) -> None:
        """Keep the views of `after` that are not in `before`, unless another thread has set newer ones."""
        changed = {tp: view for tp, view in after.items() if before.get(tp) is not view}
        if changed:
            with self._lock:
                # A log end never moves back, so the view with the lower log end is the older one.
                held = {tp: self._views[tp].state.next_offset for tp in changed if tp in self._views}
                newer = {tp: view for tp, view in changed.items() if view.state.next_offset >= held.get(tp, 0)}
                self._views = {**self._views, **newer}

    def keep_view(self, view: PartitionView) -> None:
        """Keep one view."""
        self.keep({}, {view.topic_partition: view})

    def keep_learned(self, ctx: Context) -> None:
        """Keep what a call with this context has read until it failed.

        A later record never makes an earlier one wrong, so these views hold although the call failed (R7, R20).
        """
        if ctx.learned:
            self.keep({}, dict(ctx.learned))  # a copy: a helper thread of an interrupted call may still read

    def prove(self, partitions: Iterable[TopicPartition], what: str) -> None:
        """Raise StoreChangedError unless the log still holds what this client has seen of `partitions` (W47).

        Costs one or two GETs for each partition that was not checked a moment ago.
        """
        now = self.runtime.read_clocks()
        held = [self._views[tp] for tp in partitions if tp in self._views]
        due = [view for view in held if view.needs_proof(now)]
        if due:
            self._look(what, lambda ctx, _: [prove(ctx, view) for view in due])

    def doubt(self) -> None:
        """Make the next call check that the store is the same and still holds everything that this client has seen.

        It checks even what was checked a moment ago, because the store may have been replaced between two jobs.
        """
        self.runtime.check_store(now=True)
        with self._lock:
            self._views = {tp: replace(view, proven_at=None) for tp, view in self._views.items()}

    def end_overdue(self, partitions: Iterable[TopicPartition], own_producer_id: int) -> None:
        """End dead transactions of other writers in `partitions`: those past their time-out, or prepared (W28).

        Only transactions that are quiet for OVERDUE_LOOK_MS are looked up, and not more often than that. So a write
        normally costs nothing extra. A failure is left to the next writer, because the caller's own rows are in the
        log.
        """
        now_ms, monotonic_ms = self.clock.now_ms(), self.clock.monotonic_ms()
        met = {
            entry.producer_id
            for tp in partitions
            if (view := self._views.get(tp)) is not None and view.state.last_stable_offset < view.state.next_offset
            for entry in view.state.open_transactions
            if entry.producer_id != own_producer_id and now_ms - entry.timestamp >= OVERDUE_LOOK_MS
        }
        for producer_id in sorted(met):
            with self._lock:
                looked_at_ms = self._looked_at_ms.get(producer_id)
                if looked_at_ms is not None and monotonic_ms - looked_at_ms < OVERDUE_LOOK_MS:
                    continue
                # Forget the looks that are too old to count. Otherwise dead producers would add up over months.
                self._looked_at_ms = {
                    pid: at_ms for pid, at_ms in self._looked_at_ms.items() if monotonic_ms - at_ms < OVERDUE_LOOK_MS
                }
                self._looked_at_ms[producer_id] = monotonic_ms
            before, ctx = self._views, self.context()
            # Any error of the store: the work of this call is done, and must not look as if it had failed.
            with contextlib.suppress(TxlogError):
                self.keep(before, self.runtime.run(resolve(ctx, before, producer_id)))
                continue
            self.keep_learned(ctx)

    def forget(self, partitions: list[TopicPartition]) -> None:
        """Drop views that are not needed any more, and the rows of their tails."""
        with self._lock:
            self._views = {tp: view for tp, view in self._views.items() if tp not in partitions}

    def fresh_views(self, partitions: list[TopicPartition], what: str) -> dict[TopicPartition, PartitionView]:
        """Return views of `partitions` on the fresh tail (R17), read in parallel.

        A recent view with no new rows costs one GET. A view older than `metadata.max.age.ms` costs a LIST (R9).
        """
        if not partitions:
            return {}
        max_age_ms = self.metadata_max_age_ms

        def one(ctx: Context, view: PartitionView | None, tp: TopicPartition) -> Program[PartitionView]:
            if view is None:
                return load(ctx, tp)
            long_ms = LONG_TAIL_AGE_MS if _is_long(view) else max_age_ms
            return refresh(ctx, view, min(max_age_ms, long_ms))

        self._look(what, lambda ctx, views: [one(ctx, views.get(tp), tp) for tp in partitions])
        views = self._views
        return {tp: views[tp] for tp in partitions}

    def readable_views(
        self, partitions: list[TopicPartition], what: str, damaged: list[CorruptLogError] | None
    ) -> dict[TopicPartition, PartitionView]:
        """Return `fresh_views`. With a list `damaged`, leave damaged partitions out and append their errors to it."""
        return readable(partitions, lambda tps: self.fresh_views(tps, what), damaged)

    def _look(self, what: str, programs: Callable[[Context, Views], Iterable[Program[PartitionView]]]) -> None:
        """Run programs that return views, in parallel, and keep the views."""

        def program(ctx: Context, views: Views) -> Program[Views]:
            found = yield from gathered(programs(ctx, views))
            return {**views, **{view.topic_partition: view for view in found}}

        self.call(what, lambda ctx, views: only_views(program(ctx, views)))


def readable(
    partitions: list[TopicPartition],
    read: Callable[[list[TopicPartition]], Mapping[TopicPartition, T]],
    damaged: list[CorruptLogError] | None,
) -> dict[TopicPartition, T]:
    """Return what `read` finds. With a list `damaged`, leave damaged partitions out and append their errors to it."""
    try:
        return dict(read(partitions))
    except CorruptLogError:
        if damaged is None:
            raise
    found: dict[TopicPartition, T] = {}
    for tp in partitions:
        try:
            found |= read([tp])
        except CorruptLogError as error:
            damaged.append(error)
    return found


def only_views(program: Program[Views]) -> Program[tuple[Views, None]]:
    """Return the program of a call that has no other result than views."""
    return (yield from program), None


def _is_long(view: PartitionView) -> bool:
    tail = view.tail
    return len(tail) > LONG_TAIL_RECORDS and tail[0].record.segment_base != tail[-1].record.segment_base
