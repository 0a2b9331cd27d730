"""Transactions of a producer: eager and staged, fencing, timeouts, versions, failures."""

from __future__ import annotations

import pytest

from tests.client.world import ORDERS, World, many, orders, tp
from txlog.client.producer.transaction_manager import SETTLE_MS
from txlog.core.transactions import TxnVersion
from txlog.errors import (
    IllegalStateError,
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    InvalidRequestError,
    InvalidTxnTimeoutError,
    OutcomeUnknownError,
    ProducerFencedError,
    SchemaMismatchError,
    TransactionAbortableError,
    TransactionAbortedError,
    TxlogTimeoutError,
    TxnVersionScopeError,
    UnknownTopicOrPartitionError,
)
from txlog.testing.failing_store import Fault, SimulatedCrash

every_kind = pytest.mark.parametrize("staged", [False, True, None], ids=["eager", "staged", "deferred"])


def state_of(world: World, transactional_id: str = "loader") -> str:
    return world.open().admin().describe_transaction(transactional_id).state


# -- commit and abort -------------------------------------------------------------------------------------------------


@every_kind
def test_committed_rows_show_and_aborted_never(world, store, staged):
    with store.producer("loader", staged=staged) as producer:
        with producer.transaction() as scope:
            producer.send("orders", orders(1, 2), partition=0)
            producer.send("orders", orders(3), partition=1)
        assert scope.result.txn.state == "COMPLETE_COMMIT"
        producer.begin_transaction()
        producer.send("orders", orders(9), partition=0).result()
        producer.abort_transaction()
        with producer.transaction():
            producer.send("orders", orders(4), partition=0)
    assert world.read() == [1, 2, 4, 3]
    assert world.read(isolation="read_uncommitted") == ([1, 2, 4, 3] if staged else [1, 2, 9, 4, 3])
    for partition in (0, 1):
        _, lso, leo = world.ends(partition=partition)
        assert lso == leo


def test_eager_rows_show_to_read_uncommitted_at_once(world, store):
    with store.producer("loader") as producer:
        producer.begin_transaction()
        assert producer.send("orders", orders(1), partition=0).result().base_offset == 0
        assert world.read() == []
        assert world.read(isolation="read_uncommitted") == [1]
        assert world.ends() == (0, 0, 1)
        producer.commit_transaction()
    assert world.read() == [1]


def test_staged_rows_have_no_offset_before_the_commit_and_hold_nobody_back(world, store):
    with store.producer("loader", staged=True) as producer:
        producer.begin_transaction()
        future = producer.send("orders", orders(1), partition=0)
        producer.flush()
        assert (future.result().base_offset, future.result().timestamp) == (-1, -1)
        assert world.ends() == (0, 0, 0)
        assert world.read(isolation="read_uncommitted") == []
        producer.commit_transaction()
    assert world.ends() == (0, 1, 1)


@pytest.mark.parametrize("again", [False, True])
def test_a_topic_made_anew_does_not_wait_for_a_transaction_of_the_deleted_one(world, store, again):
    old = store.producer("old", transaction_timeout_ms=900_000)
    old.init_transactions()
    old.begin_transaction()
    old.send("orders", orders(1), partition=0).result()
    admin = world.open()
    admin.delete_topic("orders")
    admin.create_topic("orders", ORDERS, 4)
    with world.open().producer("new") as new, new.transaction():
        new.send("orders", orders(2), partition=0)
    assert world.read() == [2]
    _, stable, end = world.ends()
    assert stable == end
    if again:
        # ... until it writes to the new topic: there the transaction is open like any other
        store.runtime.forget_topic("orders")
        old.send("orders", orders(3), partition=0).result()
        assert world.read() == [2]
        assert world.ends()[1:] == (end, end + 1)
        old.commit_transaction()
        assert world.read() == [2, 3]
    else:
        old.abort_transaction()
        assert world.read() == [2]


