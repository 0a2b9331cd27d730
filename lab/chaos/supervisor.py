"""One storm from beginning to end: topics, processes, faults, calm, recovery, proof."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import txlog
from lab.chaos import erasures, plan
from lab.chaos.plan import ERASERS, MAINTAINED_CONFIG, MAINTAINERS, PARTITIONS, SLOTS, Assignment, Place
from lab.chaos.processes import Program
from lab.chaos.proof import Proof, prove, recover
from lab.chaos.published import polling, publish_all
from lab.chaos.settings import SPARK_WORKER, Settings, has_spark
from lab.chaos.show import Show
from lab.chaos.storm import Slot, Storm
from txlog.cli.interrupts import orderly_end
from txlog.clock import SystemClock
from txlog.errors import InvalidRequestError
from txlog.storage.open import open_object_store

LAST_INSTANCE = 2**20
"""The instance number of the recovery, higher than any that a storm uses."""


def chaos(settings: Settings, show: Show) -> Proof:
    """Run the storm, recover, and prove; `show` prints the progress and the end.

    Raises InvalidRequestError if the store is not empty, or if processes cannot share it.
    """
    place = make_place(settings)
    slots = [Slot(role, name) for role, name in SLOTS]
    if settings.maintain:
        slots += [Slot(role, name) for role, name in (*MAINTAINERS, *ERASERS)]
    jobs: tuple[str, ...] = ("job",)
    if settings.spark and has_spark():
        slots.append(Slot("spark", "spark", start=spark_starter()))
        jobs = (*jobs, "spark")
    clock = SystemClock()
    begin_ms = clock.monotonic_ms()
    with orderly_end(), Storm(place, settings.seed, slots) as storm, show.live(storm, place, settings):
        with polling(place, settings.engines) as failures:
            storm.run(round(settings.seconds * 1000), show.tick)
            show.phase("calming down")
            storm.calm_down(show.tick)
            stormed_ms = clock.monotonic_ms() - begin_ms
            show.phase("recovering")
            recover(place, LAST_INSTANCE, settings.seed)
            if settings.maintain:
                erasures.finish(place)
            if settings.engines:
                publish_all(place)
        show.phase("proving")
        proof = prove(
            place,
            [*storm.tally.failures, *failures],
            jobs,
            is_polled=settings.engines is not None,
            erases=settings.maintain,
        )
    show.proof(proof, storm.tally, stormed_ms, settings)
    return proof


def make_place(settings: Settings) -> Place:
    """Create the topics in an empty place."""
    store = open_object_store(settings.url, settings.storage_options)
    if store.url.startswith("memory:"):
        raise InvalidRequestError(
            f"{store.url} belongs to one process, and a storm has many; name a folder or a bucket"
        )
    if store.list(""):
        raise InvalidRequestError(
            f"{store.url} is not empty, and a storm writes to nobody's store; name an empty place"
        )
    Path(settings.histories).mkdir(parents=True, exist_ok=True)
    url = settings.url if "://" in settings.url else str(Path(settings.url).absolute())
    config = {**MAINTAINED_CONFIG, "delete.grace.ms": settings.grace_ms} if settings.maintain else {}
    with txlog.open(url, storage_options=settings.storage_options, config=config) as opened:
        for topic, partitions in PARTITIONS.items():
            opened.create_topic(
                topic,
                plan.SCHEMA,
                partitions=partitions,
                config={
                    **(plan.MAINTAINED_TOPIC_CONFIG if settings.maintain else plan.TOPIC_CONFIG),
                    **(plan.PUBLISHED_CONFIG if settings.engines and topic in plan.PUBLISHED else {}),
                },
            )
        if settings.maintain:
            published = plan.PUBLISHED_CONFIG if settings.engines else {}
            config = {**plan.MAINTAINED_TOPIC_CONFIG, **published}
            erasures.create(opened, config, is_published=bool(settings.engines))
    return Place(
        url=url,
        storage_options=settings.storage_options,
        histories=settings.histories,
        clock_skew_ms=settings.clock_skew_ms,
    )


def spark_starter() -> Callable[[Assignment], Program]:
    """Return the function that starts the Spark role."""

    def start(assignment: Assignment) -> Program:
        # These are not arguments: every user of the machine sees arguments, and options may contain credentials.
        given = {
            "url": assignment.place.url,
            "storage_options": dict(assignment.place.storage_options),
            "histories": assignment.place.histories,
            "name": assignment.name,
            "instance": assignment.instance,
            "seed": assignment.seed,
        }
        return Program(assignment, SPARK_WORKER, {"TXLOG_CHAOS_JOB": json.dumps(given)})

    return start
