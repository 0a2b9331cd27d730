"""A streaming query that is killed loses and doubles nothing: one strike of each kind.

All of them: `make test-kill`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_txlog import committed_source_offsets
from tests.kill import points
from tests.kill.harness import LOCAL, Run, kill_stream, strikes_of
from tests.kill.points import Strike
from tests.kill.sinks import TxlogSink

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.mark.storm  # `make test-kill` does the same at every point.
def test_every_kind_of_kill(tmp_path: Path) -> None:
    """Kill an executor's JVM, the process of the sink's commit, and the driver after the decision.

    tests/spark/test_demo.py has a driver that dies between the sink's commit and Spark's commit log.
    """
    strikes = [
        Strike(point=points.HALF, victim="executor"),
        Strike(point=points.PENDING, victim="worker"),
        Strike(point=points.DECIDED, victim="driver"),
    ]
    report = kill_stream("txlog", strikes, tmp_path)
    assert (report.lost, report.doubled, report.missed) == (0, 0, []), report.table()
    assert sum(outcome.kills for outcome in report.outcomes.values()) == len(strikes), report.table()


@pytest.mark.storm
def test_a_native_stream_carries_its_offsets_through_kills(tmp_path: Path) -> None:
    """Kill the driver after the decision, which contains rows and offsets. The next life finishes it."""
    strikes = [Strike(point=points.DECIDED, victim="driver")]
    report = kill_stream("txlog-native", strikes, tmp_path)
    assert (report.lost, report.doubled, report.missed) == (0, 0, []), report.table()
    planned = max(int(path.name) for path in (tmp_path / "checkpoint" / "offsets").iterdir() if path.name.isdigit())
    (source,) = committed_source_offsets(str(tmp_path / "sink"), "killed").values()
    assert source.batch_id == planned


def test_the_points_have_names_of_their_own() -> None:
    strikes = strikes_of(TxlogSink())
    assert len({str(strike) for strike in strikes}) == len(strikes)
    assert len({strike.point.name for strike in strikes}) == 21


@pytest.mark.storm
def test_of_two_drivers_of_one_query_the_older_is_fenced_with_one_clear_error(tmp_path: Path) -> None:
    run = Run(TxlogSink(), tmp_path)
    said = run.outlive(Strike(point=points.TASK_DONE, victim="stopped"), files=4)
    assert "ProducerFencedError: query " in said
    assert "another run of this query, or another program with its transactional.id, has taken over" in said
    run.live([], LOCAL, files=2, read=True)
    report = run.report([])
    assert (report.lost, report.doubled) == (0, 0), report.table()
