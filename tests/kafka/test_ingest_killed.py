"""The job is killed (SIGKILL) in a micro-batch and restarted, with its checkpoint or without: lost 0, doubled 0."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from lab.invariants import check_store
from tests.kafka import driver
from tests.kafka.broker import KafkaClient
from tests.kafka.records import Expected, arguments
from txlog.storage.open import open_object_store

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.slow]


@pytest.mark.parametrize("checkpoint_is", ["kept", "lost"])
@pytest.mark.parametrize("moment", driver.MOMENTS)
def test_a_killed_job(
    kafka: KafkaClient, bootstrap: str, connector: str, tmp_path: Path, moment: str, checkpoint_is: str
) -> None:
    topic = f"t-{tmp_path.name}"
    kafka.create_topic(topic, 2)
    expected = Expected(topic, 2)
    expected.fill(kafka, 40)
    url, checkpoint = tmp_path / "log", tmp_path / "checkpoint"
    job = arguments(bootstrap, connector, topic, "--max-offsets-per-trigger", "15")
    # With the checkpoint, the JVM is killed too, because it could still write to this checkpoint beside the next run.
    whom = "alone" if checkpoint_is == "lost" else "all"
    killed = start(moment, whom, url, checkpoint, job)
    try:
        assert killed.wait(240) == -signal.SIGKILL, (tmp_path / "log.txt").read_text()
        expected.fill(kafka, 20)
        if checkpoint_is == "lost":
            shutil.rmtree(checkpoint)
        again = start("never", "-", url, checkpoint, job)
        assert again.wait(240) == 0, (tmp_path / "log.txt").read_text()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(killed.pid, signal.SIGKILL)
    expected.check(str(url))
    check_store(open_object_store(str(url)))


def start(moment: str, whom: str, url: Path, checkpoint: Path, job: object) -> subprocess.Popen[bytes]:
    """Start a driver; its output goes to a file beside the store."""
    with (url.parent / "log.txt").open("ab") as out:
        return subprocess.Popen(
            [sys.executable, driver.__file__, moment, whom, str(url), str(checkpoint), *job],  # type: ignore[misc]
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
