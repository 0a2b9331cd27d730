"""Where does Spark itself find the files of a store?

txlog opens object stores through fsspec, Spark through Hadoop's file systems: one location has two spellings. Spark's
credentials (such as `fs.s3a.access.key`) are in its own configuration; txlog does not pass on those of
`storage_options`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from txlog.engine import Runtime
from txlog.errors import UnsupportedStoreError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DRIVERS = {
    "s3a": ("org.apache.hadoop:hadoop-aws:{}", "spark.hadoop.fs.s3a.access.key"),
    "gs": ("com.google.cloud.bigdataoss:gcs-connector", "spark.hadoop.fs.gs.auth.type"),
    "abfss": ("org.apache.hadoop:hadoop-azure:{}", "spark.hadoop.fs.azure.account.key"),
}
"""Hadoop's drivers by scheme: their package, with Hadoop's version, and a setting for credentials."""
_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*)://(.*)", re.DOTALL)
_GLOB_CHARACTERS = re.compile(r"([\\*?\[\]{}])")


def spark_root(runtime: Runtime) -> str:
    """Return the store's root as a Hadoop path, without a trailing slash, unescaped as Hadoop needs it.

    Raises UnsupportedStoreError if Spark cannot access the store.
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
                f"{runtime.where}: Hadoop's name of a container includes its account. hint: give it as the storage option 'account_name'"
            )
        container, _, folder = rest.partition("/")
        host = f"abfss://{container}@{account}.dfs.core.windows.net"
        return f"{host}/{folder}" if folder else host
    raise UnsupportedStoreError(
        f"{runtime.where}: Spark has no file system for this URL, so its own Parquet reader and writer cannot access it. "
        'hint: use format("txlog")'
    )


def spark_folder(spark: SparkSession, runtime: Runtime) -> str:
    """Return `spark_root` if this session has a driver for it. Sends no request. (Over Spark Connect there is no
    check.)

    Raises UnsupportedStoreError with what is missing, and an alternative.
    """
    root = spark_root(runtime)
    scheme = root.partition(":")[0]
    jvm: Any = getattr(spark, "_jvm", None)
    if jvm is None or scheme not in _DRIVERS:
        return root
    # Imported here because py4j does not exist without a JVM.
    from py4j.protocol import Py4JJavaError

    hadoop = jvm.org.apache.hadoop
    try:
        hadoop.fs.FileSystem.getFileSystemClass(scheme, spark._jsparkSession.sessionState().newHadoopConf())
    except Py4JJavaError as error:
        package, setting = _DRIVERS[scheme]
        raise UnsupportedStoreError(
            f"{runtime.where}: this Spark has no driver for {scheme}:// "
            f"({error.java_exception.getMessage()}). hint: start it with spark.jars.packages={package.format(hadoop.util.VersionInfo.getVersion())} and its "
            f'own credentials (such as {setting}), or use format("txlog"), which needs neither'
        ) from None
    return root


def escape_glob(path: str) -> str:
    """Escape `path` for `spark.read`, which treats `*`, `[...]` and `{...}` as patterns."""
    return _GLOB_CHARACTERS.sub(r"\\\1", path)
