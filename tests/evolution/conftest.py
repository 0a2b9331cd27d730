"""A world whose store has the feature `schema-evolution`, which this version cannot make yet."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.client.world import World
from txlog.core import features
from txlog.maintenance.fsck import store_check


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    known = features.KNOWN_FEATURES | {features.SCHEMA_EVOLUTION}
    monkeypatch.setattr(features, "KNOWN_FEATURES", known)
    monkeypatch.setattr(store_check, "KNOWN_FEATURES", known)
    made = World()
    yield made
    made.close()
