"""Do engines that ask a catalog see what a snapshot of the topic shows, and can their calls harm no row of the log?"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyiceberg.catalog
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.utils.config import Config

import txlog
from tests.engines.environments import run
from tests.engines.rest_catalog import rest_catalog
from tests.engines.trino import trino
from txlog.client import reading
from txlog.client.store import Store
from txlog.core.cleaning import MergePolicy
from txlog.core.names import TopicPartition
from txlog.errors import TableConflictError
from txlog.maintenance.fsck import check_store
from txlog.maintenance.merge import merge_partition
from txlog.maintenance.vacuum import vacuum
from txlog.publication.publish import publish_topic

pytestmark = pytest.mark.engines

TABLE = "shop.sales"
REFUSED_BY_TRINO = (
    f"INSERT INTO {TABLE} (id, name) VALUES (1, 'x')",
    f"UPDATE {TABLE} SET name = 'x' WHERE id = 1",
    f"DELETE FROM {TABLE} WHERE name = 'alone'",
    f"ALTER TABLE {TABLE} EXECUTE optimize",
)
CONFIG = {
    "publish.formats": "delta,iceberg",
    "publish.max.lag.ms": 0,
    "publish.catalog": "judge",
    "publish.table": TABLE,
    "segment.batches": 3,
    "inline.max.bytes": 0,
}


@pytest.fixture(params=["rest", "sql"])
def catalog(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Catalog]:
    """A catalog that pyiceberg knows by its environment, as a publisher's would be."""
    if request.param == "sql":
        yield _configured(monkeypatch, "sql", f"sqlite:///{tmp_path / 'catalog.db'}")
        return
    with rest_catalog(tmp_path / "warehouse") as uri:
        yield _configured(monkeypatch, "rest", uri)


def _configured(monkeypatch: pytest.MonkeyPatch, kind: str, uri: str) -> Catalog:
    monkeypatch.setenv("PYICEBERG_CATALOG__JUDGE__TYPE", kind)
    monkeypatch.setenv("PYICEBERG_CATALOG__JUDGE__URI", uri)
    # pyiceberg has read its configuration when it was imported.
    monkeypatch.setattr(pyiceberg.catalog, "_ENV_CONFIG", Config())
    return load_catalog("judge")


@pytest.mark.parametrize("files", ["copy", "log"])
@pytest.mark.parametrize("rows", ["all", "latest"])
def test_each_publication(tmp_path: Path, catalog: Catalog, files: str, rows: str) -> None:
    newest = {"publish.rows": "latest", "key.columns": "id"} if rows == "latest" else {}
    with txlog.open(str(tmp_path / "store")) as store:
        _tell(store, {"publish.files": files, **newest}, lambda: _check(store, catalog, latest=rows == "latest"))
        table = catalog.load_table(TABLE)
        # The catalog keeps some of its metadata files.
        assert len([*(tmp_path / "store" / "sales" / "catalog").glob("*/metadata/*.metadata.json")]) <= 12
        assert len(table.metadata.schemas) == 2


def test_a_purge_by_pyiceberg_harms_no_row(tmp_path: Path, catalog: Catalog) -> None:
    with txlog.open(str(tmp_path / "store")) as store:
        _tell(store, {}, lambda: None)
        before = _ids(store)
        catalog.purge_table(TABLE)
        # What the table named is gone.
        assert not [*(tmp_path / "store" / "sales" / "catalog").rglob("*.parquet")]
        assert _ids(store) == before
        assert check_store(store.runtime.store, clock=store.runtime.clock, threads=0).is_clean
        _publish(store)
        _check(store, catalog)


def test_spark_reads_streams_and_purges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with rest_catalog(tmp_path / "warehouse") as uri, txlog.open(str(tmp_path / "store")) as store:
        catalog = _configured(monkeypatch, "rest", uri)
        _tell(store, {}, lambda: None)
        before = _ids(store)
        said = json.loads(run(".venv-iceberg", "catalog_spark", uri, TABLE).splitlines()[-1])
        assert sorted(row["id"] for row in said["rows"]) == before
        # Each row comes once to a reader who follows the table.
        assert sorted(chain.from_iterable(said["batches"])) == before
        assert _ids(store) == before
        assert not [*(tmp_path / "store" / "sales" / "catalog").rglob("*.parquet")]
        _publish(store)
        _check(store, catalog)


