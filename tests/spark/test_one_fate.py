"""Each way of looking at a log follows one walk (`core/fates.py`): a walk that hides a batch changes all of them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

import pyspark_txlog
import txlog
from pyspark_txlog.datasource import TxlogDataSource
from tests.cli.support import FAST, Cli
from tests.client.world import rows_of
from tests.publication.lives import publish
from tests.publication.table_readers import Tables
from txlog.client import reading
from txlog.client.session.session import Session
from txlog.client.store import Store
from txlog.core import fates
from txlog.core.cleaning import MergePolicy
from txlog.core.names import TopicPartition
from txlog.exporter.gauges import gauges
from txlog.inspection.look import StoreMonitor
from txlog.inspection.partition_look import look_at_partitions
from txlog.maintenance.merge import merge_partition

pytestmark = [pytest.mark.spark, pytest.mark.python_source]

TP = TopicPartition("orders", 0)
HIDDEN = 2
"""Offset at which the batch begins that the mutant hides."""
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False)])


def _published(root: Path, store: Store) -> Tables:
    publish(store)
    objects = {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
    return Tables(objects, TP.topic, [f"file://{root}", str(root)])


def _iceberg(root: Path, store: Store, spark: SparkSession) -> Any:
    tables = _published(root, store)
    versions = [path for path in tables.objects if path.endswith(".metadata.json")]
    return len(tables.iceberg(len(versions) - 1))


def _spark_native(root: Path, store: Store, spark: SparkSession) -> Any:
    pyspark_txlog.install()
    try:
        frame = spark.read.format("txlog").option("subscribe", TP.topic).load(str(root))
        return sorted(row.id for row in frame.collect())
    finally:
        pyspark_txlog.uninstall()


def _spark_python(root: Path, store: Store, spark: SparkSession) -> Any:
    """Read as the Python source does. Spark plans it in a separate process, which would not have the mutant."""
    source = TxlogDataSource({"path": store.runtime.url, "subscribe": TP.topic})
    reader: Any = source.reader(StructType.fromJson(source.schema().jsonValue()))
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


def _ribbon(root: Path, store: Store, spark: SparkSession) -> Any:
    session = Session(store.runtime, store.runtime.settings.client_config(), "page")
    looks = look_at_partitions(
        session, session.fresh_views([TP], "looking"), max_indexes=9, max_spans=99, max_pieces=9, damaged=[]
    )
    return [(span.start, span.end, span.kind) for span in looks[TP].ribbon.fates]


def _merged(root: Path, store: Store, spark: SparkSession) -> Any:
    merge_partition(store.runtime, reading.read_session(store.runtime), TP, MergePolicy())
    return store.table(TP.topic).to_arrow().num_rows


def _sizes(root: Path, store: Store, spark: SparkSession) -> Any:
    lines = Cli(root)("topics", "describe", TP.topic, "--size").lines
    # What stands above the sizes has the time since the last publication, which grows between two calls.
    return lines[lines.index("Size") :]


WAYS: dict[str, Callable[[Path, Store, SparkSession], Any]] = {
    "consumer": lambda root, store, _: rows_of(store.consumer(TP.topic, auto_offset_reset="earliest")),
    "table": lambda root, store, _: store.table(TP.topic).to_arrow().to_pylist(),
    "snapshot": lambda root, store, _: store.snapshot(TP.topic).table(TP.topic).to_arrow().to_pylist(),
    "Spark, native": _spark_native,
    "Spark, Python source": _spark_python,
    "Delta table": lambda root, store, _: len(_published(root, store).delta()),
    "Iceberg table": _iceberg,
    "merge": _merged,
    "txlog sql": lambda root, *_: Cli(root)("sql", "SELECT count(*) AS n FROM orders", "-o", "json").out,
    "txlog topics describe --size": _sizes,
    "txlog dump-log": lambda root, *_: [
        each["fate"] for each in Cli(root)("dump-log", str(TP), "-o", "json").json["batches"]
    ],
    "page": _ribbon,
    "exporter": lambda root, store, _: gauges(StoreMonitor(store.runtime, "test", max_reads=99).look())[
        "txlog_publication_lag_offsets"
    ],
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store with two batches of two rows, of which tables in both formats have the first."""
    root = tmp_path_factory.mktemp("fates") / "store"
    config = {"publish.formats": "delta,iceberg", "publish.max.lag.ms": "0", "segment.batches": "2"}
    with txlog.open(str(root), storage_options=FAST) as store:
        store.create_topic(TP.topic, SCHEMA, 1, config=config)
        for first in (0, HIDDEN):
            with store.producer(inline_max_bytes=0) as producer:
                producer.send(TP.topic, [{"id": first}, {"id": first + 1}], partition=0)
            if not first:
                publish(store)
    return root


def test_the_table_names_each_way_that_takes_the_walk() -> None:
    """A new caller of the walk needs a row in WAYS."""
    package = Path(fates.__file__).parent.parent
    users = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if "walk_batches" in path.read_text() and path.name != "fates.py"
    }
    assert users == {
        "client/removed.py",
        "core/cleaning.py",
        "core/fetch_plan.py",
        "core/publication.py",
        "exporter/gauges.py",
        "inspection/look.py",
        "inspection/chain.py",
        "inspection/partition_look.py",
        "maintenance/size.py",
    }
    others = [path for path in package.rglob("*.py") if "AbortedRanges" in path.read_text()]
    assert [path.name for path in others] == ["fates.py"]


@pytest.mark.parametrize("way", WAYS)
def test_a_walk_that_hides_a_batch_changes_every_way(
    way: str, base: Path, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    original = fates._Judge.of

    def hiding(self: Any, entry: Any, *args: Any) -> fates.Fate:
        return "aborted" if entry.base_offset == HIDDEN else original(self, entry, *args)

    for number in range(3):
        # A copy at the same place, because Iceberg's tables name it.
        kept = tmp_path / f"kept-{number}"
        shutil.copytree(base, kept)
        try:
            with txlog.open(str(base), storage_options=FAST) as store:
                found.append(WAYS[way](base, store, spark))
        finally:
            shutil.rmtree(base)
            shutil.copytree(kept, base)
        if number == 1:
            monkeypatch.setattr(fates._Judge, "of", hiding)
    assert found[0] == found[1] != found[2]
