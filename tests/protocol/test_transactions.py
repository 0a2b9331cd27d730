"""The coordinator as a library (PROTOCOL.md, W21 to W33): every state, every lost reply, every pause."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from lab.simulate.cluster import DiedError, Fault
from tests.effort import cases
from tests.protocol.harness import (
    CONSTANTS,
    GRACE_MS,
    HOUR_MS,
    ID_IDLE_MS,
    PRODUCER_IDLE_MS,
    A,
    B,
    C,
    Cluster,
    Process,
    Task,
    at,
    context,
    is_put,
    nth_put,
    rolling,
)
from txlog.core import envelope, names
from txlog.core.effects import Get, PutIfAbsent
from txlog.core.names import TopicPartition
from txlog.core.records import StagedList, StagedPart, TransactionEntry, TransactionMetadata
from txlog.core.transactions import TxnVersion
from txlog.errors import (
    CorruptRecordError,
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    InvalidRequestError,
    InvalidTxnTimeoutError,
    MissingObjectError,
    OutcomeUnknownError,
    ProducerFencedError,
    RecordTooLargeError,
    RetriableError,
    StorageError,
    TransactionalIdNotFoundError,
    TxnVersionScopeError,
    UnknownTopicOrPartitionError,
)
from txlog.protocol import expiry, table, transactions
from txlog.protocol.append import append_log_start
from txlog.protocol.table import partition_of_producer_id, state_partition, transit

TXN_LOG = "__transaction_state"
STATES = ("none", "EMPTY", "ONGOING", "PREPARE_COMMIT", "PREPARE_ABORT", "COMPLETE_COMMIT", "COMPLETE_ABORT")


def started(cluster: Cluster | None = None, transactional_id: str = "x", **kwargs: Any) -> Process:
    process = Process(cluster or Cluster(), transactional_id, **kwargs)
    process.do(process.init())
    return process


def crash_at_put(process: Process, program: Any, number: int, part: str = TXN_LOG) -> None:
    """Kill the process right after its n-th conditional write to a path that contains `part`."""
    process.faults = nth_put(number, "crash after", part)
    with pytest.raises(DiedError):
        process.do(program)


def brought_to(state: str) -> tuple[Cluster, Process]:
    """Return a cluster where the id "x" has that state.

    From ONGOING on, its first instance has rows "a" in A and "b" in B.
    """
    cluster = Cluster()
    process = Process(cluster)
    if state == "none":
        return cluster, process
    process.do(process.init())
    if state == "EMPTY":
        return cluster, process
    process.do(process.send(A, "a"))
    process.do(process.send(B, "b"))
    if state.startswith("PREPARE"):
        crash_at_put(process, process.end(state == "PREPARE_COMMIT"), 1)
    elif state.startswith("COMPLETE"):
        process.do(process.end(state == "COMPLETE_COMMIT"))
        process.do(process.complete())
    found = cluster.txn()
    assert found is not None
    assert found.state == state
    return cluster, process


# -- init -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "epoch", "visible"),
    [
        ("none", 0, False),
        ("EMPTY", 1, False),
        ("ONGOING", 2, False),
        ("PREPARE_COMMIT", 2, True),
        ("PREPARE_ABORT", 2, False),
        ("COMPLETE_COMMIT", 2, True),
        ("COMPLETE_ABORT", 2, False),
    ],
)
def test_init_over_every_state(state: str, epoch: int, visible: bool) -> None:
    cluster, _ = brought_to(state)
    new = started(cluster)
    assert (new.identity.state, new.epoch, new.identity.last_epoch) == ("EMPTY", epoch, -1)
    assert (cluster.read(A), cluster.read(B)) == (({0: "a"}, {0: "b"}) if visible else ({}, {}))
    cluster.check()


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_a_bad_timeout_writes_nothing(timeout_ms: int) -> None:
    cluster = Cluster()
    process = Process(cluster)
    with pytest.raises(InvalidTxnTimeoutError, match=f"transaction.timeout.ms = {timeout_ms}.*900000"):
        process.do(process.init(timeout_ms))
    assert cluster.requests == []
    process.do(process.init(900_000))


def test_producer_ids_are_the_slots_of_first_records() -> None:
    cluster = Cluster()
    found = {}
    for number in range(8):
        process = started(cluster, f"id{number}")
        found[process.pid] = process
        process.do(process.init())
        tp = state_partition(context(), process.transactional_id)
        assert partition_of_producer_id(context(), process.pid) == tp
        (slot,) = (
            record.base_offset
            for record in cluster.records(tp)
            if record.entries[0].key == process.transactional_id  # type: ignore[union-attr]
            and record.entries[0].value.producer_epoch == 0  # type: ignore[union-attr]
        )
        assert process.pid == slot * CONSTANTS.transaction_state_partitions + tp.partition
    assert len(found) == 8


def pauses(make: Callable[[], tuple[Cluster, Task, Task]]) -> Iterator[tuple[Cluster, Task, Task]]:
    """Pause the first task before each of its requests in turn, run the second to its end, then finish the first."""
    steps = 0
    while True:
        cluster, first, second = make()
        for _ in range(steps):
            if not first.done:
                first.step()
        over = first.done
        second.run()
        first.run()
        yield cluster, first, second
        if over:
            return
        steps += 1


@pytest.mark.parametrize("state", STATES)
def test_two_inits_at_once(state: str) -> None:
    def make() -> tuple[Cluster, Task, Task]:
        cluster, _ = brought_to(state)
        one, two = Process(cluster), Process(cluster)
        return cluster, one.start(one.init()), two.start(two.init())

    for cluster, first, second in pauses(make):
        assert first.result.producer_id == second.result.producer_id
        assert first.result.producer_epoch != second.result.producer_epoch
        stored = cluster.txn()
        assert stored is not None
        assert stored.producer_epoch == max(first.result.producer_epoch, second.result.producer_epoch)
        cluster.check()


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("fault", ["applied", "lost", "late", "hidden retry"])
def test_init_with_a_lost_reply_anywhere(state: str, fault: Fault) -> None:
    for number in cases(range(1, 30)):
        cluster, _ = brought_to(state)
        new = Process(cluster, faults=nth_put(number, fault))
        new.do(new.init())
        cluster.land()
        assert cluster.txn() == new.txn
        expected = {"none": 0, "EMPTY": 1}.get(state, 2)
        assert new.epoch == expected  # one bump for each end and each init, however often a PUT was repeated
        cluster.check()


# -- fencing ----------------------------------------------------------------------------------------------------------


def test_fenced_everywhere() -> None:
    cluster, old = brought_to("ONGOING")
    new = started(cluster)
    new.do(new.send(A, "n0", "n1"))
    with pytest.raises(InvalidProducerEpochError, match=r"epoch 0.*seen epoch 2"):
        old.do(old.append(A, old.draft(A, "zombie")))  # the partition knows the newer epoch
    with pytest.raises(ProducerFencedError, match=r"'x'.*epoch 0.*epoch 2"):
        old.do(old.send(C, "zombie"))
    with pytest.raises(ProducerFencedError):
        old.do(old.send_offsets({0: 1}))
    with pytest.raises(ProducerFencedError):
        old.do(old.commit())
    with pytest.raises(ProducerFencedError):
        old.do(old.abort())
    old.stage(C, "zombie")
    with pytest.raises(ProducerFencedError):
        old.do(old.commit())
    new.do(new.commit())
    assert list(cluster.read(A).values()) == ["n0", "n1"]
    assert cluster.read(C) == {}
    cluster.check()


CALLS: dict[str, Callable[[Process], Any]] = {
    "send": lambda process: process.append(A, process.draft(A, "zombie")),
    "first send": lambda process: process.send(C, "zombie"),
    "offsets": lambda process: process.send_offsets({0: 99}),
    "commit": lambda process: process.commit(),
    "abort": lambda process: process.abort(),
}


@pytest.mark.parametrize("call", CALLS)
def test_once_init_returned_nothing_of_the_old_succeeds(call: str) -> None:
    """Pause the old instance at each request of a call, let the new one's init return, then finish the old instance."""

    def make() -> tuple[Cluster, Task, Task]:
        cluster, old = brought_to("ONGOING")
        new = Process(cluster)
        return cluster, old.start(CALLS[call](old)), new.start(new.init())

    for cluster, first, _ in pauses(make):
        words = {*cluster.read(A).values(), *cluster.read(C).values()}
        try:
            _ = first.result
        except (ProducerFencedError, InvalidProducerEpochError):
            assert words == set()
        else:
            # the commit won before the init, so the init finished it
            assert words == ({"a"} if call == "commit" else set())
        assert "zombie" not in words
        assert cluster.committed() == {}
        cluster.check()


