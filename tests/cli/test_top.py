"""`top`: rates between two looks, lag, open transactions, and the oldest hold of a last stable offset."""

from __future__ import annotations

import io
import signal
from typing import Any

import msgspec
import pytest
from rich.console import Console

from tests.cli.conftest import order_rows
from tests.cli.support import Cli
from tests.client.world import World
from tests.metrics.world import commit, filled
from txlog.cli import top
from txlog.cli.documents import TopDocument
from txlog.client import Store
from txlog.errors import StorageError
from txlog.inspection.look import StoreMonitor

ONCE = ("top", "--once", "--interval-ms", 1)


@pytest.fixture
def busy(store: Store, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Return a store in which a producer sends 5 rows to orders-0 between two looks, and a group commits 2 offsets."""
    with store.producer() as producer:
        producer.send("orders", order_rows(0, 4), partition=0)
    store.admin().reset_offsets("audit", {("orders", 0): 1})
    real = top._look
    looks: list[Any] = []

    def look(*args: Any) -> Any:
        if looks:
            with store.producer() as producer:
                producer.send("orders", order_rows(10, 5), partition=0)
            store.admin().reset_offsets("audit", {("orders", 0): 3})
        looks.append(real(*args))
        return looks[-1]

    monkeypatch.setattr(top, "_look", look)
    return store


def test_rates_and_lag(cli: Cli, busy: Store) -> None:
    document = cli(*ONCE, "-o", "json").json
    first, second = document["partitions"]
    seconds = document["interval_ms"] / 1000
    assert (first["topic"], first["partition"], first["log_end_offset"], first["waiting"]) == ("orders", 0, 9, 0)
    assert first["rate"] == pytest.approx(5 / seconds, abs=0.1)
    assert second["rate"] == 0
    (group,) = document["groups"]
    assert (group["group"], group["state"], group["lag"]) == ("audit", "EMPTY", 6)
    assert group["rate"] == pytest.approx(2 / seconds, abs=0.1)
    assert (document["open_transactions"], document["oldest_hold"], document["damaged"]) == ([], None, [])


def test_as_text(cli: Cli, busy: Store) -> None:
    lines = cli(*ONCE).lines
    assert lines[0].split()[0] == "store"
    assert "oldest hold  -" in lines
    at = lines.index("Topics")
    assert lines[at + 1].split() == ["TOPIC", "PARTITIONS", "OFFSETS/S", "LOG", "END", "WAITING"]
    topic, partitions, rate, end, waiting = lines[at + 2].split()
    assert (topic, partitions, end, waiting) == ("orders", "2", "9", "0")
    assert float(rate.replace(",", "")) > 0
    assert "Groups" in lines
    assert "Open transactions" not in lines


def test_the_oldest_hold(cli: Cli, store: Store) -> None:
    older, newer = (store.producer(name, linger_ms=0) for name in ("older", "newer"))
    for producer, partition in ((older, 0), (newer, 0), (newer, 1)):
        if producer.producer_id < 0:
            producer.init_transactions()
            producer.begin_transaction()
        producer.send("orders", order_rows(0, 2), partition=partition).result()
        store.runtime.clock.sleep_ms(5)
    document = cli(*ONCE, "-o", "json").json
    assert [
        (each["transactional_id"], each["partition"], each["holds_lso"]) for each in document["open_transactions"]
    ] == [
        ("older", 0, True),
        ("newer", 0, False),
        ("newer", 1, True),
    ]
    hold = document["oldest_hold"]
    assert (hold["transactional_id"], hold["first_offset"], hold["waiting"]) == ("older", 0, 4)
    assert "`txlog transactions abort older` ends it" in hold["advice"]
    (told,) = [line for line in cli(*ONCE).lines if line.startswith("oldest hold")]
    assert "orders-0: 4 offsets from 0 on, behind older, open for " in told
    for producer in (older, newer):
        producer.abort_transaction()


def test_only_some_topics(cli: Cli, busy: Store) -> None:
    busy.create_topic("events")
    document = cli(*ONCE, "events", "-o", "json").json
    assert {each["topic"] for each in document["partitions"]} == {"events"}
    assert document["groups"] == []
    assert "does not exist" in cli.fails(*ONCE, "nothing")


def test_damage_hides_one_partition(cli: Cli, store: Store) -> None:
    with store.producer() as producer:
        producer.send("orders", order_rows(0, 4), partition=0)
        producer.flush()
        producer.send("orders", order_rows(4, 4), partition=0)
    store.admin().reset_offsets("audit", {("orders", 0): 1, ("orders", 1): 0})
    (cli.root / "orders/0/00000000000000000000.batch").write_bytes(b"{}")
    done = cli(*ONCE, "-o", "json", status=4)
    assert [each["partition"] for each in done.json["partitions"]] == [1]
    assert [each["lag"] for each in done.json["groups"]] == [None]
    (told,) = done.json["damaged"]
    assert "orders/0/" in told
    assert msgspec.json.decode(done.err)["status"] == 4


@pytest.mark.parametrize(("topics", "partitions"), [(1, 2), (5, 8)])
def test_a_look_at_a_quiet_store_costs_a_request_for_each_topic_and_partition(topics: int, partitions: int) -> None:
    world = World()
    store = filled(world, topics, partitions)
    commit(store, "audit", 1)
    monitor = StoreMonitor(world.open().runtime, "top")
    top._look(monitor, [])
    world.clock.sleep_ms(2000)
    with world.counting.counting() as cost:
        document, _, _ = top._look(monitor, [])
    assert (len(document.partitions), len(document.groups)) == (topics * partitions, 1)
    world.clock.sleep_ms(2000)
    with world.counting.counting() as named:
        document, _, _ = top._look(monitor, ["t0"])
    assert (len(document.partitions), len(document.groups)) == (partitions, 1)
    assert named.total == 2 + 3 + topics + partitions
    # The descriptor, the names of topics, and for the table of consumer offsets its partitions and the one in use. The
    # table of transactions is listed, and empty.
    assert cost.total == 2 + 3 + topics + topics * partitions
    world.close()


def test_it_goes_on_until_a_signal(cli: Cli, busy: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Any] = []
    real = top._show

    def show(*args: Any, **options: Any) -> None:
        real(*args, **options)
        shown.append(args[1])
        if len(shown) == 3:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(top, "_show", show)
    done = cli("top", "--interval-ms", 1, "-o", "json")
    assert [row["partitions"][0]["log_end_offset"] for row in done.rows] == [9, 14, 19]


def test_a_store_that_does_not_answer_is_asked_again(cli: Cli, busy: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = top._look, []

    def look(*args: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise StorageError("it does not answer")
        if len(calls) == 4:
            signal.raise_signal(signal.SIGINT)
        return real(*args)

    monkeypatch.setattr(top, "_look", look)
    done = cli("top", "--interval-ms", 1)
    assert "it does not answer; the next look tries again" in done.err
    assert done.out.count("oldest hold") == 2
    calls.clear()
    assert "it does not answer" in cli.fails(*ONCE, status=5)


def test_on_a_terminal_it_is_one_picture(cli: Cli, busy: Store) -> None:
    document = msgspec.json.decode(cli(*ONCE, "-o", "json").out, type=TopDocument)
    console = Console(file=io.StringIO(), width=200, force_terminal=True, color_system=None)
    console.print(top._renderable(document))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "oldest hold   -" in text
    assert "Topics" in text
    assert "orders" in text
