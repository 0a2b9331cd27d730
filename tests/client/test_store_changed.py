"""Does a client notice that its store was created again, or put back to an older state, between two calls (W47, R20)?

It must notice before it writes, and raise an error that names the change. A client that is created afterwards works.
The clock moves by PROOF_AGE_MS before each call that must notice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tests.client.world import ORDERS, World, orders, rows_of, tp
from txlog.client.store import Store
from txlog.errors import MissingObjectError, OutcomeUnknownError, StoreChangedError
from txlog.maintenance.fsck import check_store
from txlog.maintenance.maintain import Maintainer
from txlog.protocol.context import PROOF_AGE_MS

IN_0 = tp("orders", 0)
Calls = Callable[[], Any]


def send(producer: Any, *ids: int) -> None:
    for future in [producer.send("orders", orders(number), partition=0) for number in ids]:
        future.result(20)
    producer.flush()  # it waits for the sealing, too


def transact(producer: Any, *ids: int) -> None:
    with producer.transaction():
        for number in ids:
            producer.send("orders", orders(number), partition=0)


def plain(store: Store) -> tuple[Calls, Calls]:
    producer = store.producer()
    return lambda: send(producer, 3), lambda: send(producer, 9)


def transactional(**settings: Any) -> Callable[[Store], tuple[Calls, Calls]]:
    def make(store: Store) -> tuple[Calls, Calls]:
        producer = store.producer("loader", **settings)
        producer.init_transactions()
        return lambda: transact(producer, 3), lambda: transact(producer, 9)

    return make


def member(store: Store) -> tuple[Calls, Calls]:
    consumer = store.consumer("orders", group_id="g", auto_offset_reset="earliest", enable_auto_commit=False)

    def work() -> None:
        send(store.producer(), 3)
        rows_of(consumer)
        consumer.commit()

    def again() -> None:
        consumer.commit({IN_0: 9})

    return work, again


def reader(store: Store) -> tuple[Calls, Calls]:
    consumer = store.consumer("orders", auto_offset_reset="earliest")

    def work() -> None:
        send(store.producer(), 3)
        rows_of(consumer)

    return work, lambda: consumer.poll(0)


def committer(store: Store) -> tuple[Calls, Calls]:
    """Make a client without a view of the group's partition that went back: it commits for the first time."""
    consumer = store.consumer(group_id="g", auto_offset_reset="earliest", enable_auto_commit=False)
    consumer.assign([IN_0])

    def work() -> None:
        send(store.producer(), 3)
        rows_of(consumer)

    return work, consumer.commit


def operator(store: Store) -> tuple[Calls, Calls]:
    admin = store.admin()

    def work() -> None:
        send(store.producer(), 3)
        admin.delete_records("orders", 0, 1)

    return work, lambda: admin.delete_records("orders", 0, 2)


def daemon(store: Store) -> tuple[Calls, Calls]:
    maintainer = Maintainer(store.runtime)

    def work() -> None:
        send(store.producer(), 3)
        maintainer.run()

    return work, maintainer.run


CLIENTS = {
    "plain producer": plain,
    "producer": transactional(),
    "eager producer": transactional(staged=False),
    "staged producer": transactional(staged=True),
    "member of a group": member,
    "committer": committer,
    "reader": reader,
    "admin": operator,
    "maintain daemon": daemon,
}


@dataclass
class Copies:
    """Put the store in memory back, without the knowledge of its clients."""

    world: World

    def take(self) -> dict[str, Any]:
        return dict(self.world.memory._objects)

    def put_back(self, copy: dict[str, Any]) -> None:
        self.world.memory._objects.clear()
        self.world.memory._objects.update(copy)
        self.world.clock.advance_ms(PROOF_AGE_MS)


class Watched:
    """A store that shows each request before it makes it."""

    def __init__(self, inner: Any, shown: Callable[[str, str], None]) -> None:
        self._inner = inner
        self._shown = shown

    def __getattr__(self, verb: str) -> Any:
        found = getattr(self._inner, verb)

        def request(path: str, *args: Any) -> Any:
            self._shown(verb, path)
            return found(path, *args)

        return request if callable(found) else found


