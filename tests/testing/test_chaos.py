"""Real processes, killed and stopped at random; and does the proof find what it must find?"""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

import txlog
from lab.chaos import __main__ as command, plan
from lab.chaos.plan import AUDIT, JOBS, ORDERS, Assignment, Place
from lab.chaos.proof import Proof, _maintained, prove, recover
from lab.chaos.roles import clocks_wrong_by
from lab.chaos.settings import Settings, parse_options
from lab.chaos.show import Show
from lab.chaos.storm import LEAST_COMMITS, Slot, Storm
from lab.chaos.supervisor import LAST_INSTANCE, chaos, make_place
from lab.chaos.workers import Worker
from lab.histories.events import Begin, End, Poll, Row, Send
from lab.histories.recorder import read_history
from txlog.clock import SystemClock
from txlog.errors import InvalidRequestError, TxlogTimeoutError

STORM_S = 15


def settings(folder: Path, seconds: float = STORM_S, seed: int = 1) -> Settings:
    return Settings(
        url=str(folder / "store"),
        storage_options={"fsync": False},
        histories=str(folder / "histories"),
        seconds=seconds,
        seed=seed,
        spark=False,
    )


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("orders: an index is damaged", True),
        ("orders: a request failed (the next round tries again)", False),
    ],
)
def test_a_failed_step_counts_unless_a_later_round_makes_it(tmp_path: Path, text: str, counts: bool) -> None:
    said = {"steps": [{"step": "publish", "counts": {"left": 1, "failed": 1}, "failed": [{"text": text}]}]}
    (tmp_path / f"maintain-a-1{plan.MAINTAINED_SUFFIX}").write_text(json.dumps(said) + "\n")
    place = Place(url="memory:", histories=str(tmp_path))
    done, failed = _maintained(place)
    assert (done, len(failed)) == ({"rounds": 1, "failed": 1}, int(counts))


@pytest.mark.slow
def test_a_storm(tmp_path: Path) -> None:
    """Run producers, a pipeline, a job and readers, without Spark: no row is lost, doubled, torn, or from a fenced
    commit."""
    printed = tmp_path / "printed"
    with printed.open("w") as file:
        proof = chaos(settings(tmp_path), Show(Console(file=file, width=140)))
    text = printed.read_text()
    print(text)
    assert proof.holds, text
    assert proof.transactions["committed"] > 20
    assert proof.made > 20
    assert proof.generations > 3
    assert proof.readers > 3
    assert proof.versions["job"] > 1
    for word in ("SIGKILL", "second instances", "longest reader stall"):
        assert word in text


