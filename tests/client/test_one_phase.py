"""Producers that commit in one phase (PROTOCOL.md, W61 to W64): which transactions, what they cost, who ends them."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from tests.client.world import ORDERS, World, many, orders, tp
from txlog.client.store import Store
from txlog.client.transactions import coordinator
from txlog.core import envelope
from txlog.core.features import COMBINED_RECORDS, STORE_FEATURES
from txlog.core.one_phase import MAX_ATTACHED
from txlog.core.records import StoreDescriptor
from txlog.errors import IllegalStateError, OutcomeUnknownError, ProducerFencedError
from txlog.protocol import stores
from txlog.protocol.load import load
from txlog.protocol.table import describe
from txlog.testing.failing_store import Fault, _Plan

A, B = tp("orders", 0), tp("orders", 1)


@pytest.fixture(autouse=True)
def combined(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make stores with the feature, where instances attach themselves at once."""
    features = (COMBINED_RECORDS, *STORE_FEATURES)
    monkeypatch.setattr(stores, "create_store", partial(stores.create_store, features=features))
    monkeypatch.setattr(coordinator, "SMALL_BEFORE_ATTACHED", 0)


def commit(producer: Any, *ids: int, partition: int = 0, topic: str = "orders", **more: Any) -> Any:
    producer.begin_transaction(**more)
    sent = producer.send(topic, orders(*ids), partition=partition)
    result = producer.commit_transaction()
    return sent.result(), result


def record(world: World, name: str = "loader") -> Any:
    """Return the id's record."""
    runtime = world.open().runtime
    return runtime.run(describe(runtime.context(None), {}, name))[1].value


def kinds(world: World, partition: int = 0, topic: str = "orders") -> str:
    """Return the partition's records in letters; C is a COMMIT with rows."""
    runtime = world.open().runtime
    view = runtime.run(load(runtime.context(None), tp(topic, partition)))
    found = [each.record for each in view.tail]
    return "".join(each.kind[0].upper() if each.kind == "commit" and each.records else each.kind[0] for each in found)


# -- which transactions -----------------------------------------------------------------------------------------------


def test_a_small_transaction_of_one_partition_is_one_request(world, store):
    with store.producer("loader") as producer:
        sent, result = commit(producer, 1)
        assert (sent.base_offset, result.txn.state, result.txn.last_outcome) == (0, "COMPLETE_COMMIT", "commit")
        for number in range(2, 5):
            with world.counting.counting() as cost:
                sent, result = commit(producer, number)
            assert cost.total == cost.put_if_absent == 1
            assert sent.base_offset == number - 1
        assert kinds(world) == "dddd"
        assert world.read() == [1, 2, 3, 4]
    assert not record(world).attached


@pytest.mark.parametrize(
    ("what", "settings"),
    [("a version", {}), ("eager", {"staged": False}), ("files", {"inline_max_bytes": 0})],
)
def test_other_transactions_have_a_decision(world: World, store: Store, what: str, settings: dict[str, Any]) -> None:
    with store.producer("loader", **settings) as producer:
        for number in range(2):
            more: dict[str, Any] = {"version": number} if what == "a version" else {}
            commit(producer, number, **more)
        assert not record(world).attached
    assert world.read() == [0, 1]


def test_offsets_need_a_decision(world, store):
    with store.producer("loader") as producer:
        commit(producer, 1)
        producer.begin_transaction()
        producer.send("orders", orders(2), partition=0)
        producer.send_offsets_to_transaction({A: 1}, "g")
        producer.commit_transaction()
        commit(producer, 3)
    assert kinds(world) == "dCd"
    assert store.consumer(group_id="g").committed(A)[A].offset == 1


