"""Do the pages for analysts print what they show, also the second time, and are their other statements true?"""

from __future__ import annotations

import contextlib
import datetime
import decimal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import duckdb
import numpy
import pandas
import pyarrow as pa
import pytest

import txlog
from tests.test_docs import PAGES, Program
from tests.test_tutorials import blocks, here, shell
from txlog import metrics
from txlog.errors import SchemaMismatchError


def jobs(job: Program, lines: Program, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return what the lines `python job.py ...` print, run in this process. Other lines run in a shell."""
    printed = ""
    for line in lines.code.splitlines():
        name, _, words = line.partition(".py ")
        if name.startswith("python "):
            monkeypatch.setattr(sys, "argv", ["job.py", *words.split()])
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


def test_corrections_leave_the_newest_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Delta's reader is in `make test-engines`."""
    monkeypatch.chdir(tmp_path)
    make, job, late, wrong, _, iceberg, people = blocks("docs/corrections.md")
    shell(make)
    for each in (late, wrong):
        assert jobs(job, each, monkeypatch).split("TOPIC")[0] == each.printed.split("TOPIC")[0]
    assert (here(iceberg), here(people)) == (iceberg.printed, people.printed)
    assert "OF THEM COPIED" in wrong.printed
    with txlog.open("my-log") as store:
        assert store.table("orders").count() == 5  # ann's order, and its tombstone, too
    for each in (late, wrong):
        said = jobs(job, each, monkeypatch)
        assert {line.partition(" ")[2] for line in said.splitlines() if line[:1] == "2"} >= {"was there already"}
    assert (here(iceberg), here(people)) == (iceberg.printed, people.printed)


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
    """The readers of published tables are in `make test-engines`."""
    monkeypatch.chdir(tmp_path)
    make, commands, _, oldest, forget, compact, verify = blocks("docs/delete-rows.md")
    here(make)
    printed = shell(commands)
    assert "Would erase 1 row." in printed
    assert "Erased 1 row." in printed
    assert (here(oldest), here(forget)) == (oldest.printed, forget.printed)
    seen = datetime.datetime.now(datetime.UTC)
    assert "ann@a.org" not in shell(compact)
    left = shell(verify)
    assert "a read may return them" not in left
    assert "No read returns the rows." in left
    turns = "txlog --store my-log publish --once\ntxlog --store my-log vacuum --now --execute\n" * 4
    assert "Nothing to delete in " in shell(replace(verify, code=turns))
    assert shell(verify) == "No object holds such a row.\n"
    with txlog.open("my-log") as store:  # readers who ask for the past, and the files
        assert store.table("people").to_arrow(["mail"], as_of=seen)["mail"].to_pylist() == [
            "bob@b.org",
            None,
        ]
        assert list(Path("my-log", "people").rglob("*.parquet"))
    here(make)
    assert shell(commands).count("No row matches.\n") == 2
    assert (here(oldest), here(forget)) == (oldest.printed, forget.printed)
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


def test_frames_come_back_as_the_page_says(tmp_path: Path) -> None:
    """The table and the list of "Write a DataFrame, and read it back" in docs/tables.md."""
    times = pandas.to_datetime(["2026-11-19", "2026-11-20"])
    samples = {
        "int64": [1, 2],
        "Int64": pandas.array([1, None], dtype="Int64"),
        "float64": [0.5, float("nan")],
        "bool": [True, False],
        "boolean": pandas.array([True, None], dtype="boolean"),
        "texts": ["a", None],
        "category": pandas.Categorical(["a", "b"]),
        "datetime64[ns]": times,
        "datetime64[ns, UTC]": times.tz_localize("UTC"),
        "datetime.date": [datetime.date(2026, 11, 19), None],
        "decimal.Decimal": [decimal.Decimal("1.50"), None],
        "lists": [["a"], ["b", "c"]],
    }
    dtypes = {pa.int64(): pandas.Int64Dtype(), pa.bool_(): pandas.BooleanDtype()}.get
    shown = PAGES["docs/tables.md"].partition("| pandas dtype |")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in shown.splitlines()[2:]]
    with txlog.open(tmp_path) as store:
        for number, ((written, declared, plain, mapped), values) in enumerate(zip(rows, samples.values(), strict=True)):
            frame = pandas.DataFrame({"c": values})
            assert written.startswith(f"`{frame['c'].dtype}`")
            store.create_topic(f"t{number}", {"c": eval(declared.strip("`"))})
            table = store.table(f"t{number}")
            with store.producer() as producer:
                producer.send(f"t{number}", frame)
                producer.flush()
                producer.send(f"t{number}", table.to_pandas(["*"], types_mapper=dtypes))
            first, second, *again = table.to_arrow(["c"])["c"].to_pylist()
            assert again == [first, second]
            assert f"`{table.to_pandas(['*'])['c'].dtype}`" == plain
            assert f"`{table.to_pandas(['*'], types_mapper=dtypes)['c'].dtype}`" == mapped


