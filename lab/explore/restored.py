"""Scenarios of records and stores that were replaced, or put back to an older state; mutants of their rules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lab.explore import client as calls, keeper_calls
from lab.explore.explorer import Budget
from lab.explore.mutant import CORE, HERE, Mutant
from lab.explore.scene import CONSTANTS, GRACE_MS, HOUR_MS, A, B, Scenario, Scene, Size
from lab.explore.world import GHOST, START_MS
from txlog.core import envelope, state
from txlog.core.ages import ClockReading
from txlog.core.features import STORE_FEATURES
from txlog.core.names import STORE_DESCRIPTOR, batch_name
from txlog.core.records import StoreDescriptor
from txlog.protocol import load
from txlog.protocol.context import KnownStore

# -- scenarios --------------------------------------------------------------------------------------------------------


def _swapped(size: Size) -> Scene:
    """One record was replaced by another one: every reader of later records must find the chain broken."""
    scene = Scene(judges=False)
    plain = scene.before(
        "p", scene.client(), calls.idempotent(), calls.send(A, "a"), calls.send(A, "b"), calls.send(A, "c")
    )
    other = Scene()
    other.before("p", other.client(), calls.idempotent(), calls.send(A, "a"), calls.send(A, "?"))
    path = A.folder + batch_name(1)
    data = other.world.data(other.store, path)
    assert data is not None
    scene.actor("plain", plain, calls.send(A, "d"))
    files = dict(scene.world.objects[number] for number in scene.world.stores[scene.store])
    scene.store = scene.world.from_files({**files, path: data, GHOST + path: files[path]})
    scene.actor("reader", scene.client(), keeper_calls.read(A), *([keeper_calls.read(A)] if size == "full" else []))
    return scene


def _put_back(size: Size) -> Scene:
    """Four clients hold views of a log that was put back to an older state between their calls, and a new client
    begins."""
    full = size == "full"
    scene = Scene(transactional_ids=("x",), past_ms=HOUR_MS, budget=Budget(lost=1 if full else 0))
    plain = scene.before("plain", scene.client(), calls.idempotent(), calls.send(A, "p"))
    owner = scene.before("owner", scene.client("x"), calls.init(), calls.send(A, "o"), calls.commit())
    copy = scene.store
    plain = scene.before("plain, later", plain, calls.send(A, "gone"))
    owner = scene.before("owner, later", owner, calls.send(A, "gone too"), calls.commit())
    reader = scene.before("reader", scene.client(), keeper_calls.read(A))
    scene.store = copy
    # It slept so long that it lists its partition before it appends.
    long_ago = ClockReading(START_MS - GRACE_MS)
    views = {tp: replace(view, listed_at=long_ago) for tp, view in plain.views.items()}
    scene.actor("sleeper", replace(plain, views=views, sequences=()), calls.idempotent(), calls.send(A, "s"))
    scene.actor("plain", plain, calls.send(A, "a"))
    scene.actor("owner", owner, calls.send(A, "b"), calls.commit())
    scene.actor("reader", reader, keeper_calls.read(A))
    scene.actor("fresh", scene.client(), calls.idempotent(), calls.send(A, "n"))
    scene.expects = {name: {"failed"} for name in ("sleeper", "plain", "owner", "reader")}
    return scene


def _replaced(size: Size) -> Scene:
    """Clients with and without a view of a partition meet another store, in which the partition is empty or longer."""
    full = size == "full"
    scene = Scene(partitions=(A, B), past_ms=HOUR_MS, budget=Budget(lost=1 if full else 0))
    known = KnownStore(store_id="1" * 32, where="here")
    client = replace(scene.client(), ctx=replace(scene.ctx, store=known))
    scene.store = scene.world.from_files({STORE_DESCRIPTOR: _descriptor("1" * 32)})
    living = scene.before("living", client, calls.idempotent(), calls.send(A, "gone"), calls.opened(B))
    blank = scene.before("blank", client, calls.idempotent())
    scene.store = scene.world.from_files({STORE_DESCRIPTOR: _descriptor("2" * 32)})
    scene.before("other", scene.client(), calls.idempotent(), calls.send(A, "o"))
    scene.actor("behind", living, calls.send(A, "a"))
    scene.actor("empty", living, calls.send(B, "b"))
    scene.actor("blank", blank, calls.send(B, "c"))
    scene.actor("fresh", scene.client(), calls.idempotent(), calls.send(B, "n"))
    scene.expects = {name: {"failed"} for name in ("behind", "empty", "blank")}
    return scene


def _descriptor(store_id: str) -> bytes:
    return envelope.encode(
        StoreDescriptor(features=STORE_FEATURES, store_id=store_id, created_at=START_MS, constants=CONSTANTS)
    )


SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario(name="swapped", what="a record was replaced by another undamaged one", rules=(1, 6), build=_swapped),
        Scenario(name="put back", what="a store is put back to an older state while clients hold views of it", rules=(1, 2, 3), build=_put_back),
        Scenario(name="replaced", what="a store is deleted and created again while clients hold views of it", rules=(1, 2), build=_replaced),
    )
}  # fmt: skip

# -- mutants ----------------------------------------------------------------------------------------------------------


def _unlinked(self: Any, record: Any) -> None:
    previous, self.last_digest = self.last_digest, record.previous
    try:
        _ORIGINAL_LINK(self, record)
    finally:
        self.last_digest = previous


_ORIGINAL_LINK = state._Fold._check_link


def _unproven(_: Any, view: Any) -> Any:
    return view
    yield


def _unchecked(_: Any) -> Any:
    return None
    yield


def _loaded(ctx: Any, view: Any) -> Any:
    return (yield from load.load(ctx, view.topic_partition))


MUTANTS: tuple[Mutant, ...] = tuple(
    Mutant(name=name, scenario=scenario, rules=rules, patches=patches)
    for name, scenario, rules, patches in (
        ("the digest of the record before is not checked", "swapped", "R6", {CORE + "state._Fold._check_link": _unlinked}),
        ("a writer goes on behind a record that is gone", "put back", "W47", {HERE + "slot.prove": _unproven}),
        ("a reader takes an older log for the log", "put back", "R20", {HERE + "load.prove": _unproven}),
        ("a log that is listed anew is not compared with what was seen", "put back", "R20", {HERE + "slot.reload": _loaded}),
        ("a partition of another store is opened", "replaced", "W47", {HERE + "load.check_store": _unchecked}),
    )
)  # fmt: skip
