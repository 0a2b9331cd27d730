"""A client and other threads and processes: a forked child does not touch its parent's clients, and callbacks cannot
deadlock."""

from __future__ import annotations

import contextlib
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest

import txlog
from tests.client.world import ORDERS, World, orders, tp
from tests.storage.processes import in_fork
from txlog.client.consumer import Consumer
from txlog.client.producer import Producer
from txlog.client.session.session import Session
from txlog.client.staged import StagedTransaction
from txlog.client.store import Store
from txlog.errors import IllegalStateError

ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "subscribe": ("orders",),
    "assign": ([tp("orders", 0)],),
    "assign_topics": ("orders",),
    "position": (tp("orders", 0),),
    "seek": (tp("orders", 0), 0),
    "beginning_offsets": ([tp("orders", 0)],),
    "end_offsets": ([tp("orders", 0)],),
    "offsets_for_times": ({tp("orders", 0): 0},),
    "lag": (tp("orders", 0),),
    "send": ("orders", orders(9)),
    "partitions_for": ("orders",),
    "send_offsets_to_transaction": ({tp("orders", 0): 1}, "g"),
}


def refuses_all(client: Consumer | Producer | StagedTransaction, *, but: tuple[str, ...]) -> bool:
    """Return whether every public method refuses the call, because the client belongs to another process."""
    for name, _method in inspect.getmembers(type(client), inspect.isfunction):
        if name.startswith("_") or name in but:
            continue
        try:
            called = getattr(client, name)(*ARGUMENTS.get(name, ()))
            if name == "iterate":
                next(called)
            if name == "transaction":
                called.__enter__()
        except IllegalStateError as error:
            if "forked from it" in str(error):
                continue
        return False
    return True


@pytest.fixture
def folder(tmp_path: Path) -> Store:
    with txlog.open(tmp_path, config={"linger.ms": 0}) as store:
        store.create_topic("orders", ORDERS)
        with store.producer() as producer:
            producer.send("orders", orders(*range(10)))
    return txlog.open(tmp_path, config={"linger.ms": 0})


def test_a_forked_child_leaves_the_parents_membership_alone(folder: Store) -> None:
    consumer = folder.consumer(
        "orders", group_id="g", auto_offset_reset="earliest", max_poll_records=5, enable_auto_commit=True
    )
    assert consumer.poll(0) is not None  # the application has not processed these rows yet

    def child() -> bool:
        refused = refuses_all(consumer, but=("close",))
        consumer.close()
        with pytest.raises(IllegalStateError, match="forked from it"), consumer:
            raise AssertionError("unreachable")
        consumer.__exit__(None, None, None)
        consumer.__exit__(ValueError, ValueError("the child's"), None)
        folder.close()
        return refused

    assert in_fork(child)
    group = folder.admin().describe_group("g")
    assert (group.state, group.offsets) == ("STABLE", ())
    consumer.commit({tp("orders", 0): 5})
    folder.close()
    committed = txlog.open(folder.url).admin().describe_group("g").offsets
    assert [offset.committed for offset in committed] == [5]


def test_a_forked_child_refuses_transactions_and_futures_of_its_parent(folder: Store) -> None:
    producer = folder.producer("loader", linger_ms=60_000)
    producer.init_transactions()
    producer.begin_transaction()
    waiting = producer.send("orders", orders(10))
    staged = StagedTransaction.begin(folder.runtime, "job")

    def child() -> bool:
        with pytest.raises(IllegalStateError, match="forked from it"):
            waiting.result()
        producer.close()
        return refuses_all(producer, but=("close",)) and refuses_all(staged, but=("begin", "resume"))

    assert in_fork(child)
    producer.commit_transaction()
    assert waiting.result().base_offset == 10
    folder.close()


def test_a_forked_child_uses_the_store_although_the_parent_held_its_locks(folder: Store) -> None:
    admin = folder.admin()
    locks = [folder._lock, folder.runtime._lock, folder.runtime.driver._lock, admin._session._lock]

    def child() -> bool:
        with folder.producer() as producer:
            producer.send("orders", orders(10)).result()
        return admin.list_offsets("orders")[tp("orders", 0)].log_end_offset == 11

    held, forked = threading.Event(), threading.Event()

    def hold() -> None:
        with contextlib.ExitStack() as stack:
            for lock in locks:
                stack.enter_context(lock)
            held.set()
            forked.wait()

    thread = threading.Thread(target=hold)  # of the parent: it holds them at the fork
    thread.start()
    held.wait()
    assert in_fork(child)
    forked.set()
    thread.join()
    folder.close()


