"""Does `make release-check` notice what is wrong with a release? tests/test_packaging.py builds the files that it
installs."""

from __future__ import annotations

import pytest

from scripts.release_check import ROOT, TODAY, citation_problems, disagreements, first_program, version_of
from txlog import __version__

CHANGELOG = "# Changelog\n\n## [1.2.3] - 2027-01-31\n\n### Added\n"
CITATION = """\
cff-version: 1.2.0
message: "Please cite it."
title: "txlog"
authors:
  - name: "The maintainers"
version: 1.2.3
date-released: 2027-01-31
"""


def _read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_files_of_this_checkout_agree() -> None:
    version = version_of(_read("txlog/_version.py"))
    assert version == __version__
    texts = (_read("CHANGELOG.md"), _read("CITATION.cff"), _read("docs/install.md"))
    assert [*disagreements(version, *texts, final=False)] == []
    assert [*citation_problems(_read("CITATION.cff"))] == []


def test_the_first_program_has_its_output() -> None:
    program, printed = first_program(_read("README.md"))
    compile(program, "README.md", "exec")
    assert "txlog.open" in program
    assert printed.startswith("[{'_partition': 0")


@pytest.mark.parametrize("final", [False, True])
def test_a_release_with_its_date_is_ready(final: bool) -> None:
    assert [*disagreements("1.2.3", CHANGELOG, CITATION, "Both columns work.", final=final)] == []


@pytest.mark.parametrize(
    ("version", "changelog", "citation", "install", "final", "found"),
    [
        ("1.3", CHANGELOG, CITATION, "", False, "version 1.3: expected MAJOR.MINOR.PATCH"),
        ("1.3.0", CHANGELOG, CITATION, "", False, "CITATION.cff: expected version 1.3.0, found 1.2.3"),
        ("1.3.0", CHANGELOG, CITATION, "", False, "CHANGELOG.md: expected [1.3.0] first, found [1.2.3]"),
        ("1.2.3", "# Changelog\n", CITATION, "", False, "expected a section"),
        ("1.2.3", "## [Unreleased]\n" + CHANGELOG, CITATION, "", True, "- YYYY-MM-DD` first, found [Unreleased]"),
        ("1.2.3", "## [Unreleased]\n", CITATION, TODAY, False, "1.2.3 is not released in CHANGELOG.md"),
        ("1.2.3", CHANGELOG, CITATION.replace("31", "30"), "", False, "date-released 2027-01-31, found 2027-01-30"),
        ("1.2.3", CHANGELOG.replace(" - 2027-01-31", ""), CITATION, "", False, "date-released as in CHANGELOG.md"),
        ("1.2.3", CHANGELOG, CITATION, TODAY, False, "is wrong after the first release"),
        ("1.2.3", "## [Unreleased]\n", CITATION, "", False, "is wrong before the first release"),
    ],
)
def test_a_contradiction_is_found(
    version: str, changelog: str, citation: str, install: str, final: bool, found: str
) -> None:
    problems = [*disagreements(version, changelog, citation, install, final=final)]
    assert any(found in problem for problem in problems), problems


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ("title:", "titel:", "unknown keys ['titel']"),
        ("title:", "titel:", "missing keys ['title']"),
        ("cff-version: 1.2.0", "cff-version: 1.1.0", "expected 1.2.0"),
        ("version: 1.2.3", "version: 1.2", "version: expected text"),
        ("date-released: 2027-01-31", "date-released: soon", "date-released: expected YYYY-MM-DD"),
        ("- name:", "- nickname:", "expected a person or an entity"),
        ("title:", "keywords: [a, a]\ntitle:", "keywords: expected different texts"),
        ("title:", "type: program\ntitle:", "type: expected software or dataset"),
    ],
)
def test_a_wrong_citation_is_found(before: str, after: str, found: str) -> None:
    assert [*citation_problems(CITATION)] == []
    problems = [*citation_problems(CITATION.replace(before, after))]
    assert any(found in problem for problem in problems), problems
