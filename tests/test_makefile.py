"""Does each target of the Makefile run? At the smallest size that it can be asked for; a new target needs a row here.

`make test` runs the cheap ones, and of all others checks that the modules, scripts and folders exist that their
commands name. `make test-exhaustive ARGS=tests/test_makefile.py` runs the others.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
THIS = Path(sys.prefix)
"""The environment that runs the tests. It stands for each other one that does not exist."""
OTHERS = {
    "BENCH": (".venv-bench",),
    "DELTA": (".venv-spark-4.2", ".venv-bench"),
    "ENGINES": (".venv-engines",),
    "ICEBERG": (".venv-iceberg",),
    "LINTERS": (".venv-linters",),
    "MINIMUM": (".venv-minimum",),
    "OTHER": (".venv-spark-4.0",),
    "SCHEDULERS": (".venv-schedulers",),
}
"""Variables of the Makefile for other environments, and which folders may stand for each."""
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


@dataclass(frozen=True)
class Smallest:
    """How a target is asked for as little as possible."""

    variables: tuple[str, ...] = ()
    cheap: bool = False
    copied: bool = False
    """It changes the checkout, so it runs in a copy."""
    less: str = ""
    """Why this is not all that the target does, and what runs the rest. Without variables the target does not run at
    all."""
    instead: tuple[tuple[str, ...], ...] = ()
    """What runs of it if the target cannot: arguments of Python."""


def args(text: str, *more: str, **named: object) -> Smallest:
    """Return a target that runs with these ARGS."""
    return Smallest((f"ARGS={text}", *more), **named)  # type: ignore[arg-type]


ONE_ROUND = "--scale 0.001 --rounds 1 --output {tmp}"
MAVEN = "it fetches JARs from Maven"
TARGETS = {
    "help": Smallest(cheap=True),
    "setup": Smallest(less="it installs packages; tests/test_setup.py runs its script, and .ci/run the target"),
    "check": Smallest(),
    "check-deploy": Smallest(less="it installs linters; tests/test_deploy.py runs what the files call"),
    "format": Smallest(copied=True),
    "test": args("tests/core/test_names.py -n 0 -q", cheap=True),
    "test-minimum": args("--collect-only -q -n 0", less="it only collects: these tests run in `make test`"),
    "test-exhaustive": args("tests/maintenance/test_two_of_everything.py -n 0 -k create-create"),
    "test-storm": args("tests/client/test_thread_table.py --collect-only", less="its tests take many minutes"),
    "test-kill": args("--rounds 1 --victim driver --point planned"),
    "test-kafka": args("--collect-only", less=MAVEN),
    "test-cluster": args("--collect-only", less=".ci/run runs the first part"),
    "test-spark": args("-k test_defaults_are_those_of_the_kafka_source", less=".ci/run has that Spark"),
    "smoke-spark": args("--collect-only", less=".ci/run runs it"),
    "test-spark-python": args("-n 0 -k test_several_topics_of_one_schema", less="all of it takes many minutes"),
    "test-engines": args("tests/engines/test_topics.py -k delta", less=MAVEN + " for Delta on Spark"),
    "test-schedulers": args("--collect-only", less="it installs Airflow and Dagster"),
    "test-page": args("--collect-only", less="it needs chromium and chromedriver"),
    "pictures": Smallest(less="it needs chromium and chromedriver", instead=(("-c", "import tests.page.pictures"),)),
    "test-rivals": Smallest(
        less=MAVEN,
        instead=(
            ("-m", "tests.kill.torn_views", "--help"),
            ("-m", "tests.kill.lost_checkpoint", "txlog"),
            ("-m", "tests.kill", "--help"),
        ),
    ),
    "simulate": args("--scenario slot --quick --processes 1", "WORLDS=1", cheap=True),
    "second-reader": Smallest(("WORLDS=1",), cheap=True),
    "scale": args("--writers 1 --seconds 1", cheap=True),
    "chaos": args("--no-spark", "MINUTES=0.05", "SEED=1"),
    "chaos-maintain": args("--no-spark", "MINUTES=0.05", "SEED=1"),
    "demo": Smallest(),
    "bench": args(f"P1 {ONE_ROUND}", less="tests/test_benchmarks.py runs P1 and P3"),
    "bench-quick": args(f"P1 {ONE_ROUND}"),
    "bench-core": args(ONE_ROUND),
    "bench-spark": args(ONE_ROUND),
    "bench-maintenance": args(ONE_ROUND),
    "bench-long-run": args(ONE_ROUND),
    "bench-growth": args(ONE_ROUND),
    "conf": Smallest(copied=True, cheap=True),
    "docs": Smallest(copied=True),
    "wheel": Smallest(copied=True),
    "release-check": Smallest(copied=True),
    "clean": Smallest(copied=True, cheap=True),
    "distclean": Smallest(copied=True, cheap=True),
}  # fmt: skip
CHEAP = sorted(target for target, how in TARGETS.items() if how.cheap)
DEAR = sorted(target for target, how in TARGETS.items() if not how.cheap and (how.variables or not how.less))


def make(target: str, *arguments: str, cwd: Path = ROOT, environments: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a target. It makes no environment: the stamps of all are new, and the Python that would make them fails."""
    with tempfile.TemporaryDirectory() as stamps:
        command = ["make", "--no-print-directory", target, *arguments]
        if environments:
            places = {"VENV": THIS} | {
                name: next((ROOT / each for each in found if (ROOT / each).exists()), THIS)
                for name, found in OTHERS.items()
            }
            command += [f"{name}={place}" for name, place in places.items()]
            command.append("PYTHON=/bin/false")
            # A make within make gets variables, but not --assume-old.
            for name in ("STAMP", *(f"{name}_STAMP" for name in OTHERS), "CLASSES"):
                Path(stamps, name).touch()
                command.append(f"{name}={stamps}/{name}")
        # The make that runs the tests hands its own ARGS on.
        inherited = ("MAKEFLAGS", "MAKEOVERRIDES", "MFLAGS", "MAKELEVEL", "ARGS")
        env = {name: value for name, value in os.environ.items() if name not in inherited}
        return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)


