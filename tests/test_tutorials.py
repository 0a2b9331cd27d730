"""Do the pages that each have a folder of their own print what they show, also the second time?

Their kills are real.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import fsspec
import pyarrow as pa
import pytest

import txlog
from tests.cli.support import run as command
from tests.servers.start import start
from tests.test_docs import PAGES, Program, programs, python, run, typed
from txlog.maintenance import fsck
from txlog.storage.open import open_object_store

TIMES = re.compile(r"\d+(?:\.\d+)? (?:ms|s|min)\b")
OWN = re.compile(r"consumer-[0-9a-f]{32}|[0-9-]{10}T[0-9:.]+Z|(?<=generation) +\d+")


def blocks(page: str) -> list[Program]:
    """Return all blocks that run, those of the shell too, with what stands below each."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", PAGES[page], re.MULTILINE | re.DOTALL)
    return [
        Program(page, language, code, after if next_language == "text" else "")
        for (language, code), (next_language, after) in zip(found, [*found[1:], ("", "")], strict=True)
        if language in ("python", "sh")
    ]


def shell(program: Program) -> str:
    """Return what a block of the shell prints.

    Commands of txlog run in this process: Python takes a second to start.
    """
    printed = ""
    for line in program.code.splitlines(keepends=True):  # a line is a command
        by_txlog = line.startswith("txlog ")
        printed += typed(replace(program, code=line)) if by_txlog else run(Path.cwd(), "bash", "-euc", line)
    return printed


def here(program: Program) -> str:
    """Return what a program prints. It runs in this process, which must not live on with what a crash leaves open."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(program.code, program.page, "exec"), {"__name__": "__main__"})
    return printed.getvalue()


def killed(folder: Path, command: str) -> None:
    """Run a line of a page, and check that SIGKILL ended it."""
    done = subprocess.run(["bash", "-c", f"exec env {command}"], cwd=folder, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("first", [1, pytest.param(0, marks=pytest.mark.exhaustive)])
def test_a_killed_pipeline_loses_nothing_and_a_first_job_shares_its_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    """From the page's first kill on, or only by the second one: the store is then the same."""
    monkeypatch.chdir(tmp_path)
    files, pipeline, *kills, last = blocks("docs/pipeline.md")
    here(files)
    (tmp_path / "pipeline.py").write_text(pipeline.code)
    assert len(kills) == 2
    for each in kills[first:]:
        strike, look = each.code.splitlines()
        killed(tmp_path, strike.replace("python", sys.executable))
        assert typed(replace(each, code=look)) == each.printed
    assert last.code == "python pipeline.py\n"
    job = programs("docs/first-spark-job.md")
    assert len(job) == 3
    assert python(tmp_path, [pipeline, pipeline, *job, *job]) == [
        each.printed.strip() for each in [last, last, *job, *job]
    ]
    with txlog.open("my-log") as store:
        # A repeated program does not change what the log tells about the last transaction.
        for name, version in (("split-orders", 2), ("load-rides", 202602)):
            found = store.admin().describe_transaction(name)
            assert (found.txn_version, found.last_outcome) == (version, "commit")


@pytest.mark.parametrize("times", [1, pytest.param(2, marks=pytest.mark.exhaustive)])
def test_two_members_share_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    load, worker, start, looks, reset = blocks("docs/groups.md")
    (tmp_path / "worker.py").write_text(worker.code)
    monkeypatch.chdir(tmp_path)
    for _ in range(times):
        here(load)
        lines = run(tmp_path, "bash", "-euc", start.code.replace("python", sys.executable)).splitlines()
        assert {line.split()[0] for line in lines if " reads clicks-" in line} == {"a", "b"}
        assert not [line for line in lines if " has lost " in line]
        # A member may have either half of the partitions, and its id and the times are its own.
        assert sorted(OWN.sub("", typed(looks)).split()) == sorted(OWN.sub("", looks.printed).split())
    assert "Would move 4 offsets" in typed(reset).partition("BEFORE")[2]
    with txlog.open("my-log") as store:
        (group,) = store.admin().list_groups()
        assert (group.state, [each.committed for each in group.offsets]) == ("EMPTY", [0] * 4)


def test_a_hanging_transaction_is_found_and_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, dying, second, find, contents, end, fence = blocks("docs/hanging-transaction.md")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "till_7.py").write_text(dying.code)
    here(first)
    killed(tmp_path, f"{sys.executable} till_7.py")
    here(second)
    assert TIMES.sub("", typed(find)).split() == TIMES.sub("", find.printed).split()
    printed = typed(contents)
    assert ", open" in contents.printed
    assert printed.endswith(contents.printed)
    assert '\n{"payment":2,"amount":99.0}\n{"payment":3,"amount":35.0}\n' in printed
    assert typed(end) == end.printed
    # The page says that its rows can still be read.
    assert '\n{"payment":2,"amount":99.0}\n' in typed(contents)
    assert [here(each) for each in (fence, fence, first, second)] == [fence.printed] * 2 + [""] * 2
    with txlog.open("my-log") as store:
        assert not store.admin().find_hanging(-1)
        assert store.table("payments").to_arrow()["payment"].to_pylist() == [1, 3]


