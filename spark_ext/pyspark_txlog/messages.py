"""Which part of an error does a user of Spark see?

Spark shows the whole Python traceback of an error that a data source raises. For a user's mistake the traceback does
not help. So it is raised again here, at the data source's own boundary, and only its type and message remain.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from txlog.errors import CorruptLogError, TxlogError

P = ParamSpec("P")
R = TypeVar("R")


class NotNativeError(Exception):
    """The Python data source must do a call of `format("txlog")`; the text says why."""


def plain_errors(call: Callable[P, R]) -> Callable[P, R]:
    """Wrap `call` so that its TxlogErrors lose their inner frames and causes; corruption errors keep them."""

    @wraps(call)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return call(*args, **kwargs)
        except CorruptLogError:
            raise
        except TxlogError as error:
            raise error.with_traceback(None) from None

    return wrapped


def say(text: str) -> None:
    """Print to the driver's console: Spark forwards what its Python workers print to standard error."""
    print(f"txlog: {text}", file=sys.stderr, flush=True)
