"""Would a change of a topic move keys to other partitions than their older rows (W39)?"""

from __future__ import annotations

from txlog.core import names
from txlog.core.effects import List, Program
from txlog.core.records import TopicMetadata
from txlog.core.schema import kafka_key
from txlog.errors import InvalidConfigurationError, InvalidPartitionsError
from txlog.protocol.topics import earlier_version
from txlog.text import count_text

_ALLOW = "if readers do not need the order of a key, say --allow-key-movement (Python: allow_key_movement=True)"


def check_key_movement(current: TopicMetadata, changed: TopicMetadata, allowed: bool) -> Program[None]:
    """Raise if new rows of a key would be in another partition than older ones, unless `allowed` permits it (W39).

    No request if keys do not move. Otherwise one LIST, and a GET for each earlier version if compaction is turned on.
    """
    is_compacted = _is_compacted(changed)
    if changed.partitions > current.partitions and _set_keys(current):
        moves = (
            f"topic {current.topic!r}: {changed.partitions} partitions instead of {current.partitions} would move keys "
            f"({', '.join(_set_keys(current))}) to other partitions than their older rows"
        )
        if is_compacted or _is_compacted(current):
            raise InvalidPartitionsError(
                f"{moves}, and compaction (cleanup.policy) would keep rows of a key in both. hint: create a new topic and copy the rows"
            )
        if not allowed:
            raise InvalidPartitionsError(f"{moves}; {_ALLOW}")
    elif _moves_keys(current, changed) and (yield from has_records(current.topic)):
        moves = (
            f"topic {current.topic!r}: the change ({_layout_text(current)}; then {_layout_text(changed)}) would move keys to other partitions "
            "than their older rows"
        )
        if is_compacted:
            raise InvalidConfigurationError(
                f"{moves}, and compaction would keep rows of a key in both. hint: create a new topic with these settings and copy the rows"
            )
        if _keys(current) != _keys(changed) and not allowed:
            raise InvalidConfigurationError(f"{moves}; {_ALLOW}")
    if is_compacted and not _is_compacted(current) and changed.partitions > 1:
        yield from _check_never_moved(current)


def _check_never_moved(newest: TopicMetadata) -> Program[None]:
    """Raise InvalidConfigurationError if a version of this topic has moved keys of rows that may still exist."""
    later = newest
    while later.number > 0:
        earlier = yield from earlier_version(later.topic, later.number - 1)
        if earlier.topic_id != newest.topic_id:
            return
        if _moves_keys(earlier, later):
            if not (yield from has_records(newest.topic)):
                return
            raise InvalidConfigurationError(
                f"topic {newest.topic!r}: cleanup.policy=compact would keep old rows of a key: version {later.number} moved keys to other "
                f"partitions ({_layout_text(earlier)}; then {_layout_text(later)}). hint: create a new topic with cleanup.policy=compact and copy the rows"
            )
        later = earlier


def _moves_keys(before: TopicMetadata, after: TopicMetadata) -> bool:
    """Return whether a key of `after` may have older rows in another partition than its new ones."""
    is_keyed = bool(_keys(before) or _keys(after))
    return after.partitions > 1 and is_keyed and (_keys(before), before.partitions) != (_keys(after), after.partitions)


def _keys(metadata: TopicMetadata) -> tuple[str, ...]:
    return _set_keys(metadata) or kafka_key(metadata.schema)


def _set_keys(metadata: TopicMetadata) -> tuple[str, ...]:
    # The text is not parsed: a later txlog may have written settings beside it that this one cannot parse.
    return tuple(filter(None, metadata.config.get("key.columns", "").split(",")))


def _layout_text(metadata: TopicMetadata) -> str:
    key = f"key.columns={','.join(_keys(metadata))}" if _keys(metadata) else "no key.columns"
    return f"{key}, {count_text(metadata.partitions, 'partition')}"


def _is_compacted(metadata: TopicMetadata) -> bool:
    return "compact" in metadata.config.get("cleanup.policy", "").split(",")


def has_records(topic: str) -> Program[bool]:
    """Return whether any record was ever written to a partition of the topic. Costs one LIST."""
    listed = yield List(f"{topic}/")
    return any(names.parse_partition_folder(name) is not None for name in listed)
