"""How do users see, create and change topics?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from txlog.client.runtime import Runtime
from txlog.core.effects import Program
from txlog.core.records import SchemaField, TopicMetadata
from txlog.core.schema import KAFKA_FIELDS
from txlog.core.schema import describe as describe_type
from txlog.errors import SchemaMismatchError, TopicExistsError
from txlog.protocol import topic_changes
from txlog.protocol.append import append_log_start
from txlog.storage.arrow_schema import to_arrow, to_fields


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDescription:
    """A topic as its newest metadata describe it."""

    name: str
    topic_id: str
    partitions: int
    config: Mapping[str, str]
    """What was set for this topic. Everything else has its default."""
    fields: tuple[SchemaField, ...] = field(repr=False)
    """The columns with their ids."""
    schema_id: int
    """The version of the metadata that introduced the columns."""
    version: int
    created_at: int
    """When this version was made, in milliseconds since 1970."""

    @property
    def schema(self) -> pa.Schema:
        """The columns as an Arrow schema."""
        return to_arrow(self.fields)

    @classmethod
    def of(cls, metadata: TopicMetadata) -> TopicDescription:
        return cls(
            name=metadata.topic,
            topic_id=metadata.topic_id,
            partitions=metadata.partitions,
            config=dict(sorted(metadata.config.items())),
            fields=metadata.schema,
            schema_id=metadata.schema_id,
            version=metadata.number,
            created_at=metadata.created_at,
        )


class Topics:
    """The calls about topics of one store."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def create(
        self,
        name: str,
        schema: object,
        partitions: int,
        config: Mapping[str, object] | None,
        if_not_exists: bool = False,
    ) -> TopicDescription:
        fields = KAFKA_FIELDS if schema is None else to_fields(_schema(schema, name), where=f"topic {name!r}")
        runtime = self._runtime
        runtime.ensure_writable()
        runtime.make_store()
        ctx = runtime.context()
        topic_id = runtime.ids.new_id()
        if runtime.where.startswith("file:"):
            # The store may be copied to a file system that ignores case, even if this one does not.
            runtime.patiently("looking for topics", lambda: topic_changes.check_case(name))
        try:
            made = runtime.patiently(
                f"creating topic {name!r}",
                lambda: topic_changes.create_topic(
                    ctx,
                    name,
                    fields=fields,
                    partitions=partitions,
                    config=config,
                    append_log_start=lambda tp, version: append_log_start(ctx, {}, tp, None, version),
                    topic_id=topic_id,
                ),
            )
        except TopicExistsError:
            if not if_not_exists:
                raise
            found = self.describe(name)
            _check_serves(found, fields)
            return found
        return self._remember(made)

    def describe(self, name: str) -> TopicDescription:
        return TopicDescription.of(self._runtime.topic(name, 0))

    def names(self) -> tuple[TopicDescription, ...]:
        return tuple(TopicDescription.of(found) for found in self._runtime.list_topics())

    def alter(
        self,
        name: str,
        config: Mapping[str, object] | None,
        remove_config: Sequence[str],
        partitions: int | None,
        add_columns: object,
        allow_key_movement: bool,
    ) -> TopicDescription:
        added: tuple[SchemaField, ...] = ()
        if add_columns is not None:
            added = to_fields(_schema(add_columns, name), where=f"topic {name!r}: added columns")
        runtime = self._runtime
        topic_id = runtime.topic(name, 0).topic_id
        runtime.ensure_writable()
        changes: dict[str, object | None] = {**(config or {}), **dict.fromkeys(remove_config)}
        return self._remember(
            runtime.patiently(
                f"altering topic {name!r}",
                lambda: topic_changes.alter_topic(
                    runtime.context(),
                    name,
                    config=changes,
                    partitions=partitions,
                    add_columns=added,
                    allow_key_movement=allow_key_movement,
                    topic_id=topic_id,
                ),
            )
        )

    def delete(self, name: str) -> None:
        runtime = self._runtime
        runtime.ensure_writable()
        runtime.forget_topic(name)
        if runtime.descriptor is None:
            runtime.topic(name)
        runtime.check_store()
        ctx = runtime.context()
        write_id = runtime.ids.new_id()
        target: TopicMetadata | None = None

        def program() -> Program[TopicMetadata]:
            nonlocal target
            target = target or (yield from topic_changes.topic_to_delete(name))
            return (
                yield from topic_changes.delete_topic(
                    ctx,
                    name,
                    append_log_start=lambda tp, version: append_log_start(ctx, {}, tp, None, version),
                    target=target,
                    write_id=write_id,
                )
            )

        runtime.patiently(f"deleting topic {name!r}", program)

    def _remember(self, metadata: TopicMetadata) -> TopicDescription:
        self._runtime.remember_topic(metadata)
        return TopicDescription.of(metadata)


def _check_serves(found: TopicDescription, asked: Sequence[SchemaField]) -> None:
    """Raise SchemaMismatchError unless rows with the columns `asked` are still rows of the topic.

    Columns that were added since are nullable, so a program that does not know them can leave them out.
    """
    theirs = {field.name: field for field in found.fields}
    missing = [field for field in asked if field.name not in theirs]
    changed = [
        field for field in asked if field not in missing and describe_type(field) != describe_type(theirs[field.name])
    ]
    names = {field.name for field in asked}
    needed = [field for field in found.fields if field.name not in names and not field.nullable]
    if missing:
        what = f"it has no column {missing[0].name!r}"
    elif changed:
        name = changed[0].name
        what = f"its column {name!r} is {describe_type(theirs[name])}, and {describe_type(changed[0])} was asked for"
    elif needed:
        what = f"its column {needed[0].name!r} ({describe_type(needed[0])}) was not asked for, and takes no null"
    else:
        return
    raise SchemaMismatchError(
        f"topic {found.name!r} exists already, with another schema: {what}. Its columns are "
        f"{', '.join(f'{field.name} {describe_type(field)}' for field in found.fields)}. Ask for those, add columns by altering the "
        "topic, or choose another name"
    )


def _schema(given: object, topic: str) -> pa.Schema:
    if isinstance(given, pa.Schema):
        return given
    try:
        if hasattr(given, "__arrow_c_schema__"):
            return pa.schema(given)  # type: ignore[arg-type]
        columns: Any = given
        return pa.schema(columns)
    except (TypeError, ValueError, pa.ArrowException) as error:
        raise SchemaMismatchError(
            f"topic {topic!r}: {type(given).__name__} is not a schema: expected a pyarrow.Schema, or a list of fields or of (name, type) with pyarrow's types "
            f"({error!s:.100})"
        ) from None
