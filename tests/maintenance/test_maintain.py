"""A round does what is due, in the right order, beside others. A round in which nothing is due writes nothing."""

from __future__ import annotations

import re
import urllib.request
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lab.testing.damage import overwrite
from tests.client.world import ORDERS, World
from txlog.client.store import Store
from txlog.core.names import TopicPartition
from txlog.errors import CorruptRecordError, InvalidRequestError, NotAStoreError, TxlogTimeoutError
from txlog.maintenance import merge
from txlog.maintenance.fsck import check_store
from txlog.maintenance.history import read_history
from txlog.maintenance.maintain import STEPS, Maintainer, MaintainPolicy, MaintainReport
from txlog.maintenance.metrics import RoundMetrics
from txlog.metrics import Registry
from txlog.metrics.prometheus import Server, write_file

DAY_MS = 86_400_000
EAGER = MaintainPolicy(merge_min_segments=2)


@pytest.fixture
def store(world: World) -> Store:
    opened = world.open()
    opened.create_topic("orders", ORDERS, partitions=2, config={"segment.batches": 2})
    return opened


def send(store: Store, first: int, batches: int, partition: int = 0) -> None:
    with store.producer() as producer:
        for number in range(first, first + batches):
            producer.send("orders", [{"id": number, "name": "n"}], partition=partition).result()


def hang(store: Store, transactional_id: str, timeout_ms: int = 1000) -> None:
    """Leave a transaction open that no producer will end."""
    producer = store.producer(transactional_id, transaction_timeout_ms=timeout_ms)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("orders", [{"id": 900, "name": "open"}], partition=1)
    producer.flush()
    store._clients.discard(producer)


def done(report: MaintainReport, step: str) -> dict[str, int]:
    (found,) = [each for each in report.steps if each.step == step]
    return {name: count for name, count in found.counts.items() if name not in ("done", "left", "failed")}


def test_a_round_ends_what_is_overdue_forgets_what_is_idle_seals_and_merges(world: World, store: Store) -> None:
    send(store, 0, 9)
    hang(store, "gone")
    send(store, 100, 4, partition=1)
    before = world.read()
    maintainer = Maintainer(world.open().runtime, EAGER)
    world.clock.advance_ms(2 * DAY_MS)
    report = maintainer.run()
    assert [each.step for each in report.steps] == list(STEPS)
    assert done(report, "transactions") == {"aborted": 1}
    assert done(report, "producers")["forgotten_producers"] == 2
    merged = done(report, "merge")
    assert merged["merged_segments"] >= 4
    assert not report.failures
    assert not report.is_idle
    assert world.ends(partition=1)[1] == world.ends(partition=1)[2]
    assert world.read() == sorted({*before, 100, 101, 102, 103}, key=lambda number: (number >= 100, number))
    assert {row.step.job for row in read_history(store.runtime)} == {"merge", "vacuum"}
    assert check_store(world.memory).is_clean
    world.clock.advance_ms(8 * DAY_MS)
    report = maintainer.run()
    assert done(report, "transactions") == {"forgotten_ids": 1}
    assert done(report, "vacuum")["deleted_objects"] >= 4
    world.clock.advance_ms(2 * DAY_MS)
    maintainer.run()
    # A run and the tail are left: one file of rows, and no segment from which it was made.
    kinds = [name.rpartition(".")[2] for name in world.memory.list("orders/0/")]
    assert kinds.count("parquet") == 1
    assert check_store(world.memory).is_clean
    assert world.read() == sorted({*before, 100, 101, 102, 103}, key=lambda number: (number >= 100, number))


def test_a_round_in_which_nothing_is_due_costs_a_few_requests_and_no_write(world: World, store: Store) -> None:
    send(store, 0, 9)
    with store.producer("loader") as producer, producer.transaction():
        producer.send("orders", [{"id": 10, "name": "n"}], partition=1)
    maintainer = Maintainer(world.open().runtime, EAGER)
    while not maintainer.run().is_idle:
        pass
    with world.counting.counting() as cost:
        report = maintainer.run()
    assert report.is_idle
    assert report.partitions == 3
    # The round lists the root and the two internal topics, and asks for a slot of each non-empty partition.
    assert (cost.list, cost.get, cost.total) == (3, 3, 6)
    world.clock.advance_ms(30_000)
    with world.counting.counting() as cost:
        maintainer.run()
    # After some time it also reads the descriptor, and the last record of each partition, in case the log was put back.
    assert (cost.list, cost.get, cost.total) == (3, 7, 10)


