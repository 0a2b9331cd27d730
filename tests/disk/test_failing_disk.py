"""A full, broken or read-only disk in the middle of a commit: a clear error, a whole store, and the next try
succeeds."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import txlog
from tests.disk.failing_disk import FailingDisk, disk
from txlog.client.producer import Producer
from txlog.client.store import Store
from txlog.clock import SystemClock
from txlog.core.names import TopicPartition
from txlog.errors import OutcomeUnknownError, RetriableError, TxlogError, TxlogTimeoutError
from txlog.maintenance.fsck import check_store
from txlog.storage.local import LocalObjectStore
from txlog.testing.clock import ManualClock, SeededIds

ROWS = pa.schema((pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())))
ERRORS = {name: getattr(errno, name) for name in ("ENOSPC", "EIO", "EACCES", "EROFS", "EDQUOT")}

BEFORE_COMMIT = "before the commit"

__all__ = ["disk"]


def opened(root: Path, seed: int = 1) -> Store:
    """Open the store with a clock that moves only when a thread waits."""
    clock = ManualClock(SystemClock().now_ms())
    config = {"linger.ms": 0, "transaction.state.log.num.partitions": 1, "offsets.topic.num.partitions": 1}
    return txlog.open(
        str(root), config=config, clock=clock, ids=SeededIds(seed), object_store=LocalObjectStore(str(root))
    )


def transaction(producer: Producer, number: int) -> None:
    """Send inline rows, rows in a file, and offsets. A failure before the commit is noted; it must not be retried."""
    try:
        producer.begin_transaction()
        producer.send("orders", [{"id": number, "name": "inline"}], partition=0)
        producer.send("orders", [{"id": number, "name": "x" * 100_000}], partition=1)
        # All threads share one clock. Without this flush, the sender's back-off could use up the time of a later call.
        # That call would then end before it meets the disk's error.
        producer.flush()
        producer.send_offsets_to_transaction({TopicPartition("orders", 0): number}, "group")
    except TxlogError as error:
        error.add_note(BEFORE_COMMIT)
        raise
    producer.commit_transaction()


def ids_of(store: Store) -> list[int]:
    with store.consumer("orders", auto_offset_reset="earliest") as consumer:
        return sorted(row["id"] for batch in consumer.iterate(0) for row in batch.to_pylist())


def everything_said(error: BaseException) -> str:
    """Return the message, and the messages of its causes."""
    texts = []
    at: BaseException | None = error
    while at is not None:
        texts.append(str(at))
        at = at.__cause__
    return " <- ".join(texts)


def recovered(store: Store, producer: Producer, error: TxlogError, staged: bool) -> tuple[Producer, bool]:
    """React to the error as a caller would.

    Return the producer to use next, and whether the transaction is in the log.
    """
    at_commit = BEFORE_COMMIT not in getattr(error, "__notes__", ())
    if at_commit and isinstance(error, OutcomeUnknownError | TxlogTimeoutError):
        with contextlib.suppress(TxlogError):
            producer.commit_transaction()  # the same call again joins the first one
            return producer, True
    try:
        producer.abort_transaction()
    except TxlogError:
        with contextlib.suppress(TxlogError):
            producer.close()
        producer = store.producer("loader", staged=staged)
        producer.init_transactions()
    return producer, False


@pytest.mark.parametrize("staged", [False, True], ids=["eager", "staged"])
@pytest.mark.parametrize("name", ERRORS)
def test_each_step_of_a_commit(tmp_path: Path, disk: FailingDisk, name: str, staged: bool) -> None:
    stride = {"ENOSPC": 2, "EIO": 5, "EACCES": 7, "EROFS": 11, "EDQUOT": 13}[name]
    with opened(tmp_path / "store") as store:
        store.create_topic("orders", ROWS, partitions=2, config={"segment.batches": 7})
        producer = store.producer("loader", staged=staged)
        producer.init_transactions()
        transaction(producer, 0)
        expected = [0, 0]
        first, tried = 1, 0
        while True:
            number = first
            disk.arm(ERRORS[name], first)
            error: TxlogError | None = None
            try:
                transaction(producer, number)
            except TxlogError as failure:
                error = failure
            struck, reached = disk.struck, disk.calls
            disk.mend()
            tried += 1
            is_in = error is None
            if error is not None:
                said = everything_said(error)
                assert os.strerror(ERRORS[name]) in said, said
                assert str(tmp_path) in said, said
                producer, is_in = recovered(store, producer, error, staged)
            report = check_store(store.runtime.store, clock=store.runtime.clock, threads=0)
            assert report.is_clean, (first, report.findings)
            expected += [number, number] if is_in else []
            transaction(producer, 1000 + number)  # the next one succeeds
            expected += [1000 + number] * 2
            if not struck and reached < first:
                break
            first += stride
        producer.close()
        assert ids_of(store) == sorted(expected)
        assert tried > 15 or stride > 2


def test_reading_goes_on_while_nothing_can_be_written(tmp_path: Path, disk: FailingDisk) -> None:
    with opened(tmp_path / "store") as store:
        store.create_topic("orders", ROWS, partitions=2)
        with store.producer("loader") as producer:
            transaction(producer, 1)
    disk.arm(errno.EROFS, 1)
    with opened(tmp_path / "store", seed=2) as store:
        assert ids_of(store) == [1, 1]
        assert check_store(store.runtime.store, clock=store.runtime.clock).is_clean
        with pytest.raises(TxlogError, match="Read-only file system"):
            store.producer("loader").init_transactions()


def test_an_object_that_cannot_be_read(tmp_path: Path, disk: FailingDisk) -> None:
    with opened(tmp_path / "store") as store:
        store.create_topic("orders", ROWS, partitions=2)
        with store.producer("loader") as producer:
            transaction(producer, 1)
        disk.arm(errno.EIO, 1)
        with pytest.raises(TxlogError, match="Input/output error"):
            ids_of(store)
        disk.mend()
        assert ids_of(store) == [1, 1]


@pytest.mark.parametrize("name", ["ENOSPC", "EDQUOT", "EROFS"])
def test_rows_that_a_full_disk_refused_are_surely_not_in(tmp_path: Path, disk: FailingDisk, name: str) -> None:
    """Without a transaction, too, the caller knows this and need not check."""
    with opened(tmp_path / "store") as store:
        store.create_topic("orders", ROWS, partitions=1)
        producer = store.producer(delivery_timeout_ms=2000)
        producer.send("orders", [{"id": 1, "name": "a"}]).result(30)
        disk.arm(ERRORS[name], 1)
        with pytest.raises(RetriableError, match=os.strerror(ERRORS[name])) as raised:
            producer.send("orders", [{"id": 2, "name": "b"}]).result(30)
        assert "may have been written" not in str(raised.value)
        disk.mend()
        producer.send("orders", [{"id": 3, "name": "c"}]).result(30)
        with pytest.raises(RetriableError):
            producer.close()  # the producer was not flushed in between
        assert ids_of(store) == [1, 3]


# -- real ones --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def tmpfs(folder: Path, options: str) -> Iterator[Path]:
    """Mount a small file system in memory. Skip the test with the reason if this machine does not allow it."""
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no tmpfs can be mounted here ({done.stderr.strip()}); the failing disk above stands for it")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "small", "size=1m") as small, opened(small / "store") as store:
        store.create_topic("orders", ROWS, partitions=2)
        producer = store.producer("loader")
        producer.init_transactions()
        transaction(producer, 0)
        ballast = small / "ballast"
        expected = [0, 0]
        for number, free in enumerate((0, 4096, 8192, 16_384, 28_672), start=1):
            room = os.statvfs(small)
            ballast.write_bytes(bytes(max(room.f_bavail * room.f_frsize - free, 0)))
            error: TxlogError | None = None
            try:
                transaction(producer, number)
            except TxlogError as failure:
                error = failure
            ballast.unlink()
            assert error is not None
            assert "No space left on device" in everything_said(error)
            producer, is_in = recovered(store, producer, error, False)
            assert check_store(store.runtime.store, clock=store.runtime.clock).is_clean
            expected += [number, number] if is_in else []
            transaction(producer, 100 + number)
            expected += [100 + number] * 2
        producer.close()
        assert ids_of(store) == sorted(expected)


def test_a_folder_that_is_really_read_only(tmp_path: Path) -> None:
    """For root the file system is read-only, because root may write anywhere else. For others the mode is enough."""
    is_root = os.geteuid() == 0

    @contextlib.contextmanager
    def read_only(folder: Path) -> Iterator[None]:
        def turn(option: str, mode: int) -> None:
            if is_root:
                subprocess.run(["mount", "-o", f"remount,{option}", str(folder)], check=True)
            else:
                for path in [folder, *folder.rglob("*")]:
                    if path.is_dir():
                        path.chmod(mode)

        turn("ro", 0o555)
        try:
            yield
        finally:
            turn("rw", 0o755)

    place = tmpfs(tmp_path / "small", "size=8m") if is_root else contextlib.nullcontext(tmp_path / "small")
    with place as small:
        small.mkdir(exist_ok=True)
        with opened(small / "store") as store:
            store.create_topic("orders", ROWS, partitions=2)
            producer = store.producer("loader")
            producer.init_transactions()
            transaction(producer, 0)
            with read_only(small):
                with pytest.raises(TxlogError) as caught:
                    transaction(producer, 1)
                said = everything_said(caught.value)
                assert "Read-only file system" in said or "Permission denied" in said
                assert ids_of(store) == [0, 0]
            producer, is_in = recovered(store, producer, caught.value, False)
            transaction(producer, 2)
            producer.close()
            assert ids_of(store) == sorted([0, 0, 2, 2, *([1, 1] if is_in else [])])
            assert check_store(store.runtime.store, clock=store.runtime.clock).is_clean
