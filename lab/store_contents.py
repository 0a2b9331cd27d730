"""Which objects does a store have?

Every metadata object, read as bytes: the topics' versions, and the partitions with their records.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from txlog.core import envelope, names
from txlog.core.names import SegmentName, TopicPartition
from txlog.core.record_checks import StoredRecord, stored_records
from txlog.core.records import Boundary, CommitRecord, TopicMetadata
from txlog.core.snapshot_state import decode_snapshot
from txlog.core.state import PartitionState
from txlog.errors import CorruptLogError
from txlog.storage.object_store import ObjectStore


@dataclass(slots=True)
class Partition:
    """The content of a partition in the store."""

    tp: TopicPartition
    boundary: int = 0
    base: PartitionState | None = None
    """The fold below the first record that still exists."""
    records: list[StoredRecord] = field(default_factory=list)
    state: PartitionState | None = None
    states: dict[int, PartitionState] = field(default_factory=dict)
    """Segment end -> fold up to it."""
    markers: dict[tuple[int, int], list[CommitRecord]] = field(default_factory=lambda: defaultdict(list))
    """(producer id, epoch) -> its COMMITs and ABORTs."""
    by_segment: dict[int, list[StoredRecord]] = field(default_factory=lambda: defaultdict(list))
    segments: list[SegmentName] = field(default_factory=list)
    has_runs: bool = False


class Contents:
    """The content of a store, and the sentences about what is wrong with it."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store
        self.violations: list[str] = []
        self.topics: dict[str, list[TopicMetadata]] = {}
        self.partitions: dict[TopicPartition, Partition] = {}

    def say(self, invariant: str, where: object, what: str) -> None:
        self.violations.append(f"invariant {invariant}: {where}: {what}")

    def look(self, pool: ThreadPoolExecutor) -> None:
        for folder in self.store.list(""):
            topic = folder.removesuffix("/")
            if not folder.endswith("/") or folder == names.PROBE_FOLDER or not names.is_topic_name(topic):
                continue
            listed = self.store.list(folder)
            if topic not in names.INTERNAL_TOPICS:
                self._look_at_topic(topic, listed)
            for name in listed:
                number = names.parse_partition_folder(name)
                if number is not None:
                    self._look_at_partition(TopicPartition(topic, number), pool)

    def _look_at_topic(self, topic: str, listed: Iterable[str]) -> None:
        numbers = sorted(n for name in listed if (n := names.parse_topic_metadata_name(name)) is not None)
        if numbers != list(range(len(numbers))):
            self.say("1", topic, f"versions {numbers} of its metadata have a hole")
        found = []
        for number in numbers:
            path = names.topic_metadata_path(topic, number)
            metadata, _ = envelope.decode(self.store.get(path) or b"", TopicMetadata, path)
            found.append(metadata)
        self.topics[topic] = found

    def _look_at_partition(self, tp: TopicPartition, pool: ThreadPoolExecutor) -> None:
        seen = Partition(tp)
        bases = []
        for name in self.store.list(tp.folder):
            parsed = names.parse_partition_object(name)
            if isinstance(parsed, names.SegmentObject) and parsed.kind == "index":
                if parsed.segment.generation:
                    seen.has_runs = True
                else:
                    seen.segments.append(parsed.segment)
            elif isinstance(parsed, names.NumberedName) and parsed.kind == "batch":
                bases.append(parsed.number)
            elif isinstance(parsed, names.NumberedName) and parsed.kind == "boundary":
                boundary, _ = envelope.decode(self.store.get(tp.folder + name) or b"", Boundary, tp.folder + name)
                seen.boundary = max(seen.boundary, boundary.offset)
        seen.segments.sort()
        live = sorted(base for base in bases if base >= seen.boundary)
        try:
            paths = [tp.folder + names.batch_name(base) for base in live]
            for base, data in zip(live, pool.map(self.store.get, paths), strict=True):
                for stored in stored_records(data or b"", tp, base):
                    seen.records.append(stored)
                    seen.by_segment[stored.record.segment_base].append(stored)
                    if stored.record.kind in ("commit", "abort"):
                        seen.markers[stored.record.producer_id, stored.record.producer_epoch].append(stored.record)
            seen.base = PartitionState.empty(tp)
            if seen.boundary:
                path = tp.folder + names.snapshot_name(seen.boundary)
                seen.base = decode_snapshot(self.store.get(path) or b"", tp, seen.boundary)
        except CorruptLogError as error:
            self.say("1", tp, str(error))
        self.partitions[tp] = seen
