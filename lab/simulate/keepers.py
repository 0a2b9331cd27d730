"""Which programs of a simulated world keep the store? Sweeps, clean-ups, retention, and changes of a topic."""

from __future__ import annotations

from lab.compacting import KeyedRow, choose as choose_rows, reach
from lab.histories.events import Note, Row
from lab.simulate.cluster import encode_rows
from lab.simulate.life import BANKS, DRAFTS, EVENTS, PARTITIONS, PIPELINES, USERS, Life
from lab.simulate.process import rows_of
from lab.vacuuming import vacuum_topics
from txlog.core.cleaning import MergePolicy
from txlog.core.compaction import CompactionPolicy
from txlog.core.effects import InlineRows, Program, Sleep, WriteRows
from txlog.core.names import INTERNAL_TOPICS
from txlog.core.records import IndexedFile
from txlog.core.segments import indexed_file
from txlog.errors import (
    InvalidConfigurationError,
    MissingObjectError,
    SchemaMismatchError,
    TopicExistsError,
    TransactionalIdNotFoundError,
    UnknownTopicOrPartitionError,
)
from txlog.protocol import expiry, transactions
from txlog.protocol.append import append_log_start
from txlog.protocol.clean import Merge, plan_merges, publish
from txlog.protocol.compact import CompactionPlan, plan_compaction
from txlog.protocol.load import load
from txlog.protocol.retention import RetentionPolicy, apply_plan, plan_retention
from txlog.protocol.seal import seal


def sweeper(life: Life) -> Program[None]:
    client, choose = life.client, life.choose
    what = choose.choice(["expire", "expire", "seal", "producers", "abort"])
    client.record(Note(text=what))
    if what == "expire":
        client.views, _ = yield from expiry.expire(client.ctx, client.views)
    elif what == "seal":
        for tp in PARTITIONS:
            yield from seal(client.ctx, (yield from load(client.ctx, tp)))
    elif what == "producers":
        yield from expire_idle_producers(life)
    else:
        try:
            yield from transactions.abort_transaction(client.ctx, client.views, choose.choice([*BANKS, *PIPELINES]))
        except TransactionalIdNotFoundError:
            return


def expire_idle_producers(life: Life) -> Program[None]:
    client = life.client
    for tp in PARTITIONS:
        client.views, _ = yield from expiry.expire_producers(client.ctx, client.views, tp)


def vacuum(life: Life) -> Program[None]:
    """Run one pass, over some topics or all."""
    client, choose = life.client, life.choose
    topics = sorted({tp.topic for tp in PARTITIONS} | INTERNAL_TOPICS)
    if choose.random() < 0.3:
        topics = choose.sample(topics, choose.randint(1, len(topics)))
    try:
        client.views, gone = yield from vacuum_topics(client.ctx, client.views, topics)
    except MissingObjectError:
        # Other processes were faster each time.
        return
    for each in gone:
        client.record(Note(text=f"deleted {each.dead.path}: {each.dead.why.value}"))


def merger(life: Life) -> Program[None]:
    """Plan, copy and publish what is worth merging, sometimes in the steps of a slow copy."""
    client, choose = life.client, life.choose
    policy = MergePolicy(target_bytes=choose.choice([200, 1_000, 2**30]), max_inputs=choose.choice([2, 10_000]))
    for _ in range(choose.randint(1, 4)):
        tp = choose.choice(PARTITIONS)
        try:
            client.views, merges = yield from plan_merges(client.ctx, client.views, tp, policy)
            for merge in merges:
                file = yield from _copy(merge)
                yield Sleep(choose.choice([0, 0, 1_000, 61_000]))
                took_effect = yield from publish(client.ctx, merge, file)
                client.record(Note(text=f"merged {tp} {merge.run.name.index}: {took_effect}"))
        except MissingObjectError:
            client.views = {}


def _copy(merge: Merge) -> Program[IndexedFile | None]:
    return (yield from _write(merge, (yield from rows_of(merge.pieces))))


def _write(merge: Merge, rows: tuple[Row, ...]) -> Program[IndexedFile | None]:
    if not rows:
        return None
    stored = tuple(InlineRows(encode_rows([row]), row.offset, 0, 0) for row in rows)
    file = yield WriteRows(merge.topic_partition.topic, merge.path, stored)
    return indexed_file(file, 0, offset_column=True)


