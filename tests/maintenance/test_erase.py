"""Rows that are erased: gone for every reader, and all others at their offsets; beside everything, and after a kill."""

from __future__ import annotations

import datetime
import random
from typing import Any

import pyarrow as pa
import pytest

from tests.client.world import World, rows_of, tp
from tests.effort import cases
from tests.publication.lives import publish
from txlog.client import reading
from txlog.client.session.session import only_views
from txlog.client.store import Store
from txlog.core.cleaning import FileLayout, MergePolicy
from txlog.core.names import ERASURES_FOLDER
from txlog.errors import InvalidRequestError, SchemaMismatchError, TxlogTimeoutError
from txlog.maintenance import erase as erasing
from txlog.maintenance.compact import compact_partition, compaction_policy
from txlog.maintenance.erase_check import Remains, find_remains
from txlog.maintenance.fsck import check_store
from txlog.maintenance.history import read_history
from txlog.maintenance.maintain import Maintainer
from txlog.maintenance.merge import Merged, merge_partition
from txlog.maintenance.vacuum import vacuum
from txlog.protocol import erase as protocol, publications
from txlog.protocol.expiry import append_nothing
from txlog.protocol.load import MAX_SLOTS_BY_NAME
from txlog.publication import delta
from txlog.testing.failing_store import Fault, SimulatedCrash

SCHEMA = pa.schema((pa.field("customer", pa.string()), pa.field("n", pa.int64())))
SMALL = {"segment.batches": 3, "inline.max.bytes": 4096}
DAY_MS = 86_400_000
ANN = "customer = 'ann'"
Row = tuple[int, int, str | None, int | None]


@pytest.fixture
def store(world: World) -> Store:
    opened = world.open()
    opened.create_topic("visits", SCHEMA, partitions=2, config=SMALL)
    return opened


def visit(store: Store, *customers: str | None, partition: int = 0, topic: str = "visits") -> None:
    with store.producer() as producer:
        for number, customer in enumerate(customers):
            producer.send(topic, [{"customer": customer, "n": number}], partition=partition).result()


def rows(world: World, topic: str = "visits", isolation: str = "read_committed") -> list[Row]:
    """Return (partition, offset, customer, n) of all rows, as another process reads them."""
    consumer = world.open().consumer(topic, isolation_level=isolation, auto_offset_reset="earliest")
    found = [(row["_partition"], row["_offset"], row["customer"], row["n"]) for row in rows_of(consumer)]
    consumer.close()
    return sorted(found)


def without(found: list[Row], customer: str = "ann") -> list[Row]:
    return [row for row in found if row[2] != customer]


def test_rows_leave_every_kind_of_place_and_offsets_stay(world: World, store: Store) -> None:
    """Sealed segments, inline records, files of batches, aborted rows, and the active segment."""
    visit(store, "ann", "bob", "ann", "carl", None, "ann", "bob")
    with store.producer("works") as producer:
        with producer.transaction():
            producer.send("visits", [{"customer": "ann", "n": number} for number in range(500)], partition=1)
            producer.send("visits", [{"customer": "dora", "n": 1}], partition=1)
        producer.begin_transaction()
        producer.send("visits", [{"customer": "ann", "n": 9}, {"customer": "emil", "n": 9}], partition=0)
        producer.flush()
        producer.abort_transaction()
    before = rows(world)
    group = store.consumer("visits", group_id="readers", auto_offset_reset="earliest")
    taken = sum(batch.num_rows for batch in group.iterate())
    group.commit()
    group.close()
    assert taken == len(before)
    found = store.admin().erase("visits", where=ANN)
    assert found == {tp("visits", 0): 3, tp("visits", 1): 500}
    assert rows(world) == without(before)
    assert all(row[2] != "ann" for row in rows(world, isolation="read_uncommitted"))
    assert world.memory.list(ERASURES_FOLDER) == []
    # A group goes on where it was, and a second erasure finds nothing.
    visit(store, "bob")
    group = world.open().consumer("visits", group_id="readers")
    assert [row["customer"] for row in rows_of(group)] == ["bob"]
    group.close()
    assert store.admin().erase("visits", where=ANN) == {}
    assert store.table("visits").count(ANN) == 0
    steps = [row.step for row in read_history(store.runtime) if row.step.job == "erase"]
    assert sum(step.rows_read - step.rows_written for step in steps) == 503
    assert not check_store(world.memory).damaged


