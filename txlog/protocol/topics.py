"""Which topics does a store have, and what is the newest metadata of each?

A topic's metadata is a chain of versions, `topic.<n>.json`, and the highest counts. No version is ever removed
(PROTOCOL.md, "Topics", W39). So a version that was read stays true.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

import msgspec

from txlog.core import envelope, names
from txlog.core.effects import Gather, Get, List, Program
from txlog.core.evolution import WrittenSchema, contradictions, impossible, written_schema
from txlog.core.features import SCHEMA_EVOLUTION, check_features
from txlog.core.records import StagedPart, TopicMetadata
from txlog.core.schema import check_fields
from txlog.errors import CorruptRecordError, MissingObjectError, SchemaMismatchError, UnknownTopicOrPartitionError
from txlog.text import nearest

_MAX_SHOWN = 5
"""How many topics a message lists if no name is similar."""


def describe_topic(topic: str) -> Program[TopicMetadata]:
    """Return the newest version of a topic's metadata. Costs one LIST and one GET.

    Raises UnknownTopicOrPartitionError, naming the most similar topic, if it does not exist or was deleted. Raises
    InvalidTopicError if no topic can have that name. Raises CorruptRecordError or MissingObjectError naming the object.
    """
    names.check_topic_name(topic)
    metadata = yield from find_topic(topic)
    if metadata is None or metadata.deleted:
        raise (yield from unknown_topic(topic, metadata))
    return metadata


def find_topic(topic: str) -> Program[TopicMetadata | None]:
    """Return the newest version of a topic's metadata, also a `deleted` one; None if the topic never existed.

    One LIST and one GET. Raises CorruptRecordError or MissingObjectError naming the object.
    """
    # Partitions and staged files sort before `topic.`, so the LIST shows only versions.
    listed = yield List(f"{topic}/", start_after="topic.")
    numbers = [number for name in listed if (number := names.parse_topic_metadata_name(name)) is not None]
    if not numbers:
        return None
    number = max(numbers)
    found = yield from read_version(topic, number)
    if found is None:
        raise MissingObjectError(
            f"{names.topic_metadata_path(topic, number)}: was listed and is gone, but versions of "
            "topics are never removed. "
            "hint: check the store with `txlog fsck`"
        )
    return found


def refresh_topic(metadata: TopicMetadata) -> Program[TopicMetadata]:
    """Return the newest version, found from an older one by name. Costs one GET more than there are new versions.

    Raises UnknownTopicOrPartitionError if the topic was deleted since, also if its name was created again. The new
    topic has other rows, another schema and other offsets.
    """
    newest = yield from newest_version(metadata)
    if newest.deleted or newest.topic_id != metadata.topic_id:
        raise (yield from unknown_topic(metadata.topic, newest))
    return newest


def refresh_topic_of_rows(
    topic: str, schema_id: int, known: TopicMetadata | None
) -> Program[TopicMetadata | UnknownTopicOrPartitionError]:
    """Return the newest version of the topic that rows of `schema_id` were made for, or why they may not be committed.

    They may not if the topic was deleted since, also if a topic of that name was created again, and not while it is
    being deleted (PROTOCOL.md, W46).

    `known` is any version of the name. Newer ones are found from it by name, with one GET if there is no newer one.
    Without `known` this costs one LIST and one GET. It costs one GET more if the columns have changed since the rows
    were made.
    """
    newest = (yield from find_topic(topic)) if known is None else (yield from newest_version(known))
    if newest is None or newest.deleted or newest.deleting:
        return (yield from unknown_topic(topic, newest))
    if newest.schema_id != schema_id:
        first = yield from read_version(topic, schema_id)
        if first is None or first.topic_id != newest.topic_id:
            return (yield from unknown_topic(topic, newest))
    return newest


def schemas_of(parts: Iterable[StagedPart]) -> dict[str, int]:
    """Return the oldest `schema_id` of each topic that these parts have rows for."""
    # The dict keeps the last one.
    return dict(sorted(((part.topic, part.schema_id) for part in parts if not part.entries), reverse=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLooks:
    """What an instance of a transactional.id has seen of the topics that it has staged rows for (W46)."""

    known: Mapping[str, TopicMetadata] = field(default_factory=dict)
    """A version of each topic that this process has read. Newer ones are found from it by name."""
    seen: Mapping[tuple[str, int], int] = field(default_factory=dict)
    """By topic and `schema_id` of its rows: how many deletions the id's partition of `__transaction_state` showed
    before a look that found the topic."""

    def hold(self, schema_ids: Mapping[str, int], deletions: int) -> bool:
        """Return whether no topic of these rows can have been deleted, if the partition shows that many deletions."""
        return all(self.seen.get(rows) == deletions for rows in schema_ids.items())


def look_at_topics(
    looks: TopicLooks, schema_ids: Mapping[str, int], deletions: int
) -> Program[tuple[TopicLooks, UnknownTopicOrPartitionError | None]]:
    """Look whether rows of these schemas (by topic) may be committed; also return why they may not (W46).

    `deletions`: how many the id's partition of `__transaction_state` shows, read before this call.
    """
    due = [(topic, number) for topic, number in schema_ids.items() if not looks.hold({topic: number}, deletions)]
    found = yield Gather(tuple(refresh_topic_of_rows(topic, number, looks.known.get(topic)) for topic, number in due))
    known, seen, refusal = dict(looks.known), dict(looks.seen), None
    for rows, newest in zip(due, found, strict=True):
        if isinstance(newest, UnknownTopicOrPartitionError):
            refusal = refusal or newest
        else:
            known[rows[0]], seen[rows] = newest, deletions
    return replace(looks, known=known, seen=seen), refusal


def newest_version(metadata: TopicMetadata, *, of_topic: bool = False) -> Program[TopicMetadata]:
    """Return the newest version of the name, found from an older one.

    With `of_topic` return the last version of this same topic, even if its name was created again after a deletion.
    """
    newest = metadata
    while not (of_topic and newest.deleted) and (later := (yield from _next_version(newest))) is not None:
        newest = later
    return newest


def versions_after(metadata: TopicMetadata) -> Program[list[TopicMetadata]]:
    """Return all later versions of the name, in order."""
    found: list[TopicMetadata] = []
    while (later := (yield from _next_version(found[-1] if found else metadata))) is not None:
        found.append(later)
    return found


def schema_versions(topic: str) -> Program[tuple[TopicMetadata, ...]]:
    """Return the versions that introduced a schema of the present topic, oldest first.

    Costs one GET for each version. Raises as `describe_topic` does.
    """
    newest = yield from describe_topic(topic)
    found = yield Gather(tuple(earlier_version(topic, number) for number in range(newest.number)))
    own = [version for version in (*found, newest) if version.topic_id == newest.topic_id]
    return tuple(version for version in own if version.schema_id == version.number)


def _next_version(metadata: TopicMetadata) -> Program[TopicMetadata | None]:
    later = yield from read_version(metadata.topic, metadata.number + 1)
    for expected, found in () if later is None else contradictions(metadata, later):
        path = names.topic_metadata_path(metadata.topic, metadata.number + 1)
        raise CorruptRecordError(
            f"{path}: expected {expected}, found {found}; one of the two versions was replaced. "
            "hint: look at them with `txlog fsck`"
        )
    return later


def read_version(topic: str, number: int) -> Program[TopicMetadata | None]:
    """Return this version of the name's metadata; None if it does not exist."""
    data = yield Get(names.topic_metadata_path(topic, number))
    return None if data is None else decode_version(data, topic, number)


