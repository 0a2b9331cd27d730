"""Does each program of docs/delivery.md give the delivery that the page promises, however it is killed?

`make test` kills the programs without Spark at each line of their loops, and some of them at random moments.
`make test-exhaustive ARGS=tests/test_deliveries.py` kills all programs at random moments.
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from lab.explain import deliveries, pages
from lab.explain.deliveries import DELIVERIES, ROLES, Outcome, Program
from txlog.config import KEYS
from txlog.config.kafka_settings import not_needed

PAGE = deliveries.PAGE.read_text(encoding="utf-8")
PROGRAMS = deliveries.programs()
PYTHON = [program for program in PROGRAMS if not program.is_query]
KILLS, QUERY_KILLS = 30, 5


def with_versions() -> Program:
    """Return the Spark job that is exactly once by two options of `batch.write`, which a sentence of the page names."""
    (options,) = re.findall(r"exactly\s+once, too:\s+`(\.option\(.*)`\.", PAGE)
    job = next(each for each in PROGRAMS if each.is_query and each.delivery == "at least once")
    topic = '.option("topic", "checked")'
    assert job.code.count(topic) == 1
    return replace(job, delivery="exactly once", code=job.code.replace(topic, topic + options))


def cases() -> list[object]:
    """Return each program that is killed at random moments, with how often."""
    sample = [pytest.param(each, 2, id=f"{each}, sample") for each in PYTHON if each.delivery == "exactly once"]
    marks = {False: [pytest.mark.exhaustive], True: [pytest.mark.exhaustive, pytest.mark.spark]}
    every = [
        pytest.param(each, QUERY_KILLS if each.is_query else KILLS, id=name, marks=marks[each.is_query])
        for each, name in [*((each, str(each)) for each in PROGRAMS), (with_versions(), "Spark job, txn.version")]
    ]
    return [*sample, *every]


@pytest.mark.parametrize("program", PYTHON, ids=str)
def test_a_kill_at_each_line_of_a_loop_gives_what_the_page_promises(program: Program, tmp_path: Path) -> None:
    outcome = deliveries.at_each_line(program, tmp_path)
    assert outcome.kills == program.with_strikes()[1] > 2
    assert outcome.is_kept, outcome
    # Otherwise no kill was between the two steps, and "exactly once" of the others would show nothing.
    assert (outcome.lost > 0) == (program.delivery == "at most once"), outcome
    assert (outcome.doubled > 0) == (program.delivery == "at least once"), outcome


@pytest.mark.slow
@pytest.mark.parametrize(("program", "kills"), cases())
def test_kills_at_random_moments_give_it_too(program: Program, kills: int, tmp_path: Path) -> None:
    outcome = deliveries.at_random(program, tmp_path, kills, seed=1)
    assert outcome.kills == kills
    assert outcome.is_kept, outcome
    assert outcome.lost < outcome.rows, outcome


def test_the_table_has_each_program_and_shows_what_the_page_promises() -> None:
    (block,) = re.findall(r"<!-- measured: deliveries -->\n(.*?)<!-- end -->", PAGE, re.DOTALL)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines()[2:]]
    again = "hint: `python -m lab.explain --deliveries 50` writes the table"
    assert len(rows) == len(PROGRAMS), again
    outcomes = [
        Outcome(program, *(int(cell.replace(",", "")) for cell in counts))
        for program, (_, _, *counts) in zip(PROGRAMS, rows, strict=True)
    ]
    assert pages.delivery_blocks(outcomes) == {"deliveries": block}, again
    assert [(each.role, each.delivery) for each in PROGRAMS] == list(product(ROLES, DELIVERIES))
    for each in outcomes:
        assert each.is_kept, each
        assert each.rows > each.kills >= QUERY_KILLS, again


def test_the_page_names_the_settings_with_their_values() -> None:
    table = dict(re.findall(r"^\| `([a-z.]+)`[^|]*\|(.*)\|$", PAGE, re.MULTILINE))
    assert table.keys() - KEYS.keys() == {"acks", "enable.idempotence", "txn.version"}
    assert not_needed().keys() >= {"acks", "enable.idempotence"}
    for name, here in table.items():
        key = KEYS.get(name)
        if key is not None and key.default is not None:
            assert f"`{key.text(key.default)}`" in here, name
