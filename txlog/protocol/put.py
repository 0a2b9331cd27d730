"""Creating objects whose content is a pure function of the log."""

from __future__ import annotations

from txlog.core.effects import Program, PutIfAbsent, PutOutcome, Sleep
from txlog.errors import OutcomeUnknownError
from txlog.protocol.context import Context


def put_pure(ctx: Context, path: str, data: bytes) -> Program[None]:
    """Creates `path`: whoever wins, equivalent bytes lie there. Raises OutcomeUnknownError after `max_settles` tries."""
    for attempt in range(ctx.max_settles):
        if (yield PutIfAbsent(path, data)) is not PutOutcome.UNKNOWN:
            return
        yield Sleep(ctx.backoff_ms(attempt))
    raise OutcomeUnknownError(f"{path}: the store did not say in {ctx.max_settles} tries whether it was created")