def earlier_version(topic: str, number: int) -> Program[TopicMetadata]:
    """Return a version that must exist, because a later one does. Raises MissingObjectError if it is gone."""
    found = yield from read_version(topic, number)
    if found is None:
        raise MissingObjectError(
            f"{names.topic_metadata_path(topic, number)} is gone; versions of topics are never removed, "
            "look at it with `txlog fsck`"
        )
    return found


def written_schemas(topic: str, schema_ids: Collection[int]) -> Program[tuple[tuple[int, WrittenSchema], ...]]:
    """Return the columns of versions that rows name; empty if from one to the next columns were only added.

    Costs one GET for each version, and nothing for a single one. Versions that do not exist any more give an empty
    result: rows whose columns then do not fit together are damage.
    """
    if len(schema_ids) < 2:
        return ()
    found = yield Gather(tuple(read_version(topic, number) for number in sorted(schema_ids)))
    versions: list[TopicMetadata] = [version for version in found if version is not None]
    if len(versions) < len(schema_ids) or versions[-1].last_field_id is msgspec.UNSET:
        return ()
    return tuple((version.number, written_schema(version)) for version in versions)


def is_recreated(metadata: TopicMetadata) -> Program[bool]:
    """Return whether an earlier topic had this name, so that offsets go on from its end. Costs at most one GET."""
    if metadata.number == 0:
        return False
    first = yield from earlier_version(metadata.topic, 0)
    return first.topic_id != metadata.topic_id


