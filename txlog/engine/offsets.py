"""Which offsets does a user ask for, and where in the log are they?"""

from txlog.client.groups import Offsets as Offsets
from txlog.client.offsets import (
    Missing as Missing,
    OffsetSpec as OffsetSpec,
    append_times as append_times,
    check_exist as check_exist,
    committed_offsets as committed_offsets,
    format_offsets as format_offsets,
    parse_assign as parse_assign,
    parse_offsets as parse_offsets,
    parse_spec as parse_spec,
    parse_timestamp as parse_timestamp,
    parse_timestamps as parse_timestamps,
    raise_committed as raise_committed,
    resolve as resolve,
)
from txlog.client.removed import removed_offsets as removed_offsets
from txlog.core.names import MAX_OFFSET as MAX_OFFSET
from txlog.protocol.groups import MAX_METADATA_LENGTH as MAX_METADATA_LENGTH
