"""Can a reader of another format find a topic's columns in a file that was written for an older version of them?

Such a reader knows neither txlog's versions nor its defaults. A file that it would misread is rewritten by a merge
before it is published (PROTOCOL.md, "Publication").
"""

from __future__ import annotations

from collections.abc import Sequence

from txlog.core.evolution import WrittenSchema, has_default, is_wider
from txlog.core.records import DataFile, SchemaField
from txlog.core.records.publications import FormatName


def why_misread(
    wanted: Sequence[SchemaField], written: WrittenSchema, file: DataFile, formats: Sequence[FormatName]
) -> str | None:
    """Return why a reader of one of `formats` would misread the file as the columns `wanted`; None if none would.

    `file` has the columns `written`.
    """
    for name in formats:
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
    exact = {field.name: field for field in written}
    for field in wanted:
        path = above + field.name
        found = by_id.get(field.id)
        # Readers of Iceberg go by ids. But pyiceberg goes by names in sealed files, because `_offset` has no id there.
        name, known = (field.name.lower(), names) if by_name else (field.name, exact)
        if (other := known.get(name)) is not None and other.id != field.id:
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
        why = _why(field.fields, found.fields, last_id, f"{path}.", by_name=by_name)
        if why is not None:
            return why
    return None


def _list_or_map(fields: Sequence[SchemaField]) -> str | None:
    for field in fields:
        if field.type in ("list", "map"):
            return field.name
        if (below := _list_or_map(field.fields)) is not None:
            return f"{field.name}.{below}"
    return None
