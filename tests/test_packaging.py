"""The shipped files: the wheel and the sdist, built as `make wheel` builds them, and a wheel that works after
installation."""

from __future__ import annotations

import email
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

import pytest

from scripts.release_check import ROOT, Dist, build, metadata_problems
from txlog import __version__


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Dist:
    return build(tmp_path_factory.mktemp("dist"))


def test_the_wheel_holds_every_source_file_and_nothing_else(dist: Dist) -> None:
    expected = {
        str(path.relative_to(base))
        for base, package in ((ROOT, "txlog"), (ROOT / "spark_ext", "pyspark_txlog"))
        for path in (base / package).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert {"txlog/__init__.py", "txlog/py.typed", "pyspark_txlog/py.typed"} <= expected
    metadata = {
        f"{dist.info}/{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")
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
        "metrics",
        "page",
        "otel",
        "inotify",
        "s3",
        "gcs",
        "azure",
        "bench",
        "test",
        "dev",
        "docs",
    }
    assert "Append-only tables with Kafka's transactions, in a folder or a bucket." in metadata.get_payload()
    assert "Apache License" in dist.read("licenses/LICENSE")


def test_a_package_index_takes_the_metadata(dist: Dist) -> None:
    assert [*metadata_problems(dist.read("METADATA"), __version__)] == []
    assert [*metadata_problems(dist.sdist_metadata, __version__)] == []
    without_floor = dist.read("METADATA").replace("Requires-Dist: pyarrow>=21", "Requires-Dist: pyarrow")
    assert [*metadata_problems(without_floor, __version__)] == ["pyarrow: expected a lowest version"]


def test_the_commands_are_entry_points(dist: Dist) -> None:
    entries = ConfigParser()
    entries.read_string(dist.read("entry_points.txt"))
    assert entries["console_scripts"]["txlog"] == "txlog.cli.main:main"


def test_the_sdist_holds_what_is_needed_to_build_and_to_test(dist: Dist) -> None:
    expected = {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "Makefile", "scripts/setup.sh", ".ci/run"}
    expected |= {"CITATION.cff", "CONTRIBUTING.md", "SECURITY.md", ".dockerignore"}
    expected |= {
        "conf/deploy/Dockerfile",
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
