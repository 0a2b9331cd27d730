"""Maintenance deletes a batch's slot before its writer wakes up.

The writer must not claim more than the state proves.
"""

from __future__ import annotations

import pytest

from tests.protocol.harness import GRACE_MS, PRODUCER_IDLE_MS, A, Cluster, Process, Task, is_put, rolling
from txlog.errors import InvalidProducerEpochError, OutcomeUnknownError
from txlog.protocol import expiry

CTX = rolling(1)


def asleep_after_its_put(cluster: Cluster) -> tuple[Process, Task]:
    """Return a writer in its transaction. Its row is in the log, but the writer does not know that yet."""
    writer = Process(cluster, "x", CTX)
    writer.do(writer.init())
    writer.do(writer.register(A))
    task = writer.start(writer.append(A, writer.draft(A, "row")))
    task.run(until=is_put("orders/0/"))
    cluster.pass_ms(
        CTX.max_view_age_ms
    )  # so it has to look at the boundaries afterwards, and sleeps again before it does
    task.step()
    assert "row" in cluster.read(A, "read_uncommitted").values()
    return writer, task


def take_over_and_clean(cluster: Cluster) -> None:
    newer = Process(cluster, "x", CTX)
    newer.do(newer.init())
    newer.do(newer.send(A, "later"))
    newer.do(newer.commit())
    newer.do(newer.complete())
    newer.do(newer.seal(A))
    cluster.pass_ms(GRACE_MS)
    cluster.clean_tail(A)


def test_a_refusal_by_a_newer_epoch_does_not_say_that_the_row_is_not_there() -> None:
    cluster = Cluster()
    writer, task = asleep_after_its_put(cluster)
    take_over_and_clean(cluster)

    task.run()

    assert "row" in cluster.read(A, "read_uncommitted").values()
    with pytest.raises(OutcomeUnknownError):
        _ = task.result
    with pytest.raises(InvalidProducerEpochError):  # this is a new call, and it wrote nothing
        writer.do(writer.append(A, writer.draft(A, "row")))


def test_nor_does_a_fold_that_has_forgotten_the_producer() -> None:
    cluster = Cluster()
    _, task = asleep_after_its_put(cluster)
    take_over_and_clean(cluster)
    cluster.pass_ms(PRODUCER_IDLE_MS)
    _, gone = cluster.run(expiry.expire_producers(CTX, {}, A))
    assert gone

    task.run()

    with pytest.raises(OutcomeUnknownError):
        _ = task.result


def test_the_same_epoch_says_it() -> None:
    # Rows of another producer roll and seal the segment. The writer's own transaction is open, and its row is
    # recognised.
    cluster = Cluster()
    _, task = asleep_after_its_put(cluster)
    other = Process(cluster, "", CTX)
    other.do(other.idempotent())
    for word in ("one", "two"):
        other.do(other.append(A, other.draft(A, word)))
    cluster.pass_ms(GRACE_MS)
    cluster.clean_tail(A)

    task.run()

    assert task.result.base_offset == 0
    assert task.result.duplicate
