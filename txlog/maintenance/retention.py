"""Which rows are older, or more, than their topic keeps, and how are they removed?

One record moves the log start of a partition over whole sealed segments (`retention.ms`, `retention.bytes`). Readers
stop seeing the rows below it at once, and vacuum deletes the objects later. A consumer group of `retention.hold.groups`
holds back rows that it has not read, as long as the group is alive. See PROTOCOL.md, "Clean-up", C7.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from txlog.client.session.runtime import Runtime
from txlog.client.session.session import Session
from txlog.config import TopicConfig
from txlog.core.names import INTERNAL_TOPICS, TopicPartition
from txlog.errors import InvalidRequestError
from txlog.maintenance.partition_loop import Outcome, over_partitions
from txlog.maintenance.workers import Progress, Task, Workers
from txlog.protocol.retention import RetentionPlan, RetentionPolicy, apply_plan, plan_retention


def policy_of(runtime: Runtime, topic: str) -> RetentionPolicy | None:
    """Return what the topic keeps by its newest settings (W45).

    Returns None if the topic keeps everything: its `cleanup.policy` does not contain `delete`, it has no limit, or it
    was deleted. Raises UnknownTopicOrPartitionError, and InvalidRequestError for an internal topic.
    """
    if topic in INTERNAL_TOPICS:
        raise InvalidRequestError(
            f"{topic} has no retention: its table is folded into snapshots, and nothing of it expires"
        )
    return policy_from(runtime.settings.topic_config(runtime.topic(topic, 0)))


def policy_from(config: TopicConfig) -> RetentionPolicy | None:
    """Return what a topic with these settings keeps, or None if it keeps everything."""
    if "delete" not in config.cleanup_policy or (config.retention_ms < 0 and config.retention_bytes < 0):
        return None
    return RetentionPolicy(
        retention_ms=config.retention_ms,
        retention_bytes=config.retention_bytes,
        hold_groups=config.retention_hold_groups,
        hold_max_ms=config.retention_hold_max_ms,
    )


def retain_partitions(
    session: Session,
    policies: Mapping[TopicPartition, RetentionPolicy],
    workers: Workers | None = None,
    *,
    dry_run: bool,
) -> Iterator[Outcome[RetentionPlan | None]]:
    """Move the log start of each partition to where its policy wants it, one partition for each task.

    Yield the plan, which names what was removed, is held or is in the active segment. Yield None if there is nothing of
    this. See `over_partitions` for the rest.
    """

    def plan(tp: TopicPartition) -> list[Task[TopicPartition, RetentionPlan | None]]:
        # Planning and moving are one task: both are small requests, and together they need no copy.
        return [Task(subject=tp, title=f"txlog retention: {tp}", work=partial(_retain, tp, policies[tp], dry_run))]

    return over_partitions(session, policies, plan, lambda _, done: done, workers)


def _retain(
    tp: TopicPartition, policy: RetentionPolicy, dry_run: bool, session: Session, progress: Progress | None
) -> RetentionPlan | None:
    """Do one task. Raises ClockSkewError, and what reading and appending raise."""
    plan = plan_partition(session, tp, policy)
    if plan.moves and not dry_run:
        apply_partition(session, plan)
    return plan if plan.moves or plan.hold is not None or plan.active_rows else None


def plan_partition(session: Session, tp: TopicPartition, policy: RetentionPolicy) -> RetentionPlan:
    """Return what `policy` would remove now. Nothing is written."""
    return session.call("planning retention", lambda ctx, views: plan_retention(ctx, views, tp, policy))


def apply_partition(session: Session, plan: RetentionPlan) -> int:
    """Carry out the plan, and return the log start after it.

    Raises ClockSkewError, because `retention.ms` uses this machine's clock (PROTOCOL.md, W45).
    """
    session.runtime.ensure_writable()
    return session.call("moving the log start", lambda ctx, views: apply_plan(ctx, views, plan))
