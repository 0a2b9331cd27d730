"""pyiceberg's SQL catalog, whose tables lie in a store in memory. A request to it can be struck as one to the store."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Mapping
from io import BytesIO
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io import FileIO

from tests.maintenance.damage import objects_of
from tests.publication.table_readers import Row, Tables
from txlog.storage.memory import MemoryObjectStore
from txlog.testing.failing_store import SimulatedCrash

NAME = ("txlog", "orders")
_STORES: dict[str, MemoryObjectStore] = {}
_NUMBERS = itertools.count()
_PLACE = re.compile(r"memory:/+")


class MemoryIO(FileIO):
    """Opens the objects of a store in memory by their URLs."""

    def new_input(self, location: str) -> Any:
        return _Object(self._store, location)

    def new_output(self, location: str) -> Any:
        return _Object(self._store, location)

    def delete(self, location: Any) -> None:
        self._store.delete(_path(location if isinstance(location, str) else location.location))

    @property
    def _store(self) -> MemoryObjectStore:
        return _STORES[self.properties["test.store"]]


class MemoryCatalog:
    """A catalog for the store of a test. Its table is the one that the store has the newest metadata of.

    `strike` is called with the name of each request before and after it, and may raise.
    """

    def __init__(self, memory: MemoryObjectStore, left: Mapping[str, bytes] | None = None) -> None:
        self.memory = memory
        key = str(next(_NUMBERS))
        _STORES[key] = memory
        self.real = SqlCatalog(
            "test",
            **{
                "uri": "sqlite:///:memory:",
                "py-io-impl": f"{__name__}.{MemoryIO.__name__}",
                "test.store": key,
            },
        )
        self.strike: Callable[[str], None] = lambda request: None
        metadata = [path for path in left or () if re.match(r"orders/catalog/.*\.metadata\.json\Z", path)]
        if metadata:
            self.real.create_namespace(NAME[:-1])
            newest = max(metadata, key=lambda path: path.rpartition("/")[2][:5])
            location = json.loads((left or {})[newest])["location"]
            self.real.register_table(NAME, f"{location}/metadata/{newest.rpartition('/')[2]}")

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.real, name)

        def request(*args: Any, **more: Any) -> Any:
            self.strike(f"before {name}")
            made = found(*args, **more)
            self.strike(f"after {name}")
            return made

        return request if name in {"load_table", "register_table", "commit_table", "create_namespace"} else found

    @property
    def path(self) -> str:
        """The path of the metadata file that the catalog names, below the topic's folder."""
        return _path(self.real.load_table(NAME).metadata_location).removeprefix("orders/")

    @property
    def metadata(self) -> bytes:
        """What a reader who asks for the table gets."""
        found = self.memory.get(f"orders/{self.path}")
        assert found is not None
        return found

    def rows(self, *, anywhere: bool = False) -> list[Row]:
        """Return the rows that a reader gets who asks the catalog for the table."""
        location = self.real.load_table(NAME).location()
        place = location[: location.index("/orders/")]
        return Tables(objects_of(self.memory), "orders", [place]).iceberg_at(self.path, anywhere=anywhere)


class Crashes:
    """Lets a process die at the request number `at` of a catalog."""

    def __init__(self, at: int) -> None:
        self._left = at
        self.struck = False

    def __call__(self, request: str) -> None:
        self._left -= 1
        if not self._left:
            self.struck = True
            raise SimulatedCrash(request)


class _Object:
    def __init__(self, store: MemoryObjectStore, location: str) -> None:
        self._store = store
        self.location = location

    def __len__(self) -> int:
        return len(self._bytes())

    def exists(self) -> bool:
        return self._store.get(_path(self.location)) is not None

    def open(self, seekable: bool = True) -> BytesIO:
        return BytesIO(self._bytes())

    def to_input_file(self) -> _Object:
        return self

    def create(self, overwrite: bool = False) -> BytesIO:
        outer = self

        class Sink(BytesIO):
            def close(self) -> None:
                outer._store.put_if_absent(_path(outer.location), self.getvalue())
                super().close()

        return Sink()

    def _bytes(self) -> bytes:
        found = self._store.get(_path(self.location))
        if found is None:
            raise FileNotFoundError(self.location)
        return found


def _path(location: str) -> str:
    return _PLACE.sub("", location, count=1)
