"""Read a txlog store in a local folder, from PROTOCOL.md alone. It never writes. One public class: Store."""
import hashlib
import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

Obj = dict[str, Any]
Key = tuple[str, str, int]  # group, topic, partition
FEATURES = {"txn-v2", "staged-commit", "staged-inline", "sorted-runs", "inline-zstd", "group-members", "schema-evolution",
            "publication", "published-latest", "deletion-records", "combined-records"}
STATES, OFFSETS, STAMP, MAX = "__transaction_state", "__consumer_offsets", pa.timestamp("us", tz="UTC"), 2**63 - 1
class Damaged(Exception):
    """The store holds an object that breaks the protocol (R2, R21)."""
class Missing(Damaged):
    """An object is not there, or a walk has a hole: list again, and what stays is damage (R5, R15)."""
class Unsupported(Exception):
    """The store needs a feature or a version that this reader does not know (R1)."""
class Unstable(Exception):
    """Offsets of the group are pending; the second argument has the others (Fetch, R16, R18)."""
def need(condition: object, where: str, what: str) -> None:
    """Report damage that names the object, unless the condition holds (R2)."""
    if not condition:
        raise Damaged(f"{where}: {what}")
def rises(keys: list[Any], strictly: bool = True) -> bool:
    """Tell whether the keys are in order, each once if `strictly`."""
    return all(a < b or (a == b and not strictly) for a, b in pairwise(keys))
# ---- metadata objects: CRC-32C, JSON, tables of fields ----
CRC = list(range(256))
for _ in range(8):
    CRC = [(c >> 1) ^ (0x82F63B78 if c & 1 else 0) for c in CRC]
