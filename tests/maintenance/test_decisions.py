"""Every decision that is still stored is compared with its markers, even after its id has begun new transactions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
import pytest

from lab.testing.damage import overwrite
from tests.client.world import ORDERS, World, orders, tp
from tests.maintenance import damage as d
from txlog.client.producer import Producer
from txlog.core import envelope, names, records
from txlog.core.records import TransactionMetadata
from txlog.maintenance.fsck import FsckReport, check_store
from txlog.maintenance.fsck.decisions import Decisions, ExpectedMarkers, SeenMarkers, compare
from txlog.maintenance.fsck.findings import Finding
from txlog.storage.memory import MemoryObjectStore

TABLE = "__transaction_state/0/"
OFFSETS = "__consumer_offsets/0/"


@dataclass(slots=True)
class Pipeline:
    """One id that moves rows, with offsets in the transaction, into a topic to which another id writes, too."""

    world: World = field(default_factory=World)

    def __post_init__(self) -> None:
        store = self.world.open(**{"transaction.state.log.num.partitions": 1, "offsets.topic.num.partitions": 1})
        store.create_topic("orders", ORDERS)

    @property
    def memory(self) -> MemoryObjectStore:
        return self.world.memory

    def producer(self, name: str = "pipeline") -> Producer:
        """Return a producer of a new process."""
        return self.world.open().producer(name)

    def run(self, number: int, *, commit: bool = True, name: str = "pipeline") -> None:
        with self.producer(name) as producer:
            producer.begin_transaction()
            producer.send("orders", orders(number)).result()
            producer.send_offsets_to_transaction({tp("orders", 0): number}, "group")
            self.world.clock.advance_ms(1)  # so that the decision is younger than its rows
            if commit:
                producer.commit_transaction()
            else:
                producer.abort_transaction()

    def last(self, folder: str) -> str:
        return folder + max(name for name in self.memory.list(folder) if name.endswith(".batch"))

    def delete_last(self, folder: str = "orders/0/") -> str:
        """Delete the last record of a partition and return its path."""
        path = self.last(folder)
        self.memory.delete(path)
        return path

    def delete_folder(self, folder: str) -> None:
        for path in d.objects_of(self.memory, folder):
            self.memory.delete(path)

    def marker(self, path: str) -> records.CommitRecord:
        data = self.memory.get(path)
        assert data is not None
        return envelope.decode(data, records.CommitRecord, path)[0]

    def check(self, **more: Any) -> FsckReport:
        return check_store(self.memory, clock=self.world.clock, **more)


@pytest.fixture
def pipeline() -> Iterator[Pipeline]:
    made = Pipeline()
    yield made
    made.world.close()


def missing(report: FsckReport, folder: str) -> Finding:
    found = [each for each in report.findings if each.kind == "missing" and each.path.startswith(folder)]
    assert len(found) == 1, report.findings
    return found[0]


@pytest.mark.parametrize("commit", [True, False], ids=["then a commit", "then an abort"])
@pytest.mark.parametrize("lost", [True, False], ids=["a COMMIT", "an ABORT"])
def test_a_marker_is_deleted_and_its_id_goes_on(pipeline: Pipeline, lost: bool, commit: bool) -> None:
    """The next transaction's row takes the slot, and its epoch is higher: only the decision shows the loss."""
    pipeline.run(1)
    pipeline.run(2, commit=lost)
    assert pipeline.check().is_clean
    assert pipeline.marker(pipeline.last("orders/0/")).kind == ("commit" if lost else "abort")
    path = pipeline.delete_last()
    assert f"restore {path} from a copy" in missing(pipeline.check(), "orders/0/").advice
    pipeline.run(3, commit=commit)
    pipeline.run(4)
    found = missing(pipeline.check(), "orders/0/")
    assert f"the {'COMMIT' if lost else 'ABORT'} of producer 0, epoch " in found.expected
    assert "transactional.id 'pipeline'" in found.expected
    assert found.advice.startswith("stop every writer first, and compare the folder with a copy.")
    assert f"restore those from orders/0/{names.batch_name(pipeline.world.ends()[2])} on" in found.advice
    assert "no single object helps" in found.advice
    assert found.count == 1


