"""How does a program read and write `format("txlog")` natively, without another line of code? `install()`.

Spark's Python data sources hand every row from Java to Python or back, with all columns. `install` replaces three
methods of pyspark: `DataFrameReader.load`, `DataFrameWriter.save` and `DataStreamWriter.start`. For `format("txlog")`
they use Spark's own Parquet reader and writer (`native.format`, whose table shows which calls do). Every other call,
and every call that `native.format` does not take, goes to the original method with the same arguments.
`SparkSession.sql` is replaced, too, so that a statement that would change rows of a topic gets a better error, and with
both methods `table` so that views can be kept fresh (`api.fresh_views`).

These methods are the smallest hook. A Python data source cannot return a Spark plan, and a data source in Java
would need a JAR on every cluster. Format, options, mode and schema are read from Spark's own object when the work
begins, so it does not matter how a program has set them. The classes of Spark Connect are replaced if they are loaded.
"""

from __future__ import annotations

import inspect
import json
import logging
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeAlias

from pyspark.sql import SparkSession, readwriter
from pyspark.sql.streaming import readwriter as streaming
from pyspark.sql.types import StructType

from pyspark_txlog.messages import MARK, NotNativeError
from txlog.errors import InvalidRequestError
from txlog.logs import log

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

_Method: TypeAlias = Callable[..., Any]
_Prepare: TypeAlias = Callable[[Any, object], Callable[[], Any]]
"""(the reader or writer, its path) -> the function that does the work. If this raises, nothing has happened."""

_COMMENT = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)
_CHANGE = re.compile(
    r"\s*((?:DELETE\s+FROM|UPDATE|MERGE\s+INTO|TRUNCATE\s+TABLE)\s+((?:`[^`]*`|[^\s;`])+))", re.IGNORECASE
)
_OF_TOPIC = re.compile(rf"SubqueryAlias `?{MARK}`?\s|RelationV2\[.*\]\s+txlog\s")
"""How Spark prints the plan of a frame of a topic that was read natively, or with the Python data source."""
_CONNECT = "pyspark.sql.connect.readwriter"
_LOCK = threading.Lock()
_LOG = logging.getLogger(__name__)
_ORIGINALS: dict[tuple[type, str], tuple[_Method, _Method]] = {}
"""By class and name: the original method, and ours."""
AROUND_SQL: list[Callable[[SparkSession, Sequence[str]], AbstractContextManager[None]]] = []
"""Inside what `spark.sql`, `spark.table` and `spark.read.table` run. It gets their session and texts."""
_SAID: set[tuple[str, str]] = set()
"""Calls and reasons that were logged."""


def install() -> None:
    """Let `format("txlog")` use Spark's own Parquet reader and writer wherever that gives the same result.

    It counts for all sessions of this program, from now on, until `uninstall`. `pyspark_txlog.session()` calls it.
    Calling it again does nothing, except after the first session of Spark Connect: then it adds the reads of Connect.
    If a call must use the Python data source, txlog prints the reason once. No other format is touched.
    """
    hooks: list[tuple[type, str, _Prepare]] = [
        (readwriter.DataFrameReader, "load", _load),
        (readwriter.DataFrameWriter, "save", _save),
        (streaming.DataStreamWriter, "start", _start),
    ]
    if _CONNECT in sys.modules:
        hooks.append((sys.modules[_CONNECT].DataFrameReader, "load", _load_over_connect))
    with _LOCK:
        for owner, name, prepare in hooks:
            if (owner, name) not in _ORIGINALS:
                _replace(owner, name, _native_first(owner, name, prepare))
        for owner, name in ((SparkSession, "sql"), (SparkSession, "table"), (readwriter.DataFrameReader, "table")):
            if (owner, name) not in _ORIGINALS:
                inside = _inside(owner, name)
                _replace(owner, name, _refusing(inside) if name == "sql" else inside)


