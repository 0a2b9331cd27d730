"""Which calls work on one whole topic? `TxLog.table("orders")` returns a TopicTable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from pyspark_txlog import schemas
from pyspark_txlog.messages import plain_errors
from pyspark_txlog.option_table import LATEST_ROWS
from txlog.engine import checked_calls
from txlog.engine.schemas import TopicMetadata, check_topic_name

if TYPE_CHECKING:
    from pyspark_txlog.api.log import TxLog


@checked_calls
class TopicTable:
    """One topic of a TxLog. It holds no rows and no view of them: each call reads the present state."""

    @plain_errors
    def __init__(self, log: TxLog, name: str) -> None:
        """Raises InvalidTopicError, and UnknownTopicOrPartitionError with the most similar topic."""
        self.log = log
        self.name = check_topic_name(name)
        self.topic()

    def __repr__(self) -> str:
        return f"{self.log!r}.table({self.name!r})"

    def topic(self) -> TopicMetadata:
        """Return the topic's present metadata."""
        return self.log.runtime.topic(self.name, 0)

    @property
    def schema(self) -> StructType:
        """Return the topic's own columns as Spark's, as they are now."""
        return schemas.to_spark(self.topic().schema)

    @plain_errors
    def latest(self, columns: Sequence[str] | None = None) -> DataFrame:
        """Return the newest committed row of each key, without keys whose newest row is a tombstone.

        The key is `key.columns` of the topic, or `key` in a topic with Kafka's columns. Compaction has the same rule,
        so the result is the same before and after it. Rows without a key are all in the result. A key that has rows in
        several partitions has a row for each of them. The columns of now tell a tombstone, also among rows from before
        a column was dropped, or added with a default. `columns` is the option of that name. The plan is fixed now.

        Raises InvalidRequestError for a topic without a key, and what `TxLog.to_dfs` raises.
        """
        return self.log.to_dfs(self.name, columns=columns, rows=LATEST_ROWS)[self.name]