def crc32c(data: bytes) -> int:
    """Return the CRC-32C of the bytes (Metadata objects)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = CRC[(crc ^ byte) & 255] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF
INTS = {"m1": (-1, MAX), "nat": (0, MAX), "count": (0, 2**48), "count1": (1, 2**48), "fid": (1, 2**31 - 1),
        "parts": (1, 10**5), "const": (1, 10**4), "time": (-1, 253402300799999), "bool": (False, True), "true": (True, True)}
PARTS = {"pair": ["text", "nat"], "stats": ["any", "any", "count"]}
TEXTS = {"text": "(?s:.*)", "name": "(?s:.{0,32768})", "id": "[0-9a-f]{32}", "digest": "[0-9a-f]{64}", "java": "java_string",
         "digest0": "([0-9a-f]{64})?", "kind": "data|commit|abort|log_start|expire", "outcome": "commit|abort",
         "txlog": "txlog", "unique": "[0-9a-f]{8,64}", "state": "EMPTY|ONGOING|(PREPARE|COMPLETE)_(COMMIT|ABORT)"}
# The fields of "Objects" that are used here: "names type default"; "!": damage if left out. "+Table" includes a table.
FIELDS = """Store: format txlog !; store_id id !; constants @Constants ! / Constants: hash java !;
transaction_state_partitions,consumer_offsets_partitions const ! / Topic: number,schema_id nat !; topic name !;
topic_id,write_id id !; partitions parts !; schema [@Field] !; created_at time !; deleted bool false; last_field_id fid null;
deleting bool false / Field: id fid !; name name !; type text !; nullable bool true; fields [@Field] []; default any null
/ Head: base_offset nat !; records count !; kind kind !; transactional bool !; timestamp time ! / Commit: +Head; more true false;
producer_id,producer_epoch,base_sequence,coordinator_epoch,first_offset,last_stable_offset,log_start_offset m1 -1;
segment_base nat !; schema_id,deleted_version nat 0; files [@File] []; payload_bytes count 0; entries [entry] []; write_id id !;
previous digest !; expired [nat] [] / Row: position nat !; entry @offset ! / GroupRow: position nat !; entry @group !
/ File: path name !; rows,bytes count !; digest digest? !; footer_digest digest !; row_groups [count] !;
statistics {stats} {} / transaction: key text !; value @Transaction? ! / Transaction: transactional_id text !;
producer_id,producer_epoch,timeout_ms nat !; last_epoch m1 -1; last_outcome outcome? null; state state !; partitions [pair] [];
staged [{any}] []; staged_object {any}? null; write_id id ! / offset: group,topic text !; partition nat !; value @OffsetValue? !
/ OffsetValue: offset nat ! / group: group text !; value {any}? ! / heartbeat: group,member_id text ! / Index: partition name !;
base_offset,end_offset nat !; generation,aborted_txns count !; files [@IndexFile] !; entries [@IndexEntry] !;
last_digest digest0 !; last_stable_offset nat 0; compacted {any} null / IndexFile: +File; schema_id nat !;
offset_column bool false; sorted_by [fid] [] / IndexEntry: +Head; producer_id,producer_epoch,base_sequence m1 !; file nat? !;
first_row count 0 / TxnIndex: partition name !; aborted [@Aborted] !
/ Aborted: producer_id,first_offset,last_offset,last_stable_offset nat ! / Snapshot: partition name !;
offset,log_start_offset nat !; last_timestamp time !; last_digest digest !; producers [@Producer] [];
transactions [@StateRow] []; committed [@Row] []; pending [@Pending] []; groups [@GroupRow] []
/ Producer: producer_id,producer_epoch nat !; last_offset,txn_first_offset m1 -1 / StateRow: offset nat !; value @Transaction !
/ Pending: producer_id nat !; rows [@Row] ! / Clean: number nat !; runs [@Run] !; superseded [@Superseded] []
/ Superseded: name name ! / Run: base_offset,end_offset nat !; generation count1 !; unique unique !"""
TABLES: dict[str, list[tuple[str, str, str]]] = {}
for _table, _fields in (text.split(": ", 1) for text in FIELDS.split("/ ")):
    for _names, *_rest in (part.split() for part in _fields.split(";")):
        _own = [(name, _rest[0], _rest[1]) for name in _names.split(",")] if _rest else TABLES[_names[1:]]
        TABLES[_table] = TABLES.get(_table, []) + _own
def check(kind: str, value: Any, where: str) -> Any:
    """Return the value, with defaults for fields that were left out, if it has the type and range of its table (R21, R4)."""
    if kind == "any" or (kind[-1] == "?" and value is None):
        return value
    kind = kind.rstrip("?")
    if kind == "entry" and isinstance(value, dict) and value.get("type") in ("transaction", "offset", "group", "heartbeat"):
        return {"type": value["type"]} | check("@" + value["type"], value, where)
    if kind[0] == "[" and isinstance(value, list):
        return [check(kind[1:-1], item, where) for item in value]
    if kind[0] == "{" and isinstance(value, dict):
        return {key: check(kind[1:-1], item, where) for key, item in value.items()}
    if kind[0] == "@" and isinstance(value, dict):
        lost = [name for name, _, default in TABLES[kind[1:]] if name not in value and default == "!"]
        need(not lost, where, f"has no {lost}")
        return {name: check(sort, value[name], f"{where}: {name}") if name in value else json.loads(default)
                for name, sort, default in TABLES[kind[1:]]}
    if kind in PARTS and isinstance(value, list) and len(value) == len(PARTS[kind]):
        return [check(sort, item, where) for sort, item in zip(PARTS[kind], value, strict=True)]
    ok: object = isinstance(value, str) and kind in TEXTS and re.fullmatch(TEXTS[kind], value)
    if kind in INTS:
        ok = type(value) is type(INTS[kind][0]) and INTS[kind][0] <= value <= INTS[kind][1]
    need(ok, where, f"{str(value)[:60]!r} is not of type {kind}")
    return value
def load(where: str, data: bytes, batch: bool = False) -> tuple[Obj, bytes, bytes]:
    """Check size, nesting, CRC; return the JSON object, its payload, and the records behind it (R2, Combined records)."""
    end, size, limit = data.find(b"\n"), len(data), 4 << 20 if batch else 64 << 20
    tail = re.fullmatch(rb',"crc32c":"([0-9a-f]{8})"\}', data[max(end - 21, 0) : max(end, 0)])
    need(tail and len(data) <= limit, where, f"its first line does not end in a CRC, or it has more than {limit} bytes")
    marks = re.sub(rb'"(?:[^"\\]|\\.)*"|[^][{}"]+|"', b"", data[:end])
    need(max(accumulate(1 if m in b"[{" else -1 for m in marks), default=0) <= 24, where, "it nests more than 24 levels deep")
    try:
        text = data[:end].decode()
        value = json.loads(text, parse_constant=lambda name: need(False, where, f"{name} is not JSON"))
        if "\\u" in text:  # half a surrogate pair cannot be encoded; the list of pairs also holds keys that are repeated
            json.dumps(json.loads(text, object_pairs_hook=list), ensure_ascii=False).encode()
    except ValueError as error:
        raise Damaged(f"{where}: {error}") from error
    if batch and isinstance(value, dict) and value.get("more") is True:  # what the CRC covers is known only now
        size = end + 1 + check("count", value.get("payload_bytes", 0), where)
        need(size < len(data), where, "has more, but no record follows")
    need(tail and int(tail[1], 16) == crc32c(data[: end - 10] + b"00000000" + data[end - 2 : size]), where, "another CRC-32C")
    if check("count1", value.get("version") if isinstance(value, dict) else None, where) > 1:
        raise Unsupported(f"{where}: version {value['version']} is not known")
    return value, data[end + 1 : size], data[size:]
OFF, NUM, UNIQUE = "([0-9]{20})", "(?:0|[1-9][0-9]*)", "[0-9a-f]{8,64}"
NAME = re.compile(rf"{OFF}(?:-{OFF}-0\.(index)|\.(batch|snapshot|boundary|clean))")
TOPIC = re.compile(r"(?!\.\.?$)(?!__)[a-zA-Z0-9._-]{1,249}")
def check_files(files: list[Obj], partition: int, where: str, sealed: bool = False) -> int:
    """Check that data files can belong to the partition, and their row groups; return their rows (Layout, R3, R21)."""
    names = rf"{partition}/rows/{NUM}-{NUM}-{UNIQUE}\.parquet" + (rf"|{partition}/{OFF}-{OFF}-{NUM}-{UNIQUE}\.parquet" * sealed)
    names += rf"|staged/{NUM}-{NUM}-{UNIQUE}/_partition={partition}/[a-zA-Z0-9][a-zA-Z0-9._=-]{{0,200}}\.parquet"
    for file in files:
        right = re.fullmatch(names, file["path"]) and sum(file["row_groups"]) == file["rows"]
        need(right, where, f"file {file['path'][:100]!r} is not of this partition, or its row groups do not hold its rows")
    return sum(file["rows"] for file in files)
def java_hash(text: str, modulus: int) -> int:
    """Return the partition of an id or a group (Store descriptor: hash)."""
    value = 0
    for unit in memoryview(text.encode("utf-16-le")).cast("H"):
        value = (31 * value + unit) & 0xFFFFFFFF
    return (0 if value == 2**31 else min(value, 2**32 - value)) % modulus
# ---- topics and columns ----
SCALARS: dict[str, pa.DataType] = {"bool": pa.bool_(), "int8": pa.int8(), "int16": pa.int16(), "int32": pa.int32(),
           "int64": pa.int64(), "float32": pa.float32(), "float64": pa.float64(), "string": pa.string(), "binary": pa.binary(),
           "date": pa.date32(), "timestamp": STAMP, "timestamp_ntz": pa.timestamp("us")}
NESTED: dict[str, Any] = {"list": pa.types.is_list, "map": pa.types.is_map, "struct": pa.types.is_struct}
CHILDREN = {"list": ["element"], "map": ["key", "value"]}
def digits(name: str) -> tuple[int, int] | None:
    """Return precision and scale of a decimal type (Types)."""
    found = re.fullmatch(r"decimal\(([1-9][0-9]?),(0|[1-9][0-9]?)\)", name)
    return (int(found[1]), int(found[2])) if found and int(found[2]) <= int(found[1]) <= 38 else None
def arrow_type(column: Obj) -> Any:
    """Return the Arrow type of a schema's field (Types)."""
    kids, size = [pa.field(kid["name"], arrow_type(kid), kid["nullable"]) for kid in column["fields"]], digits(column["type"])
    if kids:
        return pa.struct(kids) if column["type"] == "struct" else pa.map_(*kids) if kids[1:] else pa.list_(*kids)
    return pa.decimal128(*size) if size else SCALARS[column["type"]]
