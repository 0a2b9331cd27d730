"""Which facts follow from a history before any check: operations, transactions, the writer and the place of each row.

Order in time: `a.ended < b.began` means that a had returned before b was called. In a history of one source this is the
order of its events. For several sources it is the shared monotonic clock, and events in the same millisecond have no
order.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeAlias, TypeVar

from lab.histories.events import (
    NO_OFFSET,
    Assign,
    Audit,
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
    Poll,
    Row,
    Send,
    SendOffsets,
    TopicPolicy,
    What,
    partition_of,
)
from txlog.core.names import TopicPartition

W = TypeVar("W", bound=What)
Outcome: TypeAlias = Literal["committed", "aborted", "unknown"]
"""A writer's knowledge: its rows must be visible, must never be visible, or may be either."""
NEVER = math.inf


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Call(Generic[W]):
    """An operation: its invocation and its completion, if they exist."""

    what: W
    """The completion's `what` if the call is ok, else the invocation's."""
    process: str
    status: Literal["ok", "fail", "info"]
    began: float
    ended: float
    """NEVER, if the call has no completion."""
    events: tuple[Event, ...]

    @property
    def error(self) -> str:
        return self.events[-1].error

    @property
    def first(self) -> Event:
        return self.events[0]


@dataclass(slots=True, eq=False)
class Transaction:
    """A transaction as its client saw it; a send without a transaction counts as one."""

    label: str
    """Empty for a send without a transaction."""
    begin: Call[Begin] | None = None
    sends: list[Call[Send]] = field(default_factory=list)
    offsets: list[Call[SendOffsets]] = field(default_factory=list)
    polls: list[Call[Poll]] = field(default_factory=list)
    ends: list[Call[End]] = field(default_factory=list)
    outcome: Outcome = "unknown"
    seen: bool = False
    """Whether a read_committed poll returned one of its rows: then all of them are committed."""

    @property
    def must(self) -> bool:
        """Whether its rows must be visible."""
        return self.outcome == "committed" or (self.seen and self.outcome == "unknown")

    @property
    def name(self) -> str:
        return f"transaction {self.label}" if self.label else f"the send {self.sends[0].first}"

    @property
    def values(self) -> Iterator[int]:
        for send in self.sends:
            if send.status != "fail":
                yield from send.what.values

    @property
    def events(self) -> tuple[Event, ...]:
        calls: list[Call[Any]] = [*self.sends, *self.offsets, *self.ends]
        return tuple(event for call in calls for event in call.events)

    @property
    def calls(self) -> Iterator[Call[Any]]:
        yield from self.sends
        yield from self.offsets
        yield from self.polls
        yield from self.ends

    @property
    def began(self) -> float:
        return min([call.began for call in self.calls], default=NEVER)

    @property
    def decided(self) -> float:
        """When its client got the answer "committed"; NEVER if it did not."""
        if not self.label:
            return self.sends[0].ended if self.outcome == "committed" else NEVER
        return min([end.ended for end in self.ends if end.what.outcome == "committed"], default=NEVER)

    @property
    def ended(self) -> float:
        """When it was over for its client."""
        return max([call.ended for call in self.calls], default=NEVER)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Written:
    """One row as its writer knows it."""

    value: int
    content: str | None
    key: str | None
    deletes: bool
    tp: TopicPartition
    send: Call[Send]
    index: int
    """The index within its send."""
    txn: Transaction

    @property
    def acked_at(self) -> int:
        """Its offset, if the writer got it in an answer."""
        base = self.send.what.base_offset
        return base + self.index if self.send.status == "ok" and base >= 0 else NO_OFFSET

    @property
    def events(self) -> tuple[Event, ...]:
        return tuple(dict.fromkeys((*self.send.events, *(event for end in self.txn.ends for event in end.events))))

    @property
    def schema_id(self) -> int:
        """For a topic that may be deleted: the version for which the row was made; else -1."""
        return self.send.what.schema_id

    @property
    def must(self) -> bool:
        return self.send.status != "fail" and self.txn.must

    @property
    def never(self) -> bool:
        """Whether its writer got the answer that read_committed will not show it."""
        return self.send.status == "fail" or self.txn.outcome == "aborted"


