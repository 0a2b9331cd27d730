"""Where does the hint of a message lead, and does who follows it lose or double a row?

Every hint of the shipped modules is in one of three tables, by the words with which it begins:

* `FOLLOWED`: a case below, which meets the message, does what the hint says, and names the rows that must be there.
* `ELSEWHERE`: a test in another file that does so.
* `NOT_FOLLOWED`: why no test does so.
"""

from __future__ import annotations

import ast
import datetime
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from conf.site.messages import CLASSES, PACKAGES, templates
from lab.invariants import check_store
from tests.client.world import ORDERS, World, orders, rows_of, tp
from txlog.client.staged import StagedTransaction
from txlog.client.store import Store
from txlog.client.transactions.staged_files import StagedFiles
from txlog.core.transactions import TxnVersion
from txlog.errors import OutcomeUnknownError, TxlogError, split_hint
from txlog.protocol.context import Context
from txlog.storage.conform import conform
from txlog.testing.failing_store import Fault

ROOT = Path(__file__).parent.parent
A = tp("orders", 0)

Hinted = Callable[[], AbstractContextManager[None]]
"""Makes a block in which the message is met."""
Case = Callable[[World, Store, Hinted], Iterable[int]]
"""Meets a message, follows its hint, and returns the ids that `orders` must have. The store has the empty topic."""

FOLLOWED: dict[str, Case] = {}


def follows(*hints: str) -> Callable[[Case], Case]:
    def add(case: Case) -> Case:
        FOLLOWED.update(dict.fromkeys(hints, case))
        return case

    return add


# -- producers ----------------------------------------------------------------------------------------------------


@follows("look whether the rows are there before you send them again")
def unknown_outcome(world: World, store: Store, hinted: Hinted) -> Iterable[int]:
    """The rows of the first send never arrive, and those of the second one have arrived."""
    lost = [Fault(action="lose_reply", match=r"put_if_absent orders/0/.*batch", times=Context().max_settles)]
    landed = [
        Fault(action="lose_reply", moment="after", match=r"put_if_absent orders/1/.*batch"),
        Fault(action="fail", match=r"(put_if_absent|get) orders/1/.*batch", number=2, times=10**6),
    ]
    # In the third one the store itself ends the tries, and its error advises to repeat the call.
    for number, (partition, faults, timeout_ms) in enumerate(((0, lost, 3000), (1, landed, 3000), (0, lost, 120_000))):
        _, other = world.failing(*faults)
        producer = other.producer(delivery_timeout_ms=timeout_ms)
        future = producer.send("orders", orders(number), partition=partition)
        with hinted():
            future.result(30)
        with pytest.raises(TxlogError):
            producer.close()
        with world.open().producer() as again:
            again.send("orders", orders(*({number} - set(world.read()))), partition=partition)
    return [0, 1, 2]


@follows("abort the transaction, and send all its rows anew")
def failed_send(world: World, store: Store, hinted: Hinted) -> Iterable[int]:
    outage, other = world.outage()
    with other.producer("loader", staged=False, delivery_timeout_ms=2000) as producer:
        producer.begin_transaction()
        producer.send("orders", orders(1), partition=0).result()
        outage.pattern = "put_if_absent orders/1/"
        failed = producer.send("orders", orders(2), partition=1)
        with hinted():
            failed.result(30)
        outage.pattern = None
        producer.abort_transaction()
        with producer.transaction():
            for number in (1, 2):
                producer.send("orders", orders(number), partition=number - 1)
    return [1, 2]


@follows("abort it, then start a new one, and send all its rows again")
def timed_out(world: World, store: Store, hinted: Hinted) -> Iterable[int]:
    with store.producer("loader", staged=False, transaction_timeout_ms=1000) as producer:
        producer.begin_transaction()
        producer.send("orders", orders(1), partition=0).result()
        world.clock.advance_ms(1002)
        assert world.open().admin().expire().aborted == ("loader",)

        with hinted():
            producer.send("orders", orders(2), partition=1).result()
        producer.abort_transaction()
        with producer.transaction():
            producer.send("orders", orders(1, 2), partition=0)
    return [1, 2]


@follows("close this producer; a new one starts afresh and knows no txn.version")
def forgotten_id(world: World, store: Store, hinted: Hinted) -> Iterable[int]:
    producer = store.producer("loader")
    producer.init_transactions()
    with producer.transaction(7):
        producer.send("orders", orders(1), partition=0)
    assert world.open().admin().expire_id("loader", force=True)
    with hinted(), producer.transaction(8):
        producer.send("orders", orders(2), partition=0)
    producer.close()
    # Version 7 is in the log, so the new one begins behind it.
    assert world.read() == [1]
    with world.open().producer("loader") as anew, anew.transaction(8):
        anew.send("orders", orders(2), partition=0)
    return [1, 2]


