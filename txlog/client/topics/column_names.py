"""Does a writer still mean the same columns by the same names?

Rows come with the names of their columns, and a topic's columns are ids (PROTOCOL.md, "Changed columns"). A producer or
a query runs for a long time. If two columns swap their names meanwhile, or a dropped name is used again, its rows would
go into other columns than before. So a writer keeps here what its names meant, and fails if a name means another field
now. A name that does not exist any more is refused where rows are compared with the topic.

Rows that txlog has read carry the ids of their columns. `FormerIds` tells if they were read before a change of names.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from txlog.client.session.runtime import Runtime
from txlog.core.evolution import Path
from txlog.core.records import SchemaField, TopicMetadata
from txlog.errors import SchemaMismatchError, TxlogError
from txlog.protocol.topics import schema_versions

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class _Known:
    topic_id: str
    schema_id: int
    ids: Mapping[str, Mapping[Path, int]]
    """What each column's name has meant first: the ids of the column and of all fields in it."""
    changed: frozenset[str] = field(default_factory=frozenset)
    """Columns whose names, or a name inside of them, mean another field in this version."""


class ColumnNames:
    """The names of one writer, for all topics that it writes. Thread-safe."""

    def __init__(self, who: str, remedy: str) -> None:
        """`who` and `remedy` are for the message: "this query", and "restart the query"."""
        self._who = who
        self._remedy = remedy
        self._lock = threading.Lock()
        self._topics: dict[str, _Known] = {}

    def changed(self, topic: TopicMetadata) -> frozenset[str]:
        """Return the columns of this version whose names have meant another field before, for this writer.

        A name keeps the meaning that it had in the first version. Later versions add the meaning of their new names. A
        topic that was deleted and created again has its own names.
        """
        known = self._topics.get(topic.topic)
        if known is not None and known.schema_id == topic.schema_id and known.topic_id == topic.topic_id:
            return known.changed
        with self._lock:
            known = self._topics.get(topic.topic)
            before = {} if known is None or known.topic_id != topic.topic_id else known.ids
            ids: dict[str, Mapping[Path, int]] = dict(before)
            changed = set()
            for column in topic.schema:
                now = dict(_ids(column, ()))
                first = before.get(column.name, {})
                if any(first.get(path, number) != number for path, number in now.items()):
                    changed.add(column.name)
                else:
                    ids[column.name] = {**first, **now}
            self._topics[topic.topic] = known = _Known(topic.topic_id, topic.schema_id, ids, frozenset(changed))
        return known.changed

    def check(self, topic: TopicMetadata, names: Iterable[str] | None) -> None:
        """Raise SchemaMismatchError if one of these names has meant another field before. None: any name counts."""
        changed = self.changed(topic)
        if changed:
            found = sorted(changed if names is None else changed & set(names))
            if found:
                raise SchemaMismatchError(
                    f"topic {topic.topic!r}: since version {topic.schema_id} the name {found[0]!r} means "
                    f"another column, or one inside of it does, than when {self._who} began. Nothing was "
                    f"written. hint: {self._remedy}"
                )

    def check_rows(self, topic: TopicMetadata, data: object) -> None:
        """Raise as `check` for rows in a form that a producer takes."""
        if self.changed(topic):
            self.check(topic, _names_of(data))


class FormerIds:
    """Finds rows that were read from a topic before its names changed, and are sent back to it. Thread-safe.

    Rows of another topic carry ids, too, which mean nothing here: columns are found by name. So rows are refused only
    if all their ids are those of one earlier version of this topic, under the same names, and one of them belongs to
    another name now. A topic whose columns were only added has no such version.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._versions: dict[tuple[str, int], tuple[TopicMetadata, ...]] = {}

    def check(self, topic: TopicMetadata, schema: pa.Schema) -> None:
        """Raise SchemaMismatchError if rows with this schema were read from `topic` before its names changed.

        Costs requests only if ids differ from those of the topic, and once for each of its versions.
        """
        if topic.last_field_id is msgspec.UNSET:
            return
        now = _ids_by_path(topic)
        given = {path: number for field in schema for path, number in _arrow_ids(field, ())}
        strange = [path for path, number in given.items() if now.get(path, number) != number]
        if not strange:
            return
        key = topic.topic_id, topic.schema_id
        if key not in self._versions:
            found = topic_versions(self._runtime, topic.topic)
            self._versions[key] = tuple(
                each for each in found if each.topic_id == topic.topic_id and each.number < topic.schema_id
            )
        former = next((each for each in self._versions[key] if given.items() <= _ids_by_path(each).items()), None)
        if former is None:
            return
        path = strange[0]
        other = next((".".join(each) for each, number in now.items() if number == given[path]), None)
        raise SchemaMismatchError(
            f"topic {topic.topic!r}: column {'.'.join(path)!r} of the rows has the field id {given[path]} "
            f"({'of a dropped column' if other is None else f'now of column {other!r}'}), expected {now[path]}: they "
            f"were read as version {former.number}, before the columns changed. Nothing was written. "
            "hint: rename the columns of the rows, or remove their field ids "
            "(`PARQUET:field_id`) if the names are right"
        )


def former_column(runtime: Runtime, topic: TopicMetadata, name: str) -> str:
    """Return a sentence, after a space, on what became of a column of this name; "" if there was none.

    Costs one request for each version of the topic, and none if its columns were only added.
    """
    if topic.last_field_id is msgspec.UNSET:
        return ""
    try:
        versions = topic_versions(runtime, topic.topic)
    except TxlogError:
        return ""  # the caller raises an error of its own
    found = next((each.id for version in reversed(versions) for each in version.schema if each.name == name), None)
    if found is None:
        return ""
    now = next((each.name for each in topic.schema if each.id == found), None)
    return f" {name!r} was dropped" if now is None else f" {name!r} was renamed to {now!r}"


def topic_versions(runtime: Runtime, topic: str) -> tuple[TopicMetadata, ...]:
    """Return the versions of a topic that introduced its columns, oldest first. Raises UnknownTopicOrPartitionError."""
    return runtime.patiently(f"reading versions of topic {topic!r}", partial(schema_versions, topic))


def _ids(field: SchemaField, above: Path) -> Iterator[tuple[Path, int]]:
    path = (*above, field.name)
    yield path, field.id
    for child in field.fields:
        yield from _ids(child, path)


def _ids_by_path(topic: TopicMetadata) -> dict[Path, int]:
    return {path: number for column in topic.schema for path, number in _ids(column, ())}


def _arrow_ids(field: pa.Field[Any], above: Path, name: str | None = None) -> Iterator[tuple[Path, int]]:
    import pyarrow as pa

    from txlog.storage.arrow_schema import field_id

    path = (*above, name or field.name)
    number = field_id(field)
    if number is not None:
        yield path, number
    kind: Any = field.type
    if pa.types.is_struct(kind):
        for child in kind:
            yield from _arrow_ids(child, path)
    elif pa.types.is_list(kind):
        yield from _arrow_ids(kind.value_field, path, "element")
    elif pa.types.is_map(kind):
        yield from _arrow_ids(kind.key_field, path, "key")
        yield from _arrow_ids(kind.item_field, path, "value")


def _names_of(data: Any) -> Collection[str] | None:
    """Return the names of the columns that rows have; None if they can be read only once."""
    import pyarrow as pa

    from txlog.storage.conform import single_row

    row = single_row(data)
    if row is not None:
        return [str(name) for name in row]
    if isinstance(data, pa.Table | pa.RecordBatch):
        return data.schema.names
    if isinstance(data, list):
        return {str(name) for each in data if isinstance(each, Mapping) for name in each}
    return None
