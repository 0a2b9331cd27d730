"""The explorer itself: does it find planted bugs, in every order, and the same ones on every run?"""

from __future__ import annotations

import json
from collections.abc import Generator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest

from lab.explore import __main__ as command, frames, runner
from lab.explore.catalogue import EXPLORED, MUTANTS, SCENARIOS
from lab.explore.explorer import Budget, Exploration, Explorer
from lab.explore.machine import Machine, WaitUntil
from lab.explore.mutant import Mutant
from lab.explore.runner import explore, hunt
from lab.explore.scene import Scenario, Scene, Size
from lab.explore.world import START_MS, World
from txlog.core.effects import Delete, Gather, Get, List, NewId, Now, PutIfAbsent, PutOutcome, ReadClocks, Sleep
from txlog.errors import StorageError

Program = Generator[Any, Any, Any]


@dataclass(frozen=True)
class Note:
    kind: str


@dataclass(frozen=True, kw_only=True)
class Toy:
    """A client of the tests, with what it has learned."""

    found: tuple[Any, ...] = ()
    notes: tuple[Note, ...] = ()
    stopped: bool = False

    def broken(self, error: Exception) -> Toy:
        return replace(self, notes=(Note(f"broken: {error}"),), stopped=True)


@dataclass
class Watch:
    """Collects the ends of an exploration."""

    world: World
    wrong: Any = None
    stores: set[frozenset[str]] = field(default_factory=set)
    ends: set[tuple[Any, ...]] = field(default_factory=set)

    def state(self, store: int, clients: tuple[Any, ...]) -> str | None:
        files = frozenset(self.world.files(store))
        self.stores.add(files)
        return self.wrong(files, clients) if self.wrong is not None else None

    def change(self, before: int, after: int, clients: tuple[Any, ...]) -> str | None:
        return None

    def alone(self, store: int, ticks: int) -> str | None:
        return None

    def ended(self, clients: dict[str, Any]) -> str | None:
        self.ends.add(tuple(client.found for client in clients.values()))
        return None


def run(
    *scripts: Any,
    budget: Budget | None = None,
    wrong: Any = None,
    deletable: Any = None,
    files: Any = None,
    order: Any = "breadth",
) -> tuple[Exploration, Watch, Explorer]:
    """Explore scripts of one call each over an empty store."""
    world = World(deletable or (lambda _: False))
    machines = {f"p{n}": Machine(f"p{n}", Toy(), [script]) for n, script in enumerate(scripts)}
    watch = Watch(world, wrong)
    explorer = Explorer(world, machines, world.from_files(files or {}), budget or Budget(), watch, order=order)
    return explorer.run(), watch, explorer


def learned(*found: Any) -> Toy:
    return Toy(found=found, notes=(Note(repr(found)),))


def create(path: str) -> Any:
    def script(_: Toy) -> Program:
        return learned((yield PutIfAbsent(path, b"")))

    return script


def take_a_number(_: Toy) -> Program:
    """Lose an update: list the numbers that are taken, and trust the list."""
    taken = yield List("")
    yield PutIfAbsent(f"{len(taken)}", b"")
    return learned(len(taken))


# -- possible steps ---------------------------------------------------------------------------------------------------


def test_a_planted_bug_is_found_and_told_in_words() -> None:
    def twice(_: Any, clients: tuple[Toy, ...]) -> str | None:
        found = [client.found for client in clients if client.found]
        return "one number twice" if len(found) != len(set(found)) else None

    found, _, _ = run(take_a_number, take_a_number, wrong=twice)
    assert found.violation is not None
    assert not found.complete
    assert found.violation.rule == "one number twice"
    # This is a shortest trace: both list before one of them writes, and the second write needs no separate turn.
    assert sorted(line.split()[1] for line in found.violation.trace) == ["LIST", "LIST", "PUT"]
    assert found.violation.trace[-1].endswith(": PUT 0 (0 bytes) -> WRITTEN")


def test_of_two_who_create_one_name_either_wins() -> None:
    _, watch, _ = run(create("x"), create("x"))
    assert watch.ends == {
        ((PutOutcome.WRITTEN,), (PutOutcome.CONFLICT,)),
        ((PutOutcome.CONFLICT,), (PutOutcome.WRITTEN,)),
    }


def test_a_lost_reply_leaves_every_possibility() -> None:
    def script(_: Toy) -> Program:
        outcome = yield PutIfAbsent("x", b"")
        there = yield Get("x")
        return learned(outcome, there is not None)

    _, watch, _ = run(script, budget=Budget(lost=1))
    unknown, conflict, written = PutOutcome.UNKNOWN, PutOutcome.CONFLICT, PutOutcome.WRITTEN
    assert watch.ends == {((written, True),), ((conflict, True),), ((unknown, True),), ((unknown, False),)}
    _, watch, _ = run(script, budget=Budget(lost=1, late=False))
    assert ((unknown, False),) in watch.ends


