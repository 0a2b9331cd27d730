"""Creating objects whose content is a pure function of the log, and of a size that readers take."""

from __future__ import annotations

import msgspec

from txlog.core import envelope
from txlog.core.effects import Program, PutIfAbsent, PutOutcome, Sleep
from txlog.errors import OutcomeUnknownError, RecordTooLargeError
from txlog.protocol.context import Context


def put_pure(ctx: Context, path: str, data: bytes) -> Program[None]:
    """Creates `path`: whoever wins, equivalent bytes lie there. Raises OutcomeUnknownError after `max_settles` tries."""
    for attempt in range(ctx.max_settles):
        if (yield PutIfAbsent(path, data)) is not PutOutcome.UNKNOWN:
            return
        yield Sleep(ctx.backoff_ms(attempt))
    raise OutcomeUnknownError(f"{path}: the store did not say in {ctx.max_settles} tries whether it was created")


def encode_readable(
    path: str, value: msgspec.Struct, *, instead: str = "what it would replace stays as it is"
) -> bytes:
    """The stored form, if readers will take it: an `.index` that they refuse shuts the partition.

    Raises RecordTooLargeError, which says what happens `instead`.
    """
    data = envelope.encode(value)
    if len(data) > envelope.MAX_OBJECT_BYTES:
        raise RecordTooLargeError(
            f"{path}: would have {len(data)} bytes, more than the {envelope.MAX_OBJECT_BYTES} that readers take, so {instead}; "
            "nothing is lost, and appends and reads go on"
        )
    return data
