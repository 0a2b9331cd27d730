"""Does the demo show what its text promises?

Real signals stop its processes. If an expected event does not happen, its steps fail, and its proof detects wrong rows.
"""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

import txlog
from lab.demo import cleaning, command, data, processes, stream, tidy, worker
from lab.demo.place import Place
from lab.demo.processes import Crew
from lab.demo.proof import Proof, count_out_of_order, prove
from lab.demo.show import NOISE, Show, SparkMessages
from tests.cli import support as cli
from tests.spark.conftest import Log
from txlog.client.admin.descriptions import OffsetInfo
from txlog.client.store import Store
from txlog.errors import TxlogError

LOADED_MONTHS = (1, 2)
FIGURES = [name for name in Proof.__slots__ if name != "topic"]
CHUNKS_OF_THE_STOPPED, CHUNKS_OF_THE_KILLED = 1, 2
Row = tuple[Any, ...]


@pytest.fixture
def screen() -> io.StringIO:
    """Return the text that the demo shows."""
    return io.StringIO()


@pytest.fixture
def show(screen: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> Show:
    """Return a show in a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    return Show(screen)


def run(*args: str, status: int = 0, env: dict[str, str | None] | None = None) -> cli.Done:
    """Run the demo's command line."""
    return cli.run(*args, status=status, env=env, program=command.demo)


@pytest.fixture
def log(tmp_path: Path, show: Show) -> Iterator[Store]:
    """Yield the demo's topics, empty."""
    with txlog.open(str(tmp_path / "log"), storage_options={"fsync": False}) as store:
        command.make_topics(show, store)
        yield store


@pytest.fixture
def crew(log: Store) -> Iterator[Crew]:
    with Crew(log.url, {"fsync": "false"}) as made:
        yield made


def rows_of(table: pa.Table, schema: pa.Schema) -> Counter[Row]:
    """Return a table's rows, each with its count."""
    columns = [table[name].to_pylist() for name in schema.names]
    return Counter(zip(*columns, strict=True))


def read(log: Store, topic: str, schema: pa.Schema, isolation_level: str = "read_committed") -> Counter[Row]:
    """Return all rows that a consumer sees, each with its count."""
    found: Counter[Row] = Counter()
    with log.consumer(topic, isolation_level=isolation_level, auto_offset_reset="earliest") as consumer:
        for batch in consumer.iterate():
            found += rows_of(pa.Table.from_batches([batch]), schema)
    return found


def ends(log: Store, topic: str) -> list[tuple[int, int]]:
    """Return (last stable offset, log end offset) by partition."""
    found = log.admin().list_offsets(topic)
    return [(info.last_stable_offset, info.log_end_offset) for _, info in sorted(found.items())]


def load_flights(log: Store) -> pa.Table:
    """Load some months of flights as Spark writes them: staged, one transaction each."""
    months = [data.of_month(data.flights(), month) for month in LOADED_MONTHS]
    with log.producer("flights-loader", staged=True) as producer:
        for month, rows in zip(LOADED_MONTHS, months, strict=True):
            with producer.transaction(version=month):
                producer.send("flights", rows)
    return pa.concat_tables(months)


def is_there(process_id: int) -> bool:
    """Return whether a process exists; a stopped one does."""
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return True


# -- a producer dies, another one takes over --------------------------------------------------------------------------


@pytest.mark.slow
def test_a_killed_producer_holds_the_lso_and_the_next_one_frees_it(log: Store, crew: Crew) -> None:
    weather = rows_of(data.weather(), data.WEATHER)

    stopped = crew.start("zombie-weather", command.STOP_IN_FIRST_TRANSACTION)
    stopped.wait_stopped()
    assert ends(log, "weather")[1] == (0, worker.CHUNK_ROWS)
    assert read(log, "weather", data.WEATHER) == Counter()

    killed = crew.start("load-weather", command.KILL_IN_FOURTH_MONTH)
    committed = [event["month"] for event in killed.events() if event["event"] == "committed"]
    killed.wait_killed()
    assert committed == command.MONTHS_BEFORE_THE_KILL
    txn = log.admin().describe_transaction(worker.LOADER_ID)
    assert (txn.state, txn.producer_epoch, txn.txn_version) == ("ONGOING", 5, 3)
    assert txn.partitions == (("weather", 1),)
    (lso, log_end) = ends(log, "weather")[1]
    assert log_end - lso == CHUNKS_OF_THE_KILLED * worker.CHUNK_ROWS
    (still_open,) = log.admin().describe_partition("weather", 1).open_transactions
    assert (still_open.producer_id, still_open.txn_first_offset) == (txn.producer_id, lso)
    loaded = pa.concat_tables([data.of_month(data.weather(), month) for month in committed])
    assert read(log, "weather", data.WEATHER) == rows_of(loaded, data.WEATHER)

    next_one = crew.start("load-weather")
    events = list(next_one.events())
    next_one.wait_done()
    assert [event["month"] for event in events] == [*range(4, 13)]
    assert all(lso == log_end for lso, log_end in ends(log, "weather"))
    aborted = log.admin().describe_partition("weather", 1).aborted
    assert [(txn.first_offset, txn.last_offset) for txn in aborted] == [(0, worker.CHUNK_ROWS), (lso, log_end)]
    assert read(log, "weather", data.WEATHER) == weather
    hidden = read(log, "weather", data.WEATHER, "read_uncommitted") - weather
    assert hidden.total() == (CHUNKS_OF_THE_STOPPED + CHUNKS_OF_THE_KILLED) * worker.CHUNK_ROWS

    before = ends(log, "weather")
    stopped.resume()
    text = stopped.wait_failed("ProducerFencedError")
    assert text.startswith(
        f"ProducerFencedError: transactional.id 'weather-loader' (producer {txn.producer_id}, epoch 0) was "
        "fenced before it could commit"
    )
    assert "hint: close this producer; only the newest instance may go on" in text
    assert "Traceback" not in text
    assert ends(log, "weather") == before
    assert read(log, "weather", data.WEATHER) == weather


# -- consume, transform, produce --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_pipeline_killed_after_its_decision_is_rolled_forward(log: Store, crew: Crew) -> None:
    flights = load_flights(log)

    killed = crew.start("pipeline", command.KILL_AFTER_SECOND_PREPARE)
    events = list(killed.events())
    killed.wait_killed()
    assert [event["event"] for event in events] == ["started", "committing", "committing"]
    first, second = events[1]["offsets"], events[2]["offsets"]
    admin = log.admin()
    txn = admin.describe_transaction(worker.PIPELINE_ID)
    assert (txn.state, txn.producer_epoch, txn.last_epoch) == ("PREPARE_COMMIT", 2, 1)
    assert {topic for topic, _ in txn.partitions} == {"delays", "__consumer_offsets"}
    for number in (number for topic, number in txn.partitions if topic == "delays"):
        (still_open,) = admin.describe_partition("delays", number).open_transactions
        assert (still_open.producer_id, still_open.producer_epoch) == (txn.producer_id, 1)
    offsets = {f"{offset.topic}-{offset.partition}": offset for offset in admin.describe_group(worker.GROUP).offsets}
    assert {tp: offset.committed for tp, offset in offsets.items()} == first
    assert {tp: offset.pending for tp, offset in offsets.items()} == second
    seen = read(log, "delays", data.DELAYS)

    restarted = crew.start("pipeline")
    events = list(restarted.events())
    restarted.wait_done()
    assert (events[0]["event"], events[0]["offsets"]) == ("started", second)
    assert admin.describe_transaction(worker.PIPELINE_ID).state == "COMPLETE_COMMIT"
    assert all(lso == log_end for lso, log_end in ends(log, "delays"))
    for offset in admin.describe_group(worker.GROUP).offsets:
        assert (offset.pending, offset.lag) == (None, 0)
    expected = rows_of(data.daily_delays(flights).cast(data.DELAYS), data.DELAYS)
    assert read(log, "delays", data.DELAYS) == expected
    assert seen <= expected
    assert Counter(name for name, _, _ in command.aborted_ranges(log, "delays")) == Counter()


# -- a stream whose driver is killed ----------------------------------------------------------------------------------


@pytest.fixture
def few_flights(monkeypatch: pytest.MonkeyPatch) -> pa.Table:
    """Let the demo use only the flights of two months, some of them cancelled."""
    found = sample()
    monkeypatch.setattr(data, "flights", lambda: found)
    return found


@pytest.mark.spark
@pytest.mark.slow
def test_a_stream_goes_on_wherever_its_driver_is_killed(
    spark: SparkSession, log: Store, crew: Crew, show: Show, screen: io.StringIO, few_flights: pa.Table
) -> None:
    # One kill less than in the demo, which checks itself; it happens in the first micro-batch.
    committed = stream.DEATHS[-1]
    deaths = [replace(committed, fault=committed.fault.replace(" 4 ", " 1 "))]
    stream.stream_the_feed(show, log, crew, LOADED_MONTHS, deaths)
    where = Place(url=log.url, storage_options={"fsync": "false"})
    sources = {"flown": data.flown(few_flights), "cancelled": data.cancelled(few_flights)}
    assert [source.num_rows > 0 for source in sources.values()] == [True, True]
    for topic, source in sources.items():
        proof = command.prove_topic(where, log, spark, topic, source, command.MONTH_OF_DATE)
        assert proof.holds
        assert (proof.source, proof.out_of_order, proof.hidden) == (source.num_rows, 0, 0)
    admin = log.admin()
    assert [(offset.topic, offset.lag) for offset in admin.describe_group(cleaning.GROUP).offsets] == [("feed", 0)] * 3
    text = screen.getvalue()
    assert "runs micro-batch 0 again: it is recognised by its number, and skipped" in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 80


def test_a_driver_that_is_not_killed_is_an_error(log: Store, show: Show, few_flights: pa.Table) -> None:
    def caught_up() -> Iterator[dict[str, Any]]:
        yield {"event": "batch", "number": 0, "repeated": False}
        yield {"event": "progress", "ends": {str(number): end for number, (_, end) in enumerate(ends(log, "feed"))}}

    driver = SimpleNamespace(id=1, events=caught_up, terminate=lambda: None, wait_done=lambda: None)
    crew: Any = SimpleNamespace(start=lambda *_, **__: driver)
    never = stream.Death(fault="kill before 1 put_if_absent nowhere/", is_committed=False)
    with pytest.raises(TxlogError, match="the demo expected the driver to be killed 1 time, found 0"):
        stream.stream_the_feed(show, log, crew, LOADED_MONTHS[:1], [never])


@pytest.mark.spark
def test_rows_out_of_order_are_counted(spark: SparkSession) -> None:
    def behind(*places: int) -> int:
        rows = [(partition, offset, place) for partition in (0, 1) for offset, place in enumerate(places)]
        return count_out_of_order(spark.createDataFrame(rows, "_partition int, _offset bigint, place bigint"), "place")

    assert behind(3, 5, 9) == 0
    assert behind(3, 9, 5, 10) == 2
    assert behind(3, 3) == 2


# -- the demo's own checks --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_steps_pass_when_all_is_well(log: Store, crew: Crew, show: Show, screen: io.StringIO) -> None:
    load_flights(log)
    stopped = command.stop_a_loader(show, crew, log)
    command.kill_a_loader(show, crew, log)
    command.take_over(show, crew, log)
    command.let_the_stopped_one_go_on(show, stopped, log)
    command.finish_the_pipeline(show, crew, log, command.kill_a_pipeline(show, crew, log))
    command.show_a_partition(show, log, "weather")
    text = screen.getvalue()
    assert "held back at 4,913" in text
    assert "ProducerFencedError: transactional.id 'weather-loader'" in text
    assert "found then: transaction PREPARE_COMMIT, no marker in 2 partitions of delays" in text
    for ending in (".parquet", ".index", ".txnindex", ".snapshot", ".batch"):
        assert f"{ending}  " in text
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text


@pytest.mark.slow
def test_a_kill_in_the_wrong_place_is_an_error(
    log: Store, crew: Crew, show: Show, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_flights(log)
    monkeypatch.setattr(command, "KILL_IN_FOURTH_MONTH", command.KILL_IN_FOURTH_MONTH.replace('epoch":5', 'epoch":2'))
    # Without the stopped loader, epochs begin at 0: this one dies in the third month.
    with pytest.raises(TxlogError, match=r"months \[1, 2, 3\] to be committed before the kill, found \[1, 2\]"):
        command.kill_a_loader(show, crew, log)
    monkeypatch.setattr(
        command, "KILL_AFTER_SECOND_PREPARE", "kill after 1 put_if_absent __transaction_state/.*PREPARE"
    )
    with pytest.raises(TxlogError, match="the kill in the pipeline's second transaction, found 1"):
        command.kill_a_pipeline(show, crew, log)


@pytest.mark.slow
def test_a_marker_that_is_there_already_is_an_error(
    log: Store, crew: Crew, show: Show, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_flights(log)
    late = r'kill after 1 put_if_absent delays/.*"kind":"commit".*"producer_epoch":2,'
    monkeypatch.setattr(command, "KILL_AFTER_SECOND_PREPARE", late)
    with pytest.raises(TxlogError, match=r"the demo expected no marker in delays-\d"):
        command.kill_a_pipeline(show, crew, log)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("role", "wait", "expected"),
    [
        ("load-weather", "wait_killed", r"\(load-weather\) was to be killed by SIGKILL; it ended with status 0"),
        ("zombie-weather", "wait_stopped", r"\(zombie-weather\) was to be stopped by SIGSTOP; it ended with status 0"),
    ],
)
def test_a_fault_that_does_not_strike_is_an_error(crew: Crew, role: str, wait: str, expected: str) -> None:
    started = crew.start(role, "kill after 100000 put_if_absent weather/")
    with pytest.raises(TxlogError, match=expected):
        getattr(started, wait)()


@pytest.mark.slow
def test_a_process_that_fails_is_quoted(crew: Crew) -> None:
    with pytest.raises(TxlogError, match=r"(?s)was to come to its end; it ended with status 1, and printed:.*KeyError"):
        crew.start("no-such-role").wait_done()
    with pytest.raises(TxlogError, match="was to fail with ProducerFencedError; SIGKILL ended it"):
        crew.start("load-weather", "kill before 1 put_if_absent weather/").wait_failed("ProducerFencedError")


@pytest.mark.slow
def test_a_process_that_hangs_is_ended(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "LIMIT_S", 2)
    started = crew.start("zombie-weather", "stop before 1 put_if_absent weather/")
    with pytest.raises(TxlogError, match="it took longer than 2 s"):
        started.wait_killed()


@pytest.mark.slow
def test_no_stopped_process_stays_behind(log: Store) -> None:
    def interrupted() -> None:
        with Crew(log.url) as crew:
            started.append(crew.start("zombie-weather", command.STOP_IN_FIRST_TRANSACTION))
            started[0].wait_stopped()
            assert is_there(started[0].id)
            raise KeyboardInterrupt

    started: list[Any] = []
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not is_there(started[0].id)


def test_the_proof_must_hold_whatever_is_in_the_wrong_place() -> None:
    figures = {
        "source": 9,
        "read_committed": 9,
        "lost": 0,
        "doubled": 0,
        "torn": 0,
        "read_uncommitted": 12,
        "aborted": 3,
        "out_of_order": 0,
    }
    assert Proof(topic="flights", **figures).holds
    for name, figure in figures.items():
        assert not Proof(topic="flights", **{**figures, name: figure + 1}).holds, name


# -- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """Return the command without Spark and its steps: `proofs` has their results, `where` their place."""

    @contextmanager
    def no_spark(*_: object) -> Iterator[None]:
        yield

    def run_steps(show: Show, where: Place, log: Store, *_: object) -> list[Proof]:
        command.make_topics(show, log)
        found.where = Path(where.url)
        return list(found.proofs)

    whole = Proof(topic="weather", source=5, read_committed=5, lost=0, doubled=0, torn=0, read_uncommitted=7, aborted=2)
    found = SimpleNamespace(proofs=[whole], where=None)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("temporary")))
    monkeypatch.setattr(command, "spark_session", no_spark)
    monkeypatch.setattr(command, "run_steps", run_steps)
    return found


