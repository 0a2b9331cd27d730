"""Does anything cost more per commit because a store has many groups, ids, segments or partitions? Does a process grow?

`make bench-growth` (or `python -m benchmarks.growth --help`). It compares a store with n of each kind of thing with a
store that has 4 n. Both are in memory, with the benchmark's own clock and without threads.

A figure *per commit* must not grow: it allows the same requests, and less than `PER_COMMIT` times the time. A figure
over all things may grow in step with their number, so by less than `LINEAR` times. After 4 n transactions a process
must hold as much as after n, while maintenance keeps the log short. The exit status is 1 if a figure grows faster.
"""

from __future__ import annotations

import gc
import json
import platform
import statistics
import sys
import time
import types
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pyarrow as pa
import typer
from rich.console import Console
from rich.table import Table

import txlog
from txlog.client import reading
from txlog.client.store import Store
from txlog.core.names import TopicPartition
from txlog.maintenance.maintain import Maintainer, MaintainPolicy
from txlog.storage.driver import Driver
from txlog.storage.memory import MemoryObjectStore
from txlog.testing.clock import ManualClock, SeededIds
from txlog.testing.counting_store import CountingStore

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False)])
ROWS = pa.table({"id": [1]}, SCHEMA)
TOPIC = "orders"
FIRST = TopicPartition(TOPIC, 0)
HOUR_MS = 3_600_000
TIMES = 4
REPEATS = 15
"""The number of measurements of a figure per commit; the median counts."""
PER_COMMIT, LINEAR, FLAT = 2.0, 7.0, 1.25
"""The allowed factor of a figure from n to 4 n. Milliseconds depend on other work of the machine; held bytes do not."""