@follows("abort, begin one with that version, and send all rows again")
def dropped_as_repeated(world: World, store: Store, hinted: Hinted) -> Iterable[int]:
    with store.producer("loader") as producer:
        with producer.transaction(3):
            producer.send("orders", orders(1), partition=0)
        producer.begin_transaction(3)
        producer.send("orders", orders(2), partition=0)
        with hinted():
            producer.commit_transaction(version=4)
        producer.abort_transaction()
        with producer.transaction(4):
            producer.send("orders", orders(2), partition=0)
    return [1, 2]


@follows("write all topics in one transaction")
def one_version_of_two_topics(world: World, store: Store, hinted: Hinted) -> Iterable[int]:
    store.create_topic("audit", ORDERS)
    with store.producer("loader") as producer:
        with producer.transaction(7):
            producer.send("orders", orders(1), partition=0)
        producer.begin_transaction()
        producer.send("audit", orders(1))
        with hinted():
            producer.commit_transaction(version=7)
        producer.abort_transaction()
        with producer.transaction(8):
            producer.send("orders", orders(2), partition=0)
            producer.send("audit", orders(2))
    with store.producer("loader-audit") as own, own.transaction(7):
        own.send("audit", orders(1))
    assert sorted(world.read("audit")) == [1, 2]
    return [1, 2]


@follows("after a lost checkpoint let the query write only the rows that the log lacks")
def version_of_another_query(world: World, store: Store, hinted: Hinted) -> Iterable[int]:
    with store.producer("loader") as producer:
        with producer.transaction(TxnVersion(version=1, scope="lost")):
            producer.send("orders", orders(1, 2), partition=0)
        with hinted(), producer.transaction(TxnVersion(version=0, scope="new")):
            producer.send("orders", orders(1, 2, 3), partition=0)
    lacking = {1, 2, 3} - set(world.read())
    assert world.open().admin().expire_id("loader", force=True)
    with (
        world.open().producer("loader") as producer,
        producer.transaction(TxnVersion(version=0, scope="new")),
    ):
        producer.send("orders", orders(*lacking), partition=0)
    return [1, 2, 3]


@follows("abort the transaction, and send its rows again")
def columns_changed(world: World, store: Store, hinted: Hinted) -> Iterable[int]:
    with world.open().producer("loader", staged=True, inline_max_bytes=0, metadata_max_age_ms=10) as producer:
        producer.begin_transaction()
        producer.send("orders", orders(1), partition=0)
        producer.flush()
        store.alter_topic("orders", add_columns=pa.schema({"more": pa.int8()}))
        world.clock.advance_ms(11)
        second = producer.send("orders", orders(2), partition=0)
        with hinted():
            second.result()
        producer.abort_transaction()
        with producer.transaction():
            producer.send("orders", orders(1, 2), partition=0)
    return [1, 2]


@follows("abort the transaction, and write its rows again")
def columns_changed_under_staged_rows(world: World, store: Store, hinted: Hinted) -> Iterable[int]:
    txn = StagedTransaction.begin(store.runtime, "nightly")
    parts = staged(store, txn, 1)
    store.alter_topic("orders", add_columns=pa.schema({"more": pa.int8()}))
    with hinted():
        txn.commit([*parts, *staged(store, txn, 2)])
    txn.abort()
    txn.commit(staged(store, txn, 1, 2))
    return [1, 2]


@follows("write again")
def columns_changed_under_a_task(world: World, store: Store, hinted: Hinted) -> Iterable[int]:
    txn = StagedTransaction.begin(store.runtime, "nightly")
    files = StagedFiles(store.runtime, txn.txn)
    add(store, files, 1)
    store.alter_topic("orders", add_columns=pa.schema({"more": pa.int8()}))
    with hinted():
        add(store, files, 2)
    txn.commit(staged(store, txn, 1, 2))
    return [1, 2]


@follows("repeat that call, or call abort()")
def another_commit_after_one_in_doubt(world: World, store: Store, hinted: Hinted) -> Iterable[int]:
    outage, other = world.outage(max_block_ms=300)
    txn = StagedTransaction.begin(other.runtime, "nightly")
    first, second = staged(other, txn, 1), staged(other, txn, 2)
    outage.pattern = "__transaction_state"
    with pytest.raises(OutcomeUnknownError):
        txn.commit(first)
    outage.pattern = None
    with hinted():
        txn.commit(second)
    txn.commit(first)
    txn.commit(staged(other, txn, 2))
    return [1, 2]


