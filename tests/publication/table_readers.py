"""Readers of published tables that know neither txlog's log nor its publications: Delta's log, and Iceberg's metadata.

They read as the specifications say. What several engines do differently is checked to come to the same.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from tests.publication.roaring_reader import from_object, from_z85, rows_of
from txlog.storage.arrow_schema import field_id

Row = dict[str, Any]
Version = dict[str, Any]


class ElsewhereError(Exception):
    """A name leads to a place that is not this store."""


@dataclass
class Tables:
    """The objects of a store, and the URLs that lead to it."""

    objects: Mapping[str, bytes]
    topic: str
    places: Iterable[str] = ()
    files: dict[str, pa.Table] = field(default_factory=dict)
    """Decoded Parquet files, which never change."""

    # -- Delta --------------------------------------------------------------------------------------------------------

    def delta(self, version: int | None = None) -> list[Row]:
        """Return the rows of a version of the Delta table; None: the newest that its log has."""
        if version is None:
            version = max(self._versions(".json"))
        state = self._replay(version)
        schema = [each["name"] for each in json.loads(state["metaData"]["schemaString"])["fields"]]
        found: list[Row] = []
        for path, add in state["files"].items():
            found += self._rows_of(path, add, schema)
        return found

    def delta_new_rows(self, version: int) -> list[Row]:
        """Return the rows that a reader which follows the table gets from a version."""
        actions = self._actions(version)
        schema = [each["name"] for each in json.loads(self._replay(version)["metaData"]["schemaString"])["fields"]]
        found: list[Row] = []
        for action in actions:
            if "add" in action and action["add"]["dataChange"]:
                found += self._rows_of(unquote(action["add"]["path"]), action["add"], schema)
        return found

    def delta_id(self, version: int) -> str:
        found: str = self._replay(version)["metaData"]["id"]
        return found

    def _replay(self, version: int) -> Version:
        """Return the table: from the log alone, and from each checkpoint, which must be the same."""
        commits, checkpoints = self._versions(".json"), self._versions(".checkpoint.parquet")
        begins = [each for each in checkpoints if each <= version]
        begins += [-1] if 0 in commits else []
        assert begins, f"nothing to begin version {version} with"
        found = [self._from(begin, version) for begin in begins if {*range(begin + 1, version + 1)} <= commits]
        assert found, f"versions before {version} are missing"
        for each in found:
            assert _named(each) == _named(found[-1]), f"checkpoints of version {version} differ"
        return found[-1]

    def _from(self, checkpoint: int, version: int) -> Version:
        state: Version = {"files": {}}
        if checkpoint >= 0:
            for action in self._read(f"_delta_log/{checkpoint:020d}.checkpoint.parquet").to_pylist():
                if action["metaData"]:
                    state["metaData"] = action["metaData"]
                if action["add"]:
                    state["files"][unquote(action["add"]["path"])] = action["add"]
        for number in range(checkpoint + 1, version + 1):
            actions = self._actions(number)
            for action in actions:
                if "metaData" in action:
                    state["metaData"] = action["metaData"]
                if "remove" in action:
                    path = unquote(action["remove"]["path"])
                    old = state["files"].pop(path, None)
                    assert old is not None, f"version {number} removes {path}, which is not there"
                    assert _vector(old) == _vector(action["remove"]), f"version {number} removes other rows of {path}"
            for action in actions:
                if "add" in action:
                    path = unquote(action["add"]["path"])
                    assert path not in state["files"], f"version {number} adds {path} twice"
                    state["files"][path] = action["add"]
        return state

    def _actions(self, version: int) -> list[Version]:
        return [json.loads(line) for line in self._get(f"_delta_log/{version:020d}.json").splitlines()]

    def _versions(self, end: str) -> set[int]:
        start = f"{self.topic}/_delta_log/"
        names = [path.removeprefix(start) for path in self.objects if path.startswith(start) and path.endswith(end)]
        return {int(name.removesuffix(end)) for name in names if name.removesuffix(end).isdigit()}

    def _rows_of(self, path: str, add: Version, schema: list[str]) -> list[Row]:
        assert len(self._get(path)) == add["size"], f"{path} has another size"
        table = self._read(path)
        gone = set(self._left_out(add.get("deletionVector")))
        assert table.num_rows == json.loads(add["stats"])["numRecords"]
        columns = {name: table.column(name).to_pylist() for name in schema if name in table.column_names}
        return [
            {name: columns[name][at] if name in columns else None for name in schema}
            for at in range(table.num_rows)
            if at not in gone
        ]

    def _left_out(self, vector: Version | None) -> list[int]:
        if not vector:
            return []
        if vector["storageType"] == "i":
            return rows_of(from_z85(vector["pathOrInlineDv"])[: vector["sizeInBytes"]])[0]
        text = vector["pathOrInlineDv"]
        name = from_z85(text[-20:]).hex()
        uuid = "-".join((name[:8], name[8:12], name[12:16], name[16:20], name[20:]))
        data = self._get(f"{text[:-20]}/deletion_vector_{uuid}.bin")
        return rows_of(from_object(data, vector["offset"], vector["sizeInBytes"]))[0]

    # -- Iceberg ------------------------------------------------------------------------------------------------------

    def hinted(self) -> int | None:
        """Return the version of the Iceberg table that readers by the folder find; None if they find no table."""
        found = self.objects.get(f"{self.topic}/metadata/version-hint.text")
        return None if found is None else int(found) - 1

    def place(self, version: int) -> str:
        """Return the URL of the table that a version names."""
        found: str = json.loads(self._get(f"metadata/v{version + 1}.metadata.json"))["location"]
        return found

    def iceberg(self, version: int) -> list[Row]:
        """Return the rows of a version of the Iceberg table. Raises ElsewhereError."""
        return self.iceberg_at(f"metadata/v{version + 1}.metadata.json")

    def iceberg_at(self, path: str, *, anywhere: bool = False) -> list[Row]:
        """Return the rows that a metadata file shows, which names objects below its location, or `anywhere`."""
        value = json.loads(self._get(path))
        (schema,) = (each for each in value["schemas"] if each["schema-id"] == value["current-schema-id"])
        (snapshot,) = (each for each in value["snapshots"] if each["snapshot-id"] == value["current-snapshot-id"])
        mapping = json.loads(value["properties"]["schema.name-mapping.default"])
        names = {name: each["field-id"] for each in mapping for name in each["names"]}
        left_out: dict[str, set[int]] = {}
        files = []
        named = [snapshot["manifest-list"]]
        for manifest in self._avro(snapshot["manifest-list"]):
            named.append(manifest["manifest_path"])
            assert len(self._at(manifest["manifest_path"])) == manifest["manifest_length"]
            for entry in self._avro(manifest["manifest_path"]):
                if entry["status"] == 2:
                    continue
                data = entry["data_file"]
                named.append(data["file_path"])
                assert len(self._at(data["file_path"])) == data["file_size_in_bytes"]
                if data["content"] == 0:
                    files.append(data["file_path"])
                else:
                    for row in self._read(self._path(data["file_path"])).to_pylist():
                        left_out.setdefault(row["file_path"], set()).add(row["pos"])
        elsewhere = [uri for uri in named if not uri.startswith(f"{value['location']}/")]
        assert anywhere or not elsewhere, f"{elsewhere} are not named by the URL of the table, {value['location']}"
        assert len(set(files)) == len(files), "a file is listed twice"
        assert not left_out.keys() - set(files), "rows of a file that is not in the table are left out"
        found: list[Row] = []
        for file in files:
            table = self._read(self._path(file))
            ids = {field_id(each): each.name for each in table.schema if field_id(each) is not None}
            if None in [field_id(each) for each in table.schema]:
                # pyiceberg then goes by names alone.
                assert all(names.get(name) == number for number, name in ids.items()), (
                    f"{names} are not those of {file}"
                )
                assert all(each.name in names for each in table.schema), "a name has no id"
            columns = {
                each["name"]: table.column(ids[each["id"]]).to_pylist()
                for each in schema["fields"]
                if each["id"] in ids
            }
            for at in range(table.num_rows):
                if at not in left_out.get(file, ()):
                    row = {each["name"]: columns.get(each["name"]) for each in schema["fields"]}
                    found.append({name: None if values is None else values[at] for name, values in row.items()})
        return found

    def _avro(self, uri: str) -> list[Any]:
        return read_avro(self._at(uri))

    def _at(self, uri: str) -> bytes:
        return self._get(self._path(uri))

    def _path(self, uri: str) -> str:
        for place in self.places:
            if uri.startswith(f"{place}/{self.topic}/"):
                return uri.removeprefix(f"{place}/{self.topic}/")
        raise ElsewhereError(uri)

    # -- both ---------------------------------------------------------------------------------------------------------

    def _get(self, path: str) -> bytes:
        found = self.objects.get(f"{self.topic}/{path}")
        assert found is not None, f"{path} is missing"
        return found

    def _read(self, path: str) -> pa.Table:
        data = self._get(path)
        key = f"{path} {hash(data)}"
        if key not in self.files:
            self.files[key] = pq.ParquetFile(BytesIO(data)).read()
        return self.files[key]


def _vector(action: Version) -> str:
    return ((action.get("deletionVector") or {}).get("pathOrInlineDv")) or ""


def _named(state: Version) -> tuple[str, Any, dict[str, str]]:
    table = state["metaData"]
    return table["id"], json.loads(table["schemaString"]), {path: _vector(add) for path, add in state["files"].items()}


# -- Avro, as its specification says -----------------------------------------------------------------------------------


def read_avro(data: bytes) -> list[Any]:
    """Return the records of an Avro file."""
    stream = _Stream(data)
    assert stream.take(4) == b"Obj\x01"
    meta: dict[str, bytes] = {}
    while count := stream.long():
        for _ in range(abs(count)):
            name = stream.bytes().decode()
            meta[name] = stream.bytes()
    marker = stream.take(16)
    schema = json.loads(meta["avro.schema"])
    found = []
    while stream.at < len(data):
        rows, block = stream.long(), stream.bytes()
        if meta.get("avro.codec") == b"deflate":
            block = zlib.decompress(block, -15)
        inner = _Stream(block)
        found += [inner.value(schema) for _ in range(rows)]
        assert stream.take(16) == marker
    return found


class _Stream:
    def __init__(self, data: bytes) -> None:
        self._data, self.at = data, 0

    def take(self, size: int) -> bytes:
        self.at += size
        return self._data[self.at - size : self.at]

    def long(self) -> int:
        number = shift = 0
        while True:
            (byte,) = self.take(1)
            number |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return (number >> 1) ^ -(number & 1)

    def bytes(self) -> bytes:
        return self.take(self.long())

    def value(self, schema: Any) -> Any:
        if isinstance(schema, list):
            return self.value(schema[self.long()])
        kind = schema["type"] if isinstance(schema, dict) else schema
        if kind == "record":
            return {each["name"]: self.value(each["type"]) for each in schema["fields"]}
        if kind == "array":
            found = []
            while count := self.long():
                if count < 0:
                    self.long()
                found += [self.value(schema["items"]) for _ in range(abs(count))]
            return found
        if kind == "map":
            pairs = {}
            while count := self.long():
                for _ in range(abs(count)):
                    name = self.bytes().decode()
                    pairs[name] = self.value(schema["values"])
            return pairs
        if kind in ("int", "long"):
            return self.long()
        if kind == "string":
            return self.bytes().decode()
        if kind == "bytes":
            return self.bytes()
        if kind == "fixed":
            return self.take(schema["size"])
        if kind == "boolean":
            return self.take(1) == b"\x01"
        if kind == "null":
            return None
        if kind == "float":
            return self.take(4)
        if kind == "double":
            return self.take(8)
        assert isinstance(kind, dict | list), kind
        return self.value(kind)
