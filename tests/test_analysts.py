"""Do the pages for analysts print what they show, also the second time, and are their other statements true?"""

from __future__ import annotations

import contextlib
import datetime
import sys
import time
from dataclasses import replace
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


def test_rows_of_a_person_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make, keep, oldest, forget, compact, copy = blocks("docs/delete-rows.md")
    here(make)
    shell(keep)
    assert (here(oldest), here(forget)) == (oldest.printed, forget.printed)
    seen = datetime.datetime.now(datetime.UTC)
    assert "ann@a.org" not in shell(compact)
    assert here(copy) == copy.printed
    with txlog.open("my-log") as store:  # readers who ask for the past, and the files
        assert store.table("people").to_arrow(["mail"], as_of=seen)["mail"].to_pylist() == [
            "bob@b.org",
            None,
            "carl@c.org",
        ]
        assert list(Path("my-log", "people").rglob("*.parquet"))
    here(make)
    shell(keep)
    assert (here(oldest), here(forget), here(copy)) == ("0 rows are left\n", forget.printed, copy.printed)
    assert "ann@a.org" not in shell(compact)


def test_old_rows_leave_also_from_the_active_segment(tmp_path: Path) -> None:
    (oldest,) = (each for each in blocks("docs/delete-rows.md") if "list_offsets" in each.code)
    soon = replace(
        oldest, code=oldest.code.replace("days=30", "milliseconds=300").replace('"my-log"', repr(str(tmp_path)))
    )
    with txlog.open(tmp_path) as store, contextlib.ExitStack() as stack:
        store.create_topic("visits", {"customer": "string"})
        producer = stack.enter_context(store.producer())
        for wait_s in (0.5, 0.5, 0):
            producer.send("visits", {"customer": "ann"})
            producer.flush()
            time.sleep(wait_s)
        assert here(soon) == "1 rows are left\n"
        time.sleep(0.5)
        assert here(soon) == "0 rows are left\n"
