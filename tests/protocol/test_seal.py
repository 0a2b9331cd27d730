"""Which objects does sealing write, in which order, and how do several writers share it (PROTOCOL.md, W37, W38)?

A reader must not see a difference.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from lab.simulate.cluster import DiedError, Fault
from tests.effort import cases
from tests.protocol.harness import (
    GRACE_MS,
    A,
    B,
    Cluster,
    Process,
    Task,
    at,
    context,
    rolling,
)
from txlog.config import IsolationLevel
from txlog.core import envelope
from txlog.core.effects import List, PutIfAbsent, WriteRows
from txlog.core.names import SegmentName, TopicPartition
from txlog.core.records import SegmentIndex, TxnIndex
from txlog.core.segments import check_index, check_txn_index
from txlog.core.snapshot_state import to_snapshot
from txlog.core.state import PartitionState, replay
from txlog.errors import OutcomeUnknownError, StorageError
from txlog.protocol.append import append_batch, append_log_start
from txlog.protocol.context import PartitionView
from txlog.protocol.load import load
from txlog.protocol.seal import finished_segments, seal, seal_quietly
from txlog.protocol.table import state_partition

ROLL = rolling(3)


def history(sealing: bool = False) -> Cluster:
    """Interleave two producers over segments of three records: inline rows, files, commits, aborts that span
    segments."""
    cluster = Cluster()
    ctx = ROLL
    x, y = Process(cluster, "x", ctx), Process(cluster, "y", ctx)
    for process in (x, y):
        process.do(process.init())

    def send(process: Process, *words: str, in_file: bool = False) -> None:
        if process.identity.state != "ONGOING":
            process.do(process.register(A))
        draft = process.draft(A, *words, in_file=in_file)
        process.views, _ = process.do(append_batch(ctx, process.views, A, draft, process.identity))
        process.sequences[A] = draft.base_sequence + draft.records

    send(x, "x0", "x1")
    send(y, "y0", in_file=True)
    send(x, "x2", "x3", "x4")
    x.stage(A, "s0", "s1")
    x.do(x.commit())
    send(x, "gone0", in_file=True)
    send(y, "y1")
    send(x, "gone1")
    send(y, "y2", "y3", in_file=True)
    x.do(x.abort())
    send(x, "x5")
    y.do(y.commit())
    x.do(x.commit())
    if sealing:
        cluster.run(seal(ctx, cluster.view(A)))
    return cluster


def unsealed() -> Cluster:
    """Return the same history without the sealed segments of `orders-0`, which appending markers has made."""
    cluster = history()
    for path in list(cluster.objects):
        if path.startswith(A.folder) and path.endswith((".index", ".txnindex", ".snapshot")):
            del cluster.objects[path]
    return cluster


def test_a_call_that_is_out_of_time_keeps_what_it_has_sealed() -> None:
    """Its repetition would otherwise seal the same segments again, and be out of time at the same place."""
    cluster = unsealed()
    view = cluster.view(A)
    first, second, *_ = finished_segments(view)
    learned: dict[TopicPartition, PartitionView] = {}
    task = Task(cluster, seal(replace(ROLL, learned=learned), view))
    task.run(lambda effect: isinstance(effect, PutIfAbsent) and f"/{second[0].record.base_offset:020}-" in effect.path)
    assert learned[A].sealed_end == first[-1].record.end_offset
    assert len(finished_segments(learned[A])) == len(finished_segments(view)) - 1


def sealed_names(cluster: Cluster) -> list[SegmentName]:
    return list(cluster.view(A).walk)


def test_all_but_the_active_segment_is_sealed_in_order() -> None:
    cluster = unsealed()
    view = cluster.view(A)
    expected = [(each[0].record.base_offset, each[-1].record.end_offset) for each in finished_segments(view)]
    assert len(expected) == 3
    cluster.requests.clear()
    after = cluster.run(seal(ROLL, view))
    assert [(name.base_offset, name.end_offset) for name in after.walk] == expected
    assert after.sealed_end == expected[-1][1]
    assert after.state == view.state
    puts = [request.path.rsplit(".", 1)[1] for request in cluster.requests if isinstance(request, PutIfAbsent)]
    one = "".join(kind[0] for kind in puts)
    assert one.replace("tsi", "si") == "si" * 3  # txnindex, snapshot, and at the end the index that declares it
    assert cluster.view(A).walk == after.walk


def test_the_history_has_an_abort_that_spans_segments() -> None:
    cluster = history(sealing=True)
    (path,) = (path for path in cluster.objects if path.startswith(A.folder) and path.endswith(".txnindex"))
    (aborted,) = envelope.decode(cluster.objects[path], TxnIndex, path)[0].aborted
    assert aborted.first_offset < int(path[len(A.folder) :].split("-")[0]) <= aborted.last_offset


def test_what_is_written_is_a_function_of_the_chain() -> None:
    cluster = unsealed()
    before = cluster.batches(A)
    cluster.run(seal(ROLL, cluster.view(A)))
    for name in sealed_names(cluster):
        path = A.folder + name.index
        index, _ = envelope.decode(cluster.objects[path], SegmentIndex, path)
        check_index(index, name, path)
        inside = [s for s in before if name.base_offset <= s.record.base_offset < name.end_offset]
        state = replay(
            PartitionState.empty(A),
            [s for s in before if s.record.base_offset < name.end_offset],
        )
        assert index.last_digest == inside[-1].digest
        assert index.last_stable_offset == state.last_stable_offset
        assert [entry.base_offset for entry in index.entries] == [s.record.base_offset for s in inside]
        snapshot = cluster.objects[A.folder + f"{name.end_offset:020d}.snapshot"]
        assert snapshot == envelope.encode(to_snapshot(state))
        aborts = [s for s in inside if s.record.kind == "abort" and s.record.first_offset >= 0]
        assert index.aborted_txns == len(aborts)
        path = A.folder + name.txnindex
        if aborts:
            txn_index, _ = envelope.decode(cluster.objects[path], TxnIndex, path)
            check_txn_index(txn_index, name, path, expected=index.aborted_txns)
        else:
            assert path not in cluster.objects


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_no_reader_sees_a_difference(isolation: IsolationLevel) -> None:
    cluster = unsealed()
    before = cluster.read(A, isolation)
    cluster.run(seal(ROLL, cluster.view(A)))
    assert cluster.read(A, isolation) == before
    cluster.pass_ms(GRACE_MS)
    cluster.clean_tail(A)
    assert cluster.read(A, isolation) == before
    assert ("gone0" in before.values()) == (isolation == "read_uncommitted")
    assert {"s0", "s1", "x5", "y3"} <= set(before.values())


def requests_of_a_seal() -> int:
    cluster = unsealed()
    task = Task(cluster, seal(ROLL, cluster.view(A)))
    task.run()
    return task.count


@pytest.mark.parametrize("number", cases(range(1, requests_of_a_seal() + 1)))
@pytest.mark.parametrize("fault", ["crash", "crash after", "crash in flight", "applied", "lost", "late", "error"])
def test_at_any_request_it_may_fail_and_the_next_one_finishes(number: int, fault: Fault) -> None:
    cluster = unsealed()
    plain = cluster.read(A, "read_uncommitted")
    view = cluster.view(A)
    with suppress(DiedError, StorageError, OutcomeUnknownError):
        cluster.run(seal(ROLL, view), at(number, fault))
    assert cluster.read(A, "read_uncommitted") == plain
    cluster.run(seal(ROLL, cluster.view(A)))
    cluster.land()
    twin = unsealed()
    twin.run(seal(ROLL, twin.view(A)))
    assert sealed_names(cluster) == sealed_names(twin)
    assert cluster.read(A, "read_uncommitted") == plain
    cluster.check()


def test_two_at_once_in_every_interleaving_of_their_puts() -> None:
    expected = history(sealing=True).read(A)
    total = requests_of_a_seal()
    for pause in range(total):
        cluster = unsealed()
        first, second = (Task(cluster, seal(ROLL, cluster.view(A))) for _ in range(2))
        for _ in range(pause):
            first.step()
        second.run()
        first.run()
        assert first.result.walk == second.result.walk
        assert cluster.read(A) == expected
        cluster.check()


def test_a_segment_is_never_sealed_before_the_one_before_it() -> None:
    cluster = unsealed()
    view = cluster.view(A)
    task = Task(cluster, seal(ROLL, view))
    ends: list[int] = []
    while not task.done:
        pending = task.pending
        task.step()
        if isinstance(pending, PutIfAbsent) and pending.path.endswith(".index"):
            ends.append(cluster.view(A).sealed_end)
    assert ends == sorted(ends)
    assert len(ends) == 3


def test_an_old_view_lists_before_it_seals() -> None:
    cluster = unsealed()
    view = cluster.view(A)
    cluster.pass_ms(GRACE_MS // 10)
    task = Task(cluster, seal(ROLL, view))
    assert isinstance(task.pending, List)
    task.run()
    assert task.result.sealed_end == finished_segments(view)[-1][-1].record.end_offset


def test_nothing_to_seal_costs_nothing() -> None:
    cluster = history(sealing=True)
    view = cluster.view(A)
    cluster.requests.clear()
    assert cluster.run(seal(ROLL, view)) is view
    assert cluster.run(seal(ROLL, cluster.run(load(context(), B)))).tail == ()
    assert not any(isinstance(request, PutIfAbsent) for request in cluster.requests)


def test_an_append_stands_whatever_becomes_of_the_sealing() -> None:
    cluster = unsealed()
    view = cluster.view(A)
    after = cluster.run(seal_quietly(ROLL, view), lambda _, effect: "error" if isinstance(effect, WriteRows) else None)
    assert after is view


def test_internal_segments_have_no_rows_file() -> None:
    cluster = history()
    tp = state_partition(ROLL, "x")
    view = cluster.view(tp)
    assert len(view.walk) > 1
    for name in view.walk:
        path = tp.folder + name.index
        index, _ = envelope.decode(cluster.objects[path], SegmentIndex, path)
        check_index(index, name, path)
        assert index.files == ()
        assert all(entry.file is None for entry in index.entries)
    assert not any(path.startswith(tp.folder) and path.endswith(".parquet") for path in cluster.objects)
    expected = to_snapshot(view.state)
    cluster.pass_ms(GRACE_MS)
    cluster.clean_tail(tp)
    assert to_snapshot(cluster.state(tp)) == expected


def test_appends_go_on_while_somebody_seals() -> None:
    cluster = unsealed()
    process = Process(cluster, "z", ROLL)
    process.do(process.init())
    task = Task(cluster, seal(ROLL, cluster.view(A)))
    for number in range(4):
        task.step()
        process.do(process.send(A, f"z{number}"))
    task.run()
    process.do(process.commit())
    assert {"z0", "z1", "z2", "z3"} <= set(cluster.read(A).values())
    cluster.check()


# -- sealing beside transactions --------------------------------------------------------------------------------------


def sealed_by(cluster: Cluster, program: Any) -> list[str]:
    """Return the partitions whose segments a program seals."""
    before = set(cluster.objects)
    cluster.run(program)
    return sorted(path.rpartition("/")[0] for path in set(cluster.objects) - before if path.endswith(".index"))


def test_a_transaction_seals_one_of_the_partitions_that_it_fills() -> None:
    cluster = Cluster()
    process = Process(cluster, "x", rolling(8))
    process.do(process.init())
    tps = [TopicPartition("orders", number) for number in range(4)]

    def transaction() -> Any:
        for tp in tps:
            process.stage(tp, "a")
        yield from process.commit()

    sealed = [sealed_by(cluster, transaction()) for _ in range(24)]
    assert max(len(folders) for folders in sealed) == 1
    assert sum(len(folders) for folders in sealed) >= 2 * (len(tps) + 1)  # two segments of each, and of the table
    for tp in tps:
        assert len(cluster.read(tp)) == 24


def test_the_rows_of_a_transaction_are_visible_before_anything_is_sealed() -> None:
    cluster = Cluster()
    process = Process(cluster, "x", rolling(1))
    process.do(process.init())
    for word in ("a", "b"):
        process.stage(A, word)
        process.stage(B, word)
        task = process.start(process.commit())
        while not task.done:
            sealed = [path for path in cluster.objects if path.endswith(".snapshot")]
            task.step()
            if [path for path in cluster.objects if path.endswith(".snapshot")] != sealed:
                assert (list(cluster.read(A).values())[-1], list(cluster.read(B).values())[-1]) == (word, word)
        _ = task.result


def test_rows_of_a_segment_are_written_by_the_producer_that_began_the_next_one() -> None:
    cluster = Cluster()
    x, y = Process(cluster, "x", ROLL), Process(cluster, "y", ROLL)

    def files_of(process: Process) -> int:
        """Return how many files of rows a transaction of this process writes."""
        task = process.start(process.commit())
        written = 0
        while not task.run(until=lambda effect: isinstance(effect, WriteRows)).done:
            written += 1
            task.step()
        _ = task.result
        return written

    def indexes() -> int:
        return sum(path.startswith(A.folder) and path.endswith(".index") for path in cluster.objects)

    for process in (x, y):
        process.do(process.init())
    for process in (x, y, x, y):
        process.stage_inline(A, "a")
        if process is y and len(cluster.batches(A)) == 3:
            # Its record begins the second segment, and it dies before it seals the first one.
            y.start(y.commit()).run(until=lambda effect: isinstance(effect, WriteRows))
        else:
            assert files_of(process) == 0
    for _ in range(2):
        x.stage_inline(A, "b")
        assert files_of(x) == 0  # x leaves the first segment to y
    assert indexes() == 0
    x.stage_inline(A, "c")
    assert files_of(x) == 2  # the record of x begins the third segment, and both others are sealed
    assert indexes() == 2
    assert list(cluster.read(A).values()) == ["a", "a", "a", "a", "b", "b", "c"]


def test_a_segment_of_a_dead_producer_is_sealed_when_there_is_another() -> None:
    cluster = Cluster()
    producers = {name: Process(cluster, name, ROLL) for name in "xyz"}
    for process in producers.values():
        process.do(process.init())
    for name in "xxxyxxzx":
        process = producers[name]
        process.stage_inline(A, name)
        task = process.start(process.commit())
        if name != "x":
            # Its record begins a segment, and it dies before it seals the one before.
            task.run(until=lambda effect: isinstance(effect, WriteRows))
        else:
            _ = task.run().result
    assert [len(each) for each in finished_segments(producers["x"].views[A])] == [3]
    assert sum(path.startswith(A.folder) and path.endswith(".index") for path in cluster.objects) == 1


def test_a_segment_is_left_to_its_producer_only_for_some_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("txlog.protocol.seal.LEFT_RECORDS", 3)
    cluster = Cluster()
    x, y = Process(cluster, "x", rolling(5)), Process(cluster, "y", rolling(5))
    for process in (x, y):
        process.do(process.init())
    found = []
    for process in (x, x, x, x, x, y, x, x):
        process.stage_inline(A, "a")
        task = process.start(process.commit())
        if process is y:
            # Its record begins the second segment, and it dies before it seals the first one.
            assert not task.run(until=lambda effect: isinstance(effect, WriteRows)).done
        else:
            _ = task.run().result
        found.append(sum(path.startswith(A.folder) and path.endswith(".index") for path in cluster.objects))
    assert found == [0, 0, 0, 0, 0, 0, 0, 1]
    assert list(cluster.read(A).values()) == ["a"] * 8


def test_a_segment_is_not_left_to_a_record_without_a_producer() -> None:
    cluster = Cluster()
    process = Process(cluster, "x", ROLL)
    process.do(process.init())
    for number in range(4):
        if number == 3:
            cluster.run(append_log_start(ROLL, {}, A, 1))
            assert [len(each) for each in finished_segments(cluster.view(A))] == [3]
        process.stage_inline(A, "a")
        process.do(process.commit())
    assert [(name.base_offset, name.end_offset) for name in sealed_names(cluster)] == [(0, 3)]


def test_a_tail_that_is_too_long_is_sealed_at_once() -> None:
    cluster = Cluster()
    process = Process(cluster, "x", rolling(1))
    process.do(process.init())
    tps = [TopicPartition("orders", number) for number in range(3)]
    for _ in range(6):
        for tp in tps:
            process.stage(tp, "a")
        process.do(process.commit())
        assert max(len(finished_segments(process.views[tp])) for tp in tps) < 2
