"""Kafka's exactly-once transactions as a storage format: which names does a user import?

The errors and the calls of `txlog.client`. The calls are resolved at their first use (PEP 562), so `import txlog` loads
neither pyarrow nor numpy. Spark's planning processes need only the package's names, and so start fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from txlog._version import __version__
from txlog.errors import *

if TYPE_CHECKING:
    from txlog.client.admin.admin import Admin
    from txlog.client.consumer import Consumer
    from txlog.client.groups import ConsumerGroupMetadata, OffsetAndMetadata
    from txlog.client.producer import Producer
    from txlog.client.store import Store, open  # noqa: A004  as `txlog.open`
    from txlog.core.names import TopicPartition

__all__ = [
    "AbortableError",
    "Admin",
    "CatalogError",
    "ClockSkewError",
    "CommitFailedError",
    "ConcurrentTransactionsError",
    "Consumer",
    "ConsumerGroupMetadata",
    "CoordinatorContentionError",
    "CorruptLogError",
    "CorruptRecordError",
    "FencedError",
    "GroupIdNotFoundError",
    "IllegalStateError",
    "InvalidConfigurationError",
    "InvalidPartitionsError",
    "InvalidProducerEpochError",
    "InvalidProducerIdMappingError",
    "InvalidRequestError",
    "InvalidTopicError",
    "InvalidTxnStateError",
    "InvalidTxnTimeoutError",
    "MissingObjectError",
    "NoOffsetForPartitionError",
    "NotAStoreError",
    "OffsetAndMetadata",
    "OffsetMetadataTooLargeError",
    "OffsetOutOfRangeError",
    "OutOfOrderSequenceError",
    "OutcomeUnknownError",
    "Producer",
    "ProducerFencedError",
    "RecordTooLargeError",
    "RetriableError",
    "SchemaMismatchError",
    "StorageError",
    "Store",
    "StoreAccessError",
    "StoreChangedError",
    "TableConflictError",
    "TopicExistsError",
    "TopicPartition",
    "TransactionAbortableError",
    "TransactionAbortedError",
    "TransactionalIdNotFoundError",
    "TxlogError",
    "TxlogTimeoutError",
    "TxnVersionScopeError",
    "UnknownOptionError",
    "UnknownTopicOrPartitionError",
    "UnstableOffsetCommitError",
    "UnsupportedStoreError",
    "__version__",
    "open",
]


def __getattr__(name: str) -> Any:
    if name == "metrics":
        return importlib.import_module("txlog.metrics")
    if name not in __all__:
        from txlog.config.kafka_calls import in_place_of

        raise AttributeError(f"module 'txlog' has no attribute '{name}'{in_place_of(f'txlog.{name}')}")
    return getattr(importlib.import_module("txlog.client"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
