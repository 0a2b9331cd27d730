"""txlog over Spark Connect: a client without a JVM, and a server of its own."""

from __future__ import annotations

import pytest

from tests.cluster import job
from tests.cluster.jobs import EVERYTHING, Job, Place

pytestmark = [pytest.mark.spark, pytest.mark.cluster]


def test_every_road(connect_server: str, place: Place) -> None:
    steps = [
        "write",
        "write",
        "read",
        "installed_read",
        "stream",
        "stream",
        "native_write",
        "foreach_batch",
        "native_scan",
    ]
    steps += ["snapshot", "views", "native_write_by_executors"]
    found = Job(master=connect_server, place=place, steps=steps).run()
    assert found["read"] == EVERYTHING
    assert found["installed_read"] == [[job.ROWS, True], [job.ROWS, False]]
    assert found["native_write"] == "skipped"
    assert found["native_scan"] == dict.fromkeys(job.TOPICS, EVERYTHING)
    assert found["snapshot"] == {"orders": EVERYTHING, "native": EVERYTHING}
    assert found["views"] == EVERYTHING
    refused = "InvalidRequestError: topic 'native': over Spark Connect, Spark's own writer loses the column ids"
    assert found["native_write_by_executors"].startswith(refused)
    place.check(**dict.fromkeys(job.TOPICS, EVERYTHING))


def test_rows_of_one_key_keep_their_order(connect_server: str, place: Place) -> None:
    """With `install()` and without it, for small and large frames: a write over Connect always uses the Python sink."""
    found = Job(master=connect_server, place=place, steps=["ordered_writes"]).run()
    assert place.order_of_keys("batches") == dict.fromkeys(("c0", "c1", "c2"), True)
    place.check(batches=range(found["ordered_writes"]))
