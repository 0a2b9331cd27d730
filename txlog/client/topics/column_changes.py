"""How does a user say which columns of a topic change? `Store.alter_topic(rename_columns={"name": "title"})`.

Columns are named as they are before the call, also if the same call renames or drops others. Only `column_order` and
the structs that get a new field have their new names. `txlog.core.evolution` says which changes are allowed.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from txlog.client.session.runtime import Runtime
from txlog.core.evolution import (
    AddColumn,
    AllowNulls,
    Change,
    DropColumn,
    MoveColumn,
    Path,
    RenameColumn,
    SetType,
    apply_changes,
    find_path,
    last_field_id,
)
from txlog.core.features import SCHEMA_EVOLUTION, check_features
from txlog.core.records import SchemaField, TopicMetadata
from txlog.core.schema import SCALAR_TYPES, parse_decimal
from txlog.errors import SchemaMismatchError, UnsupportedStoreError
from txlog.protocol.column_changes import change_columns
from txlog.protocol.topic_changes import alter_topic
from txlog.text import any_text, is_unicode, microseconds

if TYPE_CHECKING:
    import pyarrow as pa

EPOCH = datetime.date(1970, 1, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnChanges:
    """What one call asks for."""

    rename: Mapping[str, str] = field(default_factory=dict)
    drop: Sequence[str] = ()
    set_types: Mapping[str, str | pa.DataType] = field(default_factory=dict)
    allow_nulls: Sequence[str] = ()
    add: Sequence[SchemaField] = ()
    add_fields: Mapping[str, Sequence[SchemaField]] = field(default_factory=dict)
    """Fields of structs, by the name of the struct."""
    defaults: Mapping[str, object] = field(default_factory=dict)
    """Of columns in `add`, and of fields in `add_fields`, there by names like `address.city`."""
    order: Sequence[str] = ()

    @property
    def need_ids(self) -> bool:
        """Whether this is more than new nullable columns at the end."""
        others = (self.rename, self.drop, self.set_types, self.allow_nulls, self.add_fields, self.defaults, self.order)
        return any(others)


def alter_columns(
    runtime: Runtime, topic: str, changes: ColumnChanges, *, allow_key_movement: bool = False
) -> TopicMetadata:
    """Make `changes` in one version of the topic, and return its newest version.

    A change that moves keys to other partitions needs `allow_key_movement` (`change_columns`). Raises
    UnsupportedStoreError if the store was made without the feature, SchemaMismatchError, InvalidConfigurationError,
    UnknownTopicOrPartitionError.
    """
    base = runtime.topic(topic, 0)
    check_features((SCHEMA_EVOLUTION,), f"topic {topic!r}")
    if SCHEMA_EVOLUTION not in runtime.require_store().features:
        raise UnsupportedStoreError(
            f"topic {topic!r}: the store {runtime.where} was made without the feature {SCHEMA_EVOLUTION}, so columns "
            "can only be added as nullable ones without a default. "
            "hint: create a topic with the wanted columns in a new store, and copy the rows"
        )
    made = changes_of(base, changes)
    write_id = runtime.ids.new_id()
    return runtime.patiently(
        f"changing columns of topic {topic!r}",
        lambda: change_columns(runtime.context(), base, made, write_id=write_id, allow_key_movement=allow_key_movement),
    )


def add_columns(runtime: Runtime, topic: TopicMetadata, fields: Sequence[SchemaField]) -> TopicMetadata:
    """Add nullable columns at the end of a topic, unless they are there, and return its newest version. Ids are
    ignored.

    Raises SchemaMismatchError, UnknownTopicOrPartitionError.
    """
    runtime.ensure_writable()
    changed = runtime.patiently(
        f"adding columns to topic {topic.topic!r}",
        lambda: alter_topic(runtime.context(), topic.topic, add_columns=fields, topic_id=topic.topic_id),
    )
    runtime.remember_topic(changed)
    return changed


def check_not_inside(fields: Sequence[SchemaField], added: Sequence[SchemaField], where: str) -> None:
    """Raise SchemaMismatchError if an added column has a name like `address.city`, and `address` is a struct of
    `fields`.

    It would become a column beside the struct, with a dot in its name.
    """
    structs = {each.name for each in fields if each.type == "struct"}
    for each in added:
        above, dot, name = each.name.partition(".")
        if dot and above in structs:
            raise SchemaMismatchError(
                f"{where}: new column {each.name!r}: {above!r} is a struct. "
                f"hint: add the field with add_fields={{{above!r}: ...}}, named {name!r}"
            )


def changes_of(base: TopicMetadata, changes: ColumnChanges) -> tuple[Change, ...]:
    """Return the steps from the columns of `base` to the wanted ones.

    Raises SchemaMismatchError for unknown columns.
    """
    where = f"topic {base.topic!r}"

    def path(text: str) -> Path:
        return find_path(base.schema, text, where)

    made: list[Change] = [
        SetType(path(name), _type_text(name, kind, where)) for name, kind in changes.set_types.items()
    ]
    made += [AllowNulls(path(name)) for name in changes.allow_nulls]
    dropped = [path(name) for name in dict.fromkeys(changes.drop)]
    # The deepest come first, so that the paths of the others stay right.
    made += [DropColumn(each) for each in sorted(dropped, key=len, reverse=True)]
    made += _renames({path(old): new for old, new in changes.rename.items()})
    made += _additions(base, made, changes, where)
    if changes.order:
        now, _ = apply_changes(base.schema, last_field_id(base), made, where)
        made += _moves([find_path(now, name, where) for name in changes.order])
    return tuple(made)


def _additions(base: TopicMetadata, before: Sequence[Change], changes: ColumnChanges, where: str) -> list[Change]:
    new: list[tuple[str, str, SchemaField]] = [("", each.name, each) for each in changes.add]
    new += [(above, f"{above}.{each.name}", each) for above, fields in changes.add_fields.items() for each in fields]
    unknown = [name for name in changes.defaults if name not in {shown for _, shown, _ in new}]
    if unknown:
        raise SchemaMismatchError(
            f"{where}: {unknown[0]!r} has a default and is not a new column; the default of a column cannot be changed"
        )
    now, _ = apply_changes(base.schema, last_field_id(base), before, where)
    check_not_inside(now, changes.add, where)
    made: list[Change] = []
    for above, shown, each in new:
        if shown in changes.defaults:
            each = msgspec.structs.replace(each, default=stored_default(each, changes.defaults[shown], where))
        made.append(AddColumn(each, find_path(now, above, where) if above else ()))
    return made


def stored_default(field: SchemaField, value: Any, where: str) -> bool | int | float | str:
    """Return a default as topic versions have it.

    Raises SchemaMismatchError, beginning with `where`, if it is not of the type.
    """
    import numpy as np

    # A value of numpy, such as np.int64(5), is the value of Python that it stands for.
    value = value.item() if isinstance(value, np.generic) and value.dtype.kind in "biufUS" else value
    stored = value
    if field.type == "date" and isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        stored = (value - EPOCH).days
    elif field.type in ("timestamp", "timestamp_ntz") and isinstance(value, datetime.datetime):
        if (value.tzinfo is None) == (field.type == "timestamp"):
            raise SchemaMismatchError(
                f"{where}: column {field.name!r}: the default of a {field.type} "
                f"{'has no' if value.tzinfo else 'needs a'} time zone"
            )
        stored = microseconds(value)
    elif field.type == "binary" and isinstance(value, bytes):
        stored = value.hex()
    elif (digits := parse_decimal(field.type)) is not None and isinstance(value, decimal.Decimal | int):
        if isinstance(value, bool) or not decimal.Decimal(value).is_finite():
            raise SchemaMismatchError(f"{where}: column {field.name!r}: {value!r} is not a default for {field.type}")
        number = decimal.Decimal(value)
        # 1.5E+3 and 1.50 are written as the type has them: 1500, and 1.5 for a scale of 1.
        stored = f"{number:f}" if -int(number.as_tuple().exponent) <= digits[1] else f"{number.normalize():f}"
    is_text = not isinstance(stored, str) or is_unicode(stored)
    if not isinstance(stored, bool | int | float | str) or not is_text:
        raise SchemaMismatchError(f"{where}: column {field.name!r}: {value!r} is not a default for {field.type}")
    return stored


def _type_text(name: str, kind: str | pa.DataType, where: str) -> str:
    import pyarrow as pa

    from txlog.storage.arrow_schema import to_fields

    if isinstance(kind, pa.DataType):
        (made,) = to_fields(pa.schema([pa.field(name, kind)]), where=where)
        return made.type
    text = "".join(kind.split()) if isinstance(kind, str) else ""
    if text not in SCALAR_TYPES and parse_decimal(text) is None:
        raise SchemaMismatchError(
            f"{where}: column {name!r}: {any_text(kind)} is not a type. hint: name one of int64, int32, int16, int8, "
            "float64, float32, bool, string, binary, date, timestamp, timestamp_ntz and decimal(p,s)"
        )
    return text


def _renames(names: Mapping[Path, str]) -> list[Change]:
    """Return the renames as if they were made at once, so that two columns can swap their names."""
    first: list[RenameColumn] = []
    then: list[RenameColumn] = []
    taken = {(path[:-1], path[-1].casefold()) for path, new in names.items() if new != path[-1]}
    for number, path in enumerate(names):
        new = names[path]
        if new == path[-1]:
            continue
        if (path[:-1], new.casefold()) in taken:
            between = f"txlog renames {number}"
            first.append(RenameColumn(path, between))
            then.append(RenameColumn((*path[:-1], between), new))
        else:
            first.append(RenameColumn(path, new))
    # The deepest come first, so that the paths of the others stay right.
    levels = sorted({len(path) for path in names}, reverse=True)
    return [step for level in levels for step in (*first, *then) if len(step.path) == level]


def _moves(paths: Sequence[Path]) -> list[Change]:
    before: dict[Path, str | None] = {}
    made: list[Change] = []
    for path in paths:
        made.append(MoveColumn(path, before.get(path[:-1])))
        before[path[:-1]] = path[-1]
    return made
