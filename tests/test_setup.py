"""scripts/setup.sh on machines that lack something: it names what is missing, and downloads nothing.

The interpreters are programs that print what an old or broken one prints.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TOOLS = ("bash", "sed", "head", "touch", "env")

JAVA_11 = "echo 'openjdk version \"11.0.22\" 2024-01-16' >&2"
JAVA_8 = "echo 'java version \"1.8.0_402\"' >&2"
JAVA_17 = "echo 'openjdk version \"17.0.15\" 2025-04-15' >&2"
NO_VERSION = "echo hello"
OLD_PYTHON = 'if [ "$1" = --version ]; then echo Python 3.10.4; else exit 1; fi'
THIS_PYTHON = f'exec {sys.executable} "$@"'
NO_VENV = f'case "$2" in *ensurepip*) exit 1;; esac; exec {sys.executable} "$@"'


@pytest.mark.parametrize(
    ("programs", "message"),
    [
        ({"python3": OLD_PYTHON, "java": JAVA_17}, "needs Python 3.11 or newer; 'python3' is Python 3.10.4"),
        ({"java": JAVA_17}, "needs Python 3.11 or newer; 'python3' is missing"),
        ({"python3": THIS_PYTHON, "java": JAVA_11}, "needs Java 17 or newer; 'java' is Java 11.0.22"),
        ({"python3": THIS_PYTHON, "java": JAVA_8}, "needs Java 17 or newer; 'java' is Java 1.8.0_402"),
        ({"python3": THIS_PYTHON, "java": NO_VERSION}, "'java -version' printed no version: hello"),
        ({"python3": THIS_PYTHON, "java": "exit 1"}, "needs Java 17 or newer; 'java' does not run"),
        ({"python3": THIS_PYTHON}, "needs Java 17 or newer; 'java' does not run"),
        ({"python3": NO_VENV, "java": JAVA_17}, "has no venv module"),
    ],
)
def test_what_is_missing_is_said(programs: dict[str, str], message: str, tmp_path: Path) -> None:
    done = _setup(programs, tmp_path)
    assert done.returncode == 1
    assert message in done.stderr
    assert not (tmp_path / "venv").exists()


def test_java_home_counts_before_the_path(tmp_path: Path) -> None:
    _program(tmp_path / "jdk" / "bin" / "java", JAVA_11)
    done = _setup({"python3": THIS_PYTHON, "java": JAVA_17}, tmp_path, JAVA_HOME=str(tmp_path / "jdk"))
    assert f"'{tmp_path}/jdk/bin/java' is Java 11.0.22" in done.stderr


def test_a_named_interpreter_is_the_only_one_tried(tmp_path: Path) -> None:
    named = _program(tmp_path / "my tools" / "python", OLD_PYTHON)
    done = _setup({"python3": THIS_PYTHON, "java": JAVA_17}, tmp_path, PYTHON=str(named))
    assert f"'{named}' is Python 3.10.4" in done.stderr


def test_a_newer_python_is_found_behind_an_old_one(tmp_path: Path) -> None:
    programs = {"python3": OLD_PYTHON, "python3.12": THIS_PYTHON, "java": JAVA_11}
    assert "needs Java 17" in _setup(programs, tmp_path).stderr


def _setup(programs: dict[str, str], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    bin_folder = folder / "bin"
    for name, script in programs.items():
        _program(bin_folder / name, script)
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found
        (bin_folder / tool).symlink_to(found)
    return subprocess.run(
        [str(ROOT / "scripts" / "setup.sh"), str(folder / "venv")],
        env={"PATH": str(bin_folder), "HOME": os.environ.get("HOME", "/"), **environment},
        cwd=folder,
        capture_output=True,
        text=True,
    )


def _program(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)
    return path
