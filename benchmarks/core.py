"""How many milliseconds and storage requests do an append and a transaction cost?

`make bench-core` (or `python -m benchmarks.core --help`). Cases are interleaved round by round, so that a change of the
machine's speed affects all of them equally. Compare the rows of one run with each other, never two runs. The benchmark
compares the conditional PUTs with PROTOCOL.md, "Request budget". The exit status is 1 if the budget is exceeded.
"""

from __future__ import annotations

import json
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

import txlog
from txlog.clock import SystemClock
from txlog.storage.open import open_object_store
from txlog.testing.counting_store import CountingStore
from txlog.testing.latency_store import LatencyStore

ROWS = 100
LATENCY_MS = 60
SCHEMA = pa.schema([("id", pa.int64()), ("amount", pa.float64()), ("note", pa.string())])
BATCH = pa.table(
    {"id": list(range(ROWS)), "amount": [n * 0.5 for n in range(ROWS)], "note": [f"note {n}" for n in range(ROWS)]},
    schema=SCHEMA,
)


SEALING_PUTS = 3 * 2 / 100
"""A transaction writes up to three records to the transaction-state table, and two PUTs seal a hundred of these records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """A kind of store, and how often each work is measured on it."""

    name: str
    runs: int
    fsync: bool = True
    latency_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One measured work; `budget` is the number of conditional PUTs that PROTOCOL.md, "Request budget", allows."""

    name: str
    partitions: int
    budget: int

    @property
    def topic(self) -> str:
        """The topic of this work. Two writers of one partition would race for its slots, which is a different question."""
        return f"{self.name.replace(' ', '-')}-{self.partitions}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Milliseconds and requests for each call of one case."""

    store: str
    work: str
    partitions: int
    runs: int
    p50_ms: float
    p95_ms: float
    conditional_puts: float
    budget: int
    file_writes: float
    gets: float
    lists: float


WORKS = (
    Work(name="append", partitions=1, budget=1),
    Work(name="eager transaction", partitions=1, budget=2 * 1 + 3),
    Work(name="eager transaction", partitions=4, budget=2 * 4 + 3),
    Work(name="staged transaction", partitions=1, budget=1 + 2),
    Work(name="staged transaction", partitions=4, budget=4 + 2),
)
BACKENDS = (
    Backend(name="local, fsync", runs=200),
    Backend(name="local, no fsync", runs=200, fsync=False),
    Backend(name=f"+{LATENCY_MS} ms a request", runs=20, latency_ms=LATENCY_MS),
)
WARM_UP_RUNS = 3
"""The first runs open the internal partitions cold, and do not count."""


def main(
    scale: Annotated[float, typer.Option(help="Multiplies the number of runs of every case.")] = 1.0,
    output: Annotated[Path, typer.Option(help="Folder for core.json and core.png.")] = Path("reports"),
) -> None:
    """Measure, print a table, and write `core.json` and a plot."""
    console = Console(width=None if sys.stdout.isatty() else 140)
    results: list[Result] = []
    for backend in BACKENDS:
        with tempfile.TemporaryDirectory(prefix="txlog-bench-") as folder:
            results += _measure(backend, folder, max(3, int(backend.runs * scale)))
    console.print(_table(results))
    output.mkdir(parents=True, exist_ok=True)
    report = {
        "machine": platform.platform(),
        "python": platform.python_version(),
        "pyarrow": pa.__version__,
        "txlog": txlog.__version__,
        "rows_a_batch": ROWS,
        "results": [asdict(result) for result in results],
    }
    (output / "core.json").write_text(json.dumps(report, indent=2) + "\n")
    _plot(results, output / "core.png")
    console.print(f"written: {output / 'core.json'}, {output / 'core.png'}")
    over = [result for result in results if result.conditional_puts > result.budget + SEALING_PUTS]
    if over:
        console.print(f"[red]over the request budget: {[(r.store, r.work, r.partitions) for r in over]}[/]")
        raise typer.Exit(1)


