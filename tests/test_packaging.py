"""The shipped files: the wheel and the sdist, built as `make wheel` builds them, and a wheel that works after installation."""

from __future__ import annotations

import email
import subprocess
import sys
import tarfile
import zipfile
from configparser import ConfigParser
from dataclasses import dataclass
from pathlib import Path

import pytest

from txlog import __version__

ROOT = Path(__file__).parent.parent
DIST_INFO = f"pyspark_txlog-{__version__}.dist-info"


@dataclass(frozen=True, slots=True)
class Dist:
    wheel: Path
    sdist: Path

    def read(self, name: str) -> str:
        with zipfile.ZipFile(self.wheel) as archive:
            return archive.read(f"{DIST_INFO}/{name}").decode()

    @property
    def wheel_names(self) -> set[str]:
        with zipfile.ZipFile(self.wheel) as archive:
            return set(archive.namelist())

    @property
    def sdist_names(self) -> set[str]:
        with tarfile.open(self.sdist) as archive:
            return {member.name.partition("/")[2] for member in archive.getmembers()}


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Dist:
    """Build the wheel from the sdist, so that a file that the sdist lacks is noticed here."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = out.glob("*.whl")
    (sdist,) = out.glob("*.tar.gz")
    return Dist(wheel, sdist)


def test_the_wheel_holds_every_source_file_and_nothing_else(dist: Dist) -> None:
    expected = {
        str(path.relative_to(base))
        for base, package in ((ROOT, "txlog"), (ROOT / "spark_ext", "pyspark_txlog"))
        for path in (base / package).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert {"txlog/__init__.py", "txlog/py.typed", "pyspark_txlog/py.typed"} <= expected
    metadata = {
        f"{DIST_INFO}/{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")
    }
    assert dist.wheel_names == expected | metadata


def test_the_wheel_describes_itself(dist: Dist) -> None:
    metadata = email.message_from_string(dist.read("METADATA"))
    assert metadata["Name"] == "pyspark-txlog"
    assert metadata["Version"] == __version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    assert set(metadata.get_all("Provides-Extra", [])) == {
        "spark",
        "connect",
        "pipelines",
        "sql",
        "iceberg",
        "page",
        "s3",
        "gcs",
        "azure",
        "demo",
        "bench",
        "test",
        "dev",
    }
    assert "txlog stores Kafka topics in a folder or an object store" in metadata.get_payload()
    assert "Apache License" in dist.read("licenses/LICENSE")


def test_every_dependency_has_a_floor(dist: Dist) -> None:
    requirements = email.message_from_string(dist.read("METADATA")).get_all("Requires-Dist", [])
    assert requirements
    assert [requirement for requirement in requirements if ">=" not in requirement.partition(";")[0]] == []


def test_the_commands_are_entry_points(dist: Dist) -> None:
    entries = ConfigParser()
    entries.read_string(dist.read("entry_points.txt"))
    assert entries["console_scripts"]["txlog"] == "txlog.cli.main:main"
    assert "demo" in entries["txlog.commands"]


def test_the_sdist_holds_what_is_needed_to_build_and_to_test(dist: Dist) -> None:
    expected = {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "Makefile", "scripts/setup.sh", ".ci/run"}
    expected |= {
        "conf/txlog.toml",
        "docs/kafka.md",
        "tests/test_packaging.py",
        "txlog/py.typed",
        "spark_ext/pyspark_txlog/py.typed",
    }
    assert sorted(expected - dist.sdist_names) == []
    assert [name for name in dist.sdist_names if name.endswith(".pyc") or name.startswith((".venv", ".git/"))] == []


def test_the_wheel_works_where_it_is_installed(dist: Dist, tmp_path: Path) -> None:
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(tmp_path)]
    subprocess.run([*install, str(dist.wheel)], check=True, capture_output=True)
    # Neither site-packages nor the source tree is on the path, only what was installed.
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import txlog; print(txlog.__file__, txlog.__version__)"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.split() == [str(tmp_path / "txlog" / "__init__.py"), __version__]
