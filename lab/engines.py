"""How does each engine read a published topic, given the topic's folder, and the version unless it is the newest?

Each engine has a separate environment, without txlog. So this module needs nothing but the engine that a call names.
"""

from __future__ import annotations

import datetime as dt
import decimal
import importlib
import os
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

Rows: TypeAlias = list[dict[str, Any]]


def delta_rs(folder: str, version: int | None = None) -> Rows:
    """Read with delta-rs, through its own SQL engine."""
    library, arrow = _import("deltalake"), _import("pyarrow")
    found = library.QueryBuilder().register("t", library.DeltaTable(folder, version=version)).execute("SELECT * FROM t")
    return _rows(arrow.table(found))


def polars_delta(folder: str, version: int | None = None) -> Rows:
    """Read the Delta table with Polars."""
    return _rows(_import("polars").scan_delta(folder, version=version).collect().to_arrow())


def duckdb_delta(folder: str, version: int | None = None) -> Rows:
    """Read with DuckDB's extension `delta`."""
    at = "" if version is None else f", version => {version}"
    return _rows(_duckdb().execute(f"SELECT * FROM delta_scan('{folder}'{at})").to_arrow_table())


def duckdb_iceberg(folder: str, version: int | None = None) -> Rows:
    """Read with DuckDB's extension `iceberg`."""
    return _rows(_duckdb().execute(f"SELECT * FROM iceberg_scan('{metadata_file(folder, version)}')").to_arrow_table())


def pyiceberg(folder: str, version: int | None = None) -> Rows:
    """Read with pyiceberg, without a catalog."""
    return _rows(_import("pyiceberg.table").StaticTable.from_metadata(metadata_file(folder, version)).scan().to_arrow())


def polars_iceberg(folder: str, version: int | None = None) -> Rows:
    """Read the Iceberg table with Polars."""
    # Without a package of its own Polars says that pyiceberg plans its scans.
    os.environ["POLARS_ICEBERG_PLANNER"] = "pyiceberg"
    return _rows(_import("polars").scan_iceberg(metadata_file(folder, version)).collect().to_arrow())


READERS: Mapping[str, Callable[[str, int | None], Rows]] = {
    "delta-rs": delta_rs,
    "polars, delta": polars_delta,
    "duckdb, delta": duckdb_delta,
    "pyiceberg": pyiceberg,
    "polars, iceberg": polars_iceberg,
    "duckdb, iceberg": duckdb_iceberg,
}
"""Engines that need no Java, and the format that each reads."""


def metadata_file(folder: str, version: int | None = None) -> str:
    """Return the metadata file of a version of an Iceberg table, or the newest.

    `version-hint.text` may be missing for a moment, or name an older one.
    """
    if version is not None:
        return f"file://{folder}/metadata/v{version + 1}.metadata.json"
    found = Path(folder, "metadata").glob("v*.metadata.json")
    return f"file://{max(found, key=lambda path: int(path.name[1:].partition('.')[0]))}"


def plain(value: Any) -> Any:
    """Return a value in one form, whatever engine it is from."""
    if isinstance(value, dt.datetime):
        return (value.astimezone(dt.UTC) if value.tzinfo else value).replace(tzinfo=None).isoformat()
    if isinstance(value, dt.date):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return str(value.normalize())
    if isinstance(value, bytes | bytearray):
        return bytes(value).hex()
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list):
        # A map is a list of pairs, or of structs.
        pairs = [
            (each["key"], each["value"]) if isinstance(each, Mapping) and set(each) == {"key", "value"} else each
            for each in value
        ]
        if pairs and isinstance(pairs[0], tuple):
            return {plain(name): plain(each) for name, each in pairs}
        return [plain(each) for each in pairs]
    return value


def _rows(table: Any) -> Rows:
    found: Rows = table.to_pylist()
    return found


def _import(name: str) -> Any:
    return importlib.import_module(name)


@cache
def _duckdb() -> Any:
    """Return a connection with both extensions."""
    connection = _import("duckdb").connect(config={"allow_unsigned_extensions": "true"})
    connection.execute("SET TimeZone = 'UTC'")
    # The extension for Avro is loaded first, because that for Iceberg needs it.
    for name in ("avro", "iceberg", "delta"):
        (file,) = Path(sys.prefix).glob(f"lib/python3*/site-packages/duckdb_extension_{name}/**/*.duckdb_extension")
        connection.execute(f"LOAD '{file}'")
    return connection
