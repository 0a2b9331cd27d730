"""Where does the program `txlog` begin?

Here, and nearly nothing is imported before: what takes its time is, too, when Ctrl-C ends it in peace.
"""

from __future__ import annotations

import sys
from typing import NoReturn


def main() -> NoReturn:
    """The program `txlog`."""
    try:
        from txlog.cli.program import run

        run()
    except KeyboardInterrupt:
        sys.exit(130)  # as a shell says it; txlog.cli.errors is not to be had yet


if __name__ == "__main__":
    main()
