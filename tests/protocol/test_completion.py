"""What follows a PREPARE_* whose markers are all in (PROTOCOL.md, W25, W27)?"""

from __future__ import annotations

from typing import Any

import pytest

from lab.simulate.cluster import DiedError
from tests.protocol.harness import A, B, Cluster, Process, context, nth_put
from txlog.core.records import TransactionEntry
from txlog.errors import InvalidProducerIdMappingError, OutcomeUnknownError, ProducerFencedError
from txlog.protocol import expiry, snapshot, transactions
from txlog.protocol.context import PROOF_AGE_MS
from txlog.protocol.load import gather_fresh_views, load
from txlog.protocol.table import state_partition

HOUR_MS = 3_600_000
TABLE = state_partition(context(), "x")


def states(cluster: Cluster, transactional_id: str = "x") -> list[str]:
    """Return the states of an id in the order of the table, "gone" for a tombstone."""
    entries = [
        entry
        for record in cluster.records(state_partition(context(), transactional_id))
        for entry in record.entries
        if isinstance(entry, TransactionEntry) and entry.key == transactional_id
    ]
    return [entry.value.state if entry.value is not None else "gone" for entry in entries]


def committed(*, staged: bool = False) -> tuple[Cluster, Process]:
    """Return an owner whose commit has returned; nothing follows its PREPARE_COMMIT."""
    cluster = Cluster()
    process = Process(cluster, "x")
    process.do(process.init())
    for tp, word in ((A, "a"), (B, "b")):
        if staged:
            process.stage(tp, word)
        else:
            process.do(process.send(tp, word))
    process.do(process.commit())
    assert states(cluster)[-1] == "PREPARE_COMMIT"
    assert (list(cluster.read(A).values()), list(cluster.read(B).values())) == (["a"], ["b"])
    return cluster, process


def test_an_eager_transaction_follows_the_decision_of_the_last_one() -> None:
    cluster, process = committed()
    process.do(process.send(A, "next"))
    process.do(process.abort())
    process.do(process.send(A, "last"))
    process.do(process.commit())
    process.do(process.complete())
    opened = ["ONGOING", "ONGOING"]  # one record for each partition
    assert states(cluster) == [
        *[
            "EMPTY",
            *opened,
            "PREPARE_COMMIT",
            "ONGOING",
            "PREPARE_ABORT",
            "ONGOING",
            "PREPARE_COMMIT",
            "COMPLETE_COMMIT",
        ]
    ]
    assert list(cluster.read(A).values()) == ["a", "last"]
    cluster.check()


def test_a_staged_transaction_follows_the_decision_of_the_last_one() -> None:
    cluster, process = committed(staged=True)
    process.stage(A, "next")
    process.do(process.commit())
    assert states(cluster) == ["EMPTY", "PREPARE_COMMIT", "PREPARE_COMMIT"]
    assert list(cluster.read(A).values()) == ["a", "next"]
    cluster.check()


@pytest.mark.parametrize("sweeps", [0, 1])
def test_the_tombstone_of_a_drawn_id_follows_its_decision(sweeps: int) -> None:
    cluster, process = committed(staged=True)
    for _ in range(sweeps):
        assert cluster.run(expiry.expire(context(), {}))[1].rolled_forward == ("x",)
    assert cluster.run(expiry.remove_own(context(), process.views, process.identity))[1] is True
    assert states(cluster) == ["EMPTY", "PREPARE_COMMIT", *["COMPLETE_COMMIT"] * sweeps, "gone"]
    with pytest.raises(InvalidProducerIdMappingError):
        process.do(process.send(A, "later"))
    assert list(cluster.read(A).values()) == ["a"]


def test_an_operator_s_tombstone_follows_complete() -> None:
    cluster, _ = committed(staged=True)
    assert cluster.run(expiry.remove(context(), {}, "x", force=True))[1] is False
    assert cluster.run(expiry.finish_and_remove(context(), {}, "x"))[1] is True
    assert states(cluster)[-3:] == ["PREPARE_COMMIT", "COMPLETE_COMMIT", "gone"]


def test_an_owner_that_last_looked_long_ago_rolls_forward() -> None:
    """A store that was put back meanwhile may lack the markers (W25, W47)."""
    cluster, process = committed(staged=True)
    cluster.pass_ms(PROOF_AGE_MS)
    process.stage(A, "next")
    process.do(process.commit())
    assert states(cluster) == ["EMPTY", "PREPARE_COMMIT", "COMPLETE_COMMIT", "PREPARE_COMMIT"]
    cluster.pass_ms(PROOF_AGE_MS)
    assert cluster.run(expiry.remove_own(context(), process.views, process.identity))[1] is True
    assert states(cluster)[-3:] == ["PREPARE_COMMIT", "COMPLETE_COMMIT", "gone"]
    cluster.check()


