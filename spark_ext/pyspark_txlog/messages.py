"""Which part of an error, and which log records, does a user of Spark see?

Spark shows the whole Python traceback of an error that a data source raises. For a user's mistake the traceback does
not help. So it is raised again here, at the data source's own boundary, and only its type and message remain.

Spark runs most of a data source in separate Python processes, in which a program cannot set logging up. There, warnings
go to standard error, which Spark copies to the log of its driver or executor.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar, Unpack

from pyspark_txlog.worker import is_python_worker
from txlog import logs
from txlog.errors import CorruptLogError, TxlogError

P = ParamSpec("P")
R = TypeVar("R")
E = TypeVar("E", bound=TxlogError)


_INTERRUPTS = (
    "java.lang.InterruptedException",
    "java.io.InterruptedIOException",
    "java.nio.channels.ClosedByInterruptException",
)
"""What Spark takes for the interrupt of a `stop()`."""
_JAVA_CHARACTERS = 1000
"""Spark's expression needs some hundred bytes of its stack for each character."""


MARK = "txlog topic"
"""Alias of the frames that are read natively. Plans show it, and columns can be named without it."""


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


def short_java_errors(call: Callable[P, R]) -> Callable[P, R]:
    """Wrap a function for `foreachBatch` so that an error out of Java has no stack trace of Java.

    Spark looks in the error's text for the interrupt of a `stop()`, with an expression that recurses for each character
    after py4j's first line. A stack trace there ends in a StackOverflowError.
    """

    @wraps(call)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return call(*args, **kwargs)
        except Exception as error:
            java = _java_error(error)
            if java is None:
                raise
            text = str(java)
            interrupt = next((name for name in _INTERRUPTS if name in text), None)
            if interrupt is None and java is not error:
                raise error from None
            lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("at ")]
            said = f"{lines[0]} {interrupt}" if interrupt else "\n".join(lines)[:_JAVA_CHARACTERS]
            raise RuntimeError(f"py4j.protocol.Py4JJavaError: {said}") from None

    return wrapped


def _java_error(error: BaseException | None) -> BaseException | None:
    """Return the error out of Java that is the error itself, or led to it."""
    # Imported here because py4j does not exist without a JVM.
    from py4j.protocol import Py4JJavaError

    while error is not None and not isinstance(error, Py4JJavaError):
        error = error.__cause__ or error.__context__
    return error


def say(text: str) -> None:
    """Print the progress of a command to standard error."""
    print(f"txlog: {text}", file=sys.stderr, flush=True)


def mismatch(logger: logging.Logger, found: E, /, **fields: Unpack[logs.Fields]) -> E:
    """Log that a checkpoint does not fit the store, and return the error `found`."""
    logs.log(logger, logging.WARNING, "checkpoint_mismatch", "%s", found, **fields)
    return found


# PySpark's JSON formatter shows the fields of a record that are in this dictionary, and no others.
logs.also_as("context")
if is_python_worker():
    logs.print_from(logging.WARNING)
