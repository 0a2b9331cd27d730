"""Writes what must say what the code says (`make conf`): conf/txlog.toml and the options in docs/kafka.md."""

from __future__ import annotations

from pathlib import Path

from pyspark_txlog.option_table import render_markdown
from txlog.config import render_toml

ROOT = Path(__file__).parent.parent
START, END = "<!-- options: written by conf/generate.py -->\n", "<!-- /options -->\n"


def with_options(page: str) -> str:
    """The page with the tables between its two markers. Raises ValueError if it has not both."""
    before, found, rest = page.partition(START)
    _, closed, after = rest.partition(END)
    if not found or not closed:
        raise ValueError(f"docs/kafka.md has no {START.strip()} and {END.strip()}")
    return f"{before}{START}\n{render_markdown()}\n{END}{after}"


if __name__ == "__main__":
    (ROOT / "conf" / "txlog.toml").write_text(render_toml(), encoding="utf-8")
    page = ROOT / "docs" / "kafka.md"
    page.write_text(with_options(page.read_text(encoding="utf-8")), encoding="utf-8")
