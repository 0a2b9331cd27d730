"""Which records exist only in stores of an older txlog, and must still be readable?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from txlog.core.append_rules import RollPolicy, next_control, next_segment_base
from txlog.core.groups import offset_entries, offsets_partition
from txlog.core.names import TopicPartition
from txlog.core.records import CommitRecord, OffsetValue, StagedPart, StoreConstants
from txlog.core.state import PartitionState


def staged_offsets(
    group: str, offsets: Mapping[TopicPartition, OffsetValue], constants: StoreConstants, now_ms: int
) -> tuple[StagedPart, ...]:
    """Return unconditional offsets inside `end_transaction(staged=…)`.

    Current writers send them before it (PROTOCOL.md, W34).
    """
    if not offsets:
        return ()
    tp = offsets_partition(group, constants.consumer_offsets_partitions)
    stamped = {key: msgspec.structs.replace(value, timestamp=now_ms) for key, value in offsets.items()}
    return (StagedPart(topic=tp.topic, partition=tp.partition, entries=offset_entries(group, stamped)),)


def next_control_of_v1(state: PartitionState, *, now_ms: int, roll: RollPolicy, **what: Any) -> CommitRecord:
    """Return a control record whose kind does not decide where segments begin."""
    made = next_control(state, now_ms=now_ms, roll=roll, **what)
    return msgspec.structs.replace(made, segment_base=next_segment_base(state, roll, now_ms))