def compactor(life: Life) -> Program[None]:
    """Run some passes, sometimes with a long copy, or after a long read of the keys."""
    client, choose = life.client, life.choose
    policy = CompactionPolicy(
        key_columns=("key",),
        key=(1,),
        delete_retention_ms=choose.choice([0, 60_000, 86_400_000]),
        min_compaction_lag_ms=choose.choice([0, 0, 60_000]),
        min_cleanable_dirty_ratio=choose.choice([0, 0, 0.5]),
        max_keys=choose.choice([1, 3, 1_000]),
    )
    for _ in range(choose.randint(1, 4)):
        try:
            client.views, plan = yield from plan_compaction(client.ctx, client.views, USERS, policy)
            if plan is not None:
                yield from _compact(life, plan)
        except MissingObjectError:
            client.views = {}


def _compact(life: Life, plan: CompactionPlan) -> Program[None]:
    client, choose = life.client, life.choose
    dirty = _keyed((yield from rows_of(plan.dirty_pieces)))
    yield Sleep(choose.choice([0, 0, 1_000, 61_000]))
    merge = plan.merge(reach(plan, dirty))
    rows = yield from rows_of(merge.pieces)
    stays, kept = choose_rows(plan, dirty, _keyed(rows))
    file = yield from _write(merge, tuple(row for row, here in zip(rows, stays, strict=True) if here))
    yield Sleep(choose.choice([0, 0, 1_000, 61_000]))
    took_effect = yield from publish(client.ctx, merge, file, kept)
    gone = len(rows) - sum(stays)
    client.record(Note(text=f"compacted {USERS} {merge.run.name.index}, {gone} rows went: {took_effect}"))


def _keyed(rows: tuple[Row, ...]) -> tuple[KeyedRow, ...]:
    return tuple(KeyedRow(row.offset, row.content.partition("=")[0], row.content.endswith("=")) for row in rows)


def retention(life: Life) -> Program[None]:
    client, choose = life.client, life.choose
    if choose.random() < 0.3:
        ends = yield from client.look(EVENTS)
        if ends.log_end > ends.log_start:
            target = choose.randint(ends.log_start, ends.log_end)
            client.record(Note(text=f"log start to {target}"))
            client.views, _ = yield from append_log_start(client.ctx, client.views, EVENTS, target)
        return
    policy = RetentionPolicy(
        retention_ms=choose.choice([-1, 60_000, 3_600_000]), retention_bytes=choose.choice([-1, 200, 2_000])
    )
    tp = choose.choice([EVENTS, USERS])
    try:
        client.views, plan = yield from plan_retention(client.ctx, client.views, tp, policy)
        if plan.moves:
            client.record(Note(text=f"retains {tp} from {plan.log_start_after}"))
            client.views, _ = yield from apply_plan(client.ctx, client.views, plan)
    except MissingObjectError:
        client.views = {}


def remaker(life: Life) -> Program[None]:
    """Delete the topic and create it again. If two do it at once, one of them finds it already deleted or created."""
    client, choose = life.client, life.choose
    for _ in range(choose.randint(1, 4)):
        yield from make_drafts(life)
        yield Sleep(choose.choice([100, 1_000, 1_000, 10_000]))
        try:
            yield from client.delete_topic(DRAFTS.topic)
        except UnknownTopicOrPartitionError:
            client.record(Note(text=f"{DRAFTS.topic} is deleted already"))
        yield from make_drafts(life)


def evolver(life: Life) -> Program[None]:
    """Change columns of the topic. Another process may have changed them, or deleted the topic."""
    client, choose = life.client, life.choose
    for _ in range(choose.randint(1, 4)):
        yield Sleep(choose.choice([0, 100, 1_000, 10_000]))
        try:
            yield from client.change_columns(DRAFTS.topic, choose)
        except (SchemaMismatchError, InvalidConfigurationError, UnknownTopicOrPartitionError) as error:
            client.record(Note(text=f"columns of {DRAFTS.topic} stay: {error!r}"[:300]))


def make_drafts(life: Life) -> Program[None]:
    """Create the topic, unless another process has just created it."""
    try:
        yield from life.client.make_topic(DRAFTS.topic)
    except TopicExistsError:
        life.client.record(Note(text=f"{DRAFTS.topic} is there"))
