"""How does a program iterate over rows, and where does a read to the end of the log end?

Other members may still own partitions of this consumer's share.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from types import FrameType

import pyarrow as pa

from txlog.client.consumer.fetcher import Fetcher
from txlog.client.session.call_guard import CallGuard
from txlog.core.names import TopicPartition
from txlog.logs import log
from txlog.text import count_text

_LOG = logging.getLogger(__name__)
_WAIT_MS = 500
"""How long one poll lasts while a member is awaited."""


class ToEnd:
    """Polls until nothing came for `timeout_ms`; with 0, also until no member is awaited.

    A warning, which begins with `who`, names the members that are awaited.
    """

    def __init__(
        self,
        poll: Callable[[int, FrameType], pa.RecordBatch | None],
        awaited: Callable[[], Mapping[str, Collection[TopicPartition]]],
        timeout_ms: int,
        who: str,
    ) -> None:
        self._poll = poll
        self._awaited = awaited
        self._timeout_ms = self._wait_ms = timeout_ms
        self._who = who
        self._named: set[str] = set()

    def next(self, frame: FrameType) -> pa.RecordBatch | None:
        """Return the next rows; None at the end. `frame` is the function from which they leave the consumer."""
        while True:
            batch = self._poll(self._wait_ms, frame)
            if batch is not None:
                self._wait_ms = self._timeout_ms
                return batch
            found = self._awaited()
            if found.keys() - self._named:
                self._named |= found.keys()
                log(_LOG, logging.WARNING, "group_waits", "%s: %s", self._who, awaited_text(found))
            if self._timeout_ms or not found:
                return None
            self._wait_ms = _WAIT_MS


class Rows(Iterator[pa.RecordBatch]):
    """Iterates over what `take` returns until that is None, and tells the fetcher when rows leave it.

    After an interrupt it can go on: a generator would look like one at its end.
    """

    def __init__(self, take: Callable[[FrameType], pa.RecordBatch | None], fetcher: Fetcher, guard: CallGuard) -> None:
        self._take = take
        self._fetcher = fetcher
        self._guard = guard
        self._ended = False

    def __next__(self) -> pa.RecordBatch:
        batch = None if self._ended else self._take(sys._getframe())
        if batch is None:
            self._ended = True
            raise StopIteration
        assert self._guard.turn is not None
        # One line: before it the rows are not returned, and the next call takes them back.
        self._fetcher.taken = None; self._guard.turn = self._guard.turn.before; return batch  # fmt: skip # noqa: E702


def awaited_text(awaited: Mapping[str, Collection[TopicPartition]]) -> str:
    """Return which members a consumer waits for, and until when. `awaited` has at least one."""
    name, owned = max(awaited.items(), key=lambda item: (len(item[1]), item[0]))
    why = (
        f"still owns {count_text(len(owned), 'partition')} of its share" if owned else "has not seen the rebalance yet"
    )
    others = f" (and for {count_text(len(awaited) - 1, 'other member')})" if len(awaited) > 1 else ""
    return (
        f"waits for member {name!r}{others}, which {why}. It ends when that member polls again, or when its session "
        "is over (session.timeout.ms). "
        "hint: a consumer that is killed and started again with the same group.instance.id does not wait"
    )
