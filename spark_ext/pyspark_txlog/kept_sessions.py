"""Which stores does this Python process have open still, from the micro-batch before?

Spark begins and commits micro-batches in a few Python processes that it uses again and again. What a session has learned
of its partitions is as good for the next batch: a held view may be stale, never wrong (whatever is decided on it is
decided on the very slot that the decision takes, PROTOCOL.md, "Appending"), and an old one is listed anew by itself. So one
session is kept for each store and transactional.id, and spares the next batch to open all partitions anew.

A session that met an error is closed, not kept.
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

MAX_SESSIONS = 8
"""Queries that one process serves in turns; of more, those that were not heard of for longest begin anew."""

_KEPT: OrderedDict[tuple[int, str], Session] = OrderedDict()


@contextmanager
def kept_session(options: WriteOptions) -> Iterator[Session]:
    """The session of this store and transactional.id: the one before, or a new one. Raises what opening a store raises."""
    key = (os.getpid(), json.dumps([options.store.path, options.transactional_id, _settings(options)], sort_keys=True))
    # Out of the way while it is in use: a call that comes meanwhile gets one of its own.
    session = _KEPT.pop(key, None) or _opened(options)
    try:
        yield session
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
