"""How does a folder of a file system keep the port's promises?

A nameless file (O_TMPFILE) is written and synced. Then `link(2)` gives it its name, and the folder is synced. The link
decides a race, no reader ever sees a partial object, and a killed writer leaves nothing behind. A hidden temporary name
(`.#…`) is used where the file system has no nameless files, and to replace an object. What killed writers left under
such names is removed a day later. A file system without hard links is refused.

The data is synced before the name can exist, and the name before WRITTEN is returned. Between the two, others may see
an object that a power cut can still undo. File systems with one ordered journal (ext4, XFS) make what such a reader
then writes durable no earlier than what it read. Deletions are not synced: an object that a power cut brings back is
already dead, because of a boundary or of vacuum's rules.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Iterator

from txlog.clock import Clock, SystemClock, SystemIds
from txlog.errors import CorruptLogError, MissingObjectError, StorageError, StoreAccessError, UnsupportedStoreError
from txlog.storage.descriptors import (
    O_FOLDER,
    O_TMPFILE,
    UnfinishedFile,
    make_root,
    open_nameless,
    read_bytes,
    real_path,
    write_bytes,
)
from txlog.storage.folder_watch import FolderWatch
from txlog.storage.forks import lock_for_forks
from txlog.storage.object_store import Names, PutOutcome, check_folder, check_path, check_range

TEMPORARY_PREFIX = ".#"
"""Prefix of the name of an unfinished file; no part of a store's path may begin with it."""

_STALE_TEMPORARY_S = 86_400
_FOLDER_ATTEMPTS = 1000
"""How often a folder may vanish between making and using it: another process removes empty ones."""
_VANISHED_MS = 1
"""Wait after a folder vanished. While a removal is in progress, its name still leads to the removed folder."""
# Without O_NONBLOCK, opening a FIFO in the store's folder would wait forever.
_O_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
_NOT_APPLIED = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES})
"""Errors of a link that was refused before it had an effect, unless the name exists all the same."""
_REFUSED = frozenset({errno.EACCES, errno.EPERM})
"""The same request will be refused again: the local counterpart of HTTP 403."""
_NO_HARD_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})


