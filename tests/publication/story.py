"""A published topic with all that a reader can get wrong: every type, changed columns, replaced files, rows left
out."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from tests.publication.published import PublishedTopic, column
from tests.publication.story_rows import row
from txlog.core.evolution import AddColumn, Change, DropColumn, RenameColumn, SetType
from txlog.core.records.publications import RowRun

VERSIONS = 7
COLUMNS = [
    column("id", "int64", nullable=False),
    column("tiny", "int8"),
    column("small", "int16"),
    column("num", "int32"),
    column("single", "float32"),
    column("double", "float64"),
    column("text", "string"),
    column("raw", "binary"),
    column("day", "date"),
    column("at", "timestamp"),
    column("clock", "timestamp_ntz"),
    column("price", "decimal(9,2)"),
    column("ok", "bool"),
    column("tags", "list", column("element", "string")),
    column("attrs", "map", column("key", "string", nullable=False), column("value", "int32")),
    column("place", "struct", column("city", "string"), column("zip", "int32")),
    column("items", "list", column("element", "struct", column("sku", "string"), column("qty", "int16"))),
    column("old", "string"),
]
CHANGES: list[Change] = [
    RenameColumn(("num",), "number"),
    SetType(("small",), "int64"),
    SetType(("single",), "float64"),
    SetType(("price",), "decimal(20,2)"),
    DropColumn(("old",)),
    AddColumn(column("extra", "string")),
    RenameColumn(("place", "city"), "town"),
    SetType(("place", "zip"), "int64"),
    AddColumn(column("land", "string"), ("place",)),
]


def tell(folder: Path, upto: int = VERSIONS) -> PublishedTopic:
    """Publish the first versions of the story."""
    topic = PublishedTopic(folder, COLUMNS)
    first = topic.file([row(number) for number in range(10)])
    sealed = topic.file([row(number) for number in range(10, 20)], sealed=True, partition=1)
    aborted = topic.file([row(number) for number in range(20, 30)], removed=[(0, 2), (5, 6)])
    merged = topic.file([row(number) for number in range(20)], sealed=True)
    steps = [
        lambda: topic.publish(first),
        lambda: topic.publish(sealed),
        lambda: topic.publish(aborted),
        lambda: topic.publish(merged, gone=[first, sealed], operation="replace"),
        lambda: topic.publish(_wide(topic, range(30, 40))),
        # The log start moves into the merged file.
        lambda: topic.publish(msgspec.structs.replace(merged, removed=(RowRun(0, 3),)), operation="replace"),
        lambda: topic.publish(_wide(topic, range(40, 45))),
    ]
    for step in steps[:upto]:
        step()
    return topic


def _wide(topic: PublishedTopic, numbers: Iterable[int]) -> Any:
    if topic.topic.number == 0:
        topic.change_columns(*CHANGES)
    return topic.file([row(number, changed=True) for number in numbers])
