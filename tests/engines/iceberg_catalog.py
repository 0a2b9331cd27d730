"""pyiceberg with its SQL catalog: `python iceberg_catalog.py <topic's folder>`.

Fails if a row differs or a write succeeds.
"""

from __future__ import annotations

import sys

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import AlwaysTrue

from tests.publication.story_rows import check


def main(folder: str) -> None:
    catalog = SqlCatalog("here", uri="sqlite:///:memory:", warehouse=f"file://{folder}-warehouse")
    catalog.create_namespace("txlog")
    table = catalog.register_table("txlog.orders", f"file://{folder}/metadata/v7.metadata.json")
    rows = table.scan().to_arrow()
    check(rows.to_pylist())
    for write in (lambda: table.append(rows), lambda: table.delete(AlwaysTrue())):
        problem = ""
        try:
            write()
        except ValueError as error:
            problem = str(error)
        assert "txlog.is.the.only.writer" in problem


if __name__ == "__main__":
    main(sys.argv[1])
