"""`completion`: the scripts, and what a shell gets that asks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.support import Cli, run

EXECUTABLE = Path(sys.executable).with_name("txlog")


def completed(line: str, store: Path | None = None) -> list[str]:
    """Return what bash would offer at the end of `line`."""
    words = line.split(" ")
    env = {**os.environ, "_TXLOG_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    env.pop("TXLOG_STORE", None)
    if store is not None:
        env["TXLOG_STORE"] = str(store)
    done = subprocess.run([str(EXECUTABLE)], env=env, capture_output=True, text=True, timeout=120)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_for_each_shell(shell: str, tmp_path: Path) -> None:
    script = run("completion", shell).out
    assert f"_TXLOG_COMPLETE=complete_{shell}" in script
    program = shutil.which(shell)
    if program is not None:
        path = tmp_path / f"txlog.{shell}"
        path.write_text(script)
        assert subprocess.run([program, "-n", str(path)], capture_output=True, text=True).stderr == ""


def test_another_shell_is_refused() -> None:
    assert "'tcsh' is not one of 'bash', 'zsh', 'fish'" in run("completion", "tcsh", status=2).err


def test_commands_and_options() -> None:
    assert completed("txlog cons") == ["consumer-groups", "consume"]
    assert set(completed("txlog topics ")) == {"create", "list", "describe", "alter", "delete"}
    assert completed("txlog consume --until") == ["--until-timestamp"]
    assert completed("txlog consume orders --format p") == ["parquet"]


def test_topics(seen: Cli) -> None:
    for command in ("consume", "topics describe", "produce", "get-offsets", "merge"):
        assert completed(f"txlog {command} or", seen.root) == ["orders"], command
    assert completed("txlog consume ", seen.root) == ["events", "orders"]
    assert completed(f"txlog --store {seen.root} consume ev") == ["events"]
    assert completed(f"txlog consume --store {seen.root} ev") == ["events"]


def test_without_a_store_there_are_no_topics(tmp_path: Path) -> None:
    assert completed("txlog consume or") == []
    assert completed("txlog consume or", tmp_path / "absent") == []
    (tmp_path / "notes.txt").write_text("x")
    assert completed("txlog consume or", tmp_path) == []
