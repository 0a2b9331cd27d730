"""Decode each stored record once, so that tests can open the same few records a hundred thousand times."""

from __future__ import annotations

from functools import lru_cache

import pytest

from tests.protocol import harness
from txlog.core.record_checks import stored_record, stored_records
from txlog.protocol import load, slot_record

_decoded_once = lru_cache(maxsize=20_000)(stored_records)
_encoded_once = lru_cache(maxsize=20_000)(stored_record)


@pytest.fixture(autouse=True)
def decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Return the same decoded value for the same bytes, partition and slot. The codec has its own tests."""
    for module in (load, harness):
        monkeypatch.setattr(module, "stored_records", _decoded_once)
    monkeypatch.setattr(slot_record, "stored_record", _encoded_once)
