"""Which offsets do `earliest`, `latest`, `committed`, a time or a JSON text mean?

The texts are those of Spark's Kafka source: `{"orders": {"0": 23, "1": -2}}`, with -2 for earliest, -1 for latest, and
times in milliseconds. The data source, the command line and the consumer share this module, so an option has the same
meaning everywhere. `latest` is the end for the isolation level: the last stable offset, or the log end.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from txlog.client.groups import OffsetAndTimestamp, check_group, commit_offsets, marked
from txlog.client.reading import MAX_RELISTS
from txlog.client.removed import removed_offsets
from txlog.client.session.runtime import check_partition
from txlog.client.session.session import Session
from txlog.config import DEFAULT_ISOLATION, IsolationLevel
from txlog.config.kafka_settings import other_value
from txlog.core.effects import Gather, Program
from txlog.core.groups import OffsetsCondition
from txlog.core.names import MAX_OFFSET, TopicPartition
from txlog.core.records import OffsetValue
from txlog.core.segments import floor_entry
from txlog.errors import (
    CommitFailedError,
    InvalidConfigurationError,
    InvalidRequestError,
    MissingObjectError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
)
from txlog.protocol.context import Context, PartitionView, Views
from txlog.protocol.groups import fetch_offsets
from txlog.protocol.load import get_view
from txlog.protocol.read import ReadIndexes, TimeHit, end_offset, offset_for_timestamp, read_index
from txlog.text import any_text, count_text

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)

EARLIEST = -2
LATEST = -1
_WORDS = {EARLIEST: "earliest", LATEST: "latest"}

MAX_RAISES = 5
"""How often a commit that may only raise offsets is tried again because another process committed first."""

_SPARK_OPTIONS = ("starting", "ending")

Kind: TypeAlias = Literal["earliest", "latest", "committed", "offsets", "timestamp", "timestamps"]
Missing: TypeAlias = Literal["earliest", "latest", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetSpec:
    """Where to begin or to end, as an option gives it."""

    kind: Kind
    option: str
    """The option's name, for messages."""
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    """kind "offsets": for every partition; EARLIEST and LATEST are allowed."""
    timestamp: int = -1
    """kind "timestamp": milliseconds, for all partitions."""
    timestamps: Mapping[TopicPartition, int] = field(default_factory=dict)
    """kind "timestamps": milliseconds, for every partition."""


# -- texts ------------------------------------------------------------------------------------------------------------


def parse_spec(text: str, option: str, *, words: Sequence[str] = ("earliest", "latest")) -> OffsetSpec:
    """Parse a `startingOffsets` or `endingOffsets`: one of `words`, or JSON.

    Raises InvalidConfigurationError with the name of the option.
    """
    word = text.strip().lower()
    for kind in ("earliest", "latest", "committed"):
        if word == kind and kind in words:
            return OffsetSpec(kind=kind, option=option)
    if word.startswith("{"):
        offsets = parse_offsets(text, option)
        for tp, offset in offsets.items():
            refused = _WORDS.get(offset)
            if refused is not None and refused not in words:
                raise InvalidConfigurationError(f"{option}: {tp} says {offset} ({refused}), which is not possible here")
        return OffsetSpec(kind="offsets", option=option, offsets=offsets)
    raise InvalidConfigurationError(
        f'{option} = {text!r}: expected {", ".join(words)}, or JSON as {{"topic": {{"0": 23, "1": -2}}}}'
        f"{other_value(word, words)}"
    )


def parse_offsets(text: str, option: str) -> dict[TopicPartition, int]:
    """Parse `{"topic": {"0": 23, "1": -2}}`. Raises InvalidConfigurationError with the name of the option."""
    return _parse_numbers(text, option, EARLIEST, "an offset, -2 (earliest) or -1 (latest)")


def spec_of(spec: str | int | OffsetSpec) -> OffsetSpec:
    """Return what a call's argument means: a name or text of `parse_spec`, a time (ms), or an OffsetSpec itself."""
    if isinstance(spec, OffsetSpec):
        return spec
    if isinstance(spec, datetime.datetime):
        raise InvalidConfigurationError(
            f"timestamp = {spec}: expected milliseconds since 1970. hint: give int(time.timestamp() * 1000)"
        )
    if not isinstance(spec, str):
        return parse_timestamp(any_text(spec), "timestamp")
    return replace(parse_spec(spec, "offsets"), option=f"offsets {spec.strip().lower()!r}")