def test_one_producer_goes_from_one_way_to_the_other(world, store):
    with store.producer("loader") as producer:
        commit(producer, 1)
        with producer.transaction():
            producer.send("orders", orders(2), partition=0)
            producer.send("orders", orders(3), partition=1)
        commit(producer, 4)
        producer.begin_transaction()
        producer.send("orders", orders(5), partition=0).result()  # asked for, so it is sent at once
        producer.commit_transaction()
        commit(producer, 6)
        commit(producer, 7)
        producer.begin_transaction()
        producer.send("orders", orders(8), partition=0).result()
        producer.abort_transaction()
        commit(producer, 9)
    assert sorted(world.read()) == [1, 2, 3, 4, 5, 6, 7, 9]
    assert kinds(world) == "dCddcdddad"


def test_rows_that_are_sent_early_follow_the_sequences_of_their_epoch(world, store):
    with store.producer("loader") as producer:
        commit(producer, *range(10))
        producer.begin_transaction()
        producer.send("orders", orders(10), partition=0).result()
        producer.send("orders", orders(11), partition=0).result()
        producer.commit_transaction()
    assert world.read() == [*range(12)]


def test_a_store_without_the_feature_has_a_decision_for_each(world, store):
    descriptor, _ = envelope.decode(world.memory.get("txlog.json"), StoreDescriptor, "txlog.json")
    old = StoreDescriptor(
        features=tuple(feature for feature in descriptor.features if feature != COMBINED_RECORDS),
        store_id=descriptor.store_id,
        created_at=descriptor.created_at,
        constants=descriptor.constants,
    )
    world.memory.delete("txlog.json")
    world.memory.put_if_absent("txlog.json", envelope.encode(old))
    with world.open().producer("loader") as producer:
        for number in range(3):
            commit(producer, number)
    assert kinds(world) == "CCC"


def test_an_instance_is_attached_to_few_partitions(world, store):
    store.create_topic("wide", ORDERS, partitions=MAX_ATTACHED + 2)
    with store.producer("loader") as producer:
        for partition in range(MAX_ATTACHED + 2):
            for number in range(2):
                commit(producer, number, partition=partition, topic="wide")
        assert len(record(world).attached) == MAX_ATTACHED
    found = [kinds(world, partition, "wide") for partition in range(MAX_ATTACHED + 2)]
    assert found == ["dd", *["Cd"] * (MAX_ATTACHED - 1), "CC", "dC"] or found == [
        "dd",
        *["Cd"] * (MAX_ATTACHED - 1),
        "CC",
        "CC",
    ]


def test_the_commits_of_one_epoch_are_in_one_partition(world, store):
    """W61: a snapshot that shows the second of two commits shows the first, too."""
    with store.producer("loader") as producer:
        for number, partition in enumerate((0, 0, 1, 1, 0, 0)):
            commit(producer, number, partition=partition)
    assert (kinds(world), kinds(world, 1)) == ("ddCd", "Cd")


# -- who ends an instance ---------------------------------------------------------------------------------------------


def test_a_closed_producer_leaves_nothing_to_fence(world, store):
    with store.producer("loader") as producer:
        commit(producer, 1)
    with world.counting.counting() as cost:
        world.open().producer("loader").init_transactions()
    assert cost.put_if_absent - sum("__probe" in path for verb, path in cost.calls() if verb == "put_if_absent") == 1
    assert kinds(world) == "d"


def test_a_newer_instance_fences_one_that_goes_on(world, store):
    producer = store.producer("loader")
    producer.init_transactions()
    commit(producer, 1)
    with world.open().producer("loader") as newer:
        commit(newer, 2)
        producer.begin_transaction()
        producer.send("orders", orders(3), partition=0)
        with pytest.raises(Exception, match=r"has seen epoch|fenced") as caught:
            producer.commit_transaction()
        with pytest.raises(ProducerFencedError):
            producer.abort_transaction()
        commit(newer, 4)
    assert caught.type.__name__ in ("InvalidProducerEpochError", "ProducerFencedError")
    assert world.read() == [1, 2, 4]
    assert kinds(world) == "dadd"


