"""Does a store that gets writes for months still open as quickly as on its first day?

`make bench-long-run` (or `python -m benchmarks.long_run --help`): 20,000 transactions of four producers, eager and
staged, some aborted. One run has `txlog maintain` at intervals, the other one has no maintenance. The store is in
memory and the clock is the benchmark's, so that hours of `delete.grace.ms` pass in minutes. Sealing, merging,
boundaries and vacuum are the shipped ones.

The run has twenty samples of objects, bytes of metadata, and requests of a new process: until it has planned a read of
everything, and until it has committed. The exit status is 1 if the maintained store does not stay flat, or if the two
runs have different rows.
"""

from __future__ import annotations

import json
import platform
import random
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import txlog
from txlog.client import reading
from txlog.client.store import Store
from txlog.core.names import TopicPartition
from txlog.maintenance.maintain import Maintainer
from txlog.storage.driver import Driver
from txlog.storage.memory import MemoryObjectStore
from txlog.testing.clock import ManualClock, SeededIds
from txlog.testing.counting_store import CountingStore
from txlog.text import bytes_text

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("note", pa.string())])
TOPIC, PARTITIONS = "orders", 2
SEGMENT_BATCHES = 100
ROWS = 10
"""Rows of a batch."""
PRODUCERS = 4
ABORTED = 0.1
GRACE_MS = 3_600_000
TRANSACTION_MS = 3_000
"""Simulated time of a transaction: 1,200 of them in a grace."""
MAINTAIN_EVERY = 200
"""Transactions between two maintenance rounds."""
SAMPLES = 20
PLANS = 3
"""Cold plans that are timed at each sample; the median counts."""
FLAT = 1.5
"""The allowed growth of a maintained store from the second quarter to the last one."""
SETTINGS = {
    "linger.ms": 0,
    "delete.grace.ms": GRACE_MS,
    "transaction.state.log.num.partitions": 2,
    "offsets.topic.num.partitions": 2,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One sample of one run."""

    maintained: bool
    transactions: int
    objects: int
    metadata_objects: int
    """All except files of rows."""
    metadata_bytes: int
    open_requests: int
    """Requests of a new process, until it has planned a read of all committed rows."""
    commit_requests: int
    """Requests of a new process, until its first transaction is committed."""
    plan_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """All samples of one run."""

    samples: tuple[Sample, ...]
    rows: int
    """Rows that read_committed returns at the end."""
    seconds: float

    def is_flat(self, field: str) -> bool:
        """Return whether a figure has stopped growing: its last quarter against its second one, long after the first grace."""
        quarter = len(self.samples) // 4
        early = max(getattr(each, field) for each in self.samples[quarter : 2 * quarter])
        late = max(getattr(each, field) for each in self.samples[-quarter:])
        return bool(late <= FLAT * early)


FIGURES = ("objects", "metadata_bytes", "open_requests", "commit_requests")
"""The figures that must stay flat. Milliseconds depend on other work of the machine."""


def main(
    transactions: Annotated[int, typer.Option(help="Transactions of a run.")] = 20_000,
    control: Annotated[bool, typer.Option(help="Also a run without maintenance.")] = True,
    output: Annotated[Path, typer.Option(help="Folder for long_run.json and long_run.png.")] = Path("reports"),
) -> None:
    """Measure, print a table, and write `long_run.json` and a plot."""
    console = Console(width=None if sys.stdout.isatty() else 140)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        runs = [
            run(transactions, maintained=maintained, progress=progress)
            for maintained in ((True, False) if control else (True,))
        ]
    console.print(_table(runs))
    for each in runs:
        kind = "with" if each.samples[0].maintained else "without"
        console.print(f"{kind} maintenance: {each.rows:,} rows committed, {each.seconds:,.0f} s")
    output.mkdir(parents=True, exist_ok=True)
    report = {
        "machine": platform.platform(),
        "python": platform.python_version(),
        "txlog": txlog.__version__,
        "transactions": transactions,
        "grace_transactions": GRACE_MS // TRANSACTION_MS,
        "runs": [asdict(each) for each in runs],
    }
    (output / "long_run.json").write_text(json.dumps(report, indent=1) + "\n")
    _plot(runs, output / "long_run.png")
    console.print(f"written: {output / 'long_run.json'}, {output / 'long_run.png'}")
    growing = [name for name in FIGURES if not runs[0].is_flat(name)]
    if growing:
        console.print(f"[red]with maintenance these still grow: {', '.join(growing)}[/]")
    if len({each.rows for each in runs}) > 1:
        console.print("[red]the runs do not hold the same rows[/]")
    if growing or len({each.rows for each in runs}) > 1:
        raise typer.Exit(1)


def run(transactions: int, *, maintained: bool, progress: Progress | None = None) -> Run:
    """Write that many transactions, the same ones with and without maintenance, and take samples."""
    began = time.perf_counter()
    place = _Place()
    bar = progress.add_task("maintained" if maintained else "control", total=transactions) if progress else None
    samples = []
    with ExitStack() as stack:
        store = stack.enter_context(closing(place.open()))
        store.create_topic(TOPIC, SCHEMA, partitions=PARTITIONS, config={"segment.batches": SEGMENT_BATCHES})
        maintainer = Maintainer(stack.enter_context(closing(place.open())).runtime)
        work = _transactions(stack, store)
        for done in range(1, transactions + 1):
            next(work)
            place.clock.advance_ms(TRANSACTION_MS)
            if maintained and done % MAINTAIN_EVERY == 0:
                report = maintainer.run()
                if report.failures:
                    raise RuntimeError(f"maintenance failed: {report}")
            if done % max(transactions // SAMPLES, 1) == 0:
                samples.append(place.sample(done, maintained=maintained))
            if progress is not None and bar is not None:
                progress.advance(bar)
        rows = place.count_rows()
    return Run(samples=tuple(samples), rows=rows, seconds=time.perf_counter() - began)


class _Place:
    """A store in memory, its clock, and processes that open it."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.memory = MemoryObjectStore(clock=self.clock)
        self._processes = 0

    def open(self, counting: CountingStore | None = None) -> Store:
        self._processes += 1
        store = txlog.open(
            "memory://",
            config=SETTINGS,
            clock=self.clock,
            ids=SeededIds(self._processes),
            object_store=counting or self.memory,
        )
        # Requests in memory are too fast for threads. They run one by one, and are the same in each run.
        runtime = store.runtime
        runtime.driver = Driver(runtime.store, runtime.clock, runtime.ids, threads=0)
        return store

    def sample(self, transactions: int, *, maintained: bool) -> Sample:
        objects = dict(_objects(self.memory))
        metadata = [path for path in objects if not path.endswith(".parquet")]
        took = []
        for _ in range(PLANS):
            counting = CountingStore(self.memory)
            with closing(self.open(counting)) as reader:
                began = time.perf_counter()
                _plan_all(reader)
                took.append((time.perf_counter() - began) * 1000)
                opened = counting.requests().total
        counting = CountingStore(self.memory)
        with closing(self.open(counting)) as writer, writer.producer("sample") as producer, producer.transaction():
            producer.send(TOPIC, _rows(0, "sample"), partition=0)
        return Sample(
            maintained=maintained,
            transactions=transactions,
            objects=len(objects),
            metadata_objects=len(metadata),
            metadata_bytes=sum(objects[path] for path in metadata),
            open_requests=opened,
            commit_requests=counting.requests().total,
            plan_ms=round(statistics.median(took), 2),
        )

    def count_rows(self) -> int:
        """Return how many rows read_committed returns now."""
        with closing(self.open()) as reader, reader.consumer(TOPIC, auto_offset_reset="earliest") as consumer:
            return sum(batch.num_rows for batch in consumer.iterate())


def _transactions(stack: ExitStack, store: Store) -> Iterator[None]:
    """Run one transaction after the other with producers that stay open. A seed decides the kind and the end of each."""
    dice = random.Random(20_000)
    producers = [
        stack.enter_context(store.producer(f"producer-{number}", staged=number % 2 == 1)) for number in range(PRODUCERS)
    ]
    number = 0
    while True:
        producer = dice.choice(producers)
        producer.begin_transaction()
        for partition in range(PARTITIONS):
            number += 1
            producer.send(TOPIC, _rows(number, "x" * dice.randrange(40)), partition=partition)
        producer.flush()
        if dice.random() < ABORTED:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
        yield


def _plan_all(store: Store) -> None:
    session = reading.read_session(store.runtime)
    reading.plan_reads(session, {TopicPartition(TOPIC, number): (0, None) for number in range(PARTITIONS)})


def _rows(number: int, note: str) -> pa.Table:
    return pa.table({"id": range(number * ROWS, (number + 1) * ROWS), "note": [note] * ROWS}, SCHEMA)


def _objects(store: MemoryObjectStore, prefix: str = "") -> Iterator[tuple[str, int]]:
    """Yield (path, bytes) of every object."""
    for name in store.list(prefix):
        if name.endswith("/"):
            yield from _objects(store, prefix + name)
        else:
            yield prefix + name, store.size(prefix + name)


def _table(runs: list[Run]) -> Table:
    table = Table(
        title=f"{GRACE_MS // TRANSACTION_MS:,} transactions a grace; requests of a process that was not there before"
    )
    for column in ("", "transactions", "objects", "metadata", "until planned", "ms", "until committed"):
        table.add_column(column, justify="right" if column else "left")
    for each in runs:
        for number, sample in enumerate(each.samples):
            kind = ("maintained" if sample.maintained else "control") if not number else ""
            table.add_row(
                kind,
                f"{sample.transactions:,}",
                f"{sample.objects:,}",
                bytes_text(sample.metadata_bytes),
                f"{sample.open_requests:,}",
                f"{sample.plan_ms:,.1f}",
                f"{sample.commit_requests:,}",
            )
        table.add_section()
    return table


def _plot(runs: list[Run], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figures = (
        ("objects", "objects"),
        ("metadata_bytes", "bytes of metadata"),
        ("open_requests", "requests until a read is planned, cold"),
        ("plan_ms", "milliseconds of that"),
    )
    figure, axes = plt.subplots(1, len(figures), figsize=(14, 3.6), constrained_layout=True)
    for axis, (name, title) in zip(axes, figures, strict=True):
        for each in runs:
            maintained = each.samples[0].maintained
            axis.plot(
                [sample.transactions for sample in each.samples],
                [getattr(sample, name) for sample in each.samples],
                color="#2b6777" if maintained else "#e0a458",
                label="with maintenance" if maintained else "without",
            )
        axis.set_yscale("log")
        axis.set_title(title, fontsize=9)
        axis.set_xlabel("transactions", fontsize=8)
        axis.tick_params(labelsize=7)
    axes[0].legend(fontsize=8)
    figure.savefig(path, dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    typer.run(main)