def test_a_registered_partition_gets_its_marker_though_no_row_was_sent() -> None:
    # otherwise a late first append would leave an open transaction (KIP-890)
    cluster, old = brought_to("EMPTY")
    old.do(old.register(A, B))
    late = old.start(old.append(A, old.draft(A, "late"))).run(until=is_put(A.folder))
    started(cluster)
    late.run()
    with pytest.raises(InvalidProducerEpochError):
        _ = late.result
    assert (cluster.kinds(A), cluster.kinds(B)) == ("a", "a")
    cluster.check()


# -- end: lost replies ------------------------------------------------------------------------------------------------


def mixed(cluster: Cluster, faults: Any = None) -> Process:
    """Return a process with all that a commit can hold: eager rows in A and B, staged rows in B and C, both kinds of
    offsets."""
    process = started(cluster)
    process.do(process.send(A, "a0", "a1"))
    process.do(process.send(B, "b0"))
    process.do(process.send_offsets({0: 10}))
    process.stage(B, "s0", "s1")
    process.stage(C, "c0")
    process.stage_offsets({1: 20}, group="h")
    if faults is not None:
        process.faults = faults
    return process


WHOLE: tuple[Any, ...] = (["a0", "a1"], ["b0", "s0", "s1"], ["c0"], {0: 10}, {1: 20})
NOTHING: tuple[Any, ...] = ([], [], [], {}, {})


def result(cluster: Cluster) -> tuple[Any, ...]:
    rows = [list(cluster.read(tp).values()) for tp in (A, B, C)]
    return (*rows, cluster.committed("g"), cluster.committed("h"))


def test_a_commit_of_everything() -> None:
    cluster = Cluster()
    process = mixed(cluster)
    ended = process.do(process.commit())
    assert (ended.txn.state, ended.txn.producer_epoch, ended.txn.last_epoch) == ("COMPLETE_COMMIT", 1, 0)
    assert result(cluster) == WHOLE
    assert (cluster.kinds(A), cluster.kinds(B), cluster.kinds(C)) == ("dc", "dC", "C")
    cluster.check()


def test_an_abort_of_everything() -> None:
    cluster = Cluster()
    process = mixed(cluster)
    ended = process.do(process.abort())
    assert (ended.txn.state, ended.txn.producer_epoch) == ("COMPLETE_ABORT", 1)
    assert result(cluster) == NOTHING
    assert (cluster.kinds(A), cluster.kinds(B), cluster.kinds(C)) == ("da", "da", "")
    cluster.check()


def requests_of_end() -> int:
    process = mixed(Cluster())
    task = process.start(process.commit())
    task.run()
    return task.count


FAULTS: tuple[Fault, ...] = ("applied", "lost", "late", "hidden retry", "error")


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("fault", FAULTS)
def test_an_end_whose_reply_is_lost_at_any_step_is_repeated(fault: Fault, commit: bool) -> None:
    for number in cases(range(1, requests_of_end() + 2)):
        cluster = Cluster()
        process = mixed(cluster, at(number, fault))
        for _ in range(3):
            try:
                ended = process.do(process.end(commit))
                break
            except (StorageError, OutcomeUnknownError):
                process.faults = lambda _, __: None
        assert ended.txn.state == ("COMPLETE_COMMIT" if commit else "COMPLETE_ABORT")
        assert (ended.skipped, ended.already_committed) == (False, False)
        assert process.epoch == 1
        assert result(cluster) == (WHOLE if commit else NOTHING)
        cluster.land()
        cluster.check()
        process.do(process.send(A, "next"))
        process.do(process.commit())
        assert list(cluster.read(A).values())[-1] == "next"
        cluster.check()