def _replace(owner: type, name: str, ours: _Method) -> None:
    _ORIGINALS[owner, name] = getattr(owner, name), ours
    setattr(owner, name, ours)


def uninstall() -> None:
    """Undo `install`: `format("txlog")` always uses the Python data source.

    Frames and queries that exist stay as they are.
    """
    with _LOCK:
        for (owner, name), (original, ours) in list(_ORIGINALS.items()):
            # Another library may have replaced the method after us. Its wrapper stays, and ours passes the calls on.
            if getattr(owner, name) is ours:
                setattr(owner, name, original)
            del _ORIGINALS[owner, name]


def _native_first(owner: type, name: str, prepare: _Prepare) -> _Method:
    """Return a method that prepares a call of `format("txlog")` natively, and leaves any other to `owner.name`."""
    original: _Method = getattr(owner, name)
    parameters = inspect.signature(original)

    @wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = parameters.bind(self, *args, **kwargs).arguments
        source = given.get("format") or _source(self)
        if _ORIGINALS.get((owner, name)) != (original, call) or source.lower() != "txlog":
            return original(self, *args, **kwargs)
        self.options(**given.get("options", {}))
        for setting, value in given.items():
            if setting not in ("self", "path", "options") and value is not None:
                getattr(self, setting)(value)
        path = given.get("path")
        try:
            work = prepare(self, path)
        except NotNativeError as error:
            reason = str(error)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
        else:
            return work()
        made = original(self, path)
        # Only now: if the original method raises, its error says enough.
        _say_once(name, reason)
        return made

    return call


def _refusing(original: _Method) -> _Method:
    """Return `SparkSession.sql` with one sentence for what Spark refuses, because it would change rows of a topic.

    Only an error of Spark is replaced, so every other statement is as before.
    """

    @wraps(original)
    def sql(self: Any, sqlQuery: str, *args: Any, **kwargs: Any) -> Any:  # noqa: N803  Spark's name
        try:
            return original(self, sqlQuery, *args, **kwargs)
        except Exception:
            found, plan = _CHANGE.match(_COMMENT.sub(" ", str(sqlQuery))), ""
            with suppress(Exception):
                plan = self.table(found[2])._jdf.queryExecution().analyzed().toString() if found else ""
            if not found or not _OF_TOPIC.search(plan):
                raise
        raise InvalidRequestError(
            f"{found[1]}: SQL cannot change or delete the rows of a topic. "
            "hint: `txlog erase TOPIC --where ...` erases rows, and a newer row of a key replaces the older one; "
            'see the page "Corrections"'
        )

    return sql


def _inside(owner: type, name: str) -> _Method:
    """Return the method, which runs inside AROUND_SQL as long as it is installed."""
    original: _Method = getattr(owner, name)

    @wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not AROUND_SQL or (owner, name) not in _ORIGINALS:
            return original(self, *args, **kwargs)
        session = self if isinstance(self, SparkSession) else self._spark
        with AROUND_SQL[0](session, [*_texts([*args, *kwargs.values()])]):
            return original(self, *args, **kwargs)

    return call


def _texts(given: object) -> Iterator[str]:
    """Yield the texts among arguments, also those of `IDENTIFIER(:name)`."""
    if isinstance(given, str):
        yield given
    elif isinstance(given, list | tuple | dict):
        for each in given.values() if isinstance(given, dict) else given:
            yield from _texts(each)


def _say_once(name: str, reason: str) -> None:
    if (name, reason) not in _SAID:
        _SAID.add((name, reason))
        text = f'{name}() of format("txlog") uses the Python data source: {reason}'
        log(_LOG, logging.WARNING, "python_source", text)


# -- what was given to pyspark's objects ------------------------------------------------------------------------------


