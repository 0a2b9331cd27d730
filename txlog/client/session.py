"""How does a client call the protocol: with which views, how often again, and until when?

A session holds one client's views, an immutable mapping that is replaced by what a call returns; a failed call leaves
it as it was (a held view may be stale, never wrong). What may be repeated is repeated, with back-off, until the call's
time is up.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeVar

from txlog.client.patience import Patience
from txlog.client.runtime import Runtime
from txlog.clock import Clock
from txlog.config import ClientConfig, ConsumerConfig, ProducerConfig
from txlog.core.effects import Gather, Program
from txlog.core.names import TopicPartition
from txlog.errors import CorruptLogError, TxlogError
from txlog.protocol.context import Context, PartitionView, Views
from txlog.protocol.load import MAX_SLOTS_BY_NAME, load, prove, refresh
from txlog.protocol.transactions import EndResult, resolve
from txlog.storage.forks import lock_for_forks

__all__ = ["Call", "EndResult", "Session", "TopicPartition"]

LONG_TAIL_RECORDS = 512
LONG_TAIL_AGE_MS = 5000
"""A view followed by name keeps the rows of its tail in memory. A long tail whose first segment is finished is listed
again after this time: by then that segment is sealed, and its rows are in a file."""

OVERDUE_LOOK_MS = 10_000
"""Kafka's `transaction.abort.timed.out.transaction.cleanup.interval.ms`: how often writers look for dead transactions."""

T = TypeVar("T")
Call = Callable[[Context, Views], Program[tuple[Views, T]]]
"""A protocol call that lacks only what the session knows."""


