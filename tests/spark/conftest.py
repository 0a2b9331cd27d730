"""One Spark session for the whole run, and a log that the session writes and reads."""

from __future__ import annotations

import io
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import pyspark_txlog
import txlog
from pyspark_txlog import TopicTable, messages
from txlog import logs
from txlog.client.store import Store
from txlog.engine import EndResult

ORDERS = pa.schema(
    (
        pa.field("order_id", pa.int64(), nullable=False),
        pa.field("amount", pa.float64()),
        pa.field("carrier", pa.string()),
    )
)

CONSOLE_S = 30


@pytest.fixture(scope="session")
def spark_console(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file that Spark's processes use as console.

    They keep the standard error that they were started with.
    """
    return tmp_path_factory.mktemp("spark") / "console.txt"


@pytest.fixture(scope="session")
def spark(spark_console: Path) -> Iterator[SparkSession]:
    """Return the session. It has two cores; a job fails after a task failed four times."""
    ours = os.dup(2)
    with spark_console.open("wb") as console:
        os.dup2(console.fileno(), 2)
        try:
            session = pyspark_txlog.session("txlog tests", master="local[2,4]")
        finally:
            os.dup2(ours, 2)
            os.close(ours)
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def format_used(request: pytest.FixtureRequest) -> None:
    """Let `format("txlog")` work as `--spark-format` says, and in tests marked `python_source` as without
    `install()`."""
    native = request.config.getoption("--spark-format") == "native"
    if native and request.node.get_closest_marker("python_source") is None:
        pyspark_txlog.install()
    else:
        pyspark_txlog.uninstall()


class Console(io.StringIO):
    """What Spark's processes have printed since the test began, and what txlog has printed in this process."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._start = path.stat().st_size

    def write(self, text: str) -> int:
        sys.stderr.write(text)
        return super().write(text)

    def text(self) -> str:
        return self._path.read_bytes()[self._start :].decode() + self.getvalue()

    def says(self, text: str) -> bool:
        """Return whether the text is printed. A Spark thread copies the output of its Python processes with a delay."""
        deadline = time.monotonic() + CONSOLE_S
        while text not in self.text() and time.monotonic() < deadline:
            time.sleep(0.01)
        return text in self.text()


@pytest.fixture
def console(spark: SparkSession, spark_console: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Console]:
    """Return the user's view of standard error, with what this process prints. A failing test shows it."""
    made = Console(spark_console)
    # Not sys.stderr: pytest replaces it between the phases of a test.
    monkeypatch.setattr(messages, "sys", SimpleNamespace(stderr=made, modules=sys.modules))
    monkeypatch.setattr(logs, "sys", SimpleNamespace(stderr=made))
    # pytest has handlers, and a user's program has none.
    monkeypatch.setattr(logs, "_is_handled", lambda _: False)
    yield made
    sys.stderr.write(made.text())


class Log:
    """A store in the test's own folder, accessed through txlog and through Spark."""

    def __init__(self, url: str, spark: SparkSession) -> None:
        self.url = url
        self.spark = spark
        self.store: Store = txlog.open(url, storage_options={"fsync": False})

    def create(
        self, topic: str = "orders", schema: pa.Schema | None = ORDERS, partitions: int = 2, **config: str
    ) -> None:
        self.store.create_topic(
            topic, schema, partitions, config={key.replace("_", "."): value for key, value in config.items()}
        )

    def frame(self, first: int, count: int, tasks: int = 2) -> DataFrame:
        """Return orders `first` to `first + count - 1`."""
        return self.spark.range(first, first + count, numPartitions=tasks).selectExpr(
            "id AS order_id", "id * 0.5D AS amount", "concat('c', id % 3) AS carrier"
        )

    def write(self, frame: DataFrame, topic: str | None = "orders", *, source: str = "txlog", **options: Any) -> None:
        writer = frame.write.format(source).mode("append").option("storage.fsync", "false")
        for name, value in (({"topic": topic} if topic else {}) | dotted(options)).items():
            writer = writer.option(name, str(value))
        writer.save(self.url)

    def read(self, topic: str | None = "orders", *, schema: str | None = None, **options: Any) -> DataFrame:
        reader = self.spark.read.format("txlog")
        for name, value in (({"subscribe": topic} if topic else {}) | dotted(options)).items():
            reader = reader.option(name, str(value))
        return (reader.schema(schema) if schema else reader).load(self.url)

    def ids(self, topic: str = "orders", **options: Any) -> list[int]:
        """Return the order ids that Spark reads, sorted, with duplicates."""
        return sorted(row.order_id for row in self.read(topic, columns="order_id", **options).collect())

    def ends(self, topic: str = "orders") -> list[tuple[int, int]]:
        """Return (last stable offset, log end offset) of each partition."""
        found = self.store.admin().list_offsets(topic)
        return [(info.last_stable_offset, info.log_end_offset) for _, info in sorted(found.items())]

    def transactions(self) -> dict[str, str]:
        """Return the state by transactional.id."""
        return {txn.transactional_id: txn.state for txn in self.store.admin().list_transactions()}

    def files(self, topic: str = "orders") -> list[Path]:
        """Return the files of rows, whether a record names them or not."""
        folder = Path(self.url) / topic
        return sorted([*folder.glob("*/rows/*.parquet"), *folder.glob("staged/**/*.parquet")])


@pytest.fixture
def log(spark: SparkSession, console: Console, tmp_path: Path) -> Iterator[Log]:
    """Yield an empty log."""
    made = Log(str(tmp_path / "log"), spark)
    yield made
    made.store.close()


def dotted(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options with dots: `transactional_id="x"` is `transactional.id`. Names in camel case stay."""
    return {name.replace("_", "."): value for name, value in options.items()}


def rows(frame: DataFrame, columns: Sequence[str]) -> list[tuple[Any, ...]]:
    """Return the frame's rows as sorted tuples."""
    return sorted(tuple(row) for row in frame.select(*columns).collect())


def append(
    table: TopicTable,
    frame: DataFrame,
    *,
    transactional_id: str | None = None,
    version: int | None = None,
    scope: str | None = None,
    **how: Any,
) -> EndResult:
    """Append the frame as one transaction of a TxLog; `how` are arguments of `Transaction.write`."""
    with table.log.transaction(transactional_id, version, scope=scope) as txn:
        txn.write(frame, table.name, **how)
    assert txn.result is not None
    return txn.result


def to_df(table: TopicTable, **options: Any) -> DataFrame:
    """Return the topic's rows by a native scan of a TxLog, with the options of `TxLog.to_dfs`."""
    return table.log.to_dfs(table.name, **options)[table.name]
