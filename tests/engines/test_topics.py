"""Each engine reads each published topic row by row as read_committed does at the published cut: one table of both.

`topics` makes the topics, and each engine reads all of them in one process, in its own environment.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

import pytest

from tests.engines.environments import run
from tests.engines.topics import TOPICS

pytestmark = [pytest.mark.engines, pytest.mark.timeout(900)]

ENGINES = {
    "spark delta": ".venv-bench",
    "spark iceberg": ".venv-iceberg",
    "delta-rs": ".venv-engines",
    "polars, delta": ".venv-engines",
    "duckdb, delta": ".venv-engines",
    "pyiceberg": ".venv-engines",
    "polars, iceberg": ".venv-engines",
    "duckdb, iceberg": ".venv-engines",
}
KNOWN = {
    # docs/publish.md has these, too. If an engine learns to read them, this test fails.
    ("pyiceberg", "every_type"): r'93 rows; missing 1: .*"deep": null.* too many 1: .*"deep": \[\]',
}
"""What an engine cannot read, and how it differs then."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("topics")
    run(".venv-bench", "topics", str(made))
    return made


@cache
def read(engine: str, folder: Path) -> dict[str, str]:
    """Return what is wrong with each topic. A process that fails, or leaves out a topic, fails all of them."""
    lines = run(ENGINES[engine], "read_topics", engine, str(folder)).splitlines()
    found = dict(json.loads(line) for line in lines if line.startswith("["))
    assert set(found) == set(TOPICS), lines
    return found


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("engine", list(ENGINES))
def test_an_engine_reads_what_read_committed_shows(engine: str, topic: str, folder: Path) -> None:
    found = read(engine, folder)[topic]
    known = KNOWN.get((engine, topic))
    if known is None:
        assert found == ""
    else:
        assert re.match(known, found), found


def test_a_row_too_many_is_found(folder: Path) -> None:
    """The comparison itself must see what it is for."""
    from tests.engines.read_topics import check

    expected = json.loads((folder / "mixed.json").read_text())
    rows = [json.loads(line) for line in expected]
    assert check(lambda *_: rows, Path(), expected) == ""
    assert "missing 1" in check(lambda *_: rows[1:], Path(), expected)
    assert "too many 1" in check(lambda *_: [*rows, rows[0]], Path(), expected)
    assert "missing 1" in check(lambda *_: [{**rows[0], "name": "x"}, *rows[1:]], Path(), expected)