def test_a_handler_may_use_a_consumer_that_holds_a_lock_of_its_session(world: World) -> None:
    world.open().create_topic("orders", ORDERS)
    consumer = world.open().consumer(group_id="g")
    consumer.assign([tp("orders", 0)])
    hits = 0

    def signal_in_the_lock(frame: FrameType, event: str, called: object) -> None:
        nonlocal hits
        near = (frame.f_code, frame.f_back.f_code if frame.f_back is not None else None)
        if event == "c_return" and getattr(called, "__name__", "") == "get" and Session.keep.__code__ in near:
            sys.setprofile(None)
            hits += 1
            consumer.commit({tp("orders", 0): 1 + hits})
            sys.setprofile(signal_in_the_lock if hits < 4 else None)

    def work() -> None:
        sys.setprofile(signal_in_the_lock)
        consumer.commit({tp("orders", 0): 1})
        sys.setprofile(None)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
    assert hits >= 2


@pytest.mark.parametrize("transactional_id", [None, "loader"])
def test_a_callback_that_would_wait_for_itself_is_refused(store: Store, transactional_id: str | None) -> None:
    staged = None if transactional_id is None else False
    with store.producer(transactional_id, linger_ms=0, staged=staged) as producer:
        if transactional_id is not None:
            producer.begin_transaction()
        answers: dict[str, str] = {}
        called = threading.Event()

        def ask(name: str, call: Callable[[], object]) -> None:
            try:
                call()
            except IllegalStateError as error:
                answers[name] = str(error)
            else:
                answers[name] = "worked"

        def callback(_: Future[Any]) -> None:
            ask("flush", producer.flush)
            ask("close", producer.close)
            again: list[Future[Any]] = []
            ask("send", lambda: again.append(producer.send("orders", orders(2), partition=0)))
            ask("result", again[0].result)
            if transactional_id is not None:
                ask("commit_transaction", producer.commit_transaction)
                ask("abort_transaction", producer.abort_transaction)
            called.set()

        with producer._lock:  # the callback is registered before the rows are in the log
            producer.send("orders", orders(1), partition=0).add_done_callback(callback)
        assert called.wait(60)
        if transactional_id is not None:
            producer.commit_transaction()
    assert answers.pop("send") == "worked"
    assert len(answers) == (5 if transactional_id else 3)
    for name, answer in answers.items():
        assert f"{name}() was called in the callback of a future" in answer
    assert store.consumer("orders", auto_offset_reset="earliest").end_offsets([tp("orders", 0)]) == {
        tp("orders", 0): 3 if transactional_id else 2
    }


def test_close_of_a_fenced_producer_leaves_no_future_open(world: World, store: Store) -> None:
    """Offsets were refused while rows lingered: close() ends the thread that would have completed their future."""
    producer = store.producer("loader", linger_ms=60_000)
    producer.init_transactions()
    producer.begin_transaction()
    future = producer.send("orders", orders(1), partition=0)
    world.open().producer("loader").init_transactions()
    with pytest.raises(txlog.errors.ProducerFencedError):
        producer.send_offsets_to_transaction({tp("orders", 0): 1}, "g")
    producer.close()
    assert isinstance(future.exception(0), txlog.errors.ProducerFencedError)


