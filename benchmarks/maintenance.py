"""What does maintenance of a log of many small commits cost and gain, next to Delta's OPTIMIZE and VACUUM?

`make bench-maintenance` (or `python -m benchmarks.maintenance --help`; it needs the Spark for which Delta's JARs are
built). Both sides get the same rows in as many commits and files. Then each side runs scans, the merge, scans again,
and the removal of the merged files. txlog merges once in one process, whose requests are counted, and once as a Spark
job on a copy of the store. Delta's requests are not counted. Compare the rows of one run, never two runs.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pyspark
import typer
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console
from rich.progress import track
from rich.table import Table

import txlog
from benchmarks.spark import SCANS
from pyspark_txlog import TxLog, session
from pyspark_txlog.jobs.spark_workers import SparkWorkers
from tests import jars
from tests.kill.rivals import DeltaSink
from txlog.client.reading import read_session
from txlog.core.cleaning import MergePolicy
from txlog.core.names import TopicPartition
from txlog.maintenance.merge import Merged, merge_partitions
from txlog.maintenance.partition_loop import Outcome, gather
from txlog.maintenance.vacuum import vacuum
from txlog.storage.open import open_object_store
from txlog.testing.counting_store import CountingStore
from txlog.text import bytes_text

TOPIC = "orders"
TXLOG, SPARK_JOB, DELTA = SIDES = ("txlog, one process", "txlog, Spark job", "Delta")
SCHEMA = pa.schema(
    [
        pa.field("order_id", pa.int64()),
        pa.field("amount", pa.float64()),
        pa.field("country", pa.string()),
        pa.field("note", pa.string()),
    ]
)
GRACE_MS = 10_000
"""The smallest `delete.grace.ms` that a store may have, so that the run need not wait a day."""
MAX_PASSES = 8
DELTA_SETTINGS = {"spark.databricks.delta.retentionDurationCheck.enabled": "false"}
"""Allows VACUUM at once."""


@dataclass(slots=True, kw_only=True)
class Step:
    """One step on one side."""

    side: str
    step: str
    seconds: float
    objects: int
    """All objects that exist afterwards ..."""
    bytes: int
    scans_s: dict[str, float] | None = None
    """Medians, after the step."""
    requests: dict[str, int] | None = None


def main(
    commits: Annotated[int, typer.Option(help="Small commits.")] = 1000,
    partitions: Annotated[int, typer.Option(help="Partitions, and Delta's files per commit.")] = 8,
    rows: Annotated[int, typer.Option(help="Rows per commit and partition.")] = 25,
    scans: Annotated[int, typer.Option(help="Scans of each kind, in turns; medians count.")] = 5,
    output: Annotated[Path, typer.Option(help="Folder for maintenance.json and maintenance.png.")] = Path("reports"),
) -> None:
    """Measure, print a table, and write `maintenance.json` and a plot. Exit status 1 if a step changed the result of a scan."""
    console = Console(width=None if sys.stdout.isatty() else 120)
    spark = session("txlog maintenance benchmark", config={**DeltaSink().config, **DELTA_SETTINGS})
    spark.sparkContext.setLogLevel("OFF")
    with tempfile.TemporaryDirectory(prefix="txlog-bench-maintenance-") as folder:
        bench = Bench(spark, Path(folder), commits=commits, partitions=partitions, rows=rows, scans=scans)
        bench.fill()
        bench.tidy_delta()
        bench.tidy_txlog()
        bench.tidy_by_spark()
    spark.stop()
    title = (
        f"{commits:,} commits × {partitions} partitions × {rows} rows; pyspark {pyspark.__version__}, Delta {jars.DELTA}, "
        f"{os.cpu_count()} CPUs"
    )
    steps = sorted(bench.steps, key=lambda step: SIDES.index(step.side))
    console.print(_table(steps, title))
    output.mkdir(parents=True, exist_ok=True)
    report = {
        "machine": platform.platform(),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "pyspark": pyspark.__version__,
        "delta": jars.DELTA,
        "txlog": txlog.__version__,
        "commits": commits,
        "partitions": partitions,
        "rows": rows,
        "steps": [asdict(step) for step in steps],
    }
    (output / "maintenance.json").write_text(json.dumps(report, indent=1) + "\n")
    _plot(steps, title, output / "maintenance.png")
    console.print(f"written: {output / 'maintenance.json'}, {output / 'maintenance.png'}")
    if bench.changed:
        console.print(f"[red]a step changed what a scan finds: {bench.changed}[/]")
        raise typer.Exit(1)


class Bench:
    """The sides, their steps, and their measurements."""

    def __init__(
        self, spark: SparkSession, folder: Path, *, commits: int, partitions: int, rows: int, scans: int
    ) -> None:
        self.steps: list[Step] = []
        self.changed: list[str] = []
        self._spark = spark
        self._delta, self._txlog, self._copy = folder / "delta", folder / "txlog", folder / "copy"
        self._commits, self._partitions, self._rows, self._scans = commits, partitions, rows, scans
        self._found: dict[str, Any] = {}

    def fill(self) -> None:
        """Write the same rows on both sides, in as many commits."""
        config = {"delete.grace.ms": GRACE_MS}
        started = time.perf_counter()
        with txlog.open(self._txlog, config=config, storage_options={"fsync": False}) as store:
            store.create_topic(TOPIC, SCHEMA, partitions=self._partitions, config={"segment.batches": 10})
            with store.producer(transactional_id="bench") as producer:
                for number in self._track("commits to txlog"):
                    producer.begin_transaction()
                    for partition in range(self._partitions):
                        producer.send(TOPIC, self._part(number, partition), partition=partition)
                    producer.commit_transaction()
        self._note(TXLOG, "written", time.perf_counter() - started, self._txlog, self._txlog_frames())
        started = time.perf_counter()
        for number in self._track("commits to Delta"):
            table = pa.concat_tables([self._part(number, partition) for partition in range(self._partitions)])
            frame = self._spark.createDataFrame(table).repartition(self._partitions)
            frame.write.format("delta").mode("append").save(str(self._delta))
        self._note(DELTA, "written", time.perf_counter() - started, self._delta, self._delta_frames())
        shutil.copytree(self._txlog, self._copy)

    def tidy_delta(self) -> None:
        """Run OPTIMIZE, and then VACUUM at once."""
        for name, statement in (
            ("merged", f"OPTIMIZE delta.`{self._delta}`"),
            ("vacuumed", f"VACUUM delta.`{self._delta}` RETAIN 0 HOURS"),
        ):
            started = time.perf_counter()
            self._spark.sql(statement).collect()
            self._note(DELTA, name, time.perf_counter() - started, self._delta, self._delta_frames())

    def tidy_txlog(self) -> None:
        """Merge and vacuum in this process, one partition after the other; the store's requests are counted."""
        store = CountingStore(open_object_store(str(self._txlog), {"fsync": False}))
        requests: dict[str, int] = {}
        with txlog.open(self._txlog, object_store=store) as opened:
            reads = read_session(opened.runtime)
            started = time.perf_counter()
            with _counted(store, requests):
                _checked(merge_partitions(reads, self._merged, MergePolicy()))
            self._note(TXLOG, "merged", time.perf_counter() - started, self._txlog, self._txlog_frames(), requests)
        self._vacuum(TXLOG, self._txlog)

    def tidy_by_spark(self) -> None:
        """Do the same on a copy of the store, with the merge as a Spark job."""
        with txlog.open(self._copy, storage_options={"fsync": False}) as opened:
            started = time.perf_counter()
            workers = SparkWorkers(opened.runtime, lambda: self._spark)
            _checked(merge_partitions(read_session(opened.runtime), self._merged, MergePolicy(), workers=workers))
            self._note(SPARK_JOB, "merged", time.perf_counter() - started, self._copy, self._txlog_frames(self._copy))

    @property
    def _merged(self) -> list[TopicPartition]:
        return [TopicPartition(TOPIC, number) for number in range(self._partitions)]

    def _vacuum(self, side: str, place: Path) -> None:
        """Run vacuum until it finds nothing to delete or to wait for. The waits for the grace do not count."""
        store = CountingStore(open_object_store(str(place), {"fsync": False}))
        seconds, requests = 0.0, dict[str, int]()
        with txlog.open(place, object_store=store) as opened:
            for _ in range(MAX_PASSES):
                time.sleep(GRACE_MS / 1000 + 1)
                started = time.perf_counter()
                spent: dict[str, int] = {}
                with _counted(store, spent):
                    report = vacuum(opened.runtime, read_session(opened.runtime), dry_run=False)
                seconds += time.perf_counter() - started
                requests = {name: requests.get(name, 0) + spent.get(name, 0) for name in {**requests, **spent}}
                if not report.deleted and not report.waiting:
                    break
        self._note(side, "vacuumed", seconds, place, self._txlog_frames(place), requests)

    def _part(self, commit: int, partition: int) -> pa.Table:
        start = (commit * self._partitions + partition) * self._rows
        ids = list(range(start, start + self._rows))
        return pa.table(
            {
                "order_id": ids,
                "amount": [100 + (one * 7919 % 10_007) / 100 for one in ids],
                "country": [("FR", "DE", "US", "JP")[one % 4] for one in ids],
                "note": [f"note {one * 2_654_435_761 % 2**32:08x}" for one in ids],
            },
            SCHEMA,
        )

    def _track(self, what: str) -> Iterator[int]:
        yield from track(range(self._commits), what, console=Console(stderr=True))

    def _delta_frames(self) -> dict[str, Callable[[], DataFrame]]:
        return {"scan": lambda: self._spark.read.format("delta").load(str(self._delta))}

    def _txlog_frames(self, place: Path | None = None) -> dict[str, Callable[[], DataFrame]]:
        url = str(place or self._txlog)

        def native() -> DataFrame:
            with TxLog(self._spark, url) as log:
                return log.table(TOPIC).to_df()

        return {
            'format("txlog")': lambda: self._spark.read.format("txlog").option("subscribe", TOPIC).load(url),
            "native": native,
        }

    def _note(
        self,
        side: str,
        step: str,
        seconds: float,
        place: Path,
        frames: dict[str, Callable[[], DataFrame]],
        requests: dict[str, int] | None = None,
    ) -> None:
        samples: dict[str, list[float]] = {}
        for turn in range(self._scans + 1):
            for road, frame in frames.items():
                for name, scan in SCANS.items():
                    started = time.perf_counter()
                    answer = scan(frame())
                    # The first turn warms up.
                    if turn:
                        samples.setdefault(f"{road}, {name}", []).append(time.perf_counter() - started)
                    if self._found.setdefault(name, answer) != answer:
                        self.changed.append(f"{side}, {step}: {road}, {name}: {answer} and not {self._found[name]}")
        objects, size = _objects(place)
        self.steps.append(
            Step(
                side=side,
                step=step,
                seconds=seconds,
                objects=objects,
                bytes=size,
                scans_s={name: statistics.median(each) for name, each in samples.items()},
                requests=requests,
            )
        )


