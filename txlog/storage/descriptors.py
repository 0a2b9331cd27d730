"""How does a process read, write and name files through their descriptors?"""

from __future__ import annotations

import os
from dataclasses import dataclass

from txlog.errors import StoreAccessError

O_TMPFILE: int = getattr(os, "O_TMPFILE", 0)
O_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_READ_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class UnfinishedFile:
    """A file that no other process can see yet: nameless, or with a hidden name."""

    fd: int
    folder: int
    name: str

    def link(self, folder: int, name: str) -> None:
        if self.name:
            os.link(self.name, name, src_dir_fd=self.folder, dst_dir_fd=folder, follow_symlinks=False)
        else:
            # With src_dir_fd CPython calls linkat with AT_SYMLINK_FOLLOW; plain link(2) would link the /proc entry
            # itself.
            os.link(f"/proc/self/fd/{self.fd}", name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=True)

    def is_at(self, folder: int, name: str) -> bool:
        try:
            there = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return os.path.samestat(os.fstat(self.fd), there)


def open_nameless(folder: int) -> int:
    return os.open(".", os.O_RDWR | O_TMPFILE | os.O_CLOEXEC, 0o644, dir_fd=folder)


def real_path(fd: int, path: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return os.path.realpath(path)


def make_root(root: str, fsync: bool) -> None:
    missing = []
    while not os.path.isdir(root):
        missing.append(root)
        root = os.path.dirname(root)
    for folder in reversed(missing):
        try:
            os.mkdir(folder)
        except FileExistsError:
            pass
        except FileNotFoundError as error:
            # The parent exists, so this file system (for example /proc) does not allow a folder here.
            raise StoreAccessError(
                f"{folder}: this folder cannot be made ({error.strerror}); check the path"
            ) from error
        if fsync:
            parent = os.open(os.path.dirname(folder), O_FOLDER)
            try:
                os.fsync(parent)
            finally:
                os.close(parent)


def read_bytes(fd: int, start: int, end: int | None) -> bytes:
    """Return bytes `[start, end)`; the whole file without `end`.

    Objects never change, so the size is read only once.
    """
    size = os.fstat(fd).st_size
    stop = size if end is None else min(end, size)
    parts = []
    while start < stop:
        part = os.pread(fd, min(stop - start, _READ_BYTES), start)
        if not part:
            break
        parts.append(part)
        start += len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def write_bytes(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