@pytest.mark.parametrize("how", ["poll", "iterate"])
def test_no_thread_takes_rows_that_another_one_is_about_to_return(
    world: World, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    world.open().create_topic("orders", ORDERS)
    with world.open().producer() as producer:
        producer.send("orders", orders(1))
    consumer = world.open().consumer("orders", auto_offset_reset="earliest")
    refused: list[IllegalStateError] = []
    poll = consumer._poll

    def and_then_another_thread(*args: Any) -> Any:
        batch = poll(*args)

        def other() -> None:
            monkeypatch.undo()
            try:
                consumer.poll(0)
            except IllegalStateError as error:
                refused.append(error)

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        return batch

    monkeypatch.setattr(consumer, "_poll", and_then_another_thread)
    batch = consumer.poll(0) if how == "poll" else next(consumer.iterate())
    assert batch is not None
    assert len(refused) == 1
    assert "poll() runs in thread" in str(refused[0])
    assert consumer.poll(0) is None


@pytest.mark.parametrize("call", ["commit", "close"])
def test_a_handler_inside_a_poll_commits_no_row_that_is_not_returned(
    world: World, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """The handler of a signal, which ends the program after that."""
    world.open().create_topic("orders", ORDERS)
    with world.open().producer() as producer:
        producer.send("orders", orders(1, 2, 3, 4))
    consumer = world.open().consumer("orders", group_id="g", auto_offset_reset="earliest", max_poll_records=2)
    assert consumer.poll(0) is not None

    take = consumer._fetcher.next_batch

    def and_then_a_signal() -> Any:
        if (batch := take()) is not None:
            monkeypatch.undo()
            getattr(consumer, call)()
            raise SystemExit
        return batch

    monkeypatch.setattr(consumer._fetcher, "next_batch", and_then_a_signal)
    with pytest.raises(SystemExit):
        consumer.poll(0)
    (found,) = world.open().admin().describe_group("g").offsets
    assert found.committed == 2


@pytest.mark.parametrize("inside", ["send", "flush", "commit_transaction", "abort_transaction"])
@pytest.mark.parametrize("call", ["flush", "close", "commit_transaction", "abort_transaction", "result"])
def test_a_handler_that_would_wait_for_the_call_which_it_interrupts_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch, inside: str, call: str
) -> None:
    """The handler of a signal runs in the same thread, and the call goes on after it."""
    world.open().create_topic("orders", ORDERS)
    producer = world.open().producer("loader", linger_ms=60_000)
    producer.init_transactions()
    producer.begin_transaction()
    sent = producer.send("orders", orders(1))
    sender = producer._sender
    name = {"send": "added", "flush": "send_now", "commit_transaction": "hold", "abort_transaction": "drop_waiting"}[
        inside
    ]
    go_on, refused = getattr(sender, name), []

    def and_then_a_signal(*args: Any) -> Any:
        monkeypatch.undo()
        made = go_on(*args)
        try:
            (sent.result if call == "result" else getattr(producer, call))()
        except IllegalStateError as error:
            refused.append(str(error))
        return made

    monkeypatch.setattr(sender, name, and_then_a_signal)
    args = ("orders", orders(2)) if inside == "send" else ()
    getattr(producer, inside)(*args)
    assert f"{call}() was called inside {inside}() of the same thread" in refused[0]
    if inside != "abort_transaction":
        if inside != "commit_transaction":
            producer.commit_transaction()
        assert world.read() == ([1, 2] if inside == "send" else [1])
    producer.close()


def test_a_refused_handler_that_ends_a_commit_leaves_its_outcome_open(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handler of a signal closes the producer, and lets the refusal through.

    It does not answer whether the commit was decided.
    """
    world.open().create_topic("orders", ORDERS)
    store = world.open()
    producer = store.producer("loader")
    producer.init_transactions()
    put = store.runtime.store.put_if_absent

    def and_then_a_signal(path: str, data: bytes) -> Any:
        answer = put(path, data)
        if b"PREPARE_COMMIT" in data:
            monkeypatch.undo()
            producer.close()
        return answer

    monkeypatch.setattr(store.runtime.store, "put_if_absent", and_then_a_signal)
    with pytest.raises(IllegalStateError, match=r"close\(\) was called inside commit_transaction\(\)"):  # noqa: SIM117
        with producer.transaction():
            sent = producer.send("orders", orders(1))
    with pytest.raises(txlog.errors.OutcomeUnknownError):
        sent.result()
    producer.commit_transaction()
    assert sent.result().base_offset == 0
    assert world.read() == [1]
    producer.close()


def test_a_refused_handler_that_ends_a_close_drops_no_row(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second signal, whose handler closes the producer, too."""
    world.open().create_topic("orders", ORDERS)
    producer = world.open().producer(linger_ms=60_000)
    sent = producer.send("orders", orders(1))

    def signal(*_: Any) -> Any:
        monkeypatch.undo()
        producer.close()

    monkeypatch.setattr(producer._sender, "flush", signal)
    with pytest.raises(IllegalStateError, match=r"close\(\) was called inside close\(\)"):
        producer.close()
    producer.close()
    assert sent.result().base_offset == 0
    assert world.read() == [1]


def test_rows_that_are_made_while_they_are_sent_may_wait_for_other_rows(world: World) -> None:
    world.open().create_topic("orders", ORDERS)
    with world.open().producer(linger_ms=60_000) as producer:
        sent = producer.send("orders", orders(1))

        def batches() -> Iterator[pa.RecordBatch]:
            yield pa.RecordBatch.from_pylist(orders(1 + sent.result(60).records), schema=ORDERS)
            producer.flush()

        producer.send("orders", pa.RecordBatchReader.from_batches(ORDERS, batches()))
    assert world.read() == [1, 2]


@pytest.mark.parametrize("at", ["send_offsets", "end"])
def test_a_refused_handler_that_ends_a_staged_commit_leaves_its_outcome_open(
    world: World, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    world.open().create_topic("orders", ORDERS)
    store = world.open()
    staged = StagedTransaction.begin(store.runtime, "job")
    put = store.runtime.store.put_if_absent

    def and_then_a_signal(*args: Any) -> Any:
        answer = put(*args) if at == "end" else True
        if at == "send_offsets" or b"PREPARE_COMMIT" in args[1]:
            monkeypatch.undo()
            staged.abort()
        return answer

    if at == "end":
        monkeypatch.setattr(store.runtime.store, "put_if_absent", and_then_a_signal)
    else:
        monkeypatch.setattr(staged._coordinator, "send_offsets", and_then_a_signal)
    with pytest.raises(IllegalStateError, match=r"abort\(\) was called while commit\(\) runs"):
        staged.commit(version=1)
    assert staged._coordinator.in_doubt == (at == "end")
    with pytest.raises(IllegalStateError, match=r"this commit\(\) is another one"):
        staged.commit(version=2)
    assert not staged.commit(version=1).skipped
