"""Scenarios of vacuums, and of clocks that are wrong; mutants of their rules."""

from __future__ import annotations

from typing import Any

from lab.explore import client as calls, keeper_calls
from lab.explore.cleaner import everything, merge, retain, vacuum, wait
from lab.explore.explorer import STORE, Budget, ClockErrors
from lab.explore.mutant import CLEANER, CORE, HERE, Mutant, no_guard, own_clock
from lab.explore.scene import BRIEF, CONSTANTS, GRACE_MS, HOUR_MS, A, Scenario, Scene, Size, context
from txlog.core import envelope
from txlog.core.ages import MAX_CLOCK_ERROR_MS
from txlog.core.effects import Delete, PutIfAbsent
from txlog.core.names import TopicPartition, boundary_name
from txlog.core.records import Boundary, StoreConstants
from txlog.core.vacuum import Kind, Why, judge_producer, superseded_parts
from txlog.protocol import vacuum as vacuum_programs, vacuum_dead

# -- scenarios --------------------------------------------------------------------------------------------------------


def _vacuum_reader(size: Size) -> Scene:
    """Old segments are merged, and deleted after a grace. A reader that planned before need not read its plan again."""
    scene = Scene(
        ctx=context(batches=1), deletable=everything(A), vacuumed=True, past_ms=2 * GRACE_MS, budget=Budget(ticks=(GRACE_MS,)), recovers=False,
    )  # fmt: skip
    plain = scene.before("p", scene.client(), calls.idempotent(), calls.send(A, "a", in_file=True), calls.send(A, "b"))
    scene.before("q", plain, *(calls.send(A, word) for word in ("cz" if size == "full" else "z")))
    scene.actor("reader", scene.client(), keeper_calls.read(A))
    scene.cleaner("cleaner", merge(A), vacuum(A), vacuum(A))
    return scene


def _merge_vacuum(size: Size) -> Scene:
    """A merger is about to publish, or has published, or never will."""
    scene = Scene(
        ctx=context(batches=1),
        deletable=everything(A),
        vacuumed=True,
        past_ms=2 * GRACE_MS,
        budget=Budget(ticks=(GRACE_MS,)),
        recovers=False,
    )
    scene.before("p", scene.client(), calls.idempotent(), *(calls.send(A, word) for word in "abc"))
    scene.actor("merger", scene.client(), merge(A))
    scene.cleaner("vacuum", vacuum(A), wait(GRACE_MS), *[vacuum(A)] * (2 if size == "full" else 1))
    return scene


def _stale_writer(size: Size) -> Scene:
    """As in `stale`, with the shipped vacuum, which may sleep too, while another one deletes the objects of its
    plan."""
    scene = Scene(
        ctx=context(batches=1),
        deletable=everything(A),
        vacuumed=True,
        budget=Budget(lost=1, ticks=(GRACE_MS,)),
        recovers=False,
    )
    sleeper = scene.before("s", scene.client(), calls.idempotent(), calls.opened(A))
    scene.before("o", scene.client(), calls.idempotent(), calls.send(A, "o"), calls.send(A, "p"))
    scene.actor("sleeper", sleeper, calls.send(A, "s"))
    scene.cleaner("vacuum", vacuum(A))
    return scene


def _young_writer(clocks: dict[str, ClockErrors], constants: StoreConstants = CONSTANTS, tick_ms: int = 0) -> Scene:
    """A writer opened its partition just now. Other writers filled two segments since then, and vacuum runs."""
    scene = Scene(
        ctx=context(batches=1, constants=constants),
        deletable=everything(A),
        vacuumed=True,
        budget=Budget(ticks=(tick_ms,)),
        recovers=False,
        clocks=clocks,
    )
    sleeper = scene.before("s", scene.client(), calls.idempotent(), calls.opened(A))
    scene.before("o", scene.client(), calls.idempotent(), calls.send(A, "o"), calls.send(A, "p"))
    scene.actor("sleeper", sleeper, calls.send(A, "s"))
    scene.cleaner("vacuum", vacuum(A))
    return scene


def _skewed_vacuum(size: Size) -> Scene:
    """... whose clock is ahead by more than the grace, but within the allowed error; in full size the writer's is
    behind."""
    ahead, behind = ClockErrors(wall=(MAX_CLOCK_ERROR_MS,)), ClockErrors(wall=(-MAX_CLOCK_ERROR_MS,))
    clocks = {"vacuum": ahead, "sleeper": behind} if size == "full" else {"vacuum": ahead}
    return _young_writer(clocks, BRIEF, BRIEF.delete_grace_ms)