def _tell(store: Store, config: dict[str, str], check: Callable[[], None]) -> None:
    """Write, publish, merge and change the columns of a topic. Call `check` after each publication."""
    id_field: pa.Field[Any] = pa.field("id", pa.int64(), nullable=False)
    schema = pa.schema([id_field, pa.field("name", pa.string())])
    store.create_topic("sales", schema, partitions=2, config=CONFIG | config)
    number = 0
    for turn in range(6):
        with store.producer("till") as producer:
            for commits in (True, False):
                producer.begin_transaction()
                for partition in range(2):
                    rows = [{"id": number + at, "name": f"{turn} {at}"} for at in range(3)]
                    producer.send("sales", rows, partition=partition)
                    number += 3
                if commits:
                    producer.commit_transaction()
                else:
                    producer.flush()
                    producer.abort_transaction()
            with producer.transaction():
                producer.send("sales", [{"id": 1, "name": f"again {turn}"}] if "key.columns" in config else [
                    {"id": 1_000_000 + turn, "name": "alone"}
                ], partition=0)  # fmt: skip
        _publish(store)
        check()
        if turn == 2:
            store.alter_topic("sales", add_columns=pa.schema([("more", pa.int64())]))
        if turn in (1, 4):
            session = reading.read_session(store.runtime)
            for partition in range(2):
                merge_partition(store.runtime, session, TopicPartition("sales", partition), MergePolicy())
            _publish(store)
            check()
            vacuum(store.runtime, session, ["sales"], dry_run=False)


def _publish(store: Store) -> None:
    publish_topic(reading.read_session(store.runtime), store.runtime.topic("sales", 0))


def _ids(store: Store) -> list[int]:
    rows = store.snapshot("sales").table("sales").to_arrow().to_pylist()
    return sorted(row["id"] for row in rows)


def _check(store: Store, catalog: Catalog, *, latest: bool = False) -> None:
    shown = store.snapshot("sales").table("sales")
    table = shown.latest().read_all() if latest else shown.to_arrow()
    found = catalog.load_table(TABLE).scan().to_arrow()
    names = [name for name in found.column_names if not name.startswith("_")]
    expected = [{name: row.get(name) for name in names} for row in table.to_pylist()]
    assert sorted(found.to_pylist(), key=repr) == sorted(expected, key=repr)


def test_trino_reads_and_drops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "trino"
    folder.mkdir()
    with rest_catalog(tmp_path / "warehouse") as uri, txlog.open(str(tmp_path / "store")) as store:
        catalog = _configured(monkeypatch, "rest", uri)
        with trino(uri, folder) as query:

            def check() -> None:
                assert sorted(each for (each,) in query(f"SELECT id FROM {TABLE}")) == _ids(store)  # type: ignore[type-var]

            _tell(store, {}, check)
            before = _ids(store)
            for statement in REFUSED_BY_TRINO:
                with pytest.raises(RuntimeError, match=r"txlog\.is\.the\.only\.writer"):
                    query(statement)
            query(f"DROP TABLE {TABLE}")
            assert _ids(store) == before
            assert not [*(tmp_path / "store" / "sales" / "catalog").rglob("*.parquet")]
            _publish(store)
            check()
            # Some changes are not refused. The next publication says so, and mends nothing by itself.
            query(f"DELETE FROM {TABLE}")
            with store.producer() as producer:
                producer.send("sales", [{"id": 5_000_000, "name": "late"}]).result()
            with pytest.raises(TableConflictError, match="drop it from the catalog"):
                _publish(store)
            query(f"DROP TABLE {TABLE}")
            _publish(store)
            check()
            _check(store, catalog)
