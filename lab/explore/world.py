"""How is a store represented as a value, and how does a request change it?

A store is a set of objects (path, bytes). Each object has a number, and so has the set: two stores are equal if their
numbers are. Deleted objects stay under a ghost's name, which no request sees. So the whole history of a chain can be
checked.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias, TypeVar

from txlog.core import record_checks
from txlog.core.effects import Delete, Get, List, Modified, PutIfAbsent, PutOutcome, Size, WriteRows
from txlog.core.records import DataFile

T = TypeVar("T")
Request: TypeAlias = Get | List | PutIfAbsent | Delete | Modified | Size | WriteRows

GHOST = "~"
"""Before the path of an object that was deleted."""
WRITTEN_AGAIN = "~again"
"""After the path of a file that was written under a used name, which no store could undo."""
WRITTEN_AT = "@"
"""Before the path of an object: when it was written, if an actor asks for it. No request sees it."""
START_MS = 1_700_000_000_000
"""The time when a scenario begins, by a clock without an error."""

_TIMED = (".batch", ".index", ".clean", ".boundary", ".parquet")
_TIMED_FOLDERS = ("/publication/", "/_delta_log/", "/metadata/")
"""Objects whose time of writing a vacuum reads, or on which the age of a published version depends."""

decoded_once = lru_cache(maxsize=100_000)(record_checks.stored_records)
encoded_once = lru_cache(maxsize=100_000)(record_checks.stored_record)
"""A stored record is a pure function of its bytes and its slot. Decoding the same few records a million times takes
time."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request, and the store afterwards."""

    value: Any
    store: int
    key: int
    """The key of the value: equal answers have equal keys."""