def _checked(outcomes: Iterable[Outcome[Merged | None]]) -> None:
    """Wait for all of them. Raises the first error."""
    _, failed = gather(outcomes)
    if failed:
        raise failed[0]


@contextmanager
def _counted(store: CountingStore, into: dict[str, int]) -> Iterator[None]:
    with store.counting() as cost:
        yield
    into.update({name: count for name, count in asdict(cost.requests()).items() if count})


def _objects(folder: Path) -> tuple[int, int]:
    """Return the number of objects and their bytes, without Hadoop's checksums, which an object store does not have."""
    sizes = [
        os.path.getsize(os.path.join(parent, name))
        for parent, _, names in os.walk(folder)
        for name in names
        if not name.endswith(".crc")
    ]
    return len(sizes), sum(sizes)


def _table(steps: list[Step], title: str) -> Table:
    table = Table(title=title, title_justify="left")
    for column in ("", "step", "s", "objects", "bytes", "count / sum / all columns, s", "requests"):
        table.add_column(column, justify="left" if column in ("", "step") else "right")
    last = None
    for step in steps:
        roads: dict[str, list[float]] = {}
        for name, seconds in (step.scans_s or {}).items():
            roads.setdefault(name.partition(",")[0], []).append(seconds)
        scans = [f"{road}: {' / '.join(f'{each:.2f}' for each in found)}" for road, found in roads.items()]
        requests = {name: count for name, count in (step.requests or {}).items() if not name.endswith("_bytes")}
        table.add_row(
            step.side if step.side != last else "",
            step.step,
            f"{step.seconds:.1f}",
            f"{step.objects:,}",
            bytes_text(step.bytes),
            "\n".join(scans),
            ", ".join(f"{count:,} {name}" for name, count in requests.items()),
        )
        last = step.side
    return table


