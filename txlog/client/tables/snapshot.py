"""How does a program read several topics at one point, without a partial transaction?
`Store.snapshot("orders", "audit")`.

It is the cut that `TxLog.snapshot` of Spark takes (PROTOCOL.md, "Reading"). It contains each transaction in all of its
topics or in none, and every commit that returned before the snapshot began.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence

from txlog.client.offsets import format_offsets
from txlog.client.reading import read_session
from txlog.client.session.arguments import checked_calls
from txlog.client.session.repr_html import repr_html
from txlog.client.session.runtime import Runtime
from txlog.client.tables.table import Cut, TopicTable
from txlog.core.names import TopicPartition
from txlog.errors import InvalidRequestError, UnknownTopicOrPartitionError
from txlog.text import nearest


@checked_calls
class Snapshot:
    """One cut over several topics.

    All its tables show the same point; it is valid for `delete.grace.ms`. Thread-safe.
    """

    def __init__(self, runtime: Runtime, topics: Sequence[str], as_of: datetime.datetime | None = None) -> None:
        """Raises InvalidRequestError without topics, UnknownTopicOrPartitionError."""
        if not topics:
            raise InvalidRequestError("a snapshot of which topics? Name them: store.snapshot('orders', 'payments')")
        self.topics = tuple(dict.fromkeys(topics))
        self._runtime = runtime
        self._cut = Cut.take(read_session(runtime), self.topics, as_of)

    def __repr__(self) -> str:
        return f"Snapshot({', '.join(self.topics)}: {self.offsets})"

    _repr_html_ = repr_html

    @property
    def ends(self) -> Mapping[TopicPartition, int]:
        """The end of each partition in the cut; this offset itself is not included."""
        return self._cut.cut.ends

    @property
    def offsets(self) -> str:
        """The same as JSON. A `read_committed` reader must not start there: rows that the snapshot hides lie below."""
        return format_offsets(self.ends)

    def table(self, name: str) -> TopicTable:
        """Return one topic of the snapshot. Raises UnknownTopicOrPartitionError for a topic that is not in it."""
        if name not in self.topics:
            raise UnknownTopicOrPartitionError(
                f"topic {name!r} is not in this snapshot of {', '.join(self.topics)}.{nearest(name, self.topics)} "
                "hint: take one snapshot of all topics that belong together"
            )
        return TopicTable(self._runtime, name, self._cut)

    def tables(self) -> dict[str, TopicTable]:
        """Return each topic of the snapshot, by name."""
        return {name: self.table(name) for name in self.topics}