def targets() -> set[str]:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    (phony,) = re.findall(r"^\.PHONY: (.*)$", text, re.MULTILINE)
    assert set(phony.split()) == {*re.findall(r"^([a-z0-9.-]+):.*## ", text, re.MULTILINE)}
    return set(phony.split())


def named_in_docs() -> set[str]:
    found = set()
    for page in PAGES:
        code = re.findall(r"```.*?```|`[^`\n]+`", page.read_text(encoding="utf-8"), re.DOTALL)
        found |= {name for each in code for name in re.findall(r"\bmake ([a-z][a-z0-9.-]*[a-z0-9])", each)}
    return found


def test_each_target_has_a_row_and_the_docs_name_only_targets() -> None:
    assert set(TARGETS) == targets()
    assert {"bench", "demo", "release-check", "test-kill"} <= named_in_docs() <= targets()


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_the_commands_of_a_target_exist(target: str) -> None:
    planned = make(target, "--dry-run")
    assert planned.returncode == 0, planned.stderr
    for module in re.findall(r"/python -m ([a-z_.]+)", planned.stdout):
        spec = importlib.util.find_spec(module)
        assert spec is not None, module
        # A package is run by its __main__.
        assert spec.submodule_search_locations is None or importlib.util.find_spec(f"{module}.__main__"), module
    for path in re.findall(r" ((?:tests|scripts|conf)/[\w./-]+)", planned.stdout):
        assert (ROOT / path).exists(), path
    for mark in re.findall(r"pytest .*-m ([a-z]+)", planned.stdout):
        assert f'"{mark}: ' in (ROOT / "pyproject.toml").read_text(encoding="utf-8"), mark


@pytest.mark.parametrize("target", CHEAP)
def test_a_cheap_target_runs(target: str, tmp_path: Path) -> None:
    run(target, tmp_path)


@pytest.mark.exhaustive
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("target", DEAR)
def test_a_dear_target_runs(target: str, tmp_path: Path) -> None:
    run(target, tmp_path)


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
@pytest.mark.parametrize("command", [command for how in TARGETS.values() for command in how.instead], ids=" ".join)
def test_a_part_runs_of_a_target_that_cannot(command: tuple[str, ...]) -> None:
    done = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


def run(target: str, tmp_path: Path) -> None:
    how = TARGETS[target]
    folder = ROOT
    if how.copied:
        folder = tmp_path / "checkout"
        left = shutil.ignore_patterns(".git", ".venv*", ".*_cache", "__pycache__", "build", "dist", "reports")
        shutil.copytree(ROOT, folder, symlinks=True, ignore=left)
    variables = [each.format(tmp=tmp_path / "output") for each in how.variables]
    # The environments that `distclean` removes are those of the copy, which has none.
    done = make(target, *variables, cwd=folder, environments="clean" not in target)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert "Traceback" not in done.stderr, done.stderr[-4000:]
