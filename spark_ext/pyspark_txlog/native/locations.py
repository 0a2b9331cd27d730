"""Where does Spark itself find the files of a store?

txlog opens object stores through fsspec, Spark through Hadoop's file systems: one location has two spellings. Spark's
credentials (such as `fs.s3a.access.key`) are in its own configuration; txlog does not pass on those of
`storage_options`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from txlog.engine import Runtime, backend_of
from txlog.errors import UnsupportedStoreError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_GLOB_CHARACTERS = re.compile(r"([\\*?\[\]{}])")


def spark_folder(spark: SparkSession, runtime: Runtime) -> str:
    """Return the store's root as a Hadoop path, without a trailing slash, unescaped as Hadoop needs it.

    Sends no request. Raises UnsupportedStoreError if Spark cannot access the store, or if this session has no driver
    for it, with what is missing, and an alternative. (Over Spark Connect there is no check of the session.)
    """
    scheme, _, rest = runtime.where.partition("://")
    if scheme == "file":
        return f"file://{rest.rstrip('/')}"
    backend = backend_of(runtime.where)
    if backend is None:
        raise UnsupportedStoreError(
            f"{runtime.where}: Spark has no file system for this URL, so its own Parquet reader and "
            "writer cannot access it. "
            'hint: use format("txlog")'
        )
    root = backend.hadoop_url(runtime.where, runtime.storage_options)
    jvm: Any = getattr(spark, "_jvm", None)
    if jvm is None:
        return root
    # Imported here because py4j does not exist without a JVM.
    from py4j.protocol import Py4JJavaError

    hadoop = jvm.org.apache.hadoop
    configuration = spark._jsparkSession.sessionState().newHadoopConf()
    try:
        hadoop.fs.FileSystem.getFileSystemClass(backend.hadoop_scheme, configuration)
    except Py4JJavaError as error:
        package = backend.hadoop_package.format(hadoop.util.VersionInfo.getVersion())
        raise UnsupportedStoreError(
            f"{runtime.where}: this Spark has no driver for {backend.hadoop_scheme}:// "
            f"({error.java_exception.getMessage()}). hint: start it with spark.jars.packages={package} and its "
            f'own credentials (such as {backend.hadoop_setting}), or use format("txlog"), which needs neither'
        ) from None
    return root


def escape_glob(path: str) -> str:
    """Escape `path` for `spark.read`, which treats `*`, `[...]` and `{...}` as patterns."""
    return _GLOB_CHARACTERS.sub(r"\\\1", path)
