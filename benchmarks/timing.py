"""How is a call timed, in one process or in several at once?"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks.harness import Samples

Call = Callable[[], object]
"""One unit of work. It returns False if the work was refused and does not count."""
Prepare = Callable[[int], AbstractContextManager[tuple[Call, Callable[[], int]]]]
"""Sets up the process of that number, and yields its call and the number of requests so far (0 if not counted)."""

PROCESSES = multiprocessing.get_context("forkserver")
"""How processes start: from one that has imported what they need, and that has no threads."""
PROCESSES.set_forkserver_preload(["benchmarks.log", "benchmarks.rivals.kafka", "benchmarks.rivals.delta_rs"])
START_S = 120
"""Until each process of a crew is ready."""
MOST_REPEATS = 15


def no_requests() -> int:
    """Return 0: requests are not counted."""
    return 0


def timed(call: Call, times: int, requests: Callable[[], int] = no_requests, *, pause_s: float = 0) -> Samples:
    """Make the call so many times; return the milliseconds of each call and the mean number of requests.

    A pause before each call is not in its time. Requests that are made during the pauses count.
    """
    taken_ms = []
    before = requests()
    for _ in range(times):
        if pause_s:
            time.sleep(pause_s)
        started = time.perf_counter()
        call()
        taken_ms.append((time.perf_counter() - started) * 1000)
    made = requests() - before
    return {"ms": taken_ms, "requests": [made / times]} if made else {"ms": taken_ms}


def seconds(call: Call) -> Samples:
    """Make the call once; return its seconds."""
    started = time.perf_counter()
    call()
    return {"s": [time.perf_counter() - started]}


def repeated(call: Call, *, for_s: float = 1.5) -> Samples:
    """Make the call again and again for so long, but at most 15 times; return the seconds of each.

    A single call of 0.1 s says little: on a quiet machine it takes half as long again, or less, from call to call.
    """
    taken_s: list[float] = []
    while not taken_s or (len(taken_s) < MOST_REPEATS and sum(taken_s) < for_s):
        taken_s += seconds(call)["s"]
    return {"s": taken_s}


@contextmanager
def peaks() -> Iterator[dict[str, float]]:
    """Yield what has, after the block, the highest resident memory of this process and its children, in MiB by program.

    (`getrusage` would count that of the parent process.)
    """
    for process in _family(os.getpid()):
        # 5 lets Linux forget the highest value so far. The process may have ended since it was listed.
        with suppress(OSError):
            Path(f"/proc/{process}/clear_refs").write_text("5")
    found: dict[str, float] = {}
    yield found
    for process in _family(os.getpid()):
        status = dict(line.split(":", 1) for line in _lines(f"/proc/{process}/status"))
        # A process that has ended, and waits for its parent, has no memory.
        if "VmHWM" in status:
            program = status["Name"].strip().partition("3")[0]
            found[program] = found.get(program, 0) + int(status["VmHWM"].split()[0]) / 1024


def _family(process: int) -> list[int]:
    files = Path(f"/proc/{process}/task").glob("*/children")
    children = [int(child) for file in files for line in _lines(file) for child in line.split()]
    return [process, *(each for child in children for each in _family(child))]


def _lines(file: str | Path) -> list[str]:
    """Return the lines of a file of /proc; none if its process has ended."""
    try:
        return Path(file).read_text().splitlines()
    except OSError:
        return []


@dataclass(slots=True)
class _Member:
    process: multiprocessing.process.BaseProcess
    pipe: Connection


@contextmanager
def crew(prepare: Prepare, processes: int, seconds_a_turn: float) -> Iterator[Callable[[], Samples]]:
    """Yield a turn in which so many processes make their calls at once.

    The turn returns calls per second over all processes, the milliseconds of each call, and the share of refused calls.
    `prepare` is pickled.
    """
    members = []
    try:
        for number in range(processes):
            here, there = PROCESSES.Pipe()
            process = PROCESSES.Process(target=_work, args=(prepare, number, there), daemon=True)
            process.start()
            there.close()
            members.append(_Member(process, here))
        for member in members:
            _answer(member)
        yield lambda: _turn(members, seconds_a_turn)
    finally:
        for member in members:
            member.pipe.close()
        for member in members:
            member.process.join(10)
            if member.process.is_alive():
                member.process.kill()


def _turn(members: list[_Member], seconds_a_turn: float) -> Samples:
    for member in members:
        member.pipe.send(seconds_a_turn)
    taken_ms: list[float] = []
    rate, refused, requests = 0.0, 0, 0
    for member in members:
        mine_ms, elapsed_s, mine_refused, made = _answer(member)
        taken_ms += mine_ms
        rate += len(mine_ms) / elapsed_s
        refused += mine_refused
        requests += made
    done = max(len(taken_ms), 1)
    samples = {"per s": [rate], "ms": taken_ms, "refused %": [100 * refused / (done + refused)]}
    return samples | {"requests": [requests / done]} if requests else samples


def _answer(member: _Member) -> tuple[list[float], float, int, int]:
    if not member.pipe.poll(START_S):
        raise TimeoutError(f"a process of the crew did not answer within {START_S} s")
    answer = member.pipe.recv()
    if isinstance(answer, BaseException):
        raise answer
    return answer  # type: ignore[no-any-return]


def _work(prepare: Prepare, number: int, pipe: Connection) -> None:
    try:
        with prepare(number) as (call, requests):
            call()
            pipe.send(([], 0.0, 0, 0))
            while True:
                pipe.send(_calls(call, requests, pipe.recv()))
    except (EOFError, BrokenPipeError):
        return
    except Exception as error:
        pipe.send(RuntimeError(f"process {number} of the crew: {type(error).__name__}: {error}"))


def _calls(call: Call, requests: Callable[[], int], seconds_a_turn: float) -> tuple[list[float], float, int, int]:
    taken_ms: list[float] = []
    refused, before = 0, requests()
    began = now = time.perf_counter()
    while now - began < seconds_a_turn:
        started = now
        done = call() is not False
        now = time.perf_counter()
        if done:
            taken_ms.append((now - started) * 1000)
        else:
            refused += 1
    return taken_ms, now - began, refused, requests() - before
