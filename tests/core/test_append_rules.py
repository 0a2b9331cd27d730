"""Idempotence (PROTOCOL.md, W17, W19) and markers (W26) as tables of literals, after Kafka's own tests."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.core.partition_log import NEVER_ROLL, TP, Log
from txlog.core.append_rules import (
    MAX_SEGMENT_RECORD_BYTES,
    BatchDraft,
    Refuse,
    RollPolicy,
    check_batch,
    marker_is_there,
    next_record,
    next_segment_base,
)
from txlog.core.names import TopicPartition
from txlog.core.snapshot_state import from_snapshot, to_snapshot
from txlog.core.state import PartitionState
from txlog.errors import (
    InvalidProducerEpochError,
    InvalidTxnStateError,
    OutOfOrderSequenceError,
    UnknownTopicOrPartitionError,
)

FENCED = InvalidProducerEpochError
GAP = OutOfOrderSequenceError


def log_with(*batches: tuple[int, int, int]) -> Log:
    """Return a log of producer 1 with batches (epoch, base sequence, rows)."""
    log = Log()
    for epoch, sequence, rows in batches:
        assert isinstance(log.data(1, epoch, sequence, rows), int)
    return log


SIX = tuple((0, n * 10, 10) for n in range(6))


@pytest.mark.parametrize(
    ("before", "batch", "expected"),
    [
        pytest.param(SIX[:1], (0, 10, 10), 10, id="28 in sequence"),
        pytest.param(SIX[:1], (0, 0, 10), ("duplicate", 0), id="29 duplicate of the newest"),
        pytest.param(SIX, (0, 50, 10), ("duplicate", 50), id="30 duplicate of the newest of five"),
        pytest.param(SIX, (0, 10, 10), ("duplicate", 10), id="30 duplicate of the oldest of five"),
        pytest.param(SIX, (0, 0, 10), GAP, id="31 older than five"),
        pytest.param(SIX, (0, 50, 9), GAP, id="32 inside a stored batch"),
        pytest.param(SIX, (0, 51, 9), GAP, id="32 the end of a stored batch"),
        pytest.param(SIX, (0, 45, 10), GAP, id="32 across two"),
        pytest.param(SIX, (0, 55, 10), GAP, id="32 overlaps the end"),
        pytest.param(SIX, (0, 61, 10), GAP, id="33 gap"),
        pytest.param(((1, 0, 1),), (0, 0, 1), FENCED, id="34 lower epoch"),
        pytest.param(((1, 0, 1),), (0, 1, 1), FENCED, id="34 lower epoch though the sequence would fit"),
        pytest.param(SIX, (1, 0, 10), 60, id="35 higher epoch from 0"),
        pytest.param(SIX, (1, 60, 10), GAP, id="35 higher epoch must begin at 0"),
        pytest.param((*SIX, (1, 0, 1)), (1, 1, 1), 61, id="35 the new epoch goes on"),
        pytest.param((*SIX, (1, 0, 1)), (0, 50, 10), FENCED, id="35 the cache was emptied: no duplicate any more"),
        pytest.param((*SIX, (1, 0, 1)), (1, 50, 10), GAP, id="35 nor under the new epoch"),
        pytest.param((), (0, 0, 5), 0, id="36 no state: only 0"),
        pytest.param((), (0, 5, 5), GAP, id="36 no state: nothing but 0"),
        pytest.param((), (3, 0, 5), 0, id="36 no state: any epoch"),
    ],
)
def test_sequences(before: tuple[tuple[int, int, int], ...], batch: tuple[int, int, int], expected: object) -> None:
    log = log_with(*before)
    leo = log.leo
    assert log.data(1, *batch) == expected
    assert log.leo == (leo + batch[2] if isinstance(expected, int) else leo)


def test_only_a_marker_is_left() -> None:
    log = Log()
    assert log.commit(1, 2) == 0
    assert log.data(1, 0, 0) == FENCED
    assert log.data(1, 2, 17) == GAP
    assert log.data(1, 2, 0) == 1


def test_sequences_do_not_wrap() -> None:
    # sequences are int64: Kafka wraps to 0 where ours continue
    log = Log()
    log.put(log.draft(1, 0, 2**31 - 11, 10))
    assert log.data(1, 0, 0, 10) == GAP
    assert log.data(1, 0, 2**31 - 1, 10) == 10
    assert log.data(1, 0, 2**31 + 9) == 20


def test_a_marker_ends_the_epoch() -> None:
    log = Log()
    assert log.data(1, 0, 0, 5, txn=True) == 0
    assert log.commit(1, 1) == 5
    assert log.state.producers[1].last_sequence == -1
    assert log.state.producers[1].batches == ()
    # the late write of the finished transaction is fenced, not taken as a new transaction (KIP-890)
    assert log.data(1, 0, 5, 5, txn=True) == FENCED
    assert log.data(1, 0, 0, 5, txn=True) == FENCED
    assert log.data(1, 1, 5, 5, txn=True) == GAP
    assert log.data(1, 1, 0, 5, txn=True) == 6


def test_a_commit_with_rows_leaves_no_sequence() -> None:
    log = Log()
    assert log.data(1, 0, 0, 5, txn=True) == 0
    assert log.commit(1, 1, rows=3) == 5
    assert log.leo == 8
    assert log.state.producers[1].last_sequence == -1
    assert log.data(1, 1, 3) == GAP
    assert log.data(1, 1, 0) == 8


def test_judging_changes_nothing() -> None:
    log = log_with((0, 0, 3))
    before = to_snapshot(log.state)
    for draft in (log.draft(1, 0, 3, 3), log.draft(1, 0, 0, 3), log.draft(1, 0, 9, 3), log.draft(2, 0, 0)):
        check_batch(log.state, draft)
        next_record(log.state, draft, now_ms=5, write_id="w")
    assert to_snapshot(log.state) == before


def test_replay_accepts_what_the_rules_refuse() -> None:
    log = log_with((0, 0, 3))
    log.put(log.draft(1, 0, 7, 2))
    assert log.state.producers[1].last_sequence == 8
    log.put(log.draft(1, 0, 7, 2))  # a duplicate at new offsets
    assert (log.leo, log.state.producers[1].last_sequence) == (7, 8)


def test_offsets_have_no_sequence_and_are_checked_for_the_epoch_alone() -> None:
    log = Log()
    log.commit(1, 4)
    assert log.data(1, 3, -1) == FENCED
    assert log.data(1, 4, -1) == 1
    assert log.data(1, 4, -1) == 2
    assert log.state.producers[1].last_sequence == -1


def test_a_snapshot_keeps_all_five_batches() -> None:
    # Kafka keeps one batch: after a restart it treats a duplicate of the second last one as a gap
    log = log_with(*SIX)
    again = Log(start=from_snapshot(to_snapshot(log.state), TP))
    assert [again.data(1, 0, n * 10, 10) for n in range(1, 6)] == [("duplicate", n * 10) for n in range(1, 6)]
    assert again.data(1, 0, 0, 10) == GAP


def test_a_plain_batch_inside_a_transaction() -> None:
    log = Log()
    assert log.data(1, 0, 0, txn=True) == 0
    assert log.data(1, 0, 1, txn=False) == InvalidTxnStateError
    assert log.data(1, 0, 1, txn=True) == 1
    log.commit(1, 1)
    assert log.data(1, 1, 0, txn=False) == 3


def test_a_newer_epoch_does_not_slip_a_plain_batch_into_an_open_transaction() -> None:
    log = Log()
    assert log.data(1, 0, 0, txn=True) == 0
    assert log.data(1, 1, 0, txn=False) == InvalidTxnStateError


@pytest.mark.parametrize(
    ("stored_epoch", "marker_epoch", "there"),
    [(None, 0, False), (0, 1, False), (1, 1, True), (2, 1, True)],
    ids=["unknown", "newer", "80 the same: already in", "80 older: already in"],
)
def test_marker_epochs(stored_epoch: int | None, marker_epoch: int, there: bool) -> None:
    log = Log()
    if stored_epoch is not None:
        log.data(1, stored_epoch, 0)
    assert marker_is_there(log.state, 1, marker_epoch) is there


def test_a_repeated_abort_leaves_the_next_transaction_alone() -> None:
    # KIP-1228 (W26): the second coordinator's late ABORT of transaction 0 meets the open transaction of the same
    # producer.
    log = Log()
    log.data(1, 0, 0, txn=True)
    assert log.abort(1, 1) == 1
    log.data(1, 1, 0, txn=True)
    assert log.abort(1, 1) is None
    assert [entry.txn_first_offset for entry in log.state.open_transactions] == [2]


def test_a_marker_without_data_completes_nothing() -> None:
    log = Log()
    log.plain(3)
    assert log.abort(1, 1) == 3
    assert (log.last().first_offset, log.last().last_stable_offset) == (-1, 4)
    assert (log.lso, log.leo) == (4, 4)
    assert log.state.producers[1].producer_epoch == 1


def test_the_coordinator_epoch_is_kept() -> None:
    log = Log()
    log.commit(1, 1, coordinator_epoch=17)
    assert log.state.producers[1].coordinator_epoch == 17
    log.data(1, 1, 0, txn=True)
    assert log.state.producers[1].coordinator_epoch == 17
    log.abort(1, 2, coordinator_epoch=23)
    again = from_snapshot(to_snapshot(log.state), TP)
    assert again.producers[1].coordinator_epoch == 23


def test_batches_for_a_deleted_topic_are_refused() -> None:
    log = Log()
    log.plain()
    log.log_start(2, deleted_version=4)
    assert log.data(1, 0, 0, schema_id=3) == UnknownTopicOrPartitionError
    assert log.data(-1, -1, -1, schema_id=0) == UnknownTopicOrPartitionError
    assert log.data(1, 0, 0, schema_id=5) == 2


def test_a_staged_commit_of_a_deleted_topic_is_a_bare_marker() -> None:
    log = Log()
    log.log_start(1, deleted_version=4)
    assert log.commit(1, 1, rows=7, schema_id=3) == 1
    assert (log.last().records, log.last().files, log.leo) == (0, (), 2)
    assert log.commit(1, 2, rows=7, schema_id=5) == 2
    assert (log.last().records, log.leo) == (7, 9)


def test_timestamps_never_decrease() -> None:
    # W11: log-append time, and a writer whose clock is behind does not move it back.
    log = Log()
    log.now_ms = 5_000
    log.plain()
    log.now_ms = 4_000
    log.plain()
    log.abort(1, 1)
    log.log_start(1)
    assert [stored.record.timestamp for stored in log.records] == [5_000] * 4


@pytest.mark.parametrize(
    ("policy", "rolls"),
    [
        (RollPolicy(batches=3), False),
        (RollPolicy(batches=2), True),
        (RollPolicy(bytes=10**6), False),
        (RollPolicy(bytes=1_000), True),
        (RollPolicy(ms=501), False),
        (RollPolicy(ms=500), True),
    ],
)
def test_roll(policy: RollPolicy, rolls: bool) -> None:
    """The topic's `segment.*` settings decide when a segment is full (W20)."""
    log = Log()
    log.plain(5)
    log.plain(5)
    assert next_segment_base(log.state, policy, log.now_ms + 500) == (10 if rolls else 0)


