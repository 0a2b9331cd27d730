"""Real processes for tests: a script in a fresh interpreter, a function in a forked child."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]


def start(code: str, *arguments: object) -> subprocess.Popen[str]:
    """A fresh interpreter that runs `code` with `arguments` as sys.argv[1:]."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def in_fork(check: Callable[[], bool]) -> bool:
    """What `check` says in a forked child; False if it raises."""
    with warnings.catch_warnings():
        # Later Pythons warn of forks beside threads; that is what is tested.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if check() else 2
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1] == 0
