"""An operator's calls: transactions, offsets, partitions, producers, groups (Kafka's Admin).

Each call reads the store again. Descriptions are dataclasses of plain values, ready for JSON. Times are milliseconds
since 1970; -1 and None mean that there is no value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import get_args

from txlog.client import offsets as lookup
from txlog.client.admin.descriptions import (
    GroupInfo,
    GroupList,
    HangingTransaction,
    OffsetInfo,
    OffsetReset,
    PartitionDescription,
    ProducerDescription,
    TransactionDescription,
    TransactionList,
)
from txlog.client.admin.group_changes import GroupChanges
from txlog.client.groups import Offsets, check_group, check_text, offset_values, topic_partition
from txlog.client.offsets import OffsetSpec, lags_ms
from txlog.client.session.arguments import checked_calls
from txlog.client.session.runtime import Runtime
from txlog.client.session.session import Session, readable
from txlog.client.transactions.coordinator import check_transactional_id
from txlog.config import DEFAULT_ISOLATION, Layer, parse_isolation
from txlog.core.effects import Gather, Program, gathered
from txlog.core.names import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, TopicPartition, is_reserved
from txlog.core.records import Erasure, GroupValue, OffsetValue, TransactionRow, TransactionState
from txlog.core.transactions import PREPARED, is_timed_out, may_expire
from txlog.errors import (
    CorruptLogError,
    GroupIdNotFoundError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    TransactionalIdNotFoundError,
    TxlogError,
)
from txlog.protocol import (
    erase as erasures,
    expiry,
    group_admin,
    groups as group_protocol,
    table,
    transactions as protocol,
)
from txlog.protocol.append import append_log_start
from txlog.protocol.context import Context, PartitionView, Views, with_view, with_views
from txlog.protocol.expiry import ExpireResult
from txlog.protocol.groups import GroupChange, GroupDescription
from txlog.protocol.load import get_fresh_view, relisting
from txlog.protocol.read import read_partition
from txlog.protocol.requests import partitions_in_use
from txlog.protocol.seal import seal
from txlog.protocol.stores import check_store
from txlog.protocol.table import state_partition

STATES = get_args(TransactionState)
HANGING_AFTER_MS = 15 * 60_000

ERASE_WAIT_MS = 60_000
"""How long an erasure waits for open transactions that rows to erase lie behind."""


@checked_calls
class Admin:
    """Operators' calls on one store. Each call may also raise StorageError and CorruptLogError."""

    def __init__(self, runtime: Runtime, call: Layer | None = None) -> None:
        self._runtime = runtime
        self._session = Session(runtime, runtime.settings.client_config(call), f"admin of {runtime.where}")
        self._changes = GroupChanges(self._session)

    # -- transactions -------------------------------------------------------------------------------------------------

    def list_transactions(
        self, states: Iterable[str] | None = None, *, damaged: list[CorruptLogError] | None = None
    ) -> tuple[TransactionDescription, ...]:
        """Return every transactional.id, sorted by name; with `states`, only those in this state or in one of these.

        With a list `damaged`, damaged partitions of the table are left out and their errors are appended to the list.
        Raises InvalidRequestError for an unknown state, and NotAStoreError while the location is empty.
        """
        wanted = None if states is None else _check_states(states)
        rows = self._transactions(damaged)
        return TransactionList(self._describe(row) for row in rows if wanted is None or row.value.state in wanted)

    def describe_transaction(self, transactional_id: str) -> TransactionDescription:
        """Return one id. Raises TransactionalIdNotFoundError."""
        self._require_id(transactional_id)

        return self._describe(
            self._session.call(
                "describing a transaction", lambda ctx, views: table.describe(ctx, views, transactional_id)
            )
        )

    def find_hanging(
        self,
        max_ms: int = HANGING_AFTER_MS,
        topic: str | None = None,
        *,
        damaged: list[CorruptLogError] | None = None,
    ) -> tuple[HangingTransaction, ...]:
        """Return transactions that are open in a partition for too long, and what ends each of them.

        That is longer than `max_ms` (milliseconds) since their last row there, or longer than their own time-out. With
        a negative `max_ms`, return all open transactions. `damaged` is as in `list_offsets`.
        """
        by_producer = {row.value.producer_id: row.value for row in self._transactions(damaged)}
        topics = self._runtime.list_topics(damaged) if topic is None else [self._runtime.topic(topic, 0)]
        tps = [TopicPartition(each.topic, number) for each in topics for number in range(each.partitions)]
        now_ms = self._runtime.clock.now_ms()
        found = []
        for tp, view in self._session.readable_views(tps, "looking for open transactions", damaged).items():
            for entry in view.state.open_transactions:
                txn = by_producer.get(entry.producer_id)
                is_overdue = txn is not None and is_timed_out(txn, now_ms)
                if now_ms - entry.timestamp <= max_ms and not is_overdue:
                    continue
                found.append(HangingTransaction.of(tp, entry, txn, now_ms))
        return tuple(found)

    def abort_transaction(self, transactional_id: str) -> TransactionDescription | None:
        """Abort the id's open transaction through the coordinator, or roll it forward if it is prepared.

        Returns None if no transaction was open. The producer's next send or commit raises InvalidProducerEpochError;
        then the producer can abort and go on. Raises TransactionalIdNotFoundError.
        """
        self._require_id(transactional_id)
        self._runtime.ensure_writable()

        ended = self._session.call(
            f"aborting the transaction of {transactional_id!r}",
            lambda ctx, views: protocol.abort_transaction(ctx, views, transactional_id),
        )
        return None if ended is None else self.describe_transaction(transactional_id)

    def fence(self, transactional_id: str, timeout_ms: int = 60_000) -> TransactionDescription:
        """Fence every instance of the id, as a new instance does, and abort its open transaction.

        Creates an unknown id, whose transactions time out after `timeout_ms` milliseconds.
        """
        check_transactional_id(transactional_id)
        self._runtime.require_store()
        self._runtime.ensure_writable()

        self._session.call(
            f"fencing {transactional_id!r}",
            lambda ctx, views: protocol.init_producer(ctx, views, transactional_id, timeout_ms),
        )
        return self.describe_transaction(transactional_id)

    def expire(self, *, dry_run: bool = False) -> ExpireResult:
        """Sweep once: roll every PREPARE_* forward, abort overdue transactions, remove ids that are idle for too long.

        With `dry_run` nothing is written, and the result is what a sweep would do now.
        """
        if self._runtime.descriptor is None:
            return ExpireResult()
        if dry_run:
            return self._expirable()
        self._runtime.ensure_writable()
        return self._session.call("expiring transactions", expiry.expire)

    def expire_id(self, transactional_id: str, *, force: bool = False) -> bool:
        """Delete an idle id, and return whether it was deleted.

        False means that the id stays, because a transaction is open, because it has a `txn.version`, or because it
        changed within the last `transactional.id.expiration.ms` or `delete.grace.ms`. `describe_transaction` shows
        these. With `force` any id without an open transaction is deleted, together with its `txn.version`, unless a
        hanging transaction ended within `delete.grace.ms`. Raises TransactionalIdNotFoundError.
        """
        self.describe_transaction(transactional_id)
        self._runtime.ensure_writable()
        remove = expiry.finish_and_remove if force else expiry.remove
        return self._session.call(
            f"forgetting {transactional_id!r}", lambda ctx, views: remove(ctx, views, transactional_id)
        )

    # -- partitions ---------------------------------------------------------------------------------------------------

    def describe_producers(self, topic: str, partition: int) -> tuple[ProducerDescription, ...]:
        """Return what a partition knows about its producers, by producer id. Raises UnknownTopicOrPartitionError."""
        view = self._view(topic, partition)
        return tuple(ProducerDescription.of(view, pid) for pid in sorted(view.state.producers))

    def list_offsets(
        self,
        topics: str | Sequence[str],
        spec: str | int | OffsetSpec = "latest",
        isolation: str = DEFAULT_ISOLATION,
        *,
        damaged: list[CorruptLogError] | None = None,
    ) -> dict[TopicPartition, OffsetInfo]:
        """Return the ends of every partition, and the offset that `spec` means: "earliest", "latest" or a time (ms).

        `topics` is a name or a list of names, `isolation` is "read_committed" or "read_uncommitted".

        With a list `damaged`, damaged partitions are left out and their errors are appended to the list. Raises
        UnknownTopicOrPartitionError, InvalidConfigurationError.
        """
        level = parse_isolation(isolation)
        named = [topics] if isinstance(topics, str) else list(topics)
        wanted = lookup.spec_of(spec)
        if wanted.kind not in ("earliest", "latest", "timestamp"):
            raise InvalidRequestError(f"{wanted.option}: offsets are listed for 'earliest', 'latest' or a time")
        tps = [tp for name in named for tp in self._runtime.partitions(name, self._session.metadata_max_age_ms)]
        views = self._session.readable_views(tps, "looking up offsets", damaged)
        if wanted.kind != "timestamp":
            return {tp: OffsetInfo.of(view, lookup.edge(view, wanted.kind, level)) for tp, view in views.items()}
        hits = readable(
            list(views),
            lambda some: lookup.offsets_for_times(self._session, dict.fromkeys(some, wanted.timestamp), level),
            damaged,
        )
        return {
            tp: OffsetInfo.of(views[tp], hit.offset if hit else None, hit.timestamp if hit else None)
            for tp, hit in hits.items()
        }

    def describe_partition(self, topic: str, partition: int) -> PartitionDescription:
        """Return segments, tail, open and aborted transactions of a partition. Costs one GET for each segment.

        Raises UnknownTopicOrPartitionError.
        """
        return describe_partition(self._session, self._runtime.partition(topic, partition, 0))

    def delete_records(self, topic: str, partition: int, before: int | None = None) -> int:
        """Move a partition's log start to `before` (None: after its last row, Kafka's -1), and return the log start.

        If the log start is higher already, it stays. So you can run a script again, as in Kafka. A consumer that has
        read every row stays in range, as in Kafka, because the control record that moves the log start is at or above
        it.

        Raises UnknownTopicOrPartitionError, OffsetOutOfRangeError.
        """
        view = self._view(topic, partition)
        tp = view.topic_partition
        if before is not None:
            if before < 0:
                raise OffsetOutOfRangeError(
                    f"{tp}: the rows below offset {before} cannot be deleted: expected an offset from 0. "
                    "hint: to delete all rows leave the offset out; list_offsets() returns where a partition ends"
                )
            if before < view.state.log_start_offset:
                return view.state.log_start_offset
            lookup.check_range(view, before, "deleting records")
        self._runtime.ensure_writable()

        return self._session.call(
            f"deleting records of {tp}", lambda ctx, views: append_log_start(ctx, views, tp, before)
        )

    def seal(self, topic: str, partitions: Iterable[int] | None = None) -> dict[TopicPartition, int]:
        """End the active segment of each partition, and seal all that is finished. Return where the sealed parts end.

        Merges, compaction and retention take sealed segments only. Otherwise a segment ends with a later write, by
        `segment.ms`, `segment.bytes` or `segment.batches`. A partition that has no rows behind its sealed part stays as
        it is, so the call may be repeated. It costs an append and a sealing for each other partition.

        Raises UnknownTopicOrPartitionError, and InvalidRequestError for an internal topic.
        """
        if is_reserved(topic):
            raise InvalidRequestError(
                f"{topic!r} is an internal topic: its segments end by themselves after 16 records. "
                "hint: name a topic of yours; `txlog topics list` shows them"
            )
        numbers = range(self._runtime.topic(topic, 0).partitions) if partitions is None else partitions
        tps = [self._runtime.partition(topic, number, 0) for number in sorted(set(numbers))]
        self._runtime.ensure_writable()
        self._session.fresh_views(tps, "looking at a topic")

        def program(ctx: Context, views: Views) -> Program[tuple[Views, dict[TopicPartition, int]]]:
            views = yield from expiry.end_tails(ctx, views, tps, lambda record: record.records > 0)
            sealed = yield from gathered(seal(ctx, views[tp]) for tp in tps)
            return with_view(views, *sealed), {view.topic_partition: view.sealed_end for view in sealed}

        return self._session.call(f"sealing the segments of topic {topic!r}", program)

    def erase(self, topic: str, *, where: str, wait_ms: int = ERASE_WAIT_MS) -> dict[TopicPartition, int]:
        """Remove all rows for which `where` is true, and return how many were removed from each partition.

        They are the rows that are in the log when the call begins; `where` is a text as in `TopicTable.scan`. Offsets
        and times of the other rows stay, and so do groups and transactions. No read that begins after the call returns
        such a row. A call that was interrupted or killed is finished by `txlog maintain`, or by the next call for the
        topic. It is safe beside writers, readers and other maintenance (PROTOCOL.md, C15).

        The bytes are in old files until vacuum deletes them. A large topic is erased by Spark's executors:
        `python -m pyspark_txlog.jobs.run erase`.

        Raises UnknownTopicOrPartitionError, InvalidRequestError for an internal topic or a wrong condition,
        SchemaMismatchError. Raises TxlogTimeoutError if rows wait behind an open transaction for longer than `wait_ms`:
        then they are erased by `txlog maintain` once it has ended.
        """
        # The only call of the client that does maintenance. A local import, because that knows the client.
        from txlog.maintenance.erase import erase
        from txlog.maintenance.history import record
        from txlog.maintenance.partition_loop import gather

        erasing = erase(self._session, topic, where, wait_ms=wait_ms)
        made, failed = gather(record(self._runtime, "erase", erasing))
        if failed:
            raise failed[0]
        found: Counter[TopicPartition] = Counter()
        for each in made:
            found[each.topic_partition] += each.rows_erased if each.took_effect else 0
        return dict(found)

    def list_erasures(self, *, damaged: list[CorruptLogError] | None = None) -> tuple[Erasure, ...]:
        """Return the erasures that have begun and not ended, oldest first.

        With a list `damaged`, the errors of damaged records are appended to it.
        """
        return self._runtime.run(erasures.list_erasures(damaged))

    def cancel_erasure(self, erasure_id: str) -> None:
        """Cancel an erasure that has not ended. Rows that it has erased stay erased.

        A process that is working on it does not stop. Raises InvalidRequestError if there is no such erasure.
        """
        self._runtime.ensure_writable()
        found = self._session.call("cancelling", lambda _, views: with_views(views, erasures.cancel(erasure_id)))
        if not found:
            raise InvalidRequestError(
                f"erasure {erasure_id!r} has ended, or never began. hint: `txlog erasures list` shows those that have "
                "not ended"
            )

    # -- groups -------------------------------------------------------------------------------------------------------

    def list_groups(self, *, damaged: list[CorruptLogError] | None = None) -> tuple[GroupInfo, ...]:
        """Return every group that has a member or an offset, sorted by name, with its lag.

        With a list `damaged`, groups in damaged partitions are left out, the lag in damaged partitions is unknown, and
        their errors are appended to the list. Raises NotAStoreError while the location is empty.
        """
        self._runtime.require_store()
        views = self._internal_views(CONSUMER_OFFSETS_TOPIC, "listing groups", damaged)
        found = group_protocol.groups_of(views.values(), self._runtime.clock.now_ms())
        return GroupList(self._group_infos(found, damaged))

    def describe_group(self, group: str, *, damaged: list[CorruptLogError] | None = None) -> GroupInfo:
        """Return one group with its lag; `damaged` as in `list_groups`. Raises GroupIdNotFoundError."""
        return self._group_infos((self._group(group),), damaged, times=True)[0]

    def plan_reset(
        self,
        group: str,
        partitions: Iterable[TopicPartition] | None = None,
        spec: str | int | OffsetSpec | None = None,
        *,
        shift_by: int | None = None,
    ) -> tuple[OffsetReset, ...]:
        """Return how a reset would change a group's offsets.

        The reset goes to "earliest", "latest", a time (ms) or an OffsetSpec, or by `shift_by` offsets. An offset
        outside of the log is moved to the log's nearer end, and the result shows this. With `partitions` None, the
        reset covers the partitions that the group has offsets for, except entries that stand for another system
        (PROTOCOL.md, "Consumer offsets").

        Raises GroupIdNotFoundError (no partitions named, and no such group), UnknownTopicOrPartitionError,
        InvalidRequestError.
        """
        if (spec is None) == (shift_by is None):
            raise InvalidRequestError("give either where the offsets go, or shift_by")
        try:
            committed = self._group(group).offsets
        except GroupIdNotFoundError:
            if partitions is None:
                raise
            committed = {}
        wanted = (
            sorted(tp for tp in committed if not is_reserved(tp.topic))
            if partitions is None
            else [topic_partition(tp) for tp in partitions]
        )
        lookup.check_exist(self._session, wanted)
        if shift_by is None:
            assert spec is not None
            target = lookup.spec_of(spec)
            asked = {tp: offset for tp, offset in target.offsets.items() if offset >= 0}
            after = lookup.resolve(self._session, wanted, target, missing="latest", clamp=True)
        else:
            views = self._session.fresh_views(wanted, "looking up offsets")
            lacking = [str(tp) for tp in wanted if tp not in committed]
            if lacking:
                raise InvalidRequestError(
                    f"group {group!r} has no offset for {', '.join(lacking)}; shift_by needs one to start from"
                )
            asked = {tp: committed[tp].offset + shift_by for tp in wanted}
            after = {tp: lookup.check_range(views[tp], asked[tp], "shift_by", clamp=True) for tp in wanted}
        return tuple(
            OffsetReset(
                topic=tp.topic,
                partition=tp.partition,
                before=value.offset if (value := committed.get(tp)) is not None else None,
                after=after[tp],
                asked=offset if (offset := asked.get(tp)) != after[tp] else None,
            )
            for tp in wanted
        )

    def reset_offsets(
        self, group: str, offsets: Offsets | Sequence[OffsetReset], *, force: bool = False, dry_run: bool = False
    ) -> tuple[str, ...]:
        """Commit offsets for a group without members, and return the removed members.

        `offsets` are the result of `plan_reset(group, spec="earliest")`, or a dictionary from TopicPartition to offset.
        With `force`, the same write removes the group's member, whose next commit fails. With `dry_run` nothing is
        written. Raises InvalidRequestError if the group has a member, ConcurrentTransactionsError over undecided
        offsets, UnknownTopicOrPartitionError.
        """
        values = (
            offset_values(offsets)
            if isinstance(offsets, Mapping)
            else {TopicPartition(r.topic, r.partition): OffsetValue(offset=r.after) for r in offsets}
        )
        lookup.check_exist(self._session, values)
        return self._reset(group, dict(values), "resetting the offsets", force=force, dry_run=dry_run)

    def delete_offsets(
        self, group: str, partitions: Iterable[TopicPartition], *, force: bool = False
    ) -> tuple[str, ...]:
        """Remove a group's offsets for some partitions, as `reset_offsets` moves them.

        Raises GroupIdNotFoundError, and what `reset_offsets` raises.
        """
        gone = dict.fromkeys((topic_partition(tp) for tp in partitions), None)
        return self._reset(group, gone, "deleting offsets", force=force)

    def remove_members(self, group: str, instance_ids: str | Iterable[str] | None = None) -> tuple[str, ...]:
        """End the group's membership (Kafka's removeMembersFromConsumerGroup), as for a consumer that was killed.

        With `instance_ids`, only the members with these `group.instance.id`s are removed, and the others share their
        partitions. The generation rises. So if a removed member is still alive, its next commit raises
        CommitFailedError. Returns the members that were removed, or an empty tuple. Raises GroupIdNotFoundError,
        InvalidRequestError (no member has the instance id, or the list is empty).
        """
        self._require_group(group)
        given = [instance_ids] if isinstance(instance_ids, str) else () if instance_ids is None else instance_ids
        names = tuple(check_text(each, "group.instance.id") for each in given)
        if instance_ids is not None and not names:
            raise InvalidRequestError(
                f"group {group!r}: the list of members to remove is empty. "
                "hint: to remove all members, leave instance_ids out"
            )
        self._runtime.ensure_writable()

        return self._changes.make(
            group,
            f"removing the member of group {group!r}",
            (names,),
            lambda ctx, views, change: group_admin.remove_members(ctx, views, group, change, names),
        )

    def delete_group(self, group: str, *, force: bool = False, dry_run: bool = False) -> tuple[str, ...]:
        """Delete a group that has no undecided offsets, and return the removed members.

        Without `force` the group must have no member. With `force` its member is removed too, and its next commit
        fails. With `dry_run` nothing is written. Raises GroupIdNotFoundError, InvalidRequestError.
        """
        self._require_group(group)
        if not dry_run:
            self._runtime.ensure_writable()

        def program(ctx: Context, views: Views, change: GroupChange) -> Program[tuple[Views, GroupValue | None]]:
            return group_admin.delete_group(ctx, views, group, force=force, dry_run=dry_run, change=change)

        return self._changes.make(group, f"deleting group {group!r}", (force,), program, dry_run=dry_run)

    # -- helpers ------------------------------------------------------------------------------------------------------

    def _transactions(self, damaged: list[CorruptLogError] | None = None) -> tuple[TransactionRow, ...]:
        self._runtime.require_store()
        return table.rows_of(self._internal_views(TRANSACTION_STATE_TOPIC, "listing transactions", damaged).values())

    def _internal_views(
        self, topic: str, what: str, damaged: list[CorruptLogError] | None
    ) -> dict[TopicPartition, PartitionView]:
        """Return fresh views of an internal topic's partitions that hold anything."""

        def program(ctx: Context, views: Views) -> Program[tuple[Views, list[TopicPartition]]]:
            # An empty folder of another store is not an empty table (W47).
            found, _ = yield Gather((partitions_in_use(topic), check_store(ctx)))
            return views, found

        found = self._session.call(what, program)
        # Also those that held something: if such a folder is empty now, its view shows that the store has changed.
        held = [tp for tp in self._session.views if tp.topic == topic]
        return self._session.readable_views(sorted({*found, *held}), what, damaged)

    def _require_id(self, transactional_id: str) -> None:
        check_transactional_id(transactional_id)
        self._require(TransactionalIdNotFoundError, f"transactional.id {transactional_id!r}")

    def _require(self, error: type[TxlogError], what: str) -> None:
        if self._runtime.descriptor is None:
            raise error(f"no {what}: {self._runtime.where} is empty, there is no store yet")

    def _describe(self, row: TransactionRow) -> TransactionDescription:
        coordinator = state_partition(self._session.context(), row.value.transactional_id)
        return TransactionDescription.of(row, coordinator, self._runtime.clock.now_ms())

    def _expirable(self) -> ExpireResult:
        now_ms = self._runtime.clock.now_ms()
        constants = self._runtime.constants
        rows = [row.value for row in self._transactions()]
        return ExpireResult(
            aborted=tuple(txn.transactional_id for txn in rows if is_timed_out(txn, now_ms)),
            rolled_forward=tuple(txn.transactional_id for txn in rows if txn.state in PREPARED),
            removed=tuple(txn.transactional_id for txn in rows if may_expire(txn, now_ms, constants)),
        )

    def _view(self, topic: str, partition: int) -> PartitionView:
        tp = self._runtime.partition(topic, partition, 0)
        return self._session.fresh_views([tp], f"looking at {tp}")[tp]

    def _require_group(self, group: str) -> None:
        check_group(group)
        self._require(GroupIdNotFoundError, f"consumer group {group!r}")

    def _group(self, group: str) -> GroupDescription:
        self._require_group(group)

        return self._session.call(
            f"describing group {group!r}", lambda ctx, views: group_protocol.describe_group(ctx, views, group)
        )

    def _reset(
        self,
        group: str,
        values: Mapping[TopicPartition, OffsetValue | None],
        what: str,
        *,
        force: bool,
        dry_run: bool = False,
    ) -> tuple[str, ...]:
        check_group(group)
        self._runtime.require_store()
        if not dry_run:
            self._runtime.ensure_writable()

        def program(ctx: Context, views: Views, change: GroupChange) -> Program[tuple[Views, GroupValue | None]]:
            return group_admin.reset_offsets(ctx, views, group, values, force=force, dry_run=dry_run, change=change)

        return self._changes.make(group, f"{what} of group {group!r}", (values, force), program, dry_run=dry_run)

    def _group_infos(
        self, described: Sequence[GroupDescription], damaged: list[CorruptLogError] | None, *, times: bool = False
    ) -> tuple[GroupInfo, ...]:
        existing = {found.topic: found.partitions for found in self._runtime.list_topics(damaged)}
        tps = {tp for group in described for tp in (*group.offsets, *group.pending)}
        known = sorted(tp for tp in tps if tp.partition < existing.get(tp.topic, 0))
        views = self._session.readable_views(known, "looking up the lag of groups", damaged)
        lags = lags_ms(self._session, described[0].offsets, views) if times else {}
        return tuple(GroupInfo.of(group, views, lags) for group in described)


def describe_partition(session: Session, tp: TopicPartition) -> PartitionDescription:
    """Return what `Admin.describe_partition` returns of a partition that exists."""

    def program(ctx: Context, views: Views) -> Program[tuple[Views, PartitionDescription]]:
        views, seen = yield from get_fresh_view(ctx, views, tp)
        seen, (indexes, aborted) = yield from relisting(ctx, seen, read_partition)
        return with_view(views, seen), PartitionDescription.of(seen, indexes, aborted)

    return session.call(f"describing {tp}", program)


def _check_states(states: Iterable[str]) -> frozenset[str]:
    named = [states] if isinstance(states, str) else list(states)
    wanted = [str(state).upper().replace("-", "_") for state in named]
    for given, state in zip(named, wanted, strict=True):
        if state not in STATES:
            raise InvalidRequestError(f"{given!r} is not a state of a transaction; expected one of {', '.join(STATES)}")
    return frozenset(wanted)
