"""Files that must agree with the code."""

from __future__ import annotations

from pathlib import Path

from conf.generate import lowest_versions, render_toml, with_options

ROOT = Path(__file__).parent.parent


def test_txlog_toml_is_the_table_of_settings() -> None:
    assert (ROOT / "conf" / "txlog.toml").read_text(encoding="utf-8") == render_toml(), "run `make conf`"


def test_the_lowest_versions_are_those_that_the_project_declares() -> None:
    assert (ROOT / "conf" / "minimum.txt").read_text(encoding="utf-8") == lowest_versions(), "run `make conf`"


def test_the_options_in_the_page_are_the_table_of_options() -> None:
    page = (ROOT / "docs" / "kafka.md").read_text(encoding="utf-8")
    assert page == with_options(page), "run `make conf`"
