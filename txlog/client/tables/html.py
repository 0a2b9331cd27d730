"""How do a store, a topic and a table look in a notebook?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from txlog.core.records import SchemaField
from txlog.core.schema import describe


def of_topics(title: str, topics: Iterable[tuple[str, int, Sequence[SchemaField]]]) -> str:
    """Return a table of topics: name, number of partitions and columns of each."""
    rows = [
        (name, str(partitions), ", ".join(f"{field.name} {describe(field)}" for field in fields))
        for name, partitions, fields in topics
    ]
    return _table(title, ("topic", "partitions", "columns"), rows)


def of_topic(title: str, partitions: int, fields: Sequence[SchemaField], config: Mapping[str, str]) -> str:
    """Return a table of a topic's columns, below its partitions and settings."""
    settings = "".join(f", {name}={value}" for name, value in sorted(config.items()))
    rows = [(field.name, describe(field)) for field in fields]
    return _table(f"{title}: partitions={partitions}{settings}", ("column", "type"), rows)


def _table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    def line(cells: Sequence[str], tag: str) -> str:
        return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"

    body = "".join(line(row, "td") for row in rows)
    return f"<table><caption>{escape(title)}</caption><thead>{line(heads, 'th')}</thead><tbody>{body}</tbody></table>"
