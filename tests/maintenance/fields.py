"""Every field of every stored object × wrong type, missing, out of range, another value, each under a right checksum.

The list of fields comes from the structs in `txlog.core.records`. `python -m tests.maintenance.fields` tries all places
of the golden store, and counts. The test beside this file tries each field once.
"""

from __future__ import annotations

import signal
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import islice
from types import FrameType
from typing import Any, NamedTuple

from msgspec import inspect as types

from tests.fuzz.hostile import Path, changed, closed, opened
from tests.maintenance import damage as d
from tests.maintenance.damage import Damage, Objects, Seen
from txlog.core import records
from txlog.core.names import TopicPartition
from txlog.errors import TxlogError

LIMIT_S = 1.0
"""The CPU time that a reader, or a check of the store, may take."""
STRUCTS: dict[str, type[Any]] = {
    "txlog.json": records.StoreDescriptor,
    "topic.json": records.TopicMetadata,
    "batch": records.CommitRecord,
    "index": records.SegmentIndex,
    "txnindex": records.TxnIndex,
    "snapshot": records.Snapshot,
    "boundary": records.Boundary,
    "clean": records.Clean,
    "staged": records.StagedList,
}
HOWS = ("wrong type", "missing", "out of range", "another value")

UNCONTRADICTED = {
    "told to people, or when something was done": (
        "Boundary.created_at", "Clean.created_at", "GroupValue.client_id", "GroupValue.updated_at",
        "OffsetValue.metadata",
        "OffsetValue.timestamp", "StoreDescriptor.created_at", "TopicMetadata.created_at",
        "TransactionMetadata.started_at",
        "TransactionMetadata.updated_at",
    ),
    "drawn, and compared by whoever drew it": (
        "CommitRecord.write_id", "StoreDescriptor.store_id", "TopicMetadata.topic_id", "TopicMetadata.write_id",
        "TransactionMetadata.write_id",
    ),
    "settings of the store or the topic, said nowhere else": (
        "StoreConstants.consumer_offsets_partitions", "StoreConstants.delete_grace_ms",
        "StoreConstants.producer_id_expiration_ms",
        "StoreConstants.transactional_id_expiration_ms", "StoreDescriptor.features", "TopicMetadata.config",
    ),
    "more partitions than folders, the order of columns that only one version has, nulls where none "
    "are, a deletion under way": (
        "TopicMetadata.deleted", "TopicMetadata.partitions", "TopicMetadata.schema", "SchemaField.nullable",
    ),
    "the last record of a partition: no later one has its digest; a record without rows has no schema": (
        "CommitRecord.base_sequence", "CommitRecord.coordinator_epoch", "CommitRecord.producer_epoch",
        "CommitRecord.producer_id",
        "CommitRecord.schema_id", "CommitRecord.segment_base", "CommitRecord.timestamp",
    ),
    "the value of a table's key, in the last record of its partition": (
        "GroupEntry.group", "GroupValue.generation", "GroupValue.member_id", "GroupValue.topics", "OffsetEntry.group",
        "OffsetEntry.partition", "OffsetEntry.topic", "OffsetValue.conditional", "OffsetValue.offset",
        "TransactionEntry.key",
        "TransactionMetadata.partitions", "TransactionMetadata.producer_id", "TransactionMetadata.staged_object",
        "TransactionMetadata.state", "TransactionMetadata.timeout_ms", "TransactionMetadata.txn_scope",
        "TransactionMetadata.txn_version",
    ),
    "the fold of records that were deleted below the boundary": (
        "BatchMetadata.base_offset", "BatchMetadata.base_sequence", "BatchMetadata.last_sequence",
        "BatchMetadata.timestamp",
        "ProducerStateEntry.batches", "ProducerStateEntry.coordinator_epoch", "ProducerStateEntry.last_offset",
        "ProducerStateEntry.last_sequence", "ProducerStateEntry.producer_epoch", "ProducerStateEntry.producer_id",
        "ProducerStateEntry.timestamp", "Snapshot.deleted_version", "Snapshot.last_timestamp",
        "Snapshot.log_start_offset",
        "Snapshot.producers",
    ),
    "an index of such records, or of a cleaned run, whose file tells the offsets of its rows and nothing else": (
        "AbortedTxn.first_offset", "AbortedTxn.last_offset", "AbortedTxn.last_stable_offset", "AbortedTxn.producer_id",
        "IndexEntry.base_offset", "IndexEntry.base_sequence", "IndexEntry.file", "IndexEntry.first_row",
        "IndexEntry.kind",
        "IndexEntry.producer_epoch", "IndexEntry.producer_id", "IndexEntry.timestamp", "IndexEntry.transactional",
        "IndexedFile.schema_id", "IndexedFile.statistics", "SegmentIndex.last_stable_offset",
    ),
    "what may be deleted, and from when on: without it more is kept": (
        "Clean.superseded", "Superseded.name", "Superseded.since",
    ),
}  # fmt: skip
"""Fields whose other valid value or default may stay unnoticed, because no object contradicts it.

The rows are the same then, except for the next two. `main` counts a field that does not need its exception as an error.
"""
EXCUSED = frozenset(name for each in UNCONTRADICTED.values() for name in each)
ONLY_PLACE_OF_ROWS = {"CommitRecord.timestamp", "TopicMetadata.deleted"}
"""Fields that decide how rows are read and that no object contradicts, for a record that is the last one of its
partition."""
FSCK_ALONE = {
    "CommitRecord.producer_id", "CommitRecord.transactional", "IndexEntry.timestamp", "Snapshot.log_start_offset",
    "TopicMetadata.partitions",
}  # fmt: skip
"""Fields that decide how rows are read, and that only unread objects contradict. A check of the store notices them."""


