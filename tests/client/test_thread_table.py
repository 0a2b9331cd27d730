"""Every public method of the client while another thread is in every other one, switched at each lock and request."""

from __future__ import annotations

import random
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from functools import cache
from typing import Any

import pytest

from lab.baton import Baton, BatonThread, Hook, StuckError, _Task, hooked, keep_on
from tests.client.thread_calls import CALLS, IN0, IN_ROWS, KINDS, SCHEMA, Scene, is_documented, public_names
from tests.client.world import World, rows_of
from txlog.client.store import Store
from txlog.errors import TxlogError
from txlog.storage.memory import MemoryObjectStore

Name = tuple[str, str]
HOOKED = ("txlog.client", "txlog.storage")
NEVER = 10**9
SHARE = 13
KNOWN: list[tuple[Name, Name]] = [
    (("staged", "commit_transaction"), ("staged", "send")),
    (("eager", "commit_transaction"), ("eager", "abort_transaction")),
    (("eager", "init_transactions"), ("eager", "init_transactions")),
    (("eager", "flush"), ("eager", "abort_transaction")),
    (("eager", "commit_transaction"), ("eager", "close")),
    (("eager", "send_offsets_to_transaction"), ("eager", "flush")),
    (("deferred", "commit_transaction"), ("deferred", "flush")),
    (("deferred", "commit_transaction"), ("deferred", "send")),
    (("deferred", "flush"), ("deferred", "abort_transaction")),
    (("deferred", "send"), ("deferred", "close")),
    (("plain", "send"), ("plain", "close")),
    (("store", "close"), ("store", "producer")),
    (("consumer", "poll"), ("consumer", "poll")),
    (("handle", "commit"), ("handle", "abort")),
]
"""Pairs that had a bug, or that would break without a lock."""
PAIRS = [(first, second) for first in CALLS for second in CALLS]


@cache
def prepared() -> dict[str, object]:
    """Return the objects of a store with topics, rows, an idle transactional.id and an idle group."""
    world = World()
    store = world.open(offsets_topic_num_partitions=2, transaction_state_log_num_partitions=2)
    for name, partitions in (("a", 2), ("in", 2), ("spare", 1)):
        store.create_topic(name, SCHEMA, partitions)
    with store.producer() as producer:
        for number in IN_ROWS:
            producer.send("in", [{"id": number}], partition=number % 2).result()
    with store.producer("idle") as idle, idle.transaction():
        idle.send("spare", [{"id": 1}])
    with store.consumer("in", group_id="idle-group", enable_auto_commit=False) as consumer:
        consumer.commit({IN0: 2})
    world.close()
    return dict(world.memory._objects)


