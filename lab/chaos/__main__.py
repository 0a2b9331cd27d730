"""`python -m lab.chaos --minutes 2`: a storm over real processes, then the proof. Exit status 1 if it fails."""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from lab.chaos.settings import Settings, parse_options
from lab.chaos.show import Show
from lab.chaos.supervisor import chaos
from txlog.errors import TxlogTimeoutError


def main(arguments: list[str] | None = None) -> int:
    """Run the storm that the command line describes, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m lab.chaos", description=__doc__, allow_abbrev=False)
    parser.add_argument("--minutes", type=float, default=2.0, help="how long to storm")
    parser.add_argument("--store", help="an empty place; without it a temporary folder is used, and removed")
    parser.add_argument(
        "--storage-option", action="append", default=[], metavar="KEY=VALUE", help="option for the driver of the store"
    )
    parser.add_argument(
        "--seed", type=int, help="decides which process is struck, and when (default: drawn and printed)"
    )
    parser.add_argument("--no-spark", action="store_true", help="without the Spark job")
    parser.add_argument(
        "--maintain",
        action="store_true",
        help="two `txlog maintain --daemon` merge and vacuum during the storm, and are struck, too",
    )
    parser.add_argument(
        "--grace", type=float, default=20, metavar="SECONDS", help="with --maintain: delete.grace.ms of the store (20)"
    )
    parser.add_argument(
        "--clock-skew",
        type=float,
        default=0,
        metavar="SECONDS",
        help="with --maintain: the clock of one daemon is ahead by this, and the other one's is behind",
    )
    parser.add_argument(
        "--engines",
        metavar="PYTHON",
        help="with --maintain: publish two topics, and poll their tables with the engines of this environment",
    )
    parser.add_argument("--keep", action="store_true", help="keep the temporary folder")
    given: Any = parser.parse_args(arguments)
    if (given.clock_skew or given.grace != parser.get_default("grace")) and not given.maintain:
        parser.error("--grace and --clock-skew are of the daemons that --maintain starts")
    if given.engines and (not given.maintain or "://" in (given.store or "")):
        parser.error("--engines needs --maintain, which publishes, and a store in a folder, which the engines read")
    seed: int = random.randrange(1, 10**6) if given.seed is None else given.seed
    print(f"seed {seed} (--seed {seed} strikes the same roles in the same order)", file=sys.stderr, flush=True)
    folder = Path(tempfile.mkdtemp(prefix="txlog-chaos-"))
    keep = given.keep
    try:
        settings = Settings(
            url=given.store or str(folder / "store"),
            storage_options=parse_options(given.storage_option),
            histories=str(folder / "histories"),
            seconds=given.minutes * 60,
            seed=seed,
            spark=not given.no_spark,
            maintain=given.maintain,
            grace_ms=round(given.grace * 1000),
            engines=str(Path(given.engines).absolute()) if given.engines else None,
            clock_skew_ms=round(given.clock_skew * 1000),
        )
        proof = chaos(settings, Show())
        keep = keep or not proof.holds
        return 0 if proof.holds else 1
    except TxlogTimeoutError:
        # The recovery did not end: the store shows why.
        keep = True
        raise
    finally:
        if keep:
            print(f"store and histories stay in {folder}", file=sys.stderr)
        else:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
