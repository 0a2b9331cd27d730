"""Which batches does a cut over several partitions show?"""

from __future__ import annotations

import msgspec
import pytest

from txlog.core.ages import ClockReading
from txlog.core.records import IndexEntry
from txlog.core.snapshots import SnapshotCut


@pytest.mark.parametrize(("epoch", "shown"), [(2, True), (3, True), (4, False)])
def test_a_commit_in_one_phase_is_shown_with_its_epoch(epoch: int, shown: bool) -> None:
    """W61: otherwise the second transaction of an id could be in a cut without the first."""
    cut = SnapshotCut(ends={}, settled={7: 3}, table_ends=(100,), taken_at=ClockReading(0, 0))
    entry = IndexEntry(
        base_offset=0, records=1, kind="data", producer_id=7, producer_epoch=epoch, base_sequence=0,
        transactional=False, timestamp=0, file=0,
    )  # fmt: skip
    assert cut.hides(entry) is not shown
    drawn = msgspec.structs.replace(entry, producer_id=2**62 + 7)
    assert not cut.hides(drawn)
