"""Which delivery does each program of docs/delivery.md give? Kill it again and again, and count its rows.

Each program has its own folder, with a store and the rows that come in. Each of its lives is a real process. SIGKILL
ends all lives but the last one. The fork server starts programs without Spark, so that a life begins at once. A query
of Spark runs until it is killed, as a user runs it. Its rows come in meanwhile.
"""

from __future__ import annotations

import ast
import json
import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias, get_args

import txlog
from lab.testing.fork_server import fork_server

PAGE = Path(__file__).parents[2] / "docs" / "delivery.md"
LIMIT_S = 200
"""How long a life may take to its end, or to its first sign of work."""
ENDLESS = 20
"""How many lives are tried for one kill."""
FILES = 20
"""How much comes in before a life that is killed at a random moment: as many files, or ten times as many rows."""
QUERY_S = 3.0
"""A query is killed at most this long after its first rows."""
QUIET_S = 20.0
"""A query that has written nothing for so long has read everything that it will read."""
SETTINGS = """
[consumer]
# A life polls and commits many times.
max.poll.records = 5
auto.commit.interval.ms = 0
"""

Role: TypeAlias = Literal["producer", "consumer", "pipeline", "Spark job"]
Delivery: TypeAlias = Literal["at most once", "at least once", "exactly once"]
ROLES: tuple[Role, ...] = get_args(Role)
DELIVERIES: tuple[Delivery, ...] = get_args(Delivery)