def _source(spark_object: Any) -> str:
    """Return the format that a reader or writer has now; "" if pyspark's objects are not as in Spark 4.2 and 4.3."""
    try:
        if isinstance(spark_object, readwriter.DataFrameReader):
            return str(spark_object._jreader.source())
        if isinstance(spark_object, readwriter.DataFrameWriter):
            return str(spark_object._jwrite.source())
        if isinstance(spark_object, streaming.DataStreamWriter):
            return str(_private(spark_object._jwrite, "source"))
        return spark_object._format or ""
    except Exception:
        # Not only for this format, so every other format must go on.
        return ""


def _load(reader: Any, path: object) -> Callable[[], DataFrame]:
    from pyspark_txlog.native.format import load

    java = reader._jreader
    given = java.userSpecifiedSchema()
    schema = StructType.fromJson(json.loads(given.get().json())) if given.isDefined() else None
    frame = load(reader._spark, _options(java.extraOptions(), path), schema)
    return lambda: frame


def _load_over_connect(reader: Any, path: object) -> Callable[[], DataFrame]:
    from pyspark_txlog.native.format import load

    schema = reader._schema
    if schema and not schema.startswith("{"):
        schema = reader._client.createDataFrame([], schema).schema.json()
    frame = load(
        reader._client, _with_path(reader._options, path), StructType.fromJson(json.loads(schema)) if schema else None
    )
    return lambda: frame


def _save(writer: Any, path: object) -> Callable[[], None]:
    from pyspark_txlog.native.format import begin_save

    java = writer._jwrite
    if java.curmode().name() != "Append":
        raise NotNativeError(f"the mode is {java.curmode().name()}")
    if java.partitioningColumns().isDefined() or java.clusteringColumns().isDefined():
        return _refuse_columns
    if java.bucketColumnNames().isDefined() or java.sortColumnNames().isDefined():
        raise NotNativeError("a topic is not bucketed or sorted by columns")
    return begin_save(writer._df, _options(java.extraOptions(), path))


def _refuse_columns() -> None:
    raise InvalidRequestError(
        "a topic is not partitioned or clustered by columns. hint: leave partitionBy and clusterBy out; "
        "the topic's key.columns, or the option 'key', choose the partition of a row"
    )


def _start(writer: Any, path: object) -> Callable[[], StreamingQuery]:
    from pyspark_txlog.native.format import begin_stream

    java = writer._jwrite
    mode, trigger = _private(java, "outputMode").toString(), _private(java, "trigger").getClass().getSimpleName()
    if mode != "Append":
        raise NotNativeError(f"the output mode is {mode}")
    if trigger.startswith(("Continuous", "RealTime")):
        raise NotNativeError(f"the trigger is {trigger}")
    if any(_private(java, name).isDefined() for name in ("partitioningColumns", "clusteringColumns")):
        raise NotNativeError("a topic is not partitioned or clustered by columns")
    batch = begin_stream(writer._df, _options(_private(java, "extraOptions"), path))

    def start() -> StreamingQuery:
        try:
            query: StreamingQuery = writer.foreachBatch(batch).start()
        finally:
            # The caller may start the same writer again.
            writer.format("txlog")
        return query

    return start


def _options(extra: Any, path: object) -> dict[str, str]:
    """Return Scala's map of options. A look at each option would cost several calls into Java."""
    if extra.isEmpty():
        return _with_path({}, path)
    names, values = (part.mkString("\0").split("\0") for part in (extra.keys(), extra.values()))
    # Spark 4.2 also keeps the value None.
    if len(names) != len(values) or extra.values().iterator().contains(None):
        raise NotNativeError("an option has the value None or contains a NUL character")
    return _with_path(dict(zip(names, values, strict=True)), path)


def _with_path(options: Mapping[str, str], path: object) -> dict[str, str]:
    if path is None:
        return dict(options)
    if not isinstance(path, str) or any(name.lower() == "path" for name in options):
        raise NotNativeError("more than one path is given")
    return {**options, "path": path}


def _private(java: Any, name: str) -> Any:
    """Return a field for which Spark's class has no public method."""
    field = java.getClass().getDeclaredField(name)
    field.setAccessible(True)
    return field.get(java)