def _measure(backend: Backend, folder: str, runs: int) -> list[Result]:
    inner: Any = open_object_store(folder, {"fsync": backend.fsync})
    if backend.latency_ms:
        inner = LatencyStore(inner, backend.latency_ms, SystemClock())
    counting = CountingStore(inner)
    store = txlog.open(folder, object_store=counting)
    # Segments roll every 100 batches and are sealed then. Sealing is measured separately, not as a part of appends.
    for work in WORKS:
        store.create_topic(work.topic, schema=SCHEMA, partitions=work.partitions, config={"segment.batches": "1000000"})
    calls = {work: _prepare(store, work) for work in WORKS}
    samples: dict[Work, list[float]] = {work: [] for work in WORKS}
    costs: dict[Work, list[Any]] = {work: [] for work in WORKS}
    for run in track(range(WARM_UP_RUNS + runs), description=f"{backend.name:>20}"):
        for work, call in calls.items():
            with counting.counting() as cost:
                started = time.perf_counter()
                call()
                elapsed_ms = (time.perf_counter() - started) * 1000
            if run >= WARM_UP_RUNS:
                samples[work].append(elapsed_ms)
                costs[work].append(cost.requests())
    store.close()
    return [_result(backend, work, samples[work], costs[work]) for work in WORKS]


def _prepare(store: Any, work: Work) -> Callable[[], None]:
    if work.name == "append":
        producer = store.producer(linger_ms=0)
        return lambda: producer.send(work.topic, BATCH, partition=0).result()
    staged = work.name.startswith("staged")
    # Rows wait until the commit asks for them: all partitions are then one round with one registration, on any machine.
    producer = store.producer(transactional_id=work.topic, linger_ms=60_000, staged=staged)
    producer.init_transactions()

    def transaction() -> None:
        with producer.transaction():
            for partition in range(work.partitions):
                producer.send(work.topic, BATCH, partition=partition)

    return transaction


def _result(backend: Backend, work: Work, samples_ms: list[float], costs: list[Any]) -> Result:
    def mean(verb: str) -> float:
        return round(statistics.mean(getattr(cost, verb) for cost in costs), 2)

    return Result(
        store=backend.name,
        work=work.name,
        partitions=work.partitions,
        runs=len(samples_ms),
        p50_ms=round(statistics.median(samples_ms), 2),
        p95_ms=round(statistics.quantiles(samples_ms, n=20)[-1], 2),
        conditional_puts=mean("put_if_absent"),
        budget=work.budget,
        file_writes=mean("write_file"),
        gets=mean("get"),
        lists=mean("list"),
    )


def _table(results: list[Result]) -> Table:
    table = Table(title=f"{ROWS} rows a batch; requests a call", title_justify="left")
    for column in ("store", "work", "partitions", "p50 ms", "p95 ms", "cond. PUT", "budget", "file PUT", "GET", "LIST"):
        table.add_column(column, justify="left" if column in ("store", "work") else "right")
    for r in results:
        table.add_row(
            r.store,
            r.work,
            str(r.partitions),
            f"{r.p50_ms:.2f}",
            f"{r.p95_ms:.2f}",
            f"{r.conditional_puts:g}",
            str(r.budget),
            f"{r.file_writes:g}",
            f"{r.gets:g}",
            f"{r.lists:g}",
        )
    return table


def _plot(results: list[Result], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    stores = list(dict.fromkeys(result.store for result in results))
    figure, axes = plt.subplots(1, len(stores), figsize=(4.2 * len(stores), 3.6), constrained_layout=True)
    for axis, store in zip(axes, stores, strict=True):
        rows = [result for result in results if result.store == store]
        labels = [f"{r.work}\n{r.partitions} part." for r in rows]
        axis.barh(labels, [r.p95_ms for r in rows], color="#c9d6df", label="p95")
        axis.barh(labels, [r.p50_ms for r in rows], color="#2b6777", label="p50")
        for number, r in enumerate(rows):
            axis.text(r.p50_ms, number, f" {r.p50_ms:.1f} ms, {r.conditional_puts:g} PUT", va="center", fontsize=7)
        axis.set_xlim(0, max(r.p95_ms for r in rows) * 1.5)  # room for the labels
        axis.invert_yaxis()
        axis.set_title(store, fontsize=9)
        axis.set_xlabel("ms")
        axis.tick_params(labelsize=7)
    axes[0].legend(fontsize=7)
    figure.savefig(path, dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    typer.run(main)
