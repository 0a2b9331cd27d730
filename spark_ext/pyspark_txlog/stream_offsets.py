"""How does Spark keep an offset of a stream in a query's checkpoint?

It is the JSON of Spark's Kafka source (the next offset of each partition), plus one key that cannot be a topic's name:

    {"orders": {"0": 5, "1": 7},
     "txlog:source": {"group.id": null, "store": "9f3c…", "start": {"orders": {"0": 2, "1": 7}}}}

`store` identifies the store of the offsets. `group.id` is the consumer group that the query commits for, if any. The
sink uses both to find sources of its own store. `start` is where the query began. Spark writes the ends of batches to
the checkpoint before they run, but never the beginning of the first. If `latest` were resolved again after a crash, it
could lie beyond the planned end. So the end of the query's first batch, and only that one, contains the start.

Spark compares offsets as text, so equal offsets are rendered as equal text. Pure code, used by the source and the sink.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from txlog.engine import TopicPartition
from txlog.engine.offsets import MAX_OFFSET
from txlog.engine.schemas import is_topic_name
from txlog.errors import InvalidRequestError

SOURCE_KEY = "txlog:source"
"""Not a valid topic name, because of the colon."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOffset:
    """The position of a stream. Without `starts` and partitions it is the beginning of a query, not resolved yet."""

    store_id: str
    """From `txlog.json`."""
    group_id: str | None
    ends: Mapping[TopicPartition, int]
    """The next offset to read of each partition."""
    starts: Mapping[TopicPartition, int] | None
    """Where the query began; only in the offset that ends its first batch."""

    @property
    def is_unresolved(self) -> bool:
        """Whether this is the initial offset, for which nothing has been looked up yet."""
        return self.starts is None and not self.ends

    def to_json(self) -> dict[str, Any]:
        """Return the JSON for Spark; equal offsets give equal text."""
        source: dict[str, Any] = {"group.id": self.group_id, "store": self.store_id}
        if self.starts is not None:
            source["start"] = by_topic(self.starts)
        return {**by_topic(self.ends), SOURCE_KEY: source}

    @classmethod
    def from_json(cls, offset: Mapping[str, Any] | str | bytes) -> Self:
        """Parse what `to_json` returned, or its text. Raises InvalidRequestError for anything else."""
        parsed: object = offset
        if isinstance(offset, str | bytes):
            try:
                parsed = json.loads(offset)
            except (ValueError, RecursionError):
                raise _malformed(offset, "that is not JSON") from None
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
    """Whether a source's offset, parsed from a checkpoint, belongs to a txlog source."""
    source = offset.get(SOURCE_KEY)
    return isinstance(source, Mapping) and isinstance(source.get("store"), str)


def by_topic(offsets: Mapping[TopicPartition, int] | Mapping[tuple[str, str], int]) -> dict[str, dict[str, int]]:
    """Return offsets by topic and partition as nested objects for JSON, in the order of topics and partitions."""
    nested: dict[str, dict[str, int]] = {}
    for (topic, number), offset in sorted(offsets.items()):
        nested.setdefault(topic, {})[str(number)] = offset
    return nested


def json_object(text: str | None) -> dict[str, Any] | None:
    """Return the JSON object in `text`; None if it is anything else."""
    try:
        parsed = json.loads(text or "")
    except (ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) else None


def offsets_by_topic(text: str | None) -> dict[str, dict[str, int]] | None:
    """Parse the JSON of Spark's Kafka source, as `by_topic` makes it; None for any other text."""
    parsed = json_object(text)
    for numbers in (parsed or {}).values():
        if not isinstance(numbers, dict) or not all(isinstance(offset, int) for offset in numbers.values()):
            return None
    return parsed


def _by_partition(topics: object, whole: object) -> dict[TopicPartition, int]:
    if not isinstance(topics, Mapping):
        raise _malformed(whole, f"{topics!r} is not an object of topics")
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
        f"this is not an offset of a txlog stream: {why}; expected "
        f'{{"topic": {{"0": 23}}, "{SOURCE_KEY}": {{"store": …}}}}, found {shown[:300]!r}. '
        "hint: if it comes from a checkpoint, "
        "that checkpoint belongs to another source: give the query its own checkpointLocation"
    )
