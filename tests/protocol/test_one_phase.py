"""Commits in one phase: requests, fenced and forgotten instances, outcomes that are not known.

The scenarios "one phase ..." of `lab.explore` try all interleavings; these tests hold single answers.
"""

from __future__ import annotations

import json
from dataclasses import replace

import msgspec
import pytest

from lab.simulate.cluster import DiedError
from tests.protocol.harness import (
    GRACE_MS,
    ID_IDLE_MS,
    PRODUCER_IDLE_MS,
    A,
    B,
    Cluster,
    Cost,
    Process,
    context,
    measure,
    nth_put,
    rolling,
)
from txlog.core.ages import ClockReading
from txlog.core.effects import Program, ReadClocks
from txlog.core.names import TopicPartition
from txlog.core.records import DataFile, StagedPart, StagedRows
from txlog.errors import (
    IllegalStateError,
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    InvalidTxnStateError,
    OutcomeUnknownError,
    ProducerFencedError,
    UnknownTopicOrPartitionError,
)
from txlog.protocol import expiry, one_phase as programs, transactions
from txlog.protocol.append import append_log_start
from txlog.protocol.load import load
from txlog.protocol.one_phase import OnePhase
from txlog.protocol.slot_record import AppendResult
from txlog.protocol.transactions import EndResult


class Owner(Process):
    """An instance that commits in one phase."""

    def attach(self, tp: TopicPartition) -> Program[None]:
        self.views, txn = yield from programs.attach(self.ctx, self.views, self.identity, tp)
        self._take(txn)

    def wanted(self, tp: TopicPartition, *words: str, schema_id: int = 0) -> Program[OnePhase]:
        now: ClockReading = yield ReadClocks()
        inline = StagedRows(rows=len(words), payload=json.dumps(words).encode())
        return OnePhase(
            part=StagedPart(topic=tp.topic, partition=tp.partition, schema_id=schema_id, inline=inline),
            base_sequence=self.sequences.get(tp, 0),
            begun=now,
            since=self.views[tp].state.next_offset if tp in self.views else 0,
        )

    def put(self, wanted: OnePhase) -> Program[AppendResult | None]:
        self.views, result = yield from programs.commit_in_one_phase(self.ctx, self.views, self.identity, wanted)
        if result is not None:
            self.sequences[wanted.part.topic_partition] = wanted.base_sequence + wanted.part.rows
        return result

    def at_once(self, tp: TopicPartition, *words: str) -> Program[AppendResult | None]:
        return (yield from self.put((yield from self.wanted(tp, *words))))

    def give_up(self, wanted: OnePhase) -> Program[EndResult]:
        self.views, ended = yield from programs.abort_one_phase(self.ctx, self.views, self.identity, wanted)
        self._take(ended.txn)
        return ended


def owner(cluster: Cluster, *tps: TopicPartition) -> Owner:
    """Return a new instance of the id, attached to partitions."""
    process = Owner(cluster)
    process.do(process.init())
    for tp in tps:
        process.do(process.attach(tp))
    return process


def attached(cluster: Cluster) -> tuple[TopicPartition, ...]:
    txn = cluster.txn()
    return () if txn is None else tuple(sorted(txn.attached or ()))


def sweep(cluster: Cluster) -> None:
    """End an idle instance that is attached, then sweep as today."""
    cluster.run(programs.detach(context(), {}, "x"))
    cluster.run(expiry.expire(context(), {}))


# -- what it costs ----------------------------------------------------------------------------------------------------


def test_a_commit_is_one_conditional_put() -> None:
    cluster = Cluster()
    process = owner(cluster)
    process.views = {**process.views, A: cluster.run(load(process.ctx, A))}
    assert measure(cluster, process.attach(A))[1] == Cost(puts=1, rounds=1, put_rounds=1)
    # The partition does not know the producer yet (W21).
    assert measure(cluster, process.at_once(A, "a"))[1] == Cost(gets=1, puts=1, rounds=2, put_rounds=1)
    assert measure(cluster, process.at_once(A, "b"))[1] == Cost(puts=1, rounds=1, put_rounds=1)
    assert cluster.kinds(A) == "dd"
    assert cluster.read(A) == {0: "a", 1: "b"}
    assert measure(cluster, process.attach(A))[1] == Cost(gets=1, rounds=1)
    cluster.check()


