"""Is a version that is about to be skipped one that this very process has committed for other topics?

A version is one transaction of its transactional.id. Two appends of one micro-batch with one id and one version, each to
its topic, as users of Delta's `txnAppId` and `txnVersion` write them, are therefore no repetition: the second one's rows
would never be written. A process remembers what its last transaction of each id wrote to, so that it can tell the two
cases apart. It knows nothing of other processes: their repetitions are skipped.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection

from txlog.client.runtime import Runtime
from txlog.core.transactions import TxnVersion
from txlog.errors import InvalidRequestError

MAX_IDS = 1000
"""Transactional ids that a process remembers; beyond, those that committed longest ago are forgotten."""

_COMMITTED: OrderedDict[tuple[str, str], tuple[TxnVersion, frozenset[str]]] = OrderedDict()


def remember_topics(runtime: Runtime, transactional_id: str, version: TxnVersion, topics: Collection[str]) -> None:
    """Notes that this process has committed `version` of the id, and for which topics."""
    key = (runtime.require_store().store_id, transactional_id)
    _COMMITTED.pop(key, None)
    _COMMITTED[key] = (version, frozenset(topics))
    while len(_COMMITTED) > MAX_IDS:
        _COMMITTED.popitem(last=False)


def check_topics(runtime: Runtime, transactional_id: str, version: TxnVersion, topics: Collection[str]) -> None:
    """Raises InvalidRequestError if this process committed `version`, which is about to be skipped, without one of `topics`."""
    known = _COMMITTED.get((runtime.require_store().store_id, transactional_id))
    if known is None or known[0] != version or not (others := sorted(set(topics) - known[1])):
        return
    raise InvalidRequestError(
        f"transactional.id {transactional_id!r}, version {version.version}: this process has committed it for {', '.join(sorted(known[1])) or 'no topic'}, so "
        f"the rows for {', '.join(others)} would be skipped. hint: write all topics in one TxLog.transaction(...), or give each its own id"
    )