@follows("call begin_transaction() first", "commit or abort it first")
def wrong_order(world: World, store: Store, hinted: Hinted) -> Iterable[int]:
    with store.producer("loader") as producer:
        with hinted():
            producer.send("orders", orders(1), partition=0)
        producer.begin_transaction()
        producer.send("orders", orders(1), partition=0)
        with hinted():
            producer.begin_transaction()
        producer.commit_transaction()
    return [1]


@follows("version=")
def version_as_text(world: World, store: Store, hinted: Hinted) -> Iterable[int]:
    with store.producer("loader") as producer:
        with hinted():
            producer.begin_transaction("7")  # type: ignore[arg-type]
        for _ in range(2):
            with producer.transaction(7):
                producer.send("orders", orders(1), partition=0)
    return [1]


# -- readers ------------------------------------------------------------------------------------------------------


@follows("choose an offset in that range (the end waits for the next row)")
def position_beyond_the_end(world: World, store: Store, hinted: Hinted) -> Iterable[int]:
    send(store, 1, 2)
    consumer = store.consumer(auto_offset_reset="none")
    consumer.assign([A])
    consumer.seek(A, 77)
    with hinted():
        consumer.poll(0)
    consumer.seek(A, 2)
    send(store, 3)
    assert [row["id"] for row in rows_of(consumer)] == [3]
    return [1, 2, 3]


@follows("choose an offset in that range, or set auto.offset.reset=earliest")
def position_below_the_start(world: World, store: Store, hinted: Hinted) -> Iterable[int]:
    send(store, 1, 2)
    send(store, 3, 4)
    store.admin().delete_records("orders", 0, 2)
    consumer = store.consumer(auto_offset_reset="none")
    consumer.assign([A])
    consumer.seek(A, 0)
    with hinted():
        consumer.poll(0)
    consumer.seek(A, 2)
    assert [row["id"] for row in rows_of(consumer)] == [3, 4]
    other = world.open().consumer(auto_offset_reset="earliest")
    other.assign([A])
    other.seek(A, 0)
    assert [row["id"] for row in rows_of(other)] == [3, 4]
    return [3, 4]


@follows("check the endpoint, the region and the network")
def store_that_does_not_answer(world: World, store: Store, hinted: Hinted) -> Iterable[int]:
    send(store, 1, 2)
    outage, other = world.outage()
    admin = other.admin(default_api_timeout_ms=3000)
    outage.pattern = r"list orders/\d"
    with hinted():
        admin.list_offsets("orders")
    outage.pattern = None
    assert admin.list_offsets("orders")[A].offset == 2
    return [1, 2]


@follows("call subscribe() to become a member, or name another group.id")
def commit_beside_members(world: World, store: Store, hinted: Hinted) -> Iterable[int]:
    send(store, 1, 2)
    settings: dict[str, Any] = {"enable_auto_commit": False, "auto_offset_reset": "earliest"}
    member = store.consumer("orders", group_id="g", **settings)
    assert [row["id"] for row in rows_of(member)] == [1, 2]
    with hinted():
        world.open().consumer(group_id="g", **settings).commit({A: 1})
    world.open().consumer(group_id="h", **settings).commit({A: 1})
    member.commit()
    member.close()
    for group, rest in (("g", []), ("h", [2])):
        assert [row["id"] for row in rows_of(world.open().consumer("orders", group_id=group, **settings))] == rest
    return [1, 2]


@follows("close that consumer first")
def reset_under_a_member(world: World, store: Store, hinted: Hinted) -> Iterable[int]:
    send(store, 1, 2)
    settings: dict[str, Any] = {"group_id": "g", "enable_auto_commit": False, "auto_offset_reset": "earliest"}
    admin = world.open().admin()
    with store.consumer("orders", **settings) as member:
        assert [row["id"] for row in rows_of(member)] == [1, 2]
        member.commit()
        with hinted():
            admin.reset_offsets("g", {A: 1})
    admin.reset_offsets("g", {A: 1})
    assert [row["id"] for row in rows_of(world.open().consumer("orders", **settings))] == [2]
    return [1, 2]


@follows("take one snapshot of all topics that belong together")
def snapshots(world: World, store: Store, hinted: Hinted) -> Iterable[int]:
    store.create_topic("audit", ORDERS)
    send(store, 1)
    alone = store.snapshot("orders")
    with hinted():
        alone.table("audit")
    both = store.snapshot("orders", "audit")
    assert (both.table("orders").count(), both.table("audit").count()) == (1, 0)
    return [1]


