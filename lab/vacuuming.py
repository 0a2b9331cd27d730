"""How does one pass of vacuum run over whole topics? Its steps, one after another, as `txlog vacuum` runs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from txlog.core.effects import Program
from txlog.protocol import vacuum
from txlog.protocol.context import Context, Views
from txlog.protocol.vacuum_published import PublishRetention


def vacuum_topics(
    ctx: Context,
    views: Views,
    topics: Sequence[str],
    *,
    dry_run: bool = False,
    published: Mapping[str, PublishRetention] = MappingProxyType({}),
) -> Program[tuple[Views, tuple[vacuum.Deleted, ...]]]:
    """Run one pass over `topics`, from the first LIST to the last deletion. Return what was deleted, or would be.

    `published` has the retention of each topic that is published. Raises CorruptLogError naming the damaged or missing
    object. Nothing of its partition is deleted then.
    """
    now_ms = yield from vacuum.read_store_clock(dry_run=dry_run)
    files: list[vacuum.TopicFiles] = []
    for topic in topics:
        files += [(yield from vacuum.list_files(topic))]
    views, table = yield from vacuum.read_table(ctx, views)
    deleted: list[vacuum.Deleted] = []
    for each in files:
        publish = published.get(each.topic) if each.is_published else None
        views, plans = yield from vacuum.plan_topic(
            ctx, views, each, table, now_ms=now_ms, dry_run=dry_run, publish=publish
        )
        for plan in plans:
            deleted += yield from vacuum.sweep(ctx, plan, dry_run=dry_run, sizes=False)
    return views, tuple(deleted)
