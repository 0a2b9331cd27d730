"""Is the chain of a topic's versions as W39, W40 and W50 require? A judge that shares no code with the shipped one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lab.explore.client import Note
from lab.explore.oracle import Truth
from txlog.core import envelope
from txlog.core.names import TopicPartition
from txlog.core.records import TopicMetadata


def versions_in(files: Mapping[str, bytes]) -> dict[str, list[TopicMetadata]]:
    """Return the versions of each topic, in order."""
    found: dict[str, list[TopicMetadata]] = {}
    for path in sorted(files):
        topic, _, name = path.partition("/")
        if name.startswith("topic.") and name.endswith(".json"):
            found.setdefault(topic, []).append(envelope.decode(files[path], TopicMetadata, path)[0])
    return found


def wrong_versions(files: Mapping[str, bytes], truths: Mapping[TopicPartition, Truth]) -> str | None:
    """Return what is wrong with the versions of the topics, whose objects are `files`."""
    for topic, versions in versions_in(files).items():
        if (wrong := _wrong_chain(versions) or _wrong_records(topic, versions, truths)) is not None:
            return f"1 chain: topic {topic}: {wrong}"
    return None


def wrong_change(files: Mapping[str, bytes], note: Note) -> str | None:
    """Return the fault of an answer to a change: the version that it made must be there once."""
    made = [each for versions in versions_in(files).values() for each in versions if each.write_id == note.text]
    return (
        None
        if len(made) == 1
        else f"2 acknowledged: a change of columns was acknowledged, and is there {len(made)} times"
    )


def decided_too_late(files: Mapping[str, bytes], before: Truth, after: Truth) -> str | None:
    """Return the transaction that a step decided with rows of a topic which was deleted in `files`, before it (W46).

    It judges nothing where a reply may be lost: a commit of unknown outcome is repeated without a look.
    """
    versions = versions_in(files)
    for _, key, value in after.table[len(before.table) :]:
        for part in value.staged if value is not None and value.state == "PREPARE_COMMIT" else ():
            if any(each.deleted and each.number > part.schema_id for each in versions.get(part.topic, [])):
                return f"W46: {key} decided to commit rows of {part.topic} after it was deleted"
    return None


def _wrong_chain(versions: Sequence[TopicMetadata]) -> str | None:
    ever: set[int] = set()
    before: TopicMetadata | None = None
    for number, version in enumerate(versions):
        ids = [field.id for field in version.schema]
        if version.number != number:
            return f"version {version.number} follows {number - 1}"
        if len({field.name for field in version.schema}) < len(ids) or len(set(ids)) < len(ids):
            return f"version {number} has a name or an id twice"
        held = set() if before is None or before.deleted else {field.id for field in before.schema}
        again = [each for each in ids if each not in held and each <= max(ever, default=0)]
        if again:
            return f"version {number} has the ids {again} again"
        if before is not None:
            if before.deleted == (version.topic_id == before.topic_id):
                return f"version {number} has the topic id {version.topic_id} after {before.topic_id}"
            if version.partitions < before.partitions:
                return f"version {number} has fewer partitions"
            same = version.schema == before.schema and not before.deleted
            if version.schema_id != (before.schema_id if same else number):
                return f"version {number} names the columns of version {version.schema_id}"
        ever.update(ids)
        before = version
    return None


def _wrong_records(topic: str, versions: Sequence[TopicMetadata], truths: Mapping[TopicPartition, Truth]) -> str | None:
    ends = [each.number for each in versions[:-1] if each.deleted]
    columns = {each.schema_id for each in versions}
    for tp, truth in truths.items():
        if tp.topic != topic:
            continue
        if ends and truth.deleted_version < ends[-1]:
            return f"it was created again, and {tp} does not hold the deletion of version {ends[-1]}"
        unknown = [
            each.record.schema_id
            for each in truth.stored
            if each.record.records and each.record.schema_id not in columns
        ]
        if unknown:
            return f"{tp} has rows of the columns {unknown}, which no version has"
    return None
