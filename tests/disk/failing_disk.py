"""A file system below the local store that is full, broken or read-only from a chosen call on."""

from __future__ import annotations

import errno
import os
from typing import Any

import pytest

from txlog.storage import descriptors, local

WRITES = frozenset({"write", "link", "fsync", "mkdir", "rename"})
READS = frozenset({"pread", "scandir"})


class FailingDisk:
    """Stands in for `os` below the local store: from the `first`-th changing call on, all changing calls fail.

    With EIO reading fails as well.
    """

    def __init__(self) -> None:
        self.error: int | None = None
        self.first = 1
        self.calls = 0
        self.struck = 0

    def arm(self, error: int, first: int) -> None:
        self.error, self.first, self.calls, self.struck = error, first, 0, 0

    def mend(self) -> None:
        self.error = None

    def __getattr__(self, name: str) -> Any:
        found = getattr(os, name)
        if name not in WRITES | READS | {"open"}:
            return found

        def call(*args: Any, **more: Any) -> Any:
            if self._is_hit(name, args):
                assert self.error is not None
                raise OSError(self.error, os.strerror(self.error))
            return found(*args, **more)

        return call

    def _is_hit(self, name: str, args: tuple[Any, ...]) -> bool:
        if self.error is None:
            return False
        if name == "open":
            creates = bool(args[1] & os.O_CREAT) or args[1] & descriptors.O_TMPFILE == descriptors.O_TMPFILE
            if not creates:
                return False
        elif name in READS and self.error != errno.EIO:
            return False
        self.calls += 1
        if self.calls < self.first:
            return False
        self.struck += 1
        return True


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FailingDisk:
    found = FailingDisk()
    for module in (local, descriptors):
        monkeypatch.setattr(module, "os", found)
    return found
