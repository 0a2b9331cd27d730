"""Programs against a store: each effect, errors that are thrown in, and nested gathers."""

from __future__ import annotations

import sys
import threading

import pyarrow as pa
import pytest

from tests.storage.processes import in_fork
from txlog.clock import SystemClock, SystemIds
from txlog.core.ages import ClockReading
from txlog.core.effects import (
    Delete,
    Gather,
    Get,
    InlineRows,
    List,
    NewId,
    NewProducerId,
    Now,
    PutIfAbsent,
    PutOutcome,
    ReadClocks,
    Sleep,
    StoreNow,
    WriteRows,
)
from txlog.errors import OutcomeUnknownError, StorageError
from txlog.storage.arrow_schema import to_fields
from txlog.storage.conform import conform
from txlog.storage.driver import Driver
from txlog.storage.inline_rows import encode_ipc
from txlog.storage.local import LocalObjectStore
from txlog.storage.memory import MemoryObjectStore
from txlog.testing.clock import ManualClock, SeededIds
from txlog.testing.failing_store import FailingStore, Fault, SimulatedCrash


@pytest.fixture
def driver():
    driver = Driver(MemoryObjectStore(), ManualClock(), SeededIds())
    yield driver
    driver.close()


def one(effect):
    answer = yield effect
    return answer


def value(result):
    return result
    yield


def failing(error):
    raise error
    yield


def test_each_effect(driver):
    clock, ids = ManualClock(), SeededIds()

    def program():
        assert (yield Get("t/a")) is None
        assert (yield PutIfAbsent("t/a", b"1")) is PutOutcome.WRITTEN
        assert (yield PutIfAbsent("t/a", b"2")) is PutOutcome.CONFLICT
        assert (yield Get("t/a")) == b"1"
        assert (yield PutIfAbsent("t/b", b"2")) is PutOutcome.WRITTEN
        assert (yield List("t/")) == ("a", "b")
        assert (yield List("t/", "a")) == ("b",)
        assert (yield Delete("t/a")) is None
        assert (yield List("t/")) == ("b",)
        assert (yield Now()) == clock.now_ms()
        assert (yield ReadClocks()) == ClockReading(clock.now_ms(), 0)
        assert (yield StoreNow()) > 1_600_000_000_000
        assert (yield List("__probe/")) == ()
        ids.new_id()  # the object whose time was read took one id
        assert (yield NewId()) == ids.new_id()
        assert (yield NewProducerId()) == ids.new_producer_id()
        assert (yield Sleep(1000)) is None
        assert 500 <= (yield ReadClocks()).monotonic_ms <= 1500
        return "done"

    assert driver.run(program()) == "done"


def test_a_pause_with_full_jitter_is_any_time_up_to_its_length(driver):
    slept: list[int] = []
    driver.clock.sleep_ms = slept.append

    def program():
        for _ in range(200):
            yield Sleep(4, full_jitter=True)

    driver.run(program())
    assert set(slept) == {0, 1, 2, 3, 4}


def test_rows_are_written(driver):
    fields = to_fields(pa.schema([("n", pa.int64())]))
    rows = InlineRows(
        payload=encode_ipc(conform([{"n": 1}], fields, topic="t")), base_offset=5, timestamp=1, schema_id=0
    )
    file = driver.run(one(WriteRows("t", "0/rows/1-0-abcdef12.parquet", (rows,))))
    assert (file.path, file.rows) == ("0/rows/1-0-abcdef12.parquet", 1)
    assert driver.store.size("t/0/rows/1-0-abcdef12.parquet") == file.bytes


def test_what_is_no_effect():
    with pytest.raises(TypeError, match="'nonsense', which is not an effect"):
        Driver(MemoryObjectStore(), ManualClock(), SeededIds()).run(one("nonsense"))


def test_a_lost_reply_is_an_unknown_outcome():
    store = FailingStore(MemoryObjectStore(), Fault(action="lose_reply", moment="after", match="put_if_absent"))
    driver = Driver(store, ManualClock(), SeededIds())
    assert driver.run(one(PutIfAbsent("a", b"1"))) is PutOutcome.UNKNOWN
    assert driver.run(one(Get("a"))) == b"1"


def test_an_adapter_that_raises_unknown():
    class Raising(MemoryObjectStore):
        def put_if_absent(self, path, data):
            raise OutcomeUnknownError("perhaps")

    assert Driver(Raising(), ManualClock(), SeededIds()).run(one(PutIfAbsent("a", b"1"))) is PutOutcome.UNKNOWN


@pytest.mark.parametrize("effect", [Get("a"), PutIfAbsent("a", b"1"), List("t/"), Delete("a")], ids=str)
def test_failures_are_thrown_into_the_program(effect):
    driver = Driver(FailingStore(MemoryObjectStore(), Fault(action="fail")), ManualClock(), SeededIds())

    def settles():
        try:
            yield effect
        except StorageError as error:
            answer = yield Now()
            return answer, str(error)

    answer, text = driver.run(settles())
    assert answer == ManualClock().now_ms()
    assert "injected failure" in text
    driver = Driver(FailingStore(MemoryObjectStore(), Fault(action="fail")), ManualClock(), SeededIds())
    with pytest.raises(StorageError, match="injected failure"):
        driver.run(one(effect))


def test_a_crash_is_not():
    caught = []

    def program():
        try:
            yield Get("a")
        except BaseException as error:
            caught.append(error)
            raise

    running = program()  # it lives longer than the call, so nothing closes it
    driver = Driver(FailingStore(MemoryObjectStore(), Fault(action="crash")), ManualClock(), SeededIds())
    with pytest.raises(SimulatedCrash):
        driver.run(running)
    assert caught == []


