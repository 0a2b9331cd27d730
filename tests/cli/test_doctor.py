"""`doctor`: does it find what is wrong with this machine or the store, and does it show what to do?"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

from pyspark_txlog import spark_version
from tests.cli.support import Cli, run
from txlog import client
from txlog.cli import doctor
from txlog.client import Store
from txlog.errors import StorageError, StoreAccessError
from txlog.storage.local import LocalObjectStore

VERSIONS = {"pyspark": "4.2.0", "pandas": "2.3.1", "pyarrow": "21.0.0", "s3fs": "2026.1.0"}


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Make this a machine with Java 17 and VERSIONS. Return the folder of its Java."""

    def version(package: str) -> str:
        if package not in VERSIONS:
            raise PackageNotFoundError(package)
        return VERSIONS[package]

    monkeypatch.setattr(doctor, "version", version)
    home = tmp_path / "jdk"
    (home / "bin").mkdir(parents=True)
    monkeypatch.setenv("JAVA_HOME", str(home))
    _java(home, 'openjdk version "17.0.9" 2023-10-17')
    return home


def _java(home: Path, banner: str, status: int = 0) -> None:
    program = home / "bin" / "java"
    program.write_text(f"#!/bin/sh\necho '{banner}' >&2\nexit {status}\n")
    program.chmod(0o755)


def found(done: Any) -> dict[str, dict[str, Any]]:
    return {each["check"]: each for each in done.json}


def test_all_is_well(cli: Cli, store: Store) -> None:
    before = sorted(path for path in cli.root.rglob("*") if path.is_file())
    checks = found(cli("doctor", "-o", "json"))
    assert {name: each["state"] for name, each in checks.items()} == {
        **dict.fromkeys(("python", "pyarrow", "crc32c", "spark", "java", "driver s3", "store", "read", "write"), "ok"),
        "clock": "ok",
        "pandas": "ok",
        **dict.fromkeys(("polars", "duckdb", "sqlglot", "matplotlib", "pyiceberg", "prometheus-client"), "note"),
        "driver gs": "note",
        "driver abfs": "note",
    }
    assert checks["read"]["found"] == "1 topic can be read, metadata only: `txlog fsck` looks for damage"
    assert checks["java"]["found"].startswith("Java 17 (")
    assert sorted(path for path in cli.root.rglob("*") if path.is_file()) == before
    lines = cli("doctor").lines
    assert lines[0].split() == ["CHECK", "STATE", "FOUND"]
    assert "What to do" not in lines


@pytest.mark.parametrize(
    ("banner", "status", "words"),
    [
        ('java version "1.8.0_202"', 0, "is Java 8, and Spark needs 17 or newer"),
        ('openjdk version "11.0.2" 2019-01-15', 0, "is Java 11, and"),
        ("Unable to locate a Java Runtime", 1, "does not run (CalledProcessError)"),
        ("hello", 0, "tells no version: hello"),
    ],
)
def test_a_java_that_spark_cannot_use(
    machine: Path, cli: Cli, store: Store, banner: str, status: int, words: str
) -> None:
    _java(machine, banner, status)
    java = found(cli("doctor", "-o", "json", status=1))["java"]
    assert (java["state"], words in java["found"]) == ("problem", True)
    assert java["advice"] == "install Java 17 or newer, and set JAVA_HOME to its folder"
    assert "java: install Java 17 or newer" in cli("doctor", status=1).out


def test_no_java(cli: Cli, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setattr("txlog.cli.doctor.shutil.which", lambda _: None)
    assert found(cli("doctor", "-o", "json", status=1))["java"]["found"].startswith("no Java on PATH")
    # Without Spark nothing needs it.
    monkeypatch.delitem(VERSIONS, "pyspark")
    checks = found(cli("doctor", "-o", "json"))
    assert (checks["java"]["state"], checks["spark"]["state"]) == ("note", "note")


def test_an_old_spark_and_a_new_pandas(cli: Cli, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(VERSIONS, "pyspark", "3.5.7")
    spark = found(cli("doctor", "-o", "json", status=1))["spark"]
    assert spark["found"] == "pyspark 3.5.7, and txlog needs 4.0 or newer"
    monkeypatch.setitem(VERSIONS, "pyspark", "4.3.0")
    monkeypatch.setitem(VERSIONS, "pandas", "3.0.0")
    assert found(cli("doctor", "-o", "json"))["pandas"]["state"] == "note"


def test_without_a_store_only_the_machine_is_looked_at() -> None:
    checks = found(run("doctor", "-o", "json", env={"TXLOG_STORE": None}))
    assert checks["store"]["found"] == "no store is named"
    assert "write" not in checks


def test_an_empty_location_stays_empty(cli: Cli) -> None:
    checks = found(cli("doctor", "-o", "json"))
    assert "is empty; the first topic makes a store there" in checks["store"]["found"]
    assert not cli.root.exists()


def test_something_else_is_there(cli: Cli) -> None:
    cli.root.mkdir()
    (cli.root / "notes.txt").write_text("x")
    assert found(cli("doctor", "-o", "json", status=1))["store"]["state"] == "problem"


class Changed(LocalObjectStore):
    """A local store with a fault."""

    shift_ms = 0
    error: Exception | None = None

    def put_if_absent(self, path: str, data: bytes) -> Any:
        if self.error is not None:
            raise self.error
        return super().put_if_absent(path, data)

    def modified_ms(self, path: str) -> int | None:
        found = super().modified_ms(path)
        return None if found is None else found + self.shift_ms

    def __init__(self, root: str) -> None:
        super().__init__(root, fsync=False)
        self.place = f"{self.place} {id(self)}"  # nothing was proven here before


@pytest.fixture
def changed(cli: Cli, store: Store, monkeypatch: pytest.MonkeyPatch) -> Changed:
    """Return the store that the command line works on."""
    made = Changed(str(cli.root))
    real = client.open
    monkeypatch.setattr(client, "open", lambda url, **options: real(url, **options, object_store=made))
    return made


@pytest.mark.parametrize("minutes", [-5, 5])
def test_a_clock_that_is_a_little_wrong(cli: Cli, changed: Changed, minutes: int) -> None:
    changed.shift_ms = minutes * 60_000
    clock = found(cli("doctor", "-o", "json"))["clock"]
    assert clock["state"] == "note"
    assert "min" in clock["found"].split(" from the store's")[0]
    assert clock["advice"] == "synchronise this machine's clock (NTP)"


def test_a_clock_that_is_too_wrong_to_write(cli: Cli, changed: Changed) -> None:
    changed.shift_ms = 3_600_000
    write = found(cli("doctor", "-o", "json", status=1))["write"]
    assert "this machine's clock is 3" in write["found"]
    assert write["advice"] == "synchronise it (NTP)"


def test_a_store_that_may_only_be_read(cli: Cli, changed: Changed) -> None:
    changed.error = StoreAccessError("the store refuses to write")
    checks = found(cli("doctor", "-o", "json"))
    assert checks["write"] == {
        "check": "write",
        "state": "note",
        "found": "this user may only read: the store refuses to write",
        "advice": "give writers the permission to create and to delete objects; readers need to list and to read only",
    }
    changed.error = StorageError("it does not answer")
    assert found(cli("doctor", "-o", "json", status=1))["write"]["state"] == "problem"


def test_the_oldest_spark_is_that_of_the_package_for_spark() -> None:
    assert doctor._OLDEST_SPARK == spark_version.MINIMUM_SPARK
