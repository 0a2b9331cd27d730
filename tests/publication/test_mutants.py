"""Each rule of a publication, broken once: a test notices (W58, C13)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.client.world import ORDERS, World, many
from tests.publication.lives import Life, publish
from txlog.client import reading
from txlog.core import publication as deciding
from txlog.core.cleaning import MergePolicy
from txlog.core.fates import walk_batches
from txlog.core.names import TopicPartition
from txlog.core.row_runs import joined
from txlog.maintenance.merge import merge_partition
from txlog.maintenance.vacuum import vacuum
from txlog.protocol import publications, vacuum_published
from txlog.protocol.publications import read_chain
from txlog.protocol.vacuum_published import KeptFiles
from txlog.publication import publish as publishing

HOUR_MS = 3_600_000
LIVES = 12
FIRST = {
    "vacuum keeps no published file": 6,
    "a transaction that goes on behind the cut is shown in part": 0,
    "rows of aborted transactions are published": 15,
    "rows that come into the cut later are forgotten": 2,
    "a file that replaces others shows its new rows at once": 12,
    "files that left the log stay in the tables": 15,
}
"""The life that notices a mutant soonest, so it is the first to be tried."""
TP = TopicPartition("orders", 0)


@pytest.fixture
def no_formats(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(*args: Any, **more: Any) -> Iterator[Any]:
        yield from ()

    monkeypatch.setattr(publishing, "write_version", nothing)
    monkeypatch.setattr(publishing, "complete_version", nothing)
    monkeypatch.setattr(publishing._Attempt, "_is_written", lambda *_: True)


def _as_dict(changes: deciding.Changes) -> dict[str, Any]:
    return {name: getattr(changes, name) for name in changes.__dataclass_fields__}


_SPLIT = deciding._split


def _all_old(intervals: Any, shown: Any, offsets: Any) -> Any:
    old, new = _SPLIT(intervals, shown, offsets)
    return (joined(sorted((*old, *new), key=lambda run: run.first_row)), ()) if old else (old, new)


MUTANTS = {
    "vacuum keeps no published file": (KeptFiles, "judge", lambda kept, topic, dead: dead),
    "a transaction that goes on behind the cut is shown in part": (
        publications,
        "hide_transactions",
        lambda cut, later: cut,
    ),
    "rows of aborted transactions are published": (
        deciding,
        "walk_batches",
        lambda **given: walk_batches(**{**given, "aborted": ()}),
    ),
    "rows that come into the cut later are forgotten": (
        publishing,
        "compare",
        lambda *given: deciding.Changes(**{**_as_dict(deciding.compare(*given)), "copies": ()}),
    ),
    "a file that replaces others shows its new rows at once": (
        deciding,
        "_split",
        _all_old,
    ),
    "files that left the log stay in the tables": (
        publishing,
        "compare",
        lambda *given: deciding.Changes(**{**_as_dict(deciding.compare(*given)), "removed": ()}),
    ),
}


@pytest.mark.usefixtures("no_formats")
@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_rule_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, what, broken = MUTANTS[name]
    monkeypatch.setattr(where, what, broken)
    for seed in range(FIRST[name], FIRST[name] + LIVES):
        life = Life(seed)
        try:
            for _ in range(60):
                life.step()
            life.check()
        except AssertionError:
            return
        finally:
            life.close()
    pytest.fail(f"{LIVES} lives did not notice it")


@pytest.mark.usefixtures("no_formats")
@pytest.mark.parametrize("broken", [False, True])
def test_a_publisher_that_slept_does_not_name_deleted_files(broken: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Vacuum takes the number that such a publisher would use (C13)."""
    if broken:

        def nothing(*args: Any, **more: Any) -> Iterator[Any]:
            yield from ()

        monkeypatch.setattr(vacuum_published, "append_nothing", nothing)
    world = World()
    store = world.open()
    config = {"publish.formats": "delta", "publish.max.lag.ms": "0", "publish.retention.ms": "0", "segment.batches": 1}
    store.create_topic("orders", ORDERS, config=config)
    with store.producer() as producer:
        producer.send("orders", many(3000)).result()
        publish(world.open())
        producer.send("orders", many(3000, 3000)).result()
        producer.send("orders", many(10, 6000)).result()
    append = publishing._Attempt._append
    slept: list[int] = []

    def sleeps(*args: Any) -> Any:
        if not slept:
            slept.append(1)
            other = world.open()
            session = reading.read_session(other.runtime)
            merge_partition(other.runtime, session, TP, MergePolicy(target_bytes=2**30))
            for _ in range(4):
                world.clock.advance_ms(25 * HOUR_MS)
                vacuum(other.runtime, reading.read_session(other.runtime), dry_run=False)
        return append(*args)

    monkeypatch.setattr(publishing._Attempt, "_append", sleeps)
    publish(world.open())
    newest = store.runtime.run(read_chain("orders")).newest
    assert newest is not None
    missing = [path for path in newest.files if world.memory.get(f"orders/{path}") is None]
    assert bool(missing) is broken
    world.close()
