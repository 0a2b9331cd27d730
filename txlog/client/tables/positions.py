"""Where does a read of a table begin and end? `start`, `end` and `as_of` as offsets of each partition."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from txlog.client.offsets import EARLIEST, LATEST, OffsetSpec, offsets_for_times, parse_spec, resolve
from txlog.client.reading import take_cut
from txlog.client.session.session import Session
from txlog.config import IsolationLevel
from txlog.core.effects import Program
from txlog.core.names import TopicPartition
from txlog.core.snapshots import SnapshotCut
from txlog.errors import InvalidConfigurationError, InvalidRequestError
from txlog.protocol.context import Context, Views
from txlog.protocol.snapshot_as_of import cut_as_of
from txlog.text import any_text, microseconds, parse_time, time_text

Position: TypeAlias = (
    "str | datetime.datetime | Mapping[int, int] | Mapping[str, int] | Mapping[TopicPartition, int] | OffsetSpec"
)
"""`earliest`, `latest`, a time with a zone, or the offset of each partition (-2 earliest, -1 latest).

A partition may be a text, as in `{"0": 500}`, because JSON has no other keys.
"""


def offsets_of(
    session: Session,
    partitions: Sequence[TopicPartition],
    position: Position,
    option: str,
    isolation: IsolationLevel,
) -> dict[TopicPartition, int]:
    """Return the offset of each partition, on fresh tails; `option` is `start` or `end`.

    A partition that a mapping leaves out is read from its beginning, or to its end. So is one without a row at or after
    a time. Raises InvalidRequestError, InvalidConfigurationError, OffsetOutOfRangeError with the valid range.
    """
    spec = _spec(partitions, position, option)
    return resolve(session, partitions, spec, isolation, missing="latest")


def past_cut(session: Session, topics: Sequence[str], as_of: datetime.datetime) -> SnapshotCut:
    """Take one cut over `topics` of what was appended up to `as_of`, in which every transaction is whole.

    Raises InvalidRequestError if the log does not show that any more; see `cut_as_of`.
    """
    after_ms = _microseconds(as_of, "as_of") // 1000 + 1
    cut = take_cut(session, topics)
    # Uncommitted rows count, too: a transaction with a later row is not whole.
    found = offsets_for_times(session, dict.fromkeys(cut.ends, after_ms), "read_uncommitted")
    # Afterwards: a tombstone that was there at this look lies at or after the ends, so a later compaction is noticed
    # (R19).
    for topic in topics:
        _check_tombstones(session, topic, after_ms)
    ends = {tp: cut.ends[tp] if hit is None else hit.offset for tp, hit in found.items()}

    def program(ctx: Context, views: Views) -> Program[tuple[Views, SnapshotCut]]:
        return cut_as_of(ctx, views, cut, ends, after_ms - 1)

    return session.call("looking up what was appended by a time", program)


def _check_tombstones(session: Session, topic: str, after_ms: int) -> None:
    """Raise InvalidRequestError if a compaction may have removed a tombstone of that time with the rows before it
    (C2a).

    Nothing of them is left that would show it.
    """
    config = session.runtime.settings.topic_config(session.runtime.topic(topic))
    if "compact" not in config.cleanup_policy:
        return
    limit_ms = config.delete_retention_ms
    if session.clock.now_ms() - after_ms >= limit_ms:
        raise InvalidRequestError(
            f"as_of: compaction removes tombstones of topic {topic!r}, and the rows before them, after "
            f"delete.retention.ms = {limit_ms} ms. "
            "hint: choose a later time"
        )


def _spec(partitions: Sequence[TopicPartition], position: Position, option: str) -> OffsetSpec:
    if isinstance(position, OffsetSpec):
        return position
    if isinstance(position, datetime.datetime):
        # The first row at or after the time. Append times are whole milliseconds.
        return OffsetSpec(kind="timestamp", option=option, timestamp=-(-_microseconds(position, option) // 1000))
    expected = "expected 'earliest', 'latest', a datetime with a time zone, or a mapping from partition to offset"
    if isinstance(position, str):
        if position.strip().lower() not in ("earliest", "latest") and not position.lstrip().startswith("{"):
            raise InvalidConfigurationError(f"{option} = {any_text(position)}: {expected}{_time_hint(position)}")
        return parse_spec(position, option)
    if not isinstance(position, Mapping):
        day = isinstance(position, datetime.date)
        raise InvalidRequestError(
            f"{option} = {any_text(position)}: {expected}{_time_hint(position.isoformat()) if day else ''}"
        )
    given = {
        key if isinstance(key, TopicPartition) else TopicPartition(partitions[0].topic, _number(key)): offset
        for key, offset in position.items()
    }
    if len(given) < len(position):
        raise InvalidRequestError(f"{option} = {any_text(position)}: a partition is there twice, in two forms")
    wrong = [each for each in given.values() if isinstance(each, bool) or not isinstance(each, int) or each < EARLIEST]
    if wrong:
        raise InvalidRequestError(f"{option}: {wrong[0]!r} is not an offset. hint: -2 is earliest, -1 is latest")
    missing = EARLIEST if option == "start" else LATEST
    return OffsetSpec(kind="offsets", option=option, offsets={**dict.fromkeys(partitions, missing), **given})


def _time_hint(text: str) -> str:
    """Return a hint with the expression of Python for a time that was given as text; "" for other text."""
    time_ms = None if text.isdigit() else parse_time(text)
    if time_ms is None:
        return ""
    return f'. hint: datetime.datetime.fromisoformat("{time_text(time_ms).replace("Z", "+00:00")}")'


def _number(partition: Any) -> Any:
    """Return the partition of a key of JSON as a number. A wrong key stays as it is, and the error names it."""
    if isinstance(partition, str) and partition.isascii() and partition.isdigit():
        return int(partition)
    return partition


def _microseconds(time: datetime.datetime, option: str) -> int:
    if not isinstance(time, datetime.datetime) or time.tzinfo is None:
        raise InvalidRequestError(f"{option} = {any_text(time)}: expected a datetime with a time zone")
    return max(microseconds(time), 0)
