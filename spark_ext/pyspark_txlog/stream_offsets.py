"""What is an offset of a stream, as Spark keeps it in a query's checkpoint?

The JSON of Spark's Kafka source, the next offset of each partition, and one key that no topic can have:

    {"orders": {"0": 5, "1": 7}, "txlog:source": {"group.id": null, "store": "9f3c…", "start": {"orders": {"0": 2, "1": 7}}}}

`store` says which store the offsets are of, `group.id` the consumer group that the query commits for, if any: the sink
finds the sources of its own store by them. `start` says where the query began. Spark writes the ends of batches to the
checkpoint before they run, and nowhere the beginning of the first; resolved anew after a crash, `latest` could lie beyond
the planned end. So it is kept in the end of the query's first batch, and in no later one.

Spark compares offsets as texts: equal offsets are rendered as equal texts. Pure code, used by the source and the sink.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from txlog.core.names import MAX_OFFSET, TopicPartition, is_topic_name
from txlog.errors import InvalidRequestError

SOURCE_KEY = "txlog:source"
"""No topic's name: those have no colon."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOffset:
    """Where a stream stands. `ends` without `starts` and without a partition is the beginning of a query, still to be resolved."""

    store_id: str
    """Of `txlog.json`."""
    group_id: str | None
    ends: Mapping[TopicPartition, int]
    """The next offset to read of each partition."""
    starts: Mapping[TopicPartition, int] | None
    """Where the query began, in the offset that ends its first batch; in none that follows."""

    @property
    def is_unresolved(self) -> bool:
        """Whether this is the initial offset, which says only that a query begins: nothing has been looked up yet."""
        return self.starts is None and not self.ends

    def to_json(self) -> dict[str, Any]:
        """As Spark takes it: equal offsets give equal texts."""
        source: dict[str, Any] = {"group.id": self.group_id, "store": self.store_id}
        if self.starts is not None:
            source["start"] = _by_topic(self.starts)
        return {**_by_topic(self.ends), SOURCE_KEY: source}

    @classmethod
    def from_json(cls, offset: Mapping[str, Any] | str | bytes) -> Self:
        """The offset that `to_json` gave, or its text. Raises InvalidRequestError for anything else."""
        parsed: object = offset
        if isinstance(offset, str | bytes):
            try:
                parsed = json.loads(offset)
            except (ValueError, RecursionError):
                raise _malformed(offset, "that is no JSON") from None
        if not isinstance(parsed, Mapping) or not is_stream_offset(parsed):
            raise _malformed(offset, f"it has no {SOURCE_KEY!r}")
        source = parsed[SOURCE_KEY]
        group_id, start = source.get("group.id"), source.get("start")
        if group_id is not None and not isinstance(group_id, str):
            raise _malformed(offset, f"its group.id is {group_id!r}")
        return cls(
            store_id=source["store"],
            group_id=group_id,
            ends=_by_partition({key: value for key, value in parsed.items() if key != SOURCE_KEY}, offset),
            starts=None if start is None else _by_partition(start, offset),
        )


def is_stream_offset(offset: Mapping[str, Any]) -> bool:
    """Whether a source's offset, as parsed from a checkpoint, is one of txlog's and not of another source."""
    source = offset.get(SOURCE_KEY)
    return isinstance(source, Mapping) and isinstance(source.get("store"), str)


def _by_topic(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    nested: dict[str, dict[str, int]] = {}
    for tp in sorted(offsets):
        nested.setdefault(tp.topic, {})[str(tp.partition)] = offsets[tp]
    return nested


def _by_partition(topics: object, whole: object) -> dict[TopicPartition, int]:
    if not isinstance(topics, Mapping):
        raise _malformed(whole, f"{topics!r} is no object of topics")
    found: dict[TopicPartition, int] = {}
    for topic, numbers in topics.items():
        if not is_topic_name(topic) or not isinstance(numbers, Mapping):
            raise _malformed(whole, f"{topic!r} has {numbers!r}")
        for key, offset in numbers.items():
            is_partition = key.isascii() and key.isdigit() and len(key) <= 10 and str(int(key)) == key
            is_offset = isinstance(offset, int) and not isinstance(offset, bool) and 0 <= offset <= MAX_OFFSET
            if not is_partition or not is_offset:
                raise _malformed(whole, f"{topic}-{key} has {offset!r}")
            found[TopicPartition(topic, int(key))] = offset
    return found


def _malformed(offset: object, why: str) -> InvalidRequestError:
    shown = offset if isinstance(offset, str | bytes) else repr(offset)
    return InvalidRequestError(
        f"this is no offset of a txlog stream: {why}; expected "
        f'{{"topic": {{"0": 23}}, "{SOURCE_KEY}": {{"store": …}}}}, found {shown[:300]!r}. If it comes from a checkpoint, '
        "that checkpoint is of another source: give the query its own checkpointLocation"
    )
