"""Are the drawings, tables and programs of the explanation pages those of a run of today's code?"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lab.explain import pages
from lab.explain.commits import LEVELS, TOPICS, trace
from lab.explain.costs import COMMITS, Bill, Prices, World
from tests.test_docs import PAGES, programs, python

AGAIN = "hint: `python -m lab.explain` writes drawings and tables again; then read the sentences around them"


def differs(page: str, blocks: dict[str, str]) -> list[str]:
    """Return the blocks of a page that are not those of the run. Each block must be in the page."""
    text = PAGES[page]
    assert set(pages.names(text)) == set(blocks)
    return [name for name, block in blocks.items() if pages.replaced(text, {name: block}) != text]


def test_commits_are_drawn_and_listed_as_they_run() -> None:
    found = pages.traces()
    drawings = pages.commit_drawings(found)
    assert {path.name: path.read_text(encoding="utf-8") for path in pages.DRAWINGS.iterdir()} == drawings, AGAIN
    assert differs("docs/how-a-commit-works.md", pages.commit_blocks(found)) == [], AGAIN
    shown = re.findall(r"\]\(drawings/([a-z0-9-]+\.svg)\)", PAGES["docs/how-a-commit-works.md"])
    assert shown == list(drawings)


@pytest.mark.parametrize("staged", [None, False])
def test_a_crash_after_the_decision_commits_and_one_before_it_does_not(staged: bool | None) -> None:
    """What the page says in words about every row of its tables."""
    steps = trace(staged=staged).steps
    decided = next(number for number, step in enumerate(steps) if step.label == "PREPARE_COMMIT")
    for number, step in enumerate(steps):
        assert (step.successor, step.sweep) == ((TOPICS, TOPICS) if number >= decided else ((), ()))
        if staged is None:
            assert all(stable == end for stable, end in step.ends.values())
    assert [step.shown[level] for step in (steps[-1], steps[-2]) for level in LEVELS] == [TOPICS] * 6


def test_each_anomaly_is_possible_where_the_page_says_so() -> None:
    assert differs("docs/isolation.md", pages.isolation_blocks()) == [], AGAIN


def test_costs_are_those_of_the_requests() -> None:
    assert differs("docs/costs.md", pages.cost_blocks(Prices())) == [], AGAIN
    assert f"as known in {Prices().asked}" in PAGES["docs/costs.md"].replace("\n", " ")


def test_a_calm_producer_pays_what_the_page_says() -> None:
    """Not in a table: whether the producer or its thread completes a transaction depends on real time."""
    (said,) = re.findall(r"at most (\d+) PUTs and (\d+) GETs for a transaction", PAGES["docs/costs.md"])
    bill = World().write(COMMITS, wait_ms=10_000)
    assert 2 < bill.puts <= int(said[0])
    assert 1 < bill.gets <= int(said[1])


def test_the_formula_has_the_prices_of_the_table() -> None:
    (formula,) = re.findall(r"^dollars = (.*)$", PAGES["docs/costs.md"], re.MULTILINE)
    prices = Prices()
    assert [float(each) for each in re.findall(r"0\.\d+", formula)] == [
        prices.put_1000,
        prices.get_1000,
        prices.gb_month,
    ]
    assert Bill(2000, 1000).usd(prices) == pytest.approx(2 * 0.005 + 0.0004)


def test_figures_from_the_benchmarks_are_those_of_their_page() -> None:
    """Sentences quote rounded values. `make bench` may change them, and this test then names the sentence."""
    cells = [
        [cell.strip() for cell in line.strip("|\n ").split("|")] for line in PAGES["docs/benchmarks.md"].splitlines()
    ]
    figures = {tuple(row[:4]): row for row in cells if len(row) == 7}

    def value(row: str, side: str, figure: str, work: str = "", column: int = 4) -> float:
        found = [
            each for key, each in figures.items() if (key[0], key[2], key[3]) == (row, side, figure) and work in key[1]
        ]
        assert len(found) == 1, (row, side, figure, found)
        return float(found[0][column])

    def quoted(page: str, pattern: str) -> list[float]:
        found = re.findall(pattern, re.sub(r"\s+", " ", PAGES[page]))
        assert len(found) == 1, pattern
        return [float(each) for each in found[0]]

    million = [value("money", side, "USD a million commits") for side in ("txlog", "delta-rs", "pyiceberg")]
    costs = r"costs ([\d.]+) dollars for a million commits, delta-rs ([\d.]+), and pyiceberg ([\d.]+)\."
    assert quoted("docs/costs.md", costs) == million
    requests = [
        round(value("money", side, "PUT and LIST") + value("money", side, "GET and HEAD"))
        for side in ("txlog", "delta-rs")
    ]
    assert quoted("docs/comparison.md", r"a commit needs (\d+) requests where delta-rs needs (\d+)") == requests
    for side, name in (
        ("Kafka", "Kafka"),
        ("txlog", "txlog without fsync"),
        ("txlog, fsync", "txlog with fsync, the default"),
    ):
        seen = [value("P5", side, "ms"), value("P5", side, "ms", column=6)]
        assert quoted("docs/comparison.md", rf"\| {name} \| ([\d.]+) \| ([\d.]+) \|") == seen
    assert value("P5", "txlog", "ms", column=6) > 100
    count = "count after 1,000 small commits"
    assert 1.5 < value("P11", "txlog, native", "s", count) / value("P11", "Iceberg", "s", count) < 2.5
    assert "in half of txlog's time" in PAGES["docs/comparison.md"]
    at_60_ms = round(value("P16", "txlog, staged", "ms"), -1)
    latency = r"one look and two writes, one after the other\. That is about (\d+) ms on a local disk, and about (\d+) ms at 60 ms a request"
    for page in ("docs/no-broker.md", "docs/scale.md"):
        assert quoted(page, latency) == [round(value("P3", "txlog, fsync", "ms", "of 100 rows")), at_60_ms]
    slowest = value("P16", "txlog, staged", "ms", column=6)
    estimate = r"takes about (\d+) ms \(row P16; its p99 is (\d+) ms\)\. .* adds 60 ms, and its pause up to 500 ms\. So a row is seen after ([\d.]+) to ([\d.]+) s"
    expected = [at_60_ms, slowest, (at_60_ms + 60) / 1000, (at_60_ms + 560) / 1000]
    assert quoted("docs/comparison.md", estimate) == expected
    assert f"a lone writer takes about {at_60_ms:g} ms" in PAGES["docs/scale.md"]


@pytest.mark.parametrize("page", ["docs/isolation.md", "docs/costs.md"])
def test_programs_print_what_stands_below_them_also_the_second_time(page: str, tmp_path: Path) -> None:
    shown = programs(page)
    assert shown
    assert python(tmp_path, [*shown, *shown]) == [program.printed.strip() for program in [*shown, *shown]]