def test_a_moved_store_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make, move, go_on, publish, table = blocks("docs/move-store.md")
    assert python(tmp_path, [make]) == [make.printed.strip()]
    assert shell(move) == move.printed.replace("/home/you", tmp_path.as_posix())
    assert [here(go_on), here(go_on)] == [go_on.printed, "skipped: True\n[]\n"]
    assert shell(publish) == publish.printed
    assert [here(table), here(table)] == [table.printed] * 2


def test_a_store_moves_from_a_folder_to_a_bucket(tmp_path: Path) -> None:
    make, *_ = blocks("docs/move-store.md")
    python(tmp_path, [make])
    with start("s3") as server:
        drive = fsspec.filesystem("s3", **server.storage_options)
        for path in (tmp_path / "old-log").rglob("*"):
            if path.is_file():
                name = path.relative_to(tmp_path / "old-log").as_posix()
                drive.pipe_file(server.store_url(f"moved/{name}"), path.read_bytes())
        url, options = server.store_url("moved"), server.storage_options
        found = fsck.check_store(open_object_store(url, options))
        assert found.is_clean
        assert not found.findings
        with txlog.open(url, storage_options=options) as store:
            with store.producer(transactional_id="till") as producer:
                with producer.transaction(version=1) as txn:
                    producer.send("sales", {"sale": 1, "amount": 90.0})
                assert txn.result is not None
                assert txn.result.skipped
            with store.producer(transactional_id="dead-till") as producer, producer.transaction():
                producer.send("sales", {"sale": 4, "amount": 20.0})
            with store.consumer("sales", group_id="audit", auto_offset_reset="earliest") as consumer:
                assert [batch["sale"].to_pylist() for batch in consumer.iterate()] == [[4]]
            assert store.table("sales").to_arrow()["sale"].to_pylist() == [1, 2, 4]


def test_the_environment_is_enough_for_a_server_of_one_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    look, program, *_ = blocks("docs/object-stores.md")
    lines = program.code.splitlines()
    assert lines[-1] == "txlog topics list --store s3://bucket/log"
    with start("s3") as server:
        options = server.storage_options
        known = {
            "AWS_ENDPOINT_URL": str(options["endpoint_url"]),
            "AWS_ACCESS_KEY_ID": str(options["key"]),
            "AWS_SECRET_ACCESS_KEY": str(options["secret"]),
        }
        for line in lines:
            if line.startswith("export "):
                name, _, value = line.removeprefix("export ").partition("=")
                monkeypatch.setenv(name, known.get(name, value))
        commands = "\n".join(line for line in lines if not line.startswith("export "))
        assert re.search(r"^orders +1 ", typed(replace(program, code=commands)), re.MULTILINE)
        assert re.search(r"^orders +1 ", typed(replace(program, code=commands)), re.MULTILINE)
        # A machine of tests may lack Java, which doctor reports.
        looked = command(*shlex.split(look.code)[1:], status=None).out
        assert re.search(r"^write +ok ", looked, re.MULTILINE)


def test_a_copy_to_a_past_point_in_time_is_whole_while_a_writer_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (commands,) = blocks("docs/restore.md")
    monkeypatch.chdir(tmp_path)
    columns = pa.schema([("number", pa.int64())])
    begun, done = threading.Event(), threading.Event()
    with txlog.open("my-log") as store:
        for topic in ("left", "right"):
            store.create_topic(topic, columns, config={"segment.batches": 10})

        def write() -> int:
            number = 0
            with store.producer(transactional_id="writer", staged=False) as producer:
                while not done.is_set():
                    with producer.transaction():
                        for topic in ("left", "right"):
                            producer.send(topic, {"number": number})
                    number += 1
                    if number == 25:
                        begun.set()
            return number

        with ThreadPoolExecutor() as pool:
            writing = pool.submit(write)
            try:
                assert begun.wait(60)
                assert re.search(r"^damaged +0\nmissing +0$", shell(commands), re.MULTILINE)
            finally:
                done.set()
            written = writing.result()
    with txlog.open("backup") as copy:
        copy.admin().fence("writer")
        left, right = (copy.table(topic).to_arrow()["number"].to_pylist() for topic in ("left", "right"))
    assert left == right == list(range(len(left)))
    assert 25 <= len(left) < written