def test_a_frame_makes_the_columns_of_a_topic(tmp_path: Path) -> None:
    """ "The columns of a frame" in docs/tables.md."""
    frame = pandas.DataFrame({"visits": [1, None, 3], "since": pandas.to_datetime(["2026-11-19"] * 3)})
    with txlog.open(tmp_path) as store:
        store.create_topic("floats", frame[frame.visits > 1])
        store.create_topic("integers", frame.astype({"visits": "Int64"}))
        assert store.topic("floats").schema.names == ["visits", "since"]
        assert [str(field.type) for field in store.topic("floats").schema] == ["double", "timestamp[us]"]
        assert [str(field.type) for field in store.topic("integers").schema] == ["int64", "timestamp[us]"]
        assert store.table("floats").count() == 0
        with pytest.raises(SchemaMismatchError, match="use the type that its values will have"):
            store.create_topic("nulls", frame.assign(visits=None))
        with pytest.raises(SchemaMismatchError, match="reset_index"), store.producer() as producer:
            producer.send("floats", frame[frame.visits > 1])
        with pytest.raises(SchemaMismatchError, match=r"as pyarrow\.timestamp\('us', 'UTC'\)"):
            store.create_topic("times", {"since": "timestamp[us, UTC]"})


def test_nan_of_a_frame_is_null_and_nan_of_a_dictionary_is_nan(tmp_path: Path) -> None:
    with txlog.open(tmp_path) as store:
        store.create_topic("t", {"n": "int64", "spent": "float64"})
        with store.producer() as producer:
            producer.send("t", pandas.DataFrame({"spent": [1.0, float("nan")]}))
            producer.send("t", pandas.DataFrame({"n": [1]}))
        visitors = store.table("t")
        assert visitors.count("spent is null") == 2
        assert cast(Any, duckdb.sql("SELECT sum(spent) FROM visitors")).fetchall() == [(1.0,)]
        assert cast(Any, duckdb.sql("SELECT sum(spent) FROM visitors")).fetchall() == [(1.0,)]
        with store.producer() as producer:
            producer.send("t", {"spent": float("nan")})
        assert visitors.count("spent > 100") == 1
        assert str(cast(Any, duckdb.sql("SELECT sum(spent) FROM visitors")).fetchall()) == "[(nan,)]"
        with pytest.raises(ValueError, match="not properly called"):
            pandas.DataFrame(visitors)


def test_a_date_skips_files_and_a_key_does_not(tmp_path: Path) -> None:
    days, generator = 4, numpy.random.default_rng(1)

    def read_bytes(store: txlog.Store, where: str | None) -> float:
        with metrics.enabled() as registry:
            store.table("sales").to_arrow(["*"], where=where)
            return sum(registry.values("txlog_storage_read_bytes_total").values())

    with txlog.open(tmp_path) as store:
        columns = {"customer": "int64", "day": "date32", "amount": "float64"}
        store.create_topic("sales", columns, partitions=2, config={"key.columns": "customer"})
        for number in range(days):
            frame = pandas.DataFrame(
                {
                    "customer": generator.integers(0, 5_000, 20_000),
                    "day": datetime.date(2026, 11, 1 + number),
                    "amount": generator.random(20_000),
                }
            )
            with store.producer() as producer:
                producer.send("sales", frame)
        everything = read_bytes(store, None)
        assert read_bytes(store, "day = '2026-11-02'") < everything / 2
        assert read_bytes(store, "customer = 77") > everything * 0.9
