"""Kafka's TransactionIndexTest as tables, and the early stop against a search without one."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from txlog.core.names import SegmentName
from txlog.core.records import AbortedTxn, BatchKind, CommitRecord, IndexEntry, TxnIndex
from txlog.core.segments import aborted_txn_of, check_txn_index, collect_aborted_txns
from txlog.errors import CorruptRecordError


def txn(producer_id: int, first: int, last: int, lso: int) -> AbortedTxn:
    return AbortedTxn(producer_id=producer_id, first_offset=first, last_offset=last, last_stable_offset=lso)


# From Kafka's TransactionIndexTest, testCollectAbortedTransactions.
FOUR = (txn(0, 0, 10, 11), txn(1, 5, 15, 13), txn(2, 18, 35, 25), txn(3, 32, 50, 40))


@pytest.mark.parametrize(
    ("fetch", "upper", "found", "complete"),
    [
        (0, 100, FOUR, False),
        (0, 32, FOUR[:3], True),
        (0, 35, FOUR, True),
        (10, 35, FOUR, True),
        (0, 40, FOUR, True),  # a stable offset equal to the bound is enough
        (0, 12, FOUR[:2], True),
        (11, 35, FOUR[1:], True),
        (20, 41, FOUR[2:], False),
        (0, 5, FOUR[:1], True),
        (50, 51, FOUR[3:], False),  # a fetch that starts at the marker itself
        (51, 60, (), False),
        (0, 0, (), True),
    ],
)
def test_collect(fetch: int, upper: int, found: tuple[AbortedTxn, ...], complete: bool) -> None:
    result = collect_aborted_txns(FOUR, fetch_offset=fetch, upper_bound_offset=upper)
    assert result == (found, complete)


def test_nothing_in_nothing() -> None:
    assert collect_aborted_txns((), fetch_offset=0, upper_bound_offset=9) == ((), False)


@st.composite
def histories(draw: st.DrawFn) -> tuple[int, list[AbortedTxn], set[tuple[int, int]]]:
    """Draw batches and markers with one offset each.

    Return the log end, the index, the aborted (producer, offset) pairs.
    """
    opened: dict[int, int] = {}
    rows: dict[int, list[int]] = {}
    index: list[AbortedTxn] = []
    hidden: set[tuple[int, int]] = set()
    steps = draw(
        st.lists(
            st.tuples(st.integers(0, 3), st.sampled_from(["data", "data", "data", "commit", "abort"])), max_size=60
        )
    )
    for offset, (producer, step) in enumerate(steps):
        if step == "data":
            opened.setdefault(producer, offset)
            rows.setdefault(producer, []).append(offset)
            continue
        first = opened.pop(producer, None)
        mine = rows.pop(producer, [])
        if step == "abort" and first is not None:
            index.append(txn(producer, first, offset, min(opened.values(), default=offset + 1)))
            hidden.update((producer, each) for each in mine)
    return len(steps), index, hidden


@given(histories(), st.data())
def test_the_early_stop_loses_nothing(
    history: tuple[int, list[AbortedTxn], set[tuple[int, int]]], data: st.DataObject
) -> None:
    end, index, hidden = history
    start = data.draw(st.integers(0, end))
    stop = data.draw(st.integers(start, end))
    cut = data.draw(st.integers(0, len(index)))  # two segments
    aborted, is_complete = collect_aborted_txns(index[:cut], fetch_offset=start, upper_bound_offset=stop)
    found = list(aborted)
    if not is_complete:
        found += collect_aborted_txns(index[cut:], fetch_offset=start, upper_bound_offset=stop)[0]
    for producer in range(4):
        for offset in range(start, stop):
            covered = any(t.producer_id == producer and t.first_offset <= offset <= t.last_offset for t in found)
            in_any = any(t.producer_id == producer and t.first_offset <= offset <= t.last_offset for t in index)
            assert covered == in_any
            assert ((producer, offset) in hidden) <= covered


class TestAbortedTxnOf:
    ABORT = CommitRecord(
        base_offset=29,
        records=0,
        kind="abort",
        producer_id=1,
        producer_epoch=5,
        transactional=True,
        timestamp=0,
        segment_base=0,
        write_id="",
        previous="",
        first_offset=0,
        last_stable_offset=8,
    )

    def test_an_abort_with_rows(self) -> None:
        assert aborted_txn_of(self.ABORT) == txn(1, 0, 29, 8)

    @pytest.mark.parametrize(
        ("kind", "first"), [("abort", -1), ("commit", 0), ("data", 0), ("log_start", -1), ("expire", -1)]
    )
    def test_nothing_else(self, kind: BatchKind, first: int) -> None:
        record = CommitRecord(
            base_offset=29,
            records=0,
            kind=kind,
            timestamp=0,
            segment_base=0,
            write_id="",
            previous="",
            first_offset=first,
        )
        assert aborted_txn_of(record) is None


class TestCheck:
    NAME = SegmentName(20, 60, 0)
    PATH = "orders/0/" + NAME.txnindex

    def test_right_ones(self) -> None:
        # The rows may be in an earlier segment. The LSO does not move while an older transaction is open.
        check_txn_index(
            TxnIndex(partition="orders-0", aborted=(txn(1, 0, 20, 5), txn(2, 5, 59, 60))),
            self.NAME,
            self.PATH,
            expected=2,
        )

    @pytest.mark.parametrize(
        ("aborted", "message"),
        [
            ((txn(1, 0, 19, 5),), "outside"),
            ((txn(1, 0, 60, 5),), "outside"),
            ((txn(1, 0, 30, 5), txn(2, 0, 30, 5)), "out of order"),  # equal is an error too
            ((txn(1, 0, 30, 5), txn(2, 0, 29, 5)), "out of order"),
            ((txn(1, 30, 30, 5),), "is not below the marker's"),
            ((txn(1, 40, 30, 5),), "is not below the marker's"),
            ((txn(1, 0, 30, 32),), "last stable offset 32"),
            ((txn(1, 0, 30, 20), txn(2, 0, 40, 19)), "last stable offset 19"),
        ],
    )
    def test_wrong_ones_are_refused_by_name(self, aborted: tuple[AbortedTxn, ...], message: str) -> None:
        with pytest.raises(CorruptRecordError, match=message) as caught:
            check_txn_index(TxnIndex(partition="orders-0", aborted=aborted), self.NAME, self.PATH)
        assert str(caught.value).startswith(self.PATH)

    @pytest.mark.parametrize(
        ("kinds", "firsts"),
        [
            ("data log_start data abort", {20, 22}),
            ("data data data abort", {20}),
            ("log_start data data abort", {21}),
            ("data data log_start abort", {20}),
            ("data log_start data data abort", {20, 22}),
        ],
    )
    def test_a_transaction_may_begin_anew_after_a_move_of_the_log_start_alone(
        self, kinds: str, firsts: set[int]
    ) -> None:
        entries = [
            IndexEntry(
                base_offset=20 + number,
                records=int(kind == "data"),
                kind=kind,  # type: ignore[arg-type]
                producer_id=-1 if kind == "log_start" else 1,
                producer_epoch=0,
                base_sequence=-1,
                transactional=kind != "log_start",
                timestamp=0,
                file=None,
            )
            for number, kind in enumerate(kinds.split())
        ]
        marker = entries[-1].base_offset
        for first in range(20, marker):
            index = TxnIndex(partition="orders-0", aborted=(txn(1, first, marker, 20),))
            if first in firsts:
                check_txn_index(index, self.NAME, self.PATH, entries=entries)
            else:
                with pytest.raises(CorruptRecordError, match="begins at"):
                    check_txn_index(index, self.NAME, self.PATH, entries=entries)

    @pytest.mark.parametrize("expected", [0, 2])
    def test_the_index_announces_how_many(self, expected: int) -> None:
        with pytest.raises(
            CorruptRecordError, match=f"holds 1 aborted transaction, and the index announces {expected}"
        ):
            check_txn_index(
                TxnIndex(partition="orders-0", aborted=(txn(1, 0, 30, 5),)), self.NAME, self.PATH, expected=expected
            )
