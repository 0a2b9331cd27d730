"""Are the drawings, tables and programs of the explanation pages those of a run of today's code?"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks import report
from benchmarks.__main__ import FIGURES
from lab.explain import pages
from lab.explain.commits import LEVELS, TOPICS, trace
from lab.explain.costs import COMMITS, HOUR_MS, TOPIC, WARM, Bill, Prices, World
from tests.test_docs import PAGES, programs, python
from txlog.maintenance.fsck import check_store

AGAIN = "hint: `python -m lab.explain` writes drawings and tables again; then read the sentences around them"


def differs(page: str, blocks: dict[str, str], is_all: bool = True) -> list[str]:
    """Return the blocks of a page that are not those of the run. Each block must be in the page."""
    text = PAGES[page]
    assert set(pages.names(text)) >= set(blocks)
    assert not is_all or set(pages.names(text)) == set(blocks)
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


SOME_COSTS = ("prices", "writes", "reads", "idle")
"""The blocks of costs.md that `make test` measures."""


@pytest.mark.parametrize(
    "names", [pytest.param(SOME_COSTS, id="some"), pytest.param((), id="all", marks=pytest.mark.exhaustive)]
)
def test_costs_are_those_of_the_requests(names: tuple[str, ...]) -> None:
    assert differs("docs/costs.md", pages.cost_blocks(Prices(), *names), is_all=not names) == [], AGAIN
    assert f"as known in {Prices().asked}" in PAGES["docs/costs.md"].replace("\n", " ")


def test_a_calm_producer_pays_what_the_page_says() -> None:
    """Not in a table: whether the producer or its thread completes a transaction depends on real time."""
    sentence = (
        r"at most (\d+) PUTs and (\d+) GETs for a transaction in one partition, "
        r"(\d+) PUTs and (\d+) GETs for one in four"
    )
    (said,) = re.findall(sentence, PAGES["docs/costs.md"])
    for partitions, puts, gets in ((1, said[0], said[1]), (4, said[2], said[3])):
        bill = World(partitions).write(COMMITS, wait_ms=10_000)
        assert partitions + 1 < bill.puts <= int(puts)
        assert partitions < bill.gets <= int(gets)


def test_the_formula_of_a_reader_gives_what_it_asks() -> None:
    """In one hour, of more than one partition."""
    text = PAGES["docs/costs.md"]
    formulas = dict(re.findall(r"^ *(GET|LIST) += ([^\n]*?)(?:  +looks .*)?$", text, re.MULTILINE))
    (asks,) = re.findall(
        r"`poll\(500\)` every 10 s takes (\d) GETs for each partition, and `poll\(0\)` takes (\d)", text
    )
    world = World(4)
    world.write(40)
    looks = HOUR_MS // 10_000
    with world.open() as store, store.consumer(TOPIC) as consumer:
        consumer.poll(0)

        def polls(timeout_ms: int) -> None:
            for _ in range(looks):
                world.clock.advance_ms(10_000)
                consumer.poll(timeout_ms)

        for timeout_ms, gets in ((0, int(asks[1])), (500, int(asks[0]))):
            bill = world.cost(lambda timeout_ms=timeout_ms: polls(timeout_ms))  # type: ignore[misc]
            values = {"P": 4, "T": 40 + WARM, "looks": looks}
            assert bill.puts == eval(formulas["LIST"], {}, values)
            expected = eval(formulas["GET"], {}, values) + (gets - 2) * 4 * looks
            assert bill.gets == pytest.approx(expected, rel=0.02)


def test_a_check_reads_each_object_once() -> None:
    world = World(4)
    world.write(40)
    with world.counting.counting() as cost:
        report = check_store(world.counting, clock=world.clock)
    assert 0.98 < Bill.of(cost.requests()).gets / report.objects < 1.02
    prices, million = Prices(), 10**6
    for page in ("docs/costs.md", "docs/maintenance.md"):
        (said,) = re.findall(r"([\d.]+)(?: dollars)? for a million(?: objects)?\.", PAGES[page])
        assert said == f"{prices.of(0, million):.2f}", page
    copied = re.sub(r"\s+", " ", PAGES["docs/restore.md"])
    assert f"(HEAD and COPY), {prices.of(million, million):.2f} dollars for a million objects" in copied


def test_figures_of_other_pages_are_those_of_their_source() -> None:
    """A page of limits quotes the pages that measure them."""
    cells = {
        page: [[cell.strip() for cell in line.strip("|\n ").split("|")] for line in PAGES[page].splitlines()]
        for page in ("docs/scale.md", "docs/bad-days.md", "docs/settings.md", "docs/costs.md")
    }

    def row(page: str, *start: str) -> list[str]:
        found = [each for each in cells[page] if all(each[at].startswith(text) for at, text in enumerate(start))]
        assert len(found) == 1, (page, start, found)
        return found[0]

    one_id = row("docs/scale.md", "one `transactional.id`", "a small")
    assert (
        row("docs/bad-days.md", "one `transactional.id`")[1] == f"{one_id[2]} at 60 ms a request, {one_id[3]} at 10 ms"
    )
    partition = row("docs/scale.md", "one partition", "writers")
    assert row("docs/bad-days.md", "one partition")[1] == f"{partition[2]} at 60 ms"
    assert row("docs/bad-days.md", "one store")[1] == f"{row('docs/scale.md', 'one store')[2]} at 60 ms"
    members = row("docs/settings.md", "50", "270")
    assert f"{members[2]} an hour for each of {members[0]}" in row("docs/bad-days.md", "members of a group")[1]
    growth = [
        ("consumer groups", r"(2,000): `consumer-groups list` takes (\d+)", "consumer groups", "list them"),
        (
            "partitions of one topic",
            r"(200): a transaction in one of them takes (\d+)",
            "partitions of",
            "commit a trans",
        ),
        ("partitions of one topic", r"(200).* A poll of all takes (\d+)", "partitions of", "poll, req"),
        ("partitions of one topic", r"(200).* a round of maintenance ([\d,]+)", "partitions of", "maintain"),
        ("ids of producers", r"(2,000): a transaction takes (\d+)", "transactional ids", "commit a trans"),
        ("sealed segments", r"(2,000): a transaction takes (\d+)", "sealed segments", "commit a trans"),
        ("sealed segments", r"(2,000).* all rows in ([\d,]+)", "sealed segments", "read all, cold"),
    ]
    for name, pattern, work, figure in growth:
        found = re.search(pattern, row("docs/bad-days.md", name)[1])
        assert found, name
        bench = [
            goal
            for each in report.load(FIGURES)
            if each["row"] == "growth" and each["title"].startswith(work)
            for goal in each["goals"]
            if goal["figure"].startswith(f"p50 {figure}") and goal["figure"].endswith("requests")
        ]
        assert (bench[0]["side"], report.number(bench[0]["value"])) == found.groups()
    (month,) = re.findall(r"\[about (\d+) dollars a month\]\(costs\.md#a-whole-store\)", PAGES["docs/monitor.md"])
    assert int(month) == round(float(row("docs/costs.md", "`txlog exporter`, a scrape")[3]))


def test_the_first_table_of_the_readme_has_the_figures_of_the_benchmarks() -> None:
    def row(page: str, start: str) -> list[str]:
        (line,) = re.findall(rf"^\| {re.escape(start)}.*$", PAGES[page], re.MULTILINE)
        return [cell.strip(" *") for cell in line.strip("|").split("|")][1:]

    page = "docs/benchmarks.md"
    kills = [cell.rpartition("; ")[2] for cell in row(page, "points of a micro-batch; kills")]
    assert set(row(page, "rows lost, doubled by them")) == {"0, 0"}
    shown = row("README.md", "SIGKILL at every point")
    assert [re.findall(r"\d+", cell) for cell in shown] == [["0", number] for number in kills]
    same, other = (row(page, f"checkpoint deleted, {cuts} cuts") for cuts in ("same", "other"))
    ours, delta, files = row("README.md", "**checkpoint deleted")
    assert (same[0], same[2]) == (f"refused{ours.removeprefix('refuses')}", "nothing lost or doubled")
    assert " ".join(re.findall(r"\d+ of \d+ rows|doubled", same[1])) == "400 of 400 rows doubled"
    assert delta == "doubled 400 of 400 rows"
    assert (other[2], files.partition(" if ")[0]) == ("200 lost", "200 rows lost")
    assert row("README.md", "several tables")[:2] == row(page, "several tables in one commit")[:2] == ["yes", "no"]


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
    results = report.load(FIGURES)

    def value(row: str, side: str, figure: str, work: str = "", which: str = "p50") -> float:
        found = [
            each["figures"][side][figure]
            for each in results
            # Pages quote transactions that follow each other at once.
            if each["row"] == row
            and work in each["title"]
            and "one each" not in each["title"]
            and figure in each["figures"].get(side, ())
        ]
        assert len(found) == 1, (row, side, figure, found)
        return float(report.number(found[0][which]))

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
        ("txlog, polling", "txlog without fsync, polling"),
    ):
        seen = [value("P5", side, "ms"), value("P5", side, "ms", which="p99")]
        assert quoted("docs/comparison.md", rf"\| {name} \| ([\d.]+) \| ([\d.]+) \|") == seen
    assert value("P5", "txlog, fsync", "ms", which="p99") < 50
    assert value("P5", "txlog, polling", "ms", which="p99") > 100
    count = "count after 1,000 small commits"
    assert 1.5 < value("P11", "txlog, native", "s", count) / value("P11", "Iceberg", "s", count) < 2.5
    assert "in half of txlog's time" in PAGES["docs/comparison.md"]
    at_60_ms = round(value("P16", "txlog, staged", "ms", "4 partitions"), -1)
    latency = (
        r"two writes, one after the other\. That is about (\d+) ms on a local disk, "
        r"and about (\d+) ms at 60 ms a request"
    )
    for page in ("docs/no-broker.md", "docs/scale.md"):
        assert quoted(page, latency) == [round(value("P3", "txlog, fsync", "ms", "of 100 rows")), at_60_ms]
    slowest = value("P16", "txlog, staged", "ms", "4 partitions", which="p99")
    estimate = (
        r"takes about (\d+) ms \(row P16; its p99 is (\d+) ms\)\. .* adds 60 ms, and its pause up to 500 ms\. "
        r"So a row is seen after ([\d.]+) to ([\d.]+) s"
    )
    expected = [at_60_ms, slowest, (at_60_ms + 60) / 1000, (at_60_ms + 560) / 1000]
    assert quoted("docs/comparison.md", estimate) == expected


@pytest.mark.parametrize("page", ["docs/isolation.md", "docs/costs.md"])
def test_programs_print_what_stands_below_them_also_the_second_time(page: str, tmp_path: Path) -> None:
    shown = programs(page)
    assert shown
    assert python(tmp_path, [*shown, *shown]) == [program.printed.strip() for program in [*shown, *shown]]