def test_daemons_may_have_a_short_grace_and_wrong_clocks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = make_place(replace(settings(tmp_path), maintain=True, grace_ms=15_000, clock_skew_ms=60_000))
    assert place.clock_skew_ms == 60_000
    with txlog.open(place.url) as store:
        assert store.runtime.constants.delete_grace_ms == 15_000
    clock = SystemClock()
    with clocks_wrong_by(-60_000):
        assert -61_000 < clock.now_ms() - time.time_ns() // 1_000_000 < -59_000
    assert abs(clock.now_ms() - time.time_ns() // 1_000_000) < 1_000
    with pytest.raises(SystemExit):
        command.main(["--clock-skew", "60"])
    assert "--maintain" in capsys.readouterr().err


# -- the proof finds planted errors -----------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = make_place(settings(tmp_path))
    (tmp_path / "histories" / "witness.json").write_text('{"stall_ms": 0, "where": "", "pause_ms": 0, "now_ms": 0}')
    return made


def worker(place: Place, instance: int = 1, name: str = "eager-a") -> Worker:
    return Worker(Assignment(place=place, role="eager", name=name, instance=instance, seed=instance))


def judged(place: Place, monkeypatch: pytest.MonkeyPatch) -> Proof:
    monkeypatch.setattr(plan, "TRANSACTION_TIMEOUT_MS", 10)
    recover(place, LAST_INSTANCE, 1)
    return prove(place, [], ("job",))


def an_honest_transaction(one: Worker) -> None:
    with one.store.producer(one.name) as producer:
        label = one.label()
        one.begin(producer, label)
        one.send(producer, ORDERS, 0, 3, label)
        one.send(producer, AUDIT, 1, 2, label)
        one.commit(producer, label)


def claims_rows_that_it_never_sent(one: Worker) -> None:
    one.recorder.single(one.process, Send(topic=ORDERS, partition=1, values=(77,), base_offset=0))


def sends_a_row_twice(one: Worker) -> None:
    with one.store.producer() as producer:
        table = one.rows(1)[1]
        ids = (table["id"][0].as_py(),)
        for _ in range(2):
            producer.send(ORDERS, table, partition=2).result()
        one.recorder.single(one.process, Send(topic=ORDERS, partition=2, values=ids))


def tears_its_transaction(one: Worker) -> None:
    """Commit one part alone and abort the other, and report both as one transaction."""
    with one.store.producer(one.name) as producer:
        label = one.label()
        one.recorder.single(one.process, Begin(txn=label, transactional_id=one.name))
        producer.begin_transaction()
        one.send(producer, ORDERS, 0, 2, label)
        producer.commit_transaction()
        producer.begin_transaction()
        one.send(producer, AUDIT, 0, 2, label)
        producer.abort_transaction()
        one.recorder.info(
            one.process, one.recorder.invoke(one.process, End(txn=label, commit=True)), End(txn=label, commit=True)
        )


def commits_though_it_was_told_to_abort(one: Worker) -> None:
    with one.store.producer(one.name) as producer:
        label = one.label()
        one.begin(producer, label)
        one.send(producer, ORDERS, 0, 2, label)
        producer.commit_transaction()
        one.recorder.single(one.process, End(txn=label, commit=False, outcome="aborted"))


def commits_a_version_twice(one: Worker) -> None:
    for name in ("job", "another"):
        with one.store.producer(name) as producer:
            producer.begin_transaction()
            for partition in range(2):
                ids, table = one.rows(6, [plan.job_content("job", 0)] * 6)
                producer.send(JOBS, table, partition=partition)
                one.recorder.single(
                    one.process,
                    Send(topic=JOBS, partition=partition, values=ids, contents=(plan.job_content("job", 0),) * 6),
                )
            producer.commit_transaction(version=0)


def two_members_read_one_row(one: Worker) -> None:
    with one.store.producer() as producer:
        ids, table = one.rows(1)
        producer.send(ORDERS, table, partition=0).result()
        one.recorder.single(one.process, Send(topic=ORDERS, partition=0, values=ids, base_offset=0))
    for name in ("one", "other"):
        read = Poll(
            topic=ORDERS,
            partition=0,
            start=0,
            end=1,
            rows=(Row(offset=0, value=ids[0]),),
            group=plan.SHARED_GROUP,
            generation=1,
            member=name,
        )
        one.recorder.single(name, read)


LIES: dict[str, tuple[Callable[[Worker], None], str]] = {
    "lost": (claims_rows_that_it_never_sent, "lost"),
    "doubled": (sends_a_row_twice, "doubled"),
    "torn": (tears_its_transaction, "torn"),
    "fenced": (commits_though_it_was_told_to_abort, "fenced but committed"),
    "shared": (two_members_read_one_row, "doubled"),
    "version": (commits_a_version_twice, "doubled"),
}


def test_an_honest_history(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    one = worker(place)
    an_honest_transaction(one)
    one.close()
    proof = judged(place, monkeypatch)
    assert proof.holds, proof.details
    assert (proof.transactions["committed"], proof.made) == (4, 8), (
        "one of the pipeline, and one or two of the shared group"
    )
    assert (proof.generations, proof.readers) == (1, 1)


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_found(place: Place, monkeypatch: pytest.MonkeyPatch, lie: str) -> None:
    tell, column = LIES[lie]
    one = worker(place)
    tell(one)
    one.close()
    proof = judged(place, monkeypatch)
    assert proof.columns[column], (proof.columns, proof.details)
    assert not proof.holds


def test_a_recovery_that_cannot_end_fails(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "TRANSACTION_TIMEOUT_MS", 10)
    monkeypatch.setattr(plan, "RECOVERY_MS", 1000)
    with txlog.open(place.url) as store, store.consumer(group_id=plan.SHARED_GROUP) as alive:
        alive.subscribe(ORDERS)
        with pytest.raises(
            TxlogTimeoutError, match=r"did not end within 1000 ms: group 'shared' is at .* owns .*audit"
        ):
            recover(place, LAST_INSTANCE, 1)


# -- processes --------------------------------------------------------------------------------------------------------


def processes_of(session: int) -> list[int]:
    """Return the processes of a session."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                stat = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(stat[3]) == session and stat[0] != "Z":
                found.append(int(entry.name))
    return found


def wait_until(condition: Callable[[], bool], limit_s: float = 30) -> bool:
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.slow
def test_a_storm_goes_on_until_every_role_got_somewhere(place: Place) -> None:
    """The storm continues however slow the machine is: here its time is zero."""
    with Storm(place, 1, [Slot("eager", "eager-a"), Slot("reader", "reader")]) as storm:
        storm.run(0, lambda: None)
        storm.calm_down(lambda: None)
    events = read_history(place.histories)
    committed = [each for each in events if isinstance(each.what, End) and each.what.outcome == "committed"]
    assert len(committed) >= LEAST_COMMITS


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="processes are counted in /proc")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL], ids=lambda number: number.name)
def test_no_process_is_left_behind(tmp_path: Path, number: signal.Signals) -> None:
    supervisor = subprocess.Popen(
        [sys.executable, "-m", "lab.chaos", "--seed", "1", "--no-spark", "--store", str(tmp_path / "store")],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        assert wait_until(lambda: len(processes_of(supervisor.pid)) > 8), "the storm did not begin"
        supervisor.send_signal(number)
        assert supervisor.wait(30) != 0
        assert wait_until(lambda: not processes_of(supervisor.pid)), processes_of(supervisor.pid)
    finally:
        supervisor.kill()
        supervisor.wait()
    if number is not signal.SIGKILL:
        assert not list(tmp_path.glob("txlog-chaos-*"))


def test_where_a_storm_may_be(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="belongs to one process"):
        make_place(Settings(url="memory://chaos", histories=str(tmp_path), seconds=1))
    (tmp_path / "store" / "something").mkdir(parents=True)
    (tmp_path / "store" / "something" / "else").write_text("")
    with pytest.raises(InvalidRequestError, match="is not empty, and a storm writes to nobody's store"):
        make_place(settings(tmp_path))


def test_what_a_terminal_shows(place: Place, tmp_path: Path) -> None:
    screen = io.StringIO()
    show = Show(Console(file=screen, force_terminal=True, width=140))
    with Storm(place, 1, []) as storm, show.live(storm, place, settings(tmp_path)):
        storm.tally.kills = 17
        show.tick()
        show.phase("recovering")
    assert f"{STORM_S} seconds of chaos, seed 1" in screen.getvalue()
    assert "17 killed" in screen.getvalue()
    assert "recovering" in screen.getvalue()


def test_storage_options() -> None:
    assert parse_options(["key=a=b", 'client_kwargs={"x": 1}', "fsync=false"]) == {
        "key": "a=b",
        "client_kwargs": {"x": 1},
        "fsync": False,
    }
    with pytest.raises(InvalidRequestError, match="expected KEY=VALUE"):
        parse_options(["nonsense"])
