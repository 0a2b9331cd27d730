"""Files that must agree with the code."""

from __future__ import annotations

from pathlib import Path

from conf.generate import with_options
from txlog.config import render_toml

ROOT = Path(__file__).parent.parent


def test_txlog_toml_is_the_table_of_settings() -> None:
    assert (ROOT / "conf" / "txlog.toml").read_text(encoding="utf-8") == render_toml(), "run `make conf`"


def test_the_options_in_the_page_are_the_table_of_options() -> None:
    page = (ROOT / "docs" / "kafka.md").read_text(encoding="utf-8")
    assert page == with_options(page), "run `make conf`"
