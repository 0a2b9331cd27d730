"""What must a program know before it touches a store?

`txlog.json` names the features that the store's objects use. Readers and writers refuse a store that names one they do
not know (PROTOCOL.md, "Features"). A later txlog adds a feature here before it writes objects that an older one would
misread; what older ones may safely ignore is an unknown field, not a feature.
"""

from __future__ import annotations

from collections.abc import Iterable

from txlog.errors import UnsupportedStoreError

FORMAT_VERSION = 1
"""The `version` of every object that is written, and the highest that is read."""

TXN_V2 = "txn-v2"
"""Every end of a transaction bumps the producer's epoch, and its markers carry the new one (KIP-890)."""
STAGED_COMMIT = "staged-commit"
"""A COMMIT marker may carry rows, and a PREPARE_COMMIT names files that belong to no log yet."""

STAGED_INLINE = "staged-inline"
"""A PREPARE_COMMIT may hold few rows itself. Stores made before it name files only, and are written so for ever."""

SORTED_RUNS = "sorted-runs"
"""Rows of a cleaned run may stand in another order than that of offsets within a row group. Stores made before it have none."""

STORE_FEATURES = (SORTED_RUNS, STAGED_COMMIT, STAGED_INLINE, TXN_V2)
"""What a new store names, sorted."""
KNOWN_FEATURES = frozenset(STORE_FEATURES)


def check_features(features: Iterable[str], where: str) -> None:
    """Raises UnsupportedStoreError, beginning with `where`, if the store needs what this txlog does not know (W3, R1)."""
    unknown = sorted(set(features) - KNOWN_FEATURES)
    if unknown:
        raise UnsupportedStoreError(
            f"{where}: the store needs {', '.join(unknown)}, and this txlog knows {', '.join(STORE_FEATURES)}; upgrade pyspark-txlog"
        )
