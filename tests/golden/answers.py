"""What must every later version see in a golden store? Rows, offsets, transactions, groups, cuts, tables: all of it, as
JSON.

    python -m tests.golden.answers NAME        # writes tests/golden/NAME.json for tests/golden/NAME, if it does not
    exist

The answers of a store are written once, like the store. `test_frozen.py` compares them with what the client sees now,
and `tests/second_reader` asks a reader that shares no code with the client.
"""

from __future__ import annotations

import datetime
import json
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

import txlog
from lab.testing.damage import overwrite
from tests.aborted import aborted_transactions
from txlog.client import reading
from txlog.client.offsets import offsets_for_times
from txlog.client.store import Store
from txlog.core.names import TopicPartition
from txlog.core.row_runs import removed_from
from txlog.maintenance.history import read_history
from txlog.protocol.groups import list_groups
from txlog.protocol.load import load
from txlog.protocol.publications import read_chain
from txlog.protocol.table import list_transactions
from txlog.storage.memory import MemoryObjectStore
from txlog.testing.clock import ManualClock, SeededIds

HERE = Path(__file__).parent
NOW_MS = 1_764_000_000_000 + 30 * 3_600_000
"""After the end of each story."""
LEVELS = ("read_committed", "read_uncommitted")


def main() -> None:
    path = HERE / f"{sys.argv[1]}.json"
    if path.exists():
        sys.exit(f"{path} exists; the answers of a golden store are never changed")
    _, store = opened(HERE / sys.argv[1])
    path.write_text(text_of(answers(store)))
    store.runtime.close()


def opened(folder: Path, now_ms: int = NOW_MS) -> tuple[MemoryObjectStore, Store]:
    """Open a copy of a store in memory, so that nothing can change the golden one."""
    clock = ManualClock(now_ms, oversleeps_ms=3)
    memory = MemoryObjectStore(clock=clock)
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            overwrite(memory, path.relative_to(folder).as_posix(), path.read_bytes())
    return memory, txlog.open(
        "memory://", config={"linger.ms": 0}, clock=clock, ids=SeededIds(900), object_store=memory
    )


def answers(store: Store) -> dict[str, Any]:
    """Return all that a reader learns of the store."""
    runtime = store.runtime
    described = runtime.require_store()
    topics = store.topics()
    return {
        "store": msgspec.to_builtins(described),
        "topics": {each.name: topic_answers(store, each.name) for each in topics},
        "partitions": {
            str(tp): partition_answers(store, tp)
            for each in topics
            for tp in (TopicPartition(each.name, number) for number in range(each.partitions))
        },
        "snapshot": snapshot_answers(store),
        "transactions": transactions(store),
        "groups": groups(store),
        "published": {each.name: found for each in topics if (found := published(store, each.name))},
        "history": [
            {"job": each.step.job, "outcome": each.step.outcome, "of": f"{each.step.topic}-{each.step.partition}"}
            for each in read_history(runtime)
        ],
    }


def topic_answers(store: Store, name: str) -> dict[str, Any]:
    metadata = store.runtime.topic(name, 0)
    return {"metadata": msgspec.to_builtins(metadata), "versions": len(store.schema_history(name))}


def partition_answers(store: Store, tp: TopicPartition) -> dict[str, Any]:
    session = reading.read_session(store.runtime)
    info = store.admin().list_offsets(tp.topic)[tp]
    ends = [info.log_start_offset, info.last_stable_offset, info.log_end_offset]
    view = store.runtime.run(load(session.context(), tp))
    _, aborted = store.runtime.run(aborted_transactions(session.context(), view, ends[0], ends[2]))
    state = view.state
    found: dict[str, Any] = {
        "ends": ends,
        "aborted": [[each.producer_id, each.first_offset, each.last_offset] for each in aborted],
        "producers": {
            str(pid): [each.producer_epoch, each.last_sequence, each.txn_first_offset, len(each.batches)]
            for pid, each in sorted(state.producers.items())
        },
    }
    for level in LEVELS:
        found[level] = rows(store, tp, level)
    times = sorted({row["_timestamp"] for row in found["read_uncommitted"]})
    wanted = sorted({0, *(round(_parsed(each).timestamp() * 1000) + extra for each in times for extra in (0, 1))})
    hits = {time: offsets_for_times(session, {tp: time}, "read_committed")[tp] for time in wanted}
    found["times"] = {str(time): None if hit is None else hit.offset for time, hit in hits.items()}
    return found


