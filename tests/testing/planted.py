"""A history by hand: clients, calls and answers in the order of the statements."""

from __future__ import annotations

from typing import Any

from lab.histories.events import (
    Assign,
    Audit,
    Batch,
    Begin,
    CommitOffsets,
    DeleteTopic,
    End,
    Ends,
    Event,
    FetchOffsets,
    Init,
    Inspect,
    InspectTransactions,
    OffsetRange,
    OpenTransaction,
    Poll,
    Row,
    Send,
    SendOffsets,
    TopicPolicy,
    TransactionRecord,
    What,
)
from lab.histories.recorder import Recorder
from txlog.testing.clock import ManualClock


class Story:
    """Writes a history.

    Each call takes a millisecond and is answered before the next one, unless `hold` keeps it open. Rows are sent to
    partition 0 of `t`, and a poll reads it.
    """

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.recorder = Recorder("story", self.clock)

    @property
    def events(self) -> list[Event]:
        return self.recorder.events

    def does(self, process: str, what: What, status: str = "ok", error: str = "", *, single: bool = False) -> None:
        if single:
            self.recorder.single(process, what)
            return
        self.answer(process, self.recorder.invoke(process, what), what, status, error)

    def answer(self, process: str, operation: int, what: What, status: str = "ok", error: str = "") -> None:
        self.clock.advance_ms(1)
        if status == "ok":
            self.recorder.ok(process, operation, what)
        elif status == "fail":
            self.recorder.fail(process, operation, what, error)
        elif status == "info":
            self.recorder.info(process, operation, what, error)

    # -- writers ------------------------------------------------------------------------------------------------------

    def init(self, process: str, transactional_id: str, epoch: int, pid: int = 7) -> None:
        self.does(process, Init(transactional_id=transactional_id, producer_id=pid, producer_epoch=epoch))

    def begin(self, process: str, txn: str, transactional_id: str = "x", epoch: int = 0, pid: int = 7) -> None:
        what = Begin(txn=txn, transactional_id=transactional_id, producer_id=pid, producer_epoch=epoch)
        self.does(process, what, single=True)

    def send(
        self,
        process: str,
        *values: int,
        at: int = -1,
        txn: str = "",
        partition: int = 0,
        status: str = "ok",
        error: str = "StorageError: planned",
        **more: Any,
    ) -> None:
        what = Send(topic="t", partition=partition, values=values, txn=txn, base_offset=at, **more)
        self.does(process, what, status, error if status != "ok" else "")

    def end(self, process: str, txn: str, outcome: str = "committed", commit: bool = True, status: str = "ok") -> None:
        self.does(process, End(txn=txn, commit=commit, outcome=outcome if status == "ok" else ""), status)  # type: ignore[arg-type]

    def commit(self, process: str, txn: str, status: str = "ok") -> None:
        self.end(process, txn, status=status)

    def abort(self, process: str, txn: str, status: str = "ok") -> None:
        self.end(process, txn, "aborted", False, status)

    # -- readers ------------------------------------------------------------------------------------------------------

    def poll(
        self,
        process: str,
        start: int,
        end: int,
        *rows: tuple[int, int] | tuple[int, int, str],
        partition: int = 0,
        status: str = "ok",
        error: str = "",
        **more: Any,
    ) -> None:
        found = tuple(Row(offset=row[0], value=row[1], content=row[2] if len(row) > 2 else "") for row in rows)
        what = Poll(topic="t", partition=partition, start=start, end=end, rows=found, **more)
        self.does(process, what, status, error)

    def final(self, end: int, *rows: tuple[int, int] | tuple[int, int, str], partition: int = 0, **more: Any) -> None:
        self.poll("final", 0, end, *rows, partition=partition, final=True, to_end=True, **more)

    def assign(self, process: str) -> None:
        self.does(process, Assign(), single=True)

    def ends(self, process: str, log_start: int, last_stable: int, log_end: int) -> None:
        self.does(process, Ends(topic="t", partition=0, log_start=log_start, last_stable=last_stable, log_end=log_end))

    def audit(self, name: str, quiet: bool = True) -> None:
        self.does("auditor", Audit(audit=name, topic="t", quiet=quiet))

    # -- groups -------------------------------------------------------------------------------------------------------

    def send_offsets(self, process: str, txn: str, start: int, end: int, group: str = "g") -> None:
        self.does(process, SendOffsets(txn=txn, group=group, ranges=(_range(start, end),)))

    def commit_offsets(self, process: str, start: int, end: int, reset: bool = False) -> None:
        self.does(process, CommitOffsets(group="g", ranges=(_range(start, end),), reset=reset))

    def fetch(self, process: str, offset: int, final: bool = False) -> None:
        self.does(process, FetchOffsets(group="g", ranges=(_range(-1, offset),), final=final))

    # -- the log itself -----------------------------------------------------------------------------------------------

    def inspect(
        self, *batches: Batch, opened: tuple[OpenTransaction, ...] = (), digest: str = "", final: bool = False
    ) -> None:
        self.does(
            "inspector", Inspect(topic="t", partition=0, batches=batches, open=opened, digest=digest, final=final)
        )

    def table(self, *records: TransactionRecord) -> None:
        self.does("inspector", InspectTransactions(records=records))

    def delete_topic(self, version: int) -> None:
        self.does("admin", DeleteTopic(topic="t", version=version))

    def compacted(self) -> None:
        self.does("admin", TopicPolicy(topic="t", compacted=True), single=True)


def _range(start: int, end: int) -> OffsetRange:
    return OffsetRange(topic="in", partition=0, start=start, end=end)
