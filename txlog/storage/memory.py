"""How does a store live in one process? It is a dictionary under a lock, as strict as the real stores.

`memory://NAME` is one store for the whole process, however often it is opened. Another process cannot see it. So a
forked child is refused, because it would have a copy that silently differs more and more.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass

from txlog.clock import Clock, SystemClock
from txlog.errors import MissingObjectError, StorageError, UnsupportedStoreError
from txlog.storage.forks import lock_for_forks
from txlog.storage.object_store import Names, PutOutcome, check_folder, check_path, check_range


@dataclass(frozen=True, slots=True)
class _Object:
    data: bytes
    modified_ms: int


class MemoryObjectStore:
    """An ObjectStore in memory; see the port for the contract."""

    def __init__(self, name: str = "", clock: Clock | None = None) -> None:
        self.url = self.place = f"memory://{name}"
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._objects: dict[str, _Object] = {}
        self._owner = os.getpid()

    def __repr__(self) -> str:
        return f"MemoryObjectStore({self.url!r})"

    def __reduce__(self) -> str:
        raise UnsupportedStoreError(
            f"{self.url}: a store in memory lives in one process and cannot be sent to another. "
            "hint: use a path or an object store"
        )

    def get(self, path: str) -> bytes | None:
        found = self._find(path)
        return None if found is None else found.data

    def get_range(self, path: str, start: int, end: int) -> bytes:
        check_range(start, end)
        return self._existing(path).data[start:end]

    def size(self, path: str) -> int:
        return len(self._existing(path).data)

    def put_if_absent(self, path: str, data: bytes) -> PutOutcome:
        check_path(path)
        self._check_process()
        new = _Object(bytes(data), self._clock.now_ms())
        with self._lock:
            return PutOutcome.WRITTEN if self._objects.setdefault(path, new) is new else PutOutcome.CONFLICT

    def write_file(self, path: str, chunks: Iterable[bytes]) -> int:
        check_path(path)
        data = b"".join(chunks)
        if self.put_if_absent(path, data) is PutOutcome.CONFLICT:
            raise StorageError(f"{self.url}: {path!r} exists already; the name of a file is never used twice")
        return len(data)

    def list(self, prefix: str, start_after: str = "") -> Names:
        check_folder(prefix)
        self._check_process()
        with self._lock:
            paths = [path for path in self._objects if path.startswith(prefix)]
        cut = len(prefix)
        heads = (path[cut:].partition("/") for path in paths)
        return sorted({head + slash for head, slash, _ in heads if head + slash > start_after})

    def delete(self, path: str) -> None:
        check_path(path)
        self._check_process()
        with self._lock:
            self._objects.pop(path, None)

    def modified_ms(self, path: str) -> int | None:
        return self._existing(path).modified_ms

    def _find(self, path: str) -> _Object | None:
        check_path(path)
        self._check_process()
        with self._lock:
            return self._objects.get(path)

    def _existing(self, path: str) -> _Object:
        found = self._find(path)
        if found is None:
            raise MissingObjectError(f"{self.url}: there is no object {path!r}")
        return found

    def _check_process(self) -> None:
        # Check before the lock: a child forked while a thread held it would wait forever.
        if os.getpid() != self._owner:
            raise UnsupportedStoreError(
                f"{self.url}: a store in memory belongs to process {self._owner} and was opened there before the fork; "
                f"process {os.getpid()} cannot see it. hint: use a path or an object store"
            )


def shared_memory_store(name: str) -> MemoryObjectStore:
    """Return the store of this process called `name`, made at the first call."""
    with _LOCK:
        return _STORES.setdefault(name, MemoryObjectStore(name))


_LOCK = lock_for_forks()
_STORES: dict[str, MemoryObjectStore] = {}
