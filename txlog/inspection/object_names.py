"""What does a path say about its object, or about a partition?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import msgspec

from txlog.client.session.runtime import Runtime
from txlog.core import names
from txlog.core.names import TopicPartition
from txlog.storage.object_store import ObjectStore

ObjectKind: TypeAlias = Literal[
    "store",
    "topic",
    "batch",
    "index",
    "txnindex",
    "snapshot",
    "boundary",
    "clean",
    "staged",
    "history",
    "erasure",
    "rows",
]


class RowsFileName(msgspec.Struct, frozen=True, kw_only=True):
    """What the name of a Parquet file shows. Its rows are read with a consumer or with Spark."""

    topic: str
    partition: int
    rows_of: Literal["producer", "spark", "sealed segment", "cleaned run"]
    producer_id: int | None = None
    producer_epoch: int | None = None
    base_offset: int | None = None
    end_offset: int | None = None
    generation: int | None = None


def parse_partition(runtime: Runtime, path: str) -> TopicPartition | None:
    """Return the partition that `path` names (`orders/0`, `orders-0`, `orders/0/`), or None if it names something
    else."""
    path = relative_path(runtime.store, path).rstrip("/")
    for separator in ("/", "-"):
        topic, found, number = path.rpartition(separator)
        partition = names.parse_partition_folder(number + "/")
        if found and names.is_topic_name(topic) and partition is not None:
            return TopicPartition(topic, partition)
    return None


def relative_path(store: ObjectStore, path: str) -> str:
    """Return `path` without the store's URL, if it begins with it."""
    for root in (store.url, store.url.removeprefix("file://")):
        prefix = root.rstrip("/") + "/"
        if path.startswith(prefix):
            return path[len(prefix) :].strip("/")
    return path.removeprefix("./")


@dataclass(frozen=True, slots=True)
class ObjectName:
    """What a path says about its object."""

    path: str
    kind: ObjectKind
    value: Any = None
    topic_partition: TopicPartition | None = None

    @property
    def where(self) -> str:
        return str(self.topic_partition)


def parse_object_name(path: str) -> ObjectName | None:
    """Return what the path says about its object; None if no object of txlog's has such a path."""
    if path == names.STORE_DESCRIPTOR:
        return ObjectName(path, "store")
    topic, _, rest = path.partition("/")
    if topic + "/" == names.MAINTENANCE_FOLDER:
        run = names.parse_history_name(rest)
        return None if run is None else ObjectName(path, "history", run)
    if topic + "/" == names.ERASURES_FOLDER:
        erasure_id = names.parse_erasure_name(rest)
        return None if erasure_id is None else ObjectName(path, "erasure", erasure_id)
    if not names.is_topic_name(topic):
        return None
    if (number := names.parse_topic_metadata_name(rest)) is not None:
        return ObjectName(path, "topic", number)
    if (file := names.parse_rows_path(rest)) is not None:
        written = RowsFileName(
            topic=topic,
            partition=file.partition,
            rows_of="spark" if file.staged else "producer",
            producer_id=file.producer_id,
            producer_epoch=file.producer_epoch,
        )
        return ObjectName(path, "rows", written, TopicPartition(topic, file.partition))
    folder, _, name = rest.partition("/")
    partition = names.parse_partition_folder(folder + "/")
    if partition is None:
        return None
    tp = TopicPartition(topic, partition)
    if names.parse_staged_list_name(name) is not None:
        return ObjectName(path, "staged", names.parse_staged_list_name(name), tp)
    match names.parse_partition_object(name):
        case names.NumberedName(kind=("batch" | "snapshot" | "boundary" | "clean") as kind, number=number):
            return ObjectName(path, kind, number, tp)
        case names.SegmentObject(segment=segment, kind=("index" | "txnindex") as kind):
            return ObjectName(path, kind, segment, tp)
        case names.SegmentObject(segment=segment):
            sealed = RowsFileName(
                topic=topic,
                partition=partition,
                rows_of="cleaned run" if segment.generation else "sealed segment",
                base_offset=segment.base_offset,
                end_offset=segment.end_offset,
                generation=segment.generation,
            )
            return ObjectName(path, "rows", sealed, tp)
    return None
