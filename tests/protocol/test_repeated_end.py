"""A commit whose first try won unseen, repeated after another instance has taken over: the answer is the commit's."""

from __future__ import annotations

import pytest

from tests.protocol.harness import context
from txlog.core.names import TopicPartition
from txlog.core.records import OffsetValue, StagedPart, TransactionMetadata
from txlog.errors import ProducerFencedError
from txlog.protocol.context import Views
from txlog.protocol.groups import staged_offsets
from txlog.protocol.transactions import end_transaction, init_producer
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
