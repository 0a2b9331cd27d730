"""Do the pages for analysts print what they show, also the second time, and are their other statements true?"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import txlog
from tests.test_docs import Program
from tests.test_tutorials import blocks, here, shell


def jobs(job: Program, lines: Program, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return what the lines `python daily.py ...` print, run in this process. Other lines run in a shell."""
    printed = ""
    for line in lines.code.splitlines():
        name, _, words = line.partition(" daily.py ")
        if name == "python":
            monkeypatch.setattr(sys, "argv", ["daily.py", *words.split()])
            printed += here(job)
        else:
            printed += shell(Program(lines.page, "sh", f"{line}\n", ""))
    return printed


def test_a_daily_job_loses_and_doubles_no_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files, job, days, mend, newest, query = blocks("docs/daily-job.md")
    here(files)
    for each in (days, mend):
        assert jobs(job, each, monkeypatch) == each.printed
    assert (here(newest), shell(query)) == (newest.printed, query.printed)
    here(files)
    for each in (days, mend):
        assert {line.partition(" ")[2] for line in jobs(job, each, monkeypatch).splitlines()} == {"was there already"}
    assert (here(newest), shell(query)) == (newest.printed, query.printed)


def test_a_key_replaces_and_removes_single_rows(tmp_path: Path) -> None:
    """The last way of docs/daily-job.md."""
    first, second = {"day": "2026-11-20", "customer": "ann"}, {"day": "2026-11-20", "customer": "bob"}
    config = {"key.columns": "day,customer", "cleanup.policy": "compact"}
    columns = {"day": "string", "customer": "string", "amount": "float64"}
    with txlog.open(tmp_path / "log") as store:
        store.create_topic("sales", columns, partitions=3, config=config)
        with store.producer("daily-2026-11-20") as producer:
            for version, rows in enumerate(
                [[first | {"amount": 1.0}, second | {"amount": 2.0}], [first, second | {"amount": 3.0}]]
            ):
                with producer.transaction(version + 1):
                    producer.send("sales", rows)
        found = store.table("sales").latest(["*"]).read_all().to_pylist()
    assert found == [second | {"amount": 3.0}]