Kind = Literal["per commit", "linear", "held"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measurement, at one size."""

    of: str
    what: str
    kind: Kind
    size: int
    ms: float
    """CPU time; 0 for held bytes."""
    requests: int
    """Requests, or the number of held bytes."""


class Place:
    """A store in memory, its clock, and processes that open it."""

    def __init__(self, **settings: Any) -> None:
        self.clock = ManualClock()
        self.memory = MemoryObjectStore(clock=self.clock)
        self.counting = CountingStore(self.memory)
        self._settings = {"linger.ms": 0, **{name.replace("_", "."): value for name, value in settings.items()}}
        self._processes = 0

    def open(self) -> Store:
        """Open the store in another process, without threads: requests in memory are too fast for them."""
        self._processes += 1
        store: Store = txlog.open(
            "memory://",
            config=self._settings,
            clock=self.clock,
            ids=SeededIds(self._processes),
            object_store=self.counting,
        )
        runtime = store.runtime
        runtime.driver = Driver(runtime.store, runtime.clock, runtime.ids, threads=0)
        return store


class Bench:
    """Collects the figures of one store."""

    def __init__(self, of: str, size: int, place: Place) -> None:
        self._of, self._size, self._place = of, size, place
        self.figures: list[Figure] = []

    def per_commit(self, what: str, call: Callable[[], object]) -> None:
        """Measure `call`, after a first call that warms it up."""
        call()
        took = []
        with self._place.counting.counting() as cost:
            for _ in range(REPEATS):
                began = time.process_time()
                call()
                took.append(time.process_time() - began)
        self._add(what, "per commit", statistics.median(took), cost.total // REPEATS)

    def linear(self, what: str, call: Callable[[], object]) -> None:
        """Measure `call`, made once."""
        with self._place.counting.counting() as cost:
            began = time.process_time()
            call()
            took = time.process_time() - began
        self._add(what, "linear", took, cost.total)

    def held(self, what: str, sampled: list[int]) -> None:
        """Take the most bytes of the later half: the held bytes fall each time a segment is sealed."""
        self._add(what, "held", 0, max(sampled[len(sampled) // 2 :]))

    def _add(self, what: str, kind: Kind, seconds: float, requests: int) -> None:
        self.figures.append(
            Figure(of=self._of, what=what, kind=kind, size=self._size, ms=round(seconds * 1000, 3), requests=requests)
        )


def groups(size: int) -> Bench:
    """Consumer groups, all in one partition of `__consumer_offsets`."""
    place = Place(offsets_topic_num_partitions=1)
    bench = Bench("groups", size, place)
    with closing(place.open()) as store:
        store.create_topic(TOPIC, SCHEMA)
        admin = store.admin()
        for number in range(size):
            admin.reset_offsets(f"group-{number}", {FIRST: 0})
        bench.per_commit("commit an offset", lambda: admin.reset_offsets("group-0", {FIRST: 0}))
        bench.linear("list them", admin.list_groups)
        bench.linear("describe one, cold", lambda: _once(place, lambda each: each.admin().describe_group("group-1")))
        place.clock.advance_ms(24 * HOUR_MS)
        policy = MaintainPolicy(offsets_retention_ms=HOUR_MS)
        bench.linear("remove them", lambda: _once(place, lambda each: Maintainer(each.runtime, policy).run()))
    return bench


def ids(size: int) -> Bench:
    """Transactional ids, all in one partition of `__transaction_state`; each commits once to one partition of a topic."""
    place = Place(transaction_state_log_num_partitions=1)
    bench = Bench("transactional ids", size, place)
    with closing(place.open()) as store:
        store.create_topic(TOPIC, SCHEMA)
        for number in range(size):
            with store.producer(f"id-{number}") as producer, producer.transaction():
                producer.send(TOPIC, ROWS, partition=0)
        with store.producer("mine") as producer:
            bench.per_commit("commit a transaction", lambda: _transaction(producer, 0))
        with store.producer() as plain:
            bench.per_commit("append a batch", lambda: plain.send(TOPIC, ROWS, partition=0).result())
        bench.linear("list them", lambda: store.admin().list_transactions())
        bench.linear("begin a new one, cold", lambda: _once(place, _first_commit))
        bench.linear("take a snapshot, cold", lambda: _once(place, _cut))
        place.clock.advance_ms(30 * 24 * HOUR_MS)
        bench.linear("remove them", lambda: _once(place, lambda each: each.admin().expire()))
    return bench


def segments(size: int) -> Bench:
    """Sealed segments of one partition."""
    place = Place()
    bench = Bench("segments", size, place)
    with closing(place.open()) as store:
        store.create_topic(TOPIC, SCHEMA, config={"segment.batches": 2})
        with store.producer() as plain:
            for _ in range(2 * size + 1):
                plain.send(TOPIC, ROWS, partition=0).result()
            bench.per_commit("append a batch", lambda: plain.send(TOPIC, ROWS, partition=0).result())
        with store.producer("mine") as producer:
            bench.per_commit("commit a transaction", lambda: _transaction(producer, 0))
        with store.consumer(TOPIC, auto_offset_reset="earliest", max_poll_records=1) as consumer:
            bench.per_commit("poll one row", lambda: consumer.poll(0))
        bench.linear("read one row, cold", lambda: _once(place, _first_row))
        bench.linear("read all, cold", lambda: _once(place, _all_rows))
        place.clock.advance_ms(25 * HOUR_MS)
        bench.linear("maintain, merging all", lambda: _once(place, lambda each: Maintainer(each.runtime).run()))
    return bench


def partitions(size: int) -> Bench:
    """Partitions of one topic, all of which the processes have used."""
    place = Place()
    bench = Bench("partitions", size, place)
    with closing(place.open()) as store:
        store.create_topic(TOPIC, SCHEMA, partitions=size)
        with store.producer() as plain:
            bench.linear("append to each", lambda: [plain.send(TOPIC, ROWS, partition=n).result() for n in range(size)])
            bench.per_commit("append a batch", lambda: plain.send(TOPIC, ROWS, partition=0).result())
        with store.producer("mine") as producer:
            with producer.transaction():
                for number in range(size):
                    producer.send(TOPIC, ROWS, partition=number)
            bench.per_commit("commit a transaction", lambda: _transaction(producer, 0))
        with store.consumer(TOPIC, auto_offset_reset="earliest") as consumer:
            bench.linear("read all", lambda: list(consumer.iterate()))
            bench.linear("poll", lambda: consumer.poll(0))
        bench.linear("take a snapshot, cold", lambda: _once(place, _cut))
        bench.linear("maintain", lambda: _once(place, lambda each: Maintainer(each.runtime).run()))
    return bench


def running(size: int) -> Bench:
    """Processes that run over many transactions of one id and as many drawn ids, with maintenance and retention."""
    place = Place(delete_grace_ms=HOUR_MS, producer_id_expiration_ms=HOUR_MS, transactional_id_expiration_ms=HOUR_MS)
    bench = Bench("transactions", size, place)
    with closing(place.open()) as store, closing(place.open()) as reads, closing(place.open()) as keeps:
        store.create_topic(
            TOPIC,
            SCHEMA,
            partitions=2,
            config={"segment.batches": 10, "retention.ms": HOUR_MS, "cleanup.policy": "delete"},
        )
        maintainer = Maintainer(keeps.runtime)
        with store.producer("mine") as producer, reads.consumer(TOPIC, auto_offset_reset="earliest") as consumer:
            roots = {"producer": producer, "consumer": consumer, "maintainer": maintainer}
            sampled: dict[str, list[int]] = {name: [] for name in roots}
            for number in range(size):
                _transaction(producer, number % 2)
                with store.producer() as other:
                    other.send(TOPIC, ROWS, partition=number % 2).result()
                place.clock.advance_ms(60_000)
                if number % 15 == 14:
                    for _ in consumer.iterate():
                        pass
                    if maintainer.run().failures:
                        raise RuntimeError("maintenance failed")
                    for name, root in roots.items():
                        sampled[name].append(deep_bytes(root))
            bench.per_commit("commit a transaction", lambda: _transaction(producer, 0))
            for name, sizes in sampled.items():
                bench.held(f"held by a {name}", sizes)
    return bench


SIZES: dict[Callable[[int], Bench], int] = {groups: 500, ids: 500, segments: 500, partitions: 50, running: 240}
"""The smaller size of each. An internal topic has one partition here and 50 by default, so 2,000 ids stand for 100,000."""


def main(
    scale: Annotated[float, typer.Option(help="Multiplies all sizes.")] = 1.0,
    output: Annotated[Path, typer.Option(help="Folder for growth.json and growth.png.")] = Path("reports"),
) -> None:
    """Measure, print a table, and write `growth.json` and a plot."""
    console = Console(width=None if sys.stdout.isatty() else 140)
    pairs = list(measure(scale))
    console.print(_table(pairs))
    output.mkdir(parents=True, exist_ok=True)
    report = {
        "machine": platform.platform(),
        "python": platform.python_version(),
        "txlog": txlog.__version__,
        "figures": [asdict(each) for pair in pairs for each in pair],
    }
    (output / "growth.json").write_text(json.dumps(report, indent=1) + "\n")
    _plot(pairs, output / "growth.png")
    console.print(f"written: {output / 'growth.json'}, {output / 'growth.png'}")
    wrong = [f"{small.of}: {small.what}" for small, large in pairs if not may_grow(small, large)]
    if wrong:
        console.print(f"[red]these grow too fast: {', '.join(wrong)}[/]")
        raise typer.Exit(1)


def measure(scale: float = 1.0) -> Iterator[tuple[Figure, Figure]]:
    """Yield each figure at n and at 4 n."""
    for build, size in SIZES.items():
        size = max(int(size * scale), 30)
        yield from zip(build(size).figures, build(TIMES * size).figures, strict=True)


def may_grow(small: Figure, large: Figure) -> bool:
    """Return whether a figure grew no faster than it may."""
    if small.kind == "held":
        return large.requests <= FLAT * small.requests
    if small.kind == "per commit":
        # Below half a millisecond, caches and the garbage collector decide.
        return large.requests <= small.requests and large.ms <= PER_COMMIT * max(small.ms, 0.5)
    return large.requests <= LINEAR * max(small.requests, 1) and large.ms <= LINEAR * max(small.ms, 10)


def deep_bytes(root: object) -> int:
    """Return the bytes of all objects that are reachable from `root`, without code, stores and clocks."""
    skipped = (
        type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.FrameType,
        CountingStore, MemoryObjectStore, ManualClock,
    )  # fmt: skip
    seen: set[int] = set()
    left, total = [root], 0
    while left:
        each = left.pop()
        if id(each) in seen or isinstance(each, skipped):
            continue
        seen.add(id(each))
        total += sys.getsizeof(each)
        left += gc.get_referents(each.__self__ if isinstance(each, types.MethodType) else each)
    return total


def _transaction(producer: Any, partition: int) -> None:
    with producer.transaction():
        producer.send(TOPIC, ROWS, partition=partition)


def _once(place: Place, call: Callable[[Store], object]) -> None:
    with closing(place.open()) as store:
        call(store)


def _first_commit(store: Store) -> None:
    with store.producer("another") as producer:
        _transaction(producer, 0)


def _cut(store: Store) -> None:
    reading.take_cut(reading.read_session(store.runtime), [TOPIC])


def _first_row(store: Store) -> None:
    with store.consumer(TOPIC, auto_offset_reset="earliest", max_poll_records=1) as consumer:
        assert consumer.poll(0) is not None


def _all_rows(store: Store) -> None:
    with store.consumer(TOPIC, auto_offset_reset="earliest") as consumer:
        for _ in consumer.iterate():
            pass


def _table(pairs: list[tuple[Figure, Figure]]) -> Table:
    table = Table(title="CPU milliseconds and requests (or bytes held), at n and at 4 n")
    for column in ("of", "what", "may be", "n", "ms", "requests", "4 n", "ms", "requests", "times"):
        table.add_column(column, justify="left" if column in ("of", "what", "may be") else "right")
    for small, large in pairs:
        held = small.kind == "held"
        times = large.requests / max(small.requests, 1) if held else large.ms / max(small.ms, 0.001)
        mark = "" if may_grow(small, large) else "[red]"
        cells = [f"{each.size:,}" for each in (small, large)]
        ms = ["" if held else f"{each.ms:,.2f}" for each in (small, large)]
        table.add_row(
            small.of, small.what, small.kind, cells[0], ms[0], f"{small.requests:,}", cells[1], ms[1], f"{large.requests:,}",
            f"{mark}{times:.1f}",
        )  # fmt: skip
    return table


def _plot(pairs: list[tuple[Figure, Figure]], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import patches
    from matplotlib import pyplot as plt

    colors = {"per commit": "#2b6777", "linear": "#e0a458", "held": "#7a5195"}
    figure, axis = plt.subplots(figsize=(9, 0.28 * len(pairs) + 1), constrained_layout=True)
    for number, (small, large) in enumerate(reversed(pairs)):
        held = small.kind == "held"
        times = large.requests / max(small.requests, 1) if held else large.ms / max(small.ms, 0.001)
        axis.barh(number, times, color=colors[small.kind])
    axis.set_yticks(range(len(pairs)), [f"{each.of}: {each.what}" for each, _ in reversed(pairs)], fontsize=7)
    axis.axvline(1, color="#888", linewidth=0.8)
    axis.axvline(TIMES, color="#888", linewidth=0.8, linestyle="--")
    axis.set_xlabel(f"times as much for {TIMES} times as many (dashed: in step with their number)", fontsize=8)
    axis.legend([patches.Patch(color=color) for color in colors.values()], list(colors), fontsize=7)
    figure.savefig(path, dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    typer.run(main)
