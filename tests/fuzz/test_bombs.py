"""Small objects that need much memory are refused before they get it, with the right error."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache

import pytest

from tests.fuzz.bombs import BOMBS, NUMBERS, numbers, record, rows_of

NOT_FORESEEN = {"parquet_page"}
"""Parquet allows up to 2 GiB for a page of a file, so only the available memory limits it."""


@cache
def ends() -> dict[str, dict[str, object]]:
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-W", "ignore", "-m", "tests.fuzz.bombs"],
        capture_output=True,
        text=True,
        check=False,
    )
    # All bombs run in one process. Its output shows which bomb ended it, and where.
    assert done.returncode == 0, f"status {done.returncode} after {done.stdout[-300:]!r}: {done.stderr[-3000:]}"
    return {end["name"]: end for end in map(json.loads, done.stdout.splitlines())}


def test_a_record_of_this_form_opens() -> None:
    """Otherwise the reader would refuse each bomb in a record for its form, and never reach the bomb."""
    assert rows_of(NUMBERS)(record(3, numbers(3))).num_rows == 3


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_an_error_of_txlogs(name: str) -> None:
    end = ends()[name]
    assert end["end"] == "TxlogError", end
    assert "CorruptRecordError" in str(end["error"])
    if name not in NOT_FORESEEN:
        assert "malloc" not in str(end["error"])
