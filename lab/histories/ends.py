"""Did the ends of the logs only rise, and did reads return the rows that were acknowledged before they began?

This checks the linearizability of one partition cheaply: an append returns its offset, so the order is known without a
search.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from lab.histories.anomaly import Anomaly, anomaly
from lab.histories.events import Ends, Poll, Send, partition_of
from lab.histories.facts import Call, Facts
from txlog.core.names import TopicPartition

T = TypeVar("T", bound=Call[Any])


class Highest:
    """The highest number in any answer before a given time, and the client that got it."""

    def __init__(self, told: Iterable[tuple[int, Call[Any]]]) -> None:
        self._ended: list[float] = []
        self._best: list[tuple[int, Call[Any]]] = []
        for number, call in sorted(told, key=lambda pair: pair[1].ended):
            best = max(self._best[-1], (number, call), key=lambda pair: pair[0]) if self._best else (number, call)
            self._ended.append(call.ended)
            self._best.append(best)

    def before(self, moment: float) -> tuple[int, Call[Any]] | None:
        at = bisect_left(self._ended, moment)
        return self._best[at - 1] if at else None

    def check(self, number: int, call: Call[Any], kind: str, text: str) -> Iterator[Anomaly]:
        """Yield an anomaly if an answer before `call` had a higher number than `number`, which ends the text."""
        before = self.before(call.began)
        if before is not None and number < before[0]:
            yield anomaly(kind, f"{text} {before[0]}", before[1].events, call.events)


def check_ends(facts: Facts) -> Iterator[Anomaly]:
    """append-order, leo-reuse, stale-read, lso-regress."""
    sends = _by_partition(s for s in facts.sends if s.status == "ok" and s.what.base_offset >= 0)
    polls = _by_partition(p for p in facts.polls if p.status == "ok")
    ends = _by_partition(e for e in facts.ends if e.status == "ok")
    for tp in sorted({*sends, *polls, *ends}):
        looks: list[Call[Poll] | Call[Ends]] = [*polls.get(tp, ()), *ends.get(tp, ())]
        acked = Highest((send.what.base_offset + len(send.what.values), send) for send in sends.get(tp, ()))
        log_end = Highest((look.what.log_end, look) for look in looks if look.what.log_end >= 0)
        yield from _check_appends(tp, sends.get(tp, []), acked, log_end)
        yield from _check_log_end(tp, looks, acked, log_end)
        yield from _check_stable(tp, looks)
        yield from _check_fresh(facts, tp, polls.get(tp, []), acked)


def _check_appends(tp: TopicPartition, sends: list[Call[Send]], acked: Highest, log_end: Highest) -> Iterator[Anomaly]:
    for send in sends:
        base = send.what.base_offset
        given = f"{tp}: an append was given offset {base}"
        yield from acked.check(
            base, send, "append-order", f"{given}, and one that had returned before it began ends at"
        )
        yield from log_end.check(base, send, "leo-reuse", f"{given}, and before it began the log end was")


def _check_log_end(
    tp: TopicPartition, looks: list[Call[Poll] | Call[Ends]], acked: Highest, log_end: Highest
) -> Iterator[Anomaly]:
    for look in looks:
        end = look.what.log_end
        if end < 0:
            continue
        yield from log_end.check(end, look, "leo-reuse", f"{tp}: the log end is {end}, and was")
        yield from acked.check(
            end, look, "stale-read", f"{tp}: log end {end}, and an append had been acknowledged up to"
        )


def _check_stable(tp: TopicPartition, looks: list[Call[Poll] | Call[Ends]]) -> Iterator[Anomaly]:
    shown: list[tuple[int, Call[Any]]] = []
    for look in looks:
        stable = look.what.last_stable
        if isinstance(look.what, Poll) and look.what.isolation == "read_committed":
            last = look.what.rows[-1].offset if look.what.rows else -1
            if 0 <= stable <= last:
                yield anomaly(
                    "lso-regress",
                    f"{tp}: read_committed showed offset {last}, and the last stable offset is {stable}",
                    look.events,
                )
            stable = max(stable, look.what.end)
        if stable >= 0:
            shown.append((stable, look))
    highest = Highest(shown)
    for look in looks:
        stable = look.what.last_stable
        if stable >= 0:
            yield from highest.check(stable, look, "lso-regress", f"{tp}: the last stable offset is {stable}, and was")


def _check_fresh(facts: Facts, tp: TopicPartition, polls: list[Call[Poll]], acked: Highest) -> Iterator[Anomaly]:
    """A read to the end shows what had been acknowledged before it began, unless an open transaction holds it back."""
    for poll in polls:
        what = poll.what
        if not what.to_end:
            continue
        if what.isolation == "read_uncommitted":
            text = f"{tp}: a read to the end stopped at {what.end}, and an append had been acknowledged up to"
            yield from acked.check(what.end, poll, "stale-read", text)
        if what.isolation == "read_committed" and what.end < what.last_stable:
            for written in facts.written.values():
                offsets = facts.offsets_of(written) if written.tp == tp and written.txn.decided < poll.began else []
                if offsets and what.end <= offsets[0] < what.last_stable:
                    yield anomaly(
                        "stale-read",
                        f"{tp}: a read to the end stopped at {what.end} below the last stable offset "
                        f"{what.last_stable}, and row {written.value} at {offsets[0]} had been committed",
                        written.events,
                        poll.events,
                    )
                    break


def worst_lag_ms(facts: Facts) -> int:
    """Return Jepsen's worst-realtime-lag.

    This is the longest time for which the next row was known to be visible when a read_committed poll did not return
    it.
    """
    worst = 0
    known: dict[TopicPartition, list[tuple[int, int]]] = defaultdict(list)
    for written in facts.written.values():
        offsets = facts.offsets_of(written)
        if not offsets or not written.must or written.txn.outcome != "committed":
            continue
        confirmed: list[Call[Any]] = [*written.txn.ends] or [written.send]
        at_ms = max(call.events[-1].monotonic_ms for call in confirmed)
        known[written.tp].append((offsets[0], at_ms))
    suffix: dict[TopicPartition, tuple[list[int], list[int]]] = {}
    for tp, rows in known.items():
        rows.sort()
        earliest = [row[1] for row in rows]
        for at in range(len(rows) - 2, -1, -1):
            earliest[at] = min(earliest[at], earliest[at + 1])
        suffix[tp] = [row[0] for row in rows], earliest
    for poll in facts.polls:
        if poll.status != "ok" or poll.what.isolation != "read_committed":
            continue
        offsets, earliest = suffix.get(partition_of(poll.what), ([], []))
        at = bisect_left(offsets, poll.what.end)
        if at < len(offsets):
            worst = max(worst, poll.first.monotonic_ms - earliest[at])
    return worst


def _by_partition(calls: Iterable[T]) -> dict[TopicPartition, list[T]]:
    found: dict[TopicPartition, list[T]] = defaultdict(list)
    key: Callable[[T], TopicPartition] = lambda call: partition_of(call.what)  # noqa: E731
    for call in calls:
        found[key(call)].append(call)
    return found
