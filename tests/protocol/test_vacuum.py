"""Vacuum on the store of the protocol's tests: killed at every request, beside other vacuums, writers and paused
processes."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import msgspec
import pytest

from lab.older_writers import next_control_of_v1
from lab.simulate.cluster import DiedError, Fault
from lab.vacuuming import vacuum_topics
from tests.aborted import aborted_transactions
from tests.effort import cases
from tests.protocol.harness import (
    A,
    B,
    Cluster,
    Process,
    Task,
    at,
    nth_put,
    rolling,
)
from txlog.core import names
from txlog.core.ages import MAX_CLOCK_ERROR_MS
from txlog.core.cleaning import MergePolicy
from txlog.core.effects import Delete, Get, List, Now, Program, PutIfAbsent, StoreNow
from txlog.core.names import TRANSACTION_STATE_TOPIC, TopicPartition
from txlog.core.records import IndexedFile
from txlog.core.vacuum import Why
from txlog.errors import MissingObjectError, StorageError, StoreAccessError
from txlog.protocol import clean, expiry, staged_lists
from txlog.protocol.append import append_log_start
from txlog.protocol.context import Views
from txlog.protocol.read import plan_read
from txlog.protocol.table import state_partition
from txlog.protocol.vacuum import Deleted, read_store_clock

GRACE_MS = rolling(2).constants.delete_grace_ms
CTX = rolling(2)
LARGE = MergePolicy(target_bytes=2**40)
TOPICS = ("__transaction_state", "__consumer_offsets", "audit", "orders")


def pass_over(
    cluster: Cluster, *topics: str, faults: Any = lambda number, effect: None, dry_run: bool = False
) -> list[Deleted]:
    program = vacuum_topics(CTX, {}, topics or TOPICS, dry_run=dry_run)
    _, deleted = cluster.run(program, faults)
    return list(deleted)


def whys(deleted: list[Deleted]) -> dict[str, Why]:
    return {each.dead.path: each.dead.why for each in deleted}


def merge(cluster: Cluster, tp: TopicPartition) -> int:
    """Return how many runs took effect."""

    def program() -> Program[int]:
        _, merges = yield from clean.plan_merges(CTX, {}, tp, LARGE)
        done = 0
        for each in merges:
            words = [word for _, word in cluster.words(each)]  # type: ignore[arg-type]
            made = cluster.file(tp.topic, each.path, words)
            fields = {name: getattr(made, name) for name in made.__struct_fields__}
            file = IndexedFile(**fields, schema_id=0, offset_column=True) if words else None
            done += yield from clean.publish(CTX, each, file)
        return done

    return cluster.run(program())


def words(cluster: Cluster, *tps: TopicPartition) -> list[list[str]]:
    return [list(cluster.read(tp).values()) for tp in tps or (A, B)]


def history() -> Cluster:
    """Return sealed segments, committed and aborted rows, inline and in files, eager and staged, and leftovers of all
    kinds."""
    cluster = Cluster()
    one, two, plain = Process(cluster, "one", CTX), Process(cluster, "two", CTX), Process(cluster, "", CTX)
    one.do(one.init())
    two.do(two.init())
    plain.do(plain.idempotent())
    for n in range(3):
        one.do(one.send(A, f"a{n}", in_file=True))
        plain.do(plain.send(A, f"p{n}", in_file=n == 1))
        one.do(one.send(B, f"b{n}"))
        one.do(one.commit())
        one.do(one.send(A, f"aborted{n}", in_file=True))
        one.do(one.abort())
        two.stage(A, f"s{n}")
        two.stage(B, f"t{n}", f"u{n}")
        two.do(two.commit())
    one.do(one.complete())
    two.stage(A, "left")  # its process dies, and the next instance begins
    again = Process(cluster, "two", CTX)
    again.do(again.init())
    plain.draft(A, "lost", in_file=True)
    return cluster


def rows_files(cluster: Cluster) -> set[str]:
    return {path for path in cluster.objects if "/rows/" in path}


@pytest.fixture
def old() -> Cluster:
    cluster = history()
    cluster.pass_ms(GRACE_MS + 1)
    return cluster


def test_what_a_run_replaced_goes_in_two_passes_and_an_idle_pass_asks_for_no_write(old: Cluster) -> None:
    before = words(old)
    assert merge(old, A)
    assert merge(old, B)
    for _ in range(6):
        pass_over(old)
        assert words(old) == before
        old.check()
        old.pass_ms(GRACE_MS + 1)
    assert rows_files(old) == {f"orders/{file.path}" for tp in (A, B) for r in old.records(tp) for file in r.files}
    assert len([path for path in old.objects if path.startswith("orders/0/0") and path.endswith(".parquet")]) == 1
    del old.requests[:]
    assert pass_over(old) == []
    assert not [each for each in old.requests if isinstance(each, PutIfAbsent | Delete)]


def test_a_dry_run_writes_nothing_and_says_what_the_next_run_deletes(old: Cluster) -> None:
    merge(old, A)
    for _ in range(3):
        stored = dict(old.objects)
        said = whys(pass_over(old, dry_run=True))
        assert old.objects == stored
        done = whys(pass_over(old))
        assert set(said) == set(done)
        assert {path for path in stored if path not in old.objects} == set(done)
        old.pass_ms(GRACE_MS + 1)


def test_knowledge_comes_in_the_one_order(old: Cluster) -> None:
    del old.requests[:]
    pass_over(old, "orders")
    listed = [n for n, each in enumerate(old.requests) if isinstance(each, List) and each.prefix.endswith("/rows/")]
    folded = [
        n
        for n, each in enumerate(old.requests)
        if isinstance(each, List | Get) and TRANSACTION_STATE_TOPIC in str(each)
    ]
    chains = [
        n for n, each in enumerate(old.requests) if isinstance(each, List) and each.prefix in (A.folder, B.folder)
    ]
    deleted = [n for n, each in enumerate(old.requests) if isinstance(each, Delete)]
    assert max(listed) < min(folded) <= max(folded) < min(chains)
    assert min(deleted) > old.requests.index(List(B.folder))


@pytest.mark.parametrize("fault", ["crash after", "crash in flight", "error", "applied", "lost", "late"])
def test_killed_anywhere_the_next_passes_finish_it(fault: Fault) -> None:
    start = history()
    start.pass_ms(GRACE_MS + 1)
    merge(start, A)
    before = words(start)
    start.pass_ms(GRACE_MS + 1)
    counted = start.copy()
    pass_over(counted)
    changes = [n for n, each in enumerate(counted.requests, 1) if isinstance(each, PutIfAbsent | Delete)]
    assert len(changes) > 50
    ended: set[frozenset[str]] = set()
    for number in cases(changes[:: 2 if fault == "crash after" else 9]):
        cluster = start.copy()
        with contextlib.suppress(DiedError, StorageError):
            pass_over(cluster, faults=at(number, fault))
        assert words(cluster) == before
        cluster.check()
        for _ in range(6):
            cluster.pass_ms(GRACE_MS + 1)
            pass_over(cluster)
            if cluster.in_flight:
                cluster.land()
            assert words(cluster) == before
        cluster.check()
        ended.add(frozenset(path for path in cluster.objects if not path.endswith(".clean")))
    assert len(ended) == 1


@pytest.mark.parametrize("seed", cases(range(8)))
def test_two_vacuums_and_a_writer_step_by_step(seed: int) -> None:
    dice = random.Random(seed)
    cluster = history()
    cluster.pass_ms(GRACE_MS + 1)
    merge(cluster, A)
    if dice.random() < 0.5:
        cluster.pass_ms(GRACE_MS + 1)
    writer = Process(cluster, "one", CTX)

    def write() -> Any:
        yield from writer.init()
        for n in range(3):
            yield from writer.send(A, f"w{n}", in_file=True)
            writer.stage(B, f"v{n}")
            yield from writer.commit()

    before = words(cluster)
    tasks = [
        Task(cluster, write()),
        *(Task(cluster, vacuum_topics(CTX, {}, TOPICS)) for _ in range(2)),
    ]
    reader = cluster.view(A)
    while any(not task.done for task in tasks):
        dice.choice([task for task in tasks if not task.done]).step()
        if dice.random() < 0.02:
            cluster.pass_ms(dice.choice([GRACE_MS // 20, GRACE_MS // 2]))
        if dice.random() < 0.05:
            found = words(cluster)
            assert all(new[: len(was)] == was for new, was in zip(found, before, strict=True))
    for task in tasks:
        assert task.done
        _ = task.result
    cluster.check()
    assert words(cluster) == [
        before[0] + ["w0", "w1", "w2"],
        before[1] + ["v0", "v1", "v2"],
    ]
    _, plan = cluster.run(plan_read(CTX, reader, 0, reader.state.next_offset, "read_committed"))
    assert [word for _, word in cluster.words(plan)] == before[0]


# -- files of writers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
def test_a_file_of_a_decided_transaction_stays_until_somebody_has_finished_it(commit: bool) -> None:
    cluster = Cluster()
    slow = Process(cluster, "x", CTX)
    slow.do(slow.init())
    slow.do(slow.send(A, "eager", in_file=True))
    slow.stage(B, "staged")
    slow.faults = nth_put(1, "crash after")
    with pytest.raises(DiedError):
        slow.do(slow.end(commit))
    cluster.pass_ms(10 * GRACE_MS)
    stored = rows_files(cluster)
    assert len(stored) == 2
    pass_over(cluster)
    assert rows_files(cluster) == stored
    cluster.run(expiry.expire(CTX, {}))
    assert words(cluster) == ([["eager"], ["staged"]] if commit else [[], []])
    pass_over(cluster)
    # read_uncommitted still returns the aborted rows in the log. Staged rows were never in the log.
    assert rows_files(cluster) == (stored if commit else {path for path in stored if path.startswith(A.folder)})
    cluster.check()


def test_files_of_an_open_epoch_stay_those_of_a_fenced_one_go() -> None:
    cluster = Cluster()
    writer = Process(cluster, "x", CTX)
    writer.do(writer.init())
    writer.stage(A, "dies")
    cluster.pass_ms(10 * GRACE_MS)
    assert pass_over(cluster) == []
    again = Process(cluster, "x", CTX)
    again.do(again.init())
    kept = again.stage(A, "lives").files[0].path
    assert set(whys(pass_over(cluster)).values()) == {Why.LATER_EPOCH}
    assert rows_files(cluster) == {f"orders/{kept}"}
    again.do(again.commit())
    again.do(again.init())
    assert pass_over(cluster) == []
    assert words(cluster, A) == [["lives"]]


def test_files_of_an_id_that_is_gone_go() -> None:
    cluster = Cluster()
    writer = Process(cluster, "x", CTX)
    writer.do(writer.init())
    writer.stage(A, "kept")
    writer.do(writer.commit())
    kept = rows_files(cluster)
    writer.stage(A, "left")
    writer.do(writer.complete())
    cluster.run(expiry.remove(CTX, {}, "x", force=True))
    assert set(whys(pass_over(cluster)).values()) == {Why.NO_PRODUCER}
    assert rows_files(cluster) == kept


def test_a_partition_whose_first_record_came_after_the_files_were_listed() -> None:
    """The folder did not exist yet. Then a record that names the file was appended, and its transaction ended."""
    cluster = Cluster()
    writer = Process(cluster, "x", CTX)
    writer.do(writer.init())
    folder = f"staged/{writer.pid}-{writer.epoch}-{'a' * 32}/"
    path = f"{folder}_partition=0/part-0.parquet"
    part = writer.stage(A, "row")
    file = part.files[0]
    del cluster.objects[f"orders/{file.path}"]
    cluster.file("orders", path, ["row"])

    moved = msgspec.structs.replace(part, files=(msgspec.structs.replace(file, path=path),))
    task = Task(cluster, vacuum_topics(CTX, {}, ("orders",)))
    while not (isinstance(task.pending, List | Get) and TRANSACTION_STATE_TOPIC in str(task.pending)):
        task.step()
    writer.do(writer.commit(staged=[moved]))
    task.run()
    assert task.result[1] == ()
    assert words(cluster, A) == [["row"]]
    assert f"orders/{path}" in cluster.objects


def test_what_sparks_committer_left_goes_with_its_folder() -> None:
    cluster = Cluster()
    writer = Process(cluster, "x", CTX)
    writer.do(writer.init())
    folder = f"orders/staged/{writer.pid}-{writer.epoch}-{'a' * 32}/"
    left = {f"{folder}_SUCCESS", f"{folder}_temporary/0/task/part-0.parquet", f"{folder}_partition=3/part-1.parquet"}
    for path in left:
        cluster.objects[path] = b"x"
    assert pass_over(cluster) == []
    again = Process(cluster, "x", CTX)
    again.do(again.init())
    assert set(whys(pass_over(cluster))) == left
    assert not left & set(cluster.objects)


def test_a_staged_list_goes_when_no_record_of_the_table_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged_lists, "MAX_STAGED_INLINE_BYTES", 0)
    cluster = Cluster()
    writer = Process(cluster, "x", CTX)
    writer.do(writer.init())
    writer.stage(A, "row")
    writer.do(writer.commit())
    (path,) = [path for path in cluster.objects if path.endswith(".staged")]
    assert path not in whys(pass_over(cluster))
    for _ in range(6):  # the table's segments roll, and their slots are deleted
        writer.do(writer.init())
    cluster.pass_ms(GRACE_MS + 1)
    state_tp = state_partition(CTX, "x")
    process = Process(cluster, "x", CTX)
    process.do(process.seal(state_tp))
    cluster.pass_ms(GRACE_MS + 1)
    pass_over(cluster)
    assert path in whys(pass_over(cluster)) or path not in cluster.objects
    assert words(cluster, A) == [["row"]]


# -- drawn producer ids -----------------------------------------------------------------------------------------------


def drawn(cluster: Cluster) -> tuple[Process, str]:
    writer = Process(cluster, "", CTX)
    writer.do(writer.idempotent())
    writer.do(writer.send(A, "first"))
    return writer, ""


def test_a_file_of_a_drawn_producer_goes_once_the_log_went_on() -> None:
    cluster = Cluster()
    writer, _ = drawn(cluster)
    writer.do(writer.send(A, "kept", in_file=True))
    kept = rows_files(cluster)
    writer.draft(A, "lost", in_file=True)
    cluster.pass_ms(GRACE_MS)
    assert pass_over(cluster) == []
    cluster.pass_ms(1)
    assert set(whys(pass_over(cluster)).values()) == {Why.DRAWN}
    assert rows_files(cluster) == kept
    # The log was idle, so vacuum itself appended a record without content.
    assert cluster.kinds(A) == "dde"
    cluster.pass_ms(GRACE_MS)
    assert pass_over(cluster) == []
    assert cluster.kinds(A) == "dde"


def test_a_busy_log_needs_no_record_of_vacuums() -> None:
    cluster = Cluster()
    writer, _ = drawn(cluster)
    writer.draft(A, "lost", in_file=True)
    cluster.pass_ms(GRACE_MS // 2 + 2)
    writer.do(writer.send(A, "later"))
    cluster.pass_ms(GRACE_MS // 2)
    pass_over(cluster)
    assert rows_files(cluster) == set()
    assert cluster.kinds(A) == "dd"


@pytest.mark.parametrize("lands", ["before", "after"])
def test_a_late_append_of_a_drawn_producer_finds_its_slot_taken_or_its_file_there(lands: str) -> None:
    cluster = Cluster()
    writer, _ = drawn(cluster)
    writer.faults = nth_put(1, "crash in flight")
    with pytest.raises(DiedError):
        writer.do(writer.send(A, "late", in_file=True))
    cluster.pass_ms(GRACE_MS + 1)
    task = Task(cluster, vacuum_topics(CTX, {}, ("orders",)))
    while not isinstance(task.pending, PutIfAbsent):
        task.step()
    if lands == "before":
        cluster.land()
    task.run()
    cluster.land()
    cluster.check()
    assert words(cluster, A) == [["first", "late"] if lands == "before" else ["first"]]
    assert len(rows_files(cluster)) == (lands == "before")


def test_a_drawn_producer_that_slept_before_a_lost_slot_names_no_old_file() -> None:
    """Vacuum needs no record of its own if another writer took the slot: the age is to be seen again (W8)."""
    cluster = Cluster()
    writer, _ = drawn(cluster)
    slow = Process(cluster, "", CTX)
    slow.do(slow.idempotent())
    task = slow.start(slow.append(A, slow.draft(A, "slow", in_file=True))).run(
        lambda each: isinstance(each, PutIfAbsent)
    )
    cluster.pass_ms(GRACE_MS // 2 + 2)
    writer.do(writer.send(A, "later"))
    cluster.pass_ms(GRACE_MS // 2)
    pass_over(cluster)
    assert rows_files(cluster) == set()
    task.run()
    cluster.check()
    with pytest.raises(StorageError, match="write them again"):
        _ = task.result
    assert words(cluster, A) == [["first", "later"]]


def test_a_record_from_a_clock_that_ran_ahead_makes_no_file_dead() -> None:
    cluster = Cluster()
    writer, _ = drawn(cluster)
    there = set(cluster.written_at_ms)
    cluster.now_ms += 10 * GRACE_MS
    writer.do(writer.send(A, "ahead"))
    cluster.now_ms -= 10 * GRACE_MS
    # The store's own clock was right all the time.
    cluster.written_at_ms.update(dict.fromkeys(set(cluster.written_at_ms) - there, cluster.now_ms))
    writer.faults = nth_put(1, "crash in flight")
    with pytest.raises(DiedError):
        writer.do(writer.send(A, "late", in_file=True))
    cluster.pass_ms(GRACE_MS + 1)
    pass_over(cluster)
    cluster.land()
    cluster.check()
    assert words(cluster, A) == [["first", "ahead"]]
    assert rows_files(cluster) == set()
    assert cluster.kinds(A)[-1] == "e"


# -- boundaries -------------------------------------------------------------------------------------------------------


def test_a_boundary_rises_a_grace_after_sealing_and_is_seen_before_a_slot_goes() -> None:
    cluster = Cluster()
    writer = Process(cluster, "", CTX)
    writer.do(writer.idempotent())
    for n in range(5):
        writer.do(writer.send(A, f"a{n}"))
    cluster.pass_ms(GRACE_MS - 1)
    for n in range(5, 9):
        writer.do(writer.send(A, f"a{n}"))
    assert pass_over(cluster) == []
    cluster.pass_ms(1)
    del cluster.requests[:]
    assert set(whys(pass_over(cluster)).values()) == {Why.BELOW_BOUNDARY}
    made = [path for path in cluster.objects if path.endswith(".boundary")]
    assert made == [A.folder + names.boundary_name(4)]
    at_put = next(n for n, each in enumerate(cluster.requests) if isinstance(each, PutIfAbsent))
    assert isinstance(cluster.requests[at_put + 1], List)
    assert all(n > at_put + 1 for n, each in enumerate(cluster.requests) if isinstance(each, Delete))
    assert [record.base_offset for record in cluster.records(A)] == [4, 5, 6, 7, 8]
    assert words(cluster, A) == [[f"a{n}" for n in range(9)]]


def test_a_boundary_that_is_not_seen_deletes_nothing() -> None:
    cluster = Cluster()
    writer = Process(cluster, "", CTX)
    writer.do(writer.idempotent())
    for n in range(5):
        writer.do(writer.send(A, f"a{n}"))
    cluster.pass_ms(GRACE_MS)
    assert pass_over(cluster, faults=nth_put(1, "late", ".boundary")) == []
    assert len(cluster.records(A)) == 5
    cluster.land()
    assert len(pass_over(cluster)) == 4


def test_a_writer_that_slept_over_it_writes_at_the_end(old: Cluster) -> None:
    writer = Process(old, "", CTX)
    writer.do(writer.idempotent())
    stale: Views = {A: old.view(A)}
    other = Process(old, "two", CTX)
    other.do(other.init())
    for n in range(4):
        other.stage(A, f"x{n}")
        other.do(other.commit())
    before = words(old, A)[0]
    for _ in range(3):
        old.pass_ms(GRACE_MS + 1)
        merge(old, A)
        pass_over(old)
    writer.views = stale
    writer.do(writer.send(A, "slept"))
    assert words(old, A) == [[*before, "slept"]]
    old.check()


def test_a_reader_that_slept_lists_again(old: Cluster) -> None:
    reader = old.view(A)
    before = words(old, A)[0]
    end = reader.state.next_offset
    merge(old, A)
    for _ in range(3):
        pass_over(old)
        old.pass_ms(GRACE_MS + 1)
    _, plan = old.run(plan_read(CTX, reader, 0, end, "read_committed"))
    assert [word for _, word in old.words(plan)] == before
    # A read of the aborted transactions does not find the indexes of its view either. The later indexes contain the
    # same.
    _, aborted = old.run(aborted_transactions(CTX, reader, 0, end))
    assert len(aborted) == 3


def test_a_chain_that_is_damaged_says_nothing_of_what_it_names(old: Cluster) -> None:
    merge(old, A)
    run = next(path for path in old.objects if path.startswith(A.folder) and "-1-" in path and path.endswith(".index"))
    del old.objects[run]
    stored = dict(old.objects)
    with pytest.raises(MissingObjectError):
        pass_over(old)
    assert {path for path in stored if path.startswith("orders/")} <= set(old.objects)


# -- below the log start ----------------------------------------------------------------------------------------------


def test_what_lies_below_the_log_start_goes(old: Cluster) -> None:
    merge(old, A)
    writer = Process(old, "two", CTX)
    writer.do(writer.init())
    for n in range(4):
        writer.stage(A, f"x{n}")
        writer.do(writer.commit())
    start = old.state(A).next_offset - 2
    old.run(append_log_start(CTX, {}, A, start))
    before = words(old, A)
    assert before == [["x2", "x3"]]
    for _ in range(5):
        old.pass_ms(GRACE_MS + 1)
        pass_over(old)
        assert words(old, A) == before
        old.check()
    left = [path for path in old.objects if path.startswith(A.folder)]
    ends = [name for path in left if (name := names.parse_partition_object(path.removeprefix(A.folder)))]
    assert not [each for each in ends if isinstance(each, names.SegmentObject) and each.segment.end_offset <= start]
    assert len([path for path in rows_files(old) if path.startswith(A.folder)]) <= 3


@pytest.mark.parametrize(
    ("dies_at", "of_v1"), [(None, False), (None, True), (".batch", True), (".snapshot", True), (".index", True)]
)
def test_of_a_deleted_topic_nothing_is_left_but_its_chain(
    dies_at: str | None, of_v1: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody appends to the topic any more.

    If the deletion did not begin a new segment, vacuum ends the active one. It does so once, even if it dies while
    doing it.
    """
    if of_v1:
        monkeypatch.setattr("txlog.protocol.append.next_control", next_control_of_v1)
    cluster = Cluster()
    writer = Process(cluster, "one", CTX)
    writer.do(writer.init())
    for n in range(3):
        writer.do(writer.send(A, f"a{n}", in_file=True))
        writer.do(writer.commit())
    writer.do(writer.complete())
    plain = Process(cluster, "", CTX)
    plain.do(plain.idempotent())
    plain.do(plain.send(A, "inline"))
    cluster.run(append_log_start(CTX, {}, A, None, 1))
    end = cluster.state(A).next_offset
    lengths = []
    if dies_at is not None:
        with contextlib.suppress(DiedError):
            pass_over(cluster, faults=nth_put(1, "crash after", dies_at))
    for _ in range(6):
        pass_over(cluster, dry_run=True)
        pass_over(cluster)
        assert words(cluster, A) == [[]]
        cluster.check()
        cluster.pass_ms(GRACE_MS + 1)
        lengths.append(cluster.state(A).next_offset)
    assert set(lengths) == {end + of_v1}
    left = sorted(path.removeprefix(A.folder) for path in cluster.objects if path.startswith(A.folder))
    assert [name.partition(".")[2] for name in left] == ["clean", "batch", "boundary", "snapshot"]


