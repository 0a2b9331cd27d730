"""Combine the records of a store's tails, as writers of a store with the feature `combined-records` may."""

from __future__ import annotations

import random

import msgspec

from lab.testing.damage import overwrite
from txlog.core import chain, names
from txlog.core.names import TopicPartition
from txlog.core.record_checks import StoredRecord, stored_records
from txlog.protocol.slot_record import encode_combined
from txlog.storage.memory import MemoryObjectStore
from txlog.storage.object_store import ObjectStore


def combine(memory: MemoryObjectStore, seed: int) -> int:
    """Store the unsealed records of each partition again, several in one object, as drawn. Return how many objects
    hold more than one."""
    draw = random.Random(seed)
    return sum(_combine_tail(memory, tp, draw) for tp in partitions(memory))


def partitions(store: ObjectStore) -> list[TopicPartition]:
    """Return all partitions, those of internal topics, too."""
    found = []
    for topic in store.list(""):
        numbers = store.list(topic) if topic.endswith("/") and topic != "__maintenance/" else []
        found += [TopicPartition(topic[:-1], int(each[:-1])) for each in numbers if each[:-1].isdecimal()]
    return found


def _combine_tail(memory: MemoryObjectStore, tp: TopicPartition, draw: random.Random) -> int:
    listing = chain.parse_listing(memory.list(tp.folder), tp.folder)
    sealed_end = max([listing.boundary, *(each.end_offset for each in (*listing.segments, *listing.runs))])
    paths = [(base, tp.folder + names.batch_name(base)) for base in listing.batches if base >= sealed_end]
    tail = [each for base, path in paths for each in stored_records(memory.get(path) or b"", tp, base)]
    groups: list[list[StoredRecord]] = []
    for stored in tail:
        last = groups[-1][-1].record if groups else stored.record
        fits = {last.kind, stored.record.kind} <= {"data", "commit", "abort"}
        if groups and fits and last.segment_base == stored.record.segment_base and draw.random() < 0.7:
            groups[-1].append(stored)
        else:
            groups.append([stored])
    for _, path in paths:
        memory.delete(path)
    previous = tail[0].record.previous if tail else ""
    for group in groups:
        first, *others = [(each.record, each.payload) for each in group]
        made = encode_combined(tp, [(msgspec.structs.replace(first[0], previous=previous), first[1]), *others])
        overwrite(memory, tp.folder + names.batch_name(made[0].slot), b"".join(each.data for each in made))
        previous = made[-1].digest
    return sum(len(group) > 1 for group in groups)