def parse_timestamps(text: str, option: str) -> OffsetSpec:
    """Parse `{"topic": {"0": 1700000000000}}` as a spec.

    Raises InvalidConfigurationError with the name of the option.
    """
    return OffsetSpec(
        kind="timestamps", option=option, timestamps=_parse_numbers(text, option, 0, "milliseconds since 1970")
    )


def parse_timestamp(text: str, option: str) -> OffsetSpec:
    """Parse one time for all partitions. Raises InvalidConfigurationError with the name of the option."""
    try:
        timestamp = int(text)
    except (TypeError, ValueError):
        timestamp = -1
    if timestamp < 0:
        raise InvalidConfigurationError(f"{option} = {text!r}: expected milliseconds since 1970")
    return OffsetSpec(kind="timestamp", option=option, timestamp=timestamp)


def parse_assign(text: str, option: str = "assign") -> tuple[TopicPartition, ...]:
    """Parse `{"topic": [0, 1]}`. Raises InvalidConfigurationError with the name of the option."""
    found = []
    for topic, numbers in _parse_object(text, option, '{"topic": [0, 1]}').items():
        if not isinstance(numbers, list) or not numbers or not all(_is_number(n, 0) for n in numbers):
            raise InvalidConfigurationError(f"{option}: topic {topic!r} has {numbers!r}, expected a list of partitions")
        found += [TopicPartition(topic, number) for number in numbers]
    if len(set(found)) != len(found):
        raise InvalidConfigurationError(f"{option}: a partition is named twice")
    return tuple(sorted(found))


def format_offsets(offsets: Mapping[TopicPartition, int]) -> str:
    """Return offsets as the JSON text that `parse_offsets` reads. Equal offsets give equal texts."""
    nested: dict[str, dict[str, int]] = {}
    for tp in sorted(offsets):
        nested.setdefault(tp.topic, {})[str(tp.partition)] = offsets[tp]
    return json.dumps(nested, separators=(",", ":"))


# -- answers ----------------------------------------------------------------------------------------------------------


def resolve(
    session: Session,
    partitions: Iterable[TopicPartition],
    spec: OffsetSpec,
    isolation: IsolationLevel = DEFAULT_ISOLATION,
    *,
    group: str | None = None,
    missing: Missing = "none",
    clamp: bool = False,
) -> dict[TopicPartition, int]:
    """Return the offset of each partition that `spec` means, on fresh tails.

    `missing` is used where there is no committed offset, or no row at or after the time. `clamp` moves offsets outside
    of the log to the log's nearer end (`failOnDataLoss=false`). Raises UnknownTopicOrPartitionError,
    OffsetOutOfRangeError with the valid range, NoOffsetForPartitionError, InvalidConfigurationError (a partition
    without an offset, or not among `partitions`).
    """
    wanted = list(partitions)
    check_exist(session, wanted)
    if spec.kind in ("offsets", "timestamps"):
        check_cover(spec, wanted)
    views = session.fresh_views(wanted, f"looking up {spec.option}")

    def in_log(tp: TopicPartition, offset: int) -> int:
        # A reader that has read every row is below the log start of a topic that was created again.
        removed = removed_offsets(session, views[tp], offset, isolation)
        return offset if removed.offsets else max(offset, removed.log_start)

    if spec.kind in ("timestamp", "timestamps"):
        times = {tp: spec.timestamps.get(tp, spec.timestamp) for tp in wanted}
        hits = offsets_for_times(session, times, isolation)
        return {
            tp: hit.offset if (hit := hits[tp]) else _missing(views[tp], isolation, spec, missing, group)
            for tp in wanted
        }
    if spec.kind == "committed":
        committed = committed_offsets(session, check_group(group), wanted)
        given = {tp: value.offset for tp, value in committed.items() if value is not None}
        return {
            tp: check_range(views[tp], in_log(tp, given[tp]), spec.option, clamp=clamp)
            if tp in given
            else _missing(views[tp], isolation, spec, missing, group)
            for tp in wanted
        }
    found = {}
    for tp in wanted:
        word = _WORDS.get(spec.offsets[tp]) if spec.kind == "offsets" else spec.kind
        found[tp] = (
            check_range(views[tp], in_log(tp, spec.offsets[tp]), spec.option, clamp=clamp)
            if word is None
            else edge(views[tp], word, isolation)
        )
    return found


