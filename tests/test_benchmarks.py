"""The harness of benchmarks on cheap rows, for real: who ran, which figures and ratios there are.

No time is asserted.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from benchmarks import __main__ as program, report
from benchmarks.harness import Contestant, Goal, Measured, NotAvailable, Place, Samples, Spec, measure
from benchmarks.resources import Resources
from benchmarks.rivals import kafka
from benchmarks.specs import all_specs, memory, writers
from benchmarks.timing import peaks, repeated

CHEAP = ("P1", "P3")


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """Run the program with the cheap rows at a tiny size; return the folder of its results, and how it ended."""
    folder = tmp_path_factory.mktemp("reports")
    options = ("--scale", "0.001", "--scale-factor", "0.01", "--rounds", "2", "--beside", "--output", str(folder))
    command = [sys.executable, "-m", "benchmarks", *CHEAP, *options]
    return folder, subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=program.ROOT, check=False)


@pytest.fixture(scope="module")
def reports(ended: tuple[Path, subprocess.CompletedProcess[str]]) -> Path:
    """Return the folder of the results."""
    return ended[0]


def _found(reports: Path) -> list[Measured]:
    return [measured for measured, _ in report.of_specs(report.load(reports / "bench.json"), all_specs())]


def test_the_program_ends_with_its_tables(ended: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    reports, process = ended
    assert process.returncode == 0, process.stderr
    assert "Traceback" not in process.stderr
    conditions, goals, figures = process.stdout.strip().split("\n\n")
    assert conditions.startswith("- All results: ")
    found = _found(reports)
    assert [measured.spec for measured in found] == list(program.choose(all_specs(), list(CHEAP)))
    assert goals == report.goals_table(found)
    assert figures == report.figures_table(found)
    assert (reports / program.PAGE.name).read_text() == process.stdout


def test_cheap_rows_have_figures(reports: Path) -> None:
    append, *transactions = _found(reports)
    for measured in (append, *transactions):
        for contestant, turns in measured.rounds.items():
            assert len(turns) == (1 if measured.spec.once else measured.spec.rounds or 2), contestant
            assert all(value > 0 for turn in turns for samples in turn.values() for value in samples)
        assert any(name.startswith("txlog") for name in measured.rounds)
    assert set(append.figures("txlog")) == {"ms", "requests"}


def test_a_commit_is_measured_beside_two_rounds_of_requests(tmp_path: Path) -> None:
    four, *_ = (spec for spec in all_specs() if spec.row == "P16")
    with Resources(tmp_path / "cache") as resources:
        measured = measure(replace(four, once=True), resources, tmp_path / "four", rounds=1, seed=1, scale=0.001)
    goal = four.goals[0]
    assert (goal.of, goal.versus) == ("txlog, staged", "two rounds")
    assert measured.ratio(goal) is not None
    # Even a slow machine needs no less than the latency of two requests.
    assert min(measured.by_round("two rounds", "ms")) >= 120


def test_writers_of_one_table_are_counted_at_the_server(tmp_path: Path) -> None:
    side = Contestant(name="txlog", start=partial(writers.txlog_side, processes=2, plain=False))
    spec = Spec(row="writers", title="two", contestants=(side,), once=True)
    with Resources(tmp_path / "cache") as resources:
        measured = measure(spec, resources, tmp_path / "two", rounds=1, seed=1, scale=0.01)
    assert measured.missing == {}
    assert measured.by_round("txlog", "refused %") == [0]
    assert measured.by_round("txlog", "requests")[0] >= 2
    # No commit is faster than its requests.
    assert measured.by_round("txlog", "ms")[0] >= 2 * writers.LATENCY_MS


def test_the_tables_have_a_line_for_each_goal(reports: Path) -> None:
    found = _found(reports)
    lines = report.goals_table(found).splitlines()
    assert [line.split(" | ")[0].removeprefix("| ") for line in lines[2:]] == [
        measured.spec.row for measured in found for _ in measured.spec.goals
    ]
    # A small run decides nothing.
    assert not any(line.endswith(("| met |", "| **not met** |")) for line in lines)
    assert any("delta-rs" in line for line in lines)
    assert "| P3 |" in report.figures_table(found)


def test_the_page_gets_its_generated_part(reports: Path, tmp_path: Path) -> None:
    page = tmp_path / "page"
    page.write_text(f"before\n\n{report.BEGIN}\nold\n{report.END}\n\nafter\n")
    results = report.of_specs(report.load(reports / "bench.json"), all_specs())
    published = [report.summary(*each) for each in results]
    report.publish(page, published, all_specs(), tmp_path / "page.svg")
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert "other work beside it: provisional" in text
    assert "These rows have no published result: P2, P4," in text


def test_the_conditions_name_their_rows(reports: Path) -> None:
    found = report.in_order(report.load(reports / "bench.json"), all_specs())
    (line,) = report.conditions_text(found).splitlines()
    assert line.startswith("- All results: ")
    *others, last = found
    line, other = report.conditions_text([*others, {**last, "about": last["about"] | {"seed": 2}}]).splitlines()
    assert line.startswith("- All other results: ")
    assert other.startswith(f"- Results of `P3` ({last['title']}): ")
    assert "seed 2" in other
    broker = {"warm-up s": 93.4, "per s": [333.0, 1300.5, 1341.0]}
    _, line = report.conditions_text([*others, {**last, "broker": broker}]).splitlines()
    assert line == "- Kafka's broker of `P3`: warmed for 93 s, from 333 to 1,341 transactions per s."


def test_a_row_that_does_not_exist_is_refused() -> None:
    with pytest.raises(Exception, match=r"P99 is not a row; the rows are P1, P2, P3,"):
        program.choose(all_specs(), ["P99"])


def test_a_row_that_takes_long_runs_only_if_it_is_named() -> None:
    assert {spec.row for spec in all_specs()} - {spec.row for spec in program.choose(all_specs(), [])} == {
        "erase",
        "longest-run",
    }
    assert [spec.row for spec in program.choose(all_specs(), ["longest-run"])] == ["longest-run"]


def test_the_rows_are_in_order() -> None:
    rows = list(dict.fromkeys(spec.row for spec in all_specs()))
    assert rows[:17] == [f"P{number}" for number in range(1, 18)]
    assert {"growth", "long-run", "memory"} <= set(rows[17:])


# -- the rules of the harness, with contestants of known figures ------------------------------------------------------


@contextlib.contextmanager
def steady(place: Place, *, figures: list[float], log: list[str], name: str) -> Iterator[Callable[[], Samples]]:
    """Yield a turn with the next figure."""
    next_figures = itertools.cycle(figures)

    def turn() -> Samples:
        log.append(name)
        return {"ms": [next(next_figures)]}

    yield turn


@contextlib.contextmanager
def absent(place: Place) -> Iterator[Callable[[], Samples]]:
    raise NotAvailable("needs something")
    yield


def test_rows_that_need_kafka_come_first_and_keep_how_it_was_warmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    about = {"warm-up s": 30.0, "per s": [300.0, 900.0, 950.0]}
    monkeypatch.setattr(Resources, "about_kafka", lambda self: about)
    log: list[str] = []
    specs = tuple(
        Spec(
            row=row,
            title="known",
            contestants=(Contestant(name=name, start=partial(steady, figures=[1.0], log=log, name=row)),),
            once=True,
        )
        for row, name in (("P1", "mine"), ("P2", "Kafka, Java"))
    )
    conditions = report.conditions(seed=1, scale=1, scale_factor=1, rounds=3, beside=True)
    assert program.run(specs, tmp_path / "bench.json", conditions) == []
    assert log == ["P2", "P1"]
    found = [measured for measured, _ in report.of_specs(report.load(tmp_path / "bench.json"), specs)]
    assert [measured.broker for measured in found] == [None, about]
    assert report.summary(found[1], conditions)["broker"] == about


@pytest.mark.parametrize(
    ("per_s", "warm"),
    [([], False), ([820], False), ([900, 1200], False), ([900, 990], True), ([900, 820], True)],
)
def test_a_broker_is_warm_if_two_turns_in_a_row_are_alike(per_s: list[float], warm: bool) -> None:
    assert kafka._is_warm([300.0, 500.0, 800.0, 810.0, *per_s]) is warm


def _measured(
    tmp_path: Path, mine: list[float], theirs: list[float], *, once: bool = False, floor: str = ""
) -> tuple[Measured, list[str]]:
    log: list[str] = []
    spec = Spec(
        row="P0",
        title="known",
        contestants=(
            Contestant(name="mine", start=partial(steady, figures=mine, log=log, name="mine")),
            Contestant(name="theirs", start=partial(steady, figures=theirs, log=log, name="theirs")),
            Contestant(name="absent", start=absent),
        ),
        goals=(Goal(of="mine", figure="ms", versus="theirs", at_most=0.5),),
        warm_up=0,
        once=once,
        floor=floor,
    )
    with Resources(tmp_path / "cache") as resources:
        return measure(spec, resources, tmp_path / "work", rounds=4, seed=1), log


def test_a_ratio_is_of_the_rounds(tmp_path: Path) -> None:
    measured, log = _measured(tmp_path, [1, 2, 3, 4], [2, 4, 6, 8])
    ratio = measured.ratio(measured.spec.goals[0])
    assert ratio is not None
    assert (ratio.low, ratio.median, ratio.high) == (0.5, 0.5, 0.5)
    assert report.outcome(measured, measured.spec.goals[0]) == (0.5, "met")
    assert measured.missing == {"absent": "needs something"}
    # The second round of each two has the reverse order.
    rounds = [log[start : start + 2] for start in range(0, 8, 2)]
    assert rounds[1] == rounds[0][::-1]
    assert rounds[3] == rounds[2][::-1]


def test_a_wide_spread_gives_no_ratio(tmp_path: Path) -> None:
    measured, _ = _measured(tmp_path, [1, 1, 4, 4], [2, 2, 2, 2])
    goal = measured.spec.goals[0]
    assert measured.ratio(goal) is None
    assert report.outcome(measured, goal) == (None, "spread too wide")
    assert "| spread too wide |" in report.goals_table([measured])


def test_what_stands_behind_a_goal_is_said_if_it_is_not_met(tmp_path: Path) -> None:
    missed, _ = _measured(tmp_path / "missed", [3], [4], once=True, floor="two were tried.")
    met, _ = _measured(tmp_path / "met", [1], [4], once=True, floor="one was tried.")
    line = "- **P0, known.** p50 ms of mine is 3, 0.75 × theirs; the goal is ≤ 0.5 × theirs. Two were tried."
    assert report.missed([report.summary(missed, {})], [missed.spec]) == line
    assert not report.missed([report.summary(met, {})], [met.spec])


def test_the_table_of_the_page_has_a_line_for_each_work(tmp_path: Path) -> None:
    measured, _ = _measured(tmp_path, [3], [4], once=True)
    kept = report.summary(measured, {})
    second = {**kept["goals"][0], "result": "met"}
    (line,) = report.results_table([{**kept, "goals": [*kept["goals"], second]}]).splitlines()[2:]
    assert line == "| P0 | known | p50 ms | mine: 3 | theirs: 4 | 0.75 (0.75 to 0.75) | ≤ 0.5 × theirs | 1 of 2 |"
    assert kept["figures"]["mine"] == {"ms": {"p50": 3, "of the rounds": [3, 3], "p99": 3}}
    assert (kept["missing"], kept["goals"][0]["times"]) == ({"absent": "needs something"}, 1.5)
    assert len(report.results_table([{**kept, "goals": []}]).splitlines()) == 2


def test_the_page_is_made_from_the_figures_beside_it(tmp_path: Path) -> None:
    """`make bench ARGS=--publish` writes both. Nobody edits the figures of the page by hand."""
    published = report.load(program.FIGURES)
    assert published == report.in_order(published, all_specs())
    page, plot = tmp_path / "page", program.PAGE.with_suffix(".svg")
    page.write_text(program.PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    report.publish(page, published, all_specs(), plot)
    assert page.read_text(encoding="utf-8") == program.PAGE.read_text(encoding="utf-8")
    assert plot.stat().st_size < 150_000
    assert program.PAGE.stat().st_size < 30_000


def test_a_goal_that_is_not_met_is_shown_with_its_figure(tmp_path: Path) -> None:
    measured, _ = _measured(tmp_path, [3], [4], once=True)
    (line,) = report.goals_table([measured]).splitlines()[2:]
    assert line == "| P0 | known | mine | p50 ms | 3 | theirs 4 | 0.75 (0.75 to 0.75) | ≤ 0.5 × theirs | **not met** |"


def test_a_short_call_is_repeated_and_a_long_one_is_not() -> None:
    calls: list[float] = []
    assert len(repeated(lambda: calls.append(time.perf_counter()))["s"]) == len(calls) == 15
    (long,) = repeated(lambda: time.sleep(0.2), for_s=0.1)["s"]
    assert long >= 0.2


@contextlib.contextmanager
def breaking(place: Place) -> Iterator[Callable[[], Samples]]:
    """Yield a turn that fails."""

    def turn() -> Samples:
        raise ValueError("out of order")

    yield turn


def test_a_row_that_fails_loses_no_other_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    restarts: list[str] = []
    monkeypatch.setattr(Resources, "restart", lambda self: restarts.append("restart"))
    good = partial(steady, figures=[1.0], log=[], name="good")
    specs = tuple(
        Spec(row=row, title="known", contestants=(Contestant(name="mine", start=start),), once=True)
        for row, start in (("P1", good), ("P2", breaking), ("P3", good))
    )
    about = report.conditions(seed=1, scale=1, scale_factor=1, rounds=3, beside=True)
    kept = tmp_path / "bench.json"
    assert program.run(specs, kept, about) == ["2/3 P2 known"]
    assert restarts == ["restart"]
    assert [each["row"] for each in report.load(kept)] == ["P1", "P3"]
    assert [spec.row for spec in program.without_result(specs, kept, about)] == ["P2"]
    # A result under other conditions is not the same result.
    assert program.without_result(specs, kept, about | {"scale": 0.1}) == specs


def test_a_work_in_a_process_of_its_own_returns_or_says_why_not() -> None:
    assert memory._apart(math.sqrt, 4) == 2
    with pytest.raises(RuntimeError, match="ValueError: math domain error"):
        memory._apart(math.sqrt, -1)
    with pytest.raises(RuntimeError, match="the process died"):
        memory._apart(os._exit, 3)


def with_and_without_an_array() -> tuple[float, float]:
    """Return the peak of a block that holds an array of 100 MiB, and of the block after it, in MiB."""
    ended = subprocess.Popen([sys.executable, "-c", ""], stdin=subprocess.PIPE)
    time.sleep(1)
    with peaks() as found:
        held = bytearray(os.urandom(2**20)) * 100
    # `ended` is a zombie here: it has no memory, and its parent has not waited for it.
    ended.communicate()
    del held
    with peaks() as later:
        pass
    return found["python"], later["python"]


def test_peaks_are_of_the_block_and_of_children_that_live() -> None:
    # In a separate process: other tests' threads and children would change the figures.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as own:
        found, later = own.submit(with_and_without_an_array).result(60)
    assert found >= 100
    assert later < found - 50