@pytest.mark.parametrize(
    ("record_bytes", "rolls"), [(MAX_SEGMENT_RECORD_BYTES - 1, False), (MAX_SEGMENT_RECORD_BYTES, True)]
)
def test_a_segment_is_full_before_its_index_is_too_large_to_read(record_bytes: int, rolls: bool) -> None:
    log = Log()
    log.plain()
    state = replace(log.state, segment_record_bytes=record_bytes)
    assert next_segment_base(state, NEVER_ROLL, log.now_ms) == (1 if rolls else 0)


def test_what_an_index_will_repeat_is_counted_without_inline_rows() -> None:
    log = Log()
    draft = BatchDraft(records=1, payload=b"x" * 5_000)
    log.append(lambda state, write_id: next_record(state, draft, now_ms=1, write_id=write_id), draft.payload)
    log.plain()
    sizes = [len(stored.data) - stored.record.payload_bytes for stored in log.records]
    assert log.state.segment_record_bytes == sum(sizes) < 5_000 < log.state.segment_bytes


def test_an_empty_segment_never_rolls() -> None:
    state = PartitionState.empty(TP)
    assert next_segment_base(state, RollPolicy(batches=0, bytes=0, ms=0), 10**15) == 0


def test_the_refusal_says_who_where_expected_and_found() -> None:
    log = log_with((0, 0, 3))
    verdict = check_batch(log.state, log.draft(1, 0, 7, 2))
    assert isinstance(verdict, Refuse)
    text = str(verdict.error)
    for part in ("orders-0", "producer 1", "epoch 0", "7..8", "last sequence here is 2", "3 must come next"):
        assert part in text, part
    other = PartitionState.empty(TopicPartition("orders", 3))
    refused = check_batch(other, BatchDraft(records=1, producer_id=9, producer_epoch=0, base_sequence=4))
    assert isinstance(refused, Refuse)
    assert "orders-3" in str(refused.error)
    assert "does not know this producer" in str(refused.error)
