"""Which fields does a publication of a topic have: its cut, and the files that tables of other formats name?"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from txlog.core.records.commit import Count, DataFile, Digest, FieldId, Id, Offset, Text, Time, _Object

FormatName: TypeAlias = Literal["delta", "iceberg"]


class RowRun(msgspec.Struct, frozen=True, array_like=True):
    """Neighbouring rows of a file: `[first_row, end_row)`."""

    first_row: Count
    end_row: Count


class OffsetRun(msgspec.Struct, frozen=True, array_like=True):
    """Offsets `[first_offset, end_offset)`."""

    first_offset: Offset
    end_offset: Offset


class PublishedPartition(msgspec.Struct, frozen=True, kw_only=True):
    """What a publication shows of one partition: the committed rows below `end_offset` that are not `hidden`."""

    end_offset: Offset
    hidden: tuple[OffsetRun, ...] = ()
    """Batches below `end_offset` whose transaction is not in the cut, in order."""


class PublishedFile(DataFile, frozen=True, kw_only=True):
    """A Parquet file that is a part of the published table."""

    partition: Count
    schema_id: Offset
    """The version of the topic's columns that it was written with."""
    removed: tuple[RowRun, ...] = ()
    """Rows that are not in the table, in order: those of aborted transactions, those below the log start, and those
    that came into the cut later, which are in a copy."""
    removed_rows: Annotated[str, Meta(max_length=2**26)] = ""
    """In a table of newest rows, where they may be many: rows that are not in the table, as `row_runs.packed`."""
    base_offset: Offset | UnsetType = UNSET
    """In a table of newest rows: the offset of the first row of a file that holds no offsets itself."""
    source: Text = ""
    """The file that these rows were copied from, because it had been published without them. Empty: not a copy."""
    source_rows: tuple[RowRun, ...] = ()
    """The rows of `source` that are in this file, in the same order."""
    since: Offset
    """The publication that added it, or that last changed `removed`."""
    group: Offset
    """The publication that last wrote the list of files in which it is. A format that keeps such lists rewrites only
    those that a publication changes."""

    @property
    def is_partial(self) -> bool:
        """Whether some of its rows are not in the table; `row_runs.removed_from` says which."""
        return bool(self.removed or self.removed_rows)


class Publication(_Object, frozen=True, kw_only=True):
    """`publication/<number>.json`: one version of a topic's published tables. It is created only if no other is."""

    number: Offset
    topic: Text
    topic_id: Id
    topic_version: Offset
    """The topic's version whose columns the tables have from here on."""
    formats: dict[FormatName, Offset]
    """Each published format, and the publication that was its first. Its own version is the difference."""
    operation: Literal["append", "replace"]
    """append: the tables get rows, and a table of newest rows loses the older ones. replace: they have the same rows in
    other files; rows may have gone by compaction or retention."""
    key: tuple[FieldId, ...] = ()
    """Ids of the columns of the key whose newest rows the tables have. Empty: they have all rows."""
    partitions: tuple[PublishedPartition, ...]
    """The cut: what the tables show, by number of the partition."""
    cut_at: Time
    """When the cut was taken."""
    whole: bool = False
    """Whether `added` lists all files of the table, so that no earlier publication is needed."""
    added: tuple[PublishedFile, ...] = ()
    """Files from this publication on, in the order of their paths."""
    removed: tuple[Text, ...] = ()
    """Paths of files that the tables do not have any more, sorted. A file whose `removed` rows change is only in
    `added`."""
    created_at: Time
    write_id: Id
    previous: Digest
    """Digest of the publication before. In the first it is the digest of the topic's name."""