@every_kind
@pytest.mark.parametrize("when", ["before", "between"])
@pytest.mark.parametrize("anew", [False, True])
def test_rows_for_a_topic_that_was_deleted_fail_the_transaction(world, store, staged, when, anew):
    """The topic is deleted after this producer read its metadata, before the transaction or between its rows and its
    commit."""
    store.create_topic("other", ORDERS)
    admin = world.open()
    with store.producer("loader", staged=staged) as producer:
        with producer.transaction():
            producer.send("orders", orders(1), partition=0)
            producer.send("other", orders(2))
        producer.begin_transaction()
        if when == "between":
            producer.send("other", orders(3))
            producer.flush()
        admin.delete_topic("other")
        if anew:
            admin.create_topic("other", ORDERS)
        producer.send("orders", orders(4), partition=0)
        if when == "before":
            producer.send("other", orders(5))
        if when == "between" and not staged:
            # As in Kafka, the row was in the log, and the deletion has removed it.
            producer.commit_transaction()
            assert world.read() == [1, 4]
            return
        with pytest.raises(UnknownTopicOrPartitionError, match="'other' was deleted"):
            producer.commit_transaction()
        producer.abort_transaction()
        assert world.read() == [1]
        if anew:
            with producer.transaction():
                producer.send("orders", orders(6), partition=0)
                producer.send("other", orders(7))
            assert (world.read(), world.read("other")) == ([1, 6], [7])


def test_a_skipped_transaction_does_not_ask_for_its_topics(world, store):
    with store.producer("loader", staged=True) as producer:
        with producer.transaction(version=3):
            producer.send("orders", orders(1), partition=0)
        producer.begin_transaction()
        producer.send("orders", orders(2), partition=0)
        store.delete_topic("orders")
        assert producer.commit_transaction(version=3).skipped


def test_staged_sends_of_a_partition_are_few_files_and_one_batch(world, store):
    with (
        store.producer("loader", staged=True, inline_max_bytes=0) as producer,
        world.counting.counting() as cost,
        producer.transaction(),
    ):
        for number in range(10):
            producer.send("orders", orders(number), partition=0)
    assert cost.write_file == 1
    assert world.read() == list(range(10))
    assert store.admin().describe_partition("orders", 0).tail_batches == 1


@every_kind
def test_many_rows_in_several_batches(world, store, staged):
    with store.producer("loader", staged=staged, batch_size=100_000) as producer, producer.transaction():
        for start in range(0, 20_000, 5000):
            producer.send("orders", many(5000, start), partition=0)
    assert world.read() == list(range(20_000))


@every_kind
def test_empty_transaction_writes_nothing(world, store, staged):
    with store.producer("loader", staged=staged) as producer:
        with world.counting.counting() as cost:
            with producer.transaction():
                pass
            producer.begin_transaction()
            producer.abort_transaction()
            producer.begin_transaction()
            producer.send_offsets_to_transaction({}, "group")
            producer.commit_transaction()
        assert cost.total == 0
        assert producer.producer_epoch == 0


@every_kind
def test_epoch_moves_with_every_transaction(store, staged):
    with store.producer("loader", staged=staged) as producer:
        assert producer.producer_epoch == 0
        for epoch in (1, 2, 3):
            with producer.transaction():
                producer.send("orders", orders(epoch), partition=0)
            assert producer.producer_epoch == epoch
    with store.producer("loader", staged=staged) as again:
        assert (again.producer_id, again.producer_epoch) == (producer.producer_id, 4)


@every_kind
def test_block_that_raises_is_aborted(world, store, staged):
    def fail(producer):
        with producer.transaction():
            producer.send("orders", orders(1), partition=0)
            raise RuntimeError("mine")

    with store.producer("loader", staged=staged) as producer:
        with pytest.raises(RuntimeError, match="mine"):
            fail(producer)
        with producer.transaction():
            producer.send("orders", orders(2), partition=0)
    assert world.read() == [2]


@every_kind
def test_ctrl_c_in_a_block_aborts(world, store, staged):
    def interrupt(producer):
        with producer.transaction():
            producer.send("orders", orders(1), partition=0)
            raise KeyboardInterrupt

    with store.producer("loader", staged=staged) as producer:
        with pytest.raises(KeyboardInterrupt):
            interrupt(producer)
        with producer.transaction():
            producer.send("orders", orders(2), partition=0)
    assert world.read() == [2]


def test_block_may_end_its_transaction_by_hand(world, store):
    with store.producer("loader") as producer:
        with producer.transaction() as scope:
            producer.send("orders", orders(1), partition=0)
            producer.abort_transaction()
        assert scope.result is None
    assert world.read() == []