@pytest.fixture
def copies(world: World) -> Copies:
    return Copies(world)


@pytest.fixture
def living(world: World) -> Store:
    """Return a process that has written two rows and is about to make its client."""
    store = world.open()
    store.create_topic("orders", ORDERS, partitions=1)
    send(store.producer(), 1, 2)
    return store


@pytest.mark.parametrize("make", CLIENTS.values(), ids=CLIENTS.keys())
def test_a_client_notices_that_the_store_was_put_back(world, living, copies, make):
    before, after = make(living)
    copy = copies.take()
    before()
    copies.put_back(copy)
    with pytest.raises(
        StoreChangedError, match=r"log ends at .* this process has seen it up to .*put back to an older state"
    ):
        after()
    # Nothing was written, and a new client can continue.
    assert world.read() == [1, 2]
    fresh = world.open()
    send(fresh.producer(), 4)
    producer = fresh.producer("loader")
    producer.init_transactions()
    transact(producer, 5)
    assert world.read() == [1, 2, 4, 5]


@pytest.mark.parametrize("staged", [None, False, True], ids=["deferred", "eager", "staged"])
def test_an_owner_does_not_pass_over_markers_that_a_store_has_lost(world, living, copies, monkeypatch, staged):
    """Put back to between a decision and its marker, the store needs the marker, which the owner has seen (W25)."""
    living.create_topic("more", ORDERS)
    producer = living.producer("loader", **({} if staged is None else {"staged": staged}))
    producer.init_transactions()
    copy: dict[str, Any] = {}
    put = world.memory.put_if_absent

    def watched(path: str, data: bytes) -> Any:
        if path.startswith("orders/0/") and path.endswith(".batch"):
            copy.clear()
            copy.update(copies.take())
        return put(path, data)

    monkeypatch.setattr(world.memory, "put_if_absent", watched)
    transact(producer, 3)
    monkeypatch.undo()
    copies.put_back(copy)
    with pytest.raises((StoreChangedError, OutcomeUnknownError)), producer.transaction():
        producer.send("more", orders(4))
    world.open().producer("loader").init_transactions()
    assert world.read() == [1, 2, 3]


@pytest.mark.parametrize("make", CLIENTS.values(), ids=CLIENTS.keys())
@pytest.mark.parametrize("worked", [True, False], ids=["with views", "without"])
def test_a_client_notices_that_the_store_was_made_anew(world, living, copies, make, worked):
    before, after = make(living)
    if worked:
        before()
    copies.put_back({})
    anew = world.open()
    anew.create_topic("orders", ORDERS, partitions=1)
    written = copies.take()
    with pytest.raises(StoreChangedError, match="another store lies here now"):
        after()
    assert copies.take() == written
    send(world.open().producer(), 4)
    assert world.read() == [4]


def test_a_store_that_is_gone_is_not_written_to(living, copies):
    copies.put_back({})
    with pytest.raises(StoreChangedError, match="there is no store any more"):
        send(living.producer(), 3)
    with pytest.raises(StoreChangedError, match="there is no store any more"):
        living.create_topic("more", ORDERS)
    assert not copies.take()


def test_topics_are_not_changed_in_another_store(world, living, copies):
    living.topic("orders")
    copies.put_back({})
    world.open().create_topic("orders", ORDERS)
    written = copies.take()
    for call in (
        lambda: living.create_topic("more", ORDERS),
        lambda: living.alter_topic("orders", partitions=3),
        lambda: living.delete_topic("orders"),
        living.topics,
    ):
        with pytest.raises(StoreChangedError, match="another store lies here now"):
            call()
    assert copies.take() == written


def test_a_log_that_went_back_and_on_again_is_noticed_by_its_records(world, living, copies):
    """Another producer has appended up to this producer's end and beyond, so other records are there."""
    producer = living.producer()
    send(producer, 3)
    copy = copies.take()
    send(producer, 4)
    copies.put_back(copy)
    send(world.open().producer(), 5, 6)
    with pytest.raises(StoreChangedError, match="with other records"):
        send(producer, 9)
    assert world.read() == [1, 2, 3, 5, 6]


