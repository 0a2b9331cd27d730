"""Topics that were deleted and created again: no reader that goes on misses a row of the new topic."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from lab.older_writers import next_control_of_v1
from tests.client.world import World, tp
from txlog.client.consumer import Consumer
from txlog.errors import OffsetOutOfRangeError
from txlog.maintenance.maintain import Maintainer, MaintainPolicy
from txlog.protocol import append

DAY_MS = 86_400_000
T0 = tp("t", 0)
SMALL = {"segment.batches": "4", "segment.ms": str(DAY_MS)}


def send(world: World, *ids: int) -> None:
    with world.open().producer() as producer:
        for number in ids:
            producer.send("t", [{"id": number}]).result()


def send_aborted(world: World) -> None:
    with world.open().producer(transactional_id="a", staged=False) as producer:
        producer.begin_transaction()
        producer.send("t", [{"id": 90}, {"id": 91}])
        producer.flush()
        producer.abort_transaction()


def create(world: World) -> None:
    world.open().create_topic("t", {"id": "int64"}, config=SMALL)


def again(world: World) -> None:
    world.open().delete_topic("t")
    create(world)


def again_twice(world: World) -> None:
    again(world)
    again(world)


def again_after_markers(world: World) -> None:
    send_aborted(world)
    again(world)


def again_by_an_older_writer(world: World) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(append, "next_control", next_control_of_v1)
        again(world)


def again_after_weeks(world: World) -> None:
    world.open().delete_topic("t")
    world.clock.advance_ms(10 * DAY_MS)
    create(world)


def emptied_after_aborted_rows(world: World) -> None:
    send_aborted(world)
    world.open().admin().delete_records("t", 0)


def nothing(world: World) -> None:
    pass


def maintained(world: World) -> None:
    """Maintain the topic for days: its slots are deleted, and its segments merged."""
    for _ in range(6):
        world.clock.advance_ms(DAY_MS)
        Maintainer(world.open().runtime, MaintainPolicy(vacuum_interval_ms=0, merge_min_segments=2)).run()


def reader(world: World, how: str, policy: str) -> Consumer:
    if how == "assigned":
        made = world.open(metadata_max_age_ms=0).consumer(auto_offset_reset=policy)
        made.assign([T0])
        return made
    return world.open(metadata_max_age_ms=0).consumer(
        "t",
        group_id="g",
        enable_auto_commit=False,
        auto_offset_reset=policy,
        session_timeout_ms=24 * DAY_MS,
        max_poll_interval_ms=24 * DAY_MS,
    )


def given(consumer: Consumer) -> list[int]:
    found: list[Any] = []
    for _ in range(5):
        batch = consumer.poll(0)
        if batch is not None:
            found += batch.column("id").to_pylist()
            if consumer.group_id is not None:
                consumer.commit()
    return found


LIVES = [
    *itertools.product(
        (again, again_twice, again_after_markers, again_by_an_older_writer, again_after_weeks), (nothing, maintained)
    ),
    # A merge hides where the aborted rows were.
    (emptied_after_aborted_rows, nothing),
]
UNPROVEN = [
    (again_by_an_older_writer, maintained),
    (again_twice, maintained),
    (again_after_markers, nothing),
    (again_after_markers, maintained),
]
"""The log no longer shows that no row was lost. Without a policy the reader gets an error."""


ALL = [
    (how, *life, policy)
    for how, life, policy in itertools.product(("kept", "restarted", "assigned"), LIVES, ("latest", "none", "earliest"))
]


@pytest.mark.parametrize(("how", "between", "later", "policy"), ALL[::7])
def test_a_reader_that_has_read_all_gets_the_first_row_of_the_new_topic(
    world: World, how: str, between: Callable[[World], Any], later: Callable[[World], Any], policy: str
) -> None:
    read_on(world, how, between, later, policy)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("how", "between", "later", "policy"), ALL)
def test_every_reader_of_every_life_gets_the_first_row(
    world: World, how: str, between: Callable[[World], Any], later: Callable[[World], Any], policy: str
) -> None:
    read_on(world, how, between, later, policy)


def read_on(
    world: World, how: str, between: Callable[[World], Any], later: Callable[[World], Any], policy: str
) -> None:
    create(world)
    first = reader(world, how, policy)
    first.seek_to_beginning()
    send(world, 1, 2)
    assert given(first) == [1, 2]
    position = first.position(T0)
    if how == "restarted":
        first.close()
    between(world)
    send(world, *range(3, 12))
    later(world)
    second = first if how == "kept" else reader(world, how, policy)
    if how == "assigned":
        second.seek(T0, position)
    if policy == "none" and (between, later) in UNPROVEN:
        with pytest.raises(OffsetOutOfRangeError):
            given(second)
    else:
        assert given(second) == list(range(3, 12))


def test_a_table_goes_on_where_it_has_read_all(world: World) -> None:
    create(world)
    send(world, 1, 2)
    since = world.open().table("t").changes().offsets
    again(world)
    send(world, 3)
    store = world.open()
    assert store.table("t").changes(since=since).read_all()["id"].to_pylist() == [3]
    assert store.table("t").count(start=since) == 1
    again(world)
    with pytest.raises(OffsetOutOfRangeError):
        world.open().table("t").changes(since=since)


@pytest.mark.parametrize(("policy", "found"), [("latest", [4]), ("earliest", [3, 4])])
def test_rows_that_are_lost_beside_a_deletion_leave_the_choice_to_the_policy(
    world: World, policy: str, found: list[int]
) -> None:
    create(world)
    again(world)
    first = reader(world, "kept", "earliest")
    send(world, 1)
    assert given(first) == [1]
    first.close()
    send(world, 2, 3)
    world.open().admin().delete_records("t", 0, world.ends("t")[2] - 1)
    second = reader(world, "kept", policy)
    before = given(second)
    send(world, 4)
    assert before + given(second) == found
