"""How does a task cost less in the Python processes that Spark reuses?

Spark runs Python's garbage collector after each task. The collector then looks at each object of all imported modules.
With pandas and pyarrow it needs about 30 ms of a core, more than a small task itself.
"""

from __future__ import annotations

import gc
import sys

from pyspark_txlog.messages import is_python_worker

_MOST = 8
"""How often a process does this. Code that imports modules in each task would otherwise keep all of its garbage."""
_SPARED: set[int] = set()
"""How many modules this process had when it set their objects aside."""


def spare_modules() -> None:
    """Set the objects of imported modules aside, so that the garbage collector does not look at them. Does nothing in a
    program's own process.

    Spark itself imports modules at the end of the first task. So each task calls this, and it acts only if modules
    were added. A cycle that exists at such a call is never collected.
    """
    if is_python_worker() and len(_SPARED) < _MOST and len(sys.modules) not in _SPARED:
        _SPARED.add(len(sys.modules))
        gc.freeze()
