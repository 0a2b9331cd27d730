"""How does a forked child avoid a lock that a thread of its parent held at the fork?

That thread does not exist in the child, so nothing would release the lock. Locks from this module are free in the
child. They must guard only short changes of memory that leave a usable state at each step.

Python locks each module while a thread imports it, and some calls import modules at their first use. A module that is
half imported is of no use in the child, so a fork waits until other threads have imported what txlog uses.
"""

from __future__ import annotations

import _imp
import importlib
import os
import sys
import threading
import weakref
from typing import Any

PACKAGES = sys.stdlib_module_names | {
    *("txlog", "pyspark_txlog", "pyarrow", "numpy", "msgspec", "google_crc32c", "fsspec", "s3fs", "gcsfs", "adlfs"),
    *("aiohttp", "pandas", "polars", "duckdb", "sqlglot", "matplotlib", "prometheus_client", "opentelemetry"),
    *("pyspark", "py4j", "grpc"),
}
"""What txlog imports at first use. A program's own module may run for ever while it is imported."""


def lock_for_forks() -> threading.Lock:
    """Return a new lock that is free in a forked child."""
    lock = threading.Lock()
    _LOCKS.add(lock)
    return lock


def _free_all() -> None:
    for lock in list(_LOCKS):
        if lock.locked():
            lock.release()


def _wait_for_imports() -> None:
    """Return when no other thread imports what txlog uses, with the lock that the beginning of an import needs."""
    while True:
        _imp.acquire_lock()
        busy = _imported_elsewhere()
        if busy is None:
            return
        _imp.release_lock()
        # It waits, except for an import that waits for one of this thread.
        _BOOTSTRAP._lock_unlock_module(busy)
        if _is_importing():
            _imp.acquire_lock()
            return


def _imported_elsewhere() -> str | None:
    """Return the name of a module of PACKAGES that another thread imports now."""
    me = threading.get_ident()
    for name, made in list(_BOOTSTRAP._module_locks.items()):
        lock = made()
        if lock is not None and lock.owner not in (None, me) and str(name).partition(".")[0] in PACKAGES:
            return str(name)
    return None


def _is_importing() -> bool:
    me = threading.get_ident()
    return any((lock := made()) is not None and lock.owner == me for made in list(_BOOTSTRAP._module_locks.values()))


_LOCKS: weakref.WeakSet[threading.Lock] = weakref.WeakSet()
_BOOTSTRAP: Any = importlib.import_module("importlib._bootstrap")
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_free_all)
    if hasattr(_BOOTSTRAP, "_module_locks") and hasattr(_BOOTSTRAP, "_lock_unlock_module"):
        os.register_at_fork(
            before=_wait_for_imports, after_in_parent=_imp.release_lock, after_in_child=_imp.release_lock
        )
