"""Entry point of the program `txlog`.

The slow imports are inside `main`, so that Ctrl-C during them ends the program without a traceback.
"""

from __future__ import annotations

import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run the program `txlog`."""
    try:
        from txlog.cli.program import run

        run()
    except KeyboardInterrupt:
        sys.exit(130)  # a shell's status; txlog.cli.errors may not be imported yet


if __name__ == "__main__":
    main()
