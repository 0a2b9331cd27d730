"""Which state of a transaction may follow which other one?"""

from __future__ import annotations

from txlog.core.records import TransactionState
from txlog.core.transactions import IDLE, PREPARED

VALID_PREVIOUS_STATES: dict[TransactionState, frozenset[TransactionState]] = {
    "EMPTY": IDLE,
    # From PREPARE_*: by its owner, after every marker (`as_its_owner_knows`).
    "ONGOING": IDLE | PREPARED | {"ONGOING"},
    # From all others than ONGOING: staged transactions, and the abort after an attempted commit (W30).
    "PREPARE_COMMIT": IDLE | PREPARED | {"ONGOING"},
    "PREPARE_ABORT": IDLE | PREPARED | {"ONGOING"},
    "COMPLETE_COMMIT": frozenset({"PREPARE_COMMIT"}),
    "COMPLETE_ABORT": frozenset({"PREPARE_ABORT"}),
}
"""Target state -> states it may follow (W25, invariant 4)."""
