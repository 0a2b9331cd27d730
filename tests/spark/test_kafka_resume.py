"""Does a checkpoint of the Kafka job continue where the log ends? These tests need neither Spark nor Kafka."""

from __future__ import annotations

import pytest

from pyspark_txlog.jobs.kafka_resume import KafkaOffsets, PlannedBatch, Query, check_plan, complete
from pyspark_txlog.option_values import storage_settings
from pyspark_txlog.sink.options import parse_write_options
from txlog.errors import InvalidRequestError, OffsetOutOfRangeError

QUERY = Query(store="/log", transactional_id="ingest", checkpoint="/checkpoint")
COMMITTED = PlannedBatch(query_id="q", number=4, offsets={"clicks": {"0": 40, "1": 7}})


def planned(number: int, end: int, query_id: str = "q") -> PlannedBatch:
    return PlannedBatch(query_id=query_id, number=number, offsets={"clicks": {"0": end, "1": 7}})


@pytest.mark.parametrize(
    ("batch", "start"),
    [
        (planned(4, 40), None),
        (planned(5, 55), None),
        (planned(0, 55, "new"), {"clicks": {"0": 40, "1": 7}}),
    ],
)
def test_the_last_batch_and_the_one_after_it_follow(batch: PlannedBatch, start: KafkaOffsets | None) -> None:
    check_plan(batch, start, COMMITTED, QUERY)


@pytest.mark.parametrize(
    ("batch", "start"),
    [
        # Another end of the same batch, and an older batch: the checkpoint is a copy.
        (planned(4, 44), None),
        (planned(3, 30), None),
        # The log is a copy: it lacks batch 5, which Spark has committed.
        (planned(6, 60), None),
        (planned(0, 55, "new"), {"clicks": {"0": 39, "1": 7}}),
        (planned(1, 55, "new"), {"clicks": {"0": 40, "1": 7}}),
    ],
)
def test_everything_else_is_refused(batch: PlannedBatch, start: KafkaOffsets | None) -> None:
    with pytest.raises(InvalidRequestError, match=r"does not follow on the log.*restored from a copy"):
        check_plan(batch, start, COMMITTED, QUERY)


def test_a_partition_that_is_gone_has_two_ways_on() -> None:
    committed = {"clicks": {"0": 40, "1": 7}, "sales": {"0": 3}}
    said = r"no longer has partition 1, .*hint: name it in 'assign' again; .* another transactional\.id, .* -2 for its"
    with pytest.raises(OffsetOutOfRangeError, match=said):
        complete(committed, {"clicks": [0], "sales": [0]})
    assert complete(committed, {"clicks": [0, 1], "sales": [0]}) == committed
    # `clicks` was created again, and `sales` goes on behind its last record.
    assert complete({"sales": {"0": 3}}, {"clicks": [0], "sales": [0]}) == {"clicks": {"0": -2}, "sales": {"0": 3}}


def test_the_drivers_options_reach_the_sink_as_they_are() -> None:
    given = {"key": "0123", "client_kwargs": {"region_name": "eu"}, "use_ssl": False, "max_concurrency": 5}
    assert parse_write_options({"path": "/log", **storage_settings(given)}).storage == given
    assert storage_settings({"key": "0123"}) == {"storage.key": "0123"}
