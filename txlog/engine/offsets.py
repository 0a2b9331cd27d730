"""Which offsets does a user ask for, and where in the log are they?"""

from txlog.client.groups import Offsets
from txlog.client.offsets import (
    Missing,
    OffsetSpec,
    append_times,
    check_exist,
    committed_offsets,
    format_offsets,
    parse_assign,
    parse_offsets,
    parse_spec,
    parse_timestamp,
    parse_timestamps,
    raise_committed,
    resolve,
)
from txlog.client.removed import removed_offsets
from txlog.core.names import MAX_OFFSET
from txlog.protocol.groups import MAX_METADATA_LENGTH
