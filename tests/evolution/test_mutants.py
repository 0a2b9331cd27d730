"""Mutants that find columns by name, by place, or by another version: a random world notices each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from tests.client.world import World
from tests.evolution import test_worlds as worlds, test_writers as writers
from txlog.client import reading, rows
from txlog.core.evolution import WrittenSchema
from txlog.core.records import SchemaField
from txlog.core.schema import max_field_id
from txlog.errors import TxlogError
from txlog.protocol import seal
from txlog.storage import arrow_evolution, parquet_writer
from txlog.storage.arrow_evolution import project
from txlog.storage.arrow_schema import OFFSET_FIELD, TIMESTAMP_FIELD, to_arrow

SEEDS = range(12)


def renumbered(written: WrittenSchema, wanted: Sequence[SchemaField]) -> WrittenSchema:
    """Return the written columns with the ids that the wanted ones of the same names have."""
    ids = {field.name: field.id for field in wanted}
    unused = iter(range(10**6, 2 * 10**6))
    fields = tuple(
        SchemaField(id=ids.get(field.name, next(unused)), name=field.name, type=field.type, fields=field.fields)
        for field in written.fields
    )
    return WrittenSchema(fields, 0)


def by_name(batch: pa.RecordBatch, written: WrittenSchema, wanted: Sequence[SchemaField]) -> Iterator[pa.RecordBatch]:
    own = renumbered(written, wanted)
    fields = {field.name: field for field in to_arrow(own.fields)}
    schema = pa.schema([fields.get(field.name, field) for field in batch.schema])
    yield from project(pa.RecordBatch.from_arrays(batch.columns, schema=schema), own, wanted)


def names_by_name(written: WrittenSchema, wanted: Sequence[SchemaField], where: str) -> tuple[str, ...]:
    names = {field.name for field in wanted}
    return tuple(field.name for field in written.fields if field.name in names)


def by_place(batch: pa.RecordBatch, written: WrittenSchema, wanted: Sequence[SchemaField]) -> Iterator[pa.RecordBatch]:
    schema = pa.schema([*to_arrow(wanted), OFFSET_FIELD, TIMESTAMP_FIELD])
    yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)


def use_names(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rows, "project", by_name)
    patch.setattr(rows, "columns_to_read", names_by_name)


def use_names_in_sealing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(parquet_writer, "project", by_name)


def use_places(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rows, "project", by_place)


def forget_defaults(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(arrow_evolution, "has_default", lambda wanted, last_id: False)


def read_as_the_newest(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reading, "written_schemas", lambda runtime, topic, pieces: {})


def seal_as_the_newest(patch: pytest.MonkeyPatch) -> None:
    def nothing(topic: str, schema_ids: object) -> Any:
        yield from ()
        return ()

    patch.setattr(seal, "written_schemas", nothing)


def use_children_by_place(patch: pytest.MonkeyPatch) -> None:
    def same(written: SchemaField, wanted: SchemaField) -> bool:
        return written.type == wanted.type and len(written.fields) == len(wanted.fields)

    patch.setattr(arrow_evolution, "_is_same", same)


def take_dropped_ids_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("txlog.protocol.column_changes.last_field_id", lambda version: max_field_id(version.schema))


def write_by_the_newest_names(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("txlog.client.topics.column_names.ColumnNames.check_rows", lambda names, topic, data: None)


MUTANTS = [
    use_names,
    use_names_in_sealing,
    use_places,
    forget_defaults,
    read_as_the_newest,
    seal_as_the_newest,
    use_children_by_place,
    take_dropped_ids_again,
]


@pytest.mark.parametrize("plant", MUTANTS, ids=lambda plant: plant.__name__)
def test_a_world_notices(
    world: World, monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    scenarios: list[Callable[[World], None]]
    scenarios = [partial(worlds.test_every_road_finds_columns_by_id, seed=seed) for seed in SEEDS]
    if plant is seal_as_the_newest:
        # Its seals fail and leave the rows where they are, so that no random world notices it.
        scenarios = [worlds.test_rows_of_several_versions_are_sealed_into_one_file]
    with monkeypatch.context() as patch:
        plant(patch)
        for scenario in scenarios:
            another = World()
            try:
                scenario(another)
            except (AssertionError, TxlogError, KeyError, ValueError, TypeError):
                return
            finally:
                another.close()
    pytest.fail("no world noticed it")


def test_a_writer_that_takes_the_newest_names_is_noticed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    store = world.open()
    store.create_topic("orders", writers.AB)
    write_by_the_newest_names(monkeypatch)
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        writers.test_a_producer_that_sleeps_across_a_change_of_names_is_told(
            world, store, [{"rename_columns": {"a": "b", "b": "a"}}], "row"
        )
