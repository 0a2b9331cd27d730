"""Is a micro-batch the next one after those that its id has committed?"""

from __future__ import annotations

from typing import Any, cast

import pytest

from pyspark_txlog.sink.micro_batch import MicroBatch, check_scope
from txlog.core.records import TransactionMetadata
from txlog.errors import InvalidRequestError, TxnVersionScopeError


@pytest.mark.parametrize(
    ("scope", "committed", "number", "follows"),
    [
        ("query", 3, 4, True),
        ("query", 3, 5, False),
        ("query", 0, 2, False),
        # A query whose id was forgotten, and a different query: only the offsets of their sources decide.
        ("", -1, 7, True),
        ("other", 3, 7, True),
    ],
)
def test_a_log_that_was_put_back_lacks_batches(scope: str, committed: int, number: int, follows: bool) -> None:
    before = holding(scope, committed)
    batch = MicroBatch(query_id="query", number=number, checkpoint=None)
    no_session = cast(Any, None)
    if follows:
        assert batch.offsets(no_session, before) == ()
    else:
        with pytest.raises(InvalidRequestError, match=f"has committed is {committed}.*put back to an older state"):
            batch.offsets(no_session, before)


@pytest.mark.parametrize(
    ("scope", "first"),
    [
        ("lost", "after a lost checkpoint run `txlog transactions expire --transactional-id sink --force --execute`"),
        # The command would forget a batch write's version, and its next try would write twice.
        ("", "give this query another id"),
    ],
)
def test_the_first_advice_doubles_no_row(scope: str, first: str) -> None:
    with pytest.raises(TxnVersionScopeError) as refused:
        check_scope(holding(scope, 3), "query")
    assert refused.value.hint is not None
    assert refused.value.hint.startswith(first)
    check_scope(holding(scope, -1), "query")
    check_scope(holding("query", 3), "query")


def holding(scope: str, version: int) -> TransactionMetadata:
    return TransactionMetadata(
        transactional_id="sink",
        producer_id=1,
        producer_epoch=2,
        state="EMPTY",
        timeout_ms=60_000,
        txn_scope=scope,
        txn_version=version,
        write_id="0" * 32,
    )