def test_closing_aborts_what_is_open(world, store):
    producer = store.producer("loader")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("orders", orders(1), partition=0).result()
    producer.close()
    assert world.read() == []
    assert world.ends() == (0, 2, 2)
    assert state_of(world) == "COMPLETE_ABORT"
    with pytest.raises(IllegalStateError, match="the producer is closed; make a new one"):
        producer.begin_transaction()


def test_rows_that_waited_are_not_sent_by_an_abort(world, store):
    with store.producer("loader", linger_ms=10**6) as producer:
        producer.begin_transaction()
        future = producer.send("orders", orders(1), partition=0)
        producer.abort_transaction()
        with pytest.raises(TransactionAbortedError, match=r"'loader'.*their transaction was aborted first"):
            future.result()
    assert world.read(isolation="read_uncommitted") == []


# -- calls in the wrong state -----------------------------------------------------------------------------------------


def test_calls_in_the_wrong_order_change_nothing(world, store):
    producer = store.producer("loader")
    with pytest.raises(
        IllegalStateError, match=r"begin_transaction\(\) in state UNINITIALIZED: call init_transactions"
    ):
        producer.begin_transaction()
    producer.init_transactions()
    with pytest.raises(IllegalStateError, match=r"init_transactions\(\) in state READY: it was initialised already"):
        producer.init_transactions()
    for call in (
        producer.commit_transaction,
        producer.abort_transaction,
        lambda: producer.send("orders", orders(1)),
        lambda: producer.send_offsets_to_transaction({tp("orders", 0): 1}, "g"),
    ):
        with pytest.raises(
            IllegalStateError, match=r"in state READY: no transaction is open. hint: call begin_transaction"
        ):
            call()
    producer.begin_transaction()
    with pytest.raises(
        IllegalStateError, match=r"begin_transaction\(\) in state IN_TRANSACTION: a transaction is open"
    ):
        producer.begin_transaction()
    producer.send("orders", orders(1), partition=0)
    producer.commit_transaction()
    producer.close()
    assert world.read() == [1]


@pytest.mark.parametrize("timeout_ms", [0, -5, 900_001])
def test_timeout_out_of_range(world, store, timeout_ms):
    with world.counting.counting() as cost, pytest.raises(InvalidTxnTimeoutError, match=r"transaction.timeout.ms"):
        store.producer("loader", transaction_timeout_ms=timeout_ms)
    assert cost.put_if_absent == 0


def test_timeout_at_its_maximum(store):
    with store.producer("loader", transaction_timeout_ms=900_000):
        pass


@pytest.mark.parametrize("bad", ["x" * 1001, "\ud800"])
def test_transactional_id_that_cannot_be(store, bad):
    with pytest.raises(InvalidRequestError, match=r"is not a transactional.id: expected text of 1 to 1000 characters"):
        store.producer(bad)


@pytest.mark.parametrize("version", [-1, True, "7", 2**63])
def test_version_that_cannot_be(store, version):
    with store.producer("loader") as producer, pytest.raises(InvalidRequestError, match=r"is not a txn.version"):
        producer.begin_transaction(version)


def test_the_version_of_a_day_is_a_number(store):
    with store.producer("loader") as producer, pytest.raises(InvalidRequestError) as met:
        producer.begin_transaction("2026-11-24")
    assert met.value.hint == (
        "version=20261124; if an older day may come later, use version=1 and a transactional.id for each day"
    )
    with store.producer("loader") as producer, pytest.raises(InvalidRequestError) as met:
        producer.begin_transaction("7")
    assert met.value.hint == "version=7"


def test_the_scope_of_a_version_is_text_of_bounded_length(store):
    with store.producer("loader") as producer:
        producer.begin_transaction()
        with pytest.raises(InvalidRequestError, match=r"is not a scope of a txn.version: expected text of 1 to 1000"):
            producer.commit_transaction(version=TxnVersion(version=1, scope="q" * 1001))
        producer.abort_transaction()


# -- a second instance ------------------------------------------------------------------------------------------------