@follows("-2 is earliest, -1 is latest", "datetime.datetime.fromisoformat(")
def positions(world: World, store: Store, hinted: Hinted) -> Iterable[int]:
    send(store, 1)
    table = store.table("orders")
    with hinted():
        table.changes({0: -3})
    with hinted():
        table.scan(start="1970-01-01T00:00:00Z")
    whole = datetime.datetime.fromisoformat("1970-01-01T00:00:00.000+00:00")
    assert (table.count(start={0: -2, 1: -2}), table.count(start=whole)) == (1, 1)
    return [1]


# -- topics -------------------------------------------------------------------------------------------------------


@follows("create a new topic and copy the rows")
def fewer_partitions(world: World, store: Store, hinted: Hinted) -> Iterable[int]:
    send(store, 1, 2)
    send(store, 3, partition=1)
    with hinted():
        store.alter_topic("orders", partitions=1)
    store.create_topic("fewer", ORDERS, partitions=1)
    with store.producer("copy") as producer, producer.transaction(0):
        producer.send("fewer", store.table("orders").to_arrow(["id", "name"]))
    assert sorted(world.read("fewer")) == [1, 2, 3]
    return [1, 2, 3]


@follows("choose another name", "name topic '")
def names(world: World, store: Store, hinted: Hinted) -> Iterable[int]:
    with hinted():
        store.create_topic("others", pa.schema([("a", pa.int8()), ("A", pa.int8())]))
    with hinted():
        store.create_topic("orders/0", ORDERS)
    store.create_topic("others", pa.schema([("a", pa.int8()), ("b", pa.int8())]))
    send(store, 1)
    return [1]


@follows("repeat the same call: it joins whatever this one has done")
def init_out_of_time(world: World, store: Store, hinted: Hinted) -> Iterable[int]:
    outage, other = world.outage(max_block_ms=300)
    producer = other.producer("loader")
    outage.pattern = "put_if_absent __transaction_state/"
    with hinted():
        producer.init_transactions()
    outage.pattern = None
    producer.init_transactions()
    with producer.transaction():
        producer.send("orders", orders(1), partition=0)
    producer.close()
    return [1]


def send(store: Store, *ids: int, partition: int = 0) -> None:
    with store.producer() as producer:
        producer.send("orders", orders(*ids), partition=partition)


def add(store: Store, files: StagedFiles, *ids: int) -> None:
    topic = store.runtime.topic("orders", 0)
    files.add(topic, conform(orders(*ids), topic.schema, topic="orders"), 0)


def staged(store: Store, txn: StagedTransaction, *ids: int) -> Any:
    files = StagedFiles(store.runtime, txn.txn)
    add(store, files, *ids)
    return files.finish()


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


@pytest.mark.parametrize("hint", FOLLOWED)
def test_who_follows_a_hint_loses_and_doubles_no_row(hint: str, world: World) -> None:
    store = world.open()
    store.create_topic("orders", ORDERS, partitions=2)
    met: list[str] = []

    @contextmanager
    def hinted() -> Iterator[None]:
        with pytest.raises(TxlogError) as refused:
            yield
        met.append(refused.value.hint or str(refused.value))

    expected = sorted(FOLLOWED[hint](world, store, hinted))
    assert [each for each in met if each.startswith(hint)], met
    own = tuple(each for each, case in FOLLOWED.items() if case is FOLLOWED[hint])
    assert [each for each in met if not each.startswith(own)] == [], "each message that the case meets has its hint"
    assert sorted(world.read()) == expected
    check_store(world.memory, settled=False)


# -- the tables are complete --------------------------------------------------------------------------------------

