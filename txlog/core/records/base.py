"""Which types and values do the fields of all metadata objects share?"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, TypeAlias

import msgspec
from msgspec import Meta

from txlog.core.features import FORMAT_VERSION

Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Offset = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Count = Annotated[int, Meta(ge=0, le=2**48)]
Text = Annotated[str, Meta(max_length=32_768)]
Signed = Annotated[int, Meta(ge=-1, le=2**63 - 1)]
"""An offset, or the id, epoch or sequence of a producer; -1: none."""
Time = Annotated[int, Meta(ge=-1, le=253_402_300_799_999)]
"""Milliseconds since 1970, up to the end of the year 9999; -1: never."""
FieldId = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Id = Annotated[str, Meta(pattern="^[0-9a-f]{32}$", max_length=32)]
Digest = Annotated[str, Meta(pattern="^[0-9a-f]{64}$", max_length=64)]

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_OFFSET = -1
NO_TIMESTAMP = -1
FIRST_DRAWN_PRODUCER_ID = 2**62
"""Producer ids from here on are drawn by producers without transactional.id, not assigned by a coordinator (W18)."""

BatchKind: TypeAlias = Literal["data", "commit", "abort", "log_start", "expire"]
TransactionState: TypeAlias = Literal[
    "EMPTY", "ONGOING", "PREPARE_COMMIT", "PREPARE_ABORT", "COMPLETE_COMMIT", "COMPLETE_ABORT"
]
Outcome: TypeAlias = Literal["commit", "abort"]


class _Object(msgspec.Struct, frozen=True, kw_only=True):
    """A stored object."""

    STATED: ClassVar[tuple[str, ...]] = ("version",)
    """Fields with a default only in Python: an object that does not state them is damaged."""

    version: Annotated[int, Meta(ge=1, le=2**63 - 1)] = FORMAT_VERSION
