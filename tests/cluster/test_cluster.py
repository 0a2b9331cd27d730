"""txlog on a standalone cluster with worker processes: every road, and a worker that dies in the middle of each
write."""

from __future__ import annotations

import pytest

from tests.cluster import job
from tests.cluster.jobs import EVERYTHING, Job, Place
from tests.spark_cluster import HOSTS, SparkCluster

pytestmark = [pytest.mark.spark, pytest.mark.cluster]


def test_every_road(cluster: SparkCluster, place: Place) -> None:
    """One driver uses batch and stream by `format("txlog")`, and both native roads.

    A step that runs twice adds its rows once.
    """
    steps = ["executors", "write", "write", "read", "stream", "stream", "native_write", "native_scan"]
    found = Job(master=cluster.master, place=place, steps=steps).run()
    assert len({cwd for cwd, _ in found["executors"]}) == len(HOSTS), "one executor had all tasks"
    assert found["read"] == EVERYTHING
    assert found["native_write"] == "skipped"
    written = [topic for topic in job.TOPICS if topic != "batches"]
    assert found["native_scan"] == {topic: EVERYTHING if topic in written else [] for topic in job.TOPICS}
    place.check(**dict.fromkeys(written, EVERYTHING))


@pytest.mark.parametrize(
    ("steps", "written"),
    [
        pytest.param(["held_up_write"], ["orders"], id="write"),
        pytest.param(["write", "held_up_stream"], ["orders", "streamed"], id="stream"),
        pytest.param(["held_up_native_write"], ["native", "audit"], id="native-write"),
    ],
)
def test_a_worker_dies_in_the_middle(cluster: SparkCluster, place: Place, steps: list[str], written: list[str]) -> None:
    """Lost 0, doubled 0, torn 0, and no transaction stays open."""
    Job(master=cluster.master, place=place, steps=steps).run_and_lose_a_worker(cluster)
    place.check(**dict.fromkeys(written, EVERYTHING))


def test_rows_of_one_key_keep_their_order_over_two_executors(cluster: SparkCluster, place: Place) -> None:
    """By both roads, and for small and large frames: a shuffle would bring the rows of one executor first."""
    found = Job(master=cluster.master, place=place, steps=["ordered_writes"]).run()
    assert place.order_of_keys("batches") == dict.fromkeys(("c0", "c1", "c2"), True)
    place.check(batches=range(found["ordered_writes"]))
