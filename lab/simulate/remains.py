"""Is everything right in the store that a world leaves behind?

Its objects are judged byte by byte, and its last reads are compared with earlier ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lab.histories.events import Event, Poll, partition_of
from lab.invariants import find_violations
from txlog.core import envelope
from txlog.core.features import STORE_FEATURES
from txlog.core.names import STORE_DESCRIPTOR
from txlog.core.records import StoreConstants, StoreDescriptor
from txlog.errors import TxlogError
from txlog.storage.memory import MemoryObjectStore


def wrong_objects(objects: Mapping[str, bytes], constants: StoreConstants, *, settled: bool) -> list[str]:
    """Return what breaks PROTOCOL.md in the objects. `settled`: every id has recovered."""
    store = MemoryObjectStore("world")
    descriptor = StoreDescriptor(features=STORE_FEATURES, store_id="0" * 32, created_at=0, constants=constants)
    for path, data in {STORE_DESCRIPTOR: envelope.encode(descriptor), **objects}.items():
        store.put_if_absent(path, data)
    try:
        return find_violations(store, settled=settled)[1]
    except TxlogError as error:
        return [f"the store cannot be judged: {error!r}"]


def wrong_uncommitted(events: Iterable[Event], objects: Iterable[str]) -> list[str]:
    """Return where a read_uncommitted read differs from the last one of its partition.

    The checker of histories cannot know this, because a merge or a compaction removes aborted rows. So partitions with
    either are left out.
    """
    cleaned = {path.rpartition("/")[0] + "/" for path in objects if path.endswith(".clean")}
    polls = [
        (event.process, event.what)
        for event in events
        if event.type == "ok" and isinstance(event.what, Poll) and event.what.isolation == "read_uncommitted"
    ]
    last = {partition_of(poll): poll for _, poll in polls if poll.final}
    found = []
    for process, poll in polls:
        tp = partition_of(poll)
        if tp not in last or tp.folder in cleaned:
            continue
        seen, there = (_rows(each, max(poll.start, last[tp].start), poll.end) for each in (poll, last[tp]))
        if seen != there:
            found.append(f"{process} read {seen} of {tp} uncommitted, and there is {there}")
    return found


def _rows(poll: Poll, start: int, end: int) -> dict[int, int]:
    return {row.offset: row.value for row in poll.rows if start <= row.offset < end}
