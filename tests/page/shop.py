"""The program and the commands of docs/inspect.md, run in a folder."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "inspect.md").read_text(encoding="utf-8")
_BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
(PROGRAM,) = [code for language, code in _BLOCKS if language == "python"]
COMMANDS, SERVE = [[shlex.split(line) for line in code.splitlines()] for language, code in _BLOCKS if language == "sh"]


def make_shop(folder: Path) -> None:
    """Run the program and the commands of the page in `folder`; the last command writes `my-shop.html`."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "PYTHONPATH": os.pathsep.join(sys.path)}
    for command in [[sys.executable, "-c", PROGRAM], *COMMANDS]:
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
