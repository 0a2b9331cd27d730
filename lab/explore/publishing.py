"""Scenarios of publishers beside transactions, merges, vacuums and retention; mutants of their rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from lab.explore import client as calls, keeper_calls
from lab.explore.cleaner import merge, vacuum, wait
from lab.explore.client import Client
from lab.explore.explorer import Budget
from lab.explore.mutant import CORE, HERE, Mutant, nothing, program_of
from lab.explore.publisher import make_published, publish
from lab.explore.scene import GRACE_MS, HOUR_MS, PUBLISH_RETENTION_MS, A, B, Scenario, Scene, Size, context
from txlog.core import envelope, names, publication, row_runs
from txlog.core.effects import PutIfAbsent, PutOutcome
from txlog.core.fates import walk_batches
from txlog.protocol import vacuum_published
from txlog.publication import publish as publish_programs

# -- scenarios --------------------------------------------------------------------------------------------------------


def published_topic(scene: Scene, partitions: int = 1, **config: object) -> Client:
    """Create the published topic. Return a publisher of it."""
    config = {"publish_formats": "delta", **config}
    scene.before("t", scene.client(), make_published(A.topic, partitions, **config))
    scene.publisher = scene.before("o", scene.client(), calls.open_topic(A.topic))
    return scene.publisher


def is_topic(path: str) -> bool:
    return "/topic." in path


def _publish_txn(size: Size) -> Scene:
    """Two transactions over both partitions end, one of them with rows in a commit record, while a publisher
    publishes."""
    full = size == "full"
    scene = Scene(
        transactional_ids=("x", "y"), partitions=(A, B), settled=is_topic, budget=Budget(lost=1 if full else 0)
    )
    publisher = published_topic(scene, 2)
    scene.before("p", scene.client(), calls.idempotent(), calls.send(A, "p", in_file=True))
    x_words = (calls.send(A, "xa", in_file=True), calls.send(B, "xb", in_file=True))
    x = scene.before("x", scene.client("x"), calls.init(), *x_words)
    publisher = scene.before("first", publisher, publish())
    y_words = (calls.send(A, "ya", in_file=True), calls.send(B, "yb"))
    y = scene.before("y", scene.client("y"), calls.init(), *y_words)
    scene.actor("x", x, calls.commit(), *([calls.send(A, "xc", in_file=True), calls.abort()] if full else []))
    scene.actor("y", y, calls.commit())
    scene.cleaner("publisher", publish(), client=publisher)
    scene.expects = {"publisher": {"published"}}
    return scene


def _two_publishers(size: Size) -> Scene:
    """A publisher died before it wrote the format. Two others go on, beside a producer.

    A file holds an aborted row, so other rows of it are copied.
    """
    full = size == "full"
    scene = Scene(ctx=context(batches=3), partitions=(A,), settled=is_topic, budget=Budget(lost=2 if full else 1))
    publisher = published_topic(scene, publish_formats="delta,iceberg" if full else "delta")
    plain = scene.before("p", scene.client(), calls.idempotent(), calls.send(A, "p"))
    x = scene.before("x", scene.client("x"), calls.init(), calls.send(A, "x"))
    scene.dies("first", publisher, publish(), "_delta_log")
    scene.before("x!", x, calls.abort())
    plain = scene.before("q", plain, calls.send(A, "q", in_file=True))
    scene.cleaner("one", publish(), client=publisher)
    scene.cleaner("two", publish(), client=publisher)
    return scene


def _publish_merge(size: Size) -> Scene:
    """Published files are merged with new ones, while a publisher publishes twice."""
    budget = Budget(lost=1 if size == "full" else 0)
    scene = Scene(ctx=context(batches=1), partitions=(A,), settled=is_topic, budget=budget)
    publisher = published_topic(scene)
    plain = scene.before("p", scene.client(), calls.idempotent(), *(calls.send(A, word) for word in "bc"))
    publisher = scene.before("first", publisher, publish())
    scene.before("q", plain, calls.send(A, "d"), calls.send(A, "e", in_file=True))
    scene.actor("merger", scene.client(), merge(A))
    scene.cleaner("publisher", publish(), publish(), client=publisher)
    return scene


def publish_scene(
    ticks: tuple[int, ...], retention_ms: int, words: Sequence[str], **changes: Any
) -> tuple[Scene, Client, Client]:
    """Files were published long ago. Vacuum may delete everything of the topic that it finds dead."""
    values: dict[str, Any] = {
        "ctx": context(batches=1),
        "deletable": _is_file,
        "settled": is_topic,
        "past_ms": 2 * GRACE_MS,
    }
    scene = Scene(**{**values, **changes}, vacuumed=True, budget=Budget(ticks=ticks), recovers=False)
    publisher = published_topic(scene, publish_retention_ms=retention_ms)
    plain = scene.before("p", scene.client(), calls.idempotent(), *(calls.send(A, word) for word in words))
    # The rows of the active segment have a file, so no publisher ends it.
    plain = scene.before("p!", plain, calls.send(A, "z", in_file=True))
    return scene, plain, scene.before("first", publisher, publish())


def _is_file(path: str) -> bool:
    return path.startswith((A.folder, f"{A.topic}/publication/")) and not path.endswith(".json")


def _publish_vacuum(size: Size) -> Scene:
    """Published files were merged.

    Readers read the version with them, while it is replaced and vacuum deletes files.
    """
    full = size == "full"
    scene, _, publisher = publish_scene((PUBLISH_RETENTION_MS,), PUBLISH_RETENTION_MS, "bc")
    scene.before("m", scene.client(), merge(A))
    if not full:
        # It deletes the indexes, so that the next one would delete the files.
        scene.past_ms = HOUR_MS
        scene.before("v", publisher, vacuum(A))
    scene.cleaner("publisher", publish(), client=publisher)
    scene.cleaner("vacuum", *[vacuum(A)] * (3 if full else 1), client=publisher)
    return scene


def _publish_sleeps(size: Size) -> Scene:
    """A publisher sleeps while the files of its cut are merged, and deleted a grace later."""
    full = size == "full"
    scene, plain, publisher = publish_scene((GRACE_MS + 1,), 0, "b")
    scene.before("q", plain, calls.send(A, "c"), calls.send(A, "y", in_file=True))
    scene.past_ms, scene.publishes = 0, full
    if not full:
        publisher = scene.before("half", publisher, publish(until_cut=True))
    scene.cleaner("publisher", publish(), client=publisher)
    scene.cleaner("vacuum", merge(A), wait(GRACE_MS), vacuum(A), vacuum(A), client=publisher)
    return scene


def _publish_retention(size: Size) -> Scene:
    """The log start lies behind a published file, and vacuum deletes it. A publisher follows.

    In full size the log start moves on at the same time.
    """
    full = size == "full"
    scene, plain, publisher = publish_scene((PUBLISH_RETENTION_MS,), PUBLISH_RETENTION_MS, "bc")
    scene.before("m", scene.client(), merge(A))
    publisher = scene.before("n", publisher, publish())
    scene.before("q", plain, calls.send(A, "y", in_file=True))
    scene.before("l", publisher, keeper_calls.log_start(A, 2), vacuum(A))
    # It deletes the index of the file, so that the next one would delete the file.
    scene.past_ms = HOUR_MS
    scene.before("v", publisher, vacuum(A))
    scene.cleaner("publisher", publish(), client=publisher)
    scene.cleaner("vacuum", *[keeper_calls.log_start(A, 3)] * full, vacuum(A), client=publisher)
    return scene


SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario(name="publish txn", what="transactions end while a publisher takes a cut of both partitions", rules=(18,), build=_publish_txn),
        Scenario(name="two publishers", what="two publishers go on where another one died, one of its files with an aborted row", rules=(11, 18), build=_two_publishers),
        Scenario(name="publish merge", what="published files are merged with new ones while a publisher publishes", rules=(6, 18), build=_publish_merge),
        Scenario(name="publish vacuum", what="a published version is read while it is replaced, and its files are vacuumed", rules=(13, 18), build=_publish_vacuum),
        Scenario(name="publish sleeps", what="a publisher sleeps while the files of its cut are merged and deleted", rules=(13, 18), build=_publish_sleeps),
        Scenario(name="publish retention", what="the log start moves behind published files, and vacuum deletes them", rules=(13, 18), build=_publish_retention),
    )
}  # fmt: skip

# -- mutants ----------------------------------------------------------------------------------------------------------

PUBLISH = "txlog.publication.publish."


def _walk_without_aborts(**given: Any) -> Any:
    return walk_batches(**{**given, "aborted": ()})


def _without_removed(*given: Any) -> Any:
    return replace(_ORIGINAL_COMPARE(*given), removed=())


def _without_copies(*given: Any) -> Any:
    return replace(_ORIGINAL_COMPARE(*given), copies=())


def _all_old(*given: Any) -> Any:
    old, new = _ORIGINAL_SPLIT(*given)
    every = row_runs.joined(sorted((*old, *new), key=lambda run: run.first_row))
    return (every, ()) if old else (old, new)


def _newest_alone(ctx: Any, topic: Any, kept: Any, **more: Any) -> Any:
    return (yield from _ORIGINAL_KEPT(ctx, topic, replace(kept, retention_ms=0), **more))


def _created_ms(topic: str, number: int, formats: Any, written: Any) -> Any:
    return (yield from _ORIGINAL_SHOWN_MS(topic, max(number - 1, 0), formats, written))


def _decided_ms(topic: str, number: int, formats: Any, written: Any) -> Any:
    return (yield from _ORIGINAL_SHOWN_MS(topic, number, {}, written))


def _cut_before_the_chain(self: Any) -> Any:
    self._formats = publish_programs.formats_of(self._runtime, self._topic)
    shown = _ORIGINAL_CUT(self)
    self._shown = lambda: shown
    return _ORIGINAL_ATTEMPT(self)


def _remember_the_cut(self: Any) -> Any:
    self.newest_cut = _ORIGINAL_CUT(self)
    return self.newest_cut


def _replaced_with_a_new_cut(self: Any, before: Any, changes: Any, operation: str, *cut: Any) -> Any:
    if operation == "replace":
        shown = self.newest_cut
        cut = (tuple(each.cut for each in shown.partitions), shown.cut_at)
    return _ORIGINAL_APPEND(self, before, changes, operation, *cut)


def _won_whoever_won(ctx: Any, before: Any, made: Any) -> Any:
    data = envelope.encode(made)
    yield PutIfAbsent(names.publication_path(made.topic, made.number), data)
    return publication.fold(before, made, envelope.digest(data))


def _won_if_unknown(ctx: Any, before: Any, made: Any) -> Any:
    """Takes a publication of unknown outcome for its own, though another publisher may have that number."""
    data = envelope.encode(made)
    outcome = yield PutIfAbsent(names.publication_path(made.topic, made.number), data)
    return None if outcome is PutOutcome.CONFLICT else publication.fold(before, made, envelope.digest(data))


_ORIGINAL_COMPARE, _ORIGINAL_SPLIT = publication.compare, publication._split

_ORIGINAL_KEPT, _ORIGINAL_SHOWN_MS = vacuum_published.kept_files, vacuum_published._shown_ms

_ORIGINAL_CUT, _ORIGINAL_ATTEMPT, _ORIGINAL_APPEND = (
    publish_programs._Attempt._shown,
    publish_programs._Attempt.run,
    publish_programs._Attempt._append,
)

MUTANTS: tuple[Mutant, ...] = tuple(
    Mutant(name=name, scenario=scenario, rules=rules, patches=patches)
    for name, scenario, rules, patches in (
        ("vacuum does not look at publications", "publish vacuum", "C13", {HERE + "vacuum_published.KeptFiles.judge": lambda kept, topic, dead: dead}),
        ("vacuum keeps the newest version alone", "publish vacuum", "C13", {HERE + "vacuum.kept_files": _newest_alone}),
        ("the age of a version counts from when it was created", "publish vacuum", "C13", {HERE + "vacuum_published._shown_ms": _created_ms}),
        ("a version is replaced although the formats of the next one are not written", "publish vacuum", "C13", {HERE + "vacuum_published._shown_ms": _decided_ms}),
        ("vacuum does not take the number of a publisher that sleeps", "publish sleeps", "C13", {HERE + "vacuum_published.append_nothing": program_of(None)}),
        ("a publisher takes its cut before it reads the chain", "publish sleeps", "W58", {PUBLISH + "_Attempt.run": _cut_before_the_chain}),
        ("a publisher shows what goes on in commit records behind its cut", "publish txn", "W58", {HERE + "publications.hide_transactions": lambda cut, later: cut}),
        ("a publisher shows all below the log ends", "publish txn", "W58", {CORE + "snapshots.SnapshotCut.shows": lambda *_: True}),
        ("a publisher shows aborted rows", "two publishers", "W58", {CORE + "publication.walk_batches": _walk_without_aborts}),
        ("the formats of a publication are not written before the next one", "two publishers", "W58", {PUBLISH + "_Attempt.roll_forward": nothing}),
        ("a number that is taken counts as created", "two publishers", "W58", {PUBLISH + "append_publication": _won_whoever_won}),
        ("a publication of unknown outcome counts as created", "two publishers", "W58", {PUBLISH + "append_publication": _won_if_unknown}),
        ("rows that come into the cut later are forgotten", "two publishers", "W58", {PUBLISH + "compare": _without_copies}),
        ("a replacement changes the cut", "publish merge", "W58", {PUBLISH + "_Attempt._shown": _remember_the_cut, PUBLISH + "_Attempt._append": _replaced_with_a_new_cut}),
        ("a file that replaces others shows its new rows at once", "publish merge", "W58", {CORE + "publication._split": _all_old}),
        ("files that left the log stay in the tables", "publish retention", "W58", {PUBLISH + "compare": _without_removed}),
    )
)  # fmt: skip
