"""Is this Spark new enough for `format("txlog")`?

Every new data source and every new TxLog checks this. So an older Spark fails with one clear sentence, and not at the
first use of a feature that it lacks. Spark 3 has no data sources in Python.
"""

from __future__ import annotations

import re

import pyspark

from txlog.errors import InvalidRequestError

MINIMUM_SPARK = (4, 0)


def check_spark(version: str | None = None) -> None:
    """Raise InvalidRequestError for a Spark before 4.0; `version` defaults to pyspark's own."""
    found = pyspark.__version__ if version is None else version
    match = re.match(r"(\d+)\.(\d+)", found)
    # A version that cannot be parsed is a vendor's, and may work.
    if match is None or (int(match[1]), int(match[2])) >= MINIMUM_SPARK:
        return
    needed = ".".join(map(str, MINIMUM_SPARK))
    raise InvalidRequestError(
        f'format("txlog") needs Spark {needed} or newer, and this is pyspark {found}, which has no data sources in '
        "Python. "
        f"hint: pip install 'pyspark>={needed},<5' on the driver and on every executor"
    )
