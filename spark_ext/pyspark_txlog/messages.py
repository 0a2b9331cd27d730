"""What does a user of Spark see of an error?

Spark shows the whole Python traceback of whatever a data source raises. A user's mistake needs none: it is raised anew
here, at the data source's own boundary, so that type and message are what remains to be read.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from txlog.errors import CorruptLogError, TxlogError

P = ParamSpec("P")
R = TypeVar("R")


def plain_errors(call: Callable[P, R]) -> Callable[P, R]:
    """`call`, its TxlogErrors without the frames and causes below; corruption keeps them."""

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
    """To the driver's console: Spark hands on what its Python workers print to standard error."""
    print(f"txlog: {text}", file=sys.stderr, flush=True)