class World:
    """The stores of one exploration, by number, and their objects."""

    def __init__(
        self,
        deletable: Callable[[str], bool] = lambda _: False,
        *,
        vacuumed: bool = False,
        settled: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self.deletable = deletable
        """Whether an actor of this scenario may delete an object with that path."""
        self.settled = settled
        """Whether no actor of this scenario creates an object with that path."""
        self.vacuumed = vacuumed
        """Whether an actor lists files of rows, and asks for an object's time."""
        self.objects: list[tuple[str, bytes]] = []
        self.stores: list[frozenset[int]] = []
        self._object_ids: dict[tuple[str, bytes], int] = {}
        self._store_ids: dict[frozenset[int], int] = {}
        self._files: list[dict[str, int] | None] = []
        self._answers: dict[tuple[int, int, int], Answer] = {}
        self._requests: dict[Request, int] = {}
        self._keys: dict[Any, int] = {}

    # -- stores as values ---------------------------------------------------------------------------------------------

    def object_id(self, path: str, data: bytes) -> int:
        key = (path, data)
        found = self._object_ids.get(key)
        if found is None:
            found = self._object_ids[key] = len(self.objects)
            self.objects.append(key)
        return found

    def store_id(self, objects: frozenset[int]) -> int:
        found = self._store_ids.get(objects)
        if found is None:
            found = self._store_ids[objects] = len(self.stores)
            self.stores.append(objects)
            self._files.append(None)
        return found

    def from_files(self, files: dict[str, bytes]) -> int:
        return self.store_id(frozenset(self.object_id(path, data) for path, data in files.items()))

    def files(self, store: int) -> dict[str, int]:
        """Return path -> number of the object there; ghosts included."""
        found = self._files[store]
        if found is None:
            found = self._files[store] = {self.objects[each][0]: each for each in self.stores[store]}
        return found

    def data(self, store: int, path: str) -> bytes | None:
        number = self.files(store).get(path)
        return None if number is None else self.objects[number][1]

    def folder(self, store: int, prefix: str) -> frozenset[int]:
        """Return the objects below a folder with its ghosts, on which a partition's state depends."""
        ghosts = GHOST + prefix
        return frozenset(n for path, n in self.files(store).items() if path.startswith((prefix, ghosts)))

    def times(self, store: int, prefix: str) -> frozenset[int]:
        """Return the times at which the objects below a folder were written, as objects."""
        return frozenset(n for path, n in self.files(store).items() if path.startswith(WRITTEN_AT + prefix))

    def key(self, value: Any) -> int:
        """Return a key for a (hashable) value. Equal values have equal keys."""
        return self._keys.setdefault(value, len(self._keys))

    # -- requests -----------------------------------------------------------------------------------------------------

    def request_id(self, request: Request) -> int:
        return self._requests.setdefault(request, len(self._requests))

    def answer(self, store: int, request: Request, number: int, now_ms: int = START_MS) -> Answer:
        """Return the store's answer at that time; `number` is the number of the request."""
        key = (store, number, now_ms if self.vacuumed and isinstance(request, PutIfAbsent | WriteRows) else 0)
        found = self._answers.get(key)
        if found is None:
            value, after = self._apply(store, request, now_ms)
            found = self._answers[key] = Answer(value, after, self.key(_hashable(value)))
        return found

    def put(self, store: int, path: str, data: bytes, now_ms: int = START_MS) -> int:
        """Return the store after a conditional write: with the object if the path was free, else unchanged."""
        if path in self.files(store):
            return store
        added = {self.object_id(path, data)}
        if self.vacuumed and (path.endswith(_TIMED) or any(each in path for each in _TIMED_FOLDERS)):
            added.add(self.object_id(WRITTEN_AT + path, str(now_ms).encode()))
        return self.store_id(self.stores[store] | added)

    def is_certain(self, store: int, request: Request) -> bool:
        """Return whether later steps of others cannot change the answer, and no other process notices the request."""
        match request:
            case Get(path) if self.settled(path):
                return True
            case Get(path) | Modified(path) | Size(path) | PutIfAbsent(path, _):
                return path in self.files(store) and not self.deletable(path)
            case WriteRows():
                return not self.vacuumed
        return False

    def _apply(self, store: int, request: Request, now_ms: int) -> tuple[Any, int]:
        match request:
            case Get(path):
                return self.data(store, path), store
            case Modified(path):
                written = self.data(store, WRITTEN_AT + path)
                return (int(written) if written is not None and path in self.files(store) else None), store
            case Size(path):
                data_there = self.data(store, path)
                return (None if data_there is None else len(data_there)), store
            case List(prefix, start_after):
                return self._list(store, prefix, start_after), store
            case PutIfAbsent(path, data):
                after = self.put(store, path, data, now_ms)
                return (PutOutcome.CONFLICT if after == store else PutOutcome.WRITTEN), after
            case Delete(path):
                number = self.files(store).get(path)
                if number is None:
                    return None, store
                left = self.stores[store] - {number, self.files(store).get(WRITTEN_AT + path, number)}
                # a writer that slept created it again: it was never part of the log
                if GHOST + path in self.files(store):
                    return None, self.store_id(left)
                gone = {self.object_id(GHOST + path, self.objects[number][1])}
                if any(each in path for each in _TIMED_FOLDERS) and WRITTEN_AT + path in self.files(store):
                    written = self.objects[self.files(store)[WRITTEN_AT + path]][1]
                    gone.add(self.object_id(GHOST + WRITTEN_AT + path, written))
                return None, self.store_id(left | gone)
            case WriteRows(topic, file_path, rows):
                words = [
                    [inline.base_offset + n, word]
                    for inline in rows
                    for n, word in enumerate(json.loads(inline.payload))
                ]
                file, data = rows_file(file_path, words)
                path = f"{topic}/{file_path}"
                again = WRITTEN_AGAIN if path in self.files(store) else ""
                return file, self.put(store, path + again, data, now_ms)

    def _list(self, store: int, prefix: str, start_after: str) -> tuple[str, ...]:
        found = set()
        for path in self.files(store):
            if path.startswith(prefix) and not path.startswith(GHOST):
                name, slash, _ = path[len(prefix) :].partition("/")
                is_rows = name.endswith(".parquet") or name + slash == "rows/"
                if name + slash > start_after and (self.vacuumed or not is_rows):
                    found.add(name + slash)
        return tuple(sorted(found))


def rows_file(path: str, rows: list[list[Any]]) -> tuple[DataFile, bytes]:
    """Return a stand-in for a Parquet file: [[offset or null, word], ...] as JSON."""
    data = json.dumps(rows).encode()
    return DataFile(
        path=path, rows=len(rows), bytes=len(data), digest=None, footer_digest="f" * 64, row_groups=(len(rows),)
    ), data


def _hashable(value: Any) -> Any:
    return ("file", value.path) if isinstance(value, DataFile) else value