def test_close_does_not_advise_to_close(world, store):
    """A staged transaction has nothing in the log yet, so its close() has nothing to abort there."""
    one = store.producer("loader")
    one.init_transactions()
    one.begin_transaction()
    one.send("orders", orders(1, 2), partition=0)
    one.flush()
    with world.open().producer("loader"):
        with pytest.raises(ProducerFencedError, match=r"hint: only the newest instance may go on$") as caught:
            one.close()
        assert "close this producer" not in str(caught.value)
        one.close()


@every_kind
def test_fencing_on_commit(world, store, staged):
    one = store.producer("loader", staged=staged)
    one.init_transactions()
    one.begin_transaction()
    one.send("orders", orders(1, 2), partition=0).add_done_callback(lambda _: None)
    one.flush()
    with world.open().producer("loader", staged=staged) as two:
        with two.transaction():
            two.send("orders", orders(3, 4), partition=0)
        message = (
            "transactional.id 'loader' .* was fenced before it could commit: a newer instance "
            ".*hint: close this producer"
        )
        with pytest.raises(ProducerFencedError, match=message):
            one.commit_transaction()
        for call in (one.commit_transaction, one.abort_transaction, one.begin_transaction):
            with pytest.raises(ProducerFencedError, match="'loader'"):
                call()
        with pytest.raises(ProducerFencedError):
            one.send("orders", orders(5))
        one.close()
        with two.transaction():
            two.send("orders", orders(6), partition=0)
    assert world.read() == [3, 4, 6]
    assert len(world.read(isolation="read_uncommitted")) == (3 if staged else 5)


def test_fencing_on_send_to_a_registered_partition(world, store):
    one = store.producer("loader")
    one.init_transactions()
    one.begin_transaction()
    one.send("orders", orders(1), partition=0).result()
    with world.open().producer("loader"):
        with pytest.raises(InvalidProducerEpochError, match="orders-0"):
            one.send("orders", orders(2), partition=0).result()
        with pytest.raises(InvalidProducerEpochError):
            one.commit_transaction()
        with pytest.raises(ProducerFencedError):
            one.abort_transaction()
        with pytest.raises(ProducerFencedError):
            one.begin_transaction()
    assert world.read(isolation="read_uncommitted") == [1]


def test_fencing_on_the_first_send_to_a_partition(world, store):
    one = store.producer("loader")
    one.init_transactions()
    with world.open().producer("loader"):
        one.begin_transaction()
        future = one.send("orders", orders(1), partition=0)
        assert isinstance(future.exception(timeout=30), ProducerFencedError)
        with pytest.raises(ProducerFencedError):
            one.commit_transaction()
        one.close()


def test_empty_transactions_of_a_fenced_producer_end_without_an_error(world, store):
    one = store.producer("loader")
    one.init_transactions()
    with world.open().producer("loader"), one.transaction():
        pass
    one.close()


def test_init_finishes_what_a_dead_instance_decided(world, store):
    failing, dying = world.failing(Fault(action="crash", match=r"put_if_absent orders/1/.*\"kind\":\"commit\""))
    one = dying.producer("loader")
    one.init_transactions()
    one.begin_transaction()
    one.send("orders", orders(1), partition=0).result()
    one.send("orders", orders(2), partition=1).result()
    with pytest.raises(SimulatedCrash):
        one.commit_transaction()
    assert failing.dead
    assert state_of(world) == "PREPARE_COMMIT"
    with world.open().producer("loader") as two:
        assert world.read() == [1, 2]
        assert two.producer_epoch == 2


def test_id_that_was_forgotten_is_fatal_for_its_instance(world, store):
    with store.producer("loader") as one:
        with one.transaction():
            one.send("orders", orders(1), partition=0)
        assert world.open().admin().expire_id("loader", force=True)
        with pytest.raises(InvalidProducerIdMappingError, match="it is gone"), one.transaction():
            one.send("orders", orders(2), partition=0)
        with pytest.raises(InvalidProducerIdMappingError):
            one.begin_transaction()
    assert world.read() == [1]


# -- timeouts ---------------------------------------------------------------------------------------------------------


def timed_out(world, store):
    producer = store.producer("loader", transaction_timeout_ms=1000)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("orders", orders(1), partition=0).result()
    world.clock.advance_ms(1002)
    assert world.open().admin().expire().aborted == ("loader",)
    return producer