def rows(store: Store, tp: TopicPartition, level: str, start: int | None = None) -> list[dict[str, Any]]:
    """Return the rows of a partition from the log start on."""
    first = store.admin().list_offsets(tp.topic)[tp].log_start_offset if start is None else start
    plan = reading.plan(store.runtime, tp.topic, tp.partition, first, None, level)
    (task,) = reading.tasks(store.runtime, [plan])
    return [plain(row) for batch in reading.read_task(task, store.runtime.store) for row in batch.to_pylist()]


def snapshot_answers(store: Store) -> dict[str, Any]:
    names = [each.name for each in store.topics()]
    cut = store.snapshot(*names)
    return {
        "ends": {str(tp): end for tp, end in sorted(cut.ends.items())},
        "offsets": {
            name: sorted([row["_partition"], row["_offset"]] for row in cut.table(name).to_arrow().to_pylist())
            for name in names
        },
    }


def transactions(store: Store) -> list[Any]:
    _, found = store.runtime.run(list_transactions(store.runtime.context(), {}))
    return [plain(msgspec.to_builtins(each.value)) for each in found]


def groups(store: Store) -> dict[str, Any]:
    _, found = store.runtime.run(list_groups(store.runtime.context(), {}))
    return {
        each.group: {
            "offsets": {str(tp): msgspec.to_builtins(value) for tp, value in sorted(each.offsets.items())},
            # Without removals: the version that wrote these answers did not describe them.
            "pending": sorted(str(tp) for tp, value in each.pending.items() if value is not None),
            "member": msgspec.to_builtins(each.member),
        }
        for each in found
    }


def published(store: Store, topic: str) -> dict[str, Any]:
    """Return the rows of a topic's published tables, by partition and offset where the file has these."""
    tables = store.runtime.run(read_chain(topic)).newest
    if tables is None:
        return {}
    files = {}
    for path, file in sorted(tables.files.items()):
        data = store.runtime.store.get(f"{topic}/{path}")
        assert data is not None
        gone = set(removed_from(file).tolist())
        found = pq.read_table(pa.BufferReader(data))
        ids = found.column("id").to_pylist()
        files[path] = [value for number, value in enumerate(ids) if number not in gone]
    return {
        "number": tables.number,
        "formats": dict(tables.newest.formats),
        "cut": [msgspec.to_builtins(each) for each in tables.newest.partitions],
        "files": files,
    }


def plain(value: Any) -> Any:
    """Return a value as JSON can hold it, without loss, and the same for every version of pyarrow."""
    match value:
        case dict():
            return {name: plain(item) for name, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
        case bytes():
            return f"0x{value.hex()}"
        case float():
            return repr(value)
        case Decimal():
            return str(value)
        case datetime.datetime() if value.tzinfo is not None:
            return value.astimezone(datetime.UTC).isoformat()
        case datetime.date():
            return value.isoformat()
        case _:
            return value


def text_of(found: Any) -> str:
    """Return JSON with one line for each row, transaction and file, so that people can read a difference."""

    def lines(value: Any, depth: int) -> str:
        if depth == 4 or not value or not isinstance(value, dict | list):
            return json.dumps(value, ensure_ascii=False)
        pad = " " * (depth + 1)
        if isinstance(value, dict):
            items = [f"{json.dumps(str(name))}: {lines(item, depth + 1)}" for name, item in value.items()]
        else:
            items = [lines(item, 4) for item in value]
        begin, end = "{}" if isinstance(value, dict) else "[]"
        return f"{begin}\n{pad}" + f",\n{pad}".join(items) + f"\n{' ' * depth}{end}"

    return lines(found, 0) + "\n"


def _parsed(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text)


if __name__ == "__main__":
    main()
