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
    made: dict[str, int | None] = field(default_factory=dict)
    """By topic, which object of Spark the view is. Another one is not ours. None: it is being made, or that was
    interrupted, so any object is ours."""

    def name(self, topic: str) -> str:
        return f"{self.prefix}{topic}"

    def make(self, spark: SparkSession, topics: Sequence[str]) -> dict[str, str]:
        """Make the views of these topics, all from one snapshot."""
        frames = self.log.snapshot(*topics).to_dfs() if topics else {}
        self.made.update(dict.fromkeys(frames))
        named = register(frames, self.prefix)
        self.made.update({topic: _object(spark, self.name(topic)) for topic in frames})
        return named

    def forget(self, spark: SparkSession, topics: Sequence[str]) -> None:
        """Forget the views of these topics that were dropped or replaced."""
        for topic in topics:
            found = _object(spark, self.name(topic))
            if not found or self.made[topic] not in (None, found):
                del self.made[topic]

    def make_again(self, spark: SparkSession, topics: Sequence[str]) -> None:
        """Make the views of these topics that the user has not dropped or replaced.

        The view of a deleted topic is dropped, so that it hinders no statement that does not need it.
        """
        self.forget(spark, topics)
        left = [topic for topic in topics if topic in self.made]
        try:
            self.make(spark, left)
        except UnknownTopicOrPartitionError:
            there = {topic.topic for topic in self.log.runtime.list_topics()}
            if there.issuperset(left):
                raise
            for topic in [topic for topic in left if topic not in there]:
                spark.catalog.dropTempView(self.name(topic))
                del self.made[topic]
            self.make(spark, [topic for topic in left if topic in there])


@dataclass(slots=True)
class _Session:
    """The views of one of Spark's sessions."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    """Held until a statement that names views is analysed, or has run if it is a command, so that no other thread
    makes them again."""
    views: list[_Views] = field(default_factory=list)

    def close_empty(self) -> None:
        """Close the stores of which no view is left."""
        for views in [each for each in self.views if not each.made]:
            self.views.remove(views)
            views.log.close()


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
        views = _Views(log, prefix)
        try:
            named = views.make(spark, topics or [topic.topic for topic in log.runtime.list_topics()])
        except BaseException:
            log.close()
            raise
        taken = {views.name(topic).lower() for topic in views.made}
        for other in session.views:
            other.forget(spark, list(other.made))
            # An interrupted one would take the new view for its own.
            other.made = {topic: each for topic, each in other.made.items() if other.name(topic).lower() not in taken}
        session.views.append(views)
        session.close_empty()
    patch.install()
    patch.AROUND_SQL[:] = [fresh]
    return named


@contextmanager
def fresh(spark: Any, texts: Sequence[str]) -> Iterator[None]:
    """Create the views that a statement names again, and keep them until Spark has analysed it.

    `texts` are the statement, or the name of a table, and what it gets as parameters. Raises what `TxLog.snapshot`
    raises.
    """
    session = _SESSIONS.get(_id_of(spark))
    if session is None or not texts or _DROP.match(texts[0]) or not any(_named(session, texts)):
        yield
        return
    with session.lock:
        for views, topics in list(_named(session, texts)):
            views.make_again(spark, topics)
        session.close_empty()
        yield


def _named(session: _Session, texts: Sequence[str]) -> Iterator[tuple[_Views, list[str]]]:
    """Yield the views whose names are in the texts, with their topics. Literals and comments count, too: a view that is
    made once more costs time, and one that is not made would be old."""
    text = "\0".join(texts).lower()
    for views in list(session.views):
        topics = [topic for topic in list(views.made) if _is_in(views.name(topic).lower(), text)]
        if topics:
            yield views, topics


def _is_in(name: str, text: str) -> bool:
    return name in text and re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) is not None


def _object(spark: Any, view: str) -> int:
    """Return the identity of what Spark's session has under the name; 0 for nothing."""
    found = spark._jsparkSession.sessionState().catalog().getRawTempView(view)
    return int(spark._jvm.java.lang.System.identityHashCode(found.get())) if found.isDefined() else 0


def _id_of(spark: Any) -> str:
    """Return the id of Spark's session; "" over Spark Connect."""
    return str(spark._jsparkSession.sessionUUID()) if hasattr(spark, "_jsparkSession") else ""
