"""Did other engines see only whole transactions, committed rows and existing files in the published tables?

`poller` reads the tables during the storm, in the engines' own environment. Here its reads are judged, by what the
whole history says.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import unquote

import txlog
from lab.chaos import plan
from lab.chaos.erasures import PEOPLE, Erasures
from lab.chaos.plan import PUBLISHED, Place
from lab.chaos.poller import ENVIRONMENT
from lab.chaos.roles import clocks_wrong_by
from lab.histories.events import Event, Row, Send
from txlog.client import reading
from txlog.core.names import TopicPartition
from txlog.maintenance.publish import publish_topics
from txlog.storage.object_store import ObjectStore

READS = "poller.published"
"""The file of the reads, beside the histories."""
COLUMNS = ("torn", "aborted", "doubled", "lost", "unreadable")
"""What must be 0: parts of transactions; rows that are not committed; rows twice; rows that the table's cut has and an
engine did not see; reads that failed."""
LAST_ROUND_S = 120
Final: TypeAlias = Mapping[TopicPartition, Sequence[Row]]
Cut: TypeAlias = list[dict[str, Any]]
"""By partition: which rows a version of a table shows."""


@dataclass(slots=True, kw_only=True)
class Published:
    """The reads of all engines, and what is wrong with them."""

    reads: Counter[str] = field(default_factory=Counter)
    """By engine."""
    old_reads: Counter[str] = field(default_factory=Counter)
    """Those of them that read an older version."""
    found: dict[str, Counter[str]] = field(default_factory=dict)
    """By engine: COLUMNS, and their counts."""
    details: list[str] = field(default_factory=list)
    slow: int = 0
    """Failed reads that took longer than the files are kept."""
    deleted: int = 0
    """Published files that vacuum has deleted since."""
    tables: int = 0
    """Different sets of rows that were seen."""

    @property
    def wrong(self) -> int:
        return sum(counts.total() for counts in self.found.values())


@contextmanager
def polling(place: Place, python: str | None) -> Iterator[list[str]]:
    """Poll the published tables during the block, and a last time at its end.

    Yield a list for the poller's failures.
    """
    failures: list[str] = []
    if python is None:
        yield failures
        return
    given = {
        "store": place.url,
        "topics": (*PUBLISHED, PEOPLE),
        "file": str(Path(place.histories) / READS),
        "old_ms": plan.OLD_READ_MS,
    }
    root = str(Path(__file__).parents[2])
    process = subprocess.Popen(
        [python, "-m", "lab.chaos.poller"],
        env={**os.environ, "PYTHONPATH": root, ENVIRONMENT: json.dumps(given)},
        cwd=root,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    try:
        yield failures
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(LAST_ROUND_S)
        if process.poll() != 0:
            failures.append(f"the poller of the published tables ended with status {process.poll()}")
    finally:
        process.kill()
        process.wait()


def publish_all(place: Place) -> None:
    """Publish what the recovery has finished. Raises what publishing raises."""
    # In a partition no record is older than the one before. So a daemon whose clock was ahead has made later rows
    # young.
    with clocks_wrong_by(place.clock_skew_ms), txlog.open(place.url, storage_options=place.storage_options) as store:
        store.runtime.clock.sleep_ms(plan.PUBLISH_LAG_MS + 100)
        topics = [store.runtime.topic(topic, 0) for topic in (*PUBLISHED, PEOPLE)]
        for _, made in publish_topics(reading.read_session(store.runtime), topics):
            if isinstance(made, Exception):
                raise made


def judge(
    place: Place, events: Sequence[Event], final: Final, store: ObjectStore, erased: Erasures | None = None
) -> Published:
    """Compare each read with the history. `final` is what read_committed shows at the end.

    `erased` judges the reads of the topic in which rows were erased.
    """
    path = Path(place.histories) / READS
    lines = [json.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []
    ids = {said["rows"]: said["ids"] for said in lines if "ids" in said}
    cuts: dict[str, list[Cut]] = {topic: list(_cuts(store, topic)) for topic in PUBLISHED}
    for said in lines:
        if "cut" in said and said["topic"] in cuts:
            cuts[said["topic"]].append(said["cut"])
    deleted = sum(1 for topic in PUBLISHED for path in _published(store, topic) if store.get(path) is None)
    result = Published(tables=len(ids), deleted=deleted)
    topics: dict[str, _Topic | Erasures] = {topic: _Topic(topic, events, final, cuts[topic]) for topic in PUBLISHED}
    if erased is not None:
        topics[PEOPLE] = erased
    judged: dict[tuple[str, str, bool], Counter[str]] = {}
    last: set[tuple[str, str]] = set()
    for said in (each for each in lines if "engine" in each):
        engine, topic, is_last = said["engine"], said["topic"], said["last"]
        found = result.found.setdefault(engine, Counter())
        if "error" in said:
            if said["age_ms"] + said["took_ms"] > plan.PUBLISH_RETENTION_MS:
                result.slow += 1
                continue
            found["unreadable"] += 1
            result.details.append(f"{engine} could not read {topic}, version {said['version']}: {said['error']}")
            continue
        result.reads[engine] += 1
        result.old_reads[engine] += said["version"] is not None
        if is_last:
            last.add((engine, topic))
        key = topic, said["rows"], is_last
        if key not in judged:
            judged[key] = topics[topic].judge(ids[said["rows"]], is_last=is_last)
            if judged[key]:
                result.details.append(f"{engine} saw in {topic}: {dict(judged[key])}, of {len(ids[said['rows']])} rows")
        found.update(judged[key])
    for engine in result.found:
        for topic in topics:
            if (engine, topic) not in last:
                result.found[engine]["unreadable"] += 1
                result.details.append(f"{engine} did not read {topic} after the recovery")
    return result


class _Topic:
    """What the tables of one topic may show."""

    def __init__(self, topic: str, events: Sequence[Event], final: Final, cuts: Sequence[Cut]) -> None:
        rows = {tp.partition: each for tp, each in final.items() if tp.topic == topic}
        self._committed = {row.value for each in rows.values() for row in each}
        self._parts: dict[str, set[int]] = {}
        for event in events:
            if isinstance(event.what, Send) and event.what.topic == topic and event.what.txn:
                sent = self._committed & set(event.what.values)
                self._parts.setdefault(event.what.txn, set()).update(sent)
        self._cuts = {_at_cut(rows, cut) for cut in cuts}

    def judge(self, ids: Sequence[int], *, is_last: bool) -> Counter[str]:
        found = set(ids)
        torn = sum(0 < len(found & part) < len(part) for part in self._parts.values())
        counts = Counter(
            torn=torn, aborted=len(found - self._committed), doubled=len(ids) - len(found), lost=self._lost(found)
        )
        if is_last:
            counts["lost"] += len(self._committed - found)
        return +counts

    def _lost(self, found: set[int]) -> int:
        """Return how many rows of the nearest cut are missing."""
        if found in self._cuts:
            return 0
        nearest = min(self._cuts, key=lambda cut: len(cut ^ found), default=frozenset())
        return max(len(nearest - found), 1)


def _cuts(store: ObjectStore, topic: str) -> Iterator[Cut]:
    """Yield the cut of each version that Delta's log still has. The poller has noted older ones."""
    for actions in _versions(store, topic):
        yield json.loads(actions[0]["commitInfo"]["operationParameters"]["txlog.cut"])


def _published(store: ObjectStore, topic: str) -> set[str]:
    """Return the path of each file that a version of a topic's table has, or had."""
    versions = _versions(store, topic)
    return {f"{topic}/{unquote(each['add']['path'])}" for actions in versions for each in actions if "add" in each}


def _versions(store: ObjectStore, topic: str) -> Iterator[list[dict[str, Any]]]:
    for name in store.list(f"{topic}/_delta_log/"):
        if name.endswith(".json"):
            yield [json.loads(line) for line in (store.get(f"{topic}/_delta_log/{name}") or b"").splitlines()]


def _at_cut(rows: Mapping[int, Sequence[Row]], cut: Cut) -> frozenset[int]:
    return frozenset(
        row.value
        for partition, each in rows.items()
        for row in each
        if row.offset < cut[partition]["end_offset"]
        and not any(first <= row.offset < end for first, end in cut[partition]["hidden"])
    )
