"""Scenarios of small transactions, and mutants of their rules.

A producer keeps the rows of a small transaction until its commit. The PREPARE_COMMIT holds the rows, or an object that
it names does, and each COMMIT carries those of its partition. This is what producers do by default.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lab.explore import client as calls, keeper_calls, member_calls
from lab.explore.cleaner import merge, vacuum
from lab.explore.client import Call, Client
from lab.explore.explorer import Budget
from lab.explore.mutant import Mutant
from lab.explore.scene import TABLE, A, B, C, Scenario, Scene, Size, context
from txlog.core import fates
from txlog.core.effects import Program
from txlog.core.names import TopicPartition
from txlog.protocol import staged_lists

ALL_LISTED = {"txlog.protocol.staged_lists.MAX_STAGED_INLINE_BYTES": 0}
"""The parts of each staged transaction are in an object of their own."""


def hold(*words: tuple[TopicPartition, str]) -> tuple[Call, ...]:
    """Keep one row for each of these partitions until the commit."""
    return tuple(calls.stage(tp, word, inline=True) for tp, word in words)


def resume() -> Call:
    """Take the id over, and then read where the group stands (W42)."""
    return take_over_and_fetch


def take_over_and_fetch(client: Client) -> Program[Client]:
    """Let a job resume from the offsets of its group."""
    client = yield from calls.init()(client)
    return client if client.stopped else (yield from member_calls.fetch_offsets()(client))


def work(tp: TopicPartition, word: str, offset: int) -> Call:
    """Process the range that begins where the group stands, if no job has committed it."""

    def call(client: Client) -> Program[Client]:
        if client.started is not None:
            return client.noted("done", stop=True)
        client = yield from calls.stage(tp, word, inline=True)(client)
        client = yield from member_calls.send_offsets(offset, expected=False)(client)
        return client if client.stopped else (yield from calls.commit()(client))

    return call


# -- scenarios --------------------------------------------------------------------------------------------------------


def _small(size: Size) -> Scene:
    full = size == "full"
    scene = Scene(transactional_ids=("x",), partitions=(A, B), budget=Budget(lost=1))
    owner = scene.before("x", scene.client("x"), calls.init(), *hold((A, "a"), (B, "b")))
    scene.actor("owner", owner, calls.commit())
    scene.actor("takeover", scene.client("x"), calls.init())
    if full:
        scene.actor("sweep", scene.client(), keeper_calls.sweep())
    return scene


def _small_next(size: Size) -> Scene:
    """The owner goes on at once, so its second decision implies the COMPLETE of the first one."""
    full = size == "full"
    scene = Scene(transactional_ids=("x",), partitions=(A, B), budget=Budget(lost=1 if full else 0))
    owner = scene.before("x", scene.client("x"), calls.init(), *hold((A, "aa"), (B, "ab")))
    scene.actor("owner", owner, calls.commit(), *hold((A, "ba"), (B, "bb")), calls.commit())
    scene.actor("looks", scene.client(), keeper_calls.look(A, B))
    scene.actor("sweep", scene.client(), keeper_calls.sweep())
    return scene


def _small_sealed(size: Size) -> Scene:
    """Each COMMIT with rows is sealed at once; then the segments are merged."""
    full = size == "full"
    scene = Scene(ctx=context(batches=1), transactional_ids=("x",), budget=Budget(lost=1 if full else 0))
    owner = scene.before("x", scene.client("x"), calls.init(), *hold((A, "a")), calls.commit(), *hold((A, "b")))
    plain = scene.before("p", scene.client(), calls.idempotent(), calls.send(A, "p"))
    scene.actor("owner", owner, calls.commit())
    scene.actor("plain", plain, calls.send(A, "q"), merge(A))
    scene.actor("reader", scene.client(), *[keeper_calls.read(A)] * (2 if full else 1))
    return scene


def _small_list(size: Size) -> Scene:
    """The rows are in an object beside the table, and vacuum judges it."""
    full = size == "full"
    scene = Scene(
        transactional_ids=("x",),
        deletable=lambda path: path.endswith(".staged"),
        vacuumed=True,
        budget=Budget(lost=1 if full else 0),
        recovers=False,
    )
    owner = scene.before("x", scene.client("x"), calls.init(), *hold((A, "a")))
    if full:
        scene.actor("owner", owner, calls.commit())
    else:
        scene.dies("x!", owner, calls.commit(), A.folder)
        slow = replace(scene.client(), views=owner.views, prepare=scene.prepared())
        scene.actor("slow", slow, keeper_calls.roll_forward())
    scene.actor("takeover", scene.client("x"), calls.init(), *([*hold((A, "b")), calls.commit()] if full else []))
    scene.cleaner("vacuum", vacuum(TABLE))
    return scene


def _small_deletion(size: Size) -> Scene:
    """One of two topics is deleted, and created again, before or while the transaction is committed."""
    full = size == "full"
    scene = Scene(transactional_ids=("x",), partitions=(C,), budget=Budget(lost=1 if full else 0))
    scene.before("t", scene.client(), calls.make_topic(A.topic), calls.make_topic(C.topic))
    opened = (calls.init(), calls.open_topic(A.topic, C.topic))
    owner = scene.before("x", scene.client("x"), *opened, *hold((A, "xa"), (C, "xc")))
    scene.actor("owner", owner, calls.commit())
    scene.actor("topics", scene.client(), calls.delete_topic(A.topic), *[calls.make_topic(A.topic)] * full)
    return scene


def _small_mixed(size: Size) -> Scene:
    """Rows were sent, others are held, and a file is staged. The next transaction is aborted."""
    full = size == "full"
    scene = Scene(transactional_ids=("x",), partitions=(A, B), budget=Budget(lost=1 if full else 0))
    began = (calls.init(), calls.send(A, "a"), *hold((A, "b")), calls.stage(B, "c"))
    owner = scene.before("x", scene.client("x"), *began)
    scene.actor("owner", owner, calls.commit(), *hold((A, "d")), calls.abort())
    scene.actor("sweep", scene.client(), keeper_calls.sweep(), *[keeper_calls.sweep()] * full)
    return scene


def _resumes(size: Size) -> Scene:
    """A job starts again while its older instance still commits. Its offsets have no condition."""
    full = size == "full"
    scene = Scene(transactional_ids=("x",), partitions=(A,), exclusive=("range",), budget=Budget(lost=1 if full else 0))
    older = scene.before("x", scene.client("x"), resume())
    scene.actor("older", older, work(A, "range by older", 1))
    scene.actor("newer", scene.client("x"), resume(), work(A, "range by newer", 2))
    return scene


SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario(name="small", what="a small transaction over two partitions; another instance takes over", rules=(4, 5, 8), build=_small),
        Scenario(name="small next", what="one small transaction follows another, with a sweep and a snapshot", rules=(4, 5, 17), build=_small_next),
        Scenario(name="small sealed", what="COMMITs with rows are sealed, merged and read", rules=(5, 6, 13), build=_small_sealed),
        Scenario(name="small list", what="vacuum meets the object that holds the rows of a small transaction", rules=(5, 13, 16), build=_small_list, patches=ALL_LISTED),
        Scenario(name="small deletion", what="a topic of a small transaction is deleted, and created again", rules=(2, 4, 5), build=_small_deletion),
        Scenario(name="small mixed", what="a transaction that is eager, small and staged, and the next one", rules=(5, 10), build=_small_mixed),
        Scenario(name="resumes", what="a job resumes from its group's offsets beside its older instance", rules=(8, 12), build=_resumes),
    )
}  # fmt: skip


# -- mutants ----------------------------------------------------------------------------------------------------------


def _hides_commits(self: Any, producer_id: int, offset: int, kind: str = "data") -> bool:
    return kind == "commit" or bool(_HIDES(self, producer_id, offset, kind))


_HIDES = fates.AbortedRanges.hides


def _fetch_and_take_over(client: Client) -> Program[Client]:
    client = yield from member_calls.fetch_offsets()(client)
    return client if client.stopped else (yield from calls.init()(client))


def _without_held_rows(ctx: Any, txn: Any) -> Program[Any]:
    return tuple(part for part in (yield from _READ_PARTS(ctx, txn)) if not part.payload)


_READ_PARTS = staged_lists.read_parts


class _NoEntry:
    """The type of no entry of a record."""


MUTANTS: tuple[Mutant, ...] = tuple(
    Mutant(name=name, scenario=scenario, rules=rules, patches=patches)
    for name, scenario, rules, patches in (
        ("rows of a COMMIT are taken for control", "small sealed", "R11", {"txlog.core.fates.AbortedRanges.hides": _hides_commits}),
        ("a marker leaves out the rows that its PREPARE_COMMIT holds", "small", "W25", {"txlog.protocol.transactions.read_parts": _without_held_rows}),
        ("an object of rows goes while a record names it", "small list", "C8", {"txlog.protocol.vacuum_dead.TransactionEntry": _NoEntry}),
        ("a job fetches before its init", "resumes", "W42", {"lab.explore.small.take_over_and_fetch": _fetch_and_take_over}),
    )
)  # fmt: skip
