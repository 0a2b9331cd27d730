"""How does a consumer share the partitions of its topics with the other members of its group (W51 to W57)?

The consumer looks at the group when it polls. A thread of its own writes heartbeats, because a program may work longer
on the rows of one poll than its session lasts.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import weakref
from collections.abc import Collection, Mapping
from typing import Protocol

from txlog.client.groups import commit_offsets
from txlog.client.groups.group_log import GroupLog
from txlog.client.groups.heartbeats import Stop, beat
from txlog.client.groups.partition_counts import PartitionCounts
from txlog.client.groups.rebalance import News, RebalanceListener
from txlog.client.groups.session_timeouts import Timeouts
from txlog.client.session.session import Call, Session
from txlog.config import ConsumerConfig
from txlog.core.ages import ClockReading
from txlog.core.groups import OffsetsCondition
from txlog.core.members import beat_of, find_member, needs_change, needs_sync, partitions_of
from txlog.core.names import TopicPartition
from txlog.core.records import GroupMember, GroupRow, GroupValue, OffsetValue
from txlog.errors import CommitFailedError, StoreChangedError, TxlogError
from txlog.protocol import members as protocol
from txlog.storage.forks import lock_for_forks
from txlog.text import count_text

LOOK_MS = 5000
"""How often a poll looks at the group at most: a look is one or two requests."""
MAX_SYNCS = 3
"""Syncs of one look. The next look goes on: members that join one after the other must not hold a poll for ever."""


class Reader(Protocol):
    """The consumer, as its membership sees it."""

    def _take_partitions(self, partitions: frozenset[TopicPartition], new: frozenset[TopicPartition]) -> None:
        """Read exactly `partitions`. `new` are those that were added to their topics after the subscription."""

    def _give_up(self, partitions: frozenset[TopicPartition]) -> None:
        """Commit, with `enable.auto.commit`, the rows of `partitions` that were processed."""


class SharedMembership:
    """Membership in at most one group at a time, whose members share the partitions.

    The consumer's calls and the heartbeat thread use it. `_lock` guards what both change. An interrupt may end a call
    at any line. So `_reads` alone has what this member reads, and `mend` lets the consumer follow it.
    """

    def __init__(self, session: Session, config: ConsumerConfig, group: str, reader: Reader, watch: Timeouts) -> None:
        self._session = session
        self._journal = GroupLog(session.who, group)
        self._config = config
        self._group = group
        self._reader = reader
        self._lock = lock_for_forks()
        self._topics: tuple[str, ...] = ()
        self._listener = RebalanceListener()
        self._added, self._lost = News(), News()
        self._watch = watch
        self._joining: GroupMember | None = None
        """A member that may be in the group, because its join has not returned."""
        self._member: GroupMember | None = None
        self._held: frozenset[TopicPartition] = frozenset()
        """What the member owns."""
        self._reads: frozenset[TopicPartition] = frozenset()
        """Those of `_held` that exist as far as this process knows. The consumer reads them."""
        self._counts = PartitionCounts(session)
        self._looked_ms = self._polled_ms = 0
        self._alive_at = session.runtime.read_clocks()
        """A moment before the last record that shows that the member lives."""
        self._seen_at = self._alive_at
        """A moment before the last look."""
        self._beat_ms = -1
        """The `timestamp` of the member's last heartbeat in that look."""
        self._gone = ""
        """Why the member must not read any more; empty while it may."""
        self._is_replaced = False
        """Whether another consumer has joined with this one's `group.instance.id`."""
        self._stop = Stop()
        self._value: GroupValue | None = None
        """The group as this member has last seen it."""
        self._joined = 0
        """The generation that the group had when this member had joined."""
        self._anew = False
        """Whether the next sync makes a new generation: the program asks for it, or there are more topics."""
        self._is_leaving = False
        """Whether `leave` has begun, and has not succeeded."""
        self._left: GroupMember | None = None
        """The member that is left to be removed from the group."""

    @property
    def generation(self) -> int:
        """The generation that this member has seen; -1 if nothing is shared.

        0 after a loss, or after a `leave` that failed: no group has that generation, so commits with it are refused.
        """
        if self._member is not None:
            return self._member.generation
        return 0 if self._topics else -1

    @property
    def member_id(self) -> str:
        """Id of the member; empty without a membership."""
        return self._member.member_id if self._member is not None else ""

    @property
    def is_subscribed(self) -> bool:
        """Whether the consumer shares partitions. It may own none of them now."""
        return bool(self._topics) and not self._is_leaving

    @property
    def awaited(self) -> dict[str, tuple[TopicPartition, ...]]:
        """The members that this one waits for, as of its last look.

        Each has what it still owns of this one's share: nothing if it only has not taken part in the generation that
        this one joined. A member that died is one of them until its session is over.
        """
        value, member = self._value, self._member
        if value is None or member is None:
            return {}
        missing = partitions_of(member.assigned) - self._held
        found = {
            each.member_id: tuple(sorted(missing & partitions_of(each.owned)))
            for each in value.members
            if each.member_id != member.member_id
        }
        seen = {each.member_id: each.generation for each in value.members}
        return {name: owned for name, owned in found.items() if owned or seen[name] < self._joined}

    # -- calls of the consumer ----------------------------------------------------------------------------------------

    def join(
        self, topics: tuple[str, ...], partitions: Collection[TopicPartition], listener: RebalanceListener
    ) -> None:
        """Become a member that subscribes to `topics`, which have these partitions."""
        self._counts = PartitionCounts(self._session, partitions)
        self._topics, self._listener = topics, listener
        self._join()

    def mend(self) -> None:
        """Let the consumer read what this member reads, if an interrupt came between the two."""
        if self._topics:
            self._read()

    def listen(self, topics: tuple[str, ...], listener: RebalanceListener) -> bool:
        """Set the listener if this is a member that subscribes to these topics. Return whether it is."""
        if self._member is None or self._is_replaced or set(topics) != set(self._topics):
            return False
        self._listener = listener
        return True

    def follow(self) -> None:
        """Look at the group if that is due: take new partitions, give up others, and join again after a loss.

        Raises CommitFailedError if the partitions are lost and the program has no `on_lost`.
        """
        if not self.is_subscribed:
            return
        self._polled_ms = now_ms = self._session.clock.monotonic_ms()
        self._tell_news()
        if self._member is None:
            self._join()
        elif not self._is_gone() and now_ms - self._looked_ms >= min(
            0 if self._anew else LOOK_MS, self._config.heartbeat_interval_ms, self._config.metadata_max_age_ms
        ):
            self._take(self._look())
            self._looked_ms = now_ms  # last, so that the next call looks again after an interrupt
        if not self.may_return() and self.is_subscribed:
            self._join()

    def renew(self, topics: tuple[str, ...] = ()) -> None:
        """Make a new generation in the next `follow`. `topics` are all that this member subscribes to from now on."""
        self._counts.add(topics)
        self._anew = True
        self._topics = topics or self._topics

    def widen(self, topics: tuple[str, ...]) -> None:
        """Subscribe to `topics`, if these are more than before: some match a pattern by now."""
        if self.is_subscribed and len(topics) > len(self._topics):
            self.renew(topics)

    def leave_out(self, topics: Collection[str]) -> None:
        """Give up the partitions of topics that are deleted (`on_revoke`), and read those that were created again.

        The row of the group keeps these partitions, so that no other member reads them if the topic is created again.
        """
        gone = frozenset(tp for tp in self._reads if tp.topic in topics)
        if self.is_subscribed and (gone or self._counts.deleted.symmetric_difference(topics)):
            if gone:  # a removed member has lost them, and gives nothing up
                self._take(self._look())
            if self._is_gone():
                return
            gone &= self._reads
            self._revoke(gone, self.generation)
            self._counts.leave_out(topics)
            self._reads -= gone
            self._hold(self._held)
            self._tell_news()

    def may_return(self) -> bool:
        """Return whether rows may be returned now (W56). If not, report the loss, with the errors of `follow`."""
        if not self.is_subscribed or not self._is_gone():
            return True
        self._lose()
        return False

    @property
    def alive_at(self) -> ClockReading | None:
        """A moment before the last record that shows that this member lives; None if it is not, or is gone (W54)."""
        return self._alive_at if self._member is not None and not self._gone else None

    def commit(self, group: str, values: Mapping[TopicPartition, OffsetValue]) -> None:
        """Commit offsets as this member, if it is one (W55). Raises CommitFailedError."""
        member, began = self._member, self._session.runtime.read_clocks()
        if member is None:
            if self._topics:
                hint = "call unsubscribe() again" if self._is_leaving else "the next poll() joins it again"
                raise CommitFailedError(f"{self._session.who}: it is not a member of its group now. hint: {hint}")
            commit_offsets(self._session, group, values, None)
            return
        alive = not self._is_gone()
        condition = OffsetsCondition(generation=member.generation, member_id=member.member_id, alive=alive)
        try:
            commit_offsets(self._session, group, values, condition)
        except CommitFailedError as error:
            self._looked_ms -= LOOK_MS
            with contextlib.suppress(TxlogError):
                self._find(self._look())
            if self._is_replaced:
                raise self._replaced() from error
            raise
        self._wrote(member.member_id, began)

    def leave(self) -> None:
        """Stop sharing. A member without `group.instance.id` leaves the group, so that the others read on at once.

        After an error the consumer reads nothing and may not commit. A second call goes on with what is left to do.
        """
        if not self._topics:
            return
        member = self._member or self._joining
        # A listener that calls `close` must not be called again.
        listener, self._listener = self._listener, RebalanceListener()
        try:
            self._tell_end(listener)
        except BaseException as error:
            self._drop(member)
            try:
                self._finish()
            except TxlogError as failure:
                error.add_note(f"leaving the group failed too: {failure}")
            raise
        self._drop(member)
        self._finish()

    def _tell_end(self, listener: RebalanceListener) -> None:
        """Tell the listener which partitions this member gives up, or has lost (W56)."""
        held = tuple(sorted(self._reads | self._lost.partitions))
        is_lost = self._is_gone() or bool(self._lost.partitions)
        tell = listener.on_lost if is_lost else listener.on_revoke
        self._added, self._lost = News(), News()
        if is_lost:
            self._journal.lost(held, self._gone, is_told=tell is not None)
        if held and tell is not None:
            tell(held)

    def _drop(self, member: GroupMember | None) -> None:
        """End the membership in this process: nothing is read any more."""
        left = member if member is not None and not member.instance_id else self._left
        # In one line: an interrupted call has left the group later, or goes on as a member.
        self._left, self._is_leaving, self._is_replaced, self._joining = left, True, False, None
        self._forget()
        self._read()

    def _finish(self) -> None:
        """Tell the group that the member is gone, if that is due."""
        if self._left is not None:
            # A store that was created again, or restored to an older state, does not know this member.
            with contextlib.suppress(StoreChangedError):
                self._leave(self._left)
                self._journal.left(self._left.member_id, "it was closed or unsubscribed")
        self._topics, self._left, self._is_leaving = (), None, False

    # -- the group ----------------------------------------------------------------------------------------------------

    def _join(self) -> None:
        config = self._config
        self._session.runtime.ensure_writable()
        began = self._session.runtime.read_clocks()
        # A join that was interrupted, or whose outcome is unknown, is repeated with its id: the group may have it.
        self._joining = joining = self._joining or GroupMember(
            member_id=f"{config.client_id or 'consumer'}-{self._session.runtime.ids.new_id()}",
            client_id=config.client_id,
            instance_id=config.group_instance_id or "",
            topics=self._topics,
            assignors=config.partition_assignment_strategy,
            session_timeout_ms=config.session_timeout_ms,
            generation=0,
        )
        self._counts.read()
        if config.auto_offset_reset != "earliest":
            # The join itself tells the group of them. It uses what this look has read, so the look costs little.
            self._counts.begin_at(self._look())
        row = self._call(
            "joining",
            lambda ctx, views: protocol.join(
                ctx,
                views,
                self._group,
                joining,
                self._counts.now,
                beside_jobs=config.allow_mixed_groups,
                quiet=self._watch.quiet,
            ),
        )
        known = -1 if self._value is None else self._value.generation
        self._joined = row.entry.value.generation if row is not None and row.entry.value is not None else 0
        self._polled_ms = now_ms = self._session.clock.monotonic_ms()
        self._stop.set()
        self._stop = Stop()
        tick_ms = max(min(config.heartbeat_interval_ms // 10, 1000), 1)
        to_beat = (weakref.ref(self), self._stop, tick_ms)
        # A daemon, so that a program that ends without close() does not hang: its session ends then.
        threading.Thread(target=beat, args=to_beat, name="txlog-heartbeat", daemon=True).start()
        self._gone, self._is_replaced, self._alive_at, self._beat_ms = "", False, began, -1
        with self._lock:
            self._member, self._joining = joining, None
        # A static member that joins again may take over its generation.
        self._anew = self._anew and (joining.topics != self._topics or self._joined == known)
        self._journal.joined(joining.member_id, self._joined)
        self._take(row)
        self._looked_ms = now_ms

    def _call(self, what: str, call: Call[GroupRow | None]) -> GroupRow | None:
        """Return the group as a call shows it, and note its heartbeats."""
        row = self._session.call(f"{what} group {self._group!r}", call, settles=False)
        self._watch.note(row)
        return row

    def _look(self) -> GroupRow | None:
        began = self._session.runtime.read_clocks()
        row = self._call("looking at", lambda ctx, views: protocol.look(ctx, views, self._group))
        beat_ms = beat_of(row, self.member_id) if row is not None else -1
        if beat_ms > self._beat_ms >= 0:
            # A heartbeat since the last look, perhaps in a record of a producer that sent offsets for this member.
            self._wrote(self.member_id, self._seen_at)
        self._beat_ms, self._seen_at = beat_ms, began
        return row

    def _take(self, row: GroupRow | None) -> None:
        """Take part in the generation that a look, or this member's own record, has shown (W52)."""
        for _ in range(MAX_SYNCS):
            value, member = self._find(row)
            if row is None or value is None or member is None:
                return
            self._counts.read(partitions_of(member.assigned) | partitions_of(member.owned))
            given_up = self._held - partitions_of(member.assigned)
            if given_up:
                self._revoke(given_up & self._reads, value.generation)
                self._hold(self._held - given_up)
            # This member's own record gave it what it owns and does not hold yet. It need not write that again.
            given = partitions_of(member.owned) & partitions_of(member.assigned)
            is_behind = (
                self._anew
                or needs_sync(value, member, self._held | given)
                or needs_change(row, self._counts.now, member.member_id, self._watch.quiet)
            )
            owned = partitions_of(member.owned)
            if not is_behind and owned == self._held and not any(map(self._counts.has, owned - self._reads)):
                return
            if is_behind:
                if self._is_gone():  # a listener, or a look, may take long
                    return
                row = self._sync(member.member_id)
                _, member = self._find(row)
                if member is None:
                    return
            owned = partitions_of(member.owned)
            if owned - self._reads:
                self._hold(owned)
                self._tell_news()

    def _revoke(self, partitions: frozenset[TopicPartition], generation: int) -> None:
        """Let the program finish with partitions that it reads, before they are given up."""
        revoked = tuple(sorted(partitions))
        self._reader._give_up(partitions)
        if revoked and self._listener.on_revoke is not None:
            self._listener.on_revoke(revoked)
        self._journal.rebalanced("revoked", revoked, self.member_id, generation)

    def _sync(self, member_id: str) -> GroupRow | None:
        began, held = self._session.runtime.read_clocks(), self._held
        topics = self._topics if self._anew else ()

        def written() -> None:
            # If others were faster, nothing is written, and the member does not show that it lives.
            self._anew = False
            self._wrote(member_id, began)

        return self._call(
            "sharing the partitions of",
            lambda ctx, views: protocol.sync(
                ctx, views, self._group, member_id, held, self._counts.now, self._watch.quiet, topics, written
            ),
        )

    def _find(self, row: GroupRow | None) -> tuple[GroupValue | None, GroupMember | None]:
        """Return the group and this member in it, as `row` shows them; note if it is not in it any more."""
        value, instance_id = row.entry.value if row is not None else None, self._config.group_instance_id
        self._value, found = value, find_member(value, self.member_id)
        if row is None or found is None:
            self._gone = "it was removed from the group"
            if value is not None and instance_id and any(each.instance_id == instance_id for each in value.members):
                why = f"another consumer has its group.instance.id {instance_id!r}"
                self._gone, self._is_replaced = why, True
            return value, None
        with self._lock:
            self._member = found
        return value, found

    def _lose(self) -> None:
        """Report that the partitions are lost: another member may have read them since (W56)."""
        self._lost.partitions, why = self._lost.partitions | self._reads, self._gone
        if self._is_replaced:
            self._held = self._reads = frozenset()
        else:
            self._forget()
        self._read()
        self._journal.lost(tuple(sorted(self._lost.partitions)), why, is_told=self._listener.on_lost is not None)
        self._lost.tell(lambda lost: self._tell_lost(lost, why))
        if self._is_replaced:
            # Joining again would replace the other consumer, which would then replace this one, and so on.
            raise self._replaced()

    def _tell_lost(self, lost: tuple[TopicPartition, ...], why: str) -> None:
        if self._listener.on_lost is not None:
            self._listener.on_lost(lost)
        elif not self._is_replaced:
            raise CommitFailedError(
                f"{self._session.who}: lost {count_text(len(lost), 'partition')}, because {why}. Rows since the "
                "last commit are read again. "
                "hint: the next poll() joins the group again; with on_lost, subscribe() calls that instead"
            )

    def _tell_news(self) -> None:
        """Tell the listener what is new, also what an interrupted call has not told it."""
        self._lost.tell(lambda lost: self._tell_lost(lost, "its session is over"))
        self._added.tell(self._tell_added)

    def _tell_added(self, added: tuple[TopicPartition, ...]) -> None:
        self._journal.rebalanced("assigned", added, self.member_id, self.generation)
        if self._listener.on_assign is not None:
            self._listener.on_assign(added)

    def _replaced(self) -> CommitFailedError:
        return CommitFailedError(
            f"{self._session.who}: another consumer has its group.instance.id {self._config.group_instance_id!r}. "
            "hint: close this consumer, or give each consumer its own group.instance.id"
        )

    def _hold(self, partitions: frozenset[TopicPartition]) -> None:
        reads = frozenset(tp for tp in partitions if tp in self._reads or self._counts.has(tp))
        self._added.partitions = (self._added.partitions | (reads - self._reads)) & reads
        self._held, self._reads = partitions, reads
        self._read()

    def _read(self) -> None:
        """Let the consumer read `_reads`."""
        reads = frozenset() if self._is_leaving else self._reads
        self._reader._take_partitions(reads, frozenset(filter(self._counts.is_new, reads)))

    def _forget(self) -> None:
        self._added.partitions = frozenset()
        self._held = self._reads = frozenset()
        self._watch.stop(self.member_id)
        with self._lock:
            self._member, self._gone = None, ""
        self._stop.set()

    def _is_gone(self) -> bool:
        member = self._member
        if member is not None and not self._gone and self._age_ms() > member.session_timeout_ms:
            self._gone = "its session is over: it wrote nothing for session.timeout.ms"
        return bool(self._gone)

    def _age_ms(self) -> int:
        return self._session.runtime.read_clocks().ms_since(self._alive_at)

    def _wrote(self, member_id: str, began: ClockReading) -> None:
        """Note that a record which began at that time, or later, shows that the member lives."""
        with self._lock:
            if self.member_id == member_id:
                self._alive_at = max(self._alive_at, began, key=lambda each: each.monotonic_ms or 0)

    # -- the heartbeat thread -----------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Write a heartbeat if it is due, or leave the group if the program has stopped polling (W54)."""
        member, began = self._member, self._session.runtime.read_clocks()
        age_ms, due_ms = began.ms_since(self._alive_at), self._config.heartbeat_interval_ms
        if member is None or self._gone or not due_ms <= age_ms <= member.session_timeout_ms:
            return
        if self._session.clock.monotonic_ms() - self._polled_ms > self._config.max_poll_interval_ms:
            if not member.instance_id:
                self._leave(member)
                with self._lock:
                    if self.member_id == member.member_id:
                        self._gone = "it did not poll for max.poll.interval.ms"
                self._journal.left(member.member_id, "it did not poll for max.poll.interval.ms", logging.WARNING)
            return
        row = self._session.call(
            f"showing group {self._group!r} that a member lives",
            lambda ctx, views: protocol.heartbeat(ctx, views, self._group, member.member_id, alive=True),
            settles=False,
            limit_ms=self._config.session_timeout_ms,
        )
        if find_member(row.entry.value if row is not None else None, member.member_id) is not None:
            self._wrote(member.member_id, began)
        elif self.member_id == member.member_id:
            # The next poll looks, and finds out why.
            self._looked_ms -= LOOK_MS

    def _leave(self, member: GroupMember) -> None:
        self._session.call(
            f"leaving group {self._group!r}",
            lambda ctx, views: protocol.leave(ctx, views, self._group, member.member_id, self._watch.quiet),
            settles=False,
        )
