"""Where is the work of a maintenance verb done: in this process, or on the executors of an engine?

A verb plans and publishes in one process, so that one place decides what becomes visible. What it does in between, for
each run or partition, is a `Task`. A task may run more than once, also at the same time, so each run of it must write
under its own name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeAlias, TypeVar

from txlog.client.session.session import Session
from txlog.errors import TxlogError

S = TypeVar("S")
R = TypeVar("R")

Progress: TypeAlias = Callable[[object, int, int], None]
"""(what is worked on, how much of it is done, how much there is; 0 if that is not known)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task(Generic[S, R]):
    """Work on a part of a store."""

    subject: S
    """What the work is about. It stays in the planning process."""
    title: str
    work: Callable[[Session, Progress | None], R]
    """A function of an installed module, or a `partial` of one, so that it can be pickled."""
    size: int = 0
    """Tasks with more take longer, so workers that see all tasks begin with these."""


class Workers(Protocol):
    """Run tasks."""

    def map(
        self, tasks: Iterable[Task[S, R]], progress: Progress | None = None
    ) -> Iterator[tuple[Task[S, R], R | TxlogError]]:
        """Yield each task, as it ends, with its result or the TxlogError that it raised. Other errors are raised.

        A task that runs in this process calls `progress`. If the caller closes the iterator, running tasks are
        cancelled.
        """


class Here:
    """Run tasks in this process, one after another. A task is asked for only when the one before has ended."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def map(
        self, tasks: Iterable[Task[S, R]], progress: Progress | None = None
    ) -> Iterator[tuple[Task[S, R], R | TxlogError]]:
        """Yield each task with its result, in the order of the tasks."""
        for task in tasks:
            try:
                result: R | TxlogError = task.work(self._session, progress)
            except TxlogError as error:
                result = error
            yield task, result
