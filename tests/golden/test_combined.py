"""Is a store whose objects hold several commit records the same store to every reader, and do its writers go on?"""

from __future__ import annotations

import json

import pytest

from tests.golden.answers import HERE, answers, opened, text_of
from tests.golden.combined import combine
from tests.golden.coverage import STORES
from txlog.maintenance.fsck import check_store

NAMES = [path.name for path in STORES]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", NAMES)
def test_every_answer_is_the_same(name: str, seed: int) -> None:
    memory, store = opened(HERE / name)
    try:
        assert combine(memory, seed) or name == "v5"  # each of its tails is one record
        expected = json.loads((HERE / f"{name}.json").read_text())
        assert json.loads(text_of(answers(store))) == expected
        assert [each for each in check_store(memory).findings if each.kind != "note"] == []
    finally:
        store.runtime.close()
