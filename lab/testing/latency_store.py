"""How long would a call take over a network? A store that adds a fixed time to every request."""

from __future__ import annotations

from collections.abc import Iterable

from txlog.clock import Clock
from txlog.storage.object_store import Names, ObjectStore, PutOutcome
from txlog.testing.counting_store import requests_of_list


class LatencyStore:
    """Pass every call on to `inner`, `latency_ms` later. A list waits once for each page."""

    def __init__(self, inner: ObjectStore, latency_ms: int, clock: Clock) -> None:
        self.inner = inner
        self.latency_ms = latency_ms
        self._clock = clock

    @property
    def url(self) -> str:
        return self.inner.url

    @property
    def place(self) -> str:
        return self.inner.place

    def get(self, path: str) -> bytes | None:
        self._wait()
        return self.inner.get(path)

    def get_range(self, path: str, start: int, end: int) -> bytes:
        self._wait()
        return self.inner.get_range(path, start, end)

    def size(self, path: str) -> int:
        self._wait()
        return self.inner.size(path)

    def put_if_absent(self, path: str, data: bytes) -> PutOutcome:
        self._wait()
        return self.inner.put_if_absent(path, data)

    def write_file(self, path: str, chunks: Iterable[bytes]) -> int:
        self._wait()
        return self.inner.write_file(path, chunks)

    def list(self, prefix: str, start_after: str = "") -> Names:
        names = self.inner.list(prefix, start_after)
        for _ in range(requests_of_list(names)):
            self._wait()
        return names

    def delete(self, path: str) -> None:
        self._wait()
        self.inner.delete(path)

    def modified_ms(self, path: str) -> int | None:
        self._wait()
        return self.inner.modified_ms(path)

    def _wait(self) -> None:
        self._clock.sleep_ms(self.latency_ms)
