"""An operation in a process that really dies, and the restart in another one.

Processes come from the fork server. So each of them costs milliseconds, and none inherits state of another.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path

from lab.testing.fork_server import fork_server
from tests.crash import operations
from tests.crash.operations import Restart
from txlog.storage.open import open_object_store
from txlog.testing.failing_store import FailingStore, Fault, Moment

WRITES = r"^(put|write_file|delete)(?!\S* __probe/)"
ENDLESS = 500
LIMIT_S = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a store is, for any process."""

    url: str
    options: Mapping[str, object] = field(default_factory=dict)


@dataclass(slots=True)
class Tally:
    """The counts of kills and restarts."""

    kills: int = 0
    restarts: int = 0


def kill_everywhere(
    name: str, place: Callable[[str], Place], scratch: Path, *, moments: tuple[Moment, ...] = ("before", "after")
) -> Tally:
    """Send SIGKILL before and after every write of an operation; after each kill a new process checks the store.

    Raises AssertionError with what the new process printed.
    """
    objects = operations.prepared(name, 2)
    tally = Tally()
    restarted: _Restarted | None = None
    for moment in moments:
        for number in range(1, ENDLESS):
            here = place(f"{moment}-{number}")
            operations.fill(open_object_store(here.url, here.options), objects)
            notes = scratch / f"notes-{moment}-{number}"
            fault = Fault(action="kill", moment=moment, match=WRITES, number=number)
            dying = _start(act, here, name, fault, str(notes))
            # The restart after the previous kill runs at the same time: there are two cores.
            status = _wait(dying)
            if restarted is not None:
                restarted.check()
                restarted = None
            assert status in (0, -signal.SIGKILL), (
                f"{name}, kill {moment} write {number}: the process ended with {status}"
            )
            if status == 0:
                break
            tally.kills += 1
            tally.restarts += 1
            how: Restart = "init" if number % 2 else "maintenance"
            restarted = _Restarted(here, name, notes, how, f"{name}, killed {moment} write {number}, restart by {how}")
        else:
            raise AssertionError(f"{name} never came to its end")
    return tally


def act(place: Place, name: str, fault: Fault, notes: str) -> None:
    """Run the operation in the process that dies."""
    descriptor = os.open(notes, os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    def note(event: str, unit: str) -> None:
        # This is one write, directly to the kernel: the note survives the kill.
        os.write(descriptor, json.dumps([event, unit]).encode() + b"\n")

    operations.run(name, FailingStore(open_object_store(place.url, place.options), fault), note)


def recover(place: Place, name: str, notes: str, how: Restart) -> None:
    """Recover in the process after it. It writes what it finds wrong beside the notes."""
    lines: list[str] = []
    errors = open(f"{notes}.error", "w")  # noqa: SIM115  as long as the process lives: a fatal signal writes to it too
    faulthandler.enable(errors)
    try:
        lines = Path(notes).read_text().splitlines() if os.path.exists(notes) else []
        noted = [(event, unit) for event, unit in map(json.loads, lines)]
        operations.restart(name, open_object_store(place.url, place.options), noted, how)
    except BaseException:
        print(f"noted {lines}\n{traceback.format_exc()}", file=errors, flush=True)
        raise SystemExit(1) from None


class _Restarted:
    """A restart that is running."""

    def __init__(self, place: Place, name: str, notes: Path, how: Restart, what: str) -> None:
        self._what = what
        self._error = Path(f"{notes}.error")
        self._process = _start(recover, place, name, str(notes), how)

    def check(self) -> None:
        status = _wait(self._process)
        printed = self._error.read_text() if self._error.exists() else ""
        assert status == 0, f"{self._what}: status {status}\n{printed}"


def _start(target: Callable[..., None], *arguments: object) -> BaseProcess:
    process = fork_server().Process(target=target, args=arguments)
    process.start()
    return process


def _wait(process: BaseProcess) -> int:
    process.join(LIMIT_S)
    if process.exitcode is None:
        process.kill()
        process.join()
        raise AssertionError(f"process {process.pid} took longer than {LIMIT_S} s")
    status = process.exitcode
    process.close()
    return status
