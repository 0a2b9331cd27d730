"""Runs modules of this folder in the environments that `make test-engines` makes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def python(environment: str) -> Path:
    return Path(os.environ.get("TXLOG_TEST_ENGINES", ROOT)) / environment / "bin" / "python"


def run(environment: str, module: str, *arguments: str) -> str:
    """Return what a module prints. It must not fail."""
    program = python(environment)
    assert program.exists(), f"{program} is missing: run make test-engines"
    command = [str(program), "-m", f"tests.engines.{module}", *arguments]
    path = os.pathsep.join((str(ROOT), str(ROOT / "spark_ext")))
    env = {**os.environ, "PYTHONPATH": path, "PYSPARK_PYTHON": str(program), "TZ": "UTC"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout
