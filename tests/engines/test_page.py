"""The programs of docs/publish.md, corrections.md and delete-rows.md print what the page shows, also the second time.

Each runs in the environment of its engine.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests import jars
from tests.engines.environments import ROOT, python
from tests.engines.read_topics import ICEBERG_JARS
from tests.test_docs import PAGES, Program, programs, run
from tests.test_tutorials import blocks

pytestmark = [pytest.mark.engines, pytest.mark.timeout(900)]

PAGE = "docs/publish.md"
OF_ENGINES = ("iceberg-spark-runtime", "import duckdb", "io.delta", "import polars", "import deltalake", "pyiceberg")


def environment(program: Program) -> str:
    if "iceberg-spark-runtime" in program.code:
        return ".venv-iceberg"
    return ".venv-engines" if "import duckdb" in program.code else ".venv-bench"


def printed(folder: Path, program: Program) -> str:
    if program.language == "sh":
        return run(folder, "bash", "-euc", program.code)
    interpreter = python(environment(program))
    path = os.pathsep.join((str(ROOT), str(ROOT / "spark_ext")))
    env = {**os.environ, "PYTHONPATH": path, "PYSPARK_PYTHON": str(interpreter), "HOME": str(folder / "home")}
    if "pyspark" in program.code:
        # The cache of downloaded JARs is there.
        env["HOME"] = os.environ["HOME"]
    done = subprocess.run([str(interpreter), "-c", program.code], cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def install_extensions(home: Path) -> None:
    """Put DuckDB's extensions where `INSTALL` would download them to. PyPI has them, too."""
    (packages,) = Path(ROOT / ".venv-engines").glob("lib/python3*/site-packages")
    for name in ("avro", "delta", "iceberg"):
        (file,) = packages.glob(f"duckdb_extension_{name}/**/{name}.duckdb_extension")
        query = "import duckdb; print(duckdb.sql('PRAGMA platform').fetchone()[0], duckdb.__version__)"
        said = run(home.parent, str(python(".venv-engines")), "-c", query)
        platform, version = said.split()
        target = home / ".duckdb" / "extensions" / f"v{version}" / platform / file.name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, target)


def test_the_programs_of_the_page_run_in_order_and_again(tmp_path: Path) -> None:
    install_extensions(tmp_path / "home")
    found = programs(PAGE)
    assert {each for each in OF_ENGINES for program in found if each in program.code} == set(OF_ENGINES)
    *reads, end = found
    assert "--unset" in end.code
    for repeated in (False, True):
        for program in reads:
            said = printed(tmp_path, program).strip()
            if program.printed and not (repeated and program.language == "sh"):
                assert said == program.printed.strip(), program.code
    printed(tmp_path, end)


def test_corrections_reach_other_engines(tmp_path: Path) -> None:
    make, job, *rest = blocks("docs/corrections.md")
    (tmp_path / "load.py").write_text(job.code)
    for program in (make, *rest):
        said = printed(tmp_path, program)
        assert not program.printed or said.strip() == program.printed.strip(), program.code


def test_a_forgotten_person_leaves_the_tables_of_other_engines(tmp_path: Path) -> None:
    found = blocks("docs/delete-rows.md")
    assert any("import deltalake" in each.code and "StaticTable" in each.code for each in found)
    for repeated in (False, True):
        for program in found:
            said = printed(tmp_path, program)
            if program.printed:
                assert said.strip() == program.printed.strip(), program.code
            assert (
                repeated or "--execute" not in program.code or "visits" not in program.code or "Erased 1 row." in said
            )


def test_the_page_names_the_versions_that_are_tested() -> None:
    page = PAGES[PAGE]
    pinned = "".join((ROOT / "conf" / name).read_text() for name in ("engines.txt", "iceberg.txt", "spark-4.2.txt"))
    for version in re.findall(r"pip install (\w+==[\d.]+)", page):
        assert version in pinned.split(), version
    assert ICEBERG_JARS in page
    assert jars.DELTA_LAKE.coordinates[0] in page
