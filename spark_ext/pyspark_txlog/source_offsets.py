"""Which offsets of its sources does a micro-batch commit, and under which condition?

Spark has written where the batch ends to the checkpoint before it runs. The sink puts that into the transaction of the
batch's rows (PROTOCOL.md, "Consumer offsets"), so that both are there or neither:

    a txlog source of the sink's own store    offsets of its group (`group.id`, else the sink's transactional.id), under the
                                              condition that the group stands where the batch begins
    any other source                          its offset's JSON, as it is, in entries of the sink's transactional.id that
                                              no consumer reads: topic `__source.<number>`. Partitions that it names no
                                              more keep their offsets in topic `__source-not-read.<number>`

The condition is what a lost checkpoint, a second query or a forgotten transactional.id runs into: no range of a topic is
taken twice, whatever happened to Spark's own notes. Of another source nobody but the id itself can commit; a query that is
the first of its id, or to which a source is new, must begin it where the id has left it, as far as the two can be compared.
Deciding is pure; `committed_source_offsets` reads them back.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark_txlog.stream_offsets import StreamOffset, is_stream_offset
from txlog.client.groups import GroupOffsets
from txlog.client.offsets import committed_offsets, format_offsets
from txlog.client.runtime import Runtime
from txlog.client.session import Session
from txlog.client.staged import producer_session
from txlog.core.groups import OffsetsCondition
from txlog.core.names import TopicPartition, is_topic_name
from txlog.core.records import OffsetValue
from txlog.errors import CommitFailedError, CorruptRecordError, GroupIdNotFoundError, InvalidRequestError
from txlog.protocol.groups import MAX_METADATA_LENGTH

SOURCE_TOPIC_PREFIX = "__source."
"""No topic of a user's begins with two underscores."""
NOT_READ_TOPIC_PREFIX = "__source-not-read."
"""Where partitions of a source ended that earlier micro-batches read and the last one did not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A micro-batch, as the checkpoint has it."""

    query_id: str
    batch_id: int
    ends: Mapping[str, str]
    """Where it ends, by source, as the source's JSON."""
    previous_ends: Mapping[str, str]
    """Where the one before it ended: empty for batch 0."""
    noted_start: Callable[[str], str | None] = lambda _: None
    """What a source noted of where it begins, before the query's first batch."""


@dataclass(slots=True, kw_only=True)
class GroupRange:
    """What a batch takes, for one group."""

    group: str
    begins: dict[TopicPartition, int | None] = field(default_factory=dict)
    """None: a partition that is new to the query."""
    ends: dict[TopicPartition, int] = field(default_factory=dict)
    firsts: set[TopicPartition] = field(default_factory=set)
    """Partitions of the query's first batch: their group may have no offset yet."""
    earlier_group: str | None = None
    """The group of the micro-batch before, if its source had another `group.id` then, or none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOffset:
    """Where a source stands that is none of txlog's, as the last committed micro-batch left it."""

    query_id: str
    batch_id: int
    json: str
    """The offset, as the source writes it: Kafka's is what its option `startingOffsets` takes."""
    not_read: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Where partitions ended, by topic and partition, that earlier micro-batches read and this one does not name."""

    def reached(self) -> dict[tuple[str, str], int] | None:
        """How far the id has taken each partition, read now or not; None for a source without partitions."""
        own = _by_partition(self.json)
        return None if own is None else {**self.not_read, **own}


def ranges_of(batch: Batch, *, store_id: str, transactional_id: str) -> tuple[GroupRange, ...]:
    """What the batch takes from topics of the sink's own store, by group. Partitions that it takes nothing of are left out,
    but for the first batch: it says where the query stands in all of them.

    Raises InvalidRequestError if two sources would commit one partition for one group.
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
                    f"query {batch.query_id}: two of its sources read {tp}, and both would commit it for group {group!r}. To use one "
                    "stream twice, load it twice, each time with a 'group.id' of its own, and give the query a new checkpoint"
                )
            taken.begins[tp], taken.ends[tp] = begins.get(tp), offset
            if first:
                taken.firsts.add(tp)
    return tuple(found[group] for group in sorted(found) if found[group].ends)


def opaque_offsets(batch: Batch, *, store_id: str) -> dict[TopicPartition, OffsetValue]:
    """The offsets of all other sources as entries: their JSON in pieces that metadata can hold, numbered as partitions."""
    found: dict[TopicPartition, OffsetValue] = {}
    for source, text in batch.ends.items():
        if _of_store(text, store_id) is None:
            found |= _entries(SOURCE_TOPIC_PREFIX, source, text, batch)
    return found


def not_read_offsets(batch: Batch, source: str, known: SourceOffset | None) -> dict[TopicPartition, OffsetValue]:
    """Entries for the partitions that `known` or the micro-batch before have read, and this one does not name.

    A run that asks for fewer topics must not forget the others: a later one would read them from their beginning.
    """
    ends = _by_partition(batch.ends[source])
    before = {**((known.reached() if known else None) or {}), **(_by_partition(batch.previous_ends.get(source)) or {})}
    left = {tp: offset for tp, offset in before.items() if tp not in (ends or before)}
    if not left:
        return {}
    return _entries(NOT_READ_TOPIC_PREFIX, source, json.dumps(by_topic(left)), batch)


