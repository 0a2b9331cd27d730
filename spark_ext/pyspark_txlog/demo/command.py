"""`txlog demo`: six steps on 336,776 real flights; processes are really killed, and the last step proves the rest.

The processes are those of `worker`; where each dies is chosen through the test kit's failing store, by the record it is
about to write. Nothing in the library knows that it is being shown.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.tree import Tree

import txlog
from pyspark_txlog.demo import data, worker
from txlog.errors import InvalidRequestError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPICS = {"flights": 6, "weather": 3, "delays": 3}
SEGMENT_BATCHES = 6
"""Small segments, so that there is something to look at on disk."""
REPEATED_MONTH = 3
MONTH_OF_DELAY = "month(date)"

# Epochs tell transactions apart: the stopped process has 0, its transaction is aborted with 1, the loader starts with 2
# and each commit adds 1. So its fourth transaction has epoch 5.
KILL_IN_FOURTH_MONTH = r'kill after 2 put_if_absent weather/.*"kind":"data".*"producer_epoch":5,'
STOP_IN_FIRST_TRANSACTION = r"stop after 1 put_if_absent weather/"
KILL_AFTER_SECOND_PREPARE = r"kill after 2 put_if_absent __transaction_state/.*PREPARE_COMMIT"

console = Console(width=None if sys.stdout.isatty() else 120)
"""Piped into a file there is no width to ask for; 120 columns hold every table."""


def demo(
    store: Annotated[
        str | None, typer.Option(help="Where to make the store; a new temporary folder by default.")
    ] = None,
    keep: Annotated[bool, typer.Option(help="Keep the store afterwards, to look at.")] = False,
) -> None:
    """Load 336,776 real flights with Spark, kill producers inside their transactions, and prove that nothing is lost."""
    with _location(store, keep) as url:
        console.rule(f"[bold]txlog demo[/] on {url}")
        log = txlog.open(url)
        with _spark() as spark:
            make_topics(log)
            load_flights(spark, url)
            stopped = start_and_stop_a_loader(url)
            kill_a_loader(log, url)
            take_over(log, url, stopped)
            run_pipeline(log, url)
            proofs = prove_all(spark, url)
        show_files(log, "weather")
        log.close()
    if not all(proof.holds for proof in proofs):
        console.print("[bold red]Some figures are off.[/]")
        raise typer.Exit(1)


# -- 1: the store -----------------------------------------------------------------------------------------------------


def make_topics(log: Any) -> None:
    """Three topics with typed schemas."""
    _headline(1, "A store with three topics")
    config = {"segment.batches": str(SEGMENT_BATCHES)}
    log.create_topic(
        "flights", schema=data.FLIGHTS, partitions=TOPICS["flights"], config={**config, "key.columns": "carrier"}
    )
    log.create_topic(
        "weather", schema=data.WEATHER, partitions=TOPICS["weather"], config={**config, "key.columns": "origin"}
    )
    log.create_topic(
        "delays", schema=data.DELAYS, partitions=TOPICS["delays"], config={**config, "key.columns": "origin"}
    )
    for topic, partitions in TOPICS.items():
        console.print(f"  {topic}: {partitions} partitions")


# -- 2: Spark ---------------------------------------------------------------------------------------------------------


def load_flights(spark: SparkSession, url: str) -> None:
    """One transaction a month; one month is submitted twice."""
    _headline(2, "Spark loads the flights, one transaction a month")
    frame = spark.createDataFrame(data.flights()).cache()
    months = [*data.MONTHS[:REPEATED_MONTH], REPEATED_MONTH, *data.MONTHS[REPEATED_MONTH:]]
    seen: set[int] = set()
    with _progress() as progress:
        task = progress.add_task("flights", total=len(months))
        for month in months:
            if month in seen:
                progress.console.print(f"  month {month} is submitted again, under the same txn.version:")
            _write_month(frame, url, month)
            seen.add(month)
            progress.advance(task)


def _write_month(frame: DataFrame, url: str, month: int) -> None:
    # By carrier, so that a day of a carrier lies in one file: what step 5 derives then depends on no file boundary.
    rows = frame.where(frame["month"] == month).repartition(2, "carrier")
    writer = rows.write.format("txlog").mode("append").option("topic", "flights").option("key", "carrier")
    writer.option("transactional.id", "flights-loader").option("txn.version", month).save(url)


# -- 3 and 4: a producer dies, another takes over ---------------------------------------------------------------------


def start_and_stop_a_loader(url: str) -> subprocess.Popen[str]:
    """A loader that opens a transaction and is stopped inside it (SIGSTOP): it will be a zombie."""
    _headline(3, "A producer is killed inside its transaction")
    process = _start("zombie-weather", url, STOP_IN_FIRST_TRANSACTION)
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    if not os.WIFSTOPPED(status):
        raise InvalidRequestError(
            f"the first loader should have been stopped, and it ended: {process.communicate()[1]}"
        )
    console.print(f"  process {process.pid} sent rows in a transaction and is stopped (SIGSTOP)")
    return process


def kill_a_loader(log: Any, url: str) -> None:
    """A second instance of the same transactional.id loads three months and is killed in the fourth."""
    process = _start("load-weather", url, KILL_IN_FOURTH_MONTH)
    committed = [event["month"] for event in _events(process) if event["event"] == "committed"]
    if process.wait() != -signal.SIGKILL:
        raise InvalidRequestError(
            f"the loader should have been killed, and it ended: {process.stderr and process.stderr.read()}"
        )
    console.print(
        f"  process {process.pid}, the same transactional.id, committed months {committed} and was killed (SIGKILL) in the next one"
    )
    show_offsets(log, "weather", "  What each isolation level sees of weather now:")


def take_over(log: Any, url: str, stopped: subprocess.Popen[str]) -> None:
    """A third instance takes over; then the stopped one is continued and tries to commit."""
    _headline(4, "The next instance takes over, and the stopped one comes back")
    process = _start("load-weather", url)
    with _progress() as progress:
        task = progress.add_task("weather", total=len(data.MONTHS))
        done = log.admin().describe_transaction(worker.LOADER_ID).txn_version
        progress.update(task, completed=max(done, 0))
        for event in _events(process):
            if event["event"] == "committed":
                progress.update(task, completed=event["month"])
    if process.wait():
        raise InvalidRequestError(f"the loader failed: {process.stderr and process.stderr.read()}")
    show_offsets(log, "weather", "  weather afterwards: the LSO reached the log end")
    show_aborted(log, "weather")
    stopped.send_signal(signal.SIGCONT)
    _, errors = stopped.communicate(timeout=60)
    console.print(f"  process {stopped.pid} is continued (SIGCONT), tries to commit, and its user reads:")
    console.print(f"    [red]{errors.strip()}[/]")
    if "Fenced" not in errors or not stopped.returncode:
        raise InvalidRequestError("the stopped process should have been fenced")


# -- 5: consume, transform, produce -----------------------------------------------------------------------------------


def run_pipeline(log: Any, url: str) -> None:
    """flights -> delays, killed between the decision and the markers, then started again."""
    _headline(5, "A consume-transform-produce pipeline is killed between PREPARE_COMMIT and the markers")
    process = _start("pipeline", url, KILL_AFTER_SECOND_PREPARE)
    _, errors = process.communicate(timeout=600)
    if process.returncode != -signal.SIGKILL:
        raise InvalidRequestError(f"the pipeline should have been killed, and it ended: {errors}")
    state = log.admin().describe_transaction(worker.PIPELINE_ID)
    console.print(
        f"  process {process.pid} was killed (SIGKILL); its transaction is {state.state}, not a marker is written"
    )
    process = _start("pipeline", url)
    with console.status("  the next start rolls it forward and goes on from the committed offsets"):
        events = list(_events(process))
    if process.wait():
        raise InvalidRequestError(f"the pipeline failed: {process.stderr and process.stderr.read()}")
    started, finished = events[0], events[-1]
    console.print(f"  process {process.pid} rolled it forward and began at {_offsets(started['offsets'])}")
    console.print(
        f"  {finished['transactions']} more transactions: {finished['rows_in']:,} flights in, {finished['rows_out']:,} rows of delays out"
    )


# -- 6: the proof -----------------------------------------------------------------------------------------------------


def prove_all(spark: SparkSession, url: str) -> list[Any]:
    """Spark reads everything back and compares it with the source, row by row."""
    from pyspark_txlog.demo.proof import prove

    _headline(6, "Proof: Spark reads everything back; every column of every row is compared with the source")
    sources = {
        "flights": (data.flights(), "month"),
        "weather": (data.weather(), "month"),
        "delays": (data.daily_delays(data.flights()).cast(data.DELAYS), MONTH_OF_DELAY),
    }
    proofs = []
    with _progress() as progress:
        task = progress.add_task("topics", total=len(sources))
        for topic, (source, month) in sources.items():
            proofs.append(
                prove(
                    topic,
                    spark.createDataFrame(source),
                    _read(spark, url, topic, "read_committed"),
                    _read(spark, url, topic, "read_uncommitted"),
                    month,
                )
            )
            progress.advance(task)
    table = Table()
    for column in (
        "topic",
        "source rows",
        "read_committed",
        "lost",
        "doubled",
        "torn",
        "read_uncommitted",
        "aborted rows hidden",
    ):
        table.add_column(column, justify="left" if column == "topic" else "right")
    for proof in proofs:
        bad = "bold red" if not proof.holds else "bold green"
        table.add_row(
            proof.topic,
            f"{proof.source:,}",
            f"{proof.read_committed:,}",
            *(f"[{bad}]{figure}[/]" for figure in (proof.lost, proof.doubled, proof.torn)),
            f"{proof.read_uncommitted:,}",
            f"{proof.hidden:,}",
        )
    console.print(table)
    return proofs


def _read(spark: SparkSession, url: str, topic: str, isolation: str) -> DataFrame:
    return spark.read.format("txlog").option("subscribe", topic).option("isolation.level", isolation).load(url)


# -- showing ----------------------------------------------------------------------------------------------------------


def show_offsets(log: Any, topic: str, title: str) -> None:
    """Log start, LSO and log end of each partition, and the rows that each level reads."""
    table = Table(title=title, title_justify="left", title_style="")
    for column in ("partition", "log start", "LSO", "log end", "read_committed rows", "read_uncommitted rows"):
        table.add_column(column, justify="right")
    for tp, info in sorted(log.admin().list_offsets(topic).items()):
        held = info.last_stable_offset < info.log_end_offset
        table.add_row(
            str(tp.partition),
            str(info.log_start_offset),
            f"[yellow]{info.last_stable_offset} (held back)[/]" if held else str(info.last_stable_offset),
            str(info.log_end_offset),
            f"{_count(log, tp, 'read_committed'):,}",
            f"{_count(log, tp, 'read_uncommitted'):,}",
        )
    console.print(table)


def _count(log: Any, tp: Any, isolation: str) -> int:
    with log.consumer(isolation_level=isolation, auto_offset_reset="earliest", enable_auto_commit=False) as consumer:
        consumer.assign([tp])
        rows = 0
        while (batch := consumer.poll(0)) is not None:
            rows += batch.num_rows
        return rows


def show_aborted(log: Any, topic: str) -> None:
    """The aborted ranges of a topic."""
    for partition in range(TOPICS[topic]):
        for txn in log.admin().describe_partition(topic, partition).aborted:
            console.print(
                f"  aborted: {topic}-{partition}, producer {txn.producer_id}, offsets {txn.first_offset} to {txn.last_offset} (the marker)"
            )


def show_files(log: Any, topic: str) -> None:
    """The tree of the partition with most kinds of objects, as it lies in the store."""
    store = log.runtime.store
    listed = {partition: store.list(f"{topic}/{partition}/") for partition in range(TOPICS[topic])}
    partition = max(listed, key=lambda p: (len({name.rpartition(".")[2] for name in listed[p]}), len(listed[p])))
    sealed_end = log.admin().describe_partition(topic, partition).sealed_end
    console.print(f"\nOne partition as it lies in the store (sealed up to offset {sealed_end}):")
    console.print(_tree(store, f"{topic}/{partition}/", listed[partition], sealed_end))


KINDS = {
    "index": "a sealed segment: its batches",
    "txnindex": "its aborted transactions",
    "parquet": "its inline rows",
    "snapshot": "the partition's state there",
    "batch": "active tail",
}


def _tree(store: Any, folder: str, listed: list[str], sealed_end: int) -> Tree:
    tree = Tree(f"[bold]{folder}[/]")
    sealed: list[str] = []
    for name in listed:
        if name.endswith(".batch") and int(name[:20]) < sealed_end:
            sealed.append(name)
            continue
        _add_sealed(tree, sealed)
        sealed = []
        if name.endswith("/"):
            tree.add(_tree(store, folder + name, store.list(folder + name), sealed_end))
        else:
            size = store.size(folder + name)
            tree.add(f"{name}  [dim]{size:,} bytes, {KINDS.get(name.rpartition('.')[2], 'rows')}[/]", highlight=False)
    _add_sealed(tree, sealed)
    return tree


def _add_sealed(tree: Tree, batches: list[str]) -> None:
    if batches:
        more = f" and {len(batches) - 1} more" if len(batches) > 1 else ""
        tree.add(f"{batches[0]}{more}  [dim]sealed since; deleted after delete.grace.ms[/]", highlight=False)


def _headline(number: int, text: str) -> None:
    console.print(f"\n[bold]{number}. {text}[/]")


def _progress() -> Progress:
    return Progress(
        SpinnerColumn(),
        TextColumn("  {task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    )


def _offsets(offsets: dict[str, int]) -> str:
    return ", ".join(f"{tp}: {offset}" for tp, offset in offsets.items())


# -- processes, places ------------------------------------------------------------------------------------------------


def _start(role: str, url: str, *faults: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", worker.__name__, role, url, *faults],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _events(process: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    assert process.stdout is not None
    for line in process.stdout:
        yield json.loads(line)


@contextmanager
def _spark() -> Iterator[SparkSession]:
    from pyspark_txlog import session

    with console.status("starting Spark"):
        spark = session(app_name="txlog-demo")
    try:
        yield spark
    finally:
        spark.stop()


@contextmanager
def _location(store: str | None, keep: bool) -> Iterator[str]:
    if store is not None:
        if txlog.open(store).topics():
            raise InvalidRequestError(f"{store} holds topics already; the demo wants an empty place")
        yield store
        return
    folder = Path(tempfile.mkdtemp(prefix="txlog-demo-"))
    try:
        yield str(folder)
    finally:
        if keep:
            console.print(f"\nThe store is kept at {folder}; try: txlog topics list --store {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
