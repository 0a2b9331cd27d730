"""How many requests does a process make, how long do they take, and for which topic? A store that measures another one.

Only a process that asked for metrics has one (`txlog.metrics`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from txlog import metrics
from txlog.core.effects import PutOutcome
from txlog.core.names import INTERNAL_TOPICS, is_reserved, is_topic_name
from txlog.errors import MissingObjectError, OutcomeUnknownError
from txlog.metrics import Registry
from txlog.storage.object_store import Names, ObjectStore, Watch, delete_all, make_durable, watch

T = TypeVar("T")

_PUTS = {PutOutcome.WRITTEN: "ok", PutOutcome.CONFLICT: "conflict", PutOutcome.UNKNOWN: "unknown"}


def metered(store: ObjectStore) -> ObjectStore:
    """Return `store`, measured if this process asked for metrics.

    Raises InvalidConfigurationError for a wrong TXLOG_METRICS.
    """
    registry = metrics.from_environment()
    if registry is None or isinstance(store, MeteredStore):
        return store
    return MeteredStore(store, registry)


class MeteredStore:
    """Pass every call on to `inner`, and measure it."""

    def __init__(self, inner: ObjectStore, registry: Registry) -> None:
        self.inner = inner
        self.url, self.place = inner.url, inner.place
        self._registry = registry

    def get(self, path: str) -> bytes | None:
        data = self._measured("get", path, lambda: self.inner.get(path), lambda got: "missing" if got is None else "ok")
        if data is not None:
            self._registry.add("txlog_storage_read_bytes_total", len(data), topic_of(path))
        return data

    def get_range(self, path: str, start: int, end: int) -> bytes:
        data = self._measured("get_range", path, lambda: self.inner.get_range(path, start, end))
        self._registry.add("txlog_storage_read_bytes_total", len(data), topic_of(path))
        return data

    def size(self, path: str) -> int:
        return self._measured("size", path, lambda: self.inner.size(path))

    def put_if_absent(self, path: str, data: bytes) -> PutOutcome:
        outcome = self._measured(
            "put_if_absent", path, lambda: self.inner.put_if_absent(path, data), lambda answer: _PUTS[answer]
        )
        self._registry.add("txlog_storage_written_bytes_total", len(data), topic_of(path))
        return outcome

    def write_file(self, path: str, chunks: Iterable[bytes]) -> int:
        written = self._measured("write_file", path, lambda: self.inner.write_file(path, chunks))
        self._registry.add("txlog_storage_written_bytes_total", written, topic_of(path))
        return written

    def list(self, prefix: str, start_after: str = "") -> Names:
        return self._measured("list", prefix, lambda: self.inner.list(prefix, start_after))

    def delete(self, path: str) -> None:
        self._measured("delete", path, lambda: self.inner.delete(path))

    def delete_many(self, paths: Sequence[str]) -> None:
        self._measured("delete", paths[0], lambda: delete_all(self.inner, paths))

    def modified_ms(self, path: str) -> int | None:
        return self._measured("modified_ms", path, lambda: self.inner.modified_ms(path))

    def make_durable(self, path: str) -> None:
        make_durable(self.inner, path)

    def watch(self) -> Watch | None:
        return watch(self.inner)

    def _measured(self, verb: str, path: str, call: Callable[[], T], outcome_of: Callable[[T], str] | None = None) -> T:
        began = time.perf_counter()
        outcome = "error"
        try:
            answer = call()
            outcome = "ok" if outcome_of is None else outcome_of(answer)
            return answer
        except MissingObjectError:
            outcome = "missing"
            raise
        except OutcomeUnknownError:
            outcome = "unknown"
            raise
        finally:
            self._registry.observe("txlog_storage_request_duration_seconds", time.perf_counter() - began, verb)
            self._registry.add("txlog_storage_requests_total", 1, verb, outcome, topic_of(path))


def topic_of(path: str) -> str:
    """Return the topic whose object this is; empty text for an object of no topic."""
    first, slash, _ = path.partition("/")
    is_topic = slash and is_topic_name(first) and (not is_reserved(first) or first in INTERNAL_TOPICS)
    return first if is_topic else ""
