"""Is docs/kafka.md true? Its program runs, and its commands use parameters that the job has."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
import typer
from pyspark.sql import SparkSession

import txlog
from pyspark_txlog import committed_source_offsets
from pyspark_txlog.jobs import ingest_kafka
from tests import jars
from tests.kafka.broker import KafkaClient
from tests.kafka.records import Expected
from txlog.errors import FencedError

PAGE = (Path(__file__).parents[2] / "docs" / "kafka.md").read_text(encoding="utf-8")
(FORGET,) = re.findall(r"`(txlog [^`]+ expire [^`]+)`", PAGE)


def test_parameters_are_the_job_s() -> None:
    app = typer.Typer()
    app.command()(ingest_kafka.main)
    known = {
        flag
        for parameter in typer.main.get_command(app).params
        for flag in (*parameter.opts, *parameter.secondary_opts)
    }
    section = PAGE.replace(FORGET, "").partition("## A Kafka topic into txlog\n")[2].partition("\n## ")[0]
    shown = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", section)) - {"--help", "--packages"}
    assert shown
    assert shown <= known


def test_the_command_that_forgets_the_id_fences_an_old_run(tmp_path: Path) -> None:
    with txlog.open(tmp_path / "my-log") as store:
        store.create_topic("orders", pa.schema([("id", pa.int64())]))
        old = store.producer("orders-ingest")
        old.init_transactions()
        with old.transaction(version=0):
            old.send("orders", [{"id": 1}])
        program, *arguments = shlex.split(FORGET)
        subprocess.run([Path(sys.executable).parent / program, *arguments], cwd=tmp_path, check=True)
        assert store.admin().list_transactions() == ()
        with pytest.raises(FencedError), old.transaction(version=1):
            old.send("orders", [{"id": 2}])


def test_versions_are_those_that_are_tested() -> None:
    assert set(re.findall(r"spark-sql-kafka-0-10_2\.13:([\d.]+)", PAGE)) == {jars.CONNECTOR}


@pytest.mark.spark
@pytest.mark.kafka
def test_the_program_runs(
    kafka: KafkaClient, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (program,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(tmp_path)
    kafka.create_topic("orders", 2)
    expected = Expected("orders", 2)
    expected.fill(kafka, 20)
    with txlog.open("my-log") as store:
        store.create_topic("orders", partitions=2)
    place = {"broker:9092": kafka.bootstrap, '"my-': f'"{tmp_path}/my-'}
    for shown, here in place.items():
        assert shown in program
        program = program.replace(shown, here)
    # The session of these tests has the connector already.
    exec(re.sub(r"session\(config=.*\)\n", "session()\n", program), {})
    expected.check(str(tmp_path / "my-log"))
    (offsets,) = committed_source_offsets(str(tmp_path / "my-log"), "orders-ingest").values()
    assert '"orders"' in offsets.json