ELSEWHERE: Mapping[str, str] = {
    # producers
    "call commit_transaction() again, or abort_transaction(), which tells what won": (
        "client/test_deferred.py::test_rows_of_a_commit_in_doubt_wait_for_its_outcome"
    ),
    "call abort_transaction(), which finds out what won": (
        "protocol/test_one_phase.py::test_an_abort_says_what_became_of_the_commit"
    ),
    "repeat the call": (
        "protocol/test_one_phase.py::test_a_fence_of_which_the_partition_knows_nothing_yet_shows_nothing"
    ),
    "call abort_transaction() again": "client/test_transactions.py::test_abort_that_ran_out_of_time_may_be_repeated",
    "abort; if that raises ProducerFencedError, close": (
        "client/test_transactions.py::test_fencing_on_send_to_a_registered_partition"
    ),
    "close this producer; only the newest instance may go on": "client/test_transactions.py::test_fencing_on_commit",
    "abort the transaction if one is open, then send them again": (
        "client/test_producer.py::test_topic_deleted_and_made_anew_meanwhile"
    ),
    "look at what is there before you do it again": (
        "client/test_in_doubt.py::test_a_commit_of_which_nothing_is_left_to_see_is_unknown_and_not_refused"
    ),
    "delete nothing; read its topics": (
        "client/test_in_doubt.py::test_a_commit_of_which_nothing_is_left_to_see_is_unknown_and_not_refused"
    ),
    "make a new <kind> here": "client/test_store.py::test_forked_child_refuses_the_parents_producer",
    "rename the columns of the rows, or remove their field ids": (
        "evolution/test_writers.py::test_rows_that_were_read_before_a_change_of_names_are_not_sent_back"
    ),
    # consumers and groups
    "abort the transaction if one is open; the next poll() joins the group again": (
        "client/test_members.py::test_a_member_that_slept_past_its_session_is_told"
    ),
    "the next poll() joins": "client/test_members.py::test_a_member_that_slept_past_its_session_is_told",
    "call unsubscribe() again": (
        "client/test_members.py::test_a_call_that_fails_to_leave_stops_reading_and_leaves_when_it_is_repeated"
    ),
    "close this consumer, or give each consumer its own group.instance.id": (
        "client/test_members.py::test_a_static_member_comes_back_without_a_rebalance"
    ),
    "let one of the two use the group": (
        "client/test_members.py::test_a_job_and_members_share_a_group_only_if_both_are_told_so"
    ),
    "name another group.id, or set allow.mixed.groups=true": (
        "client/test_members.py::test_a_job_and_members_share_a_group_only_if_both_are_told_so"
    ),
    "abort, read the committed offsets again and start from there": ("client/test_staged.py::test_offsets_ride_along"),
    "look at the group before you do it again": (
        "client/test_in_doubt.py::test_a_change_that_won_and_was_sealed_is_not_made_again"
    ),
    "call iterate() again": "client/test_consumer.py::test_rows_that_do_not_fit_the_first_ones_are_not_lost",
    # topics and stores
    "take a new snapshot": (
        "client/test_snapshot_created_again.py::test_each_read_says_that_the_topic_was_created_again"
    ),
    "repeat the same call: it finishes the deletion": (
        "protocol/test_topics.py::test_a_second_call_finishes_what_a_crash_left"
    ),
    "close what was made from the store": (
        "client/test_store_changed.py::test_a_client_notices_that_the_store_was_put_back"
    ),
    "close what was made from it": "client/test_store_changed.py::test_a_client_notices_that_the_store_was_made_anew",
    "`txlog erasures cancel": "maintenance/test_erase.py::test_erasures_that_cannot_end_hold_up_nothing_else",
    "`txlog erase TOPIC --where": "maintenance/test_erase.py::test_verify_finds_each_object_and_when_it_goes",
    "`txlog transactions list` shows it; `txlog maintain` erases": (
        "maintenance/test_erase.py::test_a_decided_transaction_counts_and_an_open_one_is_waited_for"
    ),
    # tables of other formats
    "set its formats first": (
        "publication/test_publish.py::test_a_format_that_was_removed_does_not_go_on_over_its_old_table"
    ),
    "move or delete": "publication/test_publish.py::test_a_format_that_was_removed_does_not_go_on_over_its_old_table",
    "remove '": "publication/test_other_lives.py::test_a_version_of_a_lost_publication_is_named_each_time",
    "publish again": "publication/test_failures.py::test_a_publisher_that_is_always_slower_says_so",
    "look at pyiceberg's configuration": (
        "publication/test_catalog.py::test_a_catalog_that_is_away_is_reported_and_caught_up"
    ),
    "if it belongs to another store or program": (
        "publication/test_catalog.py::test_a_commit_of_another_program_is_refused_and_dropping_mends_it"
    ),
    "add 'iceberg' to publish.formats": "publication/test_catalog.py::test_bad_settings_are_named",
    "write both with a dot": "publication/test_catalog.py::test_a_name_without_a_namespace_is_refused_when_it_is_set",
    "correct the name, or configure it": "publication/test_catalog.py::test_a_catalog_without_a_configuration_is_named",
    # Spark
    "after a lost checkpoint run `txlog": (
        "spark/test_stream_sink.py::test_after_a_lost_checkpoint_it_goes_on_where_the_last_commit_was"
    ),
    "give this query another id": "spark/test_micro_batch.py::test_the_first_advice_doubles_no_row",
    "start with a new checkpoint": (
        "spark/test_stream_sink.py::test_a_checkpoint_from_a_copy_is_refused_and_loses_nothing"
    ),
    "start with a new checkpoint at committed_source_offsets(...)": (
        "spark/test_stream_sink.py::test_a_new_query_does_not_take_a_foreign_source_again"
    ),
    "use a new checkpoint with startingOffsets=committed": (
        "spark/test_stream_sink.py::test_after_a_lost_checkpoint_it_goes_on_where_the_last_commit_was"
    ),
    "if no other job uses that group": (
        "spark/test_stream_sink_plan.py::test_a_group_that_was_changed_must_stand_where_the_batch_begins"
    ),
    "leave the option on, or delete the offsets": (
        "spark/test_stream_sink.py::test_commit_source_offsets_cannot_be_switched_off_under_offsets"
    ),
    "start the query again from its checkpoint": (
        "spark/test_stream_sink.py::test_a_batch_whose_tasks_fail_for_good_is_not_there_and_comes_with_the_next_run"
    ),
    "let only one run continue": "spark/test_stream_sink.py::test_another_run_fences_this_one_with_one_clear_error",
    "do not catch what write() raises": "spark/test_transactions.py::test_a_write_that_failed_cannot_be_forgotten",
    "give the query a new checkpointLocation": (
        "spark/test_stream_source.py::test_a_log_that_went_back_is_an_error_whatever_the_options_say"
    ),
    "read the store that the query was started with": (
        "spark/test_stream_source.py::test_a_checkpoint_of_another_store_is_refused"
    ),
    "name it again": "spark/test_stream_source.py::test_options_that_name_less_than_the_checkpoint_are_noticed",
    "its unread rows are lost": (
        "spark/test_stream_source.py::test_a_deleted_topic_of_a_pattern_is_a_loss_only_if_rows_were_unread"
    ),
    "these rows are lost": "spark/test_stream_source.py::test_retention_that_overtakes_a_query_ends_it",
    "failOnDataLoss=false continues with the remaining rows": (
        "spark/test_stream_source.py::test_rows_of_a_new_topic_that_went_before_the_query_saw_it_are_a_loss"
    ),
    "a running query reads this topic": (
        "spark/test_stream_source.py::test_a_deleted_topic_that_is_named_ends_the_query"
    ),
    "finish the batch with that level": (
        "spark/test_stream_source.py::test_a_batch_planned_with_read_uncommitted_is_not_cut_short_by_read_committed"
    ),
    "name it in 'assign' again": "spark/test_kafka_resume.py::test_a_partition_that_is_gone_has_two_ways_on",
    "stop other runs and use an empty checkpoint folder": (
        "kafka/test_ingest.py::test_a_checkpoint_from_a_copy_is_refused"
    ),
}
"""Tests that meet the message, do what its hint says, and compare all rows."""

