"""`python -m tests.kill`: strike at every point with every victim, for some rounds; a table for each sink.

`make test-kill`.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from tests.jvm import begin_quickly
from tests.kill.harness import kill_stream, strikes_of
from tests.kill.sinks import SINKS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.kill", description=__doc__, allow_abbrev=False)
    parser.add_argument(
        "--sink", choices=sorted(SINKS), action="append", help="txlog if none is named; delta needs pyspark 4.2"
    )
    parser.add_argument("--rounds", type=int, default=3, help="how often each strike is made")
    parser.add_argument("--victim", choices=["driver", "worker", "executor"], action="append")
    parser.add_argument("--point", help="only points whose names contain this")
    chosen = parser.parse_args()
    begin_quickly()
    wrong = 0
    for name in chosen.sink or ["txlog"]:
        strikes = strikes_of(SINKS[name](), chosen.victim or ("driver", "worker", "executor"))
        strikes = [strike for strike in strikes if chosen.point is None or chosen.point in strike.point.name]
        # If something raises, the folder stays, because the console and the files in it show the reason.
        folder = tempfile.mkdtemp(prefix=f"txlog-kill-{name}-")
        report = kill_stream(name, strikes * chosen.rounds, Path(folder), speculation=True)
        shutil.rmtree(folder, ignore_errors=True)
        print(report.table(), end="\n\n", flush=True)
        # Other sinks are shown beside txlog, but do not change the exit status.
        wrong += name.startswith("txlog") and bool(report.lost or report.doubled or report.missed)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