def _host_set_forward(size: Size) -> Scene:
    """... and the clock of the only machine, which the store shares, is set to tomorrow."""
    set_forward = ClockErrors(wall=(0, GRACE_MS + HOUR_MS))
    return _young_writer({"sleeper": set_forward, "vacuum": set_forward, STORE: set_forward})


def _machine_slept(size: Size) -> Scene:
    """... a day later. The writer's monotonic clock did not count meanwhile."""
    return _young_writer({"sleeper": ClockErrors(monotonic=(0, -GRACE_MS))}, tick_ms=GRACE_MS)


def _writer_set_back(size: Size) -> Scene:
    """... a day later. The writer's wall clock was set back by a day."""
    return _young_writer({"sleeper": ClockErrors(wall=(0, -GRACE_MS))}, tick_ms=GRACE_MS)


def _two_vacuums(size: Size) -> Scene:
    """Two vacuums delete segments that were merged long ago, beside a writer that started before."""
    scene = Scene(
        ctx=context(batches=1), deletable=everything(A), vacuumed=True, past_ms=2 * GRACE_MS,
        recovers=False,
    )  # fmt: skip
    plain = scene.before("p", scene.client(), calls.idempotent(), *(calls.send(A, word) for word in "abc"))
    scene.before("m", scene.client(), merge(A))
    if size == "full":
        scene.actor("writer", plain, calls.send(A, "d"))
    scene.cleaner("one", vacuum(A))
    scene.cleaner("two", vacuum(A))
    return scene


def _vacuumed(size: Size, *transactional_ids: str, ticks: tuple[int, ...] = ()) -> Scene:
    """A partition whose objects may be deleted, and which no writer can repair any more."""
    budget = Budget(lost=1 if size == "full" else 0, ticks=ticks)
    return Scene(
        transactional_ids=transactional_ids, deletable=everything(A), vacuumed=True, budget=budget, recovers=False
    )


def _slow_prepare(size: Size) -> Scene:
    """A new id stages a file and commits at any speed.

    Another instance takes over, and vacuum decides about the file.
    """
    scene = _vacuumed(size, "x")
    scene.actor("owner", scene.client("x"), calls.init(), calls.stage(A, "a"), calls.commit())
    scene.actor("takeover", scene.client("x"), calls.init())
    scene.cleaner("vacuum", vacuum(A))
    return scene


def _slow_append(size: Size) -> Scene:
    """... a transaction's file is written, and an append names it long after."""
    scene = _vacuumed(size, "x")
    owner = scene.before("x", scene.client("x"), calls.init(), calls.register(A))
    scene.actor("owner", owner, calls.send(A, "a", in_file=True), calls.commit())
    scene.actor("takeover", scene.client("x"), calls.init())
    scene.cleaner("vacuum", vacuum(A))
    return scene


def _slow_drawn(size: Size) -> Scene:
    """A producer without an id sleeps between its file and the append that names it."""
    scene = _vacuumed(size, ticks=(GRACE_MS + 1,))
    plain = scene.before("p", scene.client(), calls.idempotent(), calls.send(A, "p"))
    scene.actor("writer", plain, calls.send(A, "s", in_file=True))
    scene.cleaner("vacuum", vacuum(A))
    return scene


def _retention_vacuum(size: Size) -> Scene:
    """Retention removes rows, and vacuum their objects, while they are merged and read."""
    scene = Scene(ctx=context(batches=1), deletable=everything(A), vacuumed=True, past_ms=2 * GRACE_MS, recovers=False)
    scene.before("p", scene.client(), calls.idempotent(), *(calls.send(A, word) for word in "abc"))
    scene.cleaner("cleaner", retain(A, GRACE_MS), vacuum(A))
    scene.actor("merger", scene.client(), merge(A))
    if size == "full":
        scene.actor("reader", scene.client(), keeper_calls.read(A))
    return scene


SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario(name="vacuum reader", what="a reader sleeps while the segments of its plan are merged and deleted", rules=(6, 13, 15), build=_vacuum_reader),
        Scenario(name="merge vacuum", what="vacuum meets a run that is about to be published", rules=(6, 13), build=_merge_vacuum),
        Scenario(name="stale writer", what="a writer slept; its slot was sealed, and vacuum deletes it", rules=(2, 13, 14), build=_stale_writer),
        Scenario(name="skewed vacuum", what="the clock of a vacuum is ahead by more than the grace, beside a writer with a young view", rules=(2, 13, 14), build=_skewed_vacuum),
        Scenario(name="host set forward", what="the clock of the machine that has store, writer and vacuum is set forward by a day", rules=(2, 13, 14), build=_host_set_forward),
        Scenario(name="machine slept", what="a writer's monotonic clock stood still for the grace", rules=(2, 13, 14), build=_machine_slept),
        Scenario(name="writer set back", what="a writer's wall clock was set back by the grace, and the grace has passed", rules=(2, 13, 14), build=_writer_set_back),
        Scenario(name="two vacuums", what="two vacuums delete segments that were merged long ago, and a writer continues", rules=(2, 6, 13, 14), build=_two_vacuums),
        Scenario(name="slow prepare", what="vacuum meets a staged file before, while and after it is committed", rules=(5, 13, 16), build=_slow_prepare),
        Scenario(name="slow append", what="vacuum meets a file whose append is in flight, and an init that fences it", rules=(2, 8, 13, 16), build=_slow_append),
        Scenario(name="slow drawn", what="a producer without an id sleeps between its file and its append", rules=(2, 3, 16), build=_slow_drawn),
        Scenario(name="retention vacuum", what="old rows are removed while they are merged and read", rules=(6, 13), build=_retention_vacuum),
    )
}  # fmt: skip

# -- mutants ----------------------------------------------------------------------------------------------------------

_KNOWLEDGE = {"f": "files", "t": "the table", "c": "the chain"}


def _vacuum_knowing(order: str) -> Any:
    """Returns a vacuum that reads files (f), the table (t) and the chain (c) in that order."""

    def vacuum_topics(ctx: Any, views: Any, topics: Any, *, dry_run: bool = False, **_: Any) -> Any:
        now_ms = yield from vacuum_programs.read_store_clock()
        files: Any = None
        table_rows: Any = None
        deleted: list[Any] = []
        for step in tuple(order):
            if step == "f":
                files = yield from vacuum_programs.list_files(topics[0])
            elif step == "t":
                views, table_rows = yield from vacuum_programs.read_table(ctx, views)
            else:
                tp = TopicPartition(topics[0], 0)
                views, known = yield from _ORIGINAL_KNOW(ctx, views, tp)
                views = {**views, _HELD: known}
        views, plans = yield from vacuum_programs.plan_topic(ctx, views, files, table_rows, now_ms=now_ms)
        for plan in plans:
            deleted += yield from vacuum_programs.sweep(ctx, plan, dry_run=False, sizes=False)
        return {tp: view for tp, view in views.items() if tp != _HELD}, tuple(deleted)

    return {CLEANER + "vacuum_topics": vacuum_topics, HERE + "vacuum.read_chain": _known_before}


def _known_before(ctx: Any, views: Any, tp: Any) -> Any:
    if _HELD in views:
        return views, views[_HELD]
    return (yield from _ORIGINAL_KNOW(ctx, views, tp))


_HELD = TopicPartition("held", 0)

_ORIGINAL_KNOW = vacuum_dead.read_chain


def _dead_at_a_later_epoch(producer_id: int, producer_epoch: int, table: Any) -> Any:
    txn = table.get(producer_id)
    if txn is not None and txn.producer_epoch > producer_epoch:
        return Why.LATER_EPOCH
    return _ORIGINAL_JUDGE(producer_id, producer_epoch, table)


def _dead_if_nothing_names_it(producer_id: int, producer_epoch: int, table: Any) -> Any:
    return Why.LATER_EPOCH


_ORIGINAL_JUDGE = judge_producer


def _drawn_by_age(modified_ms: Any, last_timestamp_ms: int, now_ms: int, grace_ms: int) -> Any:
    return Why.DRAWN if now_ms - modified_ms > grace_ms else None


def _since_by_the_monotonic_clock(now: Any, earlier: Any) -> int:
    return int(now.monotonic_ms - earlier.monotonic_ms)


def _since_by_the_wall_clock(now: Any, earlier: Any) -> int:
    return int(now.wall_ms - earlier.wall_ms)


def _boundary_last(ctx: Any, plan: Any, *, dry_run: bool, sizes: bool) -> Any:
    """Deletes the slots before it raises the boundary."""
    bound = plan.boundary if plan.boundary is not None else plan.folder.listing.boundary
    for dead in plan.dead:
        if dead.waits_until_ms is None and (
            dead.kind is not Kind.SLOT or int(dead.path.rpartition("/")[2].partition(".")[0]) < bound
        ):
            yield Delete(dead.path)
    yield from vacuum_programs._raise_boundary(plan)
    return ()


