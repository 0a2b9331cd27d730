"""The client API against the toy model: both show the same log, whatever the calls and their order are.

There is one store in memory, a clock that only the machine moves, and any number of processes. Producers of two ids,
eager and staged, run beside fenced ones. Processes die between two calls or inside a commit. Consumers of a group read.
Topics are created, extended, emptied, deleted and created again.

After every step both isolation levels, the ends of all partitions and the group's offsets must be the toy's.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import txlog
from tests.machine.toy import Toy, ToyTransaction
from txlog.client.consumer import Consumer
from txlog.client.producer import Producer, RecordMetadata
from txlog.client.store import Store
from txlog.core.effects import PutOutcome
from txlog.core.features import GROUP_MEMBERS, STORE_FEATURES
from txlog.core.names import TopicPartition
from txlog.errors import (
    AbortableError,
    CommitFailedError,
    FencedError,
    InvalidProducerEpochError,
    InvalidRequestError,
    UnknownTopicOrPartitionError,
)
from txlog.protocol.stores import create_store
from txlog.storage.driver import Driver
from txlog.storage.memory import MemoryObjectStore
from txlog.storage.object_store import ObjectStore
from txlog.testing.clock import ManualClock, SeededIds
from txlog.testing.failing_store import SimulatedCrash

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False)])
TOPICS = ("a", "b")
IDS = ("x", "y")
GROUP = "g"
TIMEOUT_MS = 60_000
LEVELS = ("read_committed", "read_uncommitted")


class Mortal:
    """The store of one process: it dies at a chosen write, or loses the reply to one."""

    def __init__(self, inner: ObjectStore) -> None:
        self._inner = inner
        self._writes_left = -1
        self._applied = False
        self.dead = False
        self.lose_reply = False

    def die_at(self, write: int, *, applied: bool) -> None:
        """Die at the write'th conditional write from now (0 is the next one), which is applied or not."""
        self._writes_left, self._applied = write, applied

    def __getattr__(self, verb: str) -> Any:
        found = getattr(self._inner, verb)
        if not callable(found):
            return found

        def request(path: str, *args: Any) -> Any:
            if self.dead:
                raise SimulatedCrash("this process is dead")
            if verb == "put_if_absent" and self._writes_left >= 0:
                self._writes_left -= 1
                if self._writes_left < 0:
                    self.dead = True
                    if self._applied:
                        found(path, *args)
                    raise SimulatedCrash("this process dies here")
            answer = found(path, *args)
            if verb == "put_if_absent" and self.lose_reply:
                self.lose_reply = False
                return PutOutcome.UNKNOWN
            return answer

        return request


@dataclass(eq=False)
class Instance:
    """A producer with a transactional.id, and the toy's knowledge of it."""

    store: Store
    mortal: Mortal
    producer: Producer
    transactional_id: str
    staged: bool
    fenced: bool = False
    txn: ToyTransaction | None = None
    metadata_of: dict[str, int] = field(default_factory=dict)


@dataclass(eq=False)
class Reader:
    """A consumer of one topic, and its position in the toy."""

    consumer: Consumer
    topic: str
    isolation: str
    assigned: list[TopicPartition]
    at: dict[TopicPartition, int]
    member: bool


def sent(producer: Producer, tp: TopicPartition, table: pa.Table) -> RecordMetadata:
    """Send rows, and return when the producer's thread is idle: it seals full segments after it has answered."""
    told = producer.send(tp.topic, table, partition=tp.partition).result()
    producer.flush()
    return told


