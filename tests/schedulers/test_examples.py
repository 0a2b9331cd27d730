"""Do the examples of conf/deploy for Airflow and Dagster run, and is each day in the topic once? `make test-schedulers`
makes their environment. No server of a scheduler runs."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import txlog

pytestmark = [pytest.mark.schedulers, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
BIN = Path(os.environ.get("TXLOG_TEST_SCHEDULERS", ROOT / ".venv-schedulers")) / "bin"
SALES = {
    "2026-11-19": [("bob", 5.0)],
    "2026-11-20": [("ann", 20.0), ("bob", 30.0)],
    "2026-11-21": [("ann", 7.5)],
}
LATE_FIRST = ["2026-11-20", "2026-11-21", "2026-11-19"]
"""A day that comes late, after newer ones."""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A store, files of three days, and folders of the schedulers, which are new for each test."""
    assert BIN.exists(), f"{BIN} is missing: run make test-schedulers"
    sales, dags = tmp_path / "sales", tmp_path / "dags"
    sales.mkdir()
    dags.mkdir()
    for day, rows in SALES.items():
        lines = ["customer,amount", *(f"{customer},{amount}" for customer, amount in rows)]
        (sales / f"{day}.csv").write_text("\n".join(lines) + "\n")
    shutil.copy(ROOT / "conf" / "deploy" / "airflow_dag.py", dags)
    (tmp_path / "dagster").mkdir()
    return {
        **os.environ,
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "TXLOG_STORE": str(tmp_path / "log"),
        "SALES_FOLDER": str(sales),
        "AIRFLOW_HOME": str(tmp_path / "airflow"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "DAGSTER_HOME": str(tmp_path / "dagster"),
        "DAGSTER_DISABLE_TELEMETRY": "yes",
    }


def run(environment: dict[str, str], *command: str) -> str:
    done = subprocess.run([str(BIN / command[0]), *command[1:]], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-8000:]
    return done.stdout


def rows(environment: dict[str, str]) -> list[tuple[str, str, float]]:
    with txlog.open(environment["TXLOG_STORE"]) as store:
        found: list[dict[str, Any]] = store.table("sales").to_arrow(["day", "customer", "amount"]).to_pylist()
    return sorted((str(row["day"]), row["customer"], row["amount"]) for row in found)


def test_the_page_names_the_versions_that_ran() -> None:
    pinned = dict(re.findall(r"^([a-z-]+)==(\S+)$", (ROOT / "conf" / "schedulers.txt").read_text(), re.MULTILINE))
    page = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    assert f"Airflow {pinned['apache-airflow-core']} and Dagster {pinned['dagster']}" in page


@pytest.mark.parametrize("scheduler", ["airflow", "dagster"])
def test_each_day_is_there_once_after_retries_and_second_runs(scheduler: str, environment: dict[str, str]) -> None:
    if scheduler == "airflow":
        run(environment, "airflow", "db", "migrate")
    # The second process runs each day again, as a backfill or a cleared task does.
    for _ in range(2):
        printed = run(environment, "python", "-m", f"tests.schedulers.{scheduler}_runs", *LATE_FIRST)
        states = json.loads(printed.splitlines()[-1])
        assert states == [
            *(f"{day} success, try 2" for day in LATE_FIRST),
            "txlog_maintain success",
            "txlog_fsck success",
        ]
        assert rows(environment) == [(day, *sale) for day, sales in SALES.items() for sale in sales]
