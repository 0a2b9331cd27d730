"""How do a store, its topics, transactions and groups look in a notebook?

They are drawn as `txlog inspect` draws them, or shown as tables without the extra `page`. To show an object never
raises an error, and costs a bounded number of requests. `txlog.client.session.repr_html` imports this module by its
name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from txlog.client.admin.descriptions import (
    GroupInfo,
    GroupList,
    PartitionDescription,
    TransactionDescription,
    TransactionList,
)
from txlog.client.session.runtime import Runtime
from txlog.client.session.session import Session
from txlog.client.store import Store, TopicDescription
from txlog.client.tables.snapshot import Snapshot
from txlog.client.tables.table import TopicTable
from txlog.core.names import TopicPartition
from txlog.core.records import SchemaField, TopicMetadata
from txlog.core.schema import describe
from txlog.drawing.html import fragment, table
from txlog.drawing.svg import draw, is_installed
from txlog.drawing.values import Section, Table
from txlog.errors import CorruptLogError
from txlog.inspection.overview import topic_sections, transaction_of
from txlog.inspection.partition_look import look_at_partitions, ribbon_of
from txlog.inspection.sections import groups_section, topic_section, transactions_section
from txlog.text import count_text

MAX_PARTITIONS = 16
"""Partitions that one drawing opens: one LIST each, and one GET for each object of the tail."""
MAX_INDEXES = 64
"""Indexes that it reads: one or two GETs each."""
_MAX_SPANS = 100


def html_of(value: object, runtime: Runtime | None) -> str:
    """Return a value of the client as HTML: with drawings, or else as tables, or else its text with an error.

    `runtime` belongs to a table: its first partitions are drawn from there. A table of a snapshot has none.
    """
    try:
        found = _sections(value, runtime)
        if any(each.drawing is not None for each in found) and is_installed():
            return fragment(found, draw)
        return "".join(table(each.table, each.title) for each in found if each.table is not None)
    except Exception as error:
        return f"<pre>{escape(repr(value))}: {escape(str(error))}</pre>"


def _sections(value: object, runtime: Runtime | None) -> list[Section]:
    match value:
        case Store():
            return _store(value)
        case TopicTable():
            topic = value.topic()
            columns = _columns(repr(value), topic.partitions, topic.config, topic.schema)
            return [columns, *(_drawn(runtime, [topic]) if runtime is not None else ())]
        case Snapshot():
            return [_snapshot(value.ends)]
        case TopicDescription():
            return [_columns(f"topic {value.name}", value.partitions, value.config, value.fields)]
        case PartitionDescription():
            return [topic_section(value.topic, [ribbon_of(value)])]
        case TransactionDescription():
            return [_transactions([value])]
        case TransactionList():
            return [_transactions(value)]
        case GroupInfo():
            return [groups_section([value])]
        case GroupList():
            return [groups_section(value)]
        case _:
            raise TypeError(f"a notebook cannot show a {type(value).__name__}")


def _store(store: Store) -> list[Section]:
    """Return the topics as a table, and the first partitions as drawings."""
    topics = store.runtime.list_topics()
    rows = [
        (each.topic, each.partitions, ", ".join(f"{field.name} {describe(field)}" for field in each.schema))
        for each in topics
    ]
    listed = Section(title=repr(store), table=Table(columns=("topic", "partitions", "columns"), rows=rows))
    return [listed, *_drawn(store.runtime, topics)]


def _snapshot(ends: Mapping[TopicPartition, int]) -> Section:
    rows = [(str(tp), end) for tp, end in sorted(ends.items())]
    title = f"Snapshot of {count_text(len({tp.topic for tp in ends}), 'topic')}"
    return Section(title=title, table=Table(columns=("partition", "end"), rows=rows))


def _columns(title: str, partitions: int, config: Mapping[str, str], fields: Iterable[SchemaField]) -> Section:
    settings = "".join(f", {name}={value}" for name, value in sorted(config.items()))
    rows = [(field.name, describe(field)) for field in fields]
    return Section(
        title=f"{title}: partitions={partitions}{settings}", table=Table(columns=("column", "type"), rows=rows)
    )


def _transactions(listed: Sequence[TransactionDescription]) -> Section:
    made = []
    for each in listed:
        end_ms = each.started_at + each.duration_ms if each.duration_ms >= 0 else each.updated_at
        made.append(transaction_of(each, each.updated_at, end_ms))
    return transactions_section(made, "The last transaction of each id.", by_name=True)


def _drawn(runtime: Runtime, topics: Iterable[TopicMetadata]) -> list[Section]:
    """Return drawings of the first partitions, without damaged ones; nothing if drawings cannot be made."""
    if not is_installed():
        return []
    tps = [TopicPartition(each.topic, number) for each in topics for number in range(each.partitions)]
    damaged: list[CorruptLogError] = []
    session = Session(runtime, runtime.settings.client_config(), f"notebook on {runtime.where}")
    looks = look_at_partitions(
        session,
        session.readable_views(tps[:MAX_PARTITIONS], "looking at partitions", damaged),
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
