"""The toy model: the log as lists in one process.

A partition is a list of slots, and their places are its offsets. A transaction is a set of slots with one state. All
promises of the client API without faults follow from this.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from txlog.core.names import TopicPartition


@dataclass(eq=False)
class ToyTransaction:
    """One transaction of one instance."""

    transactional_id: str
    state: Literal["open", "committed", "aborted"] = "open"
    registered: dict[TopicPartition, int] = field(default_factory=dict)
    """Partitions with eager rows -> offset of the first row, -1 if there is none. Each gets a marker."""
    attempted: bool = False
    """Whether the coordinator knows it."""
    staged: dict[TopicPartition, list[int]] = field(default_factory=dict)
    staged_life: dict[TopicPartition, int] = field(default_factory=dict)
    """The life of the topic for which the staged rows were written."""
    offsets: dict[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    """Pending offsets: (place in the order of all commits, offset)."""
    staged_offsets: dict[TopicPartition, int] = field(default_factory=dict)
    timed_out: bool = False

    @property
    def rows(self) -> bool:
        return bool(self.registered or self.staged)

    @property
    def topics(self) -> set[str]:
        """Return the topics for which rows were sent."""
        return {tp.topic for tp in (*self.registered, *self.staged)}


@dataclass(eq=False)
class Slot:
    value: int | None = None
    txn: ToyTransaction | None = None


@dataclass(eq=False)
class ToyPartition:
    slots: list[Slot] = field(default_factory=list)
    log_start: int = 0

    @property
    def log_end(self) -> int:
        return len(self.slots)

    def stable(self, opened: Iterable[int]) -> int:
        return max(min(opened, default=self.log_end), self.log_start)

    def holds(self, txn: ToyTransaction) -> bool:
        """Return whether a row of `txn` is left."""
        return any(slot.txn is txn for slot in self.slots[self.log_start :])


@dataclass(eq=False)
class ToyTopic:
    partitions: list[ToyPartition]
    deleted: bool = False
    life: int = 0


class Toy:
    """The log, the groups and the versions."""

    def __init__(self) -> None:
        self.topics: dict[str, ToyTopic] = {}
        self.open: list[ToyTransaction] = []
        self.committed: dict[TopicPartition, tuple[int, int]] = {}
        """The group's offsets: (place in the order of all commits, offset)."""
        self.versions: dict[str, int] = {}
        self.topics_of_version: dict[str, set[str]] = {}
        """The topics of each id's last version; empty if it had no rows."""
        self._commits = 0

    # -- topics -------------------------------------------------------------------------------------------------------

    def create(self, name: str, partitions: int) -> None:
        old = self.topics.get(name)
        if old is None:
            self.topics[name] = ToyTopic([ToyPartition() for _ in range(partitions)])
            return
        old.deleted = False
        self.add_partitions(name, partitions)

    def add_partitions(self, name: str, partitions: int) -> None:
        topic = self.topics[name]
        topic.partitions += [ToyPartition() for _ in range(partitions - len(topic.partitions))]

    def delete(self, name: str) -> None:
        topic = self.topics[name]
        topic.deleted, topic.life = True, topic.life + 1
        for partition in topic.partitions:
            partition.slots.append(Slot())
            partition.log_start = partition.log_end

    def living(self) -> list[str]:
        return [name for name, topic in self.topics.items() if not topic.deleted]

    def partitions(self, name: str) -> list[TopicPartition]:
        return [TopicPartition(name, number) for number in range(len(self.topics[name].partitions))]

    def at(self, tp: TopicPartition) -> ToyPartition:
        return self.topics[tp.topic].partitions[tp.partition]

    def move_log_start(self, tp: TopicPartition, before: int) -> None:
        partition = self.at(tp)
        if before > partition.log_start:
            partition.slots.append(Slot())
            partition.log_start = before

    # -- rows ---------------------------------------------------------------------------------------------------------

    def append(self, tp: TopicPartition, values: Iterable[int], txn: ToyTransaction | None = None) -> int:
        """Append and return the first offset."""
        partition = self.at(tp)
        base = partition.log_end
        if txn is not None and not partition.holds(txn):
            txn.registered[tp] = base
        partition.slots += [Slot(value, txn) for value in values]
        return base

    def stable(self, tp: TopicPartition) -> int:
        partition = self.at(tp)
        return partition.stable(txn.registered[tp] for txn in self.open if partition.holds(txn))

    def rows(self, tp: TopicPartition, isolation: str, start: int = 0) -> list[tuple[int, int]]:
        """Return (offset, value) of what a reader sees from `start` on."""
        partition = self.at(tp)
        committed = isolation == "read_committed"
        end = self.stable(tp) if committed else partition.log_end
        return [
            (offset, slot.value)
            for offset, slot in enumerate(partition.slots[:end])
            if offset >= max(start, partition.log_start) and slot.value is not None
            if not committed or slot.txn is None or slot.txn.state == "committed"
        ]

    # -- transactions -------------------------------------------------------------------------------------------------

    def register(self, txn: ToyTransaction, tp: TopicPartition) -> None:
        txn.registered.setdefault(tp, -1)
        self.attempt(txn)

    def attempt(self, txn: ToyTransaction) -> None:
        """Note that the coordinator knows it: from now on it may time out."""
        txn.attempted = True
        if txn not in self.open:
            self.open.append(txn)

    def send_offsets(self, txn: ToyTransaction, offsets: dict[TopicPartition, int]) -> None:
        self.attempt(txn)
        for tp, offset in offsets.items():
            txn.offsets[tp] = self._place(), offset

    def commit_offsets(self, offsets: dict[TopicPartition, int]) -> None:
        for tp, offset in offsets.items():
            self.committed[tp] = self._place(), offset

    @property
    def pending(self) -> bool:
        return any(txn.offsets for txn in self.open)

    def end(self, txn: ToyTransaction, commit: bool) -> None:
        """Append markers, or the staged rows; the offsets take effect."""
        txn.state = "committed" if commit else "aborted"
        if txn in self.open:
            self.open.remove(txn)
        staged = txn.staged if commit else {}
        for tp in sorted({*txn.registered, *staged}):
            values = staged.get(tp)
            if values and txn.staged_life[tp] == self.topics[tp.topic].life:
                self.append(tp, values)
            else:
                self.at(tp).slots.append(Slot())
        if not commit:
            return
        for tp, (place, offset) in txn.offsets.items():
            if place > self.committed.get(tp, (-1, 0))[0]:
                self.committed[tp] = place, offset
        self.commit_offsets(txn.staged_offsets)

    def _place(self) -> int:
        self._commits += 1
        return self._commits
