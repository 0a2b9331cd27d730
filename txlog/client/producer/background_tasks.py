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
from txlog.protocol.context import PROOF_AGE_MS, Context, PartitionView
from txlog.protocol.seal import MAX_FINISHED_SEGMENTS, finished_segments, seal_all

_LOG = logging.getLogger(__name__)
COMPLETE_AFTER_MS = PROOF_AGE_MS * 4 // 5
"""A producer that ends no transaction for this long writes the COMPLETE_* of the last one (PROTOCOL.md, W27). It still
knows then that all markers are in, and need not look for them (W47)."""

LARGE_DECISION_BYTES = 64 * 2**10
"""Inline rows of a decision above which its COMPLETE_* follows at once: a snapshot of the table holds them until
then."""


class BackgroundTasks:
    """Tasks of a producer's thread. The sender's lock guards `complete_later` and `take`; the thread does the rest."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.due_ms: int | None = None
        """When the COMPLETE_* of the last transaction is due; None: nothing is due."""

    def complete_later(self, inline_bytes: int) -> bool:
        """Note that a transaction has ended. Return whether the thread must be woken to learn of it.

        `inline_bytes`: the size of the rows that its decision carries.
        """
        at_once = inline_bytes > LARGE_DECISION_BYTES
        wakes = at_once or self.due_ms is None
        self.due_ms = self._session.clock.monotonic_ms() + (0 if at_once else COMPLETE_AFTER_MS)
        return wakes

    def take(self, now_ms: int) -> bool:
        """Return whether that is due, and forget it: the caller does it without the lock."""
        is_due = self.due_ms is not None and now_ms >= self.due_ms
        if is_due:
            self.due_ms = None
        return is_due

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
