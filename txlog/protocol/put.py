"""How is an object created exactly once, and how does its writer learn the outcome?

Every create-only object is created by `create`, `create_or_read` or `put_pure` (PROTOCOL.md, "Appending", W12, W13).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from txlog.core import envelope
from txlog.core.effects import Get, Program, PutIfAbsent, PutOutcome, Sleep
from txlog.errors import CorruptLogError, OutcomeUnknownError, RecordTooLargeError, TxlogError
from txlog.protocol.context import Context

T = TypeVar("T")

MAX_DAMAGED_READS = 3
"""How often a damaged object that settles a write is read again. Damage in transit disappears, damage in the store does
not."""


def create(
    ctx: Context, path: str, data: bytes, look: Callable[[PutOutcome], Program[T | None]], *, what: str
) -> Program[T]:
    """Create `path` (W1) and return the result of `look` for the outcome. None from `look` means: not known yet.

    Raises the error of the first request if the store refused it: then nothing was written. After the first answer, a
    request that fails or returns damage settles nothing and is made again. Raises OutcomeUnknownError after
    `max_settles` tries, or if the object at `path` stays damaged. Nothing is deleted then, and only the same call may
    follow (W13). `what` names the write in that message.
    """
    sent = False
    damaged = 0
    met = ""
    for attempt in range(ctx.max_settles):
        try:
            outcome = yield PutIfAbsent(path, data)
            sent = True
            found = yield from look(outcome)
            if found is not None:
                return found
        except TxlogError as error:
            if not sent:
                raise
            met = f" (the last request: {error})"
            damaged += isinstance(error, CorruptLogError)
            if damaged == MAX_DAMAGED_READS:
                raise OutcomeUnknownError(
                    f"{path}: it is unknown whether {what} was created, because the object there is "
                    f"damaged: {error.problem}. "
                    "hint: repair it, then repeat the same call"
                ) from error
        yield Sleep(ctx.backoff_ms(attempt))
    raise OutcomeUnknownError(
        f"{path}: the store did not say in {ctx.max_settles} tries whether {what} was "
        f"created{met}, and it may still land. "
        "hint: repeat the same call; do not delete the files that it names"
    )


def create_or_read(ctx: Context, path: str, data: bytes, read: Callable[[bytes], T], *, what: str) -> Program[T]:
    """Create an object that another process may create with other bytes. Return `read` of the one that is there.

    Raises as `create`.
    """

    def look(outcome: PutOutcome) -> Program[T | None]:
        stored: bytes | None = data if outcome is PutOutcome.WRITTEN else (yield Get(path))
        return None if stored is None else read(stored)

    return (yield from create(ctx, path, data, look, what=what))


def put_pure(ctx: Context, path: str, data: bytes) -> Program[None]:
    """Create an object whose content is a pure function of the log.

    Whichever process wins, equivalent bytes are stored. Raises as `create`.
    """

    def look(outcome: PutOutcome) -> Program[bool | None]:
        yield from ()
        return None if outcome is PutOutcome.UNKNOWN else True

    yield from create(ctx, path, data, look, what="it")


def encode_readable(
    path: str, value: msgspec.Struct, *, instead: str = "what it would replace stays as it is"
) -> bytes:
    """Return the stored form, if readers accept its size (W5, W37).

    If readers refused an `.index`, the partition would be unreadable. Raises RecordTooLargeError. Its message contains
    `instead`: what happens then.
    """
    data = envelope.encode(value)
    if len(data) > envelope.MAX_OBJECT_BYTES:
        raise RecordTooLargeError(
            f"{path}: would have {len(data)} bytes, more than the {envelope.MAX_OBJECT_BYTES} that readers take, so "
            f"{instead}; nothing is lost, and appends and reads go on"
        )
    return data