class Run:
    """One schedule of one pair: the second call starts at switch point `at` of the first.

    When the second call waits, the first one continues. If it is `asleep`, the producer's thread continues instead.
    With a seed the order is random from there on. With an odd seed it may change at each line of the client.
    """

    def __init__(
        self, hook: Hook, first: Name, second: Name, at: int, seed: int | None = None, *, asleep: bool = False
    ) -> None:
        self.first, self.second = first, second
        self.steps = 0
        self.answers: dict[str, str] = {}
        self.wrong: list[str] = []
        rng = random.Random(seed)

        def choose(able: list[_Task], now: _Task) -> _Task:
            return rng.choice(able) if rng.random() < 0.3 else now if now in able else rng.choice(able)

        self._baton = Baton(keep_on if seed is None else choose)
        self._at, self._seed, self._asleep = at, seed, asleep
        hook.baton = self._baton
        try:
            self._baton.run(self._play)
        except StuckError as error:
            self.wrong.append(f"stuck: {error}")

    def __str__(self) -> str:
        names = f"{'.'.join(self.first)} and {'.'.join(self.second)}"
        return (
            f"{names}, "
            f"{f'seed {self._seed}' if self._seed is not None else f'at {self._at}'}{', asleep' * self._asleep}, "
            f"{self.answers}"
        )

    def _play(self) -> None:
        memory = MemoryObjectStore(clock=self._baton.clock)
        memory._objects = dict(prepared())  # type: ignore[arg-type]
        scene = Scene(memory, self._baton)
        prepares = [CALLS[self.first](scene), CALLS[self.second](scene)]
        before = self._baton.steps
        threads: list[BatonThread] = []

        def call(number: int, name: Name) -> None:
            if number and self._asleep:
                threads[0].task.rank = -1
            try:
                prepares[number]()
                self.answers["ab"[number]] = "ok"
            except BaseException as error:
                self.answers["ab"[number]] = type(error).__name__
                if not isinstance(error, Exception):
                    raise
                if not isinstance(error, TxlogError) or not is_documented(*name, error):
                    self.wrong.append(
                        f"{'.'.join(name)} raised {type(error).__name__}, which it does not name: {error}"
                    )
            finally:
                if not number:
                    self.steps = self._baton.steps - before

        lines = "/txlog/client/" if self._seed is not None and self._seed % 2 else ""
        threads.append(BatonThread(self._baton, target=call, args=(0, self.first), name="first", rank=1, lines=lines))
        threads.append(
            BatonThread(
                self._baton,
                target=call,
                args=(1, self.second),
                name="second",
                rank=2,
                lines=lines,
                ready=lambda: self._baton.steps >= before + self._at or threads[0].task.done,
            )
        )
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self._judge(scene)

    def _judge(self, scene: Scene) -> None:
        """End what is open, close all clients, and compare their answers with what a new process reads."""
        excused = scene.moved & {"ended", "deleted"}
        for kind, producer in scene.producers.items():
            if scene.is_closed and not producer._closed:
                self.wrong.append(f"{kind}: open, although its store was closed")
        for kind, producer in scene.producers.items():
            state = producer._state.state
            try:
                if state == "READY" and kind != "plain 2":
                    # A row that an earlier transaction lost or left behind shows here.
                    scene.transaction(kind)
                if state in ("IN_TRANSACTION", "COMMITTING"):
                    scene.commit(kind)
                elif state in ("ABORTABLE_ERROR", "ABORTING"):
                    scene.abort(kind)
            except TxlogError as error:
                self.wrong += [] if excused else [f"{kind}: the transaction cannot be ended: {error}"]
        if scene.has_consumer and "sought" not in scene.moved:
            scene.handed += [row["id"] for row in rows_of(scene.consumer())]
            if sorted(scene.handed) != list(IN_ROWS):
                self.wrong.append(f"polls returned {scene.handed}")
        clients: list[Any] = [*scene.producers.values(), scene.store]
        for client in clients:
            try:
                client.close()
            except TxlogError as error:
                self.wrong += [] if excused else [f"{client!r} cannot be closed: {error}"]
        self.wrong += scene.wrong
        reader = scene.open(scene.memory, seed=9)
        if "deleted" not in scene.moved:
            rows = Counter(row["id"] for row in rows_of(reader.consumer("a", auto_offset_reset="earliest")))
            self._judge_rows(scene, rows)
            for kind, left in scene.states.items():
                if kind != "plain" and left == "open":
                    self._judge_transaction(scene, kind, rows, reader)

    def _judge_rows(self, scene: Scene, rows: Counter[int]) -> None:
        for sent in scene.sent:
            told, ends = _told(sent.future), scene.ends.get(sent.kind, [])
            transactional = sent.kind in ("eager", "staged", "deferred")
            may_be_aborted = transactional and ("abort" in ends or scene.moved & {"ended", "closed"})
            if told == "open":
                self.wrong.append(f"{sent}: its future was never resolved")
            if rows[sent.id] > 1:
                self.wrong.append(f"{sent}: doubled")
            if rows[sent.id] and told == "failed":
                self.wrong.append(f"{sent}: failed, and shows")
            if not rows[sent.id] and told == "ok" and not may_be_aborted:
                self.wrong.append(f"{sent}: acknowledged, and lost")

    def _judge_transaction(self, scene: Scene, kind: str, rows: Counter[int], reader: Store) -> None:
        """If the transaction was committed, its rows and its offset from before the race show together."""
        first = [sent for sent in scene.sent if sent.kind == kind][:2]
        shows = {bool(rows[sent.id]) for sent in first}
        groups = {group.group: group.offsets for group in reader.admin().list_groups()}
        shows |= {any(each.partition == IN0.partition and each.committed for each in groups.get(f"g-{kind}", ()))}
        ends = scene.ends.get(kind, [])
        if shows != {ends[:1] == ["commit"]}:
            self.wrong.append(f"{kind}: torn: ended by {ends}, rows and offset show: {shows}")


