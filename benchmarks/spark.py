"""What do txlog's roads through Spark cost, next to Delta and plain Parquet in the same run?

`make bench-spark` (or `python -m benchmarks.spark --help`; it needs the Spark for which Delta's JARs are built). It
measures small appends, micro-batches, bulk writes and scans. The roads are `format("txlog")`, txlog's native writes and
scans, Delta, and Parquet files, which promise nothing.

The roads alternate round by round, in a different order each time, so that a change of the machine's speed affects them
equally. Compare the rows of one run, never two runs. A ratio compares two medians of the same round, and its spread is
over the rounds. The files of a commit do not include Hadoop's checksums, which an object store does not have.
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
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pyspark
import typer
from pyspark.sql import DataFrame, SparkSession, functions
from rich.console import Console
from rich.progress import track
from rich.table import Table

import txlog
from benchmarks import stream_sink
from pyspark_txlog import TxLog, session
from tests import jars
from tests.kill.rivals import DeltaSink
from txlog.storage.open import open_object_store
from txlog.testing.counting_store import CountingStore
from txlog.text import count_text

SCHEMA = pa.schema(
    [
        pa.field("order_id", pa.int64()),
        pa.field("amount", pa.float64()),
        pa.field("country", pa.string()),
        pa.field("note", pa.string()),
    ]
)
COLUMNS = (
    "id AS order_id",
    "round(100 + 30 * randn(7), 2) AS amount",
    "element_at(array('FR', 'DE', 'US', 'JP'), 1 + CAST(id % 4 AS INT)) AS country",
    "concat('note ', hex(xxhash64(id))) AS note",
)
ROADS = {
    "txlog": 'format("txlog")',
    "native": "txlog, native",
    "delta": "Delta",
    "parquet": "Parquet",
    "noop": "noop",
}
"""The roads and their names in table and plot."""
BASE = "parquet"
"""The base of the ratios."""


@dataclass(slots=True)
class Case:
    """One work on one road: the samples of each round, and the files and requests of a commit."""

    work: str
    road: str
    unit: str
    rounds: list[list[float]] = field(default_factory=list)
    files: float | None = None
    requests: float | None = None

    @property
    def medians(self) -> list[float]:
        """The median of each round."""
        return [statistics.median(samples) for samples in self.rounds]

    @property
    def p50(self) -> float:
        return statistics.median(sample for samples in self.rounds for sample in samples)

    @property
    def p95(self) -> float:
        """The 95th percentile; the largest sample if there are few."""
        samples = sorted(sample for samples in self.rounds for sample in samples)
        return samples[min(len(samples) - 1, round(0.95 * len(samples)))]


def main(
    rows: Annotated[int, typer.Option(help="Rows of a bulk write, and of a scan.")] = 2_000_000,
    small_rows: Annotated[int, typer.Option(help="Rows of a small append.")] = 100,
    batch_rows: Annotated[int, typer.Option(help="Rows of a micro-batch.")] = 10_000,
    appends: Annotated[int, typer.Option(help="Small appends per road and round.")] = 8,
    batches: Annotated[int, typer.Option(help="Micro-batches per road and round, after three that do not count.")] = 10,
    rounds: Annotated[int, typer.Option(help="Rounds that count, after one that does not.")] = 5,
    fsync: Annotated[
        bool, typer.Option(help="txlog makes files durable, as is its default; the others never do.")
    ] = True,
    output: Annotated[Path, typer.Option(help="Folder for spark.json and spark.png.")] = Path("reports"),
) -> None:
    """Measure, print a table, and write `spark.json` and a plot. Exit status 1 if the roads return different rows."""
    console = Console(width=None if sys.stdout.isatty() else 110)
    # All roads have two cores and two tasks.
    spark = session("txlog benchmark", config=DeltaSink().config)
    # A query is always stopped in the middle of a micro-batch, which Spark logs as an error.
    spark.sparkContext.setLogLevel("OFF")
    with tempfile.TemporaryDirectory(prefix="txlog-bench-spark-") as folder:
        bench = Bench(spark, Path(folder), fsync=fsync)
        bench.prepare(rows, small_rows)
        steps: list[Callable[[bool, int], None]] = [
            partial(bench.small_appends, small_rows, appends),
            partial(bench.micro_batches, batch_rows, batches),
            partial(bench.bulk_writes, rows),
            partial(bench.scans, rows),
        ]
        for number in track(range(rounds + 1), "rounds", console=Console(stderr=True)):
            for step in steps:
                step(number > 0, number)
        bench.close()
    spark.stop()
    cases = list(bench.cases.values())
    title = f"pyspark {pyspark.__version__}, Delta {jars.DELTA}, {os.cpu_count()} CPUs, txlog's fsync {'on' if fsync else 'off'}; {count_text(rounds, 'round')}"
    console.print(_table(cases, title))
    output.mkdir(parents=True, exist_ok=True)
    report = {
        "machine": platform.platform(),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "pyspark": pyspark.__version__,
        "delta": jars.DELTA,
        "txlog": txlog.__version__,
        "fsync": fsync,
        "cases": [asdict(case) | {"p50": case.p50, "p95": case.p95} for case in cases],
    }
    (output / "spark.json").write_text(json.dumps(report, indent=1) + "\n")
    _plot(cases, title, output / "spark.png")
    console.print(f"written: {output / 'spark.json'}, {output / 'spark.png'}")
    if bench.disagreements:
        console.print(f"[red]the roads do not agree: {bench.disagreements}[/]")
        raise typer.Exit(1)


class Bench:
    """The works and their measurements."""

    def __init__(self, spark: SparkSession, folder: Path, *, fsync: bool) -> None:
        self.cases: dict[tuple[str, str], Case] = {}
        self.disagreements: list[str] = []
        self._spark = spark
        self._folder = folder
        self._options = {"fsync": fsync}
        self._store = CountingStore(open_object_store(str(folder / "txlog"), self._options))
        self._log = TxLog(spark, folder / "txlog", self._options, object_store=self._store)

    def prepare(self, rows: int, small_rows: int) -> None:
        """Make the rows to write, and the topics that grow from round to round."""
        source = str(self._folder / "source")
        self._spark.range(rows, numPartitions=2).selectExpr(*COLUMNS).write.parquet(source)
        self._rows = self._spark.read.parquet(source)
        # One task, so that each road writes one file.
        self._few = self._spark.createDataFrame(self._rows.limit(small_rows).toArrow()).coalesce(1)
        with txlog.open(str(self._folder / "txlog"), storage_options=self._options) as store:
            for topic in ("small-txlog", "small-native"):
                store.create_topic(topic, SCHEMA)
            for topic in ("stream-txlog", "stream-native"):
                store.create_topic(topic, stream_sink.SCHEMA, partitions=2)

    def close(self) -> None:
        """End the helper threads."""
        self._log.close()

    def small_appends(self, rows: int, appends: int, counts: bool, number: int) -> None:
        """Append a few rows, one commit each."""
        work = f"append of {rows:,} rows"
        few = self._few
        roads: dict[str, Callable[[], Any]] = {
            "txlog": lambda: self._write(few, self._folder / "txlog", "small-txlog"),
            "native": lambda: self._log.table("small-native").append(few, transactional_id="small"),
            "delta": lambda: few.write.format("delta").mode("append").save(str(self._folder / "small-delta")),
            "parquet": lambda: few.write.mode("append").parquet(str(self._folder / "small-parquet")),
        }
        places = {"delta": self._folder / "small-delta", "parquet": self._folder / "small-parquet"}
        samples: dict[str, list[float]] = defaultdict(list)
        files: dict[str, list[int]] = defaultdict(list)
        for turn in range(appends):
            for road in _turn(list(roads), number + turn):
                place = places.get(road, self._folder / "txlog")
                before = _files(place)
                with self._store.counting() as cost:
                    samples[road].append(_seconds(roads[road]) * 1000)
                files[road].append(_files(place) - before)
                if road == "native" and counts:
                    self._case(work, road, "ms").requests = cost.requests().total
        for road in roads:
            if counts:
                case = self._case(work, road, "ms")
                case.rounds.append(samples[road])
                case.files = statistics.mean(files[road])

    def micro_batches(self, rows: int, batches: int, counts: bool, number: int) -> None:
        """Run a streaming query into each sink, and take Spark's own figure of a whole trigger."""
        work = f"micro-batch of {rows:,} rows"
        starts: dict[str, Callable[[DataFrame], Any]] = {
            "txlog": self._stream_to_txlog,
            "native": self._stream_to_native,
            **{sink: partial(self._stream_to, sink=sink) for sink in ("delta", "parquet", "noop")},
        }
        for road in _turn(list(starts), number):
            place = self._folder / ("txlog" if road in ("txlog", "native") else f"stream-{road}")
            checkpoint = self._folder / f"checkpoint-{road}" / "commits"
            files, commits = _files(place), _files(checkpoint)
            found: dict[str, list[int]] = defaultdict(list)
            stream_sink.measure(self._spark, starts[road], rows, batches, found)
            if counts:
                case = self._case(work, road, "ms")
                case.rounds.append([float(value) for value in found["triggerExecution"]])
                case.files = (_files(place) - files) / (_files(checkpoint) - commits)

    def bulk_writes(self, rows: int, counts: bool, number: int) -> None:
        """Write many rows in one commit, to a new place each time. The first place stays, for the scans."""
        work = f"write of {rows:,} rows"
        place = self._folder / f"bulk-{number}"
        url = str(place / "txlog")
        with txlog.open(url, storage_options=self._options) as store:
            for topic in ("format", "native"):
                store.create_topic(topic, SCHEMA, partitions=2)
        with TxLog(self._spark, url, self._options) as log:
            roads: dict[str, Callable[[], Any]] = {
                "txlog": lambda: self._write(self._rows, place / "txlog", "format"),
                "native": lambda: log.table("native").append(self._rows, road="executors"),
                "delta": lambda: self._rows.write.format("delta").save(str(place / "delta")),
                "parquet": lambda: self._rows.write.parquet(str(place / "parquet")),
            }
            for road in _turn(list(roads), number):
                target = place / ("txlog" if road in ("txlog", "native") else road)
                before = _files(target)
                taken_s = _seconds(roads[road])
                if counts:
                    case = self._case(work, road, "s")
                    case.rounds.append([taken_s])
                    case.files = _files(target) - before
        if number:
            shutil.rmtree(place)

    def scans(self, rows: int, counts: bool, number: int) -> None:
        """Read the first bulk write; the time includes the creation of the frame."""
        place = self._folder / "bulk-0"
        with TxLog(self._spark, place / "txlog", self._options) as log:
            frames: dict[str, Callable[[], DataFrame]] = {
                "txlog": lambda: (
                    self._spark.read.format("txlog").option("subscribe", "format").load(str(place / "txlog"))
                ),
                "native": lambda: log.table("native").to_df(),
                "delta": lambda: self._spark.read.format("delta").load(str(place / "delta")),
                "parquet": lambda: self._spark.read.parquet(str(place / "parquet")),
            }
            for name, scan in SCANS.items():
                answers = {}
                for road in _turn(list(frames), number):
                    taken_s, answers[road] = _timed(lambda frame=frames[road], scan=scan: scan(frame()))
                    if counts:
                        self._case(f"{name} of {rows:,} rows", road, "s").rounds.append([taken_s])
                if len(set(answers.values())) != 1:
                    self.disagreements.append(f"{name}: {answers}")

    def _case(self, work: str, road: str, unit: str) -> Case:
        return self.cases.setdefault((work, road), Case(work, road, unit))

    def _write(self, frame: DataFrame, url: Path, topic: str) -> None:
        writer = frame.write.format("txlog").mode("append").option("topic", topic)
        writer.option("storage.fsync", str(self._options["fsync"]).lower()).save(str(url))

    def _stream_to_txlog(self, source: DataFrame) -> Any:
        writer = (
            source.writeStream.format("txlog")
            .option("topic", "stream-txlog")
            .option("storage.fsync", str(self._options["fsync"]).lower())
        )
        return writer.option("checkpointLocation", f"{self._folder}/checkpoint-txlog").start(f"{self._folder}/txlog")

    def _stream_to_native(self, source: DataFrame) -> Any:
        return self._log.table("stream-native").append_stream(
            source, transactional_id="stream", checkpoint_location=f"{self._folder}/checkpoint-native"
        )

    def _stream_to(self, source: DataFrame, sink: str) -> Any:
        writer = source.writeStream.format(sink).option("checkpointLocation", f"{self._folder}/checkpoint-{sink}")
        return writer.option("path", f"{self._folder}/stream-{sink}").start()