def test_a_failure_after_the_decision_is_unknown_and_never_retriable() -> None:
    """A retriable error means that nothing was decided, and a Spark driver would then delete its staged files."""
    for number in range(1, requests_of_end() + 1):
        cluster = Cluster()
        process = mixed(cluster, lambda n, _, number=number: "error" if n >= number else None)
        with pytest.raises((StorageError, OutcomeUnknownError)) as failure:
            process.do(process.commit())
        stored = cluster.txn()
        assert stored is not None
        decided = stored.state in ("PREPARE_COMMIT", "COMPLETE_COMMIT")
        assert isinstance(failure.value, RetriableError) == (not decided)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("repeated", [True, False])
def test_the_other_call_after_a_lost_reply(first: bool, repeated: bool) -> None:
    """The decision stands, whichever call follows (W30: Spark calls `abort` after a failed `commit`)."""
    cluster = Cluster()
    process = mixed(cluster)
    crash_at_put(process, process.end(first), 1)
    process.faults = lambda _, __: None
    if first == repeated:
        assert process.do(process.end(repeated)).txn.state == ("COMPLETE_COMMIT" if first else "COMPLETE_ABORT")
    elif first:
        ended = process.do(process.end(False))
        assert ended.already_committed
        assert ended.txn.state == "COMPLETE_COMMIT"
    else:
        with pytest.raises(InvalidProducerEpochError, match="nothing of it is visible"):
            process.do(process.end(True))
    assert result(cluster) == (WHOLE if first else NOTHING)
    cluster.check()


@pytest.mark.parametrize("lands", ["never", "before the abort", "during the abort", "after the abort"])
@pytest.mark.parametrize("eager", [False, True])
def test_abort_after_an_unknown_prepare_commit(lands: str, eager: bool) -> None:
    """The PREPARE_COMMIT is in flight when its caller gives up and aborts.

    One of the two wins, and the answer names it.
    """
    cluster = Cluster()
    process = started(cluster, ctx=context(max_settles=1))
    if eager:
        process.do(process.send(A, "a"))
    process.stage(B, "b")
    process.faults = nth_put(1, "late", TXN_LOG)
    with pytest.raises(OutcomeUnknownError):
        process.do(process.commit())
    if lands == "before the abort":
        cluster.land()
    task = process.start(process.abort())
    if lands == "during the abort":
        task.run(until=is_put(TXN_LOG))
        cluster.land()
    task.run()
    cluster.land()
    committed = lands in ("before the abort", "during the abort")
    assert task.result.already_committed == committed
    assert cluster.read(B) == ({0: "b"} if committed else {})
    assert cluster.read(A) == ({0: "a"} if committed and eager else {})
    started(cluster)
    assert cluster.read(B) == ({0: "b"} if committed else {})
    cluster.check()


# -- rolling forward --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("others", ["two sweeps", "sweep and init", "owner and sweep", "owner and init"])
def test_rolled_forward_by_two_at_once(commit: bool, others: str) -> None:
    def make() -> tuple[Cluster, Task, Task]:
        cluster = Cluster()
        process = mixed(cluster)
        crash_at_put(process, process.end(commit), 1)
        process.faults = lambda _, __: None
        one, two = others.split(" and ") if " and " in others else ("sweep", "sweep")

        def task(who: str) -> Task:
            if who == "owner":
                return process.start(process.end(commit))
            if who == "init":
                new = Process(cluster)
                return new.start(new.init())
            return Task(cluster, expiry.expire(context(), {}))

        return cluster, task(one), task(two)

    for cluster, first, second in pauses(make):
        _ = second.result
        try:
            _ = first.result
        except ProducerFencedError:
            assert others == "owner and init"
        assert result(cluster) == (WHOLE if commit else NOTHING)
        assert cluster.kinds(A) == ("dc" if commit else "da")
        cluster.check()


def test_complete_is_written_once() -> None:
    for cluster, _, _ in pauses(prepared_twice):
        states = [record.entries[0].value.state for record in cluster.records(state_partition(context(), "x"))]  # type: ignore[union-attr]
        assert states.count("COMPLETE_COMMIT") == 1


def prepared_twice() -> tuple[Cluster, Task, Task]:
    cluster = Cluster()
    process = mixed(cluster)
    crash_at_put(process, process.commit(), 1)
    sweeps = [Task(cluster, expiry.expire(context(), {})) for _ in range(2)]
    return cluster, sweeps[0], sweeps[1]


@pytest.mark.parametrize("part", [A.folder, TXN_LOG])
def test_a_late_second_abort_leaves_the_next_transaction_alone(part: str) -> None:
    """A slow sweep pauses before its ABORT marker (or COMPLETE), while the owner ends this transaction and begins the
    next."""
    cluster = Cluster()
    process = started(cluster)
    process.do(process.send(A, "gone"))
    cluster.pass_ms(60_001)
    slow = Task(cluster, expiry.expire(context(), {}))
    slow.run(until=is_put(TXN_LOG)).step()
    slow.run(until=is_put(part))
    process.do(process.abort())
    process.do(process.send(A, "kept"))
    slow.run()
    process.do(process.commit())
    assert list(cluster.read(A).values()) == ["kept"]
    assert cluster.kinds(A) == "dadc"
    cluster.check()


def test_a_slow_roll_forward_after_the_partition_forgot_the_producer() -> None:
    """A second coordinator would append a staged COMMIT again where the producer's state has expired.

    The re-read of W21 prevents this.
    """
    cluster = Cluster()
    process = started(cluster)
    process.stage(A, "once")
    crash_at_put(process, process.commit(), 1)
    slow = Task(cluster, expiry.expire(context(), {})).run(until=is_put(A.folder))
    cluster.run(expiry.expire(context(), {}))
    cluster.pass_ms(PRODUCER_IDLE_MS)
    _, gone = cluster.run(expiry.expire_producers(context(), {}, A))
    assert gone == (process.pid,)
    slow.run()
    assert cluster.read(A) == {0: "once"}
    assert cluster.kinds(A) == "Ce"


