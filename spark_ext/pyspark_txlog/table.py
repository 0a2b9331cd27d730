"""What can be done with one topic as a whole? `TxLog.table("orders")` gives a TopicTable."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from pyspark_txlog import schemas
from pyspark_txlog.messages import plain_errors
from txlog.core.names import check_topic_name
from txlog.core.records import TopicMetadata

if TYPE_CHECKING:
    from pyspark_txlog.txlog_api import TxLog


class TopicTable:
    """One topic of a TxLog. It holds no rows and no view of them: each call looks anew."""

    @plain_errors
    def __init__(self, log: TxLog, name: str) -> None:
        """Raises InvalidTopicError, UnknownTopicOrPartitionError naming the most similar topic."""
        self.log = log
        self.name = check_topic_name(name)
        self.topic()

    def __repr__(self) -> str:
        return f"{self.log!r}.table({self.name!r})"

    def topic(self) -> TopicMetadata:
        """The topic as it is now."""
        return self.log.runtime.topic(self.name, 0)

    @property
    def schema(self) -> StructType:
        """The topic's own columns as Spark's, as they are now."""
        return schemas.to_spark(self.topic().schema)
