"""The fold: the LSO (PROTOCOL.md, invariant 7) and offsets as tables, and the properties of every log."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from tests.core.partition_log import OFFSETS_TP, TP, Log, offset_entry
from tests.effort import examples
from txlog.core import envelope
from txlog.core.append_rules import RollPolicy, next_record
from txlog.core.names import TopicPartition
from txlog.core.record_checks import StoredRecord, stored_record, stored_records
from txlog.core.records import (
    AbortedTxn,
    GroupEntry,
    GroupRow,
    GroupValue,
    OffsetRow,
    ProducerStateEntry,
    TransactionEntry,
    TransactionMetadata,
    TransactionRow,
)
from txlog.core.segments import aborted_txn_of
from txlog.core.snapshot_state import decode_snapshot, from_snapshot, to_snapshot
from txlog.core.state import PartitionState, replay
from txlog.errors import CorruptRecordError


def aborted(log: Log) -> list[tuple[int, int, int, int]]:
    found = [aborted_txn_of(stored.record) for stored in log.records]
    return [(a.producer_id, a.first_offset, a.last_offset, a.last_stable_offset) for a in found if a is not None]


# -- the last stable offset -------------------------------------------------------------------------------------------


def test_without_transactions_the_lso_is_the_end() -> None:
    log = Log()
    log.plain(5)
    log.data(1, 0, 0, 3)
    assert (log.lso, log.leo) == (8, 8)


def test_the_first_data_batch_holds_the_lso() -> None:
    log = Log()
    log.plain(5)
    log.data(1, 0, 0, txn=True)
    log.data(1, 0, 1, txn=True)
    assert log.lso == 5
    log.commit(1, 1)
    assert log.lso == log.leo == 8


def test_worked_lso() -> None:
    log = Log()
    log.data(1, 0, 0, 5, txn=True)
    log.plain(3)
    log.data(2, 0, 0, 2, txn=True)
    log.data(1, 0, 5, 4, txn=True)
    log.plain(2)
    log.data(1, 0, 9, 10, txn=True)
    assert (log.lso, log.leo) == (0, 26)
    assert log.commit(1, 1) == 26
    assert log.lso == 8
    assert log.abort(2, 1) == 27
    assert (log.lso, log.leo) == (28, 28)


def test_worked_index() -> None:
    log = Log()
    one, two, three, four = 1, 2, 3, 4
    sequences = dict.fromkeys((one, two, three, four), 0)

    def add(pid: int, rows: int) -> None:
        assert isinstance(log.data(pid, 0, sequences[pid], rows, txn=True), int)
        sequences[pid] += rows

    add(one, 5)
    log.plain(3)
    add(two, 2)
    add(one, 4)
    add(three, 3)
    log.plain(2)
    add(one, 10)
    assert log.abort(one, 1) == 29
    assert log.lso == 8
    add(two, 6)
    add(four, 3)
    log.plain(10)
    add(three, 9)
    assert log.commit(three, 1) == 58
    add(four, 8)
    add(two, 7)
    assert log.abort(two, 1) == 74
    assert log.lso == 36
    log.plain(10)
    add(four, 4)
    assert log.commit(four, 1) == 89
    assert aborted(log) == [(1, 0, 29, 8), (2, 8, 74, 36)]
    assert log.lso == log.leo == 90


@pytest.mark.parametrize("order", [(1, 3, 2), (3, 1, 2), (2, 1, 3), (3, 2, 1)])
def test_three_open_transactions(order: tuple[int, ...]) -> None:
    log = Log()
    first = {}
    for pid, gap in ((1, 25), (2, 32), (3, 5)):
        first[pid] = log.data(pid, 0, 0, txn=True)
        log.plain(gap)
    still_open = dict(first)
    for pid in order:
        marker = log.abort(pid, 1)
        assert marker is not None
        del still_open[pid]
        expected = min(still_open.values(), default=marker + 1)
        assert log.lso == expected
        assert log.last().last_stable_offset == expected
        assert log.last().first_offset == first[pid]


def test_empty_transactions_complete_nothing() -> None:
    log = Log()
    log.plain(16)
    log.data(1, 0, 0, 5, txn=True)
    for pid, commit, epoch in ((1, True, 1), (2, True, 1), (3, False, 1)):
        log.marker(commit, pid, epoch)
    log.data(3, 1, 0, 4, txn=True)
    assert log.abort(3, 2) == 28
    assert log.abort(3, 3) == 29
    log.data(1, 1, 0, 2, txn=True)
    assert aborted(log) == [(3, 24, 28, 29)]
    assert (log.lso, log.leo) == (30, 32)


@pytest.mark.parametrize(("log_start", "lso"), [(0, 0), (5, 5), (8, 8), (12, 12), (13, 14)])
def test_the_log_start_moves_into_an_open_transaction(log_start: int, lso: int) -> None:
    log = Log()
    log.data(1, 0, 0, 5, txn=True)
    log.plain(3)
    log.data(1, 0, 5, 5, txn=True)
    log.log_start(log_start)
    # if none of its rows is left, Kafka's LSO stays at the log start anyway
    assert (log.state.log_start_offset, log.lso) == (log_start, lso)
    # its first offset does not change: the aborted range covers all of it
    log.abort(1, 1)
    assert (log.last().first_offset, log.last().last_stable_offset, log.lso) == (0, 15, 15)


def test_a_transaction_of_a_deleted_topic_holds_nobody_back_in_the_one_made_anew() -> None:
    log = Log(roll=RollPolicy(batches=2))
    log.data(1, 0, 0, 2, txn=True)
    log.data(2, 0, 0, 1, txn=True)
    log.log_start(4, deleted_version=1)
    assert log.lso == log.leo == 4
    log.data(3, 0, 0, 2, txn=True, schema_id=2)
    assert (log.lso, log.leo) == (4, 6)
    log.commit(3, 1)
    assert log.lso == log.leo == 7
    # ... until it writes there too: it opens again, and the LSO never moves back
    assert log.data(1, 0, 2, 3, txn=True, schema_id=2) == 7
    assert (log.lso, log.leo) == (7, 10)
    log.plain()
    assert log.lso == 7
    log.abort(2, 1)
    assert (log.last().first_offset, log.last().last_stable_offset) == (2, 7)
    log.abort(1, 1)
    assert (log.last().first_offset, log.last().last_stable_offset) == (7, 13)
    assert log.lso == log.leo == 13
    # the result is the same from any snapshot on, also from one that was made before the deletion
    state = log.start
    for number, stored in enumerate(log.records):
        if stored.record.segment_base == stored.record.base_offset:
            loaded = from_snapshot(to_snapshot(state), TP)
            assert replay(loaded, log.records[number:]).last_stable_offset == log.lso
        state = replay(state, [stored])


@pytest.mark.parametrize(
    ("log_start", "says", "fits"),
    [(2, 3, True), (2, 0, True), (2, 1, True), (2, 2, False), (2, -1, False), (0, 0, True), (0, 1, False)],
)
def test_an_abort_of_an_older_writer_may_begin_below_the_log_start(log_start: int, says: int, fits: bool) -> None:
    log = Log()
    log.data(1, 0, 0, 2, txn=True)
    log.log_start(log_start)
    log.data(1, 0, 2, 1, txn=True)
    before = log.state
    log.abort(1, 1)
    record = msgspec.structs.replace(log.last(), first_offset=says)
    data = envelope.encode(record)
    if fits:
        assert replay(before, [stored_record(data, TP, record.base_offset)]).last_stable_offset == 5
    else:
        with pytest.raises(CorruptRecordError, match=f"says first offset {says}"):
            replay(before, [stored_record(data, TP, record.base_offset)])


def test_a_log_start_never_moves_back_nor_past_the_end() -> None:
    log = Log()
    log.plain(5)
    log.log_start(3)
    log.log_start(2)
    assert log.state.log_start_offset == 3
    log.log_start(10**6)
    assert log.state.log_start_offset == log.leo == 8


def test_the_lso_of_a_marker_leaves_only_its_own_transaction_out() -> None:
    log = Log()
    log.data(1, 0, 0, 10, txn=True)
    log.abort(1, 1)
    log.data(1, 1, 0, 4, txn=True)
    log.data(2, 0, 0, 2, txn=True)
    log.abort(1, 2)
    log.commit(2, 1)
    assert aborted(log) == [(1, 0, 10, 11), (1, 11, 17, 15)]


def test_a_staged_commit_closes_the_eager_part_and_takes_an_offset_a_row() -> None:
    log = Log()
    log.data(1, 0, 0, 2, txn=True)
    assert log.commit(1, 1, rows=4) == 2
    assert (log.leo, log.lso, log.state.open_transactions) == (6, 6, ())
    assert (log.last().span, log.last().last_offset) == (4, 5)


# -- producer state ---------------------------------------------------------------------------------------------------


def test_producers_leave_by_a_record_alone() -> None:
    log = Log()
    log.data(1, 0, 0, txn=True)
    log.abort(1, 1)
    log.data(2, 0, 0)
    log.now_ms += 10**12
    log.plain()
    assert set(log.state.producers) == {1, 2}
    log.expire(1)
    assert set(log.state.producers) == {2}
    assert log.data(1, 1, 1) != 5  # the producer is unknown again, so only 0 is accepted


# -- offsets of groups ------------------------------------------------------------------------------------------------


def offsets_log() -> Log:
    return Log(OFFSETS_TP)


@pytest.mark.parametrize("commit", [True, False])
def test_a_marker_promotes_or_drops(commit: bool) -> None:
    log = offsets_log()
    log.offsets([offset_entry("g", 0, 100)])
    log.offsets([offset_entry("g", 0, 111), offset_entry("g", 1, 7)], pid=10, epoch=0)
    assert log.committed() == {("g", 0): 100}
    assert log.lso == 1
    log.marker(commit, 10, 1)
    assert log.committed() == ({("g", 0): 111, ("g", 1): 7} if commit else {("g", 0): 100})
    assert log.state.pending == {}


@pytest.mark.parametrize("rows", [0, 2])
def test_a_marker_of_the_epoch_that_the_producer_has_keeps_its_batches(rows: int) -> None:
    """W26 allows no such marker. Readers fold it all the same, and take the snapshot of the result."""
    log = Log()
    log.data(7, 1, 0, 3)
    log.commit(7, 1, rows=rows, force=True)
    assert log.data(7, 1, 0, 3) == ("duplicate", 0)
    assert log.state.producers[7].last_sequence == 2
    assert decode_snapshot(envelope.encode(to_snapshot(log.state)), TP, log.leo).producers == log.state.producers


def test_a_marker_of_an_unknown_producer_changes_no_offset() -> None:
    log = offsets_log()
    log.offsets([offset_entry("g", 0, 100)])
    log.commit(99, 1)
    assert log.committed() == {("g", 0): 100}


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (("txn 100", "plain 101", "commit"), 101),
        (("plain 101", "txn 100", "commit"), 100),
        (("txn 100", "txn 102", "commit"), 102),
        (("txn 100", "other 105", "commit", "commit other"), 105),
        (("txn 100", "other 105", "commit other", "commit"), 105),
        (("txn 100", "commit", "plain 90"), 90),
        (("txn 100", "plain 101", "abort"), 101),
        (("plain 101", "delete", "plain 5"), 5),
        (("plain 101", "delete"), None),
        pytest.param(("txn 100", "delete", "commit"), None, id="136 a tombstone removes pending ones too"),
        pytest.param(("delete", "txn 100", "commit"), 100, id="136 but not later ones"),
        pytest.param(("txn 100", "delete", "plain 7", "commit"), 7, id="136 nor does a commit bring them back"),
    ],
)
def test_the_later_record_wins_whatever_the_order_of_commits(steps: tuple[str, ...], expected: int | None) -> None:
    log = offsets_log()
    for step in steps:
        word, _, number = step.partition(" ")
        if word == "plain":
            log.offsets([offset_entry("g", 0, int(number))])
        elif word == "delete":
            log.offsets([offset_entry("g", 0, None)])
        elif word in ("txn", "other"):
            log.offsets([offset_entry("g", 0, int(number))], pid=1 if word == "txn" else 2, epoch=0)
        else:
            log.marker(word == "commit", 2 if number else 1, 1)
    assert log.committed().get(("g", 0)) == expected
    # Kafka: "needed so that live state equals state after compaction"
    assert from_snapshot(to_snapshot(log.state), OFFSETS_TP).committed == log.state.committed


def test_staged_offsets_ride_in_the_commit() -> None:
    log = offsets_log()
    log.offsets([offset_entry("g", 0, 1), offset_entry("g", 1, 1)], pid=1, epoch=0)
    log.commit(1, 1, entries=(offset_entry("g", 1, 2), offset_entry("h", 0, 3)))
    assert log.committed() == {("g", 0): 1, ("g", 1): 2, ("h", 0): 3}
    assert log.leo == 4


def test_an_abort_drops_only_its_own_pending_offsets() -> None:
    log = offsets_log()
    log.offsets([offset_entry("g", 0, 1)], pid=1, epoch=0)
    log.offsets([offset_entry("g", 0, 2)], pid=2, epoch=0)
    log.abort(2, 1)
    log.commit(1, 1)
    assert log.committed() == {("g", 0): 1}


# -- the chain --------------------------------------------------------------------------------------------------------


def three() -> Log:
    log = Log(roll=RollPolicy(batches=2))
    for _ in range(3):
        log.plain(2)
    return log


def test_a_hole_a_swap_and_a_wrong_segment_are_refused() -> None:
    log = three()
    first, second, third = log.records
    with pytest.raises(CorruptRecordError, match=r"orders/0/0+4\.batch: expected a batch at offset 2"):
        replay(log.start, [first, third])
    other = Log()
    other.now_ms = 7
    other.plain(2)
    with pytest.raises(CorruptRecordError, match=r"orders/0/0+2\.batch.*one of the two was replaced"):
        replay(log.start, [other.records[0], second])
    data = envelope.encode(msgspec.structs.replace(third.record, segment_base=2))
    with pytest.raises(CorruptRecordError, match="segment_base 2, the active segment begins at 0"):
        replay(log.start, [first, second, stored_record(data, TP, 4)])


def test_a_copied_record_is_named() -> None:
    first = three().records[0]
    with pytest.raises(CorruptRecordError, match=r"orders/0/0+2\.batch: it says base_offset 0"):
        stored_record(first.data, TP, 2)


def test_a_record_above_the_limit_of_commit_objects_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    first = three().records[0]
    assert stored_records(first.data, TP, 0)[0].record == first.record
    monkeypatch.setattr(envelope, "MAX_COMMIT_BYTES", len(first.data) - 1)
    with pytest.raises(CorruptRecordError, match=f"orders/0/0+\\.batch: {len(first.data)} bytes, more than"):
        stored_records(first.data, TP, 0)


@pytest.mark.parametrize("change", [{"records": 3}, {"records": 0}, {"kind": "abort"}, {"files": ()}])
def test_a_record_that_does_not_say_where_its_rows_are_is_refused(change: dict[str, Any]) -> None:
    first = three().records[0]
    data = envelope.encode(msgspec.structs.replace(first.record, **change))
    with pytest.raises(CorruptRecordError, match="orders/0/"):
        stored_record(data, TP, 0)


def test_a_file_of_another_partition_is_refused() -> None:
    first = three().records[0]
    with pytest.raises(CorruptRecordError, match="orders-1"):
        stored_record(first.data, TopicPartition("orders", 1), 0)


def test_a_snapshot_of_another_offset_is_refused() -> None:
    data = envelope.encode(to_snapshot(three().state))
    assert decode_snapshot(data, TP, 6).next_offset == 6
    with pytest.raises(CorruptRecordError, match=r"orders/0/0+8\.snapshot: it says offset 6"):
        decode_snapshot(data, TP, 8)


def test_replay_of_nothing_is_the_same_state() -> None:
    log = three()
    assert replay(log.state, []) is log.state


def test_replay_leaves_the_old_state_alone() -> None:
    log = offsets_log()
    log.offsets([offset_entry("g", 0, 1)], pid=1, epoch=0)
    before = log.state
    kept = to_snapshot(before)
    log.offsets([offset_entry("g", 1, 1)], pid=1, epoch=0)
    log.commit(1, 1)
    assert to_snapshot(before) == kept


# -- properties -------------------------------------------------------------------------------------------------------

PIDS = (1, 2, 2**62)


@st.composite
def steps(draw: st.DrawFn) -> list[tuple[Any, ...]]:
    pid = st.sampled_from(PIDS)
    epoch = st.integers(0, 3)
    step = st.one_of(
        st.tuples(st.just("plain"), st.integers(1, 3)),
        # allowed by the rules: the producer's next sequence, in its newest epoch or the next one
        st.tuples(st.just("next"), pid, st.integers(1, 3), st.booleans(), st.integers(0, 1)),
        # any record: a replay accepts it
        st.tuples(st.just("any"), pid, epoch, st.integers(0, 4), st.booleans()),
        st.tuples(st.just("marker"), st.booleans(), pid, st.integers(0, 2)),
        st.tuples(st.just("log_start"), st.integers(0, 60)),
        st.tuples(st.just("expire"), st.lists(pid, max_size=2)),
        st.tuples(st.just("clock"), st.integers(-2_000, 5_000)),
    )
    return draw(st.lists(step, max_size=25))


def apply(log: Log, step: tuple[Any, ...], lenient: bool = True) -> None:
    match step:
        case ("plain", rows):
            log.plain(rows)
        case ("next", pid, rows, txn, bump):
            entry = log.state.producers.get(pid)
            epoch = (entry.producer_epoch if entry else 0) + bump
            if entry is not None and entry.txn_first_offset >= 0:
                epoch, txn = entry.producer_epoch, True
            sequence = entry.last_sequence + 1 if entry is not None and entry.producer_epoch == epoch else 0
            if lenient:
                # After "any" the window may contain a batch with the same sequences, which the rules would treat as a
                # duplicate.
                log.put(log.draft(pid, epoch, sequence, rows, txn=txn))
            else:
                assert isinstance(log.data(pid, epoch, sequence, rows, txn=txn), int)
        case ("any", pid, epoch, sequence, txn) if lenient:
            log.put(log.draft(pid, epoch, sequence, txn=txn))
        case ("marker", commit, pid, bump):
            entry = log.state.producers.get(pid)
            log.marker(commit, pid, (entry.producer_epoch if entry else 0) + bump)
        case ("log_start", offset):
            log.log_start(offset)
        case ("expire", pids):
            keep = {entry.producer_id for entry in log.state.open_transactions}
            log.expire(*(pid for pid in pids if pid not in keep))
        case ("clock", delta):
            log.now_ms = max(log.now_ms + delta, 0)


def build(script: list[tuple[Any, ...]], batches: int, lenient: bool = True) -> Log:
    log = Log(roll=RollPolicy(batches=batches))
    for step in script:
        apply(log, step, lenient)
    return log


@given(steps(), st.integers(1, 5), st.data())
def test_replay_is_associative(script: list[tuple[Any, ...]], batches: int, data: st.DataObject) -> None:
    log = build(script, batches)
    cut = data.draw(st.integers(0, len(log.records)))
    head, tail = log.records[:cut], log.records[cut:]
    whole = replay(log.start, log.records)
    assert replay(replay(log.start, head), tail) == whole == log.state


@given(steps(), st.integers(1, 5))
def test_from_any_snapshot_on_the_state_is_the_same(script: list[tuple[Any, ...]], batches: int) -> None:
    log = build(script, batches)
    state: PartitionState = log.start
    for number, stored in enumerate(log.records):
        if number and stored.record.segment_base == stored.record.base_offset:
            data = envelope.encode(to_snapshot(state))
            loaded = decode_snapshot(data, TP, state.next_offset)
            assert envelope.encode(to_snapshot(loaded)) == data  # a pure function of the chain
            assert replay(loaded, log.records[number:]) == log.state
        state = replay(state, [stored])


def test_a_snapshot_keeps_all_of_the_state() -> None:
    """Every field survives, also those that matter much later: the topic's deletion, the last record's time, a
    member."""
    offset = OffsetRow(position=4, write_id="0" * 32, entry=offset_entry("g", 0, 5))
    group = GroupEntry(group="g", value=GroupValue(generation=2, member_id="m"))
    txn = TransactionMetadata(
        transactional_id="x", producer_id=1, producer_epoch=0, state="EMPTY", timeout_ms=1, write_id="0" * 32
    )
    full = PartitionState(
        topic_partition=OFFSETS_TP,
        log_start_offset=3,
        next_offset=9,
        segment_base=9,
        last_timestamp=7,
        last_digest="0" * 64,
        deleted_version=2,
        producers={1: ProducerStateEntry(producer_id=1, producer_epoch=2, timestamp=6, txn_first_offset=4)},
        transactions={"x": TransactionRow(offset=1, value=txn)},
        committed={offset.entry.key: offset},
        pending={1: {offset.entry.key: offset}},
        groups={"g": GroupRow(position=5, write_id="0" * 32, entry=group)},
    )
    begun = {"segment_batches", "segment_bytes", "segment_record_bytes", "segment_started_at"}
    for each in fields(PartitionState):
        if each.compare and each.name not in {"topic_partition", *begun}:
            assert getattr(full, each.name) != getattr(PartitionState.empty(OFFSETS_TP), each.name), each.name
    assert decode_snapshot(envelope.encode(to_snapshot(full)), OFFSETS_TP, 9) == full


@given(steps(), st.integers(1, 5))
def test_lso_never_decreases_nor_passes_an_open_transaction(script: list[tuple[Any, ...]], batches: int) -> None:
    log = Log(roll=RollPolicy(batches=batches))
    last = 0
    for step in script:
        apply(log, step, lenient=False)
        state = log.state
        assert last <= log.lso <= log.leo
        assert log.lso >= state.log_start_offset
        rows = {
            stored.record.producer_id
            for stored in log.records
            if stored.record.kind == "data" and stored.record.last_offset >= state.log_start_offset
        }
        assert state.open_producers == {pid: e for pid, e in state.producers.items() if e.txn_first_offset >= 0}
        held = [entry.txn_first_offset for entry in state.open_transactions if entry.producer_id in rows]
        assert log.lso == max(min(held, default=log.leo), state.log_start_offset)
        last = log.lso


@given(steps())
def test_the_aborted_index_holds_exactly_the_aborted_rows(script: list[tuple[Any, ...]]) -> None:
    log = build(script, 100, lenient=False)
    ranges = [found for stored in log.records if (found := aborted_txn_of(stored.record)) is not None]
    opened: dict[int, list[int]] = {}
    gone: set[int] = set()
    for stored in log.records:
        record = stored.record
        if record.kind == "data" and record.transactional:
            opened.setdefault(record.producer_id, []).extend(range(record.base_offset, record.end_offset))
        elif record.kind in ("commit", "abort"):
            rows = opened.pop(record.producer_id, [])
            gone.update(rows if record.kind == "abort" else ())
    for stored in log.records:
        record = stored.record
        if record.kind != "data":
            continue
        inside = any(hides(txn, record.producer_id, record.base_offset) for txn in ranges)
        assert inside == (record.base_offset in gone)


def hides(txn: AbortedTxn, pid: int, offset: int) -> bool:
    return txn.producer_id == pid and txn.first_offset <= offset <= txn.last_offset


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(1, 4), st.integers(0, 2)), max_size=30))
def test_the_sequence_window_against_a_list(batches: list[tuple[int, int, int]]) -> None:
    """The model keeps every batch, the rules keep five. The answers differ only for duplicates of older batches."""
    log = Log()
    accepted: list[tuple[int, int, int]] = []  # epoch, first, last
    for sequence, rows, epoch in batches:
        got = log.data(1, epoch, sequence, rows)
        key = (epoch, sequence, sequence + rows - 1)
        newest = max((old[0] for old in accepted), default=0)
        here = [old for old in accepted if old[0] == epoch]
        if key in here[-5:] and epoch == newest:
            assert isinstance(got, tuple)
        elif epoch < newest:
            assert got.__name__ == "InvalidProducerEpochError"
        elif sequence == (here[-1][2] + 1 if here else 0):
            assert isinstance(got, int)
            accepted.append(key)
        else:
            assert got.__name__ == "OutOfOrderSequenceError"


KEYS = st.tuples(st.sampled_from("gh"), st.integers(0, 1))


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("plain"), KEYS, st.one_of(st.none(), st.integers(0, 9))),
            st.tuples(st.just("txn"), st.sampled_from((1, 2)), KEYS, st.one_of(st.none(), st.integers(0, 9))),
            st.tuples(st.just("end"), st.sampled_from((1, 2)), st.booleans()),
        ),
        max_size=25,
    )
)
@examples(200)
def test_committed_offsets_against_last_record_of_those_that_count(script: list[tuple[Any, ...]]) -> None:
    """Kafka's rule in other words: the last record that counts decides, once every transaction has ended.

    A record counts if it is plain or belongs to a committed transaction.
    """
    log = offsets_log()
    history: list[tuple[int, int, tuple[str, int], int | None]] = []  # position, txn (0: plain), key, value
    committed = {0}
    number = {1: 1, 2: 2}
    epochs = {1: 0, 2: 0}

    def end(pid: int, commit: bool) -> None:
        epochs[pid] += 1
        log.marker(commit, pid, epochs[pid])
        if commit:
            committed.add(number[pid])
        number[pid] += 2

    for step in script:
        if step[0] == "plain":
            at = log.offsets([offset_entry(step[1][0], step[1][1], step[2])])
            history.append((at, 0, step[1], step[2]))
        elif step[0] == "txn":
            at = log.offsets([offset_entry(step[2][0], step[2][1], step[3])], pid=step[1], epoch=epochs[step[1]])
            history.append((at, number[step[1]], step[2], step[3]))
        else:
            end(step[1], step[2])
    for pid in (1, 2):
        end(pid, True)
    expected = {key: value for _, txn, key, value in sorted(history) if txn in committed}
    assert log.committed() == {key: value for key, value in expected.items() if value is not None}


# -- the tables -------------------------------------------------------------------------------------------------------


def entry_of(key: str, epoch: int | None) -> TransactionEntry:
    if epoch is None:
        return TransactionEntry(key=key, value=None)
    value = TransactionMetadata(
        transactional_id=key, producer_id=5, producer_epoch=epoch, state="EMPTY", timeout_ms=1, write_id="0" * 32
    )
    return TransactionEntry(key=key, value=value)


def test_the_latest_record_of_an_id_counts_and_a_tombstone_removes_it() -> None:
    log = Log(TopicPartition("__transaction_state", 0))
    for entry in (entry_of("a", 0), entry_of("b", 0), entry_of("a", 1), entry_of("b", None)):
        log.put(log.draft(-1, -1, -1, entries=(entry,)))
    assert [(key, row.offset, row.value.producer_epoch) for key, row in log.state.transactions.items()] == [("a", 2, 1)]


def test_groups_are_kept_by_name() -> None:
    log = offsets_log()
    for generation in (1, 2):
        value = GroupValue(generation=generation, member_id=f"m{generation}")
        log.put(log.draft(-1, -1, -1, entries=(GroupEntry(group="g", value=value),)))
    row = log.state.groups["g"]
    assert row.entry.value is not None
    assert (row.position, row.entry.value.generation) == (1, 2)
    log.put(log.draft(-1, -1, -1, entries=(GroupEntry(group="g", value=None),)))
    assert log.state.groups == {}


def test_a_stored_record_hands_out_its_payload() -> None:
    log = Log()
    draft = replace(log.draft(1, 0, 0, 3), files=(), payload=b"arrow")
    stored = log.append(lambda state, write_id: next_record(state, draft, now_ms=1, write_id=write_id), draft.payload)
    assert stored.payload == b"arrow"
    assert isinstance(stored, StoredRecord)