# -- gather -----------------------------------------------------------------------------------------------------------


def test_results_in_order(driver):
    assert driver.run(one(Gather(()))) == ()
    assert driver.run(one(Gather((value(1),)))) == (1,)
    assert driver.run(one(Gather(tuple(value(number) for number in range(100))))) == tuple(range(100))


def test_programs_run_at_the_same_time():
    together = threading.Barrier(8, timeout=20)

    class Meeting(MemoryObjectStore):
        def get(self, path):
            together.wait()
            return path.encode()

    driver = Driver(Meeting(), ManualClock(), SeededIds(), threads=7)
    for _ in range(3):
        assert driver.run(one(Gather(tuple(one(Get(f"{n}")) for n in range(8))))) == tuple(b"%d" % n for n in range(8))
    driver.close()


def test_the_number_of_threads_is_bounded():
    running, most, lock = [0], [0], threading.Lock()
    all_four = threading.Barrier(4, timeout=20)

    class Watched(MemoryObjectStore):
        def get(self, path):
            with lock:
                running[0] += 1
                most[0] = max(most[0], running[0])
            all_four.wait()
            with lock:
                running[0] -= 1

    driver = Driver(Watched(), ManualClock(), SeededIds(), threads=3)
    driver.run(one(Gather(tuple(one(Get("a")) for _ in range(60)))))
    assert most[0] == 4
    driver.close()


def tree(depth, width):
    if not depth:
        return (yield Get("a")) is None
    answers = yield Gather(tuple(tree(depth - 1, width) for _ in range(width)))
    return sum(answers)


@pytest.mark.parametrize("threads", [0, 1, 2, 16])
def test_nested_deeper_than_there_are_threads(threads):
    driver = Driver(MemoryObjectStore(), ManualClock(), SeededIds(), threads=threads)
    assert driver.run(tree(5, 4)) == 4**5
    assert driver.run(tree(60, 1)) == 1
    driver.close()


def test_many_callers_of_one_driver():
    driver = Driver(MemoryObjectStore(), ManualClock(), SeededIds(), threads=2)
    results = []
    callers = [threading.Thread(target=lambda: results.append(driver.run(tree(3, 4)))) for _ in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(timeout=60)
    assert results == [64] * 8
    driver.close()


def test_all_run_to_their_end_before_the_first_error_is_thrown(driver):
    ran = []

    def slow(name):
        yield Get("a")
        ran.append(name)

    def program():
        try:
            yield Gather((slow(1), failing(StorageError("first")), slow(2), failing(KeyError("second")), slow(3)))
        except StorageError as error:
            return str(error), sorted(ran)

    assert driver.run(program()) == ("first", [1, 2, 3])


def test_a_crash_goes_before_any_error(driver):
    caught = []

    def program():
        try:
            yield Gather((failing(StorageError("first")), failing(SimulatedCrash("now")), value(1)))
        except Exception as error:
            caught.append(error)

    with pytest.raises(SimulatedCrash):
        driver.run(program())
    assert caught == []


def test_a_crash_begins_nothing_more():
    begun = []

    def counted(number):
        begun.append(number)
        yield Get("a")

    driver = Driver(MemoryObjectStore(), ManualClock(), SeededIds(), threads=0)
    with pytest.raises(SimulatedCrash):
        driver.run(one(Gather((counted(1), failing(SimulatedCrash("now")), counted(2), counted(3)))))
    assert begun == [1]


def test_after_closing_programs_still_run():
    driver = Driver(MemoryObjectStore(), ManualClock(), SeededIds())
    driver.run(tree(2, 3))
    driver.close()
    driver.close()
    assert driver.run(tree(2, 3)) == 9


def test_in_a_forked_child(tmp_path):
    driver = Driver(LocalObjectStore(str(tmp_path)), SystemClock(), SystemIds(), threads=4)
    assert driver.run(tree(2, 3)) == 9
    assert in_fork(lambda: driver.run(tree(2, 3)) == 9)
    driver.close()


def test_time_and_ids_of_the_machine(tmp_path):
    driver = Driver(MemoryObjectStore(), SystemClock(), SystemIds())

    def program():
        before = yield ReadClocks()
        yield Sleep(20)
        after = yield ReadClocks()
        return after.ms_since(before), (yield NewId())

    waited, first = driver.run(program())
    assert 9 <= waited <= 5_000
    assert len(first) == 32


def test_an_interrupt_anywhere_leaves_the_helpers_usable():
    """Also in a module of Python: a semaphore that is interrupted may keep its lock."""
    paths = ("a/1", "a/2", "a/3")
    driver = Driver(MemoryObjectStore(), SystemClock(), SystemIds(), threads=2)
    interrupted = 0

    def read_all():
        return (yield Gather(tuple(read(path) for path in paths)))

    def read(path):
        return (yield Get(path))

    def interrupt_at(number):
        events = iter(range(number))

        def profile(frame, event, _):
            if event in ("call", "c_return") and next(events, None) is None:
                sys.setprofile(None)
                raise KeyboardInterrupt

        return profile

    def work():
        nonlocal interrupted
        assert driver.run(read_all()) == (None, None, None)
        while True:
            try:
                sys.setprofile(interrupt_at(interrupted))
                driver.run(read_all())
                sys.setprofile(None)
                return
            except (KeyboardInterrupt, RuntimeError):  # the lock of a call's own condition was not taken again
                interrupted += 1

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive(), f"hangs after an interrupt at event {interrupted}"
    assert interrupted > 50
    assert driver.run(read_all()) == (None, None, None)
