"""Which fields have the objects of a store, its topics and its maintenance jobs?"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta

from txlog.core.records.base import NO_OFFSET, Count, FieldId, Id, Int64, Offset, Signed, Text, Time, _Object

# -- topics and the store ---------------------------------------------------------------------------------------------


class SchemaField(msgspec.Struct, frozen=True, kw_only=True):
    """A column: its id is written to Parquet and never reused."""

    id: FieldId
    name: Text
    type: str
    """One of the types in PROTOCOL.md, "Types"; list, struct and map have `fields`."""
    nullable: bool = True
    fields: tuple[SchemaField, ...] = ()


class TopicMetadata(_Object, frozen=True, kw_only=True):
    """`topic.<number>.json`: one version of a topic's metadata; the highest counts."""

    number: Offset
    topic: str
    topic_id: Id
    partitions: Annotated[int, Meta(ge=1, le=100_000)]
    config: dict[str, str] = msgspec.field(default_factory=dict)
    """Only settings that were set: Kafka's keys, values as text."""
    schema: tuple[SchemaField, ...]
    schema_id: Offset
    """The number of the version that introduced `schema`."""
    created_at: Time
    deleted: bool = False
    write_id: Id


class StoreConstants(msgspec.Struct, frozen=True, kw_only=True):
    """Constants that the fold depends on. They never change after the store was made."""

    delete_grace_ms: Annotated[int, Meta(ge=1, le=2**63 - 1)] = 86_400_000
    producer_id_expiration_ms: Annotated[int, Meta(ge=1, le=2**63 - 1)] = 86_400_000
    transactional_id_expiration_ms: Annotated[int, Meta(ge=1, le=2**63 - 1)] = 604_800_000
    transaction_state_partitions: Annotated[int, Meta(ge=1, le=10_000)] = 50
    consumer_offsets_partitions: Annotated[int, Meta(ge=1, le=10_000)] = 50
    hash: Literal["java_string"] = "java_string"
    """The hash that maps a transactional.id or group.id to its partition: abs(javaStringHash) mod N."""
    key_hash: Literal["murmur2"] = "murmur2"


class StoreDescriptor(_Object, frozen=True, kw_only=True):
    """`txlog.json`: what this store is. It is created once and never changed."""

    STATED: ClassVar[tuple[str, ...]] = (
        "version",
        "format",
        "features",
        *(f"constants.{name}" for name in StoreConstants.__struct_fields__),
    )

    format: Literal["txlog"] = "txlog"
    features: tuple[str, ...] = ()
    """Features that readers and writers must know; they refuse a store with an unknown one."""
    store_id: Id
    created_at: Time
    constants: StoreConstants


# -- the history of maintenance jobs ----------------------------------------------------------------------------------


class CleanupStep(msgspec.Struct, frozen=True, kw_only=True):
    """What a job did to one partition: one run that it made, one move of the log start, or one round of deletions."""

    job: Text
    """merge, compact, retention, vacuum or repair. A reader also shows a name that it does not know."""
    topic: Text
    partition: Int64
    started_at: Time
    ended_at: Time
    outcome: Text
    """published, discarded (another job was first), deleted or failed."""
    base_offset: Signed = NO_OFFSET
    """The first offset that the job worked on; -1 if there is no such offset."""
    end_offset: Signed = NO_OFFSET
    generation: Signed = -1
    """Generation of the run that the job made; -1 if it made no run."""
    input_files: Count = 0
    output_files: Count = 0
    rows_read: Count = 0
    rows_written: Count = 0
    bytes_read: Count = 0
    bytes_written: Count = 0
    deleted_objects: Count = 0
    deleted_bytes: Count = 0
    message: Text = ""
    """Why the step failed."""


class CleanupRun(_Object, frozen=True, kw_only=True):
    """`<started>-<unique>.json`: one run of a job, written when it has ended. No other object depends on it."""

    run_id: Text
    """As in the name."""
    job: Text
    """The job that was called; maintain stands for all of them."""
    by: Text
    """The process that ran it, and its host."""
    started_at: Time
    """As in the name."""
    ended_at: Time
    steps: tuple[CleanupStep, ...]
