"""How do a store, its topics, transactions and groups look in a notebook?

They are drawn as `txlog inspect` draws them, or shown as tables without the extra `page`. To show an object never
raises an error, and costs a bounded number of requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from html import escape
from typing import TYPE_CHECKING

from txlog.client.ribbons import PartitionLook, look_at_partitions, ribbon_of
from txlog.client.session import Session
from txlog.core.names import TopicPartition
from txlog.core.records import SchemaField, TopicMetadata
from txlog.core.schema import describe
from txlog.drawing.html import fragment, table
from txlog.drawing.sections import (
    OVERDUE,
    GroupPosition,
    Transaction,
    groups_section,
    topic_section,
    transactions_section,
)
from txlog.drawing.svg import draw, is_installed
from txlog.drawing.values import Section, Table
from txlog.errors import CorruptLogError
from txlog.text import count_text

if TYPE_CHECKING:
    from txlog.client.descriptions import GroupInfo, PartitionDescription, TransactionDescription
    from txlog.client.runtime import Runtime
    from txlog.client.store import TopicDescription

MAX_PARTITIONS = 16
"""Partitions that one drawing opens: one LIST each, and one GET for each object of the tail."""
MAX_INDEXES = 64
"""Indexes that it reads: one or two GETs each."""
MAX_DRAWN_TOPICS = 40
"""Further topics are tables only. A drawing costs 50 ms and 8 KB, even if it is empty."""
_MAX_SPANS = 100


class TransactionList(tuple["TransactionDescription", ...]):
    """Transactional ids. A notebook shows their last transactions over time."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return shown(self, lambda: [_transactions(self)])


class GroupList(tuple["GroupInfo", ...]):
    """Consumer groups. A notebook shows their lag."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return shown(self, lambda: [groups_section([each for group in self for each in positions(group)])])


def of_store(runtime: Runtime, shown_as: object) -> str:
    """Return the topics of a store: as a table, and the first partitions as drawings."""

    def sections() -> list[Section]:
        topics = runtime.list_topics()
        rows = [
            (each.topic, each.partitions, ", ".join(f"{field.name} {describe(field)}" for field in each.schema))
            for each in topics
        ]
        listed = Section(title=repr(shown_as), table=Table(columns=("topic", "partitions", "columns"), rows=rows))
        return [listed, *_drawn(runtime, topics)]

    return shown(shown_as, sections)


def of_topic(topic: TopicDescription) -> str:
    """Return the columns of a topic as a table."""
    return shown(topic, lambda: [_columns(f"topic {topic.name}", topic.partitions, topic.config, topic.fields)])


def of_table(runtime: Runtime, topic: Callable[[], TopicMetadata], shown_as: object, *, is_present: bool) -> str:
    """Return the columns of a topic as a table and, unless it is a snapshot, its first partitions as drawings."""

    def sections() -> list[Section]:
        found = topic()
        columns = _columns(repr(shown_as), found.partitions, found.config, found.schema)
        return [columns, *(_drawn(runtime, [found]) if is_present else ())]

    return shown(shown_as, sections)


def of_snapshot(ends: Mapping[TopicPartition, int], shown_as: object) -> str:
    """Return the end of each partition as a table. It costs no request."""
    rows = [(str(tp), end) for tp, end in sorted(ends.items())]
    title = f"Snapshot of {count_text(len({tp.topic for tp in ends}), 'topic')}"
    return shown(shown_as, lambda: [Section(title=title, table=Table(columns=("partition", "end"), rows=rows))])


def of_partition(partition: PartitionDescription) -> str:
    """Return a partition as a drawing. It costs no request."""
    return shown(partition, lambda: [topic_section(partition.topic, [ribbon_of(partition)])])


def shown(value: object, sections: Callable[[], Sequence[Section]]) -> str:
    """Return the sections that show a value: with drawings, or else as tables, or else the value's text."""
    try:
        found = sections()
        if any(each.drawing is not None for each in found) and is_installed():
            return fragment(found, draw)
        return "".join(table(each.table, each.title) for each in found if each.table is not None)
    except Exception as error:
        return f"<pre>{escape(repr(value))}: {escape(str(error))}</pre>"


