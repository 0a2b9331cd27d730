"""The Spark data source of txlog: how does `spark.read.format("txlog")` find it?

Spark imports every top-level module whose name begins with `pyspark_` and registers its `DefaultSource`. If one of
these modules fails to import, Spark finds none of them. So this module must not fail or be slow. It loads only
pyspark's own base class and the data source class. That class imports txlog and pyarrow only where it uses them. If
another broken module still hides it: `spark.dataSource.register(pyspark_txlog.TxlogDataSource)`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

try:
    from pyspark_txlog.datasource import TxlogDataSource
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "pyspark":
        raise
    raise ModuleNotFoundError(
        "pyspark_txlog needs PySpark 4.0 or newer: pip install 'pyspark-txlog[spark]'",
        name=error.name,
    ) from error

from pyspark_txlog.worker import end_quietly

if TYPE_CHECKING:
    from pyspark_txlog.api.fresh_views import create_views
    from pyspark_txlog.api.log import TxLog
    from pyspark_txlog.api.table import TopicTable
    from pyspark_txlog.patch import install, uninstall
    from pyspark_txlog.progress import ProgressMetrics
    from pyspark_txlog.sink.committed_offsets import committed_source_offsets
    from pyspark_txlog.spark_session import activate, session

DefaultSource = TxlogDataSource
end_quietly()

_LAZY = {
    "ProgressMetrics": "pyspark_txlog.progress",
    "TopicTable": "pyspark_txlog.api.table",
    "TxLog": "pyspark_txlog.api.log",
    "activate": "pyspark_txlog.spark_session",
    "committed_source_offsets": "pyspark_txlog.sink.committed_offsets",
    "create_views": "pyspark_txlog.api.fresh_views",
    "install": "pyspark_txlog.patch",
    "session": "pyspark_txlog.spark_session",
    "uninstall": "pyspark_txlog.patch",
}

__all__ = [
    "DefaultSource",
    "ProgressMetrics",
    "TopicTable",
    "TxLog",
    "TxlogDataSource",
    "activate",
    "committed_source_offsets",
    "create_views",
    "install",
    "session",
    "uninstall",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'pyspark_txlog' has no attribute '{name}'")
    # Check before the import, because that module needs names that an older pyspark lacks. Imported by name, like
    # everything loaded late here.
    importlib.import_module("pyspark_txlog.spark_version").check_spark()
    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
