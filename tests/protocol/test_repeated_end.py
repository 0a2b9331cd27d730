"""A commit whose first try won without a reply is repeated after another instance took over: the answer stays
"committed"."""

from __future__ import annotations

import pytest

from lab.older_writers import staged_offsets
from tests.protocol.harness import A, context
from txlog.core.append_rules import BatchDraft
from txlog.core.names import TopicPartition
from txlog.core.records import OffsetValue, StagedPart, TransactionMetadata
from txlog.errors import IllegalStateError, ProducerFencedError
from txlog.protocol.append import append_batch
from txlog.protocol.context import Views
from txlog.protocol.transactions import add_partitions, end_transaction, init_producer
from txlog.storage.driver import Driver
from txlog.storage.memory import MemoryObjectStore
from txlog.testing.clock import ManualClock, SeededIds

CTX = context()
NOTHING: Views = {}


@pytest.fixture
def driver() -> Driver:
    return Driver(MemoryObjectStore(), ManualClock(), SeededIds())


def take_over(driver: Driver) -> TransactionMetadata:
    _, txn = driver.run(init_producer(CTX, NOTHING, "id", 60_000))
    return txn


def parts() -> tuple[StagedPart, ...]:
    return staged_offsets("group", {TopicPartition("t", 0): OffsetValue(offset=5)}, CTX.constants, 0)


def test_the_commit_is_answered_as_the_commit_that_it_was(driver: Driver) -> None:
    old = take_over(driver)
    driver.run(end_transaction(CTX, NOTHING, old, True, parts()))
    newer = take_over(driver)
    assert newer.producer_epoch == old.producer_epoch + 2

    _, repeated = driver.run(end_transaction(CTX, NOTHING, old, True, parts()))

    assert (repeated.skipped, repeated.already_committed) == (False, False)
    assert repeated.txn.last_epoch == old.producer_epoch
    with pytest.raises(ProducerFencedError):
        driver.run(end_transaction(CTX, NOTHING, repeated.txn, True, parts()))


def test_an_abort_is_told_that_the_commit_had_won(driver: Driver) -> None:
    old = take_over(driver)
    driver.run(end_transaction(CTX, NOTHING, old, True, parts()))
    take_over(driver)

    _, aborted = driver.run(end_transaction(CTX, NOTHING, old, False))

    assert aborted.already_committed


def test_without_a_commit_of_its_epoch_the_older_instance_is_fenced(driver: Driver) -> None:
    old = take_over(driver)
    newer = take_over(driver)
    driver.run(end_transaction(CTX, NOTHING, newer, True, parts()))

    with pytest.raises(ProducerFencedError, match="newer instance"):
        driver.run(end_transaction(CTX, NOTHING, old, True, parts()))


def test_the_answer_to_a_repeated_commit_has_no_partition_registered(driver: Driver) -> None:
    # A producer that took it as registered would append without a registration. The fold cannot detect that, and no
    # marker would end the rows.
    old = take_over(driver)
    _, ongoing = driver.run(add_partitions(CTX, NOTHING, old, [A]))
    assert isinstance(ongoing, TransactionMetadata)
    driver.run(append_batch(CTX, NOTHING, A, draft(ongoing), ongoing))
    driver.run(end_transaction(CTX, NOTHING, ongoing, True))
    take_over(driver)

    _, repeated = driver.run(end_transaction(CTX, NOTHING, ongoing, True))

    assert (repeated.txn.state, repeated.txn.partitions) == ("COMPLETE_COMMIT", ())
    with pytest.raises(IllegalStateError):
        driver.run(append_batch(CTX, NOTHING, A, draft(repeated.txn), repeated.txn))
    with pytest.raises(ProducerFencedError):
        driver.run(add_partitions(CTX, NOTHING, repeated.txn, [A]))


def draft(txn: TransactionMetadata) -> BatchDraft:
    return BatchDraft(
        records=1,
        producer_id=txn.producer_id,
        producer_epoch=txn.producer_epoch,
        base_sequence=0,
        transactional=True,
        payload=b"row",
    )