class HungError(Exception):
    """A reader or a check took longer than LIMIT_S."""


# -- cells ------------------------------------------------------------------------------------------------------------


class Cell(NamedTuple):
    """One field of one object, and its new value."""

    name: str
    """Struct.field."""
    how: str
    path: str
    where: Path
    new: Any
    is_default: bool
    """Whether the field is left out and had its default. Then nothing changed (PROTOCOL.md, R4)."""

    @property
    def damage(self) -> Damage:
        fields, payload = opened(d.golden()[self.path])
        said = changed(fields, self.where, self.new, "drop" if self.how == "missing" else "put")
        name = f"{self.how}: {self.name} {self.new!r:.40}"
        return Damage(name=name, changes={self.path: closed(said, payload)})


def cells(path: str, data: bytes) -> Iterator[Cell]:
    """Yield every cell of one object."""
    fields, _ = opened(data)
    kind = types.type_info(STRUCTS[d.kind_of(path)])
    for name, where, field in _places(fields, kind, ()):
        old = _at(fields, where)
        for how in HOWS:
            for new in _values(old, field.type, how):
                if how == "missing" or new != old or type(new) is not type(old):
                    default = how == "missing" and not field.required and old == _default(field)
                    yield Cell(name, how, path, where, new, default)


def _default(field: types.Field) -> Any:
    value = field.default_factory() if callable(field.default_factory) else field.default
    return list(value) if isinstance(value, tuple) else value


def _places(value: Any, kind: types.Type, at: Path) -> Iterator[tuple[str, Path, types.Field]]:
    """Yield every field of a struct in a JSON value, by its name, with its place and type."""
    if isinstance(kind, types.UnionType):
        kind = next((each for each in kind.types if _fits(value, each)), kind)
    if isinstance(kind, types.StructType) and isinstance(value, dict | list):
        for number, field in enumerate(kind.fields):
            key: Any = number if kind.array_like else field.encode_name
            if kind.array_like or key in value:
                yield f"{kind.cls.__name__}.{field.encode_name}", (*at, key), field
                yield from _places(value[key], field.type, (*at, key))
    elif isinstance(kind, types.VarTupleType) and isinstance(value, list):
        for number, item in enumerate(value):
            yield from _places(item, kind.item_type, (*at, number))


def _fits(value: Any, kind: types.Type) -> bool:
    if isinstance(kind, types.StructType):
        return isinstance(value, dict) and value.get(kind.tag_field or "", kind.tag) == kind.tag
    return isinstance(value, list) and isinstance(kind, types.VarTupleType)


def _at(value: Any, where: Path) -> Any:
    for key in where:
        value = value[key]
    return value


def _values(old: Any, kind: types.Type, how: str) -> list[Any]:
    """Return the new values in the place of `old`."""
    options = kind.types if isinstance(kind, types.UnionType) else (kind,)
    (one, *_) = [each for each in options if not isinstance(each, types.NoneType)]
    if how == "missing":
        return [None]
    if how == "wrong type":
        other = 7 if isinstance(one, types.StrType | types.LiteralType | types.BytesType) else "x"
        return [other, None] if not any(isinstance(each, types.NoneType) for each in options) else [other]
    if how == "out of range":
        if isinstance(one, types.IntType):
            return [
                (-(2**63) if one.ge is None else int(one.ge)) - 1,
                (2**63 - 1 if one.le is None else int(one.le)) + 1,
            ]
        if isinstance(one, types.LiteralType):
            return ["something else"]
        if isinstance(one, types.StrType):
            longer = [] if one.max_length is None else ["a" * (one.max_length + 1)]
            return [*longer, *([] if one.pattern is None else ["ab", "A" * 32, "g" * 64])]
        return []
    return _others(old, one)


def _others(old: Any, kind: types.Type) -> list[Any]:
    """Return other values of the field's own type and range."""
    if isinstance(kind, types.IntType):
        least, greatest = (-(2**63) if kind.ge is None else kind.ge), (2**63 - 1 if kind.le is None else kind.le)
        return [each for each in ((old or 0) + 1, (old or 0) - 1, 10**6, 0, -1) if least <= each <= greatest]
    if isinstance(kind, types.BoolType):
        return [not old]
    if isinstance(kind, types.LiteralType):
        return [each for each in kind.values if each != old]
    if isinstance(kind, types.StrType):
        if kind.pattern is not None:
            return ["f" * (64 if "64" in kind.pattern else 32), *([""] if kind.pattern.endswith("?$") else [])]
        return [f"{old}x", "", "../../etc/passwd"]
    if isinstance(kind, types.VarTupleType) and old:
        return [[], old[:-1], old[1:], [*old, old[-1]], old[::-1]]
    return []