def default(column: Obj) -> Any:
    """Return the default of an added column, or null (Changed columns)."""
    value, goal = column["default"], arrow_type(column)
    value = bytes.fromhex(value) if goal == pa.binary() and value is not None else value
    return pa.scalar(value).cast(goal) if pa.types.is_decimal(goal) else pa.scalar(value, goal)
def check_schema(columns: list[Obj], where: str) -> list[Obj]:
    """Check the columns of a version, or the fields of one; return them with those nested in them (Types)."""
    out: list[Obj] = []
    for column in columns:
        name, kind, kids = column["name"], column["type"], column["fields"]
        right = (kids or kind in SCALARS or digits(kind)) and bool(kids) == (kind in NESTED)
        right = right and (kind not in CHILDREN or [kid["name"] for kid in kids] == CHILDREN[kind])
        need(right and (column["default"] is None or column["nullable"]), where, f"column {name[:50]!r} is not possible")
        out += [column, *check_schema(kids, where)]
    return out
def field_id(column: Any) -> int | None:
    """Return a column's id (Parquet files)."""
    raw = int((column.metadata or {}).get(b"PARQUET:field_id", b"-1"))
    return raw if raw >= 0 else None
def kids_of(kind: pa.DataType) -> list[Any]:
    """Return the fields of a nested type."""
    if pa.types.is_map(kind):
        return [kind.key_field, kind.item_field]
    return list(kind) if pa.types.is_struct(kind) else [kind.value_field] if pa.types.is_list(kind) else []
def same(found: Any, column: Obj, ids: bool, place: bool = False) -> bool:
    """Tell whether a file's column is the topic's, by id, name and type, or by its place (R14, R21: Rows against the topic)."""
    kind, kids, fields, own = found.type, kids_of(found.type), column["fields"], field_id(found)
    if (ids and own != column["id"] and not (place and own is None)) or (found.name != column["name"] and not place):
        return False
    if fields:
        right = NESTED[column["type"]](kind) and len(kids) == len(fields)
        return right and all(same(k, f, ids, column["type"] in CHILDREN) for k, f in zip(kids, fields, strict=True))
    return bool(kind == arrow_type(column))
def convert(array: Any, old: Obj, want: Obj, floor: int, valid: Any) -> Any:
    """Return a column in the type of the reader's; `floor`: highest field id of the rows' version (R14, Changed columns)."""
    goal, fields, wants, gone = arrow_type(want), old["fields"], want["fields"], array.is_null()
    need(old["nullable"] or array.filter(valid).null_count == 0, "rows", f"column {old['name']} has nulls")
    if want["type"] == "struct":
        kids = {f["id"]: (array.field(n), f) for n, f in enumerate(fields)}
        return pa.StructArray.from_arrays(columns(kids, wants, floor, pc.invert(gone)), fields=list(goal), mask=gone)
    if want["type"] not in CHILDREN:
        return array.cast(goal)
    inner = [array.keys, array.items] if want["type"] == "map" else [array.values]
    inner = [convert(a, f, w, floor, pa.repeat(True, len(a))) for a, f, w in zip(inner, fields, wants, strict=True)]
    return getattr(pa, f"{want['type'].title()}Array").from_arrays(pc.add(array.offsets, 0), *inner, type=goal, mask=gone)
def columns(have: dict[int, tuple[Any, Obj]], wants: list[Obj], floor: int, valid: Any) -> list[Any]:
    """Return the reader's columns, or fields of a struct, from those of the rows (R14, Changed columns)."""
    need(all(w["id"] in have or w["id"] > floor for w in wants), "rows", "their version lacks a column that is not new")
    return [convert(*have[w["id"]], w, floor, valid) if w["id"] in have else pa.repeat(default(w), len(valid)) for w in wants]
def resolve(table: pa.Table, versions: list[Obj], number: int, where: str) -> list[Any]:
    """Return the rows of a version of the topic in its current columns (R14, R21: Rows against the topic)."""
    need(number < len(versions) and versions[number]["topic_id"] == versions[-1]["topic_id"], where, f"no version {number}")
    table.validate(full=True)  # strings are UTF-8, and decimals have their digits
    ids, version, have = any(field_id(column) is not None for column in table.schema), versions[number], dict[int, Any]()
    allowed = versions[number:] if versions[-1]["last_field_id"] is None else [version]  # columns were only added, or changed
    for column, data in zip(table.schema, table.columns, strict=True):
        if field_id(column) is not None if ids else column.name not in ("_offset", "_timestamp"):
            match = next((c for v in allowed for c in v["schema"] if same(column, c, ids)), {"id": 0})
            need(match["id"] and match["id"] not in have, where, f"column {column.name} is not the topic's, or is twice")
            have[match["id"]] = (pa.concat_arrays(data.chunks) if data.chunks else pa.array([], column.type), match)
    have = {c["id"]: (pa.nulls(len(table), arrow_type(c)), c) for c in version["schema"]} | have  # need() in convert()
    return columns(have, versions[-1]["schema"], version["floor"], pa.repeat(True, len(table)))
