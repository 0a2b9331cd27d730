"""How does a failure look, and with which status does the program exit?

An error of the user's, or of the store's, is one message on the standard error, and a status that tells the caller's
next move. In JSON mode the message is a document too. A traceback means a bug.
"""

from __future__ import annotations

import os
import sys

import typer

from txlog.cli.documents import ErrorDocument
from txlog.cli.output import OutputFormat, encode_line
from txlog.errors import (
    CorruptLogError,
    FencedError,
    InvalidRequestError,
    OutcomeUnknownError,
    RetriableError,
    TxlogError,
)

_STATUS: tuple[tuple[type[TxlogError], int], ...] = (
    (InvalidRequestError, 2),
    (FencedError, 3),
    (CorruptLogError, 4),
    (RetriableError, 5),
    (OutcomeUnknownError, 5),
    (TxlogError, 1),
)
STATUS_WORDS = (
    "Exit status: 0 done, 2 the call was wrong, 3 fenced by another instance, 4 stored bytes are damaged, "
    "5 the same call may succeed later, 1 anything else."
)
INTERRUPTED = 130
"""What a shell reports for a program that Ctrl-C ended."""
BROKEN_PIPE = 141
"""Likewise, for one whose reader was gone."""


def exit_status(error: TxlogError) -> int:
    """The status of the group that the error belongs to."""
    return next(status for kind, status in _STATUS if isinstance(error, kind))


def report(error: TxlogError, output: OutputFormat) -> int:
    """Shows an error on the standard error; its exit status."""
    notes = tuple(getattr(error, "__notes__", ()))
    if output is OutputFormat.JSON:
        status = exit_status(error)
        document = ErrorDocument(error=type(error).__name__, message=str(error), status=status, notes=notes)
        sys.stderr.write(encode_line(document))
    else:
        complain(str(error), *notes)
    return exit_status(error)


def reader_is_gone() -> int:
    """Has nothing more written to a closed pipe; the exit status."""
    # Python would complain once more when it flushes at its end.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return BROKEN_PIPE


def complain(message: str, *notes: str) -> None:
    """A message, and notes below it, on the standard error."""
    sys.stdout.flush()
    typer.echo(typer.style("Error: ", fg="red", bold=True) + message, err=True)
    for note in notes:
        typer.echo(note, err=True)