@pytest.mark.parametrize("who", ["a time-out", "an operator"])
@pytest.mark.parametrize(
    "call",
    [
        lambda producer: producer.commit_transaction(),
        lambda producer: producer.send("orders", orders(2), partition=0).result(),
        lambda producer: producer.send("orders", orders(2), partition=1).result(),
        lambda producer: producer.send_offsets_to_transaction({tp("orders", 0): 1}, "g"),
    ],
    ids=["commit", "send", "send to another partition", "send offsets"],
)
def test_every_call_says_alike_that_the_transaction_was_ended_by_another(world, store, who, call):
    if who == "a time-out":
        producer = timed_out(world, store)
    else:
        producer = store.producer("loader")
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("orders", orders(1), partition=0).result()
        world.open().admin().abort_transaction("loader")
    with pytest.raises(InvalidProducerEpochError, match=r"transactional\.id 'loader'") as told:
        call(producer)
    assert len(str(told.value)) <= 300
    with pytest.raises(InvalidProducerEpochError):
        producer.begin_transaction()
    producer.abort_transaction()
    with producer.transaction():
        producer.send("orders", orders(3), partition=0)
    assert world.read() == [3]


def test_abort_after_the_time_out_lets_the_producer_go_on(world, store):
    producer = timed_out(world, store)
    producer.abort_transaction()
    with producer.transaction():
        producer.send("orders", orders(2), partition=0)
    producer.close()
    assert world.read() == [2]


def test_send_after_the_time_out_can_be_aborted(world, store):
    producer = timed_out(world, store)
    with pytest.raises(InvalidProducerEpochError):
        producer.send("orders", orders(3), partition=0).result()
    producer.abort_transaction()
    with producer.transaction():
        producer.send("orders", orders(2), partition=0)
    producer.close()
    assert world.read() == [2]


def test_send_to_a_new_partition_after_the_time_out(world, store):
    producer = timed_out(world, store)
    with pytest.raises(InvalidProducerEpochError, match="abort it, then start a new one"):
        producer.send("orders", orders(3), partition=1).result()
    producer.abort_transaction()
    producer.close()


# -- failed sends -----------------------------------------------------------------------------------------------------


def test_failed_send_makes_the_commit_raise_and_abort_mends_it(world, store):
    _, other = world.failing(Fault(action="fail", match=r"put_if_absent orders/1/.*\"kind\":\"data\"", times=10**6))
    producer = other.producer("loader", staged=False, delivery_timeout_ms=2000, linger_ms=100_000)
    producer.init_transactions()
    producer.begin_transaction()
    good, bad = producer.send("orders", orders(1), partition=0), producer.send("orders", orders(2), partition=1)
    with pytest.raises(TransactionAbortableError, match=r"'loader'.*1 row for orders-1 could not be written"):
        producer.commit_transaction()
    assert good.result().base_offset == 0
    assert isinstance(bad.exception(), TransactionAbortableError)
    for call in (producer.commit_transaction, producer.begin_transaction, producer.flush):
        with pytest.raises(TransactionAbortableError, match="orders-1"):
            call()
    with pytest.raises(TransactionAbortableError):
        producer.send("orders", orders(3), partition=0)
    producer.abort_transaction()
    with producer.transaction():
        producer.send("orders", orders(4), partition=0)
    producer.close()
    assert world.read() == [4]


def test_batches_behind_a_failed_one_fail_with_its_error(world, store):
    _, other = world.failing(Fault(action="fail", match=r"put_if_absent orders/1/.*\"kind\":\"data\"", times=10**6))
    producer = other.producer("loader", delivery_timeout_ms=2000, batch_size=1, linger_ms=0)
    producer.init_transactions()
    producer.begin_transaction()
    with producer._lock:  # the thread must not fail the first row before the last one is sent
        futures = [producer.send("orders", orders(n), partition=1) for n in range(3)]
    errors = [future.exception(timeout=30) for future in futures]
    assert [type(error) for error in errors] == [TransactionAbortableError] * 3
    producer.abort_transaction()
    producer.close()


