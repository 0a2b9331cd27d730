"""What does a call that runs out of time name as the cause?"""

from __future__ import annotations

import pytest

from txlog.client.session.retry import Limit, limited
from txlog.core.effects import Gather, Get, Program
from txlog.errors import StorageError, TxlogTimeoutError
from txlog.testing.clock import ManualClock


def reads(*paths: str) -> Program[None]:
    for path in paths:
        yield Get(path)


def beside(*programs: Program[None]) -> Program[None]:
    yield Gather(programs)


def test_a_time_out_names_the_last_failure_also_of_a_program_beside() -> None:
    clock = ManualClock()
    limit = Limit(
        clock.monotonic_ms() + 100, lambda met: TxlogTimeoutError(f"late: {met}"), 0, lambda _: 0, lambda _: None
    )
    gathered = next(limited(beside(reads("a"), reads("b", "c")), clock, limit))
    assert isinstance(gathered, Gather)
    failing, waiting = gathered.programs
    assert next(failing) == Get("a")
    assert next(waiting) == Get("b")
    with pytest.raises(StorageError):
        failing.throw(StorageError("the disk is gone"))
    clock.advance_ms(101)
    with pytest.raises(TxlogTimeoutError, match="late: the disk is gone"):
        waiting.send(None)
