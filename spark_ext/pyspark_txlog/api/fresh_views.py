"""How does SQL see the newest rows of topics? By views that are created again for each statement that names them.

Spark fixes what a view reads when the view is created, and a data source in Python has no say in its catalog. So
`install` runs `spark.sql`, `spark.table` and `spark.read.table` inside `fresh`, with their text.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import SparkSession

from pyspark_txlog import patch
from pyspark_txlog.api.log import TxLog, register
from pyspark_txlog.messages import plain_errors
from pyspark_txlog.source.predicate import quoted
from txlog.errors import InvalidRequestError

_NOT_NAMES = re.compile(r"--[^\n]*|/\*.*?\*/|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
"""Comments and literals of SQL."""
_DROP = re.compile(r"\s*DROP\s", re.IGNORECASE)


@dataclass(slots=True)
class _Views:
    """Views over one store that one call created."""

    log: TxLog
    prefix: str
    made: dict[str, int]
    """By topic, which object of Spark the view is. Another one is not ours."""


@dataclass(slots=True)
class _Session:
    """The views of one of Spark's sessions."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    """Held while a statement that names views is analysed, so that no other thread creates them again."""
    views: list[_Views] = field(default_factory=list)


_SESSIONS: dict[str, _Session] = {}
"""By the id of Spark's session: there may be several objects of Python for one."""


@plain_errors
def create_views(
    spark: SparkSession,
    store: str | os.PathLike[str],
    *topics: str,
    prefix: str = "txlog_",
    storage_options: Mapping[str, object] | None = None,
) -> dict[str, str]:
    """Create a temporary view for each topic (the named ones, or all), and keep it fresh.

        create_views(spark, "my-log")
        spark.sql("SELECT count(*) FROM txlog_orders")

    Each later `spark.sql`, `spark.table` and `spark.read.table` of the session whose text names such views creates them
    again, of a new `TxLog.snapshot`. So it sees the rows and columns of its moment, and each transaction wholly or not
    at all, also in several topics of one call. A frame that exists does not change, and a view over such a view is as
    old as the last statement that named this one. Costs a snapshot for each statement; what Spark has cached of the
    view does not help then. A view that is dropped, or replaced by another one, is left alone. It calls `install`. In
    `foreachBatch` call it with the frame's session.

    Returns the view's name for each topic, quoted for SQL. Raises what `TxLog.snapshot` raises. Raises
    InvalidRequestError if two names differ only in case, and over Spark Connect, where statements do not pass this
    program's session.
    """
    if not hasattr(spark, "_jsparkSession"):
        raise InvalidRequestError(
            "over Spark Connect views cannot be kept fresh. hint: TxLog(spark, store).create_views() makes views of "
            "the rows that are there"
        )
    log = TxLog(spark, store, storage_options)
    session = _SESSIONS.setdefault(_id_of(spark), _Session())
    with session.lock:
        try:
            topics = topics or tuple(topic.topic for topic in log.runtime.list_topics())
            named = register(log.snapshot(*topics).to_dfs() if topics else {}, prefix)
            views = _Views(log, prefix, {topic: _object(spark, f"{prefix}{topic}") for topic in named})
        except BaseException:
            log.close()
            raise
        session.views.append(views)
        _forget(spark, session)
    patch.install()
    patch.AROUND_SQL[:] = [fresh]
    return named


@contextmanager
def fresh(spark: Any, texts: Sequence[str]) -> Iterator[None]:
    """Create the views that a statement names again, and keep them until Spark has analysed it.

    `texts` are the statement, or the name of a table, and what it gets as parameters. Raises what `TxLog.snapshot`
    raises.
    """
    session = _SESSIONS.get(_id_of(spark)) if _SESSIONS and hasattr(spark, "_jsparkSession") else None
    if session is None or not texts or _DROP.match(texts[0]) or not any(_named(session, texts)):
        yield
        return
    with session.lock:
        _forget(spark, session)
        for views, topics in _named(session, texts):
            register(views.log.snapshot(*topics).to_dfs(), views.prefix)
            views.made.update({topic: _object(spark, f"{views.prefix}{topic}") for topic in topics})
        yield


def _named(session: _Session, texts: Sequence[str]) -> Iterator[tuple[_Views, list[str]]]:
    """Yield the views that the texts name, with their topics."""
    code = _NOT_NAMES.sub(" ", texts[0]).lower()
    parameters = {text.replace("`", "").lower() for text in texts[1:]}
    for views in list(session.views):
        names = {topic: f"{views.prefix}{topic}".lower() for topic in list(views.made)}
        topics = [topic for topic, name in names.items() if name in parameters or (name in code and _is_in(name, code))]
        if topics:
            yield views, topics


def _is_in(name: str, code: str) -> bool:
    """Return whether the code has the identifier; both are in small letters."""
    return quoted(name) in code or bool(re.fullmatch(r"\w+", name) and re.search(rf"(?<![\w.`]){name}(?![\w`])", code))


def _forget(spark: Any, session: _Session) -> None:
    """Forget views that are dropped or replaced, and close stores without any."""
    for views in list(session.views):
        for topic, number in list(views.made.items()):
            if _object(spark, f"{views.prefix}{topic}") != number:
                del views.made[topic]
        if not views.made:
            session.views.remove(views)
            views.log.close()


def _object(spark: Any, view: str) -> int:
    """Return the identity of what Spark's session has under the name; 0 for nothing."""
    found = spark._jsparkSession.sessionState().catalog().getRawTempView(view)
    return int(spark._jvm.java.lang.System.identityHashCode(found.get())) if found.isDefined() else 0


def _id_of(spark: Any) -> str:
    return str(spark._jsparkSession.sessionUUID()) if hasattr(spark, "_jsparkSession") else ""
