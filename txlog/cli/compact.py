"""`txlog compact`: how does a keyed topic shrink to the latest row of each key?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from txlog.cli.documents import CompactDocument, document_of
from txlog.cli.merge import show_lost
from txlog.cli.options import Execute, Partitions, Session, argument, option
from txlog.cli.output import Output, progress_bar
from txlog.cli.partitions import choose_partitions
from txlog.core.cleaning import DEFAULT_MAX_KEYS
from txlog.core.names import TopicPartition
from txlog.errors import InvalidRequestError, TxlogError
from txlog.text import bytes_text, count_text

if TYPE_CHECKING:
    from txlog.client.session.runtime import Runtime
    from txlog.core.compaction import Cleanable, CompactionPolicy
    from txlog.maintenance.compact import Compacted


def compact(
    session: Session,
    names: Annotated[
        list[str],
        argument("TOPIC", "Topics, or partitions as in orders/0 (default: every topic with cleanup.policy=compact)."),
    ],
    partitions: Partitions = None,
    min_cleanable_dirty_ratio: Annotated[
        float | None,
        option(
            "--min-cleanable-dirty-ratio 0…1",
            "Compact a partition if at least this part of its bytes is dirty: new, or an expired tombstone (default: "
            "the topic's setting). 0: if anything is dirty.",
            min=0,
            max=1,
        ),
    ] = None,
    max_keys: Annotated[
        int,
        option(
            "--max-keys KEYS",
            "Keys to hold in memory, 24 bytes each. A log with more keys takes several passes.",
            min=1,
        ),
    ] = DEFAULT_MAX_KEYS,
    execute: Execute = False,
) -> None:
    """Keep only the latest committed row of each key, in topics with cleanup.policy=compact. A dry run, unless
    --execute is given.

    Offsets and times of the remaining rows do not change. Tombstones (rows without a value) stay for
    delete.retention.ms after the first compaction that saw them. This is safe beside writers, readers and other
    maintenance, and it can be killed at any point.
    """
    # A local import, because `--help` does not need it.
    from txlog.client.reading import read_session
    from txlog.maintenance.compact import cleanable_part, compact_partitions
    from txlog.maintenance.history import record
    from txlog.maintenance.partition_loop import gather, look_over, refuse_internal

    refuse_internal(names, "compacted")
    runtime = session.store.runtime
    policies = compaction_policies(
        runtime,
        choose_partitions(session.store, names, partitions),
        are_named=bool(names),
        min_cleanable_dirty_ratio=min_cleanable_dirty_ratio,
        max_keys=max_keys,
    )
    reads = read_session(runtime)

    def look() -> tuple[list[tuple[TopicPartition, Cleanable]], list[TxlogError]]:
        return gather(look_over(reads, policies, lambda tp: (tp, cleanable_part(reads, tp, policies[tp]))))

    with progress_bar("looking for what to compact", "rows") as progress:
        if execute:
            compacting = compact_partitions(reads, policies, workers=session.workers(runtime), progress=progress)
            compacted, failed = gather(record(runtime, "compact", compacting))
            documents = [compact_document(each) for each in compacted]
        else:
            found, failed = look()
            documents = [planned_document(tp, each) for tp, each in found]
    # Read only if a sentence about it is shown.
    waiting = [] if documents or failed else [each for _, each in look()[0]]
    session.show(
        documents,
        lambda out: show_compactions(
            out, documents, partitions=len(policies), executed=execute, failed=len(failed), waiting=waiting
        ),
        failed,
    )


def compaction_policies(
    runtime: Runtime,
    partitions: Sequence[TopicPartition],
    *,
    are_named: bool,
    min_cleanable_dirty_ratio: float | None = None,
    max_keys: int | None = None,
) -> dict[TopicPartition, CompactionPolicy]:
    """Return how each of `partitions` is compacted; the others are left out.

    Raises InvalidRequestError for a partition of a topic without compaction if they `are_named`.
    """
    from txlog.maintenance.compact import compaction_policy

    policies = {}
    # The newest settings, because they decide which rows are removed.
    topics = {name: runtime.topic(name, 0) for name in dict.fromkeys(tp.topic for tp in partitions)}
    for tp in partitions:
        metadata = topics[tp.topic]
        policy = compaction_policy(
            runtime, metadata, min_cleanable_dirty_ratio=min_cleanable_dirty_ratio, max_keys=max_keys
        )
        if policy is not None:
            policies[tp] = policy
        elif are_named:
            key = "" if "key.columns" in metadata.config else " --set key.columns=COLUMN"
            found = ",".join(runtime.settings.topic_config(metadata).cleanup_policy)
            raise InvalidRequestError(
                f"topic {tp.topic!r} is not compacted: expected cleanup.policy=compact (or compact,delete) and "
                f"key.columns, found cleanup.policy={found}; "
                f"`txlog topics alter {tp.topic} --set cleanup.policy=compact{key}` sets them"
            )
    return policies


def planned_document(tp: TopicPartition, found: Cleanable) -> CompactDocument:
    """Return what a compaction of the partition would do."""
    return CompactDocument(
        topic=tp.topic,
        partition=tp.partition,
        outcome="planned" if found.is_due else "not due",
        base_offset=found.names[0].base_offset if found.names else 0,
        end_offset=found.end_offset,
        segments_before=len(found.names),
        bytes_before=found.clean_bytes + found.dirty_bytes,
        dirty_bytes=found.removable_bytes,
        dirty_ratio=round(found.dirty_ratio, 4),
        waits_for=found.waits_for or None,
        expired_tombstones=found.due_tombstones,
    )


def compact_document(done: Compacted) -> CompactDocument:
    """Return a pass that was made."""
    outcome = "compacted" if done.took_effect else "lost"
    return document_of(CompactDocument, done, done.topic_partition, outcome=outcome)


def show_compactions(
    out: Output,
    documents: Sequence[CompactDocument],
    *,
    partitions: int,
    executed: bool,
    failed: int,
    waiting: Sequence[Cleanable],
) -> None:
    """Show a table of passes over this many `partitions`, and a sentence; `failed` of them could not be compacted.

    If no partition was compacted, `waiting` has the reasons.
    """
    if not partitions:
        out.line(
            "Nothing to compact: no topic has cleanup.policy=compact. "
            "`txlog topics alter TOPIC --set cleanup.policy=compact --set key.columns=COLUMN` sets it."
        )
        return
    if not executed:
        _show_plan(out, documents)
        return
    if documents:
        out.records(
            {
                "partition": f"{each.topic}-{each.partition}",
                "offsets": f"{each.base_offset} to {each.end_offset - 1}",
                "segments": each.segments_before,
                "rows": each.rows_before,
                "bytes": bytes_text(each.bytes_before),
                "superseded": each.superseded,
                "expired": each.expired_tombstones,
                "rows after": each.rows,
                "bytes after": None if each.bytes is None else bytes_text(each.bytes),
                "outcome": each.outcome,
            }
            for each in documents
        )
        out.line()
    elif not failed:
        # If a partition became due after the check, another job or the next call compacts it.
        reasons = Counter(each.waits_for or "the partition has just become due; try again" for each in waiting)
        out.line(
            f"Nothing to compact: {_reasons_text(reasons)}.{_advice(any(each.removable_bytes for each in waiting))}"
        )
        return
    made = [each for each in documents if each.outcome == "compacted"]
    if made:
        gone = sum((each.superseded or 0) + each.expired_tombstones for each in made)
        out.line(
            f"Compacted {count_text(len({(each.topic, each.partition) for each in made}), 'partition')}: "
            f"{count_text(gone, 'row')} removed. The old files stay until vacuum deletes them."
        )
    if keyless := sum(each.keyless or 0 for each in made):
        out.line(f"{count_text(keyless, 'row')} without a key stay, because no row supersedes them.")
    show_lost(out, len(documents) - len(made))


def _show_plan(out: Output, documents: Sequence[CompactDocument]) -> None:
    out.records(
        {
            "partition": f"{each.topic}-{each.partition}",
            "segments": each.segments_before,
            "bytes": bytes_text(each.bytes_before),
            "dirty": bytes_text(each.dirty_bytes or 0),
            "dirty ratio": f"{each.dirty_ratio:.2f}",
            "expired tombstones": each.expired_tombstones,
            "outcome": each.outcome,
        }
        for each in documents
    )
    due = sum(each.outcome == "planned" for each in documents)
    reasons = Counter(each.waits_for for each in documents if each.waits_for is not None)
    out.line()
    out.line(f"Would compact {count_text(due, 'partition')}.{' Add --execute to do it.' if due else ''}")
    if reasons:
        wait = any(each.dirty_bytes for each in documents if each.waits_for is not None)
        out.line(f"Not due: {_reasons_text(reasons)}.{_advice(wait)}")


def _reasons_text(reasons: Counter[str]) -> str:
    return "; ".join(f"{reason} ({count_text(number, 'partition')})" for reason, number in reasons.most_common())


def _advice(are_dirty: bool) -> str:
    return " --min-cleanable-dirty-ratio 0 compacts what is dirty now." if are_dirty else ""
