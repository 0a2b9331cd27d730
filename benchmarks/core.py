"""How many milliseconds and storage requests do an append and a transaction cost?

`make bench-core` (or `python -m benchmarks.core --help`). Cases are interleaved round by round, so that a drift of the
machine's speed meets all of them alike: compare the rows of one run with each other, never two runs. The conditional
PUTs are compared with the budget of DESIGN section 8; the exit status says whether it holds.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One kind of work on one kind of store; `budget` is the conditional PUTs that DESIGN 8 allows it."""

    store: str
    work: str
    partitions: int
    budget: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Milliseconds a call and requests a call of one case."""

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


WORKS = [
    ("append", 1, 1),
    ("eager transaction", 1, 2 * 1 + 3),
    ("eager transaction", 4, 2 * 4 + 3),
    ("staged transaction", 1, 1 + 2),
    ("staged transaction", 4, 4 + 2),
]
STORES = {"local, fsync": 200, "local, no fsync": 200, f"+{LATENCY_MS} ms a request": 20}


def main(
    scale: Annotated[float, typer.Option(help="Multiplies the number of runs of every case.")] = 1.0,
    output: Annotated[Path, typer.Option(help="Folder for core.json and core.png.")] = Path("reports"),
) -> None:
    """Measure, print a table, and write `core.json` and a plot."""
    console = Console(width=None if sys.stdout.isatty() else 140)
    results: list[Result] = []
    for store, runs in STORES.items():
        with tempfile.TemporaryDirectory(prefix="txlog-bench-") as folder:
            results += _measure(store, folder, max(3, int(runs * scale)))
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
    over = [result for result in results if result.conditional_puts > result.budget + 0.2]
    if over:
        console.print(f"[red]over the request budget: {[(r.store, r.work, r.partitions) for r in over]}[/]")
        raise typer.Exit(1)


def _measure(name: str, folder: str, runs: int) -> list[Result]:
    clock = SystemClock()
    inner: Any = open_object_store(folder, {"fsync": "fsync" not in name or name == "local, fsync"})
    if name.startswith("+"):
        inner = LatencyStore(inner, LATENCY_MS, clock)
    counting = CountingStore(inner)
    store = txlog.open(folder, object_store=counting)
    # Segments roll every 100 batches and are sealed then; that is measured by its own, not smeared over appends.
    # A topic for each work: two writers of one partition race for its slots, which is another question.
    for work, partitions, _ in WORKS:
        store.create_topic(
            _topic(work, partitions), schema=SCHEMA, partitions=partitions, config={"segment.batches": "1000000"}
        )
    works = {(work, partitions): _prepare(store, work, partitions) for work, partitions, _ in WORKS}
    samples: dict[tuple[str, int], list[float]] = {key: [] for key in works}
    costs: dict[tuple[str, int], list[Any]] = {key: [] for key in works}
    for run in track(range(runs + 3), description=f"{name:>20}"):
        for key, work in works.items():
            with counting.counting() as cost:
                started = time.perf_counter()
                work()
                elapsed_ms = (time.perf_counter() - started) * 1000
            if run >= 3:  # the first ones open the internal partitions cold
                samples[key].append(elapsed_ms)
                costs[key].append(cost.requests())
    store.close()
    return [
        _result(name, work, partitions, budget, samples[work, partitions], costs[work, partitions])
        for work, partitions, budget in WORKS
    ]


def _prepare(store: Any, work: str, partitions: int) -> Callable[[], None]:
    if work == "append":
        producer = store.producer(linger_ms=0)
        return lambda: producer.send(_topic(work, partitions), BATCH, partition=0).result()
    staged = work.startswith("staged")
    producer = store.producer(transactional_id=f"{work}-{partitions}", linger_ms=5, staged=staged)
    producer.init_transactions()

    def transaction() -> None:
        with producer.transaction():
            for partition in range(partitions):
                producer.send(_topic(work, partitions), BATCH, partition=partition)

    return transaction


def _topic(work: str, partitions: int) -> str:
    return f"{work.replace(' ', '-')}-{partitions}"


def _result(store: str, work: str, partitions: int, budget: int, samples_ms: list[float], costs: list[Any]) -> Result:
    def mean(verb: str) -> float:
        return round(statistics.mean(getattr(cost, verb) for cost in costs), 2)

    return Result(
        store=store,
        work=work,
        partitions=partitions,
        runs=len(samples_ms),
        p50_ms=round(statistics.median(samples_ms), 2),
        p95_ms=round(statistics.quantiles(samples_ms, n=20)[-1], 2),
        conditional_puts=mean("put_if_absent"),
        budget=budget,
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
