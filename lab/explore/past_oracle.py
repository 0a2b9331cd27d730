"""Is a snapshot of the past what it claims? A judge that shares no code with the shipped one."""

from __future__ import annotations

from collections.abc import Mapping

from lab.explore.client import Note
from lab.explore.oracle import Truth
from txlog.core.names import TopicPartition


def wrong_past(truths: Mapping[TopicPartition, Truth], note: Note, earlier: tuple[Note, ...]) -> str | None:
    """Return the fault of a snapshot of the past, given those that the same client took before."""
    times = {
        (tp, word): truth.stored[number].record.timestamp
        for tp, truth in truths.items()
        for number, each in enumerate(truth.stored)
        for offset, word in truth.words.items()
        if each.record.base_offset <= offset < each.record.end_offset
    }
    late = [each for each in note.words if times[each] > note.end]
    if late:
        return f"17 snapshots: {late} were appended later than the time of the snapshot"
    shown = {word for _, word in note.words}
    if not shown.issuperset(note.text.split()):
        return (
            f"17 snapshots: {note.text!r} was committed before the time of the snapshot, and it shows {sorted(shown)}"
        )
    before = {word for each in earlier for word in each.words}
    gone = {
        each for each in before - set(note.words) if each[1] in truths[each[0]].kept(truths[each[0]].stable).values()
    }
    return f"17 snapshots: {sorted(gone)} were shown for this time before" if gone else None
