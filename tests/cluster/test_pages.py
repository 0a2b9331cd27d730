"""Do the programs of docs/connect.md and docs/pipelines.md print what the pages show, also the second time?"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.conftest import SPARK_BIN
from tests.cluster.jobs import ENVIRONMENT
from tests.test_docs import PAGES, programs, run

pytestmark = [pytest.mark.spark, pytest.mark.cluster]
PIPELINE_S = 250


def test_the_programs_over_connect(connect_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_REMOTE", connect_server)
    shown = programs("docs/connect.md")
    assert len(shown) == 2
    for program in [*shown, *shown]:
        assert run(tmp_path, sys.executable, "-c", program.code) == program.printed


def test_the_pipeline(tmp_path: Path) -> None:
    topics, flows = (program.code for program in programs("docs/pipelines.md"))
    (spec,) = re.findall(r"^```yaml\n(.*?)^```$", PAGES["docs/pipelines.md"], re.MULTILINE | re.DOTALL)
    ((commands, printed),) = re.findall(
        r"^```sh\n(.*?)^```\n+```text\n(.*?)^```$", PAGES["docs/pipelines.md"], re.MULTILINE | re.DOTALL
    )
    start, look = commands.splitlines()
    assert start == "spark-pipelines run"
    (tmp_path / "pipeline").mkdir()
    (tmp_path / "pipeline" / "flows.py").write_text(flows)
    (tmp_path / "spark-pipeline.yml").write_text(spec.replace("/path/of/your/folder", tmp_path.as_posix()))
    environment = {**ENVIRONMENT, "PYSPARK_PYTHON": sys.executable, "SPARK_HOME": str(SPARK_BIN.parent)}
    for _ in range(2):
        run(tmp_path, sys.executable, "-c", topics)
        done = subprocess.run(
            [SPARK_BIN / "spark-pipelines", "run"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PIPELINE_S,
        )
        assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
        assert run(tmp_path, "bash", "-euc", look) == printed
        shutil.rmtree(tmp_path / "spark-warehouse")
