"""A short version of the long run: a store with maintenance stops growing after a grace or two, and loses nothing."""

from __future__ import annotations

import pytest

from benchmarks.specs import long_run


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set a grace of 16 transactions, small segments and few samples."""
    monkeypatch.setattr(long_run, "TRANSACTION_MS", long_run.GRACE_MS // 16)
    monkeypatch.setattr(long_run, "MAINTAIN_EVERY", 8)
    monkeypatch.setattr(long_run, "SEGMENT_BATCHES", 10)
    monkeypatch.setattr(long_run, "SAMPLES", 12)
    monkeypatch.setattr(long_run, "PLANS", 1)


@pytest.mark.usefixtures("short")
def test_a_maintained_store_stays_flat() -> None:
    kept, control = (long_run.run(120, maintained=maintained) for maintained in (True, False))
    assert kept.rows == control.rows > 1_000
    assert [name for name in long_run.FIGURES if not kept.is_flat(name)] == []
    assert not control.is_flat("objects")
    assert kept.samples[-1].objects * 2 < control.samples[-1].objects