def test_a_late_request_lands_after_its_sender_looked() -> None:
    def script(_: Toy) -> Program:
        outcome = yield PutIfAbsent("x", b"")
        before = yield Get("x")
        yield PutIfAbsent("y", b"")
        after = yield Get("x")
        return learned(outcome, before, after)

    _, watch, _ = run(script, budget=Budget(lost=1))
    assert ((PutOutcome.UNKNOWN, None, b""),) in watch.ends
    _, watch, _ = run(script, budget=Budget(lost=1, late=False))
    assert ((PutOutcome.UNKNOWN, None, b""),) not in watch.ends


def test_a_failure_is_raised_and_not_applied() -> None:
    def script(_: Toy) -> Program:
        try:
            yield PutIfAbsent("x", b"")
        except StorageError:
            return learned("failed", (yield Get("x")))
        return learned("fine", b"")

    _, watch, _ = run(script, budget=Budget(failures=1))
    assert watch.ends == {(("failed", None),), (("fine", b""),)}


def test_time_passes_between_any_two_looks_at_a_clock() -> None:
    def script(_: Toy) -> Program:
        one = yield Now()
        two = yield ReadClocks()
        return learned(one - START_MS, two.wall_ms - START_MS)

    _, watch, _ = run(script, budget=Budget(ticks=(5, 7)))
    assert watch.ends == {((one, two),) for one in (0, 5, 12) for two in (0, 5, 12) if one <= two}
    _, watch, _ = run(script)
    assert watch.ends == {((0, 0),)}


def test_whoever_waits_goes_on_when_the_time_has_come() -> None:
    def script(_: Toy) -> Program:
        yield WaitUntil(6)
        return learned((yield Now()) - START_MS)

    _, watch, _ = run(script, budget=Budget(ticks=(5, 7)))
    assert watch.ends == {((12,),)}
    _, watch, _ = run(script)
    assert watch.ends == {((),)}


def test_the_programs_of_a_gather_run_in_every_order_and_raise_their_first_error() -> None:
    def one(path: str) -> Program:
        outcome = yield PutIfAbsent(path, b"")
        if outcome is PutOutcome.CONFLICT:
            raise StorageError(path)
        return path

    def script(_: Toy) -> Program:
        try:
            return learned(*(yield Gather((one("a"), one("b")))))
        except StorageError as error:
            return learned(str(error), (yield Get("b")))

    found, watch, _ = run(script)
    assert watch.ends == {(("a", "b"),)}
    assert watch.stores == {frozenset(), frozenset("a"), frozenset("b"), frozenset("ab")}
    assert found.states == 4
    _, watch, _ = run(script, create("a"))
    assert ((("a", b""), (PutOutcome.WRITTEN,))) in watch.ends  # the second ran to its end


def test_ids_are_as_unique_as_they_should_be() -> None:
    def child() -> Program:
        return (yield NewId())

    def script(_: Toy) -> Program:
        one = yield NewId()
        more = yield Gather((child(), child()))
        again = yield Gather((child(),))
        return learned(one, *more, *again, (yield NewId()))

    _, watch, _ = run(script, script)
    ((first, second),) = watch.ends
    assert len({*first, *second}) == 10


def test_what_was_deleted_is_gone_and_not_forgotten() -> None:
    def script(_: Toy) -> Program:
        yield Delete("x")
        return learned((yield Get("x")), (yield List("")))

    def again(_: Toy) -> Program:
        return learned((yield PutIfAbsent("x", b"again")))

    _, watch, explorer = run(script, again, deletable=lambda path: path == "x", files={"x": b"first"})
    assert watch.ends == {
        ((None, ()), (PutOutcome.CONFLICT,)),
        ((None, ()), (PutOutcome.WRITTEN,)),
        ((b"again", ("x",)), (PutOutcome.WRITTEN,)),
        ((None, ("x",)), (PutOutcome.WRITTEN,)),
    }
    assert any(explorer.world.data(store, "~x") == b"first" for store in range(len(explorer.world.stores)))


def test_a_call_that_raises_breaks_its_client() -> None:
    def script(_: Toy) -> Program:
        yield Get("x")
        raise AssertionError("this call fails")

    _, _, explorer = run(script)
    machine = explorer.machines[0]
    assert machine.client(machine.step(machine.start, 0, None, 0)).notes == (Note("broken: this call fails"),)


