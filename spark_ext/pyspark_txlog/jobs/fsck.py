"""How is a large store checked on a Spark cluster?

    python -m pyspark_txlog.jobs.fsck --store s3://bucket/log

or the file itself under spark-submit. It is the command `txlog fsck`, with the same options, output and exit status. The
driver reads the table of transactions and compares. The executors read the partitions of users' topics, one for each
task.
"""

from __future__ import annotations

from functools import partial

from pyspark_txlog.jobs.command_line import run_verb

main = partial(run_verb, "fsck")

if __name__ == "__main__":
    main()
