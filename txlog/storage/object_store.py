"""What must a place that keeps bytes provide?

It provides six verbs and two questions (PROTOCOL.md, "The store"). Everything else is an algorithm above them. An
adapter that cannot keep one of these promises must refuse to be built. `lab.testing.store_contract` tests every
adapter.

Paths are relative to the store's root, separated by `/`, never empty, and case matters.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeAlias, runtime_checkable

from txlog.core.effects import PutOutcome
from txlog.errors import InvalidRequestError

__all__ = [
    "Names", "ObjectStore", "PutOutcome", "Watch", "check_folder", "check_path", "check_range", "delete_all",
    "make_durable", "watch",
]  # fmt: skip

Names: TypeAlias = list[str]
"""Names in one folder, in byte order; folders end in `/`."""

MAX_PATH_LENGTH = 1024
"""Longest key that every object store accepts."""

_COMPONENT = r"(?!\.{1,2}(?:/|\Z))(?!\.#)[A-Za-z0-9._=#~@+-]{1,255}"
_PATH = re.compile(rf"{_COMPONENT}(?:/{_COMPONENT})*\Z", re.ASCII)


class ObjectStore(Protocol):
    """A place to keep bytes. It is thread-safe and caches no answers.

    Every verb raises StorageError if the request failed without effect or if its repetition is harmless. It raises
    InvalidRequestError for a path that no store can hold.
    """

    @property
    def url(self) -> str:
        """Return where the store is, without credentials; for messages and for Spark."""

    @property
    def place(self) -> str:
        """Return a name that identifies the place.

        One URL may be two places, because the endpoint in its options counts too.
        """

    def get(self, path: str) -> bytes | None:
        """Return the whole object, never a part; None if it does not exist."""

    def get_range(self, path: str, start: int, end: int) -> bytes:
        """Return bytes `[start, end)`, fewer if the object ends earlier. Raises MissingObjectError."""

    def size(self, path: str) -> int:
        """Return the length in bytes. Raises MissingObjectError."""

    def put_if_absent(self, path: str, data: bytes) -> PutOutcome:
        """Make all of `data` visible at once, or nothing; at most one of any number of callers gets WRITTEN.

        WRITTEN is durable. CONFLICT may be the caller's own success, after a retry below the adapter: the protocol
        finds out whose object it is. UNKNOWN may still land later. StorageError means that the request had no effect.
        One request: no multipart upload, and no look before the write (W1).
        """

    def write_file(self, path: str, chunks: Iterable[bytes]) -> int:
        """Stream to a name that was never used before.

        Return the number of bytes. Nothing is visible if `chunks` raises.
        """

    def list(self, prefix: str, start_after: str = "") -> Names:
        """Return the names in the folder `prefix` that sort after `start_after`.

        `prefix` is empty for the root, otherwise it ends in `/`. Names are one folder deep, without the prefix, sorted
        by bytes. A folder is listed, with `/`, as long as it holds an object; a missing one is empty. The list has
        every object whose write ended before the call and that was not deleted.
        """

    def delete(self, path: str) -> None:
        """Delete an object. Deleting a missing object is not an error."""

    def modified_ms(self, path: str) -> int | None:
        """Return when the object was written, by the store's own clock; None without such a clock.

        Raises MissingObjectError.
        """


@runtime_checkable
class HoldsUnsyncedFiles(Protocol):
    """A place where another program's file may be complete and yet be lost at a power cut: a file system."""

    def make_durable(self, path: str) -> None:
        """Make another program's object, its name and its folders survive a power cut. Raises MissingObjectError."""


def make_durable(store: ObjectStore, path: str) -> None:
    """Make another program's file durable before a record names it (PROTOCOL.md, W6).

    Does nothing on an object store.
    """
    if isinstance(store, HoldsUnsyncedFiles):
        store.make_durable(path)


@runtime_checkable
class DeletesMany(Protocol):
    """A place that deletes many objects by one request."""

    def delete_many(self, paths: Sequence[str]) -> None:
        """Delete objects, as `delete` does. If it fails, any of them may be deleted."""


def delete_all(store: ObjectStore, paths: Sequence[str]) -> None:
    """Delete objects, by one request where the store can do that."""
    if isinstance(store, DeletesMany):
        store.delete_many(paths)
        return
    for path in paths:
        store.delete(path)


class Watch(Protocol):
    """Ends the pauses of a reader early. It may miss objects, so the reader looks after each pause. For one thread."""

    def wait(self, folders: Iterable[str], ms: int) -> None:
        """Return when an object may have come into one of `folders`, after at most `ms` milliseconds.

        Folders are spelled as for `ObjectStore.list`. The first wait for a folder returns at once: objects may have
        come before it was watched.
        """

    def close(self) -> None:
        """Free what the watch holds of the system; idempotent. Later waits last as long as they may."""


@runtime_checkable
class Watchable(Protocol):
    """A place that can tell its readers of new objects."""

    def watch(self) -> Watch | None:
        """Return a new watch; None if this is not possible here."""


def watch(store: ObjectStore) -> Watch | None:
    """Return a new watch of the store; None if the store cannot tell of new objects."""
    return store.watch() if isinstance(store, Watchable) else None


def check_path(path: str) -> str:
    """Return `path` if every store can hold an object of that name; otherwise raise InvalidRequestError."""
    if not _PATH.match(path) or len(path) > MAX_PATH_LENGTH:
        raise InvalidRequestError(
            f"{path[:200]!r} is not a path of an object: relative, no '..', parts of 1 to 255 of the characters "
            f"A-Z a-z 0-9 . _ = # ~ @ + - that do not begin with '.#', at most {MAX_PATH_LENGTH} in all"
        )
    return path


def check_folder(prefix: str) -> str:
    """Return `prefix` if `ObjectStore.list` accepts it as a folder; otherwise raise InvalidRequestError."""
    if prefix:
        if not prefix.endswith("/"):
            raise InvalidRequestError(f"{prefix[:200]!r} is not a folder: it must be empty or end in '/'")
        check_path(prefix[:-1])
    return prefix


def check_range(start: int, end: int) -> None:
    """Raise InvalidRequestError unless `[start, end)` is a range."""
    if not 0 <= start <= end:
        raise InvalidRequestError(f"[{start}, {end}) is not a range of bytes")
