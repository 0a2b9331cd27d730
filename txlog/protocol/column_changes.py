"""How are columns of a topic renamed, dropped, moved, widened, or added with a default?

As every change of a topic, this is a compare-and-set on the next version of its metadata (PROTOCOL.md,
"Changed columns", W39). `txlog.core.evolution` says what is allowed for any schema. Here are the rules for columns
that the topic's settings need: those of the key, and those that tell a tombstone.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from txlog.core.effects import Now, Program
from txlog.core.evolution import Change, apply_changes, last_field_id
from txlog.core.features import SCHEMA_EVOLUTION, check_features
from txlog.core.records import SchemaField, TopicMetadata
from txlog.core.schema import kafka_key, tombstone_change
from txlog.errors import InvalidConfigurationError, SchemaMismatchError
from txlog.protocol.context import Context
from txlog.protocol.topic_changes import (
    check_config,
    check_key_movement,
    contention,
    is_compacted,
    key_ids,
    put_version,
    set_keys,
)
from txlog.protocol.topics import unknown_topic, versions_after


def change_columns(
    ctx: Context, base: TopicMetadata, changes: Sequence[Change], *, write_id: str, allow_key_movement: bool = False
) -> Program[TopicMetadata]:
    """Make `changes` of the columns of `base`, one after the other. Return the topic's newest version.

    All tries of one call pass the same `base`, the newest version when the call began, and the same `write_id`: a try
    recognises the version that an earlier one has made. Columns of the key can be renamed; `key.columns` follows. A
    change that gives a topic Kafka's columns moves keys, because rows are then distributed by `key`. It needs
    `allow_key_movement` if there are several partitions and records (W39).

    Raises SchemaMismatchError for a change that is not allowed, or if the columns were changed by another call since
    `base`. Raises UnknownTopicOrPartitionError if the topic was deleted, UnsupportedStoreError,
    InvalidConfigurationError.
    """
    check_features((SCHEMA_EVOLUTION,), f"topic {base.topic!r}")
    for _ in range(ctx.max_races):
        later = yield from versions_after(base)
        newest = later[-1] if later else base
        if newest.deleted or newest.deleting or newest.topic_id != base.topic_id:
            raise (yield from unknown_topic(base.topic, newest))
        if any(version.write_id == write_id for version in later):
            return newest
        if newest.schema_id != base.schema_id:
            raise SchemaMismatchError(
                f"topic {base.topic!r}: its columns were changed by another call (version {newest.schema_id}). "
                "hint: look at them, and repeat what is still wanted"
            )
        changed = with_changes(newest, changes)
        if changed.schema == newest.schema:
            return newest
        yield from check_key_movement(newest, changed, allow_key_movement)
        changed = msgspec.structs.replace(changed, created_at=(yield Now()), write_id=write_id)
        if (yield from put_version(ctx, changed)):
            return changed
    raise contention(base.topic, ctx)


def with_changes(current: TopicMetadata, changes: Sequence[Change]) -> TopicMetadata:
    """Return the version after `current`.

    Raises SchemaMismatchError or InvalidConfigurationError if it is not allowed.
    """
    where = f"topic {current.topic!r}"
    schema, last_id = apply_changes(current.schema, last_field_id(current), changes, where)
    config = current.config
    if set_keys(current):
        config = {**config, "key.columns": ",".join(_names_of_key(current, schema, where))}
        check_config(current.topic, {"key.columns": config["key.columns"]}, schema)
    elif kafka_key(current.schema) and _key_of_kafka(current.schema) != _key_of_kafka(schema):
        raise SchemaMismatchError(
            f"{where}: its rows are distributed by the column 'key' of Kafka's columns, and "
            "the change would end that. "
            "hint: set key.columns first"
        )
    number = current.number + 1
    changed = msgspec.structs.replace(
        current, number=number, schema=schema, schema_id=number, last_field_id=last_id, config=config
    )
    name = tombstone_change(current.schema, schema, key_ids(current)) if is_compacted(current) else None
    if name is not None:
        raise SchemaMismatchError(
            f"{where}: it is compacted, and this change of column {name!r} would change which rows are tombstones"
        )
    return changed


def _names_of_key(current: TopicMetadata, schema: Sequence[SchemaField], where: str) -> list[str]:
    """Return the names that the columns of `key.columns` have in `schema`. Their types must not change."""
    after = {field.id: field for field in schema}
    for old in current.schema:
        if old.name not in set_keys(current):
            continue
        new = after.get(old.id)
        # The hash of a key is that of its bytes, so rows of a wider key would be in other partitions than older ones.
        if new is None or new.type != old.type:
            why = " and cannot be dropped" if new is None else ": a wider type would move its keys to other partitions"
            raise InvalidConfigurationError(
                f"{where}: column {old.name!r} is in key.columns{why}. hint: create a new topic and copy the rows"
            )
        if "," in new.name or new.name != new.name.strip():
            raise InvalidConfigurationError(f"{where}: key.columns cannot name a column {new.name!r}")
    by_name = {field.name: field.id for field in current.schema}
    return [after[by_name[name]].name for name in set_keys(current)]


def _key_of_kafka(schema: Sequence[SchemaField]) -> tuple[int, ...]:
    names = kafka_key(schema)
    return tuple(field.id for field in schema if field.name in names)
