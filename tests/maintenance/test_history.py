"""The history of maintenance jobs: complete, in order, bounded, and never an obstacle for the jobs."""

from __future__ import annotations

import logging

import pyarrow as pa
import pytest

from lab.testing.damage import overwrite
from tests.client.world import World
from txlog.client import reading
from txlog.client.store import Store
from txlog.core import names
from txlog.core.cleaning import MergePolicy
from txlog.core.names import MAINTENANCE_FOLDER, TopicPartition
from txlog.errors import CorruptRecordError, InvalidRequestError
from txlog.inspection.objects import dump_object
from txlog.maintenance import history
from txlog.maintenance.fsck import check_store
from txlog.maintenance.history import read_history, recorded
from txlog.maintenance.merge import merge_partition
from txlog.protocol import history as protocol

SCHEMA = pa.schema([pa.field("id", pa.int64())])
TP = TopicPartition("orders", 0)


@pytest.fixture
def store(world: World) -> Store:
    opened = world.open()
    opened.create_topic("orders", SCHEMA, config={"segment.batches": 2})
    return opened


def test_a_merge_is_told_with_its_files_and_bytes(store: Store) -> None:
    with store.producer() as producer:
        for number in range(7):
            producer.send("orders", [{"id": number}]).result()
    session = reading.read_session(store.runtime)
    with recorded(store.runtime, "maintain") as recorder, recorder.over(TP, "merge"):
        (merged,) = merge_partition(store.runtime, session, TP, MergePolicy(target_bytes=2**20))
        recorder.add_outcome(TP, merged)
    (row,) = read_history(store.runtime)
    step = row.step
    assert (step.job, step.topic, step.partition, step.outcome) == ("merge", "orders", 0, "published")
    assert (step.base_offset, step.end_offset, step.generation) == (0, 6, 1)
    assert (step.input_files, step.output_files, step.rows_written) == (3, 1, 6)
    assert (step.bytes_read, step.bytes_written) == (merged.bytes_before, merged.bytes)
    assert step.started_at <= step.ended_at
    assert row.by.rpartition(":")[2].isdigit()
    (name,) = store.runtime.store.list(MAINTENANCE_FOLDER)
    shown = dump_object(store.runtime, MAINTENANCE_FOLDER + name)
    assert shown.kind == "history"
    assert shown.explanation[1] == "orders-0: merge, published, offsets 0 to 5."
    assert not check_store(store.runtime.store).damaged


def test_what_did_nothing_leaves_nothing(store: Store) -> None:
    with recorded(store.runtime, "merge"):
        pass
    assert store.runtime.store.list(MAINTENANCE_FOLDER) == []
    assert read_history(store.runtime) == []


def test_a_failure_is_told_and_goes_on(store: Store) -> None:
    def fails() -> None:
        with recorded(store.runtime, "compact") as recorder:
            recorder.add(TP, "published")
            with recorder.over(TP):
                raise CorruptRecordError("orders/0/x.index: checksum")

    with pytest.raises(CorruptRecordError):
        fails()
    failed, published = (row.step for row in read_history(store.runtime))
    assert (failed.outcome, failed.message) == ("failed", "orders/0/x.index: checksum")
    assert published.outcome == "published"


def test_the_newest_come_first_and_can_be_chosen(world: World, store: Store) -> None:
    for number, job in enumerate(["merge", "vacuum", "merge"]):
        with recorded(store.runtime, job) as recorder:
            recorder.add(TopicPartition("orders" if number else "audit", number), "published")
        world.clock.advance_ms(1000)

    def found(**which: object) -> list[int]:
        return [row.step.partition for row in read_history(store.runtime, **which)]  # type: ignore[arg-type]

    assert found() == [2, 1, 0]
    assert found(limit=2) == [2, 1]
    assert found(jobs=["merge"]) == [2, 0]
    assert found(jobs=["merge"], limit=1) == [2]
    assert found(topics=["audit"]) == [0]
    assert found(topics=["elsewhere"]) == []


def test_the_oldest_go_when_there_are_too_many(world: World, store: Store) -> None:
    runtime = store.runtime
    for number in range(6):
        with recorded(runtime, "merge") as recorder:
            recorder.add(TopicPartition("orders", number), "published")
        world.clock.advance_ms(1000)
    (newest,) = runtime.run(protocol.read_runs(runtime.run(protocol.list_runs())[-1:]))
    runtime.run(protocol.put_run(runtime.context(), newest, keep=4))
    assert [row.step.partition for row in read_history(runtime)] == [5, 4, 3, 2]


def test_of_a_run_with_very_many_steps_those_that_failed_stay(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MAX_STEPS", 3)
    with recorded(store.runtime, "merge") as recorder:
        for number in range(5):
            recorder.add(TopicPartition("orders", number), "published" if number != 4 else "failed")
    assert {row.step.partition for row in read_history(store.runtime)} == {4, 0, 1}


def test_a_store_that_takes_no_history_fails_no_clean_up(world: World, caplog: pytest.LogCaptureFixture) -> None:
    outage, opened = world.outage()
    outage.pattern = f"put_if_absent {MAINTENANCE_FOLDER}"
    with caplog.at_level(logging.WARNING), recorded(opened.runtime, "merge") as recorder:
        recorder.add(TP, "published")
    assert "is not in the history" in caplog.text


def test_fsck_reads_it_and_a_swapped_one_is_refused(store: Store) -> None:
    with recorded(store.runtime, "merge") as recorder:
        recorder.add(TP, "published")
    objects = store.runtime.store
    (name,) = objects.list(MAINTENANCE_FOLDER)
    data = objects.get(MAINTENANCE_FOLDER + name)
    assert data is not None
    other = MAINTENANCE_FOLDER + names.history_name(7, "0" * 32)
    overwrite(objects, other, data)
    report = check_store(objects)
    assert [found.path for found in report.findings if found.kind == "damaged"] == [other]
    with pytest.raises(CorruptRecordError, match="swapped"):
        read_history(store.runtime)
    overwrite(objects, other, data[:-40])
    assert check_store(objects).damaged == 1
    objects.delete(other)
    overwrite(objects, MAINTENANCE_FOLDER + "readme", b"")
    assert [found.found for found in check_store(objects).findings if found.path == MAINTENANCE_FOLDER] == [
        "other names: readme"
    ]
    with pytest.raises(InvalidRequestError, match="is not the name of an object"):
        dump_object(store.runtime, MAINTENANCE_FOLDER + "readme")


def test_names_come_back_as_they_went() -> None:
    name = names.history_name(1_764_000_000_000, "ab" * 16)
    assert names.parse_history_name(name) == (1_764_000_000_000, "ab" * 16)
    assert names.parse_history_name("1-" + "ab" * 16 + ".json") is None
    assert names.parse_history_name(name[:-1]) is None
