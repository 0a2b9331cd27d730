"""delta-rs, DuckDB, Polars and pyiceberg read each version of the tables of random lives: the rows of its cut."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.engines import READERS
from tests.engines.environments import ROOT, python
from tests.publication.test_wild_lives import LIVES, STEPS
from tests.publication.wild_lives import TOPIC, Check, WildLife, dump

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(3600)]
ENGINES = {
    "delta": [name for name in READERS if "delta" in name],
    "iceberg": [name for name in READERS if "iceberg" in name],
}


class Engines:
    """One process with all engines."""

    def __init__(self) -> None:
        program = python(".venv-engines")
        env = {**os.environ, "PYTHONPATH": str(ROOT), "TZ": "UTC"}
        command = [str(program), "-m", "tests.engines.judge"]
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=env,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self.asked = 0

    def read(self, engine: str, folder: str, version: int) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(
            json.dumps({"engine": engine, "folder": folder, "version": version}), file=self._process.stdin, flush=True
        )
        self.asked += 1
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        return found

    def close(self) -> None:
        self._process.communicate()


@pytest.fixture(scope="module")
def engines() -> Iterator[Engines]:
    found = Engines()
    yield found
    found.close()


def live(seed: int, folder: Path, engines: Engines) -> None:
    """Let the engines read what a life leaves to its judge."""

    def judge(life: WildLife, checks: list[Check]) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        dump(life.objects(), folder / life.place)
        for name, place in life.links.items():
            if place == life.place:
                (folder / name).symlink_to(folder / place)
        for check in checks:
            if not (folder / check.place).exists():
                continue
            for engine in ENGINES[check.format]:
                found = engines.read(engine, str(folder / check.place / TOPIC), check.version)
                where = f"{engine}, version {check.version}"
                assert "rows" in found, f"{where}: {found}"
                why = check.why_wrong(found["rows"])
                assert why is None, f"{where}: {why}"

    life = WildLife(seed, str(folder), judge)
    try:
        life.live(STEPS)
    except BaseException as error:
        error.add_note(f"life {seed}, {life.keyed=}, {life.formats=}: {life.told}")
        raise


@pytest.mark.parametrize("first", range(0, LIVES, 10))
def test_engines_read_what_each_cut_shows(first: int, tmp_path: Path, engines: Engines) -> None:
    before = engines.asked
    for seed in range(first, first + 10):
        live(seed, tmp_path / f"life{seed}", engines)
    assert engines.asked > before + 100
