"""How does a program run one request at a time, between those of all others?

A task stops at each request to the store. The programs of a Gather run beside each other, as the driver's threads would
run them. Each has a waiting request, and the world chooses. A program that sleeps waits for the world's clock.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from lab.simulate.cluster import REQUESTS, Cluster, DiedError, Fault, Machine, Request
from txlog.core.effects import Effect, Gather, Sleep


class Fiber:
    """One program of a task: the task's own, or one of a Gather."""

    def __init__(self, program: Generator[Any, Any, Any], parent: Fiber | None, place: int) -> None:
        self.program = program
        self.parent = parent
        self.place = place
        """The index among the programs of its Gather."""
        self.request: Request | None = None
        self.wakes_at_ms: int | None = None
        self.results: list[Any] = []
        self.errors: list[Exception | None] = []
        self.running = 0
        """Programs of its Gather that are not done."""


class Task:
    """A program of one machine. `result` after `done`."""

    def __init__(self, cluster: Cluster, machine: Machine, program: Generator[Any, Any, Any]) -> None:
        self.machine = machine
        self.done = False
        self.died = False
        self.error: Exception | None = None
        self._cluster = cluster
        self._fibers: list[Fiber] = []
        self._start(Fiber(program, None, 0))

    @property
    def fibers(self) -> tuple[Fiber, ...]:
        """Return the programs that wait for the store or the clock."""
        return tuple(self._fibers)

    def ready(self, now_ms: int) -> list[Fiber]:
        """Return the programs whose next step is possible."""
        return [f for f in self._fibers if f.wakes_at_ms is None or f.wakes_at_ms <= now_ms]

    @property
    def wakes_at_ms(self) -> int | None:
        """Return when the first sleeper wakes."""
        return min((f.wakes_at_ms for f in self._fibers if f.wakes_at_ms is not None), default=None)

    def step(self, fiber: Fiber, fault: Fault | None = None) -> None:
        """Make the fiber's request, or wake it."""
        self._fibers.remove(fiber)
        request, fiber.request, fiber.wakes_at_ms = fiber.request, None, None
        if request is None:
            self._resume(fiber, None, None)
            return
        try:
            answer = self._cluster.perform(request, fault)
        except DiedError:
            self.kill()
        except Exception as error:
            self._resume(fiber, None, error)
        else:
            self._resume(fiber, answer, None)

    def kill(self) -> None:
        """End the process with everything that it was about to do."""
        self._fibers = []
        self.done = self.died = True

    def _start(self, fiber: Fiber) -> None:
        self._resume(fiber, None, None)

    def _resume(self, fiber: Fiber, answer: Any, error: Exception | None) -> None:
        while True:
            try:
                effect: Effect = fiber.program.send(answer) if error is None else fiber.program.throw(error)
            except StopIteration as end:
                self._leave(fiber, end.value, None)
                return
            except Exception as raised:
                self._leave(fiber, None, raised)
                return
            answer, error = None, None
            if isinstance(effect, Gather):
                if effect.programs:
                    self._gather(fiber, effect)
                    return
                answer = ()
            elif isinstance(effect, Sleep):
                fiber.wakes_at_ms = self._cluster.passed_ms + max(effect.ms, 0)
                self._fibers.append(fiber)
                return
            elif isinstance(effect, REQUESTS):
                fiber.request = effect
                self._fibers.append(fiber)
                return
            else:
                answer = self._cluster.ask(effect, self.machine)

    def _gather(self, fiber: Fiber, gather: Gather) -> None:
        count = len(gather.programs)
        fiber.results, fiber.errors, fiber.running = [None] * count, [None] * count, count
        for place, program in enumerate(gather.programs):
            self._start(Fiber(program, fiber, place))

    def _leave(self, fiber: Fiber, value: Any, error: Exception | None) -> None:
        parent = fiber.parent
        if parent is None:
            self.done, self.error = True, error
            return
        parent.results[fiber.place], parent.errors[fiber.place] = value, error
        parent.running -= 1
        if parent.running == 0:
            first = next((each for each in parent.errors if each is not None), None)
            self._resume(parent, tuple(parent.results), first)
