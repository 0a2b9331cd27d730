"""What became of a batch that the sender took?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from txlog.client.producer.batches import Batch
from txlog.core.records import StagedPart
from txlog.protocol.context import PartitionView
from txlog.protocol.slot import AppendResult


@dataclass(frozen=True, slots=True)
class Appended:
    """The batch is in the log."""

    batch: Batch
    result: AppendResult
    view: PartitionView


@dataclass(frozen=True, slots=True)
class Staged:
    """The batch is in a file, which the commit publishes."""

    batch: Batch
    part: StagedPart


@dataclass(frozen=True, slots=True)
class Failed:
    """The batch is not written, or nobody knows whether it is."""

    batch: Batch
    error: Exception


Outcome: TypeAlias = Appended | Staged | Failed