def test_a_condition_is_three_valued_and_may_name_a_place(world: World, store: Store) -> None:
    visit(store, "ann", None, "bob", None)
    before = rows(world)
    store.admin().erase("visits", where="customer <> 'bob'")
    assert rows(world) == [row for row in before if row[2] in (None, "bob")]
    store.admin().erase("visits", where="customer is null and _offset = 1 and _partition = 0")
    assert [(row[1], row[2]) for row in rows(world)] == [(2, "bob"), (3, None)]


def test_decisions_that_carry_rows_go_without_later_ones(world: World, store: Store) -> None:
    """Small transactions ride in the records of the table of transactions, which are deleted once it is sealed."""
    with store.producer("works") as producer:
        for number in range(3):
            with producer.transaction():
                producer.send("visits", [{"customer": "ann", "n": number}], partition=1)
    with store.producer("files", inline_max_bytes=0) as producer, producer.transaction():
        producer.send("visits", [{"customer": "ann", "n": 9}], partition=1)
    session = reading.read_session(store.runtime)
    found = [each for each in find_remains(session, "visits", ANN) if each.path.startswith("__transaction_state/")]
    # One names a file, with the lowest and highest value.
    assert sorted(each.rows for each in found) == [0, 1, 1, 1]
    assert store.admin().erase("visits", where=ANN) == {tp("visits", 1): 4}
    for hours in (0, 25, 25):
        world.clock.advance_ms(hours * 3_600_000)
        opened = world.open().runtime
        assert not vacuum(opened, reading.read_session(opened), dry_run=False).failed
    assert find_remains(session, "visits", ANN) == ()
    with world.open().producer("works") as producer, producer.transaction():
        producer.send("visits", [{"customer": "bob", "n": 5}], partition=1)
    assert [row[2] for row in rows(world)] == ["bob"]


@pytest.mark.parametrize("transactions", range(10, 20))
def test_a_decision_in_a_snapshot_goes(world: World, transactions: int) -> None:
    """A segment of the table may be sealed between a decision and its end, and its snapshot then has the decision."""
    store = world.open()
    store.create_topic("visits", SCHEMA, partitions=2, config=SMALL)
    with store.producer("works", inline_max_bytes=0 if transactions % 2 else 4096) as producer:
        for number in range(transactions):
            with producer.transaction():
                producer.send("visits", [{"customer": "ann", "n": number}], partition=1)
    store.admin().erase("visits", where=ANN)
    for _ in range(3):
        world.clock.advance_ms(DAY_MS + 1000)
        opened = world.open().runtime
        assert not vacuum(opened, reading.read_session(opened), dry_run=False).failed
    assert find_remains(reading.read_session(store.runtime), "visits", ANN) == ()


def test_a_tombstone_goes_only_with_all_rows_of_its_key(world: World, store: Store) -> None:
    store.create_topic("people", SCHEMA, config={**SMALL, "key.columns": "customer"})
    for customer, number in (("ann", 1), ("bob", 2), ("ann", None), ("carl", None)):
        with store.producer() as producer:
            producer.send("people", [{"customer": customer, "n": number}]).result()
    session = reading.read_session(store.runtime)
    for where in (
        "n is null",
        "n is null or n > 5",
        "n is null and customer < 'x'",
        "customer = 'ann' and _offset = 2",
    ):
        assert erasing.count_matches(store.runtime, "people", where) == {}
        if "_offset" not in where:
            assert [each for each in find_remains(session, "people", where) if each.rows] == []
        assert store.admin().erase("people", where=where) == {}
        assert store.table("people").latest(["customer"]).read_all().to_pylist() == [{"customer": "bob"}]
    assert store.admin().erase("people", where="n = 1 or n is null") == {tp("people", 0): 1}
    assert store.admin().erase("people", where="customer in ('ann', 'carl')") == {tp("people", 0): 2}
    assert rows(world, "people") == [(0, 1, "bob", 2)]


@pytest.mark.parametrize("writes", [False, True])
def test_a_topic_that_was_created_again(world: World, store: Store, writes: bool) -> None:
    """Its segment that begins with the record of the deletion cannot be sealed before it has rows."""
    visit(store, "ann", "bob", "ann", "ann")
    store.delete_topic("visits")
    store.create_topic("visits", SCHEMA, partitions=2, config=SMALL)
    if writes:
        visit(store, "ann", "bob")
    assert store.admin().erase("visits", where=ANN, wait_ms=0) == ({tp("visits", 0): 1} if writes else {})
    assert [row[2] for row in rows(world)] == (["bob"] if writes else [])
    assert world.memory.list(ERASURES_FOLDER) == []