def inline_rows(data: bytes, records: int, where: str) -> pa.Table:
    """Decode inline rows (R14, Parquet files)."""
    if data[:4] == b"\x28\xb5\x2f\xfd":
        data = pa.CompressedInputStream(pa.BufferReader(data), "zstd").read((3 << 20) + 1)
        need(len(data) <= 3 << 20 and records <= 65536, where, "inline rows expand too far")
    need(data[:4] == b"\xff" * 4 and records <= 8 * len(data), where, "inline rows are not an Arrow stream")
    for message in pa.ipc.MessageReader.open_stream(data):
        need(message.type in ("schema", "record batch"), where, f"inline rows have a {message.type}")
    table = pa.ipc.open_stream(data).read_all()
    need(len(table) == records, where, f"inline rows are {len(table)}, not {records}")
    return table
def parquet_rows(data: bytes, f: Obj, where: str) -> pa.Table:
    """Check a Parquet file and decode it (R13, R21: Parquet file)."""
    footer = hashlib.sha256(data[-8 - int.from_bytes(data[-8:-4], "little") :]).hexdigest()
    right = len(data) == f["bytes"] and f["digest"] in (None, hashlib.sha256(data).hexdigest()) and footer == f["footer_digest"]
    need(right, where, "another length, footer or digest")
    file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
    parts = [file.read_row_group(n) for n in range(file.num_row_groups)]
    need([len(part) for part in parts] == f["row_groups"], where, "other row groups")
    parts = [part.sort_by("_offset") for part in parts] if f.get("sorted_by") else parts
    table = pa.concat_tables([file.schema_arrow.empty_table(), *parts])
    if f.get("offset_column"):
        offsets, stamps = table["_offset"], table["_timestamp"]
        whole = offsets.type == pa.int64() and stamps.type == STAMP and offsets.null_count + stamps.null_count == 0
        need(whole and rises(offsets.to_pylist()), where, "_offset or _timestamp has another type or nulls, or does not rise")
    return table
# ---- a partition: its list, its fold and its walk ----
def by_key(rows: list[Obj]) -> dict[Key, Obj]:
    """Return rows of `committed`, `pending` or `groups` by key (Partition state)."""
    return {(e["group"], e.get("topic", ""), e.get("partition", -1)): r for r in rows for e in [r["entry"]]}
class View:
    """A partition as one LIST shows it, with the fold of its chain (Opening a partition, Partition state)."""
    def __init__(self, topic: str, partition: int) -> None:
        self.topic, self.partition, self.label = topic, partition, f"{topic}-{partition}"
        self.digest, self.timestamp, self.segment = hashlib.sha256(self.label.encode()).hexdigest(), -1, -1
        self.runs, self.gone, self.gen0 = list[Obj](), set[str](), list[tuple[int, int]]()  # of .clean and .index
        self.end, self.log_start, self.sealed, self.tail = 0, 0, 0, list[Obj]()  # tail: the records from the sealed end on
        self.producers, self.transactions = dict[int, Obj](), dict[str, Obj]()  # tables of a snapshot, by key
        self.committed, self.pending, self.groups = dict[Key, Obj](), dict[int, dict[Key, Obj]](), dict[Key, Obj]()
    @property
    def lso(self) -> int:
        """Return the last stable offset (Partition state: LSO)."""
        held = [p["txn_first_offset"] for p in self.producers.values() if p["last_offset"] >= self.log_start]
        return max(self.log_start, min([first for first in held if first >= 0], default=self.end))
    def restore(self, snap: Obj, where: str) -> None:
        """Take the state of a snapshot (R21: Snapshot)."""
        lists = [snap["committed"], snap["groups"], *[p["rows"] for p in snap["pending"]]]
        keys = [[p["producer_id"] for p in snap["producers"]], *[[key for r in rows for key in by_key([r])] for rows in lists]]
        offsets = [r["position"] for rows in lists for r in rows] + [p["last_offset"] for p in snap["producers"]]
        right = all(map(rises, keys)) and max([snap["log_start_offset"] - 1, *offsets]) < snap["offset"]
        need(right and all(r["entry"]["value"] for rows in lists[:2] for r in rows), where, "a table is not possible")
        for t in snap["transactions"]:
            self.transact(t["value"]["transactional_id"], t["value"], where)
        self.producers, self.digest = {p["producer_id"]: p for p in snap["producers"]}, snap["last_digest"]
        self.committed, self.groups = by_key(snap["committed"]), by_key(snap["groups"])
        self.pending = {p["producer_id"]: by_key(p["rows"]) for p in snap["pending"]}
        self.end, self.log_start, self.timestamp = snap["offset"], snap["log_start_offset"], snap["last_timestamp"]
    def transact(self, key: str, value: Obj | None, where: str) -> None:
        """Set or remove a row of the transaction-state table (Partition state, R21)."""
        self.transactions = {k: v for k, v in (self.transactions | {key: value or {}}).items() if v}
        if value is not None and value["state"] not in ("EMPTY", "ONGOING"):
            ends = (value["last_epoch"] + 1, value["last_outcome"])
            need(ends == (value["producer_epoch"], value["state"].split("_")[1].lower()), where, f"{key} ends in another way")
        need(value is None or value["transactional_id"] == key, where, f"{key} is not the transactional_id")
    def commit(self, rows: dict[Key, Obj]) -> None:
        """Commit offsets at the positions of the records that sent them (Partition state)."""
        for key, row in rows.items():
            if key not in self.committed or self.committed[key]["position"] <= row["position"]:
                self.committed[key] = row
                if row["entry"]["value"] is None:
                    del self.committed[key]
                    for pid, waits in self.pending.items():
                        self.pending[pid] = {k: w for k, w in waits.items() if k != key or w["position"] > row["position"]}
    def apply(self, r: Obj, where: str) -> None:
        """Fold one record in (Partition state)."""
        base, pid, kind, end = r["base_offset"], r["producer_id"], r["kind"], r["base_offset"] + max(r["records"], 1)
        if pid >= 0:
            was = self.producers.get(pid, {"txn_first_offset": -1, "last_offset": -1})
            first = -1 if kind != "data" else was["txn_first_offset"]
            lower = 0 <= r["first_offset"] < min(was["txn_first_offset"], self.log_start)
            right = kind != "abort" or lower or r["first_offset"] == was["txn_first_offset"]
            need(right, where, "first_offset is not the transaction's")
            if kind == "data" and (r["transactional"] if first < 0 else was["last_offset"] < self.log_start):
                first = base
            self.producers[pid] = {"producer_epoch": r["producer_epoch"], "last_offset": end - 1, "txn_first_offset": first}
            ended = self.pending.pop(pid, {}) if kind != "data" else {}
            self.commit(ended if kind == "commit" else {})
        for position, entry in enumerate(r["entries"], base):
            row = by_key([{"position": position, "entry": entry}]) if entry["type"] in ("offset", "group") else {}
            if entry["type"] == "transaction":
                self.transact(entry["key"], entry["value"], where)
            elif entry["type"] == "group":
                self.groups = {k: g for k, g in (self.groups | row).items() if k not in row or entry["value"]}
            elif kind == "data" and r["transactional"] and row:
                self.pending[pid] = self.pending.get(pid, {}) | row
            else:
                self.commit(row)
        self.log_start = max(self.log_start, min(r["log_start_offset"], end))
        self.producers = {k: p for k, p in self.producers.items() if k not in r["expired"]}
        self.pending = {k: rows for k, rows in self.pending.items() if k not in r["expired"]}
        self.end, self.timestamp, self.segment = end, r["timestamp"], r["segment_base"]
        need(kind != "abort" or r["last_stable_offset"] <= self.lso, where, "last_stable_offset is above the fold's")
