"""The steps of a round of maintenance, and the work of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

from txlog.core.cleaning import MergePolicy
from txlog.core.compaction import CompactionPolicy
from txlog.core.effects import Program
from txlog.core.features import PUBLICATION
from txlog.core.names import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, TopicPartition
from txlog.core.records import TopicMetadata
from txlog.core.retention import ACTIVE
from txlog.core.vacuum import NOT_KNOWN_YET
from txlog.errors import CorruptLogError, TxlogError, TxlogTimeoutError
from txlog.maintenance.compact import Compacted, compact_partitions, compaction_policy
from txlog.maintenance.erase import Course, finish_erasure, list_erasures
from txlog.maintenance.merge import Merged, merge_partitions
from txlog.maintenance.partition_loop import Outcome
from txlog.maintenance.publish import publish_topics
from txlog.maintenance.retention import apply_partition, plan_partition, policy_from
from txlog.maintenance.round import Round, Step, candidates_of
from txlog.maintenance.vacuum import vacuum
from txlog.protocol.append import append_log_start
from txlog.protocol.context import Context, Views, with_views
from txlog.protocol.expiry import expire, expire_producers, idle_producers
from txlog.protocol.groups import expire_groups
from txlog.protocol.retention import RetentionPlan, RetentionPolicy
from txlog.protocol.seal import finished_segments, seal
from txlog.protocol.topic_changes import delete_topic, ending_logs
from txlog.publication.publish import formats_of
from txlog.text import bytes_text, count_text, duration_text, time_text

_VACUUM_INTERVAL_MS = 3_600_000
_MAX_EXPIRES = 100
"""Maximum number of records by which one round ends idle producers of a partition."""


def _transactions(a_round: Round, step: Step) -> None:
    """Finish decided transactions, abort overdue ones, and delete idle ids."""

    for done in a_round.over_table(TRANSACTION_STATE_TOPIC, step, "ending transactions", expire):
        for each in done.rolled_forward:
            step.did(f"rolled forward the transaction of {each!r}, which was decided", rolled_forward=1)
        for each in done.aborted:
            step.did(f"aborted the transaction of {each!r}, which was past its time-out", aborted=1)
        for each in done.removed:
            step.did(f"forgot the transactional.id {each!r}, idle for too long", forgotten_ids=1)
    now_ms = a_round.runtime.clock.now_ms()
    for tp in a_round.internal(TRANSACTION_STATE_TOPIC):
        view = a_round.session.views.get(tp)
        for row in view.state.transactions.values() if view is not None else ():
            if row.value.state == "ONGOING":
                step.leave(
                    f"the transaction of {row.value.transactional_id!r} is open for "
                    f"{duration_text(max(0, now_ms - row.value.started_at))}, within its time-out of "
                    f"{duration_text(row.value.timeout_ms)}"
                )


def _groups(a_round: Round, step: Step) -> None:
    """Delete consumer groups that are not used any more, if that was asked for."""
    idle_ms = a_round.policy.offsets_retention_ms
    if idle_ms < 0:
        return
    forgetting = partial(expire_groups, idle_ms=idle_ms)
    for gone in a_round.over_table(CONSUMER_OFFSETS_TOPIC, step, "forgetting groups", forgetting):
        for group in gone:
            step.did(f"forgot the consumer group {group!r}, idle for {duration_text(idle_ms)}", forgotten_groups=1)


def _deletions(a_round: Round, step: Step) -> None:
    """Complete interrupted deletions of topics."""
    topics = a_round.topics(step)
    for at, topic in enumerate(topics):
        if topic.deleting:
            with step.attempt(TopicPartition(topic.topic, 0)):
                finishing = partial(_finish_deletion, topic=topic)
                # Later steps of the round know it, too.
                topics[at] = topic = a_round.session.call("finishing a deletion", finishing)
                step.did(f"deleted the topic {topic.topic!r}, whose deletion had begun")
        if not topic.deleted:
            continue
        ending = partial(append_log_start, log_start_offset=None, deleted_version=topic.number)
        for tp in a_round.partitions_of(topic, step):
            if a_round.view(tp).state.deleted_version < topic.number:
                with step.attempt(tp):
                    a_round.session.call("finishing a deletion", partial(ending, tp=tp))
                    step.did("ended the log of a deleted topic", tp, ended_logs=1)


def _finish_deletion(ctx: Context, views: Views, topic: TopicMetadata) -> Program[tuple[Views, TopicMetadata]]:
    deletion = delete_topic(ctx, topic.topic, append_log_start=ending_logs(ctx), target=topic)
    return (yield from with_views(views, deletion))


def _producers(a_round: Round, step: Step) -> None:
    """End producers that are idle for too long by a record, also those with drawn producer ids."""
    expiration_ms = a_round.runtime.constants.producer_id_expiration_ms
    for tp in a_round.partitions(step):
        gone = 0
        for _ in range(_MAX_EXPIRES):
            if not idle_producers(a_round.view(tp).state, a_round.runtime.clock.now_ms(), expiration_ms):
                break
            ended: tuple[int, ...] = ()
            with step.attempt(tp):
                ended = a_round.session.call("ending idle producers", partial(expire_producers, tp=tp))
            gone += len(ended)
            if not ended:
                break
        if gone:
            step.did(
                f"forgot {count_text(gone, 'producer')}, idle for {duration_text(expiration_ms)}",
                tp,
                forgotten_producers=gone,
            )


def _seal(a_round: Round, step: Step) -> None:
    """Write the indexes of finished segments."""
    for tp in a_round.partitions(step):
        finished = len(finished_segments(a_round.view(tp)))
        if not finished:
            continue

        def program(ctx: Context, views: Views, tp: TopicPartition = tp) -> Program[tuple[Views, None]]:
            view = yield from seal(ctx, views[tp])
            return {**views, tp: view}, None

        with step.attempt(tp):
            a_round.session.call("sealing", program)
            step.did(f"sealed {count_text(finished, 'segment')}", tp, sealed_segments=finished)


def _erase(a_round: Round, step: Step) -> None:
    """Finish erasures that have begun, before a publication shows the rows again."""
    damaged: list[CorruptLogError] = []
    begun = list_erasures(a_round.runtime, damaged) if a_round.has_erasures(step) else []
    for error in damaged:
        step.fail(error)
    known = a_round.maintainer.erasures
    a_round.maintainer.erasures = {each.erasure_id: known.get(each.erasure_id) or Course() for each in begun}
    for erasure in begun:
        with step.attempt():
            finishing = finish_erasure(
                a_round.session,
                erasure,
                wait_ms=0,
                workers=a_round.maintainer.workers,
                course=a_round.maintainer.erasures[erasure.erasure_id],
            )
            with a_round.history.running("erase"):
                for tp, outcome in a_round.history.follow(finishing):
                    if isinstance(outcome, TxlogTimeoutError):
                        step.leave(str(outcome), tp)
                    elif isinstance(outcome, TxlogError):
                        step.fail(outcome, tp)
                    elif outcome is not None and outcome.took_effect:
                        step.did(
                            f"erased {count_text(outcome.rows_erased, 'row')}, from {bytes_text(outcome.bytes_before)}",
                            tp,
                            erased_rows=outcome.rows_erased,
                        )


def _publish(a_round: Round, step: Step) -> None:
    """Bring the tables of published topics up to date, before their files are replaced."""
    due = []
    for topic in a_round.topics(step):
        with step.attempt():
            if topic.topic_id not in a_round.maintainer.published.emptied and formats_of(a_round.runtime, topic):
                due.append(topic)
    if PUBLICATION not in a_round.runtime.require_store().features:
        # Earlier programs accepted the setting in such a store.
        for topic in due:
            step.leave(
                f"publish.formats has no effect: the store was made without the feature {PUBLICATION!r}",
                TopicPartition(topic.topic, 0),
            )
        return
    for name, made in publish_topics(
        a_round.session, due, a_round.maintainer.workers, cache=a_round.maintainer.published
    ):
        a_round.maintainer.check_stop()
        tp = TopicPartition(name, 0)
        if isinstance(made, TxlogError):
            step.fail(made, tp)
        elif made.must_rewrite:
            first = made.must_rewrite[0]
            step.leave(f"{count_text(len(made.must_rewrite), 'file')} must be rewritten first: {first.why}", tp)
        elif made.publications:
            step.did(
                f"published {count_text(made.rows_added, 'new row')}; {count_text(made.files_added, 'file')} added, "
                f"{made.files_removed} removed",
                tp,
                published_rows=made.rows_added,
            )


def _merge(a_round: Round, step: Step) -> None:
    """Merge many small files into a few large ones."""
    wanted = a_round.policy
    policy = MergePolicy(target_bytes=wanted.merge_target_bytes, max_ratio=wanted.merge_max_ratio)
    maintainer = a_round.maintainer
    due = []
    gone = {topic.topic for topic in a_round.topics(step) if topic.deleted}
    for tp in a_round.partitions(step, internal=False):
        candidates = candidates_of(a_round.view(tp))
        if not candidates or maintainer.merged.get(tp) == candidates:
            continue
        fresh = sum(not name.generation for name in candidates)
        if fresh >= wanted.merge_min_segments:
            due.append(tp)
        elif fresh and tp.topic not in gone:
            step.leave(
                f"{count_text(fresh, 'sealed segment')} will be merged when there are {wanted.merge_min_segments} "
                "(`txlog merge --execute` does it now)",
                tp,
            )
    # Only a LIST shows what other processes have merged; without it their work would be done again and discarded.
    a_round.session.forget(due)
    merging = merge_partitions(a_round.session, a_round.until_stopped(due), policy, workers=maintainer.workers)

    def looked(tp: TopicPartition) -> None:
        # Without this entry the partition would be looked at although it has not changed.
        maintainer.merged[tp] = candidates_of(a_round.view(tp))

    _follow(a_round, step, "merge", merging, looked)


def _compact(a_round: Round, step: Step) -> None:
    """Keep the latest row of each key in compacted topics. Then apply their retention.bytes to the compacted size."""
    due: dict[TopicPartition, CompactionPolicy] = {}
    for topic in a_round.topics(step):
        with step.attempt():
            if topic.deleted or compaction_policy(a_round.runtime, topic) is None:
                continue
            wanted = [tp for tp in a_round.partitions_of(topic, step) if a_round.is_worth_a_look("compact", tp)]
            # If a user ends the compaction of a topic, that holds from then on, not from the next time this process
            # looks.
            newest = a_round.newest(topic) if wanted else None
            policy = None if newest is None else compaction_policy(a_round.runtime, newest)
            if policy is not None:
                due |= dict.fromkeys(wanted, policy)
    a_round.session.forget(list(due))
    compacting = compact_partitions(a_round.session, due, a_round.until_stopped(due), a_round.maintainer.workers)
    _follow(a_round, step, "compact", compacting, partial(a_round.looked, "compact"))
    if "retention" not in a_round.policy.skip:
        _retention(a_round, step, after_compaction=True)


def _follow(
    a_round: Round,
    step: Step,
    job: str,
    outcomes: Iterable[Outcome[Merged | None]],
    looked: Callable[[TopicPartition], None],
) -> None:
    """Report what a job did to each partition. `looked` remembers a partition in which no work was due."""
    with a_round.history.running(job):
        for tp, outcome in a_round.history.follow(outcomes):
            if isinstance(outcome, TxlogError):
                step.fail(outcome, tp)
            elif outcome is not None:
                _tell_run(step, outcome)
            else:
                with step.attempt(tp):
                    looked(tp)


def _tell_run(step: Step, made: Merged) -> None:
    if isinstance(made, Compacted):
        doing, did = "compacting", "compacted"
        before, after = count_text(made.rows_before, "row"), count_text(made.rows, "row")
        figures = {"superseded_rows": made.superseded, "expired_tombstones": made.expired_tombstones}
    else:
        doing, did = "merging", "merged"
        before = f"{count_text(made.segments_before, 'segment')}, {count_text(made.files_before, 'file')}"
        after = count_text(made.files, "file")
        figures = {"merged_segments": made.segments_before}
    before += f", {bytes_text(made.bytes_before)}"
    if not made.took_effect:
        step.leave(f"{doing} {before}: another was faster", made.topic_partition)
        return
    step.did(
        f"{did} {before} into {after}, {bytes_text(made.bytes)}",
        made.topic_partition,
        **figures,
        bytes_before=made.bytes_before,
        bytes_after=made.bytes,
    )


def _retention(a_round: Round, step: Step, *, after_compaction: bool = False) -> None:
    """Remove rows that are older, or more, than their topic keeps, so that no merge or compaction rewrites them."""
    job = "retention after compaction" if after_compaction else "retention"
    for topic in a_round.topics(step):
        if topic.deleted:
            continue
        policy = _retention_now(a_round, topic, after_compaction)
        if policy is None:
            continue
        for tp in a_round.partitions_of(topic, step):
            if not a_round.is_worth_a_look(job, tp):
                continue
            with step.attempt(tp), a_round.history.over(tp, "retention"):
                plan = plan_partition(a_round.session, tp, policy)
                if plan.moves:
                    # As with a compaction: only the settings as they are now may remove rows.
                    newest = a_round.newest(topic)
                    now = None if newest is None else _retention_now(a_round, newest, after_compaction)
                    if now != policy:
                        step.leave("the topic's settings changed; the next round goes by them", tp)
                        continue
                    apply_partition(a_round.session, plan)
                    _tell_retained(a_round, step, plan)
                elif plan.hold is not None:
                    step.leave(f"rows that would go are held for consumer group {plan.hold.group!r}", tp)
                if plan.active_rows:
                    step.leave(
                        f"{count_text(plan.active_rows, 'row')} beyond retention.ms or retention.bytes stay, {ACTIVE}",
                        tp,
                    )
                a_round.looked(job, tp)


def _retention_now(a_round: Round, topic: TopicMetadata, after_compaction: bool) -> RetentionPolicy | None:
    """Return what a topic keeps, before or after its compaction, or None if it keeps everything.

    In a compacted topic only age counts before the compaction. By size, retention would remove the latest rows of keys,
    although the compaction makes room for them.
    """
    config = a_round.runtime.settings.topic_config(topic)
    policy = policy_from(config)
    waits = "compact" in config.cleanup_policy and config.retention_bytes >= 0 and "compact" not in a_round.policy.skip
    if policy is None or after_compaction:
        return policy if waits else None
    if not waits:
        return policy
    return replace(policy, retention_bytes=-1) if policy.retention_ms >= 0 else None


def _tell_retained(a_round: Round, step: Step, gone: RetentionPlan) -> None:
    a_round.history.add_outcome(gone.topic_partition, gone)
    step.did(
        f"moved the log start from {gone.log_start_before} to {gone.log_start_after}, by {gone.setting}: "
        f"{count_text(gone.rows, 'row')}, {bytes_text(gone.bytes)}",
        gone.topic_partition,
        retired_rows=gone.rows,
        retired_bytes=gone.bytes,
    )
    if gone.held_by is not None:
        step.leave(f"later rows are held for consumer group {gone.held_by!r}", gone.topic_partition)


def _vacuum(a_round: Round, step: Step) -> None:
    """Delete the objects that no reader or writer can still use, once `delete.grace.ms` has passed."""
    maintainer = a_round.maintainer
    now_ms = a_round.runtime.clock.monotonic_ms()
    grace_ms = a_round.runtime.constants.delete_grace_ms
    interval_ms = a_round.policy.vacuum_interval_ms
    if interval_ms is None:
        interval_ms = min(_VACUUM_INTERVAL_MS, grace_ms // 4)
    if maintainer.vacuumed_at_ms is not None and now_ms - maintainer.vacuumed_at_ms < interval_ms:
        return
    with step.attempt():
        report = vacuum(a_round.runtime, maintainer.vacuum_session, dry_run=False, workers=maintainer.workers)
        maintainer.vacuumed_at_ms = now_ms
        with a_round.history.running("vacuum"):
            for tp, (objects, size) in report.by_partition().items():
                a_round.history.add(tp, "deleted", deleted_objects=objects, deleted_bytes=size)
                step.did(
                    f"deleted {count_text(objects, 'object')} that nothing needs, {bytes_text(size)}",
                    tp,
                    deleted_objects=objects,
                    deleted_bytes=size,
                )
        if report.waiting:
            first_ms = min(each.waits_until_ms or 0 for each in report.waiting)
            is_known = first_ms != NOT_KNOWN_YET
            until = f" of {duration_text(grace_ms)}, the first until {time_text(first_ms)}" if is_known else ""
            step.leave(
                f"{count_text(len(report.waiting), 'object')} that nothing needs wait for the end of the grace{until}"
            )
        for topic, error in report.failed:
            step.fail(CorruptLogError(f"{topic}: {error}"))


WORK: dict[str, Callable[[Round, Step], None]] = {
    "transactions": _transactions,
    "groups": _groups,
    "deletions": _deletions,
    "producers": _producers,
    "seal": _seal,
    "erase": _erase,
    "publish": _publish,
    "retention": _retention,
    "merge": _merge,
    "compact": _compact,
    "vacuum": _vacuum,
}
"""The steps of a round, in their order."""
