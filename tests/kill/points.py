"""Where in a micro-batch can something die?

A point is a name and a way to recognise it: in the rows' own path (`task`), at a request of txlog to its store
(`store`), or by a file that appears (`file`, which any sink has). A strike is a point and a victim, killed with
SIGKILL:

    driver    the driver's JVM and its Python program, at once
    worker    the Python process at the point: of a task, or the one that begins or commits a micro-batch
    executor  the JVM of the executor that runs the task (in a local session that is the driver)
    stopped   no process is killed: the driver's JVM gets SIGSTOP, and continues after a signal of the harness
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Victim = Literal["driver", "worker", "executor", "stopped"]
Hook = Literal["task", "store", "file"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One moment of a micro-batch."""

    name: str
    hook: Hook
    victims: tuple[Victim, ...] = ("driver",)
    step: str = ""
    """For hook "store": the call of the sink, "begin", "write" or "commit"."""
    match: str = ""
    """For hook "store": an expression, searched in `"<moment> <verb> <path> <first line written>"`; "done" is the
    call's end.

    For hook "file": an expression that is searched in a new file's path, `checkpoint/…` or `sink/…`.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    """A kill that is planned."""

    point: Point
    victim: Victim

    def __str__(self) -> str:
        return f"{self.point.name} | {self.victim}"


ON_EXECUTORS: tuple[Victim, ...] = ("worker", "executor", "driver")
BESIDE_THE_DRIVER: tuple[Victim, ...] = ("worker", "driver")

PLANNED = Point(name="the batch is planned", hook="file", match=r"^checkpoint/offsets/\d+$")
FIRST_ROW = Point(name="before the first row", hook="task", victims=ON_EXECUTORS)
HALF = Point(name="half of the rows computed", hook="task", victims=ON_EXECUTORS)
LAST_ROW = Point(name="all rows computed", hook="task", victims=ON_EXECUTORS)
NOTED = Point(name="Spark has noted the commit", hook="file", match=r"^checkpoint/commits/\d+$")

COMMON = (PLANNED, FIRST_ROW, HALF, LAST_ROW, NOTED)
"""Every sink has these points, and adds its own."""


def store_point(name: str, step: str, match: str) -> Point:
    """Return a point at a request of txlog. Tasks write files on executors, all other steps run beside the driver."""
    victims = ON_EXECUTORS if step == "write" else BESIDE_THE_DRIVER
    return Point(name=name, hook="store", step=step, match=match, victims=victims)


_TABLE = "put_if_absent __transaction_state/"
_OFFSETS = "put_if_absent __consumer_offsets/"

BEFORE_FENCING = store_point("before the older run is fenced", "begin", rf'^before {_TABLE}.*"state":"EMPTY"')
BEGUN = store_point("the older run is fenced", "begin", rf'^after {_TABLE}.*"state":"EMPTY"')
BEFORE_FILE = store_point("before a file of rows", "write", "^before write_file ")
AFTER_FILE = store_point("a file of rows is written", "write", "^after write_file ")
TASK_DONE = store_point("the task's message is ready", "write", "^done$")
BEFORE_REGISTERED = store_point("before the offsets are registered", "commit", rf'^before {_TABLE}.*"state":"ONGOING"')
REGISTERED = store_point("the offsets are registered", "commit", rf'^after {_TABLE}.*"state":"ONGOING"')
PENDING = store_point("the offsets are pending", "commit", rf'^after {_OFFSETS}.*"kind":"data"')
BEFORE_DECIDED = store_point("before the decision", "commit", rf'^before {_TABLE}.*"state":"PREPARE_COMMIT"')
DECIDED = store_point("the commit is decided", "commit", rf'^after {_TABLE}.*"state":"PREPARE_COMMIT"')
BEFORE_VISIBLE = store_point(
    "before the first row is visible", "commit", r'^before put_if_absent out/.*"kind":"commit"'
)
VISIBLE = store_point("a partition's rows are visible", "commit", r'^after put_if_absent out/.*"kind":"commit"')
OFFSETS_VISIBLE = store_point("the offsets are committed", "commit", rf'^after {_OFFSETS}.*"kind":"commit"')
BEFORE_COMPLETE = store_point(
    "before the commit is complete", "commit", rf'^before {_TABLE}.*"state":"COMPLETE_COMMIT"'
)
COMPLETE = store_point("the commit is complete", "commit", rf'^after {_TABLE}.*"state":"COMPLETE_COMMIT"')
RETURNED = store_point("the sink is done, Spark has not noted it", "commit", "^done$")

_COMMIT = (
    BEFORE_REGISTERED,
    REGISTERED,
    PENDING,
    BEFORE_DECIDED,
    DECIDED,
    BEFORE_VISIBLE,
    VISIBLE,
    OFFSETS_VISIBLE,
    BEFORE_COMPLETE,
    COMPLETE,
)

NATIVE = tuple(replace(point, victims=("driver",)) for point in _COMMIT)
"""After `install()` a commit works in the driver's own program, so each of its kills hits the driver."""

TXLOG = (BEFORE_FENCING, BEGUN, BEFORE_FILE, AFTER_FILE, TASK_DONE, *_COMMIT, RETURNED)
