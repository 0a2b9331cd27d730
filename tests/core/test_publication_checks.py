"""Which publications are refused, because no publisher can have written them at their place? (PROTOCOL.md, R21, R3)"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from txlog.core import envelope
from txlog.core.publication import check_publication
from txlog.core.records.publications import OffsetRun, Publication, PublishedFile, PublishedPartition, RowRun
from txlog.errors import CorruptRecordError

ID = "0" * 31 + "1"
ROWS = f"0/rows/7-3-{ID}.parquet"
COPY = f"publication/00000000000000000000-{ID}.parquet"


def file(path: str = ROWS, **more: Any) -> PublishedFile:
    stated: dict[str, Any] = {"digest": "a" * 64, "footer_digest": "b" * 64, "row_groups": (3,), "schema_id": 0}
    stated |= {"rows": 3, "bytes": 9, "partition": 0, "since": 0, "group": 0}
    return PublishedFile(path=path, **{**stated, **more})


COPIED = file(COPY, source=ROWS, source_rows=(RowRun(2, 4), RowRun(7, 8)))
FIRST = Publication(
    number=0,
    topic="orders",
    topic_id=ID,
    topic_version=0,
    formats={"delta": 0},
    operation="append",
    partitions=(PublishedPartition(end_offset=9, hidden=(OffsetRun(2, 3), OffsetRun(5, 9))),),
    cut_at=1,
    whole=True,
    added=(file(removed=(RowRun(0, 1), RowRun(2, 3))), COPIED),
    created_at=1,
    write_id=ID,
    previous=envelope.digest(b"orders"),
)


def test_what_a_publisher_writes_is_accepted() -> None:
    check_publication(FIRST, "orders", 0)
    check_publication(msgspec.structs.replace(FIRST, number=3, previous="c" * 64), "orders", 3)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"topic": "other"}, "swapped or copied"),
        ({"number": 1}, "swapped or copied"),
        ({"previous": envelope.digest(b"other")}, "instead of the topic's name"),
        ({"formats": {"delta": 1}}, "begin at a later publication"),
        ({"added": (COPIED, file())}, "not in the order of their paths"),
        ({"added": (file(), file())}, "not in the order of their paths"),
        ({"removed": ("b", "a")}, "not in the order of their paths"),
        ({"partitions": (PublishedPartition(end_offset=4, hidden=(OffsetRun(2, 5),)),)}, "hides of partition 0"),
        ({"partitions": (PublishedPartition(end_offset=9, hidden=(OffsetRun(3, 3),)),)}, "hides of partition 0"),
        ({"added": (file(f"../payments/{ROWS}"),)}, "cannot belong"),
        ({"added": (file(ROWS.replace("0/", "1/", 1)),)}, "cannot belong"),
        ({"added": (file(COPY),)}, "cannot belong"),
        ({"added": (file(ROWS, source=ROWS, source_rows=(RowRun(0, 3),)),)}, "cannot be a copy"),
        ({"added": (msgspec.structs.replace(COPIED, source=COPY),)}, "cannot belong"),
        ({"added": (msgspec.structs.replace(COPIED, source_rows=(RowRun(0, 2),)),)}, "not possible"),
        ({"added": (file(removed=(RowRun(2, 4),)),)}, "not possible"),
    ],
)
def test_what_no_publisher_can_have_written_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(CorruptRecordError, match=says):
        check_publication(msgspec.structs.replace(FIRST, **changes), "orders", 0)
