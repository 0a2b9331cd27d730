"""Several processes live in one here: they must not share what each process has for itself."""

from __future__ import annotations

import threading

import pytest


@pytest.fixture(autouse=True)
def processes_share_no_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a process that is paused hold the lock of the probe, which is one for all processes of a test."""
    monkeypatch.setattr("txlog.storage.open._PROBED_LOCK", threading.RLock())
