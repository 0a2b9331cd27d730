"""Is each rule of PROTOCOL.md needed, and does something fail without it? The table of rules and mutants is whole.

All mutants are in one table, `lab.explore.catalogue`. Each names the rules that it breaks, and the scenario of the
explorer or the test that notices it. A rule without a mutant has a sentence that says why.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lab.explore.catalogue import MUTANTS

ROOT = Path(__file__).parents[2]
RULES = tuple(re.findall(r"^\* \*\*([WRC]\d+[a-z]?)\*\*", (ROOT / "PROTOCOL.md").read_text(), re.MULTILINE))
WITHOUT: dict[str, str] = {}
"""The rules that no mutant breaks: why none can."""
TESTED = {mutant.name: mutant for mutant in MUTANTS if mutant.test}
"""Those that a test notices. `tests/testing/test_explore_protocol.py` has the scenarios."""
STRIDE = 4
"""`make test` plants one of so many mutants, `make test-exhaustive` all of them."""
MISTAKES = ("TypeError", "AttributeError", "NameError", "RecursionError", "fixture '")
"""What a test says if the mutant itself is wrong."""


def rules_in(text: str) -> set[str]:
    return set(re.findall(r"\b[WRC]\d+[a-z]?\b", text))


class Reports:
    """What the tests of a run of pytest said."""

    def __init__(self) -> None:
        self.failed: list[pytest.TestReport] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.append(report)


def run(test: str) -> tuple[int, Reports]:
    """Run a test in this process, up to its first failure."""
    reports = Reports()
    # The time limit of the test that runs this one stays as it is.
    options = ["-q", "-x", "-n0", "-p", "no:cacheprovider", "-o", "timeout=0", "-m", ""]
    return int(pytest.main([*options, str(ROOT / "tests" / test)], plugins=[reports])), reports


def test_the_document_has_its_rules() -> None:
    for letter, last in (("W", 69), ("R", 22), ("C", 17)):
        assert {f"{letter}{number}" for number in range(1, last + 1)} <= set(RULES)
    assert len(set(RULES)) == len(RULES)


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_has_a_mutant_or_a_reason(rule: str) -> None:
    mutants = [mutant.name for mutant in MUTANTS if rule in rules_in(mutant.rules)]
    assert bool(mutants) is (rule not in WITHOUT), mutants


def test_mutants_and_reasons_are_about_rules_of_the_document() -> None:
    known = set(RULES)
    assert {each.name: each.rules for each in MUTANTS if not rules_in(each.rules) <= known} == {}
    # A mutant of an invariant may name no rule.
    assert [each.name for each in MUTANTS if not rules_in(each.rules) and "invariant" not in each.rules] == []
    assert set(WITHOUT) <= known
    assert all(reason.endswith(".") and len(reason.split()) > 5 for reason in WITHOUT.values())


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.exhaustive] if number % STRIDE else [])
        for number, name in enumerate(TESTED)
    ],
)
def test_the_test_notices(name: str) -> None:
    mutant = TESTED[name]
    with mutant.planted():
        status, reports = run(mutant.test)
    assert status == pytest.ExitCode.TESTS_FAILED, f"{mutant.test} does not notice: {name}"
    (report,) = reports.failed
    assert report.when == "call"
    said = report.longreprtext
    assert not [each for each in MISTAKES if f"E   {each}" in said], said


def test_a_test_that_does_not_exist_notices_nothing() -> None:
    assert run("protocol/test_rules.py::test_nothing")[0] == pytest.ExitCode.USAGE_ERROR
    status, reports = run("protocol/test_rules.py::test_the_document_has_its_rules")
    assert (status, reports.failed) == (pytest.ExitCode.OK, [])
