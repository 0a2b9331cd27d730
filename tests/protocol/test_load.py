"""How does a process open a partition cold and follow it warm, and what counts as damage (PROTOCOL.md, R5, R7)?"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from tests.effort import examples
from tests.protocol.harness import GRACE_MS, A, B, Cluster, Process, Task, at, context, is_put, measure, rolling
from txlog.core import envelope, names
from txlog.core.effects import Effect, Get, List
from txlog.core.names import SegmentName
from txlog.core.records import Boundary, Clean
from txlog.core.snapshot_state import to_snapshot
from txlog.errors import CorruptLogError, CorruptRecordError, MissingObjectError, StorageError
from txlog.protocol.append import append_log_start
from txlog.protocol.load import MAX_MS_BY_NAME, MAX_SLOTS_BY_NAME, gather_fresh_views, load, refresh
from txlog.protocol.seal import seal
from txlog.protocol.table import state_partition


def filled(batches: int = 5, per_segment: int = 2) -> Cluster:
    """Fill `orders-0` with one-row batches of an idempotent producer, and seal all segments except the active one."""
    cluster = Cluster()
    process = Process(cluster, ctx=rolling(per_segment))
    process.do(process.idempotent())
    for number in range(batches):
        process.do(process.send(A, f"w{number}"))
    return cluster


def paths(requests: list[Effect]) -> list[str]:
    return [getattr(request, "path", "") or f"LIST {getattr(request, 'prefix', '')}" for request in requests]


# -- cold -------------------------------------------------------------------------------------------------------------


def test_an_empty_partition() -> None:
    view, cost = measure(Cluster(), load(context(), A))
    assert (view.state.next_offset, view.state.last_stable_offset, view.sealed_end, view.walk) == (0, 0, 0, ())
    assert (cost.lists, cost.gets) == (1, 0)


def test_one_list_then_everything_in_one_round() -> None:
    cluster = filled(5)
    clean = Clean(number=3, runs=(), created_at=1)
    cluster.objects[A.folder + names.clean_name(3)] = envelope.encode(clean)
    view, cost = measure(cluster, load(context(), A))
    assert (cost.lists, cost.gets, cost.rounds) == (1, 3, 2)  # .clean, snapshot, one batch
    assert [stored.record.base_offset for stored in view.tail] == [4]
    assert view.walk == (SegmentName(0, 2, 0), SegmentName(2, 4, 0))
    assert (view.sealed_end, view.state.next_offset) == (4, 5)


def test_a_snapshot_without_its_index_is_not_the_sealed_end() -> None:
    cluster = filled(5)
    del cluster.objects[A.folder + SegmentName(2, 4, 0).index]
    view = cluster.view(A)
    assert view.sealed_end == 2
    assert [stored.record.base_offset for stored in view.tail] == [2, 3, 4]


def test_a_lost_snapshot_is_made_up_for_by_an_older_one() -> None:
    cluster = filled(7)
    expected = to_snapshot(cluster.state(A))
    del cluster.objects[A.folder + names.snapshot_name(6)]
    view = cluster.view(A)
    assert to_snapshot(view.state) == expected
    assert view.sealed_end == 6


def test_records_below_the_boundary_do_not_exist() -> None:
    cluster = filled(5)
    ghost = cluster.objects[A.folder + names.batch_name(1)]
    assert cluster.clean_tail(A) == 4
    before = to_snapshot(cluster.state(A))
    cluster.objects[A.folder + names.batch_name(1)] = ghost
    cluster.objects[A.folder + names.batch_name(3)] = b"garbage"
    assert to_snapshot(cluster.state(A)) == before


def test_names_that_are_not_ours_are_skipped() -> None:
    cluster = filled(3)
    expected = cluster.view(A)
    for name in ("README", "4.batch", f"{7:020d}.batch.tmp", f"{9:019d}.batch", f"{4:020d}-{2:020d}-0.index", "rows/x"):
        cluster.objects[A.folder + name] = b"?"
    assert cluster.view(A) == expected


def test_a_list_that_missed_a_name_is_made_up_for() -> None:
    """A LIST of several pages may miss a new name, although later names of the same pages follow it."""
    cluster = filled(4, per_segment=100)
    task = Task(cluster, load(context(), A))
    hidden = cluster.objects.pop(A.folder + names.batch_name(2))
    task.step()
    cluster.objects[A.folder + names.batch_name(2)] = hidden
    task.run()
    assert task.result.state.next_offset == 4


def test_objects_that_vanish_are_looked_for_again() -> None:
    """Maintenance deletes objects between the LIST and the GETs."""
    cluster = filled(5)
    task = Task(cluster, load(context(), A))
    task.step()
    process = Process(cluster, ctx=rolling(1))
    process.do(process.idempotent())
    process.do(process.send(A, "x"))
    process.do(process.send(A, "y"))
    cluster.clean_tail(A)
    for offset in (2, 4):
        del cluster.objects[A.folder + names.snapshot_name(offset)]
    task.run()
    assert task.result.state.next_offset == 7


@pytest.mark.parametrize("offset", [1, 3])
def test_what_stays_missing_is_damage_and_is_named(offset: int) -> None:
    cluster = filled(5, per_segment=100)
    path = A.folder + names.batch_name(offset)
    del cluster.objects[path]
    with pytest.raises(MissingObjectError, match=path):
        cluster.run(load(context(max_loads=3), A))
    assert sum(isinstance(request, List) for request in cluster.requests[-20:]) == 3


def test_a_missing_last_record_is_the_end() -> None:
    # the format cannot detect this gap: only the writer that got the acknowledgement knows that the record existed
    cluster = filled(5, per_segment=100)
    del cluster.objects[A.folder + names.batch_name(4)]
    assert cluster.state(A).next_offset == 4


def test_a_store_that_fails_is_not_an_empty_one() -> None:
    cluster = filled(5)
    for fails in (1, 2, 3):
        with pytest.raises(StorageError):
            cluster.run(load(context(), A), at(fails, "error"))


def test_a_swapped_or_damaged_object_is_named() -> None:
    whole = filled(5)
    whole.objects[A.folder + names.clean_name(0)] = envelope.encode(Clean(number=0, runs=(), created_at=1))
    other = filled(5)
    other.now_ms += 1
    for name in (names.batch_name(4), names.snapshot_name(4), names.clean_name(0)):
        path = A.folder + name
        for bad in (b"", whole.objects[path][:-2], whole.objects[path].replace(b'"version":1', b'"version":7')):
            cluster = whole.copy()
            cluster.objects[path] = bad
            with pytest.raises(CorruptLogError, match=path):
                cluster.run(load(context(), A))
    cluster = whole.copy()
    cluster.objects[A.folder + names.snapshot_name(4)] = whole.objects[A.folder + names.snapshot_name(2)]
    with pytest.raises(CorruptRecordError, match="it says offset 2"):
        cluster.run(load(context(), A))
    cluster.objects[A.folder + names.clean_name(0)] = envelope.encode(Clean(number=1, runs=(), created_at=1))
    with pytest.raises(CorruptRecordError, match="holds version 1"):
        cluster.run(load(context(), A))


def test_a_sealed_end_inside_a_batch_is_damage() -> None:
    cluster = Cluster()
    process = Process(cluster, ctx=rolling(100))
    process.do(process.idempotent())
    process.do(process.send(A, "a", "b", "c"))
    cluster.objects[A.folder + SegmentName(0, 2, 0).index] = b"?"
    with pytest.raises(CorruptLogError, match="sealed up to 2, but a batch ends at 3"):
        cluster.run(load(context(), A))


def test_an_internal_chain_begins_at_the_boundary() -> None:
    """The snapshot contains everything below the boundary. Maintenance may delete indexes and older snapshots (C10)."""
    ctx = rolling(2)
    cluster = Cluster()
    for number in range(9):
        process = Process(cluster, f"id{number}", ctx)
        process.do(process.init())
    tp = state_partition(ctx, "id0")
    expected = to_snapshot(cluster.state(tp))
    end = cluster.clean_tail(tp, ctx)
    for path in list(cluster.objects):
        needed = tp.folder + names.snapshot_name(end)
        if path.startswith(tp.folder) and path.endswith((".index", ".snapshot")) and path != needed:
            del cluster.objects[path]
    view = cluster.view(tp)
    assert (view.walk, view.sealed_end, to_snapshot(view.state)) == ((), end, expected)
    process = Process(cluster, "id0", ctx)
    assert process.do(process.init()).producer_epoch == 1


def test_a_walk_begins_at_the_log_start() -> None:
    cluster = filled(7)
    cluster.run(append_log_start(context(), {}, A, 3))
    del cluster.objects[A.folder + SegmentName(0, 2, 0).index]
    assert [name.base_offset for name in cluster.view(A).walk] == [2, 4]
    del cluster.objects[A.folder + SegmentName(2, 4, 0).index]
    with pytest.raises(MissingObjectError, match="begins at offset 3"):
        cluster.run(load(context(max_loads=2), A))


# -- warm -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("new", [0, 1, 3])
def test_tailing_costs_one_get_more_than_there_are_new_records(new: int) -> None:
    cluster = filled(2, per_segment=100)
    view = cluster.view(A)
    process = Process(cluster)
    process.do(process.idempotent())
    for number in range(new):
        process.do(process.send(A, f"n{number}"))
    refreshed, cost = measure(cluster, refresh(context(), view))
    assert (cost.gets, cost.lists) == (new + 1, 0)
    assert refreshed.state.next_offset == 2 + new
    assert refreshed.listed_at == view.listed_at  # a GET never renews a view


@pytest.mark.parametrize(("per_segment", "new"), [(8, 60), (100, 60), (20, 15), (8, 37)])
def test_a_process_far_behind_reads_only_what_is_new(per_segment: int, new: int) -> None:
    """It finds the same as one that opens the partition, from names after its own tail."""
    cluster = filled(30, per_segment)
    view = cluster.view(A)
    process = Process(cluster, ctx=rolling(per_segment))
    process.do(process.idempotent())
    for number in range(new):
        process.do(process.send(A, f"n{number}"))
    refreshed, cost = measure(cluster, refresh(context(), view))
    loaded = cluster.view(A)
    assert refreshed.state == loaded.state
    assert refreshed.listed_at == view.listed_at  # only a LIST of all names shows the boundary
    if loaded.sealed_end > 30 + MAX_SLOTS_BY_NAME:
        assert (refreshed.walk, refreshed.base, refreshed.tail) == (loaded.walk, loaded.base, loaded.tail)
        new = MAX_SLOTS_BY_NAME + 1 + len(loaded.tail)
    assert (cost.lists, cost.gets) == (1, new)


def catching_up() -> tuple[Cluster, Task]:
    """Return a process that is 40 records behind, right before its LIST of the new names."""
    cluster = filled(2, per_segment=100)
    view = cluster.view(A)
    process = Process(cluster)
    process.do(process.idempotent())
    for number in range(40):
        process.do(process.send(A, f"n{number}"))
    task = Task(cluster, refresh(context(), view))
    task.run(until=lambda effect: isinstance(effect, List))
    return cluster, task


def test_records_that_were_read_by_new_names_after_a_sleep_do_not_count() -> None:
    """They may be ghosts, which look like damage (R7)."""
    cluster, task = catching_up()
    task.step()
    cluster.pass_ms(GRACE_MS)
    path = A.folder + names.batch_name(20)
    real, cluster.objects[path] = cluster.objects[path], b"{}"
    task.run(until=lambda effect: isinstance(effect, List))
    cluster.objects[path] = real
    task.run()
    assert task.result == cluster.run(load(context(), A))


def test_a_list_of_new_names_that_missed_one_is_made_up_for() -> None:
    cluster, task = catching_up()
    hidden = cluster.objects.pop(A.folder + names.batch_name(20))
    task.step()
    cluster.objects[A.folder + names.batch_name(20)] = hidden
    task.run()
    assert task.result.state.next_offset == 42


def test_a_process_that_is_no_faster_than_the_writers_ends() -> None:
    """New records arrive as fast as it reads. If it only followed names, it would never return the end of the log."""
    cluster = filled(2, per_segment=100)
    process = Process(cluster)
    process.do(process.idempotent())
    task = Task(cluster, refresh(context(), cluster.view(A)))
    lists = 0
    for number in range(1000):
        if task.done:
            break
        lists += isinstance(task.pending, List)
        if isinstance(task.pending, Get):
            process.do(process.send(A, f"n{number}"))
        task.step()
    assert lists == 1
    assert task.result.state.next_offset >= 2 + MAX_SLOTS_BY_NAME


def test_a_process_behind_a_slow_store_lists() -> None:
    """A call has only so much time. By name it would use up that time before it has read 64 records."""
    cluster = filled(2, per_segment=100)
    view = cluster.view(A)
    process = Process(cluster)
    process.do(process.idempotent())
    for number in range(MAX_SLOTS_BY_NAME):
        process.do(process.send(A, f"n{number}"))
    task = Task(cluster, refresh(context(), view))
    by_name = lists = 0
    while not task.done:
        lists += isinstance(task.pending, List)
        if isinstance(task.pending, Get) and not lists:
            by_name += 1
            cluster.pass_ms(MAX_MS_BY_NAME // 5)
        task.step()
    assert (lists, task.result.state.next_offset) == (1, 2 + MAX_SLOTS_BY_NAME)
    assert by_name <= 8  # and the look at the end of the view


@pytest.mark.parametrize(("age", "max_age", "lists"), [(0, None, 0), (1, None, 0), (0, 0, 1), (10, 10, 1), (9, 10, 0)])
def test_an_old_view_lists(age: int, max_age: int | None, lists: int) -> None:
    cluster = filled(2)
    view = cluster.view(A)
    cluster.pass_ms(age)
    _, cost = measure(cluster, refresh(context(), view, max_age))
    assert cost.lists == lists


def test_a_tenth_of_the_grace_is_old() -> None:
    cluster = filled(2)
    for age, lists in ((GRACE_MS // 10 - 1, 0), (GRACE_MS // 10, 1)):
        view = cluster.view(A)
        cluster.pass_ms(age)
        assert measure(cluster, refresh(context(), view))[1].lists == lists


def test_a_deleted_tail_is_not_the_end_of_the_log() -> None:
    """A reader that slept during its GET looks for a boundary before it accepts a missing slot as the end (R7)."""
    for ghost in (False, True):
        cluster = filled(1, per_segment=2)
        view = cluster.view(A)
        task = Task(cluster, refresh(context(), view))
        assert isinstance(task.pending, Get)
        stale = Process(cluster)
        stale.do(stale.idempotent())
        stale.views = {A: view}
        put = stale.start(stale.send(A, "ghost")).run(until=is_put("orders"))
        process = Process(cluster, ctx=rolling(2))
        process.do(process.idempotent())
        for number in range(5):
            process.do(process.send(A, f"n{number}"))
        cluster.pass_ms(GRACE_MS)
        cluster.clean_tail(A)
        if ghost:
            put.step()
        task.run()
        assert task.result.state.next_offset == 6
        assert task.result.boundary == 4


@pytest.mark.parametrize("ghost_at", [0, 2])
def test_opening_that_slept_between_its_list_and_its_gets_lists_again(ghost_at: int) -> None:
    """After the LIST a slot was deleted, and a stale writer created it again.

    In the middle of the chain it would look like damage. At the end of the listed chain it would fit.
    """
    cluster = filled(ghost_at)
    stale = Process(cluster)
    stale.do(stale.idempotent())
    stale.views = {A: cluster.view(A)}
    put = stale.start(stale.send(A, "ghost")).run(until=is_put("orders"))
    process = Process(cluster, ctx=rolling(2))
    process.do(process.idempotent())
    process.do(process.send(A, "o0"))
    if not ghost_at:
        process.do(process.send(A, "o1"))
    opening = Task(cluster, load(context(), A))
    opening.step()
    for number in range(2, 6):
        process.do(process.send(A, f"o{number}"))
    cluster.pass_ms(GRACE_MS)
    cluster.clean_tail(A)
    put.step()
    opening.run()
    assert opening.result == cluster.run(load(context(), A))
    assert opening.result.boundary > ghost_at


def test_an_opening_that_never_is_quick_enough_is_retriable() -> None:
    cluster = filled(3, per_segment=100)
    task = Task(cluster, load(context(max_loads=3), A))
    while not task.done:
        task.step()
        cluster.pass_ms(GRACE_MS // 10)
    with pytest.raises(StorageError, match="8640000 ms"):
        _ = task.result


def test_gathered_views_are_fresh_and_the_others_stay() -> None:
    cluster = filled(2)
    view = cluster.view(B)
    views = cluster.run(gather_fresh_views(context(), {B: view}, [A]))
    assert views[B] is view
    assert views[A].state.next_offset == 2
    assert cluster.run(gather_fresh_views(context(), {}, [])) == {}


# -- any history, sealed and cleaned anywhere, gives the same partition -----------------------------------------------

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(0, 1), st.integers(1, 3)),
        st.tuples(st.just("end"), st.integers(0, 1), st.booleans()),
        st.tuples(st.just("plain"), st.just(0), st.just(0)),
        st.tuples(st.just("maintain"), st.integers(0, 1), st.just(0)),
    ),
    max_size=25,
)


def play(script: list[tuple[str, int, Any]], per_segment: int, maintained: bool) -> Cluster:
    cluster = Cluster()
    ctx = rolling(per_segment)
    plain = Process(cluster, ctx=ctx)
    plain.do(plain.idempotent())
    producers = [Process(cluster, name, ctx) for name in ("x", "y")]
    for process in producers:
        process.do(process.init(timeout_ms=900_000))
    for number, (step, who, argument) in enumerate(script):
        process = producers[who]
        if step == "send":
            process.do(process.send(A, *(f"{number}.{row}" for row in range(argument))))
        elif step == "end" and process.txn is not None and process.txn.state == "ONGOING":
            process.do(process.end(argument))
        elif step == "plain":
            plain.do(plain.send(A, f"{number}"))
        elif step == "maintain":
            cluster.pass_ms(GRACE_MS)
            if maintained:
                cluster.run(seal(ctx, cluster.view(A)))
                cluster.clean_tail(A, ctx)
    return cluster


@given(STEPS, st.integers(1, 4))
@examples(60)
def test_cleaning_the_tail_changes_nothing(script: list[tuple[str, int, Any]], per_segment: int) -> None:
    kept, cleaned = play(script, per_segment, maintained=False), play(script, per_segment, maintained=True)
    one, two = kept.state(A), cleaned.state(A)
    assert one.next_offset == two.next_offset
    assert one.last_stable_offset == two.last_stable_offset
    assert [(e.producer_id, e.last_sequence, e.txn_first_offset) for e in one.producers.values()] == [
        (e.producer_id, e.last_sequence, e.txn_first_offset) for e in two.producers.values()
    ]
    for isolation in ("read_committed", "read_uncommitted"):
        assert kept.read(A, isolation) == cleaned.read(A, isolation)
    kept.check(settled=False)
    cleaned.check(settled=False)


def test_a_boundary_without_a_snapshot_there_is_damage() -> None:
    cluster = filled(5)
    cluster.clean_tail(A)
    del cluster.objects[A.folder + names.snapshot_name(4)]
    with pytest.raises(MissingObjectError, match=names.batch_name(2)):
        cluster.run(load(context(max_loads=2), A))


def test_the_highest_boundary_counts() -> None:
    cluster = filled(7)
    for offset in (2, 6, 4):
        path = A.folder + names.boundary_name(offset)
        cluster.objects[path] = envelope.encode(Boundary(offset=offset, created_at=1))
    assert cluster.view(A).boundary == 6


@pytest.mark.parametrize("passes_ms", [0, GRACE_MS // 10])
def test_what_an_opening_lacks_counts_only_if_its_list_is_young(passes_ms: int) -> None:
    """Maintenance may delete a slot after the LIST showed it.

    A missing slot is damage only if there was no time for that.
    """
    cluster = filled(3, per_segment=100)
    answer = cluster._answer

    def lacking(effect: Effect) -> Any:
        if effect != Get(A.folder + names.batch_name(1)):
            return answer(effect)
        cluster.pass_ms(passes_ms)
        return None

    cluster._answer = lacking  # type: ignore[method-assign]
    with pytest.raises(StorageError if passes_ms else MissingObjectError):
        cluster.run(load(context(max_loads=3), A))
