"""`make demo`: eight steps on 336,776 real flights; processes are really killed, and the last two steps prove the
rest.

The processes are those of `worker`. The test kit's failing store kills each one at a chosen record, just before the
process writes it. The library does not know about the demo. Every step checks that what it shows really happened,
especially the kills, and raises TxlogError if not.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

import txlog
from lab.demo import data, worker
from lab.demo.checks import ends, expect, expect_all_stable, expect_state, offsets_of
from lab.demo.place import Place, place
from lab.demo.processes import Crew, Worker
from lab.demo.show import Show, SparkMessages
from lab.demo.stream import stream_the_feed
from lab.demo.tidy import check_unchanged, measure, tidy_up
from txlog.cli.interrupts import orderly_end
from txlog.cli.options import Session, command
from txlog.core.names import TopicPartition
from txlog.errors import TxlogError
from txlog.text import count_text

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from lab.demo.proof import Proof
    from txlog.client import Store

TOPICS = {
    "flights": (data.FLIGHTS, 6, "carrier", "Spark writes it, a month a transaction"),
    "weather": (data.WEATHER, 3, "origin", "an eager producer writes it, a month a transaction"),
    "delays": (data.DELAYS, 3, "origin", "a pipeline derives it from flights: delays by day, airport and carrier"),
    "feed": (data.FLIGHTS, 3, "carrier", "the flights once more, as they come in, for a stream"),
    "flown": (data.FLOWN, 3, "", "a streaming query takes the flights that left from the feed, cleaned"),
    "cancelled": (data.CANCELLED, 3, "", "... and those that did not"),
}
"""Schema, partitions, key and purpose."""
SEGMENT_BATCHES = 6
"""Small, so that a few segments exist on disk."""
REPEATED_MONTH = 3
FLIGHTS_ID = "flights-loader"
MONTH_OF_DATE = "month(date)"

# Epochs tell transactions apart: the stopped process has 0, its transaction is aborted with 1, the loader starts with 2
# and each commit adds 1. So its fourth transaction has epoch 5. The pipeline's second one has 1, and is decided with 2.
STOP_IN_FIRST_TRANSACTION = r"stop after 1 put_if_absent weather/"
KILL_IN_FOURTH_MONTH = r'kill after 2 put_if_absent weather/.*"kind":"data".*"producer_epoch":5,'
KILL_AFTER_SECOND_PREPARE = (
    r'kill after 1 put_if_absent __transaction_state/.*"producer_epoch":2,.*"state":"PREPARE_COMMIT"'
)
MONTHS_BEFORE_THE_KILL = [1, 2, 3]

demo = typer.Typer(add_completion=False)
"""The command, with the options that each command of `txlog` has."""


class DemoDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The output of `python -m lab.demo --output json`; the steps are then printed to standard error."""

    holds: bool
    topics: tuple[Any, ...]
    """A `lab.demo.proof.Proof` each."""


def run_demo(
    session: Session,
    keep: Annotated[bool, typer.Option("--keep", metavar="", help="Keep the temporary store afterwards.")] = False,
) -> None:
    """Load 336,776 real flights with Spark, kill producers inside their transactions, and prove that nothing is lost.

    Without --store the demo uses a new temporary folder and removes it at the end, unless something failed. A --store
    must be empty, and is kept.
    """
    show = Show(sys.stderr if session.out.is_json else sys.stdout)
    check_prerequisites()
    with orderly_end(), place(show, session, keep) as where:
        show.headline("txlog demo")
        show.line(f"Store: {where.url}", indent=0)
        if session.settings.config:
            os.environ["TXLOG_CONFIG"] = str(Path(session.settings.config).absolute())
        messages = SparkMessages(show)
        with (
            txlog.open(where.url, storage_options=where.storage_options) as log,
            spark_session(show, messages) as spark,
            Crew(where.url, where.storage_options) as crew,
        ):
            proofs = run_steps(show, where, log, spark, messages, crew)
        holds = all(proof.holds for proof in proofs)
        if not holds:
            raise TxlogError(
                "some figures are off: rows were lost, doubled or torn, or others hidden than the aborted ones"
            )
        show.paragraph(f"Everything holds. {show.total()} in all.")
    if session.out.is_json:
        session.out.show(DemoDocument(holds=holds, topics=tuple(proofs)), lambda out: None)


command(demo, "demo")(run_demo)