class Machine(RuleBasedStateMachine):
    @initialize()
    def open_the_world(self) -> None:
        self.clock = ManualClock()
        self.memory = MemoryObjectStore(clock=self.clock)
        self.toy = Toy()
        self.opened: list[tuple[Store, Mortal]] = []
        self.value = 0
        self.newest: dict[str, Instance] = {}
        self.orphans: dict[str, ToyTransaction] = {}
        self.alive: list[Instance] = []
        self.reading: list[Reader] = []
        self.member: Reader | None = None
        self.admin, _ = self.open()
        self.admin.create_topic("a", SCHEMA, 2, {"segment.batches": 3})
        self.toy.create("a", 2)
        self.plain = self.admin.producer()
        self.new_instance("x", staged=False)
        self.new_instance("y", staged=True)

    def open(self) -> tuple[Store, Mortal]:
        mortal = Mortal(self.memory)
        store = txlog.open(
            "memory://",
            # The client reads metadata again only after an error: the toy does not count time.
            config={"linger.ms": 0, "metadata.max.age.ms": 10**9},
            clock=self.clock,
            ids=SeededIds(len(self.opened) + 1),
            object_store=cast(ObjectStore, mortal),
        )
        if not self.opened:
            # In such a store a group has one member. tests/client/test_members.py and lab/explore test groups of many.
            features = tuple(each for each in STORE_FEATURES if each != GROUP_MEMBERS)
            store.runtime.run(create_store(store.runtime.constants, features=features))
        # A repeated story is the same: one thread at a time makes requests, also in a round.
        runtime = store.runtime
        runtime.driver = Driver(runtime.store, runtime.clock, runtime.ids, threads=0)
        self.opened.append((store, mortal))
        return store, mortal

    def rows(self, count: int) -> tuple[list[int], pa.Table]:
        values = list(range(self.value, self.value + count))
        self.value += count
        return values, pa.table({"id": pa.array(values, pa.int64())}, schema=SCHEMA)

    # -- topics -------------------------------------------------------------------------------------------------------

    @rule(
        data=st.data(),
        change=st.sampled_from(["create", "create", "alter", "delete", "delete records"]),
        name=st.sampled_from(TOPICS),
        partitions=st.integers(1, 3),
        batches=st.integers(1, 4),
    )
    def change_topic(self, data: st.DataObject, change: str, name: str, partitions: int, batches: int) -> None:
        if change == "create":
            self.create_topic(name, partitions, batches)
        elif change == "alter" and name in self.toy.living():
            self.alter_topic(name, partitions, batches)
        elif change == "delete":
            self.delete_topic(name)
        elif change == "delete records":
            self.delete_records(data)

    def create_topic(self, name: str, partitions: int, batches: int) -> None:
        old = self.toy.topics.get(name)
        config = {"segment.batches": batches}
        if old is not None and (not old.deleted or partitions < len(old.partitions)):
            with pytest.raises(InvalidRequestError):
                self.admin.create_topic(name, SCHEMA, partitions, config)
            return
        self.admin.create_topic(name, SCHEMA, partitions, config)
        self.toy.create(name, partitions)

    def alter_topic(self, name: str, partitions: int, batches: int) -> None:
        wanted = max(partitions, len(self.toy.topics[name].partitions))
        self.admin.alter_topic(name, partitions=wanted, config={"segment.batches": batches})
        self.toy.add_partitions(name, wanted)

    def delete_topic(self, name: str) -> None:
        if name not in self.toy.living():
            with pytest.raises(UnknownTopicOrPartitionError):
                self.admin.topic(name)
            return
        for reader in [each for each in self.reading if each.topic == name]:
            self.close_reader(reader)
        self.admin.delete_topic(name)
        self.toy.delete(name)
        # A producer without a transaction does not notice the new topic, so a new producer replaces it.
        self.plain.close()
        self.plain = self.open()[0].producer()

    def delete_records(self, data: st.DataObject) -> None:
        tp = self.any_partition(data)
        if tp is None:
            return
        partition = self.toy.at(tp)
        before = data.draw(st.none() | st.integers(partition.log_start, partition.log_end))
        found = self.admin.admin().delete_records(tp.topic, tp.partition, before)
        if before is None:
            assert found <= partition.log_end, "a reader that has read everything is out of range"
            assert not any(slot.value is not None for slot in partition.slots[found:])
            before = found
        self.toy.move_log_start(tp, before)

    # -- producers ----------------------------------------------------------------------------------------------------

    @rule(data=st.data(), count=st.integers(1, 3), lost=st.booleans())
    def send_plainly(self, data: st.DataObject, count: int, lost: bool) -> None:
        tp = self.any_partition(data)
        if tp is None:
            return
        values, table = self.rows(count)
        self.opened_mortal(self.plain).lose_reply = lost
        told = sent(self.plain, tp, table)
        assert told.base_offset == self.toy.append(tp, values)

    @rule(transactional_id=st.sampled_from(IDS), staged=st.sampled_from([False, True, None]))
    def new_instance(self, transactional_id: str, staged: bool | None) -> None:
        store, mortal = self.open()
        producer = store.producer(transactional_id, staged=staged, transaction_timeout_ms=TIMEOUT_MS)
        producer.init_transactions()
        # Each send waits for its offset, so a transaction of its own choice sends its rows at once.
        instance = Instance(store, mortal, producer, transactional_id, bool(staged))
        older = self.newest.get(transactional_id)
        if older is not None:
            older.fenced = True
            self.abort_open(older.txn)
        self.abort_open(self.orphans.pop(transactional_id, None))
        self.newest[transactional_id] = instance
        self.alive.append(instance)

    def abort_open(self, txn: ToyTransaction | None) -> None:
        if txn is not None and txn.state == "open" and txn.attempted:
            self.toy.end(txn, commit=False)

    @precondition(lambda self: self.alive)
    @rule(
        data=st.data(),
        work=st.lists(st.sampled_from(["send", "send", "send", "offsets"]), min_size=1, max_size=4),
        end=st.sampled_from(["commit", "not yet", "crash inside", "abort", "commit", "crash inside", "crash"]),
        zombie=st.sampled_from([False, False, False, True]),
    )
    def transact(self, data: st.DataObject, work: list[str], end: str, zombie: bool) -> None:
        """Do some work in a transaction of any instance, fenced ones too, and perhaps end it."""
        wanted = [each for each in self.alive if each.fenced == zombie] or self.alive
        instance = data.draw(st.sampled_from(wanted), label="instance")
        if instance.txn is None:
            instance.producer.begin_transaction()
            instance.txn = ToyTransaction(instance.transactional_id)
        for each in work:
            if instance.txn is None or instance not in self.alive:
                return  # an error ended it
            if each == "send":
                self.send(instance, data, data.draw(st.integers(1, 3)), data.draw(st.booleans()))
            else:
                self.send_offsets(instance, data, data.draw(st.booleans()))
        if instance.txn is None or instance not in self.alive:
            return
        if end == "commit":
            self.commit(instance, data.draw(st.none() | st.integers(0, 4)), data.draw(st.booleans()))
        elif end == "abort":
            self.give_up(instance)
        elif end == "crash":
            self.crash(instance)
        elif end == "crash inside":
            self.crash_inside_a_commit(instance, data.draw(st.integers(0, 8)), data.draw(st.booleans()))

    def send(self, instance: Instance, data: st.DataObject, count: int, lost: bool) -> None:
        txn, tp = instance.txn, self.any_partition(data)
        assert txn is not None
        if tp is None:
            return
        values, table = self.rows(count)
        # An instance that read the metadata of the earlier topic gets the error when it writes.
        stale = (
            instance.metadata_of.setdefault(tp.topic, self.toy.topics[tp.topic].life) != self.toy.topics[tp.topic].life
        )
        instance.mortal.lose_reply = lost
        if instance.staged:
            try:
                told = sent(instance.producer, tp, table)
            except UnknownTopicOrPartitionError:
                assert stale
                instance.metadata_of.pop(tp.topic)
                self.give_up(instance)
                return
            assert told.base_offset == -1
            txn.staged.setdefault(tp, []).extend(values)
            txn.staged_life.setdefault(tp, instance.metadata_of[tp.topic])
            return
        if instance.fenced or txn.timed_out or stale:
            taken = False
            try:
                future = instance.producer.send(tp.topic, table, partition=tp.partition)
                taken = True
                future.result()
            except (FencedError, AbortableError, UnknownTopicOrPartitionError):
                pass
            else:
                raise AssertionError("rows of a transaction that is over, or for a topic that is gone, are in")
            if not instance.fenced and not txn.timed_out:
                # A partition that the earlier topic did not have is refused before it is registered.
                if taken:
                    self.toy.register(txn, tp)
                instance.metadata_of.pop(tp.topic)
            self.give_up(instance)
            return
        self.toy.register(txn, tp)
        told = sent(instance.producer, tp, table)
        assert told.base_offset == self.toy.append(tp, values, txn)

    def send_offsets(self, instance: Instance, data: st.DataObject, by_member: bool) -> None:
        txn, tp = instance.txn, self.any_partition(data)
        assert txn is not None
        if tp is None or (instance.staged and by_member):
            return
        offset = data.draw(st.integers(0, self.toy.at(tp).log_end))
        group: Any = GROUP
        valid = True
        if by_member and (members := [each for each in self.reading if each.member]):
            reader = data.draw(st.sampled_from(members))
            group, valid = reader.consumer.group_metadata(), reader is self.member
        if instance.staged:
            instance.producer.send_offsets_to_transaction({tp: offset}, group)
            txn.staged_offsets[tp] = offset
        elif instance.fenced or txn.timed_out:
            with pytest.raises((FencedError, AbortableError)):
                instance.producer.send_offsets_to_transaction({tp: offset}, group)
            self.give_up(instance)
        elif not valid:
            with pytest.raises(CommitFailedError):
                instance.producer.send_offsets_to_transaction({tp: offset}, group)
            self.toy.attempt(txn)
            self.give_up(instance)
        else:
            instance.producer.send_offsets_to_transaction({tp: offset}, group)
            self.toy.send_offsets(txn, {tp: offset})

    def commit(self, instance: Instance, version: int | None, lost: bool) -> None:
        txn = instance.txn
        assert txn is not None
        instance.mortal.lose_reply = lost
        if not (txn.attempted or txn.staged or txn.staged_offsets or version is not None):
            instance.producer.commit_transaction()
            instance.txn = None
        elif instance.fenced:
            with pytest.raises((FencedError, AbortableError)):
                instance.producer.commit_transaction(version=version)
            self.drop(instance)
        elif txn.timed_out:
            with pytest.raises(InvalidProducerEpochError):
                instance.producer.commit_transaction(version=version)
            self.give_up(instance)
        elif self.is_for_other_topics(instance, version):
            with pytest.raises(InvalidRequestError, match="was committed for"):
                instance.producer.commit_transaction(version=version)
            self.give_up(instance)
        elif self.is_too_late(txn) and not self.is_repeated(instance, version):
            with pytest.raises(UnknownTopicOrPartitionError):
                instance.producer.commit_transaction(version=version)
            for tp in txn.staged_life:
                instance.metadata_of.pop(tp.topic, None)
            self.give_up(instance)
        else:
            result = instance.producer.commit_transaction(version=version)
            last = self.toy.versions.get(instance.transactional_id, -1)
            assert result.skipped == (version is not None and version <= last)
            if version is not None and not result.skipped:
                self.toy.versions[instance.transactional_id] = version
                self.toy.topics_of_version[instance.transactional_id] = txn.topics
            self.toy.end(txn, commit=not result.skipped)
            instance.txn = None

    def is_too_late(self, txn: ToyTransaction) -> bool:
        """Return whether a topic for which it has staged rows was deleted since then."""
        return any(life != self.toy.topics[tp.topic].life for tp, life in txn.staged_life.items())

    def is_repeated(self, instance: Instance, version: int | None) -> bool:
        return version is not None and version <= self.toy.versions.get(instance.transactional_id, -1)

    def is_for_other_topics(self, instance: Instance, version: int | None) -> bool:
        """Return whether this version was committed for other topics, so that the rows would be lost (W31)."""
        name = instance.transactional_id
        if instance.txn is None or version is None or version != self.toy.versions.get(name, -1):
            return False
        committed, wanted = self.toy.topics_of_version[name], instance.txn.topics
        return bool(committed and wanted - committed)

    def give_up(self, instance: Instance) -> None:
        """Abort. A fenced instance whose transaction the coordinator knows cannot even abort."""
        txn = instance.txn
        assert txn is not None
        if instance.fenced:
            # The instance gets the error now, or got it before in a send.
            with contextlib.suppress(FencedError, AbortableError):
                instance.producer.abort_transaction()
            self.drop(instance)
            return
        instance.producer.abort_transaction()
        if txn.attempted and not txn.timed_out:
            self.toy.end(txn, commit=False)
        instance.txn = None

    def drop(self, instance: Instance) -> None:
        """Do not use this instance any more."""
        self.alive.remove(instance)
        with contextlib.suppress(FencedError, AbortableError, InvalidRequestError):
            instance.store.close()

    # -- faults -------------------------------------------------------------------------------------------------------

    def crash(self, instance: Instance) -> None:
        """Let the process die between two calls. What it left stays until another process comes."""
        instance.mortal.dead = True
        self.bury(instance)

    def bury(self, instance: Instance) -> None:
        self.alive.remove(instance)
        with contextlib.suppress(SimulatedCrash):
            instance.store.close()
        if self.newest.get(instance.transactional_id) is instance:
            del self.newest[instance.transactional_id]
            if instance.txn is not None and instance.txn in self.toy.open:
                self.orphans[instance.transactional_id] = instance.txn

    def crash_inside_a_commit(self, instance: Instance, write: int, applied: bool) -> None:
        txn = instance.txn
        if instance.fenced or txn is None or not txn.rows or txn.timed_out:
            return
        if self.is_too_late(txn):
            return
        if any(self.toy.topics[tp.topic].deleted for tp in txn.registered) or not self.shows(txn):
            return
        instance.mortal.die_at(write, applied=applied)
        try:
            instance.producer.commit_transaction()
        except SimulatedCrash:
            self.bury(instance)
            self.orphans.pop(instance.transactional_id, None)
            store, _ = self.open()
            with store.producer(instance.transactional_id):
                pass
            # The commit is atomic: one row decides, and `same_rows` checks the others.
            self.toy.end(txn, commit=self.is_visible(txn))
        else:
            instance.mortal.die_at(-1, applied=False)
            self.toy.end(txn, commit=True)
            instance.txn = None

    def values_of(self, txn: ToyTransaction) -> dict[int, TopicPartition]:
        """Return its rows above the log start."""
        found = {value: tp for tp, values in txn.staged.items() for value in values}
        for tp in txn.registered:
            partition = self.toy.at(tp)
            for slot in partition.slots[partition.log_start :]:
                if slot.txn is txn and slot.value is not None:
                    found[slot.value] = tp
        return found

    def shows(self, txn: ToyTransaction) -> bool:
        """Return whether its rows would show the commit: no other open transaction holds readers back."""
        return bool(self.values_of(txn)) and all(other is txn for other in self.toy.open)

    def is_visible(self, txn: ToyTransaction) -> bool:
        value, tp = next(iter(self.values_of(txn).items()))
        return any(row == value for _, row in self.rows_of(tp, "read_committed"))

    @precondition(lambda self: self.toy.open)
    @rule()
    def time_passes(self) -> None:
        """Let every transaction of the coordinator pass its timeout, and expire them."""
        self.clock.advance_ms(TIMEOUT_MS + 1000)
        self.admin.admin().expire()
        for txn in list(self.toy.open):
            txn.timed_out = True
            self.toy.end(txn, commit=False)
        self.orphans.clear()

    # -- consumers ----------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.toy.living() and not self.toy.pending and len(self.reading) < 4)
    @rule(data=st.data(), isolation=st.sampled_from(LEVELS), member=st.booleans())
    def new_reader(self, data: st.DataObject, isolation: str, member: bool) -> None:
        topic = data.draw(st.sampled_from(self.toy.living()))
        store, _ = self.open()
        consumer = store.consumer(
            topic,
            group_id=GROUP if member else None,
            isolation_level=isolation,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        assigned = self.toy.partitions(topic)
        assert list(consumer.assignment()) == assigned
        at = {}
        for tp in assigned:
            start = self.toy.at(tp).log_start
            at[tp] = self.toy.committed.get(tp, (0, start))[1] if member else start
            assert consumer.position(tp) == at[tp]
        reader = Reader(consumer, topic, isolation, assigned, at, member)
        self.reading.append(reader)
        if member:
            self.member = reader

    @precondition(lambda self: self.reading)
    @rule(data=st.data(), then=st.sampled_from(["nothing", "commit", "commit", "seek", "leave"]))
    def read(self, data: st.DataObject, then: str) -> None:
        reader = data.draw(st.sampled_from(self.reading), label="reader")
        self.read_on(reader)
        if then == "commit" and reader.member and not self.toy.pending:
            self.commit_offsets(reader)
        elif then == "seek":
            self.seek(reader, data)
        elif then == "leave":
            self.close_reader(reader)

    def read_on(self, reader: Reader) -> None:
        found: dict[TopicPartition, list[tuple[int, int]]] = {tp: [] for tp in reader.assigned}
        for batch in reader.consumer.iterate(0):
            for row in batch.to_pylist():
                found[TopicPartition(row["_topic"], row["_partition"])].append((row["_offset"], row["id"]))
        for tp in reader.assigned:
            partition = self.toy.at(tp)
            # The reader may still return rows that it looked up before the log start moved; they must not have changed.
            early = [row for row in found[tp] if row[0] < partition.log_start]
            assert early == [(at, partition.slots[at].value) for at, _ in early if at >= reader.at[tp]]
            if reader.at[tp] < partition.log_start or reader.at[tp] > partition.log_end:
                reader.at[tp] = partition.log_start
            assert found[tp][len(early) :] == self.toy.rows(tp, reader.isolation, reader.at[tp])
            end = self.toy.stable(tp) if reader.isolation == "read_committed" else partition.log_end
            reader.at[tp] = max(reader.at[tp], end)
            assert reader.consumer.position(tp) == reader.at[tp]

    def seek(self, reader: Reader, data: st.DataObject) -> None:
        tp = data.draw(st.sampled_from(reader.assigned))
        partition = self.toy.at(tp)
        reader.at[tp] = data.draw(st.integers(partition.log_start, partition.log_end))
        reader.consumer.seek(tp, reader.at[tp])

    def commit_offsets(self, reader: Reader) -> None:
        if reader is not self.member:
            with pytest.raises(CommitFailedError):
                reader.consumer.commit()
            return
        reader.consumer.commit()
        self.toy.commit_offsets(reader.at)

    def close_reader(self, reader: Reader) -> None:
        self.reading.remove(reader)
        if reader is self.member:
            self.member = None
        reader.consumer.close()

    # -- after every step ---------------------------------------------------------------------------------------------

    @invariant()
    def same_rows(self) -> None:
        store, _ = self.open()
        for name in self.toy.living():
            told = store.admin().list_offsets(name)
            assert list(told) == self.toy.partitions(name)
            for tp, info in told.items():
                partition = self.toy.at(tp)
                expected = (partition.log_start, self.toy.stable(tp), partition.log_end)
                assert (info.log_start_offset, info.last_stable_offset, info.log_end_offset) == expected, tp
                for isolation in LEVELS:
                    assert self.rows_of(tp, isolation, store) == self.toy.rows(tp, isolation), (tp, isolation)
        store.close()

    @invariant()
    def same_offsets(self) -> None:
        if self.toy.pending:
            return
        store, _ = self.open()
        tps = [tp for name in self.toy.living() for tp in self.toy.partitions(name)]
        if tps:
            found = store.consumer(group_id=GROUP, enable_auto_commit=False).committed(*tps)
            told = {tp: value.offset for tp, value in found.items() if value is not None}
            assert told == {tp: offset for tp, (_, offset) in self.toy.committed.items() if tp in tps}
        store.close()

    def rows_of(self, tp: TopicPartition, isolation: str, store: Store | None = None) -> list[tuple[int, int]]:
        store = store or self.open()[0]
        consumer = store.consumer(isolation_level=isolation, auto_offset_reset="earliest")
        consumer.assign([tp])
        return [(row["_offset"], row["id"]) for batch in consumer.iterate(0) for row in batch.to_pylist()]

    def any_partition(self, data: st.DataObject) -> TopicPartition | None:
        tps = [tp for name in self.toy.living() for tp in self.toy.partitions(name)]
        return data.draw(st.sampled_from(tps)) if tps else None

    def opened_mortal(self, producer: Producer) -> Mortal:
        return cast(Mortal, producer._runtime.store)

    def teardown(self) -> None:
        if hasattr(self, "opened"):
            for store, mortal in self.opened:
                mortal.dead = True
                with contextlib.suppress(BaseException):
                    store.close()


# Shrinking a story of fifty steps takes longer than a test may. HYPOTHESIS_PROFILE=explore does it by hand.
EXPLORE = os.environ.get("HYPOTHESIS_PROFILE") == "explore"
Machine.TestCase.settings = settings(
    max_examples=1000 if EXPLORE else 12,
    stateful_step_count=50,
    phases=tuple(Phase) if EXPLORE else (Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

TestMachine = Machine.TestCase


@pytest.mark.exhaustive
class TestManyStories(Machine.TestCase):  # type: ignore[misc,valid-type]
    settings = settings(Machine.TestCase.settings, max_examples=100)
