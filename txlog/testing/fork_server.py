"""Where do short-lived processes come from? From one fork server, which has imported everything once and runs no threads.

A process has one fork server, and what that imports is settled when its first child is asked for. So there is one list for
all who use it: a second one would be passed over in silence, and each child would import for seconds.
"""

from __future__ import annotations

import multiprocessing
from multiprocessing.context import ForkServerContext

PRELOADED = (
    "lab.chaos.workers",
    "lab.invariants",
    "txlog.client.staged_files",
    "txlog.storage.fsspec_store",
    "s3fs",
    "gcsfs",
    "adlfs",
    # pyarrow imports it, if it is there, with the first rows that it converts: longer than all the rest.
    "pandas",
)
"""Modules; those that are not installed are passed over."""


def fork_server() -> ForkServerContext:
    """The context whose processes come from it."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*PRELOADED])
    return context