def test_a_slow_roll_forward_is_not_vouched_for_by_the_next_decision() -> None:
    """As in the test above, but the id has decided again meanwhile: "this very PREPARE" is not "a PREPARE"."""
    cluster = Cluster()
    process = started(cluster)
    process.stage(A, "once")
    crash_at_put(process, process.commit(), 1)
    slow = Task(cluster, expiry.expire(context(), {})).run(until=is_put(A.folder))
    cluster.run(expiry.expire(context(), {}))
    cluster.pass_ms(PRODUCER_IDLE_MS)
    assert cluster.run(expiry.expire_producers(context(), {}, A))[1] == (process.pid,)
    process = started(cluster)
    process.stage(B, "then")
    crash_at_put(process, process.commit(), 1)
    slow.run()
    assert cluster.read(A) == {0: "once"}
    cluster.run(expiry.expire(context(), {}))
    assert cluster.read(B) == {0: "then"}
    cluster.check()


def test_a_zombie_s_first_append_after_the_partition_forgot_its_producer() -> None:
    cluster = Cluster()
    process = started(cluster)
    process.do(process.register(A))
    zombie = process.start(process.append(A, process.draft(A, "late"))).run(until=is_put(A.folder))
    cluster.pass_ms(60_001)
    cluster.run(expiry.expire(context(), {}))
    cluster.pass_ms(PRODUCER_IDLE_MS)
    assert cluster.run(expiry.expire_producers(context(), {}, A))[1] == (process.pid,)
    assert cluster.state(A).producers == {}
    zombie.run()
    with pytest.raises(InvalidProducerEpochError, match="time-out"):
        _ = zombie.result
    cluster.check()


# -- timeouts ---------------------------------------------------------------------------------------------------------


def timed_out(swept: bool = True) -> tuple[Cluster, Process]:
    cluster = Cluster()
    process = started(cluster)
    process.do(process.send(A, "a"))
    cluster.pass_ms(60_001)
    if swept:
        _, did = cluster.run(expiry.expire(context(), {}))
        assert did.aborted == ("x",)
    return cluster, process


def test_a_sweep_aborts_what_is_past_its_timeout_and_nothing_else() -> None:
    cluster, process = timed_out(swept=False)
    young = started(cluster, "young")
    young.do(young.send(B, "b"))
    _, did = cluster.run(expiry.expire(context(), {}))
    assert (did.aborted, did.rolled_forward, did.removed) == (("x",), (), ())
    assert cluster.state(A).last_stable_offset == 2
    assert cluster.state(B).last_stable_offset == 0
    young.do(young.commit())
    assert cluster.read(B) == {0: "b"}
    stored = cluster.txn()
    assert stored is not None
    assert (stored.state, stored.producer_epoch) == ("COMPLETE_ABORT", process.epoch + 1)
    _, did = cluster.run(expiry.expire(context(), {}))
    assert (did.aborted, did.rolled_forward, did.removed) == ((), ("young",), ())  # only its COMPLETE_* was missing
    cluster.check()


def test_commit_after_the_time_out_is_refused() -> None:
    cluster, process = timed_out()
    with pytest.raises(InvalidProducerEpochError, match="aborted before it could commit"):
        process.do(process.commit())
    assert cluster.read(A) == {}


def test_abort_after_the_time_out_succeeds_and_the_producer_goes_on() -> None:
    cluster, process = timed_out()
    assert process.do(process.abort()).txn.producer_epoch == 1
    process.do(process.send(A, "next"))
    process.do(process.commit())
    assert list(cluster.read(A).values()) == ["next"]
    cluster.check()


def test_a_failed_send_after_the_time_out_then_abort() -> None:
    for tp in (A, B):  # a partition that has the marker, and one that never saw the producer
        cluster, process = timed_out()
        with pytest.raises(InvalidProducerEpochError):
            process.do(process.send(tp, "late"))
        process.do(process.abort())
        process.do(process.send(tp, "next"))
        process.do(process.commit())
        assert list(cluster.read(tp).values()) == ["next"]
        cluster.check()


def test_send_offsets_after_the_time_out_is_refused() -> None:
    # PRODUCER_FENCED on a broker; here the abortable error, because the producer may continue after its abort (KIP-588)
    cluster, process = timed_out()
    with pytest.raises(InvalidProducerEpochError, match="60000 ms"):
        process.do(process.send_offsets({0: 1}))
    process.do(process.abort())
    assert cluster.committed() == {}


def test_an_owner_that_comes_before_the_sweep_may_still_commit() -> None:
    cluster, process = timed_out(swept=False)
    process.do(process.commit())
    assert cluster.read(A) == {0: "a"}


def test_a_sweep_that_races_the_commit() -> None:
    def make() -> tuple[Cluster, Task, Task]:
        cluster, process = timed_out(swept=False)
        return cluster, Task(cluster, expiry.expire(context(), {})), process.start(process.commit())

    outcomes = set()
    for cluster, sweep, commit in pauses(make):
        _ = sweep.result
        try:
            assert commit.result.txn.state == "COMPLETE_COMMIT"
            assert cluster.read(A) == {0: "a"}
            outcomes.add("committed")
        except InvalidProducerEpochError:
            assert cluster.read(A) == {}
            outcomes.add("timed out")
        cluster.check()
    assert outcomes == {"committed", "timed out"}


def test_a_prepared_transaction_never_times_out() -> None:
    cluster, process = brought_to("PREPARE_COMMIT")
    cluster.pass_ms(10**9)
    _, did = cluster.run(expiry.expire(context(), {}))
    assert (did.aborted, did.rolled_forward) == ((), ("x",))
    assert (cluster.read(A), cluster.read(B)) == ({0: "a"}, {0: "b"})
    assert process.pid == 0


def test_the_time_out_counts_from_the_first_partition() -> None:
    cluster = Cluster()
    process = started(cluster)
    cluster.pass_ms(50_000)
    process.do(process.send(A, "a"))
    cluster.pass_ms(60_000)
    process.do(process.send(B, "b"))
    assert cluster.run(expiry.expire(context(), {}))[1].aborted == ()
    cluster.pass_ms(1)
    assert cluster.run(expiry.expire(context(), {}))[1].aborted == ("x",)


def test_a_staged_job_can_take_as_long_as_it_likes() -> None:
    cluster = Cluster()
    process = started(cluster)
    process.stage(A, "a")
    cluster.pass_ms(10**8)
    cluster.run(expiry.expire(context(), {}))
    process.do(process.commit())
    assert cluster.read(A) == {0: "a"}


