"""What the command lines of all jobs share: a missing store, and the end of the Spark session that the job began."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import typer
from typer.testing import CliRunner

from pyspark_txlog.jobs import command_line, ingest_kafka, run
from txlog.cli import program
from txlog.errors import StorageError

WHICH = "which store? Name it with --store URL, or in the environment as TXLOG_STORE"
NEEDED = {"erase": ["orders", "--where", "id = 7"]}
"""Arguments without which a verb does not begin."""
KAFKA = ["--bootstrap-servers", "localhost:1", "--transactional-id", "x", "--checkpoint", "x"]


@pytest.mark.parametrize("verb", run.VERBS)
def test_a_store_that_is_not_named_is_one_line(
    verb: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TXLOG_STORE", raising=False)
    with pytest.raises(SystemExit, match="2"):
        run.main([verb, *NEEDED.get(verb, [])])
    assert capsys.readouterr().err == f"Error: {WHICH}\n"
    with pytest.raises(SystemExit, match="2"):
        run.main([verb, *NEEDED.get(verb, []), "-o", "json"])
    assert msgspec.json.decode(capsys.readouterr().err)["message"] == WHICH


def test_the_job_that_ingests_needs_a_store_too() -> None:
    app = typer.Typer()
    app.command()(ingest_kafka.main)
    ended = CliRunner().invoke(app, KAFKA, env={"TXLOG_STORE": None})
    assert ended.stderr == f"ingest_kafka: {WHICH}\n"
    assert ended.exit_code == 2


@pytest.mark.parametrize("verb", run.VERBS)
def test_a_job_has_the_options_of_its_command_and_one_more(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    def options(main: Callable[[list[str]], object]) -> set[str]:
        with pytest.raises(SystemExit, match="0"):
            main([verb, "--help"])
        return {word.strip(",") for word in capsys.readouterr().out.split() if word.startswith("--")}

    assert options(run.main) - options(program.app) == {"--conf"}


def test_the_verb_comes_first(capsys: pytest.CaptureFixture[str]) -> None:
    for given in ([], ["topics"], ["--store", "/nowhere/at-all", "merge"]):
        with pytest.raises(SystemExit, match="2"):
            run.main(given)
        said = capsys.readouterr().err
        assert said.startswith("Error: expected one of merge, compact, ")
        assert said.endswith(f"found {(given or [''])[0]!r}\n")
    with pytest.raises(SystemExit) as ended:
        run.main(["--help"])
    assert not ended.value.code
    assert "VERB is merge, compact, " in capsys.readouterr().out


def test_a_file_can_be_run_as_it_is() -> None:
    """As spark-submit runs it."""
    ended = subprocess.run(
        [sys.executable, run.__file__, "merge", "--store", "/nowhere/at-all", "--output", "json"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert ended.returncode == 2
    assert msgspec.json.decode(ended.stderr)["error"] == "NotAStoreError"


def test_the_session_ends_with_the_job(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []
    session = SimpleNamespace(stop=lambda: begun.append("stopped"))

    def begin(name: str, conf: object) -> Any:
        begun.append(name)
        return session

    monkeypatch.setattr(command_line, "job_session", begin)
    with command_line.running("ingest_kafka") as job:
        assert job.session(None) is job.session(None)
    assert begun == ["txlog-ingest-kafka", "stopped"]

    def fail() -> None:
        with command_line.running("merge") as job:
            job.session(None)
            raise StorageError("no answer")

    with pytest.raises(SystemExit) as ended:
        fail()
    assert ended.value.code == 5
    assert capsys.readouterr().err == "merge: no answer\n"
    assert begun[2:] == ["txlog-merge", "stopped"]


@pytest.mark.parametrize("given", [["--conf"], ["--store", "/nowhere/at-all", "--conf", "spark.ui.enabled"]])
def test_settings_of_spark_must_be_pairs(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        run.main(["compact", *given])
    assert "--conf" in capsys.readouterr().err