SCANS: dict[str, Callable[[DataFrame], Any]] = {
    "count": lambda frame: frame.count(),
    "sum of a column": lambda frame: frame.agg(functions.sum("order_id")).first()[0],
    "all columns": lambda frame: frame.write.format("noop").mode("overwrite").save(),
}


def _turn(roads: list[str], number: int) -> list[str]:
    """Return the roads in the order of that round."""
    start = number % len(roads)
    return roads[start:] + roads[:start]


def _seconds(run: Callable[[], Any]) -> float:
    return _timed(run)[0]


def _timed(run: Callable[[], Any]) -> tuple[float, Any]:
    started = time.perf_counter()
    answer = run()
    return time.perf_counter() - started, answer


def _files(folder: Path) -> int:
    return sum(not name.endswith(".crc") for _, _, names in os.walk(folder) for name in names)


def _ratio(case: Case, base: Case | None) -> tuple[float, float, float] | None:
    """Return median, smallest and largest of the rounds' ratios; None for the base itself, and if the base is missing."""
    if base is None or base is case:
        return None
    ratios = [mine / its for mine, its in zip(case.medians, base.medians, strict=True)]
    return statistics.median(ratios), min(ratios), max(ratios)


def _table(cases: list[Case], title: str) -> Table:
    table = Table(title=title, title_justify="left")
    for column in ("work", "road", "p50", "p95", "× Parquet (spread)", "files", "requests"):
        table.add_column(column, justify="left" if column in ("work", "road") else "right")
    bases = {case.work: case for case in cases if case.road == BASE}
    last = None
    for case in sorted(
        cases,
        key=lambda case: ([*dict.fromkeys(each.work for each in cases)].index(case.work), [*ROADS].index(case.road)),
    ):
        digits = 0 if case.unit == "ms" else 2
        ratio = _ratio(case, bases.get(case.work))
        table.add_row(
            case.work if case.work != last else "",
            ROADS[case.road],
            f"{case.p50:,.{digits}f} {case.unit}",
            f"{case.p95:,.{digits}f} {case.unit}",
            "" if ratio is None else f"{ratio[0]:.2f} ({ratio[1]:.2f}-{ratio[2]:.2f})",
            "" if case.files is None else f"{case.files:.1f}",
            "" if case.requests is None else f"{case.requests:g}",
        )
        last = case.work
    return table


