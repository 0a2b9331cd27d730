"""Under which URL does Spark itself find the objects of a store?

txlog reaches an object store through fsspec, Spark through Hadoop: the same place, sometimes by another scheme, and with
credentials of its own (`spark.hadoop.fs.s3a.*`, `spark.hadoop.fs.azure.*`, ...), which are the user's to set.
"""

from __future__ import annotations

from collections.abc import Mapping

from txlog.errors import UnsupportedStoreError

_SCHEMES = {"s3": "s3a", "s3a": "s3a", "gs": "gs", "gcs": "gs"}
_AZURE = ("abfs", "abfss", "az", "adl")


def hadoop_url(url: str, storage_options: Mapping[str, object]) -> str:
    """The root of the store at `url` (`ObjectStore.url`) as Hadoop spells it, without a slash at its end.

    Raises UnsupportedStoreError if Hadoop cannot reach it.
    """
    scheme, separator, rest = url.partition("://")
    rest = rest.rstrip("/")
    if separator and scheme == "file":
        return f"file://{rest}"
    if separator and scheme in _SCHEMES:
        return f"{_SCHEMES[scheme]}://{rest}"
    if separator and scheme in _AZURE:
        container, _, prefix = rest.partition("/")
        if "@" in container:
            return f"abfss://{rest}"
        account = storage_options.get("account_name")
        if account:
            return f"abfss://{container}@{account}.dfs.core.windows.net{'/' + prefix if prefix else ''}"
        raise UnsupportedStoreError(
            f"{url}: Spark's own reader and writer need the storage account: abfs://<container>@<account>.dfs.core.windows.net/..., or "
            "account_name in storage_options"
        )
    raise UnsupportedStoreError(
        f'{url}: Spark\'s own reader and writer cannot reach this store; use format("txlog"), which can'
    )