def test_an_older_instance_removes_nothing() -> None:
    cluster, process = committed(staged=True)
    newer = Process(cluster, "x")
    newer.do(newer.init())
    assert cluster.run(expiry.remove_own(context(), {}, process.identity))[1] is False


def test_a_commit_that_hung_keeps_its_drawn_id_for_the_grace() -> None:
    """Its markers came just now, and a snapshot that is in use may have seen one of them only (W32, C3)."""
    cluster = Cluster()
    process = Process(cluster, "x")
    process.do(process.init())
    process.stage(A, "a")
    task = process.start(process.commit())
    while states(cluster)[-1] != "PREPARE_COMMIT":
        task.step()
    cluster.pass_ms(context().constants.delete_grace_ms)
    task.run()
    owner = task.result.txn
    views = {TABLE: cluster.run(load(context(), TABLE))}
    assert cluster.run(expiry.remove_own(context(), views, owner))[1] is False
    cluster.run(transactions.complete(context(), views, owner))
    assert states(cluster) == ["EMPTY", "PREPARE_COMMIT", "COMPLETE_COMMIT"]


def test_a_successor_finds_the_markers_and_writes_none_again() -> None:
    cluster, process = committed()
    newer = Process(cluster, "x")
    newer.do(newer.init())
    assert states(cluster)[-3:] == ["PREPARE_COMMIT", "COMPLETE_COMMIT", "EMPTY"]
    assert (cluster.kinds(A), cluster.kinds(B)) == ("dc", "dc")
    with pytest.raises(ProducerFencedError):
        process.do(process.send(A, "late"))
    cluster.check()


def test_an_owner_goes_on_after_another_process_has_completed_its_transaction() -> None:
    cluster, process = committed()
    cluster.run(expiry.expire(context(), {}))
    process.do(process.complete())  # finds nothing to do on a fresh table
    process.do(process.send(A, "next"))
    process.do(process.commit())
    assert states(cluster)[-4:] == ["PREPARE_COMMIT", "COMPLETE_COMMIT", "ONGOING", "PREPARE_COMMIT"]
    assert (cluster.kinds(A), cluster.kinds(B)) == ("dcdc", "dc")


def test_a_late_complete_leaves_a_newer_record_alone() -> None:
    cluster, process = committed()
    views, ended = process.views, process.identity
    process.do(process.send(A, "next"))
    cluster.run(transactions.complete(context(), views, ended))
    assert states(cluster)[-2:] == ["PREPARE_COMMIT", "ONGOING"]


def test_an_end_that_did_not_see_every_marker_claims_nothing() -> None:
    """The end dies before the second marker. The next call of the same instance finishes it first."""
    cluster = Cluster()
    process = Process(cluster, "x")
    process.do(process.init())
    process.do(process.send(A, "a"))
    process.do(process.send(B, "b"))
    process.faults = nth_put(1, "error", B.folder)
    with pytest.raises(OutcomeUnknownError):
        process.do(process.commit())
    process.faults = lambda _, __: None
    assert states(cluster)[-1] == "PREPARE_COMMIT"
    process.do(process.commit())
    assert states(cluster)[-1] == "COMPLETE_COMMIT"
    assert list(cluster.read(B).values()) == ["b"]


def test_a_snapshot_shows_a_commit_that_has_returned() -> None:
    cluster, process = committed()

    def shown() -> Any:
        views, cut = cluster.run(snapshot.take_snapshot(context(), {}, [A]))
        return [cut.hides(stored.record) for stored in views[A].tail if stored.record.kind == "data"]

    assert shown() == [False]
    process.do(process.send(A, "open"))
    assert shown() == [False, True]


def test_no_producer_expires_before_its_decision_is_completed() -> None:
    cluster, process = committed()
    cluster.pass_ms(context().constants.producer_id_expiration_ms + 2 * HOUR_MS)
    assert cluster.run(expiry.expire_producers(context(), {}, A))[1] == ()
    process.views = cluster.run(gather_fresh_views(context(), process.views, list(process.views)))
    process.do(process.complete())
    assert cluster.run(expiry.expire_producers(context(), {}, A))[1] == (process.pid,)


def test_a_crash_before_complete_leaves_no_trace() -> None:
    cluster, process = committed()
    process.faults = nth_put(1, "crash", "__transaction_state")
    with pytest.raises(DiedError):
        process.do(process.complete())
    newer = Process(cluster, "x")
    newer.do(newer.init())
    newer.do(newer.send(A, "next"))
    newer.do(newer.commit())
    assert list(cluster.read(A).values()) == ["a", "next"]
    cluster.check()
