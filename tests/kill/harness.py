"""Is a row lost or doubled, wherever a streaming query is killed? The harness runs the query's lives and counts.

The input is a folder of files. Spark takes one file in each micro-batch, so batch n must bring the ids of file n. A
strike may end a life of the driver. The next life continues from the checkpoint. After the last one the harness counts
all ids. It assigns each lost or doubled row to the strike at whose micro-batch this happened.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.kill import driver
from tests.kill.points import COMMON, Strike, Victim
from tests.kill.sinks import SINKS, Sink
from tests.spark_cluster import running_cluster

ROWS = 100
LIFE_S = 900
LOCAL, CLUSTER = "local[2,4]", "local-cluster[2,1,1024]"
"""A task of a local session may fail three times, too. The cluster has two executors of one core, each a JVM."""
_STRIKES_A_LIFE = 8
_BATCHES_A_STRIKE = 3
_SPARE_BATCHES = 6


@dataclass(slots=True)
class Outcome:
    """The result at one point with one victim."""

    kills: int = 0
    lost: int = 0
    doubled: int = 0


@dataclass(slots=True)
class Report:
    """The result of the whole run."""

    sink: str
    outcomes: dict[tuple[str, str], Outcome] = field(default_factory=dict)
    lives: int = 0
    rows: int = 0
    speculated: int = 0
    missed: list[str] = field(default_factory=list)
    """Strikes whose point was never reached."""

    @property
    def lost(self) -> int:
        return sum(outcome.lost for outcome in self.outcomes.values())

    @property
    def doubled(self) -> int:
        return sum(outcome.doubled for outcome in self.outcomes.values())

    def table(self) -> str:
        """Return the points with their outcomes, as text."""
        lines = [f"{self.sink:<44} {'killed':<9} {'kills':>5} {'lost':>6} {'doubled':>8}", "─" * 77]
        for (point, victim), seen in self.outcomes.items():
            lines.append(f"{point:<44} {victim:<9} {seen.kills:>5} {seen.lost:>6} {seen.doubled:>8}")
        kills = sum(outcome.kills for outcome in self.outcomes.values())
        lines += [
            "─" * 77,
            f"{'in all':<44} {'':<9} {kills:>5} {self.lost:>6} {self.doubled:>8}",
            f"{self.rows:,} rows, {self.lives} lives of the driver, {self.speculated} speculative attempts",
        ]
        return "\n".join([*lines, *(f"never came: {strike}" for strike in self.missed)])


def strikes_of(sink: Sink, victims: Iterable[Victim] = ("driver", "worker", "executor")) -> list[Strike]:
    """Return every point of a sink with each of its victims."""
    wanted = set(victims)
    points = (*COMMON[:-1], *sink.points, COMMON[-1])
    return [Strike(point=point, victim=victim) for point in points for victim in point.victims if victim in wanted]


def kill_stream(name: str, strikes: Sequence[Strike], folder: Path, *, speculation: bool = False) -> Report:
    """Run a query into the sink `name` through all `strikes`, to its end.

    Raises AssertionError if a life ends in an unexpected way, or if the sink is damaged afterwards. Lost and doubled
    rows are in the report. With `speculation` a first life runs on a cluster that starts tasks twice.
    """
    run = Run(SINKS[name](), folder)
    if speculation:
        with running_cluster(folder / "cluster") as cluster:
            run.live([], cluster.master, files=_SPARE_BATCHES, speculation=True)
    # Strikes that the driver survives need no new JVM. Separate executors cost more, so these strikes come together.
    survived = sorted(
        (strike for strike in strikes if strike.victim != "driver"), key=lambda strike: strike.victim != "executor"
    )
    done = 0
    for start in range(0, len(survived), _STRIKES_A_LIFE):
        some = survived[start : start + _STRIKES_A_LIFE]
        has_executors = any(strike.victim == "executor" for strike in some)
        run.live(some, CLUSTER if has_executors else LOCAL, files=_BATCHES_A_STRIKE * len(some) + _SPARE_BATCHES)
        done += len(some)
        print(f"{name}: {done} of {len(strikes)} strikes", flush=True)
    for strike in strikes:
        if strike.victim == "driver":
            run.live([strike], LOCAL, files=_BATCHES_A_STRIKE)
            done += 1
            print(f"{name}: {done} of {len(strikes)} strikes", flush=True)
    run.live([], LOCAL, files=0, read=True)
    report = run.report(strikes)
    if speculation and not report.speculated:
        report.missed.append("a speculative attempt")
    return report


class Run:
    """One sink, one checkpoint, many lives."""

    def __init__(self, sink: Sink, folder: Path) -> None:
        self._sink = sink
        self._place, self._files, self._marks = folder / "sink", folder / "files", folder / "strikes"
        self._checkpoint, self._folder = folder / "checkpoint", folder
        self._count = 0
        self._lives = 0
        for path in (self._files, self._marks):
            path.mkdir(parents=True)
        sink.prepare(self._place)

    def live(
        self, strikes: Sequence[Strike], master: str, *, files: int, speculation: bool = False, read: bool = False
    ) -> None:
        """Run one life to its end or its death, with that many further files to read."""
        self._add(files)
        status = _wait(self._start(strikes, master, speculation=speculation, read=read))
        dies = any(strike.victim == "driver" for strike in strikes)
        expected = -signal.SIGKILL if dies else 0
        assert status == expected, (
            f"{self._sink.name}, {', '.join(map(str, strikes)) or 'the last life'}: the driver ended with {status} "
            f"instead of {expected}\n{self._said()}"
        )

    def outlive(self, strike: Strike, *, files: int) -> str:
        """Return what Spark reported to a life whose JVM is stopped at a point while a second life runs to its end.

        Then the first life continues, to its own end.
        """
        self._add(files)
        first = self._start([strike], LOCAL)
        try:
            deadline = time.monotonic() + LIFE_S
            while not list(self._marks.glob("struck-*")) and first.poll() is None and time.monotonic() < deadline:
                time.sleep(0.05)
            jvm = json.loads((self._marks / "pids.json").read_text())["jvm"]
            second = _wait(self._start([], LOCAL))
            assert second == 0, f"the second run ended with {second}\n{self._said()}"
            os.kill(jvm, signal.SIGCONT)
        finally:
            status = _wait(first)
        assert status == 0, f"the first run ended with {status}\n{self._said()}"
        return "".join(json.loads(line) for line in (self._marks / "failures.txt").read_text().splitlines())

    def report(self, strikes: Sequence[Strike]) -> Report:
        """Count what the last life has read."""
        self._sink.check(self._place)
        found = Counter(json.loads((self._marks / "read.json").read_text()))
        marks = sorted(self._marks.glob("struck-*"), key=lambda path: int(path.name.partition("-")[2]))
        hits = [json.loads(path.read_text()) for path in marks]
        report = Report(sink=self._sink.name, lives=self._lives, rows=self._count * ROWS)
        report.speculated = sum(1 for _ in self._marks.glob("speculated-*"))
        for strike in strikes:
            report.outcomes.setdefault((strike.point.name, strike.victim), Outcome())
        struck = Counter((hit["name"], hit["victim"]) for hit in hits)
        for strike in strikes:
            if not struck[strike.point.name, strike.victim]:
                report.missed.append(str(strike))
        for hit in hits:
            report.outcomes.setdefault((hit["name"], hit["victim"]), Outcome()).kills += 1
        for batch in range(self._count):
            ids = range(batch * ROWS, (batch + 1) * ROWS)
            lost, doubled = sum(found[one] == 0 for one in ids), sum(max(found[one] - 1, 0) for one in ids)
            if lost or doubled:
                # The strike that was armed last before this batch.
                near = [hit for hit in hits if hit["batch"] <= batch]
                key = (near[-1]["name"], near[-1]["victim"]) if near else ("no strike", "")
                outcome = report.outcomes.setdefault(key, Outcome())
                outcome.lost += lost
                outcome.doubled += doubled
        foreign = [one for one in found if not 0 <= one < self._count * ROWS]
        assert not foreign, f"rows that nobody wrote: {foreign[:5]}"
        return report

    def _add(self, count: int) -> None:
        for number in range(self._count, self._count + count):
            path = self._files / f"{number:05}.parquet"
            pq.write_table(pa.table({"id": pa.array(range(number * ROWS, (number + 1) * ROWS), pa.int64())}), path)
            # The file source takes files in the order of their times.
            os.utime(path, (1_700_000_000 + number,) * 2)
        self._count += count

    def _start(
        self, strikes: Sequence[Strike], master: str, *, speculation: bool = False, read: bool = False
    ) -> subprocess.Popen[bytes]:
        self._lives += 1
        for stale in ("armed.json", "pids.json"):
            (self._marks / stale).unlink(missing_ok=True)
        spec = self._folder / "spec.json"
        spec.write_text(
            json.dumps(
                {
                    "sink": self._sink.name,
                    "place": str(self._place),
                    "checkpoint": str(self._checkpoint),
                    "files": str(self._files),
                    "strikes_folder": str(self._marks),
                    "strikes": [{**asdict(strike.point), "victim": strike.victim} for strike in strikes],
                    "master": master,
                    "speculation": speculation,
                    "read": read,
                }
            )
        )
        with (self._folder / "console.txt").open("ab") as console:
            return subprocess.Popen(
                [sys.executable, driver.__file__, str(spec)],
                stdout=console,
                stderr=console,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            )

    def _said(self) -> str:
        return (self._folder / "console.txt").read_text(errors="replace")[-6000:]


def _wait(process: subprocess.Popen[bytes]) -> int:
    """Return the exit status of the process, and kill what it leaves behind."""
    try:
        return process.wait(LIFE_S)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
