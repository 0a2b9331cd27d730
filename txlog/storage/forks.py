"""How does a forked child avoid a lock that a thread of its parent held at the fork?

That thread does not exist in the child, so nothing would release the lock. Locks from this module are free in the
child. They must guard only short changes of memory that leave a usable state at each step.

Python locks each module while a thread imports it, and some calls import modules at their first use. A module that is
half imported is of no use in the child, so a fork waits until other threads have imported what txlog uses. It holds no
lock after that: other libraries take locks of their own before a fork, and a thread may import with such a lock held,
as `logging.config` does. So another thread may still begin an import. The child begins that import again.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
import weakref
from typing import Any

PACKAGES = sys.stdlib_module_names | {
    *("txlog", "pyspark_txlog", "pyarrow", "numpy", "msgspec", "google_crc32c", "fsspec", "s3fs", "gcsfs", "adlfs"),
    *("aiohttp", "pandas", "polars", "duckdb", "sqlglot", "matplotlib", "prometheus_client", "opentelemetry"),
    *("inotify_simple", "pyspark", "py4j", "grpc"),
}
"""What txlog imports at first use. A program's own module may run for ever while it is imported."""


def lock_for_forks() -> threading.RLock:
    """Return a new lock that is free in a forked child.

    The handler of a signal may take it again in the same thread.
    """
    lock = threading.RLock()
    _LOCKS.add(lock)
    return lock


def _free_all() -> None:
    for lock in list(_LOCKS):
        lock._at_fork_reinit()  # type: ignore[attr-defined]


def _wait_for_imports() -> None:
    """Return when no other thread imports what txlog uses."""
    while (busy := next(iter(_imported_elsewhere()), None)) is not None:
        # It waits, except for an import that waits for one of this thread.
        _BOOTSTRAP._lock_unlock_module(busy)
        if _is_importing():
            return


def _forget_imports() -> None:
    """Let the child import again what a thread of the parent was importing."""
    for name in _imported_elsewhere():
        _BOOTSTRAP._module_locks.pop(name, None)
        if getattr(getattr(sys.modules.get(name), "__spec__", None), "_initializing", False):
            del sys.modules[name]


def _imported_elsewhere() -> list[str]:
    """Return the names of the modules of PACKAGES that other threads import now."""
    me = threading.get_ident()
    return [
        str(name)
        for name, made in list(_BOOTSTRAP._module_locks.items())
        if (lock := made()) is not None and lock.owner not in (None, me) and str(name).partition(".")[0] in PACKAGES
    ]


def _is_importing() -> bool:
    me = threading.get_ident()
    return any((lock := made()) is not None and lock.owner == me for made in list(_BOOTSTRAP._module_locks.values()))


_LOCKS: weakref.WeakSet[threading.RLock] = weakref.WeakSet()
_BOOTSTRAP: Any = importlib.import_module("importlib._bootstrap")
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_free_all)
    if hasattr(_BOOTSTRAP, "_module_locks") and hasattr(_BOOTSTRAP, "_lock_unlock_module"):
        os.register_at_fork(before=_wait_for_imports, after_in_child=_forget_imports)
