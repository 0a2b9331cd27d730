"""What does an object say that another program may have written, and that may say anything?

Objects of formats carry no checksum of txlog, and other programs have the permission to write them. Such an object is
read here only. Whatever its bytes are, the caller gets a value of the type that it expects, or the documented error.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec

from txlog.errors import TxlogError

T = TypeVar("T")

MAX_NUMBER = 2**63 - 1


def json_object(data: bytes) -> dict[str, Any]:
    """Return the JSON object in `data`; an empty one if there is none."""
    try:
        value = json.loads(data)
    except Exception:
        # ValueError in most cases, but also RecursionError and what a later json.loads raises.
        return {}
    return value if isinstance(value, dict) else {}


def as_type(value: object, kind: type[T]) -> T | None:
    """Return a value out of JSON as `kind`; None if it is of another type."""
    try:
        return msgspec.convert(value, kind)
    except Exception:
        # A number without an end, as 1e999, is not a ValidationError in each version of msgspec.
        return None


def whole_number(value: object) -> int | None:
    """Return a number of JSON that counts something; None for any other value."""
    return value if type(value) is int and 0 <= value <= MAX_NUMBER else None


@contextmanager
def foreign(conflict: Callable[[], TxlogError]) -> Iterator[None]:
    """Raise `conflict()` for whatever a library of a format raises about an object."""
    try:
        yield
    except TxlogError:
        raise
    except Exception as error:
        raise conflict() from error
