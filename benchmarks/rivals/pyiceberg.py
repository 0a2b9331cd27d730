"""Iceberg without Spark (`pyiceberg`, extra `bench`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.harness import NotAvailable
from tests.servers.s3 import ACCESS_KEY, SECRET_KEY
from tests.servers.start import Server


@contextmanager
def table(folder: Path, server: Server, schema: pa.Schema) -> Iterator[Any]:
    """Yield a table on that server of S3's protocol. Its catalog is SQLite in the folder."""
    try:
        from pyiceberg.catalog.sql import SqlCatalog
    except ImportError as error:
        raise NotAvailable("needs the package pyiceberg") from error
    catalog = SqlCatalog(
        "bench",
        uri=f"sqlite:///{folder}/catalog.db",
        warehouse=server.store_url("iceberg"),
        **{
            "s3.endpoint": server.url,
            "s3.access-key-id": ACCESS_KEY,
            "s3.secret-access-key": SECRET_KEY,
            "s3.region": "us-east-1",
        },
    )
    catalog.create_namespace("bench")
    yield catalog.create_table("bench.rows", schema)
    catalog.close()