def test_an_init_after_a_dead_instance_fences_it_in_each_partition() -> None:
    cluster = Cluster()
    old = owner(cluster, A, B)
    old.do(old.at_once(A, "a"))
    new = Owner(cluster)
    new.views = {tp: cluster.run(load(context(), tp)) for tp in (A, B)}
    _, cost = measure(cluster, new.init())
    assert (cost.puts, cost.put_rounds) == (2 + 3, 4)
    assert (cluster.kinds(A), cluster.kinds(B)) == ("da", "a")
    assert attached(cluster) == ()
    for tp in (A, B):
        with pytest.raises(InvalidProducerEpochError):
            old.do(old.at_once(tp, "late"))
    cluster.check()


# -- where it is allowed ----------------------------------------------------------------------------------------------


def test_rows_go_only_where_the_instance_is_attached() -> None:
    cluster = Cluster()
    process = owner(cluster, A)
    with pytest.raises(IllegalStateError, match="not attached to orders-1"):
        process.do(process.at_once(B, "b"))
    wanted = process.do(process.wanted(A, "a"))
    file = DataFile(path="x", rows=1, bytes=1, digest=None, footer_digest="f" * 64, row_groups=(1,))
    part = msgspec.structs.replace(wanted.part, inline=msgspec.UNSET, files=(file,))
    with pytest.raises(IllegalStateError, match="in files"):
        process.do(process.put(replace(wanted, part=part)))
    assert cluster.kinds(A) == ""


def test_an_open_transaction_cannot_be_attached() -> None:
    cluster = Cluster()
    process = owner(cluster)
    process.do(process.send(A, "a"))
    with pytest.raises(InvalidTxnStateError, match="has an open transaction"):
        process.do(process.attach(B))


def test_each_later_transition_of_the_instance_carries_it() -> None:
    cluster = Cluster()
    process = owner(cluster, A)
    process.do(process.at_once(A, "a"))
    process.do(process.send(B, "b"))
    process.do(process.commit())
    assert attached(cluster) == (A,)
    process.do(process.at_once(A, "c"))  # the epoch is new, and A has not seen it
    process.do(process.send(A, "d"))
    process.do(process.abort())
    process.stage(A, "e")
    process.do(process.commit())
    process.do(process.complete())
    assert attached(cluster) == (A,)
    process.do(process.at_once(A, "f"))
    assert list(cluster.read(A).values()) == ["a", "c", "e", "f"]
    cluster.check()


def test_a_fenced_instance_attaches_nothing() -> None:
    cluster = Cluster()
    old = owner(cluster, A)
    owner(cluster)
    with pytest.raises(ProducerFencedError):
        old.do(old.attach(B))


def test_rows_of_a_deleted_topic_are_refused_at_their_slot() -> None:
    cluster = Cluster()
    process = owner(cluster, A)
    process.do(process.at_once(A, "a"))
    cluster.run(append_log_start(context(), {}, A, None, deleted_version=1))
    with pytest.raises(UnknownTopicOrPartitionError):
        process.do(process.at_once(A, "b"))


# -- who ends it ------------------------------------------------------------------------------------------------------


def test_an_instance_that_ends_says_so_and_costs_the_next_one_nothing() -> None:
    cluster = Cluster()
    process = owner(cluster, A)
    process.do(process.at_once(A, "a"))
    process.do(programs.detach_own(process.ctx, process.views, process.identity))
    assert attached(cluster) == ()
    owner(cluster)
    assert cluster.kinds(A) == "d"
    with pytest.raises(ProducerFencedError):
        process.do(process.attach(A))


def test_only_the_instance_itself_says_that_it_ends() -> None:
    cluster = Cluster()
    old = owner(cluster, A)
    new = owner(cluster, A)
    old.do(programs.detach_own(old.ctx, old.views, old.identity))
    assert attached(cluster) == (A,)
    new.do(new.at_once(A, "a"))


@pytest.mark.parametrize("by_operator", [False, True])
def test_an_open_transaction_that_others_end_is_fenced_everywhere(by_operator: bool) -> None:
    cluster = Cluster()
    process = owner(cluster, A)
    process.do(process.at_once(A, "a"))
    process.do(process.send(B, "b"))
    cluster.pass_ms(60_001)
    if by_operator:
        cluster.run(transactions.abort_transaction(context(), {}, "x"))
    else:
        cluster.run(expiry.expire(context(), {}))
    assert (cluster.kinds(A), cluster.kinds(B)) == ("da", "da")
    with pytest.raises(InvalidProducerEpochError):
        process.do(process.at_once(A, "late"))
    process.do(process.abort())
    assert attached(cluster) == ()
    cluster.check()


