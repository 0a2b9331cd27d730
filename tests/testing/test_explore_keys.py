"""Does the explorer's oracle of compactions distinguish removable rows from needed ones?"""

from __future__ import annotations

import pytest

from lab.explore.keys import Compacted, is_tombstone, key_of, superseded, wrong_rows, wrong_runs
from txlog.core.records import CommitRecord, Compaction, IndexEntry, SegmentIndex

ALL = {0: "a@k", 1: "n", 2: "b@k", 3: "-@j", 4: "c@l"}
STAY, GO = Compacted(), Compacted(tombstones_stay=False)


def test_words_say_their_keys() -> None:
    assert [key_of(word) for word in ("a@k", "-@k", "n")] == ["k", "k", None]
    assert [is_tombstone(word) for word in ("a@k", "-@k", "n")] == [False, True, False]
    assert superseded("a@k", 0, ALL)
    assert not superseded("b@k", 2, ALL)
    assert not superseded("n", 1, {1: "n", 2: "m"})


@pytest.mark.parametrize(
    ("gone", "policy", "says"),
    [
        ([], STAY, None),
        ([0], STAY, None),
        ([1], STAY, "'n' at offset 1"),
        ([2], STAY, "'b@k' at offset 2"),
        ([0, 2], GO, "'b@k' at offset 2"),
        ([3], STAY, "'-@j' at offset 3"),
        ([3], GO, None),
    ],
)
def test_what_may_be_gone(gone: list[int], policy: Compacted, says: str | None) -> None:
    rows = {at: word for at, word in ALL.items() if at not in gone}
    wrong = wrong_rows(rows, ALL, ALL, policy)
    assert wrong == says if says is None else wrong is not None and says in wrong


def test_what_may_not_be_shown() -> None:
    assert "'x@k' is shown" in (wrong_rows({0: "x@k"}, {}, {}, STAY) or "")
    # Newer rows supersede older ones even if no compaction asked for them; uncommitted rows do not.
    assert wrong_rows({}, {0: "a@k"}, {0: "a@k", 2: "b@k"}, STAY) is None
    assert wrong_rows({}, {0: "a@k"}, {0: "a@k"}, STAY) is not None
    back = {0: "a@k", 1: "-@k"}
    assert "are back" in (wrong_rows({0: "a@k"}, back, back, GO) or "")


def index(clean_end: int, *entries: IndexEntry) -> SegmentIndex:
    return SegmentIndex(
        partition="orders-0",
        base_offset=0,
        end_offset=5,
        generation=1,
        files=(),
        entries=entries,
        aborted_txns=0,
        last_digest="",
        compacted=Compaction(key=(1,), end_offset=clean_end),
    )


def test_what_runs_claim() -> None:
    assert wrong_runs([index(2)], ALL, (), STAY) is None
    assert "several rows of ['k']" in (wrong_runs([index(3)], ALL, (), STAY) or "")
    batch = CommitRecord(
        base_offset=2, records=1, kind="data", producer_id=7, producer_epoch=1, transactional=True, timestamp=0,
        segment_base=0,
        write_id="", previous="",
    )  # fmt: skip
    told = IndexEntry(
        base_offset=2, records=0, kind="data", producer_id=7, producer_epoch=1, base_sequence=0, transactional=True,
        timestamp=0, file=None, first_row=0,
    )  # fmt: skip
    assert "does not tell whose" in (wrong_runs([index(2)], {}, [batch], STAY) or "")
    assert wrong_runs([index(2, told)], {}, [batch], STAY) is None
    assert wrong_runs([index(2)], {}, [batch], Compacted(all_distinct=False)) is None
    assert wrong_runs([], {}, [batch], STAY) is None