def test_a_sweep_goes_on_past_an_id_that_fails() -> None:
    cluster = Cluster()
    for name in ("a1", "b1", "c1"):
        process = started(cluster, name)
        process.do(process.send(A, name))
        process.stage(B, name)
        if name == "b1":
            crash_at_put(process, process.commit(), 1)
    cluster.pass_ms(60_001)
    # b1's staged rows name a file of another partition, so its roll forward always fails
    tp = state_partition(context(), "b1")
    (last,) = (each for each in cluster.batches(tp) if "PREPARE" in str(each.record.entries[0]))
    entry = last.record.entries[0]
    assert isinstance(entry, TransactionEntry)
    assert entry.value is not None
    part = StagedPart(topic="orders", partition=7, files=entry.value.staged[0].files)
    bad = msgspec.structs.replace(entry, value=msgspec.structs.replace(entry.value, staged=(part,)))
    record = msgspec.structs.replace(last.record, entries=(bad,))
    cluster.objects[tp.folder + names.batch_name(record.base_offset)] = envelope.encode(record)
    with pytest.raises(Exception, match="orders-7"):
        cluster.run(expiry.expire(context(), {}))
    for name in ("a1", "c1"):
        stored = cluster.txn(name)
        assert stored is not None
        assert stored.state == "COMPLETE_ABORT"


# -- staged -----------------------------------------------------------------------------------------------------------


def test_a_staged_transaction_holds_no_reader_up_and_leaves_no_range() -> None:
    cluster = Cluster()
    process = started(cluster)
    for tp in (A, B):
        process.stage(tp, "s")
    process.do(process.abort())
    assert (cluster.kinds(A), cluster.kinds(B)) == ("", "")
    assert process.epoch == 1  # only a decision rules out an attempted commit
    process.stage(A, "s")
    process.do(process.commit())
    assert (cluster.kinds(A), cluster.read(A)) == ("C", {0: "s"})
    assert cluster.state(A).next_offset == 1  # the marker takes no offset, so that lag can reach zero


def test_several_files_of_a_part_are_read_in_order() -> None:
    cluster = Cluster()
    process = started(cluster)
    for number in range(3):
        process.stage(A, *(f"{number}.{row}" for row in range(number + 1)))
    process.do(process.commit())
    assert list(cluster.read(A).values()) == ["0.0", "1.0", "1.1", "2.0", "2.1", "2.2"]


def many_parts(process: Process, count: int = 1500) -> None:
    for number in range(count):
        process.stage(TopicPartition("orders", number % 5), f"{number}")


def test_a_large_list_is_an_object_of_its_own() -> None:
    cluster = Cluster()
    process = started(cluster)
    many_parts(process)
    crash_at_put(process, process.commit(), 2)  # the list, then PREPARE
    stored = cluster.txn()
    assert stored is not None
    assert stored.state == "PREPARE_COMMIT"
    assert (stored.staged, stored.staged_object is not None) == ((), True)
    assert stored.staged_object is not None
    path = state_partition(context(), "x").folder + stored.staged_object.name
    assert names.parse_staged_list_name(stored.staged_object.name) is not None
    assert path in cluster.objects
    started(cluster)
    words = [word for partition in range(5) for word in cluster.read(TopicPartition("orders", partition)).values()]
    assert sorted(words, key=int) == [str(number) for number in range(1500)]
    stored = cluster.txn()
    assert stored is not None
    assert stored.staged_object is None
    cluster.check()


@pytest.mark.parametrize("damage", ["gone", "another list", "flipped"])
def test_a_staged_list_that_is_lost_or_damaged_is_named(damage: str) -> None:
    cluster = Cluster()
    process = started(cluster)
    many_parts(process)
    crash_at_put(process, process.commit(), 2)
    (path,) = (path for path in cluster.objects if path.endswith(".staged"))
    if damage == "gone":
        del cluster.objects[path]
    elif damage == "another list":
        cluster.objects[path] = envelope.encode(StagedList(staged=()))
    else:
        cluster.objects[path] = cluster.objects[path].replace(b'"rows":1', b'"rows":2', 1)
    with pytest.raises(MissingObjectError if damage == "gone" else CorruptRecordError, match=path):
        started(cluster)
    assert cluster.kinds(A) == ""


def test_an_unknown_outcome_of_the_list_is_settled() -> None:
    faults: tuple[Fault, ...] = ("applied", "lost", "late")
    for fault in faults:
        cluster = Cluster()
        process = started(cluster)
        many_parts(process)
        process.faults = nth_put(1, fault, ".staged")
        process.do(process.commit())
        assert len(cluster.read(A)) == 300


# -- txn.version ------------------------------------------------------------------------------------------------------


def versioned(cluster: Cluster, version: int, word: str, scope: str = "", eager: bool = False) -> bool:
    """Run a job once: init, stage, commit under a version. Return whether the commit was skipped."""
    process = started(cluster)
    if eager:
        process.do(process.send(B, word))
    process.stage(A, word)
    return process.do(process.commit(version=TxnVersion(version=version, scope=scope))).skipped


@pytest.mark.parametrize("eager", [False, True])
def test_an_equal_or_lower_version_is_skipped(eager: bool) -> None:
    cluster = Cluster()
    assert [versioned(cluster, v, f"v{v}.{n}", eager=eager) for n, v in enumerate((0, 1, 1, 0, 5, 3, 6))] == [
        False, False, True, True, False, True, False,
    ]  # fmt: skip
    assert list(cluster.read(A).values()) == ["v0.0", "v1.1", "v5.4", "v6.6"]
    assert list(cluster.read(B).values()) == (["v0.0", "v1.1", "v5.4", "v6.6"] if eager else [])
    cluster.check()


def test_a_version_of_another_scope_is_an_error_and_writes_nothing() -> None:
    cluster = Cluster()
    versioned(cluster, 3, "a", scope="query-1")
    with pytest.raises(TxnVersionScopeError, match=r"query-1.*query-2"):
        versioned(cluster, 4, "b", scope="query-2")
    assert cluster.read(A) == {0: "a"}
    versioned(cluster, 4, "c", scope="query-1")
    assert cluster.read(A) == {0: "a", 1: "c"}


