"""Which rows does a compaction keep? The rules as tables, and random logs against a dict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np
import pytest
from hypothesis import given, strategies as st

from txlog.core.compaction import (
    UNKNOWN,
    Cleanable,
    CompactionPolicy,
    OffsetMap,
    Rows,
    Selection,
    choose_end,
    digest_keys,
    find_cleanable,
)
from txlog.core.names import SegmentName
from txlog.core.records import Compaction, IndexedFile, IndexEntry, SchemaField, SegmentIndex, Tombstones
from txlog.core.schema import KAFKA_FIELDS, value_columns
from txlog.core.segments import check_index
from txlog.errors import CorruptRecordError

DAY_MS = 86_400_000
POLICY = CompactionPolicy(
    key_columns=("id",), key=(1,), delete_retention_ms=DAY_MS, min_compaction_lag_ms=0, min_cleanable_dirty_ratio=0.5
)


def digests(keys: Sequence[str]) -> np.ndarray:
    data = "".join(keys).encode()
    return digest_keys(np.frombuffer(data, np.uint8), np.cumsum([0, *map(len, keys)]))


# -- the map ----------------------------------------------------------------------------------------------------------


def test_equal_keys_have_equal_digests_and_others_have_not() -> None:
    found = digests(["a", "bb", "", "a", "ab", "b"])
    assert found[0] == found[3]
    assert len(set(found.tolist())) == 5
    assert found.dtype.itemsize == 16
    assert len(digests([])) == 0


@given(st.lists(st.lists(st.text("abcdefgh", max_size=2), max_size=20), max_size=8), st.integers(1, 20))
def test_a_map_is_a_dict_that_stops_before_its_first_key_too_many(batches: list[list[str]], max_keys: int) -> None:
    made = OffsetMap(max_keys)
    model: dict[str, int] = {}
    offset = 0
    for batch in batches:
        taken = made.put(digests(batch), np.arange(offset, offset + len(batch)))
        for at, key in enumerate(batch):
            if key not in model and len(model) == max_keys:
                assert taken == at
                break
            model[key] = offset + at
        else:
            assert taken == len(batch)
        offset += len(batch)
        assert len(made) == len(model)
        every = sorted({key for each in batches for key in each})
        assert made.latest(digests(every)).tolist() == [model.get(key, UNKNOWN) for key in every]
        if taken < len(batch):
            break


def test_a_map_keeps_the_newest_where_new_keys_move_to_the_large_table() -> None:
    made = OffsetMap(1_000_000)
    keys = [f"{number:06d}" for number in range(200_000)]
    for first in (0, 50_000, 120_000):
        chosen = keys[first : first + 80_000]
        assert made.put(digests(chosen), np.arange(first * 10, first * 10 + len(chosen))) == len(chosen)
    assert made.put(digests(keys[:3]), np.array([9_000_000, 9_000_001, 9_000_002])) == 3
    assert made.latest(digests([keys[0], keys[60_000], keys[130_000], "none"])).tolist() == [
        9_000_000, 510_000, 1_210_000, UNKNOWN,
    ]  # fmt: skip


def test_a_map_without_room_is_refused() -> None:
    with pytest.raises(ValueError, match="a key at least"):
        OffsetMap(0)


# -- which rows -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    offset: int
    key: str | None
    dead: bool = False


def compacted(
    log: Sequence[Row],
    before: Compaction,
    now_ms: int,
    *,
    max_keys: int = 1000,
    end_offset: int | None = None,
    policy: CompactionPolicy = POLICY,
) -> tuple[list[Row], Compaction, Selection]:
    """Compact the whole log once."""
    end = log[-1].offset + 1 if end_offset is None else end_offset
    latest = OffsetMap(max_keys)
    dirty = [row for row in log if row.offset >= before.end_offset and row.key is not None]
    taken = latest.put(digests([row.key or "" for row in dirty]), np.array([row.offset for row in dirty], np.int64))
    if taken < len(dirty):
        end = min(end, dirty[taken].offset)
    selection = Selection(latest, end_offset=end, tombstones=before.tombstones, now_ms=now_ms, policy=policy)
    stays = selection.keep(
        Rows(
            offsets=np.array([row.offset for row in log], np.int64),
            digests=digests([row.key or "" for row in log]),
            keyed=np.array([row.key is not None for row in log], np.bool_),
            tombstones=np.array([row.dead for row in log], np.bool_),
        )
    )
    return [row for row, stay in zip(log, stays, strict=True) if stay], selection.compaction(), selection


NEW = Compaction(key=POLICY.key, end_offset=0)


def test_the_latest_row_of_a_key_stays_and_rows_without_a_key_do() -> None:
    log = [Row(0, "a"), Row(2, "b"), Row(3, None), Row(5, "a"), Row(9, None), Row(10, "c")]
    left, compaction, selection = compacted(log, NEW, 0)
    assert left == [log[1], log[2], log[3], log[4], log[5]]
    assert (selection.superseded, selection.keyless, selection.expired) == (1, 2, 0)
    assert compaction == Compaction(key=(1,), end_offset=11)


def test_a_tombstone_lives_from_the_pass_that_saw_it_first() -> None:
    log = [Row(0, "a"), Row(1, "b"), Row(2, "a", dead=True)]
    left, first, _ = compacted(log, NEW, 1000)
    assert left == log[1:]
    assert first.tombstones == (Tombstones(end_offset=3, rows=1, delete_at=1000 + DAY_MS),)
    left, second, _ = compacted(left, first, 1000 + DAY_MS - 1)
    assert (left, second) == (log[1:], first)
    left, third, selection = compacted(left, second, 1000 + DAY_MS)
    assert left == log[1:2]
    assert (third.tombstones, selection.expired) == ((), 1)


def test_a_tombstone_whose_time_has_come_goes_also_when_it_is_superseded_and_counts_once() -> None:
    log = [Row(0, "a", dead=True), Row(1, "b", dead=True)]
    left, first, _ = compacted(log, NEW, 0)
    left, second, selection = compacted([*left, Row(2, "a")], first, DAY_MS)
    assert left == [Row(2, "a")]
    assert (selection.superseded, selection.expired, second.tombstones) == (1, 1, ())


def test_a_full_map_leaves_what_it_does_not_know() -> None:
    log = [Row(0, "a"), Row(1, "b"), Row(2, "a"), Row(3, "c"), Row(4, "a"), Row(5, "b", dead=True)]
    left, first, _ = compacted(log, NEW, 0, max_keys=2)
    assert first.end_offset == 3
    assert left == log[1:]
    left, second, _ = compacted(left, first, 0, max_keys=2)
    assert second.end_offset == 5
    assert left == [log[1], log[3], log[4], log[5]]
    left, third, _ = compacted(left, second, 0, max_keys=2)
    assert left == [log[3], log[4], log[5]]
    assert third.tombstones == (Tombstones(end_offset=6, rows=1, delete_at=DAY_MS),)


rows = st.lists(st.tuples(st.sampled_from(["a", "b", "c", "d", None]), st.booleans(), st.integers(1, 3)), max_size=12)


@given(st.lists(st.tuples(rows, st.integers(1, 5), st.integers(0, DAY_MS)), min_size=1, max_size=5))
def test_any_log_says_after_each_pass_what_it_said_before(rounds: list[tuple[object, int, int]]) -> None:
    log: list[Row] = []
    state = NEW
    now_ms = 0
    seen: dict[int, int] = {}
    """Offset of a tombstone -> time of the first pass that kept it."""
    for made, max_keys, wait_ms in rounds:
        offset = log[-1].offset + 1 if log else state.end_offset
        for key, dead, step in made:  # type: ignore[attr-defined]
            log.append(Row(offset, key, dead and key is not None))
            offset += step
        now_ms += wait_ms
        while log and state.end_offset <= log[-1].offset:
            before = {row.key: row for row in log}
            left, after, _ = compacted(log, state, now_ms, max_keys=max_keys)
            assert after.end_offset > state.end_offset
            # The newest row of a key is the same, or it was a tombstone whose retention has passed.
            newest = {row.key: row for row in left}
            for key, row in before.items():
                if key is None or newest.get(key) == row:
                    continue
                assert row.dead
                assert key not in newest
                assert now_ms - seen[row.offset] >= DAY_MS
            assert [row for row in left if row.key is None] == [row for row in log if row.key is None]
            clean = [row.key for row in left if row.offset < after.end_offset and row.key is not None]
            assert len(clean) == len(set(clean))
            dead = [row.offset for row in left if row.dead and row.offset < after.end_offset]
            for at in dead:
                seen.setdefault(at, now_ms)
            assert sum(item.rows for item in after.tombstones) == len(dead)
            assert all(item.delete_at > now_ms for item in after.tombstones)
            log, state = left, after


# -- what is a tombstone ----------------------------------------------------------------------------------------------


def test_a_tombstone_has_no_value() -> None:
    def fields(*names: str) -> tuple[SchemaField, ...]:
        return tuple(SchemaField(id=at + 1, name=name, type="string") for at, name in enumerate(names))

    assert value_columns(KAFKA_FIELDS, ("key",)) == ("value",)
    assert value_columns((*KAFKA_FIELDS, *fields("more")), ("key",)) == ("value",)
    assert value_columns(KAFKA_FIELDS, ("value",)) == ("key", "headers", "timestamp")
    assert value_columns(fields("id", "name", "city"), ("id",)) == ("name", "city")
    assert value_columns(fields("id"), ("id",)) == ()


# -- what may be compacted, and when ----------------------------------------------------------------------------------


def index(
    base: int,
    end: int,
    *,
    size: int = 100,
    timestamp: int = 0,
    generation: int = 0,
    compacted: Compaction | None = None,
) -> SegmentIndex:
    file = IndexedFile(
        path="0/x", rows=end - base, bytes=size, digest=None, footer_digest="", row_groups=(end - base,), schema_id=0
    )
    entry = IndexEntry(
        base_offset=base, records=end - base, kind="data", producer_id=-1, producer_epoch=-1, base_sequence=-1,
        transactional=False, timestamp=timestamp, file=0,
    )  # fmt: skip
    return SegmentIndex(
        partition="orders-0",
        base_offset=base,
        end_offset=end,
        generation=generation,
        files=(file,),
        entries=(entry,),
        aborted_txns=0,
        last_digest="",
        compacted=compacted or msgspec.UNSET,
    )


def cleanable(
    *indexes: SegmentIndex, lso: int = 10**6, start: int = 0, end: int = 10**6, now_ms: int = 0, **policy: float
) -> Cleanable:
    named = {
        SegmentName(each.base_offset, each.end_offset, each.generation, "x" if each.generation else ""): each
        for each in indexes
    }
    return find_cleanable(
        list(named),
        named,
        log_start_offset=start,
        last_stable_offset=lso,
        next_offset=end,
        now_ms=now_ms,
        policy=replace(POLICY, **policy),  # type: ignore[arg-type]
    )


def ends(found: Cleanable) -> list[int]:
    return [name.end_offset for name in found.names]


def test_only_whole_segments_below_the_lso_and_from_the_log_start_on() -> None:
    log = [index(0, 10), index(10, 20), index(20, 30)]
    assert ends(cleanable(*log)) == [10, 20, 30]
    assert ends(cleanable(*log, lso=29)) == [10, 20]
    assert ends(cleanable(*log, start=10)) == [20, 30]
    found = cleanable(*log, start=15)
    assert (ends(found), found.first_dirty_offset) == ([20, 30], 15)


def test_young_segments_wait_but_not_those_that_were_compacted() -> None:
    log = [index(0, 10, timestamp=5), index(10, 20, timestamp=50), index(20, 30, timestamp=60)]
    assert ends(cleanable(*log, now_ms=100, min_compaction_lag_ms=60)) == [10]
    assert ends(cleanable(*log, now_ms=100, min_compaction_lag_ms=10)) == [10, 20, 30]
    run = index(0, 20, timestamp=50, generation=1, compacted=Compaction(key=(1,), end_offset=20))
    assert ends(cleanable(run, log[2], now_ms=100, min_compaction_lag_ms=60)) == [20]


def test_the_dirty_part_must_be_large_enough() -> None:
    run = index(0, 20, size=300, generation=1, compacted=Compaction(key=(1,), end_offset=20))
    found = cleanable(run, index(20, 30, size=100))
    assert (found.first_dirty_offset, found.clean_bytes, found.dirty_bytes, found.dirty_ratio) == (20, 300, 100, 0.25)
    assert not found.is_due
    assert cleanable(run, index(20, 30, size=100), min_cleanable_dirty_ratio=0.25).is_due
    assert cleanable(run, index(20, 30, size=300)).is_due
    assert not cleanable(run, min_cleanable_dirty_ratio=0).is_due
    assert not cleanable().is_due


def test_it_says_what_a_compaction_waits_for() -> None:
    log = [index(0, 10), index(10, 20, timestamp=50)]
    assert cleanable(*log).waits_for == ""
    assert cleanable(*log, lso=5).waits_for == "a transaction over the new rows has not ended yet"
    # Of several reasons it is that of the first segment that waits.
    assert "younger" in cleanable(*log, lso=15, now_ms=50, min_compaction_lag_ms=60).waits_for
    run = index(0, 20, size=300, generation=1, compacted=Compaction(key=(1,), end_offset=20))
    assert cleanable(run, index(20, 30)).waits_for == "less than min.cleanable.dirty.ratio=0.5 of the bytes is dirty"
    assert cleanable(run, end=21).waits_for.startswith("all new rows are in the active segment")
    assert cleanable(run, end=20).waits_for == "there are no new rows"
    assert cleanable(end=0).waits_for == "there are no new rows"
    # Retention has removed all rows.
    assert cleanable(start=30, end=30).waits_for == "there are no new rows"


def test_of_a_run_only_what_lies_behind_counts_as_dirt() -> None:
    run = index(0, 40, size=400, generation=1, compacted=Compaction(key=(1,), end_offset=30))
    halves = [msgspec.structs.replace(run.entries[0], records=n, base_offset=at) for n, at in ((20, 0), (20, 30))]
    found = cleanable(msgspec.structs.replace(run, entries=tuple(halves)))
    assert (found.first_dirty_offset, found.clean_bytes, found.dirty_bytes) == (30, 200, 200)


def test_another_key_begins_anew() -> None:
    item = Tombstones(end_offset=10, rows=1, delete_at=0)
    run = index(0, 20, generation=1, compacted=Compaction(key=(2,), end_offset=20, tombstones=(item,)))
    found = cleanable(run)
    assert (found.first_dirty_offset, found.tombstones, found.due_tombstones, found.is_due) == (0, (), 0, True)


def test_tombstones_whose_time_has_come_count_as_dirt() -> None:
    items = (Tombstones(end_offset=10, rows=5, delete_at=100), Tombstones(end_offset=20, rows=5, delete_at=200))
    run = index(0, 20, size=200, generation=1, compacted=Compaction(key=(1,), end_offset=20, tombstones=items))
    early, half, late = (cleanable(run, now_ms=now_ms) for now_ms in (99, 199, 200))
    assert [(each.due_tombstones, each.is_due) for each in (early, half, late)] == [(0, False), (5, False), (10, True)]
    assert [(each.removable_bytes, each.dirty_ratio) for each in (early, half, late)] == [
        (0, 0),
        (50, 0.25),
        (100, 0.5),
    ]
    assert cleanable(run, now_ms=100, min_cleanable_dirty_ratio=0).is_due
    assert late.tombstones == items


def test_a_pass_ends_where_a_segment_does_unless_that_is_no_progress() -> None:
    names = [SegmentName(0, 10, 0), SegmentName(10, 20, 0), SegmentName(20, 30, 0)]
    assert choose_end(names, first_dirty_offset=0, map_end=30) == (tuple(names), 30)
    assert choose_end(names, first_dirty_offset=0, map_end=25) == (tuple(names[:2]), 20)
    assert choose_end(names, first_dirty_offset=20, map_end=25) == (tuple(names), 25)
    assert choose_end(names, first_dirty_offset=0, map_end=5) == (tuple(names[:1]), 5)
    assert choose_end(names, first_dirty_offset=30, map_end=30) == (tuple(names), 30)


# -- what an index may contain about it -------------------------------------------------------------------------------


@pytest.mark.parametrize("retention_ms", [10**17, 2**63 - 1])
def test_a_tombstone_that_is_kept_for_ever_can_be_read_again(retention_ms: int) -> None:
    policy = replace(POLICY, delete_retention_ms=retention_ms)
    _, made, _ = compacted([Row(0, "a", dead=True)], NEW, 1_700_000_000_000, policy=policy)
    assert made.tombstones[0].delete_at >= retention_ms
    assert msgspec.json.decode(msgspec.json.encode(made), type=Compaction) == made


def test_an_index_that_says_what_cannot_be_is_refused() -> None:
    def refuse(generation: int, compaction: Compaction) -> None:
        made = index(0, 20, generation=generation, compacted=compaction)
        control = msgspec.structs.replace(made.entries[0], records=0, kind="expire", file=None)
        entries = tuple(msgspec.structs.replace(control, base_offset=at) for at in range(20))
        made = msgspec.structs.replace(made, files=(), entries=entries, last_digest="" if generation else "0" * 64)
        name = SegmentName(0, 20, generation, "x" if generation else "")
        with pytest.raises(CorruptRecordError, match="it cannot have been compacted"):
            check_index(made, name, f"orders/0/{name.index}")

    def items(*ends: int) -> tuple[Tombstones, ...]:
        return tuple(Tombstones(end_offset=end, rows=1, delete_at=0) for end in ends)

    refuse(0, Compaction(key=(1,), end_offset=20))
    refuse(1, Compaction(key=(1,), end_offset=21))
    refuse(1, Compaction(key=(1,), end_offset=10, tombstones=items(11)))
    refuse(1, Compaction(key=(1,), end_offset=10, tombstones=items(5, 4)))
    refuse(1, Compaction(key=(1,), end_offset=10, tombstones=items(5, 5)))
