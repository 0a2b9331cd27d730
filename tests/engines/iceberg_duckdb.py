"""DuckDB's iceberg extension, in a separate Python: `python iceberg_duckdb.py <topic's folder>`.

Fails if a row differs.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import duckdb

from tests.publication.story_rows import check


def main(folder: str) -> None:
    con = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    con.execute("SET TimeZone = 'UTC'")
    # The extension for Avro is loaded first, because the other one needs it.
    for name in ("avro", "iceberg"):
        (file,) = Path(sys.prefix).glob(f"lib/python3*/site-packages/duckdb_extension_{name}/**/*.duckdb_extension")
        con.execute(f"LOAD '{file}'")

    def rows(sql: str) -> list[dict[str, Any]]:
        found = con.execute(sql)
        names = [each[0] for each in found.description or ()]
        return [dict(zip(names, each, strict=True)) for each in found.fetchall()]

    for place in (folder, f"file://{folder}", f"{folder}/metadata/v7.metadata.json"):
        check(rows(f"SELECT * FROM iceberg_scan('{place}')"))
    for where, count in (("small = 25", 0), ("small = 26", 1), ("extra IS NULL", 24), ("number = 260", 1)):
        assert rows(f"SELECT count(*) AS n FROM iceberg_scan('{folder}') WHERE {where}") == [{"n": count}], where


if __name__ == "__main__":
    main(sys.argv[1])
