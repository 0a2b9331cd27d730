"""One loop goes through the partitions of every verb: which failures does it survive, and when does it end?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import txlog
from txlog.client import Store, TopicPartition
from txlog.client.reading import read_session
from txlog.core.cleaning import MergePolicy
from txlog.errors import MissingObjectError, TxlogError, TxlogTimeoutError
from txlog.maintenance import merge as verb
from txlog.maintenance.history import read_history, record
from txlog.maintenance.merge import Merged, merge_partitions, plan_partition, publish_merge
from txlog.maintenance.partition_loop import gather, look_over
from txlog.storage.open import open_object_store
from txlog.testing.failing_store import FailingStore, Fault

FAST = {"fsync": False}
PARTITIONS = [TopicPartition("events", number) for number in range(4)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a store with four partitions of three sealed segments each, and a tail."""
    with txlog.open(tmp_path, storage_options=FAST) as store:
        store.create_topic("events", partitions=4, config={"segment.batches": 2})
        with store.producer(linger_ms=0) as producer:
            for number in range(32):
                producer.send("events", [{"value": b"row"}], partition=number % 4).result()
    return tmp_path


@contextmanager
def failing(root: Path, match: str, number: int = 1) -> Iterator[Store]:
    """Open a store in which the `number`-th request that matches fails, and all later ones."""
    fault = Fault(action="fail", match=match, number=number, times=1_000_000)
    store = FailingStore(open_object_store(str(root), FAST), fault)
    with txlog.open(root, config={"default.api.timeout.ms": 2000}, object_store=store) as opened:
        yield opened


def merge(store: Store) -> tuple[list[Merged], list[TxlogError]]:
    merging = merge_partitions(read_session(store.runtime), PARTITIONS, MergePolicy())
    return gather(record(store.runtime, "merge", merging))


def steps(root: Path) -> list[tuple[int, str]]:
    with txlog.open(root, storage_options=FAST) as store:
        return sorted((row.step.partition, row.step.outcome) for row in read_history(store.runtime))


@pytest.mark.parametrize("request_", ["list events/1/", r"put_if_absent events/1/\S+\.clean", r"write_file events/1/"])
def test_a_partition_that_fails_does_not_affect_the_others(root: Path, request_: str) -> None:
    with failing(root, request_) as store:
        made, (error,) = merge(store)
    assert not isinstance(error, MissingObjectError)
    assert [each.topic_partition.partition for each in made] == [0, 2, 3]
    assert steps(root) == [(0, "published"), (1, "failed"), (2, "published"), (3, "published")]


def test_two_neighbours_that_cannot_be_read_do_not_end_the_loop(root: Path) -> None:
    with failing(root, r"list events/[12]/") as store:
        made, failed = merge(store)
    assert [each.topic_partition.partition for each in made] == [0, 3]
    assert [type(error) for error in failed] == [TxlogTimeoutError] * 2


@pytest.mark.parametrize(
    ("request_", "number"),
    # The call that opens the store reads the descriptor for the first time.
    [(r"(list events/\d|get txlog\.json)", 2), (r"put_if_absent events/\S+\.clean", 1)],
)
def test_a_store_that_fails_twice_in_a_row_ends_the_loop(root: Path, request_: str, number: int) -> None:
    with failing(root, request_, number) as store:
        made, failed = merge(store)
    assert not made
    assert [type(error) for error in failed] == [TxlogTimeoutError] * 2
    assert failed[1].__notes__ == ["The store failed twice in a row, so the other partitions are left to the next run."]
    assert steps(root) == [(0, "failed"), (1, "failed")]


def test_what_vacuum_deleted_before_a_publication_is_planned_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deleted = [PARTITIONS[2]]

    def publish(session: object, merge: object, file: object) -> Merged:
        if merge.topic_partition in deleted:  # type: ignore[attr-defined]
            deleted.clear()
            raise MissingObjectError("events/2/0.clean does not exist")
        return publish_merge(session, merge, file)  # type: ignore[arg-type]

    monkeypatch.setattr(verb, "publish_merge", publish)
    with txlog.open(root, storage_options=FAST) as store:
        made, failed = merge(store)
    assert not failed
    assert not deleted
    assert [each.topic_partition for each in made] == PARTITIONS


def test_what_is_looked_at_is_forgotten(root: Path) -> None:
    with txlog.open(root, storage_options=FAST) as store:
        session = read_session(store.runtime)
        found, failed = gather(look_over(session, PARTITIONS, lambda tp: plan_partition(session, tp, MergePolicy())))
        assert not failed
        assert [plan[0].topic_partition for plan in found] == PARTITIONS
        assert not set(PARTITIONS) & set(session.views)
