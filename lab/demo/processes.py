"""How does the demo start its processes, and make sure that none of them stays behind?

A `Crew` starts them and always kills those that are left: a process stopped by SIGSTOP would otherwise wait for ever.
It checks how each process ended: a kill at the wrong place is an error.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

from lab.demo import worker
from txlog.errors import TxlogError

LIMIT_S = 600
"""How long a process may take; one that hangs must not hang the demo."""


class Worker:
    """One process of `lab.demo.worker`. `id` is the operating system's."""

    def __init__(self, role: str, url: str, faults: Sequence[str], environment: Mapping[str, str]) -> None:
        self.role = role
        # A file, not a pipe, because it is read only after the process has ended.
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  `end` closes it
        self._process = subprocess.Popen(
            [sys.executable, "-m", worker.__name__, role, url, *faults],
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, **environment},
            text=True,
        )
        self.id = self._process.pid
        self._overdue = False
        self._timer = threading.Timer(LIMIT_S, self._end_overdue)
        self._timer.daemon = True
        self._timer.start()

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield the events that the process reports, until it ends."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            yield json.loads(line)

    def wait_stopped(self) -> None:
        """Return when it has stopped itself with SIGSTOP. Raises TxlogError if it ended instead."""
        _, status = os.waitpid(self.id, os.WUNTRACED)
        if os.WIFSTOPPED(status) and os.WSTOPSIG(status) == signal.SIGSTOP:
            return
        # This call has reaped it, and Popen cannot know.
        self._process.returncode = os.waitstatus_to_exitcode(status) if not os.WIFSTOPPED(status) else None
        raise TxlogError(self._unexpected("to be stopped by SIGSTOP"))

    def resume(self) -> None:
        """Continue a stopped process."""
        self._process.send_signal(signal.SIGCONT)

    def terminate(self) -> None:
        """Ask it to end in order (SIGTERM)."""
        self._process.send_signal(signal.SIGTERM)

    def wait_killed(self) -> None:
        """Return when SIGKILL has ended it. Raises TxlogError if it ended in another way."""
        if self._wait() != -signal.SIGKILL or self._overdue:
            raise TxlogError(self._unexpected("to be killed by SIGKILL"))

    def wait_done(self) -> None:
        """Return when it has ended successfully. Raises TxlogError with its output if it failed."""
        if self._wait() != 0:
            raise TxlogError(self._unexpected("to come to its end"))

    def wait_failed(self, error: str) -> str:
        """Return its error output after it has failed with `error`. Raises TxlogError if it ended in another way."""
        if self._wait() != worker.FAILED or not self.errors().startswith(f"{error}: "):
            raise TxlogError(self._unexpected(f"to fail with {error}"))
        return self.errors()

    def errors(self) -> str:
        """Return what it has printed to standard error."""
        self._errors.seek(0)
        return self._errors.read().strip()

    def end(self) -> None:
        """Kill it, stopped or not, if it still runs; idempotent."""
        self._timer.cancel()
        if self._process.returncode is None:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._errors.close()

    def _wait(self) -> int:
        for _ in self.events():
            pass
        return self._process.wait()

    def _end_overdue(self) -> None:
        self._overdue = True
        self._process.kill()

    def _unexpected(self, expected: str) -> str:
        code = self._process.returncode
        if self._overdue:
            found = f"it took longer than {LIMIT_S} s"
        elif code is None:
            found = "another signal stopped it"
        elif code < 0:
            found = f"{signal.Signals(-code).name} ended it"
        else:
            found = f"it ended with status {code}"
        printed = self.errors()
        return f"process {self.id} ({self.role}) was {expected}; {found}" + (
            f", and printed:\n{printed}" if printed else ""
        )


class Crew:
    """The processes of one demo; leaving the block kills those that still run."""

    def __init__(self, url: str, storage_options: Mapping[str, object] | None = None) -> None:
        self._url = url
        # Not an argument: those are visible to every user of the machine, and options may hold credentials.
        self._environment = {worker.STORAGE_OPTIONS_VARIABLE: json.dumps(dict(storage_options or {}))}
        self._workers: list[Worker] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for started in self._workers:
            started.end()

    def start(self, role: str, *faults: str, checkpoint: str = "") -> Worker:
        """Start a process in that role; `faults` define where it kills or stops itself, `checkpoint` is for a query."""
        environment = {**self._environment, worker.CHECKPOINT_VARIABLE: checkpoint}
        started = Worker(role, self._url, faults, environment)
        self._workers.append(started)
        return started
