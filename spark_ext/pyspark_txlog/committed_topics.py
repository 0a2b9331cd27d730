"""Has this process committed a version, which is about to be skipped, for other topics?

A version is one transaction of its transactional.id. But users of Delta's `txnAppId` and `txnVersion` write two appends
in one micro-batch, with one id and one version, to two topics. The second append is not a repetition, and skipping it
would lose its rows. So a process remembers the topics of its last transaction of each id, to detect this case. It knows
nothing about other processes: their repetitions are skipped.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection

from txlog.client.runtime import Runtime
from txlog.core.transactions import TxnVersion
from txlog.errors import InvalidRequestError

MAX_IDS = 1000
"""How many transactional ids a process remembers. Beyond that, it forgets the ids with the oldest commits."""

_COMMITTED: OrderedDict[tuple[str, str], tuple[TxnVersion, frozenset[str]]] = OrderedDict()


def remember_topics(runtime: Runtime, transactional_id: str, version: TxnVersion, topics: Collection[str]) -> None:
    """Record that this process has committed `version` of the id, and for which topics."""
    key = (runtime.require_store().store_id, transactional_id)
    _COMMITTED.pop(key, None)
    _COMMITTED[key] = (version, frozenset(topics))
    while len(_COMMITTED) > MAX_IDS:
        _COMMITTED.popitem(last=False)


def check_topics(runtime: Runtime, transactional_id: str, version: TxnVersion, topics: Collection[str]) -> None:
    """Raise InvalidRequestError if this process committed `version`, which is about to be skipped, without one of `topics`."""
    known = _COMMITTED.get((runtime.require_store().store_id, transactional_id))
    if known is None or known[0] != version or not (others := sorted(set(topics) - known[1])):
        return
    raise InvalidRequestError(
        f"transactional.id {transactional_id!r}, version {version.version}: this process has committed it for {', '.join(sorted(known[1])) or 'no topic'}, so "
        f"the rows for {', '.join(others)} would be skipped. hint: write all topics in one TxLog.transaction(...), or give each its own id"
    )
