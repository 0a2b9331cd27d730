"""Small objects that want much memory are refused before they get it, as what they are."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache

import pytest

from tests.fuzz.bombs import BOMBS

NOT_FORESEEN = {"parquet_page"}
"""A page of a Parquet file may have up to 2 GiB, as Parquet has it; only the memory that is there bounds it."""


@cache
def ends() -> dict[str, dict[str, object]]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.fuzz.bombs"], capture_output=True, text=True, check=True
    )
    return {end["name"]: end for end in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_an_error_of_txlogs(name: str) -> None:
    end = ends()[name]
    assert end["end"] == "TxlogError", end
    assert "CorruptRecordError" in str(end["error"])
    if name not in NOT_FORESEEN:
        assert "malloc" not in str(end["error"])
