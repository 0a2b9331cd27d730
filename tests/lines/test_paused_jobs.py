"""A maintenance job that stood still while others did the same job, and vacuum deleted what was older than the grace,
harms nothing.

The jobs and their store are those of two of everything, with a published topic. A job is paused at each step of its
process.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

import txlog
from tests.lines.pauses import (
    PATIENT,
    SlowClock,
    SlowStore,
    Step,
    Steps,
    Where,
    every,
    judge_all,
    some,
)
from tests.maintenance.test_two_of_everything import (
    HOUR_MS,
    JOBS,
    World,
    judged,
    maintain,
    prepared,
    produce,
)
from txlog.client.store import Store
from txlog.errors import TxlogError
from txlog.testing.clock import SeededIds


@pytest.fixture(autouse=True)
def patient_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("txlog.maintenance.vacuum.STEP_TIMEOUT_MS", PATIENT["default.api.timeout.ms"])


@cache
def published() -> tuple[dict[str, Any], int]:
    """Return the store of two of everything, and with a topic that is published and has more rows since."""
    world = World(*prepared())
    store = world.open()
    store.alter_topic("facts", config={"publish.formats": "delta,iceberg"})
    maintain(world.open())
    produce(store)
    world.clock.advance_ms(HOUR_MS // 2)
    return dict(world.memory._objects), world.clock.now_ms()


ALL = ["maintain", "vacuum", "remake", "records", "read", "fsck", "export", "expire", "group", "partitions", "delete"]
SAMPLE = 4
"""Jobs that `make test` tries."""


def same_job(world: World, name: str) -> None:
    """Another daemon does the same."""
    world.clock.advance_ms(HOUR_MS // 4)
    JOBS[name][0](world.open())


def rounds_and_vacuum(world: World, name: str) -> None:
    """Another daemon does the same, then whole rounds run, and what they replace is deleted after the grace."""
    if name in ("maintain", "vacuum", "expire"):
        JOBS[name][0](world.open())
    for _ in range(3):
        produce(world.open())
        maintain(world.open())
        world.clock.advance_ms(2 * HOUR_MS)
    maintain(world.open())


MEANWHILE = (same_job, rounds_and_vacuum)


def prepare() -> tuple[World, Steps, Store]:
    world, steps = World(*published()), Steps()
    store = txlog.open(
        "memory://",
        object_store=SlowStore(world.memory, steps),
        clock=SlowClock(world.clock, steps),
        ids=SeededIds(77),
        config={"linger.ms": 0, "delete.grace.ms": HOUR_MS, "metadata.max.age.ms": 0, **PATIENT},
    )
    return world, steps, store


def life(name: str, folder: Path, where: Where, meanwhile: Callable[[World, str], None]) -> bool:
    world, steps, store = prepare()
    job, allowed = JOBS[name]
    wrong = []
    try:
        steps.paused(where, lambda: meanwhile(world, name), lambda: job(store))
    except allowed:
        pass
    except (TxlogError, AssertionError) as error:
        # The one job that reads a snapshot refuses it after the grace.
        if name != "read" or "this snapshot is" not in str(error):
            wrong.append(f"{name}: {type(error).__name__}: {str(error)[:600]}")
    with TemporaryDirectory(dir=folder) as copy:
        wrong += judged(world, Path(copy))
    assert not wrong, wrong
    return steps.since >= 0


def steps(name: str) -> list[Step]:
    """Return the requests of a job, before and after the answer of the store."""
    _, counted, store = prepare()
    return [step for step in counted.of(lambda: JOBS[name][0](store)) if " " in step.what]


@pytest.mark.parametrize("number", range(SAMPLE), ids=lambda number: ALL[number])
def test_a_pause_at_some_requests(number: int, tmp_path: Path) -> None:
    name = ALL[number]
    judge_all(some(steps(name), MEANWHILE, 2 * number + 1, 1), partial(life, name, tmp_path))


@pytest.mark.exhaustive
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", ALL)
def test_a_pause_at_every_request(name: str, tmp_path: Path) -> None:
    judge_all(every(steps(name), MEANWHILE), partial(life, name, tmp_path))
