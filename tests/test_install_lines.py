"""Is each advice to install something right: does the extra exist, and does one page list the commands that work
today?"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from txlog.text import install_text

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = set(PROJECT["optional-dependencies"])
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SOURCES = [path for folder in ("txlog", "spark_ext") for path in sorted((ROOT / folder).rglob("*.py"))]


def test_every_named_extra_exists() -> None:
    named = {
        (path.name, extra.strip())
        for path in [*PAGES, *SOURCES]
        for found in re.findall(
            rf"(?:{PROJECT['name']}|'\.|\.whl)\[([a-z0-9, ]+)\]|install_text\(f?[\"']([a-z0-9,]+)",
            path.read_text(encoding="utf-8"),
        )
        for extra in "".join(found).split(",")
        if extra.strip()
    }
    assert {extra for _, extra in named} >= {"spark", "sql", "s3", "iceberg"}
    assert [(page, extra) for page, extra in sorted(named) if extra not in EXTRAS] == []


def test_the_page_lists_every_extra() -> None:
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", page.partition("\n## Extras\n")[2], re.MULTILINE)
    assert {extra for row in rows for extra in re.findall(r"`(\w+)`", row)} == EXTRAS


def test_advice_in_a_message_is_the_same_in_a_clone() -> None:
    # "." is a clone only in the folder of the clone. pip finds an installed package by its name everywhere.
    assert install_text("s3") == f"pip install '{PROJECT['name']}[s3]'"
    assert [path.name for path in SOURCES if re.search(r"pip install '?\.", path.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_one_page_says_which_command_works_today(path: Path) -> None:
    if path.name != "install.md":
        assert f"pip install {PROJECT['name']}" not in path.read_text(encoding="utf-8")
        assert f"pip install '{PROJECT['name']}" not in path.read_text(encoding="utf-8")
