"""Where does a read to the end of the log end while other members still own partitions of this consumer's share?"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping

import pyarrow as pa

from txlog.core.names import TopicPartition
from txlog.logs import log
from txlog.text import count_text

_LOG = logging.getLogger(__name__)
_WAIT_MS = 500
"""How long one poll lasts while a member is awaited."""


def read_to_end(
    poll: Callable[[int], pa.RecordBatch | None],
    awaited: Callable[[], Mapping[str, Collection[TopicPartition]]],
    timeout_ms: int,
    who: str,
) -> Iterator[pa.RecordBatch]:
    """Yield what `poll` returns until it returns nothing for `timeout_ms`; with 0, also until no member is awaited.

    A warning, which begins with `who`, names the members that are awaited.
    """
    named: set[str] = set()
    wait_ms = timeout_ms
    while True:
        batch = poll(wait_ms)
        if batch is not None:
            wait_ms = timeout_ms
            yield batch
            continue
        found = awaited()
        if found.keys() - named:
            named |= found.keys()
            log(_LOG, logging.WARNING, "group_waits", "%s: %s", who, awaited_text(found))
        if timeout_ms or not found:
            return
        wait_ms = _WAIT_MS


def awaited_text(awaited: Mapping[str, Collection[TopicPartition]]) -> str:
    """Return which members a consumer waits for, and until when. `awaited` has at least one."""
    name, owned = max(awaited.items(), key=lambda item: (len(item[1]), item[0]))
    why = (
        f"still owns {count_text(len(owned), 'partition')} of its share" if owned else "has not seen the rebalance yet"
    )
    others = f" (and for {count_text(len(awaited) - 1, 'other member')})" if len(awaited) > 1 else ""
    return (
        f"waits for member {name!r}{others}, which {why}. It ends when that member polls again, or when its session is over "
        "(session.timeout.ms). hint: a consumer that is killed and started again with the same group.instance.id does not wait"
    )
