"""How does a maintenance verb go through many partitions, of which some may fail?

`over_partitions` plans each partition here, lets workers copy its rows, publishes the results here, and plans again
where an object was deleted meanwhile or more is left to do. An error in one partition does not affect the others. The
loop ends early only if the store itself fails, because hundreds of calls would wait for a store that does not answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Literal, TypeAlias, TypeVar

from txlog.client.reading import MAX_RELISTS
from txlog.client.session.runtime import Runtime
from txlog.client.session.session import Session
from txlog.core.names import INTERNAL_TOPICS, TopicPartition
from txlog.errors import (
    ClockSkewError,
    InvalidRequestError,
    MissingObjectError,
    NotAStoreError,
    StorageError,
    StoreAccessError,
    StoreChangedError,
    TxlogError,
    TxlogTimeoutError,
    UnsupportedStoreError,
)
from txlog.maintenance.workers import Here, Progress, Task, Workers
from txlog.protocol.stores import read_store

P = TypeVar("P")
C = TypeVar("C")
D = TypeVar("D")

Outcome: TypeAlias = tuple[TopicPartition, D | TxlogError]
"""A partition, and what was done or found there, or the error."""

_Kind: TypeAlias = Literal["plan", "copy", "publish"]

_OF_THE_STORE = (
    StorageError,
    TxlogTimeoutError,
    StoreAccessError,
    NotAStoreError,
    UnsupportedStoreError,
    ClockSkewError,
)
"""Errors that the next call probably meets too, for any partition."""


def over_partitions(
    session: Session,
    partitions: Iterable[TopicPartition],
    plan: Callable[[TopicPartition], Sequence[Task[P, C]]],
    publish: Callable[[P, C], D],
    workers: Workers | None = None,
    progress: Progress | None = None,
    *,
    has_more: Callable[[D], bool] = lambda _: False,
) -> Iterator[Outcome[D | None]]:
    """Yield what a verb did to each partition, as soon as it is done, and None if nothing (more) is due there.

    * `plan` only reads, and returns what is due now.
    * `publish` makes the result of a task visible.
    * `has_more` returns whether the partition must be planned again after this result.

    `workers` run the tasks (None: this process). If the store failed twice in a row, the iterator ends, and the last
    error has a note. Raises StoreChangedError.
    """
    watch = StoreWatch(session.runtime)
    relists: Counter[TopicPartition] = Counter()
    again: dict[TopicPartition, None] = {}
    seen: list[Outcome[D | None]] = []
    """Outcomes of planning, which goes on while workers run the first tasks."""

    def is_relisted(tp: TopicPartition, found: object) -> bool:
        # Another job was faster, and vacuum has deleted the objects. A new plan contains what is left to do.
        if not isinstance(found, MissingObjectError) or relists[tp] >= MAX_RELISTS:
            return False
        if tp not in again:
            relists[tp] += 1
            again[tp] = None
        return True

    def planned(left: Iterable[TopicPartition]) -> Iterator[Task[tuple[TopicPartition, P], C]]:
        for tp, tasks in look_over(session, left, plan, watch):
            if isinstance(tasks, TxlogError):
                if not is_relisted(tp, tasks):
                    seen.append((tp, tasks))
                continue
            if not tasks:
                seen.append((tp, None))
            for task in tasks:
                yield Task(subject=(tp, task.subject), title=task.title, work=task.work, size=task.size)

    while True:
        for task, copied in (workers or Here(session)).map(planned(partitions), progress):
            yield from seen
            seen.clear()
            tp, subject = task.subject
            watch.note("copy", copied)
            if isinstance(copied, TxlogError):
                done: D | TxlogError = copied
            else:
                done = watch.attempt("publish", partial(publish, subject, copied))
            if is_relisted(tp, done):
                continue
            yield tp, done
            if not isinstance(done, TxlogError) and has_more(done):
                relists[tp] = 0
                again[tp] = None
            if watch.is_down:
                return
        yield from seen
        seen.clear()
        if watch.is_down or not again:
            return
        partitions, again = list(again), {}


def look_over(
    session: Session,
    partitions: Iterable[TopicPartition],
    look: Callable[[TopicPartition], D],
    watch: StoreWatch | None = None,
) -> Iterator[Outcome[D]]:
    """Yield what `look`, which only reads, finds in each partition, or its error. Forget each partition afterwards.

    If the store failed twice in a row, the iterator ends.
    """
    watch = watch or StoreWatch(session.runtime)
    for tp in partitions:
        yield tp, watch.attempt("plan", partial(look, tp))
        session.forget([tp])
        if watch.is_down:
            return


def refuse_internal(topics: Iterable[str], what: str) -> None:
    """Raise InvalidRequestError if one of `topics` is txlog's own; `what` is the verb in the message ("merged")."""
    for topic in topics:
        if topic in INTERNAL_TOPICS:
            raise InvalidRequestError(
                f"{topic} is not {what}: the snapshots of an internal topic are its compaction, and are made whenever "
                "one of its segments is sealed"
            )


def refuse_own(topic: str) -> None:
    """Raise InvalidRequestError if a topic whose rows are to be erased is txlog's own."""
    if topic in INTERNAL_TOPICS:
        raise InvalidRequestError(
            f"{topic!r} is an internal topic, from which no row can be erased. "
            "hint: name a topic of yours; `txlog topics list` shows them"
        )


def results(outcomes: Iterable[Outcome[D | None]]) -> tuple[D, ...]:
    """Return what was done, in this order. Raises the first error."""
    done = []
    for _, outcome in outcomes:
        if isinstance(outcome, TxlogError):
            raise outcome
        if outcome is not None:
            done.append(outcome)
    return tuple(done)


def gather(outcomes: Iterable[Outcome[D | None]]) -> tuple[list[D], list[TxlogError]]:
    """Return what was done or found, by partition, and the errors."""
    made: list[tuple[TopicPartition, D]] = []
    failed: list[TxlogError] = []
    for tp, outcome in outcomes:
        if isinstance(outcome, TxlogError):
            failed.append(outcome)
        elif outcome is not None:
            made.append((tp, outcome))
    made.sort(key=lambda each: each[0])
    return [each for _, each in made], failed


class StoreWatch:
    """Decide whether the store itself fails: after two such errors in a row of one kind of call."""

    def __init__(self, runtime: Runtime) -> None:
        self.is_down = False
        self._runtime = runtime
        self._suspects: set[str] = set()

    def attempt(self, kind: _Kind, call: Callable[[], D]) -> D | TxlogError:
        """Return the result of `call`, or the TxlogError that it raised. Raises StoreChangedError."""
        try:
            result: D | TxlogError = call()
        except TxlogError as error:
            result = error
        self.note(kind, result)
        return result

    def note(self, kind: _Kind, result: object) -> None:
        """Take a result or an error into account. Raises StoreChangedError."""
        if isinstance(result, StoreChangedError):
            raise result
        if not isinstance(result, _OF_THE_STORE):
            self._suspects.discard(kind)
        elif kind not in self._suspects:
            self._suspects.add(kind)
        # If the store answers a read, two partitions may be in trouble by themselves. That says nothing about writes.
        elif kind == "publish" or not self._answers():
            self.is_down = True
            result.add_note("The store failed twice in a row, so the other partitions are left to the next run.")

    def _answers(self) -> bool:
        try:
            return self._runtime.run(read_store(self._runtime.where)) is not None
        except TxlogError:
            return False
