"""The model of many writers: what it counts follows from the protocol's rounds and from the latency alone."""

from __future__ import annotations

import pytest

from lab.scale.__main__ import main, table
from lab.scale.designs import DESIGNS, compare
from lab.scale.model import Load, achieve

LATENCY_MS = 60


def achieved(writers, partitions, seconds=20, **more):
    return achieve(Load(writers=writers, partitions=partitions, latency_ms=LATENCY_MS, seconds=seconds, **more))


def test_a_lone_writer_takes_one_round_a_transaction_and_two_with_a_decision():
    one, two = achieved(1, 1), achieved(1, 1, two_phases=True)
    assert LATENCY_MS <= one.percentile_ms(50) < 1.5 * LATENCY_MS
    assert one.requests["put"] < 1.1 * one.commits
    assert 2 * LATENCY_MS <= two.percentile_ms(50) < 3 * LATENCY_MS
    assert two.requests["put"] >= 2 * two.commits


def test_writers_with_partitions_of_their_own_do_not_slow_each_other_down():
    alone, ten = achieved(1, 1), achieved(10, 10)
    assert ten.commits > 8 * alone.commits


def test_writers_of_one_partition_combine_what_they_write():
    few, many = achieved(10, 1, seconds=20), achieved(40, 1, seconds=10)
    assert few.commits_per_second > 1000 / LATENCY_MS
    assert many.commits_per_second == pytest.approx(4 * few.commits_per_second, rel=0.3)
    # None starves, although all of them are new to the partition at first (W21).
    assert many.percentile_ms(99) < 4 * many.percentile_ms(50)
    assert many.requests_per_commit < 8


def test_one_seed_gives_one_result(capsys):
    load = Load(writers=3, partitions=2, latency_ms=LATENCY_MS, seconds=5, seed=7)
    assert table([achieve(load)]) == table([achieve(load)])
    assert main(["--writers", "3", "--partitions", "2", "--seconds", "2"]) == 0
    assert capsys.readouterr().out.count("\n") == 3


def test_each_design_pays_as_its_requests_say_and_one_phase_is_the_fastest():
    alone = {design: compare(design, 1, 1, seconds=5) for design in DESIGNS}
    assert alone["turns"].requests_per_commit == pytest.approx(2, abs=0.1)
    assert alone["one phase, by copy"].requests_per_commit == pytest.approx(1, abs=0.2)
    many = {design: compare(design, 30, 1, seconds=5) for design in DESIGNS}
    speeds = [many[design].commits_per_second for design in ("turns", "two phases", "one phase, by copy")]
    assert speeds == sorted(speeds)
    assert speeds[2] > 5 * speeds[0]
    assert many["one phase, by copy"].requests_per_commit < 8 < many["turns"].requests_per_commit
