"""Which rows did another writer, such as Spark's own, leave for a staged transaction, and can a record name them?

That writer has filled the transaction's folder `<topic>/staged/<producer id>-<epoch>-<unique>/_partition=<n>/` and has
finished. No file is moved or copied. This module lists the folder, reads and checks every footer, and returns what a
commit record needs to name the files. Each folder belongs to one job; the folder of a failed job is never read.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

from txlog.client.runtime import Runtime
from txlog.core.names import parse_rows_path
from txlog.core.records import DataFile, StagedPart, TopicMetadata
from txlog.errors import CorruptLogError, UnknownTopicOrPartitionError
from txlog.storage.object_store import make_durable
from txlog.storage.parquet_file import describe_file
from txlog.text import count_text

PARALLEL_FOOTERS = 16
"""Footers that are read at once. Each costs one request and hardly any CPU time."""

_HIDDEN = (".", "_")
"""First characters of the names that Hadoop and Spark skip: `_SUCCESS`, `.part-….crc`."""
_FOLDER = re.compile(r"_partition=(0|[1-9]\d{0,8})/\Z", re.ASCII)


def read_staged_folder(runtime: Runtime, topic: TopicMetadata, folder: str) -> tuple[StagedPart, ...]:
    """Return the rows below `folder` (`names.staged_folder`) by partition, files sorted by name.

    The result is empty if the folder is empty. From here on the rows survive a power cut. Raises:

    * SchemaMismatchError for a file that does not have exactly the topic's schema.
    * CorruptRecordError or CorruptLogError for content that a finished writer cannot have left.
    * UnknownTopicOrPartitionError, StorageError.
    """
    found = _listed(runtime, topic, folder)
    if not found:
        return ()

    def described(path: str) -> DataFile:
        make_durable(runtime.store, f"{topic.topic}/{path}")
        return describe_file(runtime.store, topic.topic, path, topic.schema, exact=True)

    with ThreadPoolExecutor(min(PARALLEL_FOOTERS, len(found)), thread_name_prefix="txlog-footers") as pool:
        files = list(pool.map(described, [path for _, path in found]))
    parts: dict[int, list[DataFile]] = {}
    for (partition, _), file in zip(found, files, strict=True):
        if file.rows:
            parts.setdefault(partition, []).append(file)
    return tuple(
        StagedPart(topic=topic.topic, partition=partition, schema_id=topic.schema_id, files=tuple(parts[partition]))
        for partition in sorted(parts)
    )


def _listed(runtime: Runtime, topic: TopicMetadata, folder: str) -> list[tuple[int, str]]:
    found = []
    for inner in runtime.store.list(f"{topic.topic}/{folder}"):
        if inner.startswith(_HIDDEN) and not inner.endswith("/"):
            continue
        match = _FOLDER.match(inner)
        if match is None:
            raise _strange(f"{topic.topic}/{folder}{inner}", "folders _partition=<n>/")
        partition = int(match[1])
        if partition >= topic.partitions:
            raise UnknownTopicOrPartitionError(
                f"{topic.topic}/{folder}{inner}: topic {topic.topic!r} has {count_text(topic.partitions, 'partition')}, numbered 0 to {topic.partitions - 1}"
            )
        for name in runtime.store.list(f"{topic.topic}/{folder}{inner}"):
            path = f"{folder}{inner}{name}"
            if parse_rows_path(path) is not None:
                found.append((partition, path))
            elif not name.startswith(_HIDDEN):
                raise _strange(f"{topic.topic}/{path}", "files <name>.parquet")
    return found


def _strange(path: str, expected: str) -> CorruptLogError:
    return CorruptLogError(
        f"{path}: a job that has ended leaves only {expected} here; does another one write to the same folder, or does Spark's "
        "committer keep rows elsewhere? Nothing was published"
    )
