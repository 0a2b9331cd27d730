"""Which lines of txlog does a call run, and what happens if something occurs right before one of them?

An interrupt (Ctrl-C, a time-out of a framework) or a pause can arrive at each line. Python runs signal handlers between
two bytecodes of the main thread, so "before a line" is where a handler can raise. `lines_of` lists the lines that a
call runs; `at_line` runs the call again and acts before one of them.
"""

from __future__ import annotations

import dis
import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import txlog

ROOT = str(Path(txlog.__file__).parent)


class Line(NamedTuple):
    """The `nth` time (from 1) that this thread is about to run a line; `file` is relative to the package."""

    file: str
    number: int
    nth: int

    def __str__(self) -> str:
        return f"{self.file}:{self.number}" + (f" (time {self.nth})" if self.nth > 1 else "")


@functools.cache
def ends_of_blocks(code: CodeType) -> frozenset[int]:
    """Return where the code leaves `with` blocks without an error: it goes back to the line of the `with`.

    No signal handler runs between the end of the block and `__exit__`, so no interrupt keeps a lock there.
    """
    steps = list(dis.get_instructions(code))
    ends = [
        at
        for at in range(len(steps) - 2)
        if all(step.opname == "LOAD_CONST" and step.argval is None for step in steps[at : at + 3])
    ]
    # A `return` in the block first puts its value below `__exit__`.
    returns = [at - 1 for at in ends if at and steps[at - 1].opname == "SWAP"]
    return frozenset(steps[at].offset for at in (*ends, *returns))


@contextmanager
def before_each_line(act: Callable[[Line], None]) -> Iterator[None]:
    """Call `act` before each line of txlog that this thread runs in the block; what `act` raises is raised at that
    line."""
    times: dict[tuple[str, int], int] = {}

    def on_line(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line" and frame.f_lasti not in ends_of_blocks(frame.f_code):
            file, number = frame.f_code.co_filename, frame.f_lineno
            times[file, number] = nth = times.get((file, number), 0) + 1
            act(Line(file[len(ROOT) + 1 :], number, nth))
        return on_line

    def on_call(frame: FrameType, event: str, _: Any) -> Any:
        return on_line if frame.f_code.co_filename.startswith(ROOT) else None

    before = sys.gettrace()
    sys.settrace(on_call)
    try:
        yield
    finally:
        sys.settrace(before)


def lines_of(call: Callable[[], object], *, times: int = 1) -> list[Line]:
    """Return the lines that `call` runs, in order: of each line the first `times` times, and its last one."""
    found: dict[Line, None] = {}
    last: dict[tuple[str, int], Line] = {}

    def note(line: Line) -> None:
        if line.nth <= times:
            found[line] = None
        last[line[:2]] = line

    with before_each_line(note):
        call()
    return [*found, *(line for line in last.values() if line not in found)]


@contextmanager
def not_counted() -> Iterator[None]:
    """Leave out the lines that a test itself runs inside a call."""
    before = sys.gettrace()
    sys.settrace(None)
    try:
        yield
    finally:
        sys.settrace(before)


@contextmanager
def at_line(where: Line, act: Callable[[], None]) -> Iterator[None]:
    """Call `act` once, before `where` runs in the block.

    An exception that it raises leaves the block from that line.
    """
    done = False

    def note(line: Line) -> None:
        nonlocal done
        if line == where and not done:
            done = True
            act()

    with before_each_line(note):
        yield


def interrupted(where: Line, call: Callable[[], object]) -> bool:
    """Run `call` with a KeyboardInterrupt before `where`. Return whether the interrupt came out of the call."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    try:
        with at_line(where, interrupt):
            call()
    except KeyboardInterrupt:
        return True
    return False
