"""How do the Python processes that Spark reuses cost less, and end without noise?

Spark runs Python's garbage collector after each task. The collector then looks at each object of all imported modules.
With pandas and pyarrow it needs about 30 ms of a core, more than a small task itself.

Spark closes the socket of a process that has had no task for a minute. Over a Unix socket the process notices this when
it answers, and Spark's daemon prints a traceback. Over TCP nothing is noticed.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import Any

_MOST = 8
"""How often a process does this. Code that imports modules in each task would otherwise keep all of its garbage."""
_SPARED: set[int] = set()
"""How many modules this process had when it set their objects aside."""


def is_python_worker() -> bool:
    """Return whether Spark started this process for its own work."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.")


def spare_modules() -> None:
    """Set the objects of imported modules aside, so that the garbage collector does not look at them. Does nothing in a
    program's own process.

    Spark itself imports modules at the end of the first task. So each task calls this, and it acts only if modules
    were added. A cycle that exists at such a call is never collected.
    """
    if is_python_worker() and len(_SPARED) < _MOST and len(sys.modules) not in _SPARED:
        _SPARED.add(len(sys.modules))
        gc.freeze()


def end_quietly() -> None:
    """Let this process end without a traceback after Spark has closed its socket. Does nothing in a program's own
    process."""
    daemon = vars(sys.modules["__main__"]) if is_python_worker() else {}
    work = daemon.get("worker")
    if work is None:
        return

    def worker(*given: Any) -> int:
        try:
            return int(work(*given))
        except BrokenPipeError:
            os._exit(1)  # as Spark's daemon ends it after printing the error

    daemon["worker"] = worker
