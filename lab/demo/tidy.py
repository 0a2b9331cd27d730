"""Act eight: a round of maintenance merges the small files of the earlier acts, and no reader may see a difference."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from lab.demo.checks import expect
from lab.demo.show import Show
from txlog.core.names import TopicPartition
from txlog.text import bytes_text

if TYPE_CHECKING:
    from lab.demo.proof import Proof
    from txlog.client import Store

MIN_SEGMENTS = 1
"""A demo's partitions have few segments, some of them of many files; the default waits for more."""
UNCHANGED = ("source", "read_committed", "lost", "doubled", "torn", "out_of_order")


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """What a topic consists of."""

    segments: int
    files: int
    bytes: int
    aborted_rows: int
    """Of aborted transactions, and still in a file."""


def measure(log: Store, topic: str) -> Size:
    """All partitions of a topic together."""
    from txlog.client.reading import read_session
    from txlog.maintenance.size import measure_partition

    session = read_session(log.runtime)
    sizes = [measure_partition(session, TopicPartition(topic, number)) for number in range(log.topic(topic).partitions)]
    return Size(**{each.name: sum(getattr(size, each.name) for size in sizes) for each in fields(Size)})


def tidy_up(show: Show, log: Store, topics: Iterable[str]) -> None:
    """One round of what `txlog maintain` does; what it merged."""
    from txlog.maintenance.maintain import Maintainer, MaintainPolicy

    before = {topic: measure(log, topic) for topic in topics}
    with show.waiting("a round of maintenance"):
        report = Maintainer(log.runtime, MaintainPolicy(merge_min_segments=MIN_SEGMENTS)).run()
    failed = [action.text for step in report.steps for action in step.failed]
    expect(not failed, f"maintenance to find nothing wrong, found: {'; '.join(failed)}")
    after = {topic: measure(log, topic) for topic in topics}
    expect(
        sum(size.files for size in after.values()) < sum(size.files for size in before.values()),
        "the merge to leave fewer files",
    )
    show.line("`txlog maintain --once` ends, forgets, seals, merges and deletes what is due; here it has merged:")
    show.sizes([(topic, size_cells(before[topic], after[topic])) for topic in before])
    grace_ms = log.runtime.require_store().constants.delete_grace_ms
    show.line(
        "what was merged stays for readers and writers that sleep, and `txlog vacuum` deletes it delete.grace.ms "
        f"({grace_ms // 3_600_000} hours) later. Spark reads everything back once more:"
    )


def check_unchanged(before: Iterable[Proof], after: Iterable[Proof]) -> None:
    """Raise TxlogError if a figure of the proof has changed."""
    found: Mapping[str, Proof] = {proof.topic: proof for proof in after}
    for proof in before:
        for figure in UNCHANGED:
            was, now = getattr(proof, figure), getattr(found[proof.topic], figure)
            expect(was == now, f"{figure} of {proof.topic} to stay {was} over maintenance, found {now}")


def size_cells(before: Size, after: Size) -> tuple[str, ...]:
    """Segments, files, bytes and rows of aborted transactions, before and after."""
    pairs = [(f"{getattr(before, name):,}", f"{getattr(after, name):,}") for name in ("segments", "files")]
    pairs.append((bytes_text(before.bytes), bytes_text(after.bytes)))
    pairs.append((f"{before.aborted_rows:,}", f"{after.aborted_rows:,}"))
    return tuple(was if was == now else f"{was} → {now}" for was, now in pairs)