def test_a_marker_is_deleted_and_another_id_goes_on(pipeline: Pipeline) -> None:
    pipeline.run(1)
    pipeline.delete_last()
    pipeline.run(2, name="other")
    assert "transactional.id 'pipeline'" in missing(pipeline.check(), "orders/0/").expected


def test_a_partition_is_deleted_and_written_to_again(pipeline: Pipeline) -> None:
    for number in range(3):
        pipeline.run(number)
    pipeline.delete_folder("orders/0/")
    pipeline.run(3)
    report = pipeline.check()
    assert report.missing == 1
    assert missing(report, "orders/0/").count == 3


def test_a_group_beyond_the_end_is_explained(pipeline: Pipeline) -> None:
    pipeline.run(5)
    found = [each.found for each in pipeline.check().findings if each.kind == "note"]
    assert found == ["group 'group' continues at offset 5 of orders-0, whose log ends at 2"]


def test_committed_offsets_are_deleted_and_the_pipeline_runs_again(pipeline: Pipeline) -> None:
    for number in range(3):
        pipeline.run(number)
    pipeline.delete_folder("__consumer_offsets/")
    assert missing(pipeline.check(), OFFSETS).count == 3
    pipeline.run(3)
    found = missing(pipeline.check(), OFFSETS)
    assert found.count == 3
    assert "which ends at offset 2" in found.found


def test_a_marker_of_committed_offsets_is_deleted_and_the_pipeline_goes_on(pipeline: Pipeline) -> None:
    pipeline.run(1)
    pipeline.run(2)
    pipeline.delete_last(OFFSETS)
    pipeline.run(3)
    assert missing(pipeline.check(), OFFSETS).count == 1


def test_sealed_segments_are_looked_at_too(pipeline: Pipeline) -> None:
    """fsck compares the decisions of a sealed table with markers in sealed segments, and finds all of them."""
    pipeline.world.open().alter_topic("orders", config={"segment.batches": 3})
    for number in range(12):
        pipeline.run(number, commit=number % 3 != 0)
    assert pipeline.check().is_clean
    assert any(name.endswith(".index") for name in pipeline.memory.list("orders/0/"))


@pytest.mark.parametrize("epochs", [1, 3])
def test_an_older_marker_of_the_other_kind(pipeline: Pipeline, epochs: int) -> None:
    """A COMMIT where the decision was ABORT has a right checksum if it is the last record."""
    pipeline.run(1, commit=False)
    path = pipeline.last("orders/0/")
    changes = {"kind": "commit", "first_offset": -1, "last_stable_offset": -1}
    changed = msgspec.structs.replace(pipeline.marker(path), **changes)
    overwrite(pipeline.memory, path, envelope.encode(changed))
    for number in range(1, epochs):
        pipeline.run(number)
    (found,) = [each for each in pipeline.check().findings if each.kind == "damaged"]
    assert found.path == path
    assert "the ABORT of producer 0, epoch 1" in found.expected
    assert found.found == "a marker of kind commit"


def test_a_marker_of_another_decision(pipeline: Pipeline) -> None:
    pipeline.run(1)
    path = pipeline.last("orders/0/")
    marker = pipeline.marker(path)
    overwrite(pipeline.memory, path, envelope.encode(msgspec.structs.replace(marker, coordinator_epoch=0)))
    pipeline.run(2)
    (found,) = [each for each in pipeline.check().findings if each.kind == "damaged"]
    assert found.path == path
    assert found.found == "a marker of the decision at offset 0"


def test_decisions_are_deleted_and_their_id_goes_on(pipeline: Pipeline) -> None:
    """In the other direction: the marker exists, and the table has another record at the offset to which it points."""
    pipeline.run(1)
    decided = pipeline.marker(pipeline.last("orders/0/")).coordinator_epoch
    while pipeline.delete_last(TABLE) != TABLE + names.batch_name(decided):
        pass
    pipeline.run(2, name="other")
    pipeline.run(3, name="other")
    found = missing(pipeline.check(), TABLE)
    assert found.path == TABLE + names.batch_name(decided)
    assert "the PREPARE_COMMIT of producer 0, epoch 1" in found.expected
    assert found.found == "another record is stored there"


