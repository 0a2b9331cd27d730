"""What users call: the store, producers, consumers, administration.

Each name is resolved at its first use (PEP 562), because Spark's planning processes import
`txlog.client.session.runtime` and must not load pyarrow.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "Admin": "admin.admin",
    "Consumer": "consumer",
    "ConsumerGroupMetadata": "groups",
    "OffsetAndMetadata": "groups",
    "Producer": "producer",
    "Store": "store",
    "TopicPartition": "session.session",
    "open": "store",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'txlog.client' has no attribute '{name}'")
    return getattr(importlib.import_module(f"txlog.client.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(_HOMES)
