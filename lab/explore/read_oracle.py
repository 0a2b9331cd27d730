"""Was a reader given the rows that are due to it? An erasure may take its rows at any time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lab.explore.client import Note
from lab.explore.eraser import is_erased
from lab.explore.keys import Compacted, wrong_rows
from lab.explore.oracle import Truth


def wrong_read(note: Note, truth: Truth, policy: Compacted | None, *, erased: bool) -> str | None:
    """Return the fault of a read; `policy` is that of a compacted partition."""
    # These rows existed before retention removed them.
    rows = truth.committed if note.text == "read_committed" else truth.words
    there = {at: word for at, word in sorted(rows.items()) if note.offset <= at < note.end}
    expected = tuple(due(there, dict(note.rows), erased=erased).items())
    if policy is not None and note.text == "read_committed":
        what = wrong_rows(dict(note.rows), dict(expected), truth.stable, policy)
        return None if what is None else f"6 stable: {note.tp}: a reader of [{note.offset}, {note.end}): {what}"
    if note.text == "read_committed" and note.rows != expected:
        return f"6 stable: {note.tp}: a reader was given {note.rows} for offsets {note.offset} to {note.end}, and it is {expected}"
    if note.text == "read_uncommitted" and not set(note.rows) <= set(expected):
        return f"6 stable: {note.tp}: a reader was given {note.rows} for offsets {note.offset} to {note.end}, and the log holds {expected}"
    return None


def due(rows: Mapping[int, str], shown: Mapping[int, str], *, erased: bool) -> dict[int, str]:
    """Return `rows`, of which a reader was shown these, without those that an erasure may have taken."""
    return {at: word for at, word in rows.items() if at in shown or not (erased and is_erased(word))}


def shown_again(notes: Sequence[Note]) -> str | None:
    """Return the fault of the last of the notes of a client, if it looks at rows that are erased when it begins (R23)."""
    *earlier, last = notes
    left = [word for _, word in last.words if is_erased(word)] if last.kind == "looked" else []
    if left and any(each.kind == "erased" for each in earlier):
        return f"13 clean-up: {left} were erased, and a reader that began later was shown them"
    return None


def erased_rows(shown: Mapping[int, str]) -> dict[int, str]:
    """Return the rows that no reader sees after an erasure: those that were in the log when it began, and those whose
    transaction was decided (C15)."""
    return {at: word for at, word in shown.items() if is_erased(word)}
