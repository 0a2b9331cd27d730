"""One record into one slot: three outcomes of a conditional write, and races that the tests step by hand.

A boundary may also overtake a writer (PROTOCOL.md, W10 to W15).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from lab.simulate.cluster import Fault
from tests.protocol.harness import (
    GRACE_MS,
    HOUR_MS,
    PRODUCER_IDLE_MS,
    A,
    B,
    Cluster,
    Process,
    context,
    is_put,
    nth_put,
    rolling,
)
from txlog.core import names
from txlog.core.append_rules import BatchDraft
from txlog.core.effects import Effect, Get, List, PutIfAbsent, Sleep
from txlog.core.records import StagedPart
from txlog.errors import (
    CoordinatorContentionError,
    CorruptRecordError,
    InvalidProducerEpochError,
    InvalidRequestError,
    InvalidTxnStateError,
    OutcomeUnknownError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    RecordTooLargeError,
    StorageError,
)
from txlog.protocol import append, expiry
from txlog.protocol.load import MAX_SLOTS_BY_NAME
from txlog.protocol.table import state_partition

change = msgspec.structs.replace
SLOT_0 = A.folder + names.batch_name(0)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def writer(cluster: Cluster, **kwargs: Any) -> Process:
    process = Process(cluster, **kwargs)
    process.do(process.idempotent())
    return process


def requests(cluster: Cluster, program: Any, process: Process) -> list[str]:
    cluster.requests.clear()
    process.do(program)
    return [f"{type(request).__name__} {getattr(request, 'path', '')}".strip() for request in cluster.requests]


# -- the three outcomes -----------------------------------------------------------------------------------------------


def test_written_is_one_request_for_a_warm_writer(cluster: Cluster) -> None:
    process = writer(cluster)
    process.do(process.send(A, "a"))
    assert requests(cluster, process.send(A, "b"), process) == [f"PutIfAbsent {A.folder}{names.batch_name(1)}"]


@pytest.mark.parametrize("fault", ["applied", "lost", "late", "hidden retry"])
@pytest.mark.parametrize("times", [1, 3])
def test_an_unknown_write_is_settled_in_its_own_slot(cluster: Cluster, fault: Fault, times: int) -> None:
    process = writer(cluster, faults=nth_put(1, fault, "orders", times=times))
    result = process.do(process.send(A, "a", "b"))
    assert (result.base_offset, result.duplicate) == (0, False)
    process.do(process.send(A, "c"))
    cluster.land()
    assert cluster.read(A) == {0: "a", 1: "b", 2: "c"}
    cluster.check()


def test_a_write_that_lands_between_the_put_and_the_look_is_found(cluster: Cluster) -> None:
    process = writer(cluster)
    task = process.start(process.send(A, "a"))
    task.run(until=is_put("orders"))
    task.step("late")
    task.run(until=lambda effect: isinstance(effect, Get))
    cluster.land()
    task.run()
    assert task.result.base_offset == 0
    assert cluster.read(A) == {0: "a"}


def test_a_write_that_lands_after_the_look_is_not_doubled(cluster: Cluster) -> None:
    process = writer(cluster)
    task = process.start(process.send(A, "a"))
    task.run(until=is_put("orders")).step("late")
    task.run(until=is_put("orders"))
    cluster.land()
    task.run()
    assert task.result.base_offset == 0
    assert cluster.kinds(A) == "d"


@pytest.mark.parametrize("lands", [False, True])
def test_what_cannot_be_settled_is_unknown_and_the_same_call_joins_it(cluster: Cluster, lands: bool) -> None:
    ctx = context(max_settles=3)
    process = writer(cluster, ctx=ctx, faults=nth_put(1, "late", "orders", times=3))
    draft = process.draft(A, "a")
    with pytest.raises(OutcomeUnknownError, match=SLOT_0):
        process.do(process.append(A, draft))
    if lands:
        cluster.land()
    result = process.do(process.append(A, draft))
    assert (result.base_offset, result.duplicate) == (0, lands)
    cluster.land()
    assert cluster.read(A) == {0: "a"}


def test_a_write_that_lands_after_the_call_gave_up_meets_its_own_retry(cluster: Cluster) -> None:
    process = writer(cluster, ctx=context(max_settles=1), faults=nth_put(1, "late", "orders"))
    draft = process.draft(A, "a")
    with pytest.raises(OutcomeUnknownError):
        process.do(process.append(A, draft))
    task = process.start(process.append(A, draft)).run(until=is_put("orders"))
    cluster.land()
    task.run()
    assert (task.result.base_offset, task.result.duplicate) == (0, True)
    assert cluster.kinds(A) == "d"


def test_a_store_that_surely_refused_is_retriable_and_nothing_was_written(cluster: Cluster) -> None:
    process = writer(cluster, faults=nth_put(1, "error", "orders"))
    with pytest.raises(StorageError):
        process.do(process.send(A, "a"))
    assert cluster.kinds(A) == ""


@pytest.mark.parametrize("settled", [Get, List, PutIfAbsent])
def test_a_failure_while_settling_is_never_taken_for_not_written(cluster: Cluster, settled: type[Effect]) -> None:
    """The PUT was applied without a reply, and then every request to the store fails.

    A StorageError would mean that nothing was decided, and a client may then delete the batch's files.
    """
    process = writer(cluster, ctx=context(max_settles=3))
    process.do(process.send(A, "a"))
    cluster.pass_ms(5 * HOUR_MS)  # the view is old, so the writer also makes the LIST for boundaries
    process.do(process.send(B, "b"))
    task = process.start(process.append(A, process.draft(A, "c")))
    task.run(until=is_put("orders/0"))
    cluster.pass_ms(5 * HOUR_MS)
    task.step("applied")
    while not task.done:
        task.step("error" if isinstance(task.pending, settled) else None)
    if settled is PutIfAbsent:
        assert task.result.base_offset == 1
    else:
        with pytest.raises(OutcomeUnknownError):
            _ = task.result
    assert cluster.read(A) == {0: "a", 1: "c"}


def test_a_passing_failure_while_settling_is_settled(cluster: Cluster) -> None:
    process = writer(cluster)
    task = process.start(process.append(A, process.draft(A, "a"))).run(until=is_put("orders"))
    task.step("applied")
    task.step("error")
    task.run()
    assert task.result.base_offset == 0
    assert cluster.read(A) == {0: "a"}


@pytest.mark.parametrize("reads", [1, 2, 3])
def test_damage_while_settling_is_read_again_and_then_unknown(cluster: Cluster, reads: int) -> None:
    """The PUT's reply was lost, and the slot comes back damaged.

    CorruptRecordError would mean that the batch is not there.
    """
    process = writer(cluster)
    task = process.start(process.append(A, process.draft(A, "a"))).run(until=is_put("orders"))
    task.step("applied")
    whole = cluster.objects[SLOT_0]
    cluster.objects[SLOT_0] = whole[:20] + b"?" + whole[21:]
    seen = 0
    while not task.done:
        if isinstance(task.pending, Get):
            seen += 1
            if seen > reads:
                cluster.objects[SLOT_0] = whole
        task.step()
    if reads < 3:
        assert task.result.base_offset == 0
    else:
        with pytest.raises(OutcomeUnknownError, match=f"{SLOT_0}: .* damaged"):
            _ = task.result
    cluster.objects[SLOT_0] = whole
    assert cluster.read(A) == {0: "a"}


# -- races ------------------------------------------------------------------------------------------------------------


def test_the_loser_takes_the_next_slot(cluster: Cluster) -> None:
    first, second = writer(cluster), writer(cluster)
    slow = second.start(second.send(A, "late")).run(until=is_put("orders"))
    first.do(first.send(A, "early", "bird"))
    slow.run()
    assert slow.result.base_offset == 2
    assert cluster.read(A) == {0: "early", 1: "bird", 2: "late"}


def test_every_interleaving_of_two_appends() -> None:
    """Step all schedules of two writers with two batches each: 0 and 1 name the writer that makes the next request."""
    schedules: list[tuple[int, ...]] = [()]
    finished = 0
    while schedules:
        schedule = schedules.pop()
        world = Cluster()
        writers = [writer(world), writer(world)]

        def script(process: Process, name: str) -> Any:
            for number in range(2):
                yield from process.send(A, f"{name}{number}")

        tasks = [each.start(script(each, name)) for each, name in zip(writers, "pq", strict=True)]
        for who in schedule:
            tasks[who].step()
        alive = [who for who in (0, 1) if not tasks[who].done]
        if len(schedule) < 14 and alive:
            schedules += [(*schedule, who) for who in alive]
            continue
        for task in tasks:
            task.run()
        finished += 1
        words = list(world.read(A).values())
        assert sorted(words) == ["p0", "p1", "q0", "q1"]
        assert words.index("p0") < words.index("p1")
        assert words.index("q0") < words.index("q1")
    assert finished > 40


def test_of_writers_that_race_one_always_wins(cluster: Cluster) -> None:
    """Invariant 15: in lock step, each round of PUTs adds one batch to the log, and every writer succeeds in the
    end."""
    writers = [writer(cluster) for _ in range(5)]
    tasks = [each.start(each.send(A, str(number))) for number, each in enumerate(writers)]
    rounds = 0
    while any(not task.done for task in tasks):
        for task in tasks:
            if not task.done:
                task.run(until=is_put("orders"))
        before = len(cluster.batches(A))
        for task in tasks:
            if not task.done:
                task.step()
        rounds += 1
        assert len(cluster.batches(A)) == before + 1
    assert rounds == 5
    assert sorted(cluster.read(A).values()) == ["0", "1", "2", "3", "4"]


def test_a_writer_far_behind_lists_and_does_not_follow_each_record(cluster: Cluster) -> None:
    """It was idle while others wrote.

    By name it would never reach the end beside writers that are as fast (invariant 15).
    """
    idle, other = writer(cluster, ctx=rolling(10)), writer(cluster, ctx=rolling(10))
    idle.do(idle.send(A, "first"))
    for number in range(20 * MAX_SLOTS_BY_NAME):
        other.do(other.send(A, f"n{number}"))
        other.do(other.seal(A))
    made = requests(cluster, idle.send(A, "second"), idle)
    assert sum(each.startswith("List") for each in made) == 1
    assert len(made) <= MAX_SLOTS_BY_NAME + 2 * 10 + 10


def test_losing_for_ever_ends_in_contention(cluster: Cluster) -> None:
    process, rival = writer(cluster, ctx=context(max_races=4)), writer(cluster)
    task = process.start(process.send(A, "mine"))
    number = 0
    while not task.done:
        task.run(until=is_put("orders"))
        if not task.done:
            rival.do(rival.send(A, f"r{number}"))
            number += 1
            task.step()
    with pytest.raises(CoordinatorContentionError, match="lost 4 races"):
        _ = task.result


def test_a_loser_takes_the_next_slot_at_once_and_then_pauses_briefly(cluster: Cluster) -> None:
    process, rival = writer(cluster), writer(cluster)
    program = process.send(A, "mine")
    pauses: list[Sleep] = []

    def watched() -> Any:
        answer = None
        while True:
            try:
                effect = program.send(answer)
            except StopIteration as end:
                return end.value
            if isinstance(effect, Sleep):
                pauses.append(effect)
            answer = yield effect

    task = process.start(watched())
    for number in range(8):
        task.run(until=is_put("orders"))
        rival.do(rival.send(A, f"r{number}"))
        task.step()
    task.run()
    assert [pause.ms for pause in pauses] == [1, 2, 4, 8, 8, 8, 8], "none after the first lost slot"
    assert all(pause.full_jitter for pause in pauses)


def test_a_refusal_after_a_lost_slot_is_judged_on_the_fresh_tail(cluster: Cluster) -> None:
    """W15: the record of the lost slot shows that this epoch is over. The end of the tail is looked at all the same."""
    old, new = Process(cluster), Process(cluster)
    old.do(old.init())
    old.do(old.send(A, "a"))
    slow = old.start(old.send(A, "zombie")).run(until=is_put("orders"))
    new.do(new.init())
    slow.step()
    asked = slow.count
    slow.run()
    assert slow.count - asked == 2, "the record of the lost slot, and the end after it"
    with pytest.raises(InvalidProducerEpochError, match="epoch 0"):
        _ = slow.result


def test_a_zombie_cannot_slip_in_between_the_check_and_the_append(cluster: Cluster) -> None:
    """The check and the append are one step (W10).

    The old instance has checked. Before its PUT, the marker of the new instance takes the slot.
    """
    old, new = Process(cluster), Process(cluster)
    old.do(old.init())
    old.do(old.send(A, "a"))
    slow = old.start(old.send(A, "zombie")).run(until=is_put("orders"))
    new.do(new.init())
    slow.run()
    with pytest.raises(InvalidProducerEpochError, match="epoch 0"):
        _ = slow.result
    assert cluster.kinds(A) == "da"
    cluster.check()


# -- boundaries -------------------------------------------------------------------------------------------------------


def rolled_and_cleaned(cluster: Cluster, tp: Any = A, batches: int = 6) -> None:
    """Fill segments with another process and seal them; maintenance deletes their slots a day later."""
    other = writer(cluster, ctx=rolling(2))
    for number in range(batches):
        other.do(other.send(tp, f"o{number}"))
    cluster.pass_ms(GRACE_MS)
    assert cluster.clean_tail(tp) > 1
    assert tp.folder + names.batch_name(1) not in cluster.objects


def test_an_idle_writer_goes_on_after_its_tail_was_cleaned(cluster: Cluster) -> None:
    """Invariant 13: cleaning never makes a writer fail.

    The view is older than the grace, so the writer lists before it writes.
    """
    process = writer(cluster)
    process.do(process.send(A, "a"))
    rolled_and_cleaned(cluster)
    result = process.do(process.send(A, "b"))
    assert result.base_offset == 7
    assert cluster.read(A)[7] == "b"
    cluster.check()


def test_an_idle_writer_leaves_no_ghost_in_a_deleted_slot(cluster: Cluster) -> None:
    process = writer(cluster)
    process.do(process.send(A, "a"))
    rolled_and_cleaned(cluster)
    process.do(process.send(A, "b"))
    assert A.folder + names.batch_name(1) not in cluster.objects


def test_an_idle_transactional_writer_goes_on_too(cluster: Cluster) -> None:
    ctx = rolling(2)
    process = Process(cluster, ctx=ctx)
    process.do(process.init())
    process.do(process.send(A, "a"))
    process.do(process.commit())
    for number in range(6):
        neighbour = Process(cluster, f"n{number}", ctx=ctx)
        neighbour.do(neighbour.init())
        neighbour.do(neighbour.send(A, f"o{number}"))
        neighbour.do(neighbour.commit())
    state_tp = state_partition(ctx, "x")
    cluster.pass_ms(GRACE_MS)
    for tp in (A, state_tp):
        assert cluster.clean_tail(tp, ctx) > process.views[tp].state.next_offset
    process.do(process.send(A, "again"))
    process.do(process.commit())
    assert "again" in cluster.read(A).values()
    cluster.check()


def paused_in_its_put(process: Process, program: Any, part: str = "orders/0") -> Any:
    """Return a process that is paused between its decision and its PUT, so that its PUT will be stale."""
    return process.start(program).run(until=is_put(part))


def test_a_stale_put_is_not_acknowledged_and_is_tried_again(cluster: Cluster) -> None:
    """A paused writer creates a slot that was deleted (W14, invariants 2 and 14)."""
    process = writer(cluster)
    process.do(process.send(A, "a"))
    task = paused_in_its_put(process, process.send(A, "b"))
    rolled_and_cleaned(cluster)
    task.step()
    assert A.folder + names.batch_name(1) in cluster.objects  # the ghost
    task.run()
    assert task.result.base_offset == 7
    assert "b" in cluster.read(A).values()
    assert list(cluster.read(A).values()).count("b") == 1


def test_a_stale_put_that_had_landed_in_time_is_found_by_state(cluster: Cluster) -> None:
    """The first PUT was applied without a reply. Then the writer slept while its slot was sealed and deleted."""
    process = writer(cluster)
    process.do(process.send(A, "a"))
    task = paused_in_its_put(process, process.send(A, "b"))
    task.step("applied")
    rolled_and_cleaned(cluster)
    task.run()
    assert (task.result.base_offset, task.result.duplicate) == (1, True)
    assert list(cluster.read(A).values()).count("b") == 1


def test_a_failure_after_the_slot_is_gone_is_unknown_and_not_retriable(cluster: Cluster) -> None:
    """A retriable error means that nothing was decided.

    The client would send rows again that may have been in the log.
    """
    process = writer(cluster)
    process.do(process.send(A, "a"))
    task = paused_in_its_put(process, process.send(A, "b"))
    rolled_and_cleaned(cluster)
    for fault in (None, "error"):  # the LIST that shows the boundary, and the LIST that opens the partition
        task.run(until=lambda effect: isinstance(effect, List)).step(fault)
    task.run()
    with pytest.raises(OutcomeUnknownError):
        _ = task.result


def test_damage_met_after_the_slot_is_gone_is_unknown(cluster: Cluster) -> None:
    """Any other error would mean that the rows are certainly not in the log."""
    process = writer(cluster)
    process.do(process.send(A, "a"))
    task = paused_in_its_put(process, process.send(A, "b"))
    rolled_and_cleaned(cluster)
    for path in cluster.objects:
        if path.startswith(A.folder) and path.endswith(".snapshot"):
            cluster.objects[path] = b"garbage"
    task.run()
    with pytest.raises(OutcomeUnknownError) as caught:
        _ = task.result
    assert isinstance(caught.value.__cause__, CorruptRecordError)


def test_a_drawn_producer_that_the_fold_forgot_is_unknown(cluster: Cluster) -> None:
    """Below the boundary only the state decides, and a fold that does not know a drawn PID decides nothing (W15)."""
    process = writer(cluster)
    process.do(process.send(A, "a"))
    task = paused_in_its_put(process, process.send(A, "b"))
    task.step("applied")
    rolled_and_cleaned(cluster)
    cluster.pass_ms(PRODUCER_IDLE_MS)
    _, gone = cluster.run(expiry.expire_producers(context(), {}, A))
    assert process.pid in gone
    task.run()
    with pytest.raises(OutcomeUnknownError, match="open a new one"):
        _ = task.result


def test_a_drawn_producer_s_first_batch_that_the_fold_forgot_is_unknown(cluster: Cluster) -> None:
    process = writer(cluster)
    process.views = {A: cluster.view(A)}
    task = paused_in_its_put(process, process.send(A, "a"))
    task.step("applied")
    rolled_and_cleaned(cluster)
    cluster.pass_ms(PRODUCER_IDLE_MS)
    cluster.run(expiry.expire_producers(context(), {}, A))
    task.run()
    with pytest.raises(OutcomeUnknownError):
        _ = task.result
    assert list(cluster.read(A).values()).count("a") == 1


def test_an_out_of_order_batch_that_never_was_in_doubt_is_out_of_order(cluster: Cluster) -> None:
    process = writer(cluster)
    process.sequences[A] = 5
    with pytest.raises(OutOfOrderSequenceError):
        process.do(process.send(A, "a"))


def test_a_transactional_batch_in_doubt_is_vouched_for_by_the_table(cluster: Cluster) -> None:
    """The fold lacks the PID. The re-read of W21 shows this very ONGOING, so the first PUT never landed."""
    process = Process(cluster)
    process.do(process.init(timeout_ms=900_000))
    process.do(process.register(A))
    process.views = {**process.views, A: cluster.view(A)}
    task = paused_in_its_put(process, process.append(A, process.draft(A, "a")))
    rolled_and_cleaned(cluster)
    task.run()
    assert task.result.base_offset == 6
    process.do(process.commit())
    assert list(cluster.read(A).values()).count("a") == 1


def test_a_transition_in_doubt_is_decided_by_the_table(cluster: Cluster) -> None:
    """A PREPARE_COMMIT gets no reply.

    Its process sleeps, another process finishes the transaction, and its slot is deleted.
    """
    process = Process(cluster)
    process.do(process.init())
    process.do(process.send(A, "a"))
    state_tp = state_partition(process.ctx, "x")
    task = paused_in_its_put(process, process.commit(), state_tp.folder)
    task.step("applied")
    sweep_and_clean(cluster, state_tp)
    task.run()
    assert task.result.txn.state == "COMPLETE_COMMIT"
    assert cluster.read(A) == {0: "a"}
    cluster.check()


def test_a_transition_in_doubt_that_a_newer_instance_buried_is_unknown(cluster: Cluster) -> None:
    """The commit happened, so "fenced before it could commit" would be wrong.

    Its records are deleted, so the outcome is unknown.
    """
    process = Process(cluster)
    process.do(process.init())
    process.do(process.send(A, "a"))
    state_tp = state_partition(process.ctx, "x")
    task = paused_in_its_put(process, process.commit(), state_tp.folder)
    task.step("applied")
    successor = Process(cluster, ctx=rolling(1))
    successor.do(successor.init())
    sweep_and_clean(cluster, state_tp)
    task.run()
    with pytest.raises(OutcomeUnknownError):
        _ = task.result


def test_a_transition_that_surely_lost_is_fenced(cluster: Cluster) -> None:
    process, successor = Process(cluster), Process(cluster)
    process.do(process.init())
    process.do(process.send(A, "a"))
    task = process.start(process.commit()).run(until=is_put("__transaction_state"))
    successor.do(successor.init())
    task.run()
    with pytest.raises(ProducerFencedError):
        _ = task.result


def test_an_init_in_doubt_bumps_again(cluster: Cluster) -> None:
    process = Process(cluster)
    process.do(process.init())
    again = Process(cluster)
    again.views = process.views
    state_tp = state_partition(process.ctx, "x")
    task = paused_in_its_put(again, again.init(), state_tp.folder)
    sweep_and_clean(cluster, state_tp)
    task.run()
    assert task.result.producer_epoch == 1
    assert task.result.producer_id == process.pid


def sweep_and_clean(cluster: Cluster, state_tp: Any) -> None:
    """Roll forward what is prepared, and fill the table's partition until it is sealed and cleaned."""
    ctx = rolling(1)
    cluster.run(expiry.expire(ctx, {}))
    for number in range(8):
        neighbour = Process(cluster, f"n{number}", ctx=ctx)
        neighbour.do(neighbour.init())
    cluster.pass_ms(GRACE_MS)
    assert cluster.clean_tail(state_tp, ctx) > 2