def test_one_part_of_a_condition_may_take_tombstones(world: World, store: Store) -> None:
    """A part on the key alone takes all rows of the key. A row without a key is never a tombstone."""
    store.create_topic("people", SCHEMA, config={**SMALL, "key.columns": "customer"})
    for customer, number in (("ann", 1), ("bob", 2), ("ann", None), ("bob", None), (None, None)):
        with store.producer() as producer:
            producer.send("people", [{"customer": customer, "n": number}]).result()
    assert store.admin().erase("people", where="customer = 'ann' or n = 7 or n is null") == {tp("people", 0): 3}
    assert rows(world, "people") == [(0, 1, "bob", 2), (0, 3, "bob", None)]


def test_the_key_of_the_process_counts(world: World, store: Store) -> None:
    store.create_topic("people", SCHEMA, config=SMALL)
    own = world.open(key_columns="customer")
    for number in (1, None):
        with own.producer() as producer:
            producer.send("people", [{"customer": "ann", "n": number}]).result()
    assert own.admin().erase("people", where="n is null") == {}
    assert own.table("people").latest(["n"]).read_all().to_pylist() == []
    assert store.admin().erase("people", where="n is null") == {tp("people", 0): 1}


def test_a_tombstone_of_kafkas_shape_stays_also_for_a_condition_on_its_time(world: World, store: Store) -> None:
    store.create_topic("records")
    with store.producer() as producer:
        for value, day in ((b"old", 1), (None, 2)):
            at = datetime.datetime(2024, 1, day, tzinfo=datetime.UTC)
            producer.send("records", [{"key": b"ann", "value": value, "timestamp": at}]).result()
    assert store.admin().erase("records", where="timestamp > TIMESTAMP '2024-01-01T12:00:00Z'") == {}
    assert store.admin().erase("records", where="key is not null and _partition = 0") == {tp("records", 0): 2}


def test_verify_does_not_take_positions_for_rows(world: World, store: Store) -> None:
    """They have no column of the topic, and a null would match."""
    pytest.importorskip("pyiceberg")
    config = {"publish.formats": "iceberg", "publish.max.lag.ms": 0, "segment.batches": 9}
    store.create_topic("shown", SCHEMA, config=config)
    with store.producer(inline_max_bytes=0) as producer:
        producer.send("shown", [{"customer": "ann", "n": number} for number in range(5)]).result()
    for _ in range(2):
        world.clock.advance_ms(10)
        publish(world.open(), "shown")
        store.admin().delete_records("shown", 0, 2)
    assert [path for path in world.memory.list("shown/metadata/") if path.startswith("d")]
    assert find_remains(reading.read_session(store.runtime), "shown", "customer is null") == ()


