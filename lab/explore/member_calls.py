"""What does a script call for its group? Offsets, generations and members."""

from __future__ import annotations

from dataclasses import replace

from lab.explore.client import Call, Client, failed, patiently, refused
from lab.older_writers import staged_offsets
from txlog.core.effects import Program
from txlog.core.groups import OffsetsCondition
from txlog.core.members import find_member, partitions_of
from txlog.core.names import TopicPartition
from txlog.core.records import GroupMember, GroupRow, OffsetValue
from txlog.core.transactions import Skipped
from txlog.errors import AbortableError, CommitFailedError, OutcomeUnknownError, RetriableError, TxlogError
from txlog.protocol import groups, members

SESSION_MS = 45_000
TWO_PARTITIONS = {"orders": 2}


def send_offsets(offset: int | None, *, expected: bool, group: str = "g", staged: bool = False) -> Call:
    """Call send_offsets_to_transaction for partition 0 of `orders`; without `offset`, send the next one.

    `expected`: under the condition that the committed offset is still `client.started`.
    """

    def call(client: Client) -> Program[Client]:
        assert client.txn is not None
        txn = client.txn
        target = offset if offset is not None else (client.started or 0) + 1
        values = {TopicPartition("orders", 0): OffsetValue(offset=target)}
        if staged:
            parts = staged_offsets(group, values, client.ctx.constants, 0)
            return replace(client, staged=(*client.staged, *parts), sent=(*client.sent, (0, target)))
        condition = OffsetsCondition(expected={TopicPartition("orders", 0): client.started}) if expected else None
        client = replace(client, sent=(*client.sent, (0, target)))
        try:
            views, registered = yield from patiently(
                client, lambda: groups.send_offsets(client.ctx, client.views, txn, group, values, condition)
            )
        except TxlogError as error:
            return (yield from failed(client, error))
        assert not isinstance(registered, Skipped)
        return replace(client, views=views).taking(registered)

    return call


def join_group(member: str, group: str = "g") -> Call:
    """Let a consumer join its group."""

    def call(client: Client) -> Program[Client]:
        try:
            views, (value, _) = yield from patiently(
                client, lambda: groups.join_group(client.ctx, client.views, group, member, member, ("orders",))
            )
        except (RetriableError, OutcomeUnknownError) as error:
            return client.noted("unknown", text=str(error), stop=True)
        condition = OffsetsCondition(generation=value.generation, member_id=member)
        return replace(client, views=views, member=condition).noted("done")

    return call


def commit_offsets(offset: int, group: str = "g", *, outsider: bool = False) -> Call:
    """Commit offsets plainly. The metadata of a member's commit contains its generation.

    `outsider`: the metadata says that the consumer is not a member, so the group must have no live one.
    """

    def call(client: Client) -> Program[Client]:
        member = client.member
        said = f"generation {member.generation}" if member is not None else "outsider" if outsider else ""
        values = {TopicPartition("orders", 0): OffsetValue(offset=offset, metadata=said)}
        try:
            views = yield from patiently(
                client, lambda: groups.commit_offsets(client.ctx, client.views, group, values, member)
            )
        except CommitFailedError as error:
            return client.noted(refused(error, "failed"), stop=True)
        except (RetriableError, OutcomeUnknownError, AbortableError) as error:
            return client.noted("unknown", text=str(error), stop=True)
        return replace(client, views=views).noted("done")

    return call


def join_members(member: str, instance_id: str = "", group: str = "g") -> Call:
    """Let a consumer join a group whose members share the two partitions of `orders`."""
    joining = GroupMember(
        member_id=member,
        instance_id=instance_id,
        topics=("orders",),
        assignors=("cooperative-sticky",),
        session_timeout_ms=SESSION_MS,
        generation=0,
    )

    def call(client: Client) -> Program[Client]:
        try:
            views, row = yield from patiently(
                client, lambda: members.join(client.ctx, client.views, group, joining, TWO_PARTITIONS)
            )
        except (RetriableError, OutcomeUnknownError) as error:
            return client.noted("unknown", text=str(error), stop=True)
        return _with_row(replace(client, views=views), row, member)

    return call