def test_a_plain_commit_of_offsets_in_doubt_is_unknown(cluster: Cluster) -> None:
    """A second record would take a later position than other commits that came in between."""
    process = Process(cluster)
    process.do(process.commit_offsets({0: 1}))
    (tp,) = (tp for tp in cluster.partitions() if tp.topic == "__consumer_offsets")
    task = paused_in_its_put(process, process.commit_offsets({0: 2}), tp.folder)
    task.step("applied")
    other = Process(cluster, ctx=rolling(1))
    for offset in range(3, 8):
        other.do(other.commit_offsets({0: offset}))
    cluster.pass_ms(GRACE_MS)
    cluster.clean_tail(tp)
    task.run()
    with pytest.raises(OutcomeUnknownError):
        _ = task.result
    assert cluster.committed() == {0: 7}


def test_an_old_view_acknowledges_after_a_list_that_shows_no_boundary(cluster: Cluster) -> None:
    process = writer(cluster)
    process.do(process.send(A, "a"))
    task = process.start(process.send(A, "b")).run(until=is_put("orders"))
    cluster.pass_ms(GRACE_MS // 10)
    cluster.requests.clear()
    task.run()
    assert [type(request) for request in cluster.requests] == [PutIfAbsent, List]
    assert cluster.read(A) == {0: "a", 1: "b"}


def test_the_age_is_measured_after_the_put_returned(cluster: Cluster) -> None:
    """The PUT takes a day, and lands in a slot that was deleted meanwhile."""
    process = writer(cluster)
    process.do(process.send(A, "a"))
    task = process.start(process.send(A, "b")).run(until=is_put("orders"))
    task.step("late")
    rolled_and_cleaned(cluster)
    cluster.land()
    task.run()
    assert task.result.base_offset == 7
    assert list(cluster.read(A).values()).count("b") == 1


def test_the_age_counts_from_the_start_of_the_put(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """W14: the process sleeps after the LIST that confirms the append, and maintenance cleans its tail."""
    process = writer(cluster)
    process.do(process.send(A, "a"))
    task = process.start(process.send(A, "b")).run(until=is_put("orders"))
    cluster.pass_ms(GRACE_MS // 10)
    task.run(until=lambda effect: isinstance(effect, List))
    perform = cluster.perform

    def answered_and_asleep(effect: Effect, fault: Fault | None = None) -> Any:
        answer = perform(effect, fault)
        monkeypatch.undo()
        rolled_and_cleaned(cluster)
        return answer

    monkeypatch.setattr(cluster, "perform", answered_and_asleep)
    task.run()
    assert task.result.base_offset == 1
    assert process.do(process.send(A, "c")).base_offset == 8
    cluster.check()


def test_a_record_that_readers_would_refuse_is_never_written(cluster: Cluster) -> None:
    """One bad record would make the partition unreadable for every reader, for ever."""
    process = writer(cluster)
    good = process.draft(A, "a", in_file=True)
    file = good.files[0]
    bad: list[dict[str, Any]] = [
        {"records": 0, "files": ()},
        {"records": 2},
        {"records": 0, "files": (change(file, rows=0, row_groups=()),)},
        {"files": (change(file, path="1/rows/" + file.path.split("/")[-1]),)},
        {"files": (change(file, path="../../etc/passwd"),)},
        {"files": (change(file, rows=-1),), "records": -1},
        {"files": (change(file, bytes=2**60),)},
        {"payload": b"rows twice"},
    ]
    for changes in bad:
        with pytest.raises(InvalidRequestError):
            process.do(process.append(A, replace(good, **changes)))
    for offset in (-1, 2**63):
        with pytest.raises(InvalidRequestError):
            process.do(process.commit_offsets({0: offset}))
    with pytest.raises(InvalidRequestError):
        process.do(process.commit_offsets({0: 1}, group="\ud800"))
    assert cluster.objects.keys() == {f"orders/{file.path}"}


@pytest.mark.parametrize(("pid", "epoch"), [(1, 0), (0, 1)])
def test_a_file_of_another_producer_or_epoch_is_refused(cluster: Cluster, pid: int, epoch: int) -> None:
    """Vacuum judges by the file's name, so it would delete such a file although the log names it (W7)."""
    process = writer(cluster)
    path = names.rows_file_path(0, process.pid + pid, process.epoch + epoch, cluster.unique())
    file = cluster.file("orders", path, ["a"])
    draft = BatchDraft(records=1, producer_id=process.pid, producer_epoch=0, base_sequence=0, files=(file,))
    with pytest.raises(InvalidRequestError, match=path):
        process.do(process.append(A, draft))


def test_a_commit_object_too_large_is_refused_before_anything_is_written(cluster: Cluster) -> None:
    process = writer(cluster)
    with pytest.raises(RecordTooLargeError, match="orders-0"):
        process.do(process.send(A, "x" * 5_000_000))
    assert cluster.kinds(A) == ""
    process.do(process.send(A, "x" * 3_000_000))


def test_a_damaged_slot_is_named_and_not_overwritten(cluster: Cluster) -> None:
    process = writer(cluster)
    process.do(process.send(A, "a"))
    path = A.folder + names.batch_name(1)
    cluster.objects[path] = b"garbage"
    with pytest.raises(OutcomeUnknownError, match=path):
        process.do(process.send(A, "b"))
    assert cluster.objects[path] == b"garbage"


def test_programs_are_deterministic_in_what_they_are_told() -> None:
    """Equal answers give equal requests. The explorer depends on this."""
    seen = []
    for _ in range(2):
        world = Cluster()
        process = Process(world, ctx=rolling(2))
        process.do(process.init())
        for number in range(4):
            process.do(process.send(A, str(number)))
            process.do(process.send(B, str(number)))
            process.stage(B, "s")
            process.stage_offsets({0: number})
            process.do(process.commit())
        seen.append((world.objects, world.requests))
    assert seen[0] == seen[1]


def test_append_batch_takes_only_a_registered_transaction(cluster: Cluster) -> None:
    """Invariant 9, in a case where the partition knows the producer, so that a second read would not detect it."""
    process = Process(cluster)
    process.do(process.init())
    process.do(process.send(A, "a"))
    process.do(process.send(B, "b"))
    process.do(process.commit())
    process.do(process.register(A))
    with pytest.raises(InvalidRequestError, match=r"orders-1.*not registered"):
        process.do(process.append(B, process.draft(B, "zombie")))
    draft = process.draft(A, "c")
    with pytest.raises(InvalidRequestError):
        cluster.run(append.append_batch(process.ctx, process.views, A, draft, None))
    other = Process(cluster, "y")
    other.do(other.init())
    other.do(other.register(A))
    with pytest.raises(InvalidRequestError):
        cluster.run(append.append_batch(process.ctx, process.views, A, draft, other.txn))
    # W22: a PREPARE_* has the epoch of the next transaction, and names the partitions of the transaction that it ends.
    prepared = change(process.identity, state="PREPARE_COMMIT")
    with pytest.raises(InvalidRequestError, match=r"orders-0.*not registered"):
        cluster.run(append.append_batch(process.ctx, process.views, A, draft, prepared))
    process.do(process.abort())
    cluster.check(settled=False)


def test_staged_parts_are_checked_before_the_decision(cluster: Cluster) -> None:
    """A PREPARE_COMMIT is never revoked. If no process could roll it forward, it would stay for ever."""
    process = Process(cluster)
    process.do(process.init())
    good = process.stage(A, "a")
    file = good.files[0]

    def part(**changes: Any) -> StagedPart:
        return StagedPart(topic="orders", partition=0, files=(change(file, **changes),))

    huge = StagedPart(
        topic="orders",
        partition=0,
        files=(change(file, statistics={"1": ("x" * 2000, "x" * 2000, 0)}),) * 1100,
    )
    bad = [
        part(path=names.rows_file_path(1, process.pid, process.epoch, "0" * 8)),
        part(path=names.rows_file_path(0, process.pid, process.epoch + 1, "0" * 8)),
        part(path=names.rows_file_path(0, process.pid + 1, process.epoch, "0" * 8)),
        part(rows=0, row_groups=()),
        part(rows=-3),
        StagedPart(topic="..", partition=0, files=good.files),
    ]
    for each in bad:
        with pytest.raises(InvalidRequestError):
            process.do(process.commit(staged=[each]))
    with pytest.raises(InvalidTxnStateError, match="never begun"):  # a part without a transaction is refused
        process.do(process.commit(staged=[StagedPart(topic="orders", partition=0)]))
    with pytest.raises(RecordTooLargeError, match="orders-0"):
        process.do(process.commit(staged=[huge]))
    assert len(cluster.records(state_partition(process.ctx, "x"))) == 1  # only the init
    process.do(process.commit())
    assert cluster.read(A) == {0: "a"}


def test_two_parts_of_one_partition_are_one_commit(cluster: Cluster) -> None:
    """Two groups may share a partition of __consumer_offsets, two writes a topic's partition: both parts must be
    kept."""
    process = Process(cluster)
    process.do(process.init())
    process.stage(A, "a")
    process.stage(A, "b", "c")
    for number in range(4):
        process.stage_offsets({0: number}, group=f"g{number}")
    process.do(process.commit())
    assert cluster.read(A) == {0: "a", 1: "b", 2: "c"}
    assert [cluster.committed(f"g{number}") for number in range(4)] == [{0: number} for number in range(4)]
