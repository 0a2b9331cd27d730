"""Which transactions have been complete for so long that no valid snapshot can have missed them?"""

from __future__ import annotations

import pytest

from txlog.core.cleaning import settled_epochs
from txlog.core.records import BatchKind, IndexEntry, SegmentIndex, TransactionMetadata, TransactionState

PID, OLD, YOUNG, BEFORE = 7, 10, 90, 50


def row(state: TransactionState, epoch: int, *, started_at: int, updated_at: int) -> TransactionMetadata:
    return TransactionMetadata(
        transactional_id="x", producer_id=PID, producer_epoch=epoch, state=state, timeout_ms=1,
        started_at=started_at, updated_at=updated_at, write_id="w",
    )  # fmt: skip


def index(*entries: tuple[BatchKind, int, int], transactional: bool = True) -> SegmentIndex:
    """Return an index of (kind, epoch, timestamp) for each batch."""
    made = tuple(
        IndexEntry(
            base_offset=number, records=1, kind=kind, producer_id=PID, producer_epoch=epoch, base_sequence=0,
            transactional=transactional, timestamp=timestamp, file=0, first_row=number,
        )
        for number, (kind, epoch, timestamp) in enumerate(entries)
    )  # fmt: skip
    return SegmentIndex(
        partition="orders-0", base_offset=0, end_offset=max(len(made), 1), generation=0, files=(), entries=made,
        aborted_txns=0, last_digest="",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("state", "started_at", "updated_at", "settled"),
    [
        ("COMPLETE_COMMIT", OLD, OLD, 4),
        ("COMPLETE_ABORT", OLD, YOUNG, 3),  # a hanging commit that was finished just now
        ("COMPLETE_COMMIT", YOUNG, YOUNG, -1),  # the record does not show when the transaction before was complete
        ("PREPARE_COMMIT", OLD, OLD, 3),
        ("PREPARE_COMMIT", YOUNG, YOUNG, -1),
        ("ONGOING", OLD, YOUNG, 4),
        ("ONGOING", YOUNG, YOUNG, -1),
        ("EMPTY", -1, OLD, 4),
        ("EMPTY", -1, YOUNG, -1),
    ],
)
def test_what_the_table_shows(state: TransactionState, started_at: int, updated_at: int, settled: int) -> None:
    assert settled_epochs([row(state, 4, started_at=started_at, updated_at=updated_at)], [], BEFORE) == {PID: settled}


def test_a_producer_that_never_rests_is_known_by_what_it_began_later() -> None:
    busy = [row("ONGOING", 40, started_at=YOUNG, updated_at=YOUNG)]
    assert settled_epochs(busy, [index(("data", 3, OLD), ("commit", 4, OLD), ("data", 9, YOUNG))], BEFORE) == {PID: 3}
    assert settled_epochs(busy, [index(("data", 3, OLD), ("data", 4, OLD))], BEFORE) == {PID: 4}
    # A commit in one phase begins its epoch as a transaction does.
    assert settled_epochs(busy, [index(("data", 4, OLD), transactional=False)], BEFORE) == {PID: 4}


def test_an_id_that_the_table_lacks_is_not_in_it() -> None:
    assert settled_epochs([], [index(("data", 3, OLD))], BEFORE) == {}