@pytest.mark.parametrize("staged", [False, True], ids=["eager", "staged"])
def test_context_manager_aborts_when_a_send_failed(world, store, staged):
    verb = "write_file" if staged else r"put_if_absent orders/1/.*\"kind\":\"data\""
    _, other = world.failing(Fault(action="fail", match=verb, times=10**6))
    with other.producer("loader", delivery_timeout_ms=1000, staged=staged) as producer:
        with pytest.raises(TransactionAbortableError, match="orders-1"), producer.transaction():
            producer.send("orders", orders(1), partition=1).exception()
        producer.begin_transaction()
        producer.abort_transaction()
    assert world.read(isolation="read_uncommitted") == []


def test_wrong_rows_are_refused_before_they_harm_the_transaction(world, store):
    with store.producer("loader") as producer, producer.transaction():
        producer.send("orders", orders(1), partition=0)
        with pytest.raises(SchemaMismatchError, match=r"'orders'.*'nane'"):
            producer.send("orders", [{"id": 2, "nane": "x"}])
    assert world.read() == [1]


def test_dead_thread_makes_the_commit_raise(world, store):
    _, dying = world.failing(Fault(action="crash", match=r"put_if_absent orders/0/"))
    producer = dying.producer("loader")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("orders", orders(1), partition=0)
    with pytest.raises(SimulatedCrash):
        producer.commit_transaction()


# -- unknown outcomes -------------------------------------------------------------------------------------------------


@every_kind
@pytest.mark.parametrize("state", ["PREPARE_COMMIT", "COMPLETE_COMMIT"])
def test_lost_reply_of_a_commit_is_settled(world, store, staged, state):
    _, other = world.failing(
        Fault(action="lose_reply", moment="after", match=rf"put_if_absent __transaction_state/.*{state}")
    )
    with other.producer("loader", staged=staged) as producer:
        for number in range(3):
            with producer.transaction():
                producer.send("orders", orders(number), partition=0)
    assert world.read() == [0, 1, 2]


@every_kind
@pytest.mark.parametrize("landed", [False, True])
def test_commit_that_ran_out_of_time_may_be_repeated(world, store, staged, landed):
    outage, other = out_of_time(world, landed)
    with other.producer("loader", staged=staged) as producer:
        commit_out_of_time(producer, outage, landed)
        for call in (producer.begin_transaction, lambda: producer.send("orders", [])):
            with pytest.raises(
                IllegalStateError, match=r"outcome of a commit is still unknown\. hint: call commit_transaction"
            ):
                call()
        assert state_of(world) == ("PREPARE_COMMIT" if landed else "EMPTY" if staged else "ONGOING")
        outage.pattern = None
        assert producer.commit_transaction().txn.state == "COMPLETE_COMMIT"
        with producer.transaction():
            producer.send("orders", orders(3), partition=0)
    assert world.read() == [1, 3]


@every_kind
@pytest.mark.parametrize("landed", [False, True])
def test_an_abort_after_a_commit_that_ran_out_of_time_says_what_won(world, store, staged, landed):
    outage, other = out_of_time(world, landed)
    with other.producer("loader", staged=staged) as producer:
        commit_out_of_time(producer, outage, landed)
        outage.pattern = None
        if landed:
            with pytest.raises(IllegalStateError, match="cannot be aborted: it is committed"):
                producer.abort_transaction()
        else:
            producer.abort_transaction()
        assert world.read() == ([1] if landed else [])
        with producer.transaction():
            producer.send("orders", orders(3), partition=0)
    assert world.read() == ([1, 3] if landed else [3])


def out_of_time(world, landed):
    faults = [Fault(action="lose_reply", moment="after", match="put_if_absent .*PREPARE_COMMIT")] if landed else []
    return world.outage(*faults, max_block_ms=300)


def commit_out_of_time(producer, outage, landed):
    producer.begin_transaction()
    producer.send("orders", orders(1), partition=0)
    producer.flush()
    outage.pattern = "get __transaction_state" if landed else "__transaction_state"
    with pytest.raises(OutcomeUnknownError, match=r"'loader'.*commit_transaction did not finish within 300 ms"):
        producer.commit_transaction()


@pytest.mark.parametrize("decided", [False, True])
def test_closing_with_an_unknown_commit_settles_it(world, store, decided):
    outage, other = world.outage(max_block_ms=300)
    producer = other.producer("loader")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("orders", orders(1), partition=0).result()
    outage.pattern = "put_if_absent orders/" if decided else "put_if_absent __transaction_state/"
    with pytest.raises(OutcomeUnknownError, match="orders/0" if decided else "within 300 ms"):
        producer.commit_transaction()
    outage.pattern = None
    producer.close()
    assert world.read() == ([1] if decided else [])
    assert world.ends()[1] == world.ends()[2] == 2


