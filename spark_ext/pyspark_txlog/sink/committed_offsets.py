"""Which offsets of its sources does a micro-batch commit, and under which condition?

Before Spark runs a micro-batch, it writes the end of the batch to the checkpoint. The sink puts that end into the
transaction of the batch's rows (PROTOCOL.md, "Consumer offsets"). So the rows and the offsets are committed together or
not at all.

    a txlog source of the sink's own store    offsets of its group (`group.id`, else the sink's transactional.id).
                                              Condition: the group's committed offset is the start of the batch.
    any other source                          the JSON of its offset, unchanged, in entries of the sink's
                                              transactional.id that no consumer reads: topic `__source.<number>`.
                                              Partitions that the offset no longer names keep their offsets in
                                              topic `__source-not-read.<number>`.

The condition fails after a lost checkpoint, with a second query, or after the transactional.id was forgotten. So no
range of a topic is written twice, even if Spark's own checkpoint is wrong. For other sources there is no condition,
because only the id itself commits their offsets. Instead `check_start` compares offsets when a query starts with the
id, or when a source is new to the query. The query must begin where the id's last commit ended. The functions that
decide are pure; `committed_source_offsets` reads the offsets from the store.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark_txlog.stream_offsets import StreamOffset, by_topic, is_stream_offset, json_object, offsets_by_topic
from txlog.engine import GroupOffsets, OffsetsCondition, OffsetValue, Runtime, Session, TopicPartition, producer_session
from txlog.engine.offsets import MAX_METADATA_LENGTH, committed_offsets, format_offsets
from txlog.engine.schemas import is_topic_name
from txlog.errors import CommitFailedError, CorruptRecordError, GroupIdNotFoundError, InvalidRequestError
from txlog.text import shorten

SOURCE_TOPIC_PREFIX = "__source."
"""The topic names of users cannot begin with two underscores."""
NOT_READ_TOPIC_PREFIX = "__source-not-read."
"""Last offsets of partitions that earlier micro-batches read and the last one did not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A micro-batch, as the checkpoint describes it."""

    query_id: str
    batch_id: int
    ends: Mapping[str, str]
    """The end of the batch, by source, as the source's JSON."""
    previous_ends: Mapping[str, str]
    """The end of the previous batch; empty for batch 0."""
    noted_start: Callable[[str], str | None] = lambda _: None
    """Returns where a source begins, if the source recorded that before the query's first batch."""


