"""How is a failure shown, and with which status does the program exit?

An error of the user or of the store is one message on the standard error, and an exit status that tells the caller what
to do next. In JSON mode the message is a document. A traceback means a bug.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import typer

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
    split_hint,
)

LOOK = 4
"""Stop and look: a stored object is damaged, or rows may be written twice."""
_REPEAT = 5
_STATUS: tuple[tuple[type[TxlogError], int], ...] = (
    (InvalidRequestError, 2),
    (FencedError, 3),
    # A partition may refuse the old epoch before the coordinator reports the fencing. That is a race, so both have
    # status 3.
    (InvalidProducerEpochError, 3),
    # Here only a group's member commits under a condition, so another consumer is the member now.
    (CommitFailedError, 3),
    (CorruptLogError, LOOK),
    (RetriableError, _REPEAT),
    (OutcomeUnknownError, _REPEAT),
    (TxlogError, 1),
)
STATUS_WORDS = (
    "Exit status: 0 done, 2 the call was wrong, 3 fenced by another instance, 4 stop and look (stored bytes are "
    "damaged, or a repeated `produce` could write rows twice), 5 the same call may succeed later, 1 anything else; "
    "130 ended by Ctrl-C, 143 by SIGTERM."
)
INTERRUPTED = 130
"""The status that a shell reports for a program that Ctrl-C ended."""
BROKEN_PIPE = 141
"""The same for a program whose reader has closed the pipe."""


def exit_status(error: TxlogError, *, repeatable: bool = True) -> int:
    """Return the exit status of the error's group, which tells the caller what to do next.

    If a command is not `repeatable`, a second run might do its work twice, so the status never asks for a retry.
    """
    status = next(status for kind, status in _STATUS if isinstance(error, kind))
    return status if repeatable or status != _REPEAT else LOOK


def report(error: TxlogError, output: OutputFormat, *, repeatable: bool = True) -> int:
    """Show an error on the standard error, and return its exit status."""
    status, notes = exit_status(error, repeatable=repeatable), notes_of(error)
    if output is OutputFormat.JSON:
        _write_document(error, status)
    else:
        complain(str(error), *notes)
    return status


def report_interrupt(interrupt: Interrupted, output: OutputFormat) -> int:
    """Show on the standard error what became of the work, if that is known, and return the exit status."""
    if output is OutputFormat.JSON and str(interrupt):
        _write_document(interrupt, interrupt.status)
    elif str(interrupt):
        sys.stdout.flush()
        for line in (str(interrupt), *notes_of(interrupt)):
            typer.echo(line, err=True)
    return interrupt.status


def raise_first(failed: Sequence[TxlogError]) -> None:
    """Raise the first error, if there is one, and add the others as its notes, with their own notes."""
    if failed:
        for other in failed[1:]:
            for text in (str(other), *notes_of(other)):
                failed[0].add_note(text)
        raise failed[0]


def notes_of(error: BaseException) -> tuple[str, ...]:
    """Return the notes that were added to an error."""
    return tuple(getattr(error, "__notes__", ()))


def reader_is_gone() -> int:
    """Stop all output to a closed pipe, and return the exit status."""
    # Otherwise Python prints one more error when it flushes at its end.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return BROKEN_PIPE


def complain(message: str, *notes: str) -> None:
    """Print a message to the standard error, and below it its hint and the notes."""
    problem, hint = split_hint(message)
    sys.stdout.flush()
    typer.echo(typer.style("Error: ", fg="red", bold=True) + problem, err=True)
    for line in (*([f"  hint: {hint}"] if hint else []), *notes):
        typer.echo(line, err=True)


def _write_document(error: BaseException, status: int) -> None:
    # A local import, because most commands load no documents, or do not fail.
    from txlog.cli.documents import ErrorDocument

    problem, hint = split_hint(str(error))
    document = ErrorDocument(
        error=type(error).__name__, message=problem, hint=hint, status=status, notes=notes_of(error)
    )
    sys.stderr.write(encode_line(document))
