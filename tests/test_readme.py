"""Does README.md tell the truth? Its programs run as printed, in order, and print what stands below them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import txlog
from txlog.config import KEYS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Program:
    """A code block that can be run, and what README says it prints ("" if nothing)."""

    language: str
    code: str
    printed: str

    @property
    def needs_spark(self) -> bool:
        return "pyspark_txlog" in self.code


def programs() -> list[Program]:
    """The blocks of Python and of `txlog` commands; other shell blocks set things up."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    found = []
    for (language, code), (next_language, after) in zip(blocks, [*blocks[1:], ("", "")], strict=True):
        if language == "python" or (language == "sh" and all(line.startswith("txlog ") for line in code.splitlines())):
            found.append(Program(language, code, after if next_language == "text" else ""))
    return found


PROGRAMS = programs()
COMMANDS = next(at for at, program in enumerate(PROGRAMS) if program.language == "sh")


NEXT = "-- the next program --"
KERNEL = f"""
import json, sys
for code in json.loads(sys.argv[1]):
    exec(compile(code, "README.md", "exec"), {{"__name__": "__main__"}})
    print("{NEXT}", flush=True)
"""
"""Runs Python's programs as the cells of a notebook are run, in one process."""


@dataclass(frozen=True, slots=True)
class Desk:
    """A folder to run README's programs in, one after the other."""

    folder: Path
    printed: dict[int, str]

    def run(self, number: int) -> str:
        """What the program prints; those before it have been run first, Spark's only for Spark's."""
        for at in range(number + 1):
            if at not in self.printed and not PROGRAMS[at].needs_spark:
                done = self.start(PROGRAMS[at])
                assert done.returncode == 0, done.stdout + done.stderr
                self.printed[at] = done.stdout
        if number not in self.printed:
            self.printed.update(self.run_spark())
        return self.printed[number]

    def run_spark(self) -> dict[int, str]:
        """All programs for Spark share one session, as `session()` says they would."""
        numbers = [at for at, program in enumerate(PROGRAMS) if program.needs_spark]
        codes = json.dumps([PROGRAMS[at].code for at in numbers])
        done = self.start(Program("python", KERNEL, ""), codes)
        assert done.returncode == 0, done.stdout + done.stderr
        return dict(zip(numbers, done.stdout.split(NEXT), strict=False))

    def start(self, program: Program, *arguments: str) -> subprocess.CompletedProcess[str]:
        # Programs of a virtual environment are found as its user's shell finds them.
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        command = [sys.executable, "-c"] if program.language == "python" else ["bash", "-euc"]
        return subprocess.run(
            [*command, program.code, *arguments],
            cwd=self.folder,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
        )


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    return Desk(tmp_path_factory.mktemp("readme"), {})


def test_there_are_programs_for_python_spark_and_the_shell() -> None:
    assert [(program.language, program.needs_spark) for program in PROGRAMS] == [
        ("python", False),
        ("python", False),
        ("python", True),
        ("python", True),
        ("python", True),
        ("python", True),
        ("python", True),
        ("sh", False),
        ("sh", False),
        ("sh", False),
        ("sh", False),
        ("sh", False),
        ("sh", False),
    ]
    assert len(PROGRAMS[COMMANDS].code.splitlines()) == 5


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(at, marks=[pytest.mark.spark, pytest.mark.slow] if program.needs_spark else [], id=str(at))
        for at, program in enumerate(PROGRAMS)
    ],
)
def test_a_program_runs_as_printed(desk: Desk, number: int) -> None:
    printed = desk.run(number)
    if PROGRAMS[number].language == "python":
        assert printed.strip() == PROGRAMS[number].printed.strip()


def test_a_program_may_be_run_again(tmp_path: Path) -> None:
    """Killed anywhere, or just twice: the second run ends well, prints nothing, and no row is there twice."""
    desk = Desk(tmp_path, {})
    first, second = PROGRAMS[:2]
    for program, printed in ((first, first.printed), (first, ""), (second, second.printed), (second, ""), (first, "")):
        done = desk.start(program)
        assert (done.returncode, done.stderr, done.stdout.strip()) == (0, "", printed.strip())
    with txlog.open(tmp_path / "my-log") as store:
        for topic, expected in (("orders", [1, 2, 3]), ("large", [1, 3])):
            with store.consumer(topic, auto_offset_reset="earliest") as consumer:
                found = [row["order_id"] for batch in consumer.iterate() for row in batch.to_pylist()]
            assert found == expected
        # What the later program for Spark SQL prints of it.
        described = store.admin().describe_transaction("loader")
        assert (described.txn_version, described.last_outcome) == (1, "commit")


def test_the_commands_show_what_the_programs_wrote(desk: Desk) -> None:
    printed = desk.run(COMMANDS)
    assert re.search(r"^orders +2 +3 ", printed, re.MULTILINE)
    assert '{"order_id":3,"country":null,"amount":7.25}\n' in printed
    assert re.search(r"^loader +COMPLETE_COMMIT ", printed, re.MULTILINE)
    assert "partition     orders-0" in printed


def test_the_result_of_the_copy(desk: Desk) -> None:
    desk.run(1)
    code = (
        "import txlog\n"
        "with txlog.open('my-log') as store:\n"
        "    with store.consumer('large', auto_offset_reset='earliest') as consumer:\n"
        "        print([row['order_id'] for batch in consumer.iterate() for row in batch.to_pylist()])\n"
        "    (group,) = [g for g in store.admin().list_groups() if g.group == 'filter']\n"
        "    print([offset.committed for offset in group.offsets])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=desk.folder, capture_output=True, text=True, check=True)
    assert done.stdout == "[1, 3]\n[2, 1]\n"


def test_the_table_of_defaults_is_the_code_s() -> None:
    table = dict(re.findall(r"^\| `([a-z.]+)` \| `?([^`|]+?)`? \|", README, re.MULTILINE))
    expected = {key.name: key.text(key.default) for key in KEYS.values() if key.kafka_default}
    assert table == expected


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target
    for folder in re.findall(r"`((?:txlog|spark_ext|conf|tests|benchmarks)/[\w/.]*)`", README):
        assert (ROOT / folder).exists(), folder
