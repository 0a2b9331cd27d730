"""If Spark is too old, every first call reports it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pyspark
import pytest

import pyspark_txlog
from pyspark_txlog import TxLog
from pyspark_txlog.spark_version import check_spark
from txlog.errors import InvalidRequestError


@pytest.mark.parametrize("version", ["4.0.0", "4.1.4", "4.2.0.dev1", "4.3.1", "4.10.0", "5.0.0", "nightly"])
def test_new_enough(version: str) -> None:
    check_spark(version)


@pytest.mark.parametrize("version", ["2.4.8", "3.5.6"])
def test_too_old(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(pyspark, "__version__", version)
    with pytest.raises(InvalidRequestError, match=rf"needs Spark 4\.0 or newer, and this is pyspark {version}"):
        pyspark_txlog.TxlogDataSource({})
    with pytest.raises(InvalidRequestError, match="needs Spark"):
        pyspark_txlog.session()
    for name in ("TxLog", "TopicTable", "committed_source_offsets"):
        with pytest.raises(InvalidRequestError, match="needs Spark"):
            getattr(pyspark_txlog, name)
    with pytest.raises(InvalidRequestError, match="needs Spark"):
        TxLog(cast("Any", SimpleNamespace(createDataFrame=None)), "log")
