"""What the command lines of all jobs share: a missing store, several failures, and the end of what the job began."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace

import pytest
import typer
from typer.testing import CliRunner

from pyspark_txlog.jobs import command_line, compact, fsck, ingest_kafka, maintain, merge, retention, vacuum
from txlog.errors import CorruptRecordError, StorageError, TxlogError

KAFKA = ["--bootstrap-servers", "localhost:1", "--transactional-id", "x", "--checkpoint", "x"]


@pytest.mark.parametrize("job", [compact, fsck, ingest_kafka, maintain, merge, retention, vacuum])
def test_a_store_that_is_not_named_is_one_line(job: ModuleType) -> None:
    app = typer.Typer()
    app.command()(job.main)
    ended = CliRunner().invoke(app, KAFKA if job is ingest_kafka else [], env={"TXLOG_STORE": None})
    name = job.__name__.rpartition(".")[2]
    assert ended.stderr == f"{name}: which store? Name it with --store URL, or in the environment as TXLOG_STORE\n"
    assert ended.exit_code == 2


def test_all_failures_are_shown_and_the_session_ends(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []
    session = SimpleNamespace(stop=lambda: begun.append("stopped"))
    monkeypatch.setattr(command_line, "job_session", lambda name, conf: begun.append(name) or session)

    def run(name: str, *failed: TxlogError) -> None:
        with command_line.running(name) as job:
            job.session(None)
            job.raise_first(failed)

    run("ingest_kafka")
    assert begun == ["txlog-ingest-kafka", "stopped"]
    with pytest.raises(SystemExit) as ended:
        run("merge", CorruptRecordError("first"), StorageError("second"), StorageError("third"))
    assert ended.value.code == 4
    assert capsys.readouterr().err == "merge: second\nmerge: third\nmerge: first\n"
    assert begun[2:] == ["txlog-merge", "stopped"]