def test_rows_count_whose_run_was_followed_by_one_that_came_too_late(
    world: World, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runs of a partition with keys are one task."""
    config = {"key.columns": "customer", "segment.batches": 1, "inline.max.bytes": 0}
    store.create_topic("people", SCHEMA, config=config)
    visit(store, "ann", "bob", "bob", "ann", "carl", "carl", "ann", "bob", topic="people")
    made = 0

    def publish(given: type[erasing.Erased], *run: Any, **more: Any) -> Any:
        nonlocal made
        made += 1
        if made == 2:
            other = world.open().runtime
            merge_partition(other, reading.read_session(other), tp("people", 0), MergePolicy(target_bytes=2**30))
        return Merged.publish_run.__func__(given, *run, **more)  # type: ignore[attr-defined]

    monkeypatch.setattr(erasing.Erased, "publish_run", classmethod(publish))
    assert store.admin().erase("people", where=ANN) == {tp("people", 0): 3}
    assert made > 2
    assert store.table("people").count(ANN) == 0


def test_rows_that_are_written_later_stay(world: World, store: Store) -> None:
    """Also in a segment that the erasure rewrites."""
    visit(store, "ann", "bob")
    session = reading.read_session(store.runtime)
    begun = erasing.begin_erasure(session, "visits", ANN)
    visit(store, "ann", "carl", "ann", "dora")
    for _, outcome in erasing.finish_erasure(session, begun, wait_ms=0):
        assert not isinstance(outcome, Exception)
    assert [(row[1], row[2]) for row in rows(world)] == [
        (1, "bob"), (2, "ann"), (3, "carl"), (4, "ann"), (5, "dora"),
    ]  # fmt: skip


def test_a_decided_transaction_counts_and_an_open_one_is_waited_for(world: World, store: Store) -> None:
    with store.producer("hangs") as hangs:
        hangs.begin_transaction()
        hangs.send("visits", [{"customer": "ann", "n": 1}], partition=0)
        hangs.flush()
        visit(store, "ann", "bob")
        with pytest.raises(
            TxlogTimeoutError, match=r"visits-0: the offsets from 0 to 2 wait until the transaction at offset"
        ):
            store.admin().erase("visits", where=ANN, wait_ms=1000)
        assert rows(world) == [], "nobody reads behind the open transaction"
        report = Maintainer(store.runtime).run()
        assert any("wait until the transaction at offset" in each.text for step in report.steps for each in step.left)
        hangs.commit_transaction()
    Maintainer(store.runtime).run()
    assert [row[2] for row in rows(world)] == ["bob"]
    assert world.memory.list(ERASURES_FOLDER) == []


def test_readers_that_were_open_before_do_not_see_the_rows(world: World, store: Store) -> None:
    """R23: a table, a snapshot taken later, and a consumer that seeks back, of another process."""
    visit(store, "ann", "bob", "ann", "carl", "ann")
    other = world.open()
    table, consumer = other.table("visits"), other.consumer("visits", auto_offset_reset="earliest")
    assert table.count(ANN) == 3
    assert len(rows_of(consumer)) == 5
    store.admin().erase("visits", where=ANN)
    with world.counting.counting() as cost:
        assert table.count(ANN) == 0
    assert cost.list == 1, "the partition with erased rows is listed again, once"
    assert table.count() == 2
    assert other.snapshot("visits").table("visits").count(ANN) == 0
    consumer.seek(tp("visits", 0), 0)
    assert [row["customer"] for row in rows_of(consumer)] == ["bob", "carl"]
    consumer.close()


def test_a_reader_that_a_list_took_past_the_last_record_of_an_erasure_lists_again(world: World, store: Store) -> None:
    """R23: that record lies in a segment that the reader never saw as a tail."""
    visit(store, "ann", "bob", "ann", "carl")
    other = world.open()
    table, consumer = other.table("visits"), other.consumer("visits", auto_offset_reset="earliest")
    assert (table.count(ANN), len(rows_of(consumer))) == (2, 4)
    visit(store, *["dora"] * 2 * MAX_SLOTS_BY_NAME)
    store.admin().erase("visits", where=ANN)
    visit(store, *["emil"] * 9)
    assert (table.count(ANN), table.count()) == (0, 2 + 2 * MAX_SLOTS_BY_NAME + 9)
    consumer.seek(tp("visits", 0), 0)
    assert [row["customer"] for row in rows_of(consumer)][:3] == ["bob", "carl", "dora"]
    consumer.close()


def test_columns_that_change_between_the_beginning_and_the_end(world: World, store: Store) -> None:
    visit(store, "ann", "bob")
    session = reading.read_session(store.runtime)
    begun = erasing.begin_erasure(session, "visits", ANN)
    store.alter_topic("visits", rename_columns={"customer": "n", "n": "customer"})
    store.alter_topic("visits", add_columns=pa.schema([("more", pa.string())]))
    assert [outcome for _, outcome in erasing.finish_erasure(session, begun, wait_ms=0) if outcome is not None]
    assert store.table("visits").to_arrow(["n", "customer"]).to_pylist() == [{"n": "bob", "customer": 1}]
    begun = erasing.begin_erasure(session, "visits", "n = 'bob'")
    store.alter_topic("visits", drop_columns=["n"])
    ((where, error),) = erasing.finish_erasure(session, begun, wait_ms=0)
    assert where == tp("visits", 0)
    assert isinstance(error, SchemaMismatchError)
    # The condition may name a person, and the history keeps this message.
    assert error.problem.endswith("cannot end: the column 'n' was dropped")
    assert error.hint == f"`txlog erasures cancel {begun.erasure_id}` cancels it"


def test_erasures_that_cannot_end_hold_up_nothing_else(world: World, store: Store) -> None:
    """One lacks its column, one waits for an open transaction, and the third one ends."""
    store.create_topic("others", SCHEMA, config=SMALL)
    visit(store, "ann", "bob", topic="others")
    session, admin = reading.read_session(store.runtime), store.admin()
    with store.producer("hangs") as hangs:
        hangs.begin_transaction()
        hangs.send("visits", [{"customer": "ann", "n": 1}], partition=0)
        hangs.flush()
        begun = [
            erasing.begin_erasure(session, topic, where)
            for topic, where in (("visits", "n = 1"), ("visits", ANN), ("others", ANN))
        ]
        store.alter_topic("visits", drop_columns=["n"])
        report = Maintainer(store.runtime).run()
        (step,) = (each for each in report.steps if each.step == "erase")
        assert ["cannot end" in each.text for each in step.failed] == [True]
        assert ["wait until the transaction at offset" in each.text for each in step.left] == [True]
        assert report.is_whole
        assert report.failures == 1
        assert [row[2] for row in rows(world, "others")] == ["bob"]
        assert admin.list_erasures() == tuple(begun[:2])
        # The next erasure of the topic tries them, too.
        tried = [outcome for _, outcome in erasing.erase(session, "visits", "customer = 'nobody'", wait_ms=0)]
        kinds = [type(outcome) for outcome in tried if outcome is not None]
        assert kinds == [TxlogTimeoutError, SchemaMismatchError, TxlogTimeoutError]
        for each in admin.list_erasures():
            admin.cancel_erasure(each.erasure_id)
        for wrong in (begun[0].erasure_id, "../visits/topic.00000000000000000000"):
            with pytest.raises(InvalidRequestError, match="has ended, or never began"):
                admin.cancel_erasure(wrong)
        hangs.commit_transaction()
    assert not Maintainer(store.runtime).run().failures
    assert store.table("visits").count(ANN) == 1


def test_an_erasure_whose_outcome_was_unknown_has_the_ends_of_its_first_try(
    world: World, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    visit(store, "ann", "bob")
    tries: list[int] = []
    original = protocol.begin

    def begin(*given: Any) -> Any:
        if tries:
            visit(store, "ann")
        tries.append(len(tries))
        return (yield from original(*given))

    monkeypatch.setattr(protocol, "begin", begin)
    lost = Fault(action="lose_reply", moment="after", match="put_if_absent __erasures/")
    _, process = world.failing(lost, Fault(action="damage", match="get __erasures/", times=3))
    begun = erasing.begin_erasure(reading.read_session(process.runtime), "visits", ANN)
    assert len(tries) == 2
    assert store.admin().list_erasures() == (begun,)
    assert begun.ends == (2, 0)
    assert not Maintainer(store.runtime).run().failures
    assert [(row[1], row[2]) for row in rows(world)] == [(1, "bob"), (2, "ann")]


def test_a_sorted_run_is_searched_and_its_offsets_stay(world: World, store: Store) -> None:
    visit(store, "dora", "ann", "carl", "ann", "bob", "ann")
    before = rows(world)
    store.admin().seal("visits")
    session, layout = reading.read_session(store.runtime), FileLayout(sort=("customer",))
    policy = MergePolicy(target_bytes=2**30)
    assert merge_partition(store.runtime, session, tp("visits", 0), policy, layout=layout)[0].took_effect
    assert store.admin().erase("visits", where=ANN) == {tp("visits", 0): 3}
    assert rows(world) == without(before)


def test_a_session_that_lost_a_slot_to_an_erasure_lists_again(world: World, store: Store) -> None:
    """R23: it has met the last `expire` as the record that took its slot, not when it looked at the tail."""
    visit(store, "ann", "bob", "ann")
    place = tp("visits", 0)
    session, other = (reading.read_session(world.open().runtime) for _ in range(2))
    begun = erasing.begin_erasure(other, "visits", ANN)
    other.call("sealing", lambda ctx, views: protocol.seal_up_to(ctx, views, begun))
    session.fresh_views([place], "looking")
    assert [*erasing.finish_erasure(other, begun, wait_ms=0)][-1] == (tp("visits", 1), None)
    session.call("appending", lambda ctx, views: only_views(append_nothing(ctx, views, place, ctx.roll_of(place))))
    assert [each.record.kind for each in session.views[place].tail] == ["expire"] * 3
    plans = reading.plan_reads(session, {place: (0, None)})
    found = [
        row
        for task in reading.tasks(store.runtime, [*plans.values()])
        for row in rows_of(reading.read_task(task, world.memory))
    ]
    assert [row["customer"] for row in found] == ["bob"]


def test_what_is_refused_writes_nothing(world: World, store: Store) -> None:
    visit(store, "ann")
    with world.counting.counting() as cost:
        for where, words in (
            ("customer", "a boolean is needed here"),
            ("nobody = 1", "no column 'nobody'"),
            ("n +", "expected a condition"),
        ):
            with pytest.raises((InvalidRequestError, SchemaMismatchError), match=words):
                store.admin().erase("visits", where=where)
        with pytest.raises(InvalidRequestError, match="is an internal topic, from which no row can be erased"):
            store.admin().erase("__transaction_state", where="a = 1")
    assert (cost.put_if_absent, cost.write_file, cost.delete) == (0, 0, 0)


@pytest.mark.parametrize("seed", cases(range(6)))
def test_random_lives_beside_merges_and_compactions(world: World, seed: int) -> None:
    """A model knows which rows are true. After each step all rows of it are there, at their offsets, and no others."""
    dice = random.Random(seed)
    store = world.open()
    config: dict[str, Any] = {
        **SMALL,
        "segment.batches": dice.choice([1, 2, 5]),
        "inline.max.bytes": dice.choice([0, 4096]),
    }
    keyed = seed % 2 == 1
    if keyed:
        config.update({"key.columns": "n", "cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0})
    store.create_topic("visits", SCHEMA, config=config)
    model: list[Row] = []
    session = reading.read_session(store.runtime)

    def write() -> None:
        customers = [dice.choice(["ann", "bob", "carl", None]) for _ in range(dice.choice([1, 4, 30]))]
        made = [{"customer": each, "n": dice.randrange(10)} for each in customers]
        with store.producer(dice.choice([None, "works"])) as producer:
            if producer.transactional_id is None:
                producer.send("visits", made).result()
                return
            producer.begin_transaction()
            producer.send("visits", made)
            if dice.random() < 0.3:
                producer.flush()
                producer.abort_transaction()
            else:
                producer.commit_transaction()

    def erase() -> None:
        customer = dice.choice(["ann", "bob", "carl"])
        store.admin().erase("visits", where=f"customer = '{customer}'")
        model[:] = without(model, customer)

    def merge() -> None:
        merge_partition(store.runtime, session, tp("visits", 0), MergePolicy(target_bytes=2**30))

    def compact() -> None:
        policy = compaction_policy(store.runtime, store.runtime.topic("visits"))
        if policy is not None:
            compact_partition(store.runtime, session, tp("visits", 0), policy)
            left = {row[1] for row in rows(world)}
            newest = {row[3]: row[1] for row in model}
            assert {row[1] for row in model if newest[row[3]] == row[1] and row[2] is not None} <= left
            model[:] = [row for row in model if row[1] in left]

    for _ in range(25):
        step = dice.choice([write, write, write, erase, merge, compact])
        seen = {row[1] for row in model}
        step()
        found = rows(world)
        if step is write:
            model += [row for row in found if row[1] > max(seen, default=-1)]
        assert found == model, step.__name__
    assert not check_store(world.memory).damaged


@pytest.mark.parametrize("at", cases(range(160)))
def test_a_kill_at_any_request_is_finished_by_maintain(world: World, at: int) -> None:
    """The erasure dies at its `at`-th request; a reader sees each row or not, and `maintain` finishes it."""
    store = world.open()
    store.create_topic("visits", SCHEMA, config=SMALL)
    visit(store, "ann", "bob", "ann", "carl", "ann", "bob", "ann")
    before = rows(world)
    try:
        _, process = world.failing(Fault(action="crash", moment="after" if at % 2 else "before", number=at // 2 + 1))
        process.admin().erase("visits", where=ANN)
        died = False
    except SimulatedCrash:
        died = True
    left = rows(world)
    assert without(left) == without(before)
    assert set(left) <= set(before)
    begun = world.memory.list(ERASURES_FOLDER)
    Maintainer(world.open().runtime).run()
    assert world.memory.list(ERASURES_FOLDER) == []
    if begun or not died:
        assert rows(world) == without(before)
    assert not check_store(world.memory).damaged


# -- the proof --------------------------------------------------------------------------------------------------------


def test_verify_finds_each_object_and_when_it_goes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commit records, files of batches, of segments and of runs, staged rows, copies, indexes, and tables' metadata.

    The metadata have statistics of files that vacuum has deleted.
    """
    monkeypatch.setattr(publications, "WHOLE_EVERY", 6)
    monkeypatch.setattr(delta, "CHECKPOINT_EVERY", 4)
    store = world.open()
    config = {**SMALL, "segment.batches": 2, "publish.formats": "delta,iceberg", "publish.max.lag.ms": 0}
    store.create_topic("visits", SCHEMA, config=config)
    visit(store, "ann", "bob", "ann")
    with store.producer("works") as producer:
        with producer.transaction():
            producer.send("visits", [{"customer": "ann", "n": number} for number in range(600)])
            producer.send("visits", [{"customer": "dora", "n": 1}])
        with producer.transaction():
            producer.send("visits", [{"customer": "ann", "n": 2}])
        producer.begin_transaction()
        producer.send("visits", [{"customer": "ann", "n": 9}])
        producer.flush()
        producer.abort_transaction()
    maintainer = Maintainer(store.runtime)
    assert not maintainer.run().failures
    session = reading.read_session(store.runtime)

    def remains() -> dict[str, Remains]:
        return {each.path: each for each in find_remains(session, "visits", ANN)}

    found = remains()
    kinds = {path.partition("/")[0] + path.rpartition(".")[2] for path in found}
    assert {"visitsparquet", "visitsbatch", "visitsindex", "visitsjson", "visitsavro"} <= kinds
    assert any(each.is_current for each in found.values())
    assert any(path.startswith("__transaction_state/") for path in found), "a staged row is in the decision"
    store.admin().erase("visits", where=ANN)
    assert any(each.is_current for each in remains().values()), "the published tables show them"
    assert not maintainer.run().failures
    found = remains()
    assert [path for path, each in found.items() if each.is_current] == []
    assert found, "the bytes go later"
    assert world.open().table("visits").count(ANN) == 0
    only_statistics = False
    for _ in range(12):
        world.clock.advance_ms(4 * DAY_MS)
        assert not maintainer.run().failures
        with store.producer("works") as producer, producer.transaction():
            producer.send("visits", [{"customer": "bob", "n": 1}])
        only_statistics = only_statistics or {each.rows for each in remains().values()} == {0}
    assert only_statistics, "the first versions of the Delta log, and the first publications"
    assert remains() == {}
    left = [
        path for path in world.memory._objects if path.endswith(".json") and b"ann" in (world.memory.get(path) or b"")
    ]
    assert left == []
    with pytest.raises(InvalidRequestError, match="_offset is not stored with each row"):
        find_remains(session, "visits", "_offset = 1")


def test_verify_judges_rows_that_are_older_than_a_column_by_its_default(world: World, store: Store) -> None:
    """Rows in a file of a sealed segment, in a commit record and in a decision, as a reader sees them."""
    visit(store, "ann", "bob", "carl", "ann")
    with store.producer("works") as producer, producer.transaction():
        producer.send("visits", [{"customer": "dora", "n": 4}], partition=1)
    added = pa.schema([("country", pa.string())])
    store.alter_topic("visits", add_columns=added, column_defaults={"country": "DE"})
    visit(store, "emil")
    assert store.table("visits").count("country = 'DE'") == 5
    session = reading.read_session(store.runtime)
    found = {each.path: each.rows for each in find_remains(session, "visits", "country = 'DE'") if each.rows}
    kinds = {(path.partition("/")[0], path.rpartition(".")[2]) for path in found}
    assert kinds == {("visits", "parquet"), ("visits", "batch"), ("__transaction_state", "batch")}
    assert sum(count for path, count in found.items() if path.endswith(".parquet")) == 3
    assert {each.rows for each in find_remains(session, "visits", "country is null") if each.rows} == {1}
    assert store.admin().erase("visits", where="country = 'DE'") == {tp("visits", 0): 4, tp("visits", 1): 1}
    assert not any(each.is_current for each in find_remains(session, "visits", "country = 'DE'"))
    assert store.table("visits").to_arrow(["customer"]).to_pylist() == [{"customer": "emil"}]
