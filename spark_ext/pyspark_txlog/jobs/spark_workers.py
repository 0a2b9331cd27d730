"""How do the tasks of maintenance run on Spark's executors?

A task is a Spark job with one task, so that it has a name in Spark's UI, and its result is used at once. As many tasks
run at the same time as there are cores. Spark repeats a task whose executor died, and may run a task twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing
from functools import partial
from typing import Any, TypeVar

from pyspark import inheritable_thread_target
from pyspark.sql import SparkSession

from pyspark_txlog.messages import say
from pyspark_txlog.spark_ui import described
from txlog.engine import Runtime, Session, Settings, open_object_store, read_session
from txlog.errors import InvalidRequestError, TxlogError
from txlog.maintenance.workers import Progress, Task

S = TypeVar("S")
R = TypeVar("R")


class SparkWorkers:
    """Run the tasks about one store on Spark's executors. They open the store with the settings of `runtime`."""

    def __init__(self, runtime: Runtime, spark: Callable[[], SparkSession]) -> None:
        """`spark` is called when there are tasks, so that a program without any starts no Spark."""
        self._runtime = runtime
        self._spark = spark

    def map(
        self, tasks: Iterable[Task[S, R]], progress: Progress | None = None
    ) -> Iterator[tuple[Task[S, R], R | TxlogError]]:
        """Yield each task with its result in the order of completion, and print a line for it.

        Any other error of a task (a bug, a Spark without executors) is raised. Raises InvalidRequestError over Spark
        Connect, where the driver is another machine.
        """
        # The largest first, because a large task that starts last would run alone at the end.
        listed = sorted(tasks, key=lambda task: task.size, reverse=True)
        if not listed:
            return
        for number, (task, result) in enumerate(self._run(listed), start=1):
            ended = "failed" if isinstance(result, TxlogError) else "done"
            say(f"{task.title.removeprefix('txlog ')}: {ended}, {number:,} of {len(listed):,}")
            yield task, result

    def _run(self, tasks: list[Task[S, R]]) -> Iterator[tuple[Task[S, R], R | TxlogError]]:
        spark = self._spark()
        context = getattr(spark, "_sc", None)
        if context is None:
            raise InvalidRequestError(
                "this job runs in Spark's driver, and over Spark Connect that is another machine. "
                "hint: start it with spark-submit"
            )
        runtime = self._runtime
        group = f"txlog-{runtime.ids.new_id()}"
        on_executor = partial(_on_executor, runtime.url, runtime.storage_options, runtime.settings)

        def run(task: Task[S, R]) -> R | TxlogError:
            context.setJobGroup(group, task.title)
            with described(spark, task.title):
                (result,) = context.parallelize([task.work], 1).map(on_executor).collect()
            return result  # type: ignore[no-any-return]

        waiting = tasks[::-1]
        running: dict[Future[R | TxlogError], Task[S, R]] = {}
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


def _on_executor(
    url: str,
    storage_options: Mapping[str, object],
    settings: Settings,
    work: Callable[[Session, Progress | None], Any],
) -> Any:
    try:
        store = open_object_store(url, storage_options)
        with closing(Runtime(store, url=url, storage_options=storage_options, settings=settings)) as runtime:
            return work(read_session(runtime), None)
    except TxlogError as error:
        return error
