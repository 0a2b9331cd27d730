"""How does a Spark cluster delete objects that no reader or writer can still use?

    python -m pyspark_txlog.jobs.vacuum --store s3://bucket/log --execute

or the file itself under spark-submit. It is the command `txlog vacuum`, with the same options, output and exit status. The
driver finds the dead objects, in the only safe order. The executors delete them, with one task for each partition.
"""

from __future__ import annotations

from functools import partial

from pyspark_txlog.jobs.command_line import run_verb

main = partial(run_verb, "vacuum")

if __name__ == "__main__":
    main()
