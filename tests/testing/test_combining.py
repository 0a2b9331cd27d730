"""The prototype of combined records: which waiting batches a leader takes, at each bound, and which it leaves out."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest

from lab.combining import programs
from lab.combining.rules import MAX_FOLLOWING, combined, folder, may_be_taken, waiting_name
from lab.explore.alone import run_alone
from lab.explore.client import idempotent, send
from lab.explore.scene import A, Scene, context
from lab.explore.world import START_MS
from tests.protocol.harness import Cluster, Process, rolling
from txlog.core.append_rules import BatchDraft, next_control, next_record
from txlog.core.names import TopicPartition
from txlog.core.record_checks import StoredRecord
from txlog.core.records import DataFile
from txlog.protocol.context import PartitionView
from txlog.protocol.load import load
from txlog.protocol.slot import encode_checked

PID = 2**62 + 5


def waiting(view: PartitionView, word: str = "w", sequence: int = 0) -> StoredRecord:
    """Return a batch that waits for the end of the view."""
    payload = json.dumps([word]).encode()
    draft = BatchDraft(records=1, producer_id=PID, producer_epoch=0, base_sequence=sequence, payload=payload)
    record = next_record(view.state, draft, now_ms=START_MS, write_id=f"{sequence:032x}")
    return encode_checked(A, record, payload)


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


def test_a_batch_that_names_files_is_not_taken() -> None:
    view = opened(Cluster())
    file = DataFile(path="x", rows=1, bytes=1, digest=None, footer_digest="f" * 64, row_groups=(1,))
    batch = waiting(view)
    assert may_be_taken(view, batch)
    assert not may_be_taken(view, replace(batch, record=msgspec.structs.replace(batch.record, files=(file,))))


def test_each_batch_is_judged_behind_those_before_it() -> None:
    view = opened(Cluster())
    batches = [waiting(view, word, sequence) for sequence, word in enumerate("abc")]
    found = combined(view, [batches[0], batches[2], batches[0], batches[1]], START_MS)
    assert [(each.record.base_offset, each.record.base_sequence) for each in found] == [(0, 0), (1, 1)]
    assert found[1].record.previous == found[0].digest
    assert [json.loads(each.payload) for each in found] == [["a"], ["b"]]


BROKEN: dict[str, Callable[[StoredRecord], tuple[str, bytes]]] = {
    "damaged": lambda batch: (waiting_name(batch), batch.data[:-1] + b"x"),
    "cut off": lambda batch: (waiting_name(batch), batch.data[:40]),
    "of another slot": lambda batch: (waiting_name(batch).replace("0001-", "0007-"), batch.data),
    "of another kind": lambda batch: ("README", b"what is this?"),
}


@pytest.mark.parametrize("what", sorted(BROKEN))
def test_a_broken_object_is_left_out_and_stops_no_leader(what: str) -> None:
    scene = Scene()
    scene.before("other", scene.client(), idempotent(), send(A, "o"))
    _, view = run_alone(scene.world, scene.store, START_MS, load(scene.ctx, A))
    name, data = BROKEN[what](waiting(view, "broken", 0))
    good = waiting(view, "good", 0)
    good = replace(good, record=msgspec.structs.replace(good.record, write_id="a" * 32))
    good = encode_checked(A, good.record, good.payload)
    store = scene.world.put(scene.store, folder(A) + name, data)
    store = scene.world.put(store, folder(A) + waiting_name(good), good.data)
    after, _ = run_alone(scene.world, store, START_MS, programs.lead(scene.ctx, {}, A))
    assert _words(scene, after, A) == ["o", "good"]


def test_a_writer_that_waits_is_answered_by_the_record_of_another() -> None:
    scene = Scene()
    one = scene.before("one", scene.client(), idempotent())
    draft = BatchDraft(
        records=1, producer_id=one.pid, producer_epoch=0, base_sequence=0, payload=json.dumps(["w"]).encode()
    )
    store, (views, batch) = run_alone(scene.world, scene.store, START_MS, programs.wait(scene.ctx, {}, A, draft))
    path = folder(A) + waiting_name(batch)
    assert path in scene.world.files(store)
    _, (_, nothing) = run_alone(scene.world, store, START_MS, programs.answered(scene.ctx, views, A, batch))
    assert nothing is None
    store, _ = run_alone(scene.world, store, START_MS, programs.lead(scene.ctx, {}, A))
    store, (_, found) = run_alone(scene.world, store, START_MS, programs.answered(scene.ctx, views, A, batch))
    assert (found.base_offset, found.records) == (0, 1)
    assert path not in scene.world.files(store)


def _words(scene: Scene, store: int, tp: TopicPartition) -> list[str]:
    _, view = run_alone(scene.world, store, START_MS, load(scene.ctx, tp))
    return [word for stored in view.tail for word in json.loads(stored.payload)]
