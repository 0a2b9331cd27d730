"""How is a topic created, altered or deleted?

Every change is a compare-and-set on the next version of the topic's metadata. Reading the slot settles a lost race or
an unknown outcome (PROTOCOL.md, "Topics", W39).

Deleting a topic, or creating its name again, appends `log_start` records to its partitions. The caller passes an
`AppendLogStart` for this. A repeated call of it for the same partition and version must change nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import msgspec

from txlog.config import TopicConfig, check_topic_config, restrict
from txlog.core import names
from txlog.core.effects import Gather, NewId, Now, Program
from txlog.core.evolution import last_field_id
from txlog.core.features import DELETION_RECORDS, PUBLICATION, PUBLISHED_LATEST
from txlog.core.names import TRANSACTION_STATE_TOPIC, TopicPartition
from txlog.core.records import SchemaField, TopicMetadata
from txlog.core.schema import (
    KAFKA_FIELDS,
    KEY_TYPES,
    assign_ids,
    check_fields,
    check_new_names,
    evolve,
    kafka_key,
    max_field_id,
    tombstone_change,
)
from txlog.errors import (
    CoordinatorContentionError,
    CorruptLogError,
    InvalidConfigurationError,
    InvalidPartitionsError,
    InvalidTopicError,
    MissingObjectError,
    OutcomeUnknownError,
    TopicExistsError,
    TxlogError,
    UnsupportedStoreError,
)
from txlog.protocol.append import append_deletion, append_log_start
from txlog.protocol.context import Context
from txlog.protocol.put import create_or_read, encode_readable
from txlog.protocol.requests import partitions_in_use
from txlog.protocol.topics import (
    decode_version,
    describe_topic,
    earlier_version,
    find_topic,
    newest_version,
    topic_names,
    unknown_topic,
)
from txlog.text import count_text, nearest

MAX_PARTITIONS = 100_000
_ALLOW_KEY_MOVEMENT = (
    "if readers do not need the order of a key, say --allow-key-movement (Python: allow_key_movement=True)"
)

T = TypeVar("T")
AppendLogStart: TypeAlias = Callable[[TopicPartition, int], Program[Any]]
"""(partition, `deleted` version) -> appends `log_start` = LEO with that version, unless the partition holds it."""


def create_topic(
    ctx: Context,
    topic: str,
    *,
    fields: Sequence[SchemaField] | None = None,
    partitions: int = 1,
    config: Mapping[str, object] | None = None,
    append_log_start: AppendLogStart,
    topic_id: str | None = None,
) -> Program[TopicMetadata]:
    """Create a topic; without `fields` it has Kafka's record shape. Ids in `fields` are ignored.

    With the same `topic_id` a later try of one call recognises the topic that an earlier try has made (W50).

    A deleted name can be created again. First the old partitions get the `log_start` records that may still be missing.
    Then comes a version with a new topic id and at least as many partitions; offsets go on from the old end.

    Raises TopicExistsError, InvalidTopicError, InvalidPartitionsError, InvalidConfigurationError, SchemaMismatchError.
    Raises MissingObjectError if that name has records and no metadata. Raises UnknownTopicOrPartitionError if the topic
    that an earlier try has made was deleted since. Raises CoordinatorContentionError, OutcomeUnknownError.
    """
    names.check_topic_name(topic)
    _check_partitions(topic, partitions)
    where = f"topic {topic!r}"
    wanted = assign_ids(KAFKA_FIELDS if fields is None else fields)
    check_fields(wanted, where)
    check_new_names(wanted, (), where)
    checked = check_config(topic, config or {}, wanted)
    topic_id = topic_id or (yield NewId())
    for _ in range(ctx.max_races):
        old = yield from find_topic(topic)
        if old is None:
            old = yield from _without_records(topic)
        number, schema = 0, wanted
        if old is not None:
            if old.topic_id == topic_id:
                if old.deleted:
                    raise (yield from unknown_topic(topic, old))
                return old
            if old.deleting:
                raise TopicExistsError(
                    f"{where} is being deleted (version {old.number} of its metadata); delete it again, which finishes "
                    "that, and create it then"
                )
            if not old.deleted:
                raise TopicExistsError(
                    f"{where} exists already, with {count_text(old.partitions, 'partition')}; alter "
                    "it, or choose another name"
                )
            if partitions < old.partitions:
                raise InvalidPartitionsError(
                    f"{where}: {count_text(partitions, 'partition')} asked for, but a deleted topic of this name had "
                    f"{old.partitions}, and partitions are never fewer; ask for at least {old.partitions}"
                )
            # The new topic must not show rows of the old one (W40).
            yield from finish_deletion(old, append_log_start)
            # Ids go on where the deleted topic's ended, so the new schema can never read a file of the old topic.
            number, schema = old.number + 1, assign_ids(wanted, last_field_id(old) + 1)
        metadata = TopicMetadata(
            number=number,
            topic=topic,
            topic_id=topic_id,
            partitions=partitions,
            config=checked,
            schema=schema,
            schema_id=number,
            created_at=(yield Now()),
            write_id=(yield NewId()),
        )
        _check_publication(ctx, metadata)
        if (yield from put_version(ctx, metadata)):
            return metadata
    raise contention(topic, ctx)


def alter_topic(
    ctx: Context,
    topic: str,
    *,
    config: Mapping[str, object | None] | None = None,
    partitions: int | None = None,
    add_columns: Sequence[SchemaField] = (),
    allow_key_movement: bool = False,
    topic_id: str | None = None,
) -> Program[TopicMetadata]:
    """Change a topic: settings (None removes one), more partitions, further nullable columns at the end.

    Return the metadata that holds the changes. If they are there already no version is made, so a call may be repeated.
    With `topic_id` only that topic is changed, never one that was created again under its name: all tries of one call
    pass the same (W50).

    Two changes move keys: more partitions of a topic with `key.columns`, and other `key.columns` of a topic with
    several partitions and records. They need `allow_key_movement`, and are refused for a compacted topic (W39).
    `cleanup.policy=compact` is refused if an earlier version has moved keys.

    Raises UnknownTopicOrPartitionError (also if the topic is deleted meanwhile), InvalidTopicError,
    InvalidPartitionsError (fewer, or keys would move), InvalidConfigurationError, SchemaMismatchError.
    """
    names.check_topic_name(topic)
    for _ in range(ctx.max_races):
        current = yield from describe_topic(topic)
        if current.deleting or (topic_id is not None and current.topic_id != topic_id):
            raise (yield from unknown_topic(topic, current))
        topic_id = current.topic_id
        changed = _altered(current, config or {}, partitions, add_columns)
        if changed == current:
            return current
        _check_publication(ctx, changed, current)
        yield from check_key_movement(current, changed, allow_key_movement)
        changed = msgspec.structs.replace(changed, created_at=(yield Now()), write_id=(yield NewId()))
        if (yield from put_version(ctx, changed)):
            return changed
    raise contention(topic, ctx)


def ending_logs(ctx: Context) -> AppendLogStart:
    """Return what appends the `log_start` record of a deletion to a partition."""
    return lambda tp, version: append_log_start(ctx, {}, tp, None, version)


def topic_to_delete(topic: str) -> Program[TopicMetadata]:
    """Return the topic that a call of `delete_topic` is about: its newest version, also a `deleted` one.

    Raises UnknownTopicOrPartitionError if it never existed, InvalidTopicError for a name that no user's topic can have.
    """
    names.check_topic_name(topic)
    found = yield from find_topic(topic)
    if found is None:
        raise (yield from unknown_topic(topic, None))
    return found


def delete_topic(
    ctx: Context,
    topic: str,
    *,
    append_log_start: AppendLogStart,
    target: TopicMetadata | None = None,
    write_id: str | None = None,
) -> Program[TopicMetadata]:
    """Delete a topic. Return its `deleted` version.

    This creates a `deleting` version, appends a record to each partition of `__transaction_state` that is in use (W46),
    creates a `deleted` version, and appends `log_start` = LEO in every partition. All tries of one call pass the same
    `target`, from `topic_to_delete`, and the same `write_id`. A later try finishes what an earlier one began, and does
    not touch a topic that was created again under the name (W50).

    For a topic that is already deleted, the call finishes what an interrupted call left. Then it raises
    UnknownTopicOrPartitionError, unless the deletion has the same `write_id`. Raises as `topic_to_delete`, and
    OutcomeUnknownError if ending the partitions failed.
    """
    current = target or (yield from topic_to_delete(topic))
    write_id = write_id or (yield NewId())
    for _ in range(ctx.max_races):
        if current.deleted:
            yield from _finish_decided(current, append_log_start)
            if current.write_id == write_id:
                return current
            raise (yield from unknown_topic(topic, current))
        ends = bool(current.deleting) or DELETION_RECORDS not in ctx.features
        if current.deleting:
            # The call that began the deletion recognises it by this, if another process finishes it.
            write_id = current.write_id
            yield from _decided(current, tell_writers(ctx))
        later = msgspec.structs.replace(
            current,
            number=current.number + 1,
            created_at=(yield Now()),
            write_id=write_id,
            deleting=msgspec.UNSET if ends else True,
            deleted=ends,
        )
        put = put_version(ctx, later)
        won = (yield from _decided(current, put)) if current.deleting else (yield from put)
        current = later if won else (yield from newest_version(current, of_topic=True))
    raise contention(topic, ctx)


def tell_writers(ctx: Context) -> Program[None]:
    """Append a record to each partition of `__transaction_state` that is in use, so that commits look again (W46).

    An id that begins its partition after this LIST looks at topics later still, and sees the `deleting` version.
    """
    partitions = yield from partitions_in_use(TRANSACTION_STATE_TOPIC)
    yield Gather(tuple(append_deletion(ctx, tp) for tp in partitions))


def _finish_decided(metadata: TopicMetadata, append_log_start: AppendLogStart) -> Program[None]:
    return _decided(metadata, finish_deletion(metadata, append_log_start))


def _decided(metadata: TopicMetadata, finishing: Program[T]) -> Program[T]:
    """Run what follows the decision to delete; raise OutcomeUnknownError if it fails (W44)."""
    try:
        return (yield from finishing)
    except TxlogError as error:
        if isinstance(error, CorruptLogError) and not metadata.deleted:
            raise  # another try would meet it, too, and the topic's rows can still be read
        raise OutcomeUnknownError(
            f"topic {metadata.topic!r} is {'deleted' if metadata.deleted else 'being deleted'} (version "
            f"{metadata.number} of its metadata), and finishing that failed ({error.problem}). "
            "hint: repeat the same call: it finishes the deletion"
        ) from error


def finish_deletion(metadata: TopicMetadata, append_log_start: AppendLogStart) -> Program[None]:
    """Ensure that every partition of a deleted topic holds the `log_start` record of its deletion (W40)."""
    if not metadata.deleted:
        raise ValueError(f"topic {metadata.topic!r}: version {metadata.number} is not a deletion")
    partitions = [TopicPartition(metadata.topic, number) for number in range(metadata.partitions)]
    yield Gather(tuple(append_log_start(tp, metadata.number) for tp in partitions))


def _without_records(topic: str) -> Program[TopicMetadata | None]:
    """Check that a topic without metadata has no records: a new topic would show them as its own. One LIST.

    Return the topic if another process has made it meanwhile. Raises MissingObjectError if there are records.
    """
    partitions = yield from partitions_in_use(topic)
    if not partitions:
        return None
    found = yield from find_topic(topic)
    if found is None:
        raise MissingObjectError(
            f"{names.topic_metadata_path(topic, 0)}: is missing, but {partitions[0].folder} holds records of a topic "
            "of that name. Its metadata was not removed by txlog, and a new topic would show the old rows. "
            f"hint: restore {topic}/topic.*.json from a copy, choose another name, or remove the whole folder "
            f"{topic}/ if its rows are not needed"
        )
    return found


def check_case(topic: str) -> Program[None]:
    """Raise InvalidTopicError if the name differs from another topic's only in case (PROTOCOL.md, W41). One LIST.

    Some file systems would use one folder for both.
    """
    others = yield from topic_names()
    twin = next((name for name in others if name != topic and name.casefold() == topic.casefold()), None)
    if topic not in others and twin is not None:
        raise InvalidTopicError(
            f"topic name {topic!r} differs from {twin!r} in case only; a topic of that name exists or existed, and "
            "some file systems use one folder for both names. "
            "hint: choose another name"
        )


def put_version(ctx: Context, metadata: TopicMetadata) -> Program[bool]:
    """Create a version, and return whether it is in the chain now (W39): False if another one has its number.

    Raises RecordTooLargeError for a version that no reader would take: nobody could use the topic any more.
    """
    path = names.topic_metadata_path(metadata.topic, metadata.number)
    data = encode_readable(path, metadata, instead="the topic stays as it is")

    def is_own(stored: bytes) -> bool:
        # Another version won, or this one won and the answer was lost. The stored one decides: versions stay.
        return stored == data or decode_version(stored, metadata.topic, metadata.number).write_id == metadata.write_id

    what = f"version {metadata.number} of topic {metadata.topic!r}"
    return (yield from create_or_read(ctx, path, data, is_own, what=what))


def _check_publication(ctx: Context, topic: TopicMetadata, before: TopicMetadata | None = None) -> None:
    """Raise UnsupportedStoreError if a change asks for a publication, and the store was made without that feature."""
    for name, default, feature in (("publish.formats", None, PUBLICATION), ("publish.rows", "all", PUBLISHED_LATEST)):
        wanted = topic.config.get(name)
        held = None if before is None else before.config.get(name)
        if wanted and wanted not in (held, default) and feature not in ctx.features:
            raise UnsupportedStoreError(
                f"topic {topic.topic!r}: {name}={wanted} needs the feature {feature!r}, and the store was made without "
                "it. hint: copy the topic to a new store"
            )


def _altered(
    current: TopicMetadata,
    config: Mapping[str, object | None],
    partitions: int | None,
    added: Sequence[SchemaField],
) -> TopicMetadata:
    """Return the version after `current`, or `current` itself if nothing changes."""
    where = f"topic {current.topic!r}"
    count = current.partitions if partitions is None else partitions
    _check_partitions(current.topic, count)
    if count < current.partitions:
        raise InvalidPartitionsError(
            f"{where} has {count_text(current.partitions, 'partition')}; {count} would be fewer, and partitions cannot "
            "be removed. hint: create a new topic and copy the rows"
        )
    new_names = {field.name for field in added}
    kept = [field for field in current.schema if field.name not in new_names]
    schema = evolve(current.schema, [*kept, *added], where, last_field_id(current))
    known = restrict(current.config, "topic")
    # A later txlog may have set what this version does not know. Such a setting stays as it is, unless the caller
    # removes it (PROTOCOL.md, R4).
    later = {name: value for name, value in current.config.items() if name not in known}
    wanted = {name: value for name, value in config.items() if value is not None or name not in later}
    checked = check_config(current.topic, {**known, **wanted}, schema)
    checked |= {name: value for name, value in later.items() if name not in config}
    if (count, checked, schema) == (current.partitions, current.config, current.schema):
        return current
    number = current.number + 1
    return msgspec.structs.replace(
        current,
        number=number,
        partitions=count,
        config=checked,
        schema=schema,
        schema_id=current.schema_id if schema == current.schema else number,
        last_field_id=msgspec.UNSET
        if current.last_field_id is msgspec.UNSET
        else max(current.last_field_id, max_field_id(schema)),
    )


def check_key_movement(current: TopicMetadata, changed: TopicMetadata, allowed: bool) -> Program[None]:
    """Raise if new rows of a key would be in another partition than older ones, unless `allowed` permits it (W39).

    Turning compaction on, or giving it another key, also raises if an earlier version has moved keys, or has changed
    which rows are tombstones. No request if keys do not move. Otherwise one LIST, and a GET for each earlier version.
    """
    compacts = is_compacted(changed)
    if changed.partitions > current.partitions and set_keys(current):
        moves = (
            f"topic {current.topic!r}: {changed.partitions} partitions instead of {current.partitions} would move keys "
            f"({', '.join(set_keys(current))}) to other partitions than their older rows"
        )
        if compacts or is_compacted(current):
            raise InvalidPartitionsError(
                f"{moves}, and compaction (cleanup.policy) would keep rows of a key in both. "
                "hint: create a new topic and copy the rows"
            )
        if not allowed:
            raise InvalidPartitionsError(f"{moves}; {_ALLOW_KEY_MOVEMENT}")
    elif _moves_keys(current, changed) and (yield from partitions_in_use(current.topic)):
        moves = (
            f"topic {current.topic!r}: the change ({_layout_text(current)}; then {_layout_text(changed)}) would move "
            "keys to other partitions than their older rows"
        )
        if compacts:
            raise InvalidConfigurationError(
                f"{moves}, and compaction would keep rows of a key in both. "
                "hint: create a new topic with these settings and copy the rows"
            )
        if key_ids(current) != key_ids(changed) and not allowed:
            raise InvalidConfigurationError(f"{moves}; {_ALLOW_KEY_MOVEMENT}")
    if compacts and not (is_compacted(current) and key_ids(current) == key_ids(changed)):
        yield from _check_history(current, key_ids(changed))


def _check_history(newest: TopicMetadata, key: tuple[int | str, ...]) -> Program[None]:
    """Raise InvalidConfigurationError if a version of this topic forbids compaction by the columns `key` (W39).

    Such a version has changed which rows are tombstones, or has moved keys of rows that may still exist.
    """
    compact = f"topic {newest.topic!r}: cleanup.policy=compact would"
    copy = "hint: create a new topic with cleanup.policy=compact and copy the rows"
    later = newest
    while later.number > 0 and (newest.partitions > 1 or later.last_field_id is not msgspec.UNSET):
        earlier = yield from earlier_version(later.topic, later.number - 1)
        if earlier.topic_id != newest.topic_id:
            return
        # Also without records: a writer that read the earlier version may still write some.
        column = tombstone_change(earlier.schema, later.schema, key)
        if column is not None:
            raise InvalidConfigurationError(
                f"{compact} take older rows for tombstones, or tombstones for rows: version {later.number} changed "
                f"the column {column!r}. {copy}"
            )
        if _moves_keys(earlier, later) and (yield from partitions_in_use(newest.topic)):
            raise InvalidConfigurationError(
                f"{compact} keep old rows of a key: version {later.number} moved keys to other partitions "
                f"({_layout_text(earlier)}; then {_layout_text(later)}). {copy}"
            )
        later = earlier


def _moves_keys(before: TopicMetadata, after: TopicMetadata) -> bool:
    """Return whether a key of `after` may have older rows in another partition than its new ones."""
    is_keyed = bool(key_columns(before) or key_columns(after))
    return (
        after.partitions > 1 and is_keyed and (key_ids(before), before.partitions) != (key_ids(after), after.partitions)
    )


def key_columns(metadata: TopicMetadata) -> tuple[str, ...]:
    """Return the columns by which rows are distributed."""
    return set_keys(metadata) or kafka_key(metadata.schema)


def key_ids(metadata: TopicMetadata) -> tuple[int | str, ...]:
    """Return the ids of the key's columns: a column that was renamed is still the same."""
    ids = {field.name: field.id for field in metadata.schema}
    return tuple(ids.get(name, name) for name in key_columns(metadata))


