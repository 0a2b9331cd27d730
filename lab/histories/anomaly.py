"""Which anomalies can a history have? Names are Jepsen's (`jepsen.tests.kafka`), and below them txlog's own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lab.histories.events import Event

ANOMALIES: dict[str, str] = {
    # -- Jepsen's
    "inconsistent-offsets": "one offset of a partition held two values",
    "duplicate": "one value stands at two offsets, or in two partitions",
    "G1a": "read_committed showed a row of a transaction that was aborted, or whose commit nobody asked for",
    "lost-write": "a read_committed read passed over the offset of a committed row, and nobody ever saw that row",
    "unseen": "a committed row is not in the final read of its partition",
    "precommitted-read": "a transaction's read_committed poll returned a row of that very transaction",
    "int-poll-skip": "within a transaction, a poll left out rows between its own and the one before",
    "int-nonmonotonic-poll": "within a transaction, a poll went back",
    "poll-skip": "a process's poll left out rows between its own and the one before",
    "nonmonotonic-poll": "a process's poll went back",
    "int-nonmonotonic-send": "a transaction's rows stand in a partition in another order than they were sent",
    "nonmonotonic-send": "a process's rows stand in a partition in another order than they were sent",
    "G1c": "transactions read from each other in a circle",
    "G1c-process": "... or in a circle with the order of one process",
    "G1c-realtime": "... or in a circle with real time: something was read before it was written",
    # -- txlog's
    "torn-transaction": "after recovery, part of a transaction is visible and part is not",
    "G1b-range": "one poll showed some of a transaction's rows in its range and left out others",
    "zombie-commit": "an instance committed after a newer one had been initialised",
    "fence-leak": "a partition took a row of an older epoch after a newer one of that producer, or after its init",
    "hanging-txn": "everything had recovered, and a transaction is still open in a partition",
    "lso-regress": "the last stable offset went back, or read_committed showed a row at or above it",
    "offset-divergence": "a group's committed offset and the outputs of what it covers tell different stories",
    "double-consume": "two committed transactions of a group worked through the same input",
    "group-regress": "a group's committed offset went back, and nobody had reset it",
    "leo-reuse": "an offset was given twice, or the log end went back",
    "append-order": "an append that returned before another began stands behind it",
    "view-drift": "a row that one read showed was gone in another, or two equal log ends have different digests",
    "compaction-loss": "the newest committed row of a key is gone from a compacted topic",
    "compaction-resurrect": "a superseded row was gone from a compacted topic and came back",
    "deleted-but-visible": "a row was read after the deletion of its topic, in the topic of that name that was made anew",
    "written-to-deleted": "a row was acknowledged, or committed, for a topic whose deletion had returned before",
    "silent-gap": "a read that began below the log start went on behind it without saying so",
    "snapshot-hole": "a read within the log failed because something was missing, damaged or out of range",
    "checksum-escape": "a row was read with another content than was written, or a row that nobody wrote",
    "fail-but-visible": "rows whose send was refused can be read",
    "ok-but-absent": "a read passed over the offset of an acknowledged row without a transaction",
    "stale-read": "a read or look at the end missed what had been acknowledged before it began",
    "changed-outcome": "a transaction was said to be committed and said to be aborted",
    # -- the bank's
    "bank-total": "money appeared or vanished in a cut that shows every transfer whole",
    "bank-torn": "a transfer's other leg lies within what the auditor read, and it was not shown",
    # -- of the history itself
    "malformed": "the history breaks its own rules: a value was sent twice",
}
"""Never allowed; each with what it means."""

NOTES: dict[str, str] = {
    "int-send-skip": "other rows stand between those of one transaction: there is no write isolation, as in Kafka",
    "G0": "transactions wrote over each other in a circle of orders: no write isolation either",
    "G0-process": "... with the order of one process",
    "G0-realtime": "... with real time",
}
"""Allowed, and counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Anomaly:
    """One thing that is wrong, and the events that prove it."""

    name: str
    text: str
    events: tuple[Event, ...]

    def __post_init__(self) -> None:
        assert self.name in ANOMALIES or self.name in NOTES, self.name

    def __str__(self) -> str:
        proof = "".join(f"\n    {event}" for event in self.events)
        return f"{self.name}: {self.text}{proof}"


def anomaly(name: str, text: str, *proofs: Iterable[Event]) -> Anomaly:
    """An anomaly with the events of all its proofs, each once."""
    return Anomaly(name=name, text=text, events=tuple(dict.fromkeys(event for proof in proofs for event in proof)))