@pytest.mark.parametrize("policy", ["delete", "compact,delete"])
def test_what_is_too_old_is_not_written_once_more(world: World, store: Store, policy: str) -> None:
    """Retention runs first. Otherwise a merge or a compaction would copy rows that the same round removes."""
    limits = {"segment.batches": 2, "retention.ms": 10_000, "min.cleanable.dirty.ratio": 0}
    store.alter_topic("orders", config={"key.columns": "id", "cleanup.policy": policy, **limits})
    send(store, 0, 8)
    world.clock.advance_ms(11_000)
    send(store, 8, 6)
    maintainer = Maintainer(world.open().runtime, EAGER)
    report = maintainer.run()
    assert not report.failures
    assert done(report, "retention")["retired_rows"] == 8
    copying = "merge" if policy == "delete" else "compact"
    written = [each.text for step in report.steps if step.step == copying for each in step.done]
    assert re.search("into 1 file" if policy == "delete" else "compacted 6 rows, .* into 6 rows", written[0]), written
    assert world.read() == list(range(8, 14))
    assert maintainer.run().is_idle


@pytest.mark.parametrize(
    "skip", [frozenset({"merge"}), frozenset({"merge", "retention"}), frozenset({"merge", "compact"})]
)
def test_a_compaction_makes_room_before_rows_go_by_size(world: World, store: Store, skip: frozenset[str]) -> None:
    """Otherwise `retention.bytes` would remove the latest rows of keys that fit after older rows of others are
    removed."""
    send(store, 0, 1)
    store.create_topic("keyed", ORDERS, config={"segment.batches": 2, "key.columns": "id", "inline.max.bytes": 0})
    with store.producer() as producer:
        for number in [0, *[1] * 9]:
            producer.send("keyed", [{"id": number, "name": str(number)}]).result()
    size = max(len(world.memory.get(f"keyed/0/rows/{name}") or b"") for name in world.memory.list("keyed/0/rows/"))
    store.alter_topic(
        "keyed",
        config={"cleanup.policy": "compact,delete", "retention.bytes": 6 * size, "min.cleanable.dirty.ratio": 0},
    )
    maintainer = Maintainer(world.open().runtime, MaintainPolicy(skip=skip))
    assert not maintainer.run().failures
    # There are ten files of one size. A limit of six removes the first four; after compaction, only four are left.
    assert (0 in world.read("keyed")) == ("compact" not in skip)
    store.alter_topic("keyed", config={"retention.bytes": 0})
    report = Maintainer(world.open().runtime, MaintainPolicy(skip=skip)).run()
    assert not report.failures
    assert (0 in world.read("keyed")) == ("retention" in skip)
    assert maintainer.run().failures == 0


def test_keys_are_compacted_and_old_rows_go_as_their_topics_say(world: World, store: Store) -> None:
    store.alter_topic("orders", config={"key.columns": "id", "cleanup.policy": "compact"})
    store.create_topic("old", ORDERS, config={"segment.batches": 2, "retention.ms": 1000})
    with store.producer() as producer:
        for number in range(9):
            for topic in ("orders", "old"):
                producer.send(topic, [{"id": number % 3, "name": str(number)}], partition=0).result()
    world.clock.advance_ms(10_000)
    maintainer = Maintainer(world.open().runtime)
    report = maintainer.run()
    assert not report.failures
    assert done(report, "compact")["superseded_rows"] >= 5
    assert done(report, "retention")["retired_rows"] == 8
    assert world.read(column="name")[-4:] == ["5", "6", "7", "8"]
    assert world.read("old", column="name") == ["8"]
    assert {row.step.job for row in read_history(store.runtime)} == {"compact", "retention"}
    assert maintainer.run().is_idle
    with world.counting.counting() as cost:
        assert maintainer.run().is_idle
    # Two topics have three partitions with a folder each. The round asks for nothing but slots.
    assert (cost.list, cost.get, cost.total) == (3, 3, 6)
    world.clock.advance_ms(400_000)
    assert maintainer.run().is_idle
    assert check_store(world.memory).is_clean


def test_what_is_left_is_said_with_the_reason(world: World, store: Store) -> None:
    send(store, 0, 9)
    hang(store, "working", timeout_ms=60_000)
    report = Maintainer(world.open().runtime).run()
    left = {action.text for step in report.steps for action in step.left}
    assert any(
        re.match(r"the transaction of 'working' is open for .*, within its time-out of 1 min$", text) for text in left
    )
    assert "4 sealed segments will be merged when there are 10 (`txlog merge --execute` does it now)" in left
    assert report.is_idle