def test_a_commit_in_doubt_names_the_call_to_repeat(world, store):
    outage, other = world.outage(max_block_ms=300)
    with other.producer("loader") as producer:

        def transaction():
            with producer.transaction():
                producer.send("orders", orders(1), partition=0).result()
                outage.pattern = "put_if_absent __transaction_state/"

        with pytest.raises(OutcomeUnknownError, match=r"The call to repeat is producer\.commit_transaction\(\)"):
            transaction()
        outage.pattern = None
        assert producer.commit_transaction().txn.state == "COMPLETE_COMMIT"
    assert world.read() == [1]


def test_closing_with_an_unknown_commit_gives_up_soon(world, store):
    outage, other = world.outage(max_block_ms=60_000)
    clock = other.runtime.clock
    producer = other.producer("loader")
    began_ms = clock.monotonic_ms()

    def transaction():
        with producer, producer.transaction():
            producer.send("orders", orders(1), partition=0).result()
            outage.pattern = "__transaction_state"

    with pytest.raises(OutcomeUnknownError, match="commit_transaction") as raised:
        transaction()
    took_ms = clock.monotonic_ms() - began_ms
    assert 60_000 <= took_ms < 60_000 + 2 * SETTLE_MS
    (note,) = raised.value.__notes__
    assert "hint: see `txlog transactions describe loader`;" in note
    outage.pattern = None


def test_init_that_ran_out_of_time_may_be_repeated(world, store):
    outage, other = world.outage(max_block_ms=300)
    producer = other.producer("loader")
    outage.pattern = "put_if_absent __transaction_state/"
    late = (
        r"'loader'.*init_transactions did not finish within 300 ms \(max.block.ms\).* "
        r"hint: repeat the same call: it joins"
    )
    with pytest.raises(TxlogTimeoutError, match=late):
        producer.init_transactions()
    outage.pattern = None
    producer.init_transactions()
    producer.close()


def test_abort_that_ran_out_of_time_may_be_repeated(world, store):
    outage, other = world.outage(max_block_ms=300)
    producer = other.producer("loader")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("orders", orders(1), partition=0).result()
    outage.pattern = "put_if_absent __transaction_state/"
    with pytest.raises(TxlogTimeoutError, match="abort_transaction did not finish"):
        producer.abort_transaction()
    with pytest.raises(IllegalStateError, match="an abort has not finished"):
        producer.commit_transaction()
    outage.pattern = None
    producer.abort_transaction()
    with producer.transaction():
        producer.send("orders", orders(2), partition=0)
    producer.close()
    assert world.read() == [2]


# -- versions ---------------------------------------------------------------------------------------------------------


@every_kind
def test_version_that_was_committed_is_skipped(world, store, staged):
    with store.producer("loader", staged=staged) as producer:
        for version, skipped in ((3, False), (3, True), (2, True), (4, False)):
            with producer.transaction(version) as scope:
                producer.send("orders", orders(version), partition=0)
            assert scope.result.skipped is skipped
    with world.open().producer("loader", staged=staged) as producer:
        producer.begin_transaction()
        producer.send("orders", orders(4), partition=0)
        assert producer.commit_transaction(version=4).skipped
    assert world.read() == [3, 4]
    assert world.ends()[1] == world.ends()[2]


@every_kind
def test_a_repeated_version_writes_nothing(world, store, staged, caplog):
    """A job that starts again every night must not leave its whole input behind each time."""

    def run(version=7):
        with world.open().producer("loader", staged=staged) as producer:
            with producer.transaction(version) as scope:
                sent = producer.send("orders", orders(1), partition=0)
                producer.send_offsets_to_transaction({tp("orders", 1): 3}, "g")
            return sent.result(20), scope.result.skipped

    run()
    before = world.ends()
    with caplog.at_level("INFO"), world.counting.counting() as cost:
        done, skipped = run()
    assert skipped
    assert done.records == 0
    assert "version 7 was committed before (now 7)" in caplog.text
    assert (cost.put_if_absent, cost.write_file) == (1, 0), "the init of the new instance, and nothing else"
    assert world.ends() == before
    assert store.admin().describe_transaction("loader").state == "EMPTY", "no abort, which would look like a failure"