def test_a_sweep_ends_an_idle_instance_before_its_id_goes() -> None:
    cluster = Cluster()
    process = owner(cluster, A)
    process.do(process.at_once(A, "a"))
    cluster.pass_ms(ID_IDLE_MS - 1)
    cluster.run(expiry.expire(context(), {}))
    assert attached(cluster) == (A,)
    cluster.pass_ms(1)
    cluster.run(expiry.expire(context(), {}))
    assert (cluster.kinds(A), attached(cluster)) == ("da", ())
    assert cluster.txn() is not None
    cluster.pass_ms(ID_IDLE_MS)
    cluster.run(expiry.expire(context(), {}))
    assert cluster.txn() is None
    with pytest.raises(InvalidProducerEpochError):
        process.do(process.at_once(A, "late"))
    cluster.run(expiry.expire_producers(context(), {}, A))
    process.sequences = {}
    process.txn = msgspec.structs.replace(process.identity, updated_at=cluster.now_ms)
    with pytest.raises(InvalidProducerIdMappingError):
        process.do(process.at_once(A, "late"))


def test_an_operator_removes_an_attached_id_at_once() -> None:
    cluster = Cluster()
    process = owner(cluster, A)
    process.do(process.at_once(A, "a"))
    _, gone = cluster.run(expiry.remove(context(), {}, "x", force=True))
    assert gone
    assert (cluster.txn(), cluster.kinds(A)) == (None, "da")


# -- what is forgotten ------------------------------------------------------------------------------------------------


def test_an_owner_that_slept_needs_a_decision() -> None:
    cluster = Cluster()
    process = owner(cluster, A)
    process.do(process.at_once(A, "a"))
    half_ms = process.ctx.constants.producer_id_expiration_ms // 2
    cluster.pass_ms(half_ms - 1)
    assert process.do(process.at_once(A, "b")) is not None
    cluster.pass_ms(half_ms)
    assert process.do(process.at_once(A, "c")) is None
    cluster.pass_ms(PRODUCER_IDLE_MS)
    cluster.run(expiry.expire_producers(context(), {}, A))
    assert process.do(process.at_once(A, "c")) is None
    process.stage(A, "c")
    process.do(process.commit())
    assert process.do(process.at_once(A, "d")) is not None
    assert list(cluster.read(A).values()) == ["a", "b", "c", "d"]


def test_an_owner_whose_record_is_old_needs_a_decision() -> None:
    cluster = Cluster()
    process = owner(cluster, A)
    step_ms = process.ctx.constants.producer_id_expiration_ms // 3
    began_ms, in_two = cluster.now_ms, 0
    while cluster.now_ms < began_ms + 2 * ID_IDLE_MS:
        cluster.pass_ms(step_ms)
        if process.do(process.at_once(A, "a")) is None:
            process.stage(A, "a")
            process.do(process.commit())
            in_two += 1
        sweep(cluster)
    assert attached(cluster) == (A,)
    assert "a" not in cluster.kinds(A)  # no sweep took the busy id for idle
    assert 2 <= in_two <= 6


@pytest.mark.parametrize("seals", [False, True])
def test_a_first_try_of_long_ago_is_not_made_again(seals: bool) -> None:
    cluster = Cluster()
    process = owner(cluster, A)
    wanted = process.do(process.wanted(A, "a"))
    assert process.do(process.put(wanted)) is not None
    cluster.pass_ms(PRODUCER_IDLE_MS)
    cluster.run(expiry.expire_producers(context(), {}, A))
    if seals:
        other = Process(cluster, ctx=rolling(1))
        other.do(other.idempotent())
        other.do(other.send(A, "x"))
        other.do(other.send(A, "y"))
    process.views = {}
    if seals:
        with pytest.raises(OutcomeUnknownError, match="are sealed"):
            process.do(process.put(replace(wanted, in_doubt=True)))
    else:
        found = process.do(process.put(replace(wanted, in_doubt=True)))
        assert found is not None
        assert (found.base_offset, found.duplicate) == (0, True)
    assert list(cluster.read(A).values()).count("a") == 1


# -- who is unsure ----------------------------------------------------------------------------------------------------


UNKNOWN: dict[str, bool] = {"applied": True, "lost": False}


def _unsure(cluster: Cluster, fault: str) -> tuple[Owner, OnePhase]:
    process = owner(cluster, A)
    process.do(process.at_once(A, "a"))
    process.ctx = context(max_settles=1)
    process.faults = nth_put(1, fault, "orders/0/")  # type: ignore[arg-type]
    wanted = process.do(process.wanted(A, "b"))
    with pytest.raises(OutcomeUnknownError):
        # The store does not answer the look, either.
        process.do(_blind(process.put(wanted)))
    process.faults = lambda *_: None
    return process, replace(wanted, in_doubt=True)


