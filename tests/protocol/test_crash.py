"""Does one `init_transactions` repair a crash, a lost reply or a late request at each storage operation (invariant 11)?

Both partitions and the offsets then show all of the transaction or nothing, at both isolation levels. The LSO is the
end of the log.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from lab.simulate.cluster import DiedError, Fault
from tests.effort import STRIDE, cases
from tests.protocol.harness import (
    A,
    B,
    Cluster,
    Process,
    Task,
    at,
    context,
    rolling,
)
from txlog.core.effects import Effect, PutIfAbsent
from txlog.core.names import TopicPartition
from txlog.core.transactions import TxnVersion
from txlog.errors import OutcomeUnknownError, StorageError, TopicExistsError, TxlogError, UnknownTopicOrPartitionError
from txlog.protocol import expiry, topic_changes, topics
from txlog.protocol.append import append_log_start

# A crash before a request leaves the same store as a crash after the previous request.
CRASHES: tuple[Fault, ...] = ("crash after", "crash in flight")
WEATHER: tuple[Fault, ...] = ("applied", "lost", "late", "hidden retry")
Job = Callable[[Process], Any]


def before(ctx: Any = None) -> Cluster:
    """Return a log with a history: an older transaction of the same id, a plain producer, committed offsets."""
    cluster = Cluster()
    old = Process(cluster, ctx=ctx)
    old.do(old.init())
    for tp in (A, B):
        old.do(old.send(tp, "old"))
    old.do(old.send_offsets({0: 3}))
    old.do(old.commit())
    return cluster


def eager(process: Process) -> Any:
    yield from process.init()
    yield from process.register(A, B)
    yield from process.append(A, process.draft(A, "a0", "a1"))
    yield from process.append(B, process.draft(B, "b0", in_file=True))
    yield from process.append(A, process.draft(A, "a2"))
    yield from process.send_offsets({0: 10, 1: 20})
    return (yield from process.commit())


def staged(process: Process) -> Any:
    yield from process.init()
    process.stage(A, "a0", "a1", "a2")
    process.stage_inline(B, "b0")
    process.stage_offsets({0: 10, 1: 20})
    return (yield from process.commit())


def mixed(process: Process) -> Any:
    yield from process.init()
    yield from process.send(A, "a0", "a1")
    process.stage(A, "a2")
    process.stage(B, "b0")
    yield from process.send_offsets({0: 10, 1: 20})
    return (yield from process.commit())


JOBS: dict[str, Job] = {"eager": eager, "staged": staged, "mixed": mixed}
DONE = (["old", "a0", "a1", "a2"], ["old", "b0"], {0: 10, 1: 20})
NONE = (["old"], ["old"], {0: 3})


def seen(cluster: Cluster) -> tuple[list[str], list[str], dict[int, int]]:
    return list(cluster.read(A).values()), list(cluster.read(B).values()), cluster.committed()


def check_whole(cluster: Cluster) -> bool:
    """Return whether the log contains the job. It must contain all of it or nothing."""
    found = seen(cluster)
    assert found in (DONE, NONE)
    cluster.check()
    for tp in (A, B):
        # read_uncommitted shows every row of read_committed too, at the same offset, and once
        committed, uncommitted = cluster.read(tp), cluster.read(tp, "read_uncommitted")
        assert committed.items() <= uncommitted.items()
        words = list(uncommitted.values())
        assert len(words) == len(set(words))
        state = cluster.state(tp)
        assert state.last_stable_offset == state.next_offset
    return found == DONE


def length(job: Job, ctx: Any = None) -> int:
    cluster = before(ctx)
    process = Process(cluster, ctx=ctx)
    task = process.start(job(process))
    task.run()
    return task.count


CONTEXTS = {"tail": context(), "rolling": rolling(2)}
EVERYWHERE = pytest.mark.parametrize("where", CONTEXTS)


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("fault", CRASHES)
@EVERYWHERE
def test_a_crash_anywhere_then_one_init(job: str, fault: Fault, where: str) -> None:
    ctx = CONTEXTS[where]
    decided = set()
    start = before(ctx)
    for number in cases(range(1, length(JOBS[job], ctx) + 1)):
        for lands in ("early", "late") if fault == "crash in flight" else ("never",):
            cluster = start.copy()
            dead = Process(cluster, ctx=ctx, faults=at(number, fault))
            with pytest.raises(DiedError):
                dead.do(JOBS[job](dead))
            if lands == "early":
                cluster.land()
            new = Process(cluster, ctx=ctx)
            new.do(new.init())
            done = check_whole(cluster)
            if cluster.in_flight:
                cluster.land()  # a write that lands now finds its slot taken, or its transaction over
                assert check_whole(cluster) == done
            decided.add(done)
            # the producer retries the same job if the log does not contain it
            if not done:
                new.do(JOBS[job](new))
                assert [words[-3:] for words in seen(cluster)[:1]] == [["a0", "a1", "a2"]]
                assert seen(cluster)[1:] == (["old", "b0"], {0: 10, 1: 20})
                cluster.check()
    assert decided == {True, False}


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("fault", WEATHER)
@EVERYWHERE
def test_a_lost_reply_anywhere_is_settled_by_the_job_itself(job: str, fault: Fault, where: str) -> None:
    ctx = CONTEXTS[where]
    start = before(ctx)
    for number in cases(range(1, length(JOBS[job], ctx) + 1)):
        cluster = start.copy()

        def put_only(count: int, effect: Effect, number: int = number) -> Fault | None:
            return fault if count == number and isinstance(effect, PutIfAbsent) else None

        process = Process(cluster, ctx=ctx, faults=put_only)
        assert process.do(JOBS[job](process)).txn.state == "COMPLETE_COMMIT"
        assert check_whole(cluster)
        cluster.land()
        assert check_whole(cluster)


@pytest.mark.parametrize("job", JOBS)
@EVERYWHERE
def test_weather_all_the_way(job: str, where: str) -> None:
    """Every conditional write in turn is lost, late, applied without an answer, or retried by the adapter."""
    ctx = CONTEXTS[where]
    for start in range(4):
        cluster = before(ctx)

        def faults(count: int, effect: Effect, start: int = start) -> Fault | None:
            return (*WEATHER, None)[(count + start) % 5] if isinstance(effect, PutIfAbsent) else None

        process = Process(cluster, ctx=ctx, faults=faults)
        process.do(JOBS[job](process))
        cluster.land()
        assert check_whole(cluster)


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("fault", CRASHES)
def test_a_crash_inside_the_recovery(job: str, fault: Fault) -> None:
    """Crash the job at each request, then the init that recovers it at each request; the next init finishes."""
    start = before()
    for number in cases(range(1, length(JOBS[job]) + 1)):
        first = start.copy()
        dead = Process(first, faults=at(number, "crash after"))
        with pytest.raises(DiedError):
            dead.do(JOBS[job](dead))
        for step in range(1, 60, STRIDE):
            cluster = first.copy()
            second = Process(cluster, faults=at(step, fault))
            try:
                second.do(second.init())
            except DiedError:
                pass
            else:
                break
            third = Process(cluster)
            third.do(third.init())
            done = check_whole(cluster)
            if cluster.in_flight:
                cluster.land()
                assert check_whole(cluster) == done
        else:
            pytest.fail("a recovery without end")


@pytest.mark.parametrize("job", JOBS)
def test_one_maintenance_pass_does_as_well(job: str) -> None:
    start = before()
    for number in cases(range(1, length(JOBS[job]) + 1)):
        cluster = start.copy()
        dead = Process(cluster, faults=at(number, "crash after"))
        with pytest.raises(DiedError):
            dead.do(JOBS[job](dead))
        cluster.pass_ms(60_001)
        cluster.run(expiry.expire(context(), {}))
        check_whole(cluster)


@pytest.mark.parametrize("job", JOBS)
def test_a_recovery_by_two_at_once_after_any_crash(job: str) -> None:
    """Recover with a new instance and a sweep: one pauses at each of its requests while the other runs."""
    start = before()
    for number in cases(range(1, length(JOBS[job]) + 1)):
        first = start.copy()
        dead = Process(first, faults=at(number, "crash in flight"))
        with pytest.raises(DiedError):
            dead.do(JOBS[job](dead))
        first.pass_ms(60_001)
        for step in range(0, 60, STRIDE):
            cluster = first.copy()
            new = Process(cluster)
            init = new.start(new.init())
            for _ in range(step):
                if not init.done:
                    init.step()
            over = init.done
            Task(cluster, expiry.expire(context(), {})).run()
            cluster.land()
            init.run()
            assert init.result.state == "EMPTY"
            check_whole(cluster)
            if over:
                break


@pytest.mark.parametrize("fault", [*CRASHES, *WEATHER])
def test_a_streaming_job_that_replays_its_batches(fault: Fault) -> None:
    """In a job of three versioned micro-batches the driver dies or loses a reply at each request, restarts and
    replays."""
    for number in cases(range(1, 45)):
        cluster = Cluster()
        plan = at(number, fault)
        for _ in range(3):
            process = Process(cluster, ctx=rolling(3), faults=plan)

            def run(process: Process = process) -> Any:
                yield from process.init()
                for version in range(3):
                    for tp in (A, B):
                        process.stage(tp, f"v{version}")
                    yield from process.commit(version=TxnVersion(version=version, scope="query"))

            try:
                process.do(run())
                break
            except (DiedError, TxlogError):
                plan = at(0, "crash")
        cluster.land()
        assert list(cluster.read(A).values()) == list(cluster.read(B).values()) == ["v0", "v1", "v2"]
        cluster.check()


# -- an idempotent producer -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [*WEATHER, "error"])
def test_an_idempotent_batch_is_repeated_until_it_is_in(fault: Fault) -> None:
    for number in cases(range(1, 25)):
        cluster = Cluster()
        process = Process(cluster, ctx=rolling(2), faults=at(number, fault))
        process.do(process.idempotent())
        for word in ("a", "b", "c", "d"):
            draft = process.draft(A, word)
            for _ in range(5):
                try:
                    process.do(process.append(A, draft))
                    break
                except (StorageError, OutcomeUnknownError):
                    # after a failed read or an unsettled outcome, retry the identical draft
                    process.faults = at(0, "crash")
        cluster.land()
        assert list(cluster.read(A).values()) == ["a", "b", "c", "d"]
        cluster.check()


# -- topics -----------------------------------------------------------------------------------------------------------


def log_start(tp: TopicPartition, version: int) -> Any:
    return append_log_start(context(), {}, tp, None, version)


def create() -> Any:
    return topic_changes.create_topic(context(), "orders", partitions=2, append_log_start=log_start)


def delete() -> Any:
    return topic_changes.delete_topic(context(), "orders", append_log_start=log_start)


@pytest.mark.parametrize("fault", [*CRASHES, *WEATHER, "error"])
@pytest.mark.parametrize("steps", ["create", "create delete", "create delete create"])
def test_topics_created_and_deleted_with_a_failure_anywhere(fault: Fault, steps: str) -> None:
    """After a failure in any step, repeating the step gives exactly one topic or none, and leaves nothing else
    behind."""
    words = steps.split()
    for number in cases(range(1, 20)):
        cluster = Cluster()
        process = Process(cluster)
        if len(words) > 1:
            cluster.run(create())
            process.do(process.init())
            process.do(process.send(A, "open"))
        if len(words) > 2:
            cluster.run(delete())
        program = delete if words[-1] == "delete" else create
        with suppress(DiedError, TxlogError):
            cluster.run(program(), at(number, fault))
        cluster.land()
        with suppress(TopicExistsError, UnknownTopicOrPartitionError):
            cluster.run(program())
        found = cluster.run(topics.list_topics(deleted=True))
        assert [metadata.deleted for metadata in found] == [words[-1] == "delete"]
        assert found[0].number == len(words) - 1 + words.count("delete")
        if len(words) > 1:
            for tp in (A, B):
                assert cluster.kinds(tp).count("l") == 1
            state = cluster.state(A)
            assert state.log_start_offset == state.last_stable_offset == state.next_offset
            process.do(process.abort())
        assert cluster.read(A, "read_uncommitted") == {}
        cluster.check()


def test_what_stays_unknown_stays_decidable() -> None:
    """A commit gives up with OutcomeUnknown at each request; after an init the log shows all of it or nothing."""
    for number in cases(range(1, length(staged) + 1)):
        cluster = before()
        ctx = context(max_settles=1)
        process = Process(cluster, ctx=ctx, faults=at(number, "late"))
        try:
            process.do(staged(process))
            known = True
        except (OutcomeUnknownError, StorageError):
            known = False
        new = Process(cluster)
        new.do(new.init())
        done = check_whole(cluster)
        assert done or not known
        cluster.land()
        assert check_whole(cluster) == done