# -- judging ----------------------------------------------------------------------------------------------------------


def limited(call: Any, *args: Any) -> Any:
    """Return what the call returns, or raise HungError after LIMIT_S of CPU time."""

    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise HungError

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT_S)
    try:
        return call(*args)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


@cache
def healthy(topic: str) -> tuple[Seen, frozenset[str]]:
    """Return what is visible of a topic alone, and the paths where fsck finds something."""
    objects = alone(topic)
    found = d.seen(objects)
    assert isinstance(found, Seen), found
    return found, frozenset(str(finding) for finding in d.checked(objects).findings)


@cache
def alone(topic: str) -> Objects:
    """Return the golden store without other topics, or the whole store if `topic` is empty."""
    golden = d.golden()
    return {path: data for path, data in golden.items() if "/" not in path or not topic or path.startswith(f"{topic}/")}


def judge(damage: Damage) -> tuple[str, str]:
    """Return the answers of a reader and of fsck."""
    topic = damage.path.partition("/")[0] if "/" in damage.path else ""
    objects = damage.applied_to(alone(topic))
    whole, findings = healthy(topic)
    return _reader(damage, objects, whole), _fsck(damage, objects, findings)


def _named(text: str, path: str) -> bool:
    """Return whether the text names the path, its folder or its partition.

    One of two contradictory objects is wrong.
    """
    folder = path.rpartition("/")[0]
    topic, _, partition = folder.partition("/")
    return (
        path in text
        or (bool(folder) and f"{folder}/" in text)
        or (partition.isdecimal() and str(TopicPartition(topic, int(partition))) in text)
    )


def _reader(damage: Damage, objects: Objects, whole: Seen) -> str:
    try:
        found = limited(d.seen, objects)
    except HungError:
        return "WRONG: hangs"
    except Exception as error:
        return f"WRONG: {type(error).__name__}: {error}"
    if isinstance(found, TxlogError):
        return "error" if _named(str(found), damage.path) else f"WRONG error: {type(found).__name__}: {found}"
    if found.rows != whole.rows:
        return "WRONG rows"
    return "same" if found == whole else "same rows"


def _fsck(damage: Damage, objects: Objects, findings: frozenset[str]) -> str:
    try:
        report = limited(d.checked, objects)
    except HungError:
        return "WRONG: hangs"
    except Exception as error:
        return f"WRONG: {type(error).__name__}: {error}"
    more = [finding for finding in report.findings if str(finding) not in findings]
    if any(_named(str(finding), damage.path) and finding.kind != "note" for finding in more):
        return "found"
    return "found elsewhere" if any(finding.kind != "note" for finding in more) else "not found"


def every_cell() -> Iterator[Cell]:
    for path, data in sorted(d.golden().items()):
        if d.kind_of(path) in STRUCTS:
            yield from cells(path, data)


def some_cells(fields_in: int) -> Iterator[Cell]:
    """Yield every `fields_in`-th field once, with changing damages and places."""
    by_field: dict[str, list[Cell]] = {}
    for cell in every_cell():
        by_field.setdefault(cell.name, []).append(cell)
    for number, name in enumerate(sorted(by_field)[::fields_in]):
        yield by_field[name][number * 7919 % len(by_field[name])]


def try_all(found: Iterable[Cell]) -> tuple[Counter[str], list[str], frozenset[str]]:
    """Return the counts of (how, reader, fsck), the wrong results, and the exceptions that were used."""
    counts: Counter[str] = Counter()
    faults = []
    needed = set()
    for cell in found:
        reader, fsck = judge(cell.damage)
        unseen = reader != "error" and fsck == "not found" and not cell.is_default
        other_rows = reader == "WRONG rows"
        if unseen or other_rows:
            needed.add(cell.name)
        excused = cell.how in ("another value", "missing") and (
            cell.name in FSCK_ALONE and not unseen
            if other_rows and cell.name not in ONLY_PLACE_OF_ROWS
            else cell.name in EXCUSED
        )
        wrong = "WRONG" in fsck or ("WRONG" in reader and not other_rows)
        if wrong or ((unseen or other_rows) and not excused):
            faults.append(f"{cell.damage}: reader {reader}, fsck {fsck}")
        why = (
            "the default, left out"
            if cell.is_default and reader != "error" and fsck == "not found"
            else f"reader {reader.partition(':')[0]}, fsck {fsck.partition(':')[0]}"
        )
        counts[f"{cell.how}: {why}"] += 1
    return counts, faults, frozenset(needed)


def main() -> int:
    step = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    counts, faults, needed = try_all(islice(every_cell(), 0, None, step))
    if step == 1:
        faults += [f"{name}: an exception that nothing needs" for name in sorted((EXCUSED | FSCK_ALONE) - needed)]
    print(*(f"{number:6} {name}" for name, number in sorted(counts.items())), *faults, sep="\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