def read_opaque_offsets(offsets: Mapping[TopicPartition, OffsetValue]) -> dict[str, SourceOffset]:
    """What `opaque_offsets` and `not_read_offsets` wrote, by source; other offsets of the group are passed over.

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
    """What the transaction sends, each group's under its condition. `committed` has the groups of first batches as they are.

    Raises CommitFailedError if a group already stands elsewhere than where the query begins.
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
                    raise _elsewhere(batch, taken.group, tp, begin, stands.offset)
        values = {tp: OffsetValue(offset=end) for tp, end in taken.ends.items()}
        offsets.setdefault(taken.group, {}).update(values)
    # An empty condition makes offsets eager, so that a fetch never answers an older value meanwhile.
    return tuple(
        GroupOffsets(group=group, offsets=offsets[group], condition=OffsetsCondition(expected=expected.get(group, {})))
        for group in sorted(offsets)
    )


def offsets_to_send(
    session: Session, batch: Batch, *, store_id: str, transactional_id: str, is_first_commit: bool
) -> tuple[GroupOffsets, ...]:
    """The offsets that the batch's transaction carries. `is_first_commit`: the id has committed no micro-batch yet, so its
    groups may have no offset yet either.

    Raises CommitFailedError: the sources' rows were taken already; InvalidRequestError.
    """
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
    # A look at what is committed costs requests: only where a source begins, or its partitions are others than before.
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
    """Raises InvalidRequestError if the batch commits for another group than the one before, which stands elsewhere.

    The condition would fail too, but its error speaks of another job.
    """
    if taken.earlier_group is None:
        return
    for tp, value in committed_offsets(session, taken.group, sorted(taken.ends)).items():
        stands = value.offset if value is not None else None
        if stands != taken.begins[tp]:
            raise InvalidRequestError(
                f"query {batch.query_id}, micro-batch {batch.batch_id}: 'group.id' was changed. The query committed for group {taken.earlier_group!r} so far, "
                f"and now for {taken.group!r}, which has {stands} for {tp}; expected {taken.begins[tp]}. Set that group to where the micro-batch begins (`txlog "
                "consumer-groups reset-offsets`), or start with a new checkpoint"
            )


def check_start(batch: Batch, source: str, known: SourceOffset, *, transactional_id: str) -> None:
    """Raises CommitFailedError unless the batch begins the source, none of txlog's own store, where `known` ended.

    Of partitions, Kafka's or another store's, those count that both name: others are new, or no longer read. A partition that
    returns to a running query is refused, because its source reads it from its beginning. Where a source begins that notes
    no start is not known, so a query's first batch over it is refused.
    """
    begins = batch.previous_ends.get(source)
    if begins is None:
        begins = _own_start(batch.ends[source]) or batch.noted_start(source)
    elif returned := sorted(known.not_read.keys() & (_by_partition(batch.ends[source]) or {})):
        topic, number = returned[0]
        raise CommitFailedError(
            f"query {batch.query_id}, micro-batch {batch.batch_id}: it reads {topic}-{number} of source {source} again, from its beginning; transactional.id "
            f"{transactional_id!r} has committed it up to {known.not_read[returned[0]]}. Start with a new checkpoint at committed_source_offsets(...)"
        )
    if begins is not None and _goes_on(begins, known):
        return
    raise CommitFailedError(
        f"query {batch.query_id}, micro-batch {batch.batch_id}: it begins source {source} at {begins or 'a place that the source has not noted'}, and "
        f"transactional.id {transactional_id!r} has committed it up to {known.json} (micro-batch {known.batch_id} of query {known.query_id}): what lies "
        f"between would be there twice, or never. Start with a new checkpoint at what was committed, as pyspark_txlog.committed_source_offsets(...) gives "
        f"it (Kafka's source takes it as startingOffsets). To begin elsewhere on purpose, or with a source that cannot begin there (one of files must leave "
        f"out the files that are in the log): `txlog consumer-groups delete --group {transactional_id}` forgets it"
    )


def committed_elsewhere(session: Session, batch: Batch, *, store_id: str, transactional_id: str) -> str | None:
    """What was committed of topics of the sink's own store, if it is not what the batch plans, in words: asked of a batch that
    is about to be skipped as one that was committed. Groups that know nothing of a partition are passed over."""
    for text in batch.ends.values():
        if (end := _of_store(text, store_id)) is None or not end.ends:
            continue
        group = end.group_id or transactional_id
        for tp, found in committed_offsets(session, group, sorted(end.ends)).items():
            if found is not None and found.offset != end.ends[tp]:
                return f"group {group!r} has committed {tp} up to offset {found.offset}, and it is planned up to {end.ends[tp]} now"
    return None


