"""Records that wait: which of them a leader takes, at each bound, which it leaves out, and who is answered how."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest

from lab.explore.alone import run_alone
from lab.explore.client import idempotent, send
from lab.explore.combining import lead, shared
from lab.explore.scene import A, Scene, context
from lab.explore.world import START_MS
from lab.simulate.cluster import Fault
from tests.protocol.harness import Cluster, Process, rolling
from txlog.core.append_rules import BatchDraft, RollPolicy, next_control, next_record
from txlog.core.combining import MAX_FOLLOWING, Followed, combine, may_wait
from txlog.core.effects import Effect, List
from txlog.core.features import COMBINED_RECORDS, STORE_FEATURES
from txlog.core.names import WAITING_FOLDER, TopicPartition, batch_name, waiting_path
from txlog.core.record_checks import StoredRecord
from txlog.core.records import DataFile
from txlog.errors import StoreChangedError
from txlog.protocol import waiting as waiting_programs
from txlog.protocol.context import PartitionView
from txlog.protocol.load import load
from txlog.protocol.slot_record import encode_checked, encode_combined

PID = 2**62 + 5


def waiting(view: PartitionView, word: str = "w", sequence: int = 0) -> StoredRecord:
    """Return a batch that waits for the end of the view."""
    payload = json.dumps([word]).encode()
    draft = BatchDraft(records=1, producer_id=PID, producer_epoch=0, base_sequence=sequence, payload=payload)
    record = next_record(view.state, draft, now_ms=START_MS, write_id=f"{sequence:032x}")
    return encode_checked(A, record, payload)


def may_be_taken(view: PartitionView, batch: StoredRecord) -> bool:
    """Return whether a leader with this view takes the batch."""
    followed = Followed(view.base, view.tail)
    taken = combine(view.state, followed, [batch], roll=RollPolicy(), now_ms=START_MS)
    return bool(taken)


def opened(cluster: Cluster) -> PartitionView:
    return cluster.run(load(context(), A))


def writer(cluster: Cluster, batches: int = 10**9) -> Process:
    process = Process(cluster, ctx=rolling(batches))
    process.do(process.idempotent())
    return process


@pytest.mark.parametrize(("following", "taken"), [(0, True), (MAX_FOLLOWING - 1, True), (MAX_FOLLOWING, False)])
def test_a_batch_is_taken_until_enough_records_follow(following: int, taken: bool) -> None:
    cluster = Cluster()
    other = writer(cluster)
    other.do(other.send(A, "before"))
    batch = waiting(opened(cluster))
    for number in range(following):
        other.do(other.send(A, str(number)))
    assert may_be_taken(opened(cluster), batch) is taken


@pytest.mark.parametrize(("expired", "taken"), [((), True), ((PID + 1,), True), ((PID,), False)])
def test_only_an_expiry_of_its_producer_stops_a_batch(expired: tuple[int, ...], taken: bool) -> None:
    cluster = Cluster()
    view = opened(cluster)
    batch = waiting(view)
    expire = next_control(view.state, now_ms=START_MS, write_id="e" * 32, expired=expired)
    assert may_be_taken(view.extended((encode_checked(A, expire),)), batch) is taken


def test_a_batch_of_another_history_is_not_taken() -> None:
    """The store was put back, and went on with other records."""
    first, second = Cluster(), Cluster()
    for cluster, word in ((first, "a"), (second, "b")):
        process = writer(cluster)
        process.do(process.send(A, word))
    batch = waiting(opened(first))
    assert may_be_taken(opened(first), batch)
    assert not may_be_taken(opened(second), batch)


def test_a_batch_behind_the_sealed_end_is_not_taken() -> None:
    cluster = Cluster()
    batch = waiting(opened(cluster))
    other = writer(cluster, batches=1)
    other.do(other.send(A, "a"))
    other.do(other.send(A, "b"))
    view = opened(cluster)
    assert view.sealed_end > batch.record.base_offset
    assert not may_be_taken(view, batch)


def test_a_batch_that_names_files_does_not_wait() -> None:
    file = DataFile(path="x", rows=1, bytes=1, digest=None, footer_digest="f" * 64, row_groups=(1,))
    batch = waiting(opened(Cluster()))
    assert may_wait(A, batch)
    assert not may_wait(A, replace(batch, record=msgspec.structs.replace(batch.record, files=(file,))))
    of_coordinator = msgspec.structs.replace(batch.record, files=(file,), producer_id=5, transactional=True)
    assert may_wait(A, replace(batch, record=of_coordinator))


def test_each_batch_is_judged_behind_those_before_it() -> None:
    view = opened(Cluster())
    batches = [waiting(view, word, sequence) for sequence, word in enumerate("abc")]
    given = [batches[0], batches[2], batches[0], batches[1]]
    placed = combine(view.state, Followed(view.base, view.tail), given, roll=RollPolicy(), now_ms=START_MS)
    found = encode_combined(A, placed)
    assert [(each.record.base_offset, each.record.base_sequence) for each in found] == [(0, 0), (1, 1)]
    assert found[1].record.previous == found[0].digest
    assert [json.loads(each.payload) for each in found] == [["a"], ["b"]]


def name_of(batch: StoredRecord) -> str:
    path = waiting_path(A, batch.record.base_offset, batch.record.write_id)
    return path.removeprefix(A.folder + WAITING_FOLDER)


BROKEN: dict[str, Callable[[StoredRecord], tuple[str, bytes]]] = {
    "damaged": lambda batch: (name_of(batch), batch.data[:-1] + b"x"),
    "cut off": lambda batch: (name_of(batch), batch.data[:40]),
    "of another slot": lambda batch: (name_of(batch).replace("0001-", "0007-"), batch.data),
    "of another kind": lambda batch: ("README", b"what is this?"),
}


@pytest.mark.parametrize("what", sorted(BROKEN))
def test_a_broken_object_is_left_out_and_stops_no_leader(what: str) -> None:
    scene = Scene(ctx=shared())
    scene.before("other", scene.client(), idempotent(), send(A, "o"))
    _, view = run_alone(scene.world, scene.store, START_MS, load(scene.ctx, A))
    name, data = BROKEN[what](waiting(view, "broken", 0))
    good = waiting(view, "good", 0)
    good = replace(good, record=msgspec.structs.replace(good.record, write_id="a" * 32))
    good = encode_checked(A, good.record, good.payload)
    store = scene.world.put(scene.store, A.folder + WAITING_FOLDER + name, data)
    store = scene.world.put(store, A.folder + WAITING_FOLDER + name_of(good), good.data)
    after, _ = run_alone(scene.world, store, START_MS, lead(A)(scene.client()))
    assert _words(scene, after, A) == ["o", "good"]


def _words(scene: Scene, store: int, tp: TopicPartition) -> list[str]:
    _, view = run_alone(scene.world, store, START_MS, load(scene.ctx, tp))
    return [word for stored in view.tail for word in json.loads(stored.payload)]


class Busy:
    """A writer that appends again and again, and what it lists."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self.process = Process(self.cluster, ctx=replace(rolling(10**9), features=(COMBINED_RECORDS, *STORE_FEATURES)))
        self.process.do(self.process.idempotent())

    def appends(self, times: int, pause_ms: int) -> int:
        """Append so often, and return how many LISTs of what waits that made."""
        before = len(self.cluster.requests)
        for number in range(times):
            self.cluster.pass_ms(pause_ms)
            self.process.do(self.process.send(A, f"{number}"))
        lists = [each for each in self.cluster.requests[before:] if isinstance(each, List)]
        return sum(each.prefix.endswith(WAITING_FOLDER) for each in lists)


