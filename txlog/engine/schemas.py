"""Which columns has a topic, of which types, and which names are valid?"""

from txlog.core.evolution import WrittenSchema as WrittenSchema, has_default as has_default
from txlog.core.names import check_topic_name as check_topic_name, is_topic_name as is_topic_name
from txlog.core.records import SchemaField as SchemaField, TopicMetadata as TopicMetadata
from txlog.core.schema import (
    OFFSET_COLUMN as OFFSET_COLUMN,
    OWN_COLUMNS as OWN_COLUMNS,
    PARTITION_COLUMN as PARTITION_COLUMN,
    TOPIC_COLUMN as TOPIC_COLUMN,
    assign_ids as assign_ids,
    decimal_type as decimal_type,
    describe as describe,
    parse_decimal as parse_decimal,
)
