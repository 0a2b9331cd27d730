"""How does a program read? Kafka's consumer, which returns Arrow batches.

`poll` returns rows of one partition with their `_offset`, `_timestamp`, `_topic` and `_partition`. `assign` needs no
group. `subscribe` shares the partitions with the other members of the group (`txlog.client.groups.members`).
"""

from __future__ import annotations

import contextlib
import datetime
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from types import FrameType
from typing import Never, Self, overload

import pyarrow as pa

from txlog.client import offsets as lookup
from txlog.client.consumer.commits import Commits, Membership
from txlog.client.consumer.fetcher import Fetcher, FollowedTopics, OneSchema, Topics
from txlog.client.consumer.iteration import Rows, ToEnd
from txlog.client.consumer.positions import find_positions, reset_positions
from txlog.client.groups import (
    ConsumerGroupMetadata,
    GroupMembership,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    Offsets,
    check_offset,
    topic_partition,
)
from txlog.client.groups.group_log import GroupLog
from txlog.client.groups.members import SharedMembership
from txlog.client.groups.rebalance import Listener, RebalanceListener
from txlog.client.groups.session_timeouts import Timeouts
from txlog.client.session.arguments import Milliseconds, check, checked_calls, misfit
from txlog.client.session.call_guard import CallGuard, close_after, in_turn
from txlog.client.session.runtime import Runtime
from txlog.client.session.session import Session
from txlog.config import Layer
from txlog.core.features import GROUP_MEMBERS
from txlog.core.names import TopicPartition
from txlog.errors import IllegalStateError, OffsetOutOfRangeError, TxlogError, UnstableOffsetCommitError
from txlog.protocol.context import PartitionView
from txlog.protocol.read import end_offset
from txlog.text import count_text

MAX_RESETS = 3
"""How often one poll may find a position out of range that is in range when it looks again."""


