"""How are the keyed topics of a store compacted on a Spark cluster?

    python -m pyspark_txlog.jobs.compact --store s3://bucket/log users --execute

or the file itself under spark-submit. It is the command `txlog compact`, with the same options, output and exit status. A
pass over one partition is one task, because one process must hold all keys of a partition in memory. The driver plans
and publishes.
"""

from __future__ import annotations

from functools import partial

from pyspark_txlog.jobs.command_line import run_verb

main = partial(run_verb, "compact")

if __name__ == "__main__":
    main()
