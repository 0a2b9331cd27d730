"""Is all the money still there? An auditor's expectations about transfers, without a snapshot.

A transfer is a transaction with a row (a leg) for each account that it touches; the sum of its deltas is zero. An
auditor reads partitions one after another, so it cannot expect a constant sum. It may expect this:

* If one leg of a transfer is missing and another leg is there, the missing leg is at or after the end of the read range
  of its partition. An open transaction of another client held the reader back, or the reader came too early.
* If the commit of a transfer had returned before the read of a partition, no leg is missing there. The exception is a
  reader that was held back (last stable offset < log end).
* In a *quiet* audit every transfer is whole and the sum is zero. An audit is quiet if three things are true. The log
  ends did not move between two looks. No partition had an open transaction. The transaction-state table had no
  transaction that was decided and unfinished.
* The same is true at the end, when everything has recovered.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from lab.histories.anomaly import Anomaly, anomaly
from lab.histories.events import Audit, Poll, partition_of
from lab.histories.facts import Call, Facts, Written
from txlog.core.names import TopicPartition

_MARK = "bank"


@dataclass(frozen=True, slots=True, kw_only=True)
class Leg:
    """One row of a transfer."""

    transfer: str
    number: int
    legs: int
    account: int
    delta: int

    def encode(self) -> str:
        """Return the row's content."""
        return f"{_MARK}:{self.transfer}:{self.number}:{self.legs}:{self.account}:{self.delta}"

    @staticmethod
    def decode(content: str) -> Leg | None:
        """Return the leg, or None for a row that is not a leg."""
        parts = content.split(":")
        if len(parts) != 6 or parts[0] != _MARK:
            return None
        return Leg(
            transfer=parts[1], number=int(parts[2]), legs=int(parts[3]), account=int(parts[4]), delta=int(parts[5])
        )


def check_bank(facts: Facts) -> Iterator[Anomaly]:
    """bank-torn, bank-total."""
    by_audit: dict[str, dict[TopicPartition, Call[Poll]]] = defaultdict(dict)
    final: dict[str, dict[TopicPartition, Call[Poll]]] = defaultdict(dict)
    for poll in facts.polls:
        if poll.status != "ok" or poll.what.isolation != "read_committed":
            continue
        if poll.what.audit:
            by_audit[poll.what.audit][partition_of(poll.what)] = poll
        if poll.what.final:
            final[poll.what.topic][partition_of(poll.what)] = poll
    legs = _legs_by_transfer(facts)
    for audit in facts.audits:
        polls = by_audit.get(audit.what.audit, {})
        if audit.status == "ok" and polls:
            yield from _check_audit(facts, audit, polls, legs)
    for topic, polls in final.items():
        if any(written.tp.topic == topic for written in legs):
            yield from _check_total(f"the final read of {topic!r}", list(polls.values()), ())


def _check_audit(
    facts: Facts, audit: Call[Audit], polls: dict[TopicPartition, Call[Poll]], legs: dict[Written, str]
) -> Iterator[Anomaly]:
    shown = {row.value for poll in polls.values() for row in poll.what.rows}
    begun = {legs[written] for value in shown if (written := facts.written.get(value)) in legs and written is not None}
    for written, transfer in legs.items():
        poll = polls.get(written.tp)
        if poll is None or written.value in shown or written.never:
            continue
        offsets = facts.offsets_of(written)
        inside = transfer in begun and any(poll.what.log_start <= offset < poll.what.end for offset in offsets)
        held = poll.what.last_stable < poll.what.log_end
        returned = written.must and written.txn.decided < poll.began and not held and poll.what.last_stable >= 0
        if inside or returned:
            yield anomaly(
                "bank-torn",
                f"transfer {transfer}: leg {written.value} at {offsets} of {written.tp} is missing from an audit that "
                f"read up to {poll.what.end}",
                written.events,
                poll.events,
                audit.events,
            )
    if audit.what.quiet:
        yield from _check_total(f"the quiet audit {audit.what.audit}", list(polls.values()), (audit,))


def _check_total(where: str, polls: list[Call[Poll]], more: tuple[Call[Audit], ...]) -> Iterator[Anomaly]:
    total = 0
    found: dict[str, list[Leg]] = defaultdict(list)
    for poll in polls:
        for row in poll.what.rows:
            leg = Leg.decode(row.content)
            if leg is not None:
                total += leg.delta
                found[leg.transfer].append(leg)
    partial = [transfer for transfer, legs in found.items() if len(legs) != legs[0].legs]
    if total or partial:
        yield anomaly(
            "bank-total",
            f"{where}: the sum is {total} and must be 0; transfers that are not whole: {partial[:5]}",
            *(poll.events for poll in polls),
            *(each.events for each in more),
        )


def _legs_by_transfer(facts: Facts) -> dict[Written, str]:
    found: dict[Written, str] = {}
    for written in facts.written.values():
        leg = Leg.decode(written.content) if written.content is not None else None
        if leg is not None:
            found[written] = leg.transfer
    return found
