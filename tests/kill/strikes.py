"""How does a kill reach its point, over the processes of Spark?

All processes share the files in one folder. The driver writes `armed.json`, the next strike. The process that first
reaches its point creates `struck-<number>`, which only one process can do, with what it hit, and kills the victim. So
every strike happens once, and a task that runs again passes.

Spark's Python processes get this module by value: it imports nothing from `tests` there.
"""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

ARMED, PIDS = "armed.json", "pids.json"

STEP = "TXLOG_STRIKES_STEP"
"""The environment variable with the sink's call that this process runs.

It is not an attribute: a process that got this module by value twice has it twice. A store that stays open between
micro-batches would see an earlier call.
"""


class Striker:
    """The calls that a process makes at each point that it passes."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def at_task(self, name: str) -> None:
        """Pass a point in the rows' path."""
        armed = self._armed()
        if armed is not None and (armed["hook"], armed["name"]) == ("task", name):
            self._strike(armed)

    def at_request(self, what: str) -> None:
        """Pass a request to the store, before or after it, or `done`, the end of a call."""
        armed, step = self._armed(), os.environ.get(STEP)
        if armed is not None and (armed["hook"], armed["step"]) == ("store", step) and re.search(armed["match"], what):
            self._strike(armed)

    def at_file(self, path: str) -> None:
        """Pass a new file."""
        armed = self._armed()
        if armed is not None and armed["hook"] == "file" and re.search(armed["match"], path):
            self._strike(armed)

    def _armed(self) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = json.loads((Path(self._folder) / ARMED).read_text())
        except (FileNotFoundError, ValueError):
            return None
        return found

    def _strike(self, armed: dict[str, Any]) -> None:
        try:
            mark = os.open(f"{self._folder}/struck-{armed['number']}", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except FileExistsError:
            return
        pids = json.loads((Path(self._folder) / PIDS).read_text())
        victims = {
            "driver": lambda: [pids["jvm"], pids["driver"]],
            "executor": lambda: [_java_above(os.getpid())],
            "worker": list,
            "stopped": lambda: [pids["jvm"]],
        }[armed["victim"]]()
        os.write(mark, json.dumps({**armed, "killed": victims or [os.getpid()]}).encode())
        os.close(mark)
        if armed["victim"] == "stopped":
            os.kill(pids["jvm"], signal.SIGSTOP)
            return
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        # A worker of the killed JVM must not continue either; the driver's own program has just killed itself.
        os.kill(os.getpid(), signal.SIGKILL)


class StrikingStore:
    """An object store that reports each request to the striker, before and after it is applied."""

    def __init__(self, inner: Any, striker: Striker) -> None:
        self._inner = inner
        self._striker = striker

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def put_if_absent(self, path: str, data: bytes) -> Any:
        line = data.partition(b"\n")[0].decode("latin-1")
        return self._do(f"put_if_absent {path} {line}", lambda: self._inner.put_if_absent(path, data))

    def write_file(self, path: str, chunks: Iterable[bytes]) -> Any:
        return self._do(f"write_file {path}", lambda: self._inner.write_file(path, chunks))

    def _do(self, what: str, request: Callable[[], T]) -> T:
        self._striker.at_request(f"before {what}")
        answer = request()
        self._striker.at_request(f"after {what}")
        return answer


def _java_above(pid: int) -> int:
    """Return the JVM to which a Python worker belongs."""
    while pid > 1:
        stat = Path(f"/proc/{pid}/stat").read_text()
        name, rest = stat[stat.index("(") + 1 : stat.rindex(")")], stat[stat.rindex(")") + 2 :].split()
        if name == "java":
            return pid
        pid = int(rest[1])
    raise AssertionError("no JVM above this process")