def set_keys(metadata: TopicMetadata) -> tuple[str, ...]:
    """Return what the topic's setting `key.columns` names."""
    # The text is not parsed: a later txlog may have written settings beside it that this one cannot parse.
    return tuple(filter(None, metadata.config.get("key.columns", "").split(",")))


def _layout_text(metadata: TopicMetadata) -> str:
    keys = ",".join(key_columns(metadata))
    key = f"key.columns={keys}" if keys else "no key.columns"
    return f"{key}, {count_text(metadata.partitions, 'partition')}"


def is_compacted(metadata: TopicMetadata) -> bool:
    """Return whether compaction keeps only the newest row of each key."""
    return "compact" in metadata.config.get("cleanup.policy", "").split(",")


def _check_partitions(topic: str, partitions: int) -> None:
    if isinstance(partitions, bool) or not isinstance(partitions, int) or not 1 <= partitions <= MAX_PARTITIONS:
        raise InvalidPartitionsError(
            f"topic {topic!r}: {partitions!r} is not a number of partitions; expected 1 to {MAX_PARTITIONS}"
        )


def check_config(topic: str, config: Mapping[str, object | None], schema: Sequence[SchemaField]) -> dict[str, str]:
    """Return `config` as it is stored; None as a value means not set."""
    checked = check_topic_config(config)
    parsed = TopicConfig.parse(checked)
    columns = {field.name: field.type for field in schema}
    for column in parsed.key_columns:
        if column not in columns:
            raise InvalidConfigurationError(
                f"topic {topic!r}: key.columns names {column!r}, which is not a column.{nearest(column, columns)} The "
                f"columns are {', '.join(columns)}"
            )
        if columns[column] not in KEY_TYPES:
            raise InvalidConfigurationError(
                f"topic {topic!r}: key.columns names {column!r}, a {columns[column]}, which cannot be a key; "
                f"use {', '.join(KEY_TYPES)}"
            )
    if parsed.publish_rows == "latest" and not (parsed.key_columns or kafka_key(schema)):
        raise InvalidConfigurationError(
            f"topic {topic!r}: publish.rows=latest publishes the newest row of each key, and the topic has no key. "
            "hint: name the columns of the key in key.columns"
        )
    if "compact" in parsed.cleanup_policy and not parsed.key_columns:
        raise InvalidConfigurationError(
            f"topic {topic!r}: cleanup.policy=compact keeps the latest row of each key, so it needs key.columns; name "
            "the columns of the key there"
        )
    return checked


def contention(topic: str, ctx: Context) -> CoordinatorContentionError:
    return CoordinatorContentionError(
        f"topic {topic!r}: {ctx.max_races} versions in a row were created by others first; try again"
    )
