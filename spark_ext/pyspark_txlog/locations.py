"""Where does Spark itself find the files of a store?

txlog opens object stores through fsspec, Spark through Hadoop's file systems: one place, two spellings. What Spark needs
to get in (`fs.s3a.access.key` and its like) is in its own configuration; credentials of `storage_options` are not handed on.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from txlog.client.runtime import Runtime
from txlog.errors import UnsupportedStoreError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DRIVERS = {
    "s3a": ("org.apache.hadoop:hadoop-aws:{}", "spark.hadoop.fs.s3a.access.key"),
    "gs": ("com.google.cloud.bigdataoss:gcs-connector", "spark.hadoop.fs.gs.auth.type"),
    "abfss": ("org.apache.hadoop:hadoop-azure:{}", "spark.hadoop.fs.azure.account.key"),
}
"""Hadoop's drivers by scheme: their package, with Hadoop's version, and a setting by which they get in."""
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


def spark_folder(spark: SparkSession, runtime: Runtime) -> str:
    """`spark_root`, if this session has a driver for it; contacts nobody. (Over Spark Connect it cannot be asked.)

    Raises UnsupportedStoreError saying what is missing, and what does without.
    """
    root = spark_root(runtime)
    scheme = root.partition(":")[0]
    jvm: Any = getattr(spark, "_jvm", None)
    if jvm is None or scheme not in _DRIVERS:
        return root
    # Here and not at the top: there is none without a JVM.
    from py4j.protocol import Py4JJavaError

    hadoop = jvm.org.apache.hadoop
    try:
        hadoop.fs.FileSystem.getFileSystemClass(scheme, spark._jsparkSession.sessionState().newHadoopConf())
    except Py4JJavaError as error:
        package, setting = _DRIVERS[scheme]
        raise UnsupportedStoreError(
            f"{runtime.where}: Spark's own Parquet reader and writer go to {scheme}://, and this Spark has no driver for it "
            f"({error.java_exception.getMessage()}). Start it with spark.jars.packages={package.format(hadoop.util.VersionInfo.getVersion())} and its "
            f'own credentials ({setting} and its like), or use format("txlog"), which reads and writes the store by txlog\'s'
        ) from None
    return root


def escape_glob(path: str) -> str:
    """`path` for `spark.read`, which takes `*`, `[...]` and `{...}` for patterns."""
    return _GLOB_CHARACTERS.sub(r"\\\1", path)
