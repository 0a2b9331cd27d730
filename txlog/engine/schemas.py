"""Which columns has a topic, of which types, and which names are valid?"""

from __future__ import annotations

from txlog.core.evolution import WrittenSchema, has_default
from txlog.core.names import check_topic_name, is_topic_name
from txlog.core.records import SchemaField, TopicMetadata
from txlog.core.schema import (
    OFFSET_COLUMN,
    OWN_COLUMNS,
    PARTITION_COLUMN,
    TOPIC_COLUMN,
    assign_ids,
    decimal_type,
    describe,
    parse_decimal,
)

__all__ = [
    "OFFSET_COLUMN",
    "OWN_COLUMNS",
    "PARTITION_COLUMN",
    "TOPIC_COLUMN",
    "SchemaField",
    "TopicMetadata",
    "WrittenSchema",
    "assign_ids",
    "check_topic_name",
    "decimal_type",
    "describe",
    "has_default",
    "is_topic_name",
    "parse_decimal",
]
