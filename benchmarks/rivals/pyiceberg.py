"""Iceberg without Spark (`pyiceberg`, extra `bench`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.harness import NotAvailable
from tests.servers.s3 import ACCESS_KEY, SECRET_KEY
from tests.servers.start import Server

_NAME = "bench.rows"


@contextmanager
def table(folder: Path, server: Server, schema: pa.Schema) -> Iterator[Any]:
    """Yield a new table on that server of S3's protocol. Its catalog is SQLite in the folder."""
    with _catalog(folder, server) as catalog:
        catalog.create_namespace("bench")
        yield catalog.create_table(_NAME, schema)


@contextmanager
def opened(folder: Path, server: Server) -> Iterator[Any]:
    """Yield the same table for another process."""
    with _catalog(folder, server) as catalog:
        yield catalog.load_table(_NAME)


def append(table: Any, rows: pa.Table) -> bool:
    """Append as one commit on the newest version of an open table. Return whether no other commit came first."""
    from pyiceberg.exceptions import CommitFailedException

    try:
        table.append(rows)
    except CommitFailedException:
        table.refresh()
        return False
    return True


@contextmanager
def _catalog(folder: Path, server: Server) -> Iterator[Any]:
    try:
        from pyiceberg.catalog.sql import SqlCatalog
    except ImportError as error:
        raise NotAvailable("needs the package pyiceberg") from error
    catalog = SqlCatalog(
        "bench",
        # SQLite lets one process write at a time; the others wait.
        uri=f"sqlite:///{folder}/catalog.db?timeout=60",
        warehouse=server.store_url("iceberg"),
        **{
            "s3.endpoint": server.url,
            "s3.access-key-id": ACCESS_KEY,
            "s3.secret-access-key": SECRET_KEY,
            "s3.region": "us-east-1",
        },
    )
    with closing(catalog):
        yield catalog