def test_a_call_begins_where_the_one_before_ended() -> None:
    def first(_: Toy) -> Program:
        return learned((yield PutIfAbsent("x", b"")))

    def second(client: Toy) -> Program:
        return learned(*client.found, (yield PutIfAbsent("x", b"")))

    world = World()
    explorer = Explorer(
        world, {"p": Machine("p", Toy(), [first, second])}, world.from_files({}), Budget(), watch := Watch(world)
    )
    assert explorer.run().complete
    assert watch.ends == {((PutOutcome.WRITTEN, PutOutcome.CONFLICT),)}


@pytest.mark.parametrize("order", ["breadth", "depth"])
def test_both_orders_see_the_same(order: Any) -> None:
    found, _, _ = run(take_a_number, take_a_number, create("1"), budget=Budget(lost=1), order=order)
    other, _, _ = run(take_a_number, take_a_number, create("1"), budget=Budget(lost=1))
    assert found.complete
    assert (found.states, found.transitions, found.finals) == (other.states, other.transitions, other.finals)


def test_a_limit_leaves_an_exploration_unfinished() -> None:
    world = World()
    machines = {"p": Machine("p", Toy(), [create("x")])}
    assert not Explorer(world, machines, world.from_files({}), Budget(), Watch(world)).run(max_states=0).complete


# -- when two suspended generators are the same -----------------------------------------------------------------------


def test_equal_frames_are_one_spot() -> None:
    def script(_: Toy) -> Program:
        for _attempt in range(2):
            found = yield Get("x")
            del found
        return learned((yield List("")))

    def forgetful(_: Toy) -> Program:
        yield List("")
        return learned((yield Get("y")))

    _, _, explorer = run(forgetful, create("a"), create("b"))
    # Four listings are possible. The script does not keep the listing, so all of them lead to the same place.
    assert len(explorer.machines[0].spots) == 3
    _, _, explorer = run(script)
    assert len(explorer.machines[0].spots) == 4  # the counter of the loop distinguishes the two lists


def test_hidden_iterators_and_operands_tell_two_places_apart() -> None:
    def over(items: list[int]) -> Program:
        for _each in items:
            _each = 0
            yield

    one, two = over([1, 2, 3]), over([1, 2, 3])
    next(one), next(two)
    assert frames.fingerprint(one) == frames.fingerprint(two)
    next(two)
    assert frames.fingerprint(one) != frames.fingerprint(two)

    def adding() -> Program:
        return (yield) + (yield)

    one, two = adding(), adding()
    next(one), next(two)
    one.send(1), two.send(2)
    assert frames.fingerprint(one) != frames.fingerprint(two)


def test_unbound_names_closures_and_delegates_are_part_of_a_place() -> None:
    def maybe(bind: bool) -> Program:
        if bind:
            first = 7
        else:
            second = 7
        del bind
        yield
        return (first, second)

    one, two = maybe(True), maybe(False)
    next(one), next(two)
    assert frames.fingerprint(one) != frames.fingerprint(two)

    def closing(value: int) -> Program:
        def inner() -> int:
            return value

        yield from waiting(inner)

    def waiting(call: Any) -> Program:
        yield call

    one, two, three = closing(1), closing(1), closing(2)
    next(one), next(two), next(three)
    assert frames.fingerprint(one) == frames.fingerprint(two) != frames.fingerprint(three)
    one.close()
    assert frames.fingerprint(one) != frames.fingerprint(two)


def test_what_the_explorer_does_not_know_it_refuses() -> None:
    with pytest.raises(TypeError, match="cannot tell when two are the same"):
        frames.canonical(memoryview(b""))


def test_values_are_canonical() -> None:
    frames.forget()
    assert frames.canonical({"a": [1, {2}]}) == frames.canonical({"a": [1, {2}]}) != frames.canonical({"a": (1, {2})})
    recursive: list[Any] = []
    recursive.append(recursive)
    assert frames.canonical(recursive) == (list, ("again", 0))
    assert frames.canonical(Toy(found=(1,))) == frames.canonical(Toy(found=(1,))) != frames.canonical(Toy(found=(2,)))
    assert frames.canonical(partial(max, 1)) == frames.canonical(partial(max, 1)) != frames.canonical(partial(max, 2))
    assert frames.canonical(ValueError("x")) == (ValueError, "x")
    assert frames.canonical(range(3)) == ("range", 0, 3, 1)
    assert hash(frames.canonical(iter([1, 2]))) == hash(frames.canonical(iter([1, 2])))
    assert frames.canonical(Toy().broken) != frames.canonical(Toy(found=(1,)).broken)