def run_steps(
    show: Show, where: Place, log: Store, spark: SparkSession, messages: SparkMessages, crew: Crew
) -> list[Proof]:
    """All steps, in order."""
    with show.step(1, "A store with six topics"):
        make_topics(show, log)
    with show.step(2, "Spark loads the flights, one transaction a month"):
        load_flights(show, where, log, spark, messages)
    with show.step(3, "A producer is killed inside its transaction"):
        stopped = stop_a_loader(show, crew, log)
        kill_a_loader(show, crew, log)
    with show.step(4, "The next instance takes over, and the stopped one comes back"):
        take_over(show, crew, log)
        let_the_stopped_one_go_on(show, stopped, log)
    with show.step(5, "A pipeline is killed between the decision to commit and the markers"):
        offsets = kill_a_pipeline(show, crew, log)
        finish_the_pipeline(show, crew, log, offsets)
    with show.step(6, "A stream cleans the flights month by month, and its driver is killed twice"):
        stream_the_feed(show, log, crew)
    with show.step(7, "Proof: Spark reads everything back, and every column of every row is compared with the source"):
        proofs = prove_all(show, where, log, spark)
    show.paragraph("[bold]One partition as it lies in the store[/]")
    show_a_partition(show, log, "weather")
    with show.step(8, "Maintenance merges the small files, and the proof stays what it was"):
        tidy_up(show, log, TOPICS)
        again = prove_all(show, where, log, spark)
        check_unchanged(proofs, again)
    return again


# -- 1: the store -----------------------------------------------------------------------------------------------------


def make_topics(show: Show, log: Store) -> None:
    """All topics, with typed schemas."""
    for topic, (schema, partitions, key, purpose) in TOPICS.items():
        config = {"segment.batches": str(SEGMENT_BATCHES)} | ({"key.columns": key} if key else {})
        log.create_topic(topic, schema=schema, partitions=partitions, config=config)
        by = f" by {key}" if key else ""
        show.line(f"{topic}: {count_text(len(schema), 'column')}, {count_text(partitions, 'partition')}{by}; {purpose}")


# -- 2: Spark ---------------------------------------------------------------------------------------------------------


def load_flights(show: Show, where: Place, log: Store, spark: SparkSession, messages: SparkMessages) -> None:
    """One transaction a month; one month is submitted twice, and must leave no trace the second time."""
    frame = spark.createDataFrame(data.flights()).cache()
    with show.progress() as progress:
        task = progress.add_task("months", total=len(data.MONTHS))
        for month in data.MONTHS:
            write_month(where, frame, month)
            progress.advance(task)
            if month == REPEATED_MONTH:
                before = ends(log, "flights")
                show.line(f"month {month} is submitted again, under the same txn.version; Spark's console says:")
                write_month(where, frame, month)
                expect(messages.wait_for("is skipped") is not None, "the repeated month to be reported as skipped")
                expect(ends(log, "flights") == before, "the repeated month to leave the log as it was")
    done = log.admin().describe_transaction(FLIGHTS_ID).txn_version
    expect(done == data.MONTHS[-1], f"txn.version {data.MONTHS[-1]} to be the last one committed, found {done}")
    show.line(f"{len(data.MONTHS)} transactions, {data.flights().num_rows:,} rows")


def write_month(where: Place, frame: DataFrame, month: int) -> None:
    """One month, as the transaction of that number."""
    # By carrier, so that one file holds a day of a carrier. Then the results of step 5 do not depend on file
    # boundaries.
    rows = frame.where(frame["month"] == month).repartition(2, "carrier")
    writer = rows.write.format("txlog").mode("append").options(**where.spark_options).option("topic", "flights")
    writer.option("transactional.id", FLIGHTS_ID).option("txn.version", month).save(where.url)


# -- 3: a producer dies -----------------------------------------------------------------------------------------------


def stop_a_loader(show: Show, crew: Crew, log: Store) -> Worker:
    """A loader that opens a transaction and is stopped inside it: it will be a zombie."""
    process = crew.start("zombie-weather", STOP_IN_FIRST_TRANSACTION)
    process.wait_stopped()
    expect_state(log, worker.LOADER_ID, "ONGOING")
    show.line(
        f"process {process.id}, transactional.id {worker.LOADER_ID!r}, has sent rows in a transaction, and "
        "is stopped there (SIGSTOP)"
    )
    return process


def kill_a_loader(show: Show, crew: Crew, log: Store) -> None:
    """A second instance of the same transactional.id loads three months and is killed in the fourth."""
    process = crew.start("load-weather", KILL_IN_FOURTH_MONTH)
    committed = [event["month"] for event in process.events() if event["event"] == "committed"]
    process.wait_killed()
    expect(
        committed == MONTHS_BEFORE_THE_KILL,
        f"months {MONTHS_BEFORE_THE_KILL} to be committed before the kill, found {committed}",
    )
    expect_state(log, worker.LOADER_ID, "ONGOING")
    held = [info for info in offsets_of(log, "weather") if info.last_stable_offset < info.log_end_offset]
    expect(bool(held), "the killed transaction to hold back the LSO of a partition")
    show.line(
        f"process {process.id}, the same transactional.id, has committed months {', '.join(map(str, committed))}, and "
        "is killed in the next one (SIGKILL)"
    )
    show_offsets(
        show,
        log,
        "weather",
        "offsets, and the rows that each isolation level reads; the open transaction holds back the last stable "
        "offset (LSO), and with it read_committed:",
    )
    show.line("a marker takes an offset and is no row; none of the three airports has its place in partition 2")