def test_the_internal_topics_begin_at_their_boundaries(old: Cluster) -> None:
    table = [TopicPartition(TRANSACTION_STATE_TOPIC, n) for n in range(2)]
    for _ in range(6):
        writer = Process(old, "one", CTX)
        writer.do(writer.init())
        for tp in table:
            writer.do(writer.seal(tp))
    before = old.txn("one")
    for _ in range(4):
        old.pass_ms(GRACE_MS + 1)
        pass_over(old)
    assert old.txn("one") == before
    for tp in table:
        left = [path.removeprefix(tp.folder) for path in old.objects if path.startswith(tp.folder)]
        assert len([name for name in left if name.endswith(".snapshot")]) <= 1
        assert len([name for name in left if name.endswith(".index")]) == 0
        assert len([name for name in left if name.endswith(".batch")]) <= 2


# -- the store's clock ------------------------------------------------------------------------------------------------


def test_a_pass_goes_by_the_store_s_clock_and_takes_its_own_only_with_its_error() -> None:
    def told(program: Program[int], *answers: int | None) -> int:
        assert next(program) == StoreNow()
        try:
            for answer in answers:
                assert program.send(answer) == Now()
        except StopIteration as end:
            return int(end.value)
        raise AssertionError("it asks for more")

    for dry_run in (False, True):
        assert told(read_store_clock(dry_run=dry_run), 10**12) == 10**12
        # A store without times.
        assert told(read_store_clock(dry_run=dry_run), None, 10**12) == 10**12 - MAX_CLOCK_ERROR_MS


def test_a_dry_run_needs_no_permission_to_write() -> None:
    for error in (StoreAccessError("403"), StorageError("a read-only disk")):
        looks, deletes = read_store_clock(dry_run=True), read_store_clock()
        assert next(looks) == next(deletes) == StoreNow()
        assert looks.throw(error) == Now()
        with pytest.raises(StopIteration) as end:
            looks.send(10**12)
        assert end.value.value == 10**12 - MAX_CLOCK_ERROR_MS
        with pytest.raises(type(error)):
            deletes.throw(error)
