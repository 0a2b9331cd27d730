"""Scenarios of publications that meet other changes of their topic, and mutants of their rules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lab.explore import client as calls
from lab.explore.cleaner import compact, merge, vacuum, wait
from lab.explore.client import Call, Client
from lab.explore.explorer import Budget, ClockErrors
from lab.explore.keys import Compacted
from lab.explore.mutant import Mutant
from lab.explore.publisher import publish, publish_alone
from lab.explore.publishing import PUBLISH, is_topic, publish_scene, published_topic
from lab.explore.scene import (
    BRIEF,
    HOUR_MS,
    KEYED,
    PUBLISH_RETENTION_MS,
    A,
    Scenario,
    Scene,
    Size,
    context,
)
from txlog.core.ages import MAX_CLOCK_ERROR_MS
from txlog.core.effects import Now, Program
from txlog.protocol import topic_changes

SHORT = {"txlog.protocol.publications.WHOLE_EVERY": 2, "txlog.publication.delta.CHECKPOINT_EVERY": 2}
"""Each second publication lists all files, and each second version of a Delta table has a checkpoint."""


def of_topic(path: str) -> bool:
    """Return whether vacuum may delete an object: all of the topic but its metadata."""
    return path.startswith(f"{A.topic}/") and not is_topic(path)


def alter(**config: object) -> Call:
    """Change settings of the topic that the client has opened. A name has `_` for each `.`."""
    named = {name.replace("_", "."): value for name, value in config.items()}

    def call(client: Client) -> Program[Client]:
        (topic,) = client.topics
        made = yield from topic_changes.alter_topic(client.ctx, topic.topic, config=named)
        return replace(client, topics=(made,)).noted("done")

    return call


def delete(client: Client) -> Program[Client]:
    """Delete the topic that the client has opened."""
    (topic,) = client.topics
    ending = topic_changes.ending_logs(client.ctx)
    made = yield from topic_changes.delete_topic(client.ctx, topic.topic, append_log_start=ending)
    return replace(client, topics=(made,)).noted("done")


def empty(client: Client) -> Program[Client]:
    """Empty the tables of the topic that the client has deleted."""
    yield from publish_alone(client)
    return client.noted("done")


def reopened(*script: Call) -> tuple[Call, ...]:
    """Read the topic's settings before each of these calls."""
    return tuple(each for call in script for each in (calls.open_topic(A.topic), call))


# -- scenarios --------------------------------------------------------------------------------------------------------


def _many_published(words: str, ticks: tuple[int, ...] = ()) -> tuple[Scene, Client]:
    """Publish these words one by one, the last one half an hour ago.

    What readers do not need is old enough to be deleted.
    """
    scene, plain, publisher = publish_scene(ticks, HOUR_MS, "", deletable=of_topic)
    for word in words:
        if word == words[-1]:
            scene.past_ms = HOUR_MS // 2
        plain = scene.before(word, plain, calls.send(A, word, in_file=True))
        publisher = scene.before(f"publish {word}", publisher, publish())
    scene.before("y", plain, calls.send(A, "y", in_file=True))
    return scene, publisher


def _publish_deletes(size: Size) -> Scene:
    """Another version is published meanwhile."""
    if size == "full":
        scene, publisher = _many_published("bcd", (HOUR_MS,))
        scene.cleaner("vacuum", vacuum(A), wait(HOUR_MS), vacuum(A), client=publisher)
    else:
        scene, publisher = _many_published("bcd")
        scene.cleaner("vacuum", vacuum(A), vacuum(A), client=publisher)
    scene.cleaner("publisher", publish(), client=publisher)
    return scene


def _publish_two_vacuums(size: Size) -> Scene:
    """Two vacuums delete them at once."""
    full = size == "full"
    scene, publisher = _many_published("bcde" if full else "bcd")
    if not full:
        scene.before("v", publisher, vacuum(A))
    scene.cleaner("one", *[vacuum(A)] * (1 + full), client=publisher)
    scene.cleaner("two", *[vacuum(A)] * (1 + full), client=publisher)
    return scene


def _publish_ends(size: Size) -> Scene:
    """The formats were removed from the topic's settings. Vacuum or the publisher ends the tables."""
    full = size == "full"
    scene, plain, publisher = publish_scene((PUBLISH_RETENTION_MS,), PUBLISH_RETENTION_MS, "bc", deletable=of_topic)
    scene.before("m", scene.client(), merge(A))
    scene.before("y", plain, calls.send(A, "y", in_file=True))
    scene.past_ms, scene.publishes = HOUR_MS, False
    scene.before("v", publisher, vacuum(A))
    scene.before("a", publisher, alter(publish_formats=""))
    scene.cleaner("publisher", publish(), client=publisher)
    scene.cleaner(
        "vacuum",
        *reopened(vacuum(A)),
        wait(PUBLISH_RETENTION_MS),
        *reopened(*[vacuum(A)] * (1 + full)),
        client=publisher,
    )
    return scene