@dataclass(frozen=True, slots=True, eq=False)
class Sighting:
    """A row in a poll."""

    row: Row
    poll: Call[Poll]


class Facts:
    """The facts of a history, in tables."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.events = list(events)
        self.inits: list[Call[Init]] = []
        self.sends: list[Call[Send]] = []
        self.polls: list[Call[Poll]] = []
        self.ends: list[Call[Ends]] = []
        self.fetches: list[Call[FetchOffsets]] = []
        self.commits: list[Call[CommitOffsets]] = []
        self.inspections: list[Call[Inspect]] = []
        self.tables: list[Call[InspectTransactions]] = []
        self.by_process: dict[str, list[Call[Poll] | Call[Assign] | Call[Send]]] = defaultdict(list)
        """The calls of a process that concern positions and rows, in order."""
        self.audits: list[Call[Audit]] = []
        self.transactions: dict[str, Transaction] = {}
        self.compacted: set[str] = set()
        self.deletions: dict[str, list[Call[DeleteTopic]]] = defaultdict(list)
        """Topic -> deletions of it that have returned, in order."""
        self.operations = 0
        for call in _calls(self.events):
            self.operations += 1
            self._take(call)
        self.written: dict[int, Written] = {}
        self.reused: list[tuple[Written, Call[Send]]] = []
        """Values that two sends wrote: a mistake of the history itself."""
        self.all_transactions: list[Transaction] = list(self.transactions.values())
        self._find_writers()
        self.sightings: dict[int, list[Sighting]] = defaultdict(list)
        self.rows_at: dict[TopicPartition, dict[int, list[Sighting]]] = defaultdict(lambda: defaultdict(list))
        for poll in self.polls:
            if poll.status == "ok":
                tp = partition_of(poll.what)
                for row in poll.what.rows:
                    sighting = Sighting(row, poll)
                    self.sightings[row.value].append(sighting)
                    self.rows_at[tp][row.offset].append(sighting)
        self.log_starts: dict[TopicPartition, list[Call[Poll] | Call[Ends]]] = defaultdict(list)
        """The clients that know from an answer that a log starts above 0."""
        looks: list[Call[Poll] | Call[Ends]] = [*self.polls, *self.ends]
        for told in looks:
            if told.status == "ok" and told.what.log_start > 0:
                self.log_starts[partition_of(told.what)].append(told)
        for transaction in self.all_transactions:
            transaction.outcome = _outcome(transaction)
        for value, sightings in self.sightings.items():
            written = self.written.get(value)
            if written is not None and any(s.poll.what.isolation == "read_committed" for s in sightings):
                written.txn.seen = True

    def offsets_of(self, written: Written) -> list[int]:
        """Return where a row is known to be: from its writer's answer and from readers of its partition."""
        found = {s.row.offset for s in self.sightings.get(written.value, ()) if partition_of(s.poll.what) == written.tp}
        if written.acked_at >= 0:
            found.add(written.acked_at)
        return sorted(found)

    def seen_committed(self, value: int) -> list[Sighting]:
        """Return where read_committed showed it."""
        return [s for s in self.sightings.get(value, ()) if s.poll.what.isolation == "read_committed"]

    def _take(self, call: Call[What]) -> None:
        what = call.what
        match what:
            case Init():
                self.inits.append(_as(call, what))
            case Begin():
                self._transaction(what.txn).begin = _as(call, what)
            case Send():
                self.sends.append(_as(call, what))
                self.by_process[call.process].append(_as(call, what))
                if what.txn:
                    self._transaction(what.txn).sends.append(_as(call, what))
            case SendOffsets():
                self._transaction(what.txn).offsets.append(_as(call, what))
            case End():
                self._transaction(what.txn).ends.append(_as(call, what))
            case Poll():
                self.polls.append(_as(call, what))
                self.by_process[call.process].append(_as(call, what))
                if what.txn:
                    self._transaction(what.txn).polls.append(_as(call, what))
            case Assign():
                self.by_process[call.process].append(_as(call, what))
            case Audit():
                self.audits.append(_as(call, what))
            case Ends():
                self.ends.append(_as(call, what))
            case FetchOffsets():
                self.fetches.append(_as(call, what))
            case CommitOffsets():
                self.commits.append(_as(call, what))
            case Inspect():
                self.inspections.append(_as(call, what))
            case InspectTransactions():
                self.tables.append(_as(call, what))
            case DeleteTopic():
                if call.status == "ok":
                    self.deletions[what.topic].append(_as(call, what))
            case TopicPolicy():
                if what.compacted:
                    self.compacted.add(what.topic)
            case _:
                self.operations -= 1

    def _transaction(self, label: str) -> Transaction:
        return self.transactions.setdefault(label, Transaction(label))

    def _find_writers(self) -> None:
        for send in self.sends:
            what = send.what
            if what.txn:
                txn = self.transactions[what.txn]
            else:
                txn = Transaction("", sends=[send])
                self.all_transactions.append(txn)
            for index, value in enumerate(what.values):
                written = Written(
                    value=value,
                    content=what.contents[index] if what.contents else None,
                    key=what.keys[index] if what.keys else None,
                    deletes=what.deletes,
                    tp=partition_of(what),
                    send=send,
                    index=index,
                    txn=txn,
                )
                if value in self.written:
                    self.reused.append((self.written[value], send))
                else:
                    self.written[value] = written