class LocalObjectStore:
    """An ObjectStore in a folder of a file system; see the port for the contract.

    `fsync=False` gives up durability at a power cut (not atomicity), for tests and temporary stores.
    """

    def __init__(self, root: str, *, fsync: bool = True, clock: Clock | None = None) -> None:
        self.root = os.path.realpath(root)
        self.url = self.place = f"file://{self.root}"
        self._fsync = fsync
        self._ids = SystemIds()
        self._clock = clock or SystemClock()
        self._state = _State()

    def __repr__(self) -> str:
        return f"LocalObjectStore({self.root!r}, fsync={self._fsync})"

    # -- reading ------------------------------------------------------------------------------------------------------

    def get(self, path: str) -> bytes | None:
        try:
            with self._failing("get", path), self._existing(path) as fd:
                return read_bytes(fd, 0, None)
        except MissingObjectError:
            return None

    def get_range(self, path: str, start: int, end: int) -> bytes:
        check_range(start, end)
        with self._failing("get_range", path), self._existing(path) as fd:
            return read_bytes(fd, start, end)

    def size(self, path: str) -> int:
        with self._failing("size", path), self._existing(path) as fd:
            return os.fstat(fd).st_size

    def modified_ms(self, path: str) -> int | None:
        with self._failing("modified_ms", path), self._existing(path) as fd:
            found = os.fstat(fd)
            # A file is written before it has its name, perhaps long before, and link(2) changes st_ctime. A program
            # that sets file times cannot set st_ctime back.
            return max(found.st_mtime_ns, found.st_ctime_ns) // 1_000_000

    def list(self, prefix: str, start_after: str = "") -> Names:
        check_folder(prefix)
        with self._failing("list", prefix):
            try:
                with self._folder(prefix[:-1]) as folder, os.scandir(folder) as entries:
                    shown = (entry for entry in entries if not entry.name.startswith(TEMPORARY_PREFIX))
                    names = [entry.name + "/" if entry.is_dir() else entry.name for entry in shown]
            except (FileNotFoundError, NotADirectoryError):
                return []
        return sorted(name for name in names if name > start_after)

    # -- writing ------------------------------------------------------------------------------------------------------

    def put_if_absent(self, path: str, data: bytes) -> PutOutcome:
        folder, name = _split(check_path(path))
        with self._failing("put_if_absent", path):
            # A cheap check for late callers; the link decides.
            if os.path.lexists(os.path.join(self.root, path)):
                return PutOutcome.CONFLICT
            with self._unfinished(folder) as file:
                write_bytes(file.fd, data)
                self._sync(file.fd)
                return self._link(file, folder, name)

    def write_file(self, path: str, chunks: Iterable[bytes]) -> int:
        folder, name = _split(check_path(path))
        with self._failing("write_file", path), self._unfinished(folder) as file:
            written = 0
            for chunk in chunks:
                write_bytes(file.fd, chunk)
                written += len(chunk)
            self._sync(file.fd)
            outcome = self._link(file, folder, name)
            if outcome is PutOutcome.CONFLICT:
                raise StorageError(f"{self.url}: {path!r} exists already; the name of a file is never used twice")
            if outcome is PutOutcome.UNKNOWN:
                raise StorageError(f"{self.url}: {path!r} was written, but its folder could not be synced")
            return written

    def delete(self, path: str) -> None:
        folder, name = _split(check_path(path))
        with self._failing("delete", path):
            try:
                with self._folder(folder) as descriptor:
                    os.unlink(name, dir_fd=descriptor)
            except (FileNotFoundError, NotADirectoryError):
                return
            except (IsADirectoryError, PermissionError):
                # Linux raises one of these, macOS the other. An empty folder is removed, one that holds something
                # stays.
                if not os.path.isdir(os.path.join(self.root, path)):
                    raise
                folder = path
            self._remove_empty(folder)

    def make_durable(self, path: str) -> None:
        """Sync the file, its name in its folder, and the names of the folders above.

        See `object_store.make_durable`.
        """
        folder, _ = _split(check_path(path))
        with self._failing("make_durable", path):
            with self._existing(path) as fd:
                self._sync(fd)
            with self._folder(folder) as descriptor:
                self._sync(descriptor)
            self._sync_names(folder)

    def watch(self) -> FolderWatch | None:
        """See `object_store.watch`."""
        return FolderWatch.of(self.root, self._clock)

    # -- helpers ------------------------------------------------------------------------------------------------------

    def _link(self, file: UnfinishedFile, folder: str, name: str) -> PutOutcome:
        """Give the finished file its name. Folders may vanish meanwhile, when another process removes empty ones."""
        for attempt in range(_FOLDER_ATTEMPTS):
            self._clock.sleep_ms(_VANISHED_MS if attempt else 0)
            with self._folder(folder, create=True) as descriptor:
                try:
                    file.link(descriptor, name)
                except FileExistsError:
                    # A network file system may have applied a link whose reply was lost, and then report a conflict
                    # with it.
                    if not file.is_at(descriptor, name):
                        return PutOutcome.CONFLICT
                except OSError as error:
                    if self._has_vanished(descriptor, folder):
                        continue
                    if error.errno in _NO_HARD_LINKS:
                        raise UnsupportedStoreError(
                            f"{self.url}: this file system cannot make hard links ({error.strerror}), and without "
                            "them no object can be created atomically; use another one"
                        ) from error
                    if error.errno in _NOT_APPLIED and not file.is_at(descriptor, name):
                        raise
                    return PutOutcome.UNKNOWN
                try:
                    self._sync(descriptor)
                except OSError:
                    # The object is visible, but perhaps not durable. Another sync would hide that, because the kernel
                    # reports the failure once.
                    return PutOutcome.UNKNOWN
                return PutOutcome.WRITTEN
        raise StorageError(
            f"{self.url}: folder {folder!r} vanished {_FOLDER_ATTEMPTS} times while {name!r} was linked into it"
        )

    @contextlib.contextmanager
    def _unfinished(self, folder: str) -> Iterator[UnfinishedFile]:
        """Yield a new file without a visible name, in `folder`."""
        for attempt in range(_FOLDER_ATTEMPTS):
            self._clock.sleep_ms(_VANISHED_MS if attempt else 0)
            with self._folder(folder, create=True) as descriptor:
                try:
                    if self._has_nameless_files(descriptor, folder):
                        file = UnfinishedFile(open_nameless(descriptor), descriptor, "")
                    else:
                        file = self._open_temporary(descriptor, folder)
                except OSError:
                    if self._has_vanished(descriptor, folder):
                        continue
                    raise
                try:
                    yield file
                finally:
                    os.close(file.fd)
                    if file.name:
                        with contextlib.suppress(FileNotFoundError):
                            os.unlink(file.name, dir_fd=descriptor)
                return
        raise StorageError(f"{self.url}: folder {folder!r} vanished {_FOLDER_ATTEMPTS} times while it was opened")

    def _open_temporary(self, descriptor: int, folder: str) -> UnfinishedFile:
        if self._state.is_first_temporary(folder):
            self._sweep(descriptor)
        name = TEMPORARY_PREFIX + self._ids.new_id()
        fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=descriptor)
        return UnfinishedFile(fd, descriptor, name)

    def _has_nameless_files(self, descriptor: int, folder: str) -> bool:
        """Return whether O_TMPFILE and linking through /proc work here; tried once."""
        if self._state.nameless is None:
            works = self._try_nameless_file(descriptor)
            if not works and self._has_vanished(descriptor, folder):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), folder)
            self._state.nameless = works
        return self._state.nameless

    def _try_nameless_file(self, folder: int) -> bool:
        if not O_TMPFILE:
            return False
        name = TEMPORARY_PREFIX + self._ids.new_id()
        try:
            fd = open_nameless(folder)
        except OSError:
            return False
        try:
            UnfinishedFile(fd, folder, "").link(folder, name)
        except OSError:
            return False
        finally:
            os.close(fd)
        os.unlink(name, dir_fd=folder)
        return True

    def _sweep(self, descriptor: int) -> None:
        """Remove temporary names that killed writers left in a folder, by the file system's own clock."""
        name = TEMPORARY_PREFIX + self._ids.new_id()
        os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=descriptor))
        try:
            now = os.stat(name, dir_fd=descriptor).st_mtime
            with os.scandir(descriptor) as entries:
                for entry in entries:
                    if entry.name.startswith(TEMPORARY_PREFIX):
                        with contextlib.suppress(FileNotFoundError):
                            if entry.stat(follow_symlinks=False).st_mtime < now - _STALE_TEMPORARY_S:
                                os.unlink(entry.name, dir_fd=descriptor)
        finally:
            os.unlink(name, dir_fd=descriptor)

    def _has_vanished(self, descriptor: int, folder: str) -> bool:
        """Return whether the opened folder was removed.

        Errors of creating a file in such a folder vary by file system.
        """
        try:
            there = os.stat(os.path.join(self.root, folder))
        except FileNotFoundError:
            return True
        opened = os.fstat(descriptor)
        # A folder without links is removed, even if its name can still be found for a moment.
        return opened.st_nlink == 0 or not os.path.samestat(there, opened)

    @contextlib.contextmanager
    def _folder(self, folder: str, *, create: bool = False) -> Iterator[int]:
        """Yield a descriptor of `folder`, inside the root.

        With `create`, the folder and its name are made and durable.
        """
        full = os.path.join(self.root, folder)
        for attempt in range(_FOLDER_ATTEMPTS):
            try:
                descriptor = os.open(full, O_FOLDER)
                break
            except FileNotFoundError:
                if not create or attempt + 1 == _FOLDER_ATTEMPTS:
                    raise
                self._make_folder(folder)
        try:
            self._check_inside(descriptor, folder)
            if create:
                self._sync_names(folder)
            yield descriptor
        finally:
            os.close(descriptor)

    def _make_folder(self, folder: str) -> None:
        if not folder:
            make_root(self.root, self._fsync)
            return
        parent, name = _split(folder)
        with self._folder(parent, create=True) as descriptor:
            # Another process may have removed the empty folder since its name was last synced.
            self._state.forget(folder)
            # FileNotFoundError: the parent vanished meanwhile; the caller tries again.
            with contextlib.suppress(FileExistsError, FileNotFoundError):
                os.mkdir(name, dir_fd=descriptor)

    def _sync_names(self, folder: str) -> None:
        """Sync the name of `folder` in its parent, and those above.

        The process that made the folder may not have synced its name yet.
        """
        while self._fsync and folder and not self._state.is_durable(folder):
            parent, _ = _split(folder)
            try:
                with self._folder(parent) as descriptor:
                    os.fsync(descriptor)
            except FileNotFoundError:
                # Then `folder` was removed as well, and linking into it fails: the caller makes it again.
                return
            self._state.remember(folder)
            folder = parent

    def _remove_empty(self, folder: str) -> None:
        """Remove empty folders: object stores have none, so this store has none either."""
        while folder:
            parent, _ = _split(folder)
            self._state.forget(folder)
            try:
                os.rmdir(os.path.join(self.root, folder))
            except OSError:
                return
            folder = parent

    @contextlib.contextmanager
    def _existing(self, path: str) -> Iterator[int]:
        """Yield a descriptor of an object. Raises MissingObjectError."""
        try:
            fd = os.open(os.path.join(self.root, check_path(path)), _O_READ)
            try:
                self._check_inside(fd, path)
                mode = os.fstat(fd).st_mode
                if stat.S_ISDIR(mode):
                    raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
                if not stat.S_ISREG(mode):
                    raise CorruptLogError(
                        f"{self.url}: {path!r} is neither a file nor a folder; a program other than txlog put it there"
                    )
                yield fd
            finally:
                os.close(fd)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            raise MissingObjectError(f"{self.url}: there is no object {path!r}") from None

    def _check_inside(self, fd: int, path: str) -> None:
        """Raise CorruptLogError if the opened file or folder was reached through a symbolic link out of the root."""
        real = real_path(fd, os.path.join(self.root, path))
        if real != self.root and not real.startswith(self.root.rstrip("/") + "/"):
            raise CorruptLogError(
                f"{self.url}: {path or '/'!r} leads out of the store, to {real!r}; symbolic links out of "
                "the root are not followed"
            )

    def _sync(self, fd: int) -> None:
        if self._fsync:
            os.fsync(fd)

    @contextlib.contextmanager
    def _failing(self, verb: str, path: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in _REFUSED:
                raise StoreAccessError(
                    f"{self.url}: {verb} {path!r} is refused: {error.strerror} (errno {error.errno}); check the "
                    "path and who may write there"
                ) from error
            raise StorageError(
                f"{self.url}: {verb} {path!r} failed: {error.strerror or error} (errno {error.errno})"
            ) from error


_MAX_KNOWN_FOLDERS = 10_000
"""Limit of remembered folders: a stream makes new folders for each micro-batch, and a process runs for months."""


class _State:
    """What a store learned about its file system. Pickling loses it, which is harmless."""

    def __init__(self) -> None:
        self.nameless: bool | None = None
        self._lock = lock_for_forks()
        self._durable: set[str] = set()
        self._swept: set[str] = set()

    def __reduce__(self) -> tuple[type[_State], tuple[()]]:
        return (_State, ())

    def is_first_temporary(self, folder: str) -> bool:
        with self._lock:
            first = folder not in self._swept
            _note(self._swept, folder)
            return first

    def is_durable(self, folder: str) -> bool:
        return folder in self._durable

    def remember(self, folder: str) -> None:
        with self._lock:
            _note(self._durable, folder)

    def forget(self, folder: str) -> None:
        with self._lock:
            self._durable.discard(folder)


def _note(folders: set[str], folder: str) -> None:
    """Add a folder. When there are too many, forget all others; they are then checked again."""
    if len(folders) >= _MAX_KNOWN_FOLDERS:
        folders.clear()
    folders.add(folder)


def _split(path: str) -> tuple[str, str]:
    folder, _, name = path.rpartition("/")
    return folder, name
