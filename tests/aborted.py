"""Which aborted transactions does a part of a partition have, as a read of it finds them?"""

from __future__ import annotations

from txlog.core.effects import Program
from txlog.core.records import AbortedTxn
from txlog.protocol.context import Context, PartitionView
from txlog.protocol.load import relisting
from txlog.protocol.read import aborted_of_range, read_indexes


def aborted_transactions(
    ctx: Context, view: PartitionView, start: int, end: int
) -> Program[tuple[PartitionView, tuple[AbortedTxn, ...]]]:
    """Return the aborted ranges that overlap `[start, end)`, whatever the LSO is."""

    def find(found: PartitionView) -> Program[tuple[AbortedTxn, ...]]:
        chosen = [name for name in found.walk if name.end_offset > start and name.base_offset < end]
        known = yield from read_indexes(found, chosen, {})
        _, aborted = yield from aborted_of_range(found, chosen, known, start, end)
        return aborted

    return (yield from relisting(ctx, view, find))
