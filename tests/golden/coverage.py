"""Which parts of the format does a store hold? This module walks its bytes by the tables of fields in PROTOCOL.md.

    python -m tests.golden.coverage [FOLDER...]        # default: every golden store; prints what none of them holds

A field counts only where it says something: with another value than the one that a reader assumes if the field is left
out. `Seen` collects these fields, the values of enumerations, and *traits*: what is not a field, such as the name of an
object, the codec of inline rows, or a type of a column that rows have.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import msgspec.inspect as mi
import pyarrow as pa
import pyarrow.parquet as pq

from txlog.core import names, records

HERE = Path(__file__).parent
PROTOCOL = HERE.parent.parent / "PROTOCOL.md"
STORES = tuple(sorted(path for path in HERE.glob("v*") if path.is_dir()))

_ZSTD = b"\x28\xb5\x2f\xfd"
_KINDS = {
    "batch": records.CommitRecord,
    "snapshot": records.Snapshot,
    "boundary": records.Boundary,
    "clean": records.Clean,
}
_SEGMENT_KINDS = {"index": records.SegmentIndex, "txnindex": records.TxnIndex}


@dataclass
class Seen:
    """What some stores hold."""

    fields: set[tuple[str, str]] = field(default_factory=set)
    """Table (or struct) and field, where the field says something."""
    values: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    """Texts, and `true`, `false` and `null`, of each field."""
    traits: set[str] = field(default_factory=set)
    deleted: set[tuple[str, int]] = field(default_factory=set)
    """Versions that delete a topic."""
    states: dict[str, str] = field(default_factory=dict)
    """The last state of each transactional.id of a store."""


def main() -> None:
    seen = look([Path(name) for name in sys.argv[1:]] or STORES)
    for line in missing(seen):
        print(line)


def look(folders: Iterable[Path]) -> Seen:
    """Return what the stores in `folders` hold together."""
    seen = Seen()
    for folder in folders:
        seen.states = {}
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                _look_at(seen, path.relative_to(folder).as_posix(), path.read_bytes())
    return seen


# -- what PROTOCOL.md defines -----------------------------------------------------------------------------------------


def tables() -> dict[str, dict[str, str]]:
    """Return the cell with the type of each field, by table."""
    found: dict[str, dict[str, str]] = {}
    for match in re.finditer(r"<!-- fields: (\w+) -->\n\|.*\n\|.*\n((?:\|.*\n)+)", PROTOCOL.read_text()):
        rows = [line.split("|") for line in match[2].splitlines()]
        found[match[1]] = {name: row[2].strip() for row in rows for name in re.findall(r"`(\w+)`", row[1])}
    return found


def enumerated() -> dict[tuple[str, str], set[str]]:
    """Return the values that a table lists for a field: texts, `true` and `false` of a bool, and `null`."""
    found = {}
    for table, cells in tables().items():
        for name, cell in cells.items():
            values = {"true", "false"} if cell == "bool" else set(re.findall(r"`([^`]+)`", cell.partition(" by ")[0]))
            values |= {"null"} if "null" in cell.split() else set()
            if values and not cell.startswith("as in"):
                found[table, name] = values
    jobs = PROTOCOL.read_text().split("<!-- fields: CleanupRun -->")[1].split("\n## ")[0]
    for table, name in (("CleanupRun", "job"), ("CleanupStep", "job"), ("CleanupStep", "outcome")):
        part = jobs if table == "CleanupRun" else jobs.split("<!-- fields: CleanupStep -->")[1]
        row = next(line for line in part.splitlines() if line.startswith(f"| `{name}` |"))
        found[table, name] = set(re.findall(r"`([^`]+)`", row.split("|")[4]))
    return found


def traits() -> set[str]:
    """Return what stores can hold beside fields: see `_look_at`."""
    text = PROTOCOL.read_text()
    types = text.split("\n## Types\n")[1].split("\n\n* A topic")[0]
    columns = {
        name
        for line in re.findall(r"^\| (`.*?) \|", types, re.MULTILINE)
        for name in re.findall(r"`([a-z0-9_]+)(?:\(p,s\))?`", line)
        if name != "type"
    }
    features = re.findall(r"^\| `([a-z0-9-]+)` \|", text.split("\n## Features\n")[1].split("\n## ")[0], re.MULTILINE)
    return {
        *(f"feature {name}" for name in features),
        *(f"column {name}" for name in columns),
        *(f"rows of {name} in a file" for name in columns),
        *(f"inline rows of {name}" for name in columns),
        *_TRAITS,
    }


_TRAITS = {
    # Every row of the table of names in "Layout".
    "name: topic metadata",
    "name: batch",
    "name: snapshot",
    "name: boundary",
    "name: clean",
    "name: segment index",
    "name: segment txnindex",
    "name: segment parquet",
    "name: run index",
    "name: run txnindex",
    "name: run parquet",
    "name: rows of a batch",
    "name: rows by Spark",
    "name: publication",
    "name: rows copied for a publication",
    "name: staged list",
    "name: erasure",
    "name: run of a clean-up job",
    # Where rows are.
    "inline rows as a stream",
    "inline rows as a zstd frame",
    "staged inline rows as a stream",
    "staged inline rows as a zstd frame",
    "data with files",
    "data with several files",
    "data with entries",
    "data with inline rows",
    "commit without rows",
    "commit with files",
    "commit with several files",
    "commit with entries",
    "commit with inline rows",
    "a file with several row groups",
    "a file without rows",
    "a file without ids of nested columns",
    # Statistics.
    "statistics without a bound",
    "statistics of a text that is cut",
    "statistics with nulls",
    # Producers.
    "a drawn producer",
    "a producer of a coordinator",
    "a batch without a producer",
    "a batch with epoch above 0",
    "an abort without rows",
    "an expire without producers",
    "a deletion",
    "five batches of a producer",
    # Transitions: each state, and records that imply a COMPLETE_*.
    "EMPTY after nothing",
    "EMPTY after COMPLETE_COMMIT",
    "ONGOING after EMPTY",
    "ONGOING after ONGOING",
    "ONGOING after PREPARE_COMMIT",
    "PREPARE_COMMIT after ONGOING",
    "PREPARE_COMMIT after EMPTY",
    "PREPARE_COMMIT after PREPARE_COMMIT",
    "PREPARE_ABORT after ONGOING",
    "COMPLETE_COMMIT after PREPARE_COMMIT",
    "COMPLETE_ABORT after PREPARE_ABORT",
    "a tombstone after EMPTY",
    "a tombstone after PREPARE_COMMIT",
    "a transaction that timed out",
    # Entries.
    *(f"tombstone of {name}" for name in ("transaction", "offset", "group")),
    "a pending offset in a snapshot",
    "a pending tombstone in a snapshot",
    "a heartbeat in a transaction",
    "a member of a group of one",
    "a group that its last member has left",
    # Defaults of added columns.
    *(f"default of type {name}" for name in ("bool", "int", "float", "str")),
    # Clean-up.
    "a merged run of generation 2",
    "a coalesced entry",
    "a batch that compaction emptied",
    "a topic created again",
    # Publications.
    "a publication without formats",
    "a publication of two formats",
}


def missing(seen: Seen) -> list[str]:
    """Return what PROTOCOL.md defines and the stores do not hold, one line each."""
    kinds = {name: kind for name, kind in vars(records).items() if isinstance(kind, type)}
    found = [
        f"field {table}.{name}"
        for table, cells in tables().items()
        for name in cells
        if (table, name) not in seen.fields
    ]
    shown_in_words = (
        "TransactionRow",
        "OffsetRow",
        "PendingOffsets",
        "GroupRow",
        "Heartbeat",
        "BatchMetadata",
        "RowRun",
        "OffsetRun",
    )
    for table in shown_in_words:
        stored = [each.encode_name for each in msgspec.structs.fields(kinds[table])]
        found += [f"field {table}.{name}" for name in stored if (table, name) not in seen.fields]
    for (table, name), values in enumerated().items():
        found += [f"value {table}.{name} = {value}" for value in sorted(values - seen.values.get((table, name), set()))]
    return [*found, *(f"trait {name}" for name in sorted(traits() - seen.traits))]


# -- what a store holds -----------------------------------------------------------------------------------------------


def _look_at(seen: Seen, path: str, data: bytes) -> None:
    kind = _kind_of(seen, path)
    if kind is not None:
        line, _, payload = data.partition(b"\n")
        raw = msgspec.json.decode(line)
        _walk(seen, mi.type_info(kind), raw)
        _look_into(seen, msgspec.json.decode(line, type=kind), payload)
    elif path.endswith(".parquet"):
        _look_at_parquet(seen, data)


def _kind_of(seen: Seen, path: str) -> Any:
    """Return the kind of a metadata object, and note its name; None for files of rows and those of other formats."""
    folder, _, name = path.rpartition("/")
    parts = path.split("/")
    if path == names.STORE_DESCRIPTOR:
        return records.StoreDescriptor
    if folder + "/" == names.ERASURES_FOLDER:
        return _named(seen, "erasure", records.Erasure)
    if folder + "/" == names.MAINTENANCE_FOLDER:
        return _named(seen, "run of a clean-up job", records.CleanupRun)
    if names.parse_topic_metadata_name(name) is not None:
        return _named(seen, "topic metadata", records.TopicMetadata)
    if names.parse_staged_list_name(name) is not None:
        return _named(seen, "staged list", records.StagedList)
    if len(parts) == 3 and parts[1] + "/" == names.PUBLICATION_FOLDER:
        if names.parse_published_copy_name(name) is not None:
            return _named(seen, "rows copied for a publication", None)
        return _named(seen, "publication", records.Publication)
    rows = names.parse_rows_path(path.partition("/")[2])
    if rows is not None:
        return _named(seen, "rows by Spark" if rows.staged else "rows of a batch", None)
    parsed = names.parse_partition_object(name)
    if isinstance(parsed, names.NumberedName):
        return _named(seen, parsed.kind, _KINDS[parsed.kind])
    if isinstance(parsed, names.SegmentObject):
        what = f"{'run' if parsed.segment.generation else 'segment'} {parsed.kind}"
        return _named(seen, what, _SEGMENT_KINDS.get(parsed.kind))
    return None


def _named(seen: Seen, name: str, kind: Any) -> Any:
    seen.traits.add(f"name: {name}")
    return kind


def _walk(seen: Seen, type_info: Any, raw: Any, at: tuple[str, str] = ("", "")) -> None:
    """Note each field, and each value of a field that may be enumerated, below a value as JSON has it."""
    if isinstance(raw, bool) or raw is None:
        seen.values.setdefault(at, set()).add({True: "true", False: "false", None: "null"}[raw])
    elif isinstance(raw, str):
        seen.values.setdefault(at, set()).add(raw)
    if isinstance(type_info, mi.Metadata):
        type_info = type_info.type
    if isinstance(type_info, mi.UnionType):
        options = [each for each in type_info.types if not isinstance(each, mi.NoneType)]
        structs = [each for each in options if isinstance(each, mi.StructType)]
        if isinstance(raw, dict) and len(structs) > 1:
            options = [each for each in structs if each.tag == raw.get("type")]
        if raw is not None and len(options) == 1:
            _walk(seen, options[0], raw, at)
    elif isinstance(type_info, mi.StructType):
        _walk_struct(seen, type_info, raw)
    elif isinstance(type_info, mi.VarTupleType | mi.ListType | mi.CollectionType):
        for item in raw:
            _walk(seen, type_info.item_type, item, at)
    elif isinstance(type_info, mi.DictType):
        for key, item in raw.items():
            _walk(seen, type_info.key_type, key, at)
            _walk(seen, type_info.value_type, item, at)


def _walk_struct(seen: Seen, type_info: mi.StructType, raw: Any) -> None:
    owner = type_info.cls.__name__
    stated = set(getattr(type_info.cls, "STATED", ()))
    if type_info.cls is records.StoreConstants:
        stated = set(records.StoreConstants.__struct_fields__)
    for number, each in enumerate(type_info.fields):
        if type_info.array_like:
            value = raw[number]
        elif each.encode_name in raw:
            value = raw[each.encode_name]
        else:
            continue
        default = each.default if each.default_factory is msgspec.NODEFAULT else each.default_factory()
        assumed = None if default in (msgspec.NODEFAULT, msgspec.UNSET) else msgspec.to_builtins(default)
        optional = not each.required and each.name not in stated
        if not optional or value != (list(assumed) if isinstance(assumed, tuple) else assumed):
            seen.fields.add((owner, each.encode_name))
        _walk(seen, each.type, value, (owner, each.encode_name))


def _look_into(seen: Seen, value: Any, payload: bytes) -> None:
    """Note the traits of one metadata object."""
    add = seen.traits.add
    match value:
        case records.StoreDescriptor():
            seen.traits |= {f"feature {name}" for name in value.features}
        case records.TopicMetadata():
            _look_at_schema(seen, value.schema)
            if value.deleted:
                seen.deleted.add((value.topic, value.number))
            elif (value.topic, value.number - 1) in seen.deleted:
                add("a topic created again")
        case records.CommitRecord():
            _look_at_record(seen, value, payload)
        case records.SegmentIndex():
            _look_at_index(seen, value)
        case records.Snapshot():
            seen.traits |= {"five batches of a producer" for each in value.producers if len(each.batches) == 5}
            for pending in value.pending:
                add("a pending offset in a snapshot")
                seen.traits |= {"a pending tombstone in a snapshot" for row in pending.rows if row.entry.value is None}
        case records.StagedList():
            _look_at_parts(seen, value.staged)
        case records.Clean():
            seen.traits |= {"a merged run of generation 2" for run in value.runs if run.generation == 2}
        case records.Publication():
            add("a publication without formats" if not value.formats else "")
            seen.traits |= {"a publication of two formats"} if len(value.formats) == 2 else set()


def _look_at_schema(seen: Seen, fields: Iterable[records.SchemaField]) -> None:
    for each in fields:
        seen.traits.add(f"column {each.type.partition('(')[0]}")
        if each.default is not msgspec.UNSET:
            seen.traits.add(f"default of type {type(each.default).__name__}")
        _look_at_schema(seen, each.fields)


def _look_at_record(seen: Seen, record: records.CommitRecord, payload: bytes) -> None:
    add, kind, pid = seen.traits.add, record.kind, record.producer_id
    if kind in ("data", "commit"):
        if not record.records:
            add(f"{kind} without rows")
        for what, there in (("files", record.files), ("entries", record.entries), ("inline rows", payload)):
            if there:
                add(f"{kind} with {what}")
        if len(record.files) > 1:
            add(f"{kind} with several files")
    if kind == "data":
        drawn = pid >= records.FIRST_DRAWN_PRODUCER_ID
        add("a drawn producer" if drawn else "a batch without a producer" if pid < 0 else "a producer of a coordinator")
        add("a batch with epoch above 0" if record.producer_epoch > 0 else "")
    if kind == "abort" and record.first_offset < 0:
        add("an abort without rows")
    if kind == "expire" and not record.expired:
        add("an expire without producers")
    if record.deleted_version:
        add("a deletion")
    if payload:
        _look_at_inline(seen, payload, "inline rows")
    _look_at_files(seen, record.files)
    for entry in record.entries:
        _look_at_entry(seen, entry, record)


def _look_at_entry(seen: Seen, entry: records.Entry, record: records.CommitRecord) -> None:
    add = seen.traits.add
    if isinstance(entry, records.HeartbeatEntry):
        add("a heartbeat in a transaction" if record.transactional else "")
        return
    if isinstance(entry, records.TransactionEntry):
        _look_at_transition(seen, entry)
    if entry.value is None:
        add(f"tombstone of {entry.__struct_config__.tag}")
    elif isinstance(entry, records.GroupEntry):
        add("a member of a group of one" if entry.value.member_id else "")
        add("" if entry.value.member_id or entry.value.members else "a group that its last member has left")


def _look_at_transition(seen: Seen, entry: records.TransactionEntry) -> None:
    value, before = entry.value, seen.states.get(entry.key, "nothing")
    now = "a tombstone" if value is None else value.state
    seen.states[entry.key] = now
    seen.traits.add(f"{now} after {before}")
    if value is not None:
        _look_at_parts(seen, value.staged)
        if now == "PREPARE_ABORT" and value.updated_at - value.started_at > value.timeout_ms:
            seen.traits.add("a transaction that timed out")


def _look_at_parts(seen: Seen, parts: Iterable[records.StagedPart]) -> None:
    for part in parts:
        _look_at_files(seen, part.files)
        if part.payload:
            _look_at_inline(seen, part.payload, "staged inline rows")


def _look_at_inline(seen: Seen, payload: bytes, what: str) -> None:
    is_frame = payload.startswith(_ZSTD)
    seen.traits.add(f"{what} as a {'zstd frame' if is_frame else 'stream'}")
    stream = pa.CompressedInputStream(pa.BufferReader(payload), "zstd").read() if is_frame else payload
    seen.traits |= {f"inline rows of {name}" for name in _types(pa.ipc.open_stream(stream).schema)}


def _look_at_index(seen: Seen, index: records.SegmentIndex) -> None:
    _look_at_files(seen, index.files)
    for entry in index.entries if index.generation else ():
        if not entry.records:
            seen.traits.add("a batch that compaction emptied")
        elif entry.producer_id < 0 and entry.records > 1:
            seen.traits.add("a coalesced entry")


def _look_at_files(seen: Seen, files: Iterable[records.DataFile]) -> None:
    for each in files:
        if len(each.row_groups) > 1:
            seen.traits.add("a file with several row groups")
        if not each.rows:
            seen.traits.add("a file without rows")
        for low, high, nulls in each.statistics.values():
            if low is None or high is None:
                seen.traits.add("statistics without a bound")
            if nulls:
                seen.traits.add("statistics with nulls")
            if isinstance(low, str) and len(low.encode()) == 32:
                seen.traits.add("statistics of a text that is cut")


def _look_at_parquet(seen: Seen, data: bytes) -> None:
    schema = pq.read_schema(pa.BufferReader(data))
    seen.traits |= {f"rows of {name} in a file" for name in _types(schema)}
    inner = [column.type.value_field for column in schema if pa.types.is_list(column.type)]
    if any(b"PARQUET:field_id" not in (each.metadata or {}) for each in inner):
        seen.traits.add("a file without ids of nested columns")


def _types(columns: Iterable[pa.Field[Any]]) -> Iterator[str]:
    """Yield the types of PROTOCOL.md that these columns and those in them have."""
    for column in columns:
        if column.name in ("_offset", "_timestamp"):
            continue
        kind = column.type
        if pa.types.is_map(kind):
            yield "map"
            yield from _types([kind.key_field, kind.item_field])
        elif pa.types.is_list(kind):
            yield "list"
            yield from _types([kind.value_field])
        elif pa.types.is_struct(kind):
            yield "struct"
            yield from _types(kind)
        elif pa.types.is_timestamp(kind):
            yield "timestamp" if kind.tz else "timestamp_ntz"
        else:
            yield "decimal" if pa.types.is_decimal(kind) else _ARROW.get(str(kind), str(kind))


_ARROW = {
    "float": "float32",
    "double": "float64",
    "date32[day]": "date",
}


if __name__ == "__main__":
    main()
