"""What does Spark say to `readStream` and `writeStream`, which are not there yet?

A `streamReader` that raises is reported as an UnboundLocalError of Spark's own runner, which then stops a reader that it
never got; so the reader is made, and refuses its first question.
"""

from __future__ import annotations

from typing import Any, NoReturn

from pyspark.sql.datasource import DataSourceStreamReader

from pyspark_txlog.messages import plain_errors
from txlog.errors import InvalidRequestError

_INSTEAD = {
    "readStream": "Read batches with spark.read; startingOffsets and endingOffsets say which rows",
    "writeStream": "Write with foreachBatch: in it df.write, the batch's number as txn.version, so that none is written twice",
}


class NoStreamReader(DataSourceStreamReader):
    """Refuses whatever Spark asks of it first: the initial offset, or what follows one in a checkpoint."""

    @plain_errors
    def initialOffset(self) -> NoReturn:  # noqa: N802  Spark's name
        refuse("readStream")

    @plain_errors
    def latestOffset(self, *_: Any) -> NoReturn:  # noqa: N802  Spark's name
        refuse("readStream")

    @plain_errors
    def partitions(self, *_: Any) -> NoReturn:
        refuse("readStream")

    @plain_errors
    def read(self, *_: Any) -> NoReturn:
        refuse("readStream")


def refuse(call: str) -> NoReturn:
    """Raises InvalidRequestError, saying what to do instead."""
    raise InvalidRequestError(f'streams are not there yet: format("txlog") has no {call}. {_INSTEAD[call]}')
