"""Write txlog/config/kafka_calls.toml from the tables of docs/kafka-calls.md: `python conf/kafka_calls.py`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE, TARGET = ROOT / "docs" / "kafka-calls.md", ROOT / "txlog" / "config" / "kafka_calls.toml"
SECTIONS = {"All clients": "txlog", "Producer": "Producer", "Consumer": "Consumer", "AdminClient": "Admin"}
"""Section of the page -> the class that a program looks in."""
LONGEST = 200
HEAD = "# What stands in docs/kafka-calls.md beside each call, for messages. `python conf/kafka_calls.py` writes it.\n"


def text() -> str:
    """Return the file."""
    calls: dict[str, str] = {}
    for name, hint in _calls(PAGE.read_text(encoding="utf-8")):
        calls.setdefault(name, hint)
    return HEAD + "".join(f"{json.dumps(name)} = {json.dumps(hint)}\n" for name, hint in sorted(calls.items()))


def _calls(page: str) -> Iterator[tuple[str, str]]:
    for title, kind in SECTIONS.items():
        section = page.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
        for row in re.findall(r"^\| (.*) \|$", section, re.MULTILINE)[1:]:
            *theirs, ours = row.split(" | ")
            hint = _hint(ours)
            for name in re.findall(r"`(?:future\.)?(\w+)[(`]", " ".join(theirs)) if hint else ():
                yield f"{kind}.{name}", hint


def _hint(cell: str) -> str:
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", cell).replace("`", "").removeprefix("none: ").removeprefix("none")
    hint = ""
    for sentence in re.split(r"(?<=\.) ", plain):
        if hint and len(hint) + len(sentence) > LONGEST:
            break
        hint += f" {sentence}"
    return hint.strip().removesuffix(".")


if __name__ == "__main__":
    TARGET.write_text(text(), encoding="utf-8")