def test_a_decision_that_is_not_rolled_forward_is_a_note(pipeline: Pipeline) -> None:
    pipeline.run(1)
    pipeline.delete_last()  # the marker ...
    pipeline.delete_last(TABLE)  # ... and COMPLETE_COMMIT
    report = pipeline.check()
    assert report.is_clean
    assert any("PREPARE_COMMIT: decided" in each.found for each in report.findings)
    pipeline.run(2)
    assert pipeline.check().is_clean


def test_a_topic_that_was_deleted_since(pipeline: Pipeline) -> None:
    pipeline.run(1)
    pipeline.delete_last()
    pipeline.world.open().delete_topic("orders")
    report = pipeline.check()
    assert not [each for each in report.findings if each.path.startswith("orders/")]


def test_what_a_clean_up_dropped_need_not_be_there() -> None:
    """The golden store's first segments are one cleaned run. Vacuum deleted their slots, and then their indexes."""
    objects = {
        path: data
        for path, data in d.golden().items()
        if not (path.startswith("orders/0/") and path.endswith("-0.index"))
    }
    assert d.checked(objects).is_clean


# -- the arrays -------------------------------------------------------------------------------------------------------


def value(state: Any, epoch: int, **more: Any) -> TransactionMetadata:
    return TransactionMetadata(
        transactional_id="t", producer_id=7, producer_epoch=epoch, state=state, timeout_ms=1, write_id="w", **more
    )  # fmt: skip


def test_compare() -> None:
    expected, seen = ExpectedMarkers(), SeenMarkers()
    assert compare(expected, seen).missing == ()
    for epoch in range(4):
        expected.add(0, 10 * epoch, value("PREPARE_ABORT" if epoch == 3 else "PREPARE_COMMIT", epoch))
    common: dict[str, Any] = {"records": 0, "producer_id": 7, "timestamp": 0, "transactional": True}
    markers: tuple[tuple[int, Literal["commit", "abort"], int], ...]
    markers = ((0, "commit", 0), (1, "commit", 99), (3, "commit", 30), (8, "abort", 50))
    for epoch, kind, decided in markers:
        seen.add(
            records.CommitRecord(
                **common, base_offset=epoch, segment_base=0, write_id="w", previous="", kind=kind, producer_epoch=epoch,
                coordinator_epoch=decided,
            ),
            epoch,
        )  # fmt: skip
    seen.add(
        records.IndexEntry(**common, base_offset=0, kind="commit", producer_epoch=0, base_sequence=-1, file=None), 0
    )
    seen.add(
        records.IndexEntry(**common, base_offset=9, kind="commit", producer_epoch=9, base_sequence=-1, file=None), 0
    )
    found = compare(expected, seen)
    assert found.missing == (2,)
    assert found.other == ((1, 1), (3, 2))
    assert found.uncalled == (3,)
    assert (expected[3].is_commit, expected[3].prepared_at) == (False, 30)
    assert (seen[1].coordinator_epoch, seen[4].coordinator_epoch) == (99, -1)


def test_a_snapshot_without_an_id_ends_its_decision() -> None:
    followed = Decisions(0)
    row = records.TransactionRow(offset=3, value=value("PREPARE_COMMIT", 1, partitions=(("orders", 0),)))
    snapshot = records.Snapshot(
        partition="__transaction_state-0", offset=5, log_start_offset=0, last_timestamp=0, last_digest="",
        transactions=(row,),
    )  # fmt: skip
    followed.take_snapshot(snapshot)
    assert dict(followed.expected()) == {}
    followed.take_snapshot(msgspec.structs.replace(snapshot, offset=9, transactions=()))
    ((target, markers),) = followed.expected()
    assert target == tp("orders", 0)
    assert (len(markers), markers[0].prepared_at) == (1, 3)
