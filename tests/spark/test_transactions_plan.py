"""Which producers does a transaction fence? These tests need no Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

import txlog
from pyspark_txlog.api.transactions import Transactions
from txlog.core.transactions import TxnVersion
from txlog.errors import ProducerFencedError, TxnVersionScopeError


def test_what_is_refused_for_its_scope_fences_nobody(tmp_path: Path) -> None:
    with txlog.open(str(tmp_path / "log"), storage_options={"fsync": False}) as store:
        store.create_topic("orders", None, 1)
        ours, theirs = Transactions(store.runtime), Transactions(store.runtime)
        with ours.begin("nightly", TxnVersion(version=1, scope="query"), {}):
            pass
        with (
            pytest.raises(TxnVersionScopeError, match="two queries with one id"),
            theirs.begin("nightly", TxnVersion(version=0, scope="another"), {}),
        ):
            raise AssertionError("unreachable")
        with ours.begin("nightly", TxnVersion(version=2, scope="query"), {}):
            pass
        # A transaction of the same scope fences the other one.
        with theirs.begin("nightly", TxnVersion(version=3, scope="query"), {}):
            pass
        with (
            pytest.raises(ProducerFencedError),
            ours.begin("nightly", TxnVersion(version=4, scope="query"), {}),
        ):
            pass
