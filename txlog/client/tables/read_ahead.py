"""How are several files read at once in bounded memory, with the rows in order?

Each read yields batches. A few threads work ahead of the reader: they decode the next reads while the reader uses the
rows of this one. What waits to be returned has at most AHEAD_BYTES, plus one batch. If the reader stops early, the
threads end after the request that they are in.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Self, TypeAlias

import pyarrow as pa

from txlog.errors import IllegalStateError

THREADS = 4
"""Four hide most of the time that requests to an object store take."""
AHEAD_BYTES = 64 * 2**20
GROUPS_BYTES = 256 * 2**20
"""Each thread holds a row group as it is stored. Fewer threads read if their row groups have more bytes than this."""

Read: TypeAlias = Callable[[], Iterator[pa.RecordBatch]]


def threads_for(group_bytes: int) -> int:
    """Return how many threads may read row groups of so many bytes, as stored."""
    return max(min(GROUPS_BYTES // max(group_bytes, 1), THREADS), 1)


def in_order(reads: Sequence[Read], threads: int = THREADS) -> Iterator[pa.RecordBatch]:
    """Yield the batches of each read, one read after the other. Raises the error of a read after the rows before it."""
    if min(len(reads), threads) < 2:
        for read in reads:
            yield from read()
        return
    ahead = _Ahead(reads)
    try:
        ahead.start(min(len(reads), threads))
        while (batch := ahead.next()) is not None:
            yield batch
    finally:
        ahead.stop()


class WholeRead:
    """The batches of a read, all of them or an error.

    After an error or an interrupt a generator would look as if it had no more rows.
    """

    def __init__(self, name: str, batches: Iterator[pa.RecordBatch]) -> None:
        self._name = name
        self._batches = batches
        self._broken = False
        """Whether a batch was asked for, and not returned."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> pa.RecordBatch:
        if self._broken:
            raise IllegalStateError(
                f"topic {self._name!r}: an error or an interrupt has ended this read, so rows would be "
                "missing. hint: scan again from the beginning: all rows come again"
            )
        self._broken = True
        batch = next(self._batches, None)
        if batch is None:
            self._broken = False
            raise StopIteration
        self._broken = False; return batch  # fmt: skip # noqa: E702


class _Ahead:
    def __init__(self, reads: Sequence[Read]) -> None:
        self._reads = reads
        # `with lock` is one step for a Ctrl-C, `with condition` is not: it could leave the lock held for ever.
        self._lock = threading.RLock()
        self._condition = threading.Condition(self._lock)
        self._waiting: list[deque[pa.RecordBatch]] = [deque() for _ in reads]
        self._ended = [False] * len(reads)
        self._errors: dict[int, BaseException] = {}
        self._begun = 0
        self._current = 0
        self._bytes = 0
        self._stopped = False

    def start(self, threads: int) -> None:
        for number in range(threads):
            # A daemon: a program must be able to end while a read that it dropped waits for the store.
            threading.Thread(target=self._work, name=f"txlog-table-{number}", daemon=True).start()

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            for waiting in self._waiting:
                waiting.clear()
            self._condition.notify_all()

    def next(self) -> pa.RecordBatch | None:
        with self._lock:
            while self._current < len(self._reads):
                waiting = self._waiting[self._current]
                if waiting:
                    batch = waiting.popleft()
                    self._bytes -= batch.nbytes
                    self._condition.notify_all()
                    return batch
                if not self._ended[self._current]:
                    self._condition.wait()
                elif error := self._errors.get(self._current):
                    raise error
                else:
                    self._current += 1
                    self._condition.notify_all()
            return None

    def _work(self) -> None:
        while (number := self._take()) is not None:
            try:
                for batch in self._reads[number]():
                    if not self._put(number, batch):
                        return
            except BaseException as error:
                self._errors[number] = error
            finally:
                self._end(number)

    def _take(self) -> int | None:
        with self._lock:
            if self._stopped or self._begun == len(self._reads):
                return None
            self._begun += 1
            return self._begun - 1

    def _put(self, number: int, batch: pa.RecordBatch) -> bool:
        """Wait until there is room, and return whether the batch is still wanted.

        There is always room for one batch of the read whose rows are returned now, so the reader never waits for ever.
        """
        size = batch.nbytes

        def has_room() -> bool:
            is_next = number == self._current and not self._waiting[number]
            return self._stopped or is_next or self._bytes + size <= AHEAD_BYTES

        with self._lock:
            self._condition.wait_for(has_room)
            if self._stopped:
                return False
            self._waiting[number].append(batch)
            self._bytes += size
            self._condition.notify_all()
            return True

    def _end(self, number: int) -> None:
        with self._lock:
            self._ended[number] = True
            self._condition.notify_all()
