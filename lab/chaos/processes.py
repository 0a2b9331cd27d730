"""How are processes started, killed, stopped and resumed, so that none is ever left behind?

The fork server starts them, so a restart takes milliseconds. On Linux each one dies with its parent
(`workers.die_with_parent`), and the fork server dies with the supervisor. Signals go through a pidfd, which cannot mean
another process with the same number.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.process import BaseProcess
from typing import Protocol

from lab.chaos import roles
from lab.chaos.plan import Assignment
from lab.testing.fork_server import fork_server


class Process(Protocol):
    """A running process."""

    assignment: Assignment
    pid: int
    stopped: bool
    lingers: bool
    """Whether processes that it started may outlive it for a while."""

    def status(self) -> int | None:
        """Return the exit status, negative for a signal; None while the process lives."""

    def kill(self) -> None: ...
    def stop(self) -> None: ...
    def resume(self) -> None: ...
    def finish(self) -> None:
        """Ask the process to end after its current work."""

    def end(self) -> None:
        """End the process and all that it started; they are dead when this returns."""


class Worker:
    """A process of `roles.run`."""

    lingers = False

    def __init__(self, assignment: Assignment) -> None:
        self.assignment = assignment
        self.stopped = False
        self._process: BaseProcess = fork_server().Process(target=roles.run, args=(assignment,), name=assignment.source)
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid
        self._pidfd = _open_pidfd(self.pid)

    def status(self) -> int | None:
        return self._process.exitcode

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def stop(self) -> None:
        self.stopped = True
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.stopped = False
        self._signal(signal.SIGCONT)

    def finish(self) -> None:
        self.resume()
        self._signal(signal.SIGTERM)

    def end(self) -> None:
        if self.status() is None:
            self.kill()
        self._process.join()
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None

    def _signal(self, number: signal.Signals) -> None:
        if self.status() is not None:
            return
        with suppress(ProcessLookupError):
            if self._pidfd is not None:
                signal.pidfd_send_signal(self._pidfd, number)
            else:
                os.kill(self.pid, number)


class Program:
    """A process of another program (`python -m module`), with its child processes, in its own session."""

    lingers = True

    def __init__(self, assignment: Assignment, module: str, environment: Mapping[str, str]) -> None:
        self.assignment = assignment
        self.stopped = False
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.pid = self._process.pid

    def status(self) -> int | None:
        return self._process.poll()

    def kill(self) -> None:
        self._process.kill()

    def stop(self) -> None:
        self.stopped = True
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.stopped = False
        self._process.send_signal(signal.SIGCONT)

    def finish(self) -> None:
        self.resume()
        self._process.terminate()

    def end(self) -> None:
        # The session has the number of its leader, which stays in use while any process of the session lives.
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()


def _open_pidfd(pid: int) -> int | None:
    if sys.platform != "linux":
        return None
    with suppress(OSError):
        return os.pidfd_open(pid)
    return None