def test_the_store_is_named_by_an_option_or_the_environment(steps: SimpleNamespace, tmp_path: Path) -> None:
    for name in ("option", "environment"):
        url = str(tmp_path / name)
        done = run("--store", url) if name == "option" else run(env={"TXLOG_STORE": url})
        assert "Everything holds" in done.out
        assert f"txlog topics describe --size --store {url}\n" in done.out
        assert "rm -r" not in done.out
        assert steps.where == Path(url)
        assert (steps.where / "txlog.json").exists()


def test_a_temporary_store_goes_unless_it_is_to_be_kept(steps: SimpleNamespace) -> None:
    assert "The store stays" not in run().out
    assert not steps.where.exists()
    done = run("--keep")
    assert "The store stays; look at it:\n" in done.out
    assert f"   rm -r {steps.where}\n" in done.out
    assert "flights" in cli.run("topics", "list", "--store", str(steps.where)).out


@pytest.mark.parametrize("where", ["on PATH", "elsewhere", "another one's on PATH"])
def test_the_commands_at_the_end_work_as_they_are(
    steps: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    ours = Path(sys.executable).with_name("txlog")
    (tmp_path / "bin").mkdir()
    if where == "on PATH":
        (tmp_path / "bin" / "txlog").symlink_to(ours)
    elif where == "another one's on PATH":
        (tmp_path / "bin" / "txlog").write_text("#!/bin/sh\nexit 9\n")
        (tmp_path / "bin" / "txlog").chmod(0o755)
    # A shell would split the folder's name, and the command is longer than the terminal is wide.
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("COLUMNS", "40")
    done = run("--store", str(tmp_path / "a store & more"))
    lines = [line.strip() for line in done.out.splitlines() if " --store " in line]
    assert [line.startswith("txlog ") for line in lines] == [where == "on PATH"] * 4
    for line in lines[:3]:
        shown = subprocess.run(line, shell=True, capture_output=True, text=True, cwd=tmp_path)
        assert (shown.returncode, shown.stderr) == (0, "")


def test_a_figure_that_is_off_is_status_1_and_the_store_is_kept(steps: SimpleNamespace) -> None:
    (whole,) = steps.proofs
    steps.proofs = [Proof(**{**{name: getattr(whole, name) for name in Proof.__slots__}, "lost": 1})]
    done = run(status=1)
    assert "Error: some figures are off" in done.err
    assert "Everything holds" not in done.out
    assert "The demo has failed; why is said below." in done.out
    assert f"txlog transactions list --store {steps.where}\n" in done.out
    assert f"   rm -r {steps.where}\n" in done.out
    assert steps.where.exists()


@pytest.mark.parametrize("begun", [True, False])
def test_what_a_failed_demo_made_is_kept_whatever_failed(
    steps: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, begun: bool
) -> None:
    def fail(show: Show, where: Place, log: Store, *_: object) -> list[Proof]:
        steps.where = Path(where.url)
        if begun:
            command.make_topics(show, log)
        raise RuntimeError("the JVM is gone")

    monkeypatch.setattr(command, "run_steps", fail)
    done = CliRunner().invoke(command.demo, ["--keep"])
    assert repr(done.exception) == "RuntimeError('the JVM is gone')"
    assert ("The demo has failed" in done.stdout) == begun
    assert steps.where.exists() == begun


def test_no_table_is_cut_at_80_columns(show: Show, screen: io.StringIO) -> None:
    numbers = iter(range(7_654_321, 8_000_000))
    topics = ("flights", "weather", "delays")
    proofs = [Proof(topic=topic, **{name: next(numbers) for name in FIGURES}) for topic in topics]
    show.proofs(proofs)
    infos = [
        OffsetInfo(
            topic="weather",
            partition=number,
            log_start_offset=next(numbers) // 100,
            last_stable_offset=next(numbers) // 100,
            log_end_offset=next(numbers) // 100,
            offset=None,
            timestamp=None,
        )
        for number in range(3)
    ]
    counts = [(next(numbers) // 100, next(numbers) // 100) for _ in infos]
    show.offsets("offsets:", infos, counts)
    text = screen.getvalue()
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80
    figures = [f"{getattr(proof, name):,}" for proof in proofs for name in (*FIGURES, "hidden")]
    figures += [
        f"{getattr(info, name):,}"
        for info in infos
        for name in ("log_start_offset", "last_stable_offset", "log_end_offset")
    ]
    figures += [f"{count:,}" for pair in counts for count in pair]
    words = Counter(re.findall(r"-?[\d,]+|[a-z_]+", text))
    assert [figure for figure in figures if words[figure] < 1] == []
    assert {*topics, *FIGURES, "hidden", "partition", "start", "end", "uncommitted"} <= set(words)


def test_maintenance_leaves_fewer_files_and_the_same_figures(show: Show, screen: io.StringIO, tmp_path: Path) -> None:
    with txlog.open(str(tmp_path / "log")) as log:
        log.create_topic("orders", config={"segment.batches": 2, "inline.max.bytes": 0})
        with log.producer(transactional_id="loader") as producer:
            for number in range(6):
                producer.begin_transaction()
                producer.send("orders", [{"value": bytes([number])}]).result()
                if number == 2:
                    producer.abort_transaction()
                else:
                    producer.commit_transaction()
        assert tidy.measure(log, "orders").aborted_rows == 1
        tidy.tidy_up(show, log, ["orders"])
        assert tidy.measure(log, "orders").aborted_rows == 0
    assert re.search(r"orders +5 → 1 +6 → 2 .* 1 → 0\n", screen.getvalue())
    figures = {"source": 5, "read_committed": 5, "doubled": 0, "torn": 0, "read_uncommitted": 5, "aborted": 0}
    before = Proof(topic="orders", lost=0, **figures)
    tidy.check_unchanged([before], [before])
    with pytest.raises(TxlogError, match="lost of orders to stay 0 over maintenance, found 1"):
        tidy.check_unchanged([before], [Proof(topic="orders", lost=1, **figures)])


@pytest.mark.parametrize(
    "rows",
    [
        {"flights": (336_776, 0, None), "weather": (26_115, 1800, None), "delays": (11_864, 0, None)},
        {"flown": (328_521, 0, 0), "cancelled": (8_255, 0, 0)},
    ],
    ids=["loaded", "streamed"],
)
def test_the_tables_in_readme_are_the_demos(
    show: Show, screen: io.StringIO, rows: dict[str, tuple[int, int, int | None]]
) -> None:
    def proof(topic: str, source: int, aborted: int, behind: int | None) -> Proof:
        whole = {"source": source, "read_committed": source, "read_uncommitted": source + aborted, "aborted": aborted}
        return Proof(topic=topic, lost=0, doubled=0, torn=0, out_of_order=behind, **whole)

    show.proofs([proof(topic, *figures) for topic, figures in rows.items()])
    shown = [line.strip() for line in screen.getvalue().splitlines()]
    root = Path(__file__).parents[2]
    readme = "".join((root / name).read_text(encoding="utf-8") for name in ("README.md", "docs/demo.md"))
    (block,) = re.findall(rf"^```text\n( +{next(iter(rows))} .*?)^```$", readme, re.MULTILINE | re.DOTALL)
    assert [line.strip() for line in block.splitlines()] == shown


def test_the_figures_as_json(steps: SimpleNamespace) -> None:
    done = run("--output", "json")
    document = json.loads(done.out)
    assert document["holds"] is True
    assert document["topics"][0]["read_uncommitted"] == 7
    assert "A store with" not in done.out


@pytest.mark.parametrize("where", ["a store", "somebody's folder"])
def test_a_place_that_is_not_empty_is_refused(steps: SimpleNamespace, tmp_path: Path, where: str) -> None:
    if where == "a store":
        with txlog.open(str(tmp_path)) as store:
            store.create_topic("orders")
    else:
        (tmp_path / "thesis.txt").write_text("")
    before = sorted(tmp_path.rglob("*"))
    done = run("--store", str(tmp_path), status=2)
    assert f"file://{tmp_path} is not empty, and the demo needs an empty store" in done.err
    assert sorted(tmp_path.rglob("*")) == before
    assert steps.where is None


def test_a_store_in_memory_is_refused(steps: SimpleNamespace) -> None:
    done = run("--store", "memory://demo", status=2)
    assert "memory://demo belongs to one process, but the demo has several" in done.err


def test_sparks_messages_are_shown_without_the_noise(show: Show, screen: io.StringIO) -> None:
    messages = SparkMessages(show)
    with messages.capture():
        code = f"import sys; sys.stderr.write({NOISE + ': jdk.incubator.vector'!r} + '\\ntxlog: skipped\\n')"
        subprocess.run([sys.executable, "-c", code], check=True)
    assert messages.wait_for("skipped") == "txlog: skipped"
    assert messages.wait_for("nothing of the kind", timeout_s=0.01) is None
    assert screen.getvalue().strip() == "txlog: skipped"


# -- the proof --------------------------------------------------------------------------------------------------------


def sample() -> pa.Table:
    """Return some flights of two months, some of them cancelled."""
    return pa.concat_tables([data.of_month(data.flights(), month).slice(820, 30) for month in LOADED_MONTHS])


def changed(table: pa.Table, row: int, column: str, value: Any) -> pa.Table:
    """Return the table with one value changed."""
    values = table[column].to_pylist()
    values[row] = value
    at = table.schema.get_field_index(column)
    return table.set_column(at, table.schema.field(at), pa.array(values, table.schema.field(at).type))


def first_cancelled(table: pa.Table) -> int:
    return int(pc.index(table["dep_time"].is_null(), pa.scalar(True)).as_py())


def without(table: pa.Table, first: int, count: int) -> pa.Table:
    return pa.concat_tables([table.slice(0, first), table.slice(first + count)])


PLANTED: dict[str, tuple[Callable[[pa.Table], pa.Table], tuple[int, int, int]]] = {
    "nothing": (lambda rows: rows, (0, 0, 0)),
    "the order": (lambda rows: rows.take(pa.array(range(rows.num_rows - 1, -1, -1))), (0, 0, 0)),
    "a row removed": (lambda rows: without(rows, 7, 1), (1, 0, 1)),
    "a row twice": (lambda rows: pa.concat_tables([rows, rows.slice(7, 1)]), (0, 1, 0)),
    "a row of another one's": (lambda rows: pa.concat_tables([without(rows, 7, 1), rows.slice(8, 1)]), (1, 1, 1)),
    "a part of each month missing": (lambda rows: without(rows, 20, 20), (20, 0, 2)),
    "a whole month missing": (lambda rows: rows.slice(0, 30), (30, 0, 0)),
    "everything missing": (lambda rows: rows.slice(0, 0), (60, 0, 0)),
    "one value": (lambda rows: changed(rows, 7, "air_time", 1), (1, 1, 1)),
    "a text": (lambda rows: changed(rows, 7, "dest", "LAX "), (1, 1, 1)),
    "a microsecond": (
        lambda rows: changed(rows, 7, "time_hour", rows["time_hour"].cast(pa.int64())[7].as_py() + 1),
        (1, 1, 1),
    ),
    "zero for null": (lambda rows: changed(rows, first_cancelled(rows), "dep_time", 0), (1, 1, 1)),
    "null for a value": (lambda rows: changed(rows, 7, "dep_time", None), (1, 1, 1)),
    "another month": (lambda rows: changed(rows, 7, "month", 2), (1, 1, 1)),
    "a column missing": (lambda rows: rows.drop_columns(["tailnum"]), (60, 60, 2)),
    "a column of nulls more": (lambda rows: rows.append_column("more", pa.nulls(60, pa.int32())), (60, 60, 2)),
    "two columns swapped": (
        lambda rows: rows.rename_columns({"dep_delay": "arr_delay", "arr_delay": "dep_delay"}),
        (53, 53, 2),
    ),
}


@pytest.mark.spark
@pytest.mark.parametrize("planted", PLANTED)
def test_the_proof_reports_what_is_planted(spark: SparkSession, planted: str) -> None:
    plant, expected = PLANTED[planted]
    source = sample()
    assert first_cancelled(source) >= 0
    wrong = plant(source)
    found = spark.createDataFrame(wrong)
    proof = prove("flights", spark.createDataFrame(source), found, found, "month")
    assert (proof.lost, proof.doubled, proof.torn) == expected
    assert (proof.source, proof.read_committed, proof.hidden) == (60, wrong.num_rows, 0)
    assert proof.holds is (expected == (0, 0, 0))


@pytest.mark.spark
def test_the_proof_of_a_log(spark: SparkSession, tmp_path: Path) -> None:
    """The proof detects rows that are in the log twice, and rows that a killed transaction left."""
    log = Log(str(tmp_path / "log"), spark)
    log.create("flights", data.FLIGHTS, partitions=2)
    rows = sample()
    source = spark.createDataFrame(rows)

    def proof(aborted: int) -> Proof:
        uncommitted = log.read("flights", isolation_level="read_uncommitted")
        return prove("flights", source, log.read("flights"), uncommitted, "month", aborted=aborted)

    log.write(source, "flights", key="carrier")
    assert proof(0).holds
    with log.store.producer("broken") as producer:
        producer.begin_transaction()
        producer.send("flights", rows.slice(0, 5), partition=0).result()
        producer.abort_transaction()
    assert proof(5).holds
    assert not proof(0).holds
    log.write(spark.createDataFrame(rows.slice(3, 1)), "flights", key="carrier")
    off = proof(5)
    assert (off.lost, off.doubled, off.torn, off.read_committed, off.hidden) == (0, 1, 0, 61, 5)
    assert not off.holds
    log.store.close()
