"""Which changes of a topic's columns are allowed, and which rows can a reader with other columns read?

A column is its field id. Its name, its place and some of its type may change, and a dropped id is never used again
(PROTOCOL.md, "Changed columns"). So a reader that compares ids never takes one column for another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TypeAlias

import msgspec

from txlog.core.records import SchemaField, TopicMetadata
from txlog.core.schema import (
    CHILD_NAMES,
    all_fields,
    assign_ids,
    check_fields,
    check_new_names,
    describe,
    max_field_id,
    nearest_float,
    parse_decimal,
    range_left,
)
from txlog.errors import SchemaMismatchError
from txlog.text import nearest

Path: TypeAlias = tuple[str, ...]
"""Names from a column down to a field in it: `("a", "element", "b")`."""

WIDER = {
    "int8": ("int16", "int32", "int64"),
    "int16": ("int32", "int64"),
    "int32": ("int64",),
    "float32": ("float64",),
}
"""What each type can become. A decimal can also get more digits with the same scale."""
ALLOWED = (
    "allowed are: add a nullable column, rename, drop, reorder, allow nulls, and widen int8 < int16 < int32 < int64, "
    "float32 < float64, decimal(p,s) to more digits p"
)


@dataclass(frozen=True, slots=True)
class AddColumn:
    """Add a nullable field at the end of the struct `parent` (empty: the topic), with its default if it has one."""

    field: SchemaField
    parent: Path = ()


@dataclass(frozen=True, slots=True)
class RenameColumn:
    """Give a field another name."""

    path: Path
    name: str


@dataclass(frozen=True, slots=True)
class DropColumn:
    """Remove a field. Its id is never used again; its name may be."""

    path: Path


@dataclass(frozen=True, slots=True)
class SetType:
    """Give a field a wider type."""

    path: Path
    type: str


@dataclass(frozen=True, slots=True)
class AllowNulls:
    """Make a field nullable."""

    path: Path


@dataclass(frozen=True, slots=True)
class MoveColumn:
    """Move a field behind its neighbour `after` in the same struct. None: make it the first."""

    path: Path
    after: str | None = None


Change: TypeAlias = AddColumn | RenameColumn | DropColumn | SetType | AllowNulls | MoveColumn


@dataclass(frozen=True, slots=True)
class WrittenSchema:
    """The columns for which rows were written, and the highest field id that existed then."""

    fields: tuple[SchemaField, ...]
    last_field_id: int


def last_field_id(version: TopicMetadata) -> int:
    """Return the highest field id that this version or an earlier one of its name has given out."""
    return max_field_id(version.schema) if version.last_field_id is msgspec.UNSET else version.last_field_id


def written_schema(version: TopicMetadata) -> WrittenSchema:
    """Return the columns that rows of this version have."""
    return WrittenSchema(version.schema, last_field_id(version))


def apply_changes(
    fields: Sequence[SchemaField], last_id: int, changes: Sequence[Change], where: str = "schema"
) -> tuple[tuple[SchemaField, ...], int]:
    """Return the fields after `changes`, made one after the other, and the highest id given out until then.

    `last_id` is that id before. Raises SchemaMismatchError if a change is not allowed; its message begins with `where`.
    """
    changed = tuple(fields)
    for change in changes:
        if isinstance(change, AddColumn):
            (added,) = assign_ids([_stored_default(change.field)], last_id + 1)
            last_id = max_field_id([added])
            changed = _add(changed, added, change.parent, where)
        else:
            changed = _at(changed, change.path, _edit(change, where), where)
    check_fields(changed, where)
    return changed, last_id


def find_path(fields: Sequence[SchemaField], text: str, where: str = "schema") -> Path:
    """Return the path that `text` names, such as `address.city` or `tags.element`. A name may have dots itself.

    Raises SchemaMismatchError, beginning with `where`, if there is no such field or more than one.
    """
    found = list(_paths(fields, text))
    if len(found) == 1:
        return found[0]
    if found:
        raise SchemaMismatchError(f"{where}: {text!r} names {len(found)} fields, because names have dots; rename one")
    raise _unknown(text, fields, where)


def contradictions(before: TopicMetadata, version: TopicMetadata) -> Iterator[tuple[str, str]]:
    """Yield what in `version` cannot follow `before`, as pairs (expected, found) (PROTOCOL.md, R21).

    `before` is the version one lower.
    """
    if before.deleted != (version.topic_id != before.topic_id):
        other = "another topic_id than" if before.deleted else "topic_id"
        yield f"{other} {before.topic_id}, as version {before.number} says", version.topic_id
    if version.partitions < before.partitions:
        yield f"at least {before.partitions} partitions", f"{version.partitions}"
    if before.deleted:
        first = last_field_id(before) + 1
        reused = [field.name for field in version.schema if field.id < first]
        if version.schema_id != version.number:
            yield f"schema_id {version.number}: a topic of its own", f"{version.schema_id}"
        if reused:
            yield (
                f"field ids from {first} on, as version {before.number} is another topic",
                f"a lower one for {reused[0]!r}",
            )
        return
    if version.schema == before.schema:
        if version.schema_id != before.schema_id:
            yield (
                f"schema_id {before.schema_id}, as the schema is that of version {before.number}",
                f"{version.schema_id}",
            )
        if version.last_field_id != before.last_field_id:
            yield f"last_field_id {before.last_field_id}, as the schema is the same", f"{version.last_field_id}"
        return
    if version.schema_id != version.number:
        yield f"the schema of version {before.number}, or schema_id {version.number}", "another schema"
    if version.last_field_id is msgspec.UNSET and before.last_field_id is msgspec.UNSET:
        yield from _only_added(before, version)
    else:
        yield from _only_allowed(before, version)


def impossible(version: TopicMetadata) -> Iterator[tuple[str, str]]:
    """Yield what in one version contradicts itself, as pairs (expected, found) (PROTOCOL.md, R21)."""
    if version.last_field_id is msgspec.UNSET:
        for field in all_fields(version.schema):
            if field.default is not msgspec.UNSET:
                yield "no default without last_field_id", f"{field.name!r} (id {field.id}): default {field.default!r}"
                return
    elif version.last_field_id < (highest := max_field_id(version.schema)):
        yield f"last_field_id of at least {highest}, the highest id", f"{version.last_field_id}"


def why_unreadable(wanted: Sequence[SchemaField], written: WrittenSchema) -> str | None:
    """Return why a reader with the columns `wanted` cannot read rows of `written`; None if it can.

    It can read a narrower type, and a nullable field that was added after these rows. It cannot read values that its
    own type does not have, nor a field that was dropped: `written` is then newer than the reader.
    """
    return _why_unreadable(wanted, written.fields, written.last_field_id, "")


def has_default(wanted: SchemaField, last_id: int) -> bool:
    """Return whether rows without this field have its default, and not null.

    `last_id` is the highest id that existed when the rows were written. A file may lack a field that existed, which is
    null then.
    """
    return wanted.default is not msgspec.UNSET and wanted.id > last_id


def is_wider(narrow: str, wide: str) -> bool:
    """Return whether the type `wide` holds every value of `narrow` and is another type that it can become."""
    old, new = parse_decimal(narrow), parse_decimal(wide)
    if old is not None and new is not None:
        return old[1] == new[1] and old[0] < new[0]
    return wide in WIDER.get(narrow, ())


# -- changes ----------------------------------------------------------------------------------------------------------

_Edit: TypeAlias = Callable[[tuple[SchemaField, ...], int, SchemaField | None], tuple[SchemaField, ...]]
"""(neighbours, place among them, parent) -> the neighbours afterwards."""


def _edit(change: RenameColumn | DropColumn | SetType | AllowNulls | MoveColumn, where: str) -> _Edit:
    shown = ".".join(change.path)

    def edit(fields: tuple[SchemaField, ...], at: int, parent: SchemaField | None) -> tuple[SchemaField, ...]:
        field, others = fields[at], (*fields[:at], *fields[at + 1 :])
        if parent is not None and parent.type == "map" and at == 0:
            raise SchemaMismatchError(f"{where}: column {shown!r}: the key of a map cannot change; {ALLOWED}")
        is_child = parent is not None and parent.type in CHILD_NAMES
        if is_child and not isinstance(change, SetType | AllowNulls):
            raise SchemaMismatchError(
                f"{where}: column {shown!r} belongs to a {parent.type if parent else ''}: it cannot be "
                "renamed, dropped or moved"
            )
        if isinstance(change, DropColumn):
            if not others:
                raise SchemaMismatchError(
                    f"{where}: column {shown!r} is the last one of its struct and cannot be dropped"
                )
            return others
        if isinstance(change, MoveColumn):
            return _moved(field, others, change.after, where)
        if isinstance(change, RenameColumn):
            new = msgspec.structs.replace(field, name=change.name)
            check_new_names([new], others, where)
        elif isinstance(change, AllowNulls):
            new = msgspec.structs.replace(field, nullable=True)
        else:
            if change.type != field.type and not is_wider(field.type, change.type):
                raise SchemaMismatchError(
                    f"{where}: column {shown!r} cannot change from {field.type} to {change.type}; {ALLOWED}. "
                    "hint: create a new topic and copy the rows"
                )
            new = msgspec.structs.replace(field, type=change.type)
        return (*fields[:at], new, *fields[at + 1 :])

    return edit


def _at(
    fields: tuple[SchemaField, ...], path: Path, edit: _Edit, where: str, parent: SchemaField | None = None
) -> tuple[SchemaField, ...]:
    """Return `fields` after `edit` at `path`."""
    at = next((at for at, field in enumerate(fields) if path and field.name == path[0]), None)
    if at is None:
        raise _unknown(".".join(path), fields, where)
    if len(path) == 1:
        return edit(fields, at, parent)
    field = fields[at]
    if parent is not None and parent.type == "map" and at == 0:
        raise SchemaMismatchError(f"{where}: column {'.'.join(path)!r}: the key of a map cannot change; {ALLOWED}")
    below = msgspec.structs.replace(field, fields=_at(field.fields, path[1:], edit, where, field))
    return (*fields[:at], below, *fields[at + 1 :])


def _add(fields: tuple[SchemaField, ...], added: SchemaField, parent: Path, where: str) -> tuple[SchemaField, ...]:
    if not added.nullable:
        raise SchemaMismatchError(
            f"{where}: new column {added.name!r} must be nullable: rows written before it have no value"
        )
    if any(field.default is not msgspec.UNSET for field in all_fields(added.fields)):
        raise SchemaMismatchError(f"{where}: new column {added.name!r}: only the whole column can have a default")
    if not parent:
        _check_new(added, fields, "", where)
        return (*fields, added)

    def edit(neighbours: tuple[SchemaField, ...], at: int, above: SchemaField | None) -> tuple[SchemaField, ...]:
        struct = neighbours[at]
        is_key = above is not None and above.type == "map" and at == 0
        if struct.type != "struct" or is_key:
            raise SchemaMismatchError(
                f"{where}: column {'.'.join(parent)!r} is {'the key of a map' if is_key else f'a {struct.type}'}, and "
                "only a struct can get further fields"
            )
        _check_new(added, struct.fields, f"{'.'.join(parent)}.", where)
        grown = msgspec.structs.replace(struct, fields=(*struct.fields, added))
        return (*neighbours[:at], grown, *neighbours[at + 1 :])

    return _at(fields, parent, edit, where)


def _check_new(added: SchemaField, neighbours: tuple[SchemaField, ...], above: str, where: str) -> None:
    if any(field.name == added.name for field in neighbours):
        raise SchemaMismatchError(f"{where}: column {above + added.name!r} exists already; choose another name")
    check_new_names([added], neighbours, where)


def _moved(
    field: SchemaField, others: tuple[SchemaField, ...], after: str | None, where: str
) -> tuple[SchemaField, ...]:
    if after is None:
        return (field, *others)
    at = next((at for at, other in enumerate(others) if other.name == after), None)
    if at is None:
        raise _unknown(after, others, where)
    return (*others[: at + 1], field, *others[at + 1 :])


def _stored_default(field: SchemaField) -> SchemaField:
    """Return the field with a default that its type holds exactly, so that a wider type does not change it."""
    value = field.default
    if not field.type.startswith("float") or isinstance(value, bool) or not isinstance(value, int | float):
        return field
    if range_left(field.type, value) is not None:
        return field  # check_fields refuses it
    return msgspec.structs.replace(field, default=nearest_float(field.type, value))


def _paths(fields: Sequence[SchemaField], text: str) -> Iterator[Path]:
    for field in fields:
        if field.name == text:
            yield (field.name,)
        elif text.startswith(f"{field.name}."):
            for rest in _paths(field.fields, text[len(field.name) + 1 :]):
                yield (field.name, *rest)


def _unknown(name: str, fields: Sequence[SchemaField], where: str) -> SchemaMismatchError:
    known = [field.name for field in fields]
    return SchemaMismatchError(
        f"{where}: column {name!r} does not exist.{nearest(name, known)} There are {', '.join(known)}"
    )


# -- versions ---------------------------------------------------------------------------------------------------------


def _only_added(before: TopicMetadata, version: TopicMetadata) -> Iterator[tuple[str, str]]:
    kept = version.schema[: len(before.schema)]
    for old, new in zip_longest(before.schema, kept):
        if old != new:
            found = "no column" if new is None else f"{new.name!r} (id {new.id}): {describe(new)}"
            yield f"column {old.name!r} (id {old.id}): {describe(old)}, as version {before.number} says", found
            return
    first = max_field_id(before.schema) + 1
    for new in version.schema[len(kept) :]:
        if not new.nullable or new.id < first:
            yield (
                f"new columns that are nullable, with ids from {first} on",
                f"{new.name!r} (id {new.id}): {describe(new)}",
            )


def _only_allowed(before: TopicMetadata, version: TopicMetadata) -> Iterator[tuple[str, str]]:
    last = last_field_id(before)
    if last_field_id(version) < last or version.last_field_id is msgspec.UNSET:
        yield f"last_field_id of at least {last}, as version {before.number} says", f"{version.last_field_id}"
    old = dict(_by_id(before.schema, None))
    for number, (parent, new) in _by_id(version.schema, None):
        found = f"{new.name!r} (id {number}): {describe(new)}"
        if number in old:
            above, was = old[number]
            if _parent_id(above) != _parent_id(parent) or not _may_become(was, new):
                yield f"what column {was.name!r} (id {number}): {describe(was)} may become; {ALLOWED}", found
        elif number <= last:
            yield f"new field ids from {last + 1} on", found
        elif (parent is None or parent.id in old) and (not new.nullable or (parent and parent.type != "struct")):
            yield "new columns that are nullable and not a child of a list or a map", found


def _may_become(old: SchemaField, new: SchemaField) -> bool:
    if old.type == "map" and new.type == "map" and old.fields[0] != new.fields[0]:
        return False
    is_type = old.type == new.type or is_wider(old.type, new.type)
    return is_type and (new.nullable or not old.nullable) and old.default == new.default


def _by_id(
    fields: Sequence[SchemaField], parent: SchemaField | None
) -> Iterator[tuple[int, tuple[SchemaField | None, SchemaField]]]:
    for field in fields:
        yield field.id, (parent, field)
        yield from _by_id(field.fields, field)


def _parent_id(parent: SchemaField | None) -> int | None:
    return None if parent is None else parent.id


# -- readers ----------------------------------------------------------------------------------------------------------


def _why_unreadable(
    wanted: Sequence[SchemaField], written: Sequence[SchemaField], last_id: int, above: str
) -> str | None:
    by_id = {field.id: field for field in written}
    for field in wanted:
        path = above + field.name
        found = by_id.get(field.id)
        if found is None:
            # Rows from before the drop may have been rewritten without the column, so null could be a wrong value.
            if field.id <= last_id:
                return f"column {path!r} was dropped"
            if not field.nullable:
                return f"column {path!r} is not nullable, and these rows lack it"
            continue
        if found.type != field.type and not is_wider(found.type, field.type):
            return f"column {path!r} is {found.type} now, and this read has {field.type}"
        if found.nullable and not field.nullable:
            return f"column {path!r} may be null now"
        why = _why_unreadable(field.fields, found.fields, last_id, f"{path}.")
        if why is not None:
            return why
    return None


# -- text -------------------------------------------------------------------------------------------------------------


def describe_changes(before: Sequence[SchemaField], after: Sequence[SchemaField]) -> tuple[str, ...]:
    """Return what was done to the columns `before`: one text for each changed field, in the order of `after`."""
    return tuple(_differences(before, after, ""))


def _differences(before: Sequence[SchemaField], after: Sequence[SchemaField], above: str) -> Iterator[str]:
    old = {field.id: field for field in before}
    kept = {field.id for field in after if field.id in old}
    yield from (f"dropped {above}{field.name}" for field in before if field.id not in kept)
    for field in after:
        name = above + field.name
        was = old.get(field.id)
        if was is None:
            default = "" if field.default is msgspec.UNSET else f", default {field.default!r}"
            yield f"added {name} {describe(field)}{default}"
            continue
        if was.name != field.name:
            yield f"renamed {above}{was.name} to {name}"
        if was.type != field.type:
            yield f"widened {name} from {was.type} to {field.type}"
        if was.nullable != field.nullable:
            yield f"allowed null in {name}"
        yield from _differences(was.fields, field.fields, f"{name}.")
    if [field.id for field in before if field.id in kept] != [field.id for field in after if field.id in kept]:
        yield f"moved: {', '.join(above + field.name for field in after)}"
