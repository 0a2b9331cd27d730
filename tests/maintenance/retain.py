"""Retention of one partition, by its topic's settings."""

from __future__ import annotations

from txlog.client import reading
from txlog.client.store import Store
from txlog.core.names import TopicPartition
from txlog.maintenance.partition_loop import results
from txlog.maintenance.retention import policy_of, retain_partitions
from txlog.protocol.retention import RetentionPlan


def retain(store: Store, tp: TopicPartition, *, dry_run: bool = False) -> RetentionPlan | None:
    """Return what retention removed, or would remove; None if nothing."""
    policy = policy_of(store.runtime, tp.topic)
    if policy is None:
        return None
    found = results(retain_partitions(reading.read_session(store.runtime), {tp: policy}, dry_run=dry_run))
    return found[0] if found else None
