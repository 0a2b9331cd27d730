"""Runs the jobs of conf/deploy/dagster_jobs.py with `execute_in_process()`, without a server, and prints their results.

The store is in the environment. The first try of each day fails after its commit.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.schedulers.dying import first_try_dies

EXAMPLE = Path(__file__).parents[2] / "conf" / "deploy" / "dagster_jobs.py"


def definitions() -> Any:
    """Return the definitions of the example, with retries that do not wait."""
    source = EXAMPLE.read_text(encoding="utf-8")
    assert "delay=300" in source
    names: dict[str, Any] = {"__name__": "dagster_jobs"}
    exec(compile(source.replace("delay=300", "delay=0"), str(EXAMPLE), "exec", dont_inherit=True), names)
    return names["definitions"]


def main(days: list[str]) -> None:
    made = definitions()
    states = []
    for day in days:
        with first_try_dies() as tries:
            done = made.resolve_job_def("txlog_daily_load").execute_in_process(partition_key=day)
        states += [f"{day} {'success' if done.success else 'failed'}, try {tries.count}"]
    for name in ("txlog_maintain", "txlog_fsck"):
        done = made.resolve_job_def(name).execute_in_process()
        states += [f"{name} {'success' if done.success else 'failed'}"]
    print(json.dumps(states))


if __name__ == "__main__":
    main(sys.argv[1:])
