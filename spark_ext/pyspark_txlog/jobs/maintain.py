"""How is a store maintained on a Spark cluster?

    python -m pyspark_txlog.jobs.maintain --store s3://bucket/log --once

or the file itself under spark-submit. It is the command `txlog maintain`, with the same options, output and exit status;
a scheduler may repeat the round. Executors merge (one run for each task), compact and vacuum (one partition for each
task). The driver does the rest, which is a few small requests.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn

from pyspark_txlog.jobs.command_line import run_verb

_MODES = {"--once", "--daemon", "--help", "-h"}


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Run the command with these arguments (None: those of this process). Without a mode it is one round."""
    given = sys.argv[1:] if args is None else args
    run_verb("maintain", given if _MODES & set(given) else ["--once", *given])


if __name__ == "__main__":
    main()
