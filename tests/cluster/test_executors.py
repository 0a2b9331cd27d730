"""How do executors get txlog? Each way of docs/cluster.md, on interpreters that have only its dependencies."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from tests.cluster import job
from tests.cluster.conftest import SPARK_BIN
from tests.cluster.jobs import ENVIRONMENT, EVERYTHING, Job, Place
from tests.spark_cluster import SparkCluster

pytestmark = [pytest.mark.spark, pytest.mark.cluster]
ROOT = Path(__file__).parents[2]
STEPS = ["executors", "write", "read", "stream", "native_write", "native_scan"]
WRITTEN = ("orders", "streamed", "native", "audit")


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel, as a zip."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    (built,) = out.glob("*.whl")
    return built.rename(out / "txlog.zip")


def interpreter(folder: Path) -> Path:
    """Return an environment like this one, without txlog.

    A .pth line adds this environment's packages. Python does not follow .pth files from there, so the clone of txlog is
    not found.
    """
    venv.create(folder, symlinks=True)
    paths = dict.fromkeys(sysconfig.get_paths()[name] for name in ("purelib", "platlib"))
    (site(folder) / "dependencies.pth").write_text("\n".join(paths) + "\n")
    return folder / "bin" / "python"


def site(folder: Path) -> Path:
    (found,) = (folder / "lib").glob("python*/site-packages")
    return found


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an interpreter that has txlog's dependencies, but not txlog."""
    python = interpreter(tmp_path_factory.mktemp("bare") / "environment")
    tried = subprocess.run(
        [python, "-c", "import msgspec, pyarrow, pyspark; import txlog"],
        capture_output=True,
        text=True,
        cwd="/",
        env=ENVIRONMENT,
    )
    assert "No module named 'txlog'" in tried.stderr
    return python


def check(found: dict[str, object], place: Place) -> None:
    place.check(**dict.fromkeys(WRITTEN, EVERYTHING))
    assert found["read"] == EVERYTHING
    assert found["native_scan"] == {topic: EVERYTHING if topic in WRITTEN else [] for topic in job.TOPICS}


def where(found: dict[str, object]) -> set[str]:
    """Return the places of txlog on the executors."""
    places = found["executors"]
    assert isinstance(places, list)
    return {txlog for _, txlog in places}


def test_it_is_installed_there(cluster: SparkCluster, place: Place, wheel: Path) -> None:
    python = interpreter(place.folder / "installed")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site(place.folder / "installed"))
    found = Job(master=cluster.master, place=place, steps=STEPS, environment={"PYSPARK_PYTHON": str(python)}).run()
    check(found, place)
    assert where(found) == {str(site(place.folder / "installed") / "txlog" / "__init__.py")}


def test_it_is_not(cluster: SparkCluster, place: Place, bare: Path) -> None:
    """The control: without any of these ways the job fails."""
    environment = {"PYSPARK_PYTHON": str(bare), "PYSPARK_DRIVER_PYTHON": str(bare)}
    refused = Job(master=cluster.master, place=place, steps=["read"], environment=environment)
    with pytest.raises(AssertionError, match="DATA_SOURCE_NOT_FOUND"):
        refused.run()


def test_py_files(cluster: SparkCluster, place: Place, bare: Path, wheel: Path) -> None:
    """Driver and executors import txlog from the wheel; the job registers the format."""
    found = Job(
        master=cluster.master,
        place=place,
        steps=STEPS,
        register=True,
        # A process beside the driver plans a stream, and this process does not get py-files.
        environment={"PYSPARK_PYTHON": str(bare), "PYTHONPATH": str(wheel)},
        command=[
            SPARK_BIN / "spark-submit",
            "--master",
            cluster.master,
            "--driver-memory",
            "1g",
            "--py-files",
            str(wheel),
        ],
    ).run()
    check(found, place)
    assert all("txlog.zip" in each for each in where(found))


def test_an_archive_of_an_environment(cluster: SparkCluster, place: Place, wheel: Path) -> None:
    """`./environment/bin/python` for driver and executors; each executor unpacks its own copy."""
    folder = place.folder / "environment"
    interpreter(folder)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site(folder))
    with tarfile.open(place.folder / "packed.tar.gz", "w:gz") as packed:
        packed.add(folder, ".")
    found = Job(
        master=cluster.master,
        place=place,
        steps=STEPS,
        config={"spark.archives": f"{place.folder}/packed.tar.gz#environment"},
        environment={"PYSPARK_PYTHON": "./environment/bin/python"},
        command=["./environment/bin/python"],
    ).run()
    check(found, place)
    for cwd, txlog in found["executors"]:
        assert txlog.startswith(f"{cwd}/environment/")
