"""Can a reader of another format find a topic's columns in a file that was written for an older version of them?

Such a reader knows neither txlog's versions nor its defaults. A file that it would misread is rewritten by a merge
before it is published (PROTOCOL.md, "Publication").
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

from txlog.core.evolution import WrittenSchema, has_default, is_wider
from txlog.core.records import DataFile, SchemaField
from txlog.core.records.publications import FormatName

Place: TypeAlias = tuple[int, str]
"""Id of the column above, or 0, and a name."""


def named_columns(versions: Iterable[Sequence[SchemaField]]) -> dict[Place, int]:
    """Return which column each name means: the column of the last version that has the name.

    Readers of Iceberg go by ids. But pyiceberg goes by names in sealed files, because `_offset` has no id there, and a
    table has one meaning of a name.
    """
    return {place: number for fields in versions for place, number in _placed(fields)}


def why_misread(
    wanted: Sequence[SchemaField],
    written: WrittenSchema,
    file: DataFile,
    formats: Sequence[FormatName],
    named: Mapping[Place, int] = MappingProxyType({}),
) -> str | None:
    """Return why a reader of one of `formats` would misread the file as the columns `wanted`; None if none would.

    `file` has the columns `written`. `named` are the names of all files of the table, and of `wanted`.
    """
    for name in formats:
        if name == "iceberg":
            for place, number in _placed(written.fields):
                if named.get(place, number) != number:
                    return f"column {place[1]!r} has the name of another one there"
        if name == "iceberg" and file.digest is None and (nested := _list_or_map(written.fields)) is not None:
            return f"column {nested!r} has no field ids for its elements, as Spark's own writer leaves them out"
        why = _why(wanted, written.fields, written.last_field_id, "", by_name=name == "delta")
        if why is not None:
            return why
    return None


def _why(
    wanted: Sequence[SchemaField], written: Sequence[SchemaField], last_id: int, above: str, *, by_name: bool
) -> str | None:
    by_id = {field.id: field for field in written}
    names = {field.name.lower(): field for field in written}
    for field in wanted:
        path = above + field.name
        found = by_id.get(field.id)
        if by_name and (other := names.get(field.name.lower())) is not None and other.id != field.id:
            return f"column {path!r} has the name of another one there"
        if found is None:
            if has_default(field, last_id):
                return f"column {path!r} has a default, and is not in the file"
            continue
        if by_name and found.name != field.name:
            return f"column {path!r} is {found.name!r} there"
        # Delta's readers differ in whether they take a narrower type without a feature that few of them know.
        if found.type != field.type and (by_name or not is_wider(found.type, field.type)):
            return f"column {path!r} is {found.type} there"
        if by_name and field.type == "map" and _shape(field) != _shape(found):
            return f"column {path!r} is a map with other fields there, which delta-rs does not read"
        why = _why(field.fields, found.fields, last_id, f"{path}.", by_name=by_name)
        if why is not None:
            return why
    return None


def _shape(field: SchemaField) -> set[Place]:
    return {place for place, _ in _placed(field.fields, field.id)}


def _placed(fields: Sequence[SchemaField], above: int = 0) -> Iterator[tuple[Place, int]]:
    for field in fields:
        yield (above, field.name), field.id
        yield from _placed(field.fields, field.id)


def _list_or_map(fields: Sequence[SchemaField]) -> str | None:
    for field in fields:
        if field.type in ("list", "map"):
            return field.name
        if (below := _list_or_map(field.fields)) is not None:
            return f"{field.name}.{below}"
    return None
