"""Delta's own programs read what txlog writes, row by row, and refuse to write to it.

delta-rs, Polars and Delta on Spark are in the extra `bench`, and are imported where they are used: every run of pytest
collects this module.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests import jars
from tests.engines import delta_tables
from tests.engines.delta_tables import DENSE, TABLES, Table, arrow, numbers
from txlog.publication import delta

pytestmark = [pytest.mark.engines, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Table]:
    return {make.__name__: make(tmp_path_factory.mktemp(make.__name__)) for make in TABLES}


@pytest.fixture(params=[make.__name__ for make in TABLES])
def table(request: pytest.FixtureRequest, tables: dict[str, Table]) -> Table:
    return tables[request.param]


@pytest.fixture
def copy(tables: dict[str, Table], tmp_path: Path) -> Callable[[str], str]:
    """Return what copies a table, with objects of txlog's own log beside it, all of them old."""

    def made(name: str) -> str:
        folder = shutil.copytree(tables[name].folder, tmp_path / "orders")
        (folder / "0" / "00000000000000000000.batch").write_bytes(b"a record")
        (folder / "topic.00000000000000000000.json").write_bytes(b"its metadata")
        for file in folder.rglob("*"):
            os.utime(file, (1_000_000_000, 1_000_000_000))
        return str(folder)

    return made


def files_of(folder: str) -> set[str]:
    return {str(path.relative_to(folder)) for path in Path(folder).rglob("*") if path.is_file()}


def same(found: list[dict[str, Any]], table: Table) -> None:
    key = "i64" if "i64" in table.rows[0] else next(iter(table.rows[0]))
    assert sorted(map(_plain, found), key=lambda row: row[key]) == sorted(
        map(_plain, table.rows), key=lambda row: row[key]
    )


