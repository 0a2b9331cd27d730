"""Where does Spark itself find the files of a store?

txlog opens object stores through fsspec, Spark through Hadoop's file systems: one place, two spellings. What Spark needs
to get in (`fs.s3a.access.key` and its like) is in its own configuration; credentials of `storage_options` are not handed on.
"""

from __future__ import annotations

import re

from txlog.client.runtime import Runtime
from txlog.errors import UnsupportedStoreError

_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*)://(.*)", re.DOTALL)
_GLOB_CHARACTERS = re.compile(r"([\\*?\[\]{}])")


def spark_root(runtime: Runtime) -> str:
    """The store's root as a Hadoop path, without a slash at its end, unescaped as Hadoop wants it.

    Raises UnsupportedStoreError where Spark has no way to the store.
    """
    match = _SCHEME.fullmatch(runtime.where)
    scheme, rest = (match[1].lower(), match[2].rstrip("/")) if match else ("", "")
    if scheme == "file":
        return f"file://{rest}"
    if scheme in ("s3", "s3a"):
        return f"s3a://{rest}"
    if scheme in ("gs", "gcs"):
        return f"gs://{rest}"
    if scheme in ("abfs", "abfss", "az"):
        account = runtime.storage_options.get("account_name")
        if not isinstance(account, str):
            raise UnsupportedStoreError(
                f"{runtime.where}: Hadoop's name of a container holds its account; give it as the storage option 'account_name'"
            )
        container, _, folder = rest.partition("/")
        host = f"abfss://{container}@{account}.dfs.core.windows.net"
        return f"{host}/{folder}" if folder else host
    raise UnsupportedStoreError(
        f"{runtime.where}: Spark has no file system of that name, so its own Parquet reader and writer find nothing there; "
        'use format("txlog")'
    )


def escape_glob(path: str) -> str:
    """`path` for `spark.read`, which takes `*`, `[...]` and `{...}` for patterns."""
    return _GLOB_CHARACTERS.sub(r"\\\1", path)
