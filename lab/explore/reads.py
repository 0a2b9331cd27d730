"""Scenarios of sealing and reading, and of snapshots; mutants of their rules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from lab.explore import client as calls, keeper_calls
from lab.explore.cleaner import INDEXES, bound, deletes, merge
from lab.explore.explorer import Budget
from lab.explore.mutant import CORE, HERE, ORIGINAL_LISTING, Mutant
from lab.explore.scene import GRACE_MS, A, B, Scenario, Scene, Size, context
from txlog.core import segments, snapshot_state
from txlog.core.effects import NewId
from txlog.core.segments import collect_aborted_txns
from txlog.protocol import put, seal

# -- scenarios --------------------------------------------------------------------------------------------------------


def _seal(size: Size) -> Scene:
    full = size == "full"
    scene = Scene(ctx=context(batches=2), budget=Budget(lost=2 if full else 1))
    one = scene.before("one", scene.client(), calls.idempotent(), calls.send(A, "a"), calls.opened(A))
    two = scene.before("two", scene.client(), calls.idempotent())
    scene.actor("one", one, calls.send(A, "b"), calls.send(A, "c"))
    scene.actor("two", two, calls.send(A, "d"), *([calls.send(A, "e")] if full else []))
    scene.actor("sealer", scene.client(), keeper_calls.seal_all(A))
    return scene


def _seal_txn(size: Size) -> Scene:
    """Segments end within transactions: markers, snapshots and transaction indexes of open transactions."""
    scene = Scene(ctx=context(batches=1), transactional_ids=("x",), budget=Budget(lost=1 if size == "full" else 0))
    owner = scene.before("x", scene.client("x"), calls.init(), calls.send(A, "a"))
    plain = scene.before("p", scene.client(), calls.idempotent())
    scene.actor("owner", owner, calls.abort(), calls.send(A, "b"), calls.commit())
    scene.actor("plain", plain, calls.send(A, "p"))
    scene.actor("reader", scene.client(), keeper_calls.read(A), keeper_calls.read(A))
    return scene


def _reader(size: Size) -> Scene:
    scene = Scene(
        ctx=context(batches=2), transactional_ids=("x",), deletable=deletes(A, kinds=INDEXES),
        budget=Budget(ticks=(GRACE_MS,)), recovers=False,
    )  # fmt: skip
    plain = scene.before("p", scene.client(), calls.idempotent())
    owner = scene.before("x", scene.client("x"), calls.init(), calls.send(A, "a"))
    plain = scene.before("p1", plain, calls.send(A, "p"))
    owner = scene.before("x1", owner, calls.abort(), calls.send(A, "b"), calls.commit())
    plain = scene.before("p2", plain, calls.send(A, "q"))
    scene.actor("reader", scene.client(), *[keeper_calls.read(A)] * (3 if size == "full" else 2))
    scene.actor("cleaner", scene.client(), merge(A), bound(A, superseded=True))
    return scene


def _snapshot(size: Size) -> Scene:
    """A staged and an eager commit. One reader takes a snapshot during them, and each writer after its commit."""
    full = size == "full"
    scene = Scene(transactional_ids=("x", "y"), partitions=(A, B), budget=Budget(lost=1 if full else 0), recovers=False)
    staged = scene.before("x", scene.client("x"), calls.init(), calls.stage(A, "xa"), calls.stage(B, "xb"))
    eager = scene.before("y", scene.client("y"), calls.init(), calls.send(A, "ya"), calls.send(B, "yb"))
    scene.actor("eager", eager, calls.commit(), *((keeper_calls.look(A, B),) if full else ()))
    scene.actor("staged", staged, calls.commit(), *((keeper_calls.look(A, B),) if full else ()))
    scene.actor("looks", scene.client(), keeper_calls.look(A, B))
    return scene


def _snapshot_new(size: Size) -> Scene:
    """An eager transaction, the first of its id, completes after the table was read and before the logs are read."""
    scene = Scene(
        transactional_ids=("x",), partitions=(A, B), budget=Budget(lost=1 if size == "full" else 0), recovers=False
    )
    words = (calls.send(A, "xa"), calls.send(B, "xb"))
    scene.actor("new", scene.client("x"), calls.init(), *words, calls.commit(), keeper_calls.look(A, B))
    scene.actor("looks", scene.client(), keeper_calls.look(A, B))
    return scene


def _two_aborts(size: Size) -> Scene:
    """Two open transactions are in separate segments, and are aborted one after the other."""
    full = size == "full"
    scene = Scene(ctx=context(batches=2), transactional_ids=("x", "y"), budget=Budget(lost=2 if full else 0))
    one = scene.before("x", scene.client("x"), calls.init(), calls.send(A, "a"))
    two = scene.before("y", scene.client("y"), calls.init(), calls.send(A, "b"))
    scene.actor("x", one, calls.abort())
    scene.actor("y", two, calls.send(A, "c"), calls.abort())
    return scene


SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario(name="seal", what="sealing races with appends that roll", rules=(1, 13, 16), build=_seal),
        Scenario(name="seal txn", what="segments end within transactions, and a reader reads them", rules=(6, 7, 13), build=_seal_txn),
        Scenario(name="two aborts", what="two open transactions are aborted in separate segments", rules=(5, 6), build=_two_aborts),
        Scenario(name="reader", what="a reader reads while segments are merged, bounded and deleted", rules=(6, 13), build=_reader),
        Scenario(name="snapshot", what="a snapshot reads two partitions while transactions over both commit", rules=(17,), build=_snapshot),
        Scenario(name="snapshot new", what="a snapshot reads while an id is created and commits for the first time", rules=(17,), build=_snapshot_new),
    )
}  # fmt: skip

# -- mutants ----------------------------------------------------------------------------------------------------------


def _blind_to_open(producers: Any, next_offset: int, log_start_offset: int, but: int | None = None) -> int:
    return next_offset


def _search_one_index(txns: Any, **kwargs: Any) -> Any:
    aborted, _ = collect_aborted_txns(txns, **kwargs)
    return aborted, True


def _search_until_this_marker(txns: Any, *, fetch_offset: int, upper_bound_offset: int) -> Any:
    """Stops at the first marker at or behind the end of the range."""
    found = []
    for txn in txns:
        if txn.last_offset >= fetch_offset and txn.first_offset < upper_bound_offset:
            found.append(txn)
        if txn.last_offset >= upper_bound_offset:
            return tuple(found), True
    return tuple(found), False


def _index_of_those_that_began_here(tp: Any, records: Any, last_digest: str, file: Any) -> Any:
    index, txn_index = _ORIGINAL_INDEX(tp, records, last_digest, file)
    if txn_index is None:
        return index, None
    kept = tuple(txn for txn in txn_index.aborted if txn.first_offset >= index.base_offset)
    index = msgspec.structs.replace(index, aborted_txns=len(kept))
    return index, msgspec.structs.replace(txn_index, aborted=kept) if kept else None


_ORIGINAL_INDEX = segments.build_index


def _without_producers(folded: Any) -> Any:
    return msgspec.structs.replace(snapshot_state.to_snapshot(folded), producers=())


def _no_snapshots(ctx: Any, path: str, data: bytes) -> Any:
    if not path.endswith(".snapshot"):
        yield from put.put_pure(ctx, path, data)


def _all_segments(view: Any) -> Any:
    finished = _ORIGINAL_FINISHED(view)
    active = tuple(each for each in view.tail if each.record.segment_base == view.state.segment_base)
    return [*finished, active] if active else finished


_ORIGINAL_FINISHED = seal.finished_segments


def _seal_with_one_name(ctx: Any, view: Any, stored: Any) -> Any:
    """Lets every sealer of a segment give its file the same name."""
    program = _ORIGINAL_SEAL(ctx, view, stored)
    answer = None
    while True:
        try:
            effect = program.send(answer)
        except StopIteration as stop:
            return stop.value
        answer = "5ea1" * 8 if isinstance(effect, NewId) else (yield effect)


_ORIGINAL_SEAL = seal._seal_one


def _without_clean(listed: Any, folder: str = "") -> Any:
    return replace(ORIGINAL_LISTING(listed, folder), clean=None)


def _stubborn(ctx: Any, view: Any, find: Any) -> Any:
    return view, (yield from find(view))


def _hidden_by_own_epoch(cut: Any, batch: Any) -> bool:
    mine = bool(batch.transactional or batch.kind == "commit")
    return mine and not bool(cut.shows(batch.producer_id, batch.producer_epoch))


def _shown_if_unknown(cut: Any, producer_id: int, marker_epoch: int) -> bool:
    return bool(marker_epoch <= cut.settled.get(producer_id, marker_epoch))


MUTANTS: tuple[Mutant, ...] = tuple(
    Mutant(name=name, scenario=scenario, rules=rules, patches=patches)
    for name, scenario, rules, patches in (
        ("a snapshot shows all that is prepared", "snapshot", "invariant 17", {HERE + "snapshot.marker_is_there": lambda *_: True}),
        ("a snapshot shows all below the log ends", "snapshot", "invariant 17", {CORE + "snapshots.SnapshotCut.shows": lambda *_: True}),
        ("a snapshot takes rows for their marker", "snapshot", "invariant 17", {CORE + "snapshots.SnapshotCut.hides": _hidden_by_own_epoch}),
        ("a snapshot shows ids that its table lacks", "snapshot new", "invariant 17", {CORE + "snapshots.SnapshotCut.shows": _shown_if_unknown}),
        ("the LSO passes an open transaction", "seal txn", "invariant 7", {CORE + "state.lso_of": _blind_to_open}),
        ("a marker's LSO passes an open transaction", "two aborts", "R21", {CORE + "append_rules.lso_of": _blind_to_open}),
        ("the search for aborts ends at a marker behind the range", "two aborts", "R10", {HERE + "read.collect_aborted_txns": _search_until_this_marker}),
        ("aborted transactions are looked for in one segment", "seal txn", "R10", {HERE + "read.collect_aborted_txns": _search_one_index}),
        ("a .txnindex lacks those that began earlier", "seal txn", "W38", {HERE + "seal.segments.build_index": _index_of_those_that_began_here}),
        ("the active segment is sealed too", "seal", "W37", {HERE + "seal.finished_segments": _all_segments}),
        ("two sealers share a file name", "seal", "W4", {HERE + "seal._seal_one": _seal_with_one_name}),
        ("a segment is declared sealed without its snapshot", "reader", "W38", {HERE + "seal.put_pure": _no_snapshots}),
        ("cleaned runs are not current", "reader", "R5", {CORE + "chain.parse_listing": _without_clean}),
        ("nobody lists again when an index is gone", "reader", "R15", {HERE + "read.relisting": _stubborn}),
        ("a snapshot lacks producers", "seal", "W38, C11", {HERE + "seal.to_snapshot": _without_producers}),
    )
)  # fmt: skip
