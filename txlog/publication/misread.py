"""Which files of a topic would other formats misread, because of their columns?"""

from __future__ import annotations

from collections.abc import Sequence

from txlog.client.session.runtime import Runtime
from txlog.core.names import TopicPartition
from txlog.core.publication import Tables
from txlog.core.records import DataFile, TopicMetadata
from txlog.core.records.publications import FormatName
from txlog.protocol.publications import Shown
from txlog.publication.columns import named_columns, why_misread
from txlog.publication.outcome import Unreadable


def misread_files(
    runtime: Runtime, topic: TopicMetadata, before: Tables, shown: Shown, formats: Sequence[FormatName]
) -> dict[str, Unreadable]:
    """Return the files that a format would misread, by path. What a merge must rewrite for a copy is its source."""
    files: list[tuple[int, DataFile, int, str]] = [
        (each.partition, each.file, each.schema_id, each.file.path)
        for partition in shown.partitions
        for each in partition.files
    ]
    log = {path for *_, path in files}
    held = before.files.values()
    files += [(each.partition, each, each.schema_id, each.source) for each in held if each.source in log]
    written = runtime.written_schemas(topic, {schema_id for _, _, schema_id, _ in files})
    named = named_columns([*(written[number].fields for number in sorted(written)), topic.schema])
    return {
        file.path: Unreadable(topic_partition=TopicPartition(topic.topic, partition), path=source, why=why)
        for partition, file, schema_id, source in files
        if (why := why_misread(topic.schema, written[schema_id], file, formats, named)) is not None
    }