@dataclass(frozen=True, slots=True)
class Program:
    """A program of the page."""

    role: Role
    delivery: Delivery
    code: str

    def __str__(self) -> str:
        return f"{self.role}, {self.delivery}"

    @property
    def is_query(self) -> bool:
        """Whether it is a query of Spark, which runs until it is killed."""
        return self.role == "Spark job"

    def with_strikes(self) -> tuple[ast.Module, int]:
        """Return the program with `strike(n)` before and after each statement of its loop, and how many n there are."""
        tree, count = ast.parse(self.code), 0
        (loop,) = (node for node in ast.walk(tree) if isinstance(node, ast.For))
        for block in [node for node in ast.walk(loop) if isinstance(node, ast.For | ast.With)]:
            body: list[ast.stmt] = []
            for statement in [*block.body, None]:
                body += ast.parse(f"strike({count})").body
                body += [] if statement is None else [statement]
                count += 1
            block.body = body
        return tree, count


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of the rows of one program."""

    program: Program
    kills: int
    rows: int
    lost: int
    doubled: int

    def __str__(self) -> str:
        counts = f"{self.kills} kills, {self.rows:,} rows, {self.lost} lost, {self.doubled} doubled"
        return f"{self.program}: {counts}"

    @property
    def is_kept(self) -> bool:
        """Whether these are the lost and doubled rows that the delivery allows."""
        may_lose, may_double = self.program.delivery == "at most once", self.program.delivery == "at least once"
        return (may_lose or not self.lost) and (may_double or not self.doubled)


def programs() -> list[Program]:
    """Return the programs of the page, in its order."""
    return list(_programs(PAGE.read_text(encoding="utf-8")))


def _programs(page: str) -> Iterator[Program]:
    for role in ROLES:
        (section,) = re.findall(rf"^## A {role}\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
        for delivery in DELIVERIES:
            block = rf"^\*\*{delivery.capitalize()}\.\*\*.*?^```python\n(.*?)^```$"
            (code,) = re.findall(block, section, re.MULTILINE | re.DOTALL)
            yield Program(role, delivery, code)


def preparation() -> str:
    """Return the program of the page that makes the topics and the first files."""
    (code,) = re.findall(r"^## The rows\n.*?^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return str(code)


def at_each_line(program: Program, folder: Path) -> Outcome:
    """Kill a program of Python before and after each statement of its loop, the second time that it comes there."""
    lives = Lives(program, folder)
    for strike in range(program.with_strikes()[1]):
        lives.feed(3)
        lives.live(strike=strike)
    lives.live()
    return lives.outcome()


def at_random(program: Program, folder: Path, kills: int, seed: int) -> Outcome:
    """Kill a program at random moments, and then let it read the rest."""
    draw, lives = random.Random(seed), Lives(program, folder)
    if program.is_query:
        for _ in range(kills):
            lives.query(draw.uniform(0, QUERY_S))
        lives.query(None)
        return lives.outcome()
    lives.feed(FILES)
    began = time.monotonic()
    lives.live()
    span = time.monotonic() - began
    was_killed = False
    for _ in range(ENDLESS * kills):
        if lives.kills == kills:
            break
        if not was_killed:  # it has read everything
            lives.feed(FILES)
        was_killed = lives.live(kill_after=draw.uniform(0, span))
    assert lives.kills == kills, f"{program}: killed {lives.kills} times of {kills}"
    lives.live()
    return lives.outcome()


def act(program: Program, folder: str, strike: int | None) -> None:
    """Be the process of one life. With `strike` it kills itself the second time that it comes there."""
    os.chdir(folder)
    with open("console.txt", "ab") as console:
        for descriptor in (1, 2):
            os.dup2(console.fileno(), descriptor)
    os.environ["TXLOG_CONFIG"] = f"{folder}/settings.toml"
    times = 0

    def pass_by(number: int) -> None:
        nonlocal times
        times += number == strike
        if times == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    tree = ast.parse(program.code) if strike is None else program.with_strikes()[0]
    exec(compile(tree, "page", "exec"), {"__name__": "__main__", "strike": pass_by})


class Lives:
    """A program, its folder, and its lives so far."""

    def __init__(self, program: Program, folder: Path) -> None:
        self._program, self._folder = program, folder
        self._url = str(folder / "my-log")
        self.kills = 0
        (folder / "settings.toml").write_text(SETTINGS)
        assert not self._run(Program("producer", "exactly once", preparation()))
        files = sorted((folder / "incoming").iterdir())
        rows = [row for file in files for row in json.loads(file.read_text())]
        self._files, self._rows = len(files), len(rows)
        assert [row["payment"] for row in rows] == list(range(len(rows)))
        self._rows_a_file = len(rows) // len(files)
        if program.role != "producer":
            self._send(rows)

    def feed(self, files: int) -> None:
        """Add what comes in: files for a producer, and for the others their rows in the topic."""
        for _ in range(files if self._program.role == "producer" else 0):
            file = self._folder / "incoming" / f"{self._files:06}.json"
            file.write_text(json.dumps(self._next(self._rows_a_file)))
            self._files += 1
        if self._program.role != "producer":
            self._send(self._next(files * self._rows_a_file))

    def live(self, *, strike: int | None = None, kill_after: float | None = None) -> bool:
        """Run one life, and return whether it was killed.

        It is killed at a strike, or after so many seconds. Otherwise it comes to its end.
        """
        killed = self._run(self._program, strike, kill_after)
        self.kills += killed
        return killed

    def query(self, kill_after: float | None) -> None:
        """Run one life of a query, and kill it so many seconds after its first rows: with None, after all rows."""
        before = self._objects()
        with (self._folder / "console.txt").open("ab") as console:
            process = subprocess.Popen(
                [sys.executable, "-c", self._program.code],
                cwd=self._folder,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                start_new_session=True,
            )
        try:
            limit = time.monotonic() + LIMIT_S
            end: float | None = None
            while end is None or time.monotonic() < end:
                self._check(process.poll() is None and (end is not None or time.monotonic() < limit), process.poll())
                self.feed(1)
                time.sleep(0.1)
                if end is None and self._objects() > before:
                    end = time.monotonic() + (kill_after or 0)
            if kill_after is None:
                self._await_quiet(process)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self.kills += kill_after is not None

    def outcome(self) -> Outcome:
        """Count the rows."""
        found = self._found()
        assert not found.keys() - set(range(self._rows)), f"{self._program}: rows that did not come in"
        return Outcome(self._program, self.kills, self._rows, self._rows - len(found), found.total() - len(found))

    # -- helpers ------------------------------------------------------------------------------------------------------

    def _next(self, count: int) -> list[dict[str, int]]:
        self._rows += count
        return [{"payment": number} for number in range(self._rows - count, self._rows)]

    def _send(self, rows: list[dict[str, int]]) -> None:
        with txlog.open(self._url) as store, store.producer() as producer:
            producer.send("payments", rows)

    def _run(self, program: Program, strike: int | None = None, kill_after: float | None = None) -> bool:
        process = fork_server().Process(target=act, args=(program, str(self._folder), strike))
        process.start()
        process.join(LIMIT_S if kill_after is None else kill_after)
        late = process.exitcode is None
        if late:
            process.kill()
            process.join()
        status = process.exitcode
        process.close()
        was_to_be_killed = strike is not None or kill_after is not None
        self._check(status == 0 or (status == -signal.SIGKILL and was_to_be_killed), status)
        self._check(not late or kill_after is not None, "no end")
        return status != 0

    def _objects(self) -> int:
        return sum(len(files) for _, _, files in os.walk(f"{self._url}/checked"))

    def _await_quiet(self, process: subprocess.Popen[bytes]) -> None:
        """Return when all rows are there, or no new one has come for a while."""
        seen, since = -1, time.monotonic()
        while seen < self._rows and time.monotonic() < since + QUIET_S:
            self._check(process.poll() is None, process.poll())
            time.sleep(0.5)
            if (now := len(self._found())) > seen:
                seen, since = now, time.monotonic()

    def _found(self) -> Counter[int]:
        if self._program.role == "consumer":
            (place,) = self._folder.glob("*.db")
            with closing(sqlite3.connect(place)) as database:
                return Counter(payment for (payment,) in database.execute("SELECT payment FROM results"))
        topic = "payments" if self._program.role == "producer" else "checked"
        with txlog.open(self._url) as store:
            return Counter(row["payment"] for row in store.table(topic).to_arrow(["payment"]).to_pylist())

    def _check(self, is_right: bool, ended: object) -> None:
        if not is_right:
            console = self._folder / "console.txt"
            printed = console.read_text(errors="replace")[-4000:] if console.exists() else ""
            raise AssertionError(f"{self._program}: the process ended with {ended}\n{printed}")