def list_topics(*, deleted: bool = False) -> Program[tuple[TopicMetadata, ...]]:
    """Return the newest metadata of all topics by name, with `deleted` also of deleted ones.

    Costs one LIST, and two requests per topic.
    """
    topics = yield from topic_names()
    found = yield Gather(tuple(find_topic(topic) for topic in topics))
    return tuple(metadata for metadata in found if metadata is not None and (deleted or not metadata.deleted))


def decode_version(data: bytes, topic: str, number: int) -> TopicMetadata:
    """Return the version that an object holds. Raises CorruptRecordError if it is not this version of this name.

    Raises UnsupportedStoreError if its columns were changed in a way that this txlog does not read.
    """
    path = names.topic_metadata_path(topic, number)
    metadata, _ = envelope.decode(data, TopicMetadata, path)
    if (metadata.topic, metadata.number) != (topic, number):
        raise CorruptRecordError(f"{path}: holds version {metadata.number} of topic {metadata.topic!r}")
    if metadata.schema_id > number:
        raise CorruptRecordError(f"{path}: its schema is of version {metadata.schema_id}, later than its own")
    if metadata.last_field_id is not msgspec.UNSET:
        check_features((SCHEMA_EVOLUTION,), path)
    try:
        check_fields(metadata.schema)
    except SchemaMismatchError as error:
        raise CorruptRecordError(f"{path}: {error}") from None
    for expected, found in impossible(metadata):
        raise CorruptRecordError(f"{path}: expected {expected}, found {found}")
    return metadata


def topic_names() -> Program[list[str]]:
    """Return the folders of users' topics, deleted ones included. Costs one LIST."""
    return topics_in((yield List("")))


def topics_in(root: Iterable[str]) -> list[str]:
    """Return users' topics among the names in the root of a store."""
    folders = [name[:-1] for name in root if name.endswith("/")]
    return [name for name in folders if names.is_topic_name(name) and not name.startswith("__")]


def unknown_topic(topic: str, found: TopicMetadata | None) -> Program[UnknownTopicOrPartitionError]:
    """Return the error for a topic of which `found` is the newest version; None if there is no version."""
    if found is not None and found.deleted:
        return UnknownTopicOrPartitionError(f"topic {topic!r} was deleted (version {found.number} of its metadata)")
    if found is not None and found.deleting:
        return UnknownTopicOrPartitionError(
            f"topic {topic!r} is being deleted (version {found.number} of its metadata)"
        )
    if found is not None:
        return UnknownTopicOrPartitionError(
            f"topic {topic!r} was deleted and created again (version {found.number}, topic_id {found.topic_id[:8]}…): "
            "this call began with the deleted topic"
        )
    others = yield from topic_names()
    # The name itself may be among them, if its first version is just being made.
    others = sorted(name for name in others if name != topic)
    more = f" and {len(others) - _MAX_SHOWN} more" if len(others) > _MAX_SHOWN else ""
    shown = nearest(topic, others) or (f" The topics are {', '.join(others[:_MAX_SHOWN])}{more}" if others else "")
    return UnknownTopicOrPartitionError(f"topic {topic!r:.260} does not exist.{shown if len(shown) < 200 else ''}")
