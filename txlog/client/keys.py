"""Which columns are a row's key, and which partition does the key choose?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from txlog.client.runtime import check_columns
from txlog.client.settings import Settings
from txlog.core.records import TopicMetadata
from txlog.core.schema import kafka_key
from txlog.errors import SchemaMismatchError
from txlog.storage.keys import NO_KEY, partition_table
from txlog.text import count_text

__all__ = ["NO_KEY", "check_keys", "key_columns_of", "partitions_of"]


def key_columns_of(settings: Settings, topic: TopicMetadata, columns: Sequence[str] | None = None) -> tuple[str, ...]:
    """Return the key columns of the call, else those of the topic, else `key` in a topic with Kafka's columns.

    The call's are `columns`; the topic's are its `key.columns`. Raises SchemaMismatchError for a column that the topic
    does not have.
    """
    if columns is not None:
        return check_columns(topic, tuple(columns))
    return settings.topic_config(topic).key_columns or kafka_key(topic.schema)


def partitions_of(rows: pa.Table, key_columns: Sequence[str], topic: TopicMetadata) -> NDArray[np.int32]:
    """Return the partition of each row, as Kafka's producer would choose it, or NO_KEY for a row without a key.

    `rows` have exactly the topic's schema (`txlog.storage.conform.conform`). Raises SchemaMismatchError for a type
    that cannot be a key.
    """
    return partition_table(rows, key_columns, topic.partitions)


def check_keys(table: pa.Table, topic: TopicMetadata, key_columns: Sequence[str]) -> None:
    """Raise SchemaMismatchError for a row without a key.

    A compacted topic keeps the latest row of each key, so no later row could ever supersede a row without a key (C2).
    """
    nulls = [table.column(name).is_null().to_numpy() for name in key_columns]
    keyless = np.logical_and.reduce(nulls)
    if bool(keyless.any()):
        raise SchemaMismatchError(
            f"topic {topic.topic!r} is compacted: row {int(np.argmax(keyless))} has no key ({', '.join(key_columns)} is null), "
            f"{count_text(int(keyless.sum()), 'row')} in all; expected a key in every row"
        )
