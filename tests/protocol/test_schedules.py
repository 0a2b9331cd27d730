"""Minimal schedules of faults that an exhaustive exploration or a reader of the code once found, each as it
happened."""

from __future__ import annotations

import msgspec
import pytest

from tests.protocol.harness import PRODUCER_IDLE_MS, A, B, Cluster, Process, context, rolling
from txlog.core import envelope
from txlog.core.snapshot_state import to_snapshot
from txlog.errors import RecordTooLargeError
from txlog.protocol import expiry
from txlog.protocol.load import load
from txlog.protocol.seal import seal
from txlog.protocol.table import state_partition


def test_a_snapshot_that_no_reader_would_take_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many producers come and go without maintenance: a writer that rolls must not seal the partition for ever."""
    cluster, ctx = Cluster(), rolling(8)
    writers = [Process(cluster, ctx=ctx) for _ in range(9)]
    for number, writer in enumerate(writers[:8]):
        writer.do(writer.idempotent())
        writer.do(writer.send(A, f"w{number}"))
    limit = len(envelope.encode(to_snapshot(cluster.state(A)))) - 1
    monkeypatch.setattr(envelope, "MAX_OBJECT_BYTES", limit)
    before = set(cluster.objects)
    writers[8].do(writers[8].idempotent())
    assert writers[8].do(writers[8].send(A, "w8")).base_offset == 8  # rolls; sealing gives up without harm
    assert {path for path in cluster.objects if not path.endswith(".batch")} <= before
    with pytest.raises(RecordTooLargeError, match="stays unsealed"):
        cluster.run(seal(ctx, cluster.run(load(ctx, A))))
    assert list(cluster.read(A).values()) == [f"w{number}" for number in range(9)]
    cluster.check()


def test_a_registration_leaves_room_for_the_abort(monkeypatch: pytest.MonkeyPatch) -> None:
    """If an ONGOING record is just below the limit, no process can end it, and its rows hold the LSO for ever (W43)."""
    trial = Cluster()
    process = Process(trial)
    process.do(process.init())
    process.do(process.register(A, B))
    size = len(trial.batches(state_partition(process.ctx, "x"))[-1].data)

    cluster = Cluster()
    process = Process(cluster)
    process.do(process.init())
    monkeypatch.setattr(envelope, "MAX_COMMIT_BYTES", size)
    with pytest.raises(RecordTooLargeError):
        process.do(process.register(A, B))
    found = cluster.txn()
    assert found is not None
    assert found.state == "EMPTY"


def test_a_staged_commit_leaves_room_for_what_its_record_may_grow_by(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a commit is decided just below the limit, no process can roll it forward: offsets and times have more digits
    then."""
    monkeypatch.setattr(envelope, "MAX_COMMIT_BYTES", 4096)
    cluster = Cluster()
    process = Process(cluster)
    process.do(process.init())
    good = process.stage(A, "a")
    for length in range(1000, 1600, 10):
        file = msgspec.structs.replace(good.files[0], statistics={"1": ("x" * length, "x" * length, 0)})
        try:
            process.do(process.commit(staged=[msgspec.structs.replace(good, files=(file,))]))
        except RecordTooLargeError:
            break
        good = process.stage(A, "a")
    else:
        pytest.fail("nothing was too large")
    assert max(len(stored.data) for stored in cluster.batches(A)) < 4096 - 512
    found = cluster.txn()
    assert found is not None
    assert found.state == "PREPARE_COMMIT"
    process.do(process.init())  # rolls it forward


def test_more_idle_producers_than_one_record_may_name_go_one_record_after_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With 200,000 producers the one record was too large, every pass failed, and the state could only grow (W43)."""
    cluster = Cluster()
    monkeypatch.setattr(expiry, "MAX_EXPIRED_PRODUCERS", 2)
    writers = [Process(cluster) for _ in range(3)]
    for writer in writers:
        writer.do(writer.idempotent())
        writer.do(writer.send(A, "a"))
    cluster.pass_ms(PRODUCER_IDLE_MS)
    gone = [cluster.run(expiry.expire_producers(context(), {}, A))[1] for _ in range(3)]
    assert gone == [(writers[0].pid, writers[1].pid), (writers[2].pid,), ()]
    assert cluster.kinds(A) == "dddee"