ARGUMENT = "The call was refused before it read or wrote anything. The hint names what to give it instead."
PROGRAM = "The call was refused before it read or wrote anything. The hint installs or names another program or store."
REST = (
    "`txlog produce` says below the hint how many rows it has written before that place, or that --transaction has "
    "dropped them: tests/cli/test_formats.py::test_nothing_of_a_transaction_stays_if_a_later_file_is_bad."
)
LOOK = "The hint reads only."
AGAIN = (
    "The hint repeats the same call. `make test-exhaustive ARGS=tests/lines` ends each call of writers, readers and "
    "operators at each line, repeats it, and counts the rows."
)
READ = "The read returned an error, and no row changes. The same read from its beginning returns all rows."
DAMAGE = "Objects are lost or replaced. Which copy there is only a person knows; see docs/restore.md."
COPY = "Rows are copied as after 'create a new topic and copy the rows', which a case above does."
ROUND = "A job of maintenance stopped before it changed anything. Its next round looks again."
CONDITION = "The hint names what must be waited for. The call was refused as a whole."
KAFKA = "The message comes before the first record is read, and a person knows which of the two jobs is meant."


NOT_FOLLOWED: Mapping[str, str] = {
    # arguments
    **dict.fromkeys(
        (
            "--metrics-file keeps them",
            "TxLog(spark, store).create_views() makes",
            "set spark.sql.streaming.triggerAvailableNowWrapper.enabled=false, and give the query",
            "<name>=<given>",
            "<name>=<moment>",
            "<name>=[",
            "<time> seconds are",
            "a text stands in single quotes",
            "create_topic(name, columns)",
            "give consumer.group_metadata()",
            "name columns; the key itself",
            "separate cells by commas",
            "where='id > 3' chooses rows",
            "{tp: row['_offset'] + 1}",
            "<value> seconds are",
            "TxLog(spark, root)",
            "<call>(config={...})",
            "<native>",
            "a topic with other characters than letters, digits and _ needs double quotes",
            "a dictionary is one row",
            'add "parquet" to the list',
            "add the column without a default",
            "add the field with add_fields=",
            "ask for these, add columns with alter_topic",
            "begin another one",
            "call it after",
            "call it in another thread",
            "cast it: df.withColumn(",
            "check checkpointLocation, and name it with its scheme",
            "choose a later time",
            "choose another port",
            "choose an offset in that range",
            "compare a column with a literal",
            "convert it in the query",
            "convert the column in the query",
            "cut it to microseconds",
            "drop or rename one of them",
            "end it first, or use another id for concurrent work",
            "give each consumer a group.id of its own",
            "give a group.id, or leave",
            "drop it, or let the write add it",
            "give [tp], or {tp: row[",
            "give one TopicPartition, or several",
            "give int(time.timestamp() * 1000)",
            "give it as the storage option 'account_name'",
            "give it more with --memory-limit",
            "give scope=",
            "give text or bytes, as in str(",
            "give the cut to plan_reads",
            "if a newer Spark wrote it",
            "if it comes from a checkpoint, that checkpoint belongs to another source",
            "keep the checkpoint in a local folder or an object store",
            "leave it out",
            "leave partitionBy and clusterBy out",
            "leave that option out",
            "leave the option out",
            "to delete all rows leave the offset out",
            "let the handler raise an exception or set a flag",
            "make the folder first",
            "move the store, or publish in the format delta",
            "name --html FILE",
            "name a file in it",
            "name a file that you may write",
            "name another one with --port N",
            "name it in 'group.id'",
            "name it with group_id=",
            "name a folder or a URL",
            "name a topic of yours",
            "name the columns of the key in key.columns",
            "name columns of the topic",
            "name it in producer(",
            "name it with --format",
            "name it, as in pyarrow.compute.field(",
            "name one, as in FROM orders",
            "name one of int64",
            "name the shared ones in the option 'columns'",
            "name the topics one by one",
            "name topics, as in .option(",
            "name them one by one, as in",
            "put a name with a space in backticks",
            "quote a name with dots",
            "read the topics one by one",
            "remove it here",
            "rename one of them, or publish in the format delta",
            "send them to a file",
            "send(topic, rows)",
            "set heartbeat.interval.ms",
            "set key.columns",
            "set partition.assignment.strategy",
            "set the option 'topic'",
            "subscribe to re.compile(",
            "store.snapshot(..., as_of=...)",
            "store.table(...).changes(...)",
            "the versions of an id must grow",
            "to remove all members, leave instance_ids out",
            "to use one stream twice, load it twice",
            'use "append"',
            'use .mode("append")',
            "use CREATE TEMPORARY VIEW",
            "use a datetime with a time zone",
            "use a micro-batch trigger",
            "use count() for the number of rows",
            'use df.write.format("txlog") for one transaction',
            'use format("txlog")',
            "write both in the case of the topic",
            "write each object in one line",
            "write one SELECT",
            "write the character itself",
        ),
        ARGUMENT,
    ),
    **dict.fromkeys(
        (
            "check that the brokers run",
            "for Prometheus call txlog.metrics.serve()",
            "install Java",
            "open the folder above it",
            "pip install",
            "start it with",
            "synchronise it (NTP)",
            "use %s",
            "use a folder or an object store",
            "use a local path",
            "use a path or an object store",
            "use a store with conditional PUT",
        ),
        PROGRAM,
    ),
    **dict.fromkeys(
        (
            "convert the file to UTF-8",
            "decode text of another encoding",
            "decompress it first",
            "look for a quote that is not closed",
            "name the columns in the first line",
            "name the format of other rows",
            "the file may be cut off; or close the quote",
            "write one object a line",
        ),
        REST,
    ),
    **dict.fromkeys(
        (
            "`txlog erasures list` shows",
            "`txlog topics list` shows",
            "check the store with `txlog fsck`",
            "check which other program commits for this group",
            "if its rows were never written, see the page",
            "list again; if this persists",
            "look at them with `txlog fsck`",
            "look at them, and repeat what is still wanted",
            "report this line as a bug",
            "see `txlog transactions describe",
        ),
        LOOK,
    ),
    **dict.fromkeys(
        (
            "call abort_transaction(), and repeat the transaction",
            "call close() again",
            "call commit_transaction() again, or abort",
            "repeat the same call",
        ),
        AGAIN,
    ),
    **dict.fromkeys(
        (
            "read again from the beginning: all rows come again",
            "<remedy>",
            "restart the query or the reader",
            "run the query again",
            "scan again from the beginning: all rows come again",
        ),
        READ,
    ),
    **dict.fromkeys(
        (
            "repair it, then repeat the same call",
            "restore <topic>/topic.*.json from a copy",
            "restore it, or give the query",
            "restore this file from a copy",
            "restore this object from a backup",
            "run `txlog fsck`, which lists the missing objects",
        ),
        DAMAGE,
    ),
    **dict.fromkeys(
        (
            "copy its topics to a new store",
            "copy the topic to a new store",
            "create a new topic with cleanup.policy=compact and copy the rows",
            "create a new topic with these settings and copy the rows",
            "create a topic with the wanted columns in a new store, and copy the rows",
        ),
        COPY,
    ),
    **dict.fromkeys(
        (
            "compact again",
            "merge the topic's small files first",
            "repeat it",
            "seal them, with `txlog maintain --once`",
        ),
        ROUND,
    ),
    **dict.fromkeys(
        (
            "a consumer that is killed and started again with the same group.instance.id does not wait",
            "call subscribe() again and continue from the committed offsets",
            "stop it, or wait for it",
        ),
        CONDITION,
    ),
    **dict.fromkeys(
        (
            "give this job another id; it begins at startingOffsets",
            "this checkpoint belongs to another query; use another folder for this one",
        ),
        KAFKA,
    ),
    "close this producer, look whether the rows are there before you send them again": (
        "The futures of a producer have the hint 'look whether the rows are there', which a case above follows. Other "
        "callers meet it after a pause of days: tests/protocol/test_slot.py."
    ),
}
"""Why no test follows a hint."""