def _told(future: Future[object] | None) -> str:
    if future is None:
        return "failed"
    if not future.done():
        return "open"
    return "ok" if future.exception(0) is None else "failed"


def test_every_public_method_has_an_entry() -> None:
    for kind, owner in KINDS.items():
        expected = {name for each, name in CALLS if each == kind}
        assert expected == (public_names(owner) if kind != "plain" else expected & public_names(owner)), kind


def schedules(hook: Hook, first: Name, second: Name, *, most: int, seeds: int) -> Iterator[Run]:
    """Yield runs of one pair: the second call after the first, then at `most` of its switch points, then by seeds."""
    whole = Run(hook, first, second, NEVER)
    yield whole
    points = range(whole.steps + 1)
    step = -(-len(points) // most)
    # Each pair takes different switch points, the same ones in every run.
    offset = zlib.crc32(repr((first, second)).encode()) % step
    for number, at in enumerate(points[offset::step]):
        yield Run(hook, first, second, at, asleep=number % 2 == 0)
        if step == 1:
            yield Run(hook, first, second, at, asleep=number % 2 == 1)
    for seed in range(seeds):
        yield Run(hook, first, second, random.Random(seed).randrange(whole.steps + 1), seed)


def failures(pairs: Sequence[tuple[Name, Name]], *, most: int, seeds: int) -> tuple[int, list[str]]:
    """Return how many schedules ran, and what failed in the first bad one of each pair."""
    prepared()
    count, wrong = 0, []
    with hooked(*HOOKED) as hook:
        for first, second in pairs:
            for run in schedules(hook, first, second, most=most, seeds=seeds):
                count += 1
                if run.wrong:
                    wrong.append(f"{run}: {'; '.join(run.wrong)}")
                    break
    return count, wrong


@pytest.mark.parametrize(("first", "second"), KNOWN, ids=".".join)
def test_calls_that_once_went_wrong(first: Name, second: Name) -> None:
    _, wrong = failures([(first, second)], most=16, seeds=6)
    assert not wrong, "\n\n".join(wrong)


def test_a_part_of_the_table() -> None:
    """Run a part of the pairs of one kind of client, at one switch point each.

    `make test-storm` runs the whole table.
    """
    prepared()
    with hooked(*HOOKED) as hook:
        for first, second in PAIRS:
            number = zlib.crc32(repr((first, second)).encode())
            if first[0] == second[0] and number % SHARE == 0:
                run = Run(hook, first, second, number // SHARE % 60)
                assert not run.wrong, f"{run}: {'; '.join(run.wrong)}"


@pytest.mark.storm
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_call_beside_every_other(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Run the whole table.

    Calls of one client meet at each switch point and in random orders, calls of two clients at one point and in one
    order.
    """
    pairs = [pair for pair in PAIRS if pair[0][0] == kind]
    own = [pair for pair in pairs if pair[1][0] == kind]
    others = [pair for pair in pairs if pair[1][0] != kind]
    results = [failures(own, most=1000, seeds=5), failures(others, most=1, seeds=1)]
    with capsys.disabled():
        runs = sum(count for count, _ in results)
        print(f"\n{kind}: {len(pairs)} pairs, {runs} schedules, {sum(len(wrong) for _, wrong in results)} failures")
    assert not [each for _, wrong in results for each in wrong]