@pytest.mark.parametrize(("pause_ms", "looks"), [(100, 2), (400, 10), (1500, 0)])
def test_a_writer_looks_for_others_only_while_it_leaves_them_no_gap(pause_ms: int, looks: int) -> None:
    """W69: about once a second, and not at all at a slower pace."""
    busy = Busy()
    busy.appends(1, 0)
    assert busy.appends(20, pause_ms) == looks


def test_a_busy_writer_that_finds_others_takes_them_with_it() -> None:
    busy = Busy()
    busy.appends(1, 0)
    batch = waiting(opened(busy.cluster), "of another")
    busy.cluster.objects[A.folder + WAITING_FOLDER + name_of(batch)] = batch.data
    busy.appends(12, 100)
    words = [json.loads(each.payload) for each in busy.cluster.batches(A)]
    assert ["of another"] in words
    assert len(words) == 14


def test_a_look_that_fails_is_no_answer_to_the_append() -> None:
    busy = Busy()
    busy.appends(1, 0)

    def faults(_: int, effect: Effect) -> Fault | None:
        return "error" if isinstance(effect, List) and effect.prefix.endswith(WAITING_FOLDER) else None

    busy.process.faults = faults
    assert busy.appends(12, 100) >= 1
    assert len(busy.cluster.batches(A)) == 13


def leading(cluster: Cluster, desk: waiting_programs.Desk, steps: int) -> int:
    """Run a leader's appends for so many requests and pauses, and return how many it made."""
    program = waiting_programs.lead_on(replace(rolling(10**9), features=(COMBINED_RECORDS, *STORE_FEATURES)), desk)
    answer: object = None
    for step in range(steps):
        try:
            effect = program.send(answer)
        except StopIteration:
            return step
        answer = cluster.perform(effect)
    return steps


def test_a_leader_that_is_closed_while_it_appends_stays_closed() -> None:
    cluster = Cluster()
    desk = waiting_programs.Desk(opened(cluster))
    desk.ready = [waiting(desk.view)]
    desk.is_open = True
    closing = desk.ready[0]

    class Closes(list[StoredRecord]):
        def __getitem__(self, at: object) -> list[StoredRecord]:  # type: ignore[override]
            desk.is_open = False
            return [closing]

    desk.ready = Closes([closing])
    assert leading(cluster, desk, 100) < 100
    assert len(cluster.batches(A)) == 1


def test_a_leader_stops_although_what_is_left_is_refused() -> None:
    cluster = Cluster()
    desk = waiting_programs.Desk(opened(cluster))
    gap = waiting(desk.view, sequence=1)
    desk.ready, desk.idle_looks = [gap], 10**6
    assert leading(cluster, desk, 1000) < 20
    assert cluster.batches(A) == []


def test_a_leader_looks_whether_the_chain_still_holds_its_end() -> None:
    """W47: the store was put back while the leader slept."""
    cluster = Cluster()
    other = writer(cluster)
    for word in "ab":
        other.do(other.send(A, word))
    desk = waiting_programs.Desk(opened(cluster))
    desk.ready = [waiting(desk.view)]
    del cluster.objects[A.folder + batch_name(1)]
    cluster.pass_ms(5000)
    ctx = replace(rolling(10**9), features=(COMBINED_RECORDS, *STORE_FEATURES))
    with pytest.raises(StoreChangedError):
        cluster.run(waiting_programs.lead_on(ctx, desk))
    assert len(cluster.batches(A)) == 1


def test_a_batch_that_is_older_than_what_the_partition_keeps_is_settled() -> None:
    cluster = Cluster()
    view = opened(cluster)
    batch = waiting(view)
    for sequence in range(7):
        view = view.extended((waiting(view, "w", sequence),))
    assert Followed(view.base, view.tail).settles(view.state, batch)