def test_an_abort_and_a_time_out_do_not_use_a_version_up() -> None:
    cluster = Cluster()
    process = started(cluster)
    process.do(process.send(A, "a"))
    process.do(process.abort())
    process.do(process.send(A, "b"))
    cluster.pass_ms(60_001)
    cluster.run(expiry.expire(context(), {}))
    assert not versioned(cluster, 0, "c")
    assert list(cluster.read(A).values()) == ["c"]


@pytest.mark.parametrize("mode", ["crash", "crash after", "crash in flight"])
def test_a_replayed_micro_batch_is_committed_once(mode: Fault) -> None:
    """The driver dies at any request of its commit; the next run replays the same version."""
    for number in cases(range(1, 40)):
        cluster = Cluster()
        versioned(cluster, 0, "v0")
        process = started(cluster)
        process.stage(A, "v1")
        process.stage(B, "v1")
        process.faults = at(number, mode)
        try:
            process.do(process.commit(version=TxnVersion(version=1)))
            finished = True
        except DiedError:
            finished = False
        skipped = versioned(cluster, 1, "v1")
        cluster.land()
        assert list(cluster.read(A).values()) == ["v0", "v1"]
        assert not (finished and not skipped)
        started(cluster)
        assert list(cluster.read(A).values()) == ["v0", "v1"]
        cluster.check()


def test_two_runs_of_one_query() -> None:
    """The version is compared on the very record that PREPARE replaces, so the comparison happens after both inits."""

    def make() -> tuple[Cluster, Task, Task]:
        cluster = Cluster()
        tasks = []
        for name in ("one", "two"):
            process = Process(cluster)

            def run(process: Process = process, name: str = name) -> Any:
                yield from process.init()
                process.stage(A, name)
                return (yield from process.commit(version=TxnVersion(version=0)))

            tasks.append(process.start(run()))
        return cluster, tasks[0], tasks[1]

    for cluster, first, second in pauses(make):
        done = 0
        for task in (first, second):
            with suppress(ProducerFencedError):
                done += not task.result.skipped
        assert len(cluster.read(A)) == 1
        assert done <= 1
        cluster.check()


def test_a_version_without_rows_is_recorded() -> None:
    cluster = Cluster()
    process = started(cluster)
    process.do(process.commit(version=TxnVersion(version=0)))
    assert versioned(cluster, 0, "a")
    assert cluster.read(A) == {}


# -- deleted topics ---------------------------------------------------------------------------------------------------


def deleted(cluster: Cluster, *tps: TopicPartition, version: int = 3) -> None:
    for tp in tps:
        cluster.run(append_log_start(context(), {}, tp, None, version))


def test_staged_rows_for_a_deleted_topic_are_skipped_and_markers_are_not() -> None:
    cluster = Cluster()
    process = started(cluster)
    process.do(process.send(A, "eager"))
    process.stage(A, "staged")
    process.stage(C, "audit")
    deleted(cluster, A, B)
    process.do(process.commit())
    assert (cluster.kinds(A), cluster.read(A), cluster.read(C)) == ("dlc", {}, {0: "audit"})
    cluster.check()


def test_inline_rows_for_a_deleted_topic_are_skipped_and_markers_are_not() -> None:
    cluster = Cluster()
    process = started(cluster)
    process.stage_inline(A, "staged")
    process.stage_inline(C, "audit")
    deleted(cluster, A, B)
    process.do(process.commit())
    assert (cluster.kinds(A), cluster.read(A), cluster.read(C)) == ("lc", {}, {0: "audit"})
    cluster.check()


def test_whoever_comes_next_finishes_a_decision_that_holds_its_rows() -> None:
    """The rows are in the decision, so the process that died is not needed."""
    cluster = Cluster()
    process = started(cluster)
    process.stage_inline(A, "a", "b")
    process.stage(B, "in a file")
    process.stage_inline(C, "c")
    crash_at_put(process, process.commit(), 1)
    assert cluster.read(A) == {}
    started(cluster)
    assert [cluster.read(tp) for tp in (A, B, C)] == [{0: "a", 1: "b"}, {0: "in a file"}, {0: "c"}]
    assert [cluster.kinds(tp) for tp in (A, B, C)] == ["C", "C", "C"]
    cluster.check()


def test_a_list_object_holds_inline_rows_too() -> None:
    cluster = Cluster()
    process = started(cluster)
    large = "x" * 200_000
    process.stage_inline(A, large)
    process.do(process.commit())
    assert [path for path in cluster.objects if path.endswith(".staged")]
    assert cluster.read(A) == {0: large}


def test_inline_rows_are_all_that_their_partition_gets() -> None:
    cluster = Cluster()
    for stage in (Process.stage, Process.stage_inline):
        process = started(cluster)
        process.stage_inline(A, "inline")
        stage(process, A, "more")
        with pytest.raises(InvalidRequestError, match="inline rows and other rows cannot be one batch"):
            process.do(process.commit())
    process = started(cluster)
    process.stage_inline(A, "x" * 4 * 2**20)
    with pytest.raises(RecordTooLargeError):
        process.do(process.commit())
    assert cluster.read(A) == {}


def test_nothing_stays_open_in_a_deleted_topic() -> None:
    cluster = Cluster()
    process = started(cluster)
    process.do(process.send(A, "eager"))
    deleted(cluster, A)
    state = cluster.state(A)
    assert state.log_start_offset == state.last_stable_offset == state.next_offset == 2
    with pytest.raises(UnknownTopicOrPartitionError):
        process.do(process.append(A, process.draft(A, "late")))
    process.do(process.abort())
    cluster.check()


def test_a_topic_made_anew_takes_rows_of_its_own_schema() -> None:
    cluster = Cluster()
    process = started(cluster)
    process.stage(A, "old")
    deleted(cluster, A, version=3)
    crash_at_put(process, process.commit(), 1)
    new = started(cluster)
    new.stage(A, "new", schema_id=4)
    new.do(new.commit())
    assert list(cluster.read(A).values()) == ["new"]
    cluster.check()


