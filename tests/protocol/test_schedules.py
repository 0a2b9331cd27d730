"""Minimal schedules of faults that an exhaustive exploration, or a reader of the code, once found; each as it happened."""

from __future__ import annotations

import pytest

from tests.protocol.harness import A, Cluster, Process, rolling
from txlog.core import envelope
from txlog.core.state import to_snapshot
from txlog.errors import RecordTooLargeError
from txlog.protocol.load import load
from txlog.protocol.seal import seal


def test_a_snapshot_that_no_reader_would_take_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Producers that come and go without maintenance: the writer that rolled used to seal the partition shut."""
    cluster, ctx = Cluster(), rolling(8)
    writers = [Process(cluster, ctx=ctx) for _ in range(9)]
    for number, writer in enumerate(writers[:8]):
        writer.do(writer.idempotent())
        writer.do(writer.send(A, f"w{number}"))
    limit = len(envelope.encode(to_snapshot(cluster.state(A)))) - 1
    monkeypatch.setattr(envelope, "MAX_OBJECT_BYTES", limit)
    before = set(cluster.objects)
    writers[8].do(writers[8].idempotent())
    assert writers[8].do(writers[8].send(A, "w8")).base_offset == 8  # rolls, and its sealing gives up without harm
    assert {path for path in cluster.objects if not path.endswith(".batch")} <= before
    with pytest.raises(RecordTooLargeError, match="stays unsealed"):
        cluster.run(seal(ctx, cluster.run(load(ctx, A))))
    assert list(cluster.read(A).values()) == [f"w{number}" for number in range(9)]
    cluster.check()
