"""Parts that were staged for a transaction become one batch for each partition."""

from __future__ import annotations

import pytest

from txlog.core.append_rules import merge_parts
from txlog.core.records import DataFile, OffsetEntry, OffsetValue, StagedPart
from txlog.errors import InvalidRequestError


def test_parts_of_a_partition_are_merged():
    def offset(value, partition=0, group="g"):
        return OffsetEntry(group=group, topic="t", partition=partition, value=OffsetValue(offset=value))

    parts = merge_parts(
        [
            StagedPart(topic="o", partition=3, entries=(offset(1), offset(2, 1))),
            StagedPart(topic="empty", partition=0),
            StagedPart(topic="o", partition=3, entries=(offset(5), offset(6, group="f"))),
        ]
    )
    assert parts == (StagedPart(topic="o", partition=3, entries=(offset(6, group="f"), offset(5), offset(2, 1))),)


def test_files_stand_one_after_the_other_in_one_schema():
    def part(path, schema_id=0):
        return StagedPart(
            topic="o",
            partition=1,
            schema_id=schema_id,
            files=(DataFile(path=path, rows=1, bytes=1, digest=None, footer_digest="0", row_groups=(1,)),),
        )

    (merged,) = merge_parts([part("b"), part("a")])
    assert [file.path for file in merged.files] == ["b", "a"]
    with pytest.raises(
        InvalidRequestError,
        match=r"o-1: the topic.s columns changed .*files of schema 0 and of schema 2 .*cannot be one batch",
    ):
        merge_parts([part("b"), part("a", 2)])