def test_groups_are_forgotten_only_where_that_was_asked_for(world: World, store: Store) -> None:
    send(store, 0, 1)
    for group in ("idle", "late"):
        with store.consumer("orders", group_id=group, enable_auto_commit=False) as consumer:
            consumer.commit({TopicPartition("orders", 0): 1})
        world.clock.advance_ms(DAY_MS)
    member = world.open().consumer(group_id="member", enable_auto_commit=False)
    member.subscribe(["orders"], on_lost=lambda _: None)
    member.poll(0)
    world.clock.advance_ms(10_000)
    groups = store.admin().list_groups
    Maintainer(world.open().runtime).run()
    assert {group.group for group in groups()} == {"idle", "late", "member"}
    policy = MaintainPolicy(offsets_retention_ms=DAY_MS + 60_000)
    assert done(Maintainer(world.open().runtime, policy).run(), "groups") == {"forgotten_groups": 1}
    assert {group.group for group in groups()} == {"late", "member"}
    world.clock.advance_ms(30 * DAY_MS)
    member.poll(0)
    Maintainer(world.open().runtime, policy).run()
    assert {group.group for group in groups()} == {"member"}
    # A member whose session is over is dead, and keeps no group.
    world.clock.advance_ms(30 * DAY_MS)
    Maintainer(world.open().runtime, policy).run()
    assert not groups()
    member.close()


def test_an_interrupted_deletion_is_finished(world: World, store: Store) -> None:
    send(store, 0, 3)
    outage, opened = world.outage()
    outage.pattern = r"put_if_absent orders/1/"
    with pytest.raises(Exception, match="fails"):
        opened.delete_topic("orders")
    report = Maintainer(world.open().runtime).run()
    assert done(report, "deletions") == {"ended_logs": 1}
    assert Maintainer(world.open().runtime).run().is_idle
    assert check_store(world.memory).is_clean


def test_a_deletion_that_had_only_told_the_writers_is_finished(world: World, store: Store) -> None:
    send(store, 0, 3)
    outage, opened = world.outage(max_block_ms=300)
    outage.pattern = r"put_if_absent orders/topic.*2\.json"
    with pytest.raises(TxlogTimeoutError, match=r"being deleted \(version 1 .*repeat the same call"):
        opened.delete_topic("orders")
    assert len(world.read()) == 3
    report = Maintainer(world.open().runtime).run()
    (step,) = (each for each in report.steps if each.step == "deletions")
    assert [each.text for each in step.done] == ["deleted the topic 'orders', whose deletion had begun"]
    assert Maintainer(world.open().runtime).run().is_idle
    assert check_store(world.memory).is_clean


def test_markers_in_a_deleted_topic_are_merged_and_no_later_round_fails(world: World, store: Store) -> None:
    """Transactions that are open at the deletion end later.

    Their markers fill segments of a topic that has no schema any more.
    """
    store.create_topic(
        "gone", ORDERS, config={"segment.batches": 1, "cleanup.policy": "compact,delete", "key.columns": "id"}
    )
    producers = [store.producer(f"x{number}") for number in range(4)]
    for producer in producers:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("gone", [{"id": 1, "name": "x"}]).result()
    store.delete_topic("gone")
    for number, producer in enumerate(producers):
        if number % 2:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
    maintainer = Maintainer(world.open().runtime, MaintainPolicy(vacuum_interval_ms=0, merge_min_segments=2))
    rounds = []
    for _ in range(6):
        rounds.append(maintainer.run())
        world.clock.advance_ms(9 * DAY_MS)
        assert check_store(world.memory).is_clean
    assert [report.failures for report in rounds] == [0] * 6
    assert done(rounds[0], "merge")["merged_segments"] == 3
    # Only the end of a log is left, and later rounds do not report it again.
    assert rounds[-1].is_idle
    assert not [each for step in rounds[-1].steps for each in step.left]
    assert len(world.memory.list("gone/0/")) <= 8


@pytest.mark.parametrize("anew", [False, True])
def test_a_topic_that_is_deleted_in_a_round_is_left_alone(
    world: World, store: Store, monkeypatch: pytest.MonkeyPatch, anew: bool
) -> None:
    """... or created again with other columns, which a merge of the old rows must not look for in their files."""
    send(store, 0, 9)
    original = merge.copy_rows

    def late(*args: Any) -> Any:
        monkeypatch.undo()
        store.delete_topic("orders")
        if anew:
            store.create_topic("orders", pa.schema([pa.field("other", pa.string(), nullable=False)]), 2)
        # An executor of Spark also reads the topic's metadata itself.
        args[0].forget_topic("orders")
        return original(*args)

    monkeypatch.setattr(merge, "copy_rows", late)
    maintainer = Maintainer(world.open().runtime, EAGER)
    report = maintainer.run()
    assert not report.failures
    assert [each.text for step in report.steps if step.step == "merge" for each in step.left if "deleted" in each.text]
    world.clock.advance_ms(2 * DAY_MS)
    assert not maintainer.run().failures
    assert check_store(world.memory).is_clean