def topic_sections(looks: Iterable[PartitionLook]) -> list[Section]:
    """Return a section for each topic of these partitions."""
    topics: dict[str, list[PartitionLook]] = {}
    for each in looks:
        topics.setdefault(each.ribbon.topic, []).append(each)
    # Open transactions first, then the longest logs.
    drawn = sorted(
        topics,
        key=lambda topic: (
            -any(each.ribbon.open_transactions for each in topics[topic]),
            -sum(each.ribbon.log_end_offset - each.ribbon.log_start_offset for each in topics[topic]),
        ),
    )[:MAX_DRAWN_TOPICS]
    sections = []
    for topic, parts in topics.items():
        unread = sum(each.unread for each in parts)
        note = f"{count_text(unread, 'old segment')} not read: only the offsets are known." if unread else ""
        section = topic_section(topic, [each.ribbon for each in parts], note)
        sections.append(section if topic in drawn else replace(section, drawing=None))
    return sections


def positions(group: GroupInfo) -> list[GroupPosition]:
    """Return a group's position in each of its partitions, or one without a partition."""
    members = [f"{each.member_id} ({each.client_id})" for each in group.members]
    members = members or ([group.member_id] if group.member_id else [])
    return [
        GroupPosition(
            group=group.group,
            state=group.state,
            members=members,
            topic=each.topic,
            partition=each.partition,
            committed=each.committed,
            last_stable_offset=each.last_stable_offset,
            lag=each.lag,
        )
        for each in group.offsets
    ] or [GroupPosition(group=group.group, state=group.state, members=members)]


def state_of(txn: TransactionDescription) -> str:
    """Return the state of an id's last transaction, or that it is past its time-out."""
    return OVERDUE if txn.state == "ONGOING" and txn.duration_ms > txn.timeout_ms else txn.state


def _transactions(listed: Sequence[TransactionDescription]) -> Section:
    made = [
        Transaction(
            name=each.transactional_id,
            state=state_of(each),
            start_ms=each.started_at if each.started_at >= 0 else each.updated_at,
            end_ms=each.started_at + each.duration_ms if each.duration_ms >= 0 else each.updated_at,
            pieces=(),
            partitions=[f"{topic}-{partition}" for topic, partition in each.partitions],
        )
        for each in listed
    ]
    return transactions_section(made, "The last transaction of each id.", by_name=True)


def _columns(title: str, partitions: int, config: Mapping[str, str], fields: Iterable[SchemaField]) -> Section:
    settings = "".join(f", {name}={value}" for name, value in sorted(config.items()))
    rows = [(field.name, describe(field)) for field in fields]
    return Section(
        title=f"{title}: partitions={partitions}{settings}", table=Table(columns=("column", "type"), rows=rows)
    )


def _drawn(runtime: Runtime, topics: Iterable[TopicMetadata]) -> list[Section]:
    """Return drawings of the first partitions, without damaged ones; nothing if drawings cannot be made."""
    if not is_installed():
        return []
    tps = [TopicPartition(each.topic, number) for each in topics for number in range(each.partitions)]
    damaged: list[CorruptLogError] = []
    looks = look_at_partitions(
        Session(runtime, runtime.settings.client_config(), f"notebook on {runtime.where}"),
        tps[:MAX_PARTITIONS],
        max_indexes=MAX_INDEXES,
        max_spans=_MAX_SPANS,
        max_pieces=0,
        damaged=damaged,
    )
    left = len(tps) - len(looks)
    sections = topic_sections(looks.values())
    if left:
        sections.append(Section(title=f"{count_text(left, 'further partition')} not drawn"))
    return sections
