"""How many requests does a call need? A store that counts the requests to another store.

Budgets are asserted in requests, not seconds: `with store.counting() as cost: …; assert cost.put_if_absent == 1`. A
list of n names counts as ⌈n / 1000⌉ requests, at least one, because object stores charge this.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields

from txlog.storage.object_store import Names, ObjectStore, PutOutcome, Watch, watch

NAMES_PER_LIST = 1000


def requests_of_list(names: Names) -> int:
    """Return the cost of a list with this answer: one request for each page, and one for an empty answer."""
    return max(1, -(-len(names) // NAMES_PER_LIST))


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """Requests by verb, and the bytes that they transferred."""

    get: int = 0
    get_range: int = 0
    size: int = 0
    put_if_absent: int = 0
    write_file: int = 0
    list: int = 0
    delete: int = 0
    modified_ms: int = 0
    read_bytes: int = 0
    written_bytes: int = 0

    @property
    def total(self) -> int:
        """All requests."""
        return sum(getattr(self, field.name) for field in fields(self) if not field.name.endswith("_bytes"))

    def __sub__(self, earlier: Requests) -> Requests:
        return Requests(
            **{field.name: getattr(self, field.name) - getattr(earlier, field.name) for field in fields(self)}
        )

    def __str__(self) -> str:
        made = {field.name: getattr(self, field.name) for field in fields(self)}
        return ", ".join(f"{count} {name}" for name, count in made.items() if count) or "no request"


class Cost:
    """The cost of a `with store.counting()` block: live inside the block, final after it.

    Has the fields of Requests.
    """

    def __init__(self, store: CountingStore) -> None:
        self._store = store
        self._start = store.requests()
        self._calls = len(store.calls())
        self._end: tuple[Requests, int] | None = None

    def requests(self) -> Requests:
        """The requests of the block, by verb."""
        return (self._end[0] if self._end else self._store.requests()) - self._start

    def calls(self) -> tuple[tuple[str, str], ...]:
        """(verb, path) of each call, in order."""
        return self._store.calls()[self._calls : self._end[1] if self._end else None]

    def __getattr__(self, name: str) -> int:
        value: int = getattr(self.requests(), name)
        return value

    def __repr__(self) -> str:
        return f"Cost({self.requests()})"

    def _stop(self) -> None:
        self._end = (self._store.requests(), len(self._store.calls()))


class CountingStore:
    """Pass every call on to `inner`, and count it. Failed requests count too."""

    def __init__(self, inner: ObjectStore) -> None:
        self.inner = inner
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self._calls: list[tuple[str, str]] = []

    @property
    def url(self) -> str:
        return self.inner.url

    @property
    def place(self) -> str:
        return self.inner.place

    def requests(self) -> Requests:
        """Everything since the store was made."""
        with self._lock:
            return Requests(**self._counts)

    def calls(self) -> tuple[tuple[str, str], ...]:
        """(verb, path) of each call so far."""
        with self._lock:
            return tuple(self._calls)

    @contextlib.contextmanager
    def counting(self) -> Iterator[Cost]:
        """Count the cost of the block."""
        cost = Cost(self)
        try:
            yield cost
        finally:
            cost._stop()

    def get(self, path: str) -> bytes | None:
        self._count("get", path)
        data = self.inner.get(path)
        self._add("read_bytes", len(data or b""))
        return data

    def get_range(self, path: str, start: int, end: int) -> bytes:
        self._count("get_range", path)
        data = self.inner.get_range(path, start, end)
        self._add("read_bytes", len(data))
        return data

    def size(self, path: str) -> int:
        self._count("size", path)
        return self.inner.size(path)

    def put_if_absent(self, path: str, data: bytes) -> PutOutcome:
        self._count("put_if_absent", path)
        self._add("written_bytes", len(data))
        return self.inner.put_if_absent(path, data)

    def write_file(self, path: str, chunks: Iterable[bytes]) -> int:
        self._count("write_file", path)
        written = self.inner.write_file(path, chunks)
        self._add("written_bytes", written)
        return written

    def list(self, prefix: str, start_after: str = "") -> Names:
        self._count("list", prefix)
        names = self.inner.list(prefix, start_after)
        self._add("list", requests_of_list(names) - 1)
        return names

    def delete(self, path: str) -> None:
        self._count("delete", path)
        self.inner.delete(path)

    def modified_ms(self, path: str) -> int | None:
        self._count("modified_ms", path)
        return self.inner.modified_ms(path)

    def watch(self) -> Watch | None:
        return watch(self.inner)

    def _count(self, verb: str, path: str) -> None:
        with self._lock:
            self._calls.append((verb, path))
            self._counts[verb] = self._counts.get(verb, 0) + 1

    def _add(self, name: str, number: int) -> None:
        with self._lock:
            self._counts[name] = self._counts.get(name, 0) + number
