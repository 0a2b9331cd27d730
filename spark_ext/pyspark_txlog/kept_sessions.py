"""Which stores does this Python process have open still, from the micro-batch before?

Spark begins and commits micro-batches in a few Python processes that it uses again and again. What a session has learned
of its partitions is as good for the next batch: a held view may be stale, never wrong (whatever is decided on it is
decided on the very slot that the decision takes, PROTOCOL.md, "Appending"), and an old one is listed anew by itself. So one
session is kept for each store, transactional.id and query, and spares the next batch to open all partitions anew.

Between two batches the store may have been made anew, or put back to an older state. So a session that is taken up again
looks first whether it is the same store, and whether the log still holds what it has seen (W47).

A session that met an error is closed, not kept: the next one opens everything anew.
"""

from __future__ import annotations

import json
import os
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark_txlog.options import WriteOptions
from pyspark_txlog.writer import open_store, producer_config
from txlog.client.session import Session
from txlog.client.staged import producer_session
from txlog.errors import StoreChangedError

MAX_SESSIONS = 8
"""Queries that one process serves in turns; of more, those that were not heard of for longest begin anew."""

_KEPT: OrderedDict[tuple[int, str], Session] = OrderedDict()


@contextmanager
def kept_session(options: WriteOptions) -> Iterator[Session]:
    """The session of this store, transactional.id and query: the one before, or a new one. Another query begins afresh.

    Raises what opening a store raises, StoreChangedError if it is not the store any more that the one before had opened.
    """
    names = [options.store.path, options.transactional_id, options.query, _settings(options)]
    key = (os.getpid(), json.dumps(names, sort_keys=True))
    # Out of the way while it is in use: a call that comes meanwhile gets one of its own.
    before = _KEPT.pop(key, None)
    session = before or _opened(options)
    try:
        if before is not None:
            before.doubt()
        yield session
    except StoreChangedError as error:
        session.runtime.close()
        error.add_note(
            "Then start the query again: its checkpoint is compared with the log. If the store was made anew on purpose, the rows of the query's "
            "earlier micro-batches are not in it: start with a new checkpoint to have them written again"
        )
        raise
    except BaseException:
        session.runtime.close()
        raise
    other = _KEPT.pop(key, None)
    _KEPT[key] = session
    if other is not None:
        other.runtime.close()
    while len(_KEPT) > MAX_SESSIONS:
        _, oldest = _KEPT.popitem(last=False)
        oldest.runtime.close()


def _opened(options: WriteOptions) -> Session:
    runtime = open_store(options)
    config = runtime.settings.producer_config(producer_config(options))
    return producer_session(runtime, config, f"transactional.id {options.transactional_id!r}")


def _settings(options: WriteOptions) -> dict[str, str]:
    return {name: repr(value) for name, value in {**options.store.storage, **producer_config(options)}.items()}