def _calls(events: list[Event]) -> Iterator[Call[What]]:
    """Return the operations in the order in which they began."""
    clocked = len({event.source for event in events}) > 1
    open_calls: dict[tuple[str, int], tuple[int, Event]] = {}
    found: list[tuple[int, Call[What]]] = []

    def moment(at: int, event: Event) -> float:
        return event.monotonic_ms if clocked else at

    for at, event in enumerate(events):
        key = (event.source, event.operation)
        if event.type == "invoke":
            open_calls[key] = at, event
            continue
        began_at, invoke = open_calls.pop(key, (at, event))
        found.append(
            (
                began_at,
                Call(
                    what=event.what if event.type == "ok" else invoke.what,
                    process=event.process,
                    status=event.type,
                    began=moment(began_at, invoke),
                    # A call of unknown outcome may still take effect later.
                    ended=NEVER if event.type == "info" else moment(at, event),
                    events=(event,) if invoke is event else (invoke, event),
                ),
            )
        )
    for at, invoke in open_calls.values():
        found.append(
            (
                at,
                Call(
                    what=invoke.what,
                    process=invoke.process,
                    status="info",
                    began=moment(at, invoke),
                    ended=NEVER,
                    events=(invoke,),
                ),
            )
        )
    found.sort(key=lambda pair: pair[0])
    for _, call in found:
        yield call


def _as(call: Call[What], what: W) -> Call[W]:
    """Return `call`, after the type of its `what` is known."""
    del what
    return call  # type: ignore[return-value]


def _outcome(transaction: Transaction) -> Outcome:
    if not transaction.label:
        status = transaction.sends[0].status
        return "committed" if status == "ok" else "aborted" if status == "fail" else "unknown"
    answers = {end.what.outcome for end in transaction.ends if end.status == "ok"}
    if "committed" in answers:
        return "committed"
    commits = [end for end in transaction.ends if end.what.commit]
    # A commit never happens if no client requested it or each request was refused. The same holds for a confirmed
    # abort.
    if answers or all(end.status == "fail" for end in commits):
        return "aborted"
    return "unknown"