@every_kind
@pytest.mark.parametrize("at_begin", [True, False])
def test_a_version_is_not_skipped_for_a_topic_that_it_was_not_committed_for(world, store, staged, at_begin):
    store.create_topic("audit", ORDERS)
    with store.producer("loader", staged=staged) as producer:
        with producer.transaction(7):
            producer.send("orders", orders(1), partition=0)
        producer.begin_transaction(7 if at_begin else None)
        refused = "version 7: it was committed for orders, so the rows for audit"
        if not at_begin:
            producer.send("audit", orders(2))
        with pytest.raises(InvalidRequestError, match=refused):
            producer.send("audit", orders(2)) if at_begin else producer.commit_transaction(version=7)
        producer.abort_transaction()
        with producer.transaction(8):
            producer.send("audit", orders(2))
    assert store.admin().list_offsets("audit")[tp("audit", 0)].offset > 0
    assert world.read() == [1]


def test_what_was_dropped_as_repeated_cannot_be_committed_as_another_version(world, store):
    with store.producer("loader") as producer:
        with producer.transaction(3):
            producer.send("orders", orders(1), partition=0)
        producer.begin_transaction(3)
        producer.send("orders", orders(2), partition=0)
        with pytest.raises(InvalidRequestError, match=r"rows were dropped; it cannot be committed as .*version=4"):
            producer.commit_transaction(version=4)
        producer.abort_transaction()
    assert world.read() == [1]


def test_empty_transaction_with_a_version_is_remembered(world, store):
    with store.producer("loader") as producer:
        with producer.transaction(7):
            pass
        with producer.transaction(7) as scope:
            producer.send("orders", orders(1), partition=0)
        assert scope.result.skipped
    assert store.admin().describe_transaction("loader").txn_version == 7
    assert world.read() == []


@every_kind
def test_version_of_another_scope_is_an_error(world, store, staged):
    with store.producer("loader", staged=staged) as producer:
        with producer.transaction(TxnVersion(version=1, scope="query-a")):
            producer.send("orders", orders(1), partition=0)
        with (
            pytest.raises(TxnVersionScopeError, match=r"'query-a'.*'query-b'.*txlog transactions expire"),
            producer.transaction(TxnVersion(version=5, scope="query-b")),
        ):
            producer.send("orders", orders(2), partition=0)
        with producer.transaction(TxnVersion(version=2, scope="query-a")):
            producer.send("orders", orders(3), partition=0)
    assert world.read() == [1, 3]


# -- a crash anywhere -------------------------------------------------------------------------------------------------


@every_kind
def test_crash_at_each_operation_of_a_commit_is_all_or_nothing(staged):
    begun, operations = _commit_or_die(World(), staged)
    assert len(operations) - begun > 6
    outcomes = set()
    for number in range(begun + 1, len(operations) + 1):
        for moment in ("before", "after"):
            world = World()
            _commit_or_die(world, staged, Fault(action="crash", moment=moment, number=number))
            with world.open().producer("loader"):
                pass
            committed, raw = world.read(), world.read(isolation="read_uncommitted")
            assert committed in ([], [1, 2]), (moment, operations[number - 1])
            assert set(committed) <= set(raw) <= {1, 2}
            for partition in (0, 1):
                _, lso, leo = world.ends(partition=partition)
                assert lso == leo, (moment, operations[number - 1])
            outcomes.add(len(committed))
            world.close()
    assert outcomes == {0, 2}


def _commit_or_die(world: World, staged: bool, *faults: Fault) -> tuple[int, tuple[str, ...]]:
    """Commit two partitions in a process, or die. Return its operations, and how many came before the commit."""
    world.open().create_topic("orders", ORDERS, partitions=2)
    failing, store = world.failing(*faults)
    producer = store.producer("loader", staged=staged, linger_ms=10**6)
    producer.init_transactions()
    store.runtime.topic("orders")
    begun = len(failing.operations)
    try:
        with producer.transaction():
            producer.send("orders", orders(1), partition=0)
            producer.send("orders", orders(2), partition=1)
    except SimulatedCrash:
        store.runtime.close()
    return begun, failing.operations