@checked_calls
class Consumer:
    """Reads rows. Close it, or use it as a context manager.

    Only one thread may use a consumer at a time. A call, also `close`, raises IllegalStateError at once while another
    thread is in a call, as Kafka's ConcurrentModificationException does. In a forked child every call raises it, except
    `close` and the end of a `with` block. These do nothing there, so that the parent stays the member of its group.
    """

    def __init__(self, runtime: Runtime, call: Layer) -> None:
        self._config = config = runtime.settings.consumer_config(call)
        self._runtime = runtime
        self.group_id = config.group_id
        self.isolation_level = config.isolation_level
        who = f"consumer {config.client_id!r}" if config.client_id else "consumer"
        self._who = who if config.group_id is None else f"{who} (group {config.group_id!r})"
        self._session = Session(runtime, config, self._who)
        self._group_log = GroupLog(self._who, config.group_id or "")
        self._fetcher = Fetcher(self._session, self.isolation_level, config.max_poll_records, config.fetch_max_wait_ms)
        self._followed = FollowedTopics(self._session, self._fetcher)
        self._watch = Timeouts(runtime.clock)
        self._alone = GroupMembership(self._session, config.client_id)
        self._membership: Membership = self._alone
        self._commits = Commits(self._session, config, self._fetcher)
        self._guard = CallGuard(self._who, "consumer", nested=True, mend=self._mend)
        self._closed = False

    def __repr__(self) -> str:
        return f"<{self._who} of {self._runtime.where}, {count_text(len(self._fetcher.assigned), 'partition')}>"

    def __enter__(self) -> Self:
        self._guard.check()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        # After an error the program may not have processed the rows of the last poll.
        close_after(error, self._who, self.close if error is None else lambda: self._close(after_error=True))

    # -- what is read -------------------------------------------------------------------------------------------------

    @in_turn
    def subscribe(
        self,
        topics: Topics,
        *,
        on_assign: Listener | None = None,
        on_revoke: Listener | None = None,
        on_lost: Listener | None = None,
    ) -> None:
        """Share the partitions of `topics`, a name or a list of names, with the other members of the group.

        `poll` calls `on_assign` with new partitions, `on_revoke` with those that it is about to give up, and `on_lost`
        with those that other members may have read since. `subscribe`, `close` and `unsubscribe` do so, too. Reading
        begins at the group's committed offsets, or else at `auto.offset.reset`. A partition that was added since the
        consumer subscribed, or that the group does not know yet, is read from its start. With a compiled regular
        expression as `topics`, topics whose whole name matches are shared, also those that are created later: they are
        looked for once in `metadata.max.age.ms`, and read from their start unless a member joins before that look. With
        the same topics a second call only sets the functions. With other topics the consumer leaves and joins again. A
        consumer that was killed keeps its partitions until `session.timeout.ms` (45 s) is over; started again with the
        same `group.instance.id` it reads on at once. In a store without the feature `group-members` a group has one
        member. Raises IllegalStateError without group.id, UnknownTopicOrPartitionError, InvalidTopicError,
        InvalidRequestError (no assignor in common).
        """
        self._check_open()
        group = self._require_group("subscribe")
        names = self._followed.check(topics)
        pattern = topics if isinstance(topics, re.Pattern) else None
        partitions = self._followed.partitions(names)
        self._runtime.ensure_writable()
        if GROUP_MEMBERS not in self._runtime.require_store().features:
            self._alone.join(group, names)
            self._assign(partitions, names)
            self._followed.pattern = pattern
            return
        listener = RebalanceListener(on_assign=on_assign, on_revoke=on_revoke, on_lost=on_lost)
        if self._membership.listen(names, listener):
            self._followed.pattern = pattern
            return
        self._leave()
        self._followed.start(names, shared=True)
        self._followed.pattern = pattern
        self._membership = shared = SharedMembership(self._session, self._config, group, self, self._watch)
        shared.join(names, partitions, listener)

    @in_turn
    def assign(self, partitions: Iterable[TopicPartition] | Iterable[tuple[str, int]]) -> None:
        """Read exactly these partitions, a list of TopicPartition(topic, number), without membership in a group.

        Like `unsubscribe` it first leaves, and commits with `enable.auto.commit` the rows that were returned. Raises
        UnknownTopicOrPartitionError.
        """
        self._check_open()
        wanted = [topic_partition(tp) for tp in partitions]
        lookup.check_exist(self._session, wanted)
        self._leave()
        self._assign(wanted)

    @in_turn
    def assign_topics(self, topics: Topics) -> None:
        """Read all partitions of `topics`, also those added later, without membership in a group.

        With a compiled regular expression also those of matching topics that are created later.
        """
        self._check_open()
        partitions = self._followed.partitions(names := self._followed.check(topics))
        self._leave()
        self._assign(partitions, names)
        self._followed.pattern = topics if isinstance(topics, re.Pattern) else None

    @in_turn
    def unsubscribe(self) -> None:
        """Stop reading, and leave the group. With `enable.auto.commit` first commit the rows that were returned.

        If this fails, call it again: reading has stopped, and commits are refused until the consumer has left.
        """
        self._check_open()
        self._leave()

    @in_turn
    def enforce_rebalance(self) -> None:
        """Let the next poll assign all partitions again, in a new generation of the group (Kafka's enforceRebalance).

        An assignment depends on the members and the numbers of partitions alone. So it gives the same shares, unless
        one of these has changed. Raises IllegalStateError without `subscribe`.
        """
        self._check_open()
        if not isinstance(self._membership, SharedMembership) or not self._membership.is_subscribed:
            raise IllegalStateError(f"{self._who}: enforce_rebalance() without subscribe(): there is no group to share")
        self._membership.renew()

    @in_turn
    def assignment(self) -> tuple[TopicPartition, ...]:
        """Return the partitions that are read."""
        return self._fetcher.assigned

    @property
    def awaited(self) -> Mapping[str, tuple[TopicPartition, ...]]:
        """Members that this one waits for, as of its last look, each with what it still owns of this one's share."""
        return self._membership.awaited

    @in_turn
    def subscription(self) -> tuple[str, ...]:
        """Return the topics whose partitions the members of the group share."""
        return self._followed.names

    @in_turn
    def pause(self, *partitions: TopicPartition) -> None:
        """Stop reading these partitions until `resume`."""
        self._fetcher.pause(self._assigned(partitions), True)

    @in_turn
    def resume(self, *partitions: TopicPartition) -> None:
        """Read paused partitions again."""
        self._fetcher.pause(self._assigned(partitions), False)

    @in_turn
    def paused(self) -> tuple[TopicPartition, ...]:
        """Return the paused partitions."""
        return self._fetcher.paused

    # -- rows ---------------------------------------------------------------------------------------------------------

    def poll(self, timeout_ms: Milliseconds = 500, *others: Never, **unknown: Never) -> pa.RecordBatch | None:
        """Return the next rows of one partition, at most `max.poll.records`, or None if none come within `timeout_ms`.

        `timeout_ms` is a whole number of milliseconds, from 0. Seconds, as confluent-kafka has them, are refused if
        they are a float: InvalidRequestError.

        The pauses between looks at the log grow from 1 ms to `fetch.max.wait.ms` until rows come; 0 looks at once. With
        `enable.auto.commit` and a group it commits from time to time the rows that earlier polls returned. Raises
        NoOffsetForPartitionError and OffsetOutOfRangeError if `auto.offset.reset` is "none", CommitFailedError (it lost
        its partitions and has no `on_lost`), CorruptRecordError with the name of the object.

        UnknownTopicOrPartitionError is raised as soon as a poll finds that a topic was deleted. A member of a group has
        then given up its partitions (`on_revoke`), and later polls return the rows of the other topics. After `assign`
        and `assign_topics` the partitions stay, and later polls raise the error again instead of returning None. This
        ends when you assign other topics. If the topic is created again, polls return its rows from the first one on.
        """
        if others or unknown:
            raise misfit(Consumer.poll, others, unknown)
        if type(timeout_ms) is not int or timeout_ms < 0:
            check("poll", "timeout_ms", timeout_ms, "Milliseconds")
        batch = self._poll(timeout_ms, sys._getframe())
        if batch is None:
            return None
        assert self._guard.turn is not None
        # One line: before it the rows are not returned, and the next call takes them back.
        self._fetcher.taken = None; self._guard.turn = self._guard.turn.before; return batch  # fmt: skip # noqa: E702

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield rows for ever, as they come."""

        def take(frame: FrameType) -> pa.RecordBatch | None:
            batch = None
            while batch is None and not self._closed:
                batch = self._poll(self._config.fetch_max_wait_ms, frame)
            return batch

        return Rows(take, self._fetcher, self._guard)

    def iterate(self, timeout_ms: Milliseconds = 0) -> Iterator[pa.RecordBatch]:
        """Yield rows until none came for `timeout_ms`; with 0, until the end of the log for the isolation level.

        With 0, a member of a group also waits until the others have given up what it gets, or their sessions are over.
        All batches of a topic have the columns of its first batch. The next call returns columns that were added since.
        """
        schemas = OneSchema(self._runtime)
        rows = ToEnd(self._poll, lambda: self.awaited, timeout_ms, self._who)

        def take(frame: FrameType) -> pa.RecordBatch | None:
            batch = rows.next(frame)
            return None if batch is None else schemas.align(batch)

        return Rows(take, self._fetcher, self._guard)

    def _poll(self, timeout_ms: int, frame: FrameType) -> pa.RecordBatch | None:
        return self._guard.poll(lambda: self._take_rows(timeout_ms), frame)

    def _take_rows(self, timeout_ms: int) -> pa.RecordBatch | None:
        """Return the next rows, which count as returned when `_fetcher.taken` is None."""
        self._check_open()
        if not self._fetcher.assigned and not self._membership.is_subscribed:
            raise IllegalStateError(f"{self._who}: poll() without subscribe() or assign(): nothing to read")
        clock = self._runtime.clock
        deadline_ms = clock.monotonic_ms() + timeout_ms
        self._membership.follow()
        self._commits.begin_poll(self._membership)
        self._followed.take_added()
        self._membership.widen(self._followed.names)
        self._check_deleted()
        looked, resets = False, 0
        while True:
            # While a transaction with newer offsets is undecided, its partitions wait, so that no row is read twice
            # (R16, KIP-447). Partitions whose positions are known go on.
            with contextlib.suppress(UnstableOffsetCommitError):
                self._find_positions(wait=False)
            try:
                batch = self._fetcher.next_batch()
                if batch is not None and self._membership.may_return():
                    # A listener, or the handler of a signal, may have closed the consumer in this poll.
                    return None if self._closed else batch
                if batch is not None or self._fetcher.plan():
                    continue
            except OffsetOutOfRangeError as error:
                resets += 1
                if not reset_positions(self._session, self._fetcher, self._config, error) and resets > MAX_RESETS:
                    raise
                continue
            left_ms = deadline_ms - clock.monotonic_ms()
            if looked and left_ms <= 0:
                self._followed.report_deleted(at_end=True)
                return None
            self._fetcher.wait(left_ms)
            self._membership.follow()
            self._fetcher.look()
            self._check_deleted()
            looked = True

    def _check_deleted(self) -> None:
        """Raise UnknownTopicOrPartitionError once for a deleted topic, of which nothing is read any more."""
        self._followed.find_deleted()
        self._membership.leave_out(self._followed.deleted)
        self._followed.report_deleted()

    # -- positions ----------------------------------------------------------------------------------------------------

    @in_turn
    def position(self, partition: TopicPartition) -> int:
        """Return the offset of the next row that a poll may return. Raises IllegalStateError if it is not assigned."""
        (tp,) = self._assigned([partition])
        self._find_positions()
        return self._fetcher.positions[tp]

    @in_turn
    def seek(self, partition: TopicPartition, offset: int | OffsetAndMetadata) -> None:
        """Read on from `offset`. The next poll shows whether the log has it."""
        (tp,) = self._assigned([partition])
        at = offset.offset if isinstance(offset, OffsetAndMetadata) else offset
        self._fetcher.seek({tp: check_offset(tp, at)})

    @in_turn
    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Read on from the log start; without arguments, for all assigned partitions."""
        self._fetcher.seek(self.beginning_offsets(self._assigned(partitions)))

    @in_turn
    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Read on from the end for the isolation level; without arguments, for all assigned partitions."""
        self._fetcher.seek(self.end_offsets(self._assigned(partitions)))

    @in_turn
    def seek_to_committed(self, *partitions: TopicPartition) -> None:
        """Read on from the group's committed offsets, for example after an aborted transaction with newer ones."""
        self._require_group("seek_to_committed")
        self._fetcher.seek(dict.fromkeys(self._assigned(partitions)))

    @in_turn
    def beginning_offsets(self, partitions: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, int]:
        """Return the log starts of these partitions, by default of those that are assigned."""
        return {tp: view.state.log_start_offset for tp, view in self._look(partitions).items()}

    @in_turn
    def end_offsets(self, partitions: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, int]:
        """Return the ends for the isolation level: the last stable offsets, or the log ends. `partitions` as above."""
        return {tp: end_offset(view, self.isolation_level) for tp, view in self._look(partitions).items()}

    @in_turn
    def offsets_for_times(
        self, times: Mapping[TopicPartition, int | datetime.datetime]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return for each partition the first offset appended at or after a time, or None if every row is older.

        A time is a datetime with a time zone, or milliseconds since 1970.
        """
        asked = {tp: lookup.milliseconds(time, str(tp)) for tp, time in times.items()}
        self._look(asked)
        return lookup.offsets_for_times(self._session, asked, self.isolation_level)

    @overload
    def lag(self, partition: TopicPartition) -> int: ...

    @overload
    def lag(self) -> dict[TopicPartition, int]: ...

    def lag(self, partition: TopicPartition | None = None) -> int | dict[TopicPartition, int]:
        """Return how many offsets are between the position and the end, markers and aborted rows included.

        Without an argument, return the lag of each assigned partition.
        """
        with self._guard.take("lag"):
            wanted = self._assigned([] if partition is None else [partition])
            ends = self.end_offsets(wanted)
            lags = {tp: max(ends[tp] - self.position(tp), 0) for tp in wanted}
        return lags if partition is None else lags[wanted[0]]

    # -- the group ----------------------------------------------------------------------------------------------------

    @in_turn
    def commit(self, offsets: Offsets | None = None) -> None:
        """Commit offsets (the next to read): the given ones, or the positions of all assigned partitions.

        `offsets` is a dictionary from TopicPartition to an offset or OffsetAndMetadata.

        Raises CommitFailedError (it is no longer the member that reads these partitions), ConcurrentTransactionsError
        (a transaction's conditional offsets are undecided), IllegalStateError without group.id,
        OffsetMetadataTooLargeError.
        """
        self._check_open()
        self._require_group("commit")
        if offsets is None:
            self._find_positions()
            offsets = self._fetcher.positions
        self._commits.commit(self._membership, offsets)

    @in_turn
    def committed(self, *partitions: TopicPartition) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the group's committed offsets; without arguments, for all assigned partitions.

        It waits for an undecided transaction that holds newer offsets, and raises UnstableOffsetCommitError if that
        takes too long. It ends such a transaction if it is due. If this process has no permission to write, it only
        waits.
        """
        self._check_open()
        group = self._require_group("committed")
        wanted = [topic_partition(tp) for tp in partitions] if partitions else list(self._fetcher.assigned)
        found = lookup.committed_offsets(self._session, group, wanted)
        return {
            tp: None if value is None else OffsetAndMetadata(offset=value.offset, metadata=value.metadata)
            for tp, value in found.items()
        }

    @in_turn
    def group_metadata(self) -> ConsumerGroupMetadata:
        """Return the membership, for `Producer.send_offsets_to_transaction`."""
        group = self._require_group("group_metadata")
        return ConsumerGroupMetadata(
            group_id=group,
            generation_id=self._membership.generation,
            member_id=self._membership.member_id,
            auto_commit=self._config.enable_auto_commit,
            alive_at=self._membership.alive_at,
            session_timeout_ms=self._config.session_timeout_ms,
        )

    def close(self) -> None:
        """Leave the group, and with `enable.auto.commit` first commit the rows that were returned; idempotent.

        If its partitions were lost by now, a warning is logged instead of that commit: another consumer reads those
        rows again. A TxlogError of `on_revoke`, `on_lost` or of the leave is logged, too. Another error of a listener
        is raised, but the consumer is closed. In a forked child it does nothing.
        """
        self._close()

    # -- helpers ------------------------------------------------------------------------------------------------------

    def _leave(self) -> None:
        try:
            self._commits.end(self._membership, self._fetcher.positions, "stopped")
        finally:
            try:
                self._membership.leave()
            finally:
                # Also after an error: other members read the partitions soon.
                self._assign([])

    def _close(self, *, after_error: bool = False) -> None:
        if self._guard.is_elsewhere or self._closed:
            return
        with self._guard.take("close"):
            if self._closed:
                return
            try:
                self._end(after_error=after_error)
            except Exception:
                self._ended()
                raise
            self._ended()  # not after an interrupt: the next call goes on

    def _end(self, *, after_error: bool) -> None:
        try:
            # Here, because the call began by taking back rows that an interrupted poll has not returned.
            positions = self._commits.handed if after_error else self._fetcher.positions
            self._commits.end(self._membership, positions, "closed")
        finally:
            try:
                self._membership.leave()
            except TxlogError as error:
                # The result of close() is the result of the commit. A membership that stays fences no consumer.
                self._group_log.failed("group_not_left", "closed without leaving its group", error)
            finally:
                self._assign([])  # a second call commits nothing: another member may have committed more

    def _ended(self) -> None:
        self._session.forget(list(self._session.views))
        self._fetcher.close()
        self._closed = True

    def _take_partitions(self, partitions: frozenset[TopicPartition], new: frozenset[TopicPartition]) -> None:
        """Read exactly `partitions`. `new` were added to their topics after the subscription.

        The membership calls this.
        """
        changed = partitions.symmetric_difference(self._fetcher.assigned)
        if not changed:
            return
        self._commits.forget(changed)
        self._followed.added |= new.difference(self._fetcher.assigned)
        self._fetcher.assign(partitions)

    def _mend(self) -> None:
        """Undo what an interrupted call has left half done, as the first thing of the next call."""
        self._fetcher.mend()
        self._membership.mend()

    def _give_up(self, partitions: frozenset[TopicPartition]) -> None:
        """Commit what was processed of `partitions` before another member reads them. The membership calls this."""
        self._commits.give_up(self._membership, partitions)

    def _assign(self, partitions: Iterable[TopicPartition], topics: tuple[str, ...] = ()) -> None:
        self._commits.forget_all()
        self._followed.start(topics)
        self._fetcher.start(partitions)

    def _find_positions(self, *, wait: bool = True) -> None:
        if self._fetcher.lost:
            find_positions(self._session, self._fetcher, self._followed, self._config, self._commits.known, wait=wait)

    def _look(self, partitions: Iterable[TopicPartition] | None) -> dict[TopicPartition, PartitionView]:
        self._check_open()
        wanted = [topic_partition(tp) for tp in (self._fetcher.assigned if partitions is None else partitions)]
        lookup.check_exist(self._session, wanted)
        return self._session.fresh_views(wanted, "looking up offsets")

    def _assigned(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Return `partitions`, which must be assigned, or all assigned partitions if it is empty."""
        self._check_open()
        wanted = [topic_partition(tp) for tp in partitions] or list(self._fetcher.assigned)
        for tp in wanted:
            if tp not in self._fetcher.assigned:
                raise IllegalStateError(
                    f"{self._who}: {tp} is not assigned; assigned are "
                    f"{', '.join(map(str, self._fetcher.assigned)) or 'none'}"
                )
        return wanted

    def _require_group(self, call: str) -> str:
        if self.group_id is None:
            raise IllegalStateError(f"{self._who}: {call}() needs a group.id. hint: name it with group_id=...")
        return self.group_id

    def _check_open(self) -> None:
        if self._closed:
            raise IllegalStateError(f"{self._who} is closed; make a new one")
