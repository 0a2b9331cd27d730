"""How are the small files of many partitions merged on a Spark cluster?

    python -m pyspark_txlog.jobs.merge --store s3://bucket/log orders --sort carrier --execute

or the file itself under spark-submit. It is the command `txlog merge`, with the same options, output and exit status. The
driver plans every partition and publishes each run as soon as it is copied. The executors copy the rows, with one task
for each run, so a large partition uses many tasks.
"""

from __future__ import annotations

from functools import partial

from pyspark_txlog.jobs.command_line import run_verb

main = partial(run_verb, "merge")

if __name__ == "__main__":
    main()
