"""One call makes several tries: the first may have won without a reply, and the next is refused because the log has
changed.

The answer must hold for the call, not for its last try: `failed` means that no part of it will ever be visible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from tests.client.world import ORDERS, World, orders
from txlog.client.admin.admin import Admin
from txlog.client.producer.sender import Sender
from txlog.client.store import Store
from txlog.core.append_rules import RollPolicy
from txlog.core.effects import PutOutcome
from txlog.core.names import TopicPartition
from txlog.errors import (
    CommitFailedError,
    GroupIdNotFoundError,
    OutcomeUnknownError,
    ProducerFencedError,
    StorageError,
    StoreAccessError,
    TransactionAbortableError,
    TxlogTimeoutError,
)
from txlog.storage.object_store import ObjectStore
from txlog.testing.failing_store import Fault

A = TopicPartition("orders", 0)
TAKEOVERS = 110
"""More records of the id than a segment has: the record with the decision is then sealed, and not in the tail."""


class Silent:
    """A store that applies one conditional write to a folder and answers UNKNOWN.

    From then on every other request to that folder fails, until the test disarms it. Or it fails all of them and
    applies nothing.
    """

    def __init__(self, inner: ObjectStore, folder: str, *, applies: bool) -> None:
        self._inner = inner
        self._folder = folder
        self._applies = applies
        self._applied = False
        self.armed = False

    def __getattr__(self, verb: str) -> Any:
        found = getattr(self._inner, verb)
        if not callable(found):
            return found

        def request(path: str, *args: Any) -> Any:
            if not self.armed or not path.startswith(self._folder):
                return found(path, *args)
            if verb == "put_if_absent" and self._applies:
                found(path, *args)
                self._applied = True
                return PutOutcome.UNKNOWN
            if self._applies and not self._applied:
                return found(path, *args)
            raise StorageError(f"{verb} {path!r} fails")

        return request


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.close()


def between_tries(world: World, monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> list[bool]:
    """Let `act` happen while a call waits for its second try. Return a list that then contains True."""
    from txlog.client.session import retry

    done: list[bool] = []
    pause = retry.pause

    def acting(*args: Any) -> None:
        pause(*args)
        if not done:
            done.append(True)
            act()

    monkeypatch.setattr(retry, "pause", acting)
    return done


def silent_process(world: World, folder: str, *, applies: bool) -> tuple[Silent, Store]:
    silent = Silent(world.counting, folder, applies=applies)
    # The pauses are short, so that the first try ends in doubt well before the call's timeout.
    return silent, world.open(cast(ObjectStore, silent), retry_backoff_ms=1, retry_backoff_max_ms=10)


def decide_unseen(world: World, silent: Silent, store: Store, monkeypatch: pytest.MonkeyPatch, late_ms: int) -> Any:
    """Return a producer whose next commit is decided, cannot write its marker, and then meets newer instances."""
    producer = store.producer("x")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("orders", orders(1)).result()
    silent.armed = True

    def take_over() -> None:
        other = world.open()
        for _ in range(TAKEOVERS):
            other.producer("x").init_transactions()
        world.clock.advance_ms(late_ms)
        silent.armed = False

    assert between_tries(world, monkeypatch, take_over) == []
    return producer


def test_a_commit_that_won_is_answered_so_although_its_record_is_sealed_since(world, monkeypatch):
    world.open().create_topic("orders", ORDERS)
    silent, store = silent_process(world, "orders/0/", applies=False)
    producer = decide_unseen(world, silent, store, monkeypatch, late_ms=0)
    assert producer.commit_transaction().txn.last_outcome == "commit"
    assert world.read() == [1]


def test_a_commit_of_which_nothing_is_left_to_see_is_unknown_and_not_refused(world, monkeypatch):
    """Nothing shows whether the first try won (W44)."""
    # The grace is so short that this process's view of the table is too old. It opens the table again, without the
    # deleted tail.
    world.open(delete_grace_ms=10_000).create_topic("orders", ORDERS)
    silent, store = silent_process(world, "orders/0/", applies=False)
    producer = decide_unseen(world, silent, store, monkeypatch, late_ms=2_000)
    with pytest.raises(OutcomeUnknownError, match="an earlier try of this very call may have taken effect"):
        producer.commit_transaction()
    assert world.read() == [1]
    for _ in range(2):
        with pytest.raises(OutcomeUnknownError, match=r"this one met ProducerFencedError.*no longer show"):
            producer.commit_transaction()


@pytest.mark.parametrize("staged", [False, True, None], ids=["eager", "staged", "deferred"])
@pytest.mark.parametrize("applies", [False, True], ids=["lost", "won"])
@pytest.mark.parametrize("takeovers", [1, TAKEOVERS])
def test_a_commit_that_the_caller_repeats_is_refused_only_if_the_records_show_that_it_lost(
    world, staged, applies, takeovers
):
    world.open().create_topic("orders", ORDERS)
    silent = Silent(world.counting, "__transaction_state/", applies=applies)
    producer = world.open(cast(ObjectStore, silent), max_block_ms=300).producer("x", staged=staged)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("orders", orders(1))
    producer.flush()
    silent.armed = True
    with pytest.raises(OutcomeUnknownError):
        producer.commit_transaction()
    silent.armed = False
    for _ in range(takeovers):
        world.open().producer("x").init_transactions()
    world.clock.advance_ms(3 * 3600_000)  # this process's view of the table is too old, so it opens the table again
    if takeovers > 1:
        with pytest.raises(OutcomeUnknownError, match=r"this one met ProducerFencedError.*no longer show"):
            producer.commit_transaction()
    elif applies:
        assert producer.commit_transaction().txn.last_outcome == "commit"
    else:
        with pytest.raises(ProducerFencedError):
            producer.commit_transaction()
    assert world.read() == ([1] if applies else [])


def test_a_refused_commit_is_refused_if_no_try_can_have_won(world):
    world.open().create_topic("orders", ORDERS)
    producer = world.open().producer("x")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("orders", orders(1)).result()
    world.open().producer("x").init_transactions()
    with pytest.raises(ProducerFencedError):
        producer.commit_transaction()
    assert world.read() == []


def test_offsets_that_may_have_been_committed_before_another_member_joined(world, monkeypatch):
    world.open().create_topic("orders", ORDERS)
    world.open().producer().send("orders", orders(1, 2, 3)).result()
    silent, store = silent_process(world, "__consumer_offsets/", applies=True)
    consumer = store.consumer("orders", group_id="g", auto_offset_reset="earliest", enable_auto_commit=False)
    consumer.poll(0)
    silent.armed = True

    def join() -> None:
        silent.armed = False
        world.clock.advance_ms(45_001)
        world.open().consumer("orders", group_id="g")

    done = between_tries(world, monkeypatch, join)
    with pytest.raises(OutcomeUnknownError):
        consumer.commit()
    assert done
    committed = world.open().consumer(group_id="g").committed(A)[A]
    assert committed is not None
    assert committed.offset == 3
    with pytest.raises(CommitFailedError):
        consumer.commit({A: 3})


def _reset(admin: Admin) -> tuple[str, ...]:
    return admin.reset_offsets("g", {A: 1}, force=True)


def _delete(admin: Admin) -> tuple[str, ...]:
    return admin.delete_group("g", force=True)


@pytest.mark.parametrize("twice", [False, True], ids=["one call", "repeated by the caller"])
@pytest.mark.parametrize("change", [_reset, _delete])
def test_a_change_of_a_group_that_is_tried_again_joins_the_one_that_won(
    world: World, monkeypatch: pytest.MonkeyPatch, change: Callable[[Admin], tuple[str, ...]], twice: bool
) -> None:
    world.open().create_topic("orders", ORDERS)
    member = world.open().consumer("orders", group_id="g").group_metadata().member_id
    silent, store = silent_process(world, "__consumer_offsets/", applies=True)
    admin = store.admin()

    def go_on() -> None:
        silent.armed = False
        # The second try must not touch a member that takes over the group after the first one.
        world.open().consumer("orders", group_id="g", client_id="next")

    silent.armed = True
    if twice:
        with pytest.raises(TxlogTimeoutError):
            change(admin)
        go_on()
    else:
        between_tries(world, monkeypatch, go_on)
    assert change(admin) == (member,), "the member that the first try has removed"
    (found,) = store.admin().list_groups()
    assert found.client_id == "next"
    # The call has its answer, so the next one is a new call.
    assert change(admin) == (found.member_id,)


def test_a_deletion_that_may_have_won_is_not_said_to_be_refused(world: World) -> None:
    world.open().create_topic("orders", ORDERS)
    world.open().admin().reset_offsets("g", {A: 0})
    silent, store = silent_process(world, "__consumer_offsets/", applies=True)
    admin = store.admin()
    silent.armed = True
    with pytest.raises(TxlogTimeoutError):
        admin.delete_group("g")
    silent.armed = False
    # The tail does not contain its record any more.
    other = world.open().admin()
    for _ in range(TAKEOVERS):
        other.reset_offsets("g", {A: 0})
    other.delete_group("g")
    for _ in range(2):
        with pytest.raises(OutcomeUnknownError, match="an earlier try may have taken effect"):
            admin.delete_group("g")
    with pytest.raises(GroupIdNotFoundError):
        store.admin().delete_group("g")


@pytest.mark.parametrize("change", ["delete", "reset"])
def test_a_change_that_won_and_was_sealed_is_not_made_again(world: World, change: str) -> None:
    """A second record would undo what came after the first (W44)."""
    world.open().create_topic("orders", ORDERS)
    world.open().admin().reset_offsets("g", {A: 0})
    silent, store = silent_process(world, "__consumer_offsets/", applies=True)
    admin = store.admin()
    call = {"delete": lambda: admin.delete_group("g"), "reset": lambda: admin.reset_offsets("g", {A: 1})}[change]
    silent.armed = True
    with pytest.raises(TxlogTimeoutError):
        call()
    silent.armed = False
    other = world.open().admin()
    for number in range(TAKEOVERS):
        other.reset_offsets("g", {A: 100 + number})
    with pytest.raises(OutcomeUnknownError, match="an earlier try may have taken effect"):
        call()
    (group,) = other.list_groups()
    assert [offset.committed for offset in group.offsets] == [99 + TAKEOVERS]


def test_another_change_does_not_join_the_one_in_doubt(world: World) -> None:
    world.open().create_topic("orders", ORDERS)
    world.open().admin().reset_offsets("g", {A: 0})
    silent, store = silent_process(world, "__consumer_offsets/", applies=True)
    admin = store.admin()
    silent.armed = True
    with pytest.raises(TxlogTimeoutError):
        admin.reset_offsets("g", {A: 1})
    silent.armed = False
    admin.reset_offsets("g", {A: 2})
    (group,) = store.admin().list_groups()
    assert [offset.committed for offset in group.offsets] == [2]
    assert admin.delete_group("g") == ()
    assert store.admin().list_groups() == ()


def test_a_dry_run_leaves_an_earlier_deletion_in_doubt(world: World) -> None:
    world.open().create_topic("orders", ORDERS)
    world.open().admin().reset_offsets("g", {A: 0})
    silent, store = silent_process(world, "__consumer_offsets/", applies=True)
    admin = store.admin()
    silent.armed = True
    with pytest.raises(TxlogTimeoutError):
        admin.delete_group("g")
    silent.armed = False
    with pytest.raises(GroupIdNotFoundError):
        admin.delete_group("g", dry_run=True)
    assert admin.delete_group("g") == ()


def test_a_change_that_the_store_refuses_is_not_in_doubt(world: World) -> None:
    world.open().create_topic("orders", ORDERS)
    world.open().admin().reset_offsets("g", {A: 0})
    _, store = world.failing(Fault(action="403", match="put_if_absent __consumer_offsets", times=99))
    with pytest.raises(StoreAccessError):
        store.admin().delete_group("g")


def test_rows_of_a_transaction_that_may_be_in_the_log_are_not_said_to_be_refused(world, monkeypatch):
    world.open().create_topic("orders", ORDERS)
    silent, store = silent_process(world, "orders/0/", applies=True)
    producer = store.producer("x")
    producer.init_transactions()
    producer.begin_transaction()
    again = Sender._try_again

    def fenced_meanwhile(*args: Any) -> bool:
        tried = again(*args)
        if silent.armed:
            silent.armed = False
            world.open().producer("x").init_transactions()
        return tried

    monkeypatch.setattr(Sender, "_try_again", fenced_meanwhile)
    silent.armed = True
    with pytest.raises(TransactionAbortableError, match="the partition has seen epoch"):
        producer.send("orders", orders(1)).result()
    assert world.read(isolation="read_uncommitted") == [1]
    assert world.read() == []


@pytest.mark.parametrize("refusal", ["403", "404", "501"])
def test_a_refusal_while_sealing_is_not_the_answer_to_the_commit_before_it(world, refusal):
    """The commit is in the log, whatever the result of the sealing is (W44)."""
    store = world.open()
    store.create_topic("orders", ORDERS)
    _, other = world.failing(
        Fault(action=refusal, match=r"put_if_absent __consumer_offsets/\S+(index|snapshot)", times=100)
    )
    consumer = other.consumer(group_id="g")
    for number in range(RollPolicy().batches + 2):
        consumer.commit({A: number})
    committed = world.open().consumer(group_id="g").committed(A)[A]
    assert committed is not None
    assert committed.offset == number