@dataclass(slots=True, kw_only=True)
class GroupRange:
    """The ranges of offsets that a batch reads for one group."""

    group: str
    begins: dict[TopicPartition, int | None] = field(default_factory=dict)
    """None for a partition that is new to the query."""
    ends: dict[TopicPartition, int] = field(default_factory=dict)
    firsts: set[TopicPartition] = field(default_factory=set)
    """Partitions of the query's first batch. Their group may have no offset yet."""
    earlier_group: str | None = None
    """The group of the previous micro-batch, if its source had another `group.id` then; else None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOffset:
    """The offset of a source other than txlog's, as the last committed micro-batch left it."""

    query_id: str
    batch_id: int
    json: str
    """The offset as the source writes it. Kafka's source takes it as its option `startingOffsets`."""
    not_read: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Last offsets, by topic and partition, of partitions that earlier micro-batches read and this one does not
    name."""

    def reached(self) -> dict[tuple[str, str], int] | None:
        """Return the committed offset of each partition, read now or earlier; None for a source without partitions."""
        own = _by_partition(self.json)
        return None if own is None else {**self.not_read, **own}


def ranges_of(batch: Batch, *, store_id: str, transactional_id: str) -> tuple[GroupRange, ...]:
    """Return the ranges that the batch reads from topics of the sink's own store, by group.

    Partitions without new offsets are left out, except in the first batch, which records the position of the query in
    all of them. Raises InvalidRequestError if two sources would commit one partition for one group.
    """
    found: dict[str, GroupRange] = {}
    for source, text in batch.ends.items():
        end = _of_store(text, store_id)
        if end is None:
            continue
        before = _of_store(batch.previous_ends.get(source), store_id)
        first = before is None or before.is_unresolved
        begins: Mapping[TopicPartition, int] = (end.starts or {}) if before is None or first else before.ends
        group = end.group_id or transactional_id
        taken = found.setdefault(group, GroupRange(group=group))
        if before is not None and not first and before.group_id != end.group_id:
            taken.earlier_group = before.group_id or transactional_id
        for tp, offset in end.ends.items():
            if not first and begins.get(tp) == offset:
                continue
            if tp in taken.ends:
                raise InvalidRequestError(
                    f"query {batch.query_id}: two of its sources read {tp}, and both would commit "
                    f"it for group {group!r}. "
                    "hint: to use one stream twice, load it twice, each time with another 'group.id', and give "
                    "the query a new checkpoint"
                )
            taken.begins[tp], taken.ends[tp] = begins.get(tp), offset
            if first:
                taken.firsts.add(tp)
    return tuple(found[group] for group in sorted(found) if found[group].ends)


def opaque_offsets(batch: Batch, *, store_id: str) -> dict[TopicPartition, OffsetValue]:
    """Return the offsets of all other sources as entries. Their JSON is split into pieces that fit in the metadata of
    an offset; the partition numbers the pieces."""
    found: dict[TopicPartition, OffsetValue] = {}
    for source, text in batch.ends.items():
        if _of_store(text, store_id) is None:
            found |= _entries(SOURCE_TOPIC_PREFIX, source, text, batch)
    return found


def not_read_offsets(batch: Batch, source: str, known: SourceOffset | None) -> dict[TopicPartition, OffsetValue]:
    """Return entries for the partitions that `known` or the previous micro-batch has read, and this one does not name.

    A run that reads fewer topics must not forget the offsets of the others: a later run would read them from the
    beginning.
    """
    ends = _by_partition(batch.ends[source])
    before = {**((known.reached() if known else None) or {}), **(_by_partition(batch.previous_ends.get(source)) or {})}
    left = {tp: offset for tp, offset in before.items() if tp not in (ends or before)}
    if not left:
        return {}
    return _entries(NOT_READ_TOPIC_PREFIX, source, json.dumps(by_topic(left)), batch)


def read_opaque_offsets(offsets: Mapping[TopicPartition, OffsetValue]) -> dict[str, SourceOffset]:
    """Parse what `opaque_offsets` and `not_read_offsets` wrote, by source; ignore other offsets of the group.

    Raises CorruptRecordError.
    """
    sources = {tp.topic.removeprefix(SOURCE_TOPIC_PREFIX) for tp in offsets if tp.topic.startswith(SOURCE_TOPIC_PREFIX)}
    found = {}
    for source in sorted(sources):
        found[source] = one = _read_one(SOURCE_TOPIC_PREFIX, source, offsets)
        if TopicPartition(f"{NOT_READ_TOPIC_PREFIX}{source}", 0) in offsets:
            kept = _by_partition(_read_one(NOT_READ_TOPIC_PREFIX, source, offsets).json) or {}
            own = _by_partition(one.json) or {}
            found[source] = replace(one, not_read={tp: offset for tp, offset in kept.items() if tp not in own})
    return found


def group_offsets(
    ranges: Sequence[GroupRange],
    opaque: Mapping[TopicPartition, OffsetValue],
    committed: Mapping[str, Mapping[TopicPartition, OffsetValue | None]],
    *,
    batch: Batch,
    transactional_id: str,
) -> tuple[GroupOffsets, ...]:
    """Return the offsets that the transaction sends, by group, each with its condition.

    `committed` holds the present offsets of the groups of first batches. Raises CommitFailedError if a group has
    already committed another offset than the one where the query begins.
    """
    offsets: dict[str, dict[TopicPartition, OffsetValue]] = {}
    expected: dict[str, dict[TopicPartition, int | None]] = {}
    if opaque:
        offsets[transactional_id] = dict(opaque)
    for taken in ranges:
        wanted = expected.setdefault(taken.group, {})
        for tp, begin in taken.begins.items():
            wanted[tp] = begin
            if tp in taken.firsts and tp in (known := committed.get(taken.group, {})):
                stands = known[tp]
                if stands is None:
                    wanted[tp] = None
                elif stands.offset != begin:
                    raise CommitFailedError(
                        f"query {batch.query_id}, micro-batch {batch.batch_id}: it begins {tp} at offset {begin}, but "
                        f"group {taken.group!r} has committed {stands.offset}. hint: use a new checkpoint with "
                        f'startingOffsets=committed and group.id={taken.group}; see the page "After a lost checkpoint"'
                    )
        values = {tp: OffsetValue(offset=end) for tp, end in taken.ends.items()}
        offsets.setdefault(taken.group, {}).update(values)
    # An empty condition makes the offsets eager, so that no fetch returns an older value in the meantime.
    return tuple(
        GroupOffsets(group=group, offsets=offsets[group], condition=OffsetsCondition(expected=expected.get(group, {})))
        for group in sorted(offsets)
    )


def offsets_to_send(
    session: Session, batch: Batch, *, transactional_id: str, is_first_commit: bool
) -> tuple[GroupOffsets, ...]:
    """Return the offsets that the batch's transaction carries.

    `is_first_commit`: the id has not committed a micro-batch yet, so its groups may have no offset yet either. Raises
    CommitFailedError if the rows of the sources are already committed; InvalidRequestError.
    """
    store_id = session.runtime.require_store().store_id
    ranges = ranges_of(batch, store_id=store_id, transactional_id=transactional_id)
    committed = {}
    for taken in ranges:
        if is_first_commit:
            taken.firsts.update(taken.ends)
        if taken.firsts:
            committed[taken.group] = committed_offsets(session, taken.group, sorted(taken.firsts))
        _check_group_change(session, batch, taken)
    opaque = opaque_offsets(batch, store_id=store_id)
    sources = {tp.topic.removeprefix(SOURCE_TOPIC_PREFIX) for tp in opaque}
    begun = sources if is_first_commit else sources - set(batch.previous_ends)
    # Reading the committed offsets costs requests, so do it only if a source begins or its partitions change.
    changed = {source for source in sources - begun if _changes_partitions(batch, source)}
    if begun or changed:
        known: Mapping[str, SourceOffset] = {}
        with suppress(GroupIdNotFoundError):
            known = committed_opaque(session, transactional_id)
        for source in sorted(begun | changed):
            if source in known:
                check_start(batch, source, known[source], transactional_id=transactional_id)
            opaque |= not_read_offsets(batch, source, known.get(source))
    return group_offsets(ranges, opaque, committed, batch=batch, transactional_id=transactional_id)


def _check_group_change(session: Session, batch: Batch, taken: GroupRange) -> None:
    """Raise InvalidRequestError if the batch commits for another group than the previous batch, and that group has
    other offsets.

    The condition would also fail, but its error message would blame another job.
    """
    if taken.earlier_group is None:
        return
    for tp, value in committed_offsets(session, taken.group, sorted(taken.ends)).items():
        stands = value.offset if value is not None else None
        begin = taken.begins[tp]
        if stands != begin:
            command = (
                f"txlog consumer-groups reset-offsets {taken.group} --topic {tp.topic}:{tp.partition} "
                f"--to-offset {begin} --execute"
            )
            raise InvalidRequestError(
                f"query {batch.query_id}, micro-batch {batch.batch_id}: 'group.id' was changed from "
                f"{taken.earlier_group!r} to {taken.group!r}. The new group has committed {stands} for "
                f"{tp}; expected {begin}. "
                f"hint: {f'if no other job uses that group, run `{command}`; or ' if begin is not None else ''}start "
                'with a new checkpoint: see the page "After a lost checkpoint"'
            )


def check_start(batch: Batch, source: str, known: SourceOffset, *, transactional_id: str) -> None:
    """Raise CommitFailedError unless the batch begins the source where `known` ended. The source is not one of txlog's
    own store.

    If the source has partitions (Kafka's, or topics of another store), only the partitions in both offsets are
    compared. The others are new, or no longer read. A partition that returns to a running query is refused, because its
    source reads it from the beginning. If the source did not record its start, txlog cannot compare, so it refuses the
    first batch of the query.
    """
    begins = batch.previous_ends.get(source)
    if begins is None:
        begins = _own_start(batch.ends[source]) or batch.noted_start(source)
    elif returned := sorted(known.not_read.keys() & (_by_partition(batch.ends[source]) or {})):
        topic, number = returned[0]
        raise CommitFailedError(
            f"query {batch.query_id}, micro-batch {batch.batch_id}: source {source} reads {topic}-{number} again from "
            f"its beginning, but transactional.id {transactional_id!r} has committed it up to "
            f"{known.not_read[returned[0]]}. "
            'hint: start with a new checkpoint at committed_source_offsets(...); see the page "After a lost checkpoint"'
        )
    if begins is not None and _goes_on(begins, known):
        return
    raise CommitFailedError(
        f"query {batch.query_id}, micro-batch {batch.batch_id}: source {source} begins at "
        f"{shorten(begins or 'an unknown offset', 80)}, but transactional.id "
        f"{transactional_id!r} has committed it up to {shorten(known.json, 80)} (micro-batch {known.batch_id}). "
        'hint: start with a new checkpoint at committed_source_offsets(...); see the page "After a lost checkpoint"'
    )


def committed_elsewhere(session: Session, batch: Batch, *, transactional_id: str) -> str | None:
    """Describe the first committed offset that differs from the planned end of the batch; None if all agree.

    Asked about a batch that is about to be skipped because its number is already committed. Covers topics of the sink's
    own store. Partitions without a committed offset are ignored.
    """
    store_id = session.runtime.require_store().store_id
    for text in batch.ends.values():
        if (end := _of_store(text, store_id)) is None or not end.ends:
            continue
        group = end.group_id or transactional_id
        for tp, found in committed_offsets(session, group, sorted(end.ends)).items():
            if found is not None and found.offset != end.ends[tp]:
                return (
                    f"group {group!r} has committed {tp} up to offset {found.offset}, but the batch is "
                    f"planned up to {end.ends[tp]}"
                )
    return None


def committed_source_offsets(
    path: str, transactional_id: str, storage_options: Mapping[str, object] | None = None
) -> dict[str, SourceOffset]:
    """Return the offsets of a streaming query's sources at its last committed micro-batch, by the source's number in
    the query.

    Topics of the same store are not included: their offsets are committed for their consumer group. `path` is the
    store. `transactional_id` is the sink's (default: `spark-stream:<checkpointLocation>`). With these offsets a query
    continues after its checkpoint was lost: Kafka's source takes `json` as its `startingOffsets`.

    Raises NotAStoreError, GroupIdNotFoundError (nothing was committed), UnstableOffsetCommitError.
    """
    with closing(Runtime.open(path, storage_options=storage_options)) as runtime:
        runtime.require_store()
        session = producer_session(runtime, runtime.settings.producer_config({}), f"group {transactional_id!r}")
        return committed_opaque(session, transactional_id)


def committed_opaque(session: Session, transactional_id: str) -> dict[str, SourceOffset]:
    """Do the work of `committed_source_offsets` through a session. Raises GroupIdNotFoundError,
    UnstableOffsetCommitError."""
    # Imported here because most batches of a query do not need it.
    from txlog.engine.tables import Admin

    known = [
        TopicPartition(each.topic, each.partition)
        for each in Admin(session.runtime).describe_group(transactional_id).offsets
        if each.topic.startswith((SOURCE_TOPIC_PREFIX, NOT_READ_TOPIC_PREFIX))
    ]
    found = committed_offsets(session, transactional_id, known)
    return read_opaque_offsets({tp: value for tp, value in found.items() if value is not None})


def same_json(one: str, other: str) -> bool:
    """Whether two offsets are equal as JSON, or as text if one is not JSON."""
    try:
        return bool(json.loads(one) == json.loads(other))
    except ValueError:
        return one == other


def _of_store(text: str | None, store_id: str) -> StreamOffset | None:
    """Return the parsed offset if it belongs to a txlog source of this store; else None."""
    offset = _of_txlog(text)
    return offset if offset is not None and offset.store_id == store_id else None


def _own_start(text: str) -> str | None:
    """Return where a query's first batch over topics of another store begins. Its offset contains that."""
    offset = _of_txlog(text)
    return None if offset is None or offset.starts is None else format_offsets(offset.starts)


def _of_txlog(text: str | None) -> StreamOffset | None:
    """Return the parsed offset if it belongs to a txlog source; else None."""
    parsed = json_object(text)
    return StreamOffset.from_json(parsed) if parsed is not None and is_stream_offset(parsed) else None


def _goes_on(begins: str, committed: SourceOffset) -> bool:
    start, end = _by_partition(begins), committed.reached()
    if start is None or end is None:
        return same_json(begins, committed.json)
    return all(start[tp] == offset for tp, offset in end.items() if tp in start)


def _changes_partitions(batch: Batch, source: str) -> bool:
    before, ends = _by_partition(batch.previous_ends[source]), _by_partition(batch.ends[source])
    return before is not None and ends is not None and before.keys() != ends.keys()


def _by_partition(text: str | None) -> dict[tuple[str, str], int] | None:
    """Parse JSON as Kafka's source or txlog's own source writes it, to offsets by topic and partition; None for any
    other text."""
    if (offset := _of_txlog(text)) is not None:
        return {(tp.topic, str(tp.partition)): at for tp, at in offset.ends.items()}
    nested = offsets_by_topic(text)
    if nested is None:
        return None
    return {(topic, number): offset for topic, numbers in nested.items() for number, offset in numbers.items()}


def _entries(prefix: str, source: str, text: str, batch: Batch) -> dict[TopicPartition, OffsetValue]:
    topic = f"{prefix}{source}"
    if not is_topic_name(topic):
        raise InvalidRequestError(
            f"query {batch.query_id}: {source!r} cannot name a source here; expected letters, digits, '.', '_', '-'"
        )
    # The end of a JSON object is unambiguous, so pieces that a longer text left behind are never read.
    whole = json.dumps({"query": batch.query_id, "batch": batch.batch_id, "offset": text}, ensure_ascii=False)
    return {
        TopicPartition(topic, number): OffsetValue(
            offset=batch.batch_id + 1, metadata=whole[start : start + MAX_METADATA_LENGTH]
        )
        for number, start in enumerate(range(0, len(whole), MAX_METADATA_LENGTH))
    }


def _read_one(prefix: str, source: str, offsets: Mapping[TopicPartition, OffsetValue]) -> SourceOffset:
    topic = f"{prefix}{source}"
    first = offsets.get(TopicPartition(topic, 0))
    whole = ""
    for number in range(len(offsets)):
        piece = offsets.get(TopicPartition(topic, number))
        if piece is None or first is None or piece.offset != first.offset:
            break
        whole += piece.metadata
        try:
            found: dict[str, Any] = json.loads(whole)
            return SourceOffset(query_id=found["query"], batch_id=found["batch"], json=found["offset"])
        except (ValueError, KeyError, TypeError):
            continue
    raise CorruptRecordError(
        f"source {source}: its committed offset is not JSON of a streaming sink: {whole[:200]!r}. "
        "hint: check which other program commits for this group"
    )
