"""`python -m lab.demo`: run the demo as a separate program."""

from __future__ import annotations

import sys
from typing import Any

import typer

from lab.demo.command import demo
from txlog.cli.program import status_of

if __name__ == "__main__":
    main: Any = typer.main.get_command(demo).main
    sys.exit(status_of(lambda: main(prog_name="python -m lab.demo", standalone_mode=False)))
