"""How does maintenance of many partitions run on Spark's executors?

The driver plans, an executor does the work of one task, and the driver uses the result. So one place decides what
becomes visible. A task is a Spark job with one task, so that it has a name in Spark's UI, and its result is used at
once. As many tasks run at the same time as there are cores. Spark repeats a task whose executor died, and may run a
task twice. So each attempt must write under its own name.

An error in one partition does not affect the others. `Failures` counts the errors, and ends a job if the store does not
answer the driver.
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
from txlog.protocol.stores import read_store

T = TypeVar("T")
R = TypeVar("R")

Work = Callable[[Runtime, T], R]
"""The work of an executor on a task: a function of a module that is installed there."""

_OF_THE_STORE = (
    StorageError,
    TxlogTimeoutError,
    StoreAccessError,
    NotAStoreError,
    UnsupportedStoreError,
    ClockSkewError,
)
"""Errors that the next call probably meets too, for any partition."""


def run_tasks(
    spark: SparkSession,
    runtime: Runtime,
    tasks: Sequence[T],
    work: Work[T, R],
    *,
    title: Callable[[T], str],
) -> Iterator[tuple[T, R | TxlogError]]:
    """Yield each task with the result of `work` on an executor, or with the TxlogError that it raised, in the order of
    completion.

    Tasks start in their order; with the longest first, the job takes the least time. `title` names a task in Spark's
    UI. Any other error of a task (a bug, a Spark without executors) is raised, and the running tasks are cancelled.
    They are also cancelled if the caller closes the iterator. Raises InvalidRequestError over Spark Connect, where the
    driver is another machine.
    """
    context = getattr(spark, "_sc", None)
    if context is None:
        raise InvalidRequestError(
            "this job runs in Spark's driver, and over Spark Connect that is another machine. hint: start it with spark-submit"
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
    """Collects the errors of partitions, and records them in the history.

        with recorded(runtime, "merge") as history, Failures(runtime, history) as failed:
            plan = failed.attempt(tp, lambda: plan_partition(session, tp, policy), only_reads=True)
            if isinstance(plan, TxlogError):
                failed.add(tp, plan)

    The block ends early, without an error, if the store fails twice in a row.
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
        """Record that something was not done to a partition."""
        self.errors.append(error)
        self._history.add(tp, "failed", message=str(error))

    def attempt(self, tp: TopicPartition, work: Callable[[], R], *, only_reads: bool = False) -> R | TxlogError:
        """Return the result of `work`, run here in the driver, or the TxlogError that it raised; the caller may add
        that error.

        An error of the store, such as a time-out, may still concern only this partition. But the second one in a row is
        added here and ends the `with` block. Otherwise hundreds of calls would wait for a store that does not answer.
        If `work` `only_reads`, the store is first asked whether it answers. If it does, the errors concern only these
        two partitions.
        """
        try:
            result = work()
        except TxlogError as error:
            was_suspect, self._is_suspect = self._is_suspect, isinstance(error, _OF_THE_STORE)
            if not (was_suspect and self._is_suspect) or (only_reads and self._answers()):
                return error
            self.add(tp, error)
            say(f"{self._history.job}: the store failed twice in a row; the next run does the rest")
            raise _StoreFailedError from error
        self._is_suspect = False
        return result

    def _answers(self) -> bool:
        try:
            return self._runtime.run(read_store(self._runtime.where)) is not None
        except TxlogError:
            return False


class _StoreFailedError(Exception):
    """Ends a job whose remaining work would fail too."""


def _on_executor(url: str, storage_options: Mapping[str, object], work: Work[T, R], task: T) -> Any:
    try:
        with closing(Runtime.open(url, storage_options=storage_options)) as runtime:
            return work(runtime, task)
    except TxlogError as error:
        return error
