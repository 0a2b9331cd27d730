"""What a publisher keeps between its rounds: a round without new rows is cheap, and what it keeps is never too old."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.client.world import ORDERS, World, many, orders
from tests.publication.lives import publish
from tests.publication.test_cuts import merge, ones, rows_of, sweep, tables_of
from txlog.client import reading
from txlog.client.store import Store
from txlog.core.names import publication_path
from txlog.maintenance.maintain import Maintainer
from txlog.maintenance.publish import publish_topics
from txlog.protocol.publications import read_chain
from txlog.publication import publish as publishing
from txlog.publication.cache import PublicationCache
from txlog.publication.outcome import Published
from txlog.testing.counting_store import Cost

CONFIG = {"publish.formats": "delta", "publish.max.lag.ms": "0", "segment.batches": "100"}
TRANSACTIONS = 40
IDLE_REQUESTS = 14
"""The settings, the chain, the formats, and two requests for each of two partitions."""


@pytest.fixture
def world() -> Iterator[World]:
    """A topic of two partitions whose active segments have many files: opening it costs a request for each."""
    made = World()
    made.open().create_topic("orders", ORDERS, partitions=2, config=CONFIG)
    send(made, *range(TRANSACTIONS))
    yield made
    made.close()


def send(world: World, *ids: int) -> None:
    with world.open(inline_max_bytes=0).producer("t") as producer:
        for number in ids:
            with producer.transaction():
                for partition in range(2):
                    producer.send("orders", orders(2 * number + partition), partition=partition)
    world.clock.advance_ms(10)


class Daemon:
    """Publishes round after round, as `txlog publish --daemon` does."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.store: Store = world.open()
        self.session = reading.read_session(self.store.runtime)
        self.cache = PublicationCache()

    def round(self) -> tuple[Published, Cost]:
        self.world.clock.advance_ms(10_000)
        with self.world.counting.counting() as cost:
            topic = self.store.runtime.topic("orders", 0)
            ((_, made),) = publish_topics(self.session, [topic], cache=self.cache)
        assert isinstance(made, Published), made
        return made, cost


def shown(world: World) -> list[int]:
    return [value for (value,) in rows_of(world, tables_of(world)[-1])]


def test_a_round_without_new_rows_is_cheap(world: World) -> None:
    daemon = Daemon(world)
    assert daemon.round()[0].rows_added == 2 * TRANSACTIONS
    made, cost = daemon.round()
    assert (made.number, made.publications) == (1, 0)
    assert cost.total > 2 * TRANSACTIONS, "the one look after a publication lists the topic again"
    for _ in range(3):
        made, cost = daemon.round()
        assert (made.number, made.publications) == (1, 0)
        assert cost.total <= IDLE_REQUESTS, cost.calls()
    assert not daemon.session.views.keys() & set(daemon.cache.looks["orders"].views)
    # Nothing that happens is missed.
    send(world, 100)
    assert daemon.round()[0].rows_added == 2
    assert shown(world) == [*range(2 * TRANSACTIONS), 200, 201]


def test_maintenance_without_new_rows_is_cheap(world: World) -> None:
    maintainer = Maintainer(world.open().runtime)
    for _ in range(3):
        world.clock.advance_ms(10_000)
        assert not maintainer.run().failures
    world.clock.advance_ms(10_000)
    with world.counting.counting() as cost:
        assert not maintainer.run().failures
    assert cost.total < TRANSACTIONS, cost.calls()
    send(world, 100)
    maintainer.run()
    assert shown(world) == [*range(2 * TRANSACTIONS), 200, 201]


def test_every_change_ends_the_idle_rounds(world: World) -> None:
    daemon = Daemon(world)

    def settle() -> None:
        for _ in range(2):
            daemon.round()
        assert daemon.cache.looks["orders"].shows_all
        assert daemon.round()[1].total <= IDLE_REQUESTS

    settle()
    daemon.store.admin().delete_records("orders", 0, 5)
    assert daemon.round()[0].publications == 1
    assert shown(world) == [value for value in range(2 * TRANSACTIONS) if value % 2 or value >= 2 * 5]
    settle()
    world.open().alter_topic("orders", partitions=3)
    with world.open().producer() as producer:
        producer.send("orders", orders(1000), partition=2).result()
    assert daemon.round()[0].rows_added == 1
    settle()
    world.open().alter_topic("orders", drop_columns=["name"])
    assert daemon.round()[0].publications == 1
    settle()
    world.open().alter_topic("orders", remove_config=["publish.formats"])
    assert daemon.round()[0].publications == 1
    assert tables_of(world)[-1].newest.formats == {}


def test_an_open_transaction_is_looked_for_in_each_round(world: World) -> None:
    """Its rows are hidden at the cut. They come into the tables with the round after its commit."""
    late = world.open(inline_max_bytes=0).producer("late", staged=False)
    late.init_transactions()
    late.begin_transaction()
    late.send("orders", orders(1000), partition=0)
    late.flush()
    daemon = Daemon(world)
    for _ in range(3):
        daemon.round()
    look = daemon.cache.looks["orders"]
    assert not look.shows_all
    assert 1000 not in shown(world)
    late.commit_transaction()
    assert daemon.round()[0].rows_added == 1
    assert 1000 in shown(world)


def test_a_look_does_not_outlive_the_publication_that_it_follows(world: World) -> None:
    """Another process has published since. Then only a new LIST shows what a merge has superseded (W58)."""
    daemon = Daemon(world)
    for _ in range(3):
        daemon.round()
    send(world, 100)
    publish(world.open())
    _, cost = daemon.round()
    assert ("list", "orders/0/") in cost.calls()
    daemon.round()
    _, cost = daemon.round()
    assert ("list", "orders/0/") not in cost.calls()
    assert shown(world) == [*range(2 * TRANSACTIONS), 200, 201]


def test_a_publisher_may_sleep_on_a_look_that_it_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of its cut are superseded and deleted meanwhile. Vacuum has taken its number before (C13)."""
    other = World()
    other.open().create_topic("orders", ORDERS, config={**CONFIG, "segment.batches": "1"})
    try:
        with other.open().producer() as producer:
            producer.send("orders", orders(0)).result()
            other.clock.advance_ms(10)
            daemon = Daemon(other)
            for _ in range(3):
                daemon.round()
            for first in (3000, 6000):
                producer.send("orders", many(3000, first)).result()
            producer.send("orders", orders(90_000)).result()
        append = publishing._Attempt._append
        calls: list[str] = []

        def sleeps(*args: object) -> object:
            calls.append(str(args[3]))
            if len(calls) == 1:
                merge(other)
                sweep(other, 3)
            return append(*args)  # type: ignore[arg-type]

        monkeypatch.setattr(publishing._Attempt, "_append", sleeps)
        daemon.round()
        assert len(calls) > 1
        assert rows_of(other, tables_of(other)[-1]) == ones(0, *range(3000, 9000), 90_000)
    finally:
        other.close()


def test_a_known_publication_is_compared_with_the_stored_one(world: World) -> None:
    daemon = Daemon(world)
    for _ in range(3):
        daemon.round()
    known = daemon.cache.looks["orders"].tables
    _, cost = daemon.round()
    path = publication_path("orders", known.number)
    assert [each for _, each in cost.calls() if each.startswith("orders/publication/")] == ["orders/publication/", path]
    send(world, 100)
    publish(world.open())
    run = world.open().runtime.run
    assert [each.number for each in run(read_chain("orders", known)).tables] == [1, 2]
    replaced = replace(known, digest="0" * 64)
    assert run(read_chain("orders", replaced)) == run(read_chain("orders"))