OWN = {"coordinator_epoch": "commit abort", "first_offset": "abort", "last_stable_offset": "abort", "expired": "expire",
       "log_start_offset": "log_start", "deleted_version": "log_start", "more": "data commit abort"}
SORTS = {STATES: {"transaction"}, OFFSETS: {"offset", "group", "heartbeat"}}
def check_record(r: Obj, view: View, where: str) -> None:
    """Check a commit record, and that it follows the one before (R6, R21: Commit record)."""
    kind, pid, marker, inline = r["kind"], r["producer_id"], r["kind"] in ("commit", "abort"), r["payload_bytes"] > 0
    rows = check_files(r["files"], view.partition, where) + len(r["entries"]) + r["records"] * inline
    right = {e["type"] for e in r["entries"]} <= SORTS.get(view.topic, set())
    right = right and not (view.topic in SORTS and (r["files"] or inline))
    right = right and rows == r["records"] and bool(r["files"]) + inline + bool(r["entries"]) == (rows > 0)
    need(right and (rows > 0 if kind == "data" else rows == 0 or kind == "commit"), where, f"a {kind} with such rows")
    right = all(kind in kinds or r[name] in (-1, 0, []) for name, kinds in OWN.items()) and r["first_offset"] < r["base_offset"]
    right = right and (kind != "log_start" or r["log_start_offset"] >= 0) and (kind != "abort" or r["last_stable_offset"] >= 0)
    right = right and (pid < 0) == (r["producer_epoch"] < 0) and (pid >= 0 or not (r["transactional"] or marker))
    right = right and (r["transactional"] if marker else kind == "data" or pid < 0)
    need(right and (r["base_sequence"] < 0 or (kind == "data" and pid >= 0)), where, f"a field of this {kind} is not possible")
    right = r["payload_bytes"] == len(r["payload"]) and r["base_offset"] == view.end and r["previous"] == view.digest
    right = right and r["timestamp"] >= view.timestamp and r["segment_base"] in (view.segment, view.end)[: 1 + r["first"]]
    need(right and (r["first"] or kind in OWN["more"]), where, "does not follow the one before, or has other payload_bytes")
def check_index(x: Obj, where: str, span: tuple[int, int, int], view: View) -> None:
    """Check an index (R8, R21: Index)."""
    (base, end, _), old, files, entries = span, span[2] > 0, x["files"], x["entries"]
    right = (x["partition"], x["base_offset"], x["end_offset"], x["generation"]) == (view.label, *span) and base < end
    need(right and (x["last_digest"] == "") == old and x["last_stable_offset"] <= end, where, "is not what its name says")
    check_files(files, view.partition, where, True)
    inline = len(files) - 1 if files and files[-1]["offset_column"] and not old else -1
    right = all(f["offset_column"] == (old or n == inline) and not (f["sorted_by"] and not old) for n, f in enumerate(files))
    stops = [base, *[e["base_offset"] + max(e["records"], 1) for e in entries]]
    gaps = [b - a for a, b in zip(stops, [*[e["base_offset"] for e in entries], end], strict=True)]
    right = right and min(gaps) >= 0 and (old or max(gaps) == 0) and rises([e["timestamp"] for e in entries], False)
    need(right and (old or not x["compacted"]), where, "offset_column, compacted, offsets or times are not possible")
    place = [0, 0]  # rows taken of the files, and of the file of inline rows of generation 0, which is counted apart
    for e in entries:
        n, rows, first, aside = e["file"], e["records"], e["first_row"], e["file"] == inline
        right = (n is None) == (rows == 0 or view.topic in SORTS) and (rows == 0 or e["kind"] in ("data", "commit"))
        before = 0 if aside else sum(f["rows"] for f in files[: n or 0])
        right = right and (n is None or (n < len(files) and before + first == place[aside]))
        need(right, where, "entries do not take rows in order")
        place[aside] += rows if n is not None else 0
    need(sum(place) == sum(f["rows"] for f in files), where, "entries do not use all rows")
