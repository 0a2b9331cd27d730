"""Which stores does this Python process keep open between micro-batches?

Spark begins and commits micro-batches in a few Python processes that it reuses. What a session knows about its
partitions is still useful for the next batch. A cached view may be stale, but never wrong: each decision is made on the
very slot that the decision takes (PROTOCOL.md, "Appending"). An old view is listed again automatically. So one session
is cached for each store, transactional.id and query, and the next batch need not open all partitions again.

Between two batches the store may have been recreated, or restored to an older state. So a reused session first checks
that it is the same store, and that the log still contains what the session has seen (W47).

A session that met an error is closed, not cached: the next one opens everything again.
"""

from __future__ import annotations

import json
import os
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark_txlog import option_table as table
from pyspark_txlog.options import Options
from pyspark_txlog.sink.batch_writer import producer_config
from txlog.engine import Session, producer_session
from txlog.errors import StoreChangedError

MAX_SESSIONS = 8
"""How many queries one process keeps sessions for. Beyond that, the least recently used session is closed."""

_CACHE: OrderedDict[tuple[int, str], Session] = OrderedDict()


@contextmanager
def cached_session(options: Options, query_id: str | None) -> Iterator[Session]:
    """Yield the session of this store, transactional.id and query: the cached one, or a new one. Another query gets a
    new one. A query whose checkpoint is not read is known by the checkpoint's location.

    Raises what opening a store raises, and StoreChangedError if it is no longer the store that the cached session
    opened.
    """
    reads_checkpoint = options[table.COMMIT_SOURCE_OFFSETS] and query_id is not None
    query = query_id if reads_checkpoint else options[table.CHECKPOINT_LOCATION]
    names = [options[table.PATH], options[table.TRANSACTIONAL_ID], query, _settings(options)]
    key = (os.getpid(), json.dumps(names, sort_keys=True))
    # Removed while in use, so that a concurrent call opens another session.
    before = _CACHE.pop(key, None)
    session = before or _opened(options)
    try:
        if before is not None:
            before.doubt()
        yield session
    except BaseException as error:
        session.runtime.close()
        if isinstance(error, StoreChangedError):
            error.add_note(
                "Then start the query again: txlog compares its checkpoint with the log. If the store was "
                "recreated on purpose, it lacks the rows of the query's earlier micro-batches: to write them "
                "again, start with a new checkpoint"
            )
        raise
    other = _CACHE.pop(key, None)
    _CACHE[key] = session
    if other is not None:
        other.runtime.close()
    while len(_CACHE) > MAX_SESSIONS:
        _, oldest = _CACHE.popitem(last=False)
        oldest.runtime.close()


def _opened(options: Options) -> Session:
    runtime = options.open()
    config = runtime.settings.producer_config(producer_config(options))
    return producer_session(runtime, config, f"transactional.id {options[table.TRANSACTIONAL_ID]!r}")


def _settings(options: Options) -> dict[str, str]:
    return {name: repr(value) for name, value in {**options.storage, **producer_config(options)}.items()}