def _plain(value: Any) -> Any:
    """Return a value with its maps as pairs, as pyarrow has them."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value


# -- delta-rs and Polars ----------------------------------------------------------------------------------------------


def query(folder: str, sql: str) -> list[dict[str, Any]]:
    from deltalake import DeltaTable, QueryBuilder

    found = pa.table(QueryBuilder().register("t", DeltaTable(folder)).execute(sql))
    return list(found.to_pylist())


def test_delta_rs_reads_every_row(table: Table) -> None:
    same(query(table.folder, "select * from t"), table)


def test_delta_rs_counts_and_finds_bounds(tables: dict[str, Table]) -> None:
    """A reader may take these from statistics."""
    table = tables["cut"]
    (found,) = query(table.folder, "select count(*) c, min(n) a, max(n) b, min(s) x, max(s) y from t")
    every, texts = [row["n"] for row in table.rows], [row["s"] for row in table.rows]
    assert found == {"c": len(every), "a": min(every), "b": max(every), "x": min(texts), "y": max(texts)}


def test_delta_rs_decodes_deletion_vectors(tables: dict[str, Table]) -> None:
    from deltalake import DeltaTable

    found = pa.table(DeltaTable(tables["cut"].folder).deletion_vectors()).to_pylist()
    gone = [[at for at, kept in enumerate(list(each.values())[1]) if not kept] for each in found]
    dense = [row for first, end in DENSE for row in range(first, end)]
    assert sorted(gone, key=len) == [[*range(10), *range(50, 60)], dense]


def test_delta_rs_as_arrow_reads_a_table_without_removed_rows(tables: dict[str, Table]) -> None:
    from deltalake import DeltaTable

    for name in ("plain", "new_column"):
        same(DeltaTable(tables[name].folder).to_pyarrow_table().to_pylist(), tables[name])


@pytest.mark.parametrize("number", [0, 99, 100, 199, 299])
def test_no_reader_skips_a_file_by_a_rounded_bound(tables: dict[str, Table], number: int) -> None:
    import polars as pl

    table = tables["every_type"]
    row = table.rows[number]
    for column in ("at", "local", "text", "day", "f64"):
        found = pl.scan_delta(table.folder).filter(pl.col(column) == row[column]).select("i64").collect()
        assert found["i64"].to_list() == [number]
        above = pl.scan_delta(table.folder).filter(pl.col(column) >= row[column]).select("i64").collect()
        assert len(above) == sum(each[column] is not None and each[column] >= row[column] for each in table.rows)
    moment = f"timestamp '{row['at'].isoformat()}'"
    assert query(table.folder, f"select i64 from t where at = {moment}") == [{"i64": number}]
    assert query(table.folder, f"select i64 from t where text = '{row['text']}'") == [{"i64": number}]


def test_polars_reads_every_row(table: Table) -> None:
    import polars as pl

    same(pl.scan_delta(table.folder).collect().to_arrow().to_pylist(), table)


def test_older_versions_can_be_read(tables: dict[str, Table]) -> None:
    import polars as pl

    table = tables["plain"]
    assert [pl.scan_delta(table.folder, version=at).collect().height for at in (0, 9, 10, 11)] == [10, 100, 110, 120]


def test_delta_rs_shows_what_txlog_published(tables: dict[str, Table]) -> None:
    from deltalake import DeltaTable

    table = tables["plain"]
    (newest,) = DeltaTable(table.folder).history(1)
    assert newest["operationParameters"]["txlog.publication"] == str(table.topic.tables[-1].number)


def delta_rs_writes() -> dict[str, Callable[[str], object]]:
    rows = arrow(numbers(1, 2))

    def table(folder: str) -> Any:
        from deltalake import DeltaTable

        return DeltaTable(folder)

    def write(mode: Any) -> Callable[[str], object]:
        def call(folder: str) -> object:
            from deltalake import write_deltalake

            return write_deltalake(folder, rows, mode=mode)

        return call

    def merge(folder: str) -> object:
        merger = table(folder).merge(rows, "t.n = u.n", source_alias="u", target_alias="t")
        return merger.when_matched_update_all().when_not_matched_insert_all().execute()

    def vacuum(full: bool) -> Callable[[str], object]:
        return lambda folder: table(folder).vacuum(0, dry_run=False, enforce_retention_duration=False, full=full)

    return {
        "append": write("append"),
        "overwrite": write("overwrite"),
        "delete": lambda folder: table(folder).delete("n > 150"),
        "delete all": lambda folder: table(folder).delete(),
        "update": lambda folder: table(folder).update(updates={"s": "'x'"}, predicate="n > 150"),
        "merge": merge,
        "compact": lambda folder: table(folder).optimize.compact(),
        "z-order": lambda folder: table(folder).optimize.z_order(["n"]),
        "vacuum": vacuum(full=False),
        "vacuum full": vacuum(full=True),
        "restore": lambda folder: table(folder).restore(21),
        "properties": lambda folder: table(folder).alter.set_table_properties({"delta.appendOnly": "true"}),
    }


@pytest.mark.parametrize("name", list(delta_rs_writes()))
def test_delta_rs_must_not_write(copy: Callable[[str], str], name: str) -> None:
    from deltalake.exceptions import DeltaError

    folder = copy("cut")
    before = files_of(folder)
    with pytest.raises(DeltaError, match=delta.OWN_FEATURE):
        delta_rs_writes()[name](folder)
    assert files_of(folder) == before


def test_delta_rs_keeps_files_of_which_other_rows_are_removed_now(
    copy: Callable[[str], str], tables: dict[str, Table]
) -> None:
    """The log removes such a file with its old deletion vector, and adds it with the new one."""
    from deltalake import DeltaTable

    gone = DeltaTable(copy("cut")).vacuum(0, dry_run=True, enforce_retention_duration=False)
    assert len(gone) == 1
    assert gone[0] not in tables["cut"].topic.tables[-1].files


def test_delta_rs_may_tidy_the_log(tmp_path: Path) -> None:
    """These are not refused. The table stays the same, and txlog goes on with it."""
    from deltalake import DeltaTable

    table = delta_tables.plain(tmp_path)
    for file in (tmp_path / "orders").rglob("*"):
        os.utime(file, (1_000_000_000, 1_000_000_000))
    DeltaTable(table.folder).create_checkpoint()
    DeltaTable(table.folder).cleanup_metadata()
    left = files_of(f"{table.folder}/_delta_log")
    assert left == {f"{12:020d}.json", f"{12:020d}.checkpoint.parquet", "_last_checkpoint"}
    same(query(table.folder, "select * from t"), table)
    table.topic.publish(table.topic.file(arrow(numbers(130, 140))))
    table.rows.extend(numbers(130, 140))
    same(query(table.folder, "select * from t"), table)


# -- Delta on Spark ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", ",".join(map(str, jars.fetch(jars.DELTA_LAKE))))
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        .config("spark.databricks.delta.snapshotPartitions", "2")
        .config("spark.databricks.delta.retentionDurationCheck.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    yield session
    session.stop()


def test_spark_reads_every_row(spark: Any, table: Table, tmp_path: Path) -> None:
    # `toArrow` of this Spark refuses a null struct whose fields are not nullable.
    spark.read.format("delta").load(table.folder).write.parquet(str(tmp_path / "found"))
    same(pq.read_table(tmp_path / "found").to_pylist(), table)


def test_spark_finds_bounds(spark: Any, tables: dict[str, Table]) -> None:
    """Spark takes these from statistics where it can."""
    every = [row["n"] for row in tables["cut"].rows]
    (found,) = spark.sql(f"select count(*), min(n), max(n) from delta.`{tables['cut'].folder}`").collect()
    assert tuple(found) == (len(every), min(every), max(every))
    table = tables["every_type"]
    for row in table.rows[0:300:99]:
        sql = f"select i64 from delta.`{table.folder}` where at = timestamp'{row['at'].isoformat()}'"
        assert [each[0] for each in spark.sql(sql).collect()] == [row["i64"]]


def test_a_stream_of_spark_sees_no_replaced_files(spark: Any, tables: dict[str, Table], tmp_path: Path) -> None:
    table = tables["cut"]
    counts: list[int] = []
    reader = spark.readStream.format("delta").option("startingVersion", 0).load(table.folder)
    query = (
        reader.writeStream.foreachBatch(lambda batch, number: counts.append(batch.filter("n >= 1000000").count()))
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert sum(counts) == 23


SPARK_WRITES = {
    "INSERT": "insert into {} values (1, 'x')",
    "INSERT OVERWRITE": "insert overwrite {} values (1, 'x')",
    "DELETE": "delete from {} where n > 150",
    "UPDATE": "update {} set s = 'x' where n > 150",
    "MERGE": "merge into {} t using (select 150L n, 'x' s) u on t.n = u.n when matched then update set *",
    "OPTIMIZE": "optimize {}",
    "VACUUM": "vacuum {} retain 0 hours",
    "VACUUM LITE": "vacuum {} lite retain 0 hours",
    "ALTER SET": "alter table {} set tblproperties ('delta.appendOnly' = 'true')",
    "ALTER ADD": "alter table {} add column more int",
    "ALTER DROP FEATURE": "alter table {} drop feature txlogManaged",
    "TRUNCATE": "truncate table {}",
    "RESTORE": "restore table {} to version as of 11",
}


@pytest.mark.parametrize("name", ["plain", "cut"])
@pytest.mark.parametrize("sql", list(SPARK_WRITES))
def test_spark_must_not_write(spark: Any, copy: Callable[[str], str], name: str, sql: str) -> None:
    folder = copy(name)
    before = files_of(folder)
    with pytest.raises(Exception, match=delta.OWN_FEATURE):
        spark.sql(SPARK_WRITES[sql].format(f"delta.`{folder}`"))
    # Spark writes its rows first, and learns only then that it must not commit them.
    orphans = {file for file in files_of(folder) - before if "/" not in file and "part-" in file}
    assert files_of(folder) - orphans == before
