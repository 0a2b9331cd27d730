"""What do the three object stores share? Buckets of objects in memory, listed in order of their names, in pages.

The differences (URLs, conditions, error bodies) are in s3.py, gcs.py and azure.py.
"""

from __future__ import annotations

import bisect
import email.utils
import hashlib
import time
from dataclasses import dataclass

BUCKET = "bucket"
"""The bucket that every server has at its start. Others do not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Object:
    """One object, as it was written."""

    data: bytes
    etag: str
    generation: int
    modified_s: float

    @property
    def http_date(self) -> str:
        """The time of its write, in the format of headers."""
        return email.utils.formatdate(self.modified_s, usegmt=True)

    @property
    def iso_date(self) -> str:
        """The time of its write, in the format of listings."""
        return (
            time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(self.modified_s))
            + f".{int(self.modified_s * 1000) % 1000:03d}Z"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A part of a listing: objects, folders (names that end in the delimiter), and the start of the next page."""

    objects: tuple[tuple[str, Object], ...]
    folders: tuple[str, ...]
    next_name: str | None


class Bucket:
    """Objects by name. Not thread-safe: a server has one thread."""

    def __init__(self) -> None:
        self._objects: dict[str, Object] = {}
        self._names: list[str] = []
        self._written = 0

    def get(self, name: str) -> Object | None:
        """Return the object, or None if it does not exist."""
        return self._objects.get(name)

    def put(self, name: str, data: bytes) -> Object:
        """Create or replace the object."""
        self._written += 1
        made = Object(data=data, etag=hashlib.md5(data).hexdigest(), generation=self._written, modified_s=time.time())
        if name not in self._objects:
            bisect.insort(self._names, name)
        self._objects[name] = made
        return made

    def delete(self, name: str) -> bool:
        """Delete the object. Return whether it existed."""
        if self._objects.pop(name, None) is None:
            return False
        del self._names[bisect.bisect_left(self._names, name)]
        return True

    def list(self, prefix: str, delimiter: str, first: str, size: int) -> Page:
        """Return up to `size` objects and folders under `prefix`, from the name `first` on, in order."""
        objects: list[tuple[str, Object]] = []
        folders: list[str] = []
        position = bisect.bisect_left(self._names, max(prefix, first))
        while position < len(self._names) and self._names[position].startswith(prefix):
            name = self._names[position]
            if len(objects) + len(folders) == size:
                return Page(objects=tuple(objects), folders=tuple(folders), next_name=name)
            end = name.find(delimiter, len(prefix)) if delimiter else -1
            if end < 0:
                objects.append((name, self._objects[name]))
                position += 1
            else:
                folder = name[: end + 1]
                folders.append(folder)
                # Go to the first name after the folder: nothing sorts above its highest character.
                position = bisect.bisect_left(self._names, folder + "\U0010ffff")
        return Page(objects=tuple(objects), folders=tuple(folders), next_name=None)


def slice_of(text: str, size: int) -> tuple[int, int] | None:
    """Return [start, end) for `Range: bytes=first-last`; None if the object ends before."""
    first, _, last = text.removeprefix("bytes=").partition("-")
    if not first:
        return max(0, size - int(last)), size
    start, end = int(first), int(last) + 1 if last else size
    return (start, min(end, size)) if start < size else None