def edge(view: PartitionView, word: str, isolation: IsolationLevel) -> int:
    """Return the log start if `word` is "earliest", else the end for the isolation level."""
    return view.state.log_start_offset if word == "earliest" else end_offset(view, isolation)


def edges(
    session: Session, partitions: list[TopicPartition], word: str, isolation: IsolationLevel
) -> dict[TopicPartition, int]:
    """Return `edge` of these partitions, on fresh tails."""
    views = session.fresh_views(partitions, "looking for where to begin")
    return {tp: edge(view, word, isolation) for tp, view in views.items()}


def lags_ms(
    session: Session, committed: Mapping[TopicPartition, OffsetValue], views: Views
) -> dict[TopicPartition, int]:
    """Return how long the oldest offset that a group has not consumed has waited, for partitions where it has any."""
    first = {
        tp: max(committed[tp].offset, view.state.log_start_offset)
        for tp, view in views.items()
        if tp in committed and committed[tp].offset < view.state.last_stable_offset
    }
    now_ms = session.clock.now_ms()
    return {tp: max(now_ms - at, 0) for tp, at in append_times(session, first, {}).items()}


def committed_offsets(
    session: Session, group: str, partitions: Iterable[TopicPartition], *, wait: bool = True
) -> dict[TopicPartition, OffsetValue | None]:
    """Return the group's committed offsets. With `wait`, wait for undecided transactions that hold newer ones.

    Raises UnstableOffsetCommitError when the time is up; without `wait`, at once.
    """
    wanted = list(partitions)
    return session.call(
        f"fetching the committed offsets of group {group!r}",
        lambda ctx, views: fetch_offsets(ctx, views, group, wanted),
        wait=wait,
        settles=False,
    )


def offsets_for_times(
    session: Session, times: Mapping[TopicPartition, int], isolation: IsolationLevel
) -> dict[TopicPartition, OffsetAndTimestamp | None]:
    """Return for each partition the first offset at or after a time (ms), or None if every row is older.

    It uses the session's views. If a merge or compaction made one entry of many batches, the row is looked up in its
    file, at the cost of one or two more GETs.
    """

    def program(ctx: Context, views: Views) -> Program[tuple[Views, dict[TopicPartition, tuple[TimeHit, ...]]]]:
        def one(tp: TopicPartition) -> Program[tuple[PartitionView, tuple[TimeHit, ...]]]:
            _, view = yield from get_view(ctx, views, tp)
            return (yield from offset_for_timestamp(ctx, view, times[tp], isolation))

        found = yield Gather(tuple(one(tp) for tp in times))
        after = {**views, **{view.topic_partition: view for view, _ in found}}
        return after, {tp: hits for tp, (_, hits) in zip(times, found, strict=True)}

    for attempt in range(MAX_RELISTS + 1):
        found = session.call("looking up offsets by time", program)
        try:
            return {tp: _first_row(session, hits, times[tp]) for tp, hits in found.items()}
        except MissingObjectError:
            if attempt == MAX_RELISTS:
                raise
            session.forget(list(times))
    raise AssertionError("unreachable")


