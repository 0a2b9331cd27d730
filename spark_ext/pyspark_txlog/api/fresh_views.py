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
from txlog.errors import InvalidRequestError, UnknownTopicOrPartitionError

_DROP = re.compile(r"\s*DROP\s", re.IGNORECASE)


@dataclass(slots=True)
class _Views:
    """Views over one store that one call created."""

    log: TxLog
    prefix: str
    made: dict[str, int | None]
    """By topic, which object of Spark the view is. Another one is not ours. None: it is being made, or that was
    interrupted, so any object is ours."""

    def make(self, spark: SparkSession, topics: Sequence[str]) -> dict[str, str]:
        """Make the views of these topics, all from one snapshot."""
        frames = self.log.snapshot(*topics).to_dfs() if topics else {}
        self.made.update(dict.fromkeys(frames))
        named = register(frames, self.prefix)
        self.made.update({topic: _object(spark, f"{self.prefix}{topic}") for topic in frames})
        return named


@dataclass(slots=True)
class _Session:
    """The views of one of Spark's sessions."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    """Held until a statement that names views is analysed, or has run if it is a command, so that no other thread
    makes them again."""
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
    at all, also in several topics of one call. This costs a snapshot for each statement; what Spark has cached of the
    view does not help then. A frame that exists does not change, and a view over such a view is as old as the last
    statement that named this one. A view that is dropped or replaced is left alone; that of a deleted topic is dropped.
    It calls `install`. In `foreachBatch` call it with the frame's session.

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
        _forget(spark, session, None)
        try:
            topics = topics or tuple(topic.topic for topic in log.runtime.list_topics())
            views = _Views(log, prefix, {})
            named = views.make(spark, topics)
        except BaseException:
            log.close()
            raise
        session.views.append(views)
        _forget(spark, session, None)
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
        for views, topics in [*_named(session, texts)]:
            _forget(spark, session, topics)
            left = [topic for topic in topics if topic in views.made]
            for topic in [topic for topic in left if not _exists(views, topic)]:
                spark.catalog.dropTempView(f"{views.prefix}{topic}")
                left.remove(topic)
            views.make(spark, left)
        yield


def _named(session: _Session, texts: Sequence[str]) -> Iterator[tuple[_Views, list[str]]]:
    """Yield the views whose names are in the texts, with their topics. Literals and comments count, too: a view that is
    made once more costs time, and one that is not made would be old."""
    text = "\0".join(texts).lower()
    for views in list(session.views):
        topics = [topic for topic in list(views.made) if _is_in(f"{views.prefix}{topic}".lower(), text)]
        if topics:
            yield views, topics


def _is_in(name: str, text: str) -> bool:
    return name in text and re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) is not None


def _exists(views: _Views, topic: str) -> bool:
    """Return whether the topic is there. A view of a topic that is deleted goes, and hinders no other statement."""
    try:
        views.log.runtime.topic(topic, 0)
    except UnknownTopicOrPartitionError:
        return False
    return True


def _forget(spark: Any, session: _Session, topics: Sequence[str] | None) -> None:
    """Forget views of `topics` (None: all) that are dropped or replaced, and close stores without any view."""
    for views in list(session.views):
        for topic in list(views.made) if topics is None else [each for each in topics if each in views.made]:
            found = _object(spark, f"{views.prefix}{topic}")
            if found != (views.made[topic] or found) or not found:
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
