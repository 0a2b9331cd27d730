"""How does a clean-up of many partitions run on Spark's executors?

The driver plans, an executor does the work of one task, and the driver makes use of what it returns: what becomes visible
is decided in one place. A task is a Spark job of one task, so that it has a name of its own in Spark's UI, and what is done
is used at once, not when the last one is; as many run at a time as there are cores. Spark repeats a task whose executor
died, and may run one twice: what it writes must have a name that no other attempt uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing
from functools import partial
from typing import Any, TypeVar

from pyspark import inheritable_thread_target
from pyspark.sql import SparkSession

from pyspark_txlog.spark_ui import described
from txlog.client.runtime import Runtime
from txlog.errors import InvalidRequestError, TxlogError

T = TypeVar("T")
R = TypeVar("R")

Work = Callable[[Runtime, T], R]
"""What an executor does with a task: a function of a module that is installed there."""


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


def _on_executor(url: str, storage_options: Mapping[str, object], work: Work[T, R], task: T) -> Any:
    try:
        with closing(Runtime.open(url, storage_options=storage_options)) as runtime:
            return work(runtime, task)
    except TxlogError as error:
        return error
