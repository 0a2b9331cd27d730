"""Can this history be one of the log? `check(events)` finds every anomaly of `anomaly.ANOMALIES`.

Pure: it uses only the events. It needs no search, because appends return their offsets. Everything except the cycles is
a single pass over operations and rows. The model is Jepsen's Kafka checker (`jepsen.tests.kafka`); txlog's own checks
are in the same table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from lab.histories.anomaly import NOTES, Anomaly
from lab.histories.bank import check_bank
from lab.histories.cycles import check_cycles
from lab.histories.ends import check_ends, worst_lag_ms
from lab.histories.events import Event
from lab.histories.facts import Facts
from lab.histories.fences import check_fences
from lab.histories.offsets import check_groups
from lab.histories.rows import (
    check_coverage,
    check_damage,
    check_deletions,
    check_order,
    check_outcomes,
    check_resurrection,
    check_torn,
    check_values,
)

CHECKS = (
    check_values,
    check_outcomes,
    check_coverage,
    check_resurrection,
    check_torn,
    check_order,
    check_damage,
    check_deletions,
    check_ends,
    check_fences,
    check_groups,
    check_cycles,
    check_bank,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The findings in a history."""

    anomalies: tuple[Anomaly, ...]
    """Never allowed."""
    notes: tuple[Anomaly, ...]
    """Allowed, as in Kafka."""
    events: int
    operations: int
    rows_written: int
    rows_read: int
    outcomes: dict[str, int]
    """Transactions and sends, by what their client knows about the outcome."""
    worst_lag_ms: int
    """Jepsen's worst-realtime-lag, a figure."""

    @property
    def names(self) -> dict[str, int]:
        """Return how often each anomaly was found."""
        return dict(sorted(Counter(each.name for each in self.anomalies).items()))

    def __str__(self) -> str:
        return "\n".join(str(each) for each in self.anomalies) or "no anomaly"


def check(events: Iterable[Event]) -> Report:
    """Check a whole history; several sources must be merged first (`recorder.merge`)."""
    facts = Facts(events)
    found = [each for rule in CHECKS for each in rule(facts)]
    return Report(
        anomalies=tuple(each for each in found if each.name not in NOTES),
        notes=tuple(each for each in found if each.name in NOTES),
        events=len(facts.events),
        operations=facts.operations,
        rows_written=len(facts.written),
        rows_read=sum(len(poll.what.rows) for poll in facts.polls if poll.status == "ok"),
        outcomes=dict(sorted(Counter(txn.outcome for txn in facts.all_transactions).items())),
        worst_lag_ms=worst_lag_ms(facts),
    )
