"""What makes some hundred thousand openings of the same few records affordable."""

from __future__ import annotations

from functools import lru_cache

import pytest

from tests.protocol import harness
from txlog.core.state import stored_record
from txlog.protocol import load

_decoded_once = lru_cache(maxsize=20_000)(stored_record)


@pytest.fixture(autouse=True)
def decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stored record is a value of its bytes, its partition and its slot: the codec has tests of its own."""
    monkeypatch.setattr(load, "stored_record", _decoded_once)
    monkeypatch.setattr(harness, "stored_record", _decoded_once)
