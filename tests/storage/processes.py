"""Real processes for tests: a script in a fresh interpreter, a function in a forked child."""

from __future__ import annotations

import faulthandler
import gc
import os
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
CHILD_SECONDS = 120
"""A forked child that has not ended then prints its stacks, and ends."""


def start(code: str, *arguments: object) -> subprocess.Popen[str]:
    """Start a fresh interpreter that runs `code` with `arguments` as sys.argv[1:]."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def in_fork(check: Callable[[], bool]) -> bool:
    """Return the result of `check` in a forked child, or False if it raises."""
    with warnings.catch_warnings():
        # Newer Pythons warn about a fork beside threads, which is what this tests.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        # The child collects no garbage of its parent: a connection of DuckDB needs its threads, and they do not exist
        # here.
        gc.freeze()
        # A child that hangs shows where, and ends.
        faulthandler.dump_traceback_later(CHILD_SECONDS, exit=True, file=sys.__stderr__ or 2)
        status = 1
        try:
            status = 0 if check() else 2
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1] == 0
