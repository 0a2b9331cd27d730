"""Kafka's exactly-once transactions as a storage format: which names does a user import?

The errors and the calls of `txlog.client`. The calls are resolved at their first use (PEP 562), so `import txlog` loads
neither pyarrow nor numpy. Spark's planning processes need only the package's names, and so start fast.
"""

from __future__ import annotations

import importlib
from typing import Any

from txlog._version import __version__
from txlog.errors import (
    AbortableError,
    ClockSkewError,
    CommitFailedError,
    ConcurrentTransactionsError,
    CoordinatorContentionError,
    CorruptLogError,
    CorruptRecordError,
    FencedError,
    GroupIdNotFoundError,
    IllegalStateError,
    InvalidConfigurationError,
    InvalidPartitionsError,
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    InvalidRequestError,
    InvalidTopicError,
    InvalidTxnStateError,
    InvalidTxnTimeoutError,
    MissingObjectError,
    NoOffsetForPartitionError,
    NotAStoreError,
    OffsetMetadataTooLargeError,
    OffsetOutOfRangeError,
    OutcomeUnknownError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    RecordTooLargeError,
    RetriableError,
    SchemaMismatchError,
    StorageError,
    StoreAccessError,
    StoreChangedError,
    TopicExistsError,
    TransactionAbortableError,
    TransactionAbortedError,
    TransactionalIdNotFoundError,
    TxlogError,
    TxlogTimeoutError,
    TxnVersionScopeError,
    UnknownOptionError,
    UnknownTopicOrPartitionError,
    UnstableOffsetCommitError,
    UnsupportedStoreError,
)

_CLIENT = frozenset(
    {
        "Admin",
        "Consumer",
        "ConsumerGroupMetadata",
        "OffsetAndMetadata",
        "Producer",
        "Store",
        "TopicPartition",
        "open",
    }
)

__all__ = [
    "AbortableError",
    "Admin",
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
    if name not in _CLIENT:
        raise AttributeError(f"module 'txlog' has no attribute '{name}'")
    return getattr(importlib.import_module("txlog.client"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
