"""What must a program know before it uses a store?

`txlog.json` names the features that the store's objects use. Readers and writers refuse a store with a feature that
they do not know (PROTOCOL.md, "Features"). A later txlog adds a feature here before it writes objects that an older one
would misread. What an older txlog may safely ignore is an unknown field, not a feature.
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
"""A PREPARE_COMMIT may hold a few rows itself. A store made without this feature names only files, and writers keep it
so."""

SORTED_RUNS = "sorted-runs"
"""Rows of a cleaned run may be in another order than that of offsets within a row group. A store made without this
feature has no such run."""

INLINE_ZSTD = "inline-zstd"
"""Inline rows may be compressed as a whole. A store made without this feature has none that are."""

SCHEMA_EVOLUTION = "schema-evolution"
"""Columns may be renamed, dropped, moved and widened, and may have a default. In a store made without this feature
columns can only be added, as nullable ones at the end."""

GROUP_MEMBERS = "group-members"
"""A group may have many members, which write heartbeats. Without this feature a group has one member."""

PUBLICATION = "publication"
"""Tables of other formats may name the files of a topic, and vacuum keeps them. In a store made without this feature no
topic is published."""

PUBLISHED_LATEST = "published-latest"
"""A published table may have the newest rows of each key only. In a store made without this feature each has all
rows."""

DELETION_RECORDS = "deletion-records"
"""The deletion of a topic writes a record into each partition of `__transaction_state` that is in use, so a commit need
not look whether its topics still exist. In a store made without this feature every staged commit looks (W46)."""

COMBINED_RECORDS = "combined-records"
"""An object of a partition may hold several commit records, and a record may wait for a writer that appends it. A
transaction whose rows are few and of one partition may be one batch, without a decision in the table. In a store made
without this feature each record has an object, and each transaction a decision."""

STORE_FEATURES = (
    DELETION_RECORDS,
    GROUP_MEMBERS,
    INLINE_ZSTD,
    PUBLICATION,
    PUBLISHED_LATEST,
    SCHEMA_EVOLUTION,
    SORTED_RUNS,
    STAGED_COMMIT,
    STAGED_INLINE,
    TXN_V2,
)
"""The features of a new store, sorted."""
KNOWN_FEATURES = frozenset((COMBINED_RECORDS, *STORE_FEATURES))


def check_features(features: Iterable[str], where: str) -> None:
    """Raise UnsupportedStoreError, beginning with `where`, if the store uses an unknown feature (W3, R1)."""
    unknown = sorted(set(features) - KNOWN_FEATURES)
    if unknown:
        raise UnsupportedStoreError(
            f"{where}: the store needs {', '.join(unknown)}, and this txlog knows "
            f"{', '.join(STORE_FEATURES)}; upgrade pyspark-txlog"
        )