@pytest.mark.parametrize("name", ["operator", "slow marker", "two aborts", "internal"])
def test_a_replay_leads_to_the_same_frames(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each spot keeps one history that leads to it. After this history, shipped programs must be at the spot again."""
    checked = 0
    keys: dict[tuple[str, int], Any] = {}
    advance, numbered = Machine._advance, Machine._spot

    def remembering(self: Machine, key: Any, make: Any) -> int:
        number = numbered(self, key, make)
        keys[self.name, number] = key
        return number

    def checking(self: Machine, spot: int, path: tuple[int, ...], value: Any) -> int:
        nonlocal checked
        at = self.spots[spot]
        if at.base < 0:
            checked += 1
            running, effect, drawn = self._replay(at.program, at.history)
            assert (at.program, drawn.count, frames.fingerprint(running)) == keys[self.name, spot]
            assert type(effect) is type(at.effect)
        return advance(self, spot, path, value)

    monkeypatch.setattr(Machine, "_spot", remembering)
    monkeypatch.setattr(Machine, "_advance", checking)
    SCENARIOS[name].build("quick").explorer().run(max_states=120)
    assert checked > 40


def test_sleeping_takes_no_time() -> None:
    def script(_: Toy) -> Program:
        yield Sleep(10_000)
        return learned((yield Now()) - START_MS)

    _, watch, _ = run(script)
    assert watch.ends == {((0,),)}


# -- runs, tables, verdicts -------------------------------------------------------------------------------------------


def test_a_run_is_the_same_every_time() -> None:
    one, two = (explore(SCENARIOS["late abort"], "quick") for _ in range(2))
    assert replace_seconds(one) == replace_seconds(two)
    mutant = next(mutant for mutant in EXPLORED if mutant.name == "COMPLETE without compare-and-set")
    first, second = hunt(mutant), hunt(mutant)
    assert first.trace == second.trace
    assert first.trace


def replace_seconds(result: Any) -> dict[str, Any]:
    return {name: getattr(result, name) for name in result.__struct_fields__ if name != "seconds"}


def test_names_are_unique_and_every_mutant_has_its_scenario() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 30
    assert {mutant.scenario for mutant in EXPLORED} <= set(SCENARIOS)
    assert all(bool(mutant.scenario) is not bool(mutant.test) for mutant in MUTANTS)


def test_a_mutant_is_taken_back() -> None:
    from txlog.protocol import slot_record

    shipped = slot_record._not_overtaken
    mutant = next(mutant for mutant in EXPLORED if mutant.name == "acknowledged without the boundary check")
    with mutant.planted():
        assert slot_record._not_overtaken is not shipped
    assert slot_record._not_overtaken is shipped


def test_the_command_says_that_all_is_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--quick", "--scenario", "late abort", "--scenario", "slot", "--processes", "2"]) == 0
    said = capsys.readouterr().out
    assert "late abort" in said
    assert "all hold" in said
    assert command.main(["--mutants", "--scenario", "late abort", "--processes", "1"]) == 0
    caught = sum(mutant.scenario == "late abort" for mutant in EXPLORED)
    assert f"{caught} of {caught} mutants caught" in capsys.readouterr().out


def test_the_command_fails_for_what_is_not_finished(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--quick", "--scenario", "staged", "--seconds", "0.001", "--output", "json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["scenarios"][0]["complete"] is False
    assert said["scenarios"][0]["violation"] is None


def test_the_command_fails_for_a_survivor(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    harmless = Mutant(name="harmless", scenario="late abort", rules="", patches={"txlog.protocol.put.Sleep": Sleep})
    for module in (command, runner):
        monkeypatch.setattr(module, "EXPLORED", (harmless,))
    assert command.main(["--mutants"]) == 1
    assert "SURVIVED" in capsys.readouterr().out


def test_the_command_prints_how_a_rule_broke(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(size: Size) -> Scene:
        scene = SCENARIOS["late abort"].build(size)
        scene.expects = {"slow": {"committed"}}
        return scene

    odd = Scenario(name="odd", what="an odd wish", rules=(15,), build=build)
    for module in (command, runner):
        monkeypatch.setattr(module, "SCENARIOS", {"odd": odd})
    assert command.main(["--quick", "--scenario", "odd", "--traces"]) == 1
    said = capsys.readouterr().out
    assert "15 liveness: slow was told done" in said
    assert "slow: PUT orders/0/" in said


def test_the_command_knows_its_scenarios(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--scenario", "nonsense"]) == 2
    assert "late abort" in capsys.readouterr().err