def test_a_deletion_is_written_once() -> None:
    cluster = Cluster()
    deleted(cluster, A, A, B)
    deleted(cluster, A, version=2)
    assert (cluster.kinds(A), cluster.kinds(B)) == ("l", "l")
    deleted(cluster, A, version=7)
    assert cluster.kinds(A) == "ll"


# -- removed ids ------------------------------------------------------------------------------------------------------


def test_an_idle_id_gets_a_tombstone_and_its_old_instance_is_done() -> None:
    cluster, old = brought_to("COMPLETE_COMMIT")
    assert cluster.run(expiry.expire(context(), {}))[1].removed == ()
    cluster.pass_ms(ID_IDLE_MS)
    assert cluster.run(expiry.expire(context(), {}))[1].removed == ("x",)
    assert cluster.txn() is None
    for call in (old.register(A), old.commit(), old.abort(), old.send_offsets({0: 1})):
        with pytest.raises(InvalidProducerIdMappingError, match="it is gone"):
            old.do(call)
    assert cluster.txn() is None  # the removal does not create it again
    new = started(cluster)
    assert (new.pid != old.pid, new.epoch) == (True, 0)
    with pytest.raises(InvalidProducerIdMappingError, match=f"producer {new.pid}"):
        old.do(old.commit())
    new.do(new.send(A, "new"))
    new.do(new.commit())
    assert list(cluster.read(A).values()) == ["a", "new"]
    cluster.check()


@pytest.mark.parametrize("state", ["ONGOING", "PREPARE_COMMIT", "PREPARE_ABORT"])
def test_an_id_with_a_transaction_is_never_removed(state: str) -> None:
    cluster, _ = brought_to(state)
    cluster.pass_ms(ID_IDLE_MS)
    for force in (False, True):
        assert cluster.run(expiry.remove(context(), {}, "x", force=force))[1] is False
    assert cluster.txn() is not None


def test_an_id_with_a_version_stays_until_an_operator_removes_it() -> None:
    cluster = Cluster()
    versioned(cluster, 0, "a")
    for _ in range(2):  # the first sweep writes its COMPLETE_*
        cluster.pass_ms(10 * CONSTANTS.transactional_id_expiration_ms)
        assert cluster.run(expiry.expire(context(), {}))[1].removed == ()
    assert versioned(cluster, 0, "replay")
    assert cluster.run(expiry.remove(context(), {}, "x", force=True))[1] is True
    assert cluster.run(expiry.remove(context(), {}, "x", force=True))[1] is False
    assert not versioned(cluster, 0, "again")


def test_a_removal_that_races_a_new_instance() -> None:
    def make() -> tuple[Cluster, Task, Task]:
        cluster, _ = brought_to("COMPLETE_COMMIT")
        cluster.pass_ms(ID_IDLE_MS)
        new = Process(cluster)

        def use() -> Any:
            yield from new.init()
            yield from new.send(A, "new")

        return cluster, Task(cluster, expiry.expire(context(), {})), new.start(use())

    for cluster, sweep, use in pauses(make):
        _ = use.result
        assert sweep.result[1].removed in ((), ("x",))
        stored = cluster.txn()
        assert stored is not None
        assert stored.state == "ONGOING"


# -- removed producers ------------------------------------------------------------------------------------------------


def test_an_idle_producer_leaves_by_a_record_and_its_id_goes_on() -> None:
    cluster, process = brought_to("COMPLETE_COMMIT")
    plain = Process(cluster)
    plain.do(plain.idempotent())
    plain.do(plain.send(A, "p0"))
    cluster.pass_ms(PRODUCER_IDLE_MS - 1)
    assert cluster.run(expiry.expire_producers(context(), {}, A))[1] == ()
    plain.do(plain.send(A, "p1"))
    cluster.pass_ms(1)
    assert cluster.run(expiry.expire_producers(context(), {}, A))[1] == (process.pid,)
    assert set(cluster.state(A).producers) == {plain.pid}
    process.do(process.send(A, "again"))
    process.do(process.commit())
    assert list(cluster.read(A).values()) == ["a", "p0", "p1", "again"]
    new = started(cluster)
    assert (new.pid, new.epoch) == (process.pid, 3)
    cluster.check()


@pytest.mark.parametrize("state", ["ONGOING", "PREPARE_COMMIT", "PREPARE_ABORT"])
def test_a_producer_with_a_transaction_is_kept(state: str) -> None:
    cluster, process = brought_to(state)
    extra = Process(cluster, "x")
    extra.__dict__.update(process.__dict__)
    cluster.pass_ms(10 * CONSTANTS.producer_id_expiration_ms)
    assert cluster.run(expiry.expire_producers(context(), {}, A))[1] == ()


def test_a_producer_whose_marker_is_in_but_whose_transaction_is_not_complete_is_kept() -> None:
    """The marker closed it here, but a second coordinator may still bring the same marker."""
    cluster = Cluster()
    process = started(cluster)
    process.stage(A, "a")
    process.stage(B, "b")
    crash_at_put(process, process.commit(), 1, A.folder)
    assert cluster.state(A).open_transactions == ()
    cluster.pass_ms(10 * CONSTANTS.producer_id_expiration_ms)
    assert cluster.run(expiry.expire_producers(context(), {}, A))[1] == ()
    started(cluster)
    assert (cluster.read(A), cluster.read(B)) == ({0: "a"}, {0: "b"})
    assert cluster.run(expiry.expire_producers(context(), {}, A))[1] == (process.pid,)


def test_an_expiry_gives_way_to_an_append() -> None:
    """The record takes the folded slot, or it is not appended."""
    cluster, process = brought_to("COMPLETE_COMMIT")
    cluster.pass_ms(PRODUCER_IDLE_MS)
    task = Task(cluster, expiry.expire_producers(context(), {}, A)).run(until=is_put(A.folder))
    process.do(process.send(A, "alive"))
    task.run()
    assert task.result[1] == ()
    process.do(process.commit())
    assert cluster.kinds(A) == "dcdc"