def _plot(steps: list[Step], title: str, path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    colours = {TXLOG: "#2b6777", SPARK_JOB: "#52ab98", DELTA: "#e0a458"}
    figure, axes = plt.subplots(1, 3, figsize=(12, 4), constrained_layout=True)
    for axis, (name, value, unit) in zip(
        axes,
        (
            ("seconds of the step", lambda step: step.seconds, "s"),
            ("objects afterwards", lambda step: step.objects, ""),
            ("all columns scanned, best road", _best_scan, "s"),
        ),
        strict=True,
    ):
        shown = [
            step
            for step in steps
            if value(step) is not None and not (unit and name.startswith("seconds") and step.step == "written")
        ]
        axis.barh(
            [f"{step.side}: {step.step}" for step in shown],
            [value(step) for step in shown],
            color=[colours[step.side] for step in shown],
        )
        for number, step in enumerate(shown):
            axis.text(
                value(step),
                number,
                f"  {value(step):,.2f} {unit}" if unit else f"  {value(step):,}",
                va="center",
                fontsize=7,
            )
        axis.set_xlim(0, max(value(step) for step in shown) * 1.3)
        axis.invert_yaxis()
        axis.set_title(name, fontsize=9)
        axis.tick_params(labelsize=7)
    figure.suptitle(title, fontsize=9)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _best_scan(step: Step) -> float | None:
    found = [seconds for name, seconds in (step.scans_s or {}).items() if name.endswith("all columns")]
    return min(found, default=None)


if __name__ == "__main__":
    typer.run(main)
