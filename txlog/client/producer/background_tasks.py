"""The work of a producer while no call waits for it.

It completes its last transaction, and seals the segments that it has finished. Whatever fails is left to the next
writer, because the rows are in the log.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from txlog.client.session.session import Session
from txlog.client.transactions.coordinator import Coordinator
from txlog.logs import log
from txlog.protocol.context import LOOK_AGE_MS, PROOF_AGE_MS, Context, PartitionView
from txlog.protocol.seal import MAX_FINISHED_SEGMENTS, finished_segments, seal_all

_LOG = logging.getLogger(__name__)
PACE_MS = 3000
"""A producer whose transactions end at this pace, or faster, looks at the log between them. So none of them waits for
such a look, and COMPLETE_* is written only after as long a pause (PROTOCOL.md, W27)."""
COMPLETE_AFTER_MS = PROOF_AGE_MS // 5
"""How long a slower producer waits at least for its next transaction before it writes COMPLETE_*."""

LARGE_DECISION_BYTES = 64 * 2**10
"""Inline rows of a decision above which its COMPLETE_* follows at once: a snapshot of the table holds them until
then."""


class BackgroundTasks:
    """Tasks of a producer's thread. The sender's lock guards all but `run` and `after_append`.

    A task begins only while no transaction call runs, and a call waits until it has ended: both look at the same
    records, and would race for the same slot.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self.due_ms: int | None = None
        """When the next task is due. None: nothing is due."""
        self.running = False
        self._ended_ms: int | None = None
        self._complete_ms = 0

    def complete_later(self, coordinator: Coordinator, inline_bytes: int) -> bool:
        """Note that a transaction has ended. Return whether the thread must be woken to learn of it.

        `inline_bytes`: the size of the rows that its decision carries.
        """
        now_ms = self._session.clock.monotonic_ms()
        is_paced = self._ended_ms is not None and now_ms - self._ended_ms <= PACE_MS
        at_once = inline_bytes > LARGE_DECISION_BYTES
        before_ms, self._ended_ms = self.due_ms, now_ms
        self._complete_ms = now_ms + (0 if at_once else PACE_MS if is_paced else COMPLETE_AFTER_MS)
        # While the last look is young, COMPLETE_* needs no other one (W25, W47).
        self.due_ms = now_ms if at_once else max(coordinator.looked_at_ms + LOOK_AGE_MS, now_ms + COMPLETE_AFTER_MS)
        return before_ms is None or self.due_ms < before_ms

    def take(self, now_ms: int) -> bool:
        """Return whether a task is due, which `run` then does without the lock."""
        if self.due_ms is None or now_ms < self.due_ms:
            return False
        self.due_ms, self.running = None, True
        return True

    def run(self, coordinator: Coordinator) -> None:
        """Write the COMPLETE_* of the last transaction. If the next one is expected soon, look at the log instead."""
        clock = self._session.clock
        if clock.monotonic_ms() >= self._complete_ms:
            coordinator.complete()
            return
        coordinator.look()
        self.due_ms = max(coordinator.looked_at_ms + LOOK_AGE_MS, clock.monotonic_ms() + COMPLETE_AFTER_MS)

    def after_append(
        self, ctx: Context, views: Sequence[PartitionView], own_producer_id: int, coordinator: Coordinator | None
    ) -> None:
        """Seal full segments and end overdue transactions. If this fails, the next writer does it."""
        try:
            self._seal(ctx, views, in_transaction=coordinator is not None)
            self._session.end_overdue([view.topic_partition for view in views], own_producer_id)
        except Exception as error:
            text = "%s: the rows are in the log, but sealing failed; the next writer seals"
            log(
                _LOG, logging.WARNING, "seal_failed", text, self._session.who, error=type(error).__name__, exc_info=True
            )

    def _seal(self, ctx: Context, views: Sequence[PartitionView], *, in_transaction: bool) -> None:
        """Seal the finished segments of views that end in this producer's own record.

        The writer that starts a new segment seals the earlier ones. If it dies first, the next writer to start one does
        it. In a transaction a segment waits for the end, which seals one partition after its markers, unless the tail
        is too long.
        """
        least = MAX_FINISHED_SEGMENTS if in_transaction else 1
        finished = [view for view in views if _began_segment(view) and len(finished_segments(view)) >= least]
        if finished:
            for view in self._session.runtime.run(seal_all(ctx, finished)):
                self._session.keep_view(view)


def _began_segment(view: PartitionView) -> bool:
    last = view.tail[-1].record if view.tail else None
    return last is not None and last.segment_base == last.base_offset