def again(method: Callable[..., Any]) -> Callable[..., Any]:
    """List again if an object is missing, because the LIST may have raced (R5, R15)."""
    def call(*args: Any, **kwargs: Any) -> Any:
        for _ in range(2):
            with suppress(Missing):
                return method(*args, **kwargs)
        return method(*args, **kwargs)
    return call
class Store:
    """A store in a local folder, opened to be read. Each call lists again, so it answers from a fresh tail (R17)."""
    def __init__(self, path: str) -> None:
        self.root = path  # no step needs a clock, because each call lists again after its last record (R7, R9)
        features = set(check("[text]", load("txlog.json", self._get("txlog.json"))[0].get("features"), "txlog.json"))
        if features - FEATURES:
            raise Unsupported(f"txlog.json: features {sorted(features - FEATURES)} are not known")
        constants = self._object("txlog.json", "Store")["constants"]
        self.parts = {STATES: constants["transaction_state_partitions"], OFFSETS: constants["consumer_offsets_partitions"]}
    def _get(self, path: str) -> bytes:
        """Return a whole object."""
        try:
            return Path(self.root, path).read_bytes()
        except (FileNotFoundError, NotADirectoryError) as error:
            raise Missing(f"{path}: is missing") from error
    def _object(self, path: str, table: str) -> Obj:
        """Return a metadata object other than a commit record."""
        value, rest, _ = load(path, self._get(path))
        need(not rest, path, "bytes follow the line")
        return dict(check("@" + table, value, path))
    def _list(self, folder: str) -> list[str]:
        """Return the names in a folder; a folder that is not there is empty."""
        path = Path(self.root, folder)
        return sorted(p.name for p in path.iterdir()) if path.is_dir() else []
    def _versions(self, topic: str) -> list[Obj]:
        """Return the versions of a topic; the last one counts (Topic metadata, R21: Topic version)."""
        found, versions = (re.fullmatch(rf"topic\.{OFF}\.json", name) for name in self._list(topic)), list[Obj]()
        for number in range(max((int(m[1]) for m in found if m), default=-1) + 1):
            path = f"{topic}/topic.{number:020}.json"
            now = self._object(path, "Topic")
            right = (now["number"], now["topic"]) == (number, topic) and now["schema_id"] <= number
            every, last = check_schema(now["schema"], path), now["last_field_id"]
            right = right and len({c["id"] for c in every}) == len(every)
            right = right and all(c["default"] is None if last is None else c["id"] <= last for c in every)
            need(right, path, "is not what its name says, or its ids, defaults or last_field_id are not possible")
            versions.append(now | {"floor": last or max(c["id"] for c in every)})
        return versions
    def _view(self, topic: str, partition: int) -> View:
        """List a partition and fold it up to its end (Opening a partition, R5, R6, R7)."""
        view, folder, begins = View(topic, partition), f"{topic}/{partition}", set[int]()
        marks: dict[str, list[int]] = {"batch": [], "snapshot": [], "boundary": [], "clean": []}
        for m in filter(None, map(NAME.fullmatch, self._list(folder))):
            if int(m[1]) < int(m[2] or MAX + 1) <= MAX + (m[2] is None):  # else the name does not parse (Layout)
                marks[m[4]].append(int(m[1])) if m[4] else view.gen0.append((int(m[1]), int(m[2])))
        if marks["clean"]:
            path = f"{folder}/{max(marks['clean']):020}.clean"
            clean = self._object(path, "Clean")
            view.runs, view.gone = clean["runs"], {s["name"] for s in clean["superseded"]}
            right = rises([r[edge] for r in view.runs for edge in ("base_offset", "end_offset")], False)
            need(right and clean["number"] == max(marks["clean"]), path, "its number or its runs are not possible")
        run_end, seal = max([0, *[r["end_offset"] for r in view.runs]]), max([(0, 0), *view.gen0], key=lambda g: g[1])
        view.sealed = max([*marks["boundary"], run_end, seal[1]])
        start = max((s for s in marks["snapshot"] if s <= view.sealed), default=0)
        need(start >= max(marks["boundary"], default=0), folder, "no snapshot at or above the highest boundary")
        if start:
            path = f"{folder}/{start:020}.snapshot"
            snap = self._object(path, "Snapshot")
            need((snap["partition"], snap["offset"]) == (view.label, start), path, "is not what its name says")
            view.restore(snap, path)
        if seal[1] == start > run_end:
            path, x = self._index(view, *seal)
            need(x["last_digest"] == view.digest and x["last_stable_offset"] <= view.lso, path, "contradicts the snapshot")
        while True:
            path = f"{folder}/{view.end:020}.batch"
            try:
                data, where, more = self._get(path), path, True
            except Missing:
                later = [int(m[1]) for m in map(NAME.fullmatch, self._list(folder)) if m and m[4] == "boundary"]
                if max([view.sealed, *marks["batch"], *later]) > view.end:
                    raise  # a hole, or a boundary that has risen meanwhile (R5, R7)
                break
            begins.add(view.end)
            while more:
                value, payload, rest = load(where, data, True)
                r = check("@Commit", value, where) | {"payload": payload, "path": where, "first": where == path}
                check_record(r, view, where)
                view.tail += [r] if view.end >= view.sealed else []
                view.apply(r, where)
                view.digest = hashlib.sha256(data[: len(data) - len(rest)]).hexdigest()
                data, where, more = rest, f"{path}: record at {view.end}", r["more"]
        lost = [f"{folder}/{s:020}.batch" for s in marks["batch"] if s >= start and s not in begins]
        need(not lost and view.sealed in {*begins, start, view.end}, folder, f"no object begins at {lost or view.sealed}")
        return view
    def _index(self, view: View, base: int, end: int, run: Obj | None = None) -> tuple[str, Obj]:
        """Read and check an index; return its path without .index too (R8)."""
        path = f"{view.topic}/{view.partition}/{base:020}-{end:020}-" + (f"{run['generation']}-{run['unique']}" if run else "0")
        x = self._object(f"{path}.index", "Index")
        check_index(x, path, (base, end, run["generation"] if run else 0), view)
        return path, x
    def _walk(self, view: View) -> list[tuple[str, Obj]]:
        """Return the segments and runs from the log start to the sealed end (The chain rule, R5, R21: Walk, .clean)."""
        runs, start, out = {r["base_offset"]: r for r in view.runs}, view.log_start, list[tuple[str, Obj]]()
        spans = [(r["base_offset"], r["end_offset"]) for r in view.runs] + view.gen0
        first = at = next((base for base, end in spans if base <= start < end), max(start, view.sealed))
        while at < view.sealed:
            ends = [runs[at]["end_offset"]] if at in runs else [end for base, end in view.gen0 if base == at]
            if len(ends) != 1:
                raise Missing(f"{view.label}: {len(ends)} segments begin at {at}")
            out.append(self._index(view, at, ends[0], runs.get(at)))
            at = ends[0]
        right = {r["base_offset"] for r in view.runs if r["end_offset"] > first} <= {x["base_offset"] for _, x in out}
        right = right and not view.gone & {path.split("/")[-1] + ".index" for path, _ in out} and at == max(first, view.sealed)
        need(right, view.label, "the .clean contradicts the walk")
        return out
    def _search(self, view: View, start: int, end: int) -> list[tuple[int, int, int]]:
        """Return the aborted transactions of a range, until the search is complete (Reading, R8, R10)."""
        rows: list[Obj] = []
        for path, x in self._walk(view):
            if x["end_offset"] > start and x["aborted_txns"]:
                t = self._object(f"{path}.txnindex", "TxnIndex")
                ends = [x["base_offset"] - 1, *[a["last_offset"] for a in t["aborted"]], x["end_offset"]]
                right = t["partition"] == view.label and len(ends) == x["aborted_txns"] + 2 and rises(ends)
                right = right and all(a["first_offset"] < a["last_offset"] >= a["last_stable_offset"] - 1 for a in t["aborted"])
                right = right and rises([a["last_stable_offset"] for a in t["aborted"]], False)
                marks = {(e["base_offset"], e["producer_id"]) for e in x["entries"] if e["kind"] == "abort"}
                right = right and (x["generation"] > 0 or {(a["last_offset"], a["producer_id"]) for a in t["aborted"]} <= marks)
                need(right, f"{path}.txnindex", "is not that of its index, or an entry is not possible")
                rows += t["aborted"]
            if x["end_offset"] > start and x["last_stable_offset"] >= end:
                break
        else:
            rows += [r | {"last_offset": r["base_offset"]} for r in view.tail if r["first_offset"] >= 0]
        found = [a for a in rows if a["last_offset"] >= start and a["first_offset"] < end]
        return [(a["producer_id"], a["first_offset"], a["last_offset"]) for a in found]
    def _batches(self, view: View) -> Iterator[Obj]:
        """Yield the batches with rows from the segment of the log start on; their rows lie below "end" (The chain rule)."""
        for _, x in self._walk(view):
            stops = [*[e["base_offset"] for e in x["entries"][1:]], x["end_offset"]]
            for e, stop in zip(x["entries"], stops, strict=False):  # a run may have no entry
                if e["records"]:
                    yield e | {"end": stop, "files": x["files"][e["file"] :], "run": x["generation"] > 0}
        for r in view.tail:
            files = r["files"] or [{"path": r["path"], "rows": r["records"], "payload": r["payload"]}]
            files = [f | {"schema_id": r["schema_id"]} for f in files]
            if r["records"]:
                yield r | {"end": r["base_offset"] + r["records"], "files": files, "run": False, "first_row": 0}
    def _rows(self, b: Obj, versions: list[Obj], topic: str, done: dict[str, Any]) -> Iterator[Any]:
        """Yield the rows of a batch, with their offsets and times (R13, R14, R21: Parquet file)."""
        names, left, row, at = [c["name"] for c in versions[-1]["schema"]], b["records"], b["first_row"], b["base_offset"]
        stamp = pa.scalar(b["timestamp"] * 1000, pa.int64()).cast(STAMP)
        for f in b["files"]:
            path, own = f["path"], ["_offset", "_timestamp"] if f.get("offset_column") else []
            if path not in done:
                data = f.get("payload") or self._get(f"{topic}/{path}")
                try:
                    raw = inline_rows(data, left, path) if "payload" in f else parquet_rows(data, f, path)
                    rows = resolve(raw, versions, f["schema_id"], path)
                    done[path] = pa.Table.from_arrays([*[raw[n] for n in own], *rows], names=own + names)
                except (ValueError, TypeError, OSError, KeyError, pa.ArrowException) as error:
                    raise Damaged(f"{path}: {error}") from error
            piece = done[path].slice(row, min(left, f["rows"] - row))
            here = [pa.array(range(at, at + len(piece)), pa.int64()), pa.repeat(stamp, len(piece))]  # type: ignore[call-overload]
            if not own:
                piece = pa.Table.from_arrays(here + piece.columns, names=["_offset", "_timestamp", *names])
            right = b["run"] or piece["_timestamp"].combine_chunks().equals(here[1])
            offsets = zip(piece["_offset"].to_pylist(), range(at, at + len(piece)), strict=True)
            right = right and all(a == z or (b["run"] and z <= a < b["end"]) for a, z in offsets)
            need(right, path, f"_offset or _timestamp is not that of the entry at {b['base_offset']}")
            left, row, at = left - len(piece), 0, at if b["run"] else at + len(piece)
            yield piece
            if not left:
                return
        raise Damaged(f"{topic}: the files of the batch at {b['base_offset']} do not hold its rows")
    def _user(self, topic: str, partition: int) -> View:
        """Return the view of a partition of a user's topic."""
        if not 0 <= partition < self.topics().get(topic, 0):
            raise LookupError(f"{topic}-{partition} is not a partition of the store")
        return self._view(topic, partition)
    def topics(self) -> dict[str, int]:
        """Return the users' topics that are not deleted, with their numbers of partitions (Topics)."""
        found = {name: self._versions(name)[-1:] for name in self._list("") if TOPIC.fullmatch(name)}
        return {name: v["partitions"] for name, last in found.items() for v in last if not v["deleted"]}
    def ends(self, topic: str, partition: int) -> tuple[int, int, int]:
        """Return log start, LSO and log end (Words, Partition state)."""
        view = self._user(topic, partition)
        return view.log_start, view.lso, view.end
    def aborted(self, topic: str, partition: int) -> list[tuple[int, int, int]]:
        """Return the aborted transactions between the log start and the LSO (Reading)."""
        view = self._user(topic, partition)
        return self._search(view, view.log_start, view.lso)
    def read(self, topic: str, partition: int, isolation: str = "read_committed", start: int | None = None,
             end: int | None = None) -> pa.Table:
        """Return the rows of a range in the topic's current columns (Reading, R10, R11, R12)."""
        view, committed = self._user(topic, partition), {"read_committed": True, "read_uncommitted": False}[isolation]
        versions, low, done = self._versions(topic), view.log_start if start is None else start, dict[str, pa.Table]()
        if not view.log_start <= low <= view.end:
            raise IndexError(f"offset {low} of {topic}-{partition} is not in [{view.log_start}, {view.end}]")
        high = min(view.end if end is None else end, view.lso if committed else view.end)
        wanted = [("_offset", pa.int64()), ("_timestamp", STAMP), *[(c["name"], arrow_type(c)) for c in versions[-1]["schema"]]]
        pieces = [pa.schema(wanted).empty_table()]
        aborted = self._search(view, low, high) if committed and low < high else []
        for b in self._batches(view) if low < high else ():
            gone = any(p == b["producer_id"] and a <= b["base_offset"] <= z for p, a, z in aborted) and b["kind"] == "data"
            if b["end"] > low and b["base_offset"] < high and not (gone and b["transactional"] and not b["run"]):
                pieces.extend(self._rows(b, versions, topic, done))
        rows = pa.concat_tables(pieces).combine_chunks()
        return rows.filter(pa.array([low <= r["_offset"] < high for r in rows.select(["_offset"]).to_pylist()], pa.bool_()))
    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        """Return the offset from which the first row below the LSO, at or after the time, is read (Reading)."""
        view, versions, late = self._user(topic, partition), self._versions(topic), pa.scalar(timestamp_ms * 1000, pa.int64())
        for b in self._batches(view):
            found = [max(b["base_offset"], view.log_start)] * (b["timestamp"] >= timestamp_ms and b["end"] > view.log_start)
            if found and b["run"] and b["producer_id"] < 0:  # it may stand for many batches, so its rows show their own times
                rows = pa.concat_tables(self._rows(b, versions, topic, {}))
                rows = rows.filter(pc.greater_equal(rows["_timestamp"].cast(pa.int64()), late))
                found = [row["_offset"] for row in rows.select(["_offset"]).to_pylist() if row["_offset"] >= view.log_start]
            if found:
                return int(found[0]) if found[0] < view.lso else None
        return None
    def transactions(self) -> list[Obj]:
        """Return the ids of the transaction-state table, as their last records show them."""
        table = {key: value for n in range(self.parts[STATES]) for key, value in self._view(STATES, n).transactions.items()}
        return [{n: value[n] for n in ("transactional_id", "producer_id", "producer_epoch", "state")}
                | {"partitions": sorted((t, p) for t, p in value["partitions"])} for _, value in sorted(table.items())]
    def snapshot(self, *topics: str) -> dict[str, dict[int, int]]:
        """Return the cut of a snapshot for these topics, or for all (Reading: Snapshot, steps 2 to 4)."""
        known = self.topics() if self.transactions() is not None else {}  # the log ends are read after the table
        return {topic: {n: self._view(topic, n).end for n in range(known[topic])} for topic in topics or known}
    def groups(self) -> list[str]:
        """Return the groups with a committed or pending offset, or a row of membership (Consumer offsets)."""
        views = [self._view(OFFSETS, n) for n in range(self.parts[OFFSETS])]
        return sorted({k[0] for view in views for rows in (view.groups, view.committed, *view.pending.values()) for k in rows})
    def group_offsets(self, group: str) -> dict[tuple[str, int], int]:
        """Return the committed offsets of a group; pending ones stay so, because this reader cannot write (Fetch, R16, R18)."""
        view = self._view(OFFSETS, java_hash(group, self.parts[OFFSETS]))
        waiting = {key for rows in view.pending.values() for key in rows if key[0] == group}
        found = {k[1:]: r["entry"]["value"]["offset"] for k, r in view.committed.items() if k[0] == group and k not in waiting}
        if waiting:
            raise Unstable(f"pending: {sorted(waiting)}", found)
        return found
for _name in [name for name in vars(Store) if not name.startswith("_")]:
    setattr(Store, _name, again(getattr(Store, _name)))
