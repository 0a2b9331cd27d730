"""Which columns has a topic, of which types, and which names are valid?"""

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