def milliseconds(time: int | datetime.datetime, what: str) -> int:
    """Return a time as milliseconds since 1970. A datetime needs a time zone; it is rounded up, as append times are
    whole.

    Raises InvalidRequestError, beginning with `what`.
    """
    if isinstance(time, datetime.datetime) and time.tzinfo is not None:
        # Not by microseconds: a subclass may have nanoseconds.
        return max(-(-(time - _EPOCH) // datetime.timedelta(milliseconds=1)), 0)
    hint = ""
    # Seconds of the years 2001 to 2286. As milliseconds they are days in 1970.
    if isinstance(time, int | float) and 10**9 <= time < 10**10:
        hint = f". hint: {time} seconds are {int(time * 1000)}"
    if isinstance(time, bool) or not isinstance(time, int) or time < 0 or hint:
        raise InvalidRequestError(
            f"{what}: {any_text(time)} is not a time: expected a datetime with a time zone, or milliseconds since "
            f"1970{hint}"
        )
    return time


def append_times(
    session: Session, offsets: Mapping[TopicPartition, int], indexes: Mapping[TopicPartition, ReadIndexes]
) -> dict[TopicPartition, int]:
    """Return when the records at `offsets` were appended (ms), on the session's views.

    Costs one GET for an offset in a segment whose index is not among `indexes`, and nothing for one in the tail. A
    partition is left out if its log does not hold the offset, or if maintenance has just replaced what its view names.
    """

    def program(ctx: Context, views: Views) -> Program[tuple[Views, list[int | None]]]:
        return views, (yield Gather(tuple(_append_time(views[tp], offsets[tp], indexes.get(tp, {})) for tp in offsets)))

    found = session.call("looking up times of records", program) if offsets else []
    return {tp: time for tp, time in zip(offsets, found, strict=True) if time is not None}


def raise_committed(
    session: Session,
    group: str,
    offsets: Mapping[TopicPartition, int],
    job: str = "",
    *,
    beside_members: bool = False,
) -> None:
    """Commit those of `offsets` that are above the group's committed offset. It never moves an offset back.

    `job` names the job that commits. It stands in the metadata, so that no member joins the group unasked (W57).

    The condition is checked where the record is appended. Raises UnstableOffsetCommitError or
    ConcurrentTransactionsError while an undecided transaction holds other offsets, CommitFailedError if others
    committed first MAX_RAISES times in a row, or if the group has members and the job may not be `beside_members`
    (W57).
    """
    check_group(group)
    for attempt in range(MAX_RAISES):
        committed = committed_offsets(session, group, offsets, wait=False)
        stand = {tp: value.offset if value is not None else None for tp, value in committed.items()}
        ahead = {tp: offset for tp, offset in offsets.items() if (stands := stand[tp]) is None or stands < offset}
        if not ahead:
            return
        session.runtime.ensure_writable()
        values = marked({tp: OffsetValue(offset=offset) for tp, offset in ahead.items()}, job)
        condition = OffsetsCondition(expected={tp: stand[tp] for tp in ahead}, job="" if beside_members else job)
        try:
            # Not `settles`, because the next look shows what an earlier try has done.
            commit_offsets(session, group, values, condition, wait=False, settles=False)
        except CommitFailedError:
            # Another process committed between the look and the commit. Look again: its offset may be higher.
            if attempt == MAX_RAISES - 1:
                raise
        else:
            return


def check_range(view: PartitionView, offset: int, option: str, *, clamp: bool = False) -> int:
    """Return `offset` if the log holds it or ends there. Otherwise clamp it, or raise OffsetOutOfRangeError."""
    low, high = view.state.log_start_offset, view.state.next_offset
    if low <= offset <= high:
        return offset
    if clamp:
        return min(max(offset, low), high)
    # Only Spark's reads have Spark's options and can continue with them.
    advice = (
        " or 'earliest', or continue from the nearer end with failOnDataLoss=false"
        if option.startswith(_SPARK_OPTIONS)
        else ""
    )
    removed = ""
    if offset < low:
        removed = " Retention (retention.ms and retention.bytes of the topic) or a deletion removed the rows below."
        advice += "; retention.hold.groups keeps rows that a consumer group has not read"
    raise OffsetOutOfRangeError(
        f"{view.topic_partition}: {option} asks for offset {offset}, but the log holds {low} to {high}.{removed} "
        f"hint: choose an offset in that range{advice}"
    )


def check_cover(spec: OffsetSpec, partitions: Sequence[TopicPartition]) -> None:
    """Raise InvalidConfigurationError unless `spec` names exactly `partitions`, as Spark's Kafka source requires."""
    named = set(spec.offsets) if spec.kind == "offsets" else set(spec.timestamps)
    lacking, foreign = sorted(set(partitions) - named), sorted(named - set(partitions), key=str)
    hint = "; -2 is earliest, -1 is latest" if spec.kind == "offsets" else ""
    if lacking:
        also = f", but names {', '.join(map(str, foreign[:5]))}, which is not read" if foreign else ""
        raise InvalidConfigurationError(
            f"{spec.option} must name every partition that is read, and lacks "
            f"{', '.join(map(str, lacking[:5]))}{also}{hint}"
        )
    if foreign:
        last = "".join(f", the last one is {tp}" for tp in sorted(partitions)[-1:])
        raise InvalidConfigurationError(
            f"{spec.option} names {', '.join(map(str, foreign[:5]))}, which is not read: "
            f"{count_text(len(partitions), 'partition')} {'is' if len(partitions) == 1 else 'are'} read{last}{hint}"
        )


def check_exist(session: Session, partitions: Iterable[TopicPartition]) -> None:
    """Raise UnknownTopicOrPartitionError unless all partitions exist."""
    for tp in partitions:
        topic = session.runtime.topic(tp.topic, session.metadata_max_age_ms)
        if not 0 <= tp.partition < topic.partitions:
            topic = session.runtime.topic(tp.topic, 0)  # partitions may have been added since
        check_partition(topic, tp.partition)


def _first_row(session: Session, hits: Sequence[TimeHit], timestamp_ms: int) -> OffsetAndTimestamp | None:
    for hit in hits:
        if not hit.pieces:
            return OffsetAndTimestamp(offset=hit.offset, timestamp=hit.timestamp)
        # A local import, because planning needs pyarrow only for topics that were merged or compacted.
        from txlog.client import rows

        if (found := rows.first_at_or_after(session.runtime.store, hit.pieces, timestamp_ms)) is not None:
            return OffsetAndTimestamp(offset=found[0], timestamp=found[1])
    return None


def _append_time(view: PartitionView, offset: int, indexes: ReadIndexes) -> Program[int | None]:
    if offset >= view.sealed_end:
        for stored in view.tail:
            if stored.record.base_offset <= offset < stored.record.end_offset:
                return stored.record.timestamp
        return None
    for name in view.walk:
        if name.base_offset <= offset < name.end_offset:
            known = indexes.get(name)
            try:
                read = known if known is not None else (yield from read_index(view.topic_partition, name))
            except MissingObjectError:
                return None
            at = floor_entry(read.index, offset)
            return read.index.entries[at].timestamp if at >= 0 else None
    return None


def _missing(
    view: PartitionView, isolation: IsolationLevel, spec: OffsetSpec, missing: Missing, group: str | None
) -> int:
    if missing != "none":
        return edge(view, missing, isolation)
    what = (
        f"there is no committed offset of group {group!r}" if spec.kind == "committed" else "no row is as new as that"
    )
    raise NoOffsetForPartitionError(
        f"{view.topic_partition}: {spec.option}: {what}, and no other position is set for this case"
    )


def _parse_numbers(text: str, option: str, minimum: int, expected: str) -> dict[TopicPartition, int]:
    found: dict[TopicPartition, int] = {}
    for topic, numbers in _parse_object(text, option, '{"topic": {"0": 23}}').items():
        if not isinstance(numbers, dict) or not numbers:
            raise InvalidConfigurationError(
                f'{option}: topic {topic!r} has {numbers!r}, expected {{"partition": number}}'
            )
        for key, number in numbers.items():
            if not (key.isascii() and key.isdigit()) or len(key) > 9:
                raise InvalidConfigurationError(
                    f"{option}: topic {topic!r}: {key!r} is not a partition; expected a number from 0"
                )
            if not _is_number(number, minimum):
                raise InvalidConfigurationError(f"{option}: {topic}-{key} has {number!r}, expected {expected}")
            found[TopicPartition(topic, int(key))] = number
    return found


def _parse_object(text: str, option: str, example: str) -> dict[str, object]:
    try:
        parsed = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidConfigurationError(f"{option}: not JSON ({error}); expected {example}") from None
    if not isinstance(parsed, dict) or not parsed:
        raise InvalidConfigurationError(f"{option}: found {text[:80]!r}, expected {example}")
    return parsed


def _is_number(value: object, minimum: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and minimum <= value <= MAX_OFFSET
