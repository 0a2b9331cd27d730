"""How is a store maintained on a Spark cluster?

    python -m pyspark_txlog.jobs.run merge --store s3://bucket/log orders --sort carrier --execute

or the file itself under spark-submit. It is the command `txlog merge`, with the same options, output and exit status,
and so are the other verbs. Their tasks run on the executors, and the driver does the rest, which is a few small
requests:

merge: The driver plans every partition and publishes each run as soon as it is copied. A task copies the rows of one
run, so a large partition uses many tasks. compact: A task is a pass over one partition, because one process must hold
all keys of a partition in memory. erase: A task searches some neighbouring segments and copies the rows that stay; in a
topic with keys a partition is one task. retention: A partition is one task. vacuum: The driver finds the dead objects,
in the only safe order. A task deletes those of one partition. publish: The driver publishes. A task copies rows only if
files must be rewritten first, for example after a column was renamed. maintain: A scheduler repeats the round. Merges,
compactions and vacuum have the tasks above. fsck: The driver reads the table of transactions and compares. A task reads
one partition of a user's topic.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn

import typer

from pyspark_txlog.jobs.command_line import ConfOption, pairs, running
from pyspark_txlog.jobs.spark_workers import SparkWorkers
from txlog.cli import program
from txlog.cli.errors import report
from txlog.cli.options import keyword
from txlog.cli.output import OutputFormat
from txlog.errors import InvalidRequestError

PROGRAM = "python -m pyspark_txlog.jobs.run"
VERBS = ("merge", "compact", "erase", "retention", "vacuum", "publish", "maintain", "fsck")
_HELP = ("--help", "-h")
_MODES = ("--once", "--daemon", *_HELP)


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Run the verb that comes first, with the other arguments (None: those of this process), and exit with its status.

    `--conf` is the only option that `txlog` does not have. `maintain` without a mode is one round.
    """
    verb, *given = (sys.argv[1:] if args is None else args) or ("",)
    if verb in _HELP:
        typer.echo(f"Usage: {PROGRAM} VERB ...\n\nVERB is {', '.join(VERBS)}. Each has a --help.")
        sys.exit()
    if verb not in VERBS:
        error = InvalidRequestError(f"expected one of {', '.join(VERBS)} as the first argument, found {verb!r}")
        sys.exit(report(error, OutputFormat.TEXT))
    if verb == "maintain" and not set(_MODES) & set(given):
        given = ["--once", *given]
    conf: list[str] = []

    def take(given: list[str] | None) -> None:
        pairs("--conf", given)  # a malformed one is refused even if no task needs Spark
        conf.extend(given or ())

    with running(verb) as job:
        program.run_verb(
            verb,
            given,
            prog_name=f"{PROGRAM} {verb}",
            workers=lambda runtime: SparkWorkers(runtime, lambda: job.session(conf)),
            option=keyword("conf", ConfOption),
            take=take,
        )


if __name__ == "__main__":
    main()