def test_segments_that_their_writers_could_not_seal_are_sealed(world: World, store: Store) -> None:
    outage, opened = world.outage()
    outage.pattern = r"put_if_absent .*\.index"
    send(opened, 0, 9)
    report = Maintainer(world.open().runtime, MaintainPolicy(skip=frozenset({"merge"}))).run()
    assert done(report, "seal") == {"sealed_segments": 4}
    assert len([name for name in world.memory.list("orders/0/") if name.endswith(".index")]) == 4


def test_one_damaged_partition_stops_no_other(world: World, store: Store) -> None:
    send(store, 0, 9)
    send(store, 100, 9, partition=1)
    overwrite(world.memory, "orders/0/00000000000000000008.batch", b"damaged\n")
    policy = MaintainPolicy(merge_min_segments=2, skip=frozenset({"vacuum"}))
    maintainer = Maintainer(world.open().runtime, policy)
    report = maintainer.run()
    assert report.failures == 1
    (failed,) = [action for step in report.steps for action in step.failed]
    assert (failed.topic, failed.partition) == ("orders", 0)
    assert "00000000000000000008.batch" in failed.text
    assert isinstance(maintainer.first_error, CorruptRecordError)
    assert done(report, "merge")["merged_segments"] == 4


def test_a_damaged_part_of_the_table_stops_no_other(world: World, store: Store) -> None:
    for name in ("one", "two", "three"):
        hang(store, name)
    world.clock.advance_ms(5_000)
    number = next(name for name in world.memory.list("__transaction_state/"))
    (slot, *_) = world.memory.list(f"__transaction_state/{number}")
    overwrite(world.memory, f"__transaction_state/{number}{slot}", b"damaged\n")
    report = Maintainer(world.open().runtime, MaintainPolicy(skip=frozenset({"vacuum"}))).run()
    assert done(report, "transactions") == {"aborted": 2}
    assert report.failures


def test_a_topic_that_cannot_be_read_stops_no_other(world: World, store: Store) -> None:
    store.create_topic("bad", ORDERS)
    send(store, 0, 9)
    path = "bad/topic.00000000000000000000.json"
    overwrite(world.memory, path, b"damaged\n")
    report = Maintainer(world.open().runtime, EAGER).run()
    assert {action.text.partition(":")[0] for step in report.steps for action in step.failed} == {path}
    assert done(report, "merge")["merged_segments"] == 4


def test_a_store_that_is_gone_for_a_while_fails_steps_and_no_round(world: World, store: Store) -> None:
    send(store, 0, 9)
    outage, opened = world.outage()
    maintainer = Maintainer(opened.runtime, EAGER)
    maintainer.runtime.ensure_writable()
    outage.pattern = "list"
    report = maintainer.run()
    assert report.failures >= 2
    assert report.is_whole
    outage.pattern = None
    assert not maintainer.run().failures


def test_rounds_at_once_are_harmless(world: World, store: Store) -> None:
    send(store, 0, 21)
    hang(store, "gone")
    world.clock.advance_ms(5_000)
    first, second = (Maintainer(world.open().runtime, EAGER) for _ in range(2))
    before = world.read()
    # The second has looked at everything before the first does anything.
    second.session.fresh_views(list(second.runtime.partitions("orders")), "looking")
    reports = [first.run(), second.run(), first.run(), second.run()]
    assert not sum(report.failures for report in reports)
    assert reports[-1].is_idle
    assert world.read() == before
    assert check_store(world.memory).is_clean


def test_a_round_that_is_asked_to_stop_ends_after_its_step(world: World, store: Store) -> None:
    send(store, 0, 9)
    answers = iter([False] * 3)
    report = Maintainer(world.open().runtime, EAGER, should_stop=lambda: next(answers, True)).run()
    assert not report.is_whole
    assert len(report.steps) < len(STEPS)
    whole = Maintainer(world.open().runtime, EAGER).run()
    assert whole.is_whole


def test_steps_can_be_left_out(world: World, store: Store) -> None:
    report = Maintainer(world.open().runtime, MaintainPolicy(skip=frozenset({"merge", "groups"}))).run()
    assert {each.step for each in report.steps} == set(STEPS) - {"merge", "groups"}
    with pytest.raises(InvalidRequestError, match="'sweep' is not a step of maintenance"):
        MaintainPolicy(skip=frozenset({"sweep"}))


