"""The scheduler of threads: it finds a missing lock and a deadlock, and the same decisions give the same run."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest

from lab.baton import Baton, BatonCondition, BatonLock, BatonStore, BatonThread, StuckError, _Task, hooked
from tests.storage.processes import in_fork
from txlog.storage import forks
from txlog.storage.memory import MemoryObjectStore


def added_by_two(baton: Baton, at: int, *, locked: bool) -> int:
    """Return how many objects two threads create.

    Each thread counts the objects and creates the next one. The second thread starts at switch point `at`.
    """
    memory = MemoryObjectStore()
    store, lock = BatonStore(memory, baton), BatonLock(baton)

    def add() -> None:
        if locked:
            lock.acquire()
        store.put_if_absent(f"n/{len(store.list('n/'))}", b"")
        if locked:
            lock.release()

    def play() -> int:
        threads = [
            BatonThread(baton, target=add, rank=1),
            BatonThread(baton, target=add, rank=2, ready=lambda: baton.steps >= at or threads[0].task.done),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return len(memory.list("n/"))

    return baton.run(play)


def test_a_missing_lock_shows_at_one_switch_point_and_a_lock_at_none() -> None:
    assert {added_by_two(Baton(), at, locked=False) for at in range(8)} == {1, 2}
    assert {added_by_two(Baton(), at, locked=True) for at in range(12)} == {2}


def test_the_same_seed_gives_the_same_run() -> None:
    def answers(seed: int) -> list[int]:
        rng = random.Random(seed)

        def choose(able: list[_Task], now: _Task) -> _Task:
            return rng.choice(able)

        return [added_by_two(Baton(choose), 0, locked=False) for _ in range(10)]

    assert answers(1) == answers(1)
    assert {1, 2} == {answer for seed in range(3) for answer in answers(seed)}


def test_a_deadlock_says_where_each_thread_stands() -> None:
    baton = Baton()
    first, second = BatonLock(baton), BatonLock(baton)

    def take(one: BatonLock, other: BatonLock) -> None:
        with one:
            baton.switch(lambda: first.locked() and second.locked())
            other.acquire()

    def play() -> None:
        threads = [
            BatonThread(baton, target=take, args=args, name=f"thread {number}")
            for number, args in enumerate([(first, second), (second, first)])
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    with pytest.raises(
        StuckError, match=r"(?s)no thread can run.*thread 0:.*other\.acquire.*thread 1:.*other\.acquire"
    ):
        baton.run(play)


def test_a_run_without_an_end_is_stuck() -> None:
    baton = Baton(max_steps=100)

    def play() -> None:
        while True:
            baton.clock.sleep_ms(10)

    with pytest.raises(StuckError, match="did not end within 100 steps"):
        baton.run(play)


def test_time_passes_when_no_thread_can_run() -> None:
    baton = Baton()
    condition = BatonCondition(baton)
    seen: list[tuple[bool, int]] = []

    def wait() -> None:
        with condition:
            seen.append((condition.wait(5), baton.clock.monotonic_ms()))
            seen.append((condition.wait(5), baton.clock.monotonic_ms()))

    def play() -> None:
        thread = BatonThread(baton, target=wait)
        thread.start()
        baton.clock.sleep_ms(1000)
        with condition:
            condition.notify_all()
        thread.join()

    baton.run(play)
    assert seen == [(True, 1000), (False, 6000)]


def test_a_lock_that_outlives_its_baton_keeps_no_lock_of_a_forked_child() -> None:
    with hooked("txlog.storage.forks") as hook:
        hook.baton = None  # type: ignore[assignment]  # not used
        kept = forks.lock_for_forks()

    def child() -> bool:
        forks._free_all()  # as after each fork, where Python only prints an error
        return kept in forks._LOCKS

    assert in_fork(child)


def test_a_module_that_is_first_used_inside_has_the_hook() -> None:
    """txlog imports a kind of client when a store makes the first one."""
    program = (
        "import sys; from lab.baton import hooked\n"
        "assert 'txlog.client.producer.sender' not in sys.modules\n"
        "with hooked('txlog.client') as hook:\n"
        "    from txlog.client.producer import sender\n"
        "    print(sender.threading is hook)"
    )
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (process.stdout, process.stderr) == ("True\n", "")
