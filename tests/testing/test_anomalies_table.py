"""`anomalies.md` describes each anomaly, the checker's rule that finds it, and the history that plants it.

`python -m tests.testing.test_anomalies_table` writes the file, and the test checks it.
"""

from __future__ import annotations

import re
from pathlib import Path

from lab.histories.anomaly import ANOMALIES, NOTES
from lab.histories.checker import CHECKS
from tests.testing.test_checker import BAD, GOOD, NOTED, named

TABLE = Path(__file__).with_name("anomalies.md")
HEAD = """# What the checker of histories finds

Names down to `G1c-realtime` are those of Jepsen's Kafka checker, the rest are txlog's own. *Planted* are the histories of
`test_checker.py` that have the anomaly, *near misses* those that almost have it and must pass.
"""


def claimed_by(name: str) -> list[str]:
    """Return the rules whose docstring names the anomaly."""
    found = []
    for rule in CHECKS:
        words = re.findall(r"[A-Za-z0-9-]+", rule.__doc__ or "")
        if name in words:
            found.append(f"`{rule.__module__.rpartition('.')[2]}.{rule.__name__}`")
    return found


def planted(name: str, plants: dict[str, object], names: dict[str, str]) -> str:
    return ", ".join(f"`{plant}`" for plant in plants if named(plant, names) == name)


def render() -> str:
    lines = [HEAD, "| anomaly | meaning | found by | planted | near misses |", "|---|---|---|---|---|"]
    for name, meaning in ANOMALIES.items():
        cells = [f"`{name}`", meaning, ", ".join(claimed_by(name)), planted(name, BAD, ANOMALIES)]
        lines.append(f"| {' | '.join([*cells, planted(name, GOOD, ANOMALIES)])} |")
    lines += [
        "",
        "Allowed, as in Kafka, and counted:",
        "",
        "| note | meaning | found by | planted |",
        "|---|---|---|---|",
    ]
    for name, meaning in NOTES.items():
        lines.append(f"| `{name}` | {meaning} | {', '.join(claimed_by(name))} | {planted(name, NOTED, NOTES)} |")
    return "\n".join(lines) + "\n"


def test_the_table_is_true():
    assert all(claimed_by(name) for name in (*ANOMALIES, *NOTES)), "each rule says in its docstring what it finds"
    assert TABLE.read_text() == render(), "run: python -m tests.testing.test_anomalies_table"


if __name__ == "__main__":
    TABLE.write_text(render())