# -- 4: another takes over --------------------------------------------------------------------------------------------


def take_over(show: Show, crew: Crew, log: Store) -> None:
    """A third instance aborts what the killed one left, and loads the rest."""
    process = crew.start("load-weather")
    rest = data.MONTHS[len(MONTHS_BEFORE_THE_KILL) :]
    with show.progress() as progress:
        task = progress.add_task("months", total=len(data.MONTHS), completed=len(MONTHS_BEFORE_THE_KILL))
        committed = []
        for event in process.events():
            if event["event"] == "committed":
                committed.append(event["month"])
                progress.advance(task)
    process.wait_done()
    expect(committed == [*rest], f"months {[*rest]} to be committed by the next instance, found {committed}")
    expect_all_stable(log, "weather")
    show_offsets(
        show,
        log,
        "weather",
        f"process {process.id} has aborted what was open and loaded the rest; the LSO has reached the log end:",
    )
    aborted = aborted_ranges(log, "weather")
    for tp, first, last in aborted:
        show.line(f"aborted, and hidden from read_committed: {tp}, offsets {first:,} to {last:,}, where the marker is")
    expect(len(aborted) == 2, f"two aborted transactions, the stopped and the killed one, found {len(aborted)}")


def let_the_stopped_one_go_on(show: Show, stopped: Worker, log: Store) -> None:
    """The zombie tries to commit, and must be fenced."""
    before = ends(log, "weather")
    stopped.resume()
    errors = stopped.wait_failed("ProducerFencedError")
    show.line(f"process {stopped.id} is continued (SIGCONT), tries to commit, and its user reads:")
    show.quote(errors)
    expect(ends(log, "weather") == before, "the fenced process to leave the log as it was")


# -- 5: consume, transform, produce -----------------------------------------------------------------------------------


def kill_a_pipeline(show: Show, crew: Crew, log: Store) -> dict[str, int]:
    """flights -> delays, killed once its second transaction is decided. The offsets which that one commits."""
    process = crew.start("pipeline", KILL_AFTER_SECOND_PREPARE)
    sent = [event["offsets"] for event in process.events() if event["event"] == "committing"]
    process.wait_killed()
    expect(len(sent) == 2, f"the kill in the pipeline's second transaction, found {len(sent)}")
    txn = expect_state(log, worker.PIPELINE_ID, "PREPARE_COMMIT")
    admin = log.admin()
    registered = [number for topic, number in txn.partitions if topic == "delays"]
    expect(bool(registered), "the transaction to have rows in delays")
    for number in registered:
        still_open = [entry.producer_id for entry in admin.describe_partition("delays", number).open_transactions]
        expect(txn.producer_id in still_open, f"no marker in delays-{number}")
    pending = [offset for offset in admin.describe_group(worker.GROUP).offsets if offset.pending is not None]
    expect(bool(pending), f"offsets of the group {worker.GROUP!r} to be pending")
    show.line(
        f"process {process.id} reads flights as the group {worker.GROUP!r} and writes delays, the offsets in the same "
        "transaction; it is killed (SIGKILL) in its second one"
    )
    show.line(
        f"found then: transaction {txn.state}, no marker in {count_text(len(registered), 'partition')} of delays, "
        f"offsets of {count_text(len(pending), 'partition')} pending"
    )
    return dict(sent[-1])


def finish_the_pipeline(show: Show, crew: Crew, log: Store, offsets: Mapping[str, int]) -> None:
    """The next start rolls that transaction forward, and goes on from the offsets that it committed."""
    process = crew.start("pipeline")
    with show.waiting("the next start rolls it forward and goes on"):
        events = list(process.events())
    process.wait_done()
    started, finished = events[0], events[-1]
    expect(started["offsets"] == offsets, f"the pipeline to go on at {dict(offsets)}, found {dict(started['offsets'])}")
    expect_state(log, worker.PIPELINE_ID, "COMPLETE_COMMIT")
    for topic in TOPICS:
        expect_all_stable(log, topic)
    show.line(f"process {process.id}, the next start, rolls it forward and goes on at its offsets:")
    # A no-break space: a partition and its offset stay on one line.
    show.line(", ".join(f"{tp}:\N{NO-BREAK SPACE}{offset:,}" for tp, offset in started["offsets"].items()), indent=5)
    show.line(
        f"{count_text(finished['transactions'], 'more transaction')}: {finished['rows_in']:,} flights in, "
        f"{finished['rows_out']:,} rows of delays out"
    )


