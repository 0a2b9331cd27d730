"""What does txlog need of a place to keep bytes?

Six verbs and two questions (PROTOCOL.md, "The store"). Everything else is an algorithm above them. An adapter that cannot honour a
line here must refuse to be built rather than weaken it; `txlog.testing.store_contract` holds every adapter to it.

Paths are relative to the store's root, separated by `/`, never empty, and case matters.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Protocol, TypeAlias, runtime_checkable

from txlog.core.effects import PutOutcome
from txlog.errors import InvalidRequestError

__all__ = ["Names", "ObjectStore", "PutOutcome", "check_folder", "check_path", "check_range", "make_durable"]

Names: TypeAlias = list[str]
"""Names in one folder, in byte order; folders end in `/`."""

MAX_PATH_LENGTH = 1024
"""What every object store accepts for a key."""

_COMPONENT = r"(?!\.{1,2}(?:/|\Z))(?!\.#)[A-Za-z0-9._=#~@+-]{1,255}"
_PATH = re.compile(rf"{_COMPONENT}(?:/{_COMPONENT})*\Z", re.ASCII)


class ObjectStore(Protocol):
    """A place to keep bytes. Thread-safe; nothing it answers is cached.

    Every verb raises StorageError if the request failed without effect or if its repetition is harmless, and
    InvalidRequestError for a path that no store can hold.
    """

    @property
    def url(self) -> str:
        """Where the store is, without credentials; for messages and for Spark."""

    @property
    def place(self) -> str:
        """Which place that is. One URL may be two places: the endpoint that its options name counts too."""

    def get(self, path: str) -> bytes | None:
        """The whole object, None if there is none. Never a partial object."""

    def get_range(self, path: str, start: int, end: int) -> bytes:
        """Bytes `[start, end)`, fewer if the object ends before. Raises MissingObjectError."""

    def size(self, path: str) -> int:
        """Length in bytes. Raises MissingObjectError."""

    def put_if_absent(self, path: str, data: bytes) -> PutOutcome:
        """All of `data` becomes visible at once, or nothing does; at most one of any number of callers gets WRITTEN.

        WRITTEN is durable. CONFLICT may be one's own success, after a retry below the adapter: the protocol finds out
        whose object it is. UNKNOWN may still land later. StorageError means that it surely was not applied. One request: no multipart upload, no
        look before the write (W1).
        """

    def write_file(self, path: str, chunks: Iterable[bytes]) -> int:
        """Stream to a name that was never used before; the bytes written. Nothing is visible if `chunks` raises."""

    def list(self, prefix: str, start_after: str = "") -> Names:
        """Names in the folder `prefix` (empty for the root, else ending in `/`) that sort after `start_after`.

        One folder deep, without the prefix, sorted by bytes. A folder is listed, with `/`, as long as it holds an
        object; a missing one is empty. Every object whose write ended before the call, and that was not deleted, is in.
        """

    def delete(self, path: str) -> None:
        """Deleting what is not there is no error."""

    def modified_ms(self, path: str) -> int | None:
        """When the object was written, by the store's own clock; None if it has none. Raises MissingObjectError."""


@runtime_checkable
class HoldsUnsyncedFiles(Protocol):
    """A place where another program's file may be complete and yet lost at a power cut: a file system."""

    def make_durable(self, path: str) -> None:
        """The object that another program wrote, its name and its folders survive a power cut. Raises MissingObjectError."""


def make_durable(store: ObjectStore, path: str) -> None:
    """To be called before a record names what another program wrote (PROTOCOL.md, W6); nothing to do on an object store."""
    if isinstance(store, HoldsUnsyncedFiles):
        store.make_durable(path)


def check_path(path: str) -> str:
    """`path`, if every store can hold an object of that name; raises InvalidRequestError else."""
    if not _PATH.match(path) or len(path) > MAX_PATH_LENGTH:
        raise InvalidRequestError(
            f"{path[:200]!r} is not a path of an object: relative, no '..', parts of 1 to 255 of the characters "
            f"A-Z a-z 0-9 . _ = # ~ @ + - that do not begin with '.#', at most {MAX_PATH_LENGTH} in all"
        )
    return path


def check_folder(prefix: str) -> str:
    """`prefix`, if it is a folder as `ObjectStore.list` takes it; raises InvalidRequestError else."""
    if prefix:
        if not prefix.endswith("/"):
            raise InvalidRequestError(f"{prefix[:200]!r} is not a folder: it must be empty or end in '/'")
        check_path(prefix[:-1])
    return prefix


def check_range(start: int, end: int) -> None:
    """Raises InvalidRequestError unless `[start, end)` is a range."""
    if not 0 <= start <= end:
        raise InvalidRequestError(f"[{start}, {end}) is not a range of bytes")
