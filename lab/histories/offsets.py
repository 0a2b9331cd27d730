"""Do groups' committed offsets agree with the transactions that contained them?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from lab.histories.anomaly import Anomaly, anomaly
from lab.histories.ends import Highest
from lab.histories.events import CommitOffsets, FetchOffsets, OffsetRange, Poll, partition_of
from lab.histories.facts import Call, Facts, Transaction
from txlog.core.names import TopicPartition

Key: TypeAlias = tuple[str, TopicPartition]


@dataclass(slots=True)
class _Story:
    """The facts about one group's offset of one partition."""

    committed: list[tuple[OffsetRange, Transaction]] = field(default_factory=list)
    open: list[tuple[OffsetRange, Transaction]] = field(default_factory=list)
    """Ranges of transactions that may be committed: their outcome is unknown, and no row of them shows it."""
    plain: list[tuple[OffsetRange, Call[CommitOffsets]]] = field(default_factory=list)
    fetches: list[tuple[int, Call[FetchOffsets]]] = field(default_factory=list)


def made_from(group: str, tp: TopicPartition, offset: int) -> str:
    """Return the content of a row that `group` made from one input row."""
    return f"made:{group}:{tp.topic}:{tp.partition}:{offset}"


def check_groups(facts: Facts) -> Iterator[Anomaly]:
    """double-consume, shared-read, group-regress, offset-divergence."""
    yield from _check_made(facts)
    yield from _check_shared(facts)
    for key, story in sorted(_stories(facts).items()):
        yield from _check_double(key, story)
        if any(commit.what.reset for _, commit in story.plain):
            continue
        yield from _check_regress(key, story)
        yield from _check_divergence(key, story)


def _check_made(facts: Facts) -> Iterator[Anomaly]:
    """By the final reads: each visible input below the committed offset has one visible output row, and no other has
    one."""
    polls = [p for p in facts.polls if p.status == "ok" and p.what.final and p.what.isolation == "read_committed"]
    made: dict[str, list[Call[Poll]]] = defaultdict(list)
    for poll in polls:
        for row in poll.what.rows:
            if row.content.startswith("made:"):
                made[row.content].append(poll)
    groups = {content.split(":")[1] for content in made}
    for fetch in facts.fetches:
        if fetch.status != "ok" or not fetch.what.final or fetch.what.group not in groups:
            continue
        for each in fetch.what.ranges:
            tp = TopicPartition(each.topic, each.partition)
            for poll in polls:
                if partition_of(poll.what) != tp:
                    continue
                for row in poll.what.rows:
                    proofs = made[made_from(fetch.what.group, tp, row.offset)]
                    if len(proofs) != (row.offset < each.end):
                        yield anomaly(
                            "double-consume" if len(proofs) > 1 else "offset-divergence",
                            f"group {fetch.what.group!r} made {len(proofs)} rows of {tp} offset {row.offset}, "
                            f"and committed {each.end}",
                            poll.events,
                            fetch.events,
                            *(proof.events for proof in proofs),
                        )


def _check_shared(facts: Facts) -> Iterator[Anomaly]:
    """A partition has one reader in each generation of a group. A static member that came back is the same reader."""
    first: dict[tuple[str, int, TopicPartition, int], Call[Poll]] = {}
    for poll in facts.polls:
        what = poll.what
        if poll.status != "ok" or not what.group:
            continue
        tp = partition_of(what)
        for row in what.rows:
            other = first.setdefault((what.group, what.generation, tp, row.offset), poll)
            if other.what.member != what.member:
                yield anomaly(
                    "shared-read",
                    f"group {what.group!r}, generation {what.generation}: {other.what.member} and {what.member} read "
                    f"{tp} offset {row.offset}",
                    other.events,
                    poll.events,
                )
                break


def _stories(facts: Facts) -> dict[Key, _Story]:
    stories: dict[Key, _Story] = defaultdict(_Story)
    for txn in facts.transactions.values():
        wrote = any(True for _ in txn.values)
        for call in txn.offsets:
            if call.status == "fail":
                continue
            for each in call.what.ranges:
                story = stories[_key(call.what.group, each)]
                if txn.must:
                    story.committed.append((each, txn))
                elif txn.outcome == "unknown" and not wrote:
                    story.open.append((each, txn))
    for commit in facts.commits:
        if commit.status != "fail":
            for each in commit.what.ranges:
                stories[_key(commit.what.group, each)].plain.append((each, commit))
    for fetch in facts.fetches:
        if fetch.status == "ok":
            for each in fetch.what.ranges:
                stories[_key(fetch.what.group, each)].fetches.append((each.end, fetch))
    return stories


def _check_double(key: Key, story: _Story) -> Iterator[Anomaly]:
    taken = sorted(
        ((each, txn) for each, txn in story.committed if each.end > each.start), key=lambda pair: pair[0].start
    )
    last: tuple[OffsetRange, Transaction] | None = None
    for each, txn in taken:
        if last is not None and each.start < last[0].end and txn is not last[1]:
            yield anomaly(
                "double-consume",
                f"group {key[0]!r}, {key[1]}: {last[1].name} worked through [{last[0].start}, {last[0].end}) and "
                f"{txn.name} through [{each.start}, {each.end})",
                last[1].events,
                txn.events,
            )
        if last is None or each.end > last[0].end:
            last = each, txn


def _check_regress(key: Key, story: _Story) -> Iterator[Anomaly]:
    told: list[tuple[int, Call[Any]]] = [*story.fetches]
    told += [(each.end, commit) for each, commit in story.plain if commit.status == "ok"]
    for each, txn in story.committed:
        told += [(each.end, end) for end in txn.ends if end.what.outcome == "committed"]
    highest = Highest(told)
    for offset, fetch in story.fetches:
        text = f"group {key[0]!r}, {key[1]}: the committed offset is {offset}, and was"
        yield from highest.check(offset, fetch, "group-regress", text)


def _check_divergence(key: Key, story: _Story) -> Iterator[Anomaly]:
    final = [(offset, fetch) for offset, fetch in story.fetches if fetch.what.final]
    if not final:
        return
    offset, fetch = final[-1]
    for each, txn in story.committed:
        if each.end > offset:
            yield anomaly(
                "offset-divergence",
                f"group {key[0]!r}, {key[1]}: {txn.name} is committed and its offset {each.end} is not: it is {offset}",
                txn.events,
                fetch.events,
            )
    covered = sorted((each.start, each.end) for each, _ in (*story.committed, *story.open, *story.plain))
    at = covered[0][0] if covered else 0
    for start, end in covered:
        if start > at:
            break
        at = max(at, end)
    if at < offset:
        yield anomaly(
            "offset-divergence",
            f"group {key[0]!r}, {key[1]}: the committed offset is {offset}, and from {at} on no committed "
            "transaction worked through it",
            fetch.events,
        )


def _key(group: str, each: OffsetRange) -> Key:
    return group, TopicPartition(each.topic, each.partition)
