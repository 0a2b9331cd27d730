"""Does each call of a TxLog answer a wrong argument in one sentence? See `tests/arguments.py`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pyspark_txlog import TopicTable, TxLog
from pyspark_txlog.api.transactions import Transaction
from pyspark_txlog.native.snapshot import Snapshot
from tests.arguments import Arguments, parameters_of, public_calls, unchecked, wrong_answers
from tests.spark.conftest import Log
from txlog.errors import InvalidRequestError, SchemaMismatchError, TxlogError

pytestmark = pytest.mark.spark

CALLS: dict[str, Callable[..., object]] = {
    "TxLog.__init__": TxLog.__init__,
    **public_calls((TxLog, TopicTable, Transaction, Snapshot)),
}
NO_CASE = {
    "TxLog.__init__": ("object_store",),  # for tests and fault injection
    "Transaction.carry_sources": ("batch",),  # for the sink, which gives it what `foreachBatch` knows
}
OFFSETS = {"offsets": {("orders", 0): 0}, "group": "g"}
GIVEN: Arguments = {
    "TxLog.create_views": {"*": ("orders",)},
    "TxLog.snapshot": {"*": ("orders",)},
    "TxLog.table": {"topic": "orders"},
    "TxLog.take_over": {"transactional_id": "owned"},
    "TxLog.to_dfs": {"*": ("orders",)},
    "TxLog.transaction": {"transactional_id": "nightly", "version": 1},
    "Transaction.send_offsets": OFFSETS,
    "Snapshot.to_df": {"topic": "orders"},
}
KEYWORDS = {
    "TxLog.create_views": ("columns",),
    "TxLog.take_over": ("max_block_ms",),
    "TxLog.to_dfs": ("columns", "where", "starting_offsets", "starting_timestamp", "isolation_level"),
    "TxLog.transaction": ("transaction_timeout_ms",),
}
"""Some of the further keywords that a call takes."""
WHERE_USED = {
    "object": "options and settings",
    "Road": "one of three words",
    "int | TxnVersion | None": "a version has a range, and a date gets a hint",
    "str | ConsumerGroupMetadata": "the name of a group has a length",
    "MicroBatch": "no program makes one",
    "ObjectStore | None": "for tests",
}
"""Annotations that are checked where the argument is used, and why."""


class Scene:
    """A TxLog of a topic with a key, and its objects."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._ends = contextlib.ExitStack()
        self._txlog = self._ends.enter_context(TxLog(log.spark, log.url, {"fsync": False}))

    def call(self, name: str) -> Callable[..., object]:
        """Return the call of an object in the right state."""
        kind, _, method = name.partition(".")
        if method == "__init__":
            return TxLog
        made: object = self._txlog
        if kind == "TopicTable":
            made = self._txlog.table("orders")
        elif kind == "Snapshot":
            made = self._txlog.snapshot("orders")
        elif kind == "Transaction":
            made = self._ends.enter_context(self._txlog.transaction())
        found: Callable[..., object] = getattr(made, method)
        return found

    def use(self, result: Any) -> None:
        """Close what was opened, and run a block."""
        if isinstance(result, TxLog):
            result.close()
        elif isinstance(result, AbstractContextManager):
            with result:
                pass

    def close(self) -> None:
        """End what was begun. A transaction with a failed write is aborted."""
        with contextlib.suppress(TxlogError):
            self._ends.close()


def parameters() -> list[Any]:
    return [
        pytest.param(name, each, keyword, id=f"{name}-{keyword or each.name}")
        for name, call in sorted(CALLS.items())
        for each in parameters_of(call)
        if each.name not in NO_CASE.get(name, ())
        for keyword in (KEYWORDS[name] if each.kind is each.VAR_KEYWORD else ("",))
    ]


@pytest.fixture
def keyed(log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Log:
    """Return a log with a keyed topic. A store at `x` is in a folder of the test."""
    monkeypatch.chdir(tmp_path)
    log.create(key_columns="order_id")
    return log


@pytest.mark.parametrize(("name", "parameter", "keyword"), parameters())
def test_a_wrong_argument_is_refused_in_one_sentence(keyed: Log, name: str, parameter: Any, keyword: str) -> None:
    given: Arguments = {
        **GIVEN,
        "TxLog.__init__": {"spark": keyed.spark, "root": keyed.url},
        "Transaction.write": {"frame": keyed.frame(0, 3, 1), "topic": "orders"},
    }
    wrong = wrong_answers(lambda: Scene(keyed), name, parameter, given, keyword)
    assert not wrong, "\n".join(wrong)


def test_every_annotation_is_checked_at_the_call_or_where_it_is_used() -> None:
    assert unchecked(CALLS) == set(WHERE_USED)


def test_what_the_sentences_are(spark: SparkSession, keyed: Log) -> None:
    with TxLog(spark, keyed.url, {"fsync": False}) as made:
        to_dfs: Any = made.to_dfs
        with pytest.raises(InvalidRequestError, match=r"to_dfs\(\): topics = \['orders'\]: expected text\. hint: name"):
            to_dfs(["orders"])
        with pytest.raises(SchemaMismatchError, match=r"columns = 'order_id': expected a list of names\. hint: col"):
            made.table("orders").latest("order_id")
        with pytest.raises(InvalidRequestError, match=r"option 'startingOffsets': \{\('orders', 0\): 0\} is not JSON"):
            made.to_dfs("orders", starting_offsets={("orders", 0): 0})
        frame: Any = keyed.frame(0, 3).toPandas()
        with made.transaction() as txn:
            with pytest.raises(
                InvalidRequestError, match=r"write\(\): frame = <DataFrame>: expected a DataFrame of Spark"
            ):
                txn.write(frame, "orders")
            txn.write(keyed.frame(0, 3), "orders")
    assert keyed.ids() == [0, 1, 2]
    opened: Any = TxLog
    with pytest.raises(
        InvalidRequestError, match=r"spark = '.*': expected a SparkSession\. hint: TxLog\(spark, root\)"
    ):
        opened(keyed.url, spark)