def _plot(cases: list[Case], title: str, path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    colours = {"txlog": "#2b6777", "native": "#52ab98", "delta": "#e0a458", "parquet": "#8d99ae", "noop": "#d9dde3"}
    works = list(dict.fromkeys(case.work for case in cases))
    figure, axes = plt.subplots(2, -(-len(works) // 2), figsize=(12, 5.6), constrained_layout=True)
    for axis, work in zip(axes.flat, works, strict=False):
        found = sorted((case for case in cases if case.work == work), key=lambda case: [*ROADS].index(case.road))
        values = [case.p50 for case in found]
        # The whiskers show the smallest and the largest median of the rounds.
        below = [max(case.p50 - min(case.medians), 0) for case in found]
        above = [max(max(case.medians) - case.p50, 0) for case in found]
        axis.barh(
            [ROADS[case.road] for case in found],
            values,
            xerr=[below, above],
            color=[colours[case.road] for case in found],
            error_kw={"elinewidth": 1, "ecolor": "#444444", "capsize": 2},
        )
        reach = max(value + more for value, more in zip(values, above, strict=True))
        for number, (case, more) in enumerate(zip(found, above, strict=True)):
            text = f"  {case.p50:,.0f} ms" if case.unit == "ms" else f"  {case.p50:.2f} s"
            axis.text(case.p50 + more, number, text, va="center", fontsize=7)
        axis.set_xlim(0, reach * 1.35)  # room for the labels
        axis.invert_yaxis()
        axis.set_title(work, fontsize=9)
        axis.set_xlabel(found[0].unit, fontsize=7)
        axis.tick_params(labelsize=7)
    for axis in list(axes.flat)[len(works) :]:
        axis.axis("off")
    figure.suptitle(f"{title}; p50, and the spread of the rounds' medians", fontsize=9)
    figure.savefig(path, dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    typer.run(main)