class Session:
    """One client's views and its patience. Thread-safe."""

    def __init__(
        self,
        runtime: Runtime,
        config: ClientConfig | ConsumerConfig | ProducerConfig,
        *,
        patience: Patience,
    ) -> None:
        self.runtime = runtime
        self.patience = patience
        self.metadata_max_age_ms = config.metadata_max_age_ms
        self._retry_backoff_ms = config.retry_backoff_ms
        self._retry_backoff_max_ms = config.retry_backoff_max_ms
        self._lock = lock_for_forks()
        self._views: Views = {}
        self._looked_at_ms: dict[int, int] = {}

    @property
    def who(self) -> str:
        """Begins messages: which client this is."""
        return self.patience.who

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

    def call(
        self, what: str, program: Call[T], *, wait: bool = True, settles: bool = True, limit_ms: int | None = None
    ) -> T:
        """Runs a protocol call and keeps the views that it returns.

        Errors that allow the same call again are followed by it, until the time or `retries` is used up: then a
        TxlogTimeoutError is raised for trouble with the store, else the error itself. What a call that ran out of time
        has done is unknown; the same call joins it. Without `wait` the outcome of others' transactions is not waited for.
        With `settles` a refusal after a try of unknown outcome is an OutcomeUnknownError. It takes at most `limit_ms`.
        """
        ctx = self.context()

        def attempt() -> Program[tuple[Views, Views, T]]:
            before = self._views
            after, result = yield from program(ctx, before)
            return before, after, result

        patience = self.patience
        if limit_ms is not None and limit_ms < patience.timeout_ms:
            patience = replace(patience, timeout_ms=limit_ms, setting="all that this call waits")
        before, after, result = patience.run(self.runtime.driver, ctx, what, attempt, wait=wait, settles=settles)
        self.keep(before, after)
        return result

    def patient(self, timeout_ms: int) -> Session:
        """A session that begins with the same views and gives each call that much time: for jobs of many requests."""
        made = copy.copy(self)
        made.patience = replace(self.patience, timeout_ms=timeout_ms, setting="all that one step of a job may take")
        return made

    def keep(self, before: Views, after: Views) -> None:
        """Takes over the views of `after` that are not in `before`, but for those that another thread has newer ones of."""
        changed = {tp: view for tp, view in after.items() if before.get(tp) is not view}
        if changed:
            with self._lock:
                newer = {tp: view for tp, view in changed.items() if not _is_older(view, self._views.get(tp))}
                self._views = {**self._views, **newer}

    def keep_view(self, view: PartitionView) -> None:
        """Takes over one view."""
        self.keep({}, {view.topic_partition: view})

    def prove(self, partitions: Iterable[TopicPartition], what: str) -> None:
        """Raises StoreChangedError unless the log still holds what this client has seen of `partitions` (W47): a GET or two
        for each that was not proven a moment ago."""
        now = self.runtime.moment()
        held = [self._views[tp] for tp in partitions if tp in self._views]
        due = [view for view in held if view.needs_proof(now)]
        if due:

            def program(ctx: Context, views: Views) -> Program[tuple[Views, None]]:
                found = yield Gather(tuple(prove(ctx, view) for view in due))
                return {**views, **{view.topic_partition: view for view in found}}, None

            self.call(what, program)

    def doubt(self) -> None:
        """Has the next call look whether the store is still the same, and holds what this client has seen of it, however
        lately that was seen: the store may have been replaced between two jobs."""
        self.runtime.check_store(now=True)
        with self._lock:
            self._views = {tp: replace(view, proven_at=None) for tp, view in self._views.items()}

    def end_overdue(self, partitions: Iterable[TopicPartition], own_producer_id: int) -> None:
        """Ends dead transactions of others that a writer meets in `partitions`: past their time-out, or prepared
        (W28). Only those quiet for OVERDUE_LOOK_MS are looked up, and no oftener
        than that, so a write in good weather costs nothing. A failure is left to the next writer: one's own rows are in.
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
                # Of others nothing is remembered for longer than it counts: dead producers come and go for months.
                self._looked_at_ms = {
                    pid: at_ms for pid, at_ms in self._looked_at_ms.items() if monotonic_ms - at_ms < OVERDUE_LOOK_MS
                }
                self._looked_at_ms[producer_id] = monotonic_ms
            before = self._views
            # Any error of the store's: what was asked of this call is done, and must not look as if it had failed.
            with contextlib.suppress(TxlogError):
                self.keep(before, self.runtime.run(resolve(self.context(), before, producer_id)))

    def forget(self, partitions: list[TopicPartition]) -> None:
        """Drops views that are not needed any more, and the rows that their tails hold."""
        with self._lock:
            self._views = {tp: view for tp, view in self._views.items() if tp not in partitions}

    def fresh_views(self, partitions: list[TopicPartition], what: str) -> dict[TopicPartition, PartitionView]:
        """Views of `partitions` on the fresh tail (R17), read in parallel: one GET each if they are warm and nothing is new; a LIST
        when they are older than `metadata.max.age.ms` (R9)."""
        if not partitions:
            return {}
        max_age_ms = self.metadata_max_age_ms

        def program(ctx: Context, views: Views) -> Program[tuple[Views, None]]:
            def one(tp: TopicPartition) -> Program[PartitionView]:
                view = views.get(tp)
                if view is None:
                    return (yield from load(ctx, tp))
                long_ms = LONG_TAIL_AGE_MS if _is_long(view) else max_age_ms
                return (yield from refresh(ctx, view, min(max_age_ms, long_ms), MAX_SLOTS_BY_NAME))

            found = yield Gather(tuple(one(tp) for tp in partitions))
            return {**views, **{view.topic_partition: view for view in found}}, None

        self.call(what, program)
        views = self._views
        return {tp: views[tp] for tp in partitions}

    def readable_views(
        self, partitions: list[TopicPartition], what: str, damaged: list[CorruptLogError] | None
    ) -> dict[TopicPartition, PartitionView]:
        """As `fresh_views`; with a list `damaged`, partitions that are damaged are left out, and why is appended to it."""
        try:
            return self.fresh_views(partitions, what)
        except CorruptLogError:
            if damaged is None:
                raise
        found: dict[TopicPartition, PartitionView] = {}
        for tp in partitions:
            try:
                found |= self.fresh_views([tp], what)
            except CorruptLogError as error:
                damaged.append(error)
        return found


def _is_older(view: PartitionView, held: PartitionView | None) -> bool:
    """A log end never goes back, so the view that reaches less far was read earlier."""
    return held is not None and view.state.next_offset < held.state.next_offset


def _is_long(view: PartitionView) -> bool:
    tail = view.tail
    return len(tail) > LONG_TAIL_RECORDS and tail[0].record.segment_base != tail[-1].record.segment_base
