"""delta-rs, DuckDB, Polars and pyiceberg read each version of the tables of random lives: the rows of its cut."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.engines import READERS
from tests.engines.environments import ROOT, python
from tests.publication.test_wild_lives import LIVES, STEPS
from tests.publication.wild_lives import EVENTS, TOPIC, Check, WildLife, dump

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
        self.events: Counter[str] = Counter()

    def read(self, engine: str, folder: str, version: int) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(
            json.dumps({"engine": engine, "folder": folder, "version": version}), file=self._process.stdin, flush=True
        )
        self.events[f"read by {engine}"] += 1
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        return found

    def close(self) -> None:
        self._process.communicate()


@pytest.fixture(scope="module")
def engines() -> Iterator[Engines]:
    found = Engines()
    yield found
    found.close()


def live(
    seed: int, folder: Path, engines: Engines, *, latest: bool = False, kind: type[WildLife] = WildLife
) -> Counter[str]:
    """Let the engines read what a life leaves to its judge. Return its events."""

    def judge(life: WildLife, checks: list[Check]) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        dump(life.objects(), folder / life.place)
        for name, place in life.links.items():
            if place == life.place:
                (folder / name).symlink_to(folder / place)
        for check in checks:
            for engine in ENGINES[check.format]:
                found = engines.read(engine, str(folder / check.place / TOPIC), check.version)
                where = f"{engine}, version {check.version}"
                assert "rows" in found, f"{where}: {found}"
                why = check.why_wrong(found["rows"])
                assert why is None, f"{where}: {why}"

    life = kind(seed, f"file://{folder}", judge, latest=latest)
    try:
        life.live(STEPS)
    except BaseException as error:
        error.add_note(f"life {seed}, {life.keyed=}, {life.formats=}: {life.told}")
        raise
    return life.events


@pytest.mark.parametrize("first", range(0, LIVES, 10))
def test_engines_read_what_each_cut_shows(first: int, tmp_path: Path, engines: Engines) -> None:
    for seed in range(first, first + 10):
        engines.events += live(seed, tmp_path / f"life{seed}", engines)
        if seed % 3 == 0:
            live(seed, tmp_path / f"latest{seed}", engines, latest=True)
        engines.events["lives"] += 1


def test_all_lives_have_had_each_event(engines: Engines, record_property: Callable[[str, object], None]) -> None:
    names = ("lives", *(f"read by {engine}" for engine in READERS), *EVENTS)
    record_property("events", {name: engines.events[name] for name in names})
    assert engines.events["lives"] == LIVES, "the tests above must run first"
    # Folders have one scheme.
    assert [name for name in names if not engines.events[name]] == ["one of the schemes that mean the same"]
