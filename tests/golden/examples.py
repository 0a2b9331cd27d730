"""Which objects does PROTOCOL.md show? Real ones: this module prints them; all but the newest come from the golden
store.

    python -m tests.golden.examples            # print every example
    python -m tests.golden.examples --write    # put them into PROTOCOL.md

In PROTOCOL.md a line `<!-- example: NAME -->` is before each; `test_protocol_document.py` keeps them equal.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from tests.golden.make_golden import FORMAT_FOLDER, HERE, HOUR_MS, START_MS
from txlog.core import envelope, names, records
from txlog.core.records import CommitRecord, StagedList

PROTOCOL = HERE.parent.parent / "PROTOCOL.md"
WIDTH = 128

Json: TypeAlias = Any
_MARKER = re.compile(r"^<!-- example: (?P<name>[a-z0-9.-]+) -->\n(?:\n?```[a-z]*\n(?:.*\n)*?```\n)?", re.MULTILINE)


def main() -> None:
    blocks = examples()
    if "--write" in sys.argv:
        PROTOCOL.write_text(rendered(PROTOCOL.read_text(), blocks))
        return
    for name, block in blocks.items():
        print(f"{name}\n{block}")


def rendered(document: str, blocks: dict[str, str]) -> str:
    """Return `document` with the block of each example after its marker. Raises KeyError for an unknown name."""
    return _MARKER.sub(lambda match: f"<!-- example: {match['name']} -->\n{blocks[match['name']]}\n", document)


def examples(folder: Path = FORMAT_FOLDER) -> dict[str, str]:
    """Return fenced blocks by name."""
    store = _Store(folder)
    control = store.batch("orders/1", lambda record: record.kind == "commit" and not record.records)
    state = "__transaction_state"
    return {
        "listing": _fenced("\n".join(store.listing("orders/0")), "text"),
        "boundary-raw": _fenced(store.raw("orders/0", ".boundary"), "json"),
        "txlog.json": store.show("txlog.json", records.StoreDescriptor, complete=True),
        "topic.json": store.show("orders/" + Path(names.topic_metadata_path("orders", 1)).name, records.TopicMetadata),
        "batch-inline": store.batch("audit/0", lambda record: record.payload_bytes > 0, complete=True),
        "batch-files": store.batch("orders/1", lambda record: record.kind == "data" and bool(record.files)),
        "batch-commit": control,
        "batch-abort": store.batch("orders/1", lambda record: record.kind == "abort"),
        "batch-staged-commit": store.batch("orders/1", lambda record: record.kind == "commit" and record.records > 0),
        "batch-log-start": store.batch("orders/1", lambda record: record.kind == "log_start"),
        "batch-expire": store.batch("orders/0", lambda record: record.kind == "expire"),
        "batch-deletion": store.batch("scratch/0", lambda record: record.deleted_version > 0),
        "entry-ongoing": store.transaction("loader", "ONGOING", with_partitions=3),
        "entry-prepare": store.transaction("loader", "PREPARE_COMMIT", with_partitions=3),
        "entry-complete": store.transaction("loader", "COMPLETE_COMMIT"),
        "entry-staged-prepare": store.transaction("nightly", "PREPARE_COMMIT"),
        "batch-offsets": store.batch("__consumer_offsets/9", lambda record: record.transactional),
        "entry-group": store.entry("__consumer_offsets/5", lambda entry: entry["type"] == "group"),
        "staged-list": store.first(state, ".staged", StagedList),
        "index": store.first("orders/1", ".index", records.SegmentIndex),
        "txnindex": store.first("orders/1", ".txnindex", records.TxnIndex),
        "snapshot": store.first("orders/1", ".snapshot", records.Snapshot),
        "clean": store.first("orders/0", ".clean", records.Clean),
        "history": _history(),
    }


def _history() -> str:
    """Return a merge in the history. The golden store has no history, so this one is invented; its bytes are real."""
    began_ms = START_MS + 25 * HOUR_MS
    step = records.CleanupStep(
        job="merge",
        topic="orders",
        partition=0,
        started_at=began_ms + 20,
        ended_at=began_ms + 95,
        outcome="published",
        base_offset=0,
        end_offset=14,
        generation=1,
        input_files=4,
        output_files=1,
        rows_read=10,
        rows_written=10,
        bytes_read=6416,
        bytes_written=2195,
    )
    run_id = f"{57:032d}"
    run = records.CleanupRun(
        run_id=run_id, job="maintain", by="worker-3:4711", started_at=began_ms, ended_at=began_ms + 110, steps=(step,)
    )
    stored = json.loads(envelope.encode(run))
    path = names.MAINTENANCE_FOLDER + names.history_name(began_ms, run_id)
    return _fenced(f"// {path}\n{pretty({**without_defaults(run), 'crc32c': stored['crc32c']})}")


class _Store:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def listing(self, under: str) -> list[str]:
        """Return paths and sizes below a folder."""
        paths = sorted(path for path in (self.folder / under).rglob("*") if path.is_file())
        return [f"{path.stat().st_size:6d}  {path.relative_to(self.folder)}" for path in paths]

    def raw(self, under: str, suffix: str) -> str:
        """Return the first object with that suffix, as stored."""
        return self._find(under, suffix)[0].read_text().rstrip("\n")

    def show(self, path: str, kind: type[msgspec.Struct], *, complete: bool = False) -> str:
        value, _ = envelope.decode((self.folder / path).read_bytes(), kind, path)
        stored = json.loads((self.folder / path).read_bytes().split(b"\n")[0])
        if not complete:
            stored = {**without_defaults(value), "crc32c": stored["crc32c"]}
        return _fenced(f"// {path}\n{pretty(stored)}")

    def first(self, under: str, suffix: str, kind: type[msgspec.Struct]) -> str:
        return self.show(str(self._find(under, suffix)[0].relative_to(self.folder)), kind)

    def batch(self, under: str, wanted: Callable[[CommitRecord], bool], *, complete: bool = False) -> str:
        path = next(path for path, record in self._records(under) if wanted(record))
        return self.show(path, CommitRecord, complete=complete)

    def transaction(self, transactional_id: str, state: str, with_partitions: int | None = None) -> str:
        def wanted(entry: Json) -> bool:
            value = entry.get("value")
            if entry.get("key") != transactional_id or value is None or value["state"] != state:
                return False
            return with_partitions is None or len(value["partitions"]) == with_partitions

        return self.entry("__transaction_state", wanted)

    def entry(self, under: str, wanted: Callable[[Json], bool]) -> str:
        """Return the first entry of an internal topic for which `wanted` holds, without defaults."""
        for path, record in self._records(under):
            for entry in record.entries:
                if wanted(msgspec.to_builtins(entry)):
                    return _fenced(f"// {path}, its entry\n{pretty(without_defaults(entry))}")
        raise LookupError(under)

    def _records(self, under: str) -> list[tuple[str, CommitRecord]]:
        found = []
        for path in self._find(under, ".batch"):
            name = str(path.relative_to(self.folder))
            found.append((name, envelope.decode(path.read_bytes(), CommitRecord, name)[0]))
        return found

    def _find(self, under: str, suffix: str) -> list[Path]:
        return sorted(path for path in (self.folder / under).rglob("*") if path.name.endswith(suffix))


def _made(field: msgspec.structs.FieldInfo) -> object:
    """Return a default that each object has for itself, as a mapping."""
    return field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()


def without_defaults(value: Json) -> Json:
    """Return `value` as JSON, without the fields that a reader would fill in; `version` stays."""
    if isinstance(value, msgspec.Struct):
        if value.__struct_config__.array_like:
            return msgspec.to_builtins(value)
        fields = msgspec.structs.fields(value)
        kept = {
            field.encode_name: without_defaults(getattr(value, field.name))
            for field in fields
            if field.name == "version" or getattr(value, field.name) not in (field.default, _made(field))
        }
        config = value.__struct_config__
        return {config.tag_field: config.tag, **kept} if config.tag_field else kept
    if isinstance(value, tuple):
        return [without_defaults(item) for item in value]
    if isinstance(value, dict):
        return {key: without_defaults(item) for key, item in value.items()}
    return value


def pretty(value: Json, indent: int = 0) -> str:
    """Return JSON in few lines: an object that fits into one line stays there."""
    flat = json.dumps(value, ensure_ascii=False)
    if len(flat) + indent <= WIDTH or not isinstance(value, dict | list) or not value:
        return flat
    pad = " " * (indent + 2)
    if isinstance(value, list):
        lines = [pretty(item, indent + 2) for item in value]
        return "[\n" + ",\n".join(pad + line for line in lines) + "\n" + " " * indent + "]"
    return "{\n" + ",\n".join(_packed(value, indent + 2)) + "\n" + " " * indent + "}"


def _packed(value: dict[str, Json], indent: int) -> list[str]:
    """Return the members of an object, several to a line as long as they fit."""
    pad = " " * indent
    lines: list[str] = []
    room = False
    for key, item in value.items():
        text = f"{json.dumps(key)}: {pretty(item, indent)}"
        if room and "\n" not in text and len(lines[-1]) + len(text) + 2 <= WIDTH:
            lines[-1] += ", " + text
        else:
            lines.append(pad + text)
        room = "\n" not in text
    return lines


def _fenced(text: str, language: str = "jsonc") -> str:
    return f"```{language}\n{text}\n```"


if __name__ == "__main__":
    main()