# -- 7: the proof -----------------------------------------------------------------------------------------------------


def prove_all(show: Show, where: Place, log: Store, spark: SparkSession) -> list[Proof]:
    """Spark reads everything back and compares it with the source, row by row."""
    flights = data.flights()
    loaded = {
        "flights": (flights, "month"),
        "weather": (data.weather(), "month"),
        "delays": (data.daily_delays(flights).cast(data.DELAYS), MONTH_OF_DATE),
    }
    streamed = {"flown": (data.flown(flights), MONTH_OF_DATE), "cancelled": (data.cancelled(flights), MONTH_OF_DATE)}
    proofs = []
    with show.progress() as progress:
        task = progress.add_task("topics", total=len(loaded) + len(streamed))
        for topic, (source, month) in {**loaded, **streamed}.items():
            proofs.append(prove_topic(where, log, spark, topic, source, month))
            progress.advance(task)
    show.proofs([proof for proof in proofs if proof.topic in loaded])
    show.line("and what the stream has made of the feed:")
    show.proofs([proof for proof in proofs if proof.topic in streamed])
    return proofs


def prove_topic(where: Place, log: Store, spark: SparkSession, topic: str, source: pa.Table, month: str) -> Proof:
    """One topic against its source; `month` is an expression that gives a row's month."""
    from lab.demo.proof import count_out_of_order, prove

    committed, uncommitted = (read(where, spark, topic, level) for level in ("read_committed", "read_uncommitted"))
    behind = None
    if data.FEED_OFFSET in TOPICS[topic][0].names:
        places = read(where, spark, topic, "read_committed", f"_partition,_offset,{data.FEED_OFFSET}")
        behind = count_out_of_order(places, data.FEED_OFFSET)
        committed = committed.drop(data.FEED_OFFSET)
    aborted = measure(log, topic).aborted_rows
    expected = spark.createDataFrame(source)
    return prove(topic, expected, committed, uncommitted, month, aborted=aborted, out_of_order=behind)


def read(where: Place, spark: SparkSession, topic: str, isolation: str, columns: str = "*") -> DataFrame:
    """All rows of a topic."""
    reader = spark.read.format("txlog").options(**where.spark_options).option("subscribe", topic)
    return reader.option("isolation.level", isolation).option("columns", columns).load(where.url)


# -- looking ----------------------------------------------------------------------------------------------------------


def aborted_ranges(log: Store, topic: str) -> list[tuple[TopicPartition, int, int]]:
    """Partition, first offset and marker of each aborted transaction. One producer wrote it, so all between is its."""
    return [
        (TopicPartition(topic, number), txn.first_offset, txn.last_offset)
        for number in range(TOPICS[topic][1])
        for txn in log.admin().describe_partition(topic, number).aborted
    ]


def show_offsets(show: Show, log: Store, topic: str, title: str) -> None:
    """A topic's offsets, and how many rows each isolation level really reads."""
    offsets = offsets_of(log, topic)
    levels = ("read_committed", "read_uncommitted")
    counts = [tuple(_count(log, TopicPartition(topic, info.partition), level) for level in levels) for info in offsets]
    show.offsets(title, offsets, [(committed, uncommitted) for committed, uncommitted in counts])


def _count(log: Store, tp: TopicPartition, isolation: str) -> int:
    with log.consumer(isolation_level=isolation, auto_offset_reset="earliest", enable_auto_commit=False) as consumer:
        consumer.assign([tp])
        return sum(batch.num_rows for batch in consumer.iterate())


def show_a_partition(show: Show, log: Store, topic: str) -> None:
    """The partition with most to look at."""
    described = [log.admin().describe_partition(topic, number) for number in range(TOPICS[topic][1])]
    show.partition(log, max(described, key=lambda partition: (len(partition.aborted), len(partition.segments))))


# -- surroundings -----------------------------------------------------------------------------------------------------


def check_prerequisites() -> None:
    """Raises InvalidRequestError for what is not installed, before anything is made."""
    from pyspark_txlog.spark_session import check_java

    check_java()
    data.flights()


@contextmanager
def spark_session(show: Show, messages: SparkMessages) -> Iterator[SparkSession]:
    """A session whose messages are shown among the demo's own lines."""
    from pyspark_txlog import session, uninstall

    # py4j logs the frames of a Ctrl-C, several times; what else it logs reaches this program as an exception too.
    logging.getLogger().addHandler(logging.NullHandler())
    with show.waiting("starting Spark"), messages.capture():
        spark = session(app_name="txlog-demo")
    # The demo shows what Spark's processes print, and files that each task writes.
    uninstall()
    # Spark's own handler would ask the JVM to cancel jobs, in the midst of another call to it; stopping does that too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield spark
    finally:
        spark.stop()