def _blind(program: Program[AppendResult | None]) -> Program[AppendResult | None]:
    """Return the program, whose look at the slot after its PUT finds nothing."""
    answer = None
    while True:
        try:
            effect = program.send(answer)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        answer = yield effect
        if type(effect).__name__ == "Get":
            answer = None


@pytest.mark.parametrize("fault", sorted(UNKNOWN))
def test_a_repeated_commit_joins_the_first(fault: str) -> None:
    cluster = Cluster()
    process, wanted = _unsure(cluster, fault)
    result = process.do(process.put(wanted))
    assert result is not None
    assert (result.base_offset, result.duplicate) == (1, UNKNOWN[fault])
    assert cluster.read(A) == {0: "a", 1: "b"}
    cluster.check()


@pytest.mark.parametrize("fault", sorted(UNKNOWN))
def test_an_abort_says_what_became_of_the_commit(fault: str) -> None:
    cluster = Cluster()
    process, wanted = _unsure(cluster, fault)
    ended = process.do(process.give_up(wanted))
    assert ended.already_committed is UNKNOWN[fault]
    assert cluster.kinds(A) == ("dda" if UNKNOWN[fault] else "da")
    process.do(process.attach(A))
    process.do(process.at_once(A, "c"))
    assert list(cluster.read(A).values()) == (["a", "b", "c"] if UNKNOWN[fault] else ["a", "c"])
    cluster.check()


@pytest.mark.parametrize("fault", sorted(UNKNOWN))
def test_a_fence_shows_what_became_of_the_commit(fault: str) -> None:
    cluster = Cluster()
    process, wanted = _unsure(cluster, fault)
    owner(cluster)
    if UNKNOWN[fault]:
        result = process.do(process.put(wanted))
        assert result is not None
        assert (result.base_offset, result.duplicate) == (1, True)
    else:
        with pytest.raises(InvalidProducerEpochError):
            process.do(process.put(wanted))


def test_a_fence_of_which_the_partition_knows_nothing_yet_shows_nothing() -> None:
    """The decision of a newer instance is in the table, and its ABORT is not: a late try would still be the first."""
    cluster = Cluster()
    process = owner(cluster, A)
    process.views = {**process.views, A: cluster.run(load(process.ctx, A))}
    wanted = process.do(process.wanted(A, "a"))
    new = Owner(cluster, faults=nth_put(1, "crash", "orders/0/"))
    with pytest.raises(DiedError):
        new.do(new.init())
    with pytest.raises(OutcomeUnknownError, match="may still land"):
        process.do(process.put(replace(wanted, in_doubt=True)))
    with pytest.raises((ProducerFencedError, InvalidProducerEpochError)):
        process.do(process.put(wanted))


def test_records_that_others_have_sealed_show_nothing() -> None:
    cluster = Cluster()
    process = owner(cluster, A)
    process.do(process.at_once(A, "a"))
    wanted = process.do(process.wanted(A, "b"))
    new = Owner(cluster, ctx=rolling(1))
    new.do(new.init())
    new.do(new.attach(A))
    for word in "cde":
        new.do(new.at_once(A, word))
    assert cluster.view(A).sealed_end > wanted.since
    process.views = {}
    with pytest.raises(OutcomeUnknownError, match="are sealed"):
        process.do(process.put(replace(wanted, in_doubt=True)))


# -- beside the rest --------------------------------------------------------------------------------------------------


def test_a_paused_commit_is_settled_by_what_is_there() -> None:
    """The slot of a commit is taken, sealed and deleted while its process sleeps before the PUT."""
    cluster = Cluster()
    process = owner(cluster, A)
    process.do(process.at_once(A, "a"))
    other = Process(cluster, ctx=rolling(1))
    other.do(other.idempotent())
    task = process.start(process.at_once(A, "b")).run(until=lambda effect: type(effect).__name__ == "PutIfAbsent")
    other.do(other.send(A, "x"))
    other.do(other.send(A, "y"))
    cluster.pass_ms(GRACE_MS)
    cluster.clean_tail(A)
    try:
        task.run()
        answer = task.result
    except OutcomeUnknownError:
        answer = None
    words = [word for word in cluster.read(A).values() if word == "b"]
    assert len(words) <= 1
    if answer is not None:
        assert words == ["b"]
