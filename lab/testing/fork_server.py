"""One fork server for short-lived processes. It has imported everything once and runs no threads.

A process has one fork server, and its imports are fixed when its first child starts. So all users share one list. A
second list would be ignored without notice, and each child would then import for seconds.
"""

from __future__ import annotations

import multiprocessing
from multiprocessing.context import ForkServerContext

from txlog.storage.backends import BACKENDS

PRELOADED = (
    "lab.chaos.roles",
    "lab.invariants",
    "txlog.client.transactions.staged_files",
    "txlog.storage.fsspec_store",
    *(backend.package for backend in BACKENDS),
    # pyarrow imports it, if it is installed, with the first rows that it converts. This takes longer than everything
    # else.
    "pandas",
)
"""Modules to import. Those that are not installed are ignored."""


def fork_server() -> ForkServerContext:
    """Return the context that starts processes from the fork server."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*PRELOADED])
    return context