def _publish_deleted(size: Size) -> Scene:
    """The topic is deleted while a publisher publishes. Vacuum, or the process that deleted it, empties its tables.

    A lone publisher goes on with the deletion from each store.
    """
    full = size == "full"
    scene, plain, publisher = publish_scene(
        (PUBLISH_RETENTION_MS,), PUBLISH_RETENTION_MS, "b", deletable=of_topic, settled=lambda _: False
    )
    scene.before("y", plain, calls.send(A, "y", in_file=True))
    scene.past_ms = 0
    if not full:
        publisher = scene.before("half", publisher, publish(until_cut=True))
    scene.cleaner("publisher", publish(), client=publisher)
    later = (empty, wait(PUBLISH_RETENTION_MS)) if full else ()
    scene.cleaner("topics", delete, *later, vacuum(A), client=publisher)
    return scene


def _publish_compacted(size: Size) -> Scene:
    """Published rows are superseded, and compacted away while a publisher publishes twice."""
    full = size == "full"
    scene = Scene(
        ctx=context(batches=1), partitions=(A,), settled=is_topic, compacted={A: Compacted()},
        budget=Budget(lost=1 if full else 0), recovers=False,
    )  # fmt: skip
    publisher = published_topic(scene)
    plain = scene.before("p", scene.client(), calls.idempotent(), calls.send(A, "a@k"), calls.send(A, "b@j"))
    publisher = scene.before("first", publisher, publish())
    plain = scene.before("q", plain, calls.send(A, "c@k"), calls.send(A, "z", in_file=True))
    scene.actor("compactor", scene.client(), compact(A, KEYED))
    if full:
        scene.actor("plain", plain, calls.send(A, "d@j", in_file=True), calls.send(A, "y", in_file=True))
    scene.cleaner("publisher", publish(), publish(), client=publisher)
    return scene


def _publish_skewed(size: Size) -> Scene:
    """Grace and retention are shorter than the error of a clock.

    The publisher's is behind, and that of vacuum is ahead.
    """
    full = size == "full"
    grace_ms = BRIEF.delete_grace_ms
    ctx = context(batches=1, constants=BRIEF)
    ticks = (grace_ms,) if full else ()
    scene, _, publisher = publish_scene(ticks, grace_ms, "bc", ctx=ctx, past_ms=3 * grace_ms)
    scene.before("m", scene.client(), merge(A))
    # It deletes the indexes, so that the next one would delete the files.
    scene.past_ms = grace_ms
    scene.before("v", publisher, vacuum(A))
    scene.cleaner("publisher", publish(), client=publisher)
    scene.cleaner("vacuum", *[vacuum(A)] * (2 if full else 1), client=publisher)
    scene.clocks = {
        "publisher": ClockErrors(wall=(-MAX_CLOCK_ERROR_MS,)),
        "vacuum": ClockErrors(wall=(MAX_CLOCK_ERROR_MS,)),
    }
    return scene


SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario(name="publish deletes", what="old publications, versions and checkpoints are deleted beside a publisher", rules=(13, 18), build=_publish_deletes, patches=SHORT),
        Scenario(name="publish, two vacuums", what="... by two vacuums at once", rules=(13, 18), build=_publish_two_vacuums, patches=SHORT),
        Scenario(name="publish ends", what="a topic is not published any more, and its tables go by their age", rules=(13, 18), build=_publish_ends),
        Scenario(name="publish deleted", what="a topic is deleted and its tables are emptied while it is published", rules=(13, 18), build=_publish_deleted),
        Scenario(name="publish compacted", what="published rows are compacted away while a publisher publishes", rules=(6, 18), build=_publish_compacted),
        Scenario(name="publish, skewed", what="a published version is replaced, and the clock of vacuum is ahead by more than its retention", rules=(13, 18), build=_publish_skewed),
    )
}  # fmt: skip


# -- mutants ----------------------------------------------------------------------------------------------------------

_VACUUM, _EXPIRED = "txlog.protocol.vacuum_published.", "txlog.publication.expired."


def _own_clock() -> Program[int]:
    now_ms: int = yield Now()
    return now_ms


def _at_once(ctx: Any, kept: Any, folder: str, some: Any) -> Program[list[str]]:
    yield from ()
    return list(some)


def _is_there(tables: Any) -> Program[bool]:
    yield from ()
    return True


MUTANTS: tuple[Mutant, ...] = tuple(
    Mutant(name=name, scenario=scenario, rules=rules, patches=patches)
    for name, scenario, rules, patches in (
        ("publications go from the newest one on", "publish deletes", "C13", {_VACUUM + "first_whole": lambda number: number}),
        ("versions go below the newest checkpoint", "publish deletes", "C14", {_EXPIRED + "_aged": _at_once, _EXPIRED + "min": lambda *given: 2**40}),
        ("the tables of an ended publication go at once", "publish ends", "C13", {_VACUUM + "_shown_ms": lambda *_: _never()}),
        ("vacuum ends the tables of a deleted topic at once", "publish deleted", "C16", {_VACUUM + "_last_changes": lambda *_, **__: {"formats": {}}}),
        ("the tables of a deleted topic keep its rows", "publish deleted", "C16", {PUBLISH + "emptied": lambda last, version: {"topic_version": version}}),
        ("a vacuum of publications goes by its own clock", "publish, skewed", "W48", {"txlog.protocol.vacuum.store_now": _own_clock}),
        ("a compaction that ran ahead is not waited for", "publish compacted", "W58", {"txlog.publication.publish.is_compacted_ahead": lambda *_: False}),
    )
)  # fmt: skip


def _never() -> Program[int]:
    """Return a time long ago."""
    yield from ()
    return 0