def _boundary_unseen(plan: Any) -> Any:
    """Does not check that the created object exists."""
    if plan.boundary is not None:
        tp = plan.topic_partition
        yield PutIfAbsent(
            tp.folder + boundary_name(plan.boundary), envelope.encode(Boundary(offset=plan.boundary, created_at=0))
        )
        return plan.boundary
    return plan.folder.listing.boundary


_ORIGINAL_BOUNDARY = vacuum_programs._next_boundary


def _boundary_at_once(tp: Any, known: Any, now_ms: int, grace_ms: int) -> Any:
    return (yield from _ORIGINAL_BOUNDARY(tp, known, now_ms, 0))


def _no_wait(since_ms: Any, now_ms: int, grace_ms: int) -> Any:
    return None


def _superseded_with_its_rows(folder: Any, runs: Any, gone_below: int, named: Any, **kwargs: Any) -> Any:
    return _ORIGINAL_SUPERSEDED(folder, runs, gone_below, (), **kwargs)


_ORIGINAL_SUPERSEDED = superseded_parts


def _all_but_current(folder: Any, runs: Any, gone_below: int, named: Any, **kwargs: Any) -> Any:
    """Treats a run that no `.clean` names as dead, although its cleaner may be about to publish it."""
    found = _ORIGINAL_SUPERSEDED(folder, runs, gone_below, named, **kwargs)
    current = {run.name for run in runs}
    lost = {part: Why.LOST_RUN for part in folder.parts if part.segment.generation and part.segment not in current}
    return {**found, **lost}


def _no_guard_of_age(ctx: Any, tp: Any, begun_ms: int) -> Any:
    return no_guard()


MUTANTS: tuple[Mutant, ...] = tuple(
    Mutant(name=name, scenario=scenario, rules=rules, patches=patches)
    for name, scenario, rules, patches in (
        *(
            (f"vacuum learns of {' , '.join(_KNOWLEDGE[step] for step in order)}".replace(" ,", ","), "slow prepare", "C8", _vacuum_knowing(order))
            for order in ("fct", "tfc", "tcf", "cft", "ctf")
        ),
        ("vacuum takes what a PREPARE_* names", "slow prepare", "C8", {CORE + "vacuum.judge_producer": _dead_at_a_later_epoch}),
        ("vacuum takes what no log names", "slow append", "C8", {CORE + "vacuum.judge_producer": _dead_if_nothing_names_it}),
        ("vacuum goes by the age of a drawn producer's file alone", "slow drawn", "C9", {CORE + "vacuum.judge_drawn": _drawn_by_age}),
        ("a drawn producer names an old file", "slow drawn", "W8", {HERE + "append._young_files_guard": _no_guard_of_age}),
        ("a boundary is created after the slots were deleted", "stale writer", "C6", {HERE + "vacuum.sweep": _boundary_last}),
        ("a boundary is not looked for before slots are deleted", "stale writer", "C6", {HERE + "vacuum._raise_boundary": _boundary_unseen}),
        ("a boundary stands above what was sealed just now", "stale writer", "C6", {HERE + "vacuum._next_boundary": _boundary_at_once}),
        ("a vacuum goes by its own clock", "skewed vacuum", "W48", {HERE + "vacuum.store_now": own_clock}),
        ("a view's age counts by the monotonic clock alone", "machine slept", "W14", {CORE + "ages.ClockReading.ms_since": _since_by_the_monotonic_clock}),
        ("a view's age counts by the monotonic clock alone, and the host's is set", "host set forward", "W14", {CORE + "ages.ClockReading.ms_since": _since_by_the_monotonic_clock}),
        ("a view's age counts by the wall clock alone", "writer set back", "W14", {CORE + "ages.ClockReading.ms_since": _since_by_the_wall_clock}),
        ("what is superseded goes at once", "vacuum reader", "C10", {HERE + "vacuum_dead._wait": _no_wait}),
        ("the rows of a superseded segment go before its index", "vacuum reader", "C10", {CORE + "vacuum.superseded_parts": _superseded_with_its_rows, HERE + "vacuum_dead._KINDS": dict(reversed(vacuum_dead._KINDS.items()))}),
        ("a run that is not published yet is vacuumed", "merge vacuum", "C10", {CORE + "vacuum.superseded_parts": _all_but_current}),
    )
)  # fmt: skip