def test_an_empty_place_is_no_store(world: World) -> None:
    with pytest.raises(NotAStoreError):
        Maintainer(world.open().runtime).run()


def test_metrics_are_prometheus_text(world: World, store: Store, tmp_path: Path) -> None:
    send(store, 0, 9)
    registry = Registry()
    metrics = RoundMetrics(registry)
    maintainer = Maintainer(world.open().runtime, EAGER)
    for _ in range(2):
        metrics.add(maintainer.run())
    write_file(registry, tmp_path / "txlog.prom")
    assert [each.name for each in tmp_path.iterdir()] == ["txlog.prom"]
    text = (tmp_path / "txlog.prom").read_text()
    samples = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert samples["txlog_maintain_rounds_total"] == "2.0"
    assert samples["txlog_maintain_idle_rounds_total"] == "1.0"
    assert samples['txlog_maintain_work_total{step="merge",what="merged_segments"}'] == "4.0"
    assert samples["txlog_maintain_partitions"] == "2.0"
    assert samples['txlog_maintain_actions_total{result="failed",step="vacuum"}'] == "0.0"
    with Server(registry, 0, "127.0.0.1") as server:
        with urllib.request.urlopen(server.url, timeout=10) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=")
            assert answer.read().decode() == text
        with pytest.raises(InvalidRequestError, match=r"metrics cannot be served at 127\.0\.0\.1"):
            Server(registry, server.port, "127.0.0.1")
    with pytest.raises(InvalidRequestError, match="cannot be written"):
        write_file(registry, tmp_path / "nowhere" / "x.prom")


def test_an_index_that_a_merge_finds_damaged_is_told(world: World, store: Store) -> None:
    send(store, 0, 9)
    path = next(f"orders/0/{name}" for name in world.memory.list("orders/0/") if name.endswith(".index"))
    overwrite(world.memory, path, b"damaged\n")
    policy = MaintainPolicy(merge_min_segments=2, skip=frozenset({"vacuum"}))
    report = Maintainer(world.open().runtime, policy).run()
    assert report.failures == 1
    (row,) = read_history(store.runtime)
    assert (row.step.outcome, row.step.job) == ("failed", "merge")
    assert path in row.step.message


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"cleanup.policy": "compact", "key.columns": "name"}, {"cleanup.policy": "delete"}),
        ({"retention.bytes": 1}, {"retention.bytes": -1}),
        ({"retention.ms": 1}, None),
    ],
)
def test_rows_go_by_the_settings_of_this_moment(
    world: World, before: dict[str, Any], after: dict[str, Any] | None
) -> None:
    """After compaction or retention of a topic is turned off, a daemon with the old settings removes no row of it
    (W45)."""
    store = world.open()
    store.create_topic("orders", ORDERS, config={"segment.batches": 2, **before})
    maintainer = Maintainer(world.open().runtime, MaintainPolicy(skip=frozenset({"vacuum"})))
    maintainer.run()
    if after is None:
        store.delete_topic("orders")
        store.create_topic("orders", ORDERS, config={"segment.batches": 2})
    else:
        store.alter_topic("orders", config=after)
    send(store, 0, 7)
    world.clock.advance_ms(10)
    assert not maintainer.run().failures
    assert world.read() == list(range(7))


def test_the_partition_of_a_group_of_idle_members_stops_growing(world: World, store: Store) -> None:
    """Heartbeats stay for a grace after their segment was sealed, and its index for a second one."""
    beat_ms, day = 300_000, 288
    settings: dict[str, Any] = {
        "heartbeat_interval_ms": beat_ms,
        "session_timeout_ms": 4 * beat_ms,
        "max_poll_interval_ms": DAY_MS,
    }
    members: list[Any] = [world.open().consumer(group_id="g", client_id=name, **settings) for name in "ab"]
    for member in members:
        member.subscribe("orders")
        member._membership._stop.set()  # its thread goes by real time
    maintainer = Maintainer(world.open().runtime)
    found = []
    for number in range(1, 5 * day + 1):
        world.clock.advance_ms(beat_ms)
        for member in members:
            member.poll(0)
            member._membership.tick()
        if number % (day // 24) == 0:
            maintainer.run()
        if number % day == 0:
            found.append(sum(path.startswith("__consumer_offsets/") for path in world.memory._objects))
    records, segments = 2 * day, 2 * day // 16
    assert found[0] >= records
    assert max(found[2:]) <= records + 4 * segments + records // 24 + 48
    assert max(found[2:]) - min(found[2:]) <= 8
    assert all(member.assignment() for member in members)
