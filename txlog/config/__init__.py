"""Which settings exist, which values may they have, and which value counts when several places set them?

`table.KEYS` has name, kind, default, range and sentence of each setting. The `...Config` classes are its typed views,
one per scope. `parse` takes layers of dotted names; the first layer that has a key counts. Values are checked once,
here. Unknown keys are refused, and the error names the most similar known one. For Kafka's other settings it gives the
reason in `kafka_settings.toml`. `conf/generate.py` writes the table to `conf/txlog.toml`.

This package has only values: the client reads the user's files and the environment.
"""

from txlog.config.kafka_settings import not_needed as not_needed, other_names as other_names
from txlog.config.key import (
    INT64_MAX as INT64_MAX,
    SCOPES as SCOPES,
    ConfigKey as ConfigKey,
    IsolationLevel as IsolationLevel,
    Layer as Layer,
    Scope as Scope,
    Value as Value,
)
from txlog.config.parse import (
    ClientConfig as ClientConfig,
    ConsumerConfig as ConsumerConfig,
    ProducerConfig as ProducerConfig,
    StoreConfig as StoreConfig,
    TopicConfig as TopicConfig,
    check_topic_config as check_topic_config,
    parse_document as parse_document,
    parse_isolation as parse_isolation,
    restrict as restrict,
)
from txlog.config.table import (
    COMPACTED_SEGMENT_MS as COMPACTED_SEGMENT_MS,
    DEFAULT_ISOLATION as DEFAULT_ISOLATION,
    KEYS as KEYS,
    MAX_INLINE_BYTES as MAX_INLINE_BYTES,
    keys_of as keys_of,
)