def test_every_hint_is_in_one_table() -> None:
    keys = [*FOLLOWED, *ELSEWHERE, *NOT_FOLLOWED]
    assert len(set(keys)) == len(keys), [key for key in keys if keys.count(key) > 1]
    used, lacking = set[str](), list[str]()
    for hint in sorted(hints_of_errors()):
        found = [key for key in keys if hint.startswith(key)]
        used.update(found and {max(found, key=len)})
        lacking += [] if found else [hint]
    # Notes, logged lines, and texts in tables of the source. A value ends what is seen of them.
    for begin in sorted(begins_in_the_source()):
        found = [key for key in keys if begin.startswith(key) or key.startswith(begin)]
        used.update(found)
        lacking += [] if found else [begin]
    assert lacking == []
    assert set(keys) - used == set(), "no message has these hints any more"


@pytest.mark.parametrize("hint", ELSEWHERE)
def test_a_test_that_follows_a_hint_is_there(hint: str) -> None:
    path, name = ELSEWHERE[hint].split("::")
    source = (ROOT / "tests" / path).read_text(encoding="utf-8")
    defined = {node.name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)}
    assert name in defined
    kinds = kinds_of(hint)
    assert not kinds or any(kind in source for kind in kinds), f"the file meets none of {kinds}"


@cache
def hints_of_errors() -> Mapping[str, frozenset[str]]:
    """Return the hints of all errors, as the reference shows them, each with the names of its errors."""
    found: dict[str, set[str]] = {}
    for name, texts in templates().items():
        for text in texts:
            if hint := split_hint(text)[1]:
                found.setdefault(hint, set()).add(name)
    return {hint: frozenset(names) for hint, names in found.items()}


def kinds_of(hint: str) -> frozenset[str]:
    """Return the names of the errors that have the hint, and of the classes above them."""
    names = {name for text, kinds in hints_of_errors().items() if text.startswith(hint) for name in kinds}
    classes = [kind for kind in CLASSES if kind.__name__ in names]
    return frozenset(each.__name__ for kind in classes for each in kind.__mro__ if each in CLASSES)


def begins_in_the_source() -> frozenset[str]:
    """Return the begin of each hint that a string of the shipped modules has, up to the first value in it."""
    found = set()
    for package in PACKAGES:
        for path in package.rglob("*.py"):
            nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
            docs = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
            for node in nodes:
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
                    found |= {" ".join(text.split()) for text in re.findall(r"\bhint: (.*)", node.value, re.DOTALL)}
    return frozenset(found - {""})
