"""How does a clean-up of many partitions run on Spark's executors?

The driver plans, an executor does the work of one task, and the driver makes use of what it returns: what becomes visible
is decided in one place. A task is a Spark job of one task, so that it has a name of its own in Spark's UI, and what is done
is used at once, not when the last one is; as many run at a time as there are cores. Spark repeats a task whose executor
died, and may run one twice: what it writes must have a name that no other attempt uses.

What fails in one partition spoils no other: `Failures` counts it, and ends a job whose store does not serve the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from pyspark import inheritable_thread_target
from pyspark.sql import SparkSession

from pyspark_txlog.messages import say
from pyspark_txlog.spark_ui import described
from txlog.client.runtime import Runtime
from txlog.core.names import TopicPartition
from txlog.errors import (
    ClockSkewError,
    InvalidRequestError,
    NotAStoreError,
    StorageError,
    StoreAccessError,
    TxlogError,
    TxlogTimeoutError,
    UnsupportedStoreError,
)
from txlog.maintenance.history import Recorder
from txlog.protocol.topics import read_store

T = TypeVar("T")
R = TypeVar("R")

Work = Callable[[Runtime, T], R]
"""What an executor does with a task: a function of a module that is installed there."""

_OF_THE_STORE = (
    StorageError,
    TxlogTimeoutError,
    StoreAccessError,
    NotAStoreError,
    UnsupportedStoreError,
    ClockSkewError,
)
"""Errors that the next call is likely to meet as well, whatever partition it is about."""


def run_tasks(
    spark: SparkSession,
    runtime: Runtime,
    tasks: Sequence[T],
    work: Work[T, R],
    *,
    title: Callable[[T], str],
) -> Iterator[tuple[T, R | TxlogError]]:
    """Each task with what `work` returned for it on an executor, or with the TxlogError that it raised; as they end.

    Tasks begin in their order: the longest first make the shortest run. `title` names a task in Spark's UI. Whatever else a
    task fails with (a bug, a Spark without executors) is raised, and what still runs is cancelled, as it is if the caller
    closes the iterator. Raises InvalidRequestError over Spark Connect, whose driver is elsewhere.
    """
    context = getattr(spark, "_sc", None)
    if context is None:
        raise InvalidRequestError(
            "this job runs in Spark's driver, and over Spark Connect that is another machine; start it with spark-submit"
        )
    group = f"txlog-{runtime.ids.new_id()}"
    job = partial(_on_executor, runtime.url, runtime.storage_options, work)

    def run(task: T) -> R | TxlogError:
        name = title(task)
        context.setJobGroup(group, name)
        with described(spark, name):
            (result,) = context.parallelize([task], 1).map(job).collect()
        return result  # type: ignore[no-any-return]

    waiting = list(reversed(tasks))
    running: dict[Future[R | TxlogError], T] = {}
    at_once = max(context.defaultParallelism, 1)
    with ThreadPoolExecutor(at_once, thread_name_prefix="txlog-job") as pool:
        try:
            while waiting or running:
                while waiting and len(running) < at_once:
                    task = waiting.pop()
                    running[pool.submit(inheritable_thread_target(spark)(run), task)] = task
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    yield running.pop(future), future.result()
        finally:
            if running:
                context.cancelJobGroup(group)


class Failures:
    """What could not be done to partitions, and why: told to the history, too.

        with recorded(runtime, "merge") as history, Failures(runtime, history) as failed:
            plan = failed.attempt(tp, lambda: plan_partition(session, tp, policy), only_reads=True)
            if isinstance(plan, TxlogError):
                failed.add(tp, plan)

    The block ends early, without an error, if the store fails again and again.
    """

    def __init__(self, runtime: Runtime, history: Recorder) -> None:
        self.errors: list[TxlogError] = []
        self._runtime = runtime
        self._history = history
        self._is_suspect = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        return kind is _StoreFailedError

    def add(self, tp: TopicPartition, error: TxlogError) -> None:
        """Something was not done to a partition."""
        self.errors.append(error)
        self._history.add(tp, "failed", message=str(error))

    def attempt(self, tp: TopicPartition, work: Callable[[], R], *, only_reads: bool = False) -> R | TxlogError:
        """What `work` returns here, in the driver, or the TxlogError that it raised, which the caller may add.

        One that is the store's may still be about this partition alone, as a time-out; the second in a row is added here, and
        ends the `with` block. Else hundreds of calls would wait for a store that does not answer. If `work` `only_reads`, the
        store is asked first whether it answers: then two neighbours are sick, and others need not be.
        """
        try:
            result = work()
        except TxlogError as error:
            was_suspect, self._is_suspect = self._is_suspect, isinstance(error, _OF_THE_STORE)
            if not (was_suspect and self._is_suspect) or (only_reads and self._answers()):
                return error
            self.add(tp, error)
            say(f"{self._history.job}: the store failed twice in a row; what is left is left to the next run")
            raise _StoreFailedError from error
        self._is_suspect = False
        return result

    def _answers(self) -> bool:
        try:
            return self._runtime.run(read_store(self._runtime.where)) is not None
        except TxlogError:
            return False


class _StoreFailedError(Exception):
    """The rest of a job would fail, too."""


def _on_executor(url: str, storage_options: Mapping[str, object], work: Work[T, R], task: T) -> Any:
    try:
        with closing(Runtime.open(url, storage_options=storage_options)) as runtime:
            return work(runtime, task)
    except TxlogError as error:
        return error