def sync_member(group: str = "g") -> Call:
    """Let a member look at its group, give up what is not assigned to it any more, and take what is free."""

    def call(client: Client) -> Program[Client]:
        assert client.member is not None
        name = client.member.member_id
        try:
            views, row = yield from patiently(client, lambda: members.look(client.ctx, client.views, group))
            client = _with_row(replace(client, views=views), row, name)
            if client.stopped or row is None:
                return client
            found = find_member(row.entry.value, name)
            assert found is not None
            held = client.held & partitions_of(found.assigned)
            views, row = yield from patiently(
                client, lambda: members.sync(client.ctx, client.views, group, name, held, TWO_PARTITIONS)
            )
        except (RetriableError, OutcomeUnknownError) as error:
            return client.noted("unknown", text=str(error), stop=True)
        return _with_row(replace(client, views=views), row, name)

    return call


def beat_member(group: str = "g") -> Call:
    """Let a member write a heartbeat."""

    def call(client: Client) -> Program[Client]:
        assert client.member is not None
        name = client.member.member_id
        try:
            views, row = yield from patiently(client, lambda: members.heartbeat(client.ctx, client.views, group, name))
        except (RetriableError, OutcomeUnknownError) as error:
            return client.noted("unknown", text=str(error), stop=True)
        return replace(client, views=views).noted("done" if row is not None else "gone")

    return call


def leave_members(group: str = "g") -> Call:
    """Let a member leave its group."""

    def call(client: Client) -> Program[Client]:
        assert client.member is not None
        name = client.member.member_id
        try:
            views, _ = yield from patiently(client, lambda: members.leave(client.ctx, client.views, group, name))
        except (RetriableError, OutcomeUnknownError) as error:
            return client.noted("unknown", text=str(error), stop=True)
        return replace(client, views=views, held=frozenset()).noted("left", stop=True)

    return call


def commit_held(offset: int, group: str = "g", *, transaction: bool = False, everything: bool = False) -> Call:
    """Commit an offset for each partition that the member reads, or for all.

    The metadata names member and generation.
    """

    def call(client: Client) -> Program[Client]:
        member, txn = client.member, client.txn
        assert member is not None
        said = f"member {member.member_id} {member.generation}"
        values = {tp: OffsetValue(offset=offset, metadata=said) for tp in sorted(client.held)}
        if everything:
            values = {TopicPartition("orders", n): OffsetValue(offset=offset, metadata=said) for n in range(2)}
        try:
            if transaction and values:
                assert txn is not None
                client = replace(client, sent=(*client.sent, *((tp.partition, offset) for tp in values)))
                views, registered = yield from patiently(
                    client, lambda: groups.send_offsets(client.ctx, client.views, txn, group, values, member)
                )
                assert not isinstance(registered, Skipped)
                return replace(client, views=views).taking(registered)
            views = yield from patiently(
                client, lambda: groups.commit_offsets(client.ctx, client.views, group, values, member)
            )
        except CommitFailedError as error:
            return client.noted(refused(error, "failed"), stop=True)
        except (RetriableError, OutcomeUnknownError, AbortableError) as error:
            return client.noted("unknown", text=str(error), stop=True)
        return replace(client, views=views).noted("done")

    return call


def _with_row(client: Client, row: GroupRow | None, name: str) -> Client:
    """Return the client as its group's row shows it; it stops if it is not a member any more."""
    found = find_member(row.entry.value, name) if row is not None else None
    if found is None:
        return client.noted("lost", stop=True)
    condition = OffsetsCondition(generation=found.generation, member_id=name)
    return replace(client, member=condition, held=partitions_of(found.owned)).noted("done")


def fetch_offsets(group: str = "g") -> Call:
    """Fetch the committed offset of partition 0 of `orders`, from which a job starts."""

    def call(client: Client) -> Program[Client]:
        tp = TopicPartition("orders", 0)
        try:
            views, found = yield from patiently(
                client, lambda: groups.fetch_offsets(client.ctx, client.views, group, [tp])
            )
        except (RetriableError, OutcomeUnknownError) as error:
            return client.noted("unknown", text=str(error), stop=True)
        value = found[tp]
        started = value.offset if value is not None else None
        return replace(client, views=views, started=started).noted("fetched", offsets=((0, started),))

    return call