def test_an_operator_that_forgets_the_id_ends_the_instance(world, store):
    producer = store.producer("loader")
    producer.init_transactions()
    commit(producer, 1)
    assert world.open().admin().expire_id("loader", force=True)
    producer.begin_transaction()
    producer.send("orders", orders(2), partition=0)
    with pytest.raises(Exception, match="epoch"):
        producer.commit_transaction()
    assert world.read() == [1]


# -- who is unsure ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("again", ["commit", "abort", "close"])
@pytest.mark.parametrize("lands", [True, False])
def test_a_commit_of_unknown_outcome(world, store, again, lands):
    failing, opened = world.failing(default_api_timeout_ms=3000)
    producer = opened.producer("loader", max_block_ms=3000)
    producer.init_transactions()
    commit(producer, 1)
    producer.begin_transaction()
    sent = producer.send("orders", orders(2), partition=0)
    put = Fault(action="lose_reply", moment="after" if lands else "before", match=r"put_if_absent orders/0/", times=999)
    failing._plans = [_Plan(put), _Plan(Fault(action="fail", match=r"(get|list) orders/0/", times=9999))]
    with pytest.raises(OutcomeUnknownError):
        producer.commit_transaction()
    failing._plans = []
    if again == "commit":
        producer.commit_transaction()
        assert sent.result().base_offset == 1
        lands = True
    elif again == "close":
        producer.close()
    elif lands:
        with pytest.raises(IllegalStateError, match="it is committed"):
            producer.abort_transaction()
    else:
        producer.abort_transaction()
    if again != "close":
        commit(producer, 3)
    assert world.read() == [1, *([2] if lands else []), *([3] if again != "close" else [])]


def test_an_outage_before_the_request_changes_nothing(world, store):
    failing, opened = world.failing()
    producer = opened.producer("loader")
    producer.init_transactions()
    commit(producer, 1)
    failing._plans = [_Plan(Fault(action="fail", match=r"put_if_absent orders/0/", times=2))]
    commit(producer, 2)
    assert world.read() == [1, 2]
    assert kinds(world) == "dd"


def test_large_rows_and_small_ones(world, store):
    with store.producer("loader") as producer:
        commit(producer, 1)
        producer.begin_transaction()
        producer.send("orders", many(3000, 10), partition=0)
        producer.commit_transaction()
        commit(producer, 2)
    assert len(world.read()) == 3002


# -- what an attacker has found ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["403 on a GET", "403 on a PUT", "damage"])
@pytest.mark.parametrize("lands", [True, False])
def test_a_repeated_commit_that_fails_claims_nothing_about_the_first(world, store, lands, fault):
    """W64: an abort after it still finds out what won, and the instance stays attached until then."""
    failing, opened = world.failing(default_api_timeout_ms=3000)
    producer = opened.producer("loader", max_block_ms=3000)
    producer.init_transactions()
    commit(producer, 1)
    producer.begin_transaction()
    sent = producer.send("orders", orders(2), partition=0)
    put = Fault(action="lose_reply", moment="after" if lands else "before", match=r"put_if_absent orders/0/", times=999)
    failing._plans = [_Plan(put), _Plan(Fault(action="fail", match=r"(get|list) orders/0/", times=9999))]
    with pytest.raises(OutcomeUnknownError):
        producer.commit_transaction()
    later = {
        "403 on a GET": Fault(action="403", match=r"(get|list) ", times=9999),
        "403 on a PUT": Fault(action="403", match=r"put_if_absent ", times=9999),
        "damage": Fault(action="damage", match=r"get orders/0/", times=9999),
    }
    failing._plans = [_Plan(later[fault])]
    world.clock.sleep_ms(2000)
    with pytest.raises(OutcomeUnknownError):
        producer.commit_transaction()
    failing._plans = []
    if lands:
        with pytest.raises(IllegalStateError, match="committed"):
            producer.abort_transaction()
    else:
        producer.abort_transaction()
        assert kinds(world) == "da"  # what may still land is refused at its slot
    assert world.read() == ([1, 2] if lands else [1])
    assert sent.done()
    producer.close()
