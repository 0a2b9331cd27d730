"""How does a forked child avoid a lock that a thread of its parent held at the fork?

That thread does not exist in the child, so nothing would release the lock. Locks from this module are free in the
child. They must guard only short changes of memory that leave a usable state at each step.
"""

from __future__ import annotations

import os
import threading
import weakref


def lock_for_forks() -> threading.Lock:
    """Return a new lock that is free in a forked child."""
    lock = threading.Lock()
    _LOCKS.add(lock)
    return lock


def _free_all() -> None:
    for lock in list(_LOCKS):
        if lock.locked():
            lock.release()


_LOCKS: weakref.WeakSet[threading.Lock] = weakref.WeakSet()
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_free_all)
