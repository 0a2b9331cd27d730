"""Which anomalies can a history have? Names are Jepsen's (`jepsen.tests.kafka`), and below them txlog's own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lab.histories.events import Event

ANOMALIES: dict[str, str] = {
    # -- Jepsen's
    "inconsistent-offsets": "one offset of a partition held two values",
    "duplicate": "one value is at two offsets, or in two partitions",
    "G1a": "read_committed showed a row of a transaction that was aborted, or whose commit no client requested",
    "lost-write": "a read_committed read skipped the offset of a committed row, and no read ever returned that row",
    "unseen": "a committed row is not in the final read of its partition",
    "precommitted-read": "a transaction's read_committed poll returned a row of the same transaction",
    "int-poll-skip": "within a transaction, a poll left out rows between its own and the one before",
    "int-nonmonotonic-poll": "within a transaction, a poll went back",
    "poll-skip": "a process's poll left out rows between its own and the one before",
    "nonmonotonic-poll": "a process's poll went back",
    "int-nonmonotonic-send": "a partition has a transaction's rows in another order than that of the sends",
    "nonmonotonic-send": "a partition has a process's rows in another order than that of the sends",
    "G1c": "transactions read from each other in a cycle",
    "G1c-process": "... or in a cycle with the order of one process",
    "G1c-realtime": "... or in a cycle with real time: a row was read before it was written",
    # -- txlog's
    "torn-transaction": "after recovery, part of a transaction is visible and part is not",
    "G1b-range": "one poll showed some of a transaction's rows in its range and left out others",
    "zombie-commit": "an instance committed after the init of a newer one",
    "fence-leak": "a partition took a row of an older epoch after a newer one of that producer, or after its init",
    "hanging-txn": "after recovery, a transaction is still open in a partition",
    "lso-regress": "the last stable offset went back, or read_committed showed a row at or above it",
    "offset-divergence": "a group's committed offset contradicts the outputs of the inputs that it covers",
    "double-consume": "two committed transactions of a group processed the same input",
    "shared-read": "two members of a group read one row in the same generation",
    "group-regress": "a group's committed offset went back without a reset",
    "leo-reuse": "an offset was given twice, or the log end went back",
    "append-order": "an append that returned before another one began has the higher offset",
    "view-drift": "a row that one read returned was missing in another one, or two equal log ends have "
    "different digests",
    "compaction-loss": "the newest committed row of a key is missing from a compacted topic",
    "compaction-resurrect": "a superseded row disappeared from a compacted topic and came back",
    "deleted-but-visible": "a row of a deleted topic was read in the topic that was created again under this name",
    "written-to-deleted": "a row was acknowledged, or committed, after the deletion of its topic had returned",
    "silent-gap": "a read that began below the log start continued above it without an error",
    "snapshot-hole": "a read within the log failed because an object was missing or damaged, or an offset was out of "
    "range",
    "checksum-escape": "a row was read with other contents than it was written with, or a row that no client wrote",
    "fail-but-visible": "rows whose send was refused can be read",
    "ok-but-absent": "a read skipped the offset of an acknowledged row without a transaction",
    "stale-read": "a read, or a look at the log end, missed rows that were acknowledged before it began",
    "changed-outcome": "one answer said that a transaction is committed, and another one that it is aborted",
    # -- the bank's
    "bank-total": "money appeared or vanished in a cut that shows every transfer whole",
    "bank-torn": "a transfer's other leg is in the range that the auditor read, and the read did not return it",
    # -- of the history itself
    "malformed": "the history breaks its own rules: a value was sent twice",
}
"""Never allowed; each with its meaning."""

NOTES: dict[str, str] = {
    "int-send-skip": "other rows are between those of one transaction: there is no write isolation, as in Kafka",
    "G0": "the writes of transactions form a cycle: no write isolation either",
    "G0-process": "... with the order of one process",
    "G0-realtime": "... with real time",
}
"""Allowed, and counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Anomaly:
    """One error, and the events that prove it."""

    name: str
    text: str
    events: tuple[Event, ...]

    def __post_init__(self) -> None:
        assert self.name in ANOMALIES or self.name in NOTES, self.name

    def __str__(self) -> str:
        proof = "".join(f"\n    {event}" for event in self.events)
        return f"{self.name}: {self.text}{proof}"


def anomaly(name: str, text: str, *proofs: Iterable[Event]) -> Anomaly:
    """Return an anomaly with the events of all its proofs, each once."""
    return Anomaly(name=name, text=text, events=tuple(dict.fromkeys(event for proof in proofs for event in proof)))
