"""What does a check of a store report?"""

from __future__ import annotations

import msgspec

from txlog.maintenance.fsck.findings import Finding
from txlog.maintenance.fsck.repair import RepairedObject


class FsckReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a check of the store read, and what it found."""

    store: str
    topics: tuple[str, ...]
    partitions: int
    objects: int
    """Objects that were read, data files included."""
    bytes: int
    rows_checked: bool
    """Whether data files were opened."""
    damaged: int
    missing: int
    notes: int
    findings: tuple[Finding, ...]
    """Damaged objects first, then missing ones, then notes; each kind sorted by path."""
    repairable: tuple[RepairedObject, ...] = ()
    """The objects among them that the log can recreate, and why others cannot be recreated, if that was asked for."""
    repaired: tuple[RepairedObject, ...] = ()
    """Objects that were recreated before this check."""

    @property
    def is_clean(self) -> bool:
        """Return whether no object is damaged or missing."""
        return not self.damaged and not self.missing
