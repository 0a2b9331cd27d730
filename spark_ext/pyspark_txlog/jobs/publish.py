"""How are topics published as tables of other formats, with the rewriting of old files on a Spark cluster?

    python -m pyspark_txlog.jobs.publish --store s3://bucket/log orders --once

or the file itself under spark-submit. It is the command `txlog publish`, with the same options, output and exit status. The
driver publishes. The executors copy rows only if files must be rewritten first, for example after a column was renamed.
"""

from __future__ import annotations

from functools import partial

from pyspark_txlog.jobs.command_line import run_verb

main = partial(run_verb, "publish")

if __name__ == "__main__":
    main()