def committed_source_offsets(
    path: str, transactional_id: str, storage_options: Mapping[str, object] | None = None
) -> dict[str, SourceOffset]:
    """Where the sources of a streaming query stood at its last committed micro-batch, by their number in the query.

    Of sources that are not topics of the same store: those are committed as offsets of their consumer group. `path` is the
    store, `transactional_id` the sink's (its default is `spark-stream:<checkpointLocation>`). With them a query goes on
    after its checkpoint was lost: Kafka's source takes `json` as its `startingOffsets`.

    Raises NotAStoreError, GroupIdNotFoundError (nothing was committed), UnstableOffsetCommitError.
    """
    with closing(Runtime.open(path, storage_options=storage_options)) as runtime:
        runtime.require_store()
        session = producer_session(runtime, runtime.settings.producer_config({}), f"group {transactional_id!r}")
        return committed_opaque(session, transactional_id)


def committed_opaque(session: Session, transactional_id: str) -> dict[str, SourceOffset]:
    """`committed_source_offsets` through a session. Raises GroupIdNotFoundError, UnstableOffsetCommitError."""
    # Here and not at the top: a batch in the midst of a query needs nothing of it.
    from txlog.client.admin import Admin

    known = [
        TopicPartition(each.topic, each.partition)
        for each in Admin(session.runtime).describe_group(transactional_id).offsets
        if each.topic.startswith((SOURCE_TOPIC_PREFIX, NOT_READ_TOPIC_PREFIX))
    ]
    found = committed_offsets(session, transactional_id, known)
    return read_opaque_offsets({tp: value for tp, value in found.items() if value is not None})


def same_json(one: str, other: str) -> bool:
    """Whether two offsets say the same; texts that are no JSON, where they are equal."""
    try:
        return bool(json.loads(one) == json.loads(other))
    except ValueError:
        return one == other


def _of_store(text: str | None, store_id: str) -> StreamOffset | None:
    """The offset, if it is one of a txlog source of this very store."""
    offset = None if text is None else _of_txlog(text)
    return offset if offset is not None and offset.store_id == store_id else None


def _own_start(text: str) -> str | None:
    """Where a query's first batch over topics of another store begins: its offset says so itself."""
    offset = _of_txlog(text)
    return None if offset is None or offset.starts is None else format_offsets(offset.starts)


def _of_txlog(text: str) -> StreamOffset | None:
    """The offset, if it is one of a txlog source."""
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(parsed, Mapping) or not is_stream_offset(parsed):
        return None
    return StreamOffset.from_json(parsed)


def _goes_on(begins: str, committed: SourceOffset) -> bool:
    start, end = _by_partition(begins), committed.reached()
    if start is None or end is None:
        return same_json(begins, committed.json)
    return all(start[tp] == offset for tp, offset in end.items() if tp in start)


def _changes_partitions(batch: Batch, source: str) -> bool:
    before, ends = _by_partition(batch.previous_ends[source]), _by_partition(batch.ends[source])
    return before is not None and ends is not None and before.keys() != ends.keys()


def by_topic(offsets: Mapping[tuple[str, str], int]) -> dict[str, dict[str, int]]:
    nested: dict[str, dict[str, int]] = {}
    for (topic, number), offset in offsets.items():
        nested.setdefault(topic, {})[number] = offset
    return nested


def _by_partition(text: str | None) -> dict[tuple[str, str], int] | None:
    """Offsets by topic and partition, of JSON as Kafka's source or txlog's own writes it; None for any other."""
    if text is None:
        return None
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if isinstance(parsed, Mapping) and is_stream_offset(parsed):
        return {(tp.topic, str(tp.partition)): offset for tp, offset in StreamOffset.from_json(parsed).ends.items()}
    if not isinstance(parsed, Mapping) or not all(isinstance(numbers, Mapping) for numbers in parsed.values()):
        return None
    found = {(topic, number): offset for topic, numbers in parsed.items() for number, offset in numbers.items()}
    return found if all(isinstance(offset, int) for offset in found.values()) else None


def _entries(prefix: str, source: str, text: str, batch: Batch) -> dict[TopicPartition, OffsetValue]:
    topic = f"{prefix}{source}"
    if not is_topic_name(topic):
        raise InvalidRequestError(
            f"query {batch.query_id}: {source!r} cannot name a source here; expected letters, digits, '.', '_', '-'"
        )
    # An object tells by itself where it ends: pieces that a longer text left behind are never read.
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
        f"source {source}: its committed offset is no JSON of a streaming sink: {whole[:200]!r}; did something else commit for this group?"
    )


def _elsewhere(batch: Batch, group: str, tp: TopicPartition, begin: int | None, found: int) -> CommitFailedError:
    return CommitFailedError(
        f"query {batch.query_id}, micro-batch {batch.batch_id}: it begins {tp} at offset {begin}, but group {group!r} has committed {found}: rows before "
        f"that were taken already, by an earlier run whose checkpoint was lost or by another query. With a new checkpoint and startingOffsets=committed, "
        f"group.id={group}, it goes on from there. To read them again on purpose: `txlog consumer-groups reset-offsets`, or another group.id"
    )
