"""How does a failure look, and with which status does the program exit?

An error of the user's, or of the store's, is one message on the standard error, and a status that tells the caller's
next move. In JSON mode the message is a document too. A traceback means a bug.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import typer

from txlog.cli.documents import ErrorDocument
from txlog.cli.interrupts import Interrupted
from txlog.cli.output import OutputFormat, encode_line
from txlog.errors import (
    CommitFailedError,
    CorruptLogError,
    FencedError,
    InvalidProducerEpochError,
    InvalidRequestError,
    OutcomeUnknownError,
    RetriableError,
    TxlogError,
)

LOOK = 4
"""Stop and look: something that is stored is damaged, or may be written twice."""
_REPEAT = 5
_STATUS: tuple[tuple[type[TxlogError], int], ...] = (
    (InvalidRequestError, 2),
    (FencedError, 3),
    # What fenced it was met in a partition before the coordinator could say so; a race, so the status may not depend on it.
    (InvalidProducerEpochError, 3),
    # Nobody but a group's member commits under a condition here: another one has the group.
    (CommitFailedError, 3),
    (CorruptLogError, LOOK),
    (RetriableError, _REPEAT),
    (OutcomeUnknownError, _REPEAT),
    (TxlogError, 1),
)
STATUS_WORDS = (
    "Exit status: 0 done, 2 the call was wrong, 3 fenced by another instance, 4 stop and look (stored bytes are damaged, "
    "or a repeated `produce` could write rows twice), 5 the same call may succeed later, 1 anything else; "
    "130 ended by Ctrl-C, 143 by SIGTERM."
)
INTERRUPTED = 130
"""What a shell reports for a program that Ctrl-C ended."""
BROKEN_PIPE = 141
"""Likewise, for one whose reader was gone."""


def exit_status(error: TxlogError, *, repeatable: bool = True) -> int:
    """The status of the group that the error belongs to: of the next move.

    A command that is not `repeatable` did what a second run would do again, or may have: that is no case for a retry.
    """
    status = next(status for kind, status in _STATUS if isinstance(error, kind))
    return status if repeatable or status != _REPEAT else LOOK


def report(error: TxlogError, output: OutputFormat, *, repeatable: bool = True) -> int:
    """Shows an error on the standard error; its exit status."""
    status, notes = exit_status(error, repeatable=repeatable), _notes(error)
    if output is OutputFormat.JSON:
        _write_document(error, status)
    else:
        complain(str(error), *notes)
    return status


def report_interrupt(interrupt: Interrupted, output: OutputFormat) -> int:
    """Says on the standard error what became of the work, if there is something to say; the exit status."""
    if output is OutputFormat.JSON and str(interrupt):
        _write_document(interrupt, interrupt.status)
    elif str(interrupt):
        sys.stdout.flush()
        for line in (str(interrupt), *_notes(interrupt)):
            typer.echo(line, err=True)
    return interrupt.status


def raise_first(failed: Sequence[TxlogError]) -> None:
    """Raises the first error, if there is one, and tells the others in its notes."""
    if failed:
        for other in failed[1:]:
            failed[0].add_note(str(other))
        raise failed[0]


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


def _write_document(error: BaseException, status: int) -> None:
    document = ErrorDocument(error=type(error).__name__, message=str(error), status=status, notes=_notes(error))
    sys.stderr.write(encode_line(document))


def _notes(error: BaseException) -> tuple[str, ...]:
    return tuple(getattr(error, "__notes__", ()))
