"""Is this Spark new enough for `format("txlog")`?

Asked wherever a data source or a TxLog is made, so that an older Spark says so in one sentence, and not by what it lacks, at the
first use of each: 4.0 and 4.1 have no limits for streams of Python sources, render Arrow schemas otherwise, and 4.0 has no Arrow
writer for streams.
"""

from __future__ import annotations

import re

import pyspark

from txlog.errors import InvalidRequestError

MINIMUM_SPARK = (4, 2)


def check_spark(version: str | None = None) -> None:
    """Raises InvalidRequestError for a Spark before 4.2; `version` is pyspark's own if none is given."""
    found = pyspark.__version__ if version is None else version
    match = re.match(r"(\d+)\.(\d+)", found)
    # What cannot be read is a vendor's: it may well do.
    if match is None or (int(match[1]), int(match[2])) >= MINIMUM_SPARK:
        return
    needed = ".".join(map(str, MINIMUM_SPARK))
    raise InvalidRequestError(
        f'format("txlog") needs Spark {needed} or newer, and this is pyspark {found}, which lacks limits and Trigger.AvailableNow for streams of '
        f"Python data sources (ReadLimit, SupportsTriggerAvailableNow) and checks Arrow schemas otherwise. Install it on the driver and on every "
        f"executor: pip install 'pyspark>={needed},<5'. Without Spark, `import txlog` reads and writes the same store"
    )