def test_an_expiry_reads_the_table_after_its_fold() -> None:
    """Between the fold and the read the producer registers the partition.

    The expiry must see that, or lose its slot.
    """

    def make() -> tuple[Cluster, Task, Task]:
        cluster, process = brought_to("COMPLETE_COMMIT")
        cluster.pass_ms(PRODUCER_IDLE_MS)

        def use() -> Any:
            yield from process.send(A, "next")
            yield from process.send(A, "after")
            return (yield from process.commit())

        return cluster, Task(cluster, expiry.expire_producers(context(), {}, A)), process.start(use())

    for cluster, sweep, use in pauses(make):
        _ = sweep.result
        _ = use.result
        assert list(cluster.read(A).values()) == ["a", "next", "after"]
        cluster.check()

    def other() -> tuple[Cluster, Task, Task]:
        cluster, sweep, use = make()
        return cluster, use, sweep

    for cluster, use, sweep in pauses(other):
        _ = sweep.result
        _ = use.result
        assert list(cluster.read(A).values()) == ["a", "next", "after"]
        cluster.check()


# -- the operator -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", STATES)
def test_the_operator_s_abort(state: str) -> None:
    cluster, process = brought_to(state)
    if state == "none":
        with pytest.raises(TransactionalIdNotFoundError, match="'x'"):
            cluster.run(transactions.abort_transaction(context(), {}, "x"))
        return
    _, after = cluster.run(transactions.abort_transaction(context(), {}, "x"))
    expected = {"ONGOING": "COMPLETE_ABORT", "PREPARE_ABORT": "COMPLETE_ABORT", "PREPARE_COMMIT": "COMPLETE_COMMIT"}
    assert (after.state if after is not None else None) == expected.get(state)
    assert bool(cluster.read(A)) == (state in ("PREPARE_COMMIT", "COMPLETE_COMMIT"))
    if state == "ONGOING":
        with pytest.raises(InvalidProducerEpochError):  # the producer cannot commit what the operator aborted
            process.do(process.commit())
    cluster.check()


def test_list_and_describe() -> None:
    cluster, _ = brought_to("ONGOING")
    started(cluster, "b")
    _, rows = cluster.run(table.list_transactions(context(), {}))
    assert [(row.value.transactional_id, row.value.state) for row in rows] == [("b", "EMPTY"), ("x", "ONGOING")]
    _, row = cluster.run(table.describe(context(), {}, "x"))
    assert row.value.partitions == (A, B)
    with pytest.raises(TransactionalIdNotFoundError):
        cluster.run(table.describe(context(), {}, "y"))


def test_resolve_does_what_a_waiting_reader_may() -> None:
    for state, after in (("PREPARE_COMMIT", "COMPLETE_COMMIT"), ("ONGOING", "ONGOING"), ("EMPTY", "EMPTY")):
        cluster, process = brought_to(state)
        cluster.run(transactions.resolve(context(), {}, process.pid))
        stored = cluster.txn()
        assert stored is not None
        assert stored.state == after
    cluster, process = timed_out(swept=False)
    cluster.run(transactions.resolve(context(), {}, process.pid))
    assert cluster.state(A).last_stable_offset == 2
    cluster.requests.clear()
    cluster.run(transactions.resolve(context(), {}, 2**62 + 5))
    assert cluster.requests == []


# -- views may be stale -----------------------------------------------------------------------------------------------


def test_every_call_works_from_any_older_views() -> None:
    """A held view may be stale, but never wrong: each decision is made on a fresh tail."""
    cluster = Cluster()
    process = started(cluster)
    history = [process.views]

    def keep() -> None:
        history.append(process.views)

    for program in (process.send(A, "a"), process.send_offsets({0: 1}), process.commit(), process.send(A, "b")):
        process.do(program)
        keep()
    for views in (*history, {}):
        twin = cluster.copy()
        other = Process(twin)
        other.__dict__.update({**process.__dict__, "cluster": twin, "views": views})
        other.sequences = dict(process.sequences)
        other.do(other.send(A, "c"))
        other.do(other.send(B, "d"))
        other.do(other.commit())
        assert (list(twin.read(A).values()), list(twin.read(B).values())) == (["a", "b", "c"], ["d"])
        twin.check()


def test_everything_again_over_rolling_segments_and_cleaned_tails() -> None:
    ctx = rolling(2)
    cluster = Cluster()
    process = Process(cluster, ctx=ctx)
    expected: list[str] = []
    for number in range(12):
        process.do(process.init(timeout_ms=900_000))
        process.do(process.send(A, f"a{number}"))
        process.do(process.send_offsets({0: number}))
        process.stage(B, f"b{number}")
        if number % 3:
            process.do(process.commit())
            expected.append(str(number))
        if number % 4 == 3:
            cluster.pass_ms(GRACE_MS)
            for tp in cluster.partitions():
                cluster.clean_tail(tp, ctx)
    process.do(process.init())
    assert list(cluster.read(A).values()) == [f"a{number}" for number in expected]
    assert list(cluster.read(B).values()) == [f"b{number}" for number in expected]
    assert cluster.committed() == {0: 11}
    cluster.check()


def test_a_commit_whose_reply_was_lost_while_another_instance_took_over() -> None:
    """The commit was decided, and an init rolled it forward. The record in the slot proves that, even hours later."""
    cluster = Cluster()
    process = started(cluster)
    process.do(process.send(A, "a"))
    tp = state_partition(process.ctx, "x")
    process.ctx = rolling(1)
    task = process.start(process.commit()).run(until=is_put(tp.folder))
    task.step("applied")
    plain = Process(cluster)
    plain.do(plain.init())  # rolls the commit forward, and starts a new epoch
    cluster.pass_ms(5 * HOUR_MS)
    task.run()
    assert task.result.txn.state in ("COMPLETE_COMMIT", "EMPTY")
    assert cluster.read(A) == {0: "a"}


def test_transit_reads_only_what_it_needs() -> None:
    cluster = Cluster()
    process = started(cluster)
    cluster.requests.clear()
    process.do(process.register(A, B, C))
    assert [type(request) for request in cluster.requests] == [PutIfAbsent]
    cluster.requests.clear()
    process.do(process.register(A))
    assert [type(request) for request in cluster.requests] == [Get]  # "done already" is decided on a fresh tail only

    def nothing(state: Any, current: TransactionMetadata | None, now_ms: int, write_id: str) -> None:
        return None

    _, outcome = cluster.run(transit(context(), process.views, "x", nothing))
    assert outcome is None