def seal(world: World, *together: int) -> None:
    """Append rows of another producer, of which each two are a segment, and seal all but the last.

    The first record has the rows `together`, so its end, and that of all later ones, may be where no record began.
    """
    with world.open().producer() as producer:
        if together:
            producer.send("orders", orders(*together), partition=0).result()
        for number in range(10, 18):
            send(producer, number)


def put_back_and_sealed(world: World, living: Any, copies: Any, make: Any, calls: int = 1, *together: int) -> Any:
    """Put the store back behind calls of the client, let others seal, and return the client's next call."""
    living.alter_topic("orders", config={"segment.batches": 2})
    before, after = make(living)
    copy = copies.take()
    for _ in range(calls):
        before()
    copies.put_back(copy)
    seal(world, *together)
    return after


@pytest.mark.parametrize("make", [plain, reader], ids=["plain producer", "reader"])
def test_a_client_notices_at_each_call(world, living, copies, make):
    """Others have sealed what lies at this client's end, so a view from a new LIST shows nothing to compare."""
    after = put_back_and_sealed(world, living, copies, make)
    for _ in range(3):
        with pytest.raises(StoreChangedError, match="with other records"):
            after()


@pytest.mark.parametrize("make", [plain, reader, operator], ids=["plain producer", "reader", "admin"])
def test_a_client_notices_what_others_have_sealed_while_it_was_idle(world, living, copies, make):
    """Its view is so old that it makes a new one, and the new one has no record at the old end."""
    after = put_back_and_sealed(world, living, copies, make)
    world.clock.advance_ms(10**7)
    with pytest.raises(StoreChangedError, match="with other records"):
        after()


@pytest.mark.parametrize("make", [plain, reader], ids=["plain producer", "reader"])
def test_an_idle_client_notices_that_its_last_slot_is_inside_a_record_of_others(world, living, copies, make):
    """No slot at or above the boundary is ever deleted, so one that is gone shows another log."""
    after = put_back_and_sealed(world, living, copies, make, 2, 20, 21, 22)
    world.clock.advance_ms(10**7)
    with pytest.raises(StoreChangedError, match="with other records"):
        after()


def test_a_commit_notices_what_a_look_between_two_transactions_met(world, living, copies, monkeypatch):
    """The look of the thread raises nothing, so the commit must meet the lost marker itself (W25)."""
    living.create_topic("more", ORDERS)
    living.alter_topic("orders", config={"segment.batches": 2})
    producer = living.producer("loader")
    producer.init_transactions()
    copy: dict[str, Any] = {}
    put = world.memory.put_if_absent

    def watched(path: str, data: bytes) -> Any:
        if path.startswith("orders/0/") and path.endswith(".batch"):
            copy.update(copies.take())
        return put(path, data)

    monkeypatch.setattr(world.memory, "put_if_absent", watched)
    transact(producer, 3)
    monkeypatch.undo()
    copies.put_back(copy)
    seal(world)
    producer._sender.coordinator.look()
    with pytest.raises(StoreChangedError), producer.transaction():
        producer.send("more", orders(4))
    world.open().producer("loader").init_transactions()
    assert world.read() == [1, 2, *range(10, 18), 3]


def test_a_hole_made_within_the_second_is_noticed_after_it(world, living, copies):
    """A busy producer appends behind the end of a log that was put back; the protocol does not promise to refuse this.

    Its own record exists, but it does not hide that the record before it is missing: the log is damaged.
    """
    producer = living.producer()
    copy = copies.take()
    send(producer, 3)
    world.clock.advance_ms(PROOF_AGE_MS)
    send(producer, 4)
    copies.put_back(copy)
    world.clock._monotonic_ms -= PROOF_AGE_MS
    world.clock.step_wall_ms(-PROOF_AGE_MS)
    send(producer, 5)
    world.clock.advance_ms(PROOF_AGE_MS)
    with pytest.raises(MissingObjectError, match=r"0002\.batch: the log names it, and it is gone"):
        send(producer, 6)


