"""Which rows does a reader of either level see (PROTOCOL.md, R10 to R12), and what does planning cost?

It is the same from the tail as from sealed segments.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from tests.aborted import aborted_transactions
from tests.effort import examples
from tests.protocol.harness import GRACE_MS, A, Cluster, Process, Task, context, measure, rolling
from txlog.config import IsolationLevel
from txlog.core import envelope, names
from txlog.core.effects import Get
from txlog.core.fetch_plan import FilePiece
from txlog.core.names import SegmentName
from txlog.core.records import Clean, CleanedRun, SegmentIndex, TxnIndex
from txlog.errors import CorruptLogError, MissingObjectError, OffsetOutOfRangeError
from txlog.protocol.append import append_log_start
from txlog.protocol.load import refresh
from txlog.protocol.read import TimeHit, offset_for_timestamp, plan_read
from txlog.protocol.seal import seal

COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"
LAYOUTS = pytest.mark.parametrize("per_segment", [100, 1, 2, 3])
"""All records in the tail; one record in each segment; segments that cut transactions."""


class Script:
    """A script of appends: the word of a row is its offset.

    `d1 2` appends two rows of producer 1's transaction, `d0 2` two plain rows. `c1` or `a1` ends the transaction, `t 5`
    lets 5 ms pass.
    """

    def __init__(self, steps: str, per_segment: int = 100) -> None:
        self.cluster = Cluster()
        self.ctx = rolling(per_segment)
        self.producers: dict[str, Process] = {}
        self.at = 0
        for step in steps.split(", "):
            self.play(step)

    def producer(self, name: str) -> Process:
        if name not in self.producers:
            process = Process(self.cluster, name, self.ctx)
            process.do(process.idempotent() if name == "0" else process.init(timeout_ms=900_000))
            self.producers[name] = process
        return self.producers[name]

    def play(self, step: str) -> None:
        word, _, argument = step.partition(" ")
        if word == "t":
            self.cluster.pass_ms(int(argument))
        elif word == "start":
            self.cluster.run(append_log_start(self.ctx, {}, A, int(argument)))
            self.at += 1
        elif word[0] == "d":
            process = self.producer(word[1])
            rows = int(argument or 1)
            process.do(process.send(A, *(str(self.at + row) for row in range(rows)), in_file=rows > 2))
            self.at += rows
        else:
            process = self.producer(word[1])
            if process.identity.state != "ONGOING":
                process.do(process.register(A))
            process.do(process.end(word[0] == "c"))
            self.at += 1
        assert self.cluster.state(A).next_offset == self.at

    def offsets(self, isolation: IsolationLevel = "read_committed") -> list[int]:
        read = self.cluster.read(A, isolation)
        assert all(str(offset) == word for offset, word in read.items()), read
        return list(read)


# -- levels -----------------------------------------------------------------------------------------------------------


@LAYOUTS
@pytest.mark.parametrize(
    ("steps", "committed", "uncommitted"),
    [
        pytest.param("d1 2, a1", [], [0, 1], id="113 all aborted"),
        pytest.param("d1 2, c1", [0, 1], [0, 1], id="114 committed"),
        pytest.param(
            "d1 2, d2, c1, d2, a2, d1, d2, d1, a1, c2", [0, 1, 7], [0, 1, 2, 4, 6, 7, 8], id="115 interleaved"
        ),
        pytest.param("d1, a1, a1, d1 2, c1", [3, 4], [0, 3, 4], id="116 two ABORTs in a row"),
        pytest.param(
            "d1, a1, d0 3, d1 3, c1", [2, 3, 4, 5, 6, 7], [0, 2, 3, 4, 5, 6, 7], id="119 uncommitted sees all"
        ),
        pytest.param("d2, d1 2, d2, c2", [0], [0, 1, 2, 3], id="122 an undecided transaction is a barrier"),
        pytest.param("d2, d1 2, d2, a1, c2", [0, 3], [0, 1, 2, 3], id="123 delayed fetch"),
        pytest.param("d1, a1, d1, c1", [2], [0, 2], id="124 offsets of a basic transaction"),
        pytest.param("d0 5, d1 2", [0, 1, 2, 3, 4], list(range(7)), id="LSO at the first record"),
        pytest.param("d1 3, d0 2, start 4, c1", [4], [4], id="the log start inside a batch"),
        pytest.param("d1 3, start 2, a1, d0 2", [5, 6], [2, 5, 6], id="the log start inside an aborted transaction"),
        pytest.param("d1 3, start 2, d0 2", [], [2, 4, 5], id="the log start inside an open transaction"),
        pytest.param("d1, start 1, d1, d0, d0", [], [2, 3, 4], id="a transaction that opened anew, open"),
    ],
)
def test_levels(steps: str, committed: list[int], uncommitted: list[int], per_segment: int) -> None:
    """Markers are not returned; the rows of a COMMIT are returned (R11)."""
    script = Script(steps, per_segment)
    assert script.offsets() == committed
    assert script.offsets("read_uncommitted") == uncommitted


@pytest.mark.parametrize("ends", [3, 4, 5])
def test_a_transaction_that_opened_anew_is_aborted(ends: int) -> None:
    """The earlier rows of the transaction are below the log start, even if they are in the segment of the marker."""
    script = Script("d1, start 1, d1, a1, d0, d0, d0", ends)
    assert script.offsets() == [4, 5, 6]
    assert script.offsets("read_uncommitted") == [2, 4, 5, 6]


SPANNING = "d1 2, d0, d2, d1, c2, d0 3, a1, d0"  # the marker of 1 lies far behind its rows


@LAYOUTS
def test_an_abort_that_spans_segments(per_segment: int) -> None:
    script = Script(SPANNING, per_segment)
    assert script.offsets() == [2, 3, 6, 7, 8, 10]
    view = script.cluster.view(A)
    for start in range(view.state.next_offset + 1):
        for end in range(start, view.state.next_offset + 1):
            _, plan = script.cluster.run(plan_read(script.ctx, view, start, end, "read_committed"))
            got = [offset for offset, _ in script.cluster.words(plan)]
            assert got == [offset for offset in (2, 3, 6, 7, 8, 10) if start <= offset < end]
            _, plan = script.cluster.run(plan_read(script.ctx, view, start, end, "read_uncommitted"))
            got = [offset for offset, _ in script.cluster.words(plan)]
            assert got == [offset for offset in (0, 1, 2, 3, 4, 6, 7, 8, 10) if start <= offset < end]


@LAYOUTS
def test_what_a_reader_saw_it_sees_for_ever(per_segment: int) -> None:
    """Invariant 6, step by step: the result of read_committed up to x never changes."""
    script = Script("t 1", per_segment)
    seen: dict[int, str] = {}
    upto = 0
    for step in SPANNING.split(", "):
        script.play(step)
        now = script.cluster.read(A)
        assert {offset: word for offset, word in now.items() if offset < upto} == seen
        seen, upto = now, script.cluster.state(A).last_stable_offset


@LAYOUTS
def test_ranges(per_segment: int) -> None:
    """A start below the log start is an error; between the end of a level and the log end there are no rows (R12)."""
    script = Script("d0 2, d0 2, start 2, d1 2, d0", per_segment)  # LSO 5, end 8
    view = script.cluster.view(A)
    assert (view.state.log_start_offset, view.state.last_stable_offset, view.state.next_offset) == (2, 5, 8)
    for start in (5, 6, 8):
        _, plan = script.cluster.run(plan_read(script.ctx, view, start, None, "read_committed"))
        assert (plan.start, plan.end, plan.pieces) == (start, start, ())
    for start, isolation in ((1, COMMITTED), (0, UNCOMMITTED), (9, COMMITTED), (9, UNCOMMITTED), (-1, COMMITTED)):
        with pytest.raises(OffsetOutOfRangeError, match=f"offset {start} is out of range, the log holds 2 to 8"):
            script.cluster.run(plan_read(script.ctx, view, start, None, isolation))  # type: ignore[arg-type]


def test_an_aborted_file_is_never_opened() -> None:
    for per_segment in (100, 1):
        script = Script("d1 3, d0 3, a1, d0 3", per_segment)
        view = script.cluster.view(A)
        _, plan = script.cluster.run(plan_read(script.ctx, view, 0, None, "read_committed"))
        opened = [piece.file.path for piece in plan.pieces if isinstance(piece, FilePiece)]
        pid = script.producers["1"].pid
        assert len(opened) == 2
        assert not any(path.split("/")[-1].startswith(f"{pid}-0-") for path in opened)


@given(st.lists(st.sampled_from(["d1", "d2 3", "d0 2", "c1", "c2", "a1", "a2", "t 7"]), max_size=16), st.integers(1, 4))
@examples(60)
def test_tail_and_segments_agree(steps: list[str], per_segment: int) -> None:
    script = "t 1, " + ", ".join(steps) if steps else "t 1"
    plain, sealed = Script(script), Script(script, per_segment)
    sealed.cluster.run(seal(sealed.ctx, sealed.cluster.view(A)))
    sealed.cluster.pass_ms(GRACE_MS)
    sealed.cluster.clean_tail(A)
    for isolation in (COMMITTED, UNCOMMITTED):
        assert plain.offsets(isolation) == sealed.offsets(isolation)  # type: ignore[arg-type]
    end = plain.cluster.state(A).next_offset
    one = plain.cluster.run(aborted_transactions(plain.ctx, plain.cluster.view(A), 0, end))[1]
    two = sealed.cluster.run(aborted_transactions(sealed.ctx, sealed.cluster.view(A), 0, end))[1]
    assert one == two


# -- indexes that are missing, damaged, replaced ----------------------------------------------------------------------


def test_a_missing_txnindex_is_an_error_and_not_none() -> None:
    """Without its .txnindex, a reader would return the aborted rows of the segment (R8)."""
    script = Script(SPANNING + ", d0", 2)
    (path,) = (path for path in script.cluster.objects if path.endswith(".txnindex"))
    del script.cluster.objects[path]
    with pytest.raises(MissingObjectError, match=path):
        script.offsets()


def test_a_missing_index_is_named_after_listing_again() -> None:
    script = Script(SPANNING, 2)
    view = script.cluster.view(A)
    path = A.folder + view.walk[1].index
    del script.cluster.objects[path]
    with pytest.raises(CorruptLogError):
        script.cluster.run(plan_read(context(max_loads=2), view, 0, None, "read_committed"))


def test_an_index_of_another_segment_is_refused() -> None:
    """An index must contain what its name states (R8)."""
    script = Script(SPANNING + ", d0", 2)
    view = script.cluster.view(A)
    first, second = (A.folder + name.index for name in view.walk[:2])
    script.cluster.objects[second] = script.cluster.objects[first]
    with pytest.raises(CorruptLogError, match=second):
        script.offsets()
    (path,) = (path for path in script.cluster.objects if path.endswith(".txnindex"))
    value, _ = envelope.decode(script.cluster.objects[path], TxnIndex, path)
    script.cluster.objects[path] = envelope.encode(msgspec.structs.replace(value, aborted=value.aborted * 2))
    with pytest.raises(CorruptLogError, match=path):
        script.cluster.run(aborted_transactions(script.ctx, view, 6, 10))


def test_a_reader_whose_segments_were_removed_goes_on_from_its_offset() -> None:
    """Retention deleted the objects that an old view names. A fresh view shows the range that exists now."""
    script = Script("d0 2, d0 2, d0 2, d0 2", 1)
    view = script.cluster.view(A)
    script.play("start 4")
    for name in (SegmentName(0, 2, 0), SegmentName(2, 4, 0)):
        del script.cluster.objects[A.folder + name.index]
    script.cluster.clean_tail(A)
    fresh, plan = script.cluster.run(plan_read(script.ctx, view, 4, None, "read_committed"))
    assert [offset for offset, _ in script.cluster.words(plan)] == [4, 5, 6, 7]
    with pytest.raises(OffsetOutOfRangeError, match="4 to 9"):
        script.cluster.run(plan_read(script.ctx, view, 2, None, "read_committed"))
    assert fresh.state.next_offset >= 8
    _, found = script.cluster.run(offset_for_timestamp(script.ctx, view, 0, "read_committed"))
    assert [hit.offset for hit in found] == [4]


# -- what it costs ----------------------------------------------------------------------------------------------------


def test_one_get_a_segment_in_range_and_one_an_announced_txnindex() -> None:
    script = Script("d0, d1, d0, a1, d0, d0, d0, d0", 2)
    view = script.cluster.view(A)
    assert len(view.walk) == 3
    (_, plan), cost = measure(script.cluster, plan_read(script.ctx, view, 0, None, "read_committed"))
    assert (cost.gets, cost.lists, cost.rounds) == (3 + 1, 0, 2)
    _, cost = measure(script.cluster, plan_read(script.ctx, view, 0, None, "read_committed", plan.indexes))
    assert cost.gets == 0
    _, cost = measure(script.cluster, plan_read(script.ctx, view, 4, 6, "read_committed"))
    assert cost.gets == 1
    (_, plan), cost = measure(script.cluster, plan_read(script.ctx, view, 6, None, "read_committed"))
    assert (cost.gets, len(plan.pieces)) == (0, 2)


def test_later_indexes_are_read_only_while_something_may_be_open() -> None:
    """The abort of rows in segment 1 may be in any later segment.

    The LSO of an index shows when the search may stop (R10).
    """
    script = Script("d0, d0, d0, d1, a1, d0, d0, d0, d0, d0", 2)
    view = script.cluster.view(A)
    indexes = {}
    for name in view.walk:
        path = A.folder + name.index
        indexes[name], _ = envelope.decode(script.cluster.objects[path], SegmentIndex, path)
    assert [index.last_stable_offset for index in indexes.values()] == [2, 3, 6, 8]
    _, cost = measure(script.cluster, plan_read(script.ctx, view, 0, 2, "read_committed"))
    assert cost.gets == 1  # the LSO at the segment's end is 2: no transaction below 2 was open
    (_, plan), cost = measure(script.cluster, plan_read(script.ctx, view, 2, 4, "read_committed"))
    assert cost.gets == 3  # its own index, the next one and the .txnindex of that
    assert [txn.first_offset for txn in plan.aborted] == [3]


# -- timestamps -------------------------------------------------------------------------------------------------------

TIMED = "d0, t 10, d0 2, t 10, d1, t 10, d0, t 10, c1, t 10, d0, t 10, d1"  # at 0, 10, 20, 30, 40, 50, 60


def look_up(script: Script, ms: int, isolation: Any = COMMITTED) -> tuple[int, int] | None:
    base = script.cluster.records(A)[0].timestamp if script.cluster.records(A) else 1_700_000_000_000
    _, found = script.cluster.run(offset_for_timestamp(script.ctx, script.cluster.view(A), base + ms, isolation))
    return (found[0].offset, found[0].timestamp - base) if found else None


@LAYOUTS
@pytest.mark.parametrize(
    ("ms", "committed", "uncommitted"),
    [
        (-5, (0, 0), (0, 0)),
        (0, (0, 0), (0, 0)),
        (1, (1, 10), (1, 10)),
        (10, (1, 10), (1, 10)),
        (15, (3, 20), (3, 20)),
        (21, (4, 30), (4, 30)),
        (31, (6, 50), (6, 50)),
        pytest.param(51, None, (7, 60), id="126 beyond the LSO there is none"),
        pytest.param(61, None, None, id="beyond the end"),
    ],
)
def test_offset_for_timestamp(ms: int, committed: Any, uncommitted: Any, per_segment: int) -> None:
    script = Script(TIMED, per_segment)
    assert look_up(script, ms) == committed
    assert look_up(script, ms, UNCOMMITTED) == uncommitted


@LAYOUTS
def test_timestamps_below_the_log_start_do_not_count(per_segment: int) -> None:
    script = Script("d0, t 10, d0, t 10, d0, t 10, d0 2, start 4, t 10, d0, d0, d0, d0", per_segment)
    assert look_up(script, 0) == (4, 30)  # offset 3 is in the same batch, but below the log start
    assert look_up(script, 31) == (6, 40)


def test_a_look_up_reads_a_logarithm_of_the_indexes() -> None:
    script = Script(", ".join(["d0, t 10"] * 33), 1)
    view = script.cluster.view(A)
    assert len(view.walk) == 32
    base = script.cluster.records(A)[0].timestamp
    (_, found), cost = measure(script.cluster, offset_for_timestamp(script.ctx, view, base + 171, "read_committed"))
    assert found == (TimeHit(18, base + 180),)
    assert cost.gets <= 7
    (_, found), cost = measure(script.cluster, offset_for_timestamp(script.ctx, view, base + 320, "read_committed"))
    assert (found, cost.gets) == ((TimeHit(32, base + 320),), 0)


def test_a_run_without_entries_hides_nothing() -> None:
    """A cleaned run may have lost all its rows. The search must not conclude that all rows are earlier."""
    script = Script("d0, t 10, d0, t 10, d0, t 10, d0, t 10, d0", 1)
    view = script.cluster.view(A)
    for empty in ({1}, {1, 2}, {2}, {0, 1}):
        cluster = script.cluster.copy()
        for number in empty:
            path = A.folder + view.walk[number].index
            index, _ = envelope.decode(cluster.objects[path], SegmentIndex, path)
            run = SegmentName(index.base_offset, index.end_offset, 1, "0" * 8)
            emptied = SegmentIndex(
                partition=str(A),
                base_offset=run.base_offset,
                end_offset=run.end_offset,
                generation=1,
                files=(),
                entries=(),
                aborted_txns=0,
                last_digest="",
            )
            cluster.objects[A.folder + run.index] = envelope.encode(emptied)
        runs = tuple(
            CleanedRun(base_offset=number, end_offset=number + 1, generation=1, unique="0" * 8)
            for number in sorted(empty)
        )
        cluster.objects[A.folder + names.clean_name(0)] = envelope.encode(Clean(number=0, runs=runs, created_at=1))
        now = cluster.view(A)
        base = script.cluster.records(A)[0].timestamp
        for ms in (-5, 5, 15, 25, 35):
            _, found = cluster.run(offset_for_timestamp(script.ctx, now, base + ms, "read_committed"))
            expected = next(n for n in range(5) if n not in empty and n * 10 >= ms)
            assert found == (TimeHit(expected, base + expected * 10),), (empty, ms)


# -- tailing ----------------------------------------------------------------------------------------------------------


def test_an_idle_poll_is_one_get() -> None:
    script = Script("d0, d1, c1")
    view = script.cluster.view(A)
    for _ in range(3):
        task = Task(script.cluster, refresh(script.ctx, view))
        assert task.pending == Get(A.folder + names.batch_name(3))
        task.run()
        assert task.count == 1
        view = task.result


def test_early_stop() -> None:
    """If two transactions overlap, the end of the first must not stop the search for the second (R10)."""
    script = Script("d1, d2, d0 2, a2, d0, a1, d0, d0, d0", 2)
    view = script.cluster.view(A)
    for end in range(1, 6):
        _, plan = script.cluster.run(plan_read(script.ctx, view, 0, end, "read_committed"))
        got = [offset for offset, _ in script.cluster.words(plan)]
        assert got == [offset for offset in (2, 3, 5) if offset < end]
