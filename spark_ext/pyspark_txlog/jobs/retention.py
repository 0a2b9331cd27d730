"""How does a Spark cluster remove rows beyond the retention of their topics?

    python -m pyspark_txlog.jobs.retention --store s3://bucket/log --execute

or the file itself under spark-submit. It is the command `txlog retention`, with the same options, output and exit status. A
partition is one task.
"""

from __future__ import annotations

from functools import partial

from pyspark_txlog.jobs.command_line import run_verb

main = partial(run_verb, "retention")

if __name__ == "__main__":
    main()