def test_a_view_that_is_listed_anew_is_compared_with_the_one_before(world, living, copies):
    consumer = living.consumer("orders", auto_offset_reset="earliest")
    copy = copies.take()
    send(living.producer(), 3)
    rows_of(consumer)
    copies.put_back(copy)
    world.clock.advance_ms(10**9)
    with pytest.raises(StoreChangedError):
        consumer.poll(0)


def test_it_costs_a_get_or_two_once_a_second(world, living):
    producer = living.producer()
    send(producer, 3)
    for waits_ms, gets in ((0, 0), (PROOF_AGE_MS, 2), (PROOF_AGE_MS - 1, 0), (1, 2)):
        world.clock.advance_ms(waits_ms)
        with world.counting.counting() as cost:
            send(producer, 4)
        assert (cost.get, cost.put_if_absent, cost.total) == (gets, 1, gets + 1)


def test_an_idle_reader_looks_in_the_same_round(world, living):
    consumer = living.consumer("orders", auto_offset_reset="latest")
    consumer.poll(0)
    world.clock.advance_ms(PROOF_AGE_MS)
    with world.counting.counting() as cost:
        consumer.poll(0)
    assert (cost.get, cost.total) == (2, 2)


def test_a_commit_that_was_decided_is_not_called_failed(world, living, copies):
    """The store is put back between the decision and the markers. The answer must not be that nothing was written."""
    copy: dict[str, Any] = {}

    def put_back_behind_prepare(verb: str, path: str) -> None:
        if verb == "put_if_absent" and path.startswith("__transaction_state/"):
            world.clock.advance_ms(PROOF_AGE_MS)  # the look before the decision is too old for the markers
        is_decided = len(copy) + 1 < len(world.memory._objects)
        if copy and is_decided and path.startswith("orders/0/") and path.endswith(".batch"):
            copies.put_back(dict(copy))
            copy.clear()

    producer = world.open(Watched(world.memory, put_back_behind_prepare)).producer("loader")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("orders", orders(3), partition=0).result(20)
    copy.update({path: found for path, found in copies.take().items() if path != "orders/0/00000000000000000002.batch"})
    world.clock.advance_ms(PROOF_AGE_MS)
    with pytest.raises(OutcomeUnknownError, match=r"may have taken effect.*put back to an older state"):
        producer.commit_transaction()


def test_nothing_is_decided_where_a_partition_of_the_rows_was_put_back(world, living, copies):
    producer = living.producer("loader")
    producer.init_transactions()
    before = {path for path in copies.take() if path.startswith("orders/0/")}
    transact(producer, 3)
    copies.put_back({path: found for path, found in copies.take().items() if path[:9] != "orders/0/" or path in before})
    held = copies.take()
    with pytest.raises(StoreChangedError, match="put back to an older state"):
        transact(producer, 4)
    assert copies.take() == held
    with pytest.raises(StoreChangedError):
        producer.begin_transaction()


@pytest.mark.parametrize(("others", "kind"), [(0, "missing"), (1, "missing"), (2, "damaged")])
def test_a_check_does_not_promise_a_copy_of_what_was_written_behind_the_end(world, others, kind):
    """A writer that checked the store within the last second leaves a gap behind the old end.

    No copy can fill this gap.
    """
    store = world.open()
    store.create_topic("orders", ORDERS, partitions=1)
    send(producer := store.producer(), 1)
    copy = dict(world.memory._objects)
    send(producer, 2, 3)
    world.memory._objects.clear()
    world.memory._objects.update(copy)
    for _ in range(others):
        send(world.open().producer(), 7)
    send(producer, 4)
    found = [each for each in check_store(world.memory, threads=0, clock=world.clock).findings if each.kind != "note"]
    assert [each.kind for each in found] == [kind], found
    advice = {
        "missing": "while a writer ran, no copy has the object: restore that state again",
        "damaged": "another record took the slot of the lost one, and no single object helps: put the whole store back",
    }
    assert advice[kind] in found[0].advice
