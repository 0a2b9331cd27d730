"""Which programs run in a simulated world? Each is the life of one process, from its start to its end.

bank        Transfers between accounts of two partitions, eager, staged or both; aborts some of them.
pipeline    Reads accounts, writes derived rows, and commits the group's offsets in the same transaction.
plain       An idempotent producer without transactions.
tail        A reader of either isolation level, by name.
watcher     The one member of a group, which commits its offsets without a transaction.
sharer      One of several members that share the accounts (`lab.simulate.sharers`).
auditor     Reads all accounts, and knows what it may expect (`lab.histories.bank`).
looker      Takes a snapshot of all partitions and reads it at once. Reads it again later on the objects that exist
            then.
sweeper     Times out, rolls forward, seals, expires, aborts as an operator.
merger      `txlog merge` of all that may be merged or of the small ones, again and again.
compactor   `txlog compact` of the topic with keys, with much memory or little.
vacuum      `txlog vacuum` of all topics, including internal ones: boundaries, slots, superseded and uncommitted
            objects.
retention   `txlog retention` by age or by size; or moves the log start to any offset.
remaker     Deletes a topic that banks and plain producers write to, and creates it again.
evolver     Adds, renames, moves and drops columns of that topic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from lab.histories.bank import Leg
from lab.histories.events import Audit, Isolation, Note, Row
from lab.histories.offsets import made_from
from lab.simulate.client import Client
from lab.simulate.keepers import compactor, evolver, merger, remaker, retention, sweeper, vacuum
from lab.simulate.life import (
    ACCOUNTS,
    BANKS,
    DRAFTS,
    EVENTS,
    GROUP,
    LEDGER,
    PARTITIONS,
    PIPELINES,
    USERS,
    WATCHERS,
    GaveUpError,
    Life,
)
from lab.simulate.process import rows_of
from lab.simulate.sharers import share
from txlog.core.effects import Program, ReadClocks, Sleep
from txlog.core.groups import OffsetsCondition
from txlog.core.names import TopicPartition
from txlog.core.snapshots import SnapshotCut
from txlog.core.transactions import PREPARED
from txlog.errors import (
    AbortableError,
    InvalidRequestError,
    MissingObjectError,
    OffsetOutOfRangeError,
    OutcomeUnknownError,
    OutOfOrderSequenceError,
    RetriableError,
    UnknownTopicOrPartitionError,
)
from txlog.protocol import table
from txlog.protocol.context import PartitionView, Views
from txlog.protocol.load import load
from txlog.protocol.read import plan_read
from txlog.protocol.seal import seal
from txlog.protocol.snapshot import take_snapshot


def bank(life: Life, transactional_id: str) -> Program[None]:
    client, choose = life.client, life.choose
    yield from client.init(transactional_id, choose.choice(life.habits.timeout_ms))
    for _ in range(choose.randint(1, 5)):
        yield from _transaction(life, lambda: _transfer(life))
        yield Sleep(choose.choice([0, 0, 50, 5_000]))


def _transfer(life: Life) -> Program[None]:
    client, choose = life.client, life.choose
    label = client.begin().replace("/", "-")
    count = choose.choice([2, 2, 2, 3, 4])
    deltas = [choose.randint(-100, 100) for _ in range(count - 1)]
    deltas.append(-sum(deltas))
    staged = {tp: choose.random() < life.habits.staged for tp in (*ACCOUNTS, EVENTS, USERS, DRAFTS)}
    waiting: dict[TopicPartition, list[str]] = {tp: [] for tp in ACCOUNTS}
    if choose.random() < life.habits.drafts:
        yield from _draft(life, staged=staged[DRAFTS])
    if choose.random() < 0.5:
        yield from _change_users(life, staged=staged[USERS])
    for number, delta in enumerate(deltas):
        account = choose.randrange(10)
        leg = Leg(transfer=label, number=number, legs=count, account=account, delta=delta)
        tp = ACCOUNTS[account % 2]
        waiting[tp].append(leg.encode())
        if choose.random() < 0.7:
            yield from client.send(tp, waiting[tp], choose, staged=staged[tp])
            waiting[tp] = []
    for tp, contents in waiting.items():
        if contents:
            yield from client.send(tp, contents, choose, staged=staged[tp])
    if choose.random() < 0.2:
        yield from client.send(EVENTS, [f"fee of {label}"], choose, staged=staged[EVENTS])


def _draft(life: Life, *, staged: bool = False) -> Program[None]:
    """Return a row for the topic that is deleted and created again, if it exists; some clients wait long before they
    send it."""
    client, choose = life.client, life.choose
    if (yield from client.open_topic(DRAFTS.topic)):
        yield Sleep(choose.choice([0, 0, 100, 5_000]))
        yield from client.send(DRAFTS, [f"draft of {client.name}"], choose, staged=staged)
        yield Sleep(choose.choice([0, 0, 100, 5_000]))


def _change_users(life: Life, *, staged: bool = False) -> Program[None]:
    """Write rows of some keys, or their deletion."""
    choose = life.choose
    keys = choose.choices("abc", k=choose.randint(1, 3))
    deletes = choose.random() < 0.3
    contents = [f"{key}={'' if deletes else life.client.name}" for key in keys]
    yield from life.client.send(USERS, contents, choose, staged=staged, keys=keys, deletes=deletes)


def pipeline(life: Life, transactional_id: str) -> Program[None]:
    """Consume, transform, produce.

    Init comes before the first fetch, so that no other commit can change the offsets after it.
    """
    client, choose, habits = life.client, life.choose, life.habits
    yield from client.init(transactional_id, choose.choice(habits.timeout_ms))
    condition: OffsetsCondition | None = None
    if habits.rivals and habits.by_generation:
        member = yield from client.join(GROUP, client.name)
        condition = OffsetsCondition(generation=member.generation, member_id=member.member_id)
    for _ in range(choose.randint(1, 6)):
        # Usually the same partition, so that rivals meet.
        tp = ACCOUNTS[0] if choose.random() < 0.7 else ACCOUNTS[1]
        yield from _transaction(life, lambda tp=tp: _step(life, tp, condition))  # type: ignore[misc]
        yield Sleep(choose.choice([0, 0, 500]))


def _step(life: Life, tp: TopicPartition, condition: OffsetsCondition | None) -> Program[None]:
    client, choose, habits = life.client, life.choose, life.habits
    label = client.begin()
    committed = (yield from client.fetch(GROUP, [tp]))[tp]
    client.go_elsewhere(tp)
    poll = yield from client.poll(tp, max(committed, 0), most=choose.randint(1, habits.most), txn=label)
    if poll.end <= max(committed, 0):
        return
    staged = choose.random() < habits.staged
    yield Sleep(choose.choice([0, 0, 100, 1_000]))
    for row in poll.rows:
        yield from client.send(LEDGER, [made_from(GROUP, tp, row.offset)], choose, staged=staged)
    if habits.rivals and condition is None:
        condition = OffsetsCondition(expected={tp: committed if committed >= 0 else None})
    ranges = {tp: (max(committed, 0), poll.end)}
    yield from client.send_offsets(GROUP, ranges, condition=condition, staged=staged)
    yield Sleep(choose.choice([0, 0, 100, 1_000]))


def _transaction(life: Life, work: Callable[[], Program[None]]) -> Program[None]:
    """Run work in a transaction, then end it: abort if the work failed, and sometimes without a reason."""
    client, choose = life.client, life.choose
    try:
        yield from work()
        commit = choose.random() >= life.habits.aborts
    except (AbortableError, RetriableError, OutcomeUnknownError, UnknownTopicOrPartitionError):
        commit = False
    for _ in range(10):
        try:
            yield from client.end(commit)
            break
        except (RetriableError, OutcomeUnknownError):
            # Spark calls abort after a failed commit: the answer must contain whether the commit has won.
            commit = commit and choose.random() < 0.8
        except (AbortableError, UnknownTopicOrPartitionError):
            commit = False
    else:
        raise GaveUpError(f"{client.name}: {client.label} does not end")
    if client.epoch % 2:  # as an idle producer; otherwise its next record, or another process, completes it
        yield from client.complete()


def plain(life: Life) -> Program[None]:
    client, choose = life.client, life.choose
    yield from client.draw_identity()
    for number in range(choose.randint(1, 8)):
        contents = [f"{client.name} {number}.{row}" for row in range(choose.randint(1, 3))]
        try:
            if choose.random() < life.habits.drafts:
                yield from _draft(life)
            elif choose.random() < 0.4:
                yield from _change_users(life)
            else:
                yield from client.send(EVENTS, contents, choose)
        except (RetriableError, OutcomeUnknownError, OutOfOrderSequenceError):
            # The sequence is no longer certain, or the partition has forgotten this producer.
            yield from client.draw_identity()
        except UnknownTopicOrPartitionError:
            client.record(Note(text=f"{DRAFTS.topic} was deleted"))
        yield Sleep(choose.choice([0, 0, 100, 30_000]))


def tail(life: Life) -> Program[None]:
    client, choose = life.client, life.choose
    tp = choose.choice(PARTITIONS)
    isolation: Isolation = choose.choice(["read_committed", "read_committed", "read_uncommitted"])
    at = -1
    for _ in range(choose.randint(1, 12)):
        try:
            poll = yield from client.poll(tp, at, isolation=isolation, most=choose.choice([None, 3, 20]))
            at = poll.end
        except OffsetOutOfRangeError:
            client.go_elsewhere(tp)
            at = -1
        yield Sleep(choose.choice([0, 10, 1_000]))


def watcher(life: Life) -> Program[None]:
    client, choose = life.client, life.choose
    member = yield from client.join(WATCHERS, client.name)
    condition = OffsetsCondition(generation=member.generation, member_id=member.member_id)
    committed = max((yield from client.fetch(WATCHERS, [EVENTS]))[EVENTS], 0)
    at = committed
    for _ in range(choose.randint(1, 6)):
        try:
            poll = yield from client.poll(EVENTS, at, most=choose.randint(1, life.habits.most))
        except OffsetOutOfRangeError:
            client.go_elsewhere(EVENTS)
            poll = yield from client.poll(EVENTS, -1, most=choose.randint(1, life.habits.most))
        at = poll.end
        if at > committed:
            yield from client.commit_offsets(WATCHERS, {EVENTS: (committed, at)}, condition)
            committed = at
        yield Sleep(choose.choice([0, 200]))


def sharer(life: Life) -> Program[None]:
    counts = {ACCOUNTS[0].topic: len(ACCOUNTS)}
    return share(life.client, life.readers, life.choose, counts, life.habits.most)


def auditor(life: Life) -> Program[None]:
    """Audit the accounts; `lab.histories.bank` defines a quiet audit."""
    client, choose = life.client, life.choose
    for number in range(choose.randint(1, 3)):
        name = f"{client.name}/{number}"
        polls = []
        for tp in ACCOUNTS:
            client.go_elsewhere(tp)
            polls.append((yield from client.poll(tp, -1, audit=name, again=choose.random() < 0.5)))
        client.views, rows = yield from table.list_transactions(client.ctx, client.views)
        quiet = all(row.value.state not in PREPARED for row in rows)
        for tp, poll in zip(ACCOUNTS, polls, strict=True):
            now = yield from client.look(tp)
            quiet = quiet and poll.end == poll.log_end == now.log_end == now.last_stable
        client.record(Audit(audit=name, topic=ACCOUNTS[0].topic, quiet=quiet))
        yield Sleep(choose.choice([0, 100, 10_000]))


def looker(life: Life) -> Program[None]:
    """A snapshot shows each transfer whole.

    A second read shows the same rows, except for rows that newer ones of their keys supersede. Or the snapshot is too
    old.
    """
    client, choose = life.client, life.choose
    for _ in range(choose.randint(1, 3)):
        try:
            began = yield ReadClocks()
            client.views, cut = yield from take_snapshot(client.ctx, client.views, PARTITIONS)
            rows = yield from _shown(client, cut, client.views)
            _check_whole(client, rows)
            yield Sleep(choose.choice([0, 100, 61_000]))
            if choose.random() < 0.7:
                # Another process would rarely compact in exactly this time.
                yield from client.draw_identity()
                yield from _change_users(life)
                yield from seal(client.ctx, (yield from load(client.ctx, USERS)))
                yield from compactor(life)
            fresh: dict[TopicPartition, PartitionView] = {}
            for tp in PARTITIONS:
                fresh[tp] = yield from load(client.ctx, tp)
            again = yield from _shown(client, cut, fresh)
            ended = yield ReadClocks()
        except (MissingObjectError, OffsetOutOfRangeError, InvalidRequestError):
            # Vacuum, retention or a compaction removed objects, so the reader needs a new snapshot.
            client.record(Note(text="the snapshot is too old"))
            client.views = {}
            continue
        if ended.ms_since(began) < client.ctx.constants.delete_grace_ms // 2:
            _check_again(client, rows, again, fresh)
            client.record(Note(text=f"looked twice at {len(rows[USERS])} rows with keys"))


_Shown = dict[TopicPartition, tuple[Row, ...]]


def _shown(client: Client, cut: SnapshotCut, views: Views) -> Program[_Shown]:
    found = {}
    for tp in PARTITIONS:
        start = views[tp].state.log_start_offset
        _, plan = yield from plan_read(client.ctx, views[tp], start, None, "read_committed", cut=cut)
        found[tp] = yield from rows_of(plan.pieces)
    return found


def _check_whole(client: Client, rows: _Shown) -> None:
    legs = [leg for tp in ACCOUNTS for row in rows[tp] if (leg := Leg.decode(row.content)) is not None]
    counted = Counter(leg.transfer for leg in legs)
    if torn := next((leg for leg in legs if counted[leg.transfer] != leg.legs), None):
        raise AssertionError(
            f"{client.name}: a snapshot shows {counted[torn.transfer]} of {torn.legs} rows of {torn.transfer}"
        )


def _check_again(client: Client, first: _Shown, again: _Shown, views: Views) -> None:
    for tp in PARTITIONS:
        start = views[tp].state.log_start_offset
        expected = {row for row in first[tp] if row.offset >= start}
        rows = {row for row in again[tp] if row.offset >= start}
        keys = {row.content.partition("=")[0] for row in rows} if tp == USERS else set()
        gone = {row for row in expected - rows if row.content.partition("=")[0] not in keys}
        # A tombstone is removed with the older rows of its key.
        newest = {row.content.partition("=")[0]: row for row in sorted(expected, key=lambda row: row.offset)}
        lost = {row for row in gone if tp != USERS or not newest[row.content.partition("=")[0]].content.endswith("=")}
        if lost or rows - expected:
            raise AssertionError(
                f"{client.name}: {tp}: a snapshot that is read again lacks {lost}, and shows {rows - expected} as well"
            )


ACTORS: Mapping[str, Callable[..., Program[Any]]] = {
    **dict.fromkeys(BANKS, bank),
    **dict.fromkeys(PIPELINES, pipeline),
    "plain": plain,
    "tail": tail,
    "watcher": watcher,
    "sharer": sharer,
    "auditor": auditor,
    "looker": looker,
    "sweeper": sweeper,
    "merger": merger,
    "compactor": compactor,
    "vacuum": vacuum,
    "retention": retention,
    "remaker": remaker,
    "evolver": evolver,
}


def live(kind: str, life: Life) -> Program[None]:
    """Run the life of a process of that kind."""
    if kind in BANKS or kind in PIPELINES:
        return ACTORS[kind](life, kind)
    return ACTORS[kind](life)
